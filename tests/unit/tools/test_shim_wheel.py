"""Shim wheels: the same bytes on every machine, and what a package manager expects of a wheel."""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from pathlib import Path

import shim_wheel
from ansible.module_utils.ironserve import lock


def test_the_bytes_are_those_that_the_locks_were_made_with(root: Path):
    found = lock.load(root / "environments" / "vllm-0.32.0-cpu")
    hashes = {item.name: item.hashes for item in found.requirements}
    assert found.spec.shims
    for shim in found.spec.shims:
        content = shim_wheel.build(shim.name, shim.version, shim.why)
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
