"""The Prometheus text of /metrics, from the engine's data file and the counted work."""

from __future__ import annotations

from typing import Any

from .generation import Stats


def exposition(entries: list[dict[str, Any]], values: dict[str, float], stats: Stats, labels: dict[str, str]) -> str:
    """Return the metrics named in `entries` in Prometheus' text format."""
    lines = []
    for entry in entries:
        lines += [f"# HELP {entry['name']} {entry['help']}", f"# TYPE {entry['name']} {entry['type']}"]
        common = {**labels, **entry.get("labels", {})}
        if entry["type"] == "histogram":
            lines += histogram(entry["name"], common, stats.times[entry["value"]], entry["buckets"])
        for series in entry.get("series", [] if entry["type"] == "histogram" else [entry]):
            own = {**common, **series.get("labels", {})}
            lines.append(f"{entry['name']}{label_text(own)} {float(values[series['value']])}")
    return "\n".join(lines) + "\n"


def histogram(name: str, labels: dict[str, str], times: list[float], buckets: list[float]) -> list[str]:
    """Return the lines of one histogram."""
    times = list(times)
    bounds = [*buckets, float("inf")]
    lines = [
        f"{name}_bucket{label_text({**labels, 'le': '+Inf' if bound == bounds[-1] else str(float(bound))})} "
        f"{float(sum(1 for time in times if time <= bound))}"
        for bound in bounds
    ]
    return [
        *lines,
        f"{name}_count{label_text(labels)} {float(len(times))}",
        f"{name}_sum{label_text(labels)} {sum(times)}",
    ]


def label_text(labels: dict[str, str]) -> str:
    """Return labels as the exposition has them, sorted."""
    return "{" + ",".join(f'{name}="{labels[name]}"' for name in sorted(labels)) + "}"
