"""SGLang: how its server is called and asked. Seen in 0.5.3 to 0.5.23."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SERVICE_FLAGS = {"model-path": "ironserve_model.path", "served-model-name": "ironserve_model.served_name",
                 "host": "ironserve_listen_address", "port": "ironserve_port",
                 "config": "flags of the profile, and ironserve_secret_flags for secrets"}  # fmt: skip
"""Flags that the service sets, with the site variable that says their value: a profile may not."""

FLAG_ORDER = ("model-path", "served-model-name", "trust-remote-code", "tp-size", "mem-fraction-static", "host", "port",
              "attention-backend", "num-continuous-decode-steps", "disable-custom-all-reduce", "log-level")  # fmt: skip
"""Order of the flags in the command: as operators write them; all others follow by name."""

TENSOR_PARALLEL = "tp-size"

NEEDED_FOR_UUIDS = "disable-custom-all-reduce"
"""Flag without which tensor parallelism dies when CUDA_VISIBLE_DEVICES has UUIDs: in 0.5.23 the engine's own all-reduce
reads its entries as whole numbers."""

HEALTH_PATH = "/health_generate"
"""Generates one token in every version. Answers after one second at the earliest: the handler sleeps that long."""

WORK_METRICS: dict[str, tuple[str, ...]] = {}
"""None: its health endpoint generates, and is answered by any message of the scheduler, so load does not fail it."""

REQUEST_METRICS: tuple[str, ...] = ("sglang:num_running_reqs", "sglang:num_queue_reqs")
"""Metrics of requests that run and that wait. There are none without --enable-metrics."""

FINISHED_METRIC = "sglang:num_requests_total"
"""Metric that counts the requests that it answered. There is none without --enable-metrics."""

LOAD_PATHS: tuple[str, ...] = ("/v1/loads?include=core",)
"""Where its schedulers say the same without that flag; seen in 0.5.23, older versions answer 404."""

API_KEY_VARIABLE = "IRONSERVE_API_KEY"
"""SGLang reads its key from no variable; this one is for the readiness helper and does not reach the engine."""

READS_API_KEY_VARIABLE = False

TITLE = "sglang::"
"""How its processes call themselves: ``sglang::scheduler_TP0``. The main one keeps its argv."""

RANK_TITLES = ("sglang::scheduler",)
"""Titles of its ranks, one process a GPU."""

PARALLEL_FLAGS = (("tensor-parallel-size", "tp-size", "tp"), ("pipeline-parallel-size", "pp-size"),
                  ("data-parallel-size", "dp-size"), ("nnodes",))  # fmt: skip
"""Flags of the sizes that make up the number of ranks, each with its other names: tensor, pipeline, data, hosts."""

DATA_PARALLEL_INSIDE = ("enable-dp-attention",)
"""Flags with which data parallelism divides the tensor parallel ranks, and adds none."""

ATTENTION_DATA_PARALLEL = ("attn-dp-size", "attention-data-parallel-size")
"""Flags of newer versions that say into how many groups attention divides the tensor parallel ranks."""

NODE_RANK_FLAGS = ("node-rank",)

RANKS_ELSEWHERE: dict[str, tuple[str, ...]] = {"use-ray": ()}
"""Flags with which other programs have the ranks, each with the values for which they do not."""

INFO_PATHS = ("/server_info", "/get_server_info")
"""Where a server says with which arguments it runs; 0.5.3 has the second only. It asks the schedulers: it may hang."""

ARGUMENTS_LINE = r"server_args=(?:ServerArgs\(|\{)"
"""What stands before the arguments in its log: a call up to 0.5.15 at least, a mapping in 0.5.23."""

ARGUMENT_NAMES = {"model": "model_path", "tensor-parallel-size": "tp_size", "pipeline-parallel-size": "pp_size",
                  "data-parallel-size": "dp_size", "expert-parallel-size": "ep_size", "ep": "ep_size",
                  "decode-context-parallel-size": "dcp_size", "attention-data-parallel-size": "attn_dp_size",
                  "attention-context-parallel-size": "attn_cp_size", "moe-data-parallel-size": "moe_dp_size",
                  "nccl-init-addr": "dist_init_addr", "enable-hicache": "enable_hierarchical_cache",
                  "fp8-gemm-backend": "fp8_gemm_runner_backend", "fp4-gemm-backend": "fp4_gemm_runner_backend",
                  "speculative-draft-model": "speculative_draft_model_path"}  # fmt: skip
"""Names of arguments that are not the flag's own: read from the parser of 0.5.23."""

MODULES = ("sglang.launch_server",)
SCRIPT = "sglang"
"""What starts a server: ``python -m sglang.launch_server``, ``sglang serve``."""

PORT_DELTA, HANDSHAKE_DELTA, HIGHEST_PORT = 233, 13, 65535
"""Of ZMQ_TCP_PORT_DELTA and DP_ATTENTION_HANDSHAKE_PORT_DELTA in sglang/srt/server_args.py."""

DERIVED = ("tokenizer", "detokenizer", "rpc", "metrics", "scheduler input", "load collector")
"""What listens on the ports that follow the first one, in their order; the last only with several hosts."""


def derived_ports(release: Mapping[str, Any]) -> dict[int, str]:
    """The TCP ports beside its own that a server takes by a fixed rule, with what for; as 0.5.23 does.

    With data parallel attention it is ``--dist-init-addr``'s port, or else its own + 233 (- 233 where that is none),
    and the five or six that follow; without, its processes talk through files. What it looks for itself is not here.
    """
    flags: Mapping[str, Any] = release["flags"]
    found: dict[int, str] = {}
    nccl, start = str(flags.get("nccl-port", "")), str(flags.get("dist-init-addr", "")).rpartition(":")[2]
    several = str(flags.get("nnodes", "1")) != "1"
    old = "enable-dp-attention" in flags and str(flags.get("dp-size", flags.get("data-parallel-size", 1))) != "1"
    attention = old or any(str(flags.get(name, 1)) != "1" for name in ATTENTION_DATA_PARALLEL)
    if nccl.isdigit():
        found[int(nccl)] = "--nccl-port"
    if str(flags.get("node-rank", "0")) != "0":
        return found
    if start.isdigit():
        first = int(start)
        found[first] = "--dist-init-addr"
    else:
        port = int(release["port"])
        first = port + PORT_DELTA if port + PORT_DELTA <= HIGHEST_PORT else port - PORT_DELTA
    if not attention:
        return found
    found.setdefault(first, "data parallel attention")
    count = len(DERIVED)
    following = first + 1 if first + count <= HIGHEST_PORT else first - count - 1
    for place, what in enumerate(DERIVED[: count if several else count - 1]):
        found[following + place] = f"data parallel attention, {what}"
    if several:
        # Without an address it follows the server's own port, not the first one.
        found[(first if start.isdigit() else int(release["port"])) + HANDSHAKE_DELTA] = "handshake of its hosts"
    return found


def command(environment: str, model: str) -> list[str]:
    """The start of the server's argv, before its flags; the model is a flag here."""
    del model
    return [f"{environment}/bin/python3", "-m", "sglang.launch_server"]


def service_flags(model: str, served_name: str, address: str, port: int) -> dict[str, object]:
    """The flags that say what the service serves, and where."""
    named = {"served-model-name": served_name} if served_name else {}
    return {"model-path": model, **named, "host": address, "port": port}
