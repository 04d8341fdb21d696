"""The small pure pieces of the host side: ports, ledger, status words, preflight, tables."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import host, ledger, ports, preflight, removal
from ansible.module_utils.ironserve.inspection import services_in
from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.services import rotate, status_word
from ansible.module_utils.ironserve.table import table

# Linux 6.18, /proc/net/tcp and tcp6: a listener on 8000 (1F40), one on 22, a connection to 8000.
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0 100 0 0 10 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4243 1 0 100 0 0 10 0
   2: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4244 1 0 20 4 30 10 -1
"""


def test_only_listeners_of_the_port_are_found():
    assert ports.listening_inodes(TCP, 8000) == {"4242"}
    assert ports.listening_inodes(TCP, 9000) == set()


@pytest.mark.parametrize(
    ("services", "told"),
    [
        (["main", "other"], "It is service other of this host: where that one moves to another port, deploy it first "
         "(-e service=other -l h1), or stop it, ansible-playbook playbooks/stop.yml -e service=other -l h1"),
        (["main"], "No inventory names service other: if it is the old name of this one, or not wanted any more, "
         "ansible-playbook playbooks/remove.yml -e service=other -l h1"),
    ],
)  # fmt: skip
def test_a_holder_that_is_another_service_comes_with_the_way_out(services, told):
    assert preflight.way_out("ironserve-other.service", preflight.Inventory(services, "h1")) == told


def test_services_are_found_by_their_units_and_folders():
    units = [
        "ironserve-main.service",
        "ironserve-environment-vllm.service",
        "ironserve-x@.service",
        "loaded",
        "ssh.service",
    ]
    assert services_in(units, ["main", "old", ".staging", "environment-x", "Old"]) == {"main", "old"}


@pytest.fixture
def left(tmp_path, monkeypatch):
    """What a service `chat` left under a root of its own, beside what is of others."""
    for name, folder in (("STATE", "state"), ("LOGS", "log"), ("RUNTIME", "run")):
        monkeypatch.setattr(removal.host, name, tmp_path / folder)
    monkeypatch.setattr(removal, "SECRETS", tmp_path / "etc")
    monkeypatch.setattr(removal.systemd, "UNIT_DIRECTORY", str(tmp_path / "units"))
    monkeypatch.setattr(removal.systemd, "GATE_DROP_IN", str(tmp_path / "gate" / "{unit}.d" / "x.conf"))
    monkeypatch.setattr(removal.host, "show", lambda unit: {"ActiveState": "inactive"})
    monkeypatch.setattr(removal.host, "systemctl", lambda *words: None)
    monkeypatch.setattr(removal.host, "forget_starts", lambda unit: None)
    own = ["units/ironserve-chat.service", "gate/ironserve-chat.service.d/x.conf", "etc/chat.env", "run/chat.activated",
           "run/chat/ready", "state/chat/ledger.jsonl", "log/chat.log"]  # fmt: skip
    others = ["units/ironserve-chat-2.service", "etc/chat-2.env", "run/chat-2.activated", "state/chat-2/ledger.jsonl"]
    for name in (*own, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "units" / "multi-user.target.wants").mkdir()
    (tmp_path / "units" / "multi-user.target.wants" / "ironserve-chat.service").symlink_to("/nowhere")
    return tmp_path


def test_a_removal_takes_all_of_the_service_but_its_logs_and_nothing_of_others(left):
    found = removal.Removal("chat")
    assert len(found.result()["actions"]) == 7
    assert found.result()["kept"] == [f"{left}/log/chat.log"]
    found.carry_out()
    files = sorted(str(path.relative_to(left)) for path in left.rglob("*") if not path.is_dir())
    assert files == ["etc/chat-2.env", "log/chat.log", "run/chat-2.activated", "state/chat-2/ledger.jsonl",
                     "units/ironserve-chat-2.service"]  # fmt: skip
    again = removal.Removal("chat")
    again.carry_out()
    assert again.result()["changed"] is False


