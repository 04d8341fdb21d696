"""Shim wheels: the same bytes on every machine, and what a package manager expects of a wheel."""

from __future__ import annotations

import configparser
import csv
import hashlib
import io
import zipfile
from pathlib import Path

import pytest
import shim_wheel
from ansible.module_utils.ironserve import lock


@pytest.mark.parametrize("name", ["vllm-0.32.0-cpu", "sglang-0.5.23-cpu"])
def test_the_bytes_are_those_that_the_locks_were_made_with(root: Path, name: str):
    found = lock.load(root / "environments" / name)
    hashes = {item.name: item.hashes for item in found.requirements}
    assert found.spec.shims
    for shim in found.spec.shims:
        content = shim_wheel.build(shim.name, shim.version, shim.why, shim.files)
        assert hashes[shim.name] == (hashlib.sha256(content).hexdigest(),)


def test_a_shim_is_a_name_and_nothing_else():
    with zipfile.ZipFile(io.BytesIO(shim_wheel.build("some-name", "1.0+cpu", "for a test"))) as wheel:
        assert wheel.testzip() is None
        names = wheel.namelist()
        metadata = wheel.read("some_name-1.0+cpu.dist-info/METADATA").decode()
        record = list(csv.reader(wheel.read("some_name-1.0+cpu.dist-info/RECORD").decode().splitlines()))
    assert "Name: some-name\nVersion: 1.0+cpu\n" in metadata
    assert {name.split("/")[0] for name in names} == {"some_name-1.0+cpu.dist-info"}
    assert [row[0] for row in record] == names


def test_a_shim_carries_files_and_its_entry_points_where_they_are_looked_for():
    carried = (("entry_points.txt", "[group]\na = b:c\n"), ("b.py", "c = 1\n"))
    with zipfile.ZipFile(io.BytesIO(shim_wheel.build("some-name", "1.0", "for a test", carried))) as wheel:
        assert wheel.read("some_name-1.0.dist-info/entry_points.txt").decode() == "[group]\na = b:c\n"
        assert wheel.read("b.py").decode() == "c = 1\n"
        record = list(csv.reader(wheel.read("some_name-1.0.dist-info/RECORD").decode().splitlines()))
        assert {row[0] for row in record} == set(wheel.namelist())


def test_torch_finds_the_entry_point_of_the_operator_names(root: Path):
    found = lock.load(root / "environments" / "sglang-0.5.23-cpu")
    shim = next(shim for shim in found.spec.shims if shim.name == "torchvision-operator-names")
    points = configparser.ConfigParser()
    points.read_string(dict(shim.files)["entry_points.txt"])
    module, function = points["torch.backends"]["torchvision_operator_names"].split(":")
    assert f"def {function}(" in dict(shim.files)[f"{module}.py"]
