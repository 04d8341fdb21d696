"""A tune: candidates, the order of trials, its budget, what a controller that was killed leaves, and who wins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.ironserve import tune, yaml_text
from ansible.module_utils.ironserve.problems import Problems

sys.path.insert(0, str(Path(__file__).parent))
from measurements import SENTENCES, measurement

KNOWN = ["baseline", "flashinfer_nccl", "triton_nccl", "vllm_nccl"]
LOAD = measurement()["load"]
BABBLE = ["!" * 64] * len(SENTENCES)


def parsed(profiles: str = "", matrix: Any = None) -> tuple[list[dict[str, str]], str]:
    problems = Problems()
    found = tune.candidates(profiles, matrix, KNOWN, problems)
    return found, "\n".join(problems.found)


def begun(*names: str, rounds: int = 2, budget_s: float = 1e6, **other: Any) -> tune.State:
    found = [{"name": name, "text": ""} for name in names]
    return tune.begin("h1", "main", found, LOAD, other.pop("objective", "single_stream"), rounds, budget_s, **other)


class Run:
    """Carries a tune out; each candidate's trial takes 100 s and ends as ``ends`` says: a factor, or an outcome."""

    def __init__(self, state: tune.State, **ends: Any) -> None:
        self.state, self.ends, self.order, self.now = state, ends, [], 0.0
        self.why = ""

    def all(self, most: int = 100) -> tune.State:
        for _ in range(most):
            trial = tune.next_trial(self.state)
            self.why = trial.get("why", "")
            if self.why:
                break
            self.order.append(trial["candidate"])
            self.state = json.loads(json.dumps(tune.opened(self.state, trial, self.now)))
            self.now += 100
            end = self.ends.get(trial["candidate"], 1.0)
            if not isinstance(end, dict):
                end = {"measurement": measurement(len(self.order), end)}
            self.state = tune.recorded(self.state, self.now, end)
        return self.state


# Candidates


def test_profiles_are_candidates_in_their_order():
    assert parsed("triton_nccl, baseline") == (
        [{"name": "triton_nccl", "text": ""}, {"name": "baseline", "text": ""}], ""
    )  # fmt: skip


def test_everything_that_is_wrong_with_the_profiles_is_said_at_once():
    _, said = parsed("baseline,tritn_nccl,vllm,baseline")
    assert 'unknown profile "tritn_nccl" (did you mean "triton_nccl"?)' in said
    assert 'unknown profile "vllm"' in said
    assert '"baseline" is named twice' in said


@pytest.mark.parametrize(("profiles", "matrix"), [("", None), ("baseline,vllm_nccl", {"base": "baseline"})])
def test_a_tune_has_profiles_or_a_matrix(profiles, matrix):
    assert "one of the two" in parsed(profiles, matrix)[1]


def test_a_matrix_is_every_combination_each_a_profile_of_its_own():
    matrix = {
        "base": "baseline",
        "flags": {"attention-backend": ["triton", "flashinfer"], "enable-x": [True, None]},
        "env": {"NCCL_PROTO": ["LL"]},
    }
    found, said = parsed("", matrix)
    assert said == ""
    assert [each["name"] for each in found] == [
        "attention-backend-triton_enable-x-on_nccl-proto-ll",
        "attention-backend-triton_enable-x-unset_nccl-proto-ll",
        "attention-backend-flashinfer_enable-x-on_nccl-proto-ll",
        "attention-backend-flashinfer_enable-x-unset_nccl-proto-ll",
    ]
    problems = Problems()
    assert yaml_text.read(found[1]["text"], "f", problems) == {
        "description": "baseline with attention-backend triton, enable-x unset, NCCL_PROTO LL",
        "extends": "baseline",
        "flags": {"attention-backend": "triton", "enable-x": None},
        "env": {"NCCL_PROTO": "LL"},
    }
    assert not problems


