"""The gate's loop over a scripted host: when a slice ends, what is read twice, how long a start may take."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import gate as gate_module
from ansible.module_utils.ironserve import logs, probe
from ansible.module_utils.ironserve.gate import Gate
from ansible.module_utils.ironserve.host import Done
from ansible.module_utils.ironserve.processes import Table

sys.path.insert(0, str(Path(__file__).parent))
from fake_proc import CUDA, fake_process

PROVEN = {"outcome": "ready", "proof": {"outcome": "ready"}}
PHASES = [
    {"name": "reading arguments", "match": "args"},
    {"name": "loading weights", "match": "load", "progress": r"load (\d+)/(\d+)"},
]
RELEASE = {"service": "main", "engine": "vllm", "startup_timeout_s": 60, "stall_timeout_s": 900, "env": {},
           "log": {"phases": PHASES}}  # fmt: skip


class World:
    """A host whose unit, log and probe follow a clock."""

    def __init__(self, folder, started_at=0.0, now=0.0) -> None:
        self.log, self.now = folder / "main.log", now
        self.started_at, self.events, self.found, self.current = started_at, [], {}, True
        self.unlike, self.active_at = [], 0.0
        self.kernel, self.holders = "", []
        self.unit = {"ActiveState": "active", "MainPID": "42", "InvocationID": "i", "Result": "success"}
        self.log.write_text("")

    def at(self, second: float, action) -> None:
        self.events.append((second, action))

    def write(self, text: str):
        return lambda: self.log.open("a").write(text)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for event in [event for event in self.events if event[0] <= self.now]:
            self.events.remove(event)
            event[1]()

    def show(self, unit: str) -> dict[str, str]:
        became = {"ActiveEnterTimestampMonotonic": str(int(self.active_at * 1e6))}
        return {**self.unit, **became, "ExecMainStartTimestampMonotonic": str(int(self.started_at * 1e6))}


@pytest.fixture
def world(tmp_path, monkeypatch):
    def make(**more) -> World:
        world = World(tmp_path, **more)
        monkeypatch.setattr(gate_module.host, "LOGS", tmp_path)
        monkeypatch.setattr(gate_module.host, "show", world.show)
        monkeypatch.setattr(probe, "read", lambda service, invocation: world.found)
        monkeypatch.setattr(gate_module.readback, "differences", lambda *_: world.unlike)
        monkeypatch.setattr(gate_module.host, "run", lambda *_: Done(0, world.kernel, ""))
        monkeypatch.setattr(gate_module, "foreign_holders", lambda *_: world.holders)
        return world

    return make


KNOWN = [
    {"id": "leftover", "engine": "vllm", "match": [r"Free memory"], "needs": {"foreign_holders": True},
     "cause": "Held by {foreign_holders}.", "advice": "End it.", "permanent": False},
    {"id": "too_high", "engine": "vllm", "match": [r"Free memory"], "needs": {"foreign_holders": False},
     "cause": "Too little of {phase}.", "advice": "Look.", "permanent": False},
    {"id": "flag", "engine": "vllm", "match": [r"bad (?P<flag>\S+)"],
     "needs": {"exit_status": "^2$", "env": {"A": "^1$"}}, "cause": "{flag}", "advice": "Mend it.", "permanent": True},
    {"id": "killed", "engine": "any", "match": [r"Killed process \d+"], "needs": {"signal": "SIGKILL"},
     "cause": "No memory.", "advice": "Buy some.", "permanent": True},
]  # fmt: skip


def gate(world: World, cursor=None) -> Gate:
    return Gate(RELEASE, cursor or {}, lambda show: world.current, clock=world.clock, sleep=world.sleep)


def test_a_slice_ends_at_15_seconds_when_nothing_changes(world):
    here = world(started_at=1.0, now=1.0)
    assert gate(here).watch(15).verdict == "waiting"
    assert 16.0 <= here.now < 16.5


def test_a_change_of_phase_ends_a_slice(world):
    here = world(started_at=1.0, now=1.0)
    here.at(4.0, here.write("args\n"))
    watched = gate(here)
    assert watched.watch(15).verdict == "waiting"
    assert watched.reading.phase == "reading arguments"
    assert here.now < 5.0


def test_the_next_slice_goes_on_where_the_last_stopped(world):
    here = world(started_at=1.0, now=1.0)
    here.write("args\nload 1/4\rload 2")()
    first = gate(here)
    first.watch(15)
    here.write("/4\rload 3/4\n")()
    second = gate(here, first.cursor())
    second.look()
    assert second.reading.progress == "3/4"
    assert second.timings["loading weights"] == first.timings["loading weights"]
    assert second.reading.tail == ["args", "load 1/4", "load 2/4", "load 3/4"]


def test_ready_ends_a_slice_at_once(world):
    here = world(started_at=1.0, now=1.0)
    here.at(3.0, lambda: here.found.update(**PROVEN))
    watched = gate(here)
    assert watched.watch(15).verdict == "ready"
    assert here.now < 3.5


def test_time_is_up_after_the_profiles_limit(world):
    here = world(started_at=1.0, now=1.0)
    assert gate(here).watch(0).verdict == "timeout"
    assert 61.0 <= here.now < 61.5


def test_a_server_that_is_met_long_after_its_start_is_not_out_of_time(world):
    here = world(started_at=1.0, now=10_000.0)
    here.at(10_002.0, lambda: here.found.update(**PROVEN))
    assert gate(here).watch(0).verdict == "ready"


def test_a_queued_start_counts_no_time_of_the_start_before(world):
    here = world(started_at=1.0, now=10_000.0)
    here.unit.update(MainPID="0", ActiveState="inactive", Job="7", ExecMainCode="1", ExecMainStatus="2")
    watched = gate(here)
    assert watched.look().verdict == "waiting"
    assert watched.elapsed_s() == 0.0


def test_a_start_that_stays_queued_runs_out_of_time_too(world):
    here = world(started_at=1.0, now=10_000.0)
    here.unit.update(MainPID="0", ActiveState="inactive", Job="7")
    assert gate(here).watch(0).verdict == "timeout"
    assert here.now < 10_061


def test_after_a_reboot_of_the_host_nothing_of_the_cursor_holds(world):
    here = world(started_at=1.0, now=5.0)
    cursor = {**gate(here).cursor(), "boot": "another", "began": 9_000_000.0, "timings": {"x": 1.0}}
    assert gate(here, cursor).began == 5.0
    assert gate(here, cursor).timings == {}


def test_the_time_of_ready_is_when_systemd_heard_of_it(world):
    here = world(started_at=1.0, now=500.0)
    here.found.update(**PROVEN, at=480.0)  # asked anew, long after
    here.active_at = 41.5
    watched = gate(here)
    watched.look()
    assert watched.timings["ready"] == 40.5


def test_a_process_that_is_about_to_be_stopped_is_not_asked(world):
    here = world(started_at=1.0, now=500.0)
    here.found.update(**PROVEN, at=41.5)
    here.unit["ActiveState"] = "deactivating"
    assert gate(here).look().verdict == "waiting"
    here.unit["ActiveState"], here.current = "active", False
    watched = gate(here)
    assert watched.look().verdict == "waiting"
    assert watched.elapsed_s() == 0.0


def test_a_start_counts_its_time_while_systemd_still_waits_for_it(world):
    here = world(started_at=1.0, now=31.0)
    here.unit.update(ActiveState="activating", Job="7")
    watched = gate(here)
    assert watched.look().verdict == "waiting"
    assert watched.elapsed_s() == 30.0


def test_case_40_a_server_that_is_not_what_was_asked_for_is_not_ready(world):
    here = world(started_at=1.0, now=5.0)
    here.found.update(**PROVEN)
    here.unlike = ["max open files: 1024 (hard 1024), and the unit asks for 65535"]
    assert gate(here).look() == ("failed", f"it serves, but it is not what was asked for: {here.unlike[0]}")


def test_a_secret_in_the_log_or_a_finding_reaches_no_report(world):
    here = world(started_at=1.0, now=5.0)
    here.write("api_key='sk-TESTTOKEN'\nValueError: sk-TESTTOKEN is bad")()
    here.found.update(outcome="error", detail="you sent sk-TESTTOKEN")
    watched = Gate(RELEASE, {}, lambda show: True, ["sk-TESTTOKEN"], clock=here.clock, sleep=here.sleep)
    assert watched.look() == ("failed", "you sent ********")
    assert "sk-TEST" not in watched.message() + str(watched.evidence()) + str(watched.cursor())
    assert "api_key='********'" in watched.message()


def test_last_words_without_a_newline_are_told(world):
    here = world(started_at=1.0, now=5.0)
    here.write("args\nValueError: no newline after this")()
    here.unit.update(MainPID="0", ActiveState="failed", ExecMainCode="1", ExecMainStatus="1")
    watched = gate(here)
    assert watched.look().verdict == "failed"
    assert "The engine's own error: ValueError: no newline after this" in watched.message()


def ended(here: World, code: str, status: str, **more) -> Gate:
    here.unit.update(MainPID="0", ActiveState="failed", ExecMainCode=code, ExecMainStatus=status)
    watched = Gate({**RELEASE, **more}, {}, lambda show: True, ["sk-TEST"], clock=here.clock, sleep=here.sleep)
    watched.look()
    return watched


def test_a_known_cause_is_told_from_the_log_with_who_else_holds_the_gpus(world):
    here = world(started_at=1.0, now=5.0)
    here.write("args\nValueError: Free memory is less\n")()
    assert ended(here, "1", "1").known_cause(KNOWN).cause == "Too little of reading arguments."
    here.holders = ["pid 7 (vllm)", "pid 8 (vllm)"]
    assert ended(here, "1", "1").known_cause(KNOWN).cause == "Held by pid 7 (vllm); pid 8 (vllm)."


def test_a_known_cause_depends_on_status_and_variables_and_holds_no_secret(world):
    here = world(started_at=1.0, now=5.0)
    here.write("args\nbad --key=sk-TEST")()  # last words without a newline
    assert ended(here, "1", "2").known_cause(KNOWN) is None
    found = ended(here, "1", "2", env={"A": "1"}).known_cause(KNOWN)
    assert (found.cause, found.permanent) == ("--key=********", True)


def test_what_the_kernel_said_may_tell_the_cause(world):
    here = world(started_at=1.0, now=5.0)
    here.kernel = "usb 1-1: new device\nOut of memory: Killed process 42 (python3)\n"
    assert ended(here, "2", "9").known_cause(KNOWN).id == "killed"
    assert ended(here, "2", "6").known_cause(KNOWN) is None


def test_the_kernel_is_asked_only_where_the_log_tells_no_cause(world, monkeypatch):
    here = world(started_at=1.0, now=5.0)
    asked = []
    monkeypatch.setattr(gate_module, "kernel_lines", lambda since_s: asked.append(since_s) or [])
    here.write("args\nbad --key\n")()
    assert ended(here, "1", "2", env={"A": "1"}).known_cause(KNOWN).id == "flag"
    assert asked == []
    assert ended(here, "1", "2").known_cause(KNOWN) is None
    assert asked == [4.0]


def test_a_host_that_hangs_costs_a_cause_and_little_time(world, monkeypatch):
    here = world(started_at=1.0, now=5.0)
    monkeypatch.undo()
    monkeypatch.setattr(gate_module, "LOOK_S", 0.3)
    monkeypatch.setattr(gate_module, "Table", signal.pause)
    monkeypatch.setattr(gate_module.host, "run", lambda *_: signal.pause())
    began = time.monotonic()
    assert gate_module.foreign_holders(RELEASE, {}, []) is None
    assert gate_module.kernel_lines(5.0) == []
    assert time.monotonic() - began < 2.0
    monkeypatch.setattr(gate_module, "foreign_holders", lambda *_: None)
    monkeypatch.setattr(gate_module.host, "LOGS", here.log.parent)
    monkeypatch.setattr(gate_module.host, "show", here.show)
    monkeypatch.setattr(probe, "read", lambda *_: {})
    here.write("args\nValueError: Free memory is less\n")()
    assert ended(here, "1", "1").known_cause(KNOWN) is None  # neither that somebody holds it, nor that nobody does


def test_who_else_uses_the_gpus_is_named_but_for_those_that_the_site_protects(tmp_path, monkeypatch):
    driver = tmp_path / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    driver.mkdir(parents=True)
    (driver / "information").write_text("GPU UUID: \t GPU-1\nDevice Minor: \t 0\n")
    fake_process(tmp_path, os.getpid(), argv=("python3",))
    fake_process(tmp_path, 70, comm="trainer", argv=("trainer", "--token", "sk-TEST"), fds=["/dev/nvidia0"], maps=CUDA)
    monkeypatch.setattr(gate_module, "Table", lambda: Table(tmp_path))
    release = {**RELEASE, "port": 8000, "gpus": []}
    (told,) = gate_module.foreign_holders(release, {}, ["sk-TEST"])
    assert "pid 70" in told
    assert "TEST" not in told
    assert gate_module.foreign_holders(release, {"protected_extra": ["trainer"]}, []) == []
    assert gate_module.foreign_holders({**release, "gpus": ["GPU-2"]}, {}, []) == []


def test_an_earlier_start_in_the_same_log_tells_nothing(world):
    here = world(started_at=1.0, now=5.0)
    here.write("args\nFree memory\nargs\nload 1/4\n")()
    assert ended(here, "1", "1").known_cause(KNOWN) is None


def test_only_the_end_of_a_long_log_is_searched(world, monkeypatch):
    here = world(started_at=1.0, now=5.0)
    monkeypatch.setattr(gate_module, "CAUSE_BYTES", 100)
    here.write("Free memory\n" + "x" * 200 + "\n")()
    assert ended(here, "1", "1").known_cause(KNOWN) is None


def test_a_log_that_was_replaced_is_read_from_its_start(tmp_path):
    log = tmp_path / "main.log"
    log.write_text("old line\n")
    _, cursor = logs.follow(log, logs.Cursor(), 4096)
    log.rename(tmp_path / "main.log.1")
    log.write_text("new\n")
    assert logs.follow(log, cursor, 4096)[0] == "new\n"


def test_a_log_that_is_not_there_is_empty(tmp_path):
    assert logs.follow(tmp_path / "main.log", logs.Cursor(), 4096) == ("", logs.Cursor())


def test_an_engine_that_exits_and_leaves_processes_behind_has_failed_though_its_start_still_waits(world):
    here = world(started_at=5.0, now=6.0)
    here.unit |= {"ActiveState": "activating", "MainPID": "0", "ExecMainCode": "1", "ExecMainStatus": "0", "Job": "77"}
    before = Gate(RELEASE, {}, lambda show: True, clock=here.clock, sleep=here.sleep, asked_at=7.0)
    assert before.look().verdict == "waiting"  # what it shows is the start before
    watched = Gate(RELEASE, {}, lambda show: True, clock=here.clock, sleep=here.sleep, asked_at=4.5)
    assert watched.look() == ("failed", "the engine exited with status 0")
