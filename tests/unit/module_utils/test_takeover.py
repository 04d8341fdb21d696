"""Taking over: which words systemctl and the container engines are told, and how all of it comes back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import holders, processes, takeover
from ansible.module_utils.ironserve.holders import Owner
from ansible.module_utils.ironserve.host import Done

sys.path.insert(0, str(Path(__file__).parent))
from fake_proc import fake_process

ID = "3f4a9c0de1b25f6879a0c1d2e3f405162738495a6b7c8d9e0f1a2b3c4d5e6f70"


def show(state, **more):
    return {"UnitFileState": state, "WantedBy": "", "RequiredBy": "", **more}


@pytest.mark.parametrize(
    ("shows", "words", "undo"),
    [
        ({"a.service": show("enabled", WantedBy="multi-user.target")},
         [["disable", "a.service"], ["stop", "--no-block", "a.service"]], ["systemctl enable --now a.service"]),
        ({"a.service": show("disabled")}, [["stop", "--no-block", "a.service"]], ["systemctl start a.service"]),
        ({"a.service": show("static")}, [["stop", "--no-block", "a.service"]], ["systemctl start a.service"]),
        ({"a.service": show("static"), "a.timer": show("enabled", WantedBy="timers.target")},
         [["disable", "a.timer"], ["stop", "--no-block", "a.timer", "a.service"]], ["systemctl enable --now a.timer"]),
        ({"q.service": show("generated", WantedBy="default.target")},
         [["mask", "q.service"], ["stop", "--no-block", "q.service"]],
         ["systemctl unmask q.service", "systemctl start q.service"]),
        ({"a.service": show("static", WantedBy="multi-user.target")},
         [["mask", "a.service"], ["stop", "--no-block", "a.service"]],
         ["systemctl unmask a.service", "systemctl start a.service"]),
        ({"run-u1.service": show("transient")}, [["stop", "--no-block", "run-u1.service"]], []),
    ],
    ids=["enabled", "disabled", "static", "timer", "quadlet", "vendor-wants", "systemd-run"],
)  # fmt: skip
def test_a_unit_is_stopped_for_good_and_can_be_brought_back(shows, words, undo):
    unit = next(name for name in shows if name.endswith(".service"))
    assert takeover.unit_plan(unit, shows) == (words, undo)


def test_the_socket_unit_whose_port_systemd_holds():
    text = "/run/x.sock x.socket x.service\n[::]:8000 vllm.socket vllm.service\n0.0.0.0:80 web.socket web.service\n"
    assert takeover.listening_unit(text, 8000) == "vllm.socket"
    assert takeover.listening_unit(text, 800) == ""


@pytest.mark.parametrize(
    ("configuration", "known"),
    [
        ({"RestartPolicy": {"Name": "always", "MaximumRetryCount": 0}, "AutoRemove": False},
         {"name": "vllm", "policy": "always", "removed": False}),
        ({"RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3}, "AutoRemove": False},
         {"name": "vllm", "policy": "on-failure:3", "removed": False}),
        ({"RestartPolicy": {"Name": ""}, "AutoRemove": True}, {"name": "vllm", "policy": "no", "removed": True}),
    ],
)  # fmt: skip
def test_what_a_container_engine_says(monkeypatch, configuration, known):
    out = json.dumps([{"Name": "/vllm", "HostConfig": configuration}])
    monkeypatch.setattr(takeover.host, "run", lambda argv: Done(0, out, ""))
    assert takeover.inspect(Owner("container", "ab", 0, "docker")) == known


def test_a_container_engine_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(takeover.host, "run", lambda argv: Done(1, "[]", "no such object"))
    assert takeover.inspect(Owner("container", "ab", 0, "docker")) == {}


def docker(monkeypatch, ids):
    """A docker that says which containers publish a port, and that knows one by the name vllm."""
    inspected = json.dumps([{"Name": "/vllm", "HostConfig": {"RestartPolicy": {"Name": "always"}}}])
    monkeypatch.setattr(
        takeover.host, "run", lambda argv: Done(0, "\n".join(ids) if argv[1] == "ps" else inspected, "")
    )


@pytest.mark.parametrize(
    ("ids", "text", "refused"),
    [
        ([ID], "docker container vllm", False),
        ([], "unit docker.service", True),
        ([ID, "ab"], "unit docker.service", True),
    ],
)
def test_a_port_that_docker_holds_belongs_to_the_container_that_publishes_it(tmp_path, monkeypatch, ids, text, refused):
    docker(monkeypatch, ids)
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text("head\n 0: 00000000:1F40 00000000:0000 0A 0:0 0:0 0 0 0 42 1 0\n")
    fake_process(tmp_path, 70, comm="docker-proxy", cgroup="0::/system.slice/docker.service", fds=["socket:[42]"])
    table = processes.Table(tmp_path)
    (found,), _ = holders.find([{"service": "main", "port": 8000}], table)
    holder = takeover._tell_more(found, table)
    assert (holders.owner_text(holder), bool(holder.refusal)) == (text, refused)


@pytest.mark.parametrize(
    "words", [["run", "--name", "vllm", "i"], ["run", "--name=vllm", "i"], ["start", "-a", ID[:12]]]
)
def test_the_unit_that_runs_a_container_in_the_foreground_is_its_starter(tmp_path, monkeypatch, words):
    docker(monkeypatch, [])
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text("head\n 0: 00000000:1F40 00000000:0000 0A 0:0 0:0 0 0 0 42 1 0\n")
    fake_process(tmp_path, 70, cgroup=f"0::/system.slice/docker-{ID}.scope", fds=["socket:[42]"])
    fake_process(tmp_path, 71, comm="docker", argv=["docker", *words], cgroup="0::/system.slice/vllm.service")
    fake_process(tmp_path, 72, comm="docker", argv=["docker", "run", "other"], cgroup="0::/system.slice/other.service")
    table = processes.Table(tmp_path)
    (found,), _ = holders.find([{"service": "main", "port": 8000}], table)
    holder = takeover._tell_more(found, table)
    assert holder.starter == Owner("unit", "vllm.service")
    assert holders.owner_text(holder) == "docker container vllm, run by unit vllm.service"
    assert holders.by_hand(holder) == "systemctl disable --now vllm.service"
