"""A score of fault scenarios, each kind once: `make soak` runs two hundred of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import soak
from deploys import standin_hosts

SCENARIOS = soak.scenarios(soak.SEED, len(soak.KINDS))


@pytest.fixture(scope="module")
def outcomes(make_lab, tmp_path_factory):
    """What became of each scenario, by number."""
    lab = standin_hosts(make_lab("-soak"), 2)
    found = soak.run(lab, tmp_path_factory.mktemp("soak"), SCENARIOS, ["h1", "h2"])
    return {outcome.scenario.number: outcome for outcome in found}


@pytest.mark.timeout(1500)  # the first one waits for all of them
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: f"{scenario.number}-{scenario.kind}")
def test_the_verdict_is_what_was_injected_and_nothing_is_left_over(outcomes, scenario):
    outcome = outcomes[scenario.number]
    assert not outcome.problems, outcome.told(soak.SEED)


def test_the_table_of_truth_and_verdict(outcomes, capsys):
    with capsys.disabled():
        print(f"\n{soak.confusion(outcomes.values())}\n{soak.lateness(outcomes.values())}")
    wrong = [outcome.line() for outcome in outcomes.values() if outcome.verdict != outcome.scenario.truth]
    assert not wrong
