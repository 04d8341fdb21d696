"""Rules that are data: their own examples, and what a person reads of them. Numbers are those of the field cases."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.ironserve import knowledge, lock
from ansible.module_utils.ironserve.findings import SEVERITIES, Case, judge, refuses
from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.profiles import Source
from ansible.module_utils.ironserve.report import text
from ansible.module_utils.ironserve.resolve import resolve
from ansible.module_utils.ironserve.rules import OPERATORS, PLACEHOLDER, check, considered, decide, fact, known
from packaging.specifiers import SpecifierSet

sys.path.insert(0, str(Path(__file__).parent))
from rule_cases import case_of

ROOT = Path(__file__).resolve().parents[3]

RULES = knowledge.rules(ROOT)
CATALOGUE = knowledge.catalogue(ROOT)
BY_ID = {rule["id"]: rule for rule in RULES}
REQUIRED = {"id", "severity", "engine", "when", "text", "why", "do", "source", "fires", "silent"}
OPTIONAL = {"versions", "overrulable"}
FIRES = [(rule, example) for rule in RULES for example in rule["fires"]]
SILENT = [(rule, {**rule["fires"][0], **change}) for rule in RULES for change in rule["silent"]]
KIMI = {
    "version": "0.5.23", "gpu_family": "sm120", "gpu_count": 8, "tensor_parallel": 8, "link": "pcie",
    "model.architecture": "KimiK25ForConditionalGeneration", "model.attention": "mla", "model.sparse_attention": None,
    "model.sinks": False, "model.model_type": "kimi_k2", "model.quantisation": "compressed-tensors",
    "flag.disable-custom-all-reduce": True, "package.flashinfer-python": "0.7.2", "package.sglang-kernel": "0.4.10",
    "nccl_version": "2.30.7", "env.NCCL_PROTO": "LL", "env.NCCL_ALGO": "Ring", "env.NCCL_P2P_LEVEL": "SYS",
}  # fmt: skip


def example_case(rule: dict, example: dict) -> Case:
    return case_of(example, "sglang" if rule["engine"] == "any" else rule["engine"])


def named(entry) -> str:
    return entry["id"] if "id" in entry else " ".join(f"{name}={value}" for name, value in entry.items())


def fired(case: Case) -> list[str]:
    return [found.rule for found in check(case, RULES)]


def errors(case: Case) -> list[str]:
    """The rules that refuse."""
    findings = judge(case, [functools.partial(check, rules=RULES)], CATALOGUE)
    return [finding["rule"] for finding in findings if finding["severity"] == "error"]


def test_ids_are_unique_and_there_are_many():
    ids = [rule["id"] for rule in RULES]
    assert len(set(ids)) == len(ids) >= 30
    assert all(re.fullmatch(r"(sglang|vllm|nccl)(-[a-z0-9]+)+", name) for name in ids)


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_a_rule_has_what_it_needs_and_nothing_else(rule):
    assert set(rule) >= REQUIRED
    assert set(rule) <= REQUIRED | OPTIONAL
    assert rule["severity"] in SEVERITIES
    assert rule["engine"] in ("any", "sglang", "vllm")
    assert rule["source"]
    assert all(source.startswith("https://") for source in rule["source"])
    assert rule["fires"]
    assert rule["silent"]
    assert SpecifierSet(rule.get("versions", "")) is not None
    assert not PLACEHOLDER.search(rule["why"] + rule["do"]), "only the text is filled in"
    for names in rule["when"]:
        assert all(known(name) for name in names.split("|")), names
    for name in PLACEHOLDER.findall(rule["text"]):
        assert known(name) or name in ("engine", "version"), name


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_every_condition_is_needed_by_an_example(rule):
    """An example that is silent differs from the first one that fires, so each condition has one that it decides."""
    decided = [decide(example_case(rule, {**rule["fires"][0], **change}), rule).why for change in rule["silent"]]
    for names in rule["when"]:
        assert any(name in why for name in names.split("|") for why in decided), f"{names}: {decided}"


@pytest.mark.parametrize(("rule", "example"), FIRES, ids=named)
def test_a_rule_fires_where_its_example_says(rule, example):
    decision = decide(example_case(rule, example), rule)
    assert decision.fires, decision.why
    (found,) = check(example_case(rule, example), [rule])
    assert not PLACEHOLDER.search(found.text)
    assert "unknown" not in found.text


@pytest.mark.parametrize(("rule", "example"), SILENT, ids=named)
def test_a_rule_is_silent_where_its_example_says(rule, example):
    decision = decide(example_case(rule, example), rule)
    assert decision.fires is False, decision.why


@pytest.mark.parametrize("rule", [rule for rule in RULES if "versions" in rule], ids=named)
def test_a_rule_is_silent_out_of_its_versions(rule):
    for version in ("0.0.1", "99.0"):
        case = example_case(rule, {**rule["fires"][0], "version": version})
        inside = SpecifierSet(rule["versions"]).contains(version)
        assert bool(decide(case, rule).fires) is inside


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule["engine"] != "any"], ids=named)
def test_a_rule_is_silent_for_the_other_engine(rule):
    other = "vllm" if rule["engine"] == "sglang" else "sglang"
    decision = decide(case_of({"version": "1"}, other), rule)
    assert decision == (False, f"engine is {other}, the rule is for {rule['engine']}")


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_what_nobody_knows_refuses_nothing(rule):
    release = {"service": "main", "profile": "p", "flags": {}, "env": {}, "lock": {"engine_version": "1"}}
    engine = "vllm" if rule["engine"] == "any" else rule["engine"]
    assert not decide(Case("h1", {**release, "engine": engine}), rule).fires


def shipped(profile: str, group: str, facts: dict) -> Case:
    """A profile as it is shipped, on a host of the group in which these facts were seen."""
    site = {}
    for name in ("all", group):
        site |= yaml.safe_load((ROOT / "group_vars" / name / "main.yml").read_text())
    files = (ROOT / "profiles").glob("*.yml")
    sources = {file.stem: Source(f"profiles/{file.name}", yaml.safe_load(file.read_text())) for file in files}
    found = {engine: lock.load(ROOT / "environments" / name) for engine, name in site["ironserve_locks"].items()}
    locks = {
        engine: {"id": one.id, "name": one.spec.name, "engine_version": one.spec.engine_version, "installed_mib": 1}
        for engine, one in found.items()
    }
    problems, origins = Problems(), {}
    release = resolve("h1", "main", profile, site, sources, locks, problems, origins)
    assert not problems, problems.report("shipped")
    packages = {one.name: one.version for one in found[release["engine"]].requirements}
    return Case("h1", release, case_of(facts).facts, site["ironserve_hardware"], packages, origins)


HOSTS = {
    "blackwell": {**KIMI, "gpu_family": "sm120", "link": "pcie"},
    "hopper": {**KIMI, "gpu_family": "sm90", "link": "nvlink"},
}


def findings_of(case: Case, accept: tuple[str, ...] = ()) -> list[dict]:
    return judge(case, [functools.partial(check, rules=RULES)], CATALOGUE, accept)


def test_flashinfer_nccl_as_it_is_shipped_is_refused_on_blackwell_in_one_line():
    case = shipped("flashinfer_nccl", "blackwell", HOSTS["blackwell"])
    findings = findings_of(case)
    assert refuses(findings)
    (error,) = [finding for finding in findings if finding["severity"] == "error"]
    assert text([{**error, "hosts": ["h1"]}], ["h1"]).splitlines()[1] == (
        "error: profiles/flashinfer_nccl.yml: flags.attention-backend: FlashInfer attention with an MLA model on sm120 "
        "hung in CUDA-graph capture, with the GPUs' memory held  [sglang-mla-flashinfer-sm120]"
    )
    assert not refuses(findings_of(case, (error["rule"],)))


def test_triton_nccl_as_it_is_shipped_passes_on_blackwell_with_notes_only():
    found = {finding["rule"]: finding["severity"] for finding in findings_of(shipped("triton_nccl", "blackwell", KIMI))}
    assert found == {"nccl-p2p-far": "note"}


@pytest.mark.parametrize(
    ("profile", "group"),
    [("baseline", "blackwell"), ("triton_nccl", "blackwell"), ("vllm_nccl", "blackwell"), ("baseline", "hopper")],
)
def test_no_other_shipped_profile_is_refused(profile, group):
    findings = findings_of(shipped(profile, group, HOSTS[group]))
    assert {finding["severity"] for finding in findings} <= {"note"}


@pytest.mark.parametrize("profile", ["lab_sglang", "lab_vllm"])
def test_profiles_of_test_hosts_have_nothing_to_tell(profile):
    assert findings_of(shipped(profile, "lab", {"gpu_count": 0})) == []


def test_case_1_a_backend_of_data_centre_blackwell_is_refused_on_sm120():
    chosen = {"version": "0.5.10", "gpu_family": "sm120", "flag.attention-backend": "trtllm_mla"}
    assert errors(case_of(chosen)) == ["sglang-trtllm-mla-sm120"]
    assert fired(case_of({"version": "0.5.10", "gpu_family": "sm120", "model.attention": "mla"})) == []
    assert errors(case_of({**chosen, "gpu_family": "sm100"})) == []
    assert errors(case_of({**chosen, "version": "0.5.24"})) == []


@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.22.0"), ("vllm", "0.33.0"), ("sglang", "0.5.12")])
def test_case_7_expandable_segments_and_the_engines_own_all_reduce_are_flagged(engine, version, variable):
    several = "expandable_segments:True,max_split_size_mb:512"
    case = case_of({"version": version, "tensor_parallel": 2, f"env.{variable}": several}, engine)
    (found,) = check(case, RULES)
    assert found.rule == f"{engine}-expandable-segments"
    assert found.key == f"env.{variable}"
    remedies = CATALOGUE[found.rule]["do"]
    assert "expandable_segments" in remedies
    assert "disable-custom-all-reduce" in remedies


def test_why_a_rule_is_silent_is_told_with_what_was_seen_and_what_it_is_for():
    def why(rule: str, facts: dict, engine: str = "sglang") -> dict:
        (told,) = considered(case_of(facts, engine), [BY_ID[rule]])
        return told

    sm120 = "sglang-mla-flashinfer-sm120"
    assert why(sm120, {}, "vllm")["why"] == "engine is vllm, the rule is for sglang"
    assert why(sm120, {"version": "0.5.8"})["why"] == "sglang is 0.5.8, the rule is for >=0.5.9,<=0.5.23"
    assert why(sm120, {"version": "0.5.23", "gpu_family": "sm90"})["why"] == "gpu_family is sm90, the rule is for sm120"
    assert why(sm120, {"version": "0.5.23"})["why"] == "not decided: gpu_family is not known"
    assert (
        why(sm120, {"version": "0.5.23", "gpu_family": "sm120"})["why"] == "not decided: model.attention is not known"
    )
    told = why(sm120, {**KIMI, "flag.attention-backend": "flashinfer"})
    assert told == {
        "rule": sm120, "fired": True,
        "why": "gpu_family is sm120, model.attention is mla, model.sparse_attention is not set, "
               "decode_backend is flashinfer, cuda_graphs is true",
    }  # fmt: skip
    assert why(sm120, {"version": "dev"})["why"] == "not decided: Invalid version: 'dev'"


def test_a_finding_is_at_the_setting_that_it_is_about():
    origins = {
        "argv": [
            {
                "words": ["--decode-attention-backend", "flashinfer"],
                "origin": "profiles/a.yml flags.decode-attention-backend",
            }
        ],
        "env": [
            {
                "name": "NCCL_P2P_LEVEL",
                "value": "SYS",
                "origin": "profiles/a.yml nccl_set, NCCL set low of host group b",
            }
        ],
    }
    facts = {**KIMI, "flag.decode-attention-backend": "flashinfer", "flag.attention-backend": "triton"}
    places = {found.rule: (found.where, found.key) for found in check(case_of(facts, origins=origins), RULES)}
    assert places["sglang-mla-flashinfer-sm120"] == ("profiles/a.yml", "flags.decode-attention-backend")
    assert places["nccl-p2p-far"] == ("profiles/a.yml", "nccl_set (NCCL set low of host group b): NCCL_P2P_LEVEL")


def test_a_finding_about_no_setting_is_at_the_host():
    rule = {"id": "x", "engine": "any", "when": {"gpu_family": "sm120"}, "text": "t"}
    (found,) = check(case_of({"gpu_family": "sm120", "version": "1"}), [rule])
    assert (found.where, found.key) == ("host h1", "")


@pytest.mark.parametrize(
    ("wanted", "value", "holds"),
    [
        ("8", 8, True),
        ("TRITON_MLA", "triton_mla", True),
        (["a", None], None, True),
        (["a", None], "b", False),
        ({"not": ["a", "b"]}, "c", True),
        ({"not": ["a", "b"]}, "b", False),
        ({"not": True}, None, True),
        ({"set": True}, None, False),
        ({"set": True, "not": 64}, "1", True),
        ({"set": True, "not": 64}, "64", False),
        ({"versions": "<2.27"}, "2.26.2", True),
        ({"versions": "<2.27"}, None, False),
        ({"versions": "<=0.5.23"}, "0.5.23+cu130", True),
        ({"above": 0.93}, "0.95", True),
        ({"above": 3}, "auto", False),
        ({"setting": "expandable_segments:True"}, "a:1, expandable_segments:True", True),
        ({"setting": "expandable_segments:True"}, "expandable_segments:False", False),
        ({"begins": "fp8"}, "fp8_e4m3", True),
        ({"begins": "fp8"}, "bf16", False),
        ([{"begins": "GPU-"}, {"begins": "MIG-"}], "MIG-1", True),
    ],
)  # fmt: skip
def test_what_a_condition_may_want(wanted, value, holds):
    rule = {"id": "x", "engine": "any", "when": {"flag.f": wanted}, "text": "t"}
    facts = {"version": "1"} if value is None else {"version": "1", "flag.f": value}
    assert decide(case_of(facts), rule).fires is holds


def test_one_of_several_facts_is_enough_and_an_unknown_one_leaves_it_open():
    rule = {"id": "x", "engine": "any", "when": {"flag.a|model.heads": "8"}, "text": "t"}
    assert decide(case_of({"version": "1", "flag.a": "8"}), rule).fires is True
    assert decide(case_of({"version": "1", "flag.a": "9"}), rule).fires is None
    assert decide(case_of({"version": "1", "flag.a": "9", "model.heads": 7}), rule) == (
        False, "flag.a is 9, model.heads is 7, the rule is for 8",
    )  # fmt: skip


def test_every_operator_is_used_by_a_rule():
    def operators(wanted) -> set[str]:
        if isinstance(wanted, dict):
            return set(wanted)
        return set().union(*map(operators, wanted)) if isinstance(wanted, list) else set()

    used = set().union(*(operators(wanted) for rule in RULES for wanted in rule["when"].values()))
    assert used == set(OPERATORS)


@pytest.mark.parametrize(
    ("facts", "engine", "name", "value"),
    [
        ({"flag.tensor-parallel-size": "4"}, "sglang", "tensor_parallel", 4),
        ({"flag.tp": "4"}, "sglang", "tensor_parallel", 4),
        ({}, "vllm", "tensor_parallel", 1),
        ({"gpu_count": 2, "link": "nvlink"}, "vllm", "link", "nvlink"),
        ({"gpu_count": 2, "link": "pcie"}, "vllm", "link", "pcie"),
        ({"tensor_parallel": 2}, "vllm", "custom_all_reduce", True),
        ({"tensor_parallel": 4, "link": "nvlink"}, "vllm", "custom_all_reduce", True),
        ({"tensor_parallel": 4, "link": "pcie"}, "vllm", "custom_all_reduce", False),
        ({"flag.compilation-config": '{"cudagraph_mode": "NONE"}'}, "vllm", "cuda_graphs", False),
        ({"flag.cuda-graph-backend-decode": "disabled"}, "sglang", "cuda_graphs", False),
        ({}, "sglang", "cuda_graphs", True),
        ({"flag.speculative-config": '{"num_speculative_tokens": 3}'}, "vllm", "speculative_tokens", 3),
        ({"flag.speculative-num-steps": "3"}, "sglang", "speculative_tokens", 3),
        ({"flag.attention-config": '{"backend": "TRITON_MLA"}'}, "vllm", "decode_backend", "TRITON_MLA"),
        ({"package.nvidia-cuda-runtime": "13.0.96"}, "vllm", "cuda", "13.0.96"),
        ({"gpu_count": 2, "gpu_memory_mib": 97887}, "vllm", "gpu_memory_mib", 97887),
    ],
)  # fmt: skip
def test_facts_that_follow_from_others(facts, engine, name, value):
    assert fact(case_of(facts, engine), name) == value


def test_a_services_own_gpus_decide_how_they_are_linked():
    case = case_of({"gpu_count": 3, "link": "pcie"}, "vllm")
    case.facts["gpus"]["topology"][0][1] = case.facts["gpus"]["topology"][1][0] = "NV4"
    assert fact(case, "link") == "mixed"
    case.release["gpus"] = ["GPU-0", "GPU-1"]
    assert fact(case, "link") == "nvlink"
    assert fact(case, "gpu_count") == 2
