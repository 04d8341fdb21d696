"""Whose engine a process is: by its own words, never by a name somewhere in a line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import lineage, processes
from ansible.module_utils.ironserve.lineage import Lineage
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from fake_proc import fake_process

SPAWN = ["/opt/ironserve/engines/x/bin/python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()",
         "--multiprocessing-fork"]  # fmt: skip


def process(comm="python3", **more):
    fields = {"pid": 10, "parent": 1, "session": 10, "start_ticks": 5, "state": "S", "threads": 1, **more}
    return processes.Process(comm=comm, **fields)


@pytest.mark.parametrize(
    ("argv", "server"),
    [
        (["python3", "/opt/venv/bin/sglang", "serve", "--port", "19000"], True),
        (["python3", "/srv/_work/sglang/test/run_suite.py"], False),
        (["vim", "/etc/systemd/system/sglang.service"], False),
        (["python3", "-m", "sglang.launch_server", "--model-path", "/m"], True),
        (["/usr/bin/python3.12", "-u", "-X", "dev", "-m", "sglang.launch_server"], True),
        (["python3.13t", "-m", "sglang.launch_server"], True),
        (["python3-dbg", "-m", "sglang.launch_server"], True),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], True),
        (["/opt/ironserve/engines/x/bin/vllm", "serve", "/m"], True),
        (["python3", "/opt/ironserve/engines/x/bin/vllm", "serve", "/m"], True),
        (["vllm", "bench", "serve"], False),
        (["python3", "-m", "pytest", "sglang.launch_server"], False),
        (["python3", "train.py", "vllm", "serve"], False),
        (["grep", "-r", "vllm serve"], False),
        (["bash", "-c", "vllm serve /m"], False),
        (["python3", "-m"], False),
        (["python3"], False),
        ([], False),
    ],
)  # fmt: skip
def test_case_13_a_server_is_told_by_the_words_of_its_command(argv, server):
    assert lineage.is_server(argv) is server


@pytest.mark.parametrize(
    ("argv", "comm", "rank"),
    [
        (["sglang::detokenizer"], "sglang::detoken", True),
        (["sglang::scheduler_TP7"], "sglang::schedul", True),
        (["VLLM::EngineCore"], "VLLM::EngineCor", True),
        (["VLLM::Worker_TP0"], "VLLM::Worker_TP", True),
        (["[VLLM::Worker_TP]"], "VLLM::Worker_TP", True),  # only threads are left: no command, but the name
        (["python3", "sglang::scheduler"], "python3", False),
        (["vim", "VLLM::Worker"], "vim", False),
        (["acme::rank3"], "acme::rank3", False),
    ],
)
def test_a_rank_is_told_by_the_title_that_it_gave_itself(argv, comm, rank):
    assert lineage.is_rank(process(comm), argv) is rank


def test_titles_of_another_engine_can_be_named():
    assert lineage.is_rank(process("acme::rank3"), ["acme::rank3"], ["acme::*"])
    assert not lineage.is_rank(process("python3"), ["python3", "acme::rank3"], ["acme::*"])


@given(st.lists(st.text(min_size=1), max_size=4))
def test_no_path_and_no_argument_makes_a_server(words):
    assert not lineage.is_server(["python3", "/srv/sglang/vllm/x.py", *words])
    assert not lineage.is_server(["vim", "vllm", "serve", *words])


def table(tmp_path) -> processes.Table:
    return processes.Table(tmp_path)


def pids(found) -> list[int]:
    return [member.pid for member in found]


@pytest.fixture
def vllm(tmp_path):
    """A server of two ranks that somebody started from a shell, with a compiler under one of them."""
    fake_process(tmp_path, 1, parent=0, comm="systemd")
    fake_process(tmp_path, 3990, comm="bash", argv=["-bash"], session=3990)
    fake_process(tmp_path, 4001, parent=3990, argv=["python3", "/v/bin/vllm", "serve", "/m"], session=3990)
    fake_process(tmp_path, 4002, parent=4001, comm="VLLM::EngineCor", argv=["VLLM::EngineCore"], session=3990)
    for number in (0, 1):
        fake_process(tmp_path, 4003 + number, parent=4002, comm="VLLM::Worker_TP", argv=[f"VLLM::Worker_TP{number}"],
                     session=3990)  # fmt: skip
    fake_process(tmp_path, 4005, parent=4003, comm="nvcc", argv=["nvcc", "x.cu"], session=3990)
    return tmp_path


def test_all_that_an_engine_started_is_the_engines_and_the_shell_is_not(vllm):
    lines = Lineage(table(vllm))
    for pid in (4001, 4002, 4003, 4005):
        assert sorted(pids(lines.family(lines.table.processes[pid]))) == [4001, 4002, 4003, 4004, 4005]
    assert lines.family(lines.table.processes[3990]) == []


def test_a_server_that_runs_is_not_left_behind(vllm):
    lines = Lineage(table(vllm))
    assert not any(lines.is_left_behind(one) for one in lines.table.processes.values())


@pytest.mark.parametrize("parent", [(1, "systemd"), (3990, "bash"), (3990, "tmux: server"), (3990, "containerd-shim")])
def test_case_11_orphans_are_told_whoever_took_them_in(tmp_path, parent):
    fake_process(tmp_path, parent[0], parent=0, comm=parent[1], argv=[parent[1]])
    fake_process(tmp_path, 4002, parent=parent[0], comm="VLLM::EngineCor", argv=["VLLM::EngineCore"])
    fake_process(tmp_path, 4003, parent=4002, comm="VLLM::Worker_TP", argv=["VLLM::Worker_TP0"])
    lines = Lineage(table(tmp_path))
    assert lines.is_left_behind(lines.table.processes[4003])
    assert pids(lines.family(lines.table.processes[4003])) == [4002, 4003]


def test_a_child_of_a_zombie_is_left_behind(tmp_path):
    fake_process(tmp_path, 50, comm="python3", state="Z")
    fake_process(tmp_path, 51, parent=50, comm="VLLM::EngineCor", argv=["VLLM::EngineCore"])
    lines = Lineage(table(tmp_path))
    assert lines.is_left_behind(lines.table.processes[51])


def test_an_engine_inside_somebodys_program_is_not_left_behind(tmp_path):
    fake_process(tmp_path, 50, comm="python3", argv=["python3", "batch.py"], exe="/usr/bin/python3.11")
    fake_process(tmp_path, 51, parent=50, comm="VLLM::EngineCor", argv=["VLLM::EngineCore"])
    lines = Lineage(table(tmp_path))
    assert not lines.is_left_behind(lines.table.processes[51])
    assert pids(lines.family(lines.table.processes[51])) == [51]


def test_a_worker_that_had_no_title_yet_is_told_by_its_environment(tmp_path):
    fake_process(tmp_path, 1, parent=0, comm="systemd")
    fake_process(tmp_path, 60, comm="python3", argv=SPAWN)
    fake_process(tmp_path, 61, comm="python3", argv=["/usr/bin/python3", *SPAWN[1:]])  # anybody's
    lines = Lineage(table(tmp_path))
    assert lines.is_left_behind(lines.table.processes[60])
    assert not lines.is_left_behind(lines.table.processes[61])


def test_an_orphan_without_a_gpu_goes_with_its_ranks_and_a_living_neighbour_stays(tmp_path):
    fake_process(tmp_path, 1, parent=0, comm="systemd")
    for pid, title in ((70, "sglang::scheduler_TP0"), (71, "sglang::scheduler_TP1"), (72, "sglang::detokenizer")):
        fake_process(tmp_path, pid, comm=title[:15], argv=[title], session=7)
    # Started from the same terminal, and alive: its detokenizer has a server above it.
    fake_process(tmp_path, 80, argv=["python3", "-m", "sglang.launch_server"], session=7)
    fake_process(tmp_path, 81, parent=80, comm="sglang::detoken", argv=["sglang::detokenizer"], session=7)
    # Of another user and of another session.
    fake_process(tmp_path, 90, comm="sglang::detoken", argv=["sglang::detokenizer"], session=7, uid=4711)
    fake_process(tmp_path, 91, comm="sglang::detoken", argv=["sglang::detokenizer"], session=8)
    lines = Lineage(table(tmp_path))
    assert pids(lines.strays(lines.family(lines.table.processes[70]))) == [71, 72]


def test_the_service_users_python_is_an_engines_and_roots_is_not(tmp_path):
    fake_process(tmp_path, 1, parent=0, comm="systemd")
    fake_process(tmp_path, 60, argv=["python3", "x.py"], uid=64123)
    fake_process(tmp_path, 61, argv=["python3", "x.py"])
    mine = Lineage(table(tmp_path), service_user="64123")
    assert mine.top(mine.table.processes[60])
    assert not mine.top(mine.table.processes[61])
    careless = Lineage(table(tmp_path), service_user="root")
    assert not careless.top(careless.table.processes[61])
