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

from ansible.module_utils.ironserve import knowledge, remote, slices


class ActionModule(ActionBase):
    """Call the module slice by slice."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run slices until the module is done."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if arguments.get("state", "started") == "started":
            arguments["causes"] = knowledge.causes(ROOT)

        def execute(cursor: dict[str, Any]) -> dict[str, Any]:
            return self._module({**arguments, "slice_s": slices.SLICE_S, "cursor": cursor}, task_vars)

        host, service = (task_vars or {})["inventory_hostname"], str(arguments.get("service"))
        link = remote.link(task_vars or {}, self._templar.template, AnsibleConnectionFailure)

        def work() -> dict[str, Any]:
            self._low_level_execute_command("true", sudoable=False)  # a host that cannot be reached is told at once
            return slices.drive(execute, Display().display, host, service, link.lost, link.reconnect_timeout_s)

        done = link.attempt(f"{service} was {'stopping' if arguments.get('state') == 'stopped' else 'starting'}", work)
        done.pop("slice", None)
        if done.get("verdict") == "ready" and "ready" in done.get("timings", {}):
            Display().display(f"[{host}] {service}: ready after {slices.duration(done['timings']['ready'])}")
        return {**result, **done}

    def _module(self, call: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module("inference_service", module_args=call, task_vars=task_vars)
        return answer
