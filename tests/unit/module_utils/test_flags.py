"""Values of flags: whatever way YAML or a template gives them, one value is one form in the command."""

from __future__ import annotations

import argparse
import json

import pytest
from ansible.module_utils.ironserve.flags import argv_of, words
from hypothesis import given
from hypothesis import strategies as st

NAME = "Qwen/通义千问-é"


def flag(value: str) -> str:
    return f"flags:\n  x: {value}\n"


def becomes(resolved, value: str, **sizes) -> list[str]:
    """The words of flag x in the command."""
    release = resolved(flag(value), site={"ironserve_sizes": {"eight": 8, **sizes}})
    return argv_of("x", release.flags["x"]) if "x" in release.flags else []


def told(resolved, value: str, **sizes) -> list[str]:
    return resolved(flag(value), site={"ironserve_sizes": {"eight": 8, **sizes}}).found


@pytest.mark.parametrize(
    ("value", "argv"),
    [
        ("true", ["--x"]),
        ("false", []),
        ("4", ["--x", "4"]),
        ("0", ["--x", "0"]),
        ("0.85", ["--x", "0.85"]),
        ("0.850", ["--x", "0.85"]),
        ("1.0", ["--x", "1.0"]),
        ("1e-5", ["--x", "1e-05"]),
        ("0.00001", ["--x", "1e-05"]),
        ("010", ["--x", "010"]),
        ("12:30", ["--x", "12:30"]),
        ("2026-01-02", ["--x", "2026-01-02"]),
        ("triton", ["--x", "triton"]),
        ('"two words"', ["--x", "two words"]),
        ('""', ["--x", ""]),
        ('"true"', ["--x", "true"]),
        ("-1", ["--x=-1"]),
        ("-0.5", ["--x=-0.5"]),
        ('"-v"', ["--x=-v"]),
        ("${eight}", ["--x", "8"]),
        ("[a, 1, 0.5]", ["--x", "a", "1", "0.5"]),
        ("[-1, -0.5]", ["--x", "-1", "-0.5"]),
        ("['${eight}', b]", ["--x", "8", "b"]),
        ("[{a: true}, '{\"b\": null}']", ["--x", '{"a":true}', '{"b":null}']),
        ("{b: 1, a: [true, null, 0.5, x]}", ["--x", '{"a":[true,null,0.5,"x"],"b":1}']),
        ("{n: '${eight}', m: ['${eight}']}", ["--x", '{"m":[8],"n":8}']),
        ("'{\"n\": \"${eight}\"}'", ["--x", '{"n":8}']),
        ("{lr: 1e-5}", ["--x", '{"lr":1e-05}']),
        ("'{\"lr\": 1e-5}'", ["--x", '{"lr":1e-05}']),
        ("'[1, 2]'", ["--x", "[1,2]"]),
        ("{}", ["--x", "{}"]),
        ("{text: '{\"stays\": 1}'}", ["--x", r'{"text":"{\"stays\": 1}"}']),
        ("\"{% for m in messages %}{{ m['content'] }}{% endfor %}\"", [
            "--x", "{% for m in messages %}{{ m['content'] }}{% endfor %}"]),
        ("'{{ name }}'", ["--x", "{{ name }}"]),
        ("'{name}-x'", ["--x", "{name}-x"]),
        ('"[::1]"', ["--x", "[::1]"]),
        ("it's", ["--x", "it's"]),
    ],
)  # fmt: skip
def test_a_value_becomes_words(resolved, value, argv):
    assert becomes(resolved, value) == argv


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("[]", "x: is an empty list: write true for the bare flag, null to remove an inherited one"),
        ("[[a]]", "x[0]: a list is no item of a list"),
        ("[true]", "x[0]: true/false: True is no item of a list"),
        ("[a, null]", "x[1]: nothing is no item of a list"),
        ("[a, --b]", 'x[1]: "--b" begins with a dash, so the server would take it for a flag'),
        ("{1: a}", "x: a key of JSON is text, and this one is a number: 1: write it in quotes"),
        ("{a: {b: .nan}}", "x.a.b: nan is no number of JSON"),
        ("{a: !!binary aGk=}", "x.a: bytes has no form in JSON: write it in quotes"),
        ("!!binary aGk=", "x: expected true/false, text, a number, a list or a mapping, got bytes"),
        ('"a\\0b"', "x: holds a control character, which no unit can bring to a server"),
        ('\'{"a": "\\ud800"}\'', "x: holds a control character, which no unit can bring to a server"),
        ('\'{"a": 1, "a": 2}\'', '"a" is given twice'),
        ("'{\"a\": NaN}'", "NaN is no number of JSON"),
        ("'{\"a\": true,}'", "looks like JSON and is none"),
        ("'{\"a\": ${eight}}'", "looks like JSON and is none"),
        ("'[\"a\"'", "looks like JSON and is none"),
        (r"'{\"a\": 1}'", "looks like JSON and is none"),
        ("'{a: 1}'", "looks like JSON and is none"),
        ("\"{'a': true}\"", "looks like JSON and is none"),
        ("{a: 'b ${eight}'}", 'x.a: "b ${eight}": a size is a whole value of a flag'),
        ("{a: '${nine}'}", 'x.a: unknown size of host group blackwell "nine"'),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_with_its_place(resolved, value, said):
    problems = told(resolved, value)
    assert len(problems) == 1
    assert problems[0].startswith("profiles/p.yml: flags.x")
    assert said in problems[0]


