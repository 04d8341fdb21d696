#!/usr/bin/env python3
"""What judging costs: a host with eight stand-in GPUs, and a fleet on the controller. Reports, judges nothing.

usage: preflight.py [ROUNDS]     (5 by default); JSON in .ironserve/bench-preflight.json, needs root
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "lab"), str(ROOT / "tests" / "gpu"), str(ROOT / "plugins" / "action")]

import gpu_hosts  # noqa: E402  (needs the folders above)
import resolve_release  # noqa: E402  (makes ansible.module_utils.ironserve importable)
from ansible.module_utils.ironserve import knowledge  # noqa: E402
from ansible.module_utils.ironserve.problems import Problems  # noqa: E402
from ansible.module_utils.ironserve.wish import resolve_host  # noqa: E402
from conftest import LabHandle  # noqa: E402
from deploys import Fleet, standin_hosts  # noqa: E402

HOSTS, PROFILES = 500, 10


@contextmanager
def fleet() -> Iterator[Fleet]:
    """One host with eight stand-in GPUs on which triton_nccl serves: environment and answers are there."""
    lab = LabHandle("bench-preflight")
    lab.down()
    try:
        standin_hosts(lab, 1)
        gpu_hosts.install(lab, "h1", gpus=8)
        with tempfile.TemporaryDirectory() as folder:
            hosts = Fleet(lab, Path(folder))
            hosts.model("h1")
            hosts.play("-e", "profile=triton_nccl")
            yield hosts
    finally:
        lab.down()


def validation(hosts: Fleet, number: int) -> tuple[float, int]:
    """Seconds from a deploy's first word of Validate to its last, and the remote tasks in between; nothing is deployed.

    A flag that differs each time, as in a deploy; its command was judged before, by a run that is not counted.
    """
    hosts.profile(f"v{number}", extends="triton_nccl", flags={"max-running-requests": number + 1})
    words = ("-e", f"profile=v{number}", "--check")
    hosts.play(*words)
    output = hosts.play("-vvv", *words).stdout
    part = output[output.index("PLAY [Validate") : output.index("PLAY [Prepare")]
    tasks = len(re.findall(r"^<[^>]*> SSH: EXEC ", part, re.MULTILINE))
    began = time.monotonic()
    hosts.play("-e", f"profile=v{number}", playbook="playbooks/preflight.yml")
    return time.monotonic() - began, tasks


def resolved() -> float:
    """Seconds to resolve ten profiles for 500 hosts, as the controller does it."""
    site: dict[str, Any] = {}
    for group in ("all", "blackwell"):
        site.update(yaml.safe_load((ROOT / "group_vars" / group / "main.yml").read_text()))
    problems, logs = Problems(), knowledge.engine_logs(ROOT)
    sources = resolve_release.read_profiles(["profiles"], problems)
    names = [name for name in sources if not name.startswith("lab_")]
    began = time.monotonic()
    locks = resolve_release.read_locks(site["ironserve_locks"], problems)
    for host in range(HOSTS):
        for number in range(PROFILES):
            name = names[number % len(names)]
            resolve_host(f"h{host}", "", name, site, sources, locks, problems, [], logs)
    assert not problems.found, problems.found
    return time.monotonic() - began


def measure(rounds: int) -> dict[str, Any]:
    """All figures."""
    found: dict[str, Any] = {"resolve_500_hosts_10_profiles_s": round(resolved(), 2)}
    with fleet() as hosts:
        took = [validation(hosts, number) for number in range(rounds)]
    seconds = [round(one, 2) for one, _ in took]
    return {
        **found,
        "preflight_warm_s": statistics.median(seconds),
        "preflight_warm_all_s": seconds,
        "validate_remote_tasks": took[0][1],
    }


def main() -> None:
    """Measure, print, keep."""
    figures = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    text = json.dumps(figures, indent=2)
    (ROOT / ".ironserve" / "bench-preflight.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
