"""The profiles that come with Ironserve, resolved for its host groups: every argv and environment in full."""

from __future__ import annotations

import shlex

import pytest
import yaml
from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.profiles import Source
from ansible.module_utils.ironserve.resolve import resolve

LOCK = {"id": "lock-0", "name": "lock", "engine_version": "0", "python": "3.11", "installed_mib": 1, "folder": "/lock"}

# The two commands of the record that these profiles come from, word for word, but for the interpreter.
FLASHINFER = (
    "--model-path /shared/kimi-k2.5-int4 --trust-remote-code --tp-size 8 --mem-fraction-static 0.85 "
    "--host 0.0.0.0 --port 8000 --attention-backend flashinfer --num-continuous-decode-steps 4 "
    "--disable-custom-all-reduce --log-level info"
)
SIX = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}
SGLANG = "/opt/ironserve/engines/lock-0/bin/python3 -m sglang.launch_server "
TABLE = {
    "flashinfer_nccl": (SGLANG + FLASHINFER, SIX),
    "triton_nccl": (SGLANG + FLASHINFER.replace("flashinfer", "triton"), SIX),
    "baseline": (
        SGLANG + "--model-path /shared/kimi-k2.5-int4 --trust-remote-code --tp-size 8 --mem-fraction-static 0.85 "
        "--host 0.0.0.0 --port 8000 --disable-custom-all-reduce --log-level info",
        {},
    ),
    "vllm_nccl": (
        "/opt/ironserve/engines/lock-0/bin/vllm serve /shared/kimi-k2.5-int4 --trust-remote-code "
        "--tensor-parallel-size 8 --gpu-memory-utilization 0.85 --host 0.0.0.0 --port 8000 --disable-custom-all-reduce",
        SIX,
    ),
}


@pytest.fixture
def shipped(root):
    """Resolve a shipped profile for a shipped group."""

    def run(profile: str, group: str):
        site = {}
        for name in ("all", group):
            site |= yaml.safe_load((root / "group_vars" / name / "main.yml").read_text())
        sources = {
            file.stem: Source(file.name, yaml.safe_load(file.read_text())) for file in (root / "profiles").glob("*.yml")
        }
        problems = Problems()
        release = resolve("h1", "main", profile, site, sources, {"sglang": LOCK, "vllm": LOCK}, problems)
        return release, problems.found

    return run


@pytest.mark.parametrize("profile", TABLE)
def test_argv_and_environment_on_blackwell(shipped, profile):
    release, problems = shipped(profile, "blackwell")
    assert problems == []
    argv, env = TABLE[profile]
    assert release["argv"] == shlex.split(argv)
    assert release["env"] == env


def test_lab_profile(shipped):
    release, problems = shipped("lab_vllm", "lab")
    assert problems == []
    assert release["argv"] == shlex.split(
        "/opt/ironserve/engines/lock-0/bin/vllm serve /srv/models/tiny-llama --served-model-name tiny "
        "--host 0.0.0.0 --port 8000 --dtype bfloat16 --enforce-eager --load-format dummy "
        "--max-model-len 1024 --max-num-seqs 16"
    )
    assert release["env"] == {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }


def test_lab_profile_of_the_other_engine(shipped):
    release, problems = shipped("lab_sglang", "lab")
    assert problems == []
    assert release["argv"] == shlex.split(
        SGLANG + "--model-path /srv/models/tiny-llama --served-model-name tiny --mem-fraction-static 0.1 "
        "--host 0.0.0.0 --port 8000 --attention-backend torch_native --context-length 1024 --device cpu "
        "--disable-overlap-schedule --dtype bfloat16 --enable-metrics --load-format dummy --max-running-requests 8 "
        "--max-total-tokens 8192 --sleep-on-idle"
    )
    assert release["env"] == {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def test_a_set_of_one_kind_of_hardware_is_not_offered_to_another(shipped):
    release, problems = shipped("triton_nccl", "hopper")
    assert release is None
    assert problems == ['flashinfer_nccl.yml: nccl_set: unknown NCCL set of host group hopper '
                        '"low_latency"; known: none']  # fmt: skip


def test_baseline_is_untouched_by_its_group(shipped):
    for group in ("blackwell", "hopper"):
        release, problems = shipped("baseline", group)
        assert problems == []
        assert release["env"] == {}