def test_long_names_are_cut_and_stay_apart():
    values = [f"{'a' * 80}{number}" for number in range(3)] + ["b/c d"]
    names = [each["name"] for each in parsed("", {"base": "baseline", "flags": {"x": values}})[0]]
    assert len(set(names)) == 4
    assert max(map(len, names)) <= tune.NAME_LENGTH
    assert names[3] == "x-b-c-d"


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ({"flags": {"x": [1, 2]}}, "matrix.base: is missing"),
        ({"base": "basline", "flags": {"x": [1, 2]}}, 'unknown profile "basline" (did you mean "baseline"?)'),
        ({"base": "baseline", "flag": {"x": [1, 2]}}, 'matrix.flag: unknown key (did you mean "flags"?)'),
        ({"base": "baseline", "flags": {"x": 1}}, "matrix.flags.x: expected a list"),
        ({"base": "baseline", "env": {"X": [[1]]}}, "matrix.env.X[0]: expected text or a number"),
        ({"base": "baseline", "flags": {"x": [], "y": [1, 1]}}, "matrix.flags.x: has no value to try"),
        ({"base": "baseline", "flags": {"x": [1, 1]}}, "has a value twice"),
        ({"base": "baseline", "flags": {"x": [1]}}, "fewer than two candidates"),
        (["baseline"], "matrix: expected a mapping"),
    ],
)
def test_what_is_wrong_with_a_matrix_is_said(matrix, said):
    found, told = parsed("", matrix)
    assert found == []
    assert said in told


def test_too_many_candidates_are_refused_with_what_makes_them():
    matrix = {"base": "baseline", "flags": {"x": list(range(7)), "y": list(range(5))}}
    assert "makes 35 candidates, more than 32: take out values (7 of x x 5 of y)" in parsed("", matrix)[1]


# Order, budget, resumption


def test_the_order_of_trials_turns_round_from_round_to_round():
    run = Run(begun("a", "b", "c", rounds=3))
    run.all()
    assert "".join(run.order) == "abccbaabc"
    assert run.why == "every candidate had its 3 trials"


def test_what_hung_crashed_or_was_rejected_has_no_further_trial():
    state = begun("a", "b", "c", "d")
    state["rejected"] = {"d": "unknown flag"}
    run = Run(state, b={"verdict": "stalled", "why": "graph capture", "evidence": "/e/b.tar"})
    state = run.all()
    assert "".join(run.order) == "abcca"
    assert tune.out(state) == {"d": ("rejected", "unknown flag"), "b": ("stalled", "graph capture")}
    assert state["trials"][1]["evidence"] == "/e/b.tar"


def test_fast_nonsense_is_out_after_its_first_trial_even_where_it_is_the_first_candidate():
    end = {"measurement": measurement(9, 2.0, continuations=[BABBLE, BABBLE])}
    run = Run(begun("a", "b", "c"), a=end)
    state = run.all()
    assert "".join(run.order) == "abccb"
    assert tune.out(state)["a"][0] == "nonsense"
    assert tune.decide(state)["winner"] in ("b", "c")


def test_nonsense_is_told_by_the_recorded_baseline_where_there_is_one():
    end = {"measurement": measurement(9, 2.0, continuations=[BABBLE, BABBLE])}
    run = Run(begun("a", "b", baseline=measurement(1)), a=end, b=end)
    state = run.all()
    assert set(tune.out(state)) == {"a", "b"}
    assert run.why == "no candidate is left"
    assert tune.decide(state)["winner"] == ""


def test_no_further_trial_is_needed_once_one_candidate_is_left():
    run = Run(begun("a", "b", rounds=4), a={"verdict": "failed", "why": "out of memory"})
    run.all()
    assert "".join(run.order) == "ab"
    assert run.why == "b is the only candidate left"


def test_a_disturbed_measurement_counts_for_nothing_and_puts_nobody_out():
    run = Run(begun("a", "b", rounds=1), b={"measurement": measurement(5, disturbed="other requests")})
    state = run.all()
    assert tune.out(state) == {}
    assert tune.decide(state)["winner"] == "a"
    assert [row["verdict"] for row in tune.rows(state)] == ["measured", "disturbed"]


def test_no_trial_is_begun_that_would_end_after_the_budget():
    run = Run(begun("a", "b", "c", budget_s=450))
    run.all()
    assert len(run.order) == 4
    assert run.why == "the budget is used up: 6m40s of 7m30s are used, and the next trial takes about 1m40s"


def test_a_trial_is_expected_to_take_as_long_as_its_own_else_others_else_the_ledgers():
    state = begun("a", "b")
    assert tune.next_trial(state, 700)["expected_s"] == 700
    assert tune.next_trial(state)["expected_s"] is None
    assert "budget is used up" in tune.next_trial({**state, "budget_s": 600}, 700)["why"]
    state = Run(state).all(most=1)
    state = tune.recorded(tune.opened(state, tune.next_trial(state), 100), 400, {"measurement": measurement()})
    assert [tune.expected_s(state, name, 700) for name in "abz"] == [100, 300, 200]


