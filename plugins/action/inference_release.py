# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs the module of the same name; in a roll it waits for a host that comes back. The module's page documents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import remote
from ansible.module_utils.ironserve.sliced import SlicedAction

DOING = {
    "present": "{} was being staged",
    "active": "{} was being activated",
    "proven": "{} was being marked as proven",
    "reverted": "{} was being put back",
    "absent": "{} was being removed",
}


class ActionModule(SlicedAction):
    """Call the module; where a lost connection is to be a failure, again while the host is away."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """One call, or in a roll as many as it takes to get an answer."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)

        def execute(_cursor: dict[str, Any]) -> dict[str, Any]:
            return self.call("inference_release", arguments, task_vars)

        if not remote.lost_fails(task_vars or {}, self._templar.template):
            return {**result, **execute({})}
        service = str(arguments.get("service"))
        doing = DOING.get(str(arguments.get("state", "active")), "{} was being looked at").format(service)
        return {**result, **self.drive(execute, task_vars, service, doing)}
