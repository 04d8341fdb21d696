"""An inventory that cannot be read is one message with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = str(Path(sys.executable).parent / "ansible-playbook")


def refused(inventory: Path | str) -> str:
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    words = [PROGRAM, "-i", str(inventory), "playbooks/show.yml"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.count("[ERROR]") == 1
    assert "[WARNING]" not in done.stderr
    return " ".join(done.stderr.split())


def test_the_first_run_of_a_newcomer():
    if (ROOT / "inventory" / "hosts.yml").exists():
        pytest.skip("this checkout has an inventory")
    said = refused(ROOT / "inventory" / "hosts.yml")
    assert f"cp {ROOT}/inventory/hosts.example.yml {ROOT}/inventory/hosts.yml" in said


def test_a_file_that_is_not_there():
    assert "there is no inventory /no/such.yml, nothing was touched" in refused("/no/such.yml")


def test_a_file_that_is_no_yaml_is_told_with_the_place(tmp_path):
    (tmp_path / "hosts.yml").write_text("all:\n  hosts:\n    h1: {\n  x\n")
    assert f"{tmp_path}/hosts.yml:5:1: the inventory cannot be read" in refused(tmp_path / "hosts.yml")
