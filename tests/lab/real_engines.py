"""The real engines on the CPU of test hosts, and what befalls them there at a moment that a test names."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from deploys import BIN, ROOT, UNIT, Fleet, have_client

STALL_S = 15
"""stall_timeout_s of profiles whose start is made to hang."""
WATCHDOG_S = 20
LOCKS = {"sglang": "sglang-0.5.23-cpu", "vllm": "vllm-0.32.0-cpu"}
BINDS = ("wheelhouse:/srv/wheelhouse:ro", "models:/srv/models:ro", "engines:/opt/ironserve/engines",
         "clients:/opt/ironserve/clients")  # fmt: skip


class BadModel(NamedTuple):
    """A model that an engine cannot serve: what is done to a copy of the tiny one, and what is said of it."""

    path: str
    error: str
    cause: str
    edit: str = "true"
    is_moved: bool = False
    """It goes when the engine's process is there: the deploy looked whether it is there before."""


class Engine(NamedTuple):
    """What the tests know of an engine.

    Attributes:
        name: ``vllm`` or ``sglang``.
        core: title of the process that drives the model.
        stopped: title of the process that runs the model.
        late: a line of its log after the weights and before it serves.
        hangs_at: a line of its log at which the model process is stopped.
        hangs_in: the phases in which the start may be then.
        usage: how the last line of argparse's usage begins.
        death: how the message, with the last lines of the log, names a core that was killed. vLLM may just end.
        ended_note: what status says when the core of a server was killed.
        bad_model: a model that it refuses early; one of an unknown architecture SGLang refuses after half of its start.
    """

    name: str
    core: str
    stopped: str
    late: str
    hangs_at: str
    hangs_in: tuple[str, ...]
    usage: str
    death: str
    ended_note: str
    bad_model: BadModel

    def dead(self, pid: int) -> re.Pattern[str]:
        """What the message has to say of a core of this pid that was killed."""
        return re.compile(self.death.replace("PID", str(pid)))


VLLM = Engine(
    name="vllm",
    core="VLLM::EngineCore",
    stopped="VLLM::Worker",
    late="[CG]PU KV cache size",
    hangs_at=r"world_size=\d+ rank=\d+",
    hangs_in=("joining ranks", "loading weights"),
    usage="vllm:",
    # On a busy machine vLLM notices the end before it knows the status, and says so: {}.
    death=(
        r"VLLM::EngineCore? \(pid PID\) died|\{'EngineCore': -9\}|the engine exited with status 1|core proc\(s\): \{\}"
    ),
    ended_note="the engine exited with status 0|loads again",
    bad_model=BadModel(
        path="/srv/unknown",
        edit="sed -i s/LlamaForCausalLM/NobodyKnowsForCausalLM/ /srv/unknown/config.json",
        error="Value error, Model architectures ['NobodyKnowsForCausalLM'] are not supported for now.",
        cause="This version of the engine does not know the model's architecture (NobodyKnowsForCausalLM).",
    ),
)
SGLANG = Engine(
    name="sglang",
    core="sglang::scheduler",
    stopped="sglang::scheduler",
    late="max_total_num_tokens=",
    hangs_at="Init parallel begin",
    hangs_in=("joining ranks", "loading weights"),
    usage="sglang serve:",
    death=r"sglang::scheduler \(pid PID\) died|exit code:? -9",
    ended_note="the engine was killed by SIGKILL|loads again",
    bad_model=BadModel(
        path="/srv/leaves",
        is_moved=True,
        error="OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/srv/leaves'.",
        cause="The folder /srv/leaves is not on the host",
    ),
)

