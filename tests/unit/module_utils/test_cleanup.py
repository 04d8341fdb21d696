"""The cleanup as a whole, on a host made of files: whom it signals, when, what it refuses. Nothing real is ended."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import cleanup
from ansible.module_utils.ironserve.cleanup import Cleanup, Means, Wish
from ansible.module_utils.ironserve.gpus import Gpu, GpuProcess, Reading

sys.path.insert(0, str(Path(__file__).parent))
from fake_proc import MONITOR_FDS, fake_process

SESSION = "0::/user.slice/user-0.slice/session-3.scope"
UNIT = "0::/system.slice/ironserve-main.service"
ME = 900


class FakeHost:
    """Processes as files, GPUs whose memory is that of those processes, a unit, and a record of every signal."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.sent = proc, []
        self.memory: dict[int, tuple[int, int]] = {}
        self.ignores: dict[int, set[int]] = {}
        self.changes: dict[str, object] = {}
        self.told, self.running, self.units_fail = False, False, False
        (proc / "shm").mkdir()
        fake_process(proc, 1, parent=0, comm="systemd", cgroup="0::/init.scope")
        fake_process(proc, ME, cgroup=SESSION)

    def add(self, pid: int, title: str, gpu: int = 0, mib: int = 70000, ignores=(), **more) -> None:
        more = {"cgroup": SESSION, "comm": title[:15], "argv": [title], "fds": MONITOR_FDS, **more}
        fake_process(self.proc, pid, **more)
        self.memory[pid], self.ignores[pid] = (gpu, mib), set(ignores)

    def end(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))
        self.memory.pop(pid)

    # What Means are made of.

    def send(self, pid: int, ticks: int, number: int) -> bool:
        stat = self.proc / str(pid) / "stat"
        if not stat.exists() or int(stat.read_text().rsplit(")", 1)[1].split()[19]) != ticks:
            return False
        self.sent.append((pid, signal.Signals(number).name))
        if number not in self.ignores[pid]:
            self.end(pid)
        return True

    def watch(self) -> FakeHost:
        return self

    def __enter__(self) -> FakeHost:
        return self

    def __exit__(self, *_) -> None:
        pass

    def latest(self, timeout_s: float) -> Reading | None:
        gpus = []
        for number in range(2):
            mine = {pid: mib for pid, (gpu, mib) in self.memory.items() if gpu == number}
            listed = tuple(GpuProcess(pid, "C", mib) for pid, mib in mine.items())
            fields = {"memory_used_mib": sum(mine.values()), "processes": listed, "minor": number}
            gpus.append(Gpu(number, f"GPU-{number}", **{**fields, **self.changes.get(number, {})}))
        return Reading("nvml", tuple(gpus))

    def units(self) -> frozenset[str]:
        if self.units_fail:
            raise RuntimeError("systemd does not tell which services run")
        return frozenset({"ironserve-main.service"} if self.running else ())

    name = "ironserve-main.service"

    def unit(self, service: str) -> FakeHost:
        return self

    def is_off(self) -> bool:
        return not self.running

    def is_current(self) -> bool:
        return self.running

    def group(self) -> str:
        return "system.slice/ironserve-main.service"

    def tell(self) -> None:
        self.told, self.running = True, False
        for pid in list(self.memory):
            if UNIT in (self.proc / str(pid) / "cgroup").read_text():
                self.end(pid)

    def end_group(self, group: str) -> int:
        return 0

    def clean(self, cursor=None, slice_s=0.0, check=False, **wish) -> dict:
        means = Means(self.proc, self.send, self.watch, self.units, self.unit, self.proc / "shm", ME)
        wish = {"grace_s": 0.0, "timeout_s": 0.5, "shm": False, **wish}
        return Cleanup(Wish(**wish), check, means).run(cursor or {}, slice_s)


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path)


