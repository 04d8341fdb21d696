# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Drives the module of the same name in slices and says what was done; the module's page documents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve.sliced import SlicedAction

SLICE_S = 5.0
"""Short, as a takeover's: an old server is gone while the new one is not there yet."""


class ActionModule(SlicedAction):
    """Call the module slice by slice."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run slices until there is a state, then say what was done."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        execute = self.slices_of("gpu_cleanup", dict(self._task.args), task_vars, SLICE_S)
        done = self.drive(execute, task_vars, "cleanup", "its GPUs were being freed")
        subject = f"[{(task_vars or {})['inventory_hostname']}] cleanup"
        self.say_done(subject, done)
        for problem in done.get("problems", []):
            self.say(f"{subject}: {problem}")
        if done.get("freed_mib"):
            self.say(f"{subject}: {done['freed_mib']} MiB of GPU memory free after {done['elapsed_s']:.1f} s")
        return {**result, **done}
