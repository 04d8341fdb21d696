"""How evidence is read: in time, in parts that fail alone, and kept in a file; what it says is in test_symptoms.py."""

from __future__ import annotations

import datetime
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import evidence, host, logs, nvml, secrets
from ansible.module_utils.ironserve.gpus import Gpu, Reading
from ansible.module_utils.ironserve.processes import Table

sys.path.insert(0, str(Path(__file__).parent))
from fake_proc import CUDA, fake_process

UNIT = "ironserve-main.service"
CGROUP = f"0::/system.slice/{UNIT}"
RELEASE = {"profile": "p", "engine": "vllm", "argv": ["/nowhere/bin/vllm", "serve"]}
READING = logs.Reading(phase="loading weights", progress="3/9")


def told(part):
    found = {}
    for piece in part:
        evidence._join(found, *piece)
    return found


def endless():
    yield "slow", "first", 1
    time.sleep(600)


def broken():
    yield "broken", "first", 1
    raise PermissionError(1, "Operation not permitted")


def large():
    for number in range(100_000):
        yield "large", str(number), "x" * 1000


def quick():
    yield "quick", "at", {"a": 1}
    yield "quick", "at", {"b": 2}


def test_parts_fail_alone_in_time_and_within_their_size():
    began = time.monotonic()
    parts = {"endless": endless, "broken": broken, "large": large, "quick": quick}
    found = evidence.ask(parts, 2.0)
    assert time.monotonic() - began < 5
    assert found["slow"] == found["broken"] == {"first": 1}
    assert found["quick"] == {"at": {"a": 1, "b": 2}}
    assert found["errors"] == {
        "endless": "not all of it came in 2 s",
        "broken": "Operation not permitted",
        "large": "more than 448 KiB",
    }
    assert len(json.dumps(found["large"])) < evidence.PART_BYTES + 1000


def children() -> set[int]:
    """The children of this process that live: those of tests before this one are here, too."""
    return {process.pid for process in Table().children(os.getpid()) if process.state != "Z"}


def test_no_child_is_left_over():
    before = children()
    evidence.ask({"endless": endless, "quick": quick}, 0.5)
    deadline = time.monotonic() + 20  # one that was killed on a busy machine may need a moment
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert children() - before == set()


def test_processes_of_the_unit_and_those_that_were_left_behind(tmp_path):
    more = {"cgroup": CGROUP, "fds": ["/dev/nvidia0", "/dev/shm/nccl-1"], "maps": CUDA}
    main = fake_process(tmp_path, 10, argv=("/e/bin/vllm", "serve", "--api-key", "abcdefgh"), cgroup=CGROUP)
    worker = fake_process(tmp_path, 11, parent=10, argv=("VLLM::Worker_TP0",), **more)
    fake_process(tmp_path, 12, parent=1, argv=("VLLM::Worker_TP1",))
    fake_process(tmp_path, 13, parent=1, argv=("/bin/sh",), cgroup="0::/system.slice/other.service")
    fake_process(tmp_path, 1, parent=0, comm="systemd", argv=("/sbin/init",))
    (worker / "wchan").write_text("futex_wait_queue")
    (worker / "stack").write_text("[<0>] futex_wait+0x1\n[<0>] do_futex+0x2\n")
    (main / "wchan").write_text("0")

    def half_a_second(seconds):
        stat = worker / "stat"
        fields = stat.read_text().split()
        fields[13] = str(int(seconds * os.sysconf("SC_CLK_TCK")))
        stat.write_text(" ".join(fields))

    found = told(evidence.read_processes(UNIT, lambda text: text, tmp_path, half_a_second))["processes"]
    assert sorted(found) == ["10", "11", "12"]
    assert (found["10"]["wchan"], found["10"]["title"]) == ("", "/e/bin/vllm serve --api-key ***")
    assert found["11"]["title"] == "VLLM::Worker_TP0"
    assert (found["11"]["wchan"], found["11"]["parent"]) == ("futex_wait_queue", 10)
    assert found["11"]["stack"] == ["[<0>] futex_wait+0x1", "[<0>] do_futex+0x2"]
    assert found["11"]["cpu_percent"] == 100.0
    assert (found["11"]["gpus_open"], found["11"]["gpus_mapped"]) == ([0], [0, 11])
    assert found["11"]["shared"] == ["nccl-1"]
    assert found["12"]["left_behind"]
    assert "left_behind" not in found["11"]


