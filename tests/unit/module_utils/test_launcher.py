"""The launcher as its one file: it becomes the engine, and what it leaves beside it outlives a kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import host, probe, runtime

RELEASE = {
    "service": "main", "engine": "vllm", "url": "http://127.0.0.1:1", "health_path": "/health", "model_name": "tiny",
    "startup_timeout_s": 60, "stall_timeout_s": 10, "completion_timeout_s": 5,
}  # fmt: skip


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """The launcher as a file whose folders are those of this test."""
    folders = {name: tmp_path / name.lower() for name in ("STATE", "LOGS", "RUNTIME")}
    for folder in folders.values():
        (folder / "main").mkdir(parents=True)
    source = Path(host.__file__).read_text()
    for name, folder in folders.items():
        monkeypatch.setattr(host, name, folder)
        was = {"STATE": "/var/lib/ironserve", "LOGS": "/var/log/ironserve", "RUNTIME": "/run/ironserve"}[name]
        source = source.replace(f'{name} = Path("{was}")', f'{name} = Path("{folder}")')
    whole = runtime.inspect.getsource
    monkeypatch.setattr(runtime.inspect, "getsource", lambda module: source if module is host else whole(module))
    active = folders["STATE"] / "main" / "active"
    active.mkdir()
    (active / "release.json").write_text(json.dumps(RELEASE))
    file = tmp_path / "launch"
    file.write_bytes(runtime.launcher_file())
    file.chmod(0o755)
    return file


def test_the_same_sources_give_the_same_bytes():
    assert runtime.launcher_file("/usr/bin/python3") == runtime.launcher_file("/usr/bin/python3")
    assert runtime.launcher_file("/usr/bin/python3").startswith(b"#!/usr/bin/python3 -IS\n")


def test_it_becomes_the_engine_and_hides_what_is_not_the_engines(launch):
    engine = "import os, sys; print(os.getpid(), sys.argv, sorted(os.environ))"
    process = subprocess.Popen(
        [str(launch), "main", sys.executable, "-c", engine, "", "a b", "$x"],
        env={"NCCL_PROTO": "LL", "NOTIFY_SOCKET": "/none", "WATCHDOG_USEC": "9", "IRONSERVE_API_KEY": "sk-TEST"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    said = process.communicate(timeout=20)[0]
    pid, rest = said.split(" ", 1)
    assert int(pid) == process.pid
    assert "['-c', '', 'a b', '$x']" in rest
    assert "NCCL_PROTO" in rest
    assert not [name for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "IRONSERVE_API_KEY") if name in rest]


def test_an_engine_that_is_not_there_ends_the_unit_with_its_name(launch):
    done = subprocess.run([launch, "main", "/no/such/engine"], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 203
    assert "ironserve: /no/such/engine cannot be executed: No such file or directory" in done.stderr


def helpers(launch: Path) -> dict[int, int]:
    """Pid and parent of the processes that run this launcher's file."""
    found = {}
    for process in Path("/proc").iterdir():
        command = host.read_text(process / "cmdline") if process.name.isdigit() else None
        if command and str(launch) in command.split("\0"):
            found[int(process.name)] = int((host.read_text(process / "stat") or "0) S 0").rsplit(")", 1)[1].split()[1])
    return found


def until(condition):
    """The first true value of a condition."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail("waited 20 s in vain")


def test_a_helper_that_is_killed_is_replaced_and_none_is_left_when_the_engine_ends(launch, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        engine = subprocess.Popen(
            [str(launch), "main", "/bin/sleep", "60"],
            env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "INVOCATION_ID": "i"},
        )
        assert systemd.recv(4096) == b"STATUS=starting"
        family = until(lambda: (found := helpers(launch)) and len(found) == 2 and found)
        supervisor, worker = sorted(family, key=lambda pid: family[pid] in family)
        assert family[worker] == supervisor
        os.kill(worker, signal.SIGKILL)
        assert systemd.recv(4096) == b"STATUS=starting"
        engine.terminate()
        engine.wait(20)
        until(lambda: not helpers(launch))


def test_a_helper_that_cannot_live_is_told_to_the_gate(launch, tmp_path):
    release = tmp_path / "state" / "main" / "active" / "release.json"
    release.write_text(json.dumps({**RELEASE, "stall_timeout_s": "x"}))
    engine = subprocess.Popen([str(launch), "main", "/bin/sleep", "60"], env={"INVOCATION_ID": "i"})
    found = until(lambda: probe.read("main", "i"))
    engine.terminate()
    engine.wait(20)
    assert found["outcome"] == "no_helper"
    assert "the readiness helper cannot run" in found["detail"]
    assert "could not convert string to float" in found["detail"]
