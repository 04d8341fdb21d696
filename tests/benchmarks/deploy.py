#!/usr/bin/env python3
"""What a deploy costs beside the engine's own start, on one test host with the stand-in. Reports, judges nothing.

usage: deploy.py [ROUNDS]     (5 by default); JSON in .ironserve/bench.json, needs root

All clocks are the kernel's monotonic one, which a test host shares with this machine.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "lab")]

from conftest import LabHandle  # noqa: E402  (needs the folder above)
from deploys import UNIT, Fleet, standin_hosts  # noqa: E402

GATE = "TASK [serve : Start the server and wait until it generates]"
AFTER_GATE = "TASK [serve : Go on only with a server that generates]"

FIRST_TOKEN = """
import json, time, urllib.request
body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 1}).encode()
request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", body, {"Content-Type": "application/json"})
for _ in range(6000):
    try:
        if urllib.request.urlopen(request, timeout=5).status == 200:
            break
    except OSError:
        time.sleep(0.01)
print(time.monotonic())
"""


@contextmanager
def fleet() -> Iterator[Fleet]:
    """One host that sees the stand-in's wheelhouse."""
    lab = LabHandle("bench")
    lab.down()
    try:
        standin_hosts(lab, 1)
        with tempfile.TemporaryDirectory() as folder:
            yield Fleet(lab, Path(folder))
    finally:
        lab.down()


def timed(call: Any) -> float:
    """Seconds that a call takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


def remote_tasks(hosts: Fleet, *words: str) -> int:
    """How often Ansible runs something on the host in a deploy."""
    output = hosts.play("-vvv", *words).stdout
    return len(re.findall(r"^<[^>]*> SSH: EXEC ", output, re.MULTILINE))


def gate_verdict(hosts: Fleet, profile: str) -> float:
    """Deploy; the monotonic time at which the gate's verdict reached the controller."""
    command = hosts.command("-e", f"profile={profile}")
    run = subprocess.Popen(
        command, cwd=ROOT, env=hosts.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    in_gate, verdict = False, 0.0
    for line in run.stdout or ():
        in_gate = (in_gate or line.startswith(GATE)) and not line.startswith(AFTER_GATE)
        if in_gate and line.startswith(("changed: [h1]", "ok: [h1]")):
            verdict = time.monotonic()
    run.wait()
    return verdict


def stop(hosts: Fleet) -> None:
    """Leave no server running."""
    hosts.play(playbook="playbooks/stop.yml")


def engine_alone(hosts: Fleet) -> float:
    """Seconds from systemd's start of the deployed unit to its first token, nothing of Ironserve beside it."""
    now = "python3 -c 'import time; print(time.monotonic())'"
    began = float(hosts.shell("h1", f"systemctl stop {UNIT}; {now}; systemctl start --no-block {UNIT}").split()[-1])
    return float(hosts.lab.exec("h1", ["python3", "-c", FIRST_TOKEN]).stdout) - began


def generate_to_ready(hosts: Fleet, number: int) -> float:
    """Seconds from the first token that anybody could get to the verdict on the controller."""
    stop(hosts)
    hosts.model("h1", {"phases": {"weights": {"delay_s": 3}}})
    hosts.profile(f"slow{number}", flags={"max-num-seqs": 20 + number})
    watcher = subprocess.Popen(
        [str(ROOT / "tests/lab/lab"), "--name", "bench", "exec", "h1", "python3", "-c", FIRST_TOKEN],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    verdict = gate_verdict(hosts, f"slow{number}")
    return verdict - float(watcher.communicate(timeout=60)[0])


def exit_to_failed(hosts: Fleet, number: int) -> float:
    """Seconds from the exit of the engine's main process to the verdict on the controller."""
    stop(hosts)
    hosts.model("h1", {"phases": {"weights": {"delay_s": 3}}, "exit_in": "weights", "exit_status": 3})
    hosts.profile(f"bad{number}", flags={"max-num-seqs": 40 + number})
    verdict = gate_verdict(hosts, f"bad{number}")
    journal = hosts.shell("h1", f"journalctl -u {UNIT} -o json | grep 'Main process exited' | tail -n 1")
    return verdict - int(json.loads(journal)["__MONOTONIC_TIMESTAMP"]) / 1e6


def measure(rounds: int) -> dict[str, Any]:
    """All figures: medians with the list they come from."""
    series: dict[str, list[float]] = {}
    with fleet() as hosts:
        hosts.model("h1")
        once = {"fresh_deploy_with_build_s": timed(hosts.play)}
        once["remote_tasks_no_op"] = remote_tasks(hosts)
        forget = f"systemctl disable --now {UNIT}; rm -r /var/lib/ironserve /etc/systemd/system/{UNIT}"
        hosts.shell("h1", forget)
        once["remote_tasks_fresh_environment_present"] = remote_tasks(hosts)
        hosts.shell("h1", forget)
        once["fresh_deploy_environment_present_s"] = timed(hosts.play)
        alone = engine_alone(hosts)
        once["overhead_of_a_fresh_deploy_s"] = once["fresh_deploy_environment_present_s"] - alone
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            hosts.model("h1")
            hosts.profile(f"flag{number}", flags={"max-num-seqs": number + 1})
            found = {
                "changed_flag_s": timed(lambda name=f"profile=flag{number}": hosts.play("-e", name)),
                "no_op_s": timed(lambda name=f"profile=flag{number}": hosts.play("-e", name)),
                "engine_alone_s": engine_alone(hosts),
                "generate_to_ready_s": generate_to_ready(hosts, number),
                "exit_to_failed_s": exit_to_failed(hosts, number),
            }
            found["overhead_of_a_changed_flag_s"] = found["changed_flag_s"] - found["engine_alone_s"]
            for name, value in found.items():
                series.setdefault(name, []).append(round(value, 3))
    medians = {name: statistics.median(values) for name, values in series.items()}
    return {**{name: round(value, 3) for name, value in once.items()}, **medians, "rounds": series}


def main() -> None:
    """Measure, print, keep."""
    figures = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    text = json.dumps(figures, indent=2)
    (ROOT / ".ironserve" / "bench.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
