"""ansible.cfg means what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def ansible(program: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        **environment,
    }
    return subprocess.run([BIN / program, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_every_key_of_ansible_cfg_is_known_to_ansible():
    result = ansible("ansible-config", "validate", "-t", "all")
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_deploy_to_an_inventory_that_is_not_there_is_a_failure():
    result = ansible("ansible-playbook", "-i", "/no/such/hosts.yml", "deploy.yml")
    assert result.returncode != 0
    assert "/no/such/hosts.yml" in result.stderr


def test_every_playbook_parses():
    playbooks = ["deploy.yml", *(f"playbooks/{path.name}" for path in (ROOT / "playbooks").glob("*.yml"))]
    result = ansible("ansible-playbook", "--syntax-check", "-i", "inventory/hosts.example.yml", *playbooks)
    assert result.returncode == 0, result.stderr
    assert all(f"playbook: {playbook}" in result.stdout for playbook in playbooks)


def test_the_example_inventory_resolves_for_every_group():
    result = ansible("ansible-playbook", "-i", "inventory/hosts.example.yml", "playbooks/resolve.yml", "-v")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "sglang.launch_server" in result.stdout
