# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filters that turn what the hosts of a play registered into rows of a table."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import ansible.module_utils
from ansible import context

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import drift, lease, prometheus, rollout, slices, wish
from ansible.module_utils.ironserve.compare import REFUSED

SEEN = ("unit", "cause", "profile", "declared_profile", "engine", "release_id", "render_id", "last_known_good_id",
        "address", "port", "model", "gpus", "secrets", "main_pid", "since", "health", "enabled",
        "restarts")  # fmt: skip
"""What a row of the status says of a service as host_services returns it."""

WORDS = ("ready", "starting", "unhealthy", "down", "failed", "stopped", "absent", "unreachable", "unknown")
"""Every status, in the order of the summary."""

CELL = 100
"""Characters of a difference in a table; the JSON has all of them."""

CAUSE = 80
"""Characters of a cause in the table of a deploy; the JSON has all of them."""

FAILED = ("failed", "stalled", "timeout", *REFUSED)
"""Verdicts of what was started and did not become ready."""


def status_rows(
    hosts: Sequence[str], hostvars: Mapping[str, Any], service: str, with_drift: bool = False
) -> list[dict[str, Any]]:
    """A row a host and service: what the inventory wants (``status_wished``) against what is there (``status_seen``).

    ``notes`` says in what they differ, the most urgent first, ``note`` is the first of them, ``settled`` that there is
    none and the service is ready, ``named`` that the inventory names it. ``service``: the one that is meant, empty all.
    ``with_drift``: hosts were asked for that, too (``serve_drift``).
    """
    rows = []
    for host in hosts:
        wished, seen = (hostvars[host].get(name) or {} for name in ("status_wished", "status_seen"))
        looks = {look["service"]: look for look in (*seen.get("services", ()), *seen.get("unknown", ()))}
        releases = {release["service"]: release for release in wished.get("releases", ())}
        problem = (wished.get("problems") or [wished.get("msg", "")])[0]
        declared = wished.get("services", {"main": None})  # None: it cannot even be said what the inventory declares
        held, maintenance = _lease(seen.get("lease") or {})
        for name in dict.fromkeys([*declared, *looks]):
            if service in ("", name):
                look = looks.get(name) or _not_seen(seen)
                row = {"host": host, "service": name, "status": look["status"], **{key: look.get(key) for key in SEEN}}
                row["wants"], row["wanted_release_id"] = declared.get(name), releases.get(name, {}).get("release_id")
                row["named"] = name in declared
                row["notes"] = _notes(row, look, releases.get(name), problem)
                row["settled"] = row["status"] == "ready" and not row["notes"] and not maintenance
                row["notes"] = [*held, *row["notes"]] if maintenance else [*row["notes"], *held]
                row["note"] = next(iter(row["notes"]), "")
                rows.append(row)
    return _with_drift(rows, hosts, hostvars) if with_drift else rows


