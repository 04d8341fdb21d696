"""Each behaviour of the stand-in engine, as its user sees it."""

from __future__ import annotations

import contextlib
import http.client
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import gpu_hosts
import pytest
import yaml
from build_standin import build
from standin_server import Running, Start, wait_until

ROOT = Path(__file__).resolve().parents[2]
BOTH = pytest.mark.parametrize("engine", ["vllm", "sglang"])
#: The title of the only rank.
RANK = {"vllm": "VLLM::EngineCore", "sglang": "sglang::scheduler"}
#: In these tests nothing needs to be realistic but what the test is about.
QUICK = {"sigterm_s": 0.02, "death_notice_s": 0.02, "health": {"delay_s": 0}}


# Wheel


def test_wheel_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, second = build(tmp_path / "a"), build(tmp_path / "b")
    assert first.name == "ironserve_standin-1.0.0-py3-none-any.whl"
    assert first.read_bytes() == second.read_bytes()


def test_wheel_provides_what_an_engine_environment_has(tmp_path: Path) -> None:
    with zipfile.ZipFile(build(tmp_path)) as wheel:
        names = set(wheel.namelist())
        record = wheel.read("ironserve_standin-1.0.0.dist-info/RECORD").decode()
    assert {"sglang/launch_server.py", "vllm/__init__.py"} <= names
    assert {line.split(",")[0] for line in record.splitlines()} == names


@pytest.mark.parametrize(("package", "version"), [("vllm", "0.32.0"), ("sglang", "0.5.23")])
def test_packages_say_for_which_release_they_stand(site: Path, package: str, version: str) -> None:
    code = f"import {package}; print({package}.__version__)"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(site)}, capture_output=True, check=True)
    assert done.stdout.decode().strip() == version


# Start


@BOTH
def test_ready_well_under_half_a_second(start: Start, engine: str) -> None:
    # The best of some tries: this measures the stand-in, not what else the machine does.
    assert any(time.monotonic() - start(engine).ready().began < 0.5 for _ in range(5))


def test_vllm_refuses_until_ready(start: Start) -> None:
    server = start("vllm", {"phases": {"server": {"delay_s": 0.3}}})
    seen = []
    wait_until("ready", lambda: seen.append(server.status("/health")) or seen[-1] == 200)
    assert set(seen) == {0, 200}


def test_sglang_refuses_then_says_503_until_the_warm_up_ended(start: Start) -> None:
    server = start("sglang", {**QUICK, "phases": {"graphs": {"delay_s": 0.1}, "warmup": {"delay_s": 0.3}}})
    seen = []
    wait_until("ready", lambda: seen.append(server.status("/health_generate")) or seen[-1] == 200)
    assert list(dict.fromkeys(seen)) == [0, 503, 200]


def test_sglang_lists_models_and_describes_itself_before_the_warm_up(start: Start) -> None:
    server = start("sglang", {"hang_in": "warmup"})
    server.logs("Uvicorn running on")
    paths = ("/v1/models", "/model_info", "/ready", "/health")
    assert [server.status(path) for path in paths] == [200, 200, 503, 503]
    assert "ready to roll" not in server.text


def test_health_of_sglang_takes_a_second(start: Start) -> None:
    server = start("sglang").ready()
    began = time.monotonic()
    assert server.status("/health") == 200
    assert time.monotonic() - began >= 1.0


@BOTH
def test_phase_takes_its_time(start: Start, engine: str) -> None:
    server = start(engine, {"phases": {"weights": {"delay_s": 0.2}, "kv_cache": {"delay_s": 0.2}}}).ready()
    assert time.monotonic() - server.began >= 0.4


@BOTH
def test_weights_bar_shows_shards_and_takes_its_seconds(start: Start, engine: str) -> None:
    server = start(engine, {"weights": {"shards": 7, "seconds": 0.4}})
    server.logs("3/7 [")
    assert "7/7 [" not in server.text
    assert server.text.rpartition("\n")[2].startswith("\rLoading safetensors"), "a bar has no newline before its end"
    server.ready()
    assert "\rLoading safetensors checkpoint shards: 100% Completed | 7/7 [" in server.text
    assert time.monotonic() - server.began >= 0.4


@BOTH
def test_dummy_weights_show_no_bar(start: Start, engine: str) -> None:
    server = start(engine, flags=["--load-format", "dummy"]).ready()
    assert "safetensors" not in server.text


@pytest.mark.parametrize(("engine", "flag"), [("vllm", "--enforce-eager"), ("sglang", "--disable-cuda-graph")])
def test_eager_mode_captures_no_graphs(start: Start, engine: str, flag: str) -> None:
    assert "Captur" not in start(engine, flags=[flag]).ready().text


@BOTH
@pytest.mark.parametrize("how", ["quiet", "spin", "pipe_writes"])
def test_hang_in_graph_capture_stops_in_the_middle_of_the_bar(start: Start, engine: str, how: str) -> None:
    server = start(engine, {"hang_in": "graphs", "hang_how": how})
    worker = server.child("VLLM::EngineCore" if engine == "vllm" else "sglang::scheduler")
    size = wait_until("a log that stands still", lambda: still(server, "\rCapturing"))
    assert server.text.rpartition("\n")[2].startswith("\rCapturing"), "the bar is left open"
    if how == "spin":
        wait_until("CPU time", lambda: cpu_ticks(worker) > 30)
    if how == "pipe_writes":
        assert any(str(entry.readlink()).startswith("pipe:") for entry in Path(f"/proc/{worker}/fd").iterdir())
    assert server.status("/health") == 0
    assert len(server.text) == size
    server.process.send_signal(signal.SIGTERM)
    assert server.ends() == -signal.SIGTERM
    wait_until("the children's end", lambda: not server.family())


@BOTH
def test_pipe_writes_go_on_when_the_pipe_is_full(start: Start, engine: str) -> None:
    server = start(engine, {"hang_in": "graphs", "hang_how": "pipe_writes"})
    worker = server.child(RANK[engine])
    wait_until("a log that stands still", lambda: still(server, "\rCapturing"))
    pipe = next(entry for entry in Path(f"/proc/{worker}/fd").iterdir() if str(entry.readlink()).startswith("pipe:"))
    writing = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:  # until it is full
            os.write(writing, bytes(4096))
    os.close(writing)
    written = io_counter(worker, "wchar")
    wait_until("more that was written", lambda: io_counter(worker, "wchar") >= written + 2)


@pytest.mark.parametrize(("engine", "flags"), [("vllm", ["-tp", "2"]), ("sglang", ["--tp-size", "2"])])
@pytest.mark.parametrize("behaviour", [{"hang_in": "graphs", "hang_how": "spin"}, {"exit_in": "graphs"}])
def test_all_ranks_hang_and_end_together(start: Start, engine: str, flags: list[str], behaviour: dict) -> None:
    server = start(engine, behaviour, flags=flags)
    if "hang_in" in behaviour:  # where a rank exits, the others may be ended before the first has shown its bar
        server.logs("\rCapturing")
        server.child("VLLM::Worker_TP1" if engine == "vllm" else "sglang::scheduler_TP1")
        server.process.send_signal(signal.SIGTERM)
    expected = -signal.SIGTERM if "hang_in" in behaviour else {"vllm": 1, "sglang": -signal.SIGKILL}[engine]
    assert server.ends() == expected
    wait_until("the children's end", lambda: not server.family())