@pytest.mark.parametrize(
    "value",
    [
        {"method": "mtp", "num_speculative_tokens": 3},
        {"cudagraph_mode": "FULL_AND_PIECEWISE", "custom_ops": ["all"]},
        {"a": "it's one"},
    ],
)
def test_case_36_quotes_of_a_shell_are_refused_and_the_right_form_is_said(resolved, value):
    text = json.dumps(value)
    for quoted in (f"'{text}'", f'"{text}"'):
        (problem,) = told(resolved, json.dumps(quoted))
        assert "the quotes would be part of the value, since no shell takes them off" in problem
        assert "write it as a YAML mapping, or as JSON in single quotes" in problem


@pytest.mark.parametrize("content", [{"a": True}, {"a": None, "b": [1, 0.5, False]}, {"model": NAME}, {"n": {}}])
def test_case_51_a_mapping_json_in_quotes_and_templated_text_are_one_release(resolved, content):
    text = json.dumps(content, ensure_ascii=False)
    native = {"ironserve_sizes": {"given": content}}  # what a template gives with jinja2_native, and ansible-core 2.19
    plain = {"ironserve_sizes": {"given": text}}  # what `| to_json` gives without
    ways = [
        resolved(flag(text)),  # (a) a YAML mapping: JSON is YAML
        resolved(flag(json.dumps(text))),  # (b) a JSON string in quotes, (c) with booleans
        resolved(flag(f"'{text}'")),
        resolved(flag(json.dumps(json.dumps(content, indent=2)))),
        resolved(flag("${given}"), site=native),
        resolved(flag("${given}"), site=plain),
    ]
    assert len({way.release_id for way in ways}) == 1
    assert len({tuple(way.argv) for way in ways}) == 1
    word = ways[0].flags["x"]
    assert json.loads(word) == content
    assert "True" not in word
    assert "'" not in word
    assert ("model" not in content) or NAME in word


def test_case_51_booleans_in_a_string_are_json(resolved):
    assert becomes(resolved, "'{\"a\": true}'") == becomes(resolved, "{a: true}") == ["--x", '{"a":true}']


@pytest.mark.parametrize("content", [{"a": True}, {"a": None}, {"a": "b"}, [True, "x"], {True: 1}])
def test_case_51_pythons_text_of_a_value_is_refused(resolved, content):
    for problems in (told(resolved, json.dumps(str(content))), told(resolved, "${given}", given=str(content))):
        assert len(problems) == 1
        assert "looks like JSON and is none" in problems[0]
        assert "write it as a YAML mapping" in problems[0]


def test_what_argparse_reads_is_what_was_given():
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=float)
    parser.add_argument("--text")
    parser.add_argument("--several", nargs="+")
    given = {"number": "-1e-05", "text": "--x", "several": ["-1", "-0.5", "-.5", "a b"]}
    read = parser.parse_args([word for name, value in given.items() for word in argv_of(name, value)])
    assert vars(read) == {"number": -1e-05, "text": "--x", "several": given["several"]}


TEXT = st.text(st.characters(exclude_categories=["Cs"]).filter(lambda c: c != "\0"), max_size=8).filter(
    lambda text: "${" not in text
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


def word_of(value) -> str:
    found = []
    word = words(value, {}, "", lambda where, text: found.append((where, text)))
    assert found == []
    return word


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_any_mapping_comes_back_from_its_word_and_order_is_nothing(value):
    word = word_of(value)
    assert json.loads(word) == value
    assert word_of(dict(reversed(value.items()))) == word
    assert word_of(json.dumps(value)) == word
    assert word_of(json.dumps(value, ensure_ascii=False, indent=1)) == word


@given(st.lists(JSON, max_size=4))
def test_any_json_array_given_as_text_comes_back(value):
    assert json.loads(word_of(json.dumps(value))) == value


@given(JSON | TEXT.map(lambda text: f"{{{text}") | TEXT.map(lambda text: f"'[{text}'"))
def test_any_value_is_words_or_explained(value):
    found = []
    word = words(value, {}, "", lambda where, text: found.append((where, text)))
    assert found or word is None or word is True or isinstance(word, (str, list))
