"""An engine's own parser on a host: what it says of good and bad flags, how often it is asked, what it leaves."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ansible.module_utils.ironserve import engine_flags

sys.path.insert(0, str(Path(__file__).parent))
from deploys import ROOT, Fleet, standin_hosts
from real_engines import SGLANG, VLLM, Engine, real_host

CACHE = "/opt/ironserve/flags"
ENVIRONMENTS = "/opt/ironserve/engines"
HELD = f"{ENVIRONMENTS}/held"
GO = "/run/go"
WAITS = '#!/bin/sh\nuntil [ -e {go} ]; do sleep 0.05; done\nexec {python} "$@"\n'
"""The interpreter of an environment that answers when it is let go."""
PROBE = "systemctl list-units --plain --no-legend --state=running 'run-*.service'"


class Host:
    """h1 with a service user and the environment of an engine, built as every environment is."""

    def __init__(self, fleet: Fleet, engine: str, lock: str) -> None:
        self.fleet, self.engine = fleet, engine
        wish = {"lock": lock, "wheelhouse": "/srv/wheelhouse"}
        self.environment = fleet.module("h1", "engine_environment", wish)["lock_id"]
        self.shell("useradd --system --home-dir /var/cache/ironserve --no-create-home ironserve")

    def shell(self, script: str) -> str:
        """What a script prints on the host."""
        return self.fleet.shell("h1", script)

    def release(
        self, flags: dict[str, Any], env: dict[str, str] | None = None, service: str = "main"
    ) -> dict[str, Any]:
        """As much of a release as the module looks at."""
        return {
            "service": service,
            "engine": self.engine,
            "environment": f"{ENVIRONMENTS}/{self.environment}",
            "lock": {"id": self.environment},
            "flags": flags,
            "env": env or {},
        }

    def ask(self, *releases: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The module's answer for each service."""
        return self.fleet.module("h1", "engine_flags", {"releases": list(releases), **more})["flags"]

    def main(self, flags: dict[str, Any], env: dict[str, str] | None = None) -> dict[str, Any]:
        """The module's answer for one service."""
        return self.ask(self.release(flags, env))["main"]

    def questions(self) -> int:
        """How often a parser was asked since the host was made."""
        return int(self.shell("journalctl -o cat | grep -c '^Start.*Ironserve asks an engine' || true"))


@pytest.fixture(scope="module")
def host(make_lab, tmp_path_factory) -> Host:
    """A host with the stand-in for SGLang."""
    lab = standin_hosts(make_lab("-flags"), 1)
    lock = ROOT / ".ironserve" / "standin" / "standin-sglang-3.11"
    return Host(Fleet(lab, tmp_path_factory.mktemp("flags")), "sglang", str(lock))


@pytest.fixture
def held(host) -> dict[str, Any]:
    """A release whose parser answers only after `touch GO`."""
    python = f"{ENVIRONMENTS}/{host.environment}/bin/python3"
    text = WAITS.format(go=GO, python=python)
    host.shell(f"rm -rf {GO} {HELD} {CACHE}/held; mkdir -p {HELD}/bin; cat > {HELD}/bin/python3 <<'E'\n{text}E\n")
    host.shell(f"chmod 755 {HELD}/bin/python3")
    return {**host.release({"tp-size": "2"}), "environment": HELD, "lock": {"id": "held"}}


BAD = {
    "tp-siez": "8", "tp": "8", "context-length": "long", "dtype": "float8", "enable-dp-attention": True,
    "num-continuous-decode-steps": "4", "trust-remote-code": True,
}  # fmt: skip


