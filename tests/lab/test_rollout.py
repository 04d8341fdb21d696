"""Rollouts over eight hosts behind the real router, with streams in flight all the time: what is lost, and when.

Each test rolls out a flag with a number of its own, so that hosts which behave badly do so for that number only.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import ROOT, recap
from rollout_fleet import Load, Roll, RolloutFleet, rollout_hosts

SERVERS = 8
STREAMS = 16
"""In flight where the number does not matter: each costs two cores something. The first test has fifty."""
MOMENTS = int(os.environ.get("IRONSERVE_KILLS", "2"))
"""At so many moments the controller is killed; ``make soak-fleet`` takes 20."""
whole_only = pytest.mark.skipif("IRONSERVE_KILLS" not in os.environ, reason="make soak-fleet has it: it takes a minute")
FAILS = {"exit_in": "weights", "exit_status": 1, "exit_message": "ValueError: stand-in"}
SLOW = {"phases": {"weights": {"delay_s": 8}}}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def whole(make_lab, tmp_path_factory):
    """h1..h8 that serve, admitted to their router."""
    lab, folder = make_lab("-roll"), tmp_path_factory.mktemp("fleet")
    engines = ROOT / ".ironserve" / f"engines-{lab.name}"  # pytest's own folders are closed to the service user
    engines.mkdir()
    fleet = RolloutFleet(rollout_hosts(lab, SERVERS, engines), folder, SERVERS)
    fleet.play(playbook="playbooks/router.yml")
    fleet.play("-l", "h1", playbook="playbooks/prestage.yml")  # builds what all of them share
    fleet.play(*fleet.number(1), ironserve_canary=0, ironserve_batches=["100%"])
    assert fleet.workers() == dict.fromkeys(fleet.servers, True)
    yield fleet
    lab.down()
    shutil.rmtree(engines)


@pytest.fixture
def fleet(whole):
    """The fleet; it has to be whole after each test, whatever befell it."""
    yield whole
    assert whole.workers() == dict.fromkeys(whole.servers, True)


@pytest.fixture
def load(fleet, request):
    """Streams, from before the test's first step to its end."""
    load = fleet.load(streams=getattr(request, "param", STREAMS))
    yield load
    load.end()


def nothing_lost(load: Load) -> None:
    """Let the load end, and have every request of it answered whole."""
    sums = load.end()
    assert (sums["errors"], sums["truncated"], sums["unaccounted"]) == (0, 0, 0), sums
    assert sums["ok"] == sums["sent"] > STREAMS


def verdicts(fleet: RolloutFleet) -> dict[str, str]:
    """The last table's verdict of each host."""
    return {host: row["verdict"] for host, row in fleet.rows("deploy").items()}


@pytest.mark.parametrize("load", [50], indirect=True, ids=["fifty-streams"])
def test_a_flag_is_rolled_out_to_eight_hosts_and_no_request_is_lost(fleet, load):
    sizes = {"ironserve_batches": [2, 3, 2], "ironserve_max_unavailable": 3, "ironserve_min_serving": 5}
    output = fleet.play(*fleet.number(20), **sizes).stdout
    nothing_lost(load)
    assert load.fewest_healthy() >= 5
    assert fleet.numbers() == dict.fromkeys(fleet.servers, "20")
    assert set(fleet.rows("deploy")) == set(fleet.servers)
    batches = ["canary: h1", "batch 2 of 4: h2 h3", "batch 3 of 4: h4 h5 h6", "batch 4 of 4: h7 h8"]
    assert re.findall(r"^\[roll\] (.*)$", output, re.MULTILINE) == batches


def test_the_same_command_again_changes_nothing(fleet):
    pids = fleet.pids()
    output = fleet.play(*fleet.number(20)).stdout
    assert {host: recap(output, host)["changed"] for host in fleet.servers} == dict.fromkeys(fleet.servers, 0)
    assert fleet.pids() == pids


