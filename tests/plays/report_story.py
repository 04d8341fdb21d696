"""Ledgers of a small fleet: a machine of eight RTX PRO 6000 on which four hypotheses were tried, and a lab of CPUs.

The speeds of baseline and vllm_nccl are those of a real machine, and so is the hang; everything else is made up.
"""

from __future__ import annotations

import random
from typing import Any

LOAD = {"concurrencies": [1, 8, 32, 128], "input_tokens": 512, "output_tokens": 128, "repetitions": 5,
        "requests_per_stream": 2, "min_requests": 8, "seed": 1, "prompts": "0f1e2d3c4b5a6978"}  # fmt: skip
CLIENT = {"name": "vllm bench serve", "version": "0.33.0", "lock_id": "c1"}
KIMI = {"name": "kimi-k2.5", "path": "/shared/kimi-k2.5-int4", "revision": "1a2b3c"}
TINY = {"name": "tiny", "path": "/srv/tiny", "revision": ""}
PRO_6000 = {
    "gpu_family": "sm120", "gpus": ["NVIDIA RTX PRO 6000 Blackwell Server Edition"] * 8, "driver": "580.95.05",
    "interconnect": "switch", "kernel": "6.17.0-19-generic", "cpu": "AMD EPYC 9575F 64-Core Processor",
}  # fmt: skip
LAB = {
    "gpu_family": "none",
    "gpus": [],
    "driver": "",
    "interconnect": "",
    "kernel": "6.1.0",
    "cpu": "Intel Xeon 2.1 GHz",
}
NCCL = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS", "NCCL_MAX_NCHANNELS": "16",
        "NCCL_BUFFSIZE": "16777216", "NCCL_NTHREADS": "512"}  # fmt: skip
FLAGS = {"trust-remote-code": True, "tp-size": "8", "mem-fraction-static": "0.85", "disable-custom-all-reduce": True}
TRITON = {**FLAGS, "attention-backend": "triton", "num-continuous-decode-steps": "4"}
RELEASES: dict[str, dict[str, Any]] = {
    "baseline": {"engine": "sglang", "flags": FLAGS, "env": {}},
    "flashinfer_nccl": {"engine": "sglang", "flags": {**TRITON, "attention-backend": "flashinfer"}, "env": NCCL},
    "triton_nccl": {"engine": "sglang", "flags": TRITON, "env": NCCL},
    "vllm_nccl": {
        "engine": "vllm",
        "flags": {"trust-remote-code": True, "tensor-parallel-size": "8", "gpu-memory-utilization": "0.85"},
        "env": NCCL,
    },
}
SPEEDS = {
    "baseline": (63.6, 431.0, 1120.0, 2370.0),
    "triton_nccl": (74.9, 489.0, 1190.0, 2391.0),
    "vllm_nccl": (82.5, 455.0, 980.0, 1536.0),
}
VERSIONS = {"sglang": "0.5.23", "vllm": "0.33.0"}
PHASES = {
    "sglang": {"reading arguments": 9.0, "joining ranks": 21.0, "loading weights": 33.0, "allocating KV cache": 402.0,
               "capturing CUDA graphs": 431.0, "warming up": 548.0, "ready": 571.0},
    "vllm": {"reading arguments": 8.0, "starting engine": 19.0, "loading weights": 41.0, "compiling": 455.0,
             "capturing CUDA graphs": 520.0, "starting HTTP server": 561.0, "ready": 566.0},
}  # fmt: skip


def identity(profile: str, group: str) -> dict[str, Any]:
    release_id = f"{abs(hash_of(profile)):012x}"[:12]
    engine = RELEASES[profile]["engine"]
    return {"release_id": release_id, "staged_id": f"{release_id}-1", "profile": profile,
            "declared_profile": "baseline", "host_group": group, "lock_id": f"{engine}1", **RELEASES[profile],
            "engine_version": VERSIONS[engine]}  # fmt: skip


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode()[:6].ljust(6, b"x"), "big")


def launch(profile: str, at: str, verdict: str = "ready", **more: Any) -> dict[str, Any]:
    """A launch on the eight GPUs; one that went wrong hung in graph capture."""
    timings = dict(PHASES[RELEASES[profile]["engine"]])
    if verdict != "ready":
        timings = {phase: s for phase, s in timings.items() if s <= timings["capturing CUDA graphs"]}
    return {
        **identity(profile, "blackwell"), "at": at, "invocation": at, "verdict": verdict, "reason": "",
        "timings": timings, "phase": list(timings)[-1], "elapsed_s": list(timings.values())[-1], "model": KIMI,
        "hardware": PRO_6000, "nccl_version": "2.30.7", "steps": {"drain": 42.0, "clean": 19.5, "prove_nccl": 12.2},
        **more,
    }  # fmt: skip


