# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs the module of the same name; a router that cannot be reached is a failure. The module documents it."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Call the module on the router.

    It is delegated, and Ansible would call the host unreachable for which the router is asked, though nothing is wrong
    with that one.
    """

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """One call."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        try:
            answer = self._execute_module("router_worker", module_args=arguments, task_vars=task_vars)
        except AnsibleConnectionFailure as error:
            router = self._task.delegate_to or (task_vars or {})["inventory_hostname"]
            return {**result, "failed": True, "msg": f"router {router} cannot be reached: {error}"}
        return {**result, **answer}