def test_a_service_that_runs_is_not_removed(left, monkeypatch):
    monkeypatch.setattr(removal.host, "show", lambda unit: {"ActiveState": "active"})
    with pytest.raises(RuntimeError, match=r"ironserve-chat.service is active: stop it first"):
        removal.Removal("chat").carry_out()
    assert (left / "state" / "chat").is_dir()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../etc", "environment-x", "A", "-a", "a*"])
def test_only_the_name_of_a_service_is_ever_removed(name):
    with pytest.raises(RuntimeError, match="is no name for a service"):
        removal.Removal(name)


def test_the_model_folder(tmp_path):
    def problems_of(path):
        problems = Problems()
        preflight.check_model(path, "root", problems)
        return problems.found

    assert "no such folder" in problems_of(tmp_path / "missing")[0]
    assert "holds no config.json" in problems_of(tmp_path)[0]
    (tmp_path / "config.json").write_text("{")
    assert "config.json cannot be read" in problems_of(tmp_path)[0]
    (tmp_path / "config.json").write_text("{}")
    assert problems_of(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_model_folder_that_the_service_user_may_not_enter(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    tmp_path.chmod(0o700)
    problems = Problems()
    preflight.check_model(tmp_path, "no-such-user-yet", problems)
    assert "user no-such-user-yet may not read config.json, or not enter a folder above it" in problems.found[0]


RUNS = {"MainPID": "5", "ActiveState": "active", "UnitFileState": "enabled"}


OFF = {"MainPID": "0", "ActiveState": "inactive", "UnitFileState": "disabled"}
ENDED = {"MainPID": "0", "ActiveState": "failed", "UnitFileState": "disabled"}


@pytest.mark.parametrize(
    ("show", "active", "proven", "serves", "last", "word"),
    [
        ({}, None, False, False, None, "absent"),
        (RUNS, None, False, False, None, "unhealthy"),
        (RUNS, "a", False, True, None, "starting"),
        (RUNS, "a", True, True, "ready", "ready"),
        (RUNS, "a", True, False, "ready", "unhealthy"),
        (ENDED, "a", True, False, "ready", "failed"),
        (OFF, "a", True, False, "failed", "failed"),
        (OFF, "a", True, False, "timeout", "failed"),
        (OFF, "a", True, False, "ready", "stopped"),
        (OFF, "a", False, False, "stopped", "stopped"),
        ({**OFF, "UnitFileState": "enabled"}, "a", True, False, "ready", "down"),
    ],
)
def test_status_words(show, active, proven, serves, last, word):
    assert status_word(show, active, proven, serves, last and {"verdict": last}) == word


def test_the_ledger_survives_a_cut_off_line():
    release = {
        "release_id": "r",
        "profile": "p",
        "declared_profile": "p",
        "engine": "vllm",
        "lock_id": "l",
        "host_group": "g",
    }
    text = (
        ledger.record(release, {"at": "t", "staged_id": "r-1"}, "ready", "", {"ready": 50.0})
        + '{"release_id": "r", "verd'
    )
    records = ledger.parse(text)
    assert [entry["staged_id"] for entry in records] == ["r-1"]
    assert ledger.expected_s(records, "r") == 50.0


def test_a_launch_says_what_was_launched_on_what_and_a_measurement_is_none(tmp_path):
    release = {
        **dict.fromkeys(("release_id", "profile", "declared_profile", "engine", "lock_id", "host_group"), "x"),
        "lock": {"engine_version": "0.33.0"},
        "model": {"path": "/srv/kimi", "served_name": "", "revision": "abc"},
        "model_name": "kimi",
        "flags": {"max-num-seqs": "16"},
    }
    more = {"hardware": {"cpu": "EPYC"}, "nccl_version": "2.30.7", "steps": {"drain": 4.5}}
    file = tmp_path / "ledger.jsonl"
    line = ledger.record(release, {"at": "t"}, "ready", "", {}, more=more)
    file.write_text(line + '{"event": "measurement", "release_id": "x"}\n')
    [launch] = ledger.read(file)
    assert launch["model"] == {"name": "kimi", "path": "/srv/kimi", "revision": "abc"}
    assert (launch["engine_version"], launch["flags"]) == ("0.33.0", {"max-num-seqs": "16"})
    assert {key: launch[key] for key in more} == more
    assert len(ledger.measurements(ledger.parse(file.read_text()))) == 1


def test_expected_time_is_of_the_same_release_else_of_any():
    records = [json.loads(f'{{"release_id": "{name}", "verdict": "ready", "timings": {{"ready": {s}}}}}') for name, s in
               (("a", 10), ("a", 20), ("b", 30))]  # fmt: skip
    assert ledger.expected_s(records, "a") == 20
    assert ledger.expected_s(records, "c") == 30
    assert ledger.expected_s([], "a") is None


def test_each_start_has_a_log_of_its_own(tmp_path):
    log = tmp_path / "main.log"
    rotate(log)
    assert list(tmp_path.iterdir()) == []
    for number in range(8):
        log.write_text(f"start {number}")
        log.chmod(0o640)
        rotate(log)
        assert log.read_text() == ""
        assert log.stat().st_mode & 0o777 == 0o640
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["main.log", *(f"main.log.{number}" for number in range(1, 6))]
    assert (tmp_path / "main.log.1").read_text() == "start 7"


def test_a_table_for_the_terminal():
    rows = [{"host": "h1", "status": "ready", "pid": 4}, {"host": "gpu-a02", "status": "", "pid": None}]
    assert table(["host", "status", "pid"], rows) == "HOST     STATUS  PID\nh1       ready   4\ngpu-a02  -       -"


class Statvfs:
    """What statvfs says of a file system, healthy unless a test says otherwise."""

    f_flag, f_frsize, f_bavail, f_files, f_favail = 0, 4096, 10**6, 10**6, 10**6

    def __init__(self, **differs: int) -> None:
        vars(self).update(differs)


@pytest.mark.parametrize(
    ("differs", "told"),
    [
        ({}, ""),
        ({"f_flag": os.ST_RDONLY}, "is on a file system that is read-only"),
        ({"f_bavail": 100}, "has 0.4 MiB free"),
        ({"f_favail": 3}, "has 3 inodes free"),
        ({"f_files": 0, "f_favail": 0}, ""),  # btrfs counts none
    ],
)
def test_a_file_system_that_takes_nothing_is_told(differs, told):
    why = preflight.full(Statvfs(**differs))
    assert why.startswith(told)
    assert bool(why) == bool(told)


def test_nothing_judges_by_a_clock_that_can_jump():
    asks = re.compile(r"\btime\.time\(|datetime\.now\(")
    told = [file.name for file in Path(preflight.__file__).parent.rglob("*.py") if asks.search(file.read_text())]
    # What is written down has a date; how long anything took, and what came first, is never read from it. Files in
    # /dev/shm have no other age than the clock's, and one that is open or mapped stays whatever its age; neither has a
    # log, of which evidence says how long it has been silent. A lease outlasts a boot: it expires by its host's clock.
    assert sorted(told) == ["benchmark.py", "builds.py", "cleanup.py", "evidence.py", "lease.py", "services.py"]


def test_a_disk_that_gets_full_in_the_middle_leaves_the_old_file_and_nothing_half_written(tmp_path, monkeypatch):
    file = tmp_path / "unit"
    host.write_text(file, "old")

    def full_disk(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        host.write_text(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["unit"]


def test_a_line_is_added_to_a_ledger_whose_last_one_was_cut_off(tmp_path):
    file = tmp_path / "ledger.jsonl"
    ledger.append(file, {"event": "measurement", "n": 1})
    file.write_text(file.read_text() + '{"verdict": "rea')
    ledger.append(file, {"event": "measurement", "n": 2})
    assert [record["n"] for record in ledger.measurements(ledger.parse(file.read_text()))] == [1, 2]
