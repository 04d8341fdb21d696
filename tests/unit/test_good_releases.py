"""Releases as people run them on hosts as they are: all checks together refuse none of them.

A check that refuses a good configuration is worse than one that misses a bad one: people learn to overrule.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.ironserve import knowledge, model_config
from ansible.module_utils.ironserve.checks import all_checks
from ansible.module_utils.ironserve.findings import Case, judge

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE, CHECKS = knowledge.catalogue(ROOT), all_checks(ROOT)
MODELS = ROOT / "tests" / "fixtures" / "models"
ENGINES = {"sglang": "0.5.23", "vllm": "0.32.0"}
PACKAGES = {
    "torch": "2.14.1", "nvidia-cuda-runtime": "13.0.96", "flashinfer-python": "0.7.2", "sglang-kernel": "0.4.9",
    "nvidia-nccl-cu13": "2.30.7", "ninja": "1.13.0",
}  # fmt: skip


def model(name: str, weights_mib: int) -> dict[str, Any]:
    """What a host tells of a model of which all files are there."""
    described = model_config.describe(json.loads((MODELS / f"{name}.json").read_text()))
    weights = {
        "files": 60,
        "missing": [],
        "pointers": [],
        "empty": [],
        "total_mib": weights_mib,
        "index_mib": weights_mib,
    }
    return {**described, "weights": weights, "weights_mib": weights_mib}


KIMI, LLAMA = model("kimi-k2.5-text-config", 567_000), model("llama-3.1-70b", 134_600)
SHARDED = {**LLAMA, "weights": {**LLAMA["weights"], "missing": ["model-00001-of-00030.safetensors"]}}


def host(count: int, family: str, memory_mib: int, link: str, **kernel: Any) -> dict[str, Any]:
    """A host with so many sound GPUs, each pair joined by this link, each at a root port of its own with ACS on."""
    gpus = [
        {
            "index": place, "minor": place, "uuid": f"GPU-{place}", "bus_id": f"00000000:{place + 1:02X}:00.0",
            "family": family, "name": "GPU", "memory_total_mib": memory_mib, "error": "", "recovery_action": "none",
            "persistence_mode": True, "bar1_total_mib": 131072,
            "pcie": {"width": 16, "max_width": 16, "max_generation": 5},
        }
        for place in range(count)
    ]  # fmt: skip
    ports = [f"0000:00:{place + 1:02x}.0" for place in range(count)]
    acs = {"SrcValid": True, "ReqRedir": True, "CmpltRedir": True, "UpstreamFwd": True}
    return {
        "gpus": {
            "driver_version": "595.58.03", "failure": "", "gpus": gpus,
            "topology": [["X" if one == other else link for other in range(count)] for one in range(count)],
        },
        "kernel": {"cpu_vendor": "GenuineIntel", "iommu": {"groups": 80, "translating": True}, "xid": [], **kernel},
        "pci": {
            "bridges": [{"bus_id": port, "kind": "root_port", "acs": acs} for port in ports],
            "paths": {gpu["bus_id"]: [port] for gpu, port in zip(gpus, ports)},
        },
        "network": {
            "interfaces": {
                "lo": {"addresses": ["127.0.0.1"], "up": True}, "ens5": {"addresses": ["10.0.0.5"], "up": True}
            },
            "hcas": ["mlx5_0", "mlx5_1"], "hostname": "gpu1", "hostname_addresses": ["10.0.0.5"],
        },
        "nccl": {"conf_files": {}, "files": {}},
        "build": {"main": {"path": "/opt/e/bin:/usr/bin", "environment": True,
                           "tools": {"ninja": "/usr/bin/ninja", "nvcc": "/usr/bin/nvcc", "gcc": "/usr/bin/gcc"}}},
        "space": {"shm": {"total_mib": 512_000, "free_mib": 400_000}},
        "user": {"name": "ironserve", "exists": True, "denied_devices": []},
    }  # fmt: skip


H100, H200, B200 = host(8, "sm90", 81559, "NV18"), host(8, "sm90", 143771, "NV18"), host(8, "sm100", 183359, "NV18")
RTX_PRO, L40S = (
    host(8, "sm120", 97887, "NODE", iommu={"groups": 0, "translating": False}),
    host(4, "sm89", 46068, "NODE"),
)
TWO_4090, ONE = host(2, "sm89", 24564, "PHB"), host(1, "sm90", 143771, "X")
LOW_LATENCY = {
    "NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS", "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216", "NCCL_NTHREADS": "512",
}  # fmt: skip
EVERYDAY = {
    "NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "ens5", "GLOO_SOCKET_IFNAME": "ens5", "NCCL_IB_HCA": "mlx5",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "8", "TMPDIR": "/data/tmp",
    "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:4317",
    "NCCL_VERSION": "2",
    "NVIDIA_VISIBLE_DEVICES": "all", "CUDA_DEVICE_MAX_CONNECTIONS": "8", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip

GOOD = {
    "H100, vLLM, graphs by JSON, speculation": (H100, "vllm", LLAMA, {
        "tensor-parallel-size": "8", "gpu-memory-utilization": "0.92", "max-model-len": "32768",
        "compilation-config": '{"cudagraph_mode":"FULL_AND_PIECEWISE"}',
        "speculative-config": '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4}',
    }, EVERYDAY),
    "H200, vLLM, experts and data parallel": (H200, "vllm", KIMI, {
        "data-parallel-size": "8", "enable-expert-parallel": True, "trust-remote-code": True, "max-model-len": "32768",
    }, {}),
    "H100, vLLM, pipeline": (H100, "vllm", LLAMA, {
        "tensor-parallel-size": "4", "pipeline-parallel-size": "2", "max-model-len": "16384"}, {}),
    "H100, vLLM, shards of each rank": (H100, "vllm", SHARDED, {
        "tensor-parallel-size": "8", "load-format": "sharded_state", "max-model-len": "16384"}, {}),
    "H200, vLLM, no graphs, one large buffer": (H200, "vllm", LLAMA, {
        "tensor-parallel-size": "2", "enforce-eager": True, "max-model-len": "16384",
    }, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "H200, vLLM, no graphs by level": (H200, "vllm", LLAMA, {
        "tensor-parallel-size": "2", "optimization-level": "0", "max-model-len": "16384",
    }, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "B200, SGLang, attention in groups": (B200, "sglang", KIMI, {
        "tp-size": "8", "attn-dp-size": "8", "trust-remote-code": True, "attention-backend": "trtllm_mla",
        "mem-fraction-static": "0.85", "context-length": "65536",
    }, {}),
    "RTX PRO 6000, SGLang, seeds' second try": (RTX_PRO, "sglang", KIMI, {
        "tp-size": "8", "attention-backend": "triton", "mem-fraction-static": "0.85", "trust-remote-code": True,
        "disable-custom-all-reduce": True, "num-continuous-decode-steps": "4", "log-level": "info",
    }, LOW_LATENCY),
    "RTX PRO 6000, vLLM": (RTX_PRO, "vllm", KIMI, {
        "tensor-parallel-size": "8", "gpu-memory-utilization": "0.9", "max-model-len": "131072",
        "trust-remote-code": True,
        "disable-custom-all-reduce": True, "kv-cache-dtype": "auto",
    }, LOW_LATENCY),
    "RTX PRO 6000, FlashInfer without graphs": (RTX_PRO, "sglang", KIMI, {
        "tp-size": "8", "attention-backend": "flashinfer", "disable-decode-cuda-graph": True, "trust-remote-code": True,
        "disable-custom-all-reduce": True, "mem-fraction-static": "0.85",
    }, {}),
    "L40S at the CPU, IOMMU and ACS on, as delivered": (L40S, "vllm", LLAMA, {
        "tensor-parallel-size": "4", "max-model-len": "8192", "quantization": "fp8"}, EVERYDAY),
    "two RTX 4090": (TWO_4090, "vllm", {}, {"tensor-parallel-size": "2", "max-model-len": "8192"},
                     {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "one GPU, nothing said": (ONE, "sglang", LLAMA, {"mem-fraction-static": "0.97"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_no_release_that_works_is_refused(name, ask_captured):
    facts, engine, of_model, flags, env = GOOD[name]
    version = ENGINES[engine]
    release = {
        "service": "main", "profile": "p", "engine": engine, "flags": flags, "env": env, "host_env": {}, "gpus": [],
        "port": 8000, "environment": "/opt/e", "limits": {"nofile": 65535, "memlock": "infinity"},
        "model": {"path": "/srv/m"}, "lock": {"name": f"{engine}-{version}-cuda", "engine_version": version},
    }  # fmt: skip
    answer = ask_captured(f"{engine}-{version}", release)
    gpus = facts["gpus"]["gpus"]
    hardware = {"gpu_count": len(gpus), "gpu_family": gpus[0]["family"]}
    seen = {**facts, "models": {"main": of_model}, "flags": {"main": answer}}
    findings = judge(Case("h1", release, seen, hardware, PACKAGES), CHECKS, CATALOGUE)
    assert [f"{one['rule']}: {one['text']}" for one in findings if one["severity"] == "error"] == []
    assert [one["text"] for one in findings if one["rule"] == "check-failed"] == []
