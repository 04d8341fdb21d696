"""NCCL's own lines, as two H200 wrote them: what was taken, and how the ranks reach each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.module_utils.ironserve.nccl_log import parse, took_effect
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tests" / "fixtures" / "nccl"
SETS = yaml.safe_load((ROOT / "group_vars/blackwell/main.yml").read_text())["ironserve_nccl_sets"]
SIX = {name: str(value) for name, value in SETS["low_latency"].items()}


def lines(name):
    return (FOLDER / f"nccl-2.28.9-two-h200-{name}.txt").read_text().splitlines()


def test_the_six_variables_of_the_record_were_taken():
    assert took_effect(SIX, lines("tuned")) == dict.fromkeys(sorted(SIX), "taken")


def test_where_they_were_not_set_none_was_read():
    assert took_effect(SIX, lines("default")) == dict.fromkeys(sorted(SIX), "not read")


def test_all_that_a_communicator_tells_of_itself():
    told = parse(lines("tuned"))
    assert told.version == "2.28.9"
    assert told.network == "Socket"
    assert told.channels == {"coll": 16, "p2p": 16}
    assert told.transports == {"P2P/CUMEM": ["0->1", "1->0"]}
    assert told.complete == [0, 1]
    assert told.warnings == []
    assert told.settings["NCCL_BUFFSIZE"] == ["16777216"]
    assert told.settings["NCCL_NVLS_ENABLE"] == ["0"]
    assert told.protocols["AllReduce"] == ["LL"]
    assert told.algorithms["AllReduce"] == ["Ring"]
    assert set(told.algorithms) == {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"}


def test_without_proto_and_algo_no_matrix_is_told():
    told = parse(lines("default"))
    assert (told.protocols, told.channels) == ({}, {"coll": 24, "p2p": 32})


H = "gpu-a01:4001:4093 [0] NCCL INFO "


@pytest.mark.parametrize(
    ("name", "value", "line", "expected"),
    [
        ("NCCL_NTHREADS", "0x200", "NCCL_NTHREADS set by environment to 512.", "taken"),
        ("NCCL_NTHREADS", "abc", "NCCL_NTHREADS set by environment to 0.", "other: 0"),
        ("NCCL_NTHREADS", "9" * 20, f"Invalid value {'9' * 20} for NCCL_NTHREADS, using default -2.", "other: -2"),
        ("NCCL_P2P_LEVEL", "4", "NCCL_P2P_LEVEL set by environment to SYS", "taken"),
        ("NCCL_P2P_LEVEL", "9", "NCCL_P2P_LEVEL set by environment to SYS", "taken"),
        ("NCCL_P2P_LEVEL", "PHB", "NCCL_P2P_LEVEL set by environment to SYS", "other: SYS"),
        ("NCCL_IB_HCA", "mlx5_0,mlx5_1", "NCCL_IB_HCA set to mlx5_0,mlx5_1", "taken"),
        ("NCCL_MAX_CTAS", "8", "Comm config maxCTAs reset to NCCL_MAX_CTAS=8", "taken"),
        ("NCCL_CTA_POLICY", "ZERO", "Parsed environment variable NCCL_CTA_POLICY=ZERO to 2", "taken"),
        ("NCCL_SOCKET_IFNAME", "eth0", "Bootstrap: Using eth0:10.0.0.1<0>", "not read"),
    ],
)
def test_what_nccl_took_is_compared_with_what_was_meant(name, value, line, expected):
    assert took_effect({name: value}, [H + line]) == {name: expected}


def test_ranks_that_differ_are_told():
    both = [H + "NCCL_PROTO set by environment to LL", H + "NCCL_PROTO set by environment to Simple"]
    assert took_effect({"NCCL_PROTO": "LL"}, both) == {"NCCL_PROTO": "other: Simple"}


def test_variables_of_others_and_those_that_nccl_never_tells_are_left_out():
    env = {"NCCL_DEBUG": "INFO", "HF_HOME": "/x", "GLOO_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "0"}
    assert took_effect(env, []) == {}
    assert took_effect({"NCCL_P2P_DISABLE": "1"}, []) == {"NCCL_P2P_DISABLE": "not read"}


@pytest.mark.parametrize(
    ("line", "transports"),
    [
        ("Channel 00/0 : 0[7000] -> 1[8000] via SHM/direct/direct", {"SHM/direct/direct": ["0->1"]}),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct", {"SHM/direct": ["0->1"]}),
        ("Channel 00/0 : 7[7] -> 0[0] [send] via NET/IB/0/GDRDMA", {"NET/IB/0/GDRDMA": ["7->0"]}),
        ("Channel 01/0 : 2[2] -> 3[3] via P2P/IPC/read", {"P2P/IPC/read": ["2->3"]}),
    ],
)
def test_every_way_between_ranks_is_told(line, transports):
    assert parse([H + line]).transports == transports


def test_warnings_are_told_in_the_words_of_nccl():
    warn = 'gpu-a01:4001:4001 [0] graph/tuning.cc:101 NCCL WARN Unrecognized element token "LL64" when parsing "LL64"'
    assert parse([warn, warn]).warnings == ['Unrecognized element token "LL64" when parsing "LL64"']


@given(st.lists(st.text()))
def test_no_line_is_too_strange(some):
    parse(some)
    parse(H + line for line in some)
    took_effect({"NCCL_X": "1"}, some)
