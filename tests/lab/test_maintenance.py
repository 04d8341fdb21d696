"""Maintenance behind the real sglang-router: h1 and h2 serve with the stand-in engine, h3 routes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from deploys import ROOT, Fleet, lines_with, recap, standin_hosts

SITE = {"ironserve_api_key": "sk-router-0123456789", "ironserve_soak_s": 0}


class Routed(Fleet):
    """The fleet with a router in front of it."""

    def run(self, playbook: str, *words: str, check: bool = True, **site) -> subprocess.CompletedProcess[str]:
        """A playbook with the router in its inventory."""
        both = ("-i", str(self.folder / "router.yml"), *words)
        return self.play(*both, playbook=playbook, check=check, **{**SITE, **site})

    def serving(self) -> list[str]:
        """The hosts that the router sends requests to."""
        return self.named(worker["url"] for worker in self.asked()["workers"] if worker["healthy"])

    def admitted(self) -> list[str]:
        """The hosts that it is meant to send requests to."""
        return self.named(self.asked()["admitted"])

    def asked(self) -> dict[str, Any]:
        """What the router answers."""
        return self.module("h3", "router_worker", {"state": "listed"})

    def named(self, found: Iterable[str]) -> list[str]:
        """The hosts with these URLs."""
        hosts = yaml.safe_load(self.lab.inventory.read_text())["lab"]["hosts"]
        urls = {f"http://{said['lab_address']}:8000": name for name, said in hosts.items()}
        return sorted(urls[url] for url in found)


@pytest.fixture(scope="module")
def routed(make_lab, tmp_path_factory):
    """h1 and h2 serve behind h3."""
    (ROOT / ".ironserve").mkdir(exist_ok=True)
    (ROOT / ".ironserve" / "clients").mkdir(exist_ok=True)
    for lock in ("sglang-router-0.3.2-py311", "vllm-bench-0.32.0-py311"):
        wheels = [sys.executable, str(ROOT / "tools" / "wheelhouse.py"), f"environments/{lock}"]
        subprocess.run(wheels, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    # The client's environment is 3 GiB, and a test host's own disk is memory.
    binds = [f"{ROOT}/.ironserve/clients:/opt/ironserve/clients"]
    routed = Routed(standin_hosts(make_lab("-maintenance"), 3, binds=binds), tmp_path_factory.mktemp("maintenance"))
    (routed.folder / "router.yml").write_text(yaml.safe_dump({"router": {"hosts": {"h3": None}}}))
    for host in ("h1", "h2"):
        routed.model(host)
    routed.run("playbooks/router.yml")
    routed.run("deploy.yml", "-e", "profile=lab_vllm")
    assert routed.serving() == ["h1", "h2"]
    return routed


@pytest.mark.timeout(900)  # two playbooks for three hosts come before it
def test_a_host_leaves_its_router_only_where_enough_stay_and_comes_back_behind_the_gate(routed):
    drain, admit = ("playbooks/drain.yml", "-l", "h1"), ("playbooks/admit.yml", "-l", "h1")
    refused = routed.run(*drain, check=False, ironserve_min_serving=2)
    assert refused.returncode == 2
    said = " ".join(refused.stdout.split())
    assert (
        "nothing was touched: without h1 router h3 has 1 of 2 servers, and has to keep 2 (ironserve_min_serving)"
        in said
    )
    assert routed.serving() == ["h1", "h2"]

    pid = routed.main_pid("h1")
    drained = routed.run(*drain, ironserve_min_serving=1)
    assert lines_with(drained.stdout, ["h1", "main", "ready", "h3", "drained"])
    assert (routed.serving(), routed.main_pid("h1")) == (["h2"], pid)
    assert recap(routed.run(*drain, ironserve_min_serving=1).stdout, "h1")["changed"] == 0

    routed.shell("h1", "systemctl stop ironserve-main")
    admitted = routed.run(*admit)
    assert lines_with(admitted.stdout, ["h1", "main", "lab_vllm", "ready", "yes"])
    assert routed.serving() == ["h1", "h2"]
    assert recap(routed.run(*admit).stdout, "h1")["changed"] == 0


@pytest.mark.timeout(900)
def test_a_server_is_out_of_its_router_while_it_is_measured_and_back_afterwards(routed):
    load = {"concurrencies": [1], "input_tokens": 8, "output_tokens": 8, "repetitions": 1, "min_requests": 2}
    site = {**SITE, "ironserve_benchmark": load}
    router = ("-i", str(routed.folder / "router.yml"))
    argv = routed.command(*router, "-l", "h1", playbook="playbooks/benchmark.yml", **site)
    run = subprocess.Popen(argv, cwd=ROOT, env=routed.environment(), stdout=subprocess.PIPE, text=True)
    steps = "/run/ironserve-benchmark_main/steps.jsonl"
    routed.shell("h1", f"for i in $(seq 1200); do grep -q begin {steps} 2>/dev/null && exit; sleep 0.1; done; exit 1")
    assert routed.serving() == ["h2"]
    output = run.communicate()[0]
    assert run.returncode == 0, output
    assert routed.serving() == ["h1", "h2"]

    routed.shell("h1", "systemctl stop ironserve-main")
    failed = routed.run("playbooks/benchmark.yml", "-l", "h1", check=False, ironserve_benchmark=load)
    assert failed.returncode == 2
    assert "service main is down, and only one that is ready is measured" in failed.stdout
    assert routed.admitted() == ["h1", "h2"]  # it was not even drained
    routed.run("playbooks/admit.yml", "-l", "h1")
    assert routed.serving() == ["h1", "h2"]


@pytest.mark.timeout(900)
def test_a_server_leaves_its_router_before_it_is_stopped_or_removed(routed):
    stop = ("playbooks/stop.yml", "-l", "h1")
    routed.run(*stop, "--check")
    assert routed.serving() == ["h1", "h2"]
    routed.run(*stop, ironserve_min_serving=2)  # to stop it is what is meant
    assert (routed.admitted(), routed.main_pid("h1")) == (["h2"], 0)
    assert recap(routed.run(*stop).stdout, "h1")["changed"] == 0
    routed.run("playbooks/admit.yml", "-l", "h1")
    assert routed.serving() == ["h1", "h2"]

    silent = routed.run(*stop, check=False, ironserve_routers=["nowhere"])
    assert silent.returncode == 2
    assert "h1: nothing was stopped, since it could not be drained: " in silent.stdout
    assert routed.main_pid("h1") > 0

    routed.run("playbooks/remove.yml", "-l", "h1", "-e", "service=main", ironserve_services={})
    assert (routed.admitted(), routed.main_pid("h1")) == (["h2"], 0)
