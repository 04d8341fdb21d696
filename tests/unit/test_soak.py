"""The scenarios of the soak: the same for a seed, of every kind, and each with a truth that its behaviour bears out."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "lab"), str(ROOT / "tests" / "engines" / "standin")]
soak = importlib.import_module("soak")
behaviour = importlib.import_module("ironserve_standin.behaviour")
data = importlib.import_module("ironserve_standin.data")
phases = importlib.import_module("ironserve_standin.phases")
profiles = importlib.import_module("ansible.module_utils.ironserve.profiles")
progress = importlib.import_module("ansible.module_utils.ironserve.progress")

SEEDS = [soak.SEED, 2, 77]
ALL = [one for seed in SEEDS for one in soak.scenarios(seed, 200)]
HANGS = [one for one in ALL if one.truth == "stalled"]


def parsed(one):
    """The scenario's behaviour as the stand-in reads it, and the file for any other profile."""
    play = [phases.Phase(**item) for item in data.engine_data(one.engine)["phases"]]
    start = behaviour.Start(
        phases=[phase.name for phase in play],
        rank_phases=[phase.name for phase in play if phase.is_of_ranks],
        ranks=one.ranks,
        flags=lambda: {soak.MARK: one.number},
    )
    other = behaviour.Start(start.phases, flags=lambda: {soak.MARK: None})
    return behaviour.parse(one.standin(), start), behaviour.parse(one.standin(), other)


def test_a_seed_says_the_same_again_and_another_seed_something_else():
    assert soak.scenarios(3, 40) == soak.scenarios(3, 40)
    assert soak.scenarios(3, 40) != soak.scenarios(4, 40)


def test_a_scenario_alone_is_the_one_of_the_whole_run():
    assert soak.scenario(3, 17) == soak.scenarios(3, 200)[16]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_score_has_every_kind_and_all_have_both_engines(seed):
    some = soak.scenarios(seed, 200)
    for first in range(0, 200, 20):
        assert {one.kind for one in some[first : first + 20]} == set(soak.KINDS)
    assert {(one.engine, one.ranks) for one in some} == {
        (engine, ranks) for engine in soak.RANKS_FLAG for ranks in (1, 2, 8)
    }
    assert Counter(one.truth for one in some).keys() == {"ready", "failed", "stalled", "timeout"}


@pytest.mark.parametrize("engine", soak.SAID)
def test_a_hang_in_every_phase_and_in_every_way_is_among_them(engine):
    some = [one for one in HANGS if one.engine == engine]
    assert {one.behave["hang_in"] for one in some} == set(soak.SAID[engine])
    assert {one.behave["hang_how"] for one in some} == set(behaviour.HANG_KINDS)


def test_the_stand_in_understands_all_and_is_well_with_any_other_profile():
    for one in ALL:
        mine, other = parsed(one)
        assert (mine != other) == bool(one.behave), one
        assert other == behaviour.Behaviour(gpu_mib=soak.GPU_MIB, per_flag=other.per_flag)


def test_the_phases_are_those_of_the_stand_in_and_of_the_log():
    for engine, said in soak.SAID.items():
        known = {entry["name"] for entry in data.read_yaml(ROOT / "knowledge" / "phases" / f"{engine}.yml")["phases"]}
        assert set(said) == {phase["name"] for phase in data.engine_data(engine)["phases"]}
        assert set(said.values()) - {""} <= known
        assert set(soak.RANK_PHASES[engine]) <= set(said)


def test_profiles_have_keys_that_there_are_and_limits_that_the_phase_of_a_hang_has():
    for one in ALL:
        assert set(one.settings) <= set(profiles.DEFAULTS)
        if one.truth == "stalled":
            assert 3 <= progress.stall_limit_s(one.settings["stall_timeout_s"], one.phase) <= 5


