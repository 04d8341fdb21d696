"""YAML: plain numbers are those of JSON, and nothing is said twice."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.ironserve import yaml_text
from ansible.module_utils.ironserve.problems import Problems
from hypothesis import given
from hypothesis import strategies as st


def read(text: str):
    problems = Problems()
    return yaml_text.read(text, "f.yml", problems), problems.found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-8", -8),
        ("+8", 8),
        ("0", 0),
        ("0x1F", 31),
        ("0.85", 0.85),
        (".5", 0.5),
        ("1.", 1.0),
        ("1e-5", 1e-5),
        ("1E3", 1000.0),
        ("-1.5e+3", -1500.0),
        ("010", "010"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("1.2.3", "1.2.3"),
        ("2026-01-02", "2026-01-02"),
        ("true", True),
        ("no", False),
        ("~", None),
        ("", None),
        ("e5", "e5"),
        ("-", [None]),
    ],
)
def test_plain_values(text, value):
    found, problems = read(text)
    assert problems == []
    assert (found, type(found)) == (value, type(value))


def test_infinity_is_a_number():
    assert read("[.inf, -.inf]") == ([float("inf"), float("-inf")], [])


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_of_json_are_numbers_of_yaml(number):
    assert read(f"[{json.dumps(number)}]") == ([number], [])


def test_a_key_given_twice_is_told_with_line_and_path_wherever_it_stands():
    _, problems = read("a: 1\nb:\n- {c: 1}\n- c: 1\n  c: 2\na: 2\n'a': 3\n1: x\n'1': y\n")
    assert problems == [
        "f.yml:5: b[1].c: is given twice",
        "f.yml:6: a: is given twice",
        "f.yml:7: a: is given twice",
    ]


def test_an_anchor_may_be_used_again():
    assert read("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}") == ({"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}, [])


@given(st.text(max_size=40))
def test_whatever_comes_in_is_read_or_explained(text):
    read(text)