def test_of_a_log_the_end_without_secrets_that_a_cut_would_halve(tmp_path):
    log = tmp_path / "main.log"
    long = "x" * (logs.LINE_LIMIT - 3) + "sk-SECRET and more"
    log.write_text("a\rbar: 1%\rbar: 9%\n" + long + "\nNCCL version 2.28.3\nValueError: no\nno newline")
    found = told(evidence.read_log(log, lambda text: text.replace("sk-SECRET", "***")))["log"]
    assert found["tail"][:2] == ["a", "bar: 9%"]
    assert found["tail"][2].endswith("x***")
    assert found["tail"][3:] == ["NCCL version 2.28.3", "ValueError: no", "no newline"]
    assert (found["error"], found["nccl"]) == ("ValueError: no", ["NCCL version 2.28.3"])
    assert 0 <= found["silent_s"] < 60


def test_a_large_log_is_read_from_its_first_whole_line(tmp_path):
    log = tmp_path / "main.log"
    log.write_text("".join(f"line {number}\n" for number in range(600_000)))
    found = told(evidence.read_log(log, str))["log"]
    assert found["tail"] == [f"line {number}" for number in range(599_800, 600_000)]


@pytest.fixture
def py_spy(tmp_path, monkeypatch):
    """Have a py-spy beside the engine; its text is a shell script."""

    def make(script: str) -> dict:
        program = tmp_path / "bin" / "py-spy"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(evidence.shutil, "which", lambda _: None)
        child = subprocess.Popen(["/bin/sleep", "60"])
        monkeypatch.setattr(evidence, "_of_unit", lambda table, unit: [table.processes[child.pid]])
        monkeypatch.setattr(evidence, "PYTHON_S", 1.0)
        began = time.monotonic()
        found = told(evidence.read_python(UNIT, {"argv": [str(program.parent / "vllm")]}))
        assert time.monotonic() - began < 3
        assert child.poll() is None
        child.kill()
        child.wait()
        return {key: dict(zip(["it"], value.values())) for key, value in found.items()}

    return make


def test_py_spy_is_asked_without_stopping_anything(py_spy):
    assert py_spy('echo "$1 $2 $3"') == {"python": {"it": "dump --nonblocking --pid\n"}}


def test_a_py_spy_that_may_not_or_hangs_is_told(py_spy):
    assert py_spy("echo Permission denied; exit 1") == {"python_errors": {"it": "Permission denied\n"}}


