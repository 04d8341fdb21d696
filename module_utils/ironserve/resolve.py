"""Resolve: profile + host group + host -> release. Pure: files and inventory are read by the caller.

The release id covers what is meant to run: engine, lock, model, flags and environment. It is the same on all hosts of a
group. What a host adds (address, port, unit) is in the render id, see ``render.py``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from . import ranks, secrets
from .engines import ENGINES
from .explain import explain
from .flags import NOT_WHOLE, Words, argv, words
from .problems import Problems, kind_of, unknown
from .profiles import Merged, Source, merge
from .progress import DEFAULT
from .systemd import can_carry

FLAG_NAME = re.compile(r"[a-z][a-z0-9-]*")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

LIMITS = {"nofile": 65535, "memlock": "infinity"}
"""RDMA registers more locked memory than any usual default allows; a thousand files are fewer than a busy server has
connections."""

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
    origins: dict[str, Any] | None = None,
    engine_logs: Mapping[str, Mapping[str, Any]] | None = None,
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
        origins: receives where each word of the command and each variable comes from, see ``explain.py``; no part of
            the release, which does not change with the way in which a profile is written.
        engine_logs: for each engine what its log says, ``phases`` and ``fatal`` as in ``knowledge/phases/``.
    """
    group = str(site.get("ironserve_host_group", "?"))
    found = merge(profile, sources, problems, group, host)
    if found is None:
        return None
    merged, file = found.values, sources[profile].file
    flags = _flags(found, site.get("ironserve_sizes"), group, problems)
    env = _environment(found, site.get("ironserve_nccl_sets"), group, problems)
    engine, lock = ENGINES.get(str(merged.get("engine"))), locks.get(str(merged.get("engine")))
    if engine is None:
        return None
    log = dict((engine_logs or {}).get(str(merged["engine"]), {}))
    _check_stall_timeouts(found, [phase["name"] for phase in log.get("phases", [])], problems)
    gpus, owner = _gpus(site), f"service {service} of host {host}"
    _check_gpus(found, flags, engine, site, owner, problems)
    if gpus and VISIBLE in merged["env"]:
        origin = found.origins["env", VISIBLE]
        problems.add(origin.file, origin.key, f"is set by the service: {service} of host {host} names its GPUs")
    if lock is None and not problems:
        problems.add(f"host {host}", f"ironserve_locks.{merged['engine']}", f"is not set, and {file} needs it")
    if lock is None or problems:
        return None
    model = {"served_name": "", "revision": "", **site["ironserve_model"]}
    content = {"engine": merged["engine"], "lock_id": lock["id"], "model": model, "flags": flags, "env": env}
    port, address = site["ironserve_port"], site["ironserve_listen_address"]
    placed = _secrets(str(merged["engine"]), site, env, f"host {host}", problems)
    limits = {**LIMITS, **(site.get("ironserve_limits") or {})}
    if str(limits["memlock"]) != "infinity" and not str(limits["memlock"]).isdigit():
        where = f"host {host}"
        problems.add(
            where, "ironserve_limits.memlock", f'"{limits["memlock"]}" is neither infinity nor a number of bytes'
        )
    if problems:
        return None
    config = {"config": secrets.config_path(service)} if placed["flags"] else {}
    of_service = {**engine.service_flags(model["path"], model["served_name"], address, port), **config}
    environment = f"{ENGINES_ROOT}/{lock['id']}"
    release = {
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
        "argv": engine.command(environment, model["path"]) + argv({**flags, **of_service}, engine.FLAG_ORDER),
        "limits": limits,
        "secrets": secrets.names(placed),
        "env_file": secrets.env_path(service) if placed["env"] else "",
        "health_path": engine.HEALTH_PATH,
        "log": log,
        "startup_timeout_s": merged["startup_timeout_s"],
        "stall_timeout_s": merged["stall_timeout_s"],
        "watchdog_s": merged["watchdog_s"],
        "completion_timeout_s": merged["completion_timeout_s"],
    }
    if origins is not None:
        origins.update(explain(release, found, of_service, engine))
    return release


def _secrets(
    engine: str, site: Mapping[str, Any], env: Mapping[str, str], where: str, problems: Problems
) -> dict[str, dict[str, str]]:
    """Where each secret goes, each looked at; only their names may go into the release."""
    api_key: str = site.get("ironserve_api_key") or ""
    secret_env: Mapping[str, str] = site.get("ironserve_secret_env") or {}
    secret_flags: Mapping[str, str] = site.get("ironserve_secret_flags") or {}
    if api_key:
        secrets.check("ironserve_api_key", api_key, where, problems)
    for key, several in (("secret_env", secret_env), ("secret_flags", secret_flags)):
        for name, text in several.items():
            secrets.check(f"ironserve_{key}.{name}", text, where, problems)
    for name in secret_flags:
        if not FLAG_NAME.fullmatch(str(name)) or name in ENGINES[engine].SERVICE_FLAGS:
            wrong = "is no flag that a secret can be for; write it without dashes in front"
            problems.add(where, f"ironserve_secret_flags.{name}", wrong)
    for name in secret_env:
        if not VARIABLE_NAME.fullmatch(str(name)):
            problems.add(where, f"ironserve_secret_env.{name}", "is no name of an environment variable")
        if name in env:
            problems.add(where, f"ironserve_secret_env.{name}", "is set by the profile, too: leave it out there")
    return secrets.place(engine, api_key, secret_env, secret_flags)


def probe_address(listen_address: str) -> str:
    """Where the host itself reaches a server that listens on ``listen_address``, as a URL writes it."""
    if listen_address in ("0.0.0.0", "::", ""):  # noqa: S104  compared, not bound
        return "127.0.0.1"
    return f"[{listen_address}]" if ":" in listen_address else listen_address


