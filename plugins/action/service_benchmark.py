# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Drives the module of the same name in slices and says how far it is; the module's page documents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import lock
from ansible.module_utils.ironserve.sliced import SlicedAction


def client_of(found: lock.Lock) -> dict[str, str]:
    """What a record says of the client whose lock this is."""
    return {"name": found.spec.engine, "version": found.spec.engine_version, "lock_id": found.id}


class ActionModule(SlicedAction):
    """Call the module slice by slice."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run slices until it is measured. In the place of ``client`` it takes ``lock``, the name of the client's."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        service, host = arguments.get("service"), (task_vars or {})["inventory_hostname"]
        if "lock" in arguments:
            try:
                arguments["client"] = client_of(lock.load(lock.find(str(arguments.pop("lock")), ROOT)))
            except lock.LockError as error:
                raise AnsibleActionFail(str(error)) from error
        execute = self.slices_of("service_benchmark", arguments, task_vars)
        done = self.drive(execute, task_vars, str(service), f"{service} was being measured")
        self.say(f"[{host}] {service}: {done.get('msg', 'no answer')}")
        return {**result, **done}
