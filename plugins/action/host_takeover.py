# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Drives the module of the same name in slices and says what was stopped; the module's page documents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve.sliced import SlicedAction

SLICE_S = 5.0
"""Shorter than those of a start: somebody waits for an old server to go while the new one is not there yet."""


class ActionModule(SlicedAction):
    """Call the module slice by slice."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run slices until the module is done, then say what is stopped now and how it comes back."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        execute = self.slices_of("host_takeover", dict(self._task.args), task_vars, SLICE_S)
        done = self.drive(execute, task_vars, "takeover", "what else holds its port or GPUs was being stopped")
        subject = f"[{(task_vars or {})['inventory_hostname']}] takeover"
        self.say_done(subject, done)
        for line in done.get("undo", []):
            self.say(f"{subject}: brought back by: {line}")
        return {**result, **done}