def still(server: Running, text: str) -> int:
    """The size of the log once `text` is in it and it did not grow for a moment."""
    size = len(server.text)
    time.sleep(0.05)
    return size if text in server.text and size == len(server.text) else 0


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize(
    ("engine", "text"), [("vllm", "No available shared memory"), ("sglang", "Waiting for the other")]
)
def test_heartbeat_hang_keeps_writing(start: Start, engine: str, text: str) -> None:
    server = start(engine, {"hang_in": "weights", "hang_how": "heartbeat", "heartbeat_s": 0.02})
    wait_until("five heartbeats", lambda: server.text.count(text) >= 5)
    assert "Model loading took" not in server.text
    assert "Load weight end" not in server.text


@BOTH
def test_exit_in_a_phase_with_status_and_message(start: Start, engine: str) -> None:
    message = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    server = start(engine, {"exit_in": "graphs", "exit_status": 7, "exit_message": message})
    assert server.ends() == 7
    assert f"\n{message}\n" in server.text
    wait_until("the children's end", lambda: not server.family())


@pytest.mark.parametrize(
    ("engine", "status", "text"),
    [
        ("vllm", 1, "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"),
        ("sglang", -9, "Received sigquit from a child process. It usually means the child failed."),
    ],
)
def test_exit_in_a_phase_of_a_child_ends_as_the_engine_ends(start: Start, engine: str, status: int, text: str) -> None:
    server = start(engine, {"exit_in": "weights"})
    assert server.ends() == status
    assert text in server.text


@BOTH
def test_exit_in_a_phase_of_the_main_process(start: Start, engine: str) -> None:
    server = start(engine, {"exit_in": "arguments", "exit_status": 0})
    assert server.ends() == 0


@BOTH
def test_exit_some_time_after_a_phase_began_whatever_it_does(start: Start, engine: str) -> None:
    behaviour = {"hang_in": "weights", "exit_in": "weights", "exit_after_s": 0.4, "exit_message": "out of patience"}
    server = start(engine, {**behaviour, "exit_status": 7})
    server.logs("\rLoading safetensors")
    hung = time.monotonic()
    assert server.ends() == 7
    assert time.monotonic() - hung >= 0.2
    assert server.text.endswith("out of patience\n")
    wait_until("the children's end", lambda: not server.family())


@pytest.mark.parametrize(("engine", "phase"), [("vllm", "server"), ("sglang", "ready")])
def test_exit_some_time_after_ready(start: Start, engine: str, phase: str) -> None:
    server = start(engine, {"exit_in": phase, "exit_after_s": 0.5, "exit_status": 0}).ready()
    assert server.complete().status == 200
    assert server.ends() == 0
    wait_until("the children's end", lambda: not server.family())


@BOTH
@pytest.mark.parametrize("after", [{}, {"exit_after_s": 0.1, "hang_in": "graphs"}])
def test_exit_by_a_signal(start: Start, engine: str, after: dict) -> None:
    server = start(engine, {"exit_in": "graphs", "exit_how": {"signal": "SEGV"}, **after})
    assert server.ends() == -signal.SIGSEGV
    wait_until("the children's end", lambda: not server.family())


# Ranks that die

TWO_RANKS = pytest.mark.parametrize(
    ("engine", "flags", "title"),
    [("vllm", ["-tp", "2"], "VLLM::Worker_TP"), ("sglang", ["--tp-size", "2"], "sglang::scheduler_TP")],
)


@TWO_RANKS
@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_dies_in_a_phase_ends_the_start(
    start: Start, engine: str, flags: list[str], title: str, number: int
) -> None:
    server = start(engine, {"rank": {"number": number, "die_in": "graphs"}}, flags=flags)
    assert server.ends() == {"vllm": 1, "sglang": -signal.SIGKILL}[engine]
    text = {"vllm": "Worker proc died unexpectedly", "sglang": "Received sigquit from a child process."}[engine]
    assert text in server.text
    wait_until("the children's end", lambda: not server.family())


@TWO_RANKS
def test_a_rank_that_dies_in_a_phase_may_hang_the_others(
    start: Start, engine: str, flags: list[str], title: str
) -> None:
    rank = {"number": 1, "die_in": "graphs", "notice": False}
    server = start(engine, {"rank": rank}, flags=flags)
    wait_until("a log that stands still", lambda: still(server, "\rCapturing"))
    wait_until("the rank's end", lambda: f"{title}1" not in server.family())
    assert f"{title}0" in server.family()
    assert server.status("/health") == 0
    assert server.text.rpartition("\n")[2].startswith("\rCapturing"), "the bar is left open"
    server.process.send_signal(signal.SIGTERM)
    assert server.ends() == -signal.SIGTERM
    wait_until("the children's end", lambda: not server.family())


@TWO_RANKS
def test_a_rank_that_dies_after_ready_ends_the_server(start: Start, engine: str, flags: list[str], title: str) -> None:
    server = start(engine, {**QUICK, "rank": {"number": 1, "die_after_s": 0.3}}, flags=flags).ready()
    assert server.complete().status == 200
    assert server.ends() == {"vllm": 0, "sglang": -signal.SIGKILL}[engine]
    wait_until("the children's end", lambda: not server.family())


@TWO_RANKS
def test_a_rank_that_dies_unnoticed_hangs_what_is_asked(
    start: Start, engine: str, flags: list[str], title: str
) -> None:
    rank = {"number": 1, "die_after_s": 0.1, "notice": False}
    env = {"SGLANG_HEALTH_CHECK_TIMEOUT": "0.2"}
    server = start(engine, {**QUICK, "rank": rank}, flags=flags, env=env).ready()
    wait_until("the rank's end", lambda: f"{title}1" not in server.family())
    with pytest.raises(TimeoutError):
        server.ask("/v1/completions", {"prompt": "one"}, timeout_s=0.3)
    assert server.status("/health") == (200 if engine == "vllm" else 503)
    assert f"{title}0" in server.family()
    assert server.process.poll() is None


@BOTH
def test_the_only_rank_dies(start: Start, engine: str) -> None:
    server = start(engine, {"rank": {"number": 0, "die_in": "weights"}})
    assert server.ends() == {"vllm": 1, "sglang": -signal.SIGKILL}[engine]


# Slow loads


def io_counter(pid: int, key: str) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{key}: ")).split()[1])


def has_disk(folder: str) -> bool:
    done = subprocess.run(["findmnt", "-nT", folder, "-o", "FSTYPE"], capture_output=True, text=True, check=False)
    return done.stdout.strip() in ("ext4", "xfs")


@BOTH
def test_silent_load_reads_and_says_nothing(start: Start, engine: str) -> None:
    server = start(engine, {"load": {"how": "silent_io", "seconds": 1, "mib_per_s": 50}})
    rank = server.child(RANK[engine])
    size = wait_until("a log that stands still", lambda: still(server, "\rLoading safetensors"))
    counters = ["rchar", "read_bytes"] if has_disk("/var/tmp") else ["rchar"]
    before = {key: io_counter(rank, key) for key in counters}
    for key in counters:
        wait_until(f"10 MiB more of {key}", lambda key=key: io_counter(rank, key) - before[key] > 10 * 2**20)
    assert len(server.text) == size
    server.ready()
    assert time.monotonic() - server.began >= 1