def test_what_is_good_outlasts_the_stall_limit_and_what_is_bad_cannot_become_ready():
    for one in ALL:
        limit_s = progress.stall_limit_s(one.settings["stall_timeout_s"], one.phase)
        long_s = one.behave.get("load", {}).get("seconds", 0)
        if one.kind in ("slow_steady", "silent_load"):
            long_s = long_s or one.behave["phases"]["graphs"]["delay_s"]
            assert limit_s < long_s < one.settings["startup_timeout_s"], one
        if one.truth == "ready":
            assert not {"hang_in", "exit_in", "rank", "first_request"} & set(one.behave), one
            assert one.after in ("keep", "rollback")
        if one.truth == "timeout":
            assert long_s > one.settings["startup_timeout_s"] + one.settings["completion_timeout_s"], one
        if "exit_after_s" in one.behave:
            assert one.behave["exit_after_s"] < limit_s, "the hang would be named first"


def test_gpu_memory_is_asked_only_of_the_host_that_has_gpus_and_nobody_idles():
    some = soak.scenarios(soak.SEED, 200)
    found = soak.shares(some, ["h1", "h2"])
    assert not any(one.needs_gpus for one in found["h2"])
    assert abs(len(found["h1"]) - len(found["h2"])) <= 1
    assert sorted(one.number for share in found.values() for one in share) == list(range(1, 201))


def test_the_table_counts_what_was_against_what_was_said():
    some = [one for one in ALL if one.truth in ("stalled", "ready")]
    one, other = some[0], next(other for other in some if other.truth != some[0].truth)
    outcomes = [soak.Outcome(one, "h1", one.truth), soak.Outcome(other, "h1", "timeout"), soak.Outcome(other, "h1")]
    rows = {line.split()[0]: line.split()[1:] for line in soak.confusion(outcomes).splitlines()}
    columns = rows.pop("truth")
    assert rows[one.truth][columns.index(one.truth)] == "1"
    assert rows[other.truth][columns.index("timeout")] == rows[other.truth][columns.index("none")] == "1"
    assert sum(int(cell) for row in rows.values() for cell in row) == 3


@pytest.mark.parametrize(
    ("verdict", "status", "said", "evidence", "problem"),
    [
        ("stalled", 2, "in phase: compiling", ["file"], None),
        ("timeout", 2, "in phase: compiling", ["file"], "the verdict is timeout and not stalled"),
        ("ready", 0, "in phase: compiling", [], "the run ended with status 0"),
        ("stalled", 2, "in phase: loading weights", ["file"], "the message does not name the phase compiling"),
        ("stalled", 2, "in phase: compiling", [], "no evidence was fetched"),
    ],
)
def test_whatever_is_not_the_truth_is_a_problem(verdict, status, said, evidence, problem):
    one = next(one for one in HANGS if one.phase == "compiling")
    found = soak.differences(one, verdict, status, said, evidence)
    assert problem in found if problem else not found


def test_the_words_of_an_end_are_asked_for():
    one = next(one for one in ALL if one.behave.get("exit_status") == 7)
    assert soak.differences(one, "failed", 2, "the engine exited with status 1", ["file"]) == [
        "nothing says: exited with status 7"
    ]
    assert not soak.differences(one, "failed", 2, "the engine exited with status 7", ["file"])


def test_one_that_went_wrong_is_told_with_the_command_that_runs_it_again():
    outcome = soak.Outcome(ALL[6], "h2", "none", ["no evidence was fetched"], said="PLAY [Roll]")
    told = outcome.told(soak.SEED)
    assert f"soak.py --seed {soak.SEED} --only 7" in told
    assert all(words in told for words in ("NOT OK", "no evidence was fetched", '"kind"', "PLAY [Roll]"))


def test_any_draw_gives_every_kind_a_scenario_that_the_stand_in_takes():
    for kind, make in soak.KINDS.items():
        for number in range(40):
            draw = soak.Draw(Random(number))
            found = make(draw)
            one = soak.Scenario(number + 1, kind, draw.engine, draw.ranks, draw.eager, **found)
            parsed(one)
