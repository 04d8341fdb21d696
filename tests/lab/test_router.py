"""The router: the real sglang-router in front of stand-in engines. h1 serves as vLLM, h2 as SGLang, h3 routes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from deploys import ROOT, UNIT, Fleet, recap, standin_hosts

pytestmark = pytest.mark.timeout(600)  # the first test has the installation of all three hosts in its time

KEY = "sk-router-0123456789"
SITE = {"ironserve_api_key": KEY, "ironserve_router": {"policy": "round_robin"}}
TOKENS_PER_S = 10
STREAM_S = 40
"""So long that it is still there when the calls that look for it are through, on a machine with a lot to do."""

STREAM = """
import json, sys, urllib.request
url, key, tokens = sys.argv[1:]
body = {"model": "tiny", "prompt": "x", "max_tokens": int(tokens), "stream": True}
headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
with urllib.request.urlopen(request, timeout=60) as answer:
    for line in answer:
        if line.strip():
            print(line.decode().strip(), flush=True)
"""

STEP = """
- hosts: "{{ groups | ironserve_servers }}"
  gather_facts: false
  become: true
  tasks:
    - ansible.builtin.include_role: {name: serve, tasks_from: "{{ step }}"}
      vars:
        serve_release: {service: main, port: "{{ ironserve_port }}"}
        serve_routers: "{{ ironserve_routers }}"