def test_the_parser_names_every_fault_of_a_profile_and_is_asked_once(host):
    env = {"SGLANG_HEALTH_CHECK_TIMEOU": "60", "A": "1"}
    before = host.questions()
    answer = host.main(BAD, env)
    assert (answer["state"], answer["engine_version"]) == ("known", "0.5.23"), answer
    assert answer["unknown"] == [{"flag": "tp-siez", "suggestion": "tp-size"}]
    assert answer["abbreviated"] == [{"flag": "tp", "meant": ["tp-size"]}]
    assert {entry["flag"] for entry in answer["invalid"]} == {"context-length", "dtype"}
    assert [entry["flag"] for entry in answer["deprecated"]] == ["enable-dp-attention"]
    assert "Use --attn-dp-size" in answer["deprecated"][0]["text"]
    assert answer["without_effect"] == ["num-continuous-decode-steps"]
    suggestion = "SGLANG_HEALTH_CHECK_TIMEOUT"
    assert answer["unknown_variables"] == [{"name": "SGLANG_HEALTH_CHECK_TIMEOU", "suggestion": suggestion}]
    assert host.questions() == before + 1
    assert host.main(BAD, env) == answer
    assert host.questions() == before + 1


def test_only_new_flags_are_a_new_question_and_two_services_are_one(host):
    host.main({"tp-size": "2"})
    before = host.questions()
    answers = host.ask(host.release({"tp-size": "4"}), host.release({"page-size": "large"}, service="chat"))
    assert host.questions() == before + 1
    assert answers["main"]["invalid"] == []
    assert [entry["flag"] for entry in answers["chat"]["invalid"]] == ["page-size"]
    assert host.main({"tp-size": "4"}, {"SGLANG_Y": "1"})["unknown_variables"][0]["name"] == "SGLANG_Y"
    assert host.questions() == before + 1


def test_who_wants_the_cache_only_asks_nobody(host):
    before = host.questions()
    new = host.release({"tp-size": "16"})
    assert host.ask(new, cached_only=True)["main"]["state"] == "unasked"
    new["lock"]["id"], new["environment"] = "another", f"{ENVIRONMENTS}/another"
    answer = host.ask(new)["main"]
    assert (answer["state"], answer["reason"]) == ("pending", "its environment is not on the host yet")
    assert host.questions() == before


SEES = """
import json, os, socket
network = [name for _, name in socket.if_nameindex()]
seen = {"user": os.getuid(), "network": network, "gpus": os.path.exists("/dev/nvidia0")}
for name in ("/opt/ironserve/engines/new", "/opt/ironserve/flags/new", "/var/cache/ironserve/new"):
    try:
        open(name, "w").close()
        seen[name] = True
    except OSError:
        seen[name] = False
print(json.dumps(seen))
"""
"""Tells what a program sees in the unit that the probe runs in."""


def test_the_probe_is_the_service_users_and_sees_neither_network_nor_gpu(host):
    host.main({"tp-size": "32"})
    host.shell("[ -e /dev/nvidia0 ] || mknod -m 666 /dev/nvidia0 c 1 3")
    argv = engine_flags.unit_argv(Path("/usr/bin/python3"), "ironserve", 60)
    seen = json.loads(host.fleet.lab.exec("h1", argv, input=SEES).stdout)
    assert seen == {
        "user": int(host.shell("id -u ironserve")),
        "network": ["lo"],
        "gpus": False,
        "/opt/ironserve/engines/new": False,
        "/opt/ironserve/flags/new": False,
        "/var/cache/ironserve/new": True,
    }


def test_the_environment_stays_as_it_is_and_the_cache_is_roots(host):
    seal = f"find {ENVIRONMENTS}/{host.environment} -printf '%p %s %T@\\n' | sort | sha256sum"
    before = host.shell(seal)
    assert host.main({"tp-size": "64"})["state"] == "known"
    assert host.shell(seal) == before
    assert host.shell(f"find {CACHE} ! -user root -o -perm /022") == ""


def test_a_probe_that_is_killed_leaves_nothing(host, held):
    with ThreadPoolExecutor() as other:
        asking = other.submit(host.ask, held)
        unit = host.shell(f"until {PROBE} | grep -q run-; do sleep 0.05; done; {PROBE} | cut -d' ' -f1")
        host.shell(f"systemctl kill --kill-who=all -s KILL {unit}")
        answer = asking.result()["main"]
    assert answer["state"] == "failed"
    assert "could not make the engine's parser" in answer["reason"]
    assert "held" not in host.shell(f"ls {CACHE} || true").split()
    host.shell(f"touch {GO}")
    assert host.ask(held)["main"]["state"] == "known"


