"""Verdicts from what a unit and its probe show. Numbers in test names are those of the field cases."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve.causes import Cause
from ansible.module_utils.ironserve.judge import Verdict, completion_outcome, judge, message, model_outcome
from ansible.module_utils.ironserve.logs import Reading, read

RUNNING = {"ActiveState": "active", "MainPID": "42", "ExecMainCode": "0", "Result": "success"}


def gone(code: str, status: str, **more: str) -> dict[str, str]:
    return {
        "ActiveState": "failed",
        "MainPID": "0",
        "ExecMainCode": code,
        "ExecMainStatus": status,
        "Result": "x",
        **more,
    }


def test_a_silent_engine_that_runs_is_waited_for():
    assert judge(RUNNING, {}, 10, 60) == Verdict("waiting")


def test_ready_is_what_the_probe_saw():
    assert judge(RUNNING, {"outcome": "ready"}, 10, 60) == Verdict("ready")


def test_tokens_before_systemd_heard_of_them_are_waited_for():
    starting = {**RUNNING, "ActiveState": "activating", "Job": "7"}
    assert judge(starting, {"outcome": "ready"}, 10, 60) == Verdict("waiting")


def test_a_start_that_the_helper_ended_says_why_and_not_how():
    found = {"outcome": "stalled", "detail": "nothing moved in its log for 15m00s"}
    assert judge(gone("2", "9"), found, 900, 60) == Verdict("failed", found["detail"])


def test_an_exit_is_a_failure_with_its_status():
    assert judge(gone("1", "2"), {}, 1, 60) == Verdict("failed", "the engine exited with status 2")
    assert judge(gone("2", "9"), {}, 1, 60) == Verdict("failed", "the engine was killed by SIGKILL")


def test_case_29_an_exit_with_status_0_is_a_failure_too():
    show = {"ActiveState": "inactive", "SubState": "dead", "Result": "success", "MainPID": "0", "ExecMainCode": "1",
            "ExecMainStatus": "0", "NRestarts": "0"}  # fmt: skip
    assert judge(show, {}, 5, 60) == Verdict("failed", "the engine exited with status 0")


def test_a_start_that_systemd_has_not_come_to_is_no_failure():
    assert judge(gone("1", "2", ActiveState="inactive", Job="811"), {}, 0, 60) == Verdict("waiting")


def test_an_exit_beats_what_the_probe_saw_before():
    assert judge(gone("1", "1"), {"outcome": "ready"}, 1, 60).verdict == "failed"


def test_case_41_a_start_limit_is_the_end():
    assert judge({**RUNNING, "Result": "start-limit-hit"}, {}, 1, 60).verdict == "failed"


def test_time_is_up():
    verdict = judge(RUNNING, {}, 60, 60)
    assert verdict == Verdict("timeout", "not ready after 1m00s (startup_timeout_s of the profile)")


def test_a_failed_probe_is_a_failure():
    assert judge(RUNNING, {"outcome": "wrong_model", "detail": "serves x"}, 1, 60) == Verdict("failed", "serves x")


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, {"usage": {"completion_tokens": 4}}, "ready"),
        (200, {"usage": {"completion_tokens": 0}}, "no_tokens"),
        (200, {}, "no_tokens"),
        (503, {}, None),
        (429, {}, None),
        (401, {"error": "Unauthorized"}, "needs_key"),
        (404, {"error": {"message": "The model `x` does not exist."}}, "error"),
        (500, {}, "error"),
    ],
)
def test_what_an_answer_to_a_completion_means(status, body, outcome):
    assert completion_outcome(status, body, "")[0] == outcome


def test_the_engines_message_is_passed_on():
    assert (
        "The model `x` does not exist."
        in completion_outcome(404, {"error": {"message": "The model `x` does not exist."}}, "")[1]
    )


def test_case_33_another_model_on_the_port_is_named():
    listed = {"data": [{"id": "old"}]}
    assert model_outcome(listed, "new") == ("wrong_model", 'the server serves old and not "new"')
    assert model_outcome(listed, "old") == (None, "")


def reading(*lines: str) -> Reading:
    found = Reading()
    read(found, lines, [])
    return found


def test_case_49_the_message_has_status_error_line_and_log():
    lines = reading("usage: vllm serve ...", "vllm serve: error: unrecognized arguments: --foo")
    verdict = Verdict("failed", "the engine exited with status 2")
    told = message("main", verdict, lines, 1.5, "/var/log/ironserve/main.log", "journalctl -u ironserve-main.service")
    assert told.splitlines() == [
        "main did not become ready: the engine exited with status 2 (1s after its start).",
        "The engine's own error: vllm serve: error: unrecognized arguments: --foo",
        "Last lines of /var/log/ironserve/main.log:",
        "    usage: vllm serve ...",
        "    vllm serve: error: unrecognized arguments: --foo",
    ]


def test_an_empty_log_points_to_the_journal():
    assert "journalctl -u u" in message("main", Verdict("failed", "x"), reading(), 1, "/log", "journalctl -u u")


def test_a_known_cause_and_what_to_do_stand_under_the_engines_own_error():
    failed = Reading()
    read(failed, ["ValueError: no"], [])
    known = Cause("x", "It is the moon.", "Wait a day.", permanent=False)
    told = message("main", Verdict("failed", "x"), failed, 1, "/log", "journalctl -u u", known).splitlines()
    assert told[1] == "The engine's own error: ValueError: no"
    assert told[2:4] == ["Known cause: It is the moon.", "What to do: Wait a day."]
