"""The stand-ins for GPUs, seen through the real nvidia-ml-py and through processes that hold them, on this machine."""

from __future__ import annotations

import contextlib
import csv
import ctypes
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import gpu_hosts

HERE = Path(__file__).resolve().parent
REAL = HERE.parent / "fixtures" / "gpu" / "nvidia-smi-h200x2-busy.xml"
#: Far more than anything here takes: a test that waits this long has failed.
PATIENCE_S = 20

# Evaluates an expression with `n` for pynvml and `h` for the handles of all GPUs; a code of NVML's is an answer too.
CLIENT = """
import json, sys
import pynvml as n
mib = lambda size: None if size is None else size // 2**20
def v1(i): m = n.nvmlDeviceGetMemoryInfo(h[i]); return [mib(m.total), mib(m.used), mib(m.free)]
def v2(i):
    m = n.nvmlDeviceGetMemoryInfo(h[i], version=n.nvmlMemory_v2)
    return [mib(m.total), mib(m.reserved), mib(m.used), mib(m.free)]
def listed(i, kind="Compute"):
    return sorted([p.pid, mib(p.usedGpuMemory)] for p in getattr(n, f"nvmlDeviceGet{kind}RunningProcesses_v3")(h[i]))
try:
    n.nvmlInit()
    h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
    print("asking", flush=True)
    print(json.dumps(eval(sys.argv[1])))
except n.NVMLError as problem:
    print(json.dumps({"code": problem.value}))
"""


class Machine:
    """Two GPUs in a folder, and all that was started to see or hold them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, **gpu_hosts.lay_out(folder)}
        self.started: list[subprocess.Popen[str]] = []
        self.pidfds: list[int] = []

    def faults(self, *lines: str) -> None:
        draft = self.folder / ".faults"
        draft.write_text("".join(f"{line}\n" for line in lines))
        draft.replace(self.folder / "faults.conf")

    def ask(self, expression: str):
        """What an expression of the client comes to, or {"code": N}."""
        return json.loads(self.asking(expression).communicate(timeout=PATIENCE_S)[0].splitlines()[-1])

    def asking(self, expression: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CLIENT, expression]
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def smi(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(HERE / "nvidia_smi.py"), *words]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def hold(self, *arguments: object) -> tuple[subprocess.Popen[str], dict[str, int]]:
        process, pids = gpu_hosts.start(self.environment, *arguments)
        self.started.append(process)
        return process, self.own(pids)

    def own(self, pids: dict[str, int]) -> dict[str, int]:
        """Have these processes ended with the test, orphans too."""
        self.pidfds += map(os.pidfd_open, pids.values())
        return pids

    def end(self) -> None:
        for process in self.started:  # leaders first: they start ranks again
            process.kill()
        for pidfd in self.pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        for process in self.started:
            process.wait(PATIENCE_S)
            process.stdout.close()


@pytest.fixture
def gpus(tmp_path):
    machine = Machine(tmp_path / "gpu")
    yield machine
    machine.end()


def wait_until(condition):
    """The first true value of a condition."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.005)
    raise AssertionError("waited in vain")


def has_ended(pid: int) -> None:
    """Wait for a process of this one to be a zombie, and leave it so."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def state(pid: int) -> tuple[str, int]:
    """State letter and number of threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[17])


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


