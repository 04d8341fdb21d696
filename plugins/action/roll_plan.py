# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Plans a roll over all hosts of a run, tells the plan and writes it as JSON, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: roll_plan
short_description: Plan a roll over all hosts of a run
description:
  - Runs on the controller, once, and sends nothing to any host.
  - Says which hosts change and why, which are there already, the canary, the batches, and how long it takes.
  - Fails, with everything that is wrong, where the roll could not go as the settings want it.
options:
  hosts:
    description: What was seen of every host of the run, as the filter C(ironserve_plan_hosts) picks it.
    type: dict
    required: true
  routers:
    description: What C(router_worker) returned for each router, as results of a loop over them.
    type: list
    elements: dict
    default: []
  plan:
    description: Tell every host, reason and batch by name.
    type: bool
    default: false
  json:
    description: File that gets the plan, relative to the project.
    type: str
    required: true
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Plan the roll
  roll_plan:
    hosts: "{{ ansible_play_hosts | ironserve_plan_hosts(hostvars, deploy_routers.results) }}"
    routers: "{{ deploy_routers.results }}"
    json: .ironserve/plan.json
  run_once: true
  register: deploy_planned
"""

RETURN = r"""
plan:
  description:
    - C(hosts) each with C(host), C(group), C(state) (changes or settled), C(serves), C(expected_s) and C(services).
    - C(batches) in the order of the roll, each with C(group), C(name), C(hosts) and C(at_least), the servers that each
      router has to have before it begins. C(order) and C(serial) are the same for a play.
    - C(groups) with their settings as numbers, C(expected_s) for all, C(measure_s), C(notes) and C(problems).
  returned: always
  type: dict
"""

import contextlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import baseline, lock, plan_text, rollout
from ansible.module_utils.ironserve.problems import Problems


def beyond(hosts: Collection[str], variables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The servers of the inventory that this run does not mean; one whose variables are no server's is left out."""
    groups, hostvars = variables["groups"], variables["hostvars"]
    found = {}
    for host in set(groups["all"]) - set(hosts) - set(groups.get("router", ())):
        with contextlib.suppress(AnsibleError, KeyError, TypeError, AttributeError):
            said = {key: hostvars[host][key] for key in rollout.DECLARED if key in hostvars[host]}
            found[host] = rollout.declared(host, said)
    return {host: found[host] for host in rollout.in_order(found) if found[host]["services"]}


def unread(host: Mapping[str, Any]) -> list[str]:
    """What the speed gate of a canary could not read; it has to be known before the host leaves its routers for it."""
    roll, problems = host["roll"], Problems()
    if not roll.get("measure"):
        return []
    client = str(roll["measure"]["client"])
    try:
        lock.load(lock.find(client, ROOT))
    except lock.LockError as error:
        for problem in error.found:
            problems.add("ironserve_locks.client", "", problem)
    for service in host["services"]:
        folder = str(ROOT / roll["measure"]["baselines"])
        try:
            baseline.read(baseline.path(folder, roll["group"], service["service"]))
        except ValueError as error:
            problems.add("ironserve_speed_gate", "", str(error))
    return problems.found


class ActionModule(ActionBase):
    """Plan, tell, write, and fail where the plan cannot be rolled."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("hosts", "routers", "plan", "json"))
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The plan as text, as JSON and as result."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        answers = {answer["item"]: answer for answer in self._task.args.get("routers") or ()}
        variables, hosts = task_vars or {}, self._task.args["hosts"]
        plan = rollout.plan(hosts, answers, int(variables["ansible_forks"]), beyond(hosts, variables))
        plan["problems"] += [problem for host in rollout.canaries(plan["batches"]) for problem in unread(hosts[host])]
        file = ROOT / self._task.args["json"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(plan, indent=2, sort_keys=True) + "\n")
        whole = self._task.args.get("plan", False) is True
        told = plan_text.text(plan, whole)
        Display().display(f"\n{told}\n" + (f"  (JSON: {self._task.args['json']})\n" if whole else ""))
        answer = {**result, "changed": False, "plan": plan}
        if plan["problems"]:
            problems = Problems()
            problems.found = plan["problems"]
            return {**answer, "failed": True, "msg": problems.report("nothing was touched, the roll could not go so")}
        return answer
