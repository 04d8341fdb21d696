# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Tells what was found on all hosts in one report, on the controller, and fails where a deploy has to stop."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_report
short_description: Tell what was found on all hosts in one report
description:
  - Runs on the controller, once, and sends nothing to any host.
  - A fault that several hosts have is told once, with their names. Errors come first.
  - Fails where any error was found that nobody accepted, and so stops a deploy before anything is touched.
options:
  judged:
    description: What C(host_preflight) returned, by host. A host that was not judged may be left out or be empty.
    type: dict
    required: true
  json:
    description: File that gets findings and considered rules by host, relative to the project.
    type: str
    required: true
  expected:
    description: Hosts that have to be judged. Where one was not, since it cannot be reached, say, that is a failure.
    type: list
    elements: str
    default: []
  tell:
    description:
      - What is told. C(errors) only what stops a deploy, which nothing accepted does, C(warnings) warnings too, and how
        many notes there are. C(all) notes too, and which rules were considered and why each fired or not.
    type: str
    choices: [errors, warnings, all]
    default: warnings
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Tell what was found, and stop where anything stands against it
  preflight_report:
    judged: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'gpu_host_judged'))) }}"
    json: .ironserve/preflight.json
  run_once: true
"""

RETURN = r"""
findings:
  description: What was found, each fault once, with its C(hosts).
  returned: success
  type: list
  elements: dict
"""

import json
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible import constants, context
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import findings, report
from ansible.module_utils.ironserve.terminal import inventories, with_inventory


class ActionModule(ActionBase):
    """Group, tell, write, and fail where it has to."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("judged", "json", "tell", "expected"))
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The report, and whether it stops the play."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        judged = {host: answer for host, answer in self._task.args["judged"].items() if "findings" in (answer or {})}
        tell = self._task.args.get("tell", "warnings")
        found = [finding for answer in judged.values() for finding in answer["findings"]]
        groups = findings.grouped(found)
        file = ROOT / self._task.args["json"]
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = {host: {key: answer[key] for key in ("findings", "considered")} for host, answer in judged.items()}
        file.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
        if tell == "all":
            Display().display(report.considered({host: judged[host]["considered"] for host in judged}))
        told = report.text(groups, list(judged), tell)
        if told:
            given = inventories(context.CLIARGS.get("inventory"), constants.DEFAULT_HOST_LIST)
            Display().display(f"\n{with_inventory(told, given)}\n")
        lacking = [host for host in self._task.args.get("expected", []) if host not in judged]
        against = [report.refusal(groups, self._task.args["json"])] if findings.refuses(found) else []
        if lacking:
            against.append(f"not judged, see above: {', '.join(lacking)}")
        if against:
            return {**result, "failed": True, "msg": ". ".join(against)}
        return {**result, "changed": False, "findings": groups}
