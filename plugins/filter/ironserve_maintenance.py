# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filters of playbooks that take hosts out of service and put them back, and of the leases of hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import ansible.module_utils
from ansible import context

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import lease, maintenance, rollout, routers, site, wish


def lease_problems(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> list[str]:
    """Why a run does not have its hosts, a line each, from what host_lease returned (``lease_taken``)."""
    answers = {host: hostvars[host]["lease_taken"] for host in hosts}
    return [
        answer["msg"] if answer.get("refused") else f"{host}: its lease could not be asked for: {answer.get('msg')}"
        for host, answer in answers.items()
        if answer.get("refused") or "refused" not in answer
    ]


def held(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> list[str]:
    """Which hosts a run has that is neither this one nor known to be gone, a line each (``drain_seen``)."""
    here = lease.this_run(context.CLIARGS)
    leases = {host: lease.of_others(hostvars[host]["drain_seen"].get("lease") or {}, here) for host in hosts}
    return [lease.refusal(found, host) for host, found in leases.items() if found.get("purpose") == "deploy"]


def deployed(seen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The services of a host that there is something to drain or admit of: those that were deployed."""
    return [look for look in seen.get("services", ()) if look.get("release_id")]


def drain_check(
    hosts: Sequence[str], hostvars: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], all_hosts: Sequence[str]
) -> dict[str, Any]:
    """``problems``: why hosts of a play may not be drained; ``min_serving``: how many servers each router keeps.

    ``drain_seen``: what each host of the play has; ``listed``: the answer of each router; ``all_hosts``: those of the
    inventory that may serve. One without a host group does not, a machine to log in through for example.
    """
    leaving = {(host, look["service"]) for host in hosts for look in deployed(hostvars[host]["drain_seen"])}
    serve = [host for host in all_hosts if "ironserve_host_group" in hostvars[host]]
    servers = [server for host in serve for server in _servers(host, hostvars[host])]
    answers = {answer["drain_router"]: answer for answer in listed}
    return {
        "problems": maintenance.too_few(leaving, servers, answers),
        "min_serving": maintenance.to_keep(leaving, servers, answers),
    }


def _servers(host: str, variables: Mapping[str, Any]) -> list[maintenance.Server]:
    """The servers of a host as the inventory has them, at the port that they have now where the play has looked."""
    ports = {look["service"]: look["port"] for look in deployed(variables.get("drain_seen") or {})}
    said = {key: variables[key] for key in ("ironserve_services", "ironserve_port") if key in variables}
    least = site.numbers_as_such({"ironserve_min_serving": variables["ironserve_min_serving"]})
    return [
        maintenance.Server(
            host,
            name,
            routers.worker_url(str(variables["ironserve_address"]), int(ports.get(name) or view["ironserve_port"])),
            list(variables["ironserve_routers"]),
            least["ironserve_min_serving"],
        )
        for name, view in wish.views(said).items()
    ]


def drain_rows(hosts: Sequence[str], hostvars: Mapping[str, Any], check_mode: bool) -> list[dict[str, Any]]:
    """A row a host and service: what became of its requests (``drain_done``) and what is to be done next."""
    rows = []
    for host in hosts:
        seen = hostvars[host]
        for look in (seen.get("drain_seen") or {}).get("services", ()):
            done = (seen.get("drain_done") or {}).get(look["service"]) or {}
            failed = "" if done or not look.get("release_id") else str(seen.get("drain_failed") or "")
            rows.append(
                {
                    "host": host,
                    "service": look["service"],
                    "status": look["status"],
                    "routers": ", ".join(seen["ironserve_routers"]) or "none",
                    "drain": "not drained" if failed else _drain(look, done, check_mode),
                    "cut": done.get("cut") or 0,
                    "seconds": done.get("elapsed_s"),
                    "note": failed.partition("\n")[0] or _drain_note(done),
                }
            )
    return rows


def _drain(look: Mapping[str, Any], done: Mapping[str, Any], check_mode: bool) -> str:
    if not look.get("release_id"):
        return "not deployed"
    if done.get("skipped"):
        return "no router"
    return "would drain" if check_mode else str(done.get("state") or "not reached")


def _drain_note(done: Mapping[str, Any]) -> str:
    if done.get("state") == "timeout":
        return f"{done.get('cut')} requests still run and are cut when it is stopped: wait, or run this again"
    return str(done.get("msg") or "") if done.get("state") == "unknown" else ""


def drain_summary(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> str:
    """What to do now with those that are drained, and how it ends."""
    names = ",".join(host for host in hosts if not hostvars[host].get("drain_failed"))
    if not names:
        return ""
    return (
        f"The servers run on, and no router sends them anything. Now reboot, or stop them: ansible-playbook "
        f"playbooks/stop.yml -l {names}. In the end: ansible-playbook playbooks/admit.yml -l {names}"
    )


def others(seen: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """The host's other deployed services, that the inventory names and this run does not mean."""
    return [look for look in seen.get("unknown", ()) if look["service"] in names and look.get("release_id")]


def out_of_service(
    looks: Sequence[Mapping[str, Any]], address: str, all_routers: Sequence[str], listed: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Of services of a host those that do not serve: not ready, or not behind each router (``listed``: its answer)."""
    answers = {answer["admit_router"]: answer for answer in listed}

    def serves(look: Mapping[str, Any]) -> bool:
        url = routers.worker_url(address, int(look["port"]))
        return look["status"] == "ready" and all(url in rollout.admitted(answers, router) for router in all_routers)

    return [look["service"] for look in looks if not serves(look)]


def admit_rows(hosts: Sequence[str], hostvars: Mapping[str, Any], check_mode: bool) -> list[dict[str, Any]]:
    """A row a host and service: whether it passed the gate again (``serve_gates``) and serves (``serve_admitted``)."""
    rows = []
    for host in hosts:
        seen = hostvars[host]
        left = ", ".join(seen.get("admit_left") or ())
        note = str(
            seen.get("admit_failed") or (f"the host stays in maintenance, {left} does not serve" if left else "")
        )
        for look in (seen.get("admit_seen") or {}).get("services", ()):
            service = look["service"]
            gate = (seen.get("serve_gates") or {}).get(service) or {}
            rows.append(
                {
                    "host": host,
                    "service": service,
                    "profile": look.get("profile"),
                    "release_id": look.get("release_id"),
                    "verdict": _verdict(look, gate, check_mode),
                    "ready_s": (gate.get("timings") or {}).get("ready"),
                    "admitted": _admitted(seen, service, check_mode),
                    "note": note.partition("\n")[0],
                }
            )
    return rows


def _verdict(look: Mapping[str, Any], gate: Mapping[str, Any], check_mode: bool) -> str:
    if not look.get("release_id"):
        return "not deployed"
    return "would be judged" if check_mode else str(gate.get("verdict") or "not reached")


def _admitted(seen: Mapping[str, Any], service: str, check_mode: bool) -> str:
    if not seen["ironserve_routers"]:
        return "no router"
    if check_mode:
        return "would be"
    return "yes" if (seen.get("serve_admitted") or {}).get(service) else "no"


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """For drain.yml, admit.yml, stop.yml, remove.yml and tasks/lease.yml."""
        return {
            "ironserve_held": held,
            "ironserve_lease_problems": lease_problems,
            "ironserve_deployed": deployed,
            "ironserve_drain_check": drain_check,
            "ironserve_drain_rows": drain_rows,
            "ironserve_drain_summary": drain_summary,
            "ironserve_others": others,
            "ironserve_out_of_service": out_of_service,
            "ironserve_admit_rows": admit_rows,
        }
