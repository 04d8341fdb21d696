"""The benchmark client: what it is asked, and what is read of its results.

The results in tests/fixtures/client are whole files of vllm bench serve 0.32.0, eight requests of 60 words for 32
tokens, one at a time: from the real vLLM 0.32.0 (vllm.json) and SGLang 0.5.23 (sglang.json) on a CPU, from the
stand-in engine (standin.json), and from the stand-in engine when it fails inside every request (failed.json).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import client
from ansible.module_utils.ironserve.client import ResultError, parse, percentiles

RESULTS = Path(__file__).resolve().parents[2] / "fixtures" / "client"
LOAD = {"output_tokens": 32, "seed": 1}


def result(name: str, **changes) -> str:
    return json.dumps({**json.loads((RESULTS / f"{name}.json").read_text()), **changes})


@pytest.mark.parametrize("name", ["vllm", "sglang", "standin"])
def test_figures_agree_with_the_clients_own(name):
    found, own = parse(result(name)), json.loads(result(name))
    assert (found["requests"], found["failed"]) == (8, 0)
    assert own["output_lens"] == [32] * 8
    assert found["output_tok_s"] == pytest.approx(own["output_throughput"], abs=0.01)
    assert found["total_tok_s"] == pytest.approx(own["total_token_throughput"], abs=0.01)
    assert found["ttft_ms"]["p50"] == pytest.approx(
        sorted(own["ttfts"])[3] * 500 + sorted(own["ttfts"])[4] * 500, abs=0.01
    )
    assert found["itl_ms"]["p50"] <= found["itl_ms"]["p95"] <= found["itl_ms"]["p99"]


def test_a_failed_request_is_counted_and_its_tokens_are_not():
    own = json.loads(result("vllm"))
    found = parse(result("vllm", errors=["refused", *own["errors"][1:]]))
    assert (found["requests"], found["failed"]) == (8, 1)
    assert found["output_tok_s"] == pytest.approx(7 * 32 / own["duration"], abs=0.01)


def test_an_answer_that_was_cut_off_has_failed():
    own = json.loads(result("vllm"))
    assert parse(result("vllm", output_lens=[*own["output_lens"][:-1], 5]))["failed"] == 1


def test_where_every_request_failed_the_first_error_is_told():
    with pytest.raises(ResultError, match="no request of 8 was answered: Never received a valid chunk"):
        parse(result("failed"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "wrote no result: it crashed"),
        (result("vllm")[:900], "cut off"),
        ("[]", "no detailed result"),
        ('{"duration": 1.0}', "no detailed result"),
        (result("vllm", ttfts=[0.1]), "no detailed result"),
        (result("vllm", **{name: [] for name in client.LISTS}), "file of prompts was empty"),
        (result("vllm", output_lens=[1] * 8), "does not say how many tokens"),
    ],
)
def test_what_is_no_result_says_why(text, why):
    with pytest.raises(ResultError, match=why):
        parse(text)


def test_percentiles_are_interpolated():
    assert percentiles([n / 1000 for n in range(101)]) == {"p50": 50, "p95": 95, "p99": 99}
    assert percentiles([0.002]) == {"p50": 2, "p95": 2, "p99": 2}
    assert percentiles([]) == {}


def test_the_key_is_in_no_argument(tmp_path):
    argv = client.command(
        "/env", "http://127.0.0.1:8000", "tiny", tmp_path / "a.jsonl", 8, 16, LOAD, tmp_path / "r.json"
    )
    assert "secret" not in " ".join(argv)
    assert client.env("secret")["OPENAI_API_KEY"] == "secret"
    assert "OPENAI_API_KEY" not in client.env()
    body = json.loads(argv[argv.index("--extra-body") + 1])
    assert body == {"max_tokens": 32, "ignore_eos": True, "temperature": 0}


def test_prompts_are_written_as_the_client_reads_them(tmp_path):
    client.write_prompts(tmp_path / "a.jsonl", ["one two", 'a "quote"\n'], LOAD)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == ["one two", 'a "quote"\n']
