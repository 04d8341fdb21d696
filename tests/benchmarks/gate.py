#!/usr/bin/env python3
"""How fast the gate is, on one test host with the stand-in. Reports, judges nothing.

usage: gate.py [ROUNDS]     (5 by default); JSON in .ironserve/bench-gate.json, needs root

All but the last figure are times between two events on the host, so that Ansible's own start is in none of them:

- ``exit_to_verdict_s``: from the end of the engine's main process until the verdict and its evidence are there;
- ``hang_to_verdict_s``: the same from the last line of a log, without the stall limit;
- ``generate_to_ready_s``: from the first token that anybody could get until the verdict is in the ledger;
- ``exit_to_serving_again_s``: from the end of a bad release until the last good one generates, without the engine's own
  start (``engine_alone_s``); the tasks of the deploy in between are in it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

from deploy import FIRST_TOKEN, ROOT, UNIT, engine_alone, fleet, stop  # noqa: E402  (needs the folder above)
from deploys import Fleet  # noqa: E402

STATE = "/var/lib/ironserve/main"
STALL_S = 3
TARGETS_S = {
    "exit_to_verdict_s": 2.0,
    "hang_to_verdict_s": 2.0,
    "generate_to_ready_s": 1.5,
    "exit_to_serving_again_s": 3.0,
}


def modified(hosts: Fleet, path: str) -> float:
    """The monotonic time at which a file of the host was last written; of several that match, the newest."""
    times = hosts.shell("h1", f"stat -c %.9Y {path}").split()
    return max(map(float, times)) - (time.time() - time.monotonic())


def main_exit(hosts: Fleet) -> float:
    """The monotonic time at which systemd saw the newest end of an engine that ended by itself."""
    journal = hosts.shell("h1", f"journalctl -u {UNIT} -o json | grep 'Main process exited' | tail -n 1")
    return int(json.loads(journal)["__MONOTONIC_TIMESTAMP"]) / 1e6


def serving_since(hosts: Fleet) -> float:
    """The monotonic time at which the unit became active, which it does with its first token."""
    return int(hosts.shell("h1", f"systemctl show -P ActiveEnterTimestampMonotonic {UNIT}")) / 1e6


def deploy(hosts: Fleet, number: int, behave: dict[str, Any]) -> None:
    """Deploy a profile of its own with which the engine behaves so, and no other does."""
    hosts.model("h1", {"per_flag": [{"flag": "stream-interval", "value": number, "behave": behave}]})
    hosts.profile(f"n{number}", flags={"stream-interval": number}, stall_timeout_s=STALL_S, startup_timeout_s=60)
    hosts.play("-e", f"profile=n{number}", check=False)


def one_round(hosts: Fleet, number: int) -> dict[str, float]:
    """A release that ends, one that hangs, and one that is good."""
    hosts.model("h1")  # the round before left its own behaviour
    found = {"engine_alone_s": engine_alone(hosts)}
    delay = {"phases": {"distributed": {"delay_s": 2}}}
    deploy(hosts, 3 * number + 1, {**delay, "exit_in": "weights", "exit_status": 3})
    ended = main_exit(hosts)
    found["exit_to_verdict_s"] = modified(hosts, f"{STATE}/evidence/*") - ended
    found["exit_to_serving_again_s"] = serving_since(hosts) - ended - found["engine_alone_s"]
    deploy(hosts, 3 * number + 2, {"hang_in": "weights"})
    # The log of the start before: the last good release has begun one of its own since.
    hung = modified(hosts, "/var/log/ironserve/main.log.1")
    found["hang_to_verdict_s"] = modified(hosts, f"{STATE}/evidence/*") - hung - STALL_S
    stop(hosts)
    watcher = subprocess.Popen(
        [str(ROOT / "tests/lab/lab"), "--name", "bench", "exec", "h1", "python3", "-c", FIRST_TOKEN],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    deploy(hosts, 3 * number + 3, {"phases": {"weights": {"delay_s": 3}}})
    found["generate_to_ready_s"] = modified(hosts, f"{STATE}/ledger.jsonl") - float(watcher.communicate(timeout=60)[0])
    return found


def main() -> None:
    """Measure, print, keep."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    series: dict[str, list[float]] = {}
    with fleet() as hosts:
        hosts.model("h1")
        hosts.play()
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for name, value in one_round(hosts, number).items():
                series.setdefault(name, []).append(round(value, 3))
    figures = {
        name: {"median": statistics.median(values), "worst": max(values), "target": TARGETS_S.get(name)}
        for name, values in series.items()
    }
    text = json.dumps({**figures, "rounds": series}, indent=2)
    (ROOT / ".ironserve" / "bench-gate.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
