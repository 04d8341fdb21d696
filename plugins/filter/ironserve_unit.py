# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filters of the unit template: quoting by systemd's rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import systemd


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """For a plain text, for argv as a list, and for one ``NAME=value``."""
        return {
            "ironserve_unit_text": systemd.text,
            "ironserve_unit_argv": systemd.exec_line,
            "ironserve_unit_variable": systemd.quoted,
        }
