"""make show: what a profile becomes, without any host."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def show(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--old-file=setup", "show", *words],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_argv_and_environment_with_origins_and_a_command_to_copy():
    result = show("PROFILE=triton_nccl", "GROUP=blackwell")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    for line in (
        "--attention-backend triton # profiles/triton_nccl.yml flags.attention-backend",
        "--num-continuous-decode-steps 4 # profiles/flashinfer_nccl.yml flags.num-continuous-decode-steps",
        "--tp-size 8 # profiles/baseline.yml flags.tp-size, size tensor_parallel of host group blackwell",
        "--port 8000 # service: ironserve_port",
        "NCCL_PROTO=LL # profiles/flashinfer_nccl.yml nccl_set, NCCL set low_latency of host group blackwell",
    ):
        assert line in lines
    (found,) = json.loads((ROOT / ".ironserve" / "show.json").read_text())
    copied = shlex.split(lines[lines.index("To copy:") + 1])
    assert copied == [*(f"{key}={value}" for key, value in sorted(found["release"]["env"].items())),
                      *found["release"]["argv"]]  # fmt: skip
    assert [word for row in found["origins"]["argv"] for word in row["words"]] == found["release"]["argv"]


def test_a_host_of_the_users_inventory_with_the_profile_that_it_declares():
    result = show("HOST=gpu-a02", ANSIBLE_INVENTORY="inventory/hosts.example.yml")
    assert "gpu-a02: profile triton_nccl, host group blackwell, release " in result.stdout


def test_what_is_unknown_is_told_as_in_a_deploy():
    assert (
        'unknown profile "triton_ncl" (did you mean "triton_nccl"?)'
        in show("PROFILE=triton_ncl", "GROUP=blackwell").stdout
    )
    result = show("PROFILE=triton_nccl", "GROUP=blackwel")
    assert result.returncode != 0
    assert 'its groups: "blackwel" (did you mean "blackwell"?); host groups: blackwell, hopper, lab' in result.stdout
    assert "say where: GROUP=blackwell, or HOST=" in show("PROFILE=triton_nccl").stderr
