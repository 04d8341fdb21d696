"""The plan of a roll as a person reads it. Pure, and used on the controller only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .rollout import Hosts, listed
from .slices import duration

REASONS = 4
"""So many reasons of a host are told in the short plan."""


def text(found: Mapping[str, Any], whole: bool = False) -> str:
    """The plan in short, or ``whole``: every host, reason and batch by name."""
    entries = {entry["host"]: entry for entry in found["hosts"]}
    changing, settled = found["order"], [host for host, entry in entries.items() if entry["state"] == "settled"]
    if not any(entry["state"] == "changes" for entry in found["hosts"]):
        return f"Plan: nothing changes, {_of(len(settled), len(entries))} there already."
    head = f"Plan: {len(entries) - len(settled)} of {_counted(len(entries), 'host')} change"
    head += f"{'s' if len(entries) - len(settled) == 1 else ''}, {len(settled) or 'none'} "
    head += f"{'is' if len(settled) == 1 else 'are'} there already."
    names = list(dict.fromkeys(batch["group"] for batch in found["batches"]))
    lines = [head]
    for name in names:
        mine = [batch for batch in found["batches"] if batch["group"] == name]
        way = _way(mine, whole)
        lines += [f"  group {name}: {way}" if len(names) > 1 else f"  {way}"]
    if changing:
        lines.append(f"  {_times(found, entries)}")
    lines += _reason_lines(entries, whole)
    if whole and settled:
        lines.append(f"  there already: {listed(settled, whole)}")
    lines += [f"  note: {note}" for note in found["notes"]]
    return "\n".join(lines)


def _of(count: int, whole: int) -> str:
    return f"{count} of {_counted(whole, 'host')} {'is' if whole == 1 else 'are'}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _way(batches: Sequence[Mapping[str, Any]], whole: bool) -> str:
    """``canary h1, then h2 h3, then h4``; of many batches how many there are."""
    told = [
        f"canary {listed(b['hosts'], whole)}" if b["name"] == "canary" else listed(b["hosts"], whole) for b in batches
    ]
    if whole or len(batches) <= 4:
        return ", then ".join(told)
    rest = batches[1:]
    sizes = {len(batch["hosts"]) for batch in rest}
    size = f"{'up to ' if len(sizes) > 1 else ''}{_counted(max(sizes), 'host')}"
    return f"{told[0]}, then {len(rest)} batches of {size}, the first {listed(rest[0]['hosts'])}"


def _times(found: Mapping[str, Any], entries: Hosts) -> str:
    times = [entries[host]["expected_s"] for host in found["order"]]
    known = [time for time in times if time is not None]
    if found["expected_s"] is None or not known:
        return "how long a start takes is not known yet: there was none here"
    if not max(known):
        return "no server is restarted"
    serves = any(entries[host]["serves"] for host in found["order"])
    what = "without service each" if serves else "for each to start"
    unsure = "last start" if len(known) == len(times) else "last start of those that had one"
    return f"about {duration(max(known))} {what} ({unsure}), {duration(found['expected_s'])} in all"


def _reason_lines(entries: Hosts, whole: bool) -> list[str]:
    """Hosts that change for the same reasons in one line, the reasons in those below where there are several."""
    same: dict[tuple[str, ...], list[str]] = {}
    for host, entry in entries.items():
        for service in entry["services"]:
            if service["reasons"]:
                name = host if len(entry["services"]) == 1 else f"{host}:{service['service']}"
                same.setdefault(tuple(service["reasons"]), []).append(name)
    lines = []
    for reasons, hosts in same.items():
        shown = reasons if whole or len(reasons) <= REASONS else reasons[: REASONS - 1]
        more = [f"and {len(reasons) - len(shown)} more: -e plan=true tells all"] if len(shown) < len(reasons) else []
        first, *others = [*shown, *more]
        start = f"  {listed(hosts, whole)}: "
        lines += [f"{start}{first}", *(f"{' ' * len(start)}{other}" for other in others)]
    return lines
