#!/usr/bin/env python3
"""Ansible inventory of a scenario's lab: what `tests/lab/lab up` wrote, or nothing before there are hosts."""

import json
import os
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
name = "molecule-" + os.environ["MOLECULE_SCENARIO_NAME"].replace("_", "-")
file = ROOT / ".ironserve" / "lab" / name / "hosts.yml"
lab = yaml.safe_load(file.read_text())["lab"] if file.exists() else {"hosts": {}, "vars": {}}
group = {"hosts": list(lab["hosts"]), "vars": lab["vars"]}
print(json.dumps({"lab": group, "_meta": {"hostvars": lab["hosts"]}}))