# ---- the library ----


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("n.nvmlSystemGetDriverVersion()", "595.58.03"),
        ("n.nvmlSystemGetNVMLVersion()", "13.595.58.03"),
        ("[n.nvmlSystemGetCudaDriverVersion(), n.nvmlSystemGetCudaDriverVersion_v2()]", [13020, 13020]),
        ("n.nvmlDeviceGetCount()", 2),
        ("n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h[1])))", 1),
        ("n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(b'0000:11:00.0'))", 1),
        ("n.nvmlDeviceGetName(h[0])", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("n.nvmlDeviceGetUUID(h[1])", gpu_hosts.uuid(1)),
        ("[n.nvmlDeviceGetIndex(g) for g in h]", [0, 1]),
        ("[n.nvmlDeviceGetMinorNumber(g) for g in h]", [0, 1]),
        ("v1(0)", [97887, 636, 97251]),
        ("v2(0)", [97887, 636, 0, 97251]),
        ("[listed(0, kind) for kind in ('Compute', 'Graphics', 'MPSCompute')]", [[], [], []]),
        ("n.nvmlDeviceGetPciInfo(h[1]).busId", "00000000:11:00.0"),
        ("n.nvmlDeviceGetPciInfo(h[1]).busIdLegacy", "0000:11:00.0"),
        ("n.nvmlDeviceGetPciInfo(h[1]).bus", 17),
        ("n.nvmlDeviceGetCudaComputeCapability(h[0])", [12, 0]),
        ("[[n.nvmlDeviceGetTopologyCommonAncestor(a, b) for b in h] for a in h]", [[0, 50], [50, 0]]),
        ("n.nvmlDeviceGetPersistenceMode(h[0])", 1),
        ("n.nvmlDeviceGetMigMode(h[0])", [0, 0]),
        ("[n.nvmlDeviceGetUtilizationRates(h[0]).gpu, n.nvmlDeviceGetUtilizationRates(h[0]).memory]", [0, 0]),
        ("[n.nvmlDeviceGetMaxPcieLinkGeneration(h[0]), n.nvmlDeviceGetMaxPcieLinkWidth(h[0])]", [5, 16]),
        ("[n.nvmlDeviceGetCurrPcieLinkGeneration(h[0]), n.nvmlDeviceGetCurrPcieLinkWidth(h[0])]", [5, 16]),
        ("n.nvmlDeviceGetPowerUsage(h[0])", 85000),
        ("[[f.nvmlReturn, f.value.uiVal] for f in n.nvmlDeviceGetFieldValues(h[0], [230, 82])]", [[0, 0], [3, 0]]),
        ("n.nvmlDeviceGetHandleByIndex(2)", {"code": 2}),
        ("n.nvmlDeviceGetHandleByUUID('GPU-0')", {"code": 6}),
        ("n.nvmlDeviceGetHandleByPciBusId(b'0000:99:00.0')", {"code": 6}),
        ("n.nvmlDeviceGetMemoryInfo(h[0], version=1)", {"code": 25}),
        ("n.nvmlShutdown() or n.nvmlDeviceGetCount()", {"code": 1}),
        ("[n.nvmlErrorString(code) for code in (0, 15, 12345)]", ["Success", "GPU is lost", "Unknown Error"]),
        ("n.nvmlDeviceGetClockInfo(h[0], n.NVML_CLOCK_SM)", 180),
        ("n.nvmlDeviceGetTemperature(h[0], n.NVML_TEMPERATURE_GPU)", 31),
        ("n.nvmlDeviceGetCurrentClocksEventReasons(h[0])", 1),
        ("n.nvmlDeviceGetFanSpeed(h[0])", {"code": 13}),
    ],
)
def test_nvidia_ml_py_gets_from_the_library_what_the_files_say(gpus, expression, answer):
    assert gpus.ask(expression) == answer


def test_a_claim_is_listed_and_counted_while_its_process_lives(gpus):
    process, _ = gpus.hold("0,1", 60000)
    assert gpus.ask("[v1(0), v2(0), listed(0)]") == [
        [97887, 60636, 37251], [97887, 636, 60000, 37251], [[process.pid, 60000]],
    ]  # fmt: skip
    gpus.faults("0 free_delay_s 3600", "1 free_delay_s 0")
    process.kill()
    has_ended(process.pid)
    assert state(process.pid)[0] == "Z"
    assert gpus.ask("[listed(0), v2(0)[2], listed(1), v2(1)[2]]") == [[], 60000, [], 0]


