# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Reads the lock, drives the module of the same name in slices, brings uv; the module's page documents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import lock, slices

OPTIONS = ("wheelhouse", "index_url", "root", "timeout_s")


def arguments_of(found: lock.Lock, uv: lock.Uv) -> dict[str, Any]:
    """The module's arguments that a lock decides."""
    machine = found.spec.machine
    if machine not in uv.wheels:
        raise lock.LockError(f"environments/uv.yml has no wheel of uv for {machine}")
    return {
        "lock_id": found.id,
        "python": found.spec.python,
        "platform": found.spec.platform,
        "requirements": found.text,
        "installed_mib": found.spec.installed_mib,
        "uv": {"version": uv.version, **uv.wheels[machine]},
    }


class ActionModule(ActionBase):
    """Call the module slice by slice."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run slices until the environment is there."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        found, arguments = self._arguments()

        def execute(cursor: dict[str, Any]) -> dict[str, Any]:
            call = {**arguments, "slice_s": slices.SLICE_S, "cursor": cursor}
            answer = self._module(call, task_vars)
            return self._module_with_uv(call, answer["uv_wanted"], task_vars) if "uv_wanted" in answer else answer

        if not self._task.check_mode:  # a build is worth waiting for; a host that cannot be reached is told at once
            self._low_level_execute_command("true", sudoable=False)
        host = (task_vars or {})["inventory_hostname"]
        lost = () if self._task.check_mode else AnsibleConnectionFailure
        done = slices.drive(execute, Display().display, host, found.spec.name, lost=lost)
        done.pop("slice", None)
        return {**result, **done}

    def _arguments(self) -> tuple[lock.Lock, dict[str, Any]]:
        given = {name: value for name, value in self._task.args.items() if value not in (None, "")}
        if "lock" not in given or not set(given) <= {"lock", *OPTIONS}:
            raise AnsibleActionFail(
                f"engine_environment takes lock (required), {', '.join(OPTIONS)}; got {sorted(given)}"
            )
        try:
            found = lock.load(lock.find(str(given.pop("lock")), ROOT))
            arguments = {**given, **arguments_of(found, lock.load_uv(ROOT / "environments" / "uv.yml"))}
        except lock.LockError as error:
            raise AnsibleActionFail(str(error)) from error
        if found.wheelhouse_only and "wheelhouse" not in given:
            raise AnsibleActionFail(
                f"{found.id} needs a wheelhouse: no package index has its {', '.join(found.wheelhouse_only)}. Fill one "
                f"with tools/wheelhouse.py, show it to the host, and say where in engine_environment_wheelhouse."
            )
        return found, arguments

    def _module(self, call: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module("engine_environment", module_args=call, task_vars=task_vars)
        return answer

    def _module_with_uv(self, call: dict[str, Any], file: str, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Bring uv's wheel from the controller, and call again."""
        wheel = ROOT / ".ironserve" / "wheelhouse" / "uv" / file
        if not wheel.exists():
            raise AnsibleActionFail(
                f"neither the host nor {wheel} has uv: run tools/wheelhouse.py here, without a lock"
            )
        folder = self._make_tmp_path()
        try:
            remote = self._transfer_file(str(wheel), self._connection._shell.join_path(folder, file))
            return self._module({**call, "uv_wheel": remote}, task_vars)
        finally:
            self._remove_tmp_path(folder)
