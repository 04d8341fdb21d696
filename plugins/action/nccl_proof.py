# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Adds what the engine itself sets to a proof of its collectives, and says what comes of it; see the module's page."""

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

from ansible.module_utils.ironserve import knowledge, lock, nccl_env, remote, slices
from ansible.module_utils.ironserve.findings import Case


class ActionModule(ActionBase):
    """Call the module with the variables that a server of this release would have."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The proof, with a line before it, since it may take minutes, and one after it."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        release, host = arguments["release"], (task_vars or {})["inventory_hostname"]
        packages = lock.load(Path(release["lock"]["folder"])).packages
        engine_env = nccl_env.engine_env(Case(host, release, packages=packages), knowledge.nccl(ROOT))
        arguments["engine_env"] = {**engine_env, **arguments.get("engine_env", {})}
        say, whose = Display().display, f"[{host}] {release['service']}"
        if not self._task.check_mode:
            say(f"{whose}: proving that its ranks can all-reduce: a minute or two, most of it to import PyTorch")

        def execute(_cursor: dict[str, Any]) -> dict[str, Any]:
            answer: dict[str, Any] = self._execute_module("nccl_proof", module_args=arguments, task_vars=task_vars)
            return answer

        # A second call ends what the one that was cut off left behind, and begins anew.
        subject = f"proof of {release['service']}"
        link = remote.link(task_vars or {}, self._templar.template, AnsibleConnectionFailure)

        def work() -> dict[str, Any]:
            return slices.drive(execute, say, host, subject, link.lost, link.reconnect_timeout_s)

        done = link.attempt(f"the all-reduce of {release['service']} was being proven", work)
        say(f"{whose}: {done.get('msg', 'no answer')}")
        return {**result, **done}