AMBUSH = r"""
import json, os, re, signal, subprocess, sys, time
asked = json.loads(sys.argv[1])
unit = "ironserve-main.service"
group, log, findings = "/sys/fs/cgroup/system.slice/" + unit, "/var/log/ironserve/main.log", "/run/ironserve/main"

def read(path):
    try:
        return open(path, errors="replace").read()
    except OSError:
        return ""

def ticks(pid):
    stat = read(f"/proc/{pid}/stat")
    return int(stat.rsplit(")", 1)[1].split()[19]) if stat else 0

def wait(find, seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        found = find()
        if found:
            return found
        time.sleep(0.02)
    return None

def victim():
    # Processes of the unit that are younger than this program, so none of an earlier start.
    for pid in map(int, read(group + "/cgroup.procs").split()):
        title = read(f"/proc/{pid}/cmdline").split("\0")[0].strip()
        if ticks(pid) >= since and title.startswith(asked["title"]):
            if re.search(asked["line"], read(log)):
                return pid, ticks(pid)

since = asked["since"] if "since" in asked else int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
print("waiting", flush=True)
found = wait(victim, asked["within_s"])
if not found:
    sys.exit("no such process, or no such line in its log")
main = int(subprocess.check_output(["systemctl", "show", "-P", "MainPID", unit], text=True))
main_ticks = ticks(main)
if "first" in asked:
    subprocess.run(["sh", "-c", asked["first"]], check=True, timeout=60)
if asked["signal"]:
    process = os.pidfd_open(found[0])
    assert ticks(found[0]) == found[1]
    signal.pidfd_send_signal(process, asked["signal"])
else:
    os.rename(asked["move"], asked["move"] + ".moved")
at, wall = time.monotonic(), time.time()
told = {"pid": found[0], "main": main, "wall": wall}
print(json.dumps(told), flush=True)

def ended():
    for name in os.listdir(findings) if os.path.isdir(findings) else ():
        if name.endswith(".end.probe.json") and "found_s" not in told:
            if os.stat(os.path.join(findings, name)).st_mtime >= wall:
                told["found_s"] = round(time.monotonic() - at, 2)
    return ticks(main) != main_ticks or read(f"/proc/{main}/stat").rsplit(")", 1)[-1].split()[:1] == ["Z"]

if wait(ended, asked["within_s"]):
    told["ended_s"] = round(time.monotonic() - at, 2)
print(json.dumps(told), flush=True)
"""
"""Waits for a process of the service's unit (by title) and a line of its log, sends a signal, and tells what followed.

It runs on the host, and signals only a process of that unit which it holds by pid and start time.
"""

WATCH = r"""
import glob, json, sys, time
print("waiting", flush=True)
silent, still, what, ends = 0.0, 0.0, "", time.monotonic() + float(sys.argv[1])
phase = ""
while time.monotonic() < ends and phase != "serving":
    for path in glob.glob("/run/ironserve/main/*.start.json"):
        try:
            seen = json.load(open(path))
        except (OSError, ValueError):
            continue
        signals, phase = seen["signals"], seen["phase"]
        ages = {name: signal["age_s"] for name, signal in signals.items()}
        if len(ages) > 1:
            still = max(still, min(ages.values()))
        if ages.get("log", 0) > silent:
            silent = ages["log"]
            what = ", ".join(f"{signal['what']} ({signal['age_s']:.0f} s ago)" for signal in signals.values())
            what = f"{phase or 'no phase yet'}: {what}"
    time.sleep(0.2)
print(json.dumps({"silent_s": silent, "still_s": still, "what": what}), flush=True)
"""
"""Tells of a start, watched to its end, the longest silence of its log and the longest time without any signal."""


REQUEST = {"model": "tiny", "prompt": "Hello", "ignore_eos": True, "stream": True}
STREAMS = "\n".join(
    f"""
(while curl -sfN http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{json.dumps(REQUEST | {"max_tokens": tokens})}' > /srv/stream-{tokens}; do :; done) > /dev/null 2>&1 &
until [ -s /srv/stream-{tokens} ]; do sleep 0.02; done"""
    for tokens in (900, 611)
)
"""Keeps two streams going, each until one breaks; they end at different times, so one is in flight at any moment.

It ends when both have said a token. One stream alone may be over before a busy machine gets to what comes next.
"""