def test_a_probe_that_hangs_is_ended_in_time(host, held):
    answer = host.ask(held, timeout_s=1)["main"]
    assert (answer["state"], answer["reason"]) == ("failed", f"{HELD}/bin/python3 did not answer in 1 s")
    assert host.shell(PROBE) == ""
    assert "held" not in host.shell(f"ls {CACHE} || true").split()


class Real(NamedTuple):
    """What the parser of a real engine is asked, and what it has to find."""

    engine: Engine
    version: str
    good: dict[str, Any]
    bad: dict[str, Any]
    faults: dict[str, list[str]]
    env: dict[str, str]
    unread_variable: str


REAL = {
    "sglang": Real(
        engine=SGLANG,
        version="0.5.23",
        good={"tp-size": "2", "attention-backend": "triton", "context-length": "1k",
              "cuda-graph-bs-decode": ["1", "2"]},
        bad={"tp": "2", "attention-backend": "tritno", "nsa-prefill-backend": "fa3", "cuda-graph-max-bs": "8",
             "num-continuous-decode-steps": "4", "disable-cuda-graph": True},
        faults={"unknown": ["nsa-prefill-backend"], "abbreviated": ["cuda-graph-max-bs", "tp"],
                "invalid": ["attention-backend"], "deprecated": ["disable-cuda-graph"],
                "without_effect": ["num-continuous-decode-steps"]},
        env={"SGLANG_HEALTH_CHECK_TIMEOUTT": "1", "HF_HUB_OFFLINE": "1"},
        unread_variable="SGLANG_HEALTH_CHECK_TIMEOUTT",
    ),
    "vllm": Real(
        engine=VLLM,
        version="0.32.0",
        good={"tensor-parallel-size": "2", "compilation-config.cudagraph_mode": "FULL", "max-model-len": "1k",
              "no-enable-prefix-caching": True},
        bad={"swap-space": "4", "disable-log-requests": True, "max-num-seqs": "many", "tensor-parallel": "2",
             "compilation-config": "{", "log-config-file": "/x"},
        faults={"unknown": ["disable-log-requests", "swap-space"], "abbreviated": ["tensor-parallel"],
                "invalid": ["compilation-config", "max-num-seqs"], "deprecated": ["log-config-file"],
                "without_effect": []},
        env={"VLLM_ATTENTION_BACKEND": "TRITON_MLA", "VLLM_NO_USAGE_STATS": "1"},
        unread_variable="VLLM_ATTENTION_BACKEND",
    ),
}  # fmt: skip


@pytest.mark.timeout(1500)  # with cold caches the engine's wheels are fetched and its environment is built
@pytest.mark.parametrize("real", REAL.values(), ids=REAL)
def test_a_real_parser_takes_a_good_profile_and_names_every_fault_of_a_bad_one(make_lab, tmp_path_factory, real):
    name = real.engine.name
    lab = make_lab(f"-flags-{name}")
    real_host(lab, real.engine)
    host = Host(Fleet(lab, tmp_path_factory.mktemp(name)), name, f"{name}-{real.version}-cpu")
    answers = host.ask(host.release(real.good), host.release(real.bad, real.env, "bad"), timeout_s=240)
    said = {key: value for key, value in answers["main"].items() if value}
    assert said == {"state": "known", "engine_version": real.version}
    told = {
        key: sorted(entry if isinstance(entry, str) else entry["flag"] for entry in answers["bad"][key])
        for key in real.faults
    }
    assert told == real.faults
    assert [entry["name"] for entry in answers["bad"]["unknown_variables"]] == [real.unread_variable]
    assert host.questions() == 1
    lab.down()