@BOTH
def test_silent_load_reads_the_file_that_it_is_told(start: Start, engine: str, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(3 * 2**20 // 2))
    server = start(engine, {"load": {"how": "silent_io", "seconds": 1, "mib_per_s": 50, "file": str(file)}})
    rank = server.child(RANK[engine])
    wait_until("the open file", lambda: file in {entry.resolve() for entry in Path(f"/proc/{rank}/fd").iterdir()})
    before = io_counter(rank, "rchar")
    wait_until("its pieces over and over", lambda: io_counter(rank, "rchar") - before > 10 * 2**20)
    server.ready()


@BOTH
def test_silent_load_of_dummy_weights_of_two_ranks(start: Start, engine: str) -> None:
    behaviour = {"load": {"how": "silent_io", "seconds": 0.3, "mib_per_s": 20}}
    flags = ["--load-format", "dummy", "--tensor-parallel-size", "2"]
    server = start(engine, behaviour, flags=flags).ready()
    assert time.monotonic() - server.began >= 0.3


@pytest.mark.parametrize(
    ("engine", "text"), [("vllm", "No available shared memory broadcast block found in 60"), ("sglang", "Waiting for")]
)
def test_case_57_a_load_with_heartbeats_reads_on(start: Start, engine: str, text: str) -> None:
    load = {"how": "heartbeat_io", "seconds": 0.6, "mib_per_s": 50}
    server = start(engine, {"load": load, "heartbeat_s": 0.05})
    rank = server.child(RANK[engine])
    wait_until("three heartbeats", lambda: server.text.count(text) >= 3)
    before = io_counter(rank, "rchar")
    wait_until("more that was read", lambda: io_counter(rank, "rchar") - before > 2 * 2**20)
    assert "Model loading took" not in server.text
    assert "Load weight end" not in server.text
    beats = server.ready().text.count(text)
    assert beats <= (time.monotonic() - server.began) / 0.05


@BOTH
def test_steady_load_moves_its_bar(start: Start, engine: str) -> None:
    server = start(engine, {"load": {"how": "steady", "seconds": 0.6, "interval_s": 0.1}})
    moments = []
    for shard in range(7):
        server.logs(f"| {shard}/6 [")
        moments.append(time.monotonic())
    assert moments[6] - moments[0] >= 0.5
    assert moments[3] - moments[0] >= 0.2, "it moves all the while"
    assert "\rLoading safetensors checkpoint shards: 100% Completed | 6/6 [" in server.ready().text


@pytest.mark.parametrize(
    ("engine", "phase", "line"),
    [
        ("vllm", "compile", "Using cache directory"),
        ("sglang", "prefill_graphs", "\rCapturing num tokens"),
        ("sglang", "graphs", "\rCapturing batches"),
    ],
)
def test_compiling_works_and_says_nothing(start: Start, engine: str, phase: str, line: str) -> None:
    load = {"how": "compile", "seconds": 1.5, **({"phase": phase} if phase == "graphs" else {})}
    server = start(engine, {"load": load})
    rank = server.child(RANK[engine])
    size = wait_until("a log that stands still", lambda: still(server, line))
    ticks, faults = cpu_ticks(rank), page_faults(rank)
    child = server.child("ptxas")
    assert parent(child) == rank
    wait_until("the child's end", lambda: not Path(f"/proc/{child}").exists())
    wait_until("CPU time and new memory", lambda: cpu_ticks(rank) > ticks + 5 and page_faults(rank) > faults + 1000)
    assert len(server.text) == size
    server.ready()
    assert time.monotonic() - server.began >= 1.5


def page_faults(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[7])


# Memory on GPUs


@pytest.fixture
def gpus(tmp_path: Path) -> dict[str, str]:
    """The environment in which a process sees two stand-in GPUs."""
    return gpu_hosts.lay_out(tmp_path / "gpu")


def held(environment: dict[str, str]) -> list[tuple[int, int, int]]:
    """Pid, GPU and MiB of each process that the stand-in driver counts."""
    rows = [row.split(", ") for row in smi(environment, "--query-compute-apps=pid,gpu_uuid,used_memory")]
    return sorted((int(pid), int(uuid[-2:], 16), int(mib)) for pid, uuid, mib in rows)


def used(environment: dict[str, str]) -> list[int]:
    """MiB in use on each GPU, beyond its reserve."""
    rows = smi(environment, "--query-gpu=memory.used")
    return [int(row) for row in rows]


def smi(environment: dict[str, str], query: str) -> list[str]:
    """The rows that the stand-in nvidia-smi answers."""
    command = [sys.executable, str(ROOT / "tests" / "gpu" / "nvidia_smi.py"), query, "--format=csv,noheader,nounits"]
    env = {**os.environ, **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()


@TWO_RANKS
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(None, [0, 1]), ("1,0", [1, 0]), (f"{gpu_hosts.uuid(1)},{gpu_hosts.uuid(0)}", [1, 0])],
)
def test_each_rank_holds_its_gpu(
    start: Start, gpus: dict[str, str], engine: str, flags: list[str], title: str, wanted: str, expected: list[int]
) -> None:
    env = gpus if wanted is None else {**gpus, "CUDA_VISIBLE_DEVICES": wanted}
    server = start(engine, {"gpu_mib": 7000}, flags=flags, env=env).ready()
    family = server.family()
    ranks = [family[f"{title}{rank}"] for rank in range(2)]
    assert held(gpus) == sorted((pid, gpu, 7000) for pid, gpu in zip(ranks, expected))
    for pid, gpu in zip(ranks, expected):
        assert f"/dev/nvidia{gpu}\n" in Path(f"/proc/{pid}/maps").read_text()
    server.process.send_signal(signal.SIGTERM)
    server.ends()
    wait_until("free GPUs", lambda: used(gpus) == [0, 0])


@BOTH
def test_more_ranks_than_gpus_fail(start: Start, gpus: dict[str, str], engine: str) -> None:
    flags = ["--tensor-parallel-size", "2"]
    server = start(engine, {"gpu_mib": 7000}, flags=flags, env={**gpus, "CUDA_VISIBLE_DEVICES": "1"})
    assert server.ends() == {"vllm": 1, "sglang": -signal.SIGKILL}[engine]
    assert "RuntimeError: CUDA error: invalid device ordinal" in server.text


@BOTH
def test_gpu_memory_grows_while_nothing_else_moves(start: Start, gpus: dict[str, str], engine: str) -> None:
    server = start(engine, {"gpu_mib": 10000, "load": {"how": "memory", "seconds": 1.5}}, env=gpus)
    size = wait_until("a log that stands still", lambda: still(server, "\rLoading safetensors"))
    first = wait_until("memory", lambda: used(gpus)[0])
    assert wait_until("more memory", lambda: used(gpus)[0] > first and used(gpus)[0]) < 10000
    assert len(server.text) == size
    server.ready()
    assert used(gpus) == [10000, 0]


@BOTH
def test_without_the_stand_in_driver_nothing_is_held(start: Start, engine: str, tmp_path: Path) -> None:
    server = start(engine, {"gpu_mib": 7000}, env={"STANDIN_GPU": str(tmp_path / "none")}).ready()
    assert server.complete().status == 200


@BOTH
def test_gpu_memory_that_is_never_freed(start: Start, gpus: dict[str, str], engine: str) -> None:
    server = start(engine, {"gpu_mib": 7000, "gpu_memory": "never_freed"}, env=gpus).ready()
    os.killpg(server.process.pid, signal.SIGKILL)  # lint_kill: the group is the server's own
    server.ends()
    wait_until("the children's end", lambda: not server.family())
    (Path(gpus["STANDIN_GPU"]) / "faults.conf").write_text("0 free_delay_s 0\n")
    assert (held(gpus), used(gpus)) == ([], [7000, 0])


# Port


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ("vllm", "OSError: [Errno 98] Address already in use"),
        (
            "sglang",
            "[Errno 98] error while attempting to bind on address ('127.0.0.1', {port}): address already in use",
        ),
    ],
)
def test_port_in_use(start: Start, engine: str, text: str) -> None:
    first = start(engine).ready()
    second = start(engine, port=first.port)
    assert second.ends() == 1
    assert text.format(port=first.port) in second.text
    assert not second.family()


