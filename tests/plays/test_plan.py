"""The play that plans a roll, and those that watch a canary and open a batch, without any host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

STAND_IN = """#!/usr/bin/python
import json
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec=dict(services=dict(type="list"), state=dict(), at_least=dict(type="int")))
world = json.load(open({world!r}))
answer = world[{name!r}]
answer = answer.pop(0) if isinstance(answer, list) and len(answer) > 1 else answer[0]
json.dump(world, open({world!r}, "w"))
module.exit_json(**answer)
"""
SEEN = {
    "deploy_resolved": {
        "roll": {
            "group": "lab", "canary": 1, "soak_s": 1, "soak_error_rate": 0.01, "batches": [2], "max_unavailable": None,
            "min_serving": 0, "max_failures": 1, "forks": None, "drain_timeout_s": 5, "routers": [],
            "address": "{{ inventory_hostname }}", "members": 3,
        }
    },
    "serve_compared": {
        "results": [
            {
                "serve_release": {"service": "main", "profile": "p", "release_id": "r", "model_name": "m", "port": 1},
                "settled": False, "reasons": ["flag --n: 1 -> 2"], "running": True, "restart": True, "expected_s": 9.0,
            }
        ]
    },
}  # fmt: skip

PLAYBOOK = f"""
- hosts: lab
  gather_facts: false
  tasks:
    - router_worker: {{state: listed}}
      delegate_to: "{{{{ item }}}}"
      loop: "{{{{ ansible_play_hosts | ironserve_routers(hostvars) }}}}"
      run_once: true
      register: deploy_routers
- ansible.builtin.import_playbook: {ROOT}/playbooks/plan.yml
- hosts: lab
  gather_facts: false
  serial: [1, 2]
  tasks:
    - ansible.builtin.include_tasks: {ROOT}/playbooks/tasks/open_batch.yml
    - ansible.builtin.debug: {{msg: "{{{{ inventory_hostname }}}} open {{{{ roll_opening.open }}}}"}}
    - ansible.builtin.set_fact: {{roll_outcome: {{verdict: "{{{{ verdict | default('moved') }}}}"}}}}