def test_a_bad_profile_costs_the_canary_a_restart_and_nobody_a_request(fleet, load):
    numbers, pids = fleet.numbers(), fleet.pids()
    result = fleet.play(*fleet.number(21, flags={"no-such-flag": True}), check=False)
    nothing_lost(load)
    assert result.returncode == 2
    assert fleet.numbers() == numbers
    after = fleet.pids()
    assert {host for host in fleet.servers if after[host] != pids[host]} == {"h1"}
    assert load.fewest_healthy() >= SERVERS - 1
    assert {host for host, verdict in verdicts(fleet).items() if verdict == "not reached"} == set(fleet.servers[1:])
    assert "unrecognized arguments: --no-such-flag" in result.stdout


def test_a_failure_in_the_third_batch_stops_there_and_the_same_command_goes_on(fleet, load):
    fleet.behave("h5", {"flag": "max-num-seqs", "value": 22, "behave": FAILS})
    before, batches = fleet.numbers(), {"ironserve_batches": [2, 3, 2]}
    result = fleet.play(*fleet.number(22), check=False, **batches)
    assert result.returncode == 2
    moved, stayed = {"h1", "h2", "h3", "h4", "h6"}, {"h5", "h7", "h8"}
    assert fleet.numbers() == {**before, **dict.fromkeys(moved, "22")}
    assert fleet.workers() == dict.fromkeys(fleet.servers, True)
    assert verdicts(fleet)["h7"] == verdicts(fleet)["h8"] == "not reached"
    assert verdicts(fleet)["h5"] not in (verdicts(fleet)["h4"], "not reached")

    pids = fleet.pids()
    fleet.behave("h5")
    fleet.play(*fleet.number(22), **batches)
    nothing_lost(load)
    assert load.fewest_healthy() >= SERVERS - 3
    after = fleet.pids()
    assert {host for host in fleet.servers if after[host] != pids[host]} == stayed
    assert fleet.numbers() == dict.fromkeys(fleet.servers, "22")


@whole_only
def test_the_second_failure_ends_a_roll_that_may_have_one(fleet):
    for host in ("h2", "h3"):
        fleet.behave(host, {"flag": "max-num-seqs", "value": 23, "behave": FAILS})
    before = fleet.numbers()
    result = fleet.play(*fleet.number(23), "-l", "h1,h2,h3,h4", check=False, ironserve_max_failures=2)
    assert result.returncode == 2
    assert fleet.numbers() == {**before, "h1": "23"}
    assert verdicts(fleet)["h4"] == "not reached"
    fleet.on_all(fleet.behave, ("h2", "h3"))


def test_revert_all_takes_back_the_hosts_that_had_moved(fleet, load):
    fleet.behave("h3", {"flag": "max-num-seqs", "value": 24, "behave": FAILS})
    before = fleet.numbers()
    result = fleet.play(*fleet.number(24), "-l", "h1,h2,h3,h4", "-e", "revert_all=true", check=False)
    nothing_lost(load)
    assert result.returncode == 2
    assert fleet.numbers() == before
    fleet.behave("h3")


MOMENT_OF_CUT = {
    "drain": ("TASK [serve : Wait until it has no request left]",),
    "start": ("TASK [serve : Activate the release]",),
    "gate": ("loading weights",),
}