@BOTH
def test_early_port_answers_before_anything_works(start: Start, engine: str) -> None:
    server = start(engine, {"port": "early", "hang_in": "weights"})
    wait_until("the port", lambda: server.status("/health") == 503)
    assert server.status("/v1/models") == 503
    assert server.complete().status == 503


@BOTH
def test_early_list_of_models_with_health_and_generation_later(start: Start, engine: str) -> None:
    server = start(engine, {**QUICK, "models_early": True, "phases": {"weights": {"delay_s": 0.4}}})
    wait_until("the list", lambda: server.status("/v1/models") == 200)
    assert server.status("/health") == 503
    assert server.complete().status == 503
    assert server.ready().complete().status == 200


@BOTH
def test_late_port(start: Start, engine: str) -> None:
    server = start(engine, {**QUICK, "port": {"late_s": 0.3}})
    server.logs("Application startup complete.")
    assert server.status("/health") == 0
    wait_until("the port", lambda: server.status("/health") == 200)


# Answers


def test_vllm_answers(start: Start) -> None:
    server = start("vllm", flags=["--served-model-name", "tiny", "--max-model-len", "1024"]).ready()
    card = server.ask("/v1/models").json["data"][0]
    assert (card["id"], card["owned_by"], card["max_model_len"]) == ("tiny", "vllm", 1024)
    assert set(card) == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}
    assert server.ask("/version").json == {"version": "0.32.0"}
    assert server.ask("/load").json == {"server_load": 0}
    assert server.ask("/health") == server.ask("/ping")
    assert server.ask("/health").text == ""
    assert server.status("/server_info") == 404, "seen in the log of 0.32.0"
    assert server.status("/model_info") == 404, "seen in the log of 0.32.0"

    done = server.complete(model="tiny").json
    base = {"id", "object", "created", "model", "choices", "usage"}
    assert set(done) == base | {"service_tier", "system_fingerprint", "kv_transfer_params"}
    assert done["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 7,
        "completion_tokens": 4,
        "prompt_tokens_details": None,
    }
    assert done["choices"][0]["finish_reason"] == "length"
    own = {"logprobs", "stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids"}
    assert set(done["choices"][0]) == {"index", "text", "finish_reason"} | own

    chat = server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}).json
    assert chat["object"] == "chat.completion"
    assert chat["choices"][0]["message"]["role"] == "assistant"
    assert chat["choices"][0]["finish_reason"] == "stop"
    assert server.complete().json["choices"][0]["text"] == done["choices"][0]["text"], "greedy: the same each time"


