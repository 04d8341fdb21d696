#!/usr/bin/env python3
"""What a fleet costs on the controller before any host is asked: resolve, plan, batches. Reports, judges nothing.

usage: plan.py [HOSTS]     (1000 by default); JSON in .ironserve/bench-plan.json

The playbooks are those of a deploy. What a comparison of the hosts would have found comes from the inventory, and each
batch is judged as the roll does it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "plugins" / "filter")]

import ironserve_roll  # noqa: E402, F401  (makes ansible.module_utils.ironserve importable)
from ansible.module_utils.ironserve import batches  # noqa: E402

BIN = Path(sys.executable).parent
BATCH = 32

COMPARED = {
    "results": [
        {
            "serve_release": "{{ deploy_resolved.releases[0] }}",
            "settled": False,
            "previous_id": "90ab117e3f9c-aa0581d20cc4",
            "reasons": ["flag --max-num-seqs: 64 -> 128"],
            "running": True,
            "restart": True,
            "expected_s": 130.0,
        }
    ]
}

PLAYBOOK = """
- ansible.builtin.import_playbook: {root}/playbooks/resolve.yml
- name: Have no routers
  hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        deploy_routers: {{results: []}}
      run_once: true
- ansible.builtin.import_playbook: {root}/playbooks/plan.yml
"""


def inventory(folder: Path, hosts: int) -> Path:
    """A fleet that is nowhere."""
    (folder / "group_vars").symlink_to(ROOT / "group_vars")
    names = {f"gpu-{number:04}": {} for number in range(hosts)}
    said = {"serve_compared": COMPARED}
    file = folder / "hosts.yml"
    file.write_text(yaml.safe_dump({"all": {"children": {"lab": {"hosts": names, "vars": said}}}}))
    return file


def played(folder: Path, hosts: int) -> dict[str, Any]:
    """Seconds, CPU and memory of the playbooks, and the plan that they made."""
    playbook = folder / "plan.yml"
    playbook.write_text(PLAYBOOK.format(root=ROOT))
    command = [str(BIN / "ansible-playbook"), "-i", str(inventory(folder, hosts)), str(playbook)]
    command += ["-e", json.dumps({"ironserve_batches": [BATCH], "ironserve_reports": str(folder)})]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_DISPLAY_OK_HOSTS": "false"}
    began = time.monotonic()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    seconds, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": round(seconds, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "largest_process_mib": used.ru_maxrss // 1024,
        "plan": json.loads((folder / "plan.json").read_text()),
    }


def judged(plan: dict[str, Any]) -> float:
    """Seconds to judge every batch of a roll in which all goes well."""
    outcomes: dict[str, Any] = {}
    soak = {"state": "good"}
    began = time.monotonic()
    for batch in plan["batches"]:
        assert batches.opening(plan, batch["hosts"], outcomes, {}, soak) == ""
        outcomes.update({host: {"verdict": "moved"} for host in batch["hosts"]})
    return time.monotonic() - began


def measure(hosts: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        found = played(Path(folder), hosts)
    plan = found.pop("plan")
    assert len(plan["order"]) == hosts, "the plan has not all hosts"
    return {
        "hosts": hosts,
        "batches": len(plan["batches"]),
        **found,
        "judge_batches_s": round(judged(plan), 2),
        "plan_json_mib": round(len(json.dumps(plan)) / 2**20, 1),
        "load_average": round(os.getloadavg()[0], 1),
        "cores": len(os.sched_getaffinity(0)),
    }


def main() -> None:
    """Measure, print, keep."""
    figures = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    text = json.dumps(figures, indent=2)
    (ROOT / ".ironserve" / "bench-plan.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
