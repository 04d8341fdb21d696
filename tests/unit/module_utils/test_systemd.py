"""Quoting by systemd's rules, and what its tools print."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.ironserve import systemd
from hypothesis import given
from hypothesis import strategies as st

UNESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"'}


def parse_as_systemd(line: str) -> list[str]:
    """Words of a line by the rules of systemd.service(5): quotes, C escapes, %% and (in commands) $$."""
    words, word, inside, quoted, characters = [], "", False, False, iter(line)
    for character in characters:
        if character == '"':
            inside, quoted = not inside, True
        elif character == "\\" and inside:
            word += UNESCAPED[next(characters)]
        elif character == " " and not inside:
            words.append(word)
            word, quoted = "", False
        else:
            word += character
    if word or quoted:
        words.append(word)
    return [word.replace("%%", "%").replace("$$", "$") for word in words]


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30).filter(
    lambda text: "%%" not in text and "$$" not in text  # the reader above is simpler than systemd here
)


@given(st.lists(TEXT, min_size=1, max_size=6))
def test_argv_comes_back(argv):
    line = systemd.exec_line(argv)
    assert "\n" not in line
    assert parse_as_systemd(line) == argv


@pytest.mark.parametrize(
    "value",
    [
        {"method": "mtp", "num_speculative_tokens": 3},
        {"cudagraph_mode": "FULL_AND_PIECEWISE", "custom_ops": ["all"]},
        {"a value with": "a single quote ' and a space"},
    ],
)
def test_case_36_a_json_flag_is_one_word_of_execstart_without_quotes_of_a_shell(resolved, value):
    release = resolved(f"flags:\n  speculative-config: {json.dumps(value)}\n  y: 1\n")
    line = systemd.exec_line(release.argv)
    words = parse_as_systemd(line)
    assert words == release.argv
    word = words[words.index("--speculative-config") + 1]
    assert json.loads(word) == value
    assert word[0] + word[-1] == "{}"
    assert "'{" not in line
    assert "}'" not in line


def test_case_36_a_text_with_a_quote_and_a_space_is_one_word(resolved):
    release = resolved('flags: {x: "it\'s a text"}')
    assert parse_as_systemd(systemd.exec_line(release.argv)) == release.argv
    assert release.argv[-2:] == ["--x", "it's a text"]


@given(TEXT)
def test_an_assignment_comes_back(value):
    line = systemd.quoted(f"NAME={value}")
    assert "\n" not in line
    assert parse_as_systemd(line.replace("$", "$$")) == [f"NAME={value}"]


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["/usr/bin/a", "--b", "0.85"], "/usr/bin/a --b 0.85"),
        (["a b"], '"a b"'),
        ([""], '""'),
        (["50%H"], '"50%%H"'),
        (["$HOME"], '"$$HOME"'),
        (['{"a": true}'], '"{\\"a\\": true}"'),
        (["C:\\x"], '"C:\\\\x"'),
        ([";", "#"], '";" "#"'),
    ],
)
def test_words_as_they_stand_in_a_unit(argv, line):
    assert systemd.exec_line(argv) == line


def test_description_keeps_its_percent():
    assert systemd.text("100% done\nx") == "100%% done x"


def test_show_values_may_hold_an_equals_sign():
    assert systemd.parse_show("A=1\nB=x=y\n\nC=\n") == {"A": "1", "B": "x=y", "C": ""}


def test_verify_complains_only_about_our_unit():
    # systemd 252 on Debian 12: an unknown key exits 0 with a line, and faults of other units stand beside it.
    printed = (
        "/tmp/x/ironserve-main.service:5: Unknown key name 'Exec' in section 'Service', ignoring.\n"
        "/lib/systemd/system/other.service:8: Unknown key name 'Foo' in section 'Unit', ignoring.\n"
    )
    assert systemd.verify_complaints(printed, "ironserve-main.service") == [
        "/tmp/x/ironserve-main.service:5: Unknown key name 'Exec' in section 'Service', ignoring."
    ]


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("0", "0", None),
        ("1", "0", "exited with status 0"),
        ("1", "2", "exited with status 2"),
        ("1", "203", "could not be started by systemd (203/EXEC, the program cannot be executed)"),
        ("2", "9", "was killed by SIGKILL"),
        ("3", "11", "was killed by SIGSEGV"),
        ("2", "63", "was killed by signal 63"),
    ],
)
def test_how_a_process_ended(code, status, told):
    assert systemd.exit_text({"ExecMainCode": code, "ExecMainStatus": status}) == told