def test_a_py_spy_that_hangs_is_ended(py_spy):
    assert py_spy("exec sleep 60") == {"errors": {"it": "no answer in 1 s"}}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A host whose state is in tmp_path, with a log, one GPU, secrets in its files and no process of the engine."""
    for name in ("STATE", "LOGS"):
        monkeypatch.setattr(host, name, tmp_path)
    monkeypatch.setattr(evidence, "_of_unit", lambda table, unit: [])  # a test host beside may run a unit of that name
    monkeypatch.setattr(nvml, "look", lambda _: Reading("nvml", (Gpu(0, "GPU-1", memory_used_mib=7),)))
    for name in ("env", "config"):
        monkeypatch.setattr(secrets, f"{name}_path", lambda service, name=name: str(tmp_path / f"{service}.{name}"))
    (tmp_path / "main.env").write_text('HF_TOKEN="hf\\$SECRET"\n')
    (tmp_path / "main.log").write_text("token hf$SECRET and sk-OTHER\n")
    return tmp_path


def test_evidence_is_kept_without_secrets_and_its_summary_returned(kept):
    answer = evidence.keep("main", RELEASE, ["sk-OTHER"], READING)
    assert answer["notices"] == []
    path = Path(answer["evidence_file"])
    assert path.parent == kept / "main" / "evidence"
    assert path.stat().st_mode & 0o777 == 0o640
    text = gzip.decompress(path.read_bytes()).decode()
    assert "SECRET" not in text
    assert "OTHER" not in text
    found = json.loads(text)
    assert (found["phase"], found["profile"], found["took_s"] < 10) == ("loading weights", "p", True)
    assert found["log"]["tail"] == ["token ******** and ********"]
    assert found["summary"] == answer["evidence_summary"]
    assert "GPU 0: 7 MiB" in found["summary"]


def test_an_engine_that_exited_is_told_fast_and_one_that_hangs_with_its_signals(kept, monkeypatch, tmp_path):
    monkeypatch.setattr(evidence, "_output", lambda *_: "MainPID=0\nActiveState=failed\n")
    monkeypatch.setattr(evidence.shutil, "which", lambda _: "/nowhere/py-spy")
    sleeps = []
    empty = tmp_path / "proc"  # on this machine others may test with engines
    empty.mkdir()
    assert list(evidence.read_processes("ironserve-no-such.service", str, empty, sleeps.append)) == []
    assert sleeps == []
    found = evidence.collect("main", RELEASE, [], READING)
    assert found["errors"] == {}
    assert found["took_s"] < 2
    monkeypatch.setattr(evidence, "_output", lambda *_: "MainPID=1\nActiveState=activating\n")
    signals = {"log": {"age_s": 902.0, "what": "log silent"}, "io": {"age_s": 900.1, "what": "reads nothing"}}
    found = json.loads(gzip.decompress(Path(evidence.keep("main", RELEASE, [], READING, signals)["evidence_file"])
                                       .read_bytes()))  # fmt: skip
    assert found["signals"] == signals
    assert found["summary"][1] == "nothing moved: log 15m02s, io 15m00s"


def test_a_host_where_everything_hangs_costs_no_more_than_its_time(kept, monkeypatch):
    def hangs(*_):
        time.sleep(600)

    monkeypatch.setattr(evidence, "_output", hangs)
    monkeypatch.setattr(evidence, "Table", hangs)
    monkeypatch.setattr(nvml, "look", hangs)
    monkeypatch.setattr(evidence.symptoms, "nccl_lines", hangs)
    monkeypatch.setattr(evidence.shutil, "disk_usage", hangs)
    monkeypatch.setattr(evidence.shutil, "which", hangs)
    began = time.monotonic()
    answer = evidence.keep("main", RELEASE, [], READING)
    assert time.monotonic() - began < evidence.DEADLINE_S
    assert (
        "not collected: unit, processes, Python, GPUs, kernel log, environment, log, space"
        in answer["evidence_summary"][-1]
    )
    assert answer["evidence_summary"][0] == "phase: loading weights, 3/9"
    assert "last log line" in answer["evidence_summary"][1]  # what came before it hung


def test_values_of_variables_named_like_secrets_are_hidden_where_only_the_release_tells_them():
    found = {
        "log": {"tail": ["with abcd-1234 and 5"]},
        "environment": {"NCCL_IB_PKEY": "5", "NCCL_X_KEY": "qwertyuiop"},
    }
    hidden = evidence.without_secrets(found, [], {"MY_PASSWORD": "abcd-1234", "PATH": "and"})
    assert hidden["log"]["tail"] == ["with ******** and 5"]
    assert hidden["environment"] == {"NCCL_IB_PKEY": "5", "NCCL_X_KEY": "********"}


def test_that_it_fails_is_a_notice_and_no_more(kept, monkeypatch):
    monkeypatch.setattr(evidence, "write", lambda *_: 1 / 0)
    answer = evidence.keep("main", RELEASE, [], READING)
    assert answer == {
        "evidence_file": "",
        "evidence_summary": [],
        "notices": ["no evidence was collected: ZeroDivisionError: division by zero"],
    }


def test_the_newest_five_stay(tmp_path):
    found = {"release": "r-1", "summary": []}
    for second in range(7):
        evidence.write(tmp_path, {**found, "at": f"2026-11-30T04:00:0{second}+00:00"})
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [f"20261130T04000{second}Z-r-1.json.gz" for second in range(2, 7)]


def test_the_start_has_a_time_that_lines_of_the_kernel_can_be_compared_with():
    since = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=60)
    told = evidence._started({"ExecMainStartTimestampMonotonic": "40000000"}, now_s=100.0)
    assert abs(datetime.datetime.fromisoformat(told) - since) < datetime.timedelta(seconds=5)
    assert evidence._started({"ExecMainStartTimestampMonotonic": "0"}, now_s=100.0) == ""
    assert evidence._started({}, now_s=100.0) == ""


def test_what_a_helper_kept_is_taken_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "STATE", tmp_path / "state")
    monkeypatch.setattr(host, "RUNTIME", tmp_path / "run")
    left = evidence.by_helper("main")
    left.mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    names = ["20261130T040000Z-a-1.json.gz", "20991130T040000Z-a-1.json.gz", "Zzz.json.gz", "notes.txt"]
    for name in names:
        (left / name).write_text(name)
    (left / "20261130T040001Z-a-1.json.gz").symlink_to(tmp_path / "secret")
    (left / "20261130T040002Z-a-1.json.gz").mkdir()
    assert [path.name for path in evidence.adopt("main")] == names[:1]
    assert (tmp_path / "state" / "main" / "evidence" / names[0]).read_text() == names[0]
    assert {path.name for path in left.iterdir()} >= set(names[1:])


def test_a_link_in_place_of_the_helpers_folder_leads_nowhere(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "STATE", tmp_path / "state")
    monkeypatch.setattr(host, "RUNTIME", tmp_path / "run")
    other = tmp_path / "other"
    other.mkdir()
    (other / "20261130T040000Z-a-1.json.gz").write_text("x")
    evidence.by_helper("main").parent.mkdir(parents=True)
    evidence.by_helper("main").symlink_to(other)
    assert evidence.adopt("main") == []
    assert len(list(other.iterdir())) == 1