def test_memory_becomes_free_some_time_after_the_first_look_at_the_dead(gpus):
    process, _ = gpus.hold(0, 60000)
    process.kill()
    has_ended(process.pid)
    looked = time.monotonic()
    # One client that looks again and again: the first look starts the clock for all.
    assert gpus.ask("next(i for i in range(10**9) if v2(0)[2] == 0) > 0")
    assert time.monotonic() - looked >= 0.13
    assert gpus.ask("v2(0)[2]") == 0


def test_memory_that_is_never_freed_has_no_owner_when_its_process_is_gone(gpus):
    gpus.faults("0 free_delay_s 0")
    (gpus.folder / "claims" / f"{os.getpid()}.1.0.C").write_text("500 never_freed\n")
    assert gpus.ask("[listed(0), v2(0)[2]]") == [[], 500]


def test_a_claim_of_another_process_with_the_same_pid_does_not_count(gpus):
    gpus.faults("0 free_delay_s 0")
    (gpus.folder / "claims" / f"{os.getpid()}.1.0.C").write_text("500\n")
    assert gpus.ask("[listed(0), v2(0)[2]]") == [[], 0]


def test_each_type_of_process_is_in_its_own_list(gpus):
    pids = {kind: gpus.hold(0, 10, "--type", kind)[0].pid for kind in "CGM"}
    assert gpus.ask("[listed(0, kind) for kind in ('Compute', 'Graphics', 'MPSCompute')]") == [
        [[pids[kind], 10]] for kind in "CGM"
    ]
    assert gpus.ask("v2(0)[2]") == 30


@pytest.mark.parametrize(
    ("fault", "expression", "answer"),
    [
        ("mismatch", "0", {"code": 18}),
        ("not_loaded", "0", {"code": 9}),
        ("0 lost", "0", {"code": 15}),
        ("0 absent", "[n.nvmlDeviceGetCount(), n.nvmlDeviceGetUUID(h[0])]", [1, gpu_hosts.uuid(1)]),
        ("0 absent", "[n.nvmlDeviceGetIndex(h[0]), n.nvmlDeviceGetMinorNumber(h[0])]", [0, 1]),
        ("0 absent", f"n.nvmlDeviceGetHandleByUUID('{gpu_hosts.uuid(0)}')", {"code": 6}),
        ("0 reset_required", "v2(0)", {"code": 16}),
        ("0 reset_required", "v1(0)", {"code": 16}),
        ("0 recovery 2", "n.nvmlDeviceGetFieldValues(h[0], [230])[0].value.uiVal", 2),
        ("0 memory_not_supported", "v1(0)", {"code": 3}),
        ("0 memory_not_supported", "v2(0)", {"code": 3}),
        ("0 stuck 700", "[v1(0)[1], v2(0)[2], v2(0)[3], listed(0), v2(1)[2]]", [1336, 700, 96551, [], 0]),
        ("0 utilization 100", "[n.nvmlDeviceGetUtilizationRates(g).gpu for g in h]", [100, 0]),
        ("0 throttled 36", "[n.nvmlDeviceGetCurrentClocksEventReasons(g) for g in h]", [36, 1]),
        ("0 throttled 36", "[n.nvmlDeviceGetCurrentClocksThrottleReasons(g) for g in h]", [36, 1]),
        ("0 clock_mhz 1980", "[n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_SM) for g in h]", [1980, 180]),
        ("0 temperature 84", "[n.nvmlDeviceGetTemperature(g, n.NVML_TEMPERATURE_GPU) for g in h]", [84, 31]),
        ("0 mig", "[n.nvmlDeviceGetMigMode(g) for g in h]", [[1, 1], [0, 0]]),
        ("0 no_process_v3", "listed(0)", {"code": 13}),
        ("0 ghost 4194000 900", "[listed(0), v2(0)[2]]", [[[4194000, 900]], 900]),
        ("0 pcie 5 16 1 8", "[n.nvmlDeviceGetCurrPcieLinkGeneration(g) for g in h]", [1, 5]),
        ("0 ecc 1 3", "[n.nvmlDeviceGetTotalEccErrors(g, 1, 0) for g in h]", [3, 0]),
        ("0 ecc 0 0", "[n.nvmlDeviceGetEccMode(g)[0] for g in h]", [0, 1]),
        ("0 remapped_rows 1 1", "[n.nvmlDeviceGetRemappedRows(g) for g in h]", [[0, 0, 1, 1], [0, 0, 0, 0]]),
        ("0 retired_pages_pending 1", "n.nvmlDeviceGetRetiredPagesPendingStatus(h[0])", 1),
        ("0 retired_pages_pending 1", "n.nvmlDeviceGetRetiredPagesPendingStatus(h[1])", {"code": 3}),
        ("0 bar1_mib 256", "[n.nvmlDeviceGetBAR1MemoryInfo(g).bar1Total >> 20 for g in h]", [256, 131072]),
        ("driver 580.159.04", "n.nvmlSystemGetDriverVersion()", "580.159.04"),
    ],
)
def test_fault(gpus, fault, expression, answer):
    gpus.faults(fault)
    assert gpus.ask(expression) == answer


