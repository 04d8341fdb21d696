"""Cases made of facts by name, as the examples of rules have them."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.ironserve.engines import ENGINES
from ansible.module_utils.ironserve.findings import Case

LINKS = {"nvlink": "NV18", "pcie": "NODE"}


def case_of(facts: dict[str, Any], engine: str = "sglang", origins: dict[str, Any] | None = None) -> Case:
    """A case in which these facts hold; ``link`` makes a topology, flags and variables that are null are not there."""
    rest = dict(facts)
    engine, version = rest.pop("engine", engine), str(rest.pop("version", "0"))
    parts: dict[str, dict[str, Any]] = {kind: {} for kind in ("flag", "env", "package", "model")}
    for name in [name for name in rest if "." in name]:
        kind, _, own = name.partition(".")
        value = rest.pop(name)
        if value is not None or kind == "model":
            parts[kind][own] = value if kind == "model" or value is True else str(value)
    if "tensor_parallel" in rest:
        parts["flag"][ENGINES[engine].TENSOR_PARALLEL] = str(rest.pop("tensor_parallel"))
    if "nccl_version" in rest:
        parts["package"]["nvidia-nccl-cu13"] = rest.pop("nccl_version")
    count, family = rest.pop("gpu_count", 8), rest.pop("gpu_family", "")
    seen = {"gpus": [gpu(index, family, rest.get("gpu_memory_mib", 0)) for index in range(count)]}
    if link := rest.pop("link", None):
        seen["topology"] = [["X" if a == b else LINKS[link] for a in range(count)] for b in range(count)]
    rest.pop("gpu_memory_mib", None)
    assert not rest, f"unknown facts: {rest}"
    lock = {"engine_version": version}
    release = {"service": "main", "profile": "p", "engine": engine, "lock": lock, "flags": parts["flag"],
               "env": parts["env"], "model": {"path": "/models/m"}}  # fmt: skip
    return Case(
        "h1",
        release,
        facts={"gpus": seen, "models": {"main": parts["model"]}},
        hardware={"gpu_count": count},
        packages=parts["package"],
        origins=origins or {},
    )


def gpu(index: int, family: str, memory_mib: int) -> dict[str, Any]:
    """A GPU as the driver tells it."""
    return {"index": index, "uuid": f"GPU-{index}", "family": family, "memory_total_mib": memory_mib}
