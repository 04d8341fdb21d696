"""What checks found: filled in from the catalogue, overruled by name, told once for a fleet."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve.findings import Case, Found, accepted, grouped, judge, parse_accept, refuses

CATALOGUE = {
    "nccl-value": {
        "severity": "error",
        "why": "NCCL turns it into 0.",
        "do": "Write a number.",
        "source": ["https://a"],
    },
    "flag-deprecated": {"severity": "warning", "why": "It will go.", "do": "Write the new one."},
    "preflight": {"severity": "error", "why": "No deploy works.", "do": "mend it", "overrulable": False},
}
ORIGINS = {
    "argv": [
        {"words": ["/opt/x/bin/python3", "-m", "sglang.launch_server"], "origin": "engine sglang, lock a"},
        {"words": ["--attention-backend", "flashinfer"], "origin": "profiles/a.yml flags.attention-backend"},
        {"words": ["--bias=-1"], "origin": "profiles/a.yml for_group.lab.flags.bias"},
        {"words": ["--tp-size", "8"], "origin": "profiles/a.yml flags.tp-size, size tensor_parallel of host group lab"},
        {"words": ["--port", "8000"], "origin": "service: ironserve_port"},
    ],
    "env": [
        {"name": "A", "value": "1", "origin": "profiles/a.yml env.A"},
        {"name": "NCCL_PROTO", "value": "LL", "origin": "profiles/a.yml nccl_set, NCCL set low of host group lab"},
    ],
}  # fmt: skip


def case(host="h1", service="main", **more):
    lock = {"engine_version": "0.5.23"}
    release = {"service": service, "profile": "a", "engine": "sglang", "lock": lock, "flags": {}, "env": {}}
    return Case(host, release, origins=ORIGINS, **more)


def bad_value(case):
    yield Found("nccl-value", "profiles/a.yml", "env.NCCL_NTHREADS", '"abc" is no number')


def old_flag(case):
    yield Found("flag-deprecated", *case.place_of_flag("bias"), "--bias is deprecated")


def test_a_finding_gets_its_words_from_the_catalogue_and_the_gravest_comes_first():
    first, second = judge(case(), [old_flag, bad_value], CATALOGUE)
    assert first == {
        "rule": "nccl-value", "severity": "error", "host": "h1", "service": "main", "where": "profiles/a.yml",
        "key": "env.NCCL_NTHREADS", "text": '"abc" is no number', "why": "NCCL turns it into 0.",
        "do": "Write a number.", "source": ["https://a"], "overrulable": True, "accepted": False,
    }  # fmt: skip
    assert (second["severity"], second["key"]) == ("warning", "for_group.lab.flags.bias")


def test_an_error_refuses_and_a_warning_does_not():
    assert refuses(judge(case(), [bad_value], CATALOGUE))
    assert not refuses(judge(case(), [old_flag], CATALOGUE))


def test_an_accepted_error_stops_nothing_and_is_kept_for_the_ledger():
    findings = judge(case(), [bad_value, old_flag], CATALOGUE, ["nccl-value"])
    assert not refuses(findings)
    assert accepted(findings) == ["nccl-value"]


def test_a_rule_that_cannot_be_overruled_is_not():
    def no_driver(case):
        yield Found("preflight", "h1", "", "no driver")

    assert refuses(judge(case(), [no_driver], CATALOGUE, ["preflight"]))


@pytest.mark.parametrize(
    ("said", "rules", "wrong"),
    [
        ("", [], []),
        ("nccl-value, flag-deprecated", ["nccl-value", "flag-deprecated"], []),
        ("nccl-valu", [], ['unknown rule "nccl-valu" (did you mean "nccl-value"?)']),
        ("preflight", [], ["rule preflight cannot be overruled: mend it"]),
    ],
)
def test_what_is_accepted_is_a_rule_by_name(said, rules, wrong):
    assert parse_accept(said, CATALOGUE) == (rules, wrong)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (lambda c: c.place_of_flag("attention-backend"), ("profiles/a.yml", "flags.attention-backend")),
        (lambda c: c.place_of_flag("tp-size"),
         ("profiles/a.yml", "flags.tp-size, size tensor_parallel of host group lab")),
        (lambda c: c.place_of_flag("port"), ("service: ironserve_port", "flags.port")),
        (lambda c: c.place_of_flag("absent"), ("profile a", "flags.absent")),
        (lambda c: c.place_of_variable("A"), ("profiles/a.yml", "env.A")),
        (lambda c: c.place_of_variable("NCCL_PROTO"),
         ("profiles/a.yml", "nccl_set (NCCL set low of host group lab): NCCL_PROTO")),
    ],
)  # fmt: skip
def test_the_place_of_a_setting_is_where_somebody_wrote_it(place, expected):
    assert place(case()) == expected


def test_a_fleet_reads_each_fault_once_with_all_its_hosts():
    findings = [f for host in ("h1", "h2") for f in judge(case(host), [bad_value], CATALOGUE)]
    findings += judge(case("h3", "chat"), [bad_value], CATALOGUE)
    (group,) = grouped(findings)
    assert group["hosts"] == ["h1", "h2", "h3 (chat)"]


@pytest.mark.parametrize(
    ("seen", "declared", "family"),
    [
        ([], "sm120", "sm120"),
        (["sm120", "sm120"], "sm90", "sm120"),
        (["sm120", "sm90"], "sm120", "sm120"),
        ([], "none", ""),
    ],
)
def test_the_family_is_what_the_driver_tells_else_what_the_group_says(seen, declared, family):
    facts = {"gpus": {"gpus": [{"family": one} for one in seen]}}
    assert case(facts=facts, hardware={"gpu_family": declared}).family == family


@pytest.mark.parametrize(("packages", "version"), [({"nvidia-nccl-cu12": "2.26.2"}, "2.26.2"), ({}, "")])
def test_the_nccl_version_is_the_locks(packages, version):
    assert case(packages=packages).nccl_version == version


def test_what_is_said_of_hosts_themselves_is_told_once_too():
    def kernel(case):
        yield Found("flag-deprecated", f"host {case.host}", "kernel", "its command line has no iommu=pt")

    findings = [finding for host in ("h1", "h2") for finding in judge(case(host), [kernel], CATALOGUE)]
    (group,) = grouped(findings)
    assert (group["where"], group["hosts"]) == ("host", ["h1", "h2"])
