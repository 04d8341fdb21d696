"""All checks of a release on a host, put together on the controller, where the knowledge is."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import findings, flag_checks, host_checks, knowledge, lock, model_fit, nccl_env, rules
from .findings import Case, Check, Found


def all_checks(root: Path, known: Sequence[Mapping[str, Any]] | None = None) -> list[Check]:
    """Every check, with what is known in the checkout ``root``; ``known``: its rules, where they were read already."""
    return [
        flag_checks.flag_check(knowledge.engines(root)),
        nccl_env.checks(knowledge.nccl(root)),
        functools.partial(rules.check, rules=knowledge.rules(root) if known is None else known),
        host_checks.check,
        model_fit.check,
    ]


def judge_host(
    host: str,
    releases: Sequence[Mapping[str, Any]],
    seen: Mapping[str, Any],
    controller: Mapping[str, Any],
    root: Path,
) -> dict[str, Any]:
    """What stands against the releases of one host: ``releases findings considered refused``.

    A release comes back with ``accepted``, the rules that a person overruled and that found something in it.

    Args:
        host: inventory name.
        releases: as ``resolve.py`` makes them.
        seen: ``facts`` and ``problems`` of the host, as the module host_preflight returns them.
        controller: what only the controller knows: ``origins`` of each service, ``hardware`` of the group, and
            ``accept``, the names of rules that are overruled.
        root: the checkout.
    """
    known = knowledge.rules(root)
    catalogue, checks = knowledge.catalogue(root, known), all_checks(root, known)
    overruled, _ = findings.parse_accept(str(controller.get("accept") or ""), catalogue)
    found = [findings.told(one, host, "", catalogue) for one in _problems(seen["problems"])]
    considered, taken = {}, []
    for release in releases:
        service = release["service"]
        packages = lock.load(Path(release["lock"]["folder"])).packages
        origins = (controller.get("origins") or {}).get(service, {})
        case = Case(host, release, seen["facts"], controller.get("hardware") or {}, packages, origins)
        own = findings.judge(case, checks, catalogue, overruled)
        considered[service] = rules.considered(case, known)
        accepted = findings.accepted(own)
        taken.append({**release, "accepted": accepted} if accepted else release)
        found += own
    return {"releases": taken, "findings": found, "considered": considered, "refused": findings.refuses(found)}


def _problems(lines: Iterable[str]) -> Iterable[Found]:
    """What stands in the way of any release: ``place: what is wrong``, as ``problems.py`` writes it."""
    for line in lines:
        where, _, text = line.partition(": ")
        yield Found("preflight", where, "", text)
