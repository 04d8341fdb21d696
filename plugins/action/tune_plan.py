# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Decides on the controller what a tune tries; see DOCUMENTATION below."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tune_plan
short_description: Decide what a tune tries
description:
  - Runs on the controller and sends nothing to any host.
  - Writes the profiles of a matrix under O(folder), and nothing else. M(tune_step) begins the tune, or resumes it.
options:
  profiles:
    description: Names of profiles to try, with commas between.
    type: str
    default: ""
  matrix:
    description: C(base), a profile, and lists of values by C(flags) and C(env). Every combination is a candidate.
    type: dict
    default: {}
  service:
    description: The service.
    type: str
    required: true
  load:
    description: What the benchmark asks, see C(module_utils/ironserve/tune.py).
    type: dict
    required: true
  objective:
    description: C(single_stream), or C(c128) for 128 requests at a time.
    type: str
    default: single_stream
  rounds:
    description: Trials of each candidate at most.
    type: int
    default: 4
  budget_min:
    description: Minutes for all trials.
    type: float
    default: 240
  before:
    description: Folder of the release that is good on the host now; what comes back where there is no winner.
    type: str
    default: ""
  folder:
    description: Where tunes are kept, relative to the project.
    type: str
    default: .ironserve/tune
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Plan the tune
  tune_plan:
    profiles: baseline,triton_nccl
    service: main
    load: "{{ ironserve_benchmark }}"
  register: tune_planned
"""

RETURN = r"""
id:
  description: Of the tune, the same for the same host, service, candidates and load.
  type: str
candidates:
  description: Their names, in order.
  type: list
  elements: str
state:
  description: File of the state, relative to the project.
  type: str
profiles:
  description: Folder of the profiles that a matrix made, relative to the project.
  type: str
most:
  description: Trials that there can be.
  type: int
begin:
  description: The state that it begins with, for M(tune_step).
  type: dict
"""

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import baseline, host, tune
from ansible.module_utils.ironserve.problems import Problems


class ActionModule(ActionBase):
    """Read and decide on the controller."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(
        ("profiles", "matrix", "service", "load", "objective", "rounds", "budget_min", "before", "folder")
    )
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Plan it, or say everything that is wrong."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables, args = task_vars or {}, self._task.args

        def site(name: str, default: Any = None) -> Any:
            return self._templar.template(variables.get(f"ironserve_{name}", default))

        known = {file.stem for folder in site("profile_paths", []) for file in (ROOT / folder).glob("*.yml")}
        problems = Problems()
        found = tune.candidates(str(args.get("profiles") or ""), args.get("matrix") or {}, known, problems)
        objective, rounds, budget_s = str(args.get("objective") or "single_stream"), 0, 0.0
        try:
            rounds, budget_s = int(args.get("rounds") or 4), 60 * float(args.get("budget_min") or 240)
        except ValueError:
            problems.add("-e", "rounds, budget_min", "have to be numbers")
        name, service, load = str(variables["inventory_hostname"]), str(args["service"]), args["load"]
        recorded = None
        if kept := site("baselines"):
            try:
                recorded = baseline.read(baseline.path(str(ROOT / kept), str(site("host_group")), service))
            except ValueError as error:
                problems.add("baseline", "", str(error))
        measured, before = (recorded or {}).get("measurement"), str(args.get("before") or "")
        state: tune.State = {}
        try:
            state = tune.begin(name, service, found, load, objective, rounds, budget_s, measured, before)
        except ValueError as error:
            problems.add("-e", "", str(error))
        if problems:
            raise AnsibleActionFail(problems.report("this cannot be tuned, nothing was touched"))
        folder = Path(args.get("folder") or ".ironserve/tune") / state["id"]
        if not self._task.check_mode:
            (ROOT / folder / "profiles").mkdir(parents=True, exist_ok=True)
            for each in found:
                if each["text"]:
                    host.write_text(ROOT / folder / "profiles" / f"{each['name']}.yml", each["text"])
        return {
            **result,
            "changed": False,
            "id": state["id"],
            "candidates": [each["name"] for each in found],
            "state": str(folder / "state.json"),
            "profiles": str(folder / "profiles"),
            "most": len(found) * rounds,
            "begin": state,
        }
