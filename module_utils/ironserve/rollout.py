"""A roll over a fleet: which hosts change and why, in which batches, and whether the next batch may begin.

Pure, and used on the controller only. A fleet is rolled group by group, each group in batches: its canary first, which
soaks, then the others. The plan is made before anything is touched; each batch is judged anew before it begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import compare, wish
from .problems import Problems, unknown
from .routers import worker_url as worker_url  # noqa: PLC0414  a filter is made of it
from .schema import share
from .site import PREFIX, numbers_as_such
from .slices import duration

SHARED: dict[str, Any] = {
    "canary": 1, "soak_s": 0, "soak_error_rate": 0.01, "batches": [1], "max_unavailable": None, "min_serving": 0,
    "max_failures": 1,
}  # fmt: skip
"""Settings that all hosts of a group share, with what holds where nobody says them."""

LEVELS = (1, 8, 32, 128)
"""Levels of a measurement where nobody says them, as in roles/benchmark/vars (compared by a test)."""

MEASURE_S = 7200
"""Seconds that a measurement may take where nobody says it, as there."""

Hosts = Mapping[str, Mapping[str, Any]]
"""By host ``roll`` (as :func:`settings` returns it) and ``services``, as :func:`seen_of` picks them."""

Answers = Mapping[str, Mapping[str, Any]]
"""By router what ``router_worker`` returned."""

DECLARED = (
    "ironserve_host_group", "ironserve_routers", "ironserve_address", "ironserve_services", "ironserve_port",
    "ironserve_model",
)  # fmt: skip
"""Variables of a host beyond the run that :func:`declared` reads."""

NAMED = 8
"""So many hosts are named in a line that is meant to be short."""


def settings(
    site: Mapping[str, Any], groups: Mapping[str, Sequence[str]], host: str, problems: Problems
) -> dict[str, Any]:
    """What a host's variables say of a roll; what cannot be meant so is added to ``problems``.

    ``members``: how many hosts the inventory has in the host group, whether they are meant by this run or not;
    ``measure``: of a speed gate how long it may take to measure a server (``timeout_s``), with the lock of which
    ``client``, and the folder of the ``baselines`` that it compares with; empty without a gate.
    """
    routers, known = [str(name) for name in site.get("ironserve_routers") or ()], groups.get("router", ())
    for name in routers:
        if name not in known:
            problems.add(f"host {host}", "ironserve_routers", unknown("router", name, known))
    _check_speed_gate(site, host, problems)
    measure = {
        "timeout_s": (site.get("ironserve_benchmark") or {}).get("timeout_s", MEASURE_S),
        "client": (site.get("ironserve_locks") or {}).get("client"),
        "baselines": site.get("ironserve_baselines"),
    }
    group = str(site["ironserve_host_group"])
    return {
        "group": group,
        **{key: site.get(f"{PREFIX}{key}", default) for key, default in SHARED.items()},
        "forks": site.get("ironserve_forks"),
        "drain_timeout_s": site.get("ironserve_drain_timeout_s", 0),
        "measure": measure if site.get("ironserve_speed_gate") else {},
        "routers": routers,
        "address": str(site.get("ironserve_address") or host),
        "members": len(set(groups.get(group, ())) - set(known)),
    }


def _check_speed_gate(site: Mapping[str, Any], host: str, problems: Problems) -> None:
    """A floor that nothing could be compared with would let everything pass."""
    floors = site.get("ironserve_speed_gate") or {}
    levels = (site.get("ironserve_benchmark") or {}).get("concurrencies", LEVELS)
    for name in floors:
        try:
            level = int(compare.level_of(str(name)))
        except ValueError as error:
            problems.add(f"host {host}", f"ironserve_speed_gate.{name}", str(error))
            continue
        if level not in levels:
            measured = ", ".join(map(str, levels))
            problems.add(
                f"host {host}",
                f"ironserve_speed_gate.{name}",
                f"is not measured: ironserve_benchmark.concurrencies has {measured}",
            )
    if floors and site.get("ironserve_canary", SHARED["canary"]) in (0, "0", "0%"):
        problems.add(f"host {host}", "ironserve_speed_gate", "the canary is what is measured: ironserve_canary is 0")


def declared(host: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """A host that this run does not mean, as the inventory has it: ``group``, ``routers`` and ``services``.

    Args:
        host: its name.
        said: its variables of :data:`DECLARED`.
    """
    services = []
    for name, view in wish.views(numbers_as_such(said)).items():
        url = worker_url(str(said.get("ironserve_address") or host), view["ironserve_port"])
        model = view["ironserve_model"]
        services.append({"service": name, "url": url, "model_name": model.get("served_name") or model["path"]})
    return {
        "group": str(said["ironserve_host_group"]),
        "routers": [str(name) for name in said.get("ironserve_routers") or ()],
        "services": services,
    }


def in_order(hosts: Iterable[str]) -> list[str]:
    """By name, as a person counts: h2 before h10."""
    return sorted(hosts, key=lambda host: [(part.zfill(12), part) for part in re.split(r"(\d+)", host)])


def listed(hosts: Sequence[str], whole: bool = False) -> str:
    """``h1 h2 h3``, of many the first and how many more."""
    if whole or len(hosts) <= NAMED:
        return " ".join(hosts)
    return f"{' '.join(hosts[: NAMED - 2])} and {len(hosts) - NAMED + 2} more"


def not_admitted(roll: Mapping[str, Any], port: int, answers: Answers) -> list[str]:
    """Why a server that serves is not in service: the routers that have not admitted it."""
    url = worker_url(roll["address"], port)
    return [f"not admitted by router {router}" for router in roll["routers"] if url not in admitted(answers, router)]


def admitted(answers: Answers, router: str) -> set[str]:
    """URLs that are meant to be behind a router, and are. One that it forgot is not."""
    answer = answers.get(router) or {}
    return set(answer.get("admitted", ())) & {worker["url"] for worker in answer.get("workers", ())}


def serving(answers: Answers, router: str) -> set[str]:
    """URLs that a router sends requests to: admitted, and healthy."""
    workers = (answers.get(router) or {}).get("workers", ())
    return admitted(answers, router) & {worker["url"] for worker in workers if worker["healthy"]}


def needed(said: Iterable[int | str], servers: int) -> int:
    """How many servers a router needs at any time: the one rule of ``ironserve_min_serving``.

    Args:
        said: what the hosts behind the router say. Their groups do not matter, a router serves its clients with all
            that it has; the most that any says holds.
        servers: that the router has, serving or not.
    """
    return max((share(each, servers, up=True) for each in said), default=0)


def port_now(result: Mapping[str, Any]) -> int:
    """The port under which routers have a server now: that of the active release, of a new one that which is meant."""
    return int(result.get("active_port") or result["serve_release"]["port"])


def seen_of(compared: Sequence[Mapping[str, Any]], roll: Mapping[str, Any], answers: Answers) -> list[dict[str, Any]]:
    """Of what the comparison of a host returned all that a plan needs.

    ``url`` is the one under which routers have the server now, ``wished_url`` that after its turn; ``admitted`` is None
    without a router.
    """
    found = []
    for result in compared:
        release, port = result["serve_release"], port_now(result)
        lacking = not_admitted(roll, port, answers)
        found.append(
            {
                "service": release["service"],
                "profile": release["profile"],
                "release_id": release["release_id"],
                "model_name": release["model_name"],
                "url": worker_url(roll["address"], port),
                "wished_url": worker_url(roll["address"], release["port"]),
                "previous_id": result.get("previous_id", ""),
                "reasons": list(result.get("reasons") or lacking),
                "running": bool(result.get("running")),
                "restart": bool(result.get("restart")),
                "expected_s": result.get("expected_s"),
                "admitted": not lacking if roll["routers"] else None,
            }
        )
    return found


def plan(hosts: Hosts, answers: Answers, forks: int, beyond: Hosts | None = None) -> dict[str, Any]:
    """The roll of a run: ``hosts batches order serial groups expected_s measure_s notes problems``, JSON-plain.

    ``measure_s``: how long measuring may take, of all canaries together.

    Args:
        hosts: all hosts of the run, those that are there already, too.
        answers: what the routers have.
        forks: hosts that Ansible works on at a time.
        beyond: hosts of the inventory that this run does not mean, as :func:`declared` returns them.
    """
    beyond = beyond or {}
    entries = {host: _entry(host, hosts[host]) for host in in_order(hosts)}
    problems, notes = Problems(), []
    groups: dict[str, dict[str, Any]] = {}
    batches: list[dict[str, Any]] = []
    for name in dict.fromkeys(entry["group"] for entry in entries.values()):
        members = [host for host, entry in entries.items() if entry["group"] == name]
        shared = _agreed(name, {host: hosts[host]["roll"] for host in members}, problems)
        if shared is None:
            continue
        others = {host: known for host, known in beyond.items() if known["group"] == name}
        groups[name] = shared = _in_numbers(shared, members, hosts, answers, others)
        changing = [host for host in members if entries[host]["state"] == "changes"]
        # A host that serves nobody takes nothing away, and comes back with its turn: only the others are counted.
        first = [host for host in changing if not entries[host]["serves"]]
        then = [host for host in changing if entries[host]["serves"]]
        if then and shared["at_once"] < 1:
            problems.add(f"group {name}", "ironserve_min_serving", _cannot_keep(shared))
            continue
        if first and then:
            notes.append(f"{listed(first)}: out of service now, and first for that")
        parts = _parts(first, then, shared)
        if any(len(part["hosts"]) < part["wished"] for part in parts):
            notes.append(f"group {name}: {shared['at_once']} hosts at a time at most ({shared['limited_by']})")
        batches += [{"group": name, "name": part["name"], "hosts": part["hosts"]} for part in parts]
    for number, batch in enumerate(batches):
        batch["at_least"] = _at_least(batch, batches[:number], groups[batch["group"]], entries, hosts)
    _check_forks(batches, hosts, forks, problems)
    _check_models(hosts, beyond, problems)
    notes += _batch_notes(batches, entries) + _drain_notes(batches, hosts)
    measured = [(hosts[host]["roll"], entries[host]["services"]) for host in canaries(batches)]
    order = [host for batch in batches for host in batch["hosts"]]
    return {
        "hosts": list(entries.values()),
        "batches": batches,
        "order": order,
        "serial": [len(batch["hosts"]) for batch in batches],
        "groups": groups,
        "expected_s": _expected(batches, groups, entries),
        "measure_s": sum(
            roll.get("measure", {}).get("timeout_s", 0) * sum(bool(service["reasons"]) for service in services)
            for roll, services in measured
        ),
        "notes": notes,
        "problems": problems.found,
    }


def canaries(batches: Sequence[Mapping[str, Any]]) -> list[str]:
    """The hosts of the canary batches, which a speed gate measures."""
    return [host for batch in batches if batch["name"] == "canary" for host in batch["hosts"]]


def _entry(host: str, known: Mapping[str, Any]) -> dict[str, Any]:
    services = known["services"]
    changing = [service for service in services if service["reasons"]]
    starts = [service for service in changing if service["restart"] or not service["running"]]
    times = [service["expected_s"] for service in starts]
    return {
        "host": host,
        "group": known["roll"]["group"],
        "routers": list(known["roll"]["routers"]),
        "state": "changes" if changing else "settled",
        "serves": bool(services)
        and all(service["running"] and service["admitted"] is not False for service in services),
        "expected_s": None if None in times else sum(times),
        "services": services,
    }


def _agreed(group: str, rolls: Mapping[str, Mapping[str, Any]], problems: Problems) -> dict[str, Any] | None:
    """The settings of a group, or None where its hosts do not say the same."""
    agreed: dict[str, Any] | None = {}
    for key in SHARED:
        said: dict[str, list[str]] = {}
        for host, roll in rolls.items():
            said.setdefault(json.dumps(roll[key]), []).append(host)
        if len(said) > 1:
            told = "; ".join(f"{value} on {listed(hosts)}" for value, hosts in said.items())
            problems.add(f"group {group}", f"{PREFIX}{key}", f"is not the same on all its hosts: {told}")
            agreed = None
        elif agreed is not None:
            agreed[key] = next(iter(rolls.values()))[key]
    return agreed


def _in_numbers(
    shared: Mapping[str, Any], members: Sequence[str], hosts: Hosts, answers: Answers, beyond: Hosts
) -> dict[str, Any]:
    """The settings of a group with its shares as numbers: of its hosts, and of each router's servers.

    ``min_serving`` has a number for each router, and under "" one for hosts without any; ``at_once`` is how many hosts
    that serve a batch may have, ``limited_by`` the setting that says so; ``beyond`` are hosts of the group that are not
    in this run: nobody changes them, and they are out of service or not all the same.
    """
    size, whole = len(members), len(members) + len(beyond)
    most = whole if shared["max_unavailable"] is None else share(shared["max_unavailable"], whole)
    limits = {"ironserve_max_unavailable": most}
    least, behind = {}, _behind(members, hosts, answers)
    for router, (servers, per_host) in behind.items():
        mine = [hosts[host]["roll"] for host in hosts if router in hosts[host]["roll"]["routers"]] or [shared]
        least[router] = needed((roll["min_serving"] for roll in mine), servers)
        spare = (servers - least[router]) // per_host
        limits["ironserve_min_serving"] = min(spare, limits.get("ironserve_min_serving", spare))
    limited_by = min(limits, key=lambda name: limits[name])
    return {
        **shared,
        "size": size,
        "canary": share(shared["canary"], size),
        "batches": [share(said, size) for said in shared["batches"]] or [1],
        "max_unavailable": most,
        "min_serving": least,
        "servers": {router: servers for router, (servers, _) in behind.items()},
        "at_once": limits[limited_by],
        "limited_by": limited_by,
        "beyond": {
            host: {"routers": known["routers"], "urls": [service["url"] for service in known["services"]]}
            for host, known in beyond.items()
        },
    }


def _behind(members: Sequence[str], hosts: Hosts, answers: Answers) -> dict[str, tuple[int, int]]:
    """For each router of a group how many servers it has or gets, and how many a host has of them at most."""
    found = {}
    for router in dict.fromkeys(router for host in members for router in hosts[host]["roll"]["routers"]):
        # Of hosts of other groups, too: a router serves its clients with all it has.
        own = {host: _urls(hosts[host]) for host in hosts if router in hosts[host]["roll"]["routers"]}
        servers = admitted(answers, router).union(*own.values())
        found[router] = (len(servers), max(1, *(len(own[host]) for host in own)))
    alone = [host for host in members if not hosts[host]["roll"]["routers"]]
    if alone:
        found[""] = (max(len(alone), hosts[alone[0]]["roll"]["members"]), 1)
    return found


def _urls(known: Mapping[str, Any]) -> set[str]:
    return {service["url"] for service in known["services"]}


def _cannot_keep(group: Mapping[str, Any]) -> str:
    servers = {router: group["servers"][router] for router in group["min_serving"]}
    short = [router for router, needed in group["min_serving"].items() if needed >= servers[router]] or [*servers]
    told = ", ".join(
        f"{group['min_serving'][router]} of {servers[router]}{f' behind router {router}' if router else ' hosts'}"
        for router in short
    )
    return f"{told} have to serve at any time, and so none could be taken out: say less, or have more hosts"


def _parts(first: Sequence[str], then: Sequence[str], group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The hosts of a group in batches, with the size that was ``wished`` for each.

    No batch has both kinds: those of hosts that serve nobody, the ``first``, are of any size.
    """
    wished = [group["canary"]] if group["canary"] else []
    parts: list[dict[str, Any]] = []
    sizes = [*wished, *group["batches"]]
    for hosts, most in ((first, len(first)), (then, group["at_once"])):
        left = list(hosts)
        while left:
            size = min(sizes[min(len(parts), len(sizes) - 1)], len(left))
            now = left[: min(size, most)]
            parts.append({"hosts": now, "wished": size})
            left = left[len(now) :]
    for number, part in enumerate(parts, 1):
        part["name"] = "canary" if wished and number == 1 else f"batch {number} of {len(parts)}"
    return parts


