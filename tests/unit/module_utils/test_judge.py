"""Verdicts from what a unit and its probe show. Numbers in test names are those of the field cases."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve.causes import Cause
from ansible.module_utils.ironserve.judge import (
    Seen,
    Verdict,
    completion_outcome,
    judge,
    judge_start,
    message,
    model_outcome,
    proof_outcome,
    repeats_itself,
)
from ansible.module_utils.ironserve.logs import Reading, read

PROVEN = {"outcome": "ready", "proof": {"outcome": "ready", "detail": "3 completions"}}
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
    assert judge(RUNNING, PROVEN, 10, 60) == Verdict("ready")


def test_a_token_is_not_yet_the_proof_that_what_comes_makes_sense():
    assert judge(RUNNING, {"outcome": "ready"}, 10, 60) == Verdict("waiting")
    nonsense = {"outcome": "ready", "proof": {"outcome": "degenerate", "detail": "it says !!!!"}}
    assert judge(RUNNING, nonsense, 10, 60) == Verdict("failed", "it says !!!!")


def test_tokens_before_systemd_heard_of_them_are_waited_for():
    starting = {**RUNNING, "ActiveState": "activating", "Job": "7"}
    assert judge(starting, PROVEN, 10, 60) == Verdict("waiting")


@pytest.mark.parametrize("verdict", ["stalled", "failed", "timeout"])
def test_a_start_that_the_helper_ended_says_why_and_not_how(verdict):
    found = {"outcome": verdict, "detail": "it hangs", "final": True}
    for show in (RUNNING, gone("2", "9")):  # seen before it was killed, or after
        assert judge(show, found, 900, 60) == Verdict(verdict, "it hangs")


def test_a_start_is_waited_for_while_nothing_speaks_against_it():
    assert judge_start(Seen(elapsed_s=3000, limit_s=3600, missing=8)) == Verdict("waiting")


@pytest.mark.parametrize(
    ("seen", "verdict", "reason"),
    [
        (Seen(limit_s=60, stalled=True, stall_s=900, described="log silent for 15m02s, CPUs idle for 15m01s"),
         "stalled",
         "it hangs, nothing moves any more: log silent for 15m02s, CPUs idle for 15m01s; "
         "stall_timeout_s of the profile is 15m00s"),
        (Seen(limit_s=60, fatal="a worker died", fatal_s=3), "failed",
         "its log says that a worker died"),
        (Seen(limit_s=60, fatal="a worker died", fatal_s=1), "waiting", ""),  # its own end says more
        (Seen(limit_s=60, lost_s=2, ranks="7 of 8 ranks; sglang::scheduler_TP3 (pid 9) died"), "failed",
         "part of the engine is gone, which never comes back: 7 of 8 ranks; sglang::scheduler_TP3 (pid 9) died"),
        (Seen(limit_s=60, lost_s=1), "waiting", ""),
        (Seen(limit_s=60, elapsed_s=60), "timeout", "not ready after 1m00s (startup_timeout_s, completion_timeout_s)"),
        (Seen(limit_s=60, generates_s=5, missing=1, ranks="7 of 8 ranks"), "failed",
         "it generates, and not all of its ranks are there: 7 of 8 ranks"),
        (Seen(limit_s=60, generates_s=5), "waiting", ""),
    ],
)  # fmt: skip
def test_what_a_start_shows_is_judged(seen, verdict, reason):
    assert judge_start(seen) == Verdict(verdict, reason)


def completions(*texts: str, tokens: int = 16, finish: str | None = "length") -> list:
    return [
        (200, {"choices": [{"text": text, "finish_reason": finish}], "usage": {"completion_tokens": tokens}}, "")
        for text in texts
    ]


@pytest.mark.parametrize(
    ("answers", "is_real", "outcome"),
    [
        (completions(" Paris. It is", " 6, 7, 8", " there was"), True, "ready"),
        (completions("!!!!!!!!!!!!!!!!", "!!!!!!!!!!!!!!!!", "!!!!!!!!"), True, "degenerate"),
        (completions(" the the the the the", "", "\n\n\n"), True, "degenerate"),
        (completions("!!!!!!!!!!!!!!!!", "!!!!!!!!!!!!!!!!", "!!!!!!!!"), False, "ready"),  # random weights may
        (completions("!!!!!!!!!!!!!!!!", " 6, 7, 8", "!!!!!!!!"), True, "ready"),  # one may well repeat itself
        (completions("", "", "", tokens=1, finish="stop"), True, "ready"),  # a model that has nothing to add
        (completions(" Paris", finish="abort"), True, "bad_finish"),
        (completions(" Paris", finish=None), True, "bad_finish"),
        ([*completions(" Paris"), (503, {}, "")], True, None),
        ([*completions(" Paris"), (500, {}, "boom")], True, "error"),
        ([*completions(" Paris"), (200, {"usage": {"completion_tokens": 0}}, "")], True, "no_tokens"),
    ],
)  # fmt: skip
def test_what_a_few_completions_prove(answers, is_real, outcome):
    assert proof_outcome(answers, is_real)[0] == outcome


@pytest.mark.parametrize("text", ["!!!!!!!!", " the the the the the", "ababababab", "\n \n", "", "\ufffd" * 9])
def test_texts_that_repeat_themselves(text):
    assert repeats_itself(text)


@pytest.mark.parametrize("text", [" Paris, the", " 6, 7, 8, 9, 10", "aaab", "x", " no no, not that"])
def test_texts_that_do_not(text):
    assert not repeats_itself(text)


def test_an_exit_is_a_failure_with_its_status():
    assert judge(gone("1", "2"), {}, 1, 60) == Verdict("failed", "the engine exited with status 2")
    assert judge(gone("2", "9"), {}, 1, 60) == Verdict("failed", "the engine was killed by SIGKILL")


def test_an_exit_after_one_of_its_processes_died_names_that_one():
    verdict = judge(gone("1", "1"), {"died": "VLLM::EngineCore (pid 242)"}, 1, 60)
    assert verdict == Verdict("failed", "the engine exited with status 1, after VLLM::EngineCore (pid 242) died")


def test_an_engine_that_killed_itself_is_told_with_the_reason_in_its_log():
    verdict = judge(gone("2", "9"), {"fatal": "a scheduler crashed"}, 1, 60)
    assert verdict == Verdict("failed", "the engine was killed by SIGKILL; its log says that a scheduler crashed")


def test_case_29_an_exit_with_status_0_is_a_failure_too():
    show = {"ActiveState": "inactive", "SubState": "dead", "Result": "success", "MainPID": "0", "ExecMainCode": "1",
            "ExecMainStatus": "0", "NRestarts": "0"}  # fmt: skip
    assert judge(show, {}, 5, 60) == Verdict("failed", "the engine exited with status 0")


def test_a_start_that_systemd_has_not_come_to_is_no_failure():
    assert judge(gone("1", "2", ActiveState="inactive", Job="811"), {}, 0, 60) == Verdict("waiting")


def test_an_exit_beats_what_the_probe_saw_before():
    assert judge(gone("1", "1"), PROVEN, 1, 60).verdict == "failed"


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
