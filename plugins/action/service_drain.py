# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Drives the module of the same name in slices and prints a line for each change; the module's page documents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve.sliced import SlicedAction


class ActionModule(SlicedAction):
    """Call the module slice by slice."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run slices until nothing is left, or the time is up."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        service = str(self._task.args.get("service"))
        execute = self.slices_of("service_drain", dict(self._task.args), task_vars)
        return {**result, **self.drive(execute, task_vars, service, f"{service} was draining")}
