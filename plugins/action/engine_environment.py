# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Reads the lock, drives the module of the same name in slices, brings uv; the module's page documents it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import lock
from ansible.module_utils.ironserve.sliced import SlicedAction

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


class ActionModule(SlicedAction):
    """Call the module slice by slice."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run slices until the environment is there."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        found, arguments = self._arguments()
        ask = self.slices_of("engine_environment", arguments, task_vars)

        def execute(cursor: dict[str, Any]) -> dict[str, Any]:
            answer = ask(cursor)
            if "uv_wanted" not in answer:
                return answer
            with self._uv(answer["uv_wanted"]) as wheel:
                return self.slices_of("engine_environment", {**arguments, "uv_wheel": wheel}, task_vars)(cursor)

        name = found.spec.name
        return {**result, **self.drive(execute, task_vars, name, f"environment {name} was being built")}

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

    @contextmanager
    def _uv(self, file: str) -> Iterator[str]:
        """Bring the controller's wheel of uv to the host, for as long as it is needed."""
        wheel = ROOT / ".ironserve" / "wheelhouse" / "uv" / file
        if not wheel.exists():
            raise AnsibleActionFail(
                f"neither the host nor {wheel} has uv: run tools/wheelhouse.py here, without a lock"
            )
        folder = self._make_tmp_path()
        try:
            yield self._transfer_file(str(wheel), self._connection._shell.join_path(folder, file))
        finally:
            self._remove_tmp_path(folder)
