"""The proof of all-reduces: what is run for a release, and what an operator reads of each end."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve import all_reduce, host_facts, nccl_proof, systemd
from ansible.module_utils.ironserve.nccl_proof import plan, report, unit_argv

KIB = 1 << 10
RELEASE = {
    "service": "main", "engine": "sglang", "environment": "/opt/ironserve/engines/l", "flags": {"tp-size": "8"},
    "env": {"NCCL_PROTO": "LL", "NCCL_DEBUG_FILE": "/tmp/x"}, "host_env": {}, "gpus": [],
    "limits": {"memlock": "infinity", "nofile": 65535},
}  # fmt: skip
H = "gpu-a01:1:1 [0] NCCL INFO "


def planned(gpu_count=8, engine_env=None, sizes=(32 * KIB,), **release):
    return plan({**RELEASE, **release}, gpu_count, "ironserve", sizes, 60.0, engine_env or {})


@pytest.mark.parametrize(
    ("gpu_count", "release", "world", "backend"),
    [
        (8, {}, 8, "nccl"),
        (8, {"flags": {"tp-size": "4"}}, 4, "nccl"),
        (8, {"gpus": ["GPU-a", "GPU-b"], "flags": {"tp-size": "2"}}, 2, "nccl"),
        (8, {"flags": {"tp-size": "16", "nnodes": "2"}}, 8, "nccl"),
        (1, {"flags": {}}, 1, "nccl"),
        (0, {"flags": {}}, 2, "gloo"),
        (0, {"flags": {"tp-size": "3"}}, 3, "gloo"),
    ],
)
def test_there_is_a_rank_for_each_of_the_service(gpu_count, release, world, backend):
    found = planned(gpu_count, **release)
    assert (found.world, found.backend) == (world, backend)


def test_the_ranks_get_the_variables_of_the_release_and_nccl_talks():
    found = planned(engine_env={"NCCL_NVLS_ENABLE": "0"}, host_env={"CUDA_VISIBLE_DEVICES": "GPU-a"})
    assert found.env == {
        "PATH": "/opt/ironserve/engines/l/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:"
                "/sbin:/bin",
        "HOME": "/var/cache/ironserve", "NCCL_NVLS_ENABLE": "0", "NCCL_PROTO": "LL", "CUDA_VISIBLE_DEVICES": "GPU-a",
        "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH",
    }  # fmt: skip
    assert "NCCL_DEBUG" not in planned(gpu_count=0, flags={}).env


def test_path_home_and_limits_are_those_of_the_services_unit(root):
    template = (root / "roles/serve/templates/ironserve.service.j2").read_text()
    for path in host_facts.SYSTEM_PATH.split(":"):
        assert f":{path}" in template
    assert f"HOME={nccl_proof.HOME}" in template
    argv = unit_argv(planned(), *(nccl_proof.Path(f"/run/p/{name}") for name in ("s.py", "ranks", "output")))
    assert "--property=LimitMEMLOCK=infinity" in argv
    assert "--property=LimitNOFILE=65535" in argv
    assert "--property=User=ironserve" in argv
    assert "--setenv=NCCL_PROTO=LL" in argv


def test_its_unit_is_no_services():
    assert systemd.service_of(planned().unit) is None
    assert planned().unit.startswith("ironserve-")  # so that a cleanup of GPUs knows it


def said(name, pid, **more):
    return [{"step": "join", "pid": pid}, {"step": name, "pid": pid, **more}]


def told(steps, hung, lines=(), seen=None, stuck=(), statuses=(0,), found=None):
    found = found or planned(flags={"tp-size": "2"}, gpu_count=2)
    answer = all_reduce.result(steps, found.world, statuses, hung)
    return report(found, answer, steps, lines, seen or {}, stuck, 61.0)


def test_case_4_p2p_that_says_ok_and_hangs_is_told_with_what_to_try():
    lines = [
        "gpu-a01:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0",
        H + "NCCL_PROTO set by environment to LL",
        H + "ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 cudaDev 0 - Init COMPLETE",
        H + "ncclCommInitRankConfig comm 0x1 rank 1 nranks 2 cudaDev 1 - Init COMPLETE",
        H + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    ]
    spins = {"state": "R", "cpu_percent": 100.0}
    seen = {
        "processes": {"11": spins, "12": spins},
        "gpus": {"gpus": [{"index": 0, "utilization": 100}, {"index": 1, "utilization": 100}]},
    }
    steps = {0: said("sum", 11, bytes=32 * KIB), 1: said("sum", 12, bytes=32 * KIB)}
    answer = told(steps, True, lines, seen)
    assert answer["verdict"] == "hung"
    assert answer["settings"] == {"NCCL_PROTO": "taken"}
    assert answer["transports"] == {"P2P/CUMEM": ["0->1"]}
    assert answer["nccl_version"] == "2.28.9"
    assert answer["msg"] == (
        "all-reduce of 32 KiB over 2 GPUs did not end within 60 s. ranks 0, 1: in the all-reduce of 32 KiB, spins at "
        "100 %. Use of the GPUs: GPU 0 100 %, GPU 1 100 %. The ranks use P2P/CUMEM: P2P says that it works, and hangs. "
        "Try NCCL_P2P_DISABLE=1 in the NCCL set of the host group; if that passes, ACS or the IOMMU redirects the "
        "traffic between the GPUs: switch ACS off on every bridge between them (lspci -vvv shows ReqRedir+ under "
        "ACSCtl), and boot with iommu=pt."
    )


@pytest.mark.parametrize(
    ("steps", "lines", "says"),
    [
        ({0: said("first", 11), 1: said("first", 12)}, [H + "Using network Socket"],
         "NCCL's communicator was not complete (0 of 2 ranks), network Socket: look at NCCL_SOCKET_IFNAME"),
        ({0: said("sum", 11, bytes=8), 1: said("sum", 12, bytes=8)},
         [H + "Channel 00/0 : 0[0] -> 1[1] via SHM/direct"], "The ranks use SHM/direct: look at /dev/shm"),
        ({0: said("first", 11)}, [], "1 of 2 GPUs did not get as far as the first all-reduce in 300 s"),
    ],
)  # fmt: skip
def test_what_to_look_at_depends_on_how_far_nccl_came(steps, lines, says):
    assert says in told(steps, True, lines)["msg"]


def test_a_failure_is_told_in_the_words_of_nccl_and_of_pytorch():
    lines = [
        'gpu-a01:1:1 [0] graph/tuning.cc:101 NCCL WARN Unrecognized element token "LL64" when parsing "LL64"',
        "Traceback (most recent call last):",
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, invalid usage",
    ]
    answer = told({0: said("first", 11), 1: said("first", 12)}, False, lines, statuses=(1,))
    assert answer["verdict"] == "failed"
    assert answer["msg"] == (
        'all-reduce over 2 GPUs failed: Unrecognized element token "LL64" when parsing "LL64"; '
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, invalid usage. Its ranks stood: rank 0 "
        "in the first all-reduce, 4 bytes, rank 1 in the first all-reduce, 4 bytes."
    )


def test_a_wrong_sum_says_that_nothing_may_be_served():
    wrong = said("wrong", 12, bytes=32 * KIB, index=5, got=3.0, wanted=11.0)
    answer = told({0: said("sum", 11, bytes=32 * KIB), 1: wrong}, False, statuses=(1,))
    assert answer["verdict"] == "wrong_result"
    assert "gave a wrong sum: rank 1 has 3 at element 5, and 11 is right. Serve nothing like this" in answer["msg"]


def test_what_the_kernel_does_not_let_go_is_told():
    answer = told({0: said("sum", 11, bytes=8), 1: said("sum", 12, bytes=8)}, True, stuck=[11, 12])
    assert answer["left"] == [11, 12]
    assert "The kernel does not let go of pid 11, 12, which was killed" in answer["msg"]


def test_a_proof_that_passed_says_its_figures():
    steps = {
        0: [*said("measured", 11, bytes=8 * KIB, us=21.4), {"step": "measured", "bytes": 64 << 20, "us": 2800.0},
            {"step": "done"}],
        1: said("done", 12),
    }  # fmt: skip
    answer = told(steps, False)
    assert answer["msg"] == "all-reduce over 2 GPUs: 8 KiB 21.4 us, 64 MiB 2800 us; bus bandwidth 23.967 GB/s"
    assert answer["latency_us"] == {"8192": 21.4, "67108864": 2800.0}


def test_a_proof_that_cannot_be_run_says_why(run_module):
    answer = run_module("nccl_proof", release={**RELEASE, "environment": "/nowhere"}, gpu_count=8)
    assert answer["failed"]
    assert answer["msg"].startswith("the proof of service main could not be run: ")


def test_in_check_mode_the_module_says_what_would_run(run_module):
    answer = run_module("nccl_proof", check=True, release=RELEASE, gpu_count=8)
    assert (answer["changed"], answer["verdict"]) == (False, "")
    assert answer["msg"] == (
        "would all-reduce 8 KiB, 32 KiB, 256 KiB, 64 MiB over 8 GPUs (nccl) as ironserve, for 60 s at most"
    )
