# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Compares a measurement with the baseline of its host group, or records it as that, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark_baseline
short_description: Compare a measurement with the baseline of its host group, or record it as that
description:
  - Runs on the controller and sends nothing to any host.
  - That there is no baseline, or that both cannot be compared, is no failure.
options:
  measurement:
    description: As M(service_benchmark) returns it. Empty, as in check mode, there is nothing to do.
    type: dict
    required: true
  folder:
    description: Folder of all baselines.
    type: str
    required: true
  service:
    description: Name of the service.
    type: str
    required: true
  record:
    description: Make it the baseline.
    type: bool
    default: false
  floors:
    description: Least share of the baseline's output tokens a second by level, C(single_stream) or as C(c128).
    type: dict
    default: {}
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Compare it with the baseline
  benchmark_baseline:
    measurement: "{{ benchmark_result.measurement }}"
    folder: "{{ inventory_dir }}/baselines"
    service: main
"""

RETURN = r"""
rows:
  description: What differs, a row for each level and metric, as compare.py has them.
  returned: success
  type: list
  elements: dict
verdict:
  description: >-
    With O(floors) C(passed), C(slower), C(nonsense), C(failing), C(undecided), C(not comparable) or C(no baseline).
  returned: success
  type: str
msg:
  description: What was recorded, or why nothing could be compared, or with what it was.
  returned: always
  type: str
"""

import datetime
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import baseline, compare


class ActionModule(ActionBase):
    """Compare, or record."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("measurement", "folder", "service", "record", "floors"))
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Read the baseline, or write it."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments, host = self._task.args, (task_vars or {})["inventory_hostname"]
        measurement = arguments["measurement"]
        if not measurement:
            return {**result, "changed": False, "rows": [], "msg": ""}
        file = baseline.path(str(ROOT / arguments["folder"]), measurement["host_group"], arguments["service"])
        try:
            if arguments.get("record"):
                now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
                baseline.write(file, measurement, now, host)
                return {**result, "changed": True, "rows": [], "msg": f"is the baseline now: {file}"}
            found = baseline.read(file)
        except ValueError as error:
            return {**result, "failed": True, "rows": [], "msg": str(error)}
        floors = arguments.get("floors") or {}
        answer = judged(found, measurement, floors) if floors else compared(found, measurement)
        return {**result, "changed": False, **answer}


def judged(found: dict[str, Any] | None, measurement: dict[str, Any], floors: dict[str, float]) -> dict[str, Any]:
    """``verdict``, ``rows`` and ``msg`` of a measurement that has to reach a share of the baseline."""
    return compare.judge(found["measurement"] if found else None, measurement, floors)


def compared(found: dict[str, Any] | None, measurement: dict[str, Any]) -> dict[str, Any]:
    """``rows`` and ``msg`` of a measurement against a baseline, or against none."""
    if found is None:
        return {"rows": [], "msg": "no baseline is recorded: -e baseline=true records one"}
    old = found["measurement"]
    wrong = [compare.failed(measurement), compare.nonsense(old, measurement)]
    if why := compare.differences(old, measurement):
        told = [f"cannot be compared with the baseline: {'; '.join(why)}", *wrong]
        return {"rows": [], "msg": "; ".join(filter(None, told))}
    against = f"against the baseline of {found['recorded_at'][:10]} (profile {old.get('profile')}, {found['host']})"
    return {"rows": compare.table(old, measurement), "msg": "; ".join(filter(None, (against, *wrong)))}
