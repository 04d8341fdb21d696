"""Asking the driver: what NVML's errors become, which source is asked, and the child that nobody waits for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import aside, nvml
from ansible.module_utils.ironserve.gpus import Gpu, GpuProcess, Reading

sys.path.insert(0, str(Path(__file__).parent))
from fake_nvml import FakeNvml, NVMLLibraryMismatchError, process

BUSY = (Path(__file__).parents[2] / "fixtures" / "gpu" / "nvidia-smi-h200x2-busy.xml").read_text()
NOWHERE = Path("/nonexistent")


def read(fake: FakeNvml, proc: Path = NOWHERE) -> Reading:
    return nvml.NvmlReader(fake, proc)(True)


def kernel(proc: Path, count: int) -> Path:
    """A /proc whose driver knows so many GPUs."""
    for number in range(count):
        folder = proc / "driver" / "nvidia" / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"GPU UUID: \t GPU-{number}\nDevice Minor: \t {number}\n")
    return proc


class Smi:
    """A runner of nvidia-smi that answers with the capture of two busy H200, or with what it is given."""

    def __init__(self, answers: dict[str, str] | None = None) -> None:
        self.answers = {"-q": BUSY, "--query-gpu=uuid,index,compute_cap": "", "topo": "", **(answers or {})}
        self.asked: list[str] = []

    def __call__(self, *words: str) -> str:
        self.asked.append(words[0])
        return self.answers[words[0]]


def no_smi(*words: str) -> str:
    raise FileNotFoundError("nvidia-smi")


# One look through NVML


def test_a_full_look():
    fake = FakeNvml(count=2)
    fake.compute[1] = [process(592, 1542)]
    reading = read(fake)
    assert (reading.source, reading.driver_version, reading.cuda_version) == ("nvml", "580.159.04", "13.0")
    assert reading.gpus[1] == Gpu(
        index=1, uuid="GPU-1", name="NVIDIA H200", bus_id="00000000:01:00.0", minor=1, compute_capability="9.0",
        memory_total_mib=143771, memory_used_mib=0, memory_reserved_mib=615, utilization=3,
        processes=(GpuProcess(592, "C", 1542),), persistence_mode=True, pcie_generation=5, pcie_width=16,
        pcie_max_generation=5, pcie_max_width=16, ecc_enabled=True, ecc_uncorrected=0, remap_pending=False,
        remap_failure=False, retired_pages_pending=False, bar1_total_mib=262144,
    )  # fmt: skip


def test_a_fast_look_asks_for_memory_and_processes_only():
    fake = FakeNvml(count=1)
    reader = nvml.NvmlReader(fake, NOWHERE)
    first = reader(True)
    fake.calls.clear()
    fake.used_mib[0] = 62058
    second = reader(False)
    assert second.gpus[0].memory_used_mib == 62058
    assert (second.driver_version, second.gpus[0].name) == (first.driver_version, first.gpus[0].name)
    assert set(fake.calls) == {
        "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "failure"), [(18, "mismatch"), (9, "not_loaded"), (12, "absent"), (999, "NVML error 999")]
)
def test_why_there_is_nothing_to_read(error, failure):
    assert read(FakeNvml(fails={"nvmlInit": error})) == Reading("nvml", failure=failure)


@pytest.mark.parametrize(("error", "word"), [(15, "lost"), (16, "reset_required"), (999, "lost"), (4, "NVML error 4")])
def test_a_gpu_without_a_handle_hides_none_of_the_other_seven(error, word, tmp_path):
    fake = FakeNvml(fails={("nvmlDeviceGetHandleByIndex", 3): error})
    gpus = read(fake, kernel(tmp_path, 8)).gpus
    assert [gpu.error for gpu in gpus] == ["", "", "", word, "", "", "", ""]
    assert (gpus[3].index, gpus[3].uuid, gpus[3].minor, gpus[3].processes) == (3, "GPU-3", 3, None)


def test_a_gpu_that_the_kernel_knows_and_nvml_does_not_count(tmp_path):
    gpus = read(FakeNvml(count=7), kernel(tmp_path, 8)).gpus
    assert [(gpu.uuid, gpu.error) for gpu in gpus[6:]] == [("GPU-6", ""), ("GPU-7", "lost")]


def test_a_gpu_that_is_lost_later_keeps_its_name_and_no_figures():
    fake = FakeNvml(count=2)
    reader = nvml.NvmlReader(fake, NOWHERE)
    reader(True)
    fake.fails = {("nvmlDeviceGetHandleByIndex", 1): 15}
    gpu = reader(False).gpus[1]
    assert (gpu.uuid, gpu.name, gpu.error) == ("GPU-1", "NVIDIA H200", "lost")
    assert (gpu.memory_used_mib, gpu.processes) == (None, None)


def test_case_17_memory_that_is_not_supported_is_no_zero_and_processes_are_told():
    fake = FakeNvml(count=1, fails={"nvmlDeviceGetMemoryInfo": 3})
    fake.compute[0] = [process(7, 5)]
    gpu = read(fake).gpus[0]
    assert (gpu.memory_used_mib, gpu.error, gpu.processes) == (None, "not_supported", (GpuProcess(7, "C", 5),))


def test_case_17_mig_is_told():
    fake = FakeNvml(count=1)
    assert not read(fake).gpus[0].mig_mode
    fake.fails = {"nvmlDeviceGetMigMode": 3}
    assert not read(fake).gpus[0].mig_mode
    fake.fails, fake._answer = {}, lambda name, *rest: [1, 1] if "Mig" in name else FakeNvml._answer(fake, name, *rest)
    assert read(fake).gpus[0].mig_mode


def test_case_17_memory_of_a_process_that_is_not_told_is_no_zero():
    fake = FakeNvml(count=1)
    fake.compute[0] = [process(7, None)]
    assert read(fake).gpus[0].processes == (GpuProcess(7, "C", None),)


def test_a_process_of_two_lists_is_one():
    fake = FakeNvml(count=1)
    fake.compute[0] = [process(7, None), process(8, 10)]
    fake.graphics[0] = [process(7, 5), process(9, 1)]
    assert read(fake).gpus[0].processes == (
        GpuProcess(7, "C+G", 5), GpuProcess(8, "C", 10), GpuProcess(9, "G", 1)
    )  # fmt: skip


def test_recovery_actions():
    fake = FakeNvml(count=1)
    for number, word in ((1, "gpu_reset"), (4, "drain_and_reset"), (7, "system_reboot"), (8, "action 8")):
        fake.recovery.value.uiVal = number
        assert read(fake).gpus[0].recovery_action == word
    fake.recovery.nvmlReturn = 3
    assert read(fake).gpus[0].recovery_action == "none"


# Which source is asked


def test_without_nvidia_ml_py_nvidia_smi_is_asked_and_that_is_said():
    run = Smi({"--query-gpu=uuid,index,compute_cap": "GPU-5b293ee6-012e-5a9c-7cef-6a637982d675, 0, 9.0\n"})
    look = nvml.open_reader(lambda: None, run, NOWHERE)
    reading = look(True)
    assert (reading.source, [gpu.family for gpu in reading.gpus]) == ("nvidia-smi", ["sm90", ""])
    assert "nvidia-ml-py is not there, so nvidia-smi is asked" in reading.problems[0]
    assert [gpu.family for gpu in look(False).gpus] == ["sm90", ""]
    assert run.asked == ["-q", "--query-gpu=uuid,index,compute_cap", "-q"]


def test_nvidia_smi_is_not_asked_where_nvml_tells_enough():
    run = Smi()
    assert nvml.open_reader(FakeNvml, run, NOWHERE)(True).source == "nvml"
    assert nvml.open_reader(lambda: FakeNvml(fails={"nvmlInit": 18}), run, NOWHERE)(True).failure == "mismatch"
    assert run.asked == []


@pytest.mark.parametrize(
    "fails",
    [{"nvmlDeviceGetComputeRunningProcesses": NVMLLibraryMismatchError()}, {"nvmlDeviceGetMemoryInfo": 13},
     {"nvmlDeviceGetMemoryInfo": 25}],
)  # fmt: skip
def test_case_17_a_driver_that_lacks_a_function_is_asked_through_nvidia_smi(fails):
    reading = nvml.open_reader(lambda: FakeNvml(fails=fails), Smi(), NOWHERE)(True)
    assert (reading.source, reading.gpus[0].memory_used_mib) == ("nvidia-smi", 1551)
    assert reading.gpus[0].processes == (GpuProcess(592, "C", 1542),)
    assert reading.problems[0].startswith("NVML lacks nvmlDeviceGet")


def test_case_17_without_nvidia_smi_what_nvml_tells_is_better_than_nothing():
    fails = {"nvmlDeviceGetComputeRunningProcesses": NVMLLibraryMismatchError()}
    reading = nvml.open_reader(lambda: FakeNvml(count=1, fails=fails), no_smi, NOWHERE)(True)
    assert (reading.source, reading.gpus[0].memory_used_mib, reading.gpus[0].processes) == ("nvml", 0, None)
    assert "nvidia-smi is not there; update the NVIDIA driver" in reading.problems[0]


def test_neither_source():
    assert nvml.open_reader(lambda: None, no_smi, NOWHERE)(True) == Reading("", failure="absent")
    broken = nvml.open_reader(lambda: FakeNvml(fails={"nvmlInit": 12}), no_smi, NOWHERE)
    assert broken(True) == Reading("", failure="absent")


def test_topology_comes_with_a_full_look():
    table = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0\nGPU1\tSYS\t X \t0\n"
    look = nvml.open_reader(FakeNvml, Smi({"topo": table}), NOWHERE, topology=True)
    assert look(True).topology == (("X", "SYS"), ("SYS", "X"))
    assert look(False).topology == ()
    without = nvml.open_reader(FakeNvml, no_smi, NOWHERE, topology=True)(True)
    assert (without.topology, without.failure) == ((), "")
    assert "topology" in without.problems[0]


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """An engine environment with NVIDIA's bindings, and a Python without."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    folder = tmp_path / "vllm-1" / "lib" / "python3.12" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "pynvml.py").write_text(
        "import sys\nsys.modules[__name__].here = True\nnvmlMemory_v2 = 1\nNVMLLibraryMismatchError = Exception\n"
        "def nvmlDeviceGetFieldValues(): ...\n"
    )
    return tmp_path


