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

from ansible.module_utils.ironserve import knowledge, slices
from ansible.module_utils.ironserve.sliced import SlicedAction


class ActionModule(SlicedAction):
    """Call the module slice by slice."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run slices until the module is done."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if arguments.get("state", "started") == "started":
            arguments["causes"] = knowledge.causes(ROOT)
        variables, service = task_vars or {}, str(arguments.get("service"))
        host = variables["inventory_hostname"]
        # Of a release that is put back role serve says so: "main put back", beside the one that failed.
        subject = str(self._templar.template(variables.get("serve__gate_of", service)))
        doing = f"{service} was {'stopping' if arguments.get('state') == 'stopped' else 'starting'}"
        done = self.drive(self.slices_of("inference_service", arguments, task_vars), task_vars, subject, doing)
        if done.get("verdict") == "ready" and "ready" in done.get("timings", {}):
            self.say(f"[{host}] {subject}: ready after {slices.duration(done['timings']['ready'])}")
        return {**result, **done}
