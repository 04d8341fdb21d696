"""Who may have a host: a free one, one's own, an expired lease and a dead run's; everybody else is told who has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from ansible.module_utils.ironserve import lease
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_000_000.0
HERE = {"machine_id": "m1", "boot_id": "b1", "pid_namespace": "pid:[1]"}


def a_lease(token="mine", purpose="deploy", at=NOW, left_s=7200.0, **more):
    ends = None if purpose == "maintenance" else NOW + left_s
    known = {"user": "root", "controller": "ctl", "pid": 7, "start_ticks": 70, "command": "ansible-playbook deploy.yml"}
    return {"token": token, "purpose": purpose, **known, **HERE, "at": at, "expires_at": ends, **more}


def others(**more):
    return a_lease("other", user="eva", controller="laptop", at=NOW - 720, **more)


@pytest.mark.parametrize(
    ("held", "mine", "more", "action"),
    [
        ({}, a_lease(), {}, "take the lease"),
        (others(left_s=-60), a_lease(), {}, "take the lease, that of eva@laptop has expired"),
        (others(), a_lease(), {"replaces": "other"}, "take the lease, eva@laptop is gone"),
        (others(), a_lease(), {"force": True}, "take the lease, which eva@laptop has"),
        (others(purpose="maintenance"), a_lease(), {"force": True}, "take the lease, which eva@laptop has"),
        ({}, a_lease(purpose="maintenance"), {}, "begin the maintenance"),
    ],
)
def test_a_host_that_can_be_had_is_taken_and_what_that_means_for_others_is_said(held, mine, more, action):
    step = lease.take(held, mine, NOW, **more)
    assert (step.held, step.changed, step.action, step.refused) == (mine, True, action, {})


@pytest.mark.parametrize("held", [others(), others(purpose="maintenance")])
@pytest.mark.parametrize("replaces", ["", "a third one"])
def test_a_host_that_somebody_else_has_is_refused_and_left_as_it_is(held, replaces):
    step = lease.take(held, a_lease(), NOW, replaces)
    assert (step.held, step.changed) == (held, False)
    assert step.refused["age_s"] == 720


def test_ones_own_lease_is_renewed_and_keeps_its_beginning():
    step = lease.take(a_lease(at=NOW - 600, left_s=10), a_lease(left_s=7200), NOW)
    assert (step.changed, step.refused) == (False, {})
    assert (step.held["at"], step.held["expires_at"]) == (NOW - 600, NOW + 7200)


def test_who_drains_a_host_in_maintenance_joins_it_and_whoever_admits_it_ends_it():
    began = others(purpose="maintenance", reason="driver")
    assert lease.take(began, a_lease(purpose="maintenance"), NOW) == (began, False, "", {})
    ended = lease.release(began, "mine", "maintenance")
    assert (ended.held, ended.changed, ended.action) == ({}, True, "end the maintenance that eva@laptop began")


@pytest.mark.parametrize("purpose", lease.PURPOSES)
def test_nobody_gives_back_what_a_run_of_somebody_else_has(purpose):
    assert lease.release(others(), "mine", purpose) == (others(), False, "", {})
    assert lease.release({}, "mine", purpose) == ({}, False, "", {})


def test_a_run_does_not_end_a_maintenance():
    held = others(purpose="maintenance")
    assert lease.release(held, "mine", "deploy").held == held


def test_a_refusal_says_who_since_when_until_when_and_what_to_do():
    text = lease.refusal(lease.standing(others(), NOW), "gpu-a03")
    for part in (
        "gpu-a03 is held by a run of eva@laptop that began 12 min ago (pid 7, ansible-playbook deploy.yml)",
        "it expires in 2 h", "Nothing was touched there.", "-l '!gpu-a03'", "-e accept=host-leased",
    ):  # fmt: skip
        assert part in text
    drained = lease.refusal(lease.standing(others(purpose="maintenance", reason="new driver"), NOW), "gpu-a03")
    assert "gpu-a03 is in maintenance: drained by eva@laptop 12 min ago (new driver)" in drained
    assert "playbooks/admit.yml -l gpu-a03" in drained


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (7300, "2 h"), (259200, "3 days")]
)
def test_a_time_is_told_as_people_say_it(seconds, text):
    assert lease.ago(seconds) == text


@pytest.mark.parametrize("text", [None, "", "{", "[]", "1", '{"token": "x"}', '{"purpose": "deploy", "at": 1}'])
def test_what_is_no_lease_keeps_nobody_out(text):
    assert lease.parse(text) == {}
    assert lease.take(lease.parse(text), a_lease(), NOW).changed


def test_a_run_of_this_machine_whose_process_ended_is_gone_and_no_other():
    held = a_lease("other", **HERE)

    def dead(_pid, _ticks):
        return False

    assert lease.is_gone(held, HERE, dead)
    assert not lease.is_gone(held, HERE, lambda pid, ticks: (pid, ticks) == (7, 70))
    for key in HERE:
        assert not lease.is_gone({**held, key: "elsewhere"}, HERE, dead)
    assert not lease.is_gone({**held, "purpose": "maintenance"}, HERE, dead)
    unknown = dict.fromkeys(HERE, "")  # a controller without /proc
    assert not lease.is_gone({**held, **unknown}, unknown, dead)


def test_a_process_is_told_by_pid_and_start_time_from_what_proc_says():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = lease.holder(child.pid, "ansible-playbook deploy.yml")
    held = {**here, "purpose": "deploy"}
    assert not lease.is_gone(held, here)
    assert lease.is_gone({**held, "start_ticks": here["start_ticks"] + 1}, here)  # the pid is another one's by now
    child.communicate(b"\n")
    assert lease.is_gone(held, here)


def test_a_run_is_the_same_wherever_it_is_asked_and_never_tells_its_extra_variables():
    arguments = {"args": ("deploy.yml",), "subset": "blackwell", "extra_vars": ("ironserve_api_key=secret",)}
    one, other = lease.this_run(arguments), lease.this_run(arguments)
    assert one == other
    assert one["pid"] == os.getpid()
    assert one["command"] == "ansible-playbook deploy.yml -l blackwell"
    assert "secret" not in json.dumps(one)
    assert lease.holder(os.getppid(), "")["token"] != one["token"]


@pytest.fixture
def on_this_host(monkeypatch, tmp_path):
    monkeypatch.setattr(lease, "FILE", tmp_path / "state" / "lease.json")
    monkeypatch.setattr(lease, "LOCK", tmp_path / "run" / "lease.lock")


def test_a_lease_is_kept_in_a_file_that_goes_with_it(on_this_host):
    assert lease.read(NOW) == {}
    step = lease.carry_out(lambda held: lease.take(held, a_lease(), NOW), check=False)
    assert step.changed
    assert lease.read(NOW + 60)["age_s"] == 60
    assert lease.read(NOW + 7201) == {}
    assert lease.carry_out(lambda held: lease.take(held, others(), NOW), check=False).refused["token"] == "mine"
    assert lease.carry_out(lambda held: lease.release(held, "mine", "deploy"), check=False).changed
    assert not lease.FILE.exists()


def test_check_mode_tells_the_same_and_writes_nothing(on_this_host, tmp_path):
    assert lease.carry_out(lambda held: lease.take(held, a_lease(), NOW), check=True).action == "take the lease"
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(lease.PURPOSES), st.booleans(), st.integers(0, 90))))
def test_whatever_several_do_a_host_has_one_holder_and_only_the_refused_have_none(steps):
    """Two that both believe to have a host would be the end of it."""
    held, now = {}, NOW
    for token, purpose, gives_back, passes in steps:
        now += passes
        mine = a_lease(token, purpose, at=now, expires_at=None if purpose == "maintenance" else now + 60)
        before = lease.standing(held, now)
        step = lease.release(held, token, purpose) if gives_back else lease.take(held, mine, now)
        if not gives_back and not step.refused:
            assert step.held["purpose"] == purpose
            assert step.held["token"] == token or purpose == "maintenance"
        if before and before["token"] != token and before["purpose"] == "deploy":
            assert step.held == held
        held = step.held
