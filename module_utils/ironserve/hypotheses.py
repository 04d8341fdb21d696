"""What the ledgers of a fleet say of each hypothesis: records to sections of a report, JSON-plain. Pure.

A release is a hypothesis; its launches are its trials, and its measurements what it is worth. A section is one service
of one host group. Every figure comes with the number of runs or launches that it is the median of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from . import compare, ledger

Record = Mapping[str, Any]
Ledgers = Mapping[str, Mapping[str, Sequence[Record]]]
"""The records of each service of each host."""

VERDICTS = ("ready", "failed", "stalled", "timeout", *compare.REFUSED, "stopped")

NEWEST = 8
"""As many launches are shown one by one; the counts have all."""

STEPS = {"drain": "drain", "clean": "stop and clean", "prove_nccl": "NCCL proof"}
"""What a roll does before a start, in this order, with its words."""

PARTS = (*STEPS.values(), "begin", "load", "memory and compiling", "capture", "proof")
"""What the time without service is made of. Begin: until weights are read; proof: from the capture to a first token."""

PHASES = {
    "before the log": "begin",
    "reading arguments": "begin",
    "starting engine": "begin",
    "joining ranks": "begin",
    "loading weights": "load",
    "compiling": "memory and compiling",
    "allocating KV cache": "memory and compiling",
    "capturing CUDA graphs": "capture",
}
"""The part that a phase of an engine's log belongs to; all others are of the proof."""

LATENCIES = ("ttft_ms", "itl_ms")
METRICS = {
    "output_tok_s": ("output tok/s", "faster", "slower"),
    "ttft_ms": ("time to first token", "shorter", "longer"),
    "itl_ms": ("inter-token latency", "shorter", "longer"),
}
"""Each metric of a comparison in words, and what more speed and less speed is called."""


def sections(ledgers: Ledgers, baselines: Mapping[str, Record] | None = None) -> list[dict[str, Any]]:
    """A section for each service of each host group, in the order of their names.

    Args:
        ledgers: what was gathered.
        baselines: recorded baselines, measurements by ``GROUP/SERVICE``.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for host, services in ledgers.items():
        for service, records in services.items():
            for record in records:
                group = str(record.get("host_group", "?"))
                found.setdefault((group, service), []).append({**record, "host": host})
    return [
        section(group, service, sorted(records, key=lambda record: str(record.get("at", ""))), baselines or {})
        for (group, service), records in sorted(found.items())
    ]


def section(group: str, service: str, records: list[dict[str, Any]], baselines: Mapping[str, Record]) -> dict[str, Any]:
    """All that is known of one service of a host group. ``records``: of all its hosts, the oldest first."""
    launches, measured = _judged(ledger.launches(records)), ledger.measurements(records)
    trusted = [one for one in measured if not one.get("disturbed")]
    releases = _releases(launches, measured)
    recorded = baselines.get(f"{group}/{service}")
    old, baseline_id, which = _baseline(releases, trusted, recorded)
    compared = [
        comparison(name, old, _of(measured, name))
        for name in releases
        if old and name != baseline_id and _of(measured, name)
    ]
    named = titles(releases)
    plain = next((name for name, one in releases.items() if one.get("profile") == "baseline"), None)
    reference = plain or baseline_id or next(iter(releases))
    table = [
        {**hypothesis(name, named[name], releases[reference], launches, measured), "is_baseline": name == baseline_id}
        for name in releases
    ]
    return {
        "group": group,
        "service": service,
        "hosts": sorted({record["host"] for record in records}),
        "hardware": _hardware(records),
        "hypotheses": table,
        "reference": named[reference],
        "baseline": which,
        "speed": [
            {"release_id": name, "title": named[name], "levels": levels(_of(trusted, name))}
            for name in releases
            if _of(trusted, name)
        ],
        "comparisons": [{**one, "title": named[one["release_id"]]} for one in compared],
        "latency": [row for name in releases for row in _latency(named[name], _of(trusted, name))],
        "starts": [_start(launch, named) for launch in launches[-NEWEST:]],
        "downtime": [row for name in releases for row in _downtime(named[name], launches, name)],
        "history": [_point(one, named) for one in measured],
        "notes": [note for one in measured for note in _notes(one, named)],
        "clocks": [note for one in measured for note in _clocks(one, named)],
    }


def _judged(launches: Sequence[Record]) -> list[Record]:
    """The launches, each once: that one was ready, and then refused for its speed or answers, is one launch."""
    found: list[Record] = []
    places: dict[str, int] = {}
    for one in launches:
        start = str(one.get("invocation") or "")
        if start in places and one.get("verdict") in compare.REFUSED:
            told = {"verdict": one["verdict"], "reason": one["reason"], "elapsed_s": None}
            found[places[start]] = {**found[places[start]], **told}
            continue
        if start:
            places.setdefault(start, len(found))
        found.append(one)
    return found


def titles(releases: Mapping[str, Record]) -> dict[str, str]:
    """What each release is called: its profile, with the release's id where several were made of one profile."""
    counts = Counter(str(record.get("profile")) for record in releases.values())
    return {
        name: f"{record.get('profile')} {name[:6]}"
        if counts[str(record.get("profile"))] > 1
        else str(record["profile"])
        for name, record in releases.items()
    }


