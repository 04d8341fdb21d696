"""Metrics as Prometheus reads them from a file, for instance with node_exporter's textfile collector. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Metric(NamedTuple):
    """A gauge: its name, what it means, and a value for each set of labels."""

    name: str
    help: str
    samples: Iterable[tuple[Mapping[str, str], float]]


def exposition(metrics: Iterable[Metric]) -> str:
    """The text of metrics; without a time of their own, which the collector refuses."""
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {_escaped(metric.help)}", f"# TYPE {metric.name} gauge"]
        for labels, value in metric.samples:
            inside = ",".join(f'{name}="{_escaped(text, quotes=True)}"' for name, text in labels.items())
            lines.append(f"{metric.name}{{{inside}}} {value:g}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str, quotes: bool = False) -> str:
    plain = text.replace("\\", "\\\\").replace("\n", "\\n")
    return plain.replace('"', '\\"') if quotes else plain