"""


class Routed:
    """The fleet with a router, and what clients and tests ask of it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.lab = fleet, fleet.lab
        self.address = {host: said["lab_address"] for host, said in self._hosts().items()}
        self.extra = fleet.folder / "extra.yml"
        servers = {"hosts": {"h2": {"ironserve_profile": "lab_sglang"}}}
        self.extra.write_text(yaml.safe_dump({"lab": servers, "router": {"hosts": {"h3": None}}}))
        (fleet.folder / "step.yml").write_text(STEP)

    def _hosts(self) -> dict[str, dict]:
        return yaml.safe_load(self.lab.inventory.read_text())["lab"]["hosts"]

    def play(self, playbook: str, *words: str, **site) -> subprocess.CompletedProcess[str]:
        return self.fleet.play("-i", str(self.extra), *words, playbook=playbook, **{**SITE, **site})

    def step(self, step: str, *words: str, **site) -> str:
        return self.play(str(self.fleet.folder / "step.yml"), "-e", f"step={step}", *words, **site).stdout

    def worker(self, state: str = "listed", check: bool = True, **more) -> dict:
        return self.fleet.module("h3", "router_worker", {"state": state, **more}, check=check)

    def url(self, host: str) -> str:
        return f"http://{self.address[host]}:8000"

    def listed(self) -> set[str]:
        return {one["url"] for one in self.worker()["workers"] if one["healthy"]}

    def stream(self, tokens: int) -> subprocess.Popen[str]:
        """A client in the lab's network that streams through the router."""
        argv = [
            str(ROOT / "tests" / "lab" / "lab"),
            "--name",
            self.lab.name,
            "run",
            "python3",
            "-c",
            STREAM,
            self.url("h3"),
            KEY,
            str(tokens),
        ]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def routed(make_lab, tmp_path_factory) -> Iterator[Routed]:
    """Both servers and the router installed; nothing is admitted."""
    (ROOT / ".ironserve").mkdir(exist_ok=True)
    wheels = [sys.executable, str(ROOT / "tools" / "wheelhouse.py"), "environments/sglang-router-0.3.2-py311"]
    subprocess.run(wheels, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    fleet = Fleet(standin_hosts(make_lab("-router"), 3), tmp_path_factory.mktemp("router"))
    for host in ("h1", "h2"):
        fleet.model(host, {"tokens_per_s": TOKENS_PER_S})
    routed = Routed(fleet)
    install = subprocess.Popen(
        fleet.command("-i", str(routed.extra), playbook="playbooks/router.yml", **SITE),
        cwd=ROOT, env=fleet.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    routed.play("deploy.yml", ironserve_routers=[])
    said = install.communicate(timeout=300)[0]
    assert install.returncode == 0, said
    return routed


def test_the_router_runs_and_says_its_key_to_nobody(routed):
    shell = routed.fleet.shell
    assert (
        shell("h3", "systemctl is-active ironserve-router; systemctl is-enabled ironserve-router") == "active\nenabled"
    )
    pid = shell("h3", "systemctl show -P MainPID ironserve-router")
    seen = shell(
        "h3",
        f"cat /proc/{pid}/cmdline /proc/{pid}/environ; systemctl cat ironserve-router; journalctl -u ironserve-router",
    )
    assert KEY not in seen
    assert shell("h3", "stat -c '%a %U %G' /etc/ironserve/router/router.json") == "640 root ironserve"
    ask = "curl -s -o /dev/null -w '%{http_code} ' http://127.0.0.1:8000"
    generate = f"{ask}/v1/completions -H 'Content-Type: application/json' -d '{{}}'"
    assert shell("h3", f"{ask}/health; {ask}/workers; {generate}") == "200 401 401"


def test_a_second_run_changes_nothing_and_an_interrupted_one_is_finished(routed):
    again = routed.play("playbooks/router.yml")
    assert recap(again.stdout, "h3")["changed"] == 0
    pid = routed.fleet.shell("h3", "systemctl show -P MainPID ironserve-router")
    # What it runs with was read before the files were written: a run was ended before its restart.
    routed.fleet.shell("h3", "echo '{}' > /run/ironserve-router/read.json")
    assert recap(routed.play("playbooks/router.yml").stdout, "h3")["changed"] == 1
    assert routed.fleet.shell("h3", "systemctl show -P MainPID ironserve-router") != pid


def test_without_a_router_the_steps_are_skipped(routed):
    out = routed.step("drain", "-l", "h1", ironserve_routers=[])
    assert recap(out, "h1") | {"ok": 0} == dict.fromkeys(recap(out, "h1"), 0) | {"skipped": 2}


def test_streams_end_whole_on_servers_that_are_drained_and_then_admitted_again(routed):
    routed.step("admit")
    servers = {routed.url("h1"), routed.url("h2")}
    assert routed.listed() == servers

    streams = [routed.stream(TOKENS_PER_S * STREAM_S) for _ in range(4)]
    begun = [stream.stdout.readline() for stream in streams]
    assert all(line.startswith("data: {") for line in begun), begun
    # h2 keeps its requests: what is drained next to it does not matter to them.
    drained = routed.worker("drained", url=routed.url("h1"))
    assert [one["url"] for one in drained["workers"]] == [routed.url("h2")]
    assert all(stream.poll() is None for stream in streams)
    assert routed.fleet.module("h1", "service_drain", {"service": "main", "timeout_s": 0})["cut"] == 2
    out = routed.step("drain", "-e", "ironserve_drain_timeout_s=60")
    assert [recap(out, host)["failed"] for host in ("h1", "h2")] == [0, 0]
    for stream in streams:
        lines = stream.communicate(timeout=60)[0].splitlines()
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert routed.listed() == set()

    routed.step("admit")
    assert routed.listed() == servers
    assert "changed=0" in routed.step("admit")
    counted = routed.worker()["errors"]
    assert {url: count["failed"] for url, count in counted.items()} == dict.fromkeys(servers, 0)


def test_a_router_that_restarts_has_its_servers_again(routed):
    routed.step("admit")
    routed.fleet.shell("h3", "systemctl kill --signal=SIGKILL ironserve-router")
    answer = routed.worker(at_least=2, timeout_s=60)
    assert sorted(one["url"] for one in answer["workers"]) == sorted(answer["admitted"])
    assert len(answer["admitted"]) == 2


def test_only_what_is_meant_comes_back_to_a_router_that_restarted_while_servers_were_down(routed):
    """h2 is down longer than a router tries by itself, and is added; h1 was taken out meanwhile, and never is."""
    routed.step("admit")
    for host in ("h1", "h2"):
        routed.fleet.shell(host, f"systemctl stop {UNIT}")
    routed.fleet.shell("h3", "systemctl restart ironserve-router")
    assert routed.worker(timeout_s=30)["workers"] == []
    drained = routed.worker("drained", url=routed.url("h1"))
    assert drained["changed"]
    assert drained["admitted"] == [routed.url("h2")]
    for host in ("h1", "h2"):  # a start ends when the server is ready: h1 could be added before h2
        routed.fleet.shell(host, f"systemctl start {UNIT}")
    answer = routed.worker(at_least=1, all=True, timeout_s=30)
    assert [one["url"] for one in answer["workers"] if one["healthy"]] == [routed.url("h2")]
    assert routed.worker(at_least=2, timeout_s=5)["workers"] == answer["workers"]
    keeper = routed.fleet.shell("h3", "systemctl show -P MainPID ironserve-router | xargs pgrep -P")
    routed.fleet.shell("h3", "systemctl kill --kill-whom=main --signal=SIGKILL ironserve-router")
    assert routed.worker(at_least=1, timeout_s=30)["admitted"] == [routed.url("h2")]
    assert keeper not in routed.fleet.shell("h3", "pgrep -f launch_router.py").split()
    routed.step("admit")


def test_a_server_stays_where_too_few_others_serve(routed):
    routed.step("admit")
    refused = routed.worker("drained", url=routed.url("h1"), at_least="75%", check=False)
    assert "without it 1 of 2 admitted servers are healthy, and at least 2 have to be" in refused["msg"]
    assert "ironserve_min_serving" in refused["msg"]
    assert routed.listed() == {routed.url("h1"), routed.url("h2")}
    assert routed.worker("drained", url=routed.url("h1"), at_least="1")["changed"]
    routed.step("admit")


def test_a_run_fails_where_a_router_lost_its_servers_by_its_restart(routed):
    routed.step("admit")
    routed.fleet.shell("h3", "chmod 600 /var/lib/ironserve/router/admitted.json")  # the keeper cannot read it any more
    site = {"ironserve_router": {"policy": "random"}, "check": False}
    failed = routed.play("playbooks/router.yml", "-e", "router_ready_timeout_s=5", **site)
    assert recap(failed.stdout, "h3")["failed"] == 1
    assert "router h3 has lost http" in failed.stdout
    log = routed.fleet.shell("h3", "journalctl -u ironserve-router")
    assert log.count("cannot add servers: [Errno 13]") == 2  # once by each of the two keepers, not each second
    routed.fleet.shell("h3", "chmod 644 /var/lib/ironserve/router/admitted.json")
    assert len(routed.worker(at_least=2, all=True)["workers"]) == 2


def test_a_router_that_is_down_or_refuses_is_told_with_what_to_do(routed):
    shell, settings = routed.fleet.shell, "/etc/ironserve/router/router.json"
    url = routed.url("h1")
    shell("h3", f"sed -i.kept s/{KEY}/sk-of-somebody/ {settings}")
    refused = routed.worker("drained", url=url, check=False)
    shell("h3", f"mv {settings}.kept {settings}; systemctl stop ironserve-router")
    assert "ansible-playbook playbooks/router.yml" in refused["msg"]
    down = routed.worker("admitted", url=url, timeout_s=1, check=False)
    assert "ironserve-router.service is inactive; see: journalctl -u" in down["msg"]
    routed.play("playbooks/router.yml")
    assert routed.worker(at_least=1)["workers"]