def _with_drift(rows: list[dict[str, Any]], hosts: Sequence[str], hostvars: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows with ``drift``: None where it could not be told; ``driver`` and ``kernel`` are the host's."""
    answers = {host: hostvars[host].get("serve_drift") or {} for host in hosts}
    told = [host for host in hosts if answers[host].get("kernel")]  # their inventories resolve
    groups = {host: str(hostvars[host]["ironserve_host_group"]) for host in told}
    system: dict[str, list[drift.Row]] = {host: [] for host in hosts}
    for kind in ("driver", "kernel"):
        seen = {host: str(answers[host][kind]) for host in told}
        declared = {host: str(hostvars[host]["ironserve_hardware"].get(kind, "")) for host in told}
        for host in told:
            system[host] += drift.system(kind, host, declared, seen, groups)
    for row in rows:
        answer = answers[row["host"]]
        found = {one["service"]: one for one in answer.get("services", ())}.get(row["service"])
        row["driver"], row["kernel"] = answer.get("driver", ""), answer.get("kernel", "")
        row["drift"] = None if found is None else [*found["drift"], *system[row["host"]]]
        errors = found["errors"] if found else [str(answer["msg"])] if answer.get("msg") else []
        row["drift_unknown"] = "; ".join(errors)
    return rows


def status_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of the status; with drift it is the one before the note."""
    shown = ["host", "service", "status", "profile", "wants", "release_id", "port", "model", "main_pid", "since"]
    return [*shown, *(["drift"] if any("drift" in row for row in rows) else []), "note"]


def status_cells(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows for the terminal: of drift how much there is, and the first."""
    return [{**row, "drift": _drift_cell(row)} if "drift" in row else dict(row) for row in rows]


def _drift_cell(row: Mapping[str, Any]) -> str:
    if row["drift"] is None:
        return "unknown"
    told = drift.text(row["drift"]) or ("unknown in part" if row["drift_unknown"] else "none")
    return _shortened(told)


def _shortened(text: Any) -> str:
    return textwrap.shorten(str(text), CELL, placeholder=" …")


def drift_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each difference, and for what could not be told."""
    found = []
    for row in rows:
        where = {"host": row["host"], "service": row["service"]}
        found += [{**where, **difference} for difference in row.get("drift") or ()]
        if row.get("drift_unknown"):
            found.append({**where, "kind": "unknown", "key": row["drift_unknown"], "declared": None, "runs": None})
    return found


def drift_cells(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those rows for the terminal."""
    texts = ("declared", "runs")
    return [
        {**row, **{key: "not there" if row[key] is None else _shortened(row[key]) for key in texts}} for row in rows
    ]


def status_metrics(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as metrics of Prometheus. Drift that could not be told has no sample."""

    def labels(row: Mapping[str, Any]) -> dict[str, str]:
        return {"host": str(row["host"]), "service": str(row["service"])}

    counts = [
        ({**labels(row), "kind": kind}, float(sum(difference["kind"] == kind for difference in row["drift"])))
        for row in rows
        if row.get("drift") is not None
        for kind in drift.KINDS
    ]
    ready = [(labels(row), float(row["status"] == "ready")) for row in rows]
    return prometheus.exposition(
        [
            prometheus.Metric("ironserve_drift", "Differences between what runs and what is declared.", counts),
            prometheus.Metric("ironserve_service_ready", "Whether the service is ready: 1 or 0.", ready),
        ]
    )


def _not_seen(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Stands for a service of a host that did not answer."""
    status = "unreachable" if seen.get("unreachable") else "unknown"
    return {"status": status, "fault": str(seen.get("msg") or "the host was not asked")}


def _lease(held: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Who has the host, in a line if anybody; and whether it is in maintenance, which explains all else."""
    if not held:
        return [], False
    gone = lease.is_gone(held, lease.this_run(context.CLIARGS))
    return [lease.told(held, gone)], held["purpose"] == "maintenance"


def _notes(
    row: Mapping[str, Any], look: Mapping[str, Any], release: Mapping[str, Any] | None, problem: str
) -> list[str]:
    """What an operator should know of a service, the most urgent first."""
    host, service, status, wants = (row[key] for key in ("host", "service", "status", "wants"))
    faults = {
        "starting": row["cause"] or "has not passed the gate: run the deploy again, it goes on",
        "unhealthy": row["cause"] or f"its health endpoint says {row['health'] or 'nothing'}",
        "down": "should run and does not",
        "failed": row["cause"] or "it ended, see its log",
    }
    remove = f"no inventory names this service: ansible-playbook playbooks/remove.yml -e service={service} -l {host}"
    found = [look.get("fault") or faults.get(status, "stopped by an operator" if status == "stopped" else "")]
    if not row["named"]:
        return [remove, *filter(None, found)]
    if problem and wants != "":  # an inventory that declares nothing leaves it to -e profile=
        found.append(f"the inventory does not resolve: {problem}")
    if row["profile"] and wants is not None and row["profile"] != wants:
        found.append(f"inventory wants {wants or 'nothing'}")
    elif row["release_id"] and release:
        found.append(_difference(row, release))
    found.append("not deployed yet" if status == "absent" else "")
    return [note for note in found if note]


def _difference(row: Mapping[str, Any], release: Mapping[str, Any]) -> str:
    """In what a release of the wished profile is not the one that the inventory resolves to now."""
    if row["release_id"] != release["release_id"]:
        what = f"same profile, but inventory resolves to release {release['release_id']} now"
    else:
        keys = [key for key in ("port", "address", "gpus", "secrets") if row[key] != release[key]]
        what = "; ".join(f"inventory says {key} {_plain(release[key])} now" for key in keys)
    return f"{what}: deploy would change it" if what else ""


def _plain(value: Any) -> str:
    return (",".join(map(str, value)) or "none") if isinstance(value, list) else str(value)


def status_summary(rows: Sequence[Mapping[str, Any]], service: str) -> str:
    """``3 services on 2 hosts: 2 ready as the inventory wants, 1 failed``."""
    if not rows:
        return f'no host has a service "{service}"' if service else "no services"
    as_wanted = [row for row in rows if row["settled"]]
    others = [row["status"] for row in rows if row["named"] and not row["settled"]]
    counts = {"ready as the inventory wants": len(as_wanted)}
    for word in WORDS:
        counts["ready, but not as the inventory wants" if word == "ready" else word] = others.count(word)
    counts["that no inventory names"] = sum(not row["named"] for row in rows)
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    hosts = len({row["host"] for row in rows})
    return f"{_counted(len(rows), 'service')} on {_counted(hosts, 'host')}: {told}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def deploy_rows(hosts: Sequence[str], hostvars: Mapping[str, Any], check_mode: bool) -> list[dict[str, Any]]:
    """A row a host and service from what the stages of a deploy registered."""
    rows = []
    for host in hosts:
        seen = hostvars[host]
        releases = (seen.get("deploy_resolved") or {}).get("releases") or []  # none: not meant by this deploy
        compared = {
            result["serve_release"]["service"]: result
            for result in (seen.get("serve_compared") or {}).get("results", [])
            if "serve_release" in result
        }
        of_host = []
        for release in releases:
            service = release["service"]
            known = {**compared.get(service, {})}
            known["reasons"] = known.get("reasons") or (seen.get("deploy_unadmitted") or {}).get(service)
            of_host.append(_deploy_row(host, release, known, _outcome(seen, service), check_mode))
        rows += of_host if check_mode else _rolled(of_host, seen, compared)
    return rows


def _rolled(
    rows: list[dict[str, Any]], seen: Mapping[str, Any], compared: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of a host with what the roll knows of it: verdict, time without service, whether it is admitted."""
    rolled, admitted = seen.get("roll_outcome") or {}, seen.get("serve_admitted") or {}
    behind = bool(((seen.get("deploy_resolved") or {}).get("roll") or {}).get("routers"))
    verdict, cause = rolled.get("verdict"), str(rolled.get("cause") or "")
    meant = [row for row in rows if row["verdict"] != "unchanged"]
    told = any(row["verdict"] in FAILED for row in rows)
    for row in meant:
        waits = row["verdict"] == "not reached"
        failed_before = verdict in FAILED and not told and (waits or bool(rolled.get("stuck")))
        if failed_before or verdict == "taken back" or (waits and verdict in ("moved", "lost")):
            row["verdict"], told = verdict, told or failed_before
            waits = True
        if waits and cause:
            row["cause"] = cause
        at = (seen.get("serve_times") or {}).get(row["service"], {})
        served = (compared.get(row["service"]) or {}).get("running")
        row["downtime_s"] = round(at["back"] - at["out"], 1) if served and "back" in at and "out" in at else None
        row["gate_s"] = row["ready_s"]
    for row in rows:
        unknown = None if not behind or row in meant else True
        row["admitted"] = admitted.get(row["service"], unknown)
    return rows


def deploy_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of the table; services only where they have names of their own."""
    service = ["service"] if any(row["service"] != wish.DEFAULT for row in rows) else []
    return ["host", *service, "old", "new", "verdict", "downtime", "gate", "cause"]


def deploy_cells(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows for the terminal: short ids, durations as people write them, of a cause how it begins."""
    return [
        {
            "host": row["host"],
            "service": row["service"],
            "old": str(row["previous_id"] or "").split("-")[0],
            "new": f"{row['profile']} {row['release_id']}",
            "verdict": _verdict_cell(row),
            "downtime": _seconds(row["downtime_s"]),
            "gate": _seconds(row["gate_s"]),
            "cause": textwrap.shorten(row["cause"] or _told(row), CAUSE, placeholder=" …"),
        }
        for row in rows
    ]


def _told(row: Mapping[str, Any]) -> str:
    """Of a host without a cause why it differed, and what else is to be known."""
    return "; ".join(filter(None, (row["why"], row["note"])))


def _seconds(value: Any) -> str:
    return "" if value is None else slices.duration(float(value))


def _verdict_cell(row: Mapping[str, Any]) -> str:
    """The verdict, with what serves now instead of what was wished, or that no router sends it anything."""
    back = _put_back(row["put_back"]).split(" (")[0]
    alone = "not admitted" if row["admitted"] is False else ""
    return "; ".join(filter(None, (row["verdict"], back, alone)))


def _whole(row: Mapping[str, Any]) -> bool:
    """Whether a service runs what is meant, and is in service."""
    return row["verdict"] in ("ready", "moved", "unchanged") and row["admitted"] is not False


def deploy_summary(rows: Sequence[Mapping[str, Any]], check_mode: bool) -> str:
    """``fleet is whole: 8 of 8 hosts run what is meant``, or which do not."""
    hosts = list(dict.fromkeys(row["host"] for row in rows))
    if check_mode:
        changing = {row["host"] for row in rows if row["verdict"] != "unchanged"}
        return f"{len(changing)} of {_counted(len(hosts), 'host')} would change"
    wrong: dict[str, list[str]] = {}
    for row in rows:
        if not _whole(row) and row["host"] not in {host for found in wrong.values() for host in found}:
            what = "not admitted" if row["verdict"] in ("ready", "moved", "unchanged") else row["verdict"]
            wrong.setdefault(what, []).append(row["host"])
    good = len(hosts) - sum(map(len, wrong.values()))
    told = f"{good} of {_counted(len(hosts), 'host')} {'runs' if len(hosts) == 1 else 'run'} what is meant"
    if not wrong:
        return f"fleet is whole: {told}"
    others = "; ".join(f"{what}: {rollout.listed(found)}" for what, found in wrong.items())
    return f"fleet is NOT whole: {told}. {others}. The same command goes on"


def fleet_failures(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What to say of each host for which a deploy fails: those that failed, else those that were not reached."""
    wrong = [row for row in rows if not _whole(row)]
    failed = [row for row in wrong if row["verdict"] != "not reached"] or wrong
    messages: dict[str, list[str]] = {}
    for row in failed:
        messages.setdefault(row["host"], []).append(_failure(row))
    return {host: "; ".join(told) for host, told in messages.items()}


def _failure(row: Mapping[str, Any]) -> str:
    detail = {
        "not reached": f"{row['cause'] or 'the roll stopped before it'}; the same command goes on",
        "lost": f"{row['cause'] or 'it cannot be reached'}; what it runs is unknown",
        "ready": "not admitted by a router",
        "moved": "not admitted by a router",
        "unchanged": "not admitted by a router",
    }.get(row["verdict"], row["note"] or row["cause"])
    return f"{row['host']}, {row['service']}: {row['verdict']}{f': {detail}' if detail else ''}"


def rollback_rows(hosts: Sequence[str], hostvars: Mapping[str, Any], check_mode: bool) -> list[dict[str, Any]]:
    """A row a host and service from what playbooks/rollback.yml registered: as those of a deploy."""
    rows = []
    for host in hosts:
        seen = hostvars[host]
        for chosen in (seen.get("serve_chosen") or {}).get("results", []):
            service, release = chosen["serve_service"], chosen.get("release") or {}
            declared = release.get("declared_profile") or release.get("profile")
            known = {**release, "service": service, "declared_profile": declared}
            compared = {"previous_id": chosen.get("previous_id"), "reasons": chosen.get("reasons") or ["chosen"]}
            rows.append(_deploy_row(host, known, compared, _outcome(seen, service), check_mode))
    return rows


def _outcome(seen: Mapping[str, Any], service: str) -> dict[str, Any]:
    """What role serve left of one service: the gate's answer, why it failed, what was put back then."""
    gate, failure, back = ((seen.get(f"serve_{name}") or {}).get(service) for name in ("gates", "failures", "reverts"))
    lost = service in (seen.get("serve_lost") or {})
    return {**(gate or {}), "failure": failure, "put_back": back or {}, "lost": lost}


def _deploy_row(
    host: str, release: Mapping[str, Any], compared: Mapping[str, Any], outcome: Mapping[str, Any], check_mode: bool
) -> dict[str, Any]:
    reasons, declared = compared.get("reasons") or [], release.get("declared_profile")
    if check_mode:
        verdict = "would change" if reasons else "unchanged"
    else:
        verdict = outcome.get("verdict") or ("not reached" if reasons else "unchanged")
    note = "" if declared == release.get("profile") else f"inventory wants {declared or 'nothing'}"
    if outcome.get("failure") is not None:
        # One that generates and could not be marked as proven has failed, too: it is not what a deploy promises.
        verdict = "lost" if outcome["lost"] else verdict if verdict in FAILED else "failed"
        cause = textwrap.shorten(" ".join(outcome["failure"].splitlines()[:1]), 240, placeholder=" …") or note
        note = "; ".join(filter(None, (_put_back(outcome["put_back"]), cause)))
    took_effect, speed = outcome.get("took_effect"), outcome.get("speed") or {}
    otherwise = _first((took_effect or {}).get("notes", []))
    unsure = "" if speed.get("verdict") in (None, "passed", *FAILED) else f"speed gate: {speed['msg']}"
    note = "; ".join(filter(None, (note, unsure, otherwise)))
    return {
        "host": host,
        "service": release["service"],
        "profile": release.get("profile"),
        "release_id": release.get("release_id"),
        "previous_id": compared.get("previous_id"),
        "verdict": verdict,
        "ready_s": (outcome.get("timings") or {}).get("ready"),
        "why": "; ".join(reasons),
        "note": note,
        "put_back": outcome["put_back"],
        "took_effect": took_effect,
        "speed": speed,
        "cause": outcome["failure"] or "",
        "downtime_s": None,
        "gate_s": None,
        "admitted": None,
    }


def _first(lines: Sequence[str]) -> str:
    """The first of several lines, and how many more there are: a table has no room for all."""
    return f"{lines[0]} (and {len(lines) - 1} more)" if len(lines) > 1 else "".join(lines)


def _put_back(back: Mapping[str, Any]) -> str:
    """``put back: lab_vllm (90ab117e3f9c), ready``; empty where nothing was to be put back."""
    verdict = back.get("verdict", "left")
    what = f"{back.get('profile')} ({back.get('release_id')})"
    if verdict in ("left", "none"):
        return ""
    if verdict in ("ready", "kept"):
        return f"put back: {what}, {'ready' if verdict == 'ready' else 'never stopped'}"
    return f"put back FAILED: {what}, {verdict}" if back.get("release_id") else "put back FAILED"


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Rows of playbooks/status.yml, playbooks/outcome.yml and playbooks/rollback.yml."""
        return {
            "ironserve_status_rows": status_rows,
            "ironserve_status_columns": status_columns,
            "ironserve_status_cells": status_cells,
            "ironserve_status_metrics": status_metrics,
            "ironserve_drift_rows": drift_rows,
            "ironserve_drift_cells": drift_cells,
            "ironserve_status_summary": status_summary,
            "ironserve_deploy_rows": deploy_rows,
            "ironserve_deploy_columns": deploy_columns,
            "ironserve_deploy_cells": deploy_cells,
            "ironserve_deploy_summary": deploy_summary,
            "ironserve_fleet_failures": fleet_failures,
            "ironserve_rollback_rows": rollback_rows,
        }
