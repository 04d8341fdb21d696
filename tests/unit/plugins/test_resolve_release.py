"""resolve_release as Ansible runs it: variables of an inventory, templates among them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - resolve_release: {}
      register: found
    - ansible.builtin.copy:
        content: "{{ found | to_json }}"
        dest: "{{ inventory_dir }}/{{ inventory_hostname }}.json"
      delegate_to: localhost
"""
CONTENT = {"method": "mtp", "deep": {"a": [True, None, 0.5]}, "model": "Qwen/\u901a\u4e49-\u00e9"}
TEMPLATE = "{'method': 'mtp', 'deep': {'a': [true, none, 0.5]}, 'model': 'Qwen/\u901a\u4e49-\u00e9'}"


@pytest.fixture
def fleet(tmp_path):
    """Resolve profile ``p`` for hosts with variables of their own; return what was printed, and the results by host."""
    (tmp_path / "group_vars").symlink_to(ROOT / "group_vars")
    (tmp_path / "playbook.yml").write_text(PLAYBOOK)

    def run(profile: str, hosts: dict[str, dict], *more: str) -> tuple[str, dict[str, dict]]:
        (tmp_path / "p.yml").write_text(f"description: d\nextends: triton_nccl\n{profile}")
        said = {"ironserve_profile": "p", "ironserve_profile_paths": [str(tmp_path), "profiles"]}
        named = {name: {**said, **variables} for name, variables in hosts.items()}
        inventory = {"blackwell": {"hosts": named}, "rack1": {"hosts": dict.fromkeys(hosts)}}
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory, allow_unicode=True))
        words = [
            Path(sys.executable).parent / "ansible-playbook",
            "-i",
            tmp_path / "hosts.yml",
            tmp_path / "playbook.yml",
            *more,
        ]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        result = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        found = {file.stem: json.loads(file.read_text()) for file in tmp_path.glob("*.json")}
        return result.stdout + result.stderr, found

    return run


def test_case_51_a_template_may_give_a_mapping_or_its_text(fleet):
    ways = {
        "mapping": CONTENT,
        "text": json.dumps(CONTENT, ensure_ascii=False),
        "native": f"{{{{ {TEMPLATE} }}}}",
        "to-json": f"{{{{ {TEMPLATE} | to_json }}}}",
    }
    hosts = {name: {"ironserve_sizes": {"tensor_parallel": 8, "memory_fraction": 0.85, "x": way}}
             for name, way in ways.items()}  # fmt: skip
    output, found = fleet("flags: {json: '${x}'}", hosts)
    assert set(found) == set(ways), output
    assert len({result["releases"][0]["release_id"] for result in found.values()}) == 1
    word = found["native"]["releases"][0]["flags"]["json"]
    assert json.loads(word) == CONTENT
    assert found["to-json"]["releases"][0]["argv"].count(word) == 1
    assert CONTENT["model"] in word


def test_a_host_has_its_own_part_and_the_origins_say_so(fleet):
    _, found = fleet("for_host: {h1: {flags: {log-level: debug}}}", {"h1": {}, "h2": {}})
    levels = {host: result["releases"][0]["flags"]["log-level"] for host, result in found.items()}
    assert levels == {"h1": "debug", "h2": "info"}
    origins = {row["words"][0]: row["origin"] for row in found["h1"]["origins"][0]["argv"]}
    assert origins["--log-level"].endswith("p.yml for_host.h1.flags.log-level")
    assert origins["--attention-backend"] == "profiles/triton_nccl.yml flags.attention-backend"


def test_what_only_the_inventory_can_tell_is_told(fleet):
    output, found = fleet("for_group: {blackwel: {}, rack1: {}}\nenv: {A: 1, A: 2}", {"h1": {}})
    assert found == {}
    assert "p.yml:4: env.A: is given twice" in output
    assert 'for_group.blackwel: nothing of this name is in the inventory (did you mean "blackwell"?)' in output
    assert "for_group.rack1: is a group, and no host group" in output


def test_a_flags_text_of_python_from_a_template_is_refused(fleet):
    sizes = {"tensor_parallel": 8, "memory_fraction": 0.85, "x": f"{{{{ {TEMPLATE} | string }}}}"}
    output, _ = fleet("flags: {json: '${x}'}", {"h1": {"ironserve_sizes": sizes}})
    assert "p.yml: flags.json: {'method': 'mtp'" in output
    assert "looks like JSON and is none" in output


def test_what_only_a_tune_knows_is_refused_where_something_is_to_be_deployed(fleet):
    said, found = fleet("", {"h1": {}}, "-e", "profiles=triton_nccl", "-e", '{"matrix": {"base": "triton_nccl"}}')
    assert not found
    for name in ("profiles", "matrix"):
        assert f"-e: {name}: is for playbooks/tune.yml: to deploy one profile say profile=NAME" in said
