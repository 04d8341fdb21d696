"""Taking over: which words systemctl and the container engines are told, and how all of it comes back."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.ironserve import takeover
from ansible.module_utils.ironserve.holders import Owner
from ansible.module_utils.ironserve.host import Done


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