def _at_least(
    batch: Mapping[str, Any],
    before: Sequence[Mapping[str, Any]],
    group: Mapping[str, Any],
    entries: Hosts,
    hosts: Hosts,
) -> dict[str, int]:
    """How many servers each router has to have before a batch begins; 0 where nothing of it depends on a router.

    A router that has just restarted gets time for so many: with them the batch may begin in any case, and those that
    moved ``before`` are among them.
    """
    found = {}
    limited = group["max_unavailable"] < group["size"] + len(group["beyond"])
    spare = max(group["max_unavailable"] - len(batch["hosts"]), 0)
    moved = [host for each in before for host in each["hosts"]]
    for router, least in group["min_serving"].items():
        mine = [host for host in batch["hosts"] if router in hosts[host]["roll"]["routers"]]
        own = sum(
            service["admitted"] is True and service["running"] for host in mine for service in entries[host]["services"]
        )
        earlier = sum(len(entries[host]["services"]) for host in moved if router in hosts[host]["roll"]["routers"])
        if router and mine:
            enough = max(least + own, group["servers"][router] - spare if limited else 0) if own else 0
            found[router] = max(enough, own + earlier)
    return found


def _check_forks(batches: Sequence[Mapping[str, Any]], hosts: Hosts, forks: int, problems: Problems) -> None:
    largest = max((len(batch["hosts"]) for batch in batches), default=0)
    said = min((int(known["roll"]["forks"] or forks) for known in hosts.values()), default=forks)
    if forks < largest:
        problems.add(
            "-f",
            "",
            f"Ansible works on {forks} hosts at a time, and the largest batch has {largest}: run with -f {largest}",
        )
    elif said < largest:
        problems.add(
            "ironserve_forks",
            "",
            f"is {said}, and the largest batch has {largest} hosts: say {largest}, or smaller batches",
        )


