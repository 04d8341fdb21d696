"""Whether the next batch of a roll may begin. Pure, and used on the controller only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from .rollout import Answers, listed, serving

Outcomes = Mapping[str, Optional[Mapping[str, Any]]]
"""By host of an earlier batch what became of it: ``verdict`` (moved, failed, lost, not reached), ``cause``, and of one
that failed whether it is in service again (``serving``). None, or no entry: nobody knows."""


def batch_of(found: Mapping[str, Any], hosts: Sequence[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The batch of the plan that has these hosts, and those before it."""
    for number, batch in enumerate(found["batches"]):
        if set(hosts) & set(batch["hosts"]):
            return batch, found["batches"][:number]
    raise ValueError(f"{listed(hosts)}: in no batch of the plan")


def title(found: Mapping[str, Any], batch: Mapping[str, Any]) -> str:
    """``batch 2 of 4: h3 h4``, with the group where there are several."""
    several = len({each["group"] for each in found["batches"]}) > 1
    return f"{batch['group'] + ' ' if several else ''}{batch['name']}: {listed(batch['hosts'])}"


def opening(
    found: Mapping[str, Any],
    hosts: Sequence[str],
    outcomes: Outcomes,
    answers: Answers,
    soak: Mapping[str, Any] | None = None,
) -> str:
    """Why a batch may not begin; empty where it may.

    Args:
        found: the plan.
        hosts: the batch.
        outcomes: of the hosts before it.
        answers: what the routers have now.
        soak: how the canary before it fared, see ``canary.py``.
    """
    batch, before = batch_of(found, hosts)
    group = found["groups"][batch["group"]]
    return (
        _against_outcomes(found, before, group, outcomes, answers)
        or _against_soak(before, found, soak)
        or _against_unavailable(found, batch, group, outcomes, answers)
        or _against_min_serving(found, batch, group, answers)
    )


def _against_outcomes(
    found: Mapping[str, Any],
    before: Sequence[Mapping[str, Any]],
    group: Mapping[str, Any],
    outcomes: Outcomes,
    answers: Answers,
) -> str:
    verdicts = {
        host: (outcomes.get(host) or {}).get("verdict", "unknown") for batch in before for host in batch["hosts"]
    }
    waiting = [outcomes[host] for host, verdict in verdicts.items() if verdict == "not reached"]
    if waiting:
        return str((waiting[0] or {}).get("cause", ""))  # the roll has stopped already
    silent = [host for host, verdict in verdicts.items() if verdict in ("unknown", "lost")]
    if silent:
        return f"{listed(silent)} cannot be reached or broke off, and what runs there is unknown"
    failed = [host for host, verdict in verdicts.items() if verdict == "failed"]
    canaries = {host for batch in before if batch["name"] == "canary" for host in batch["hosts"]}
    if canaries & set(failed):
        return f"canary {listed([host for host in failed if host in canaries])} failed"
    # A release may die after its gate. What moved and serves no more is as bad as what failed in its turn.
    entries = {entry["host"]: entry for entry in found["hosts"]}
    moved = [host for host, verdict in verdicts.items() if verdict == "moved"]
    died = [host for host in moved if _serves(entries[host], answers) is False]
    if len(failed) + len(died) < group["max_failures"]:
        return ""
    told = []
    if failed:
        told.append(f"{listed(failed)} failed")
    if died:
        told.append(f"{listed(died)} moved, and its routers do not find it healthy any more")
    return f"{'; '.join(told)} (ironserve_max_failures: {group['max_failures']})"


def _against_soak(before: Sequence[Mapping[str, Any]], found: Mapping[str, Any], soak: Mapping[str, Any] | None) -> str:
    if not before or before[-1]["name"] != "canary" or not found["groups"][before[-1]["group"]]["soak_s"]:
        return ""
    state = (soak or {}).get("state")
    if state == "good":
        return ""
    return f"canary {listed(before[-1]['hosts'])}: {(soak or {}).get('why') or 'it did not soak to its end'}"


def _serves(entry: Mapping[str, Any], answers: Answers) -> bool | None:
    """Whether a host of the plan serves, see :func:`_have`. Its services may be under either of two URLs."""
    return _have(entry["routers"], [_urls(service) for service in entry["services"]], answers)


def _have(routers: Sequence[str], services: Sequence[Sequence[str]], answers: Answers) -> bool | None:
    """Whether the routers that were asked have all of the services, each under any of its URLs; None: none was."""
    told = [serving(answers, router) for router in routers if "workers" in (answers.get(router) or {})]
    return all(healthy.intersection(urls) for healthy in told for urls in services) if told else None


def _against_unavailable(
    found: Mapping[str, Any],
    batch: Mapping[str, Any],
    group: Mapping[str, Any],
    outcomes: Outcomes,
    answers: Answers,
) -> str:
    entries = {entry["host"]: entry for entry in found["hosts"] if entry["group"] == batch["group"]}

    def out(host: str) -> bool:
        entry, outcome = entries[host], outcomes.get(host)
        if outcome is not None and outcome["verdict"] != "moved" and not outcome.get("serving"):
            return True
        # What routers have now counts more than what the plan saw, hours ago maybe.
        now = _serves(entry, answers)
        return not (entry["serves"] or outcome is not None) if now is None else not now

    if not any(entries[host]["serves"] or not out(host) for host in batch["hosts"]):
        return ""  # it takes nothing away
    gone = [host for host in entries if host not in batch["hosts"] and out(host)]
    # Of a host beyond the run only routers know.
    for host, known in group["beyond"].items():
        if _have(known["routers"], [[url] for url in known["urls"]], answers) is False:
            gone.append(host)
    if len(gone) + len(batch["hosts"]) <= group["max_unavailable"]:
        return ""
    are = "is" if len(gone) == 1 else "are"
    return (
        f"{listed(gone)} {are} out of service, and no more than {group['max_unavailable']} may be "
        "(ironserve_max_unavailable)"
    )


def _urls(service: Mapping[str, Any]) -> tuple[str, str]:
    """Under which routers may have a server: before its turn, and after."""
    return service["url"], service["wished_url"]


def _against_min_serving(
    found: Mapping[str, Any], batch: Mapping[str, Any], group: Mapping[str, Any], answers: Answers
) -> str:
    entries = {entry["host"]: entry for entry in found["hosts"]}
    own = {url for host in batch["hosts"] for service in entries[host]["services"] for url in _urls(service)}
    for router in batch["at_least"]:
        answer, needed = answers.get(router) or {}, group["min_serving"][router]
        if answer.get("failed") or answer.get("unreachable") or "workers" not in answer:
            return f"router {router} does not answer: {answer.get('msg') or 'it was not asked'}"
        healthy = serving(answers, router)
        left = len(healthy - own)
        if healthy & own and left < needed:
            return (
                f"router {router} would be left with {left} healthy servers, and needs {needed} (ironserve_min_serving)"
            )
    return ""
