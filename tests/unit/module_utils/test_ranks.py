"""How many ranks there have to be, and who of them died."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve import ranks
from ansible.module_utils.ironserve.engines import sglang, vllm
from ansible.module_utils.ironserve.processes import Process
from ansible.module_utils.ironserve.ranks import Member, Ranks


def member(pid: int, title: str, parent: int = 1, state: str = "S", ticks: int = 5, threads: int = 9) -> Member:
    return Member(Process(pid, parent, 1, ticks, state, threads, title[:15]), title)


def schedulers(numbers=range(8)) -> list[Member]:
    main = Member(Process(10, 1, 10, 5, "S", 30, "python3"), "/env/bin/python3")
    return [
        main,
        member(50, "sglang::detokenizer", 10),
        *(member(20 + n, f"sglang::scheduler_TP{n}", 10) for n in numbers),
    ]


@pytest.mark.parametrize(
    ("engine", "flags", "count"),
    [
        (sglang, {}, 1),
        (sglang, {"tp-size": "8"}, 8),
        (sglang, {"tensor-parallel-size": 8}, 8),
        (sglang, {"tp-size": "4", "dp-size": "2"}, 8),
        (sglang, {"tp-size": "8", "dp-size": "8", "enable-dp-attention": ""}, 8),
        (sglang, {"tp-size": "16", "nnodes": "2", "node-rank": "1"}, 8),
        (sglang, {"tp-size": "8", "pp-size": "2", "nnodes": "2"}, 8),
        (sglang, {"tp-size": "8", "use-ray": ""}, 0),
        (vllm, {"tensor-parallel-size": "8"}, 8),
        (vllm, {"tensor-parallel-size": "4", "pipeline-parallel-size": "2"}, 8),
        (vllm, {"tensor-parallel-size": "8", "distributed-executor-backend": "mp"}, 8),
        (vllm, {"tensor-parallel-size": "8", "distributed-executor-backend": "ray"}, 0),
        (vllm, {"data-parallel-size": "8", "data-parallel-size-local": "4"}, 0),
        (vllm, {"tensor-parallel-size": "auto"}, 1),
    ],
)
def test_how_many_ranks_there_have_to_be(engine, flags, count):
    assert ranks.expected(flags, engine) == count


def test_case_28_seven_of_eight_ranks_are_not_all():
    found = Ranks(sglang, 8)
    found.look(schedulers(range(7)), 1.0)
    assert (found.count, found.missing(), found.lost) == (7, 1, {})
    found.look(schedulers(), 2.0)
    assert found.missing() == 0


@pytest.mark.parametrize("state", ["gone", "Z"])  # a first thread that ended is a dead rank, others of it may live
def test_a_rank_that_was_there_and_is_not_is_told(state):
    found = Ranks(sglang, 8)
    found.look(schedulers(), 1.0)
    left = [m for m in schedulers() if m.process.pid != 23]
    found.look(left if state == "gone" else [*left, member(23, "sglang::scheduler_TP3", 10, state="Z")], 4.0)
    assert found.lost == {"sglang::scheduler_TP3 (pid 23)": 4.0}
    found.look(left, 9.0)
    assert found.lost_for_s(9.0) == 5.0
    assert found.said() == "sglang::scheduler_TP3 (pid 23) died; 7 of 8 ranks are there"


def test_another_process_under_the_pid_of_a_rank_does_not_hide_its_death():
    found = Ranks(sglang, 8)
    found.look(schedulers(), 1.0)
    others = [m for m in schedulers() if m.process.pid != 23]
    found.look([*others, member(23, "nvcc", 21, ticks=99)], 2.0)
    assert list(found.lost) == ["sglang::scheduler_TP3 (pid 23)"]


def test_children_that_carry_their_parents_name_come_and_go():
    found = Ranks(vllm, 1)
    core = member(30, "VLLM::EngineCore", 10)
    found.look([core, member(31, "VLLM::EngineCore", 30)], 1.0)  # forked, and about to be a compiler
    assert found.count == 1
    found.look([core, Member(Process(31, 30, 1, 5, "R", 1, "ninja"), "ninja")], 2.0)
    found.look([core], 3.0)
    assert found.lost == {}


def test_vllms_workers_are_its_ranks_and_its_core_is_one_where_there_are_none():
    core = member(30, "VLLM::EngineCore", 10)
    alone, several = Ranks(vllm, 1), Ranks(vllm, 2)
    alone.look([core], 1.0)
    assert alone.missing() == 0
    several.look([core, member(40, "VLLM::Worker_TP0", 30)], 1.0)
    assert several.missing() == 1
    several.look([core, member(40, "VLLM::Worker_TP0", 30), member(41, "VLLM::Worker_TP1", 30)], 2.0)
    assert several.missing() == 0
    several.look([member(40, "VLLM::Worker_TP0", 1), member(41, "VLLM::Worker_TP1", 1)], 3.0)
    assert list(several.lost) == ["VLLM::EngineCore (pid 30)"]  # no rank, and nothing works without it


def test_of_several_that_died_the_ranks_come_first():
    found = Ranks(sglang, 1)
    found.look(schedulers(range(1)), 1.0)
    found.look([Member(Process(10, 1, 10, 5, "S", 30, "python3"), "/env/bin/python3")], 2.0)
    assert found.said() == "sglang::scheduler_TP0 (pid 20), sglang::detokenizer (pid 50) died; 0 of 1 ranks are there"


def test_a_rank_that_died_unseen_is_what_is_missing():
    found = Ranks(sglang, 1)
    found.look([member(50, "sglang::detokenizer", 10)], 1.0)
    found.look([], 2.0)
    assert found.said() == "0 of 1 ranks are there; sglang::detokenizer (pid 50) died"


def test_an_engine_that_names_nothing_is_not_judged_by_names():
    found = Ranks(vllm, 8)
    found.look([Member(Process(10, 1, 10, 5, "S", 30, "python3"), "python3")], 1.0)
    assert (found.missing(), found.lost) == (0, {})


@pytest.mark.parametrize("title", ["VLLM::Worker_TP3", ""])  # its command line may not be readable at that moment
def test_a_fork_is_told_by_its_name_too(title):
    found = Ranks(vllm, 1)
    worker = member(40, "VLLM::Worker_TP3", 30)
    fork = Member(Process(41, 40, 1, 5, "R", 1, "VLLM::Worker_TP"), title)
    found.look([worker, fork], 1.0)
    found.look([worker], 2.0)
    assert (found.lost, found.count) == ({}, 1)


def test_months_of_children_leave_nothing_behind():
    found = Ranks(vllm, 1)
    for number in range(1000):
        found.look([member(40, "VLLM::EngineCore", 10), member(100 + number, "VLLM::Helper", 40)], float(number))
    assert len(found.seen) == 2
