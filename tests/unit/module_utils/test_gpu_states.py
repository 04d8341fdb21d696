"""The state of GPUs after a cleanup: what each fault is called, and that the message says what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import gpu_states
from ansible.module_utils.ironserve.gpu_states import PINNED_SETTLE_S, SETTLE_S, Wish
from ansible.module_utils.ironserve.gpus import Gpu, GpuProcess, Reading
from ansible.module_utils.ironserve.holders import Owner
from ansible.module_utils.ironserve.processes import Details, Process
from ansible.module_utils.ironserve.victims import Found, Held

ROOT = Path(__file__).resolve().parents[3]
RTX = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def gpu(number=0, used=0, **more):
    return Gpu(number, f"GPU-{number}", **{"name": RTX, "memory_used_mib": used, "utilization": 0, **more})


def wish(*named, scope=("GPU-0", "GPU-1"), **more):
    return Wish(
        frozenset(named or scope), frozenset(named), **{"expected": 0, "free_threshold_mib": 64, "mig": False, **more}
    )


def process(pid=4001, comm="x", state="S", parent=1):
    return Process(pid, parent, pid, 5, state, 1, comm)


def held(kind, memory, pid=4001, comm="x", seen=("driver", "open")):
    details = Details("bob", (comm,), "0::/", False)
    return Held(process(pid, comm), details, Owner("process"), memory, seen, kind, "of user bob")


def judge(*gpus, found=None, wished=None, quiet_s=60.0, processes=None, ended=()):
    return gpu_states.judge(Reading("nvml", gpus), found or Found(), wished or wish(), processes or {}, quiet_s, ended)


def test_free_is_at_or_under_the_threshold_on_every_gpu_in_scope():
    assert judge(gpu(used=64), gpu(1, used=0), quiet_s=0).state == "clean"
    assert judge(gpu(used=64), gpu(1, used=65), quiet_s=0) is None
    assert judge(gpu(used=0), gpu(1, used=70000), wished=wish("GPU-0"), quiet_s=0).state == "clean"


def test_utilisation_says_nothing_about_idleness():
    assert judge(gpu(used=0, utilization=100), quiet_s=0).state == "clean"


def test_case_5_memory_and_full_use_without_an_owner():
    stuck = gpu(used=624, utilization=100, processes=())
    assert judge(stuck, quiet_s=PINNED_SETTLE_S / 2) is None
    verdict = judge(stuck, quiet_s=PINNED_SETTLE_S)
    assert (verdict.state, verdict.failed) == ("wedged_no_owner", True)
    assert "624 MiB and 100 % utilisation without any process" in verdict.message
    assert "a reset or a reboot is needed" in verdict.message
    assert PINNED_SETTLE_S < SETTLE_S <= 10  # nobody waits a whole time limit for what does not move


def test_memory_that_still_falls_is_waited_for():
    assert judge(gpu(used=624), quiet_s=SETTLE_S - 0.1) is None
    assert judge(gpu(used=624), quiet_s=SETTLE_S).state == "wedged_no_owner"


def test_case_11_not_clean_while_the_driver_lists_a_victim():
    listed = gpu(used=0, processes=(GpuProcess(4003, "C", 0),))
    assert judge(listed, ended=[4003], quiet_s=0) is None
    assert judge(replace(listed, processes=()), ended=[4003], quiet_s=0).state == "clean"
    kept = judge(listed, found=Found(hidden={4003: ("GPU-0",)}), ended=[4003])
    assert kept.state == "foreign_holder"


def test_memory_of_those_who_may_stay_is_not_counted():
    desktop = Found([held("protected", {"GPU-0": 300}, comm="Xorg")])
    assert judge(gpu(used=340), found=desktop, quiet_s=0).state == "clean"
    assert judge(gpu(used=400), found=desktop).state == "wedged_no_owner"
    untold = Found([held("protected", {"GPU-0": None}, comm="Xorg")])
    verdict = judge(gpu(used=340), found=untold)
    assert (verdict.state, verdict.failed) == ("not_measurable", False)
    assert "Xorg (pid 4001)" in verdict.message


def test_a_foreign_context_is_told_at_once_and_one_that_only_watches_is_not():
    foreign = Found([held("foreign", {"GPU-0": 500}, comm="train.py")])
    verdict = judge(gpu(used=500), found=foreign, quiet_s=0)
    assert verdict.state == "foreign_holder"
    assert 'pid 4001 (of user bob): "train.py"' in verdict.message
    watching = Found([held("foreign", {"GPU-0": None}, seen=("open",))])
    assert judge(gpu(used=0), found=watching, quiet_s=0).state == "clean"
    elsewhere = Found([held("foreign", {"GPU-7": 500})])
    assert judge(gpu(used=0), found=elsewhere, quiet_s=0).state == "clean"


@pytest.mark.parametrize("kind", ["self", "out_of_scope"])
def test_a_gpu_is_not_clean_while_somebody_who_is_spared_holds_it(kind):
    """An engine in the terminal from which this runs, or another service that runs on GPUs that were named."""
    found = Found([held(kind, {"GPU-0": 70000})])
    assert judge(gpu(used=70000), found=found, quiet_s=0).state == "foreign_holder"


def test_case_21_a_zombie_is_the_affair_of_its_parent():
    found = Found(zombies={31794: ("GPU-0",)})
    table = {31794: process(31794, state="Z", parent=31000), 31000: process(31000, "run.sh")}
    assert judge(gpu(used=5000), found=found, processes=table, quiet_s=0) is None
    verdict = judge(gpu(used=5000), found=found, processes=table)
    assert verdict.state == "zombie"
    assert "pid 31794" in verdict.message
    assert "run.sh (pid 31000)" in verdict.message


def test_a_pid_of_another_namespace_is_foreign():
    verdict = judge(gpu(used=5000), found=Found(hidden={77777: ("GPU-0",)}))
    assert verdict.state == "foreign_holder"
    assert "pid 77777, which /proc does not show" in verdict.message


@pytest.mark.parametrize(
    ("name", "state"),
    [("NVIDIA GB10", "not_measurable"), ("NVIDIA Thor", "not_measurable"), (RTX, "driver_unusable")],
)
def test_case_17_memory_that_is_not_supported(name, state):
    verdict = judge(gpu(used=None, name=name, error="not_supported"))
    assert verdict.state == state
    assert verdict.failed is (state == "driver_unusable")
    assert "GPU 0 (GPU-0)" in verdict.message


def test_case_17_a_gpu_in_mig_mode_is_refused_before_anybody_is_signalled():
    partitioned = Reading("nvml", (gpu(), gpu(1, mig_mode=True)))
    assert gpu_states.before_anything(partitioned, wish(), 30).state == "mig_mode"
    assert gpu_states.before_anything(partitioned, wish("GPU-0"), 30) is None
    assert gpu_states.before_anything(partitioned, wish(mig=True), 30) is None
    assert gpu_states.before_anything(Reading("nvml", (gpu(),)), wish("MIG-1"), 30).state == "mig_mode"


@pytest.mark.parametrize(
    ("failure", "state", "says"),
    [
        ("hung", "driver_hung", "reboot"),
        ("mismatch", "driver_unusable", "different versions"),
        ("not_loaded", "driver_unusable", "not loaded"),
        ("Unknown Error", "driver_unusable", "Unknown Error"),
    ],
)
def test_case_18_a_driver_that_cannot_be_asked_is_told_before_anybody_is_signalled(failure, state, says):
    verdict = gpu_states.before_anything(Reading("nvml", failure=failure), wish(), 30)
    assert (verdict.state, verdict.failed) == (state, True)
    assert says in verdict.message
    assert gpu_states.before_anything(Reading("", failure="absent"), wish(), 30) is None


def test_case_18_a_process_that_outlives_sigkill_needs_a_reboot():
    verdict = gpu_states.unkillable([process(4001, "VLLM::EngineCor", "R"), process(4002, "VLLM::Worker_TP", "D")])
    assert verdict.state == "unkillable"
    assert "pid 4001 (VLLM::EngineCor, state R)" in verdict.message
    assert "state D" in verdict.message
    assert "reboot" in verdict.message


def test_seven_of_eight():
    seven = [gpu(number) for number in range(7)]
    everything = {"scope": [one.uuid for one in seven], "expected": 8}
    assert judge(*seven, wished=wish(**everything)).message.startswith(
        "the driver knows 7 GPUs, and ironserve_hardware.gpu_count says 8"
    )
    missing = replace(gpu(-1), uuid="GPU-7", error="lost", memory_used_mib=None)
    assert judge(*seven, missing, wished=wish(**everything)).state == "gpu_lost"
    assert judge(*seven, wished=wish("GPU-0", "GPU-7")).state == "gpu_lost"
    assert judge(*seven, missing, wished=wish("GPU-0")).state == "clean"


def test_a_gpu_that_has_to_be_reset_is_told_though_its_memory_is_free():
    verdict = judge(gpu(used=0, recovery_action="gpu_reset"))
    assert verdict.state == "reset_required"
    assert "gpu reset" in verdict.message
    assert judge(gpu(used=None, error="reset_required")).state == "reset_required"


def test_without_any_driver_processes_are_all_that_counts():
    absent = Reading("", (gpu(used=None, error="absent"),), failure="absent")
    assert gpu_states.judge(absent, Found(), wish(), {}, 0).state == "not_measurable"
    for wished in (wish(expected=8, scope=()), wish("GPU-0")):
        nothing = gpu_states.judge(Reading("", failure="absent"), Found(), wished, {}, 0)
        assert (nothing.state, nothing.failed) == ("not_measurable", False)


def test_what_comes_back_names_who_starts_it():
    verdict = gpu_states.respawning([process(5000, parent=31000)], {31000: process(31000, "run.sh")})
    assert verdict.state == "respawning"
    assert "run.sh (pid 31000)" in verdict.message


def test_every_state_is_explained():
    page = (ROOT / "docs" / "cleanup.md").read_text()
    module = (ROOT / "library" / "gpu_cleanup.py").read_text()
    states = set(re.findall(r'Verdict\(\s*"(\w+)"', Path(gpu_states.__file__).read_text()))
    states |= {"driver_hung", "driver_unusable", "held", "in_use"}
    for state in states:
        assert f"C({state})" in module, state
        if state not in gpu_states.SUCCESS:
            assert f"## {state}" in page, state
    assert set(gpu_states.ADVICE) <= states