def test_fault_process_memory_none(gpus):
    process, _ = gpus.hold(0, 100)
    gpus.faults("0 process_memory_none")
    assert gpus.ask("[listed(0), v2(0)[2]]") == [[[process.pid, None]], 100]


def test_a_gpu_can_be_lost_while_a_client_has_its_handle(gpus):
    lose = f"open({str(gpus.folder / 'faults.conf')!r}, 'w').write('0 lost')"
    assert gpus.ask(f"[v2(0), {lose}, v2(1), v2(0)]") == {"code": 15}


@pytest.mark.parametrize("expression", ["v1(0)", "v2(0)", "listed(0)", "listed(0, 'Graphics')"])
def test_a_gpu_that_hangs_blocks_who_asks_it_and_no_others(gpus, expression):
    gpus.faults("0 hang")
    stuck = gpus.asking(expression)
    assert stuck.stdout.readline() == "asking\n"
    assert gpus.ask("[v2(1)[0], n.nvmlDeviceGetUUID(h[0])]") == [97887, gpu_hosts.uuid(0)]
    assert stuck.poll() is None


def test_a_driver_that_hangs_blocks_nvml_init(gpus):
    gpus.faults("init_hang")
    stuck, other = gpus.asking("0"), gpus.asking("0")
    gpus.faults()
    wait_until(lambda: gpus.ask("1") == 1)
    for client in (stuck, other):
        client.poll()  # either came before the fault was there to see, or hangs; never an error
        assert client.returncode in {None, 0}


def test_symbols_that_only_other_clients_call(gpus):
    library = ctypes.CDLL(str(gpu_hosts.build() / gpu_hosts.SONAME))
    assert [library.nvmlShutdown(), library.nvmlInit_v2(), library.nvmlShutdown()] == [1, 0, 0]


def test_nothing_is_needed_that_an_older_c_library_lacks():
    needed = subprocess.run(
        ["nm", "-D", str(gpu_hosts.build() / gpu_hosts.SONAME)], capture_output=True, text=True, check=True
    ).stdout
    versions = [tuple(map(int, found.split("."))) for found in re.findall(r" U \w+@GLIBC_([\d.]+)", needed)]
    assert versions
    assert max(versions) <= (2, 17)


# ---- who holds GPUs ----


