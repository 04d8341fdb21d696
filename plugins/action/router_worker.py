# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Has a router that cannot be reached be an ordinary failure of the host whose server it is about.

Without it Ansible calls that host unreachable, and no rescue runs: its server would stay stopped.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Call the module once."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module on the router's host."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            answer = self._execute_module("router_worker", module_args=dict(self._task.args), task_vars=task_vars)
        except AnsibleConnectionFailure as error:
            return {**result, "failed": True, "msg": f"the router's host cannot be reached: {error}"}
        return {**result, **answer}