def _check_models(hosts: Hosts, beyond: Hosts, problems: Problems) -> None:
    """One router sends every request to any of its servers, so that they have to serve the same model."""
    served: dict[str, dict[str, list[str]]] = {}
    routers = {router for known in hosts.values() for router in known["roll"]["routers"]}
    for host in in_order([*hosts, *beyond]):
        known = hosts[host] if host in hosts else beyond[host]
        for router in known.get("roll", known)["routers"]:
            for service in known["services"] if router in routers else ():
                whose = served.setdefault(router, {}).setdefault(service["model_name"], [])
                whose.append(host if len(known["services"]) == 1 else f"{host}:{service['service']}")
    for router, models in served.items():
        if len(models) > 1:
            told = "; ".join(f"{model} on {listed(whose)}" for model, whose in models.items())
            problems.add(
                f"router {router}",
                "",
                f"has servers with different models, and would send requests to the wrong one: {told}. "
                "Give each model a router of its own (ironserve_routers)",
            )


def _batch_notes(batches: Sequence[Mapping[str, Any]], entries: Hosts) -> list[str]:
    several = [batch["hosts"] for batch in batches if len(batch["hosts"]) > 1]
    if any(entries[host]["serves"] and entries[host]["routers"] for hosts in several for host in hosts):
        return ["hosts of a batch drain, start and are admitted together: each is out for as long as the slowest takes"]
    return []