def test_an_interrupted_trial_is_begun_anew_and_the_third_time_is_its_verdict():
    state = Run(begun("a", "b")).all(most=1)
    for attempt in (1, 2, 3):
        trial = tune.next_trial(state)
        assert (trial["candidate"], trial["round"], trial["attempt"]) == ("b", 1, attempt)
        state = tune.opened(state, trial, 5000.0 * attempt)
        state = tune.resume(json.loads(json.dumps(state)), begun("a", "b"))
    assert tune.out(state)["b"][0] == "interrupted"
    assert tune.used_s(state) == 100
    assert tune.next_trial(state)["why"] == "a is the only candidate left"


def test_a_run_that_resumes_may_wish_for_more_rounds_and_another_objective():
    state = Run(begun("a", "b", rounds=1)).all()
    state = tune.resume(state, begun("a", "b", objective="c128"))
    assert (state["objective"], tune.next_trial(state)["candidate"]) == ("c128", "b")


def test_what_was_measured_of_a_profile_that_was_edited_since_does_not_count():
    first = begun("a", "b", "c", rounds=1)
    first["releases"] = {"a": "a1", "b": "b1", "c": "c1"}
    state = Run(first, c={"verdict": "failed", "why": "out of memory"}).all()
    state = tune.opened(state, {"candidate": "b", "round": 2, "attempt": 1}, 1000)
    wished = {**first, "rounds": 2, "releases": {"a": "a1", "b": "b2", "c": "c2"}}
    run = Run(tune.resume(state, wished))
    assert (tune.out(run.state), run.state["open"]) == ({}, None)
    run.all()
    assert "".join(run.order) == "bccba"  # of a the first round is there


def test_a_state_of_an_earlier_version_begins_anew_and_what_was_begun_of_one_that_is_out_is_forgotten():
    first = begun("a", "b", rounds=1)
    first["releases"] = {"a": "a1", "b": "b1"}
    state = Run(first).all(most=1)
    state = tune.opened(state, tune.next_trial(state), 100)
    for trial in (*state["trials"], state["open"]):
        del trial["release_id"]
    resumed = tune.resume(state, first)
    assert (resumed["trials"], resumed["open"]) == ([], None)

    state = Run(first).all(most=1)
    state = tune.opened(state, tune.next_trial(state), 100)
    wished = {**first, "rejected": {"b": "unknown flag"}, "releases": {"a": "a1"}}
    assert tune.resume(state, wished)["open"] is None
    assert tune.next_trial(tune.resume(state, wished))["why"] == "a is the only candidate left"


def test_a_candidate_that_leaves_requests_unanswered_is_out():
    end = measurement(9, 2.0)
    end["levels"]["128"][1]["failed"] = 2
    run = Run(begun("a", "b", "c"), b={"measurement": end})
    state = run.all()
    assert "".join(run.order) == "abcca"
    assert tune.out(state) == {"b": ("failing", "2 of 40 requests failed at c128")}
    assert tune.decide(state)["winner"] in ("a", "c")


def test_a_trial_that_was_not_begun_cannot_be_recorded():
    with pytest.raises(ValueError, match="no trial was begun"):
        tune.recorded(begun("a", "b"), 1.0, {"verdict": "failed"})


def test_the_id_tells_candidates_load_host_and_service_apart():
    found = [{"name": "a", "text": ""}]
    ids = [
        tune.identity("h1", "main", found, LOAD),
        tune.identity("h2", "main", found, LOAD),
        tune.identity("h1", "chat", found, LOAD),
        tune.identity("h1", "main", [{"name": "a", "text": "x"}], LOAD),
        tune.identity("h1", "main", found, {**LOAD, "seed": 2}),
    ]
    assert len(set(ids)) == 5
    assert ids[0] == tune.identity("h1", "main", list(found), dict(LOAD))


def test_an_objective_that_is_not_measured_is_refused():
    with pytest.raises(ValueError, match="does not measure c32; it measures: single_stream, c8, c128"):
        begun("a", "b", objective="c32")


# Who wins


