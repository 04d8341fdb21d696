# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filters that turn what hosts registered of ``gpu_cleanup`` into rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import site
from ansible.module_utils.ironserve.gpu_states import SUCCESS
from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.schema import check
from ansible.module_utils.ironserve.slices import duration

LISTS = ("victims", "protected", "reported")
STOP = "stop "
"""How gpu_cleanup says that it stops a unit."""


def problems(settings: Any, run: Mapping[str, Any], service: str, services: Sequence[str]) -> list[str]:
    """What is wrong with what was asked for.

    Args:
        settings: ``ironserve_cleanup``.
        run: variables of the run that are to be true or false.
        service: the service that was named, or nothing.
        services: those of the host.
    """
    found = Problems()
    check(settings, site.VARIABLES["ironserve_cleanup"], "ironserve_cleanup", "", found)
    site.check_extra_variables(run, found)
    if service and service not in services:
        found.add("-e", "service", f"the host has no service {service}, but {', '.join(services) or 'none'}")
    return [str(problem) for problem in found.found]


def _state(answer: Mapping[str, Any]) -> str:
    return str(answer.get("state", "unreachable" if answer.get("unreachable") else "unknown"))


def rows(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each process at a GPU; a host that has none, or was not asked, is a row too."""
    found: list[dict[str, Any]] = []
    for host in hosts:
        seen = hostvars[host].get("cleanup_seen") or {}
        indices = {gpu["uuid"]: gpu["index"] for gpu in seen.get("gpus", [])}
        # This run goes through sshd and a shell: they are at no GPU, and nobody's to end.
        holders = [one for name in LISTS for one in seen.get(name, []) if one["class"] != "self"]
        found += [
            {"host": host, "class": "victim", "command": action[len(STOP) :], "why": "stopped until the next deploy"}
            for action in seen.get("actions", [])
            if action.startswith(STOP)
        ]
        for one in sorted(holders, key=lambda one: (LISTS.index(_list_of(one)), one["pid"])):
            found.append(
                {
                    **one,
                    "host": host,
                    "gpus": ranges([indices[uuid] for uuid in one["gpus"] if uuid in indices]),
                    "age": duration(one["age_s"]),
                    "mib": one["memory_mib"],
                    "command": one["command"][:60],
                }
            )
        if not holders:
            found.append({"host": host, "class": _state(seen), "why": _note(seen) or "nobody"})
    return found


def _list_of(holder: Mapping[str, Any]) -> str:
    return {"victim": "victims", "protected": "protected"}.get(holder["class"], "reported")


def ranges(numbers: Sequence[int]) -> str:
    """``0-3,7`` for 0, 1, 2, 3 and 7."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def summary(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> str:
    """``9 victims on 1 of 3 hosts, 1 service stops; 2 protected and 1 other process stay``."""
    shown = rows(hosts, hostvars)
    found = [one["class"] for one in shown if "pid" in one]
    stops = sum(one["class"] == "victim" and "pid" not in one for one in shown)
    places = len({one["host"] for one in shown if one["class"] == "victim"})
    victims, protected = found.count("victim"), found.count("protected")
    return (
        f"{_counted(victims, 'victim')} on {places} of {_counted(len(hosts), 'host')}"
        f"{f', {stops} service(s) stop' if stops else ''}; {protected} protected and "
        f"{_counted(len(found) - victims - protected, 'other process', 'other processes')} stay"
    )


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def results(hosts: Sequence[str], hostvars: Mapping[str, Any], check_mode: bool = False) -> list[dict[str, Any]]:
    """A row a host: its state, what became free, and what a person must do."""
    found = []
    for host in hosts:
        seen, done = hostvars[host].get("cleanup_seen") or {}, hostvars[host].get("cleanup_done") or {}
        last = done if "state" in done or done.get("unreachable") or done.get("msg") else seen
        state, note = _state(last), _note(last)
        if state == "held" and not check_mode:
            note = "nothing was ended, since nobody agreed: -e yes=true does"
        found.append(
            {
                "host": host,
                "state": state,
                "failed": state not in SUCCESS or (state == "held" and not check_mode),
                "freed_mib": last.get("freed_mib", 0),
                "seconds": last.get("elapsed_s"),
                "note": note,
                "actions": last.get("actions", []),
                "gpus": last.get("gpus", []),
            }
        )
    return found


def _note(answer: Mapping[str, Any]) -> str:
    return str(answer.get("msg") or ("" if "state" in answer else "the host was not asked"))


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Tables of playbooks/cleanup.yml."""
        return {
            "ironserve_cleanup_rows": rows,
            "ironserve_cleanup_summary": summary,
            "ironserve_cleanup_results": results,
            "ironserve_cleanup_problems": problems,
        }
