"""The report of a preflight for a person at a terminal. Pure, and used on the controller only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .findings import SEVERITIES
from .table import table

Groups = Sequence[Mapping[str, Any]]
"""As :func:`findings.grouped` makes them."""


TOLD = {"errors": SEVERITIES[:1], "warnings": SEVERITIES[:2], "all": SEVERITIES}
"""What is shown, by how much a person wants to read."""


def text(groups: Groups, hosts: Sequence[str], tell: str = "all") -> str:
    """A headline that counts all, then each finding that is grave enough for ``tell``; empty where none is.

    With ``all`` it is never empty: that nothing was found is an answer. With ``errors`` what a person accepted was told
    before, and stops nothing.
    """
    shown = [
        group for group in groups if group["severity"] in TOLD[tell] and not (tell == "errors" and group["accepted"])
    ]
    if not shown and tell != "all":
        return ""
    return "\n".join([headline(groups, hosts), *(finding(group) for group in shown)])


def headline(groups: Groups, hosts: Sequence[str]) -> str:
    """``3 hosts judged: 1 error (1 accepted), 2 warnings``."""
    counts = []
    for severity in SEVERITIES:
        same = [group for group in groups if group["severity"] == severity]
        accepted = sum(group["accepted"] for group in same)
        if same:
            counts.append(_counted(len(same), severity) + (f" ({accepted} accepted)" if accepted else ""))
    return f"{_counted(len(hosts), 'host')} judged: {', '.join(counts) or 'nothing found'}"


def refusal(groups: Groups, file: str) -> str:
    """Why a deploy stops, in a line; the report stands above it."""
    against = [group for group in groups if group["severity"] == "error" and not group["accepted"]]
    rules = sorted({group["rule"] for group in against})
    hosts = dict.fromkeys(host for group in against for host in group["hosts"])
    overrule = "; -e accept=RULE,... overrules rules by name" if any(group["overrulable"] for group in against) else ""
    return (
        f"nothing was touched: {', '.join(rules)} {'stands' if len(rules) == 1 else 'stand'} against it on "
        f"{', '.join(hosts)}, see the report above (JSON: {file}). Mend what it says{overrule}"
    )


def finding(group: Mapping[str, Any]) -> str:
    """One finding: a line that says it, then why, what to do, where that is known from, and which hosts have it."""
    place = ": ".join(filter(None, (str(group["where"]), str(group["key"]))))
    severity = f"{group['severity']}, accepted" if group["accepted"] else group["severity"]
    lines = [f"{severity}: {place}: {group['text']}  [{group['rule']}]"]
    told = {"why": group["why"], "do": group["do"], "source": ", ".join(group["source"])}
    told["hosts"] = ", ".join(group["hosts"])
    return "\n".join([*lines, *(f"    {name + ':':<8}{' '.join(what.split())}" for name, what in told.items() if what)])


def considered(by_host: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> str:
    """Which rules were considered and why each fired or not: a table for all hosts and services of which it is true."""
    tables: dict[str, list[str]] = {}
    for host, services in by_host.items():
        for service, rules in services.items():
            ordered = sorted(rules, key=lambda rule: not rule["fired"])
            rows = [{**rule, "fired": "fired" if rule["fired"] else "silent"} for rule in ordered]
            whose = host if service == "main" else f"{host} ({service})"
            tables.setdefault(table(["rule", "fired", "why"], rows), []).append(whose)
    return "\n".join(f"\nRules considered for {', '.join(hosts)}\n{rows}\n" for rows, hosts in tables.items())


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
