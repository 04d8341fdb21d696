# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filters that turn what the hosts of a play registered into rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

STATUS_KEYS = ("status", "cause", "profile", "release_id", "last_known_good_id", "engine", "port", "model", "main_pid",
               "since", "health", "enabled")  # fmt: skip


def status_rows(hosts: Sequence[str], hostvars: Mapping[str, Any], service: str) -> list[dict[str, Any]]:
    """A row a host from what ``inference_service`` with ``state: observed`` registered as ``status_observed``.

    ``wanted`` is the profile that the inventory declares; ``note`` says so where another one runs.
    """
    rows = []
    for host in hosts:
        seen = hostvars[host].get("status_observed") or {}
        row = {"host": host, "service": service, **{key: seen.get(key) for key in STATUS_KEYS}}
        row["wanted"] = hostvars[host].get("ironserve_profile", "")
        row["note"] = ""
        if seen.get("unreachable"):
            row.update(status="unreachable", note=str(seen.get("msg", "")))
        elif "status" not in seen:
            row.update(status="unknown", note=str(seen.get("msg", "")))
        elif row["cause"]:
            row["note"] = row["cause"]
        elif row["profile"] and row["profile"] != row["wanted"]:
            row["note"] = f"inventory wants {row['wanted'] or 'nothing'}"
        rows.append(row)
    return rows


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
        gates = seen.get("serve_gates") or {}
        for release in releases:
            service = release["service"]
            rows.append(_deploy_row(host, release, compared.get(service, {}), gates.get(service, {}), check_mode))
    return rows


def _deploy_row(
    host: str, release: Mapping[str, Any], compared: Mapping[str, Any], gate: Mapping[str, Any], check_mode: bool
) -> dict[str, Any]:
    reasons, declared = compared.get("reasons") or [], release.get("declared_profile")
    if check_mode:
        verdict = "would change" if reasons else "unchanged"
    else:
        verdict = gate.get("verdict") or ("not reached" if reasons else "unchanged")
    return {
        "host": host,
        "service": release["service"],
        "profile": release.get("profile"),
        "release_id": release.get("release_id"),
        "previous_id": compared.get("previous_id"),
        "verdict": verdict,
        "ready_s": (gate.get("timings") or {}).get("ready"),
        "why": "; ".join(reasons),
        "note": "" if declared == release.get("profile") else f"inventory wants {declared or 'nothing'}",
    }


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Rows of playbooks/status.yml and playbooks/report.yml."""
        return {"ironserve_status_rows": status_rows, "ironserve_deploy_rows": deploy_rows}
