#!/usr/bin/env python3
"""An inventory of one host that is nowhere, ``any`` in the host group $GROUP: to see what a profile becomes there.

It lies here since Ansible loads the group_vars beside an inventory.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

shipped = {file.stem for file in (Path(__file__).resolve().parent / "group_vars").iterdir()} - {"all"}
wanted = os.environ.get("GROUP") or "ungrouped"
groups = {name: {"hosts": ["any"] if name == wanted else []} for name in {*shipped, wanted}}
print(json.dumps({**groups, "_meta": {"hostvars": {}}}))
