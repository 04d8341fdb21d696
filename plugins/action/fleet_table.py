# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Prints a table of the fleet and writes the same as JSON, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_table
short_description: Print a table of the fleet and write the same as JSON
description:
  - Runs on the controller, once, and sends nothing to any host.
  - On a terminal the last column is cut to its width. The JSON has all, and so has output that goes elsewhere.
options:
  title:
    description: A line above the table.
    type: str
    required: true
  columns:
    description: Keys of the rows, in the order of the table.
    type: list
    elements: str
    required: true
  rows:
    description: One mapping a line. JSON gets all keys.
    type: list
    elements: dict
    required: true
  cells:
    description: The rows as the table shows them, where that is not as they are. Empty takes O(rows).
    type: list
    elements: dict
    default: []
  summary:
    description: A line under the table.
    type: str
    default: ""
  json:
    description: File that gets the rows, relative to the project.
    type: str
    required: true
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Show the services
  fleet_table:
    title: Services
    columns: [host, status]
    rows: [{host: h1, status: ready}]
    json: .ironserve/status.json
  run_once: true
"""

RETURN = r"""
rows:
  description: The rows.
  type: list
  elements: dict
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible import constants, context
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve.table import table
from ansible.module_utils.ironserve.terminal import inventories, with_inventory

WIDTH = shutil.get_terminal_size((0, 0)).columns if sys.stdout.isatty() else 0
"""Columns of the terminal, 0 where there is none or it does not say. Known when Ansible loads the plugin: a task's own
process has no terminal."""


class ActionModule(ActionBase):
    """Print and write."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("title", "columns", "rows", "cells", "summary", "json"))
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print the table, write the JSON."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        title, columns, rows = (self._task.args[key] for key in ("title", "columns", "rows"))
        cells = self._task.args.get("cells") or rows
        file = ROOT / self._task.args["json"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(rows, indent=2, sort_keys=True) + "\n")
        summary = str(self._task.args.get("summary") or "")
        below = f"\n{summary}" if summary else ""
        given = inventories(context.CLIARGS.get("inventory"), constants.DEFAULT_HOST_LIST)
        shown = with_inventory(f"{table(columns, cells, WIDTH)}{below}", given)
        Display().display(f"\n{title} (JSON: {self._task.args['json']})\n{shown}\n")
        return {**result, "changed": False, "rows": rows}
