"""From the texts that a host shows to ten lines. Kernel and NCCL lines are in the form that drivers and NCCL print."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve import evidence, symptoms
from hypothesis import given
from hypothesis import strategies as st

KERNEL = """\
2026-11-29T22:10:01+0000 gpu-a01 kernel: nvidia-uvm: Loaded the UVM driver, major device number 234.
2026-11-29T22:10:02+0000 gpu-a01 kernel: EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode.
2026-11-30T03:59:40+0000 gpu-a01 kernel: NVRM: Xid (PCI:0000:31:00): 31, pid=4242, name=sglang::schedul, Ch 00000008
2026-11-30T04:00:12+0000 gpu-a01 kernel: NVRM: Xid (PCI:0000:31:00): 79, pid='<unknown>', GPU has fallen off the bus.
2026-11-30T04:00:13+0000 gpu-a01 kernel: NVRM: Xid (PCI:0000:99:00): 45, pid=4242, Ch 00000010
2026-11-30T04:00:20+0000 gpu-a01 kernel: Out of memory: Killed process 4242 (python3) total-vm:9120kB, anon-rss:5kB
"""

LOG = [
    "gpu-a01:4242:4242 [0] NCCL INFO Using network Socket",
    "loading weights",
    "NCCL version 2.28.3+cuda13.0",
    "gpu-a01:4242:4311 [0] NCCL INFO Channel 00/04 :    0   1   2   3   4   5   6   7",
    "gpu-a01:4242:4311 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-x7 to 33030532 bytes",
    "[rank3]:[E1130 04:00:01 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout",
]

DUMP = """\
Process 4242: sglang::scheduler_TP3
Python v3.12.3 (/opt/ironserve/engines/sglang-1/bin/python3.12)

Thread 4300 (idle): "Thread-1"
    wait (threading.py:359)
    run (threading.py:1010)
Thread 4242 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2501)
    capture (sglang/srt/model_executor/cuda_graph_runner.py:611)
