"""Secrets: where each goes, how its file reads, what is said of it."""

from __future__ import annotations

import shlex

import pytest
import yaml
from ansible.module_utils.ironserve import secrets
from ansible.module_utils.ironserve.problems import Problems
from hypothesis import given
from hypothesis import strategies as st

KEY = "sk-TESTTOKEN"


def test_vllm_reads_its_key_from_a_variable():
    placed = secrets.place("vllm", KEY, {"HF_TOKEN": "hf_TESTTOKEN"}, {})
    assert placed == {"env": {"HF_TOKEN": "hf_TESTTOKEN", "VLLM_API_KEY": KEY}, "flags": {}}


def test_sglang_reads_its_key_from_its_configuration_file():
    placed = secrets.place("sglang", KEY, {}, {"admin-api-key": "sk-ADMINTOKEN"})
    assert placed["flags"] == {"api-key": KEY, "admin-api-key": "sk-ADMINTOKEN"}
    assert placed["env"] == {"IRONSERVE_API_KEY": KEY}
    assert secrets.names(placed) == ["--admin-api-key", "--api-key", "IRONSERVE_API_KEY"]


def test_without_secrets_there_are_no_files_and_no_hash():
    placed = secrets.place("vllm", "", {}, {})
    assert secrets.files("main", placed) == {"/etc/ironserve/main.env": "", "/etc/ironserve/main.yml": ""}
    assert secrets.digest(placed, b"k") == ""


def test_the_hash_says_nothing_without_the_hosts_key_and_changes_with_the_secret():
    one, two = ({"env": {"A": text}, "flags": {}} for text in ("secret-one", "secret-two"))
    assert secrets.digest(one, b"k") == secrets.digest(one, b"k")
    assert len({secrets.digest(one, b"k"), secrets.digest(one, b"other"), secrets.digest(two, b"k")}) == 3


PRINTABLE = st.text(st.characters(codec="utf-8").filter(str.isprintable), min_size=1)


@given(PRINTABLE)
def test_any_secret_reads_back_from_both_files(text):
    read = secrets.files("main", {"env": {"A": text}, "flags": {"api-key": text}})
    assert yaml.safe_load(read["/etc/ironserve/main.yml"]) == {"api-key": text}
    assert shlex.split(read["/etc/ironserve/main.env"].replace("\\`", "`").replace("\\$", "$")) == [f"A={text}"]


def test_a_secret_is_taken_out_of_a_text_whole_even_when_another_is_part_of_it():
    values = {"env": {"A": "sk-TEST-long"}, "flags": {"b": "sk-TEST"}}
    assert secrets.redact("key=sk-TEST-long sk-TEST.", secrets.texts(values)) == "key=******** ********."


@pytest.mark.parametrize("text", [12345678, "five5", "", "two\nlines of it", None])
def test_what_is_no_usable_secret_is_told_without_it(text):
    problems = Problems()
    secrets.check("ironserve_api_key", text, "host h1", problems)
    (told,) = problems.found
    assert told.startswith("host h1: ironserve_api_key: ")
    assert str(text) not in told or text == ""


LINE = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=' "\\$`='), min_size=1)


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), LINE), st.dictionaries(st.just("api-key"), LINE))
def test_files_are_read_as_they_were_written(env, flags):
    values = {"env": env, "flags": flags}
    written = secrets.files("main", values)
    assert secrets.read(written["/etc/ironserve/main.env"], written["/etc/ironserve/main.yml"]) == values


def test_files_that_are_not_there_or_that_somebody_edited():
    assert secrets.read("", "") == {"env": {}, "flags": {}}
    assert secrets.read("A=plain\n# no\n", "api-key: plain\n") == {"env": {"A": "plain"}, "flags": {"api-key": "plain"}}


def test_the_names_in_the_files_are_those_that_a_release_has():
    for engine in ("vllm", "sglang"):
        placed = secrets.place(engine, "sk-secret", {"HF_TOKEN": 'a"b=c: d'}, {})
        files = secrets.files("main", placed)
        assert secrets.names_in("main", files) == set(secrets.names(placed))
    assert secrets.names_in("main", secrets.files("main", None)) == set()
