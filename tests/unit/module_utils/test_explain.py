"""Where each value of a release comes from."""

from __future__ import annotations

import shlex

from ansible.module_utils.ironserve import explain

PARENT = """
nccl_set: low_latency
flags: {tensor-parallel-size: "${tensor_parallel}", dtype: auto, gone: 1}
env: {NCCL_PROTO: LL, A: 1}
startup_timeout_s: 60
"""
CHILD = """
extends: q
flags: {dtype: half, gone: ~, json: {n: "${tensor_parallel}", m: "${tensor_parallel}"}}
for_group: {blackwell: {env: {A: "two words"}}}
for_host: {h1: {flags: {max-num-seqs: 4}, watchdog_s: 60}}
"""


def origins(rows, key="name"):
    return {row[key] if key == "name" else row[key][0]: row["origin"] for row in rows}


def test_every_word_and_variable_has_an_origin(resolved):
    found = resolved(CHILD, q=PARENT)
    assert [word for row in found.origins["argv"] for word in row["words"]] == found.argv
    assert origins(found.origins["argv"], "words") == {
        "/opt/ironserve/engines/e-1/bin/vllm": "engine vllm, lock e, service: ironserve_model.path",
        "--tensor-parallel-size": "profiles/q.yml flags.tensor-parallel-size, "
        "size tensor_parallel of host group blackwell",
        "--host": "service: ironserve_listen_address",
        "--port": "service: ironserve_port",
        "--dtype": "profiles/p.yml flags.dtype",
        "--json": "profiles/p.yml flags.json, size tensor_parallel of host group blackwell",
        "--max-num-seqs": "profiles/p.yml for_host.h1.flags.max-num-seqs",
    }
    assert {row["name"]: row["value"] for row in found.origins["env"]} == found.env
    assert origins(found.origins["env"]) == {
        "A": "profiles/p.yml for_group.blackwell.env.A",
        "NCCL_PROTO": "profiles/q.yml env.NCCL_PROTO",
        "NCCL_NTHREADS": "profiles/q.yml nccl_set, NCCL set low_latency of host group blackwell",
    }
    assert origins(found.origins["settings"]) == {
        "startup_timeout_s": "profiles/q.yml startup_timeout_s",
        "completion_timeout_s": "Ironserve default",
        "stall_timeout_s": "Ironserve default",
        "watchdog_s": "profiles/p.yml for_host.h1.watchdog_s",
    }


def test_origins_are_no_part_of_the_release(resolved):
    found = resolved(CHILD, q=PARENT)
    assert "origin" not in str(found.release)


def test_the_text_has_a_line_for_each_and_a_command_to_copy(resolved):
    found = resolved(CHILD, q=PARENT)
    lines = explain.text("h1", found.release, found.origins).splitlines()
    assert lines[0] == f"h1: profile p, host group blackwell, release {found.release_id}"
    assert len({line.index("#") for line in lines if line.startswith("  --")}) == 1
    said = [" ".join(line.split()) for line in lines]
    for line in (
        "--tensor-parallel-size 8 # profiles/q.yml flags.tensor-parallel-size, "
        "size tensor_parallel of host group blackwell",
        """--json '{"m":8,"n":8}' # profiles/p.yml flags.json, size tensor_parallel of host group blackwell""",
        "NCCL_NTHREADS=512 # profiles/q.yml nccl_set, NCCL set low_latency of host group blackwell",
        "A='two words' # profiles/p.yml for_group.blackwell.env.A",
        "watchdog_s: 60 # profiles/p.yml for_host.h1.watchdog_s",
    ):
        assert line in said
    command = shlex.split(lines[-1])
    assert command[3:] == found.argv
    assert dict(word.split("=", 1) for word in command[:3]) == found.env


def test_a_secret_is_named_and_never_shown(resolved):
    site = {"ironserve_api_key": "very-secret", "ironserve_secret_env": {"HF_TOKEN": "hf_secret"}}
    found = resolved("extends: q\nengine: sglang", q="", site=site)
    said = " ".join(explain.text("h1", found.release, found.origins).split())
    assert "--config /etc/ironserve/main.yml # service: the file of its secrets" in said
    assert "HF_TOKEN # secret: never shown" in said
    assert "very-secret" not in said + str(found.origins)
    assert "hf_secret" not in said + str(found.origins)
    assert [word for row in found.origins["argv"] for word in row["words"]] == found.argv


def test_a_very_wide_value_does_not_push_the_others_aside(resolved):
    found = resolved(f"flags: {{x: {'y' * 300}}}")
    lines = explain.text("h1", found.release, found.origins).splitlines()
    assert max(len(line) for line in lines if "--port" in line and "#" in line) < 120


def test_the_gpus_of_a_service_are_shown_and_are_in_the_command_to_copy(resolved):
    gpu = "GPU-aaaaaaaa-1111-2222-3333-444444444444"
    found = resolved("flags: {}", site={"ironserve_gpus": [gpu]})
    said = " ".join(explain.text("h1", found.release, found.origins).split())
    assert f"CUDA_VISIBLE_DEVICES={gpu} # service: gpus" in said
    assert f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={gpu} {found.release['argv'][0]}" in said
