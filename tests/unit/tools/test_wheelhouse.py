"""The wheelhouse: files from a folder that stands for pip's find-links, so without a network."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import shim_wheel
import wheelhouse
from ansible.module_utils.ironserve.lock import Note, Requirement, Spec

SPEC = Spec("tiny", "vllm", "1", "3.12", "manylinux_2_28_x86_64", ("alpha",), shims=(Note("vllm", "a name", "1"),))


def wheel(folder: Path, name: str, version: str) -> Requirement:
    content = shim_wheel.build(name, version, "a name")
    (folder / shim_wheel.file_name(name, version)).write_bytes(content)
    return Requirement(name, version, (hashlib.sha256(content).hexdigest(),))


@pytest.fixture
def links(tmp_path: Path, monkeypatch) -> Path:
    """The only place that pip looks for files in."""
    folder = tmp_path / "links"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder


def test_all_files_are_brought_and_checked(tmp_path: Path, links: Path):
    wanted = (wheel(links, "alpha", "1.0"), wheel(links, "beta", "2.0+cpu"), wheel(tmp_path, "vllm", "1"))
    house = wheelhouse.bring(tmp_path / "house", SPEC, wanted)
    assert sorted(house.files) == [
        "alpha-1.0-py3-none-any.whl",
        "beta-2.0+cpu-py3-none-any.whl",
        "vllm-1-py3-none-any.whl",
    ]
    assert {path.name for path in house.folder.iterdir()} == {*house.files, "wheelhouse.json", ".lock"}


def test_the_source_of_a_local_version_is_said(tmp_path: Path, links: Path, capsys):
    wheelhouse.bring(tmp_path / "house", SPEC, (wheel(links, "beta", "2.0+cpu"),))
    assert f"beta==2.0+cpu: from pip's find-links ({links})" in capsys.readouterr().out


def test_a_local_version_that_is_nowhere_is_told(tmp_path: Path, links: Path):
    missing = Requirement("beta", "2.0+cpu", ("0" * 64,))
    with pytest.raises(wheelhouse.FetchError, match=r"not in pip's find-links, and lock\.yml names no local_index"):
        wheelhouse.bring(tmp_path / "house", SPEC, (missing,))


def test_a_whole_wheelhouse_asks_nobody(tmp_path: Path, links: Path, monkeypatch):
    wanted = (wheel(links, "alpha", "1.0"),)
    wheelhouse.bring(tmp_path / "house", SPEC, wanted)
    monkeypatch.setattr(wheelhouse.sys, "executable", "/nowhere")
    assert wheelhouse.bring(tmp_path / "house", SPEC, wanted).files


@pytest.mark.parametrize("harm", ["gone", "cut off"])
def test_a_file_that_was_harmed_is_brought_again(tmp_path: Path, links: Path, harm: str):
    wanted = (wheel(links, "alpha", "1.0"), wheel(links, "beta", "2.0"))
    house = wheelhouse.bring(tmp_path / "house", SPEC, wanted)
    file = house.folder / "alpha-1.0-py3-none-any.whl"
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:100])
    wheelhouse.bring(tmp_path / "house", SPEC, wanted)
    assert file.read_bytes() == (links / file.name).read_bytes()


def test_what_has_come_stays_when_something_fails(tmp_path: Path, links: Path, monkeypatch):
    monkeypatch.setattr(wheelhouse, "BATCH", 1)
    wanted = (wheel(links, "alpha", "1.0"), Requirement("beta", "2.0", ("0" * 64,)))
    with pytest.raises(wheelhouse.FetchError, match=r"No matching distribution found for beta==2\.0"):
        wheelhouse.bring(tmp_path / "house", SPEC, wanted)
    assert list(wheelhouse.Wheelhouse(tmp_path / "house").files) == ["alpha-1.0-py3-none-any.whl"]


def test_a_file_with_another_hash_is_refused(tmp_path: Path, links: Path):
    found = wheel(links, "alpha", "1.0")
    with pytest.raises(wheelhouse.FetchError, match="DO NOT MATCH THE HASHES"):
        wheelhouse.bring(tmp_path / "house", SPEC, (Requirement("alpha", "1.0", ("0" * 64,)),))
    assert not list((tmp_path / "house").glob("*.whl"))
    assert found.hashes


def test_two_runs_do_not_fill_one_folder_together(tmp_path: Path, links: Path):
    with wheelhouse.alone(tmp_path / "house"), pytest.raises(SystemExit, match="another run is filling it"):
        wheelhouse.bring(tmp_path / "house", SPEC, (wheel(links, "alpha", "1.0"),))