def test_the_fastest_wins_and_is_proven_where_its_interval_says_so():
    decision = tune.decide(Run(begun("a", "b", "c"), b=1.3, c=1.1).all())
    assert (decision["winner"], decision["proven"]) == ("b", True)
    assert decision["others"]["second"]["name"] == "c"
    assert decision["others"]["first"]["name"] == "a"
    assert decision["others"]["first"]["ratio"] == pytest.approx(1.3, abs=0.05)
    assert decision["msg"].startswith("b is the fastest by single_stream: 8")
    assert "of a" in decision["msg"]


def test_the_best_of_many_is_told_as_picked():
    assert "picked as the best of 3" in tune.decide(Run(begun("a", "b", "c"), b=1.3).all())["msg"]
    assert "picked" not in tune.decide(Run(begun("a", "b"), b=1.3).all())["msg"]


def test_a_winner_within_noise_is_not_proven():
    decision = tune.decide(Run(begun("a", "b"), b=1.002).all())
    assert decision["proven"] is False
    assert "not proven to be faster" in decision["msg"]


def test_the_objective_decides():
    fast_batch = measurement(3, 0.9)
    fast_batch["levels"]["128"] = measurement(3, 2.0)["levels"]["128"]
    ends = {"b": {"measurement": fast_batch}}
    assert tune.decide(Run(begun("a", "b"), **ends).all())["winner"] == "a"
    assert tune.decide(Run(begun("a", "b", objective="c128"), **ends).all())["winner"] == "b"


def test_the_table_has_every_candidate_with_its_verdict():
    state = begun("a", "b", "c", rounds=1, budget_s=250)
    rows = tune.rows(Run(state, b={"verdict": "failed", "why": "out of memory"}).all(most=2))
    assert [(row["candidate"], row["verdict"], row["trials"], row["why"]) for row in rows] == [
        ("a", "measured", 1, ""), ("b", "failed", 1, "out of memory"), ("c", "not tried", 0, ""),
    ]  # fmt: skip
    assert rows[0]["single_stream"] == pytest.approx(63.6, rel=0.05)
    assert rows[0]["c128"] == pytest.approx(1536, rel=0.05)
    assert rows[1]["c128"] is None


def test_the_table_compares_with_the_baseline_where_it_can_be_compared_else_with_the_first():
    baseline = measurement(1)
    rows = tune.rows(Run(begun("a", "b", baseline=baseline), b=1.3).all())
    assert [row["against"][:3] for row in rows] == ["1.0", "1.3"] or rows[0]["against"].startswith("0.9")
    other = {**baseline, "client": {"name": "other", "version": "1"}}
    state = Run(begun("a", "b", baseline=other), b=1.3).all()
    rows = tune.rows(state)
    assert (rows[0]["against"], tune.against(state)) == ("", "a")
    assert rows[1]["against"].startswith("1.")
    assert " to " in rows[1]["against"]


@pytest.mark.parametrize("matrix", [False, True])
def test_the_winner_is_written_as_a_profile_with_its_numbers(matrix):
    if matrix:
        found, _ = parsed("", {"base": "baseline", "flags": {"x": [1, 2]}})
    else:
        found, _ = parsed("baseline,triton_nccl")
    state = tune.begin("h1", "main", found, LOAD, "single_stream", 2, 1e6)
    state = Run(state, **{found[1]["name"]: 1.3}).all()
    text = tune.winner_text(state, tune.decide(state), "blackwell", "2026-12-01")
    problems = Problems()
    profile = yaml_text.read(text, "f", problems)
    assert not problems
    wanted = {"extends": "baseline", "flags": {"x": 2}} if matrix else {"extends": "triton_nccl"}
    assert {key: value for key, value in profile.items() if key != "description"} == wanted
    assert f"{found[1]['name']} won a tune on h1 (2026-12-01): single_stream 8" in profile["description"]
    assert f"# Written by playbooks/tune.yml, tune {state['id']}" in text
    notes = [line for line in text.splitlines() if line.startswith("# ")]
    assert len(set(notes)) == len(notes)
    assert any(line.startswith(f"# {found[0]['name']}: measured, single_stream 6") for line in notes)


def test_a_winner_that_is_the_tuned_profile_already_is_not_written_over_itself():
    state = Run(begun("tuned_blackwell", "b"), b=0.8).all()
    assert tune.winner_text(state, tune.decide(state), "blackwell", "2026-12-01") == ""