def runs(tok_s: float, level: int, count: int, seed: str) -> list[dict[str, Any]]:
    """Runs that scatter by a percent or so."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        speed = tok_s * rng.gauss(1, 0.012)
        itl, ttft = 1000 * level / speed, rng.gauss(210, 6) * (1 + level / 24)
        found.append({
            "output_tok_s": round(speed, 2), "request_s": speed / 128, "total_tok_s": speed * 5,
            "ttft_ms": {"p50": ttft, "p95": ttft * 1.4, "p99": ttft * 1.9},
            "itl_ms": {"p50": itl, "p95": itl * 1.2, "p99": itl * 1.8},
            "requests": max(8, 2 * level), "failed": 0, "elapsed_s": 16.0,
        })  # fmt: skip
    return found


def measurement(profile: str, at: str, speeds: tuple[float, ...], group: str = "blackwell", count: int = 5,
                **more: Any) -> dict[str, Any]:  # fmt: skip
    gpu = {"sm_clock_mhz": {"min": 2325, "median": 2415, "max": 2430},
           "power_w": {"min": 300, "median": 412, "max": 520},
           "temperature_c": {"min": 55, "median": 66, "max": 71}}  # fmt: skip
    capped = {"power cap": 0.31} if profile == "vllm_nccl" else {}
    levels = dict(zip((1, 8, 32, 128), speeds))
    return {
        **identity(profile, group), "event": "measurement", "at": at, "invocation": at, "model": KIMI, "client": CLIENT,
        "load": LOAD, "hardware": PRO_6000, "disturbed": "", "continuations": [],
        "levels": {str(level): runs(speed, level, count, f"{profile}{at}{level}") for level, speed in levels.items()},
        "gpus": [{"index": place, "name": "NVIDIA RTX PRO 6000", **gpu,
                  "throttled": capped if place < 2 else {}} for place in range(8)],
        **more,
    }  # fmt: skip


def lab(profile: str, at: str, verdict: str = "ready", reason: str = "") -> dict[str, Any]:
    """A launch on a CPU."""
    timings = {
        "reading arguments": 2.1,
        "loading weights": 6.0,
        "warming up": 9.5,
        **({"ready": 11.2} if not reason else {}),
    }
    return {**launch(profile, at), **identity(profile, "lab"), "hardware": LAB, "nccl_version": "", "steps": {},
            "model": TINY, "verdict": verdict, "reason": reason, "timings": timings, "phase": "warming up",
            "elapsed_s": 11.4}  # fmt: skip


def ledgers(error: str = "the engine exited with status 1: ValueError: unknown flag") -> dict[str, Any]:
    """What was gathered, by host and service. ``error`` is what a launch in the lab said."""
    tiny = {"model": TINY, "hardware": LAB, "gpus": []}
    return {
        "gpu-a03": {"main": [
            launch("baseline", "2026-11-26T08:12:03Z"),
            measurement("baseline", "2026-11-26T08:40:00Z", SPEEDS["baseline"]),
            launch("flashinfer_nccl", "2026-11-26T11:02:00Z", "stalled", elapsed_s=1331.0,
                   reason="no progress in 15m00s: TP0 writes one byte a second to event pipes, 7 ranks wait"),
            launch("flashinfer_nccl", "2026-11-26T13:40:00Z", "timeout", elapsed_s=3600.0,
                   reason="not ready after 60m00s"),
            launch("triton_nccl", "2026-11-27T09:30:00Z"),
            measurement("triton_nccl", "2026-11-27T10:00:00Z", SPEEDS["triton_nccl"]),
            launch("vllm_nccl", "2026-11-27T14:00:00Z"),
            measurement("vllm_nccl", "2026-11-27T14:31:00Z", SPEEDS["vllm_nccl"]),
            launch("baseline", "2026-11-28T07:50:00Z"),
            measurement("baseline", "2026-11-28T08:21:00Z", tuple(speed * 1.004 for speed in SPEEDS["baseline"])),
            launch("triton_nccl", "2026-11-28T09:30:00Z"),
            measurement("triton_nccl", "2026-11-28T10:00:00Z", SPEEDS["triton_nccl"]),
        ]},
        "gpu-a04": {"main": [
            launch("baseline", "2026-11-28T12:05:00Z"),
            measurement("baseline", "2026-11-28T12:31:00Z", tuple(speed * 0.985 for speed in SPEEDS["baseline"]),
                        disturbed="37 requests of others ran meanwhile"),
        ]},
        "lab-1": {"main": [
            lab("baseline", "2026-11-29T08:00:00Z"),
            measurement("baseline", "2026-11-29T08:05:00Z", (21.4, 88.0), "lab", 3, **tiny),
            lab("vllm_nccl", "2026-11-29T09:00:00Z"),
            measurement("vllm_nccl", "2026-11-29T09:05:00Z", (29.8, 131.0), "lab", 3, **tiny),
            lab("triton_nccl", "2026-11-29T10:00:00Z", "failed", error),
        ]},
    }  # fmt: skip