"""


def rank(number, state="S", percent=0.4, wchan="futex_wait_queue", **more):
    pid = 5000 + number
    title = f"sglang::scheduler_TP{number}"
    return {"pid": pid, "state": state, "cpu_percent": percent, "wchan": wchan, "threads": 9, "title": title, **more}


def processes(*several):
    return {str(process["pid"]): process for process in several}


def gpu(index, **more):
    bus = f"00000000:{1 + 16 * index:02X}:00.0"
    return {"index": index, "bus_id": bus, "memory_used_mib": 91022, "utilization": 100, "error": "", **more}


MAIN = {
    "pid": 4000,
    "state": "S",
    "cpu_percent": 0.0,
    "wchan": "do_epoll_wait",
    "title": "python -m sglang.launch_server",
}
HUNG = {
    "unit": {"MainPID": "4000", "ActiveState": "activating", "ExecMainCode": "0", "ExecMainStatus": "0"},
    "phase": "capturing graphs",
    "progress": "3/52",
    "processes": processes(MAIN, *(rank(number) for number in (0, 1, 2, 4, 5, 6, 7)), rank(3, "R", 101.8, "")),
    "gpus": {"gpus": [gpu(index) for index in range(8)], "failure": ""},
    "kernel": {"lines": symptoms.kernel_lines(KERNEL)},
    "log": {"tail": ["first", "Capturing batches:   6%|3/52"], "silent_s": 312.4, "nccl": symptoms.nccl_lines(LOG)},
    "python": {"5003": DUMP, **{str(5000 + number): DUMP.replace("all_reduce", "wait") for number in (0, 1, 2)}},
    "errors": {"kernel stack": "operation not permitted"},
}


def test_a_hang_in_ten_lines():
    assert symptoms.summary(HUNG) == [
        "main process runs (pid 4000, state S), unit is activating; phase: capturing graphs, 3/52",
        "Xid 79 on GPU 3 at 2026-11-30 04:00:12 UTC: pid='<unknown>', GPU has fallen off the bus.",
        "Xid 45 on PCI 0000:99:00 at 2026-11-30 04:00:13 UTC: pid=4242, Ch 00000010",
        "1 more of 3 Xids since the start are in the evidence",
        "kernel at 2026-11-30 04:00:20 UTC: Out of memory: Killed process 4242 (python3) total-vm:9120kB, anon-rss:5kB",
        "8 ranks: 7 wait in futex_wait_queue (0 % CPU), TP3 spins at 100 %",
        "Python: 3 in wait (torch/distributed/distributed_c10d.py:2501), "
        "TP3 in all_reduce (torch/distributed/distributed_c10d.py:2501)",
        "GPU 0-7: 91,022 MiB each, 100 %",
        "last log line 5m12s ago: Capturing batches: 6%|3/52",
        "not collected: kernel stack (operation not permitted)",
    ]


def test_what_the_kernel_said_before_the_start():
    found = {**HUNG, "started": "2026-11-30T04:00:15+00:00"}
    told = symptoms.summary(found)
    assert told[1].startswith("3 Xids before this start, the last: Xid 45 on PCI 0000:99:00 at 2026-11-30 04:00:13 UTC")
    assert told[2].startswith("kernel at 2026-11-30 04:00:20 UTC: Out of memory")
    told = symptoms.summary({**found, "started": "2026-11-30T06:00:30+02:00"})
    assert told[2].startswith("8 ranks")


def test_times_of_dmesg_and_of_other_zones():
    lines = ["2026-11-30T02:00:12,517+02:00 NVRM: Xid (PCI:0000:31:00): 79, GPU lost", "NVRM: Xid (PCI:0000:31:00): 8"]
    assert symptoms.summary({"kernel": {"lines": lines}}) == [
        "Xid 79 on PCI 0000:31:00 at 2026-11-30 00:00:12 UTC: GPU lost", "Xid 8 on PCI 0000:31:00:",
    ]  # fmt: skip


def test_why_something_is_missing_is_said_once():
    errors = {"unit": "no bus\nreally", "log": "gone", "environment": "no bus"}
    assert symptoms.summary({"errors": errors}) == ["not collected: unit, environment (no bus); log (gone)"]


@pytest.mark.parametrize(
    ("ages", "line"),
    [
        ((902, 900, 903.4, 900), "nothing moved: log 15m02s, io 15m00s, CPU 15m03s, GPU memory 15m00s"),
        ((902, 900, 0.4, 900), "moved last: log 15m02s ago, io 15m00s ago, CPU moves, GPU memory 15m00s ago"),
    ],
)
def test_for_how_long_nothing_moved_is_one_line(ages, line):
    names = ("log", "io", "cpu", "gpu_memory")
    signals = {name: {"age_s": age, "what": ""} for name, age in zip(names, ages)}
    assert symptoms.summary({**HUNG, "signals": signals})[1] == line
    assert symptoms.summary({"signals": {}}) == []
    exited = {"MainPID": "0", "ExecMainCode": "1", "ExecMainStatus": "1", "ActiveState": "failed"}
    assert symptoms.summary({"unit": exited, "signals": signals}) == ["main process exited with status 1"]


def test_what_exited_says_how():
    unit = {"MainPID": "0", "ExecMainCode": "1", "ExecMainStatus": "1", "ActiveState": "failed"}
    assert symptoms.summary({"unit": unit}) == ["main process exited with status 1"]
    unit |= {"ExecMainCode": "2", "ExecMainStatus": "9"}
    told = symptoms.summary({"unit": unit, "log": {"tail": [], "error": "RuntimeError: NCCL error"}})
    assert told == [
        "main process was killed by SIGKILL", "the engine's last error: RuntimeError: NCCL error", "the log is empty",
    ]  # fmt: skip
    assert symptoms.summary({"unit": {"ActiveState": "inactive", "Result": "success"}}) == [
        "no main process, unit is inactive (success)"
    ]


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (["S", "S"], "2 ranks: all wait in futex_wait_queue (0 % CPU)"),
        (
            ["S", "D"],
            "2 ranks: TP0 waits in futex_wait_queue (0 % CPU), TP1 is stuck in the kernel, in futex_wait_queue",
        ),
        (["Z", "Z", "T"], "3 ranks: TP0 and TP1 are a zombie with 9 threads, TP2 is stopped by a signal or a debugger"),
        (["R"], "1 rank: TP0 runs at 0 %"),
    ],
)
def test_what_ranks_do(states, told):
    ranks = [rank(number, state) for number, state in enumerate(states)]
    assert symptoms.summary({"processes": processes(*ranks)}) == [told]


def test_an_engine_without_named_ranks_shows_what_it_has():
    core = {"pid": 7, "state": "R", "cpu_percent": 99.0, "title": "VLLM::EngineCore"}
    assert symptoms.summary({"processes": processes(core)}) == ["1 process: EngineCore spins at 100 %"]


def test_what_is_beside_the_ranks():
    left = {"pid": 9, "state": "S", "title": "sglang::scheduler_TP5", "left_behind": True}
    found = {"processes": processes(rank(0), {"pid": 8, "state": "D", "wchan": "nv_ioctl", "title": "x"}, left)}
    assert symptoms.summary(found)[1:] == [
        "beside the ranks: pid 8 is stuck in the kernel, in nv_ioctl",
        "left behind by an engine: pid 9; playbooks/cleanup.yml ends what still holds GPUs",
    ]


def test_gpus_that_differ_and_a_driver_that_hangs():
    gpus = [gpu(0), gpu(1), gpu(2, memory_used_mib=512, utilization=0), gpu(3, error="lost", memory_used_mib=None)]
    assert symptoms.summary({"gpus": {"gpus": gpus}}) == [
        "GPU 0-1: 91,022 MiB each, 100 %; GPU 2: 512 MiB, 0 %; GPU 3: lost"
    ]
    told = symptoms.summary({"gpus": {"gpus": [gpu(0), gpu(-1, error="lost", memory_used_mib=None)]}})
    assert told == ["GPU 0: 91,022 MiB, 100 %; 1 GPU that the driver counts no more"]
    assert symptoms.summary({"gpus": {"failure": "hung"}}) == ["GPUs: the NVIDIA driver does not answer"]
    assert symptoms.summary({"gpus": {"failure": "absent"}}) == []


def test_a_full_folder_is_told():
    space = {"/dev/shm": {"free_mib": 1, "total_mib": 64}, "/var/log/ironserve": {"free_mib": 9000, "total_mib": 10000}}
    assert symptoms.summary({"space": space}) == ["/dev/shm is nearly full: 1 of 64 MiB free"]


def test_the_kernels_lines_are_those_about_gpus_and_memory_and_bounded():
    assert len(symptoms.kernel_lines(KERNEL)) == 5
    assert len(symptoms.kernel_lines(KERNEL * 100)) == symptoms.KERNEL_LINES


def test_nccls_lines_keep_their_order_and_warnings_are_never_crowded_out():
    assert symptoms.nccl_lines(LOG) == [LOG[0], *LOG[2:]]
    found = symptoms.nccl_lines([LOG[4], *[LOG[3]] * 5000])
    assert (found[0], len(found)) == (LOG[4], 1 + symptoms.NCCL_LINES)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("sglang::scheduler_TP3", "TP3"),
        ("sglang::scheduler_DP1_TP12", "DP1_TP12"),
        ("VLLM::Worker_TP0", "TP0"),
        ("VLLM::EngineCore", ""),
        ("sglang::detokenizer", ""),
        ("/opt/x_TP1/bin/python", ""),
    ],
)
def test_names_of_ranks(title, name):
    assert symptoms.rank_name(title) == name


def test_texts_of_proc():
    stat = "77 (tmux: server (x)) S 12 34 56 0 -1 4194304 0 0 0 0 150 50 0 0 20 0 7 0 98765 0 0"
    assert symptoms.cpu_ticks(stat) == 200
    assert symptoms.io_bytes("rchar: 100\nwchar: 20\nsyscr: 5\nread_bytes: 4096\n") == 120
    assert symptoms.in_unit("0::/system.slice/ironserve-main.service\n", "ironserve-main.service")
    assert symptoms.in_unit(
        "9:cpu:/\n1:name=systemd:/system.slice/ironserve-main.service/x\n", "ironserve-main.service"
    )
    assert not symptoms.in_unit("0::/system.slice/ironserve-main.service.d\n", "ironserve-main.service")


def test_the_main_threads_innermost_frame():
    assert symptoms.innermost(DUMP) == "all_reduce (torch/distributed/distributed_c10d.py:2501)"
    assert symptoms.innermost("Process 1: x\n") == ""


SECRET = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=12).map("¤{}¤".format)
NAME = st.sampled_from(["HF_TOKEN", "VLLM_API_KEY", "NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "https_proxy", "PATH"])
TEXT = st.text(max_size=300)


def anywhere(secret):
    """Evidence of the real form with texts of all kinds in it, among which is the secret."""
    text = TEXT | st.tuples(TEXT, st.just(secret), TEXT).map("".join)
    process = st.builds(
        lambda pid, state, percent, wchan, title, left: {
            "pid": pid, "state": state, "cpu_percent": percent, "wchan": wchan, "title": title, "left_behind": left,
        },
        st.integers(1, 99), st.sampled_from("SRDZTt"), st.floats(0, 800), text,
        text | st.integers(0, 15).map("sglang::scheduler_TP{}".format), st.booleans(),
    )  # fmt: skip
    lines = st.lists(text | st.sampled_from([*LOG, *KERNEL.splitlines()]), max_size=30)
    return st.fixed_dictionaries(
        {},
        optional={
            "unit": st.fixed_dictionaries({"MainPID": st.sampled_from(["0", "7"]), "ActiveState": text}),
            "phase": text,
            "progress": text,
            "error": text,
            "processes": st.lists(process, max_size=12).map(lambda several: processes(*several)),
            "environment": st.dictionaries(NAME, text),
            "kernel": st.fixed_dictionaries({"lines": lines}),
            "log": st.fixed_dictionaries({"tail": lines, "silent_s": st.floats(0, 9e5), "nccl": lines, "error": text}),
            "gpus": st.fixed_dictionaries({"gpus": st.lists(st.integers(0, 15).map(gpu)), "failure": text}),
            "python": st.dictionaries(st.integers(1, 99).map(str), text | st.just(DUMP)),
            "errors": st.dictionaries(text, text),
            "started": st.sampled_from(["", "2026-11-30T04:00:15+00:00"]),
        },
    )


@given(st.data(), SECRET)
def test_never_more_than_ten_lines_and_never_a_secret(data, secret):
    found = evidence.without_secrets(data.draw(anywhere(secret)), [secret])
    assert secret not in str(found)
    told = symptoms.summary(found)
    assert len(told) <= symptoms.LINES
    assert all(len(line) <= symptoms.WIDTH and "\n" not in line for line in told)
    assert secret not in "\n".join(told)


def test_a_variable_whose_name_looks_secret_gives_its_value_away_nowhere():
    environment = {
        "MY_API_KEY": "not-told-to-us", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "GPU-1", "A_KEY": "1",
        "https_proxy": "http://me:word@proxy:3128", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    found = evidence.without_secrets({"environment": environment, "log": {"tail": ["key=not-told-to-us"]}}, [])
    assert found["environment"] == {
        "MY_API_KEY": "********", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "GPU-1", "A_KEY": "********",
        "https_proxy": "http://me:***@proxy:3128", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    assert found["log"]["tail"] == ["key=********"]
