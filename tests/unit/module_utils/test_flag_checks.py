"""What an operator reads about flags and variables, by the parsers of published engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.ironserve import knowledge
from ansible.module_utils.ironserve.findings import Case, judge, refuses
from ansible.module_utils.ironserve.flag_checks import flag_check

ROOT = Path(__file__).resolve().parents[3]
CATALOGUE = knowledge.catalogue(ROOT)
CHECK = flag_check(knowledge.engines(ROOT))


@pytest.fixture
def findings(resolved, ask_captured):
    """What is found of a profile (YAML text) with an engine of a version, or with the answer of a host."""

    def run(engine: str, profile: str, answer: dict | None = None) -> list[dict]:
        name, version = engine.split("-")
        given = resolved(f"engine: {name}\n{profile}")
        assert given.found == []
        release = {**given.release, "lock": {**given.release["lock"], "engine_version": version}}
        facts = {"flags": {"main": answer or ask_captured(engine, release)}}
        return judge(Case("h1", release, facts, origins=given.origins), [CHECK], CATALOGUE)

    return run


def told(findings: list[dict]) -> dict[str, str]:
    return {finding["key"]: finding["rule"] for finding in findings}


REMOVED_VLLM = "flags: {disable-log-requests: true, swap-space: 4}"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.10.2", {"flags.disable-log-requests": "flag-deprecated"}),
        ("0.17.1", {"flags.disable-log-requests": "flag-unknown"}),
        ("0.18.0", {"flags.disable-log-requests": "flag-unknown", "flags.swap-space": "flag-unknown"}),
        ("0.19.1", {"flags.disable-log-requests": "flag-unknown", "flags.swap-space": "flag-unknown"}),
    ],
)
def test_case_44_vllm_flags_that_were_removed(findings, version, expected):
    found = findings(f"vllm-{version}", REMOVED_VLLM)
    assert told(found) == expected
    assert refuses(found) == (version != "0.10.2")
    do = {finding["key"]: finding["do"] for finding in found}
    assert do["flags.disable-log-requests"] == "Write no-enable-log-requests, or leave it out."
    assert do.get("flags.swap-space", "Leave it out.") == "Leave it out."
    assert {finding["where"] for finding in found} == {"profiles/p.yml"}


def test_case_44_the_replacement_is_a_good_profile(findings):
    for version in ("0.10.2", "0.17.1", "0.18.0", "0.19.1", "0.32.0"):
        assert findings(f"vllm-{version}", "flags: {no-enable-log-requests: true}") == []


SGLANG_OF_ALL_TIMES = """
flags:
  tp: 8
  enable-ep-moe: true
  enable-deepep-moe: true
  enable-flashinfer-mla: true
  nsa-prefill-backend: flashmla_sparse
  cuda-graph-max-bs: 32
  mamba-scheduler-strategy: no_buffer
  num-continuous-decode-steps: 4
  disable-custom-all-reduce: true
  watchdog-timeout: 300
  dist-timeout: 600
  disable-cuda-graph: true
  enable-dp-attention: true
  enable-pcie-oneshot-allreduce: true
