# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Keeps copies of the hosts' ledgers on the controller and writes the report page; see DOCUMENTATION below."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ledger_page
short_description: Write the page that tells of every launch and measurement
description:
  - Runs on the controller, once, and sends nothing to any host. Writes C(report.html), one file that needs no network,
    C(report.json), and under C(ledger/HOST/SERVICE.jsonl) copies that keep what a host may lose.
options:
  read:
    description: What M(service_ledger) returned, by host. Of a host without an answer its copies are used.
    type: dict
    required: true
  service:
    description: The only service that is wanted; empty, all.
    type: str
    default: ""
  baselines:
    description: Folder of the recorded baselines, C(GROUP/SERVICE.json), relative to the project or absolute.
    type: str
    required: true
  folder:
    description: Folder that gets page, JSON and copies, relative to the project.
    type: str
    required: true
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Write the page
  ledger_page:
    read: {h1: "{{ told }}"}
    baselines: "{{ inventory_dir }}/baselines"
    folder: .ironserve
  run_once: true
"""

RETURN = r"""
page:
  description: Path of the page.
  type: str
"""

import datetime
import json
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import baseline, gathered, host, hypotheses

try:
    from ansible.module_utils.ironserve import page
except ImportError:
    HAS_PYGAL = False
else:
    HAS_PYGAL = True

TEMPLATE = ROOT / "plugins" / "templates" / "report.html.j2"
NO_CHARTS = "the page's charts are drawn by pygal, which this Ansible's Python lacks: pip install pygal, or make setup"


class ActionModule(ActionBase):
    """Keep copies, write page and JSON."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("read", "service", "baselines", "folder"))
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Keep what hosts answered, and tell of all that is known."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if not HAS_PYGAL:
            return {**result, "failed": True, "msg": NO_CHARTS}
        arguments = self._task.args
        folder, service = ROOT / arguments["folder"], str(arguments.get("service") or "")
        ledgers, absent = {}, {}
        for name, answer in arguments["read"].items():
            copies = folder / "ledger" / name
            if "ledgers" in answer:
                gathered.keep(copies, answer["ledgers"])
            else:
                why = " ".join(str(answer.get("msg", "no answer")).split())
                absent[name] = {"why": why, "kept": gathered.age(copies)}
            ledgers[name] = gathered.read(copies, service)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")
        recorded, unread = baselines(ROOT / arguments["baselines"])
        sections = hypotheses.sections(ledgers, recorded)
        told = {"at": now, "absent": absent, "unread": unread, "sections": sections}
        host.write_text(folder / "report.json", json.dumps(told, indent=2, sort_keys=True) + "\n")
        host.write_text(folder / "report.html", page.render(told, TEMPLATE.read_text()))
        lines = [f"no answer from {name}: {one['why']}; from before: {one['kept']}" for name, one in absent.items()]
        lines += [f"a recorded baseline was left out: {why}" for why in unread]
        Display().display("\n".join([f"\nReport: {arguments['folder']}/report.html (JSON: report.json)", *lines, ""]))
        return {**result, "changed": False, "page": str(folder / "report.html")}


def baselines(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The recorded measurements, by ``GROUP/SERVICE``; and what is wrong with files that are none."""
    found, wrong = {}, []
    for file in sorted(folder.glob("*/*.json")):
        try:
            if one := baseline.read(file):
                found[f"{file.parent.name}/{file.stem}"] = one["measurement"]
        except ValueError as error:
            wrong.append(str(error))
    return found, wrong
