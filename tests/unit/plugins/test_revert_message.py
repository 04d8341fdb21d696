"""What a failed host says: its own verdict and that of what was put back, the worse one first."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BACK = {"reverted_to": "r-1", "why": "", "changed": True, "release": {"profile": "p", "release_id": "r"}}
STALLED = {"verdict": "stalled", "cause": "nothing moved", "msg": "main did not become ready: nothing moved\ntail"}
NONE = {"reverted_to": "", "why": "no release was good on this host before", "release": {}, "changed": False}
SKIPPED = {"skipped": True, "changed": False}
WAY = "h1: to put another release back: ansible-playbook playbooks/rollback.yml -l h1 -e service=main -e release=ID"
LEFT = "h1: ironserve-main.service was left as it is."
STAYS = "h1: ironserve-main.service is stopped and stays so until the next deploy."


@pytest.fixture(scope="module")
def filters():
    spec = importlib.util.spec_from_file_location("ironserve_revert", ROOT / "plugins/filter/ironserve_revert.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("answer", "stop", "stopped", "gate", "notes", "lines"),
    [
        (BACK, True, {}, {"verdict": "ready", "timings": {"ready": 34.2}}, [],
         ["first", "h1: put back p (release r): ready after 34s", WAY]),
        (BACK, True, {}, STALLED, ["GPUs not freed: x"],
         ["h1: put back p (release r) FAILED TOO: nothing moved", "first", "h1: what was put back: "
          "main did not become ready: nothing moved", "tail", STAYS, "h1: on the way: GPUs not freed: x", WAY]),
        (NONE, True, {}, {}, [], ["first", "h1: no release was good on this host before: the unit is stopped", STAYS,
                                  WAY]),
        (BACK, False, SKIPPED, {}, [], ["first", "h1: ironserve-main.service was left as it is, and p (release r) is "
                                        "its active release again: nothing was stopped."]),
        ({**BACK, "changed": False}, False, SKIPPED, {}, [], ["first", LEFT]),
        (SKIPPED, False, SKIPPED, {}, [], ["first", LEFT]),
        ({"failed": True, "msg": "disk full"}, True, {}, {}, [],
         ["h1: THE LAST GOOD RELEASE COULD NOT BE PUT BACK: disk full", "first",
          "h1: see what runs: ansible-playbook playbooks/status.yml -l h1", WAY]),
        (SKIPPED, True, {"failed": True, "msg": "pid 7 stays"}, {}, [],
         ["h1: THE LAST GOOD RELEASE COULD NOT BE PUT BACK: it could not be stopped: pid 7 stays", "first",
          "h1: see what runs: ansible-playbook playbooks/status.yml -l h1", WAY]),
    ],
    ids=["ready", "failed-too", "none", "never-stopped", "nothing-to-do", "left", "broken", "not-stopped"],
)  # fmt: skip
def test_both_verdicts_are_told(filters, answer, stop, stopped, gate, notes, lines):
    back = filters.reverted(answer, stop, stopped, gate, notes)
    assert filters.failure("first", "h1", "main", {"main": back}, []).splitlines() == lines


def test_what_a_takeover_stopped_is_told_last(filters):
    back = {"main": filters.reverted(NONE, True, {}, {}, [])}
    last = filters.failure("first", "h1", "main", back, ["systemctl start x"]).splitlines()[-1]
    assert last == "h1: the takeover stopped something; bring it back by: systemctl start x"


def test_services_without_a_way_back_are_told_with_host_and_name(filters):
    results = [{**BACK, "serve_service": "a"}, {**NONE, "serve_service": "b"}, {"msg": "no", "serve_service": "c"}]
    assert filters.rollback_problems(results, "h1") == [f"h1, b: {NONE['why']}", "h1, c: no"]


def test_hosts_of_a_group_that_would_go_back_to_different_releases_are_told(filters):
    def host(release_id: str, group: str = "blackwell"):
        release = {"profile": f"p{release_id}", "release_id": release_id, "host_group": group}
        return {"serve_chosen": {"results": [{"serve_service": "main", "release": release}]}}

    same = {"h1": host("a"), "h2": host("a"), "h3": host("x", "hopper")}
    assert filters.rollback_split(list(same), same) == []
    split = {"h1": host("b"), "h2": host("a"), "h3": host("a")}
    assert filters.rollback_split(list(split), split) == [
        "main would go back to pb (b) on h1 and pa (a) on h2, h3: "
        "say which, -e release=ID, or take the hosts apart with -l"
    ]


def test_a_host_that_was_lost_says_what_nobody_knows_and_what_to_do(filters):
    answer = {"doing": "main was starting", "error": "ssh: no route\nto host"}
    first, *rest = filters.lost(answer, "h3", "main").splitlines()
    assert first == (
        "h3: connection lost while main was starting; its state is unknown: service main may serve the old release, "
        "the new one or none, and nothing more was sent to the host (ssh: no route to host)"
    )
    assert "playbooks/status.yml -l h3" in rest[0]
    assert "same command" in rest[1]


READY = {"verdict": "ready", "timings": {"ready": 3.0}, "under_gate": False}


def judged(verdict):
    return {"verdict": verdict, "msg": f"it is {verdict}", "rows": [1], "changed": False}


@pytest.mark.parametrize("verdict", ["slower", "nonsense", "not measured"])
def test_a_server_that_is_too_slow_or_talks_nonsense_is_one_to_which_the_gate_said_no(filters, verdict):
    found = filters.speed_judged(READY, judged(verdict))
    assert (found["verdict"], found["cause"], found["under_gate"]) == (verdict, f"it is {verdict}", True)
    assert found["timings"] == READY["timings"]


@pytest.mark.parametrize("verdict", ["passed", "undecided", "not comparable", "no baseline"])
def test_what_is_not_surely_slower_stays_ready_and_is_told(filters, verdict):
    found = filters.speed_judged(READY, judged(verdict))
    assert found == {**READY, "speed": {"verdict": verdict, "msg": f"it is {verdict}", "rows": [1]}}


def test_steps_that_were_not_gone_through_have_no_seconds(filters):
    assert filters.steps({"drain": {"elapsed_s": 2}, "clean": {"skipped": True}, "prove_nccl": {}}) == {"drain": 2.0}
