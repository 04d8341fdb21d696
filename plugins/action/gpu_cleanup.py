# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Drives the module of the same name in slices and says what was done; the module's page documents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import remote, slices

SLICE_S = 5.0
"""Short, as a takeover's: an old server is gone while the new one is not there yet."""


class ActionModule(ActionBase):
    """Call the module slice by slice."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run slices until there is a state, then say what was done."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)

        def execute(cursor: dict[str, Any]) -> dict[str, Any]:
            call = {**arguments, "slice_s": SLICE_S, "cursor": cursor}
            answer: dict[str, Any] = self._execute_module("gpu_cleanup", module_args=call, task_vars=task_vars)
            return answer

        say, host = Display().display, (task_vars or {})["inventory_hostname"]
        link = remote.link(task_vars or {}, self._templar.template, AnsibleConnectionFailure)

        def work() -> dict[str, Any]:
            self._low_level_execute_command("true", sudoable=False)  # a host that cannot be reached is told at once
            return slices.drive(execute, say, host, "cleanup", link.lost, link.reconnect_timeout_s)

        done = link.attempt("its GPUs were being freed", work)
        done.pop("slice", None)
        for action in done.get("actions", []):
            say(f"[{host}] cleanup: {'would ' if self._task.check_mode else ''}{action}")
        for problem in done.get("problems", []):
            say(f"[{host}] cleanup: {problem}")
        if done.get("freed_mib"):
            say(f"[{host}] cleanup: {done['freed_mib']} MiB of GPU memory free after {done['elapsed_s']:.1f} s")
        return {**result, **done}
