"""The recorded baseline of a host group, as a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import baseline

sys.path.insert(0, str(Path(__file__).parent))
from measurements import measurement


def test_what_was_recorded_is_read_again(tmp_path):
    file = baseline.path(str(tmp_path), "blackwell", "main")
    baseline.write(file, measurement(), "2026-11-30T23:00:00Z", "h1")
    assert file == tmp_path / "blackwell" / "main.json"
    assert baseline.read(file) == {"measurement": measurement(), "recorded_at": "2026-11-30T23:00:00Z", "host": "h1"}


def test_the_same_baseline_is_the_same_file_and_a_new_one_leaves_nothing_beside_it(tmp_path):
    file = baseline.path(str(tmp_path), "blackwell", "main")
    baseline.write(file, measurement(1), "a", "h1")
    before = file.read_bytes()
    baseline.write(file, dict(reversed(measurement(1).items())), "a", "h1")
    assert file.read_bytes() == before
    baseline.write(file, measurement(2), "b", "h1")
    assert [entry.name for entry in file.parent.iterdir()] == ["main.json"]


def test_a_group_without_a_baseline_has_none(tmp_path):
    assert baseline.read(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"measurement": {', "is no JSON"),
        ("[]", "has no model, client"),
        ('{"measurement": 5}', "has no model, client"),
        (json.dumps({"measurement": {"model": {}, "client": {}}}), "has no model.name, model.path, client.name"),
        (json.dumps({"measurement": {**measurement(), "levels": {"1": [{}]}}}), "has no levels.*.output_tok_s"),
    ],
)
def test_a_file_that_is_no_baseline_is_named_with_what_is_wrong(tmp_path, text, said):
    file = tmp_path / "main.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        baseline.read(file)
    assert str(error.value).startswith(str(file))
    assert "record" in str(error.value)


def test_a_folder_in_its_place_is_told(tmp_path):
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        baseline.read(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written: "):
        baseline.write(tmp_path / "file" / "main.json", measurement(), "a", "h1")


def test_what_nothing_should_be_compared_with_becomes_no_baseline(tmp_path):
    file = tmp_path / "main.json"
    with pytest.raises(ValueError, match="was disturbed: other requests ran"):
        baseline.write(file, measurement(disturbed="other requests ran"), "a", "h1")
    failing = measurement()
    failing["levels"]["8"][2]["failed"] = 1
    with pytest.raises(ValueError, match="no baseline was recorded: 1 of 40 requests failed at c8"):
        baseline.write(file, failing, "a", "h1")
    silent = measurement()
    silent["levels"]["8"][2]["output_tok_s"] = 0.0
    with pytest.raises(ValueError, match="no token at 8 at a time"):
        baseline.write(file, silent, "a", "h1")
    assert not file.exists()