"""


def roll(
    folder: Path,
    *words: str,
    looks: list[str] | None = None,
    failed: list[int] | None = None,
    soak_s: int = 1,
    declared: str = "m",
) -> subprocess.CompletedProcess[str]:
    """Plan three hosts that are this machine, and open their batches.

    ``looks``: the status of the canary at each look; ``failed``: of 100 requests those that failed, each time a router
    is asked: for the plan, for the first batch, when the soak begins, at each look. None: there is no router.
    ``declared``: the model that the inventory says.
    """
    seen = json.loads(json.dumps(SEEN))
    seen["deploy_resolved"]["roll"]["soak_s"] = soak_s
    seen |= {"ironserve_host_group": "lab", "ironserve_port": 1, "ironserve_routers": "{{ groups.router }}",
             "ironserve_model": {"path": "/m", "served_name": declared}}  # fmt: skip
    hosts = {f"h{number}": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
             for number in (1, 2, 3)}  # fmt: skip
    world = {"host_services": [{"services": [{"service": "main", "status": status}]} for status in looks or ["ready"]]}
    if failed:
        seen["deploy_resolved"]["roll"]["routers"] = ["r1"]
        urls = [f"http://{host}:1" for host in hosts]
        workers = [{"url": url, "healthy": True} for url in urls]
        world["router_worker"] = [
            {"workers": workers, "admitted": urls, "errors": {urls[0]: {"ok": 100 - count, "failed": count}}}
            for count in failed
        ]
    (folder / "world.json").write_text(json.dumps(world))
    (folder / "library").mkdir()
    for name in ("host_services", "router_worker"):
        text = STAND_IN.format(world=str(folder / "world.json"), name=name)
        (folder / "library" / f"{name}.py").write_text(text)
    groups = {"lab": {"hosts": hosts, "vars": seen}, "router": {"hosts": {"r1": hosts["h1"]}}}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups}}))
    (folder / "play.yml").write_text(PLAYBOOK)
    return subprocess.run(
        [BIN / "ansible-playbook", "-i", folder / "hosts.yml", folder / "play.yml",
         "-e", json.dumps({"ironserve_reports": str(folder)}), *words],
        cwd=ROOT, env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_canary_that_stays_ready_opens_the_next_batch(tmp_path):
    result = roll(tmp_path, failed=[0])
    said = result.stdout
    assert result.returncode == 0, said + result.stderr
    assert "Plan: 3 of 3 hosts change" in said
    assert "canary h1, then h2 h3" in said
    assert "[roll] canary: h1" in said
    assert "[roll] soak: canary h1 ready, 0 of 0 requests failed, 1s of 1s" in said
    assert "[roll] batch 2 of 2: h2 h3" in said
    assert said.count(" open True") == 3
    assert json.loads((tmp_path / "plan.json").read_text())["serial"] == [1, 2]


@pytest.mark.parametrize(
    ("world", "why"),
    [
        ({"looks": ["failed"]}, "h1 main is failed"),
        ({"looks": ["ready", "unhealthy"], "soak_s": 6}, "h1 main is unhealthy"),
        ({"failed": [0, 0, 0, 7]}, "7 of 100 requests failed (ironserve_soak_error_rate: 0.01)"),
    ],
    ids=["at-once", "later", "requests"],
)
def test_nothing_follows_a_canary_that_fares_badly(tmp_path, world, why):
    result = roll(tmp_path, **world)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"[roll] stops before batch 2 of 2: h2 h3: canary h1: {why}" in result.stdout
    assert result.stdout.count(" open False") == 2


def test_a_look_that_fails_once_ends_no_soak(tmp_path):
    result = roll(tmp_path, looks=["unhealthy", "ready"])
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[roll] soak: canary h1 h1 main is unhealthy (looking again)" in result.stdout
    assert "[roll] batch 2 of 2: h2 h3" in result.stdout


@pytest.mark.parametrize(("declared", "code"), [("m", 0), ("other", 2)])
def test_hosts_that_a_run_does_not_mean_are_seen_by_its_plan(tmp_path, declared, code):
    result = roll(tmp_path, "-l", "h1", failed=[0], declared=declared)
    assert result.returncode == code, result.stdout + result.stderr
    assert ("m on h1; other on h2 h3" in result.stdout + result.stderr) == (code != 0)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert list(plan["groups"]["lab"]["beyond"]) == ["h2", "h3"]
    assert "canary h1" in result.stdout


def test_a_failed_canary_needs_no_soak_to_close_the_roll(tmp_path):
    said = roll(tmp_path, "-e", "verdict=failed").stdout
    assert "soak" not in said.replace("soak.yml", "")
    assert "[roll] stops before batch 2 of 2: h2 h3: canary h1 failed" in said


@pytest.mark.parametrize(("words", "code"), [((), 0), (("-f", "1"), 2)])
def test_a_plan_that_cannot_be_rolled_fails_before_anything_is_touched(tmp_path, words, code):
    result = roll(tmp_path, "-e", "plan=true", "-e", "verdict=failed", *words)
    assert result.returncode == code, result.stdout + result.stderr
    refused = "the largest batch has 2: run with -f 2" in result.stdout + result.stderr
    assert refused == (code != 0)
    assert "(JSON: " in result.stdout


def test_with_plan_true_a_deploy_ends_with_the_plan():
    for book in ("prepare", "roll", "outcome"):
        for play in yaml.safe_load((ROOT / "playbooks" / f"{book}.yml").read_text()):
            # Only what moved is taken back, and where no host had its turn none did.
            assert "plan | default(false) | bool" in play["hosts"] or "ironserve_roll_moved" in play["hosts"], play[
                "name"
            ]
