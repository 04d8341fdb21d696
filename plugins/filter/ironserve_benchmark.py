# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filters of playbooks/benchmark.yml: what was measured of each service, and how it stands to the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import compare

PERCENTILES = ("p50", "p95", "p99")


def rows(hosts: Sequence[str], hostvars: Mapping[str, Any], check_mode: bool) -> list[dict[str, Any]]:
    """A row a host, service and level, from ``benchmark_done``; one where there is nothing to show but why."""
    found = []
    for host in hosts:
        seen = hostvars[host]
        done = seen.get("benchmark_done") or {}
        looks = (seen.get("benchmark_seen") or {}).get("services") or [{"service": ""}]
        for look in looks:
            row = {"host": host, "service": look["service"], "profile": look.get("profile", "")}
            measurement = (done.get(look["service"]) or {}).get("measurement")
            if measurement:
                found += [{**row, **level} for level in levels(measurement)]
                found[-1]["note"] = note(measurement, done[look["service"]]["compared"]["msg"])
            else:
                found.append({**row, "note": _why_not(seen, look, check_mode)})
    return found


def _why_not(seen: Mapping[str, Any], look: Mapping[str, Any], check_mode: bool) -> str:
    if seen.get("benchmark_failed"):
        return str(seen["benchmark_failed"])
    if look["service"] and not look.get("release_id"):
        return "not deployed"
    return "would be measured" if look["service"] and check_mode else "not reached"


def levels(measurement: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each level: the median of its runs with their quartiles, and the median of each percentile."""
    found = []
    for level, runs in measurement["levels"].items():
        row: dict[str, Any] = {"level": int(level), "output_tok_s": compare.summary([r["output_tok_s"] for r in runs])}
        for metric in ("ttft_ms", "itl_ms"):
            told = {name: [run[metric][name] for run in runs if name in run[metric]] for name in PERCENTILES}
            row[metric] = {name: compare.summary(values)["median"] for name, values in told.items() if values}
        row |= {"requests": sum(run["requests"] for run in runs), "failed": sum(run["failed"] for run in runs)}
        found.append(row)
    return found


def note(measurement: Mapping[str, Any], compared: str) -> str:
    """What is to be known of all levels: disturbed, throttled, agreement with itself, the baseline."""
    said = [f"disturbed: {measurement['disturbed']}"] if measurement["disturbed"] else []
    for gpu in measurement["gpus"]:
        said += [f"GPU {gpu['index']} {why} {share:.0%} of the time" for why, share in gpu["throttled"].items()]
    return "; ".join([*said, *([compared] if compared else [])])


def cells(shown: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows as the table shows them."""
    return [
        {
            **row,
            "tok/s": _spread(row.get("output_tok_s")),
            "ttft ms": _percentiles(row.get("ttft_ms")),
            "itl ms": _percentiles(row.get("itl_ms")),
            "failed": f"{row['failed']} of {row['requests']}" if row.get("failed") else "",
        }
        for row in shown
    ]


def _spread(found: Mapping[str, Any] | None) -> str:
    return f"{found['median']:.1f} [{found['low']:.1f}..{found['high']:.1f}]" if found else ""


def _percentiles(found: Mapping[str, float] | None) -> str:
    return " / ".join(f"{found[name]:.1f}" for name in PERCENTILES if name in found) if found else ""


def summary(shown: Sequence[Mapping[str, Any]]) -> str:
    """What the columns mean."""
    if not any("output_tok_s" in row for row in shown):
        return ""
    return (
        "level: requests at a time; tok/s: output tokens a second, median of the runs [quartiles]; ttft: time to "
        "first token, itl: inter-token latency, p50 / p95 / p99"
    )


def differences(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of all comparisons with a baseline."""
    return [
        {"host": host, "service": service, **row}
        for host in hosts
        for service, done in (hostvars[host].get("benchmark_done") or {}).items()
        for row in done["compared"].get("rows", [])
    ]


def difference_cells(shown: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those rows as the table shows them."""
    return [
        {
            **row,
            "baseline": f"{row['old']:.1f}",
            "now": f"{row['new']:.1f}",
            "ratio": f"{row['ratio']:.3f}",
            "interval": "too few runs" if row["low"] is None else f"{row['low']:.3f}..{row['high']:.3f}",
        }
        for row in shown
    ]


def difference_summary(shown: Sequence[Mapping[str, Any]]) -> str:
    """What their intervals leave out."""
    return compare.OF_RUNS if shown else ""


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """For benchmark.yml."""
        return {
            "ironserve_benchmark_rows": rows,
            "ironserve_benchmark_cells": cells,
            "ironserve_benchmark_summary": summary,
            "ironserve_benchmark_differences": differences,
            "ironserve_difference_cells": difference_cells,
            "ironserve_difference_summary": difference_summary,
        }