# A host that is cut off in its gate, with no router, has a test in test_lease.py.
@pytest.mark.parametrize("moment", ["drain", *(pytest.param(name, marks=whole_only) for name in ("start", "gate"))])
def test_a_host_that_is_cut_off_counts_as_failed_and_the_next_batch_is_not_touched(fleet, moment):
    number = 30 + list(MOMENT_OF_CUT).index(moment)
    fleet.behave("h7", {"flag": "max-num-seqs", "value": number, "behave": SLOW})
    pid = fleet.main_pid("h8")
    load = fleet.load("--timeout", "20", streams=STREAMS)
    run = Roll(fleet, *fleet.number(number), "-l", "h7,h8", "-e", "serve_reconnect_timeout_s=5")
    run.until(*MOMENT_OF_CUT[moment])
    fleet.lab.cut("h7")
    status = run.end()
    assert status not in (0, None), run.said
    assert fleet.main_pid("h8") == pid
    assert verdicts(fleet) == {"h7": verdicts(fleet)["h7"], "h8": "not reached"}
    assert "connection lost" in run.said
    fleet.lab.join("h7")
    fleet.play(*fleet.number(number), "-l", "h7,h8")
    sums = load.end()
    # What was in flight on the host when its cable was pulled is lost, whoever rolls: its share of them, and no more.
    assert sums["errors"] + sums["truncated"] <= (STREAMS / SERVERS * 2 if moment == "drain" else 0), sums
    assert {fleet.numbers()[host] for host in ("h7", "h8")} == {str(number)}


@pytest.mark.timeout(300 + 150 * MOMENTS)  # two runs each
def test_a_controller_that_is_killed_at_any_moment_is_no_obstacle_to_the_next_run(fleet, load):
    limit = ("-l", "h3,h4")
    tasks = fleet.play(*fleet.number(100), *limit).stdout.count("\nTASK [")
    moments = sorted(random.Random(7).sample(range(tasks // 3, tasks), MOMENTS))
    for number, moment in enumerate(moments, 101):
        run = Roll(fleet, *fleet.number(number), *limit)
        for _ in range(moment):
            run.until("TASK [")
        run.kill()
        where = re.findall(r"TASK \[(.*)\]", run.said)[-1]
        fleet.play(*fleet.number(number), *limit)
        assert {fleet.numbers()[host] for host in ("h3", "h4")} == {str(number)}, f"killed at {where}"
        assert fleet.workers() == dict.fromkeys(fleet.servers, True), f"killed at {where}"
        assert set(fleet.rows("deploy")) == {"h3", "h4"}
    nothing_lost(load)


def test_a_router_that_restarts_during_a_roll_knows_its_servers_again(fleet, load):
    fleet.behave("h1", {"flag": "max-num-seqs", "value": 40, "behave": SLOW})
    run = Roll(fleet, *fleet.number(40), "-l", "h1,h2")
    run.until("loading weights")
    load.mark("restart")
    fleet.shell(fleet.router, "systemctl restart ironserve-router.service")
    load.mark("restarted")
    assert run.end() == 0, run.said
    sums = load.end()
    assert {fleet.numbers()[host] for host in ("h1", "h2")} == {"40"}
    # A graceful stop lets streams end; who comes while nobody listens is refused, and so is who comes before it knows a
    # server again.
    assert sums["truncated"] == 0, sums
    assert set(sums["errors_by_kind"]) <= {"refused", "disconnected", "status 503"}, sums
    began, ended = (event["at"] for event in load.events() if event["event"] == "mark")
    lost = [event["at"] for event in load.events() if event.get("outcome") == "error"]
    assert all(began <= at <= ended + 5 for at in lost), (began, ended, lost)


def test_a_second_controller_is_refused_and_told_who_is_at_work(fleet):
    fleet.behave("h5", {"flag": "max-num-seqs", "value": 50, "behave": SLOW})
    pids = fleet.pids("h6")
    run = Roll(fleet, *fleet.number(50), "-l", "h5")
    run.until("loading weights")
    run.pause()  # however long the second takes, the first is at work
    try:
        second = fleet.play(*fleet.number(51), "-l", "h5,h6", check=False)
    finally:
        run.pause(False)
    assert run.end() == 0, run.said
    assert second.returncode == 2
    assert "host-leased" in second.stdout
    assert f"pid {run.process.pid}" in second.stdout
    assert fleet.pids("h6") == pids
    assert fleet.numbers()["h5"] == "50"
    fleet.play(*fleet.number(51), "-l", "h5,h6")  # the lease went with the roll
    assert fleet.numbers()["h6"] == "51"
