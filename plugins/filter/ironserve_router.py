# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filter that says under which URL routers know a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve.routers import worker_url


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """``{{ ironserve_address | ironserve_worker_url(release.port) }}``."""
        return {"ironserve_worker_url": lambda address, port: worker_url(str(address), int(port))}
