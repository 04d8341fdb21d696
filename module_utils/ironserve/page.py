"""The report as one HTML page that needs nothing else, its charts drawn by pygal. Used on the controller only.

Charts take their colours for text and lines from the page, so that they are legible in light and in dark. They are
drawn as wide as a phone, and grow on a larger screen.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pygal  # type: ignore[import-untyped]
from jinja2 import Environment
from markupsafe import Markup
from pygal.style import Style  # type: ignore[import-untyped]

from .hypotheses import METRICS, PARTS
from .slices import duration

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#999999")
"""Okabe and Ito's, told apart by colour-blind people too; without black and yellow, which a background swallows."""

DASHES = ("", "9,4", "2,4")
"""Of lines beyond as many as there are colours."""

WIDTH, HEIGHT = 430, 330
Section = Mapping[str, Any]

STYLE = Style(
    background="transparent",
    plot_background="transparent",
    foreground="var(--ink)",
    foreground_strong="var(--ink)",
    foreground_subtle="var(--ink)",
    guide_stroke_color="var(--line)",
    major_guide_stroke_color="var(--line)",
    colors=COLOURS * len(DASHES),
    font_family="system-ui, sans-serif",
    opacity="1",
    opacity_hover="1",
    ci_colors=COLOURS * len(DASHES),
    label_font_size=13,
    major_label_font_size=13,
    legend_font_size=12,
    title_font_size=14,
    value_font_size=13,
    stroke_width="2.5",
)


def render(told: Mapping[str, Any], template: str) -> str:
    """The page. What hosts say is escaped, whatever it is.

    Args:
        told: ``at absent unread sections``, as ``report.json`` has them.
        template: text of the page's template.
    """
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"duration": duration, "number": number, "day": day, "forest": forest, "bar": bar}
    drawn = [{**section, "charts": charts(section)} for section in told["sections"]]
    text: str = environment.from_string(template).render(
        {**told, "sections": drawn, "metrics": METRICS, "parts": dict(zip(PARTS, COLOURS))}
    )
    return text


def number(value: float) -> str:
    """Three digits that count, or the whole number: ``63.6``, ``2,370``."""
    if not value:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def day(at: Any) -> str:
    """``11-30 04:04``, of a time as records have it."""
    return str(at)[5:16].replace("T", " ")


def charts(section: Section) -> dict[str, dict[str, Any]]:
    """The charts of a section by name: ``svg``, and ``legend``, of each line its title, colour and dashes."""
    drawn = {"speed": _speed(section["speed"]), **_histories(section["history"])}
    return {
        name: {
            "svg": _svg(chart),
            "legend": [(line["title"], *_look(number)) for number, (_, line) in enumerate(chart.raw_series)],
        }
        for name, chart in drawn.items()
        if chart
    }


def _look(number: int) -> tuple[str, str]:
    """Colour and dashes of a line of a chart, by its number."""
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]


def _add(chart: pygal.Graph, title: str, values: Sequence[Any]) -> None:
    """Another line for a chart."""
    _, dashes = _look(len(chart.raw_series))
    chart.add(title, values, **({"stroke_style": {"dasharray": dashes}} if dashes else {}))


def _svg(chart: pygal.Graph) -> Markup:
    """The chart without pygal's script, which only serves tooltips."""
    chart.add_xml_filter(_without_script)
    return Markup(chart.render(is_unicode=True))  # noqa: S704  pygal escapes


def _without_script(root: Any) -> Any:
    for parent in root.iter():
        for script in parent.findall("script"):
            parent.remove(script)
    return root


def _options(title: str) -> dict[str, Any]:
    """The legend is the page's, where it has room to wrap."""
    return {
        "title": title, "style": STYLE, "js": [], "width": WIDTH, "height": HEIGHT, "show_legend": False,
        "dots_size": 4, "disable_xml_declaration": True, "margin": 8, "margin_right": 34, "y_title": "output tok/s",
    }  # fmt: skip


