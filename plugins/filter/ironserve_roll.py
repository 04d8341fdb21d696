# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filters between the stages of a deploy and the thinking about a roll."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import batches, canary, rollout

Results = Sequence[Mapping[str, Any]]
"""Of a task that loops: over routers, services or hosts, which are ``item``."""


def by_item(results: Results) -> dict[str, Mapping[str, Any]]:
    """The results of a loop by what it went over."""
    return {str(result["item"]): result for result in results if "item" in result}


def routers(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> list[str]:
    """The routers in front of the hosts of a run."""
    rolls = ((hostvars[host].get("deploy_resolved") or {}).get("roll") or {} for host in hosts)
    return list(dict.fromkeys(router for roll in rolls for router in roll.get("routers", ())))


def unadmitted(resolved: Mapping[str, Any], answers: Results) -> dict[str, list[str]]:
    """Of each service of a host the routers that have not admitted it, as reasons; none where all have."""
    found = {
        release["service"]: rollout.not_admitted(resolved["roll"], release["port"], by_item(answers))
        for release in resolved["releases"]
    }
    return {service: reasons for service, reasons in found.items() if reasons}


def differing(compared: Results, unadmitted: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The releases that a deploy goes on with: not settled on the host, or not admitted by a router."""
    releases = [(result["settled"], result["serve_release"]) for result in compared]
    return [release for settled, release in releases if not settled or release["service"] in unadmitted]


def plan_hosts(hosts: Sequence[str], hostvars: Mapping[str, Any], answers: Results) -> dict[str, Any]:
    """What the plan needs of each host of a run."""
    found, by_router = {}, by_item(answers)
    for host in hosts:
        seen = hostvars[host]
        roll, compared = seen["deploy_resolved"]["roll"], seen["serve_compared"].get("results", ())
        if compared:  # else the inventory names no service for it
            found[host] = {"roll": roll, "services": rollout.seen_of(compared, roll, by_router)}
    return found


def outcomes(plan: Mapping[str, Any], hosts: Sequence[str], hostvars: Mapping[str, Any]) -> dict[str, Any]:
    """What became of every host that had its turn before these."""
    _, before = batches.batch_of(plan, hosts)
    return {host: hostvars[host].get("roll_outcome") for batch in before for host in batch["hosts"]}


def soak(plan: Mapping[str, Any], hosts: Sequence[str], hostvars: Mapping[str, Any]) -> dict[str, Any]:
    """The soak that has to be before the batch with these hosts, empty where there is none."""
    return canary.soak_due(plan, hosts, outcomes(plan, hosts, hostvars))


def batch(plan: Mapping[str, Any], hosts: Sequence[str]) -> dict[str, Any]:
    """The batch of the plan that has these hosts."""
    return batches.batch_of(plan, hosts)[0]


def _plan(groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plan of this run, which every host of it has; empty where no host has anything to do."""
    differing = groups.get("deploy_differs", ())
    return (hostvars[differing[0]].get("deploy_plan") or {}) if differing else {}


def roll_order(groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any], only_plan: bool) -> list[str]:
    """The hosts that a roll goes over, in its order; none where a run only makes the plan."""
    return [] if only_plan else list(_plan(groups, hostvars).get("order", ()))


def roll_serial(groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]) -> list[int]:
    """The sizes of its batches; ``serial`` wants one even where there is no host."""
    return list(_plan(groups, hostvars).get("serial", ())) or [1]


def take_back(seen: Mapping[str, Any]) -> list[dict[str, str]]:
    """Of a host that moved the services that had another release before, which was good, with its folder.

    After a run that broke off the new one may have been active already: what counts is the one that was good last.
    """
    found = []
    compared = {one["serve_release"]["service"]: one for one in (seen.get("serve_compared") or {}).get("results", ())}
    for release in seen.get("deploy_differing") or ():
        before = compared[release["service"]]
        good, wished = before["last_known_good_id"], f"{before['release_id']}-{before['render_id']}"
        if good not in ("", wished):
            found.append({"service": release["service"], "to": good})
    return found


def _bad_canary(plan: Mapping[str, Any], hostvars: Mapping[str, Any]) -> list[str]:
    """The hosts of a canary that soaked badly."""
    for host in plan.get("order", ()):
        if ((hostvars[host].get("roll_soak") or {}).get("soak") or {}).get("state") == "bad":
            return list(batches.batch_of(plan, [host])[1][-1]["hosts"])
    return []


def roll_moved(groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any], revert_all: bool) -> list[str]:
    """The hosts to take back, the last that moved first: a canary that soaked badly, or all of a roll that failed."""
    plan = _plan(groups, hostvars)
    order, bad = list(plan.get("order", ())), _bad_canary(plan, hostvars)
    verdicts = {host: (hostvars[host].get("roll_outcome") or {}).get("verdict") for host in order}
    all_of_them = revert_all and any(verdict != "moved" for verdict in verdicts.values())
    moved = [host for host in reversed(order) if verdicts[host] == "moved" and take_back(hostvars[host])]
    return [host for host in moved if all_of_them or host in bad]


def roll_failure(result: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """What a host has after a turn that failed: ``roll_outcome``.

    ``serving``: every service that went out of service is back. ``seen``: what role serve left on the host.
    """
    times = (seen.get("serve_times") or {}).values()
    lost = bool(seen.get("serve_lost") or result.get("lost"))
    return {
        "verdict": "lost" if lost else "failed",
        "cause": str(result.get("msg", "")),
        "serving": not lost and all("back" in at for at in times),
    }


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """For playbooks/validate.yml, plan.yml and roll.yml."""
        return {
            "ironserve_batch": batch,
            "ironserve_differing": differing,
            "ironserve_outcomes": outcomes,
            "ironserve_plan_hosts": plan_hosts,
            "ironserve_roll_failure": roll_failure,
            "ironserve_roll_moved": roll_moved,
            "ironserve_roll_order": roll_order,
            "ironserve_roll_serial": roll_serial,
            "ironserve_routers": routers,
            "ironserve_soak": soak,
            "ironserve_take_back": take_back,
            "ironserve_unadmitted": unadmitted,
            "ironserve_worker_url": lambda address, port: rollout.worker_url(str(address), int(port)),
        }