def test_bindings_of_an_engine_environment_are_found(engine):
    assert nvml.find_pynvml(engine).here


@pytest.mark.parametrize("text", ["", "raise ImportError", "syntax error"])
def test_bindings_that_are_of_no_use_are_passed_over(engine, text):
    next(engine.rglob("pynvml.py")).write_text(text)
    assert nvml.find_pynvml(engine) is None


# The child


def counting():
    """A reader whose GPU has as many MiB in use as there were looks; index tells whether the look was full."""
    looks = iter(range(1 << 30))
    return lambda full: Reading("nvml", (Gpu(int(full), "GPU-1", memory_used_mib=next(looks)),))


def hanging():
    return lambda full: time.sleep(600)


@pytest.fixture
def patient(monkeypatch):
    """A machine that is busy may take longer to end a child."""
    monkeypatch.setattr(aside, "END_S", 10.0)


def is_there(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_a_watch_tells_again_and_again_and_first_of_everything(patient):
    with nvml.Watch(counting) as watch:
        first = watch.latest(10).gpus[0]
        second = watch.latest(10).gpus[0]
        assert (first.index, first.memory_used_mib) == (1, 0)
        assert second.index == 0
        assert second.memory_used_mib > first.memory_used_mib
        pid = watch.pid
    assert not is_there(pid)
    watch.close()  # once more is no harm


def test_a_watch_is_polled_together_with_others():
    with nvml.Watch(counting) as watch:
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        assert poll.poll(10_000)
        assert watch.latest(0) is not None


def test_the_newest_look_is_told_after_nobody_read_for_a_while(monkeypatch):
    monkeypatch.setattr(nvml, "FRESH_S", -0.001)  # all that was told before the call is old
    with nvml.Watch(counting) as watch:
        select.select([watch], [], [], 10)
        assert watch.latest(0) is None
        assert watch.latest(10).gpus[0].memory_used_mib > 0


def test_case_18_a_driver_that_hangs_is_told_in_time():
    began = time.monotonic()
    assert nvml.look(0.2, reader=lambda topology: hanging()) == Reading("", failure="hung")
    assert time.monotonic() - began < 5


def test_case_18_a_stopped_child_is_ended(patient):
    with nvml.Watch(counting) as watch:
        os.kill(watch.pid, signal.SIGSTOP)
        os.waitpid(watch.pid, os.WUNTRACED)
        while watch.latest(0.2):
            pass
        pid = watch.pid
    assert not is_there(pid)


def test_case_18_a_child_that_sigkill_does_not_end_is_not_waited_for(monkeypatch):
    watch = nvml.Watch(hanging)
    pid, kill, sent = watch.pid, os.kill, []
    monkeypatch.setattr(os, "kill", lambda *signalled: sent.append(signalled))
    began = time.monotonic()
    watch.close()
    assert time.monotonic() - began < 5
    assert sent == [(pid, signal.SIGKILL)]
    kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[0] == pid


def test_a_child_holds_none_of_the_modules_descriptors():
    read_end, write_end = os.pipe()
    with nvml.Watch(counting) as watch:
        assert watch.latest(10)
        fds = {entry.name: str(entry.readlink()) for entry in Path(f"/proc/{watch.pid}/fd").iterdir()}
        assert [fds.pop(name) for name in "012"] == ["/dev/null"] * 3
        assert len(fds) == 1
        assert next(iter(fds.values())).startswith("pipe:")
        os.close(write_end)
        assert os.read(read_end, 1) == b""
    os.close(read_end)


def test_a_child_ends_when_nobody_listens_any_more():
    watch = nvml.Watch(counting)
    assert watch.latest(10)
    os.close(watch.fileno())
    assert os.waitpid(watch.pid, 0) == (watch.pid, 0)


def test_what_goes_wrong_in_the_child_is_told():
    def broken():
        raise ValueError("no such thing")

    with nvml.Watch(broken) as watch:
        assert watch.latest(10) == Reading("", failure="ValueError: no such thing")
        assert watch.latest(10).failure == "the process that asks it ended unexpectedly"


def test_nvidia_smi_ends_with_the_child_that_asks_it(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 600\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with nvml.Watch(lambda: nvml.open_reader(lambda: None, proc=NOWHERE)) as watch:
        deadline = time.monotonic() + 10
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert watch.latest(0) is None
    handle = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    deadline = time.monotonic() + 10
    while handle.exists() and handle.read_text().rsplit(")", 1)[1].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not handle.exists() or " Z " in handle.read_text()


def test_run_smi_returns_what_was_printed_to_either_stream(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\necho "$@"; echo complaint >&2; exit 9\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert nvml.run_smi("-q", "-x") == "-q -x\ncomplaint\n"


def test_the_real_bindings_have_what_is_asked_of_them():
    pynvml = pytest.importorskip("pynvml")
    assert nvml.find_pynvml(NOWHERE) is pynvml
    reading = nvml.NvmlReader(pynvml, NOWHERE)(True)
    assert reading.source == "nvml"
