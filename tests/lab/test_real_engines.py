"""The judge over both real engines, on the CPU: what dies, hangs or is wrong is told as it is, and a slow start is not.

Starts that fail come first: there is no good release on the host yet that would be put back, which takes a whole start.
"""

from __future__ import annotations

import gzip
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import UNIT
from real_engines import SGLANG, STALL_S, STREAMS, VLLM, WATCH, WATCHDOG_S, RealFleet, real_host

GRACE_S = 3.0
"""What the judge leaves an engine that lost a process, or said its last word, to end by itself."""
WITHIN_S = 2.0
"""So soon after that the verdict is there."""
TURN_S = 3.0
"""Between two slices of the gate lies a turn of Ansible's; it takes that long on two cores that have more to do."""
RESTART_S = 180


pytestmark = pytest.mark.timeout(1500)
"""With cold caches the first test fetches the engine's wheels and builds its environment."""


@pytest.fixture(scope="module", params=[VLLM, SGLANG], ids=lambda engine: engine.name)
def real(request, make_lab, tmp_path_factory):
    """h1 for one engine; nothing is deployed there at first."""
    engine = request.param
    lab = make_lab(f"-real-{engine.name}")
    real_host(lab, engine)
    fleet = RealFleet(lab, tmp_path_factory.mktemp(engine.name), engine)
    yield fleet
    for program in fleet.running:
        program.end()
    lab.down()


@pytest.fixture
def measured(real, request, record_property):
    """Shows what was measured: on the terminal with -s, and in a JUnit report."""

    def say(**values: Any) -> None:
        record_property("measured", json.dumps(values))
        print(f"\n{request.node.name}: {json.dumps(values)}")

    return say


@pytest.fixture(scope="module")
def started(real):
    """What was seen of a healthy start, with a stall limit shorter than its log is silent on a busy machine."""
    watch = real.on_host(WATCH, "600")
    real.deploy("good")
    return {"ready_s": real.record()["timings"]["ready"], **watch.result()}


@pytest.fixture
def serving(real, started):
    """The pid of the server; one that a test ended comes again, and is waited for here."""
    real.wait(f"[ $(systemctl show -P ActiveState {UNIT}) = active ]", RESTART_S)
    assert real.complete("h1")["usage"]["completion_tokens"] == 3
    return real.main_pid("h1")


def kept(output: str) -> dict[str, Any]:
    """The evidence that the output of a failed deploy names: it is on the controller, and it is whole."""
    named = re.search(r"What was seen before anything was stopped \((\S+\.json\.gz)\):", output)
    assert named, output
    return json.loads(gzip.decompress(Path(named[1]).read_bytes()))


def error(output: str) -> str:
    """The engine's own error, as the message of a failed deploy has it."""
    found = re.search(r"The engine's own error: (.*)", output)
    return found[1] if found else ""


@pytest.mark.parametrize("moment", ["loads", "is_about_to_serve"])
def test_a_start_whose_core_is_killed_fails_at_once_and_says_who_died(real, measured, moment):
    ambush = real.ambush(real.engine.core, signal.SIGKILL, "" if moment == "loads" else real.engine.late)
    result = real.deploy("good", check=False)
    told, record, evidence = ambush.result(), real.record(), kept(result.stdout)
    verdict_s = real.verdict_s(told["wall"])
    measured(verdict=record["verdict"], cause=record["reason"], error=error(result.stdout), verdict_s=verdict_s, **told)
    assert result.returncode == 2
    assert record["verdict"] == "failed"
    assert real.engine.dead(told["pid"]).search(result.stdout)
    due_s = min(told.get("ended_s", GRACE_S), GRACE_S) + WITHIN_S
    assert told.get("found_s", 0) <= due_s
    assert verdict_s <= due_s + TURN_S
    assert evidence["phase"]
    assert evidence["log"]["tail"]
    assert real.main_pid("h1") == 0


def test_a_start_whose_model_process_is_stopped_is_stalled_after_the_limit_and_not_sooner(real, measured):
    real.real_profile("hangs", stall_timeout_s=STALL_S)
    ambush = real.ambush(real.engine.stopped, signal.SIGSTOP, real.engine.hangs_at)
    result = real.deploy("hangs", check=False)
    told, record, evidence = ambush.result(), real.record(), kept(result.stdout)
    verdict_s = real.verdict_s(told["wall"])
    measured(verdict=record["verdict"], cause=record["reason"], verdict_s=verdict_s, over_s=verdict_s - STALL_S, **told)
    assert result.returncode == 2
    assert record["verdict"] == "stalled"
    assert f"stall_timeout_s of the profile is {STALL_S}s" in record["reason"]
    # What moved last moved up to two seconds before the signal: one between looks, one that a rate is taken over.
    assert STALL_S - 2 <= told["found_s"] <= STALL_S + 5
    assert verdict_s <= STALL_S + 5 + TURN_S
    assert evidence["phase"] in real.engine.hangs_in
    assert f"in phase: {evidence['phase']}" in result.stdout
    assert evidence["processes"][str(told["pid"])]["state"] == "T"
    assert real.main_pid("h1") == 0


def test_a_wrong_flag_is_told_in_the_words_of_argparse(real, measured):
    real.real_profile("wrong", flags={"max-number-of-sequences": 4})
    result = real.deploy("wrong", check=False, accept="flag-unknown")  # its parser would refuse it before
    record, after_s = real.record(), real.after_end_s()
    measured(cause=record["reason"], error=error(result.stdout), start_s=real.lasted_s(), after_end_s=after_s)
    assert result.returncode == 2
    assert (record["verdict"], record["reason"]) == ("failed", "the engine exited with status 2")
    assert error(result.stdout) == f"{real.engine.usage} error: unrecognized arguments: --max-number-of-sequences 4"
    assert "Known cause: This version of the engine does not know: --max-number-of-sequences 4." in result.stdout
    assert after_s <= WITHIN_S + TURN_S
    assert kept(result.stdout)["unit"]["ExecMainStatus"] == "2"