def test_sglang_answers(start: Start) -> None:
    server = start("sglang", QUICK, flags=["--served-model-name", "tiny", "--context-length", "1024"]).ready()
    card = server.ask("/v1/models").json["data"][0]
    assert (card["id"], card["owned_by"], card["max_model_len"]) == ("tiny", "sglang", 1024)
    assert set(card) == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len"}
    info = server.ask("/model_info").json
    assert info == server.ask("/get_model_info").json
    assert {"model_path", "tokenizer_path", "is_generation", "served_model_name", "weight_version"} <= set(info)
    server_info = server.ask("/server_info").json
    assert server_info["version"] == "0.5.23"
    assert server_info["context_length"] == 1024
    assert "--context-length 1024" in server_info["launch_command"]
    assert server_info["internal_states"]
    load = server.ask("/v1/loads").json["loads"][0]
    assert (load["dp_rank"], load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0, 0)
    assert [server.status(path) for path in ("/health", "/health_generate", "/ready", "/ping")] == [200] * 4
    assert server.status("/metrics") == 404, "only with --enable-metrics"

    done = server.complete(model="anything").json
    assert set(done) == {"id", "object", "created", "model", "choices", "usage", "metadata"}
    assert set(done["choices"][0]) == {"index", "text", "logprobs", "finish_reason", "matched_stop"}
    assert done["usage"]["completion_tokens"] == 4
    question = {"text": "one two", "sampling_params": {"max_new_tokens": 3}}
    made = server.ask("/generate", question).json
    assert set(made) == {"text", "output_ids", "meta_info"}
    assert made["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
    parts = server.ask("/generate", {**question, "stream": True}).events
    assert [part["meta_info"]["completion_tokens"] for part in parts] == [1, 2, 3]
    assert parts[-1]["text"] == made["text"], "its parts hold the text so far"


@BOTH
def test_streams(start: Start, engine: str) -> None:
    server = start(engine).ready()
    events = server.complete(stream=True, stream_options={"include_usage": True}).events
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, None, None, "length"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["total_tokens"] == 7
    text = "".join(event["choices"][0]["text"] for event in events[:-1])
    assert text == server.complete().json["choices"][0]["text"]
    chat = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 2}
    deltas = [event["choices"][0]["delta"] for event in server.ask("/v1/chat/completions", chat).events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert len(deltas) == 3


def test_vllm_does_not_know_another_model(start: Start) -> None:
    answer = start("vllm", flags=["--served-model-name", "tiny"]).ready().complete(model="other")
    assert answer.status == 404
    error = {"message": "The model `other` does not exist.", "type": "NotFoundError", "param": None, "code": 404}
    assert answer.json == {"error": error}


@BOTH
@pytest.mark.parametrize("document", [{"prompt": ""}, {"max_tokens": -1}])
def test_bad_requests(start: Start, engine: str, document: dict) -> None:
    assert start(engine).ready().complete(**document).status == 400


@BOTH
def test_wrong_model(start: Start, engine: str) -> None:
    server = start(engine, {"completion": "wrong_model"}, flags=["--served-model-name", "tiny"]).ready()
    assert server.ask("/v1/models").json["data"][0]["id"] == "another-model"
    assert server.complete(model="tiny").status == (404 if engine == "vllm" else 200)


@BOTH
def test_error_500(start: Start, engine: str) -> None:
    answer = start(engine, {"completion": "error_500"}).ready().complete()
    assert answer.status == 500
    error = answer.json["error"] if engine == "vllm" else answer.json
    assert error["type"] == "InternalServerError"


@BOTH
def test_completion_that_never_comes(start: Start, engine: str) -> None:
    env = {"SGLANG_HEALTH_CHECK_TIMEOUT": "0.2"}
    server = start(engine, {"completion": "never", "health": {"delay_s": 0}}, env=env).ready()
    with pytest.raises(TimeoutError):
        server.ask("/v1/completions", {"prompt": "one"}, timeout_s=0.2)
    # SGLang's health generates, vLLM's looks only whether the process lives.
    assert server.status("/health") == (200 if engine == "vllm" else 503)


@BOTH
def test_degenerate_text(start: Start, engine: str) -> None:
    server = start(engine, {"completion": {"text": "!!!!!!!!", "finish_reason": "stop"}}).ready()
    done = server.complete(max_tokens=3).json
    assert (done["choices"][0]["text"], done["choices"][0]["finish_reason"]) == ("!" * 24, "stop")
    assert done["usage"]["completion_tokens"] == 3
    question = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    chat = server.ask("/v1/chat/completions", question).json
    assert chat["choices"][0]["message"]["content"] == "!" * 16
    assert server.complete(stream=True).events[-1]["choices"][0]["finish_reason"] == "stop"


@BOTH
def test_empty_text_ends_as_usual(start: Start, engine: str) -> None:
    choice = start(engine, {"completion": {"text": ""}}).ready().complete().json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")


@BOTH
def test_slow_completion(start: Start, engine: str) -> None:
    server = start(engine, {"completion": {"slow_s": 0.3}}).ready()
    began = time.monotonic()
    assert server.complete().status == 200
    assert time.monotonic() - began >= 0.3


@BOTH
def test_speed_and_time_to_first_token(start: Start, engine: str) -> None:
    server = start(engine, {"tokens_per_s": 50, "ttft_s": 0.2}).ready()
    began = time.monotonic()
    server.complete(max_tokens=11)
    assert 0.4 <= time.monotonic() - began < 3


@BOTH
def test_health_always_200(start: Start, engine: str) -> None:
    server = start(engine, {"health": "always_200", "port": "early", "hang_in": "graphs"})
    wait_until("health", lambda: server.status("/health") == 200)
    assert server.complete().status == 503


@BOTH
def test_health_500(start: Start, engine: str) -> None:
    server = start(engine, {"health": 500})
    server.logs("Application startup complete.")
    wait_until("health", lambda: server.status("/health") == 500)


def test_health_delay(start: Start) -> None:
    server = start("vllm", {"health": {"delay_s": 0.3}}).ready()
    began = time.monotonic()
    assert server.status("/health") == 200
    assert time.monotonic() - began >= 0.3


# Keys


@pytest.mark.parametrize("how", ["variable", "flag"])
def test_vllm_key_guards_v1_only(start: Start, how: str) -> None:
    env, flags = ({"VLLM_API_KEY": "sk-1"}, []) if how == "variable" else ({}, ["--api-key", "sk-1"])
    server = start("vllm", env=env, flags=flags).ready()
    assert [server.status(path) for path in ("/health", "/version", "/metrics", "/load")] == [200] * 4
    answer = server.ask("/v1/models")
    assert (answer.status, answer.json) == (401, {"error": "Unauthorized"})
    assert server.ask("/v1/models", Authorization="Bearer sk-2").status == 401
    assert server.ask("/v1/models", Authorization="Bearer sk-1").status == 200


def test_sglang_key_from_its_configuration_file(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "secret.yaml"
    config.write_text("api-key: sk-1\nenable-metrics: true\n")
    server = start("sglang", QUICK, flags=["--config", str(config)]).ready()
    assert [server.status(path) for path in ("/health", "/ready", "/metrics")] == [200] * 3
    assert [server.status(path) for path in ("/model_info", "/v1/models", "/ping")] == [401] * 3
    assert server.ask("/v1/models", Authorization="Bearer sk-1").status == 200
    assert "sk-1" in server.text  # as the real one prints it


# Metrics


def sample(server: Running, name: str) -> float:
    lines = [line for line in server.ask("/metrics").text.splitlines() if line.startswith(name)]
    return float(lines[0].rsplit(" ", 1)[1])


def test_vllm_metrics_move(start: Start) -> None:
    server = start("vllm", {"tokens_per_s": 50}).ready()
    assert sample(server, "vllm:generation_tokens_total{") == 0
    asking = threading.Thread(target=server.complete, kwargs={"max_tokens": 30})
    asking.start()
    wait_until("tokens while it runs", lambda: 0 < sample(server, "vllm:generation_tokens_total{") < 30)
    assert sample(server, "vllm:num_requests_running{") == 1
    asking.join()
    assert sample(server, "vllm:num_requests_running{") == 0
    assert sample(server, "vllm:generation_tokens_total{") == 30
    assert sample(server, "vllm:prompt_tokens_total{") == 3
    assert sample(server, 'vllm:request_success_total{engine="0",finished_reason="length"') == 1
    assert sample(server, "vllm:time_to_first_token_seconds_count{") == 1
    assert sample(server, "vllm:inter_token_latency_seconds_count{") == 29


def test_sglang_counts_generated_tokens_when_a_request_ends(start: Start) -> None:
    server = start("sglang", {"tokens_per_s": 50}, flags=["--enable-metrics"]).ready()
    before = sample(server, "sglang:generation_tokens_total{")
    live = 'sglang:realtime_tokens_total{engine_type="unified",mode="decode"'
    asking = threading.Thread(target=server.complete, kwargs={"max_tokens": 50})
    live_before = sample(server, live)
    asking.start()
    wait_until("live tokens", lambda: sample(server, live) > live_before)
    assert sample(server, "sglang:generation_tokens_total{") == before
    assert sample(server, "sglang:num_running_reqs{") == 1
    asking.join()
    assert sample(server, "sglang:generation_tokens_total{") == before + 50
    assert sample(server, "sglang:gen_throughput{") > 10
    assert "Decode batch, #running-req: 1" in server.text


def test_vllm_logs_its_throughput_while_there_is_work(start: Start) -> None:
    server = start("vllm", env={"VLLM_LOG_STATS_INTERVAL": "0.05"}).ready()
    server.complete()
    server.logs("Avg generation throughput: 80.0 tokens/s, Running: 0 reqs")
    server.logs("Avg generation throughput: 0.0 tokens/s")
    assert still(server, "throughput"), "silent without work"


# Processes


def test_sglang_processes(start: Start) -> None:
    family = start("sglang").ready().family()
    assert len(family) == 3
    assert {"sglang::scheduler", "sglang::detokenizer"} < set(family)
    assert any("-m sglang.launch_server --model-path" in title for title in family), "main keeps its command line"


def test_sglang_processes_of_two_gpus(start: Start) -> None:
    server = start("sglang serve", flags=["--tp", "2"]).ready()
    assert {"sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer"} < set(server.family())
    assert " TP1] Load weight begin." in server.text
    assert server.complete().status == 200


@pytest.mark.parametrize(
    ("flags", "workers"),
    [
        ([], set()),
        (["--distributed-executor-backend", "mp"], {"VLLM::Worker"}),
        (["-tp", "2"], {"VLLM::Worker_TP0", "VLLM::Worker_TP1"}),
    ],
)
def test_vllm_processes(start: Start, flags: list[str], workers: set[str]) -> None:
    server = start("vllm", flags=flags).ready()
    family = server.family()
    assert {title for title in family if title.startswith("VLLM::")} == {"VLLM::EngineCore"} | workers
    for worker in workers:
        assert parent(family[worker]) == family["VLLM::EngineCore"]
    assert server.complete().status == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.ends() == 0
    assert not server.family()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


@pytest.mark.parametrize(("env", "kept"), [({}, False), ({"SPT_NOENV": "1"}, True)])
def test_a_title_takes_the_environment_unless_told_not_to(start: Start, env: dict[str, str], kept: bool) -> None:
    server = start("sglang", env={**env, "NCCL_PROTO": "LL"}).ready()
    pid = next(pid for title, pid in server.family().items() if title.startswith("sglang::sched"))
    assert (b"NCCL_PROTO=LL" in Path(f"/proc/{pid}/environ").read_bytes()) is kept
    assert Path(f"/proc/{pid}/comm").read_text() == "sglang::schedul\n"


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_engine_may_run_with_other_settings_than_it_was_given(start: Start, engine: str) -> None:
    behaviour = {"rank_env": {"NCCL_CUMEM_ENABLE": "0"}, "says": {"max_running_requests": 4}}
    server = start(engine, behaviour, env={"SPT_NOENV": "1", "NCCL_CUMEM_ENABLE": "1"}).ready()
    kind = {"sglang": "sglang::sched", "vllm": "VLLM::EngineCore"}[engine]
    pid = next(pid for title, pid in server.family().items() if title.startswith(kind))
    assert b"NCCL_CUMEM_ENABLE=0\0" in Path(f"/proc/{pid}/environ").read_bytes()
    assert b"NCCL_CUMEM_ENABLE=1\0" in Path(f"/proc/{server.process.pid}/environ").read_bytes()
    assert "'max_running_requests': 4" in server.log.read_text()
    if engine == "sglang":
        assert server.ask("/server_info").json["max_running_requests"] == 4


def test_children_of_sglang_die_with_it(start: Start) -> None:
    server = start("sglang").ready()
    server.process.kill()
    wait_until("the children's end", lambda: not server.family())


def test_engine_core_outlives_the_api_server_and_the_port_is_free(start: Start) -> None:
    server = start("vllm", flags=["-tp", "2"]).ready()
    core = server.child("VLLM::EngineCore")
    server.process.kill()
    server.ends()
    assert server.status("/health") == 0
    assert set(server.family()) == {"VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"}
    os.kill(core, signal.SIGKILL)
    wait_until("the workers' end", lambda: not server.family())
    assert "(Worker_TP1 pid=" in server.text.rpartition("Parent process exited, terminating worker queues")[0]


@pytest.mark.parametrize("ignore", [False, True])
@TWO_RANKS
def test_orphans_live_on(start: Start, engine: str, flags: list[str], title: str, ignore: bool) -> None:
    behaviour = {"workers": {"orphan": True}, "sigterm": "ignore" if ignore else "normal"}
    server = start(engine, behaviour, flags=flags).ready()
    family = server.family()
    server.process.kill()
    server.ends()
    if engine == "vllm":
        os.kill(family["VLLM::EngineCore"], signal.SIGKILL)
    wait_until("the core's end", lambda: "VLLM::EngineCore" not in server.family())
    ranks = {f"{title}{rank}": family[f"{title}{rank}"] for rank in range(2)}
    assert ranks.items() <= server.family().items()
    if ignore:
        assert all(ignores(pid, signal.SIGTERM) for pid in ranks.values())
        return
    for pid in ranks.values():
        os.kill(pid, signal.SIGTERM)
    wait_until("the ranks' end", lambda: not ranks.keys() & server.family().keys())


def ignores(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(line for line in lines if line.startswith("SigIgn:")).split()[1]
    return bool(int(mask, 16) >> (number - 1) & 1)


@TWO_RANKS
def test_a_worker_may_be_a_zombie_with_a_live_thread(
    start: Start, gpus: dict[str, str], engine: str, flags: list[str], title: str
) -> None:
    behaviour = {"workers": {"zombie_leader": True}, "gpu_mib": 7000}
    server = start(engine, behaviour, flags=flags, env=gpus).ready()
    assert server.complete().status == 200
    ranks = {gpu: pid for pid, gpu, _ in held(gpus)}
    fields = Path(f"/proc/{ranks[1]}/stat").read_text().rsplit(")", 1)[1].split()
    assert (fields[0], int(fields[17]) > 1) == ("Z", True)
    assert Path(f"/proc/{ranks[1]}/cmdline").read_bytes() == b""
    assert f"{title}0" in server.family()
    os.kill(ranks[1], signal.SIGKILL)
    wait_until("free memory", lambda: used(gpus)[1] == 0)


@BOTH
def test_the_only_rank_may_be_a_zombie_with_a_live_thread(start: Start, engine: str) -> None:
    server = start(engine, {**QUICK, "workers": {"zombie_leader": True}}).ready()
    assert server.complete().status == 200
    assert RANK[engine] not in server.family()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_eight_ranks_start_quickly_and_have_the_real_titles(start: Start, engine: str) -> None:
    flag = {"vllm": "--tensor-parallel-size", "sglang": "--tp-size"}[engine]
    # The best of some tries: this measures the stand-in, not what else the machine does.
    for _ in range(4):
        server = start(engine, flags=[flag, "8"]).ready()
        took_s = time.monotonic() - server.began
        if took_s < 1.5:
            break
    assert took_s < 1.5
    rank = {"vllm": "VLLM::Worker_TP", "sglang": "sglang::scheduler_TP"}[engine]
    other = {"vllm": "VLLM::EngineCore", "sglang": "sglang::detokenizer"}[engine]
    titles = {title for title in server.family() if "::" in title.split()[0]}
    assert titles == {other, *(f"{rank}{number}" for number in range(8))}
    assert server.complete().status == 200


# Ends


def test_vllm_ends_by_itself_with_status_0_when_its_core_is_killed(start: Start) -> None:
    server = start("vllm", {"death_notice_s": 0.4}).ready()
    os.kill(server.child("VLLM::EngineCore"), signal.SIGKILL)
    wait_until("503", lambda: server.status("/health") == 503)
    assert server.complete().status == 500
    assert server.ends() == 0
    assert "EngineDeadError: EngineCore encountered an issue." in server.text


def test_sglang_ends_by_sigkill_when_a_scheduler_is_killed(start: Start) -> None:
    server = start("sglang", QUICK).ready()
    pid = server.child("sglang::scheduler")
    os.kill(pid, signal.SIGKILL)
    assert server.ends() == -signal.SIGKILL
    assert (
        f"Subprocess scheduler_0 (pid={pid}) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
        in server.text
    )
    wait_until("the detokenizer's end", lambda: not server.family())


@pytest.mark.parametrize(("engine", "status"), [("vllm", 0), ("sglang", -9)])
def test_engine_core_dies_after_a_while(start: Start, engine: str, status: int) -> None:
    server = start(engine, {**QUICK, "engine_core": {"die_after_s": 0.2}}).ready()
    assert server.complete().status == 200
    assert server.ends() == status


@pytest.mark.parametrize(("engine", "status"), [("vllm", 0), ("sglang", -9)])
def test_first_request_kills(start: Start, engine: str, status: int) -> None:
    server = start(engine, {**QUICK, "first_request": "kills", "death_notice_s": 0.3}).ready()
    assert server.complete().status == 500
    assert server.ends() == status


def test_stopped_core_hangs_vllm_behind_a_healthy_face(start: Start) -> None:
    server = start("vllm").ready()
    os.kill(server.child("VLLM::EngineCore"), signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        server.ask("/v1/completions", {"prompt": "one"}, timeout_s=0.2)
    assert server.status("/health") == 200


def test_stopped_rank_hangs_sglang_and_its_health_says_so(start: Start) -> None:
    env = {"SGLANG_HEALTH_CHECK_TIMEOUT": "0.2"}
    server = start("sglang", QUICK, flags=["--tp", "2"], env=env).ready()
    os.kill(server.child("sglang::scheduler_TP1"), signal.SIGSTOP)
    assert server.status("/health") == 503
    assert "Health check failed." in server.text


@BOTH
def test_sigterm_ends_with_status_0(start: Start, engine: str) -> None:
    server = start(engine).ready()
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.ends() == 0
    assert 0.2 <= time.monotonic() - began < 2
    wait_until("the children's end", lambda: not server.family())


@BOTH
def test_a_second_sigterm_changes_nothing(start: Start, engine: str) -> None:
    server = start(engine).ready()
    server.process.send_signal(signal.SIGTERM)
    server.logs("shutdown triggered" if engine == "vllm" else "SIGTERM received.")
    server.process.send_signal(signal.SIGTERM)
    assert server.ends() == 0


@BOTH
def test_sigterm_takes_its_time(start: Start, engine: str) -> None:
    server = start(engine, {"sigterm_s": 0.5}).ready()
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.ends() == 0
    assert 0.5 <= time.monotonic() - began < 3


@BOTH
def test_ignored_sigterm(start: Start, engine: str) -> None:
    server = start(engine, {**QUICK, "sigterm": "ignore"}).ready()
    before = server.family()
    for pid in before.values():
        os.kill(pid, signal.SIGTERM)
    assert server.complete().status == 200
    assert server.family() == before


def in_flight(server: Running, **document: object) -> tuple[threading.Thread, list]:
    """Ask in a thread and return when the request is running."""
    answers: list = []
    asking = threading.Thread(target=lambda: answers.append(server.complete(**document)))
    asking.start()
    name = "vllm:num_requests_running{" if server.engine == "vllm" else "sglang:num_running_reqs{"
    wait_until("a running request", lambda: sample(server, name) == 1)
    return asking, answers


def test_vllm_aborts_what_is_in_flight(start: Start) -> None:
    server = start("vllm", {"tokens_per_s": 50}).ready()
    asking, answers = in_flight(server, max_tokens=500)
    server.process.send_signal(signal.SIGTERM)
    assert server.ends() == 0
    asking.join()
    assert answers[0].json["choices"][0]["finish_reason"] == "abort"
    assert "stopping engine client mode=abort timeout=0s" in server.text


def test_vllm_drains_when_told_to(start: Start) -> None:
    server = start("vllm", {**QUICK, "tokens_per_s": 50}, flags=["--shutdown-timeout", "9"]).ready()
    asking, answers = in_flight(server, max_tokens=30)
    server.process.send_signal(signal.SIGTERM)
    assert server.ends() == 0
    asking.join()
    assert answers[0].json["choices"][0]["finish_reason"] == "length"
    assert "stopping engine client mode=drain timeout=9s" in server.text


def test_sglang_waits_for_running_requests(start: Start) -> None:
    server = start("sglang", {**QUICK, "tokens_per_s": 50}, flags=["--enable-metrics"]).ready()
    asking, answers = in_flight(server, max_tokens=30)
    server.process.send_signal(signal.SIGTERM)
    server.logs("Remaining number of requests 1.")
    assert server.status("/health") == 503
    asking.join()
    assert answers[0].json["choices"][0]["finish_reason"] == "length"
    assert server.ends() == 0
    assert "Remaining number of requests 0." in server.text


def test_sglang_drains_without_end_for_a_request_that_never_ends(start: Start) -> None:
    server = start("sglang", {**QUICK, "completion": "never"}, flags=["--enable-metrics"]).ready()
    asking = http.client.HTTPConnection("127.0.0.1", server.port)
    asking.request("POST", "/generate", '{"text": "one"}')
    wait_until("a running request", lambda: sample(server, "sglang:num_running_reqs{") == 1)
    server.process.send_signal(signal.SIGTERM)
    wait_until("patience", lambda: server.text.count("Remaining number of requests 1.") > 5)
    assert server.process.poll() is None
    asking.close()


# Command lines


@pytest.mark.parametrize(
    ("engine", "flag", "text"),
    [
        ("vllm", "--foo", "vllm: error: unrecognized arguments: --foo"),
        ("vllm", "--disable-log-requests", "vllm: error: unrecognized arguments: --disable-log-requests"),
        ("vllm", "--dtype=float128", "vllm serve: error: argument --dtype: invalid choice: 'float128'"),
        ("sglang", "--foo", "launch_server.py: error: unrecognized arguments: --foo"),
        ("sglang", "--attention-backend=nonsense", "argument --attention-backend: invalid choice: 'nonsense'"),
        ("sglang", "--cuda-graph-max-bs=8", "ambiguous option: --cuda-graph-max-bs=8 could match"),
        ("sglang", "--enable-pcie-oneshot-allreduce", "unrecognized arguments: --enable-pcie-oneshot-allreduce"),
    ],
)
def test_bad_flags(start: Start, engine: str, flag: str, text: str) -> None:
    server = start(engine, flags=[flag])
    assert server.ends() == 2
    assert server.text.startswith("usage: ")
    assert text in server.text


def test_the_command_line_of_the_story(start: Start) -> None:
    flags = "--trust-remote-code --tp-size 2 --mem-fraction-static 0.85 --attention-backend flashinfer"
    flags += " --num-continuous-decode-steps 4 --disable-custom-all-reduce --log-level info"
    server = start("sglang", flags=flags.split()).ready()
    assert "'attention_backend': 'flashinfer'" in server.text
    assert "Attention backend not specified" not in server.text


def test_vllm_flags_in_their_other_spellings(start: Start) -> None:
    flags = ["--max_model_len", "1024", "--tensor-par", "1", "--attention-config.backend", "TRITON_ATTN"]
    server = start("vllm", flags=[*flags, "--no-enable-prefix-caching", "--attention-backend", "FLASHINFER"]).ready()
    assert "'max_model_len': '1024'" in server.text
    assert """'attention_config': '{"backend": "TRITON_ATTN"}'""" in server.text
    assert "'enable_prefix_caching': False" in server.text
    assert "Using AttentionBackendEnum.FLASHINFER backend." in server.text


def profile(name: str) -> dict:
    """A profile with the flags of those that it extends, and the sizes of eight GPUs."""
    data = yaml.safe_load((ROOT / "profiles" / f"{name}.yml").read_text())
    base = profile(data["extends"]) if "extends" in data else {}
    sizes = {"${tensor_parallel}": 8, "${memory_fraction}": 0.85}
    flags = {flag: sizes.get(str(value), value) for flag, value in data.get("flags", {}).items()}
    return {**base, **data, "flags": {**base.get("flags", {}), **flags}}


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "profiles").glob("*.yml")))
def test_every_profile_of_the_project_starts(start: Start, name: str) -> None:
    wanted = profile(name)
    flags = [
        word
        for flag, value in wanted["flags"].items()
        if value is not False
        for word in ([f"--{flag}"] if value is True else [f"--{flag}", str(value)])
    ]
    assert start(wanted["engine"], QUICK, flags=flags).ready().complete().status == 200


def test_parsers_stand_where_the_real_ones_stand(site: Path) -> None:
    code = """
import argparse
from sglang.srt.server_args import ServerArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(parser.parse_args(["--model-path", "m", "--tp-size", "8"]).tp_size)
print(make_arg_parser(FlexibleArgumentParser()).parse_args(["m", "--tensor_parallel_size=4"]).tensor_parallel_size)
"""
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(site)}, capture_output=True, check=True)
    assert done.stdout.decode().split() == ["8", "4"]