def _speed(releases: Sequence[Mapping[str, Any]]) -> pygal.Line | None:
    known = sorted({level for one in releases for level in one["levels"]}, key=int)
    if not known:
        return None
    chart = pygal.Line(
        **_options("Speed by concurrency (logarithmic)"), x_title="requests at a time", logarithmic=True,
        value_formatter=number,
    )  # fmt: skip
    chart.x_labels = known
    ends = [one["levels"][level][end] for one in releases for level in one["levels"] for end in ("low", "high")]
    chart.y_labels = _round_speeds(min(ends), max(ends))
    for one in releases:
        _add(chart, one["title"], [_with_spread(one["levels"].get(level)) for level in known])
    return chart


def _round_speeds(lowest: float, highest: float) -> list[float]:
    """1, 2, 5, 10, 20 and so on, from one that is not above the lowest to one that is not below the highest."""
    steps = [digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5)]
    first = max((place for place, step in enumerate(steps) if step <= lowest), default=0)
    last = next((place for place, step in enumerate(steps) if step >= highest), len(steps) - 1)
    return steps[first : last + 1]


def _with_spread(summary: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A point with its quartiles."""
    return summary and {"value": summary["median"], "ci": {"low": summary["low"], "high": summary["high"]}}


def _histories(points: Sequence[Mapping[str, Any]]) -> dict[str, pygal.DateTimeLine]:
    """Single-stream and the highest concurrency over time, a line for each host."""
    known = sorted({level for point in points for level in point["levels"]}, key=int)
    drawn = {}
    for name, level in zip(("history_low", "history_high"), dict.fromkeys([*known[:1], *known[-1:]])):
        title = "Single-stream over time" if level == "1" else f"{level} requests at a time, over time"
        chart = pygal.DateTimeLine(
            **_options(title), value_formatter=number,
            x_value_formatter=lambda at: f"{at:%m-%d %H:%M}",
        )  # fmt: skip
        ordered = [point for point in points if level in point["levels"]]
        chart.x_labels = [_time(ordered[place]["at"]) for place in dict.fromkeys((0, len(ordered) - 1))]
        values = [point["levels"][level]["median"] for point in ordered]
        chart.range = (0, max(values))
        for host in dict.fromkeys(point["host"] for point in ordered):
            own = [point for point in ordered if point["host"] == host]
            _add(chart, host, [(_time(point["at"]), point["levels"][level]["median"]) for point in own])
        drawn[name] = chart
    return drawn


def _time(at: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(at.replace("Z", "+00:00"))


def _log(ratio: float) -> float:
    """Of a latency that was measured as none, too."""
    return math.log(max(ratio, 1e-6))


def forest(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Markup:
    """A ratio with its interval, on a logarithmic scale that the rows of a table share; no change is in the middle.

    One wild interval does not make points of all others: a quarter and four times are the ends of any scale.
    """
    ends = [row[key] for row in rows for key in ("low", "high", "ratio") if row[key] is not None]
    reach = min(math.log(4), 1.05 * max(0.1, *(abs(_log(end)) for end in ends)))

    def at(ratio: float) -> str:
        return f"{50 + 50 * max(-1.0, min(1.0, _log(ratio) / reach)):.1f}%"

    interval = ""
    if row["low"] is not None:
        interval = f'<line class="interval" x1="{at(row["low"])}" x2="{at(row["high"])}" y1="50%" y2="50%"/>'
    words = f"{row['ratio'] - 1:+.1%}"
    return Markup(  # noqa: S704  numbers only
        f'<svg class="forest {row["verdict"]}" role="img" aria-label="{words}"><line class="zero" x1="50%" x2="50%" '
        f'y1="0" y2="100%"/>{interval}<circle cx="{at(row["ratio"])}" cy="50%" r="4"/></svg>'
    )


def bar(parts: Mapping[str, float], rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Parts one after the other, on a scale that all rows share."""
    longest, at, drawn = max(sum(row["parts"].values()) for row in rows), 0.0, []
    for name, colour in zip(PARTS, COLOURS):
        width = 100 * parts.get(name, 0.0) / longest
        if width:
            label = f"{name} {duration(parts[name])}"
            drawn.append(
                f'<rect class="bar" x="{at:.2f}%" width="{width:.2f}%" height="100%" fill="{colour}">'
                f"<title>{label}</title></rect>"
            )
        at += width
    return Markup(f'<svg class="bars" role="img">{"".join(drawn)}</svg>')  # noqa: S704  our own words and numbers
