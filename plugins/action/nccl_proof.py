# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Adds what the engine itself sets to a proof of its collectives, and says what comes of it; see the module's page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import knowledge, lock, nccl_env
from ansible.module_utils.ironserve.findings import Case
from ansible.module_utils.ironserve.sliced import SlicedAction


class ActionModule(SlicedAction):
    """Call the module with the variables that a server of this release would have."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The proof, with a line before it, since it may take minutes, and one after it."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        release, host = arguments["release"], (task_vars or {})["inventory_hostname"]
        packages = lock.load(Path(release["lock"]["folder"])).packages
        engine_env = nccl_env.engine_env(Case(host, release, packages=packages), knowledge.nccl(ROOT))
        arguments["engine_env"] = {**engine_env, **arguments.get("engine_env", {})}
        service = release["service"]
        if not self._task.check_mode:
            what = "proving that its ranks can all-reduce: a minute or two, most of it to import PyTorch"
            self.say(f"[{host}] {service}: {what}")

        def execute(_cursor: dict[str, Any]) -> dict[str, Any]:
            return self.call("nccl_proof", arguments, task_vars)

        # A second call ends what the one that was cut off left behind, and begins anew.
        doing = f"the all-reduce of {service} was being proven"
        done = self.drive(execute, task_vars, f"proof of {service}", doing)
        self.say(f"[{host}] {service}: {done.get('msg', 'no answer')}")
        return {**result, **done}
