# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Writes down what became of a trial, and says which is next; see DOCUMENTATION below."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tune_step
short_description: Begin a tune or resume it, record what happened in it, or begin its next trial
description:
  - Runs on the controller and sends nothing to any host.
  - Without O(begin), O(rejected), O(outcome) and O(finished) the next trial is begun, if there is one.
  - The state is written each time, as a whole or not at all, so that a run that is killed can be resumed.
options:
  state:
    description: File of the state, from M(tune_plan).
    type: str
    required: true
  begin:
    description: What M(tune_plan) says. A state that is there and not finished is resumed; a finished tune begins anew.
    type: dict
  rejected:
    description: Candidates that cannot be launched here, by name, with why; together with O(releases).
    type: dict
  releases:
    description: Ids of the releases of the others, by name. Trials of an earlier run count where these are the same.
    type: dict
  outcome:
    description: How the trial that was begun ended; C(measurement), or C(verdict) with C(why) and C(evidence).
    type: dict
  finished:
    description: The tune is over; the same command begins a new one.
    type: bool
    default: false
  expected_s:
    description: Seconds that a trial is expected to take while none was done, by the host's ledger.
    type: float
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Begin the next trial
  tune_step:
    state: "{{ tune_planned.state }}"
  register: tune_next
"""

RETURN = r"""
candidate:
  description: Of the trial that was begun.
  returned: a trial was begun
  type: str
round:
  description: Of the trial that was begun.
  returned: a trial was begun
  type: int
why:
  description: Why no further trial is begun; empty where one was.
  type: str
resumed:
  description: How many trials of an earlier run count.
  returned: with O(begin)
  type: int
before:
  description: Folder of the release that was good when the tune began.
  returned: always
  type: str
decision:
  description: The winner so far, see C(decide) in C(module_utils/ironserve/tune.py).
  type: dict
rows:
  description: A row for each candidate.
  type: list
  elements: dict
columns:
  description: Of a table of the rows.
  type: list
  elements: str
against:
  description: What the rows are compared with.
  type: str
profile:
  description: Text of the winner's profile; empty where there is no winner, or it is that profile already.
  type: str
"""

import json
import time
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import compare, host, tune


class ActionModule(ActionBase):
    """Read the state, decide, write it."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("state", "begin", "rejected", "releases", "outcome", "finished", "expected_s"))
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Take one step."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args, file = self._task.args, ROOT / self._task.args["state"]
        state: Any = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        now = time.time()
        begun: dict[str, Any] = {"why": ""}
        judged: dict[str, Any] = {key: args[key] for key in ("rejected", "releases") if key in args}
        if args.get("begin"):
            wished = {**args["begin"], **judged}
            state = tune.resume(state, wished) if state and not state["finished"] else wished
            begun["resumed"] = len(state["trials"])
        elif judged:
            state = tune.without_stale({**state, **judged})
        elif args.get("outcome"):
            state = tune.recorded(state, now, args["outcome"])
        elif "finished" in args:
            state = {**state, "finished": bool(args["finished"])}
        else:
            expected = args.get("expected_s")
            begun |= tune.next_trial(state, float(expected) if expected else None)
            state = state if begun["why"] else tune.opened(state, begun, now)
        host.write_text(file, json.dumps(state, indent=1) + "\n")
        decision, group = tune.decide(state), (task_vars or {}).get("ironserve_host_group", "")
        date = time.strftime("%Y-%m-%d", time.gmtime(now))
        levels = [compare.name_of(str(level)) for level in state["load"]["concurrencies"]]
        return {
            **result,
            **begun,
            "changed": False,
            "before": state["before"],
            "decision": decision,
            "rows": tune.rows(state),
            "columns": ["candidate", "verdict", "trials", *levels, "against", "why"],
            "against": tune.against(state),
            "profile": tune.winner_text(state, decision, str(group), date) if decision["winner"] else "",
        }