def _drain_notes(batches: Sequence[Mapping[str, Any]], hosts: Hosts) -> list[str]:
    order = [host for batch in batches for host in batch["hosts"]]
    alone = [host for host in order if not hosts[host]["roll"]["routers"]]
    drained = [float(hosts[host]["roll"]["drain_timeout_s"]) for host in order if host not in alone]
    notes = [f"draining takes up to {duration(max(drained))} a host beside that"] if drained else []
    if alone:
        notes.append(f"no router, nothing is drained: {'all hosts' if alone == order else listed(alone)}")
    return notes


def _expected(batches: Sequence[Mapping[str, Any]], groups: Mapping[str, Any], entries: Hosts) -> float | None:
    """Seconds for batches and soaks; None where no host has started yet. One that has not takes what others do."""
    order = [host for batch in batches for host in batch["hosts"]]
    known = [entries[host]["expected_s"] for host in order if entries[host]["expected_s"] is not None]
    if order and not known:
        return None
    total = 0.0
    for number, batch in enumerate(batches, 1):
        times = [entries[host]["expected_s"] for host in batch["hosts"]]
        total += max((max(known) if time is None else time) for time in times)
        if batch["name"] == "canary" and number < len(batches):
            total += groups[batch["group"]]["soak_s"]
    return total
