"""The site's variables: all that an inventory may say. Any other name that begins with ironserve_ is a mistake."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from .problems import Problems, did_you_mean
from .routers import KINDS
from .schema import Key, check

PREFIX = "ironserve_"

SENTINEL = "ironserve_group_vars_loaded"
"""Set by group_vars/all: an inventory that does not see it was given with -i and without our group_vars."""

VARIABLES: dict[str, Key] = {
    SENTINEL: Key("bool", "set by group_vars/all; shows that the group_vars were loaded"),
    "ironserve_host_group": Key("str", "name of the host group: the kind of hardware that a host is", required=True),
    "ironserve_profile": Key("str", "profile of the host's service when a deploy names none"),
    "ironserve_profile_paths": Key(
        "list", "folders with profiles, the first match counts", required=True, values=Key("str", "a folder")
    ),
    "ironserve_listen_address": Key("str", "address the server listens on", required=True),
    "ironserve_port": Key("int", "TCP port of the server", required=True, low=1, high=65535),
    "ironserve_model": Key(
        "mapping",
        "the model that the service serves",
        required=True,
        keys={
            "path": Key("str", "folder of the model on the host", required=True, absolute=True),
            "served_name": Key("str", "name that clients use; without it the engine's own default, the path"),
            "revision": Key("str", "revision of the weights, part of the release; free text"),
        },
    ),
    "ironserve_gpus": Key(
        "list", "UUIDs of the GPUs that the service may use, as nvidia-smi -L prints them; not set: all"
    ),
    "ironserve_hardware": Key(
        "mapping",
        "what a host of the group has",
        required=True,
        keys={
            "gpu_count": Key("int", "GPUs a host", required=True, low=0, high=64),
            "gpu_family": Key("str", "sm90, sm100, sm120; none on a host without GPUs", required=True),
            "interconnect": Key(
                "str",
                "how GPUs reach each other: checked where it is said",
                choices=("nvlink", "switch", "mixed", "direct"),
            ),
            "acs": Key(
                "str",
                "strict: PCIe bridges that redirect peer to peer are an error whatever a profile says",
                choices=("strict",),
            ),
            "driver": Key("str", 'version of the driver that drift is told against: ">=580", "==595.58.03" or "580"'),
            "kernel": Key(
                "str", 'release of the kernel that drift is told against: ">=6.17", or how it begins, "6.17"'
            ),
        },
    ),
    "ironserve_sizes": Key(
        "mapping", "sizes of the group that profiles name as ${name}", required=True, values=Key("size", "a size")
    ),
    "ironserve_nccl_sets": Key(
        "mapping",
        "named sets of NCCL variables that profiles opt into",
        required=True,
        values=Key("mapping", "one set", values=Key("scalar", "value of the variable")),
    ),
    "ironserve_limits": Key(
        "mapping",
        "limits that the server must have; the gate reads them back",
        keys={
            "nofile": Key("int", "open files; 65535 where nothing is said", low=1024),
            "memlock": Key("scalar", "locked memory in bytes, or infinity, which RDMA needs and which is the default"),
        },
    ),
    "ironserve_api_key": Key("str", "API key that clients have to send; empty: none. From a vault", secret=True),
    "ironserve_secret_env": Key(
        "mapping",
        "secret variables of the server, such as HF_TOKEN",
        secret=True,
        values=Key("str", "a secret", secret=True),
    ),
    "ironserve_secret_flags": Key(
        "mapping",
        "secret flags of the server, such as SGLang's admin-api-key: it reads them from a file",
        secret=True,
        values=Key("str", "a secret", secret=True),
    ),
    "ironserve_locks": Key(
        "mapping",
        "lock of each engine: a folder of environments/, or a path to such a folder",
        required=True,
        keys={
            "sglang": Key("str", "lock of SGLang"),
            "vllm": Key("str", "lock of vLLM"),
            "router": Key("str", "lock of the router"),
            "client": Key("str", "lock of the benchmark's client"),
        },
    ),
    "ironserve_cleanup": Key(
        "mapping",
        "how GPUs are freed, in a deploy and by playbooks/cleanup.yml; docs/cleanup.md",
        keys={
            "patterns": Key("list", "titles of other engines, as shell patterns", values=Key("str", "a pattern")),
            "protected_extra": Key(
                "list", "executables that are never signalled, beside those built in", values=Key("str", "a name")
            ),
            "unprotected": Key(
                "list", "executables built in that may be signalled nevertheless", values=Key("str", "a name")
            ),
            "grace_s": Key("number", "seconds between SIGTERM and SIGKILL; 10 where nothing is said", low=0),
            "driver_timeout_s": Key(
                "number", "seconds that the driver may take to answer; 30 where nothing is said", low=1
            ),
            "free_threshold_mib": Key("int", "MiB used at which a GPU counts as free; 64 where nothing is said", low=0),
            "mig": Key("bool", "clean GPUs in MIG mode, too"),
            "shm": Key("bool", "remove what crashed engines left in /dev/shm; true where nothing is said"),
        },
    ),
    "ironserve_benchmark": Key(
        "mapping",
        "how a server is measured; docs/benchmarks.md",
        keys={
            "concurrencies": Key("list", "levels: requests in flight at a time", values=Key("int", "a level", low=1)),
            "input_tokens": Key("int", "tokens of a prompt, as words", low=1),
            "output_tokens": Key("int", "tokens of an answer", low=2),
            "repetitions": Key("int", "runs of each level that count; 4 or more for a comparison", low=1),
            "requests_per_stream": Key("int", "requests of a run, times its level", low=1),
            "min_requests": Key("int", "requests of a run at least", low=1),
            "seed": Key("int", "the same seed, the same prompts", low=0),
            "timeout_s": Key("number", "seconds that a measurement may take", low=1),
        },
    ),
    "ironserve_baselines": Key("str", "folder on the controller for the recorded baselines, by host group and service"),
    "ironserve_address": Key("str", "name or address under which routers reach the host"),
    "ironserve_routers": Key(
        "list",
        "inventory names of the routers in front of the host's services; not set: all hosts of the group router",
        values=Key("str", "a host of the group router"),
    ),
    "ironserve_router": Key(
        "mapping",
        "how a host of the group router routes; docs/router.md",
        keys={
            "kind": Key("str", "kind of router; sglang where nothing is said", choices=tuple(KINDS)),
            "policy": Key(
                "str",
                "how it chooses a server; cache_aware where nothing is said",
                choices=("cache_aware", "power_of_two", "round_robin", "random"),
            ),
            "metrics_address": Key("str", "address of its metrics; 127.0.0.1 where nothing is said"),
            "metrics_port": Key("int", "port of its metrics; 29000 where nothing is said", low=1, high=65535),
            "health_interval_s": Key(
                "int", "seconds between two looks at a server's health; 5 where nothing is said", low=1
            ),
            "grace_s": Key(
                "int",
                "seconds that requests in flight get when the router is stopped; 180 where nothing is said",
                low=0,
            ),
        },
    ),
    "ironserve_drain_timeout_s": Key(
        "number", "seconds that requests in flight get before a server is stopped; those left are cut", low=0
    ),
    "ironserve_canary": Key(
        "share", "hosts of a group that are rolled first, a number or a percentage; 0: no canary", low=0
    ),
    "ironserve_soak_s": Key("number", "seconds that the canary serves before the next batch", low=0),
    "ironserve_soak_error_rate": Key(
        "number", "share of failed requests at which the canary is bad, from 0 to 1", low=0, high=1
    ),
    "ironserve_speed_gate": Key(
        "mapping",
        "least share of the recorded baseline's output tokens a second that the canary has to reach, by level: "
        "single_stream, c128; docs/benchmarks.md",
        values=Key("number", "a share; 0.95 allows 5 % less", low=0.01, high=10),
    ),
    "ironserve_batches": Key(
        "list",
        "sizes of the batches after the canary, numbers or percentages of the group; the last one repeats",
        values=Key("share", "a size", low=1),
    ),
    "ironserve_max_unavailable": Key(
        "share", "hosts of a group that may be out of service at a time; not set: as many as a batch has", low=1
    ),
    "ironserve_min_serving": Key(
        "share",
        "servers that each router has admitted and healthy at any time, those of all groups together; "
        "a percentage is of all that it has",
        low=0,
    ),
    "ironserve_max_failures": Key("int", "failed hosts at which a roll stops; 1: at the first", low=1),
    "ironserve_forks": Key("int", "hosts that Ansible works on at a time; at least the largest batch", low=1),
    "ironserve_lease_s": Key(
        "number", "seconds after which a run that does not end loses its hosts to another", low=60
    ),
    "ironserve_reports": Key("str", "folder on the controller for the reports as JSON, from the checkout or absolute"),
    "ironserve_wheelhouse": Key("str", "folder on the host with a wheelhouse for each lock id; empty: none"),
    "ironserve_index_url": Key("str", "package index or mirror; empty: PyPI"),
}


SERVICE_KEYS = (
    "profile", "port", "listen_address", "model", "gpus", "sizes", "api_key", "secret_env", "secret_flags"
)  # fmt: skip
"""What a service may say itself; what it does not say it takes from the variable of that name with ``ironserve_``."""

SERVICE = Key(
    "mapping",
    "one service: what it says itself of what the host's variables say",
    keys={key: replace(VARIABLES[PREFIX + key], required=False) for key in SERVICE_KEYS},
)

VARIABLES["ironserve_services"] = Key(
    "mapping", "the host's services by name; not set: one, main; {}: none", values=SERVICE
)


FRACTION = re.compile(r"[0-9]*\.[0-9]+")
"""A number as people write it that is no whole one."""


def numbers_as_such(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables with numbers as numbers: ``-e ironserve_port=8001`` on a command line is text."""

    def number(name: str, value: Any) -> Any:
        if name == "ironserve_services" and isinstance(value, Mapping):
            return {service: own(said) for service, said in value.items()}
        kind = VARIABLES[name].type if name in VARIABLES and isinstance(value, str) else ""
        if kind in ("int", "share", "number") and value.isdigit():
            return int(value)
        return float(value) if kind == "number" and FRACTION.fullmatch(value) else value

    def own(said: Any) -> Any:
        if not isinstance(said, Mapping):
            return said
        return {key: number(f"{PREFIX}{key}", value) for key, value in said.items()}

    return {name: number(name, value) for name, value in variables.items()}