@BOTH
def test_missing_model_folder(start: Start, engine: str, tmp_path: Path) -> None:
    server = start(engine, model=tmp_path / "missing")
    assert server.ends() == 1
    last = server.text.splitlines()[-1]
    error = (
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
    )
    assert error + f"'{tmp_path / 'missing'}'" in last
    assert "Traceback (most recent call last):" in server.text


# Behaviour files


@pytest.fixture(scope="session")
def behaviour(site: Path) -> Iterator[ModuleType]:
    """The module that reads behaviour files."""
    sys.path.insert(0, str(site))
    yield importlib.import_module("ironserve_standin.behaviour")
    sys.path.remove(str(site))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"hangs_in": "graphs"}, "standin.yml: unknown key 'hangs_in' (known: completion, "),
        ({"hang_in": "graphics"}, "standin.yml: no phase 'graphics' (phases: arguments, engine, "),
        ({"phases": {"loading": {"delay_s": 1}}}, "no phase 'loading'"),
        ({"phases": {"weights": {"delay": 1}}}, "phases.weights: unknown key 'delay' (known: delay_s)"),
        ({"hang_how": "loud"}, "hang_how: 'loud' is none of quiet, heartbeat, spin, pipe_writes"),
        ({"port": {"late": 1}}, "port: unknown key 'late' (known: late_s)"),
        ({"health": 404}, "health: 404 is none of normal, always_200, 500, {delay_s}"),
        ({"ttft_s": -1}, "ttft_s: -1 is not a number of at least 0"),
        ({"weights": {"shards": 0}}, "weights.shards: 0 is not a whole number of at least 1"),
        ({"exit_status": 300}, "exit_status: 300 is not an exit status (0 to 255)"),
        ({"models_early": "yes"}, "models_early: 'yes' is not true or false"),
        (["hang"], "standin.yml: ['hang'] is not a mapping"),
        ({"exit_after_s": 1}, "exit_after_s and exit_how need exit_in"),
        ({"exit_in": "graphs", "exit_how": {"signal": "HUP"}}, "exit_how.signal: 'HUP' is none of ABRT, BUS, "),
        ({"exit_in": "graphs", "exit_how": {"signal": "SEGV"}, "exit_status": 1}, "exclude each other"),
        ({"rank": {"die_in": "graphs"}}, "rank: number is missing"),
        ({"rank": {"number": 1}}, "rank: one of die_in, die_after_s is needed"),
        ({"rank": {"number": 2, "die_in": "graphs"}}, "rank.number: 2 is not below 2, the number of ranks"),
        ({"rank": {"number": 0, "die_in": "engine"}}, "engine is no phase of the ranks (graphs)"),
        ({"load": {"how": "slow", "seconds": 1}}, "load.how: 'slow' is none of silent_io, heartbeat_io, steady, "),
        ({"load": {"how": "silent_io"}}, "load: seconds is missing"),
        ({"load": {"how": "silent_io", "seconds": 1, "mib_per_s": 0}}, "load.mib_per_s: 0 is not a number above 0"),
        ({"load": {"how": "silent_io", "seconds": 1, "phase": "engine"}}, "engine is no phase of the ranks"),
        ({"load": {"how": "steady", "seconds": 1, "phase": "graphs"}}, "load: how: steady is for the phase weights"),
        ({"load": {"how": "memory", "seconds": 1, "phase": "graphs"}}, "load: how: memory is for the phase weights"),
        ({"load": {"how": "silent_io", "seconds": 1, "file": "/none"}}, "load.file: there is no file /none"),
        ({"gpu_mib": -1}, "gpu_mib: -1 is not a whole number of at least 0"),
        ({"completion": {"finish_reason": "done"}}, "completion.finish_reason: 'done' is none of length, stop, abort"),
        ({"workers": {"zombie": True}}, "workers: unknown key 'zombie' (known: orphan, zombie_leader)"),
        ({"per_flag": {"flag": "tp-size"}}, "per_flag: {'flag': 'tp-size'} is not a list"),
        ({"per_flag": [{"flag": "tp-size"}]}, "per_flag[0]: behave is missing"),
        ({"per_flag": [{"flag": "tp", "behave": {}}]}, "standin.yml: per_flag: no flag 'tp'"),
        ({"per_flag": [{"flag": "tp-size", "behave": {"hangs": 1}}]}, "per_flag[0].behave: unknown key 'hangs'"),
        ({"per_flag": [{"flag": "tp-size", "behave": {"per_flag": []}}]}, "unknown key 'per_flag'"),
    ],
)
def test_a_wrong_behaviour_file_has_a_clear_error(behaviour: ModuleType, document: object, message: str) -> None:
    with pytest.raises(behaviour.BehaviourError) as caught:
        behaviour.parse(
            document, behaviour.Start(["arguments", "engine", "graphs"], ["graphs"], 2, lambda: {"tp-size": 2})
        )
    assert message in str(caught.value)