"""
ALWAYS = {
    "tp": "flag-abbreviated",
    "num-continuous-decode-steps": "flag-without-effect",
    "enable-pcie-oneshot-allreduce": "flag-unknown",
}
GONE_SINCE_0_4 = dict.fromkeys(["enable-ep-moe", "enable-deepep-moe", "enable-flashinfer-mla"], "flag-unknown")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.4.6", {"nsa-prefill-backend": "flag-unknown", "mamba-scheduler-strategy": "flag-unknown"}),
        ("0.5.10.post1", GONE_SINCE_0_4),
        (
            "0.5.23",
            {
                **GONE_SINCE_0_4,
                "nsa-prefill-backend": "flag-unknown",
                "mamba-scheduler-strategy": "flag-unknown",
                "cuda-graph-max-bs": "flag-abbreviated",
                "disable-cuda-graph": "flag-deprecated",
                "enable-dp-attention": "flag-deprecated",
            },
        ),
    ],
)
def test_case_46_one_profile_for_three_versions_of_sglang(findings, version, expected):
    found = findings(f"sglang-{version}", SGLANG_OF_ALL_TIMES)
    both = [finding for finding in found if finding["key"] == "flags.enable-flashinfer-mla"]
    if version == "0.4.6":  # there it is deprecated, and nothing reads it any more
        assert {finding["rule"] for finding in both} == {"flag-deprecated", "flag-without-effect"}
        found = [finding for finding in found if finding not in both]
    assert told(found) == {f"flags.{name}": rule for name, rule in {**ALWAYS, **expected}.items()}
    assert refuses(found)


@pytest.mark.parametrize(
    ("flag", "text", "do"),
    [
        ("tp", "--tp is no flag of SGLang 0.5.23, only the beginning of --tp-size", "Write tp-size, as it is meant."),
        (
            "cuda-graph-max-bs",
            "--cuda-graph-max-bs is no flag of SGLang 0.5.23, only the beginning of --cuda-graph-max-bs-decode or "
            "--cuda-graph-max-bs-prefill",
            "Write cuda-graph-max-bs-decode or cuda-graph-max-bs-prefill, as it is meant.",
        ),
        (
            "nsa-prefill-backend",
            "SGLang 0.5.23 has no --nsa-prefill-backend any more: what was called NSA is called DSA",
            "Write dsa-prefill-backend.",
        ),
        (
            "enable-pcie-oneshot-allreduce",
            "--enable-pcie-oneshot-allreduce is in no SGLang as published, only in the builds that recipes for RTX PRO "
            "6000 use (lukealonso/sglang)",
            "Leave it out, or name a lock of that build in ironserve_locks.sglang.",
        ),
        (
            "num-continuous-decode-steps",
            "SGLang 0.5.23 accepts --num-continuous-decode-steps, and nothing in it reads what it says",
            "Leave it out.",
        ),
        (
            "enable-dp-attention",
            "--enable-dp-attention is deprecated in SGLang 0.5.23: Deprecated. Use --attn-dp-size <dp-size> instead of "
            "--dp-size <dp-size> --enable-dp-attention.",
            "Write what takes its place.",
        ),
    ],
)
def test_case_46_what_an_operator_reads(findings, flag, text, do):
    (finding,) = [f for f in findings("sglang-0.5.23", SGLANG_OF_ALL_TIMES) if f["key"] == f"flags.{flag}"]
    assert (finding["text"], finding["do"]) == (text, do)


def test_a_flag_of_a_later_version_is_not_called_one_of_the_past(findings):
    (finding,) = findings("sglang-0.4.6", "flags: {nsa-prefill-backend: tilelang}")
    assert "any more" not in finding["text"]
    assert finding["do"] == "Write the flag as this version of the engine has it, or leave it out."


def test_a_misspelt_flag_is_told_with_what_was_perhaps_meant(findings):
    (finding,) = findings("vllm-0.32.0", "flags: {tensor-paralel-size: 2}")
    assert finding["text"] == 'vLLM 0.32.0 has no --tensor-paralel-size (did you mean "tensor-parallel-size"?)'


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm-0.32.0", "compilation-config.cudagraph_mode: FULL"),
        ("vllm-0.32.0", "no-enable-prefix-caching: true"),
        ("vllm-0.32.0", "optimization-level: 2"),
        ("vllm-0.32.0", "speculative-config: {method: mtp, num_speculative_tokens: 3}"),
        ("sglang-0.5.23", "tensor-parallel-size: 8"),
        ("sglang-0.5.23", "cuda-graph-bs-decode: [1, 2, 4]"),
        ("sglang-0.5.23", "ep: 8"),
    ],
)
def test_what_the_parser_declares_is_good_whatever_its_form(findings, engine, flags):
    assert findings(engine, f"flags: {{{flags}}}") == []


@pytest.mark.parametrize(
    ("engine", "flags", "text"),
    [
        ("sglang-0.5.23", "context-length: long", "invalid human_readable_int value: 'long'"),
        ("sglang-0.5.23", "dtype: float8", "invalid choice: 'float8'"),
        ("sglang-0.5.23", "enable-metrics: very", "unrecognized arguments: very"),
        ("sglang-0.5.23", "context-length: true", "expected one argument"),
        ("vllm-0.32.0", "max-num-seqs: [16, 32]", "unrecognized arguments: 32"),
    ],
)
def test_a_value_that_the_parser_refuses_is_an_error_in_the_parsers_words(findings, engine, flags, text):
    (finding,) = findings(engine, f"flags: {{{flags}}}")
    assert (finding["rule"], finding["key"]) == ("flag-invalid", f"flags.{flags.partition(':')[0]}")
    assert text in finding["text"]


@pytest.mark.parametrize(
    ("engine", "name", "text", "do"),
    [
        (
            "vllm-0.32.0",
            "VLLM_ATTENTION_BACKEND",
            "vLLM 0.32.0 does not read VLLM_ATTENTION_BACKEND any more: whatever it says, vLLM chooses the backend "
            "itself",
            "Write the flag attention-backend.",
        ),
        (
            "vllm-0.32.0",
            "VLLM_ENABLE_PCIE_ALLREDUCE",
            "VLLM_ENABLE_PCIE_ALLREDUCE is in no vLLM as published, only in local-inference-lab/vllm",
            "Leave it out, or name a lock of that build in ironserve_locks.vllm.",
        ),
        (
            "vllm-0.32.0",
            "VLLM_CPU_KVCACHE_SPAC",
            'vLLM 0.32.0 reads no VLLM_CPU_KVCACHE_SPAC (did you mean "VLLM_CPU_KVCACHE_SPACE"?)',
            "Write the variable as this version reads it, or leave it out.",
        ),
        (
            "sglang-0.5.23",
            "HF_HUB_OFLINE",
            'SGLang 0.5.23 reads no HF_HUB_OFLINE (did you mean "HF_HUB_OFFLINE"?)',
            "Write the variable as this version reads it, or leave it out.",
        ),
    ],
)  # fmt: skip
def test_a_variable_that_nobody_reads_is_a_warning(findings, engine, name, text, do):
    (finding,) = findings(engine, f'env: {{{name}: "1"}}')
    assert (finding["rule"], finding["severity"], finding["key"]) == ("env-unknown", "warning", f"env.{name}")
    assert (finding["text"], finding["do"]) == (text, do)


@pytest.mark.parametrize(
    "name", ["VLLM_ATTENTION_BACKEND", "HF_HUB_OFFLINE", "MY_SITES_OWN", "NCCL_PROTO", "A_DEVICE_2"]
)
def test_a_variable_that_somebody_may_read_is_none(findings, name):
    assert findings("vllm-0.10.2", f'env: {{{name}: "1"}}') == []


@pytest.mark.parametrize(
    ("state", "reason", "severity"),
    [("pending", "its environment is not on the host yet", "note"), ("failed", "ImportError: libfoo.so.1", "warning")],
)
def test_what_nobody_could_ask_refuses_nothing(findings, state, reason, severity):
    answer = {"state": state, "reason": reason}
    (finding,) = findings("vllm-0.32.0", "flags: {nonsense: true}", answer)
    assert (finding["rule"], finding["severity"]) == ("flag-unverified", severity)
    assert finding["where"] == "host h1"
    assert finding["text"] == f"flags and variables were not checked: {reason}"


def test_a_host_that_nobody_looked_at_has_no_findings(resolved):
    given = resolved("flags: {nonsense: true}")
    assert list(CHECK(Case("h1", given.release))) == []


def test_every_entry_of_knowledge_names_where_it_is_from():
    for known in knowledge.engines(ROOT).values():
        for kind in ("renamed", "removed", "fork_only", "variables"):
            for name, entry in known[kind].items():
                assert entry["source"], name
                assert entry.get("last") if kind != "fork_only" else entry["fork"], name
                assert bool(entry.get("use")) == (kind in ("renamed", "variables")), name
