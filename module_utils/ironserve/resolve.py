"""Resolve: profile + host group + host -> release. Pure: files and inventory are read by the caller.

The release id covers what is meant to run: engine, lock, model, flags and environment. It is the same on all hosts of a
group. What a host adds (address, port, unit) is in the render id, see ``render.py``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from .engines import ENGINES
from .problems import Problems, kind_of, unknown
from .profiles import Source, merge

REFERENCE = re.compile(r"\$\{([^}]*)\}")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

ENGINES_ROOT = "/opt/ironserve/engines"

VISIBLE = "CUDA_VISIBLE_DEVICES"


def digest(content: Any) -> str:
    """Twelve hex digits over JSON-plain content; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:12]


def resolve(
    host: str,
    service: str,
    profile: str,
    site: Mapping[str, Any],
    sources: Mapping[str, Source],
    locks: Mapping[str, Mapping[str, Any]],
    problems: Problems,
) -> dict[str, Any] | None:
    """The release of ``service`` on ``host``, or None with all that is wrong in ``problems``.

    Args:
        host: inventory name, for messages.
        service: name of the service.
        profile: name of the profile.
        site: the variables that begin with ``ironserve_`` as this service sees them, checked: see ``wish.py``.
        sources: every known profile by name.
        locks: for each engine the lock that the site names: ``name``, ``id``, ``engine_version``, ``python``,
            ``installed_mib``.
        problems: receives everything that is wrong.
    """
    merged = merge(profile, sources, problems)
    if merged is None:
        return None
    file, group = sources[profile].file, str(site.get("ironserve_host_group", "?"))
    flags = _flags(merged["flags"], site.get("ironserve_sizes"), file, group, problems)
    env = _environment(merged, site.get("ironserve_nccl_sets"), file, group, problems)
    engine, lock = ENGINES.get(str(merged.get("engine"))), locks.get(str(merged.get("engine")))
    if engine is None:
        return None
    gpus = _gpus(site)
    _check_gpus(merged["requires"], flags, engine, site, f"service {service} of host {host}", file, problems)
    if gpus and VISIBLE in env:
        problems.add(file, f"env.{VISIBLE}", f"is set by the service: {service} of host {host} names its GPUs")
    if lock is None and not problems:
        problems.add(f"host {host}", f"ironserve_locks.{merged['engine']}", f"is not set, and {file} needs it")
    if lock is None or problems:
        return None
    model = {"served_name": "", "revision": "", **site["ironserve_model"]}
    content = {"engine": merged["engine"], "lock_id": lock["id"], "model": model, "flags": flags, "env": env}
    port, address = site["ironserve_port"], site["ironserve_listen_address"]
    all_flags = {**flags, **engine.service_flags(model["path"], model["served_name"], address, port)}
    environment = f"{ENGINES_ROOT}/{lock['id']}"
    return {
        **content,
        "release_id": digest(content),
        "service": service,
        "profile": profile,
        "declared_profile": site.get("ironserve_profile", ""),
        "host_group": group,
        "lock": dict(lock),
        "environment": environment,
        "address": address,
        "port": port,
        "url": f"http://{probe_address(address)}:{port}",
        "model_name": model["served_name"] or model["path"],
        "gpus": gpus,
        "host_env": {VISIBLE: ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpus else {},
        "argv": engine.command(environment, model["path"]) + argv(all_flags, engine.FLAG_ORDER),
        "health_path": engine.HEALTH_PATH,
        "startup_timeout_s": merged["startup_timeout_s"],
        "completion_timeout_s": merged["completion_timeout_s"],
    }


def argv(flags: Mapping[str, Any], order: tuple[str, ...]) -> list[str]:
    """Flags as a list of arguments: those in ``order`` first, then the others by name."""
    rank = {name: place for place, name in enumerate(order)}
    words: list[str] = []
    for name in sorted(flags, key=lambda flag: (rank.get(flag, len(order)), flag)):
        words.append(f"--{name}")
        if flags[name] is not True:
            words.append(str(flags[name]))
    return words


def probe_address(listen_address: str) -> str:
    """Where the host itself reaches a server that listens on ``listen_address``, as a URL writes it."""
    if listen_address in ("0.0.0.0", "::", ""):  # noqa: S104  compared, not bound
        return "127.0.0.1"
    return f"[{listen_address}]" if ":" in listen_address else listen_address


def _flags(flags: Mapping[str, Any], sizes: Any, file: str, group: str, problems: Problems) -> dict[str, Any]:
    """The flags as the command has them: each ``${size}`` replaced, false ones left out, values as text."""
    resolved: dict[str, Any] = {}
    for name, value in flags.items():
        match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match and isinstance(sizes, Mapping):
            if match[1] not in sizes:
                problems.add(file, f"flags.{name}", unknown(f"size of host group {group}", match[1], sizes))
            resolved[name] = str(sizes.get(match[1]))
        elif value is not False:
            _check_reference(value, file, f"flags.{name}", problems)
            resolved[name] = value if value is True else str(value)
    return resolved


def _environment(
    merged: Mapping[str, Any], nccl_sets: Any, file: str, group: str, problems: Problems
) -> dict[str, str]:
    """The engine's variables: the NCCL set that the profile opts into, and the profile's own."""
    chosen = merged.get("nccl_set")
    nccl: Mapping[str, Any] = {}
    if isinstance(chosen, str) and isinstance(nccl_sets, Mapping):
        if chosen not in nccl_sets:
            problems.add(file, "nccl_set", unknown(f"NCCL set of host group {group}", chosen, nccl_sets))
        nccl = nccl_sets[chosen] if isinstance(nccl_sets.get(chosen), Mapping) else {}
    for name, value in merged["env"].items():
        _check_reference(value, file, f"env.{name}", problems)
        if not isinstance(name, str) or not VARIABLE_NAME.fullmatch(name):
            problems.add(file, "env", f"{kind_of(name)} is no name of an environment variable")
        elif name in nccl and str(nccl[name]) != str(value):
            problems.add(
                file,
                f"env.{name}",
                f'contradicts the NCCL set {chosen}: "{value}" here, "{nccl[name]}" in host group {group}',
            )
    return {str(name): str(value) for name, value in {**nccl, **merged["env"]}.items()}


def _check_reference(value: Any, file: str, key: str, problems: Problems) -> None:
    if isinstance(value, str) and "${" in value:
        problems.add(file, key, f'"{value}": a size is a whole value of a flag, ${{name}} and nothing beside it')


def _gpus(site: Mapping[str, Any]) -> list[str]:
    """The GPUs that a service names; none means all of the host."""
    named = site.get("ironserve_gpus")
    return [str(gpu) for gpu in named] if isinstance(named, list) else []


def _check_gpus(
    requires: Mapping[str, Any],
    flags: Mapping[str, Any],
    engine: ModuleType,
    site: Mapping[str, Any],
    owner: str,
    file: str,
    problems: Problems,
) -> None:
    """What the profile needs against the GPUs that the service names, or else those that the group says a host has."""
    hardware, group, named = site.get("ironserve_hardware"), site.get("ironserve_host_group"), len(_gpus(site))
    count = named or (hardware.get("gpu_count") if isinstance(hardware, Mapping) else None)
    needed, tensor_parallel = requires.get("gpu_count", 0), flags.get(engine.TENSOR_PARALLEL)
    if not isinstance(count, int) or not isinstance(needed, int):
        return
    holder, has = (owner, "names") if named else (f"host group {group}", "has")
    plural = "" if count == 1 else "s"
    ranks = int(str(tensor_parallel)) if str(tensor_parallel).isdigit() else 0
    if count < needed:
        problems.add(file, "requires.gpu_count", f"needs {needed} GPUs; {holder} {has} {count}")
    elif 0 < count < ranks:
        problems.add(file, "flags", f"tensor parallel {ranks} on {holder}, which {has} {count} GPU{plural}")
    if named and ranks > 1 and engine.NEEDED_FOR_UUIDS and engine.NEEDED_FOR_UUIDS not in flags:
        problems.add(
            file,
            f"flags.{engine.NEEDED_FOR_UUIDS}",
            f"has to be true for {owner}, which names GPUs by UUID: the engine's own all-reduce takes them for numbers",
        )
