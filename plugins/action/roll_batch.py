# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Says whether the next batch of a roll may begin, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: roll_batch
short_description: Say whether the next batch of a roll may begin
description:
  - Runs on the controller, once at the start of each batch, and sends nothing to any host.
  - Never fails. Where the roll has to stop, it says why, and so does each later batch.
options:
  plan:
    description: The plan, as C(roll_plan) returned it.
    type: dict
    required: true
  hosts:
    description: The hosts of the batch, or those of them that can be reached.
    type: list
    elements: str
    required: true
  outcomes:
    description: What became of each host before this batch, by host, as the filter C(ironserve_outcomes) returns it.
    type: dict
    required: true
  routers:
    description: What C(router_worker) returns now for each router, as results of a loop over them.
    type: list
    elements: dict
    default: []
  soak:
    description: How the canary before this batch fared, as C(roll_soak) returns it.
    type: dict
    default: {}
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: May the batch begin?
  roll_batch:
    plan: "{{ deploy_planned.plan }}"
    hosts: "{{ ansible_play_batch }}"
    outcomes: "{{ deploy_planned.plan | ironserve_outcomes(ansible_play_batch, hostvars) }}"
    routers: "{{ roll_routers.results }}"
    soak: "{{ roll_soak | default({}) }}"
  run_once: true
  register: roll_opening
"""

RETURN = r"""
open:
  description: Whether the batch may begin.
  returned: always
  type: bool
why:
  description: Why it may not, else empty.
  returned: always
  type: str
batch:
  description: Name of the batch.
  returned: always
  type: str
"""

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import batches


class ActionModule(ActionBase):
    """Judge and tell."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("plan", "hosts", "outcomes", "routers", "soak"))
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """One line, and whether to go on."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        plan, hosts = self._task.args["plan"], self._task.args["hosts"]
        answers = {answer["item"]: answer for answer in self._task.args.get("routers") or () if "item" in answer}
        why = batches.opening(plan, hosts, self._task.args["outcomes"], answers, self._task.args.get("soak") or None)
        batch, _ = batches.batch_of(plan, hosts)
        title = batches.title(plan, batch)
        outcomes = self._task.args["outcomes"].values()
        if not any((outcome or {}).get("verdict") == "not reached" for outcome in outcomes):  # it is said once
            Display().display(f"[roll] stops before {title}: {why}" if why else f"[roll] {title}")
        return {**result, "changed": False, "open": not why, "why": why, "batch": batch["name"]}