BARE = {
    "profile": "the name of a profile",
    "service": "the name of a service",
    "release": "the id of a release, or its beginning",
    "takeover": "true or false",
    "keep": "a number",
    "yes": "true or false",
    "consent_foreign": "true or false",
    "accept": "the names of rules, with commas between",
    "prove_nccl": "true or false",
    "drift": "true or false",
    "baseline": "true or false",
    "plan": "true or false",
    "revert_all": "true or false",
    "reason": "words for others to read",
    "profiles": "names of profiles, with commas between",
    "matrix": "a mapping of base, flags and env",
    "objective": "single_stream, or c128 for 128 requests at a time",
    "rounds": "a number",
    "budget_min": "a number of minutes",
}
"""Variables of a run (``-e``) that carry no prefix."""


def check_extra_variables(extra: Mapping[str, Any], problems: Problems) -> None:
    """Note what is nearly one of the bare variables, and so would be ignored; others may be the inventory's own.

    An empty one is a variable of somebody's shell that was not set, and does not mean what a missing one means.
    """
    for name in sorted(map(str, extra)):
        if name in BARE and str(extra[name] if extra[name] is not None else "").strip() == "":
            problems.add("-e", name, f"is empty: leave it out, or give {BARE[name]}")
        meant = did_you_mean(name, BARE)
        if name not in BARE and not name.startswith((PREFIX, "ansible_")) and meant:
            problems.add("-e", name, f"is no variable of a run{meant}")
    for name in (name for name, kind in BARE.items() if kind == "true or false"):
        said = str(extra.get(name) or "false").lower()
        if said not in ("true", "false", "yes", "no", "1", "0"):
            problems.add("-e", name, f'"{said}" is neither true nor false')


