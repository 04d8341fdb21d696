# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Lets the host tell what it is, and judges on the controller, where the rules are; the module's page documents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible import context
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import checks, lease

OWN = ("origins", "accept")
"""Options that stay on the controller."""


class ActionModule(ActionBase):
    """Gather with the module, then judge. What was found is no failure: a fleet is reported as one."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask the host, then the engines' parsers where nobody asked them yet, and judge."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        controller = {"hardware": arguments.get("hardware"), **{key: arguments.pop(key, None) for key in OWN}}
        host, releases = (task_vars or {})["inventory_hostname"], arguments["releases"]
        seen: dict[str, Any] = self._execute_module("host_preflight", module_args=arguments, task_vars=task_vars)
        if seen.get("failed") or seen.get("unreachable"):
            return {**result, **seen}
        facts = seen.pop("facts")
        facts["lease"] = lease.of_others(facts["lease"], lease.this_run(context.CLIARGS))
        unasked = [
            release for release in releases if facts["flags"].get(release["service"], {}).get("state") == "unasked"
        ]
        if unasked:
            engines = sorted({f"{release['engine']} {release['lock']['engine_version']}" for release in unasked})
            whose = f"the parser of {' and '.join(engines)}"
            Display().display(f"[{host}] preflight: asking {whose}, once for each command; up to a minute")
            asked = {"releases": unasked, "user": arguments.get("user", "ironserve")}
            answer = self._ask(asked, task_vars)
            if answer.get("failed") or answer.get("unreachable"):
                return {**result, **answer}
            facts["flags"].update(answer["flags"])
        return {**result, **seen, **checks.judge_host(host, releases, {**seen, "facts": facts}, controller, ROOT)}

    def _ask(self, asked: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Ask parsers, in check mode too: a plan refuses what the real run would, and only a cache is filled."""
        check_mode, self._task.check_mode = self._task.check_mode, False
        try:
            answer: dict[str, Any] = self._execute_module("engine_flags", module_args=asked, task_vars=task_vars)
        finally:
            self._task.check_mode = check_mode
        return answer
