# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Says who this run is, and takes over from a dead one of the same controller; the module's page documents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible import context
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import lease, remote


class ActionModule(ActionBase):
    """Ask the host; where the lease is a dead run's of this controller, ask again with leave to replace it."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Take or release, and say what became of somebody else's lease."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        host, mine = variables["inventory_hostname"], lease.this_run(context.CLIARGS)
        arguments = {"inventory_name": host, **self._task.args, "holder": mine}

        def ask(replaces: str = "") -> dict[str, Any]:
            call = {**arguments, "replaces": replaces}
            answer: dict[str, Any] = self._execute_module("host_lease", module_args=call, task_vars=task_vars)
            return answer

        def take() -> dict[str, Any]:
            answer = ask()
            refused = answer.get("refused") or {}
            return ask(refused["token"]) if refused and lease.is_gone(refused, mine) else answer

        link = remote.link(variables, self._templar.template, AnsibleConnectionFailure)
        done = link.attempt("its lease was being asked for", take)
        for action in done.get("actions", []):
            if "," in action:  # it was somebody else's
                Display().display(f"[{host}] lease: {'would ' if self._task.check_mode else ''}{action}")
        return {**result, **done}
