"""Processes: the texts of /proc, and the end of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import processes

sys.path.insert(0, str(Path(__file__).parent))
from fake_proc import CUDA, INFORMATION, MONITOR_FDS, NVIDIA_SMI, fake_process


def test_only_mapped_gpus_count():
    assert processes.mapped_gpus(NVIDIA_SMI) == set()
    assert processes.mapped_gpus(CUDA) == {0, 11}
    assert processes.mapped_gpus("") == set()


def test_minor_and_uuid_of_a_gpu():
    assert processes.parse_gpu(INFORMATION) == (0, "GPU-81e540af-1718-43f5-3b6a-791b20ddf894")
    assert processes.parse_gpu("Model: \t NVIDIA H200\n") is None


def test_a_name_with_brackets_and_spaces():
    fields = "S 12 34 56 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 7 0 98765 0 0"
    process = processes.parse_stat(f"77 (tmux: server (x)) {fields}\n")
    assert process == processes.Process(77, 12, 56, 98765, "S", 7, "tmux: server (x)")


@pytest.mark.parametrize(("state", "threads", "gone"), [("S", 1, False), ("Z", 1, True), ("Z", 2, False)])
def test_a_zombie_with_threads_still_runs(state, threads, gone):
    process = processes.Process(77, 1, 77, 5, state, threads, "python3")
    assert processes.is_gone(process, 5) is gone
    assert processes.is_gone(process, 6)
    assert processes.is_gone(None, 5)


def test_a_signal_reaches_exactly_the_process_that_was_meant():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = processes.read(child.pid).start_ticks
    assert not processes.send(child.pid, ticks + 1, signal.SIGKILL)
    assert child.poll() is None
    assert processes.send(child.pid, ticks, signal.SIGTERM)
    assert child.wait(10) == -signal.SIGTERM
    assert not processes.send(child.pid, ticks, signal.SIGTERM)


def test_the_table_knows_this_process():
    table = processes.Table()
    assert table.processes[os.getpid()].parent == os.getppid()
    assert next(table.ancestors(os.getpid())).pid == os.getppid()
    assert os.getpid() in [process.pid for process in table.tree(os.getppid())]
    assert table.details(os.getpid()).argv  # which may be a title: pytest-xdist gives itself one
    ignores = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # as where the tests run with nohup
    assert table.details(os.getpid()).ignores_hangup is ignores


def test_a_monitor_that_has_every_device_open_uses_no_gpu(tmp_path):
    fake_process(tmp_path, 10, fds=MONITOR_FDS, maps=NVIDIA_SMI)
    fake_process(tmp_path, 11, fds=MONITOR_FDS, maps=CUDA)
    fake_process(tmp_path, 12, fds=["/srv/model"], maps="")
    _, files = processes.Table(tmp_path).users_of()
    assert files == {10: ({0}, set(), set()), 11: ({0}, {0, 11}, set())}


def test_a_process_whose_first_thread_ended_still_shows_in_its_other_threads(tmp_path):
    fake_process(tmp_path, 20, state="Z", threads=2, thread=21, fds=["/dev/nvidia0", "socket:[42]"], thread_maps=CUDA)
    assert processes.Table(tmp_path).users_of(["42"]) == ({20: {"42"}}, {20: ({0}, {0, 11}, set())})
