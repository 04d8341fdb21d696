# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Prints resolved releases with the origin of each value and writes the same as JSON; see DOCUMENTATION below."""

from __future__ import annotations

DOCUMENTATION = r"""
module: show_release
short_description: Print releases with the origin of each value
description: Runs on the controller, once, and sends nothing to any host.
options:
  resolved:
    description: What C(resolve_release) returned, by host.
    type: dict
    required: true
  json:
    description: File that gets C(release) and C(origins) of each host, relative to the project.
    type: str
    required: true
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Show what the profile becomes
  show_release:
    resolved: {h1: "{{ resolved }}"}
    json: .ironserve/show.json
  run_once: true
"""

RETURN = r"""
releases:
  description: What was written as JSON.
  type: list
  elements: dict
"""

import json
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve.explain import text


class ActionModule(ActionBase):
    """Print and write."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("resolved", "json"))
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print the releases, write the JSON."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        releases = [
            {"host": host, "release": release, "origins": origins}
            for host, found in self._task.args["resolved"].items()
            for release, origins in zip(found["releases"], found["origins"])
        ]
        file = ROOT / self._task.args["json"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(releases, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
        for found in releases:
            Display().display(f"\n{text(found['host'], found['release'], found['origins'])}")
        Display().display(f"\n(JSON: {self._task.args['json']})\n")
        return {**result, "changed": False, "releases": releases}