def no_host_group(host: str, groups: Iterable[str], known: Collection[str]) -> str:
    """What to say of a host that no group_vars describe: the one cause of all that is missing then."""
    inside = [f'"{group}"{did_you_mean(group, known)}' for group in groups]
    return (
        f"host {host} is in no host group, so nothing says its hardware; its groups: {', '.join(inside) or 'none'}; "
        f"host groups: {', '.join(sorted(known))}. A host group of your own is a group whose group_vars set "
        "ironserve_host_group, as group_vars/blackwell/main.yml does"
    )


def check_site(variables: Mapping[str, Any], where: str, problems: Problems) -> None:
    """Add every unknown, missing or wrong site variable of one host to ``problems``.

    What a service may say itself is not missing here: see ``wish.check_services``.
    """
    inherited = {f"{PREFIX}{key}" for key in SERVICE_KEYS}
    check_said(variables, where, problems)
    for name, key in VARIABLES.items():
        if key.required and name not in variables and name not in inherited:
            problems.add(where, name, f"is not set: {key.about}")


def check_said(variables: Mapping[str, Any], where: str, problems: Problems) -> None:
    """Add every unknown or wrong site variable of one host; one that serves nothing, as a router, needs none."""
    for name in sorted(variables):
        if name not in VARIABLES:
            problems.add(where, name, f"unknown variable{did_you_mean(name, VARIABLES)}")
    for name, key in VARIABLES.items():
        if name in variables:
            check(variables[name], key, where, name, problems)
