# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Judges a canary that soaks, and waits for the next look at it, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: roll_soak
short_description: Judge a canary that soaks
description:
  - Runs on the controller, once for each look, and sends nothing to any host. playbooks/tasks/soak.yml calls it.
  - Tells how the canary fares in a line, and waits for the next look where the soak goes on.
options:
  due:
    description: What soaks, as the filter C(ironserve_soak) returns it.
    type: dict
    required: true
  soak:
    description: What the look before returned as RV(soak). One that is over is returned as it is.
    type: dict
    default: {}
  looks:
    description: What C(host_services) returned for each canary, as results of a loop. Without it the soak begins.
    type: list
    elements: dict
  routers:
    description: What C(router_worker) returned for each router, as results of a loop.
    type: list
    elements: dict
    default: []
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Judge the canary
  roll_soak:
    due: "{{ soak_due }}"
    soak: "{{ roll_soak.soak }}"
    looks: "{{ soak_looks.results }}"
    routers: "{{ soak_routers.results }}"
  register: roll_soak
  run_once: true
"""

RETURN = r"""
soak:
  description:
    - C(state) (waiting, good or bad), C(why) it is bad, C(ok) and C(failed) requests.
    - C(doubt) is what was wrong at the last look; at the second such look in a row the canary is bad.
  returned: always
  type: dict
"""

import time
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import canary


class ActionModule(ActionBase):
    """Judge, tell, wait."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("due", "soak", "looks", "routers"))
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """One look's judgement."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        due, soak = self._task.args["due"], self._task.args.get("soak") or {}
        answers = {answer["item"]: answer for answer in self._task.args.get("routers") or () if "item" in answer}
        if "looks" not in self._task.args:
            counted = {router: {"errors": answer.get("errors", {})} for router, answer in answers.items()}
            soak = {"state": "waiting", "began": time.time(), "before": counted}
            return {**result, "changed": False, "soak": soak}
        if soak["state"] != "waiting":
            return {**result, "changed": False, "soak": soak}
        elapsed_s = time.time() - soak["began"]
        looks, doubt = self._task.args["looks"], soak.get("doubt", "")
        verdict = canary.soak_verdict(due, elapsed_s, looks, soak["before"], answers, doubt)
        Display().display(f"[roll] {verdict.pop('text')}")
        if verdict["state"] == "waiting":
            time.sleep(verdict["wait_s"])
        return {**result, "changed": False, "soak": {**soak, **verdict}}