def test_a_holder_has_device_files_open_and_mapped_and_its_title_is_its_command_line(gpus):
    process, pids = gpus.hold("0,1", 10, "--title", "VLLM::EngineCore")
    assert pids == {"VLLM::EngineCore": process.pid}
    assert cmdline(process.pid).rstrip(b"\0") == b"VLLM::EngineCore"
    assert Path(f"/proc/{process.pid}/comm").read_text() == "VLLM::EngineCor\n"
    files = {file.resolve().name for file in Path(f"/proc/{process.pid}/fd").iterdir()}
    assert {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"} <= files
    assert f"{gpus.folder}/dev/nvidia1\n" in Path(f"/proc/{process.pid}/maps").read_text()


def test_who_ignores_sigterm_lives_on(gpus):
    process, _ = gpus.hold(0, 10, "--ignore-term")
    process.terminate()
    assert int(re.search(r"SigIgn:\s+(\w+)", Path(f"/proc/{process.pid}/status").read_text())[1], 16) >> 14 & 1
    assert gpus.ask("listed(0)") == [[process.pid, 10]]


TREE = ["0,1", "10", "--tree", "--title", "sglang::scheduler", "--leader", "sglang", "--helper", "sglang::detokenizer"]
TITLES = ["sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer", "sglang"]


def test_a_tree_has_a_rank_for_each_gpu(gpus):
    leader, pids = gpus.hold(*TREE)
    assert list(pids) == TITLES
    assert [cmdline(pid).rstrip(b"\0").decode() for pid in pids.values()] == TITLES
    assert gpus.ask("[listed(0), listed(1)]") == [[[pids[TITLES[rank]], 10]] for rank in (0, 1)]
    leader.terminate()
    assert leader.wait(PATIENCE_S) == 0
    assert [Path(f"/proc/{pid}").exists() for pid in pids.values()] == [False] * 4


def test_ranks_outlive_a_leader_that_is_killed(gpus):
    leader, pids = gpus.hold(*TREE)
    leader.kill()
    leader.wait(PATIENCE_S)
    assert gpus.ask("[listed(0), listed(1)]") == [[[pids[TITLES[rank]], 10]] for rank in (0, 1)]


def test_a_leader_starts_ranks_again_as_often_as_it_was_told(gpus):
    leader, pids = gpus.hold(*TREE, "--respawn", 1)
    os.kill(pids[TITLES[1]], signal.SIGKILL)
    again = gpus.own(gpu_hosts.processes(leader.stdout.readline()))
    assert gpus.ask("listed(1)") == [[again[TITLES[1]], 10]]
    os.kill(again[TITLES[1]], signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{again[TITLES[1]]}").exists())
    assert gpus.ask("[len(listed(0)), len(listed(1))]") == [1, 0]


def test_a_zombie_with_a_live_thread_holds_its_gpu(gpus):
    process, _ = gpus.hold(0, 10, "--leave-thread")
    wait_until(lambda: state(process.pid) == ("Z", 2))
    assert list(Path(f"/proc/{process.pid}/fd").iterdir()) == []
    assert cmdline(process.pid) == b""
    assert gpus.ask("listed(0)") == [[process.pid, 10]]
    process.kill()
    process.wait(PATIENCE_S)
    assert gpus.ask("listed(0)") == []


# ---- nvidia-smi ----


def shape(text: str | None) -> str:
    """A text without its numbers."""
    return re.sub(r"[0-9a-fA-F]+", "N", (text or "").strip())


def test_xml_has_the_elements_order_and_units_of_the_real_one(gpus):
    gpus.faults("0 utilization 3", "1 utilization 3")
    for gpu in (0, 1):
        gpus.hold(gpu, 1542)
    ours, real = ET.fromstring(gpus.smi("-q", "-x").stdout), ET.parse(REAL).getroot()
    free_text = {"timestamp", "product_name", "process_name"}

    def compare(one: ET.Element, model: ET.Element) -> None:
        tags = [child.tag for child in one]
        assert tags == [child.tag for child in model if child.tag in tags]
        assert shape(one.get("id")) == shape(model.get("id"))
        if one.tag not in free_text:
            assert shape(one.text) == shape(model.text), one.tag
        for child, its_model in zip(one, [child for child in model if child.tag in tags]):
            compare(child, its_model)

    compare(ours, real)
    assert len(ours.findall("gpu/processes/process_info")) == 2


def test_xml_says_what_pynvml_says(gpus):
    process, _ = gpus.hold(1, 5000, "--title", "VLLM::Worker_TP0")
    log = ET.fromstring(gpus.smi("-q", "-x").stdout)
    assert log.findtext("attached_gpus") == "2"
    assert (log.findtext("driver_version"), log.findtext("cuda_version")) == ("595.58.03", "13.2")
    _, second = log.findall("gpu")
    memory = [
        int(second.findtext(f"fb_memory_usage/{part}").split()[0]) for part in ("total", "reserved", "used", "free")
    ]
    assert memory == gpus.ask("v2(1)")
    assert second.findtext("uuid") == gpu_hosts.uuid(1)
    (info,) = second.findall("processes/process_info")
    assert [info.findtext(tag) for tag in ("pid", "type", "process_name", "used_memory")] == [
        str(process.pid), "C", "VLLM::Worker_TP0", "5000 MiB",
    ]  # fmt: skip


def test_xml_of_what_is_not_there(gpus):
    gpus.faults("0 memory_not_supported", "1 process_memory_none", "1 ghost 4194000 900", "1 recovery 1")
    first, second = ET.fromstring(gpus.smi("-q", "-x").stdout).findall("gpu")
    assert first.findtext("fb_memory_usage/used") == "N/A"
    assert first.find("processes").text.isspace()
    assert second.findtext("gpu_recovery_action") == "Reset"
    info = second.find("processes/process_info")
    assert (info.findtext("process_name"), info.findtext("used_memory")) == ("[Not Found]", "N/A")


def test_list_csv_and_topology(gpus):
    process, _ = gpus.hold(1, 5000)
    name = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert gpus.smi("-L").stdout.splitlines() == [f"GPU {gpu}: {name} (UUID: {gpu_hosts.uuid(gpu)})" for gpu in (0, 1)]
    header, row = gpus.smi("--query-compute-apps=gpu_uuid,pid,used_memory,name", "--format=csv").stdout.splitlines()
    assert header == "gpu_uuid, pid, used_gpu_memory [MiB], process_name"
    assert row == f"{gpu_hosts.uuid(1)}, {process.pid}, 5000 MiB, {gpu_hosts.build()}/hold_gpu"
    query = "--query-gpu=index,uuid,memory.used,utilization.gpu"
    table = list(csv.reader(io.StringIO(gpus.smi(query, "--format=csv").stdout), skipinitialspace=True))
    assert table[0] == ["index", "uuid", "memory.used [MiB]", "utilization.gpu [%]"]
    assert table[2] == ["1", gpu_hosts.uuid(1), "5000 MiB", "0 %"]
    assert gpus.smi(query, "--format=csv,noheader,nounits", "-i", gpu_hosts.uuid(1)).stdout == (
        f"1, {gpu_hosts.uuid(1)}, 5000, 0\n"
    )
    gpus.faults("1 memory_not_supported")
    assert gpus.smi("--query-gpu=memory.used", "--format=csv,noheader", "-i", "1").stdout == "[N/A]\n"
    assert gpus.smi("--query-gpu=nonsense", "--format=csv").returncode == 2
    assert gpus.smi("topo", "-m").stdout.splitlines() == [
        "\t\033[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m",
        "GPU0\t X \tSYS\tN/A\tN/A\t\tN/A",
        "GPU1\tSYS\t X \tN/A\tN/A\t\tN/A",
    ]


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        ("mismatch", 18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: "),
        ("not_loaded", 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "),
        ("1 lost", 15, "Unable to determine the device handle for GPU1: GPU is lost"),
    ],
)
def test_nvidia_smi_fails_as_the_real_one(gpus, fault, status, text):
    gpus.faults(fault)
    result = gpus.smi("-q", "-x")
    assert result.returncode == status
    assert result.stdout.startswith(text)
