"""The benchmark client, the same for every engine: ``vllm bench serve`` in an environment of its own.

docs/decisions/0010-benchmark-client.md says why. It is told everything that could differ between engines, it
counts tokens by what the server says, and it writes down every gap between two pieces of a stream: the percentiles are
computed here.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import host

NAME = "vllm bench serve"
PERCENTILES = (50, 95, 99)
LISTS = ("output_lens", "input_lens", "ttfts", "itls", "errors")


class ResultError(Exception):
    """A run gave no figures; the text is for an operator."""


def env(api_key: str = "") -> dict[str, str]:
    """Variables of the client: no hub, no report of its use, no GPU; and the key, which no argument may show."""
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "NO_PROXY": "*",
    }
    return {**quiet, **({"OPENAI_API_KEY": api_key} if api_key else {})}


def write_prompts(path: Path, texts: Iterable[str], load: Mapping[str, Any]) -> None:
    """Write the file of prompts of one run; its name has to end in ``.jsonl``."""
    rows = ({"prompt": text, "output_tokens": load["output_tokens"]} for text in texts)
    host.write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def command(
    environment: str,
    url: str,
    model: str,
    prompts_file: Path,
    level: int,
    count: int,
    load: Mapping[str, Any],
    result_file: Path,
) -> list[str]:
    """The command of one run.

    Args:
        environment: folder of the client's environment.
        url: where the server is: ``http://127.0.0.1:8000``.
        model: name that it is served by.
        prompts_file: as ``write_prompts`` made it.
        level: requests in flight.
        count: number of requests.
        load: of the measurement.
        result_file: where the result is to be, for ``parse``.
    """
    # Without a tokenizer, which a model of another engine may not even have, the client asks for one token a request;
    # what is in the extra body comes over that.
    body = {"max_tokens": load["output_tokens"], "ignore_eos": True, "temperature": 0}
    return [
        f"{environment}/bin/vllm", "bench", "serve", "--backend", "openai", "--base-url", url, "--model", model,
        "--skip-tokenizer-init", "--dataset-name", "custom", "--dataset-path", str(prompts_file), "--disable-shuffle",
        "--no-oversample", "--skip-chat-template", "--num-prompts", str(count), "--max-concurrency", str(level),
        "--extra-body", json.dumps(body), "--disable-tqdm", "--seed", str(load["seed"]), "--save-result",
        "--save-detailed", "--result-dir", str(result_file.parent), "--result-filename", result_file.name,
    ]  # fmt: skip


def parse(text: str) -> dict[str, Any]:
    """The figures of one run, from its result file.

    Answers shorter than the longest one were cut off: all were asked for the same length.

    Raises:
        ResultError: there are none.
    """
    found = _read(text)
    lengths, errors = found["output_lens"], found["errors"]
    full = max(lengths, default=0)
    good = [n for n, error in enumerate(errors) if not error and found["ttfts"][n] > 0 and lengths[n] == full > 0]
    if not good:
        raise ResultError(f"no request of {len(errors)} was answered: {_why(errors)}")
    if full == 1 and any(found["itls"][n] for n in good):
        raise ResultError(
            "the server does not say how many tokens it made (no usage at the end of a stream): what stands before it, "
            "such as a proxy, has to pass stream_options on"
        )
    gaps = [gap for n in good for gap in found["itls"][n]]
    elapsed_s = found["duration"]
    made = sum(lengths[n] for n in good)
    return {
        "output_tok_s": round(made / elapsed_s, 2),
        "request_s": round(len(good) / elapsed_s, 3),
        "total_tok_s": round((made + sum(found["input_lens"][n] for n in good)) / elapsed_s, 2),
        "ttft_ms": percentiles([found["ttfts"][n] for n in good]),
        "itl_ms": percentiles(gaps),
        "requests": len(errors),
        "failed": len(errors) - len(good),
        "elapsed_s": round(elapsed_s, 3),
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds, by linear interpolation; empty where there are no values."""
    if len(seconds) < 2:
        return {f"p{wanted}": round(value * 1000, 3) for value in seconds for wanted in PERCENTILES}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"p{wanted}": round(cuts[wanted - 1] * 1000, 3) for wanted in PERCENTILES}


def _read(text: str) -> dict[str, Any]:
    """The result as it was written; raise a ResultError where it is none."""
    if not text.strip():
        raise ResultError("the client wrote no result: it crashed or was ended; its output says why")
    try:
        found = json.loads(text)
    except ValueError:
        raise ResultError("the client's result is cut off: it was ended while it wrote, or the disk is full") from None
    values = [found.get(name) for name in LISTS] if isinstance(found, dict) else []
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) < len(LISTS) or len({len(value) for value in lists}) != 1:
        raise ResultError(f"this is no detailed result of {NAME}: the environment is not the one of the client's lock")
    if not lists[0] or not isinstance(found.get("duration"), (int, float)) or found["duration"] <= 0:
        raise ResultError("the client asked nothing: its file of prompts was empty")
    return dict(found)


def _why(errors: Sequence[str]) -> str:
    """The last line of the first error: before it stands a traceback."""
    return next((error.strip().splitlines()[-1] for error in errors if error.strip()), "the streams were empty")
