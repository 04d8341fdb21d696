# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs the module of the same name; in a roll it waits for a host that comes back. The module's page documents it."""

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

DOING = {
    "present": "{} was being staged",
    "active": "{} was being activated",
    "proven": "{} was being marked as proven",
    "reverted": "{} was being put back",
    "absent": "{} was being removed",
}


class ActionModule(ActionBase):
    """Call the module; where a lost connection is to be a failure, again while the host is away.

    A second call finishes what the first one began.
    """

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """One call, or in a roll as many as it takes to get an answer."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)

        def execute(_cursor: dict[str, Any]) -> dict[str, Any]:
            answer: dict[str, Any] = self._execute_module(
                "inference_release", module_args=arguments, task_vars=task_vars
            )
            return answer

        link = remote.link(task_vars or {}, self._templar.template, AnsibleConnectionFailure)
        if not link.fails:
            return {**result, **execute({})}
        say, host, service = Display().display, (task_vars or {})["inventory_hostname"], str(arguments.get("service"))

        def work() -> dict[str, Any]:
            self._low_level_execute_command("true", sudoable=False)  # a host that cannot be reached is told at once
            return slices.drive(execute, say, host, service, link.lost, link.reconnect_timeout_s)

        doing = DOING.get(str(arguments.get("state", "active")), "{} was being looked at").format(service)
        return {**result, **link.attempt(doing, work)}