@BOTH
def test_a_wrong_behaviour_file_ends_the_start(start: Start, engine: str) -> None:
    server = start(engine, {"hangs_in": "graphs"})
    assert server.ends() == 1
    assert server.text.startswith("standin.yml: unknown key 'hangs_in' (known: completion, ")
    assert len(server.text.splitlines()) == 1


FLASHINFER = {"vllm": "FLASHINFER", "sglang": "flashinfer"}
OTHER = {"vllm": "TRITON_ATTN", "sglang": "triton"}


@BOTH
def test_behaviour_that_depends_on_the_value_of_a_flag(start: Start, engine: str) -> None:
    entry = {"flag": "attention-backend", "value": FLASHINFER[engine], "behave": {"exit_in": "graphs"}}
    behaviour = {"exit_status": 9, "per_flag": [entry]}
    assert start(engine, behaviour, flags=[f"--attention-backend={FLASHINFER[engine]}"]).ends() == 9
    start(engine, behaviour, flags=["--attention-backend", OTHER[engine]]).ready()
    start(engine, behaviour).ready()


@BOTH
def test_behaviour_that_depends_on_a_flag_being_there(start: Start, engine: str) -> None:
    behaviour = {"per_flag": [{"flag": "tensor-parallel-size", "behave": {"exit_in": "arguments", "exit_status": 9}}]}
    # The same as the default, and yet given.
    assert start(engine, behaviour, flags=["--tensor-parallel-size", "1"]).ends() == 9
    start(engine, behaviour).ready()


@BOTH
def test_the_last_matching_entry_wins(start: Start, engine: str) -> None:
    entries = [
        {"flag": "trust-remote-code", "value": True, "behave": {"exit_in": "arguments", "exit_status": 8}},
        {"flag": "host", "behave": {"exit_status": 9}},
    ]
    assert start(engine, {"per_flag": entries}, flags=["--trust-remote-code"]).ends() == 9


def test_every_key_is_checked_has_a_default_and_is_described(behaviour: ModuleType) -> None:
    assert set(behaviour.CHECKS) == {item.name for item in fields(behaviour.Behaviour)}
    readme = (Path(__file__).parent / "README.md").read_text()
    assert [key for key in behaviour.CHECKS if f"| `{key}` |" not in readme] == []