def _flags(merged: Merged, sizes: Any, group: str, problems: Problems) -> dict[str, Words]:
    """The flags as the command has them: each ``${size}`` replaced, those that are false left out."""
    resolved: dict[str, Words] = {}
    if not isinstance(sizes, Mapping):
        return resolved  # said already, and every reference would be called unknown
    for name, value in merged.values["flags"].items():
        origin = merged.origins["flags", name]
        found = words(value, sizes, f"host group {group}", problems.at(origin.file, origin.key))
        if found is not None:
            resolved[name] = found
    return resolved


def _environment(merged: Merged, nccl_sets: Any, group: str, problems: Problems) -> dict[str, str]:
    """The engine's variables: the NCCL set that the profile opts into, and the profile's own."""
    chosen, own = merged.values.get("nccl_set"), merged.values["env"]
    nccl: Mapping[str, Any] = {}
    if isinstance(chosen, str) and isinstance(nccl_sets, Mapping):
        if chosen not in nccl_sets:
            origin = merged.origins["nccl_set",]
            problems.add(origin.file, origin.key, unknown(f"NCCL set of host group {group}", chosen, nccl_sets))
        nccl = nccl_sets[chosen] if isinstance(nccl_sets.get(chosen), Mapping) else {}
    for name, value in own.items():
        origin = merged.origins["env", name]
        if isinstance(value, str) and "${" in value:
            problems.add(origin.file, origin.key, NOT_WHOLE.format(value))
        if not can_carry(str(value)):
            problems.add(origin.file, origin.key, "holds a control character, which no unit can bring to a server")
        if not isinstance(name, str) or not VARIABLE_NAME.fullmatch(name):
            problems.add(origin.file, origin.key, f"{kind_of(name)} is no name of an environment variable")
        elif name in nccl and str(nccl[name]) != str(value):
            problems.add(
                origin.file,
                origin.key,
                f'contradicts the NCCL set {chosen}: "{value}" here, "{nccl[name]}" in host group {group}',
            )
    return {str(name): str(value) for name, value in {**nccl, **own}.items()}


def _check_stall_timeouts(merged: Merged, phases: Sequence[str], problems: Problems) -> None:
    """Limits by phase name phases that the engine's log has."""
    limits = merged.values["stall_timeout_s"]
    if not isinstance(limits, Mapping) or not phases:
        return
    origin = merged.origins["stall_timeout_s",]
    for name in limits:
        if name != DEFAULT and name not in phases:
            known = [DEFAULT, *phases]
            problems.add(
                origin.file, f"{origin.key}.{name}", unknown(f"phase of {merged.values['engine']}", name, known)
            )


def _gpus(site: Mapping[str, Any]) -> list[str]:
    """The GPUs that a service names; none means all of the host."""
    named = site.get("ironserve_gpus")
    return [str(gpu) for gpu in named] if isinstance(named, list) else []


def _sizes(merged: Merged, flags: Mapping[str, Words], engine: ModuleType, problems: Problems) -> list[str]:
    """The flags that say how many ranks there are: each of the sizes by one name, and none of them 0."""
    found = [name for names in engine.PARALLEL_FLAGS for name in names if name in flags]
    for names in engine.PARALLEL_FLAGS:
        first, *others = [*(name for name in names if name in flags), ""][:3]
        for other in filter(None, others):
            origin = merged.origins["flags", other]
            problems.add(origin.file, origin.key, f"is another name of {first}, which is given too: leave one out")
    for name in found:
        if str(flags[name]) == "0":
            origin = merged.origins["flags", name]
            problems.add(origin.file, origin.key, "is 0: there is one rank at least")
    return found


def _check_gpus(
    merged: Merged,
    flags: Mapping[str, Words],
    engine: ModuleType,
    site: Mapping[str, Any],
    owner: str,
    problems: Problems,
) -> None:
    """What the profile needs against the GPUs that the service names, or else those that the group says a host has."""
    hardware, group, named = site.get("ironserve_hardware"), site.get("ironserve_host_group"), len(_gpus(site))
    count = named or (hardware.get("gpu_count") if isinstance(hardware, Mapping) else None)
    needed, said = merged.values["requires"].get("gpu_count", 0), _sizes(merged, flags, engine, problems)
    if not isinstance(count, int) or not isinstance(needed, int):
        return
    holder, has = (owner, "names") if named else (f"host group {group}", "has")
    plural, world = "" if count == 1 else "s", ranks.expected(flags, engine)
    if count < needed:
        origin = merged.origins["requires", "gpu_count"]
        problems.add(origin.file, origin.key, f"needs {needed} GPUs; {holder} {has} {count}")
    elif said and 0 < count < world:
        origin = merged.origins["flags", said[0]]
        only = len(said) == 1 and said[0] in engine.PARALLEL_FLAGS[0]
        what = "tensor parallel" if only else f"{', '.join(f'{name} {flags[name]}' for name in said)}: ranks"
        problems.add(origin.file, origin.key, f"{what} {world} on {holder}, which {has} {count} GPU{plural}")
    shared = [name for name in engine.PARALLEL_FLAGS[0] if str(flags.get(name, 1)) != "1"]
    if named and shared and engine.NEEDED_FOR_UUIDS and engine.NEEDED_FOR_UUIDS not in flags:
        origin = merged.origins["flags", shared[0]]
        problems.add(
            origin.file,
            f"flags.{engine.NEEDED_FOR_UUIDS}",
            f"has to be true for {owner}, which names GPUs by UUID: the engine's own all-reduce takes them for numbers",
        )