def _releases(*records: Iterable[Record]) -> dict[str, Record]:
    """Each release with its first launch, or measurement where no launch is there; in the order of their times."""
    found: dict[str, Record] = {}
    for record in (one for some in records for one in some):
        found.setdefault(str(record.get("release_id")), record)
    return found


def _of(measured: Sequence[Record], release_id: str) -> list[Record]:
    return [one for one in measured if one.get("release_id") == release_id]


def _baseline(
    releases: Mapping[str, Record], measured: Sequence[Record], recorded: Record | None
) -> tuple[list[Record], str, str]:
    """What to compare with: its measurements, its release and how it was chosen, in words."""
    if recorded:
        return [recorded], "", f"the recorded baseline ({recorded.get('profile')}, {str(recorded.get('at'))[:10]})"
    known = [name for name in releases if _of(measured, name)]
    named = [name for name in known if releases[name].get("profile") == "baseline"]
    if not known:
        return [], "", ""
    chosen = (named or known)[0]
    how = "the profile baseline" if named else f"the release measured first, {titles(releases)[chosen]}"
    return _of(measured, chosen), chosen, f"{how}; no baseline is recorded for this group"


def hypothesis(
    name: str, title: str, reference: Record, launches: Sequence[Record], measured: Sequence[Record]
) -> dict[str, Any]:
    """A row of the table of hypotheses. ``reference``: a record of the release that the others are told apart from."""
    own = [launch for launch in launches if launch.get("release_id") == name]
    newest = own[-1] if own else _of(measured, name)[-1]
    ready = [launch["timings"]["ready"] for launch in own if "ready" in launch.get("timings", {})]
    counts = Counter(str(launch.get("verdict")) for launch in own)
    return {
        "release_id": name,
        "title": title,
        "profile": newest.get("profile"),
        "engine": newest.get("engine"),
        "engine_version": newest.get("engine_version", ""),
        "nccl_version": newest.get("nccl_version", ""),
        "differs": differs(reference, newest),
        "verdict": own[-1].get("verdict") if own else "",
        "launches": len(own),
        "counts": {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        "bad": [
            {
                "at": launch.get("at"),
                "host": launch["host"],
                "verdict": launch["verdict"],
                "phase": "" if launch["verdict"] in compare.REFUSED else launch.get("phase") or _last_phase(launch),
                "reason": ": ".join(filter(None, [launch.get("reason", ""), launch.get("error", "")])),
                "elapsed_s": launch.get("elapsed_s"),
            }
            for launch in own
            if ledger.is_bad(launch)
        ],
        "ready_s": compare.summary(ready) if ready else None,
        "measurements": len(_of(measured, name)),
    }


def differs(base: Record, other: Record) -> list[str]:
    """How a release differs from another, a line each; empty where the records do not say their flags."""
    if "flags" not in base or "flags" not in other:
        return []
    if base.get("engine") != other.get("engine"):  # whose flags have other names
        shown = {**{f"--{key}": value for key, value in other["flags"].items()}, **other.get("env", {})}
        return [f"{key} {_text(value)}".rstrip() for key, value in shown.items()]
    lines = []
    for kind, prefix in (("flags", "--"), ("env", "")):
        before, now = base.get(kind, {}), other.get(kind, {})
        lines += [f"{prefix}{key} {_text(now[key])}".rstrip() for key in now if now[key] != before.get(key)]
        lines += [f"without {prefix}{key}" for key in before if key not in now]
    return lines


def _text(value: Any) -> str:
    if value is True:
        return ""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _last_phase(launch: Record) -> str:
    timings = {phase: at for phase, at in launch.get("timings", {}).items() if phase != "ready"}
    return max(timings, key=lambda phase: timings[phase]) if timings else ""


def levels(measured: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Output tokens a second at each concurrency, over all runs."""
    known = sorted({level for one in measured for level in one["levels"]}, key=int)
    found = {
        level: [run["output_tok_s"] for one in measured for run in one["levels"].get(level, [])] for level in known
    }
    return {level: compare.summary(values) for level, values in found.items() if values}


def comparison(release_id: str, old: Sequence[Record], new: Sequence[Record]) -> dict[str, Any]:
    """A release against the baseline: rows with words, or why they cannot be compared."""
    usable = [one for one in new if not any(compare.differences(before, one) for before in old)]
    reasons = [why for one in new if one not in usable for before in old for why in compare.differences(before, one)]
    if not usable:
        return {"release_id": release_id, "rows": [], "why_not": list(dict.fromkeys(reasons))}
    runs = {"runs_old": _runs(old), "runs_new": _runs(usable)}
    rows = [{**row, **runs, "words": words(row)} for row in compare.table_of_launches(old, usable)]
    return {"release_id": release_id, "rows": rows, "why_not": list(dict.fromkeys(reasons))}


def _runs(measured: Sequence[Record]) -> int:
    return sum(max((len(runs) for runs in one["levels"].values()), default=0) for one in measured)


def words(row: Record) -> str:
    """A comparison as a person says it, never without its confidence."""
    _, better, worse = METRICS[row["metric"]]
    estimate = f"{abs(row['ratio'] - 1):.1%}"
    if row["low"] is None:
        return "undecided: too few runs for an interval, 4 or more are needed on each side"
    interval = f"95% interval {row['low'] - 1:+.1%} to {row['high'] - 1:+.1%} of {row['of']}"
    if row["verdict"] == "undecided":
        return f"undecided: {interval}"
    if row["verdict"] == "same":
        return f"the same within 3%: {interval}"
    return f"{better if row['verdict'] == 'faster' else worse} by {estimate}: {interval}"


def _latency(title: str, measured: Sequence[Record]) -> list[dict[str, Any]]:
    rows = []
    for level in sorted({level for one in measured for level in one["levels"]}, key=int):
        runs = [run for one in measured for run in one["levels"].get(level, [])]
        told = {
            metric: {key: median(run[metric][key] for run in runs) for key in ("p50", "p95", "p99")}
            for metric in LATENCIES
            if runs and all(run.get(metric) for run in runs)
        }
        failed = sum(run.get("failed", 0) for run in runs)
        rows.append({"title": title, "level": level, "runs": len(runs), "failed": failed, **told})
    return rows


def phases(launch: Record) -> dict[str, float]:
    """Seconds of each phase of a start, in their order; the last one ends with the verdict, where that is known."""
    timings = dict(launch.get("timings", {}))
    ended = timings.pop("ready", launch.get("elapsed_s"))
    began = sorted(timings.items(), key=lambda item: item[1])
    ends = [at for _, at in began[1:]] + ([ended] if ended is not None else [])
    found = {"before the log": began[0][1]} if began and began[0][1] > 0 else {}
    found |= {name: round(max(0.0, end - at), 2) for (name, at), end in zip(began, ends)}
    return found


def parts(launch: Record) -> dict[str, float]:
    """Seconds of each part: what the roll did before the start, and the phases of the start."""
    found = {STEPS[key]: float(seconds) for key, seconds in launch.get("steps", {}).items() if key in STEPS}
    for name, seconds in phases(launch).items():
        part = PHASES.get(name, "proof")
        found[part] = found.get(part, 0.0) + seconds
    return {part: round(found[part], 2) for part in PARTS if found.get(part)}


def _start(launch: Record, named: Mapping[str, str]) -> dict[str, Any]:
    without_drain = {part: seconds for part, seconds in parts(launch).items() if part != STEPS["drain"]}
    return {
        "title": named[str(launch.get("release_id"))],
        "at": launch.get("at"),
        "host": launch["host"],
        "verdict": launch.get("verdict"),
        "parts": without_drain,
        "phases": phases(launch),
    }


def _downtime(title: str, launches: Sequence[Record], release_id: str) -> list[dict[str, Any]]:
    """Where the time without service went, the median of the launches that became ready."""
    own = [parts(one) for one in launches if one.get("release_id") == release_id and one.get("verdict") == "ready"]
    if not own:
        return []
    medians = {part: round(median(each.get(part, 0.0) for each in own), 2) for part in PARTS}
    return [{"title": title, "launches": len(own), "parts": {part: s for part, s in medians.items() if s}}]


def _point(one: Record, named: Mapping[str, str]) -> dict[str, Any]:
    told = levels([one])
    return {
        "at": one.get("at"),
        "host": one["host"],
        "title": named[str(one.get("release_id"))],
        "levels": {level: told[level] for level in dict.fromkeys([*list(told)[:1], *list(told)[-1:]])},
    }


def _hardware(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The newest that each host said of itself, hosts that are alike together."""
    newest = {record["host"]: record["hardware"] for record in records if record.get("hardware")}
    alike: dict[str, dict[str, Any]] = {}
    for host, told in sorted(newest.items()):
        counts = Counter(told.get("gpus", []))
        gpus = ", ".join(f"{count} x {name}" for name, count in counts.items())
        shown = {**told, "gpus": gpus}
        alike.setdefault(repr(sorted(shown.items())), {**shown, "hosts": []})["hosts"].append(host)
    return list(alike.values())


def _notes(one: Record, named: Mapping[str, str]) -> list[str]:
    """What is to be known of a measurement before its figures are believed: disturbance, throttling."""
    who = _who(one, named)
    notes = [f"{who}: left out, since it was disturbed: {one['disturbed']}"] if one.get("disturbed") else []
    reasons: dict[str, list[float]] = {}
    for gpu in one.get("gpus", []):
        for reason, share in gpu.get("throttled", {}).items():
            reasons.setdefault(reason, []).append(share)
    for reason, shares in reasons.items():
        if max(shares) > 0:
            gpus = f"{len(shares)} GPU{'s' if len(shares) > 1 else ''}"
            notes.append(f"{who}: {gpus} throttled ({reason}), up to {max(shares):.0%} of the run")
    return notes


def _clocks(one: Record, named: Mapping[str, str]) -> list[str]:
    """Clocks, power and heat of the GPUs during a measurement."""
    clocks = [gpu["sm_clock_mhz"]["median"] for gpu in one.get("gpus", []) if gpu.get("sm_clock_mhz")]
    heat = [gpu["temperature_c"]["max"] for gpu in one.get("gpus", []) if gpu.get("temperature_c")]
    power = [gpu["power_w"]["median"] for gpu in one.get("gpus", []) if gpu.get("power_w")]
    if not clocks:
        return []
    said = [f"SM clocks {min(clocks):.0f} to {max(clocks):.0f} MHz"]
    said += [f"{min(power):.0f} to {max(power):.0f} W a GPU"] if power else []
    said += [f"up to {max(heat):.0f} °C"] if heat else []
    return [f"{_who(one, named)}: {', '.join(said)}"]


def _who(one: Record, named: Mapping[str, str]) -> str:
    return f"{named[str(one.get('release_id'))]} on {one['host']}, {str(one.get('at'))[:16].replace('T', ' ')}"
