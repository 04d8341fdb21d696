# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Drives the module of the same name in slices and prints a line for each change; the module's page documents it."""

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


class ActionModule(ActionBase):
    """Call the module slice by slice."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run slices until nothing is left, or the time is up."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        host = (task_vars or {})["inventory_hostname"]

        def execute(cursor: dict[str, Any]) -> dict[str, Any]:
            call = {**arguments, "slice_s": slices.SLICE_S, "cursor": cursor}
            answer: dict[str, Any] = self._execute_module("service_drain", module_args=call, task_vars=task_vars)
            return answer

        link = remote.link(task_vars or {}, self._templar.template, AnsibleConnectionFailure)
        say, service = Display().display, str(arguments.get("service"))

        def work() -> dict[str, Any]:
            self._low_level_execute_command("true", sudoable=False)  # a host that cannot be reached is told at once
            return slices.drive(execute, say, host, service, link.lost, link.reconnect_timeout_s)

        done = link.attempt(f"{service} was draining", work)
        done.pop("slice", None)
        return {**result, **done}
