#!/usr/bin/env python3
"""Draw what tools/load.py wrote down: requests and errors a second, requests in flight, workers in rotation.

usage: tools/load_chart.py events.jsonl chart.svg
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pygal
from pygal.style import Style

COLOURS = ("#9aa5b1", "#2f6fab", "#3c9d5b", "#d62728")
Series = list[tuple[float, float]]


def read(path: Path) -> list[dict[str, Any]]:
    """The events, in order of time: several programs append to the file."""
    return sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda event: event["at"])


def per_second(times: Iterable[float], seconds: int) -> Series:
    """How many of the times are in each second."""
    counts = Counter(int(at) for at in times)
    return [(second, counts[second]) for second in range(seconds)]


def in_flight(events: list[dict[str, Any]], began: float, seconds: int) -> Series:
    """How many requests were in flight at the end of each second."""
    change: Counter[int] = Counter()
    for event in events:
        change[int(event["at"] - began)] += {"start": 1, "end": -1}.get(event["event"], 0)
    return list(enumerate(accumulate(change[second] for second in range(seconds))))


def chart(events: list[dict[str, Any]]) -> pygal.XY:
    """The chart of a load, with a line down where something was marked."""
    began, ended = events[0]["at"], events[-1]["at"]
    seconds = int(ended - began) + 1
    ends = [event for event in events if event["event"] == "end"]
    looks = [event for event in events if event["event"] == "workers"]
    lost = [event["at"] - began for event in ends if event["outcome"] != "ok"]
    sums = Counter(event["outcome"] for event in ends)
    drawn = pygal.XY(
        title=f"{len(ends)} requests, {sums['error']} errors, {sums['truncated']} truncated streams",
        width=1100, height=560, js=[], show_dots=False, include_x_axis=True, legend_at_bottom=True,
        legend_at_bottom_columns=4, show_x_guides=True, x_label_rotation=15, truncate_legend=-1, truncate_label=-1,
        style=Style(background="white", plot_background="white", colors=COLOURS, legend_font_size=12,
                    title_font_size=16, guide_stroke_color="#cccccc", major_guide_stroke_color="#cccccc"),
    )  # fmt: skip
    drawn.add("requests in flight", in_flight(events, began, seconds))
    drawn.add("answered whole, a second", per_second((e["at"] - began for e in ends if e["outcome"] == "ok"), seconds))
    drawn.add("healthy workers of the router", [(look["at"] - began, len(look.get("healthy", []))) for look in looks])
    drawn.add("errors and truncated streams, a second", per_second(lost, seconds), stroke_style={"width": 3})
    marks = [(e["at"] - began, e["text"]) for e in events if e["event"] == "mark"] or [(0.0, "load")]
    drawn.x_labels = [{"value": at, "label": f"{at:.0f} s: {text}"} for at, text in marks]
    return drawn


def main() -> None:
    """Draw the chart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("events", type=Path)
    parser.add_argument("chart", type=Path)
    arguments = parser.parse_args()
    chart(read(arguments.events)).render_to_file(str(arguments.chart))


if __name__ == "__main__":
    main()
