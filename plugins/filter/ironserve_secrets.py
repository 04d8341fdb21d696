# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""The filter that brings a service's secrets to the modules, beside its release and never in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import secrets


def of_release(release: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Where each secret goes; ``variables`` has ``api_key``, ``secret_env`` and ``secret_flags``."""
    texts = {key: {name: str(text) for name, text in variables[key].items()} for key in ("secret_env", "secret_flags")}
    return secrets.place(str(release["engine"]), str(variables["api_key"]), texts["secret_env"], texts["secret_flags"])


class FilterModule:
    """The filter by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Used by role serve."""
        return {"ironserve_secrets": of_release}
