#!/usr/bin/env python3
"""What a fleet costs the controller: 8, 16 and 32 test hosts behind a router. Reports, judges nothing.

usage: fleet.py [--sizes 8 16 32] [--mitogen] [--raise-inotify]     JSON in .ironserve/bench-fleet.json, needs root

The hosts share this machine's cores with the controller: seconds are those of both, CPU and memory the controller's
alone (ansible-playbook and all that it starts, but for ssh's lasting connections, which leave its session).
With --mitogen no-op and rollout are tried with the strategy mitogen_linear, too, in an environment of its own.
More than about 20 hosts need more inotify instances than most machines give: --raise-inotify has them for as long as
this runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "lab")]

from conftest import LabHandle  # noqa: E402  (needs the folder above)
from rollout_fleet import BIN, RolloutFleet, rollout_hosts, with_tools  # noqa: E402

BATCH = {"ironserve_canary": 1, "ironserve_batches": [8]}
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_RAISED = 1024
MITOGEN = "mitogen==0.3.54"
LIMIT_S = 1800


@contextmanager
def inotify(hosts: int, may_raise: bool) -> Iterator[bool]:
    """Whether the machine has inotify instances for so many hosts, six each; what was raised is put back."""
    limit = int(INOTIFY.read_text())
    if 6 * hosts + 30 <= limit:
        yield True
        return
    if not (may_raise and raised()):
        told = f"sysctl -w {str(INOTIFY.relative_to('/proc/sys')).replace('/', '.')}={INOTIFY_RAISED}"
        print(f"{hosts} hosts need more than {limit} inotify instances: {told}, or --raise-inotify", file=sys.stderr)
        yield False
        return
    try:
        yield True
    finally:
        INOTIFY.write_text(str(limit))


def raised() -> bool:
    """Have more inotify instances; whether the machine lets us."""
    try:
        INOTIFY.write_text(str(INOTIFY_RAISED))
    except OSError:
        return False
    return True


@contextmanager
def fleet(servers: int) -> Iterator[RolloutFleet]:
    """A fleet on which nothing was deployed, behind its router. Each host builds its own environment."""
    lab = LabHandle("bench-fleet")
    lab.down()
    try:
        with tempfile.TemporaryDirectory() as folder:
            rollout_hosts(lab, servers)
            made = RolloutFleet(lab, Path(folder), servers)
            made.play(playbook="playbooks/router.yml")
            yield made
    finally:
        lab.down()


def memory_mib(session: int) -> float:
    """What the processes of a session have in memory; a page that several share counts once."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                pss = re.search(r"^Pss:\s+(\d+)", (folder / "smaps_rollup").read_text(), re.MULTILINE)
                total += int(pss[1]) if pss else 0
        except OSError:  # it ended meanwhile
            continue
    return total / 1024


def run(made: RolloutFleet, *words: str, environment: dict[str, str] | None = None, **how: Any) -> dict[str, Any]:
    """Run a playbook: how it ended, seconds, the controller's CPU and its peak of memory."""
    argv = made.command(*words, **how)
    if environment:
        argv[0] = str(Path(environment["VIRTUAL_ENV"]) / "bin" / "ansible-playbook")
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    peak, ended = [0.0], threading.Event()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            argv, cwd=ROOT, env=environment or made.environment(), stdout=said, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

        def watch() -> None:
            while not ended.wait(0.5):
                peak[0] = max(peak[0], memory_mib(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            process.wait(LIMIT_S)
        finally:
            ended.set()
            watcher.join()
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        said.seek(0)
        output = said.read()
    return {
        "status": process.returncode,
        "seconds": round(seconds, 1),
        "cpu_s": round(sum(after[:2]) - sum(before[:2]), 1),
        "peak_mib": round(peak[0]),
        "output": output,
    }


def kept(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures for the file; of a run that failed what it said last."""
    output = figures.pop("output")
    errors = re.findall(r"^.*(?:ERROR|fatal|FAILED).*$", output, re.MULTILINE)
    return {**figures, **({"said": (errors or output.splitlines()[-1:])[0][:300]} if figures["status"] else {})}


def remote_tasks(made: RolloutFleet, *words: str, **site: Any) -> float:
    """How often Ansible runs something on a host, on average; the router's share is in it."""
    output = run(made, "-vvv", *words, **site)["output"]
    return round(len(re.findall(r"^<[^>]*> SSH: EXEC ", output, re.MULTILINE)) / len(made.servers), 1)


def mitogen() -> dict[str, str]:
    """The environment of runs with the strategy mitogen_linear, which is not part of the developer's."""
    folder = ROOT / ".ironserve" / "mitogen"
    core = subprocess.check_output([BIN / "pip", "freeze"], text=True)
    core = next(line for line in core.splitlines() if line.startswith("ansible-core=="))
    subprocess.run([BIN / "uv", "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
    install = [BIN / "uv", "pip", "install", "--quiet", "--python", folder / "bin" / "python", core, MITOGEN]
    subprocess.run(install, check=True)
    strategies = next(folder.glob("lib/python*/site-packages/ansible_mitogen/plugins/strategy"))
    return {
        **with_tools(),
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(folder),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_STRATEGY": "mitogen_linear",
        "ANSIBLE_STRATEGY_PLUGINS": str(strategies),
    }


def measure(servers: int, with_mitogen: bool, count_tasks: bool) -> dict[str, Any]:
    """All figures of one size. A rollout has a flag of its own each time."""
    found: dict[str, Any] = {}
    with fleet(servers) as made:

        def take(name: str, *words: str, **how: Any) -> None:
            found[name] = kept(run(made, *words, **how))
            print(f"{servers} hosts, {name}: {found[name]}", file=sys.stderr, flush=True)

        take("fresh_deploy", *made.number(1), **BATCH)
        take("no_op", *made.number(1), **BATCH)
        take("rollout", *made.number(2), **BATCH)
        take("status", playbook="playbooks/status.yml")
        if count_tasks:
            found["remote_tasks_a_host"] = {
                "no_op": remote_tasks(made, *made.number(2), **BATCH),
                "rollout": remote_tasks(made, *made.number(3), **BATCH),
            }
        if with_mitogen:
            environment = mitogen()
            take("no_op_mitogen", *made.number(2), environment=environment, **BATCH)
            take("rollout_mitogen", *made.number(4), environment=environment, **BATCH)
    return found


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 32], help="hosts that serve (8 16 32)")
    parser.add_argument("--mitogen", action="store_true", help="try the strategy mitogen_linear, too")
    parser.add_argument("--raise-inotify", action="store_true", help="have more inotify instances meanwhile")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"at": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "hosts": {}}
    for size in arguments.sizes:
        with inotify(size + 1, arguments.raise_inotify) as enough:
            if enough:
                found["hosts"][size] = measure(size, arguments.mitogen, count_tasks=size == arguments.sizes[0])
    text = json.dumps(found, indent=2)
    (ROOT / ".ironserve" / "bench-fleet.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
