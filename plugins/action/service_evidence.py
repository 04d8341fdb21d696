# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Gives the module of the same name the phases that an engine's log tells; the module's page documents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import knowledge


class ActionModule(ActionBase):
    """Call the module once."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        call = {**self._task.args, "phases": knowledge.phases(ROOT)}
        return {**result, **self._execute_module("service_evidence", module_args=call, task_vars=task_vars)}
