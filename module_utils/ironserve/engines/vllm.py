"""vLLM: how its server is called and asked. Seen in 0.26 to 0.33."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SERVICE_FLAGS = {"model": "ironserve_model.path", "served-model-name": "ironserve_model.served_name",
                 "host": "ironserve_listen_address", "port": "ironserve_port",
                 "config": "flags of the profile, and ironserve_secret_flags for secrets"}  # fmt: skip
"""Flags that the service sets, with the site variable that says their value: a profile may not."""

FLAG_ORDER = ("served-model-name", "trust-remote-code", "tensor-parallel-size", "gpu-memory-utilization", "host",
              "port", "attention-backend", "disable-custom-all-reduce")  # fmt: skip
"""Order of the flags in the command: as operators write them; all others follow by name."""

TENSOR_PARALLEL = "tensor-parallel-size"

NEEDED_FOR_UUIDS = ""
"""No flag is needed for UUIDs in CUDA_VISIBLE_DEVICES: seen in 0.32; 0.20 died of them."""

HEALTH_PATH = "/health"
"""Says 200 or 503 without generating anything: only the completion that follows shows that the engine works."""

REQUEST_METRICS: tuple[str, ...] = ("vllm:num_requests_running", "vllm:num_requests_waiting")
"""Metrics of requests that run and that wait. There are none with --disable-log-stats."""

FINISHED_METRIC = "vllm:request_success_total"
"""Metric that counts the requests that it answered, whatever they ended with."""

LOAD_PATHS: tuple[str, ...] = ()

WORK_METRICS: dict[str, tuple[str, ...]] = {"requests": REQUEST_METRICS,
                "tokens": ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")}  # fmt: skip
"""Metrics of /metrics that show whether it decodes. Its /health says 200 over an engine that hangs."""

API_KEY_VARIABLE = "VLLM_API_KEY"
"""The variable from which the server reads its API key."""

READS_API_KEY_VARIABLE = True

TITLE = "VLLM::"
"""How its processes call themselves: ``VLLM::EngineCore``, ``VLLM::Worker_TP0``. The main process keeps its argv."""

RANK_TITLES = ("VLLM::Worker", "VLLM::EngineCore")
"""Titles of its ranks, one process a GPU. With one GPU there may be no worker: the engine core is the rank then."""

PARALLEL_FLAGS = (("tensor-parallel-size",), ("pipeline-parallel-size",), ("data-parallel-size",), ("nnodes",))
"""Flags of the sizes that make up the number of ranks, each with its other names: tensor, pipeline, data, hosts."""

DATA_PARALLEL_INSIDE: tuple[str, ...] = ()
"""Flags with which data parallelism divides the tensor parallel ranks, and adds none."""

ATTENTION_DATA_PARALLEL: tuple[str, ...] = ()
"""Flags that say into how many groups attention divides the tensor parallel ranks."""

NODE_RANK_FLAGS = ("node-rank",)

RANKS_ELSEWHERE: dict[str, tuple[str, ...]] = {"distributed-executor-backend": ("mp",), "data-parallel-size-local": (),
                   "data-parallel-backend": ("mp",),
                   "data-parallel-rank": ()}  # fmt: skip
"""Flags with which other programs or hosts have some of the ranks, each with the values for which they do not."""

INFO_PATHS: tuple[str, ...] = ()
"""None: its /server_info is there in development mode only."""

ARGUMENTS_LINE = r"non-default args: \{"
"""What stands before the arguments in its log. A flag that is given with its default value is not among them."""

ARGUMENT_NAMES: dict[str, str] = {}
"""Names of arguments that are not the flag's own."""

MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
SCRIPT = "vllm"
"""What starts a server: ``python -m vllm.entrypoints.openai.api_server``, ``vllm serve``."""

MASTER_PORT, RPC_PORT = 29501, 29550
"""Defaults of --master-port and --data-parallel-rpc-port (vllm/config/parallel.py of 0.32)."""


def derived_ports(release: Mapping[str, Any]) -> dict[int, str]:
    """The TCP ports beside its own that a server takes by a fixed rule, with what for; as 0.32 does.

    Only the first of several hosts takes any. What is for one host it looks for itself, from ``VLLM_PORT`` on.
    """
    flags: Mapping[str, Any] = release["flags"]
    found: dict[int, str] = {}
    if str(flags.get("node-rank", "0")) != "0" or "headless" in flags:
        return found
    if str(flags.get("nnodes", "1")) != "1":
        found[_port(flags, "master-port", MASTER_PORT)] = "--master-port"
    if "data-parallel-size-local" in flags or "data-parallel-address" in flags:
        found[_port(flags, "data-parallel-rpc-port", RPC_PORT)] = "--data-parallel-rpc-port"
    return found


def _port(flags: Mapping[str, Any], name: str, otherwise: int) -> int:
    """The port that a flag says; what is no number the engine itself refuses."""
    said = str(flags.get(name, ""))
    return int(said) if said.isdigit() else otherwise


def command(environment: str, model: str) -> list[str]:
    """The start of the server's argv, before its flags; the model is its one positional argument."""
    return [f"{environment}/bin/vllm", "serve", model]


def service_flags(model: str, served_name: str, address: str, port: int) -> dict[str, object]:
    """The flags that say what the service serves, and where; the model itself is positional."""
    del model
    named = {"served-model-name": served_name} if served_name else {}
    return {**named, "host": address, "port": port}