class OnHost:
    """A program that runs on a host while a test does something else."""

    def __init__(self, lab: Any, host: str, program: str, *words: str) -> None:
        argv = [sys.executable, str(ROOT / "tests" / "lab" / "lab"), "--name", lab.name, "exec", host]
        self.process = subprocess.Popen(
            [*argv, "python3", "-c", program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "waiting\n", self.process.communicate()

    def said(self) -> dict[str, Any]:
        """Its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        return json.loads(line)

    def result(self) -> dict[str, Any]:
        """Its last line, after its end."""
        out, err = self.process.communicate(timeout=400)
        assert out, err
        return json.loads(out.splitlines()[-1])

    def end(self) -> None:
        """End it, if it still runs."""
        self.process.terminate()
        self.process.communicate()


class RealFleet(Fleet):
    """One host that runs one of the real engines; what it is, is that of the inventory and not of the stand-in."""

    def __init__(self, lab: Any, folder: Path, engine: Engine) -> None:
        super().__init__(lab, folder)
        self.engine = engine
        self.running: list[OnHost] = []
        # No verdict of these tests is to come from a limit that they do not mean.
        self.real_profile("good", stall_timeout_s=20, watchdog_s=WATCHDOG_S)

    def real_profile(self, name: str, **data: Any) -> None:
        """Write a profile that extends the engine's one for test hosts."""
        self.profile(name, extends=f"lab_{self.engine.name}", **data)

    def command(
        self, *words: str, playbook: str = "deploy.yml", inventory: Path | None = None, **site: Any
    ) -> list[str]:
        """The argv of a run."""
        site = {
            "ironserve_profile_paths": [str(self.folder / "profiles"), "profiles"],
            "ironserve_reports": str(self.folder / "reports"),
            **site,
        }
        inventory = inventory or self.lab.inventory
        return [str(BIN / "ansible-playbook"), "-i", str(inventory), playbook, "-e", json.dumps(site), *words]

    def deploy(self, profile: str, check: bool = True, **site: Any) -> subprocess.CompletedProcess[str]:
        """Deploy a profile onto the host. The first time it may have to build the engine's environment."""
        argv = self.command("-l", "h1", "-e", f"profile={profile}", **site)
        result = subprocess.run(
            argv, cwd=ROOT, env=self.environment(), capture_output=True, text=True, timeout=900, check=False
        )
        if check and result.returncode:
            raise AssertionError(f"{argv} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
        return result

    def on_host(self, program: str, *words: str) -> OnHost:
        """Start a program on the host."""
        self.running.append(OnHost(self.lab, "h1", program, *words))
        return self.running[-1]

    def ambush(self, title: str, signal: int = 0, line: str = "", within_s: int = 240, **more: Any) -> OnHost:
        """Have a signal sent when a start shows a process of that title and, in its log, the line; see ``AMBUSH``."""
        asked = {"title": title, "signal": signal, "line": line, "within_s": within_s, **more}
        return self.on_host(AMBUSH, json.dumps(asked))

    def verdict_s(self, wall: float) -> float:
        """Seconds from a time of the host's clock to the newest record of the ledger: it is written at the verdict."""
        return round(float(self.shell("h1", "stat -c %.3Y /var/lib/ironserve/main/ledger.jsonl")) - wall, 2)

    def record(self) -> dict[str, Any]:
        """The newest record of the ledger."""
        return json.loads(self.shell("h1", "tail -n 1 /var/lib/ironserve/main/ledger.jsonl"))

    def since_s(self, wall: float) -> float:
        """Seconds from a time of the host's clock to now."""
        return round(float(self.shell("h1", "date +%s.%3N")) - wall, 2)

    def _exit(self, name: str) -> float:
        return int(self.shell("h1", f"systemctl show -P ExecMain{name}TimestampMonotonic {UNIT}")) / 1e6

    def lasted_s(self) -> float:
        """Seconds that the engine lived."""
        return round(self._exit("Exit") - self._exit("Start"), 2)

    def after_end_s(self) -> float:
        """Seconds from the engine's own end to the verdict."""
        clocks = self.shell("h1", "python3 -c 'import time; print(time.time() - time.monotonic())'")
        return round(self.verdict_s(float(clocks) + self._exit("Exit")), 2)

    def restarts(self) -> int:
        """How often systemd started the engine again by itself."""
        return int(self.shell("h1", f"systemctl show -P NRestarts {UNIT}"))

    def status_but(self, word: str) -> dict[str, Any]:
        """The host's first row of status that says another word than this."""
        while (row := self.status("h1"))["status"] == word:
            pass
        return row

    def wait(self, condition: str, seconds: int) -> None:
        """Wait until a shell condition holds on the host."""
        script = f"for i in $(seq {seconds * 10}); do {condition} && exit; sleep 0.1; done; exit 1"
        found = self.lab.exec("h1", ["sh", "-c", script], check=False)
        assert found.returncode == 0, f"{condition}: not in {seconds} s\n{self.shell('h1', f'systemctl status {UNIT}')}"


def real_host(lab: Any, engine: Engine) -> None:
    """Bring up h1 with wheels, model and environment of the engine, by what ``make molecule`` uses for its hosts.

    Test hosts share the folder of environments, and no host knows of another one's build: one of them builds at a time.
    """
    (ROOT / ".ironserve").mkdir(exist_ok=True)
    path = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    with (ROOT / ".ironserve" / "engines.lock").open("w") as turn:  # test files run at the same time
        fcntl.flock(turn, fcntl.LOCK_EX)
        subprocess.run(["tools/engines.sh", engine.name], cwd=ROOT, env=path, check=True, stdout=subprocess.DEVNULL)
        lab.up(1, binds=[f"{ROOT}/.ironserve/{bind}" for bind in BINDS])
        wish = json.dumps({"lock": LOCKS[engine.name], "wheelhouse": "/srv/wheelhouse"})
        build = [str(BIN / "ansible"), "-i", str(lab.inventory), "h1", "-m", "engine_environment", "-a", wish]
        subprocess.run(build, cwd=ROOT, env=path, check=True, stdout=subprocess.DEVNULL)
    have_client(lab)
