"""A fleet behind a router on test hosts, and the load that a rollout must not lose a request of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from deploys import BIN, ROOT, Fleet, standin_hosts

PORT = 8000
"""Of the router and of each server: ironserve_port."""
TOKENS, TOKENS_PER_S = 20, 15
"""Streams of 0.7 to 2 s. Fifty of them take a third of a core: each token is a step of stand-in, router and client."""
PATIENCE_S = 60
FLAG = "--max-num-seqs"


class Load:
    """tools/load.py in the lab's network, from the first whole answers to ``end``."""

    def __init__(self, lab: Any, folder: Path, url: str, *words: str, streams: int = 50) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log, self.summary, self.stop = folder / "events.jsonl", folder / "summary.json", folder / "stop"
        for path in (self.log, self.summary, self.stop):
            path.unlink(missing_ok=True)
        argv = [sys.executable, str(ROOT / "tests" / "lab" / "lab"), "--name", lab.name, "run", "--"]
        argv += [sys.executable, str(ROOT / "tools" / "load.py"), url, "--watch", "--streams", str(streams)]
        argv += ["--tokens", str(TOKENS), "--log", str(self.log), "--summary", str(self.summary)]
        self.process = subprocess.Popen(
            [*argv, "--stop-file", str(self.stop), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.until(lambda events: sum(event.get("outcome") == "ok" for event in events) >= streams, "a first answer")

    def events(self) -> list[dict[str, Any]]:
        """What was written down so far."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def until(self, condition: Callable[[list[dict[str, Any]]], Any], what: str) -> None:
        """Wait until the events say so."""
        ends = time.monotonic() + PATIENCE_S
        while not condition(self.events()):
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < ends, f"not in {PATIENCE_S} s: {what}; {self.events()[-3:]}"
            time.sleep(0.1)

    def mark(self, text: str) -> None:
        """Mark this moment in the log."""
        with self.log.open("a") as log:
            log.write(json.dumps({"at": round(time.time(), 3), "event": "mark", "text": text}) + "\n")

    def end(self) -> dict[str, Any]:
        """Let what is in flight end; the sums, again where it has ended already."""
        self.stop.touch()
        if self.process.poll() is None:
            self.process.communicate(timeout=2 * PATIENCE_S)
        assert self.summary.exists(), f"the load ended with {self.process.returncode}"
        return json.loads(self.summary.read_text())

    def fewest_healthy(self) -> int:
        """The fewest healthy workers that the router had at any look."""
        return min(len(event["healthy"]) for event in self.events() if "healthy" in event)


class RolloutFleet(Fleet):
    """Hosts h1..hN with the stand-in engine and, as the last host of the lab, their router."""

    def __init__(self, lab: Any, folder: Path, servers: int) -> None:
        super().__init__(lab, folder)
        self.servers = [f"h{number}" for number in range(1, servers + 1)]
        self.router = f"h{servers + 1}"
        self.url = f"http://{self.address(self.router)}:{PORT}"
        self.groups = folder / "groups.yml"
        self.groups.write_text(yaml.safe_dump({"router": {"hosts": {self.router: {}}}}))
        self.on_all(self.behave)

    def on_all(self, ask: Callable[[str], Any], hosts: Iterable[str] = ()) -> dict[str, Any]:
        """What is found on each server, or each of the hosts, asked at the same time."""
        hosts = list(hosts) or self.servers
        with ThreadPoolExecutor(max_workers=4) as pool:
            return dict(zip(hosts, pool.map(ask, hosts)))

    def numbers(self) -> dict[str, str]:
        """What runs on each server, by the number that its profile has for a flag."""
        return self.on_all(lambda host: self.flag(host, FLAG))

    def pids(self, *hosts: str) -> dict[str, int]:
        """The main process of each server: another one means that it was started anew."""
        return self.on_all(self.main_pid, hosts)

    def number(self, number: int, **data: Any) -> list[str]:
        """Write a profile that differs from all others in one flag; the words that roll it out."""
        self.profile(f"n{number}", flags={FLAG.removeprefix("--"): number, **data.pop("flags", {})}, **data)
        return ["-e", f"profile=n{number}"]

    def address(self, host: str) -> str:
        """Where a host is in the lab's network."""
        return str(yaml.safe_load(self.lab.inventory.read_text())["lab"]["hosts"][host]["lab_address"])

    def behave(self, host: str, *when: dict[str, Any], **behaviour: Any) -> None:
        """Have the host's engine behave so; ``when`` are ``{flag, value, behave}``: only with that flag."""
        self.model(host, {"tokens_per_s": TOKENS_PER_S, **behaviour, "per_flag": list(when)})

    def command(
        self, *words: str, playbook: str = "deploy.yml", inventory: Path | None = None, **site: Any
    ) -> list[str]:
        """The argv of a run, with the group of routers."""
        return super().command("-i", str(self.groups), *words, playbook=playbook, inventory=inventory, **site)

    def load(self, *words: str, streams: int = 50) -> Load:
        """Have the load running."""
        return Load(self.lab, self.folder / "load", self.url, *words, streams=streams)

    def workers(self) -> dict[str, bool]:
        """The router's workers by host, and whether it finds them healthy."""
        hosts = {self.address(host): host for host in self.servers}
        said = self.shell(self.router, f"curl -sf --max-time 10 http://127.0.0.1:{PORT}/workers")
        return {
            hosts[worker["url"].partition("//")[2].rpartition(":")[0]]: worker["is_healthy"]
            for worker in json.loads(said)["workers"]
        }


class Roll:
    """A run that goes on while a test does something else, in a process group of its own."""

    def __init__(self, fleet: RolloutFleet, *words: str, **site: Any) -> None:
        self.process = subprocess.Popen(
            fleet.command(*words, **site), cwd=ROOT, env=fleet.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.said = ""

    def until(self, *words: str) -> None:
        """Read on to the first line that has all the words."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if all(word in line for word in words):
                return
        raise AssertionError(f"never said {words}:\n{self.said}")

    def pause(self, paused: bool = True) -> None:
        """Have the controller stand still where it is, alive, or go on."""
        number = signal.SIGSTOP if paused else signal.SIGCONT
        os.killpg(self.process.pid, number)  # lint_kill: the run's own group, it has a session of its own

    def kill(self) -> None:
        """End the controller as the kernel does when memory runs out: nothing is tidied up."""
        os.killpg(self.process.pid, signal.SIGKILL)  # lint_kill: the run's own group, it has a session of its own
        self.process.communicate()

    def end(self) -> int:
        """Read on to its end; the exit status."""
        rest, _ = self.process.communicate(timeout=300)
        self.said += rest
        return self.process.returncode


def rollout_hosts(lab: Any, servers: int, engines: Path | None = None) -> Any:
    """Bring up hosts for a fleet of so many servers and its router, which see the wheels of both.

    With ``engines`` they share that folder of environments: what the first one built is there on all.
    """
    lock = yaml.safe_load((ROOT / "tests" / "lab" / "standin.yml").read_text())["ironserve_locks"]["router"]
    wheels = [sys.executable, "tools/wheelhouse.py", f"environments/{lock}"]
    subprocess.run(wheels, cwd=ROOT, env=with_tools(), check=True, stdout=subprocess.DEVNULL)
    return standin_hosts(lab, servers + 1, binds=[f"{engines}:/opt/ironserve/engines"] if engines else [])


def with_tools() -> dict[str, str]:
    """The environment of the project's own tools."""
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
