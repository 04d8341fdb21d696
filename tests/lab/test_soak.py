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
def hosts(make_lab):
    """h1 and h2, which see the stand-in's wheelhouse."""
    return standin_hosts(make_lab("-soak"), 2)


@pytest.fixture(scope="module")
def outcomes(hosts, tmp_path_factory):
    """What became of each scenario, by number."""
    found = {}
    soak.run(
        hosts, tmp_path_factory.mktemp("soak"), SCENARIOS, ["h1", "h2"],
        lambda outcome: found.update({outcome.scenario.number: outcome}),
    )  # fmt: skip
    return found


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


def test_what_is_left_on_a_host_is_seen(outcomes, hosts, tmp_path):
    host = soak.Host(hosts, "h2", tmp_path / "host", has_gpus=False)
    before = host.inspect()
    assert before["left"] == []
    zombie = "import os, time; os.fork() or os._exit(0); time.sleep(600)"
    hosts.exec("h2", ["systemd-run", "-q", "--unit=left", "--uid=ironserve", "sleep", "600"])
    hosts.exec("h2", ["systemd-run", "-q", "--unit=zombie", "python3", "-c", zombie])
    host.fleet.shell("h2", "touch /dev/shm/left /run/ironserve/left")
    found = host.inspect()
    host.fleet.shell("h2", "systemctl stop left zombie; rm /dev/shm/left /run/ironserve/left")
    assert sorted(line.split()[0] for line in found["left"]) == ["sleep", "zombie"]
    assert found["names"].keys() - before["names"].keys() >= {"/dev/shm/left", "/run/ironserve/left"}