def test_ranks_get_sigterm_once_main_process_first(host):
    host.add(4002, "VLLM::EngineCore", mib=0)
    host.add(4003, "VLLM::Worker_TP0", parent=4002)
    host.add(4004, "VLLM::Worker_TP1", parent=4002, gpu=1)
    answer = host.clean()
    assert (answer["state"], answer["freed_mib"]) == ("clean", 140000)
    assert host.sent == [(4002, "SIGTERM"), (4003, "SIGTERM"), (4004, "SIGTERM")]
    assert [one["pid"] for one in answer["victims"]] == [4002, 4003, 4004]
    assert answer["actions"] == [
        "end VLLM::EngineCore (pid 4002), VLLM::Worker_TP0 (pid 4003), VLLM::Worker_TP1 (pid 4004)"
    ]


def test_check_mode_signals_nobody_and_stops_nothing(host):
    host.running = True
    host.add(4003, "VLLM::Worker_TP0")
    host.add(4004, "python3", cgroup=UNIT, gpu=1)
    answer = host.clean(check=True, service="main")
    assert (answer["state"], answer["changed"], host.sent, host.told) == ("held", True, [], False)
    assert answer["actions"][0] == "stop ironserve-main.service"
    assert {one["pid"] for one in answer["victims"]} == {4003, 4004}


def test_check_mode_does_not_promise_what_will_fail(host):
    host.add(4003, "VLLM::Worker_TP0")
    host.changes[1] = {"error": "lost", "memory_used_mib": None, "processes": None}
    assert host.clean(check=True)["state"] == "gpu_lost"


def test_nobody_is_ended_when_systemd_does_not_say_what_runs(host):
    """All that it runs would look like leftovers (a stalled D-Bus, a daemon that re-executes itself)."""
    host.running = host.units_fail = True
    host.add(4003, "VLLM::Worker_TP0", cgroup=UNIT)
    with pytest.raises(RuntimeError, match="systemd does not tell"):
        host.clean()
    assert host.sent == []


def test_a_service_that_runs_keeps_its_gpus_and_the_others_are_cleaned(host):
    host.running = True
    host.add(4003, "VLLM::Worker_TP0", cgroup=UNIT)
    host.add(4004, "VLLM::Worker_TP0", gpu=1)
    answer = host.clean()
    assert (answer["state"], host.sent) == ("clean", [(4004, "SIGTERM")])
    assert [gpu["in_scope"] for gpu in answer["gpus"]] == [False, True]
    assert host.clean(check=True)["state"] == "clean"


def test_a_server_of_the_active_release_is_left_alone_where_a_deploy_attaches(host):
    host.running = True
    host.add(4003, "VLLM::Worker_TP0", cgroup=UNIT)
    assert host.clean(service="main", keep_current=True)["state"] == "in_use"
    assert (host.sent, host.told) == ([], False)


def test_the_unit_is_stopped_by_systemd_and_the_memory_that_it_held_counts(host):
    host.running = True
    host.add(4003, "VLLM::Worker_TP0", cgroup=UNIT)
    answer = host.clean(service="main")
    assert (answer["state"], answer["freed_mib"], host.told, host.sent) == ("clean", 70000, True, [])


@pytest.mark.parametrize(
    ("trouble", "state"),
    [
        ({"recovery_action": "drain_and_reset"}, "reset_required"),
        ({"error": "lost", "memory_used_mib": None, "processes": None}, "gpu_lost"),
        ({"error": "not_supported", "memory_used_mib": None, "name": "NVIDIA H200"}, "driver_unusable"),
        ({"mig_mode": True}, "mig_mode"),
        (None, "foreign_holder"),
    ],
)
def test_an_old_server_is_not_stopped_for_gpus_that_are_known_to_stay_unusable(host, trouble, state):
    host.running = True
    host.add(4003, "VLLM::Worker_TP0", cgroup=UNIT)
    if trouble:
        host.changes[1] = trouble
    else:
        host.add(4010, "train.py", gpu=1, comm="python3")
    answer = host.clean(service="main", leftovers_only=True)
    assert (answer["state"], host.told, host.sent, answer["changed"]) == (state, False, [], False)


