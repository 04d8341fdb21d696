"""How NCCL reads texts: it never raises, and neither does this."""

from __future__ import annotations

import ctypes

import pytest
from ansible.module_utils.ironserve.nccl_values import (
    allowed,
    as_number,
    before,
    conf_settings,
    misspelt,
    selection,
)
from hypothesis import given
from hypothesis import strategies as st

PROTOCOLS = ["LL", "LL128", "Simple"]
FUNCTIONS = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"]
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("512", (512, True)), ("-2", (-2, True)), ("+1", (1, True)), ("0x10", (16, True)), ("010", (8, True)),
        ("abc", (0, False)), ("8foo", (8, False)), ("16M", (16, False)), ("1.5", (1, False)), ("", (0, False)),
        ("5 ", (5, True)), (" 5", (5, True)), ("0x", (0, False)), ("9223372036854775808", None),
        ("9" * 5000, None), ("0" * 5000, (0, True)), ("-9223372036854775808", (-(2**63), True)),
    ],
)  # fmt: skip
def test_a_number_is_what_c_makes_of_it(text, number):
    assert as_number(text) == number


@given(st.text(st.sampled_from("0123456789abcxX+-. MG"), max_size=12))
def test_a_number_is_what_the_c_library_makes_of_it(text):
    libc = ctypes.CDLL(None)
    libc.strtoll.restype = ctypes.c_longlong
    found = as_number(text)
    assert found is not None
    assert found[0] == libc.strtoll(text.encode(), None, 0)


@given(TEXT)
def test_no_text_is_too_strange_for_a_parser(text):
    as_number(text)
    allowed(text, PROTOCOLS, FUNCTIONS)
    selection(text).chosen(["eth0"])
    conf_settings(text)
    misspelt(text, {"NCCL_ALGO"})
    before(text, "2.30.7")


VALUES = st.lists(st.sampled_from([*PROTOCOLS, "ll", "SIMPLE"]), min_size=1).map(",".join)
LISTS = st.tuples(st.sampled_from(["", "^"]), VALUES).map("".join)
PER_FUNCTION = st.tuples(st.sampled_from([*FUNCTIONS, "allreduce"]), LISTS).map(":".join)
EXPRESSIONS = st.tuples(LISTS | PER_FUNCTION, st.lists(PER_FUNCTION)).map(lambda parts: ";".join([parts[0], *parts[1]]))


@given(EXPRESSIONS)
def test_whatever_the_grammar_of_lists_makes_is_understood(text):
    found = allowed(text, PROTOCOLS, FUNCTIONS)
    assert set(found) == set(FUNCTIONS)


@pytest.mark.parametrize(
    ("text", "all_reduce", "others"),
    [
        ("LL", {"LL"}, {"LL"}),
        ("^LL128", {"LL", "Simple"}, {"LL", "Simple"}),
        ("^LL128;allreduce:LL128", {"LL128"}, {"LL", "Simple"}),
        ("AllReduce:LL,simple", {"LL", "Simple"}, {"LL", "LL128", "Simple"}),
        ("LL,Simple;AllReduce:^Simple", {"LL", "LL128"}, {"LL", "Simple"}),
    ],
)
def test_a_list_counts_for_all_functions_or_for_the_one_in_front(text, all_reduce, others):
    found = allowed(text, PROTOCOLS, FUNCTIONS)
    assert (found["AllReduce"], found["Broadcast"]) == (all_reduce, others)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("LL64", '"LL64" is none of LL, LL128, Simple'),
        ("LL, Simple", '" Simple" is none of'),
        ("AllReduce:LL;Simple", '"Simple" needs a function in front'),
        ("AllRedoce:LL", '"AllRedoce" is no function of NCCL\'s (did you mean "AllReduce"?)'),
        (":", '":" holds no value'),
    ],
)
def test_a_list_that_nccl_refuses_is_told_with_the_word_at_fault(text, says):
    found = allowed(text, PROTOCOLS, FUNCTIONS)
    assert isinstance(found, str)
    assert says in found


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("eth", ["eth0", "eth1"]), ("=eth0", ["eth0"]), ("=eth", []), ("^docker,lo", ["eth0", "eth1"]),
        ("^=eth0", ["docker0", "eth1", "lo"]), ("eth1:1,wlan", ["eth1"]), (",", ["docker0", "eth0", "eth1", "lo"]),
    ],
)  # fmt: skip
def test_interfaces_are_chosen_by_prefix_by_name_or_by_what_they_are_not(text, chosen):
    assert selection(text).chosen(["docker0", "eth0", "eth1", "lo"]) == chosen


@pytest.mark.parametrize("name", ["NCL_ALGO", "nccl_algo", "NCCL-ALGO", "NCCLALGO", "NNCL_ALGO", "Nccl_Algo"])
def test_a_name_that_surely_means_a_variable_of_nccl_is_told(name):
    assert misspelt(name, {"NCCL_ALGO"}) == "NCCL_ALGO"


@pytest.mark.parametrize("name", ["RCCL_ALGO", "HF_HOME", "TORCH_NCCL_ALGO", "N", "NCCL", "NODE_ALGO", "CCL_ALGO"])
def test_a_name_of_somebody_else_is_left_alone(name):
    assert misspelt(name, {"NCCL_ALGO"}) == ""


def test_a_file_of_nccls_is_read_as_nccl_reads_it():
    text = "# NCCL_A=0\nNCCL_A=1\nNCCL_A=2\n NCCL_B = 3\nnothing\nNCCL_C=a=b\r\n"
    assert conf_settings(text) == {"NCCL_A": "1", " NCCL_B ": " 3", "NCCL_C": "a=b"}


@pytest.mark.parametrize(
    ("version", "other", "older"),
    [("2.28.9", "2.30", True), ("2.28.9+cuda13.0", "2.28.9", False), ("2.9.1", "2.10", True), ("", "2.30", False)],
)
def test_versions_compare_by_their_numbers_and_an_unknown_one_is_the_newest(version, other, older):
    assert before(version, other) is older