def test_a_bad_model_is_told_in_the_words_of_the_engine_with_its_known_cause(real, measured):
    bad = real.engine.bad_model
    real.shell("h1", f"rm -rf {bad.path} {bad.path}.moved; cp -r /srv/models/tiny-llama {bad.path}; {bad.edit}")
    ambush = real.ambush("", move=bad.path) if bad.is_moved else None
    result = real.deploy("good", check=False, ironserve_model={"path": bad.path, "served_name": "tiny"})
    record, after_s, evidence = real.record(), real.after_end_s(), kept(result.stdout)
    measured(cause=record["reason"], error=error(result.stdout), start_s=real.lasted_s(), after_end_s=after_s)
    assert ambush is None or ambush.result()["pid"]
    assert result.returncode == 2
    assert (record["verdict"], record["reason"]) == ("failed", "the engine exited with status 1")
    assert error(result.stdout).startswith(bad.error)
    assert f"Known cause: {bad.cause}" in result.stdout
    assert after_s <= WITHIN_S + TURN_S
    assert evidence["unit"]["ExecMainStatus"] == "1"


def test_a_healthy_start_is_never_stalled_however_long_its_log_is_silent(real, measured, started):
    measured(**started)
    assert real.record()["verdict"] == "ready"
    # Else this shows nothing: the log alone would have called it hung, and what moved beside it did not.
    assert started["silent_s"] > 2 * started["still_s"]
    assert real.complete("h1")["usage"]["completion_tokens"] == 3


def test_what_took_effect_is_read_back_from_the_ranks_and_from_the_server(real, measured, started):
    effect = real.record()["took_effect"]
    measured(**effect)
    assert (effect["ranks"], effect["unreadable"], effect["env"]) == (1, [], {})
    assert (effect["argv"], effect["notes"]) == ({}, [])
    assert effect["argv_source"] == ("server_info" if real.engine is SGLANG else "log")
    known = ("NCCL_", "CUDA_", "VLLM_", "SGLANG_", "GLOO_", "PYTORCH_")
    assert all(name.startswith(known) for name in effect["added"])
    if real.engine is SGLANG:  # what nobody asked for: the ranks are spawned, so /proc shows what it set before
        chosen = {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
        assert chosen.items() <= effect["added"].items()


def test_its_speed_is_measured_by_the_same_command_for_both(real, measured, serving):
    load = {"concurrencies": [1, 4], "input_tokens": 32, "output_tokens": 16, "repetitions": 1, "min_requests": 4}
    real.play("-l", "h1", playbook="playbooks/benchmark.yml", ironserve_benchmark=load)
    record = real.record()
    runs = {level: found[0] for level, found in record["levels"].items()}
    measured(**runs)
    assert (record["event"], record["disturbed"]) == ("measurement", "")
    assert [(run["requests"], run["failed"]) for run in runs.values()] == [(4, 0), (8, 0)]
    for run in runs.values():
        assert min(run["output_tok_s"], run["ttft_ms"]["p50"], run["itl_ms"]["p50"]) > 0
    assert record["continuations"][0] == record["continuations"][1]
    assert real.main_pid("h1") == serving


def test_a_server_whose_core_is_killed_is_told_and_started_again(real, measured, serving):
    restarts = real.restarts()
    told = real.ambush(real.engine.core, signal.SIGKILL, since=0).result()
    real.wait(f"[ $(systemctl show -P SubState {UNIT}) = auto-restart ]", 30)
    during = real.status("h1")
    real.wait(f"p=$(systemctl show -P MainPID {UNIT}) && [ $p != 0 ] && [ $p != {serving} ]", 30)
    real.wait(f"[ $(systemctl show -P ActiveState {UNIT}) = active ]", RESTART_S)
    measured(status=during["status"], note=during["note"], serves_again_s=real.since_s(told["wall"]), **told)
    assert told["ended_s"] <= 30 + WITHIN_S
    assert during["status"] == "starting"
    assert re.search(real.engine.ended_note, during["note"])
    assert real.restarts() == restarts + 1
    assert real.complete("h1")["usage"]["completion_tokens"] == 3


def test_a_server_that_hangs_over_a_request_is_ended_by_the_watchdog_and_started_again(real, measured, serving):
    ambush = real.ambush(real.engine.stopped, signal.SIGSTOP, since=0, first=STREAMS)
    first = ambush.said()
    hung = real.status_but("ready")  # vLLM's health endpoint says 200 all the time: the helper has to find out
    told = ambush.result()
    real.wait(f"[ $(systemctl show -P SubState {UNIT}) = auto-restart ]", 30)
    during = real.status("h1")
    measured(hung=[hung["status"], hung["note"]], note=during["note"], **told)
    assert (first["pid"], first["main"]) == (told["pid"], serving)
    assert real.shell("h1", "grep -L DONE /srv/stream-*", check=False)  # in flight to the end
    assert hung["status"] == "unhealthy"
    # The helper looks four times within it.
    assert WATCHDOG_S * 3 / 4 - 1 <= told["ended_s"] <= WATCHDOG_S * 5 / 4 + 2
    assert "Watchdog timeout" in real.shell("h1", f"journalctl -u {UNIT} -o cat")
    assert during["status"] == "starting"
    assert re.search("killed by systemd's watchdog: .*; systemd starts it again|loads again", during["note"])