def test_sigkill_comes_once_and_not_to_a_pid_that_passed_on(host):
    host.add(4003, "VLLM::Worker_TP0", ignores=[signal.SIGTERM])
    host.add(4004, "VLLM::Worker_TP1", gpu=1, ignores=[signal.SIGTERM])
    terminated = host.send

    def pass_on(pid, ticks, number):
        found = terminated(pid, ticks, number)
        if pid == 4004 and number == signal.SIGTERM:
            host.end(4004)
            fake_process(host.proc, 4004, comm="train.py", ticks=99999, cgroup=SESSION)
        return found

    host.send = pass_on
    assert host.clean()["state"] == "clean"
    assert host.sent == [(4003, "SIGTERM"), (4004, "SIGTERM"), (4003, "SIGKILL")]


def test_a_monitor_that_a_victim_started_gets_no_sigkill(host):
    host.add(4003, "VLLM::Worker_TP0", ignores=[signal.SIGTERM])
    host.add(4004, "nvidia-smi", parent=4003, mib=0)
    assert host.clean()["state"] == "clean"
    assert {pid for pid, _ in host.sent} == {4003}


def test_one_that_outlives_sigkill_gets_no_second_one(host):
    host.add(4003, "VLLM::Worker_TP0", ignores=[signal.SIGTERM, signal.SIGKILL], state="D")
    answer = host.clean()
    assert answer["state"] == "unkillable"
    assert host.sent == [(4003, "SIGTERM"), (4003, "SIGKILL")]


def test_slices_carry_on_where_the_last_one_stopped(host):
    host.add(4003, "VLLM::Worker_TP0", ignores=[signal.SIGTERM])
    cursor, slices = {}, 0
    while True:
        answer = host.clean(cursor=cursor, slice_s=0.001, grace_s=0.2)
        slices += 1
        if answer["slice"]["done"]:
            break
        cursor = json.loads(json.dumps(answer["slice"]["cursor"]))
    assert slices > 2
    assert (answer["state"], answer["freed_mib"]) == ("clean", 70000)
    assert host.sent == [(4003, "SIGTERM"), (4003, "SIGKILL")]
    assert [one["pid"] for one in answer["victims"]] == [4003]


def test_who_comes_back_is_ended_three_times_and_then_named(host):
    born = iter(range(5000, 5100))

    def back(pid, ticks, number):
        found = FakeHost.send(host, pid, ticks, number)
        host.add(next(born), "VLLM::EngineCore", parent=4000)
        return found

    host.add(4000, "sh", gpu=1, mib=0, fds=[], argv=["sh", "loop.sh"])
    host.add(4003, "VLLM::EngineCore", parent=4000)
    host.send = back
    answer = host.clean()
    assert answer["state"] == "respawning"
    assert "sh (pid 4000)" in answer["msg"]
    assert [number for _, number in host.sent] == ["SIGTERM"] * 4
    assert len(answer["victims"]) == 4


def test_only_those_a_person_saw_are_ended(host):
    host.add(4003, "VLLM::Worker_TP0")
    seen = host.clean(check=True)["victims"]
    host.add(4004, "VLLM::Worker_TP0", gpu=1)
    answer = host.clean(agreed=seen)
    assert host.sent == [(4003, "SIGTERM")]
    assert answer["state"] == "foreign_holder"
    assert "came after the question" in answer["msg"]


def test_a_look_that_never_comes_back_is_told_in_time(host, monkeypatch):
    """As when /proc/PID/cmdline of a process blocks that is stuck with the lock of its memory."""
    monkeypatch.setattr(cleanup, "LOOK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(cleanup.victims, "find", lambda *_: signal.pause())
    host.add(4003, "VLLM::Worker_TP0")
    answer = host.clean()
    assert (answer["state"], host.sent) == ("driver_hung", [])
    assert "stuck in the kernel" in answer["msg"]
