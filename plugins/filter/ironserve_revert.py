# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filters that say what became of a service whose deploy failed: what was put back, and both verdicts in a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve.compare import REFUSED
from ansible.module_utils.ironserve.slices import duration


def reverted(
    answer: Mapping[str, Any], stop: bool, stopped: Mapping[str, Any], gate: Mapping[str, Any], notes: Sequence[str]
) -> dict[str, Any]:
    """What became of putting a release back.

    ``verdict``: the gate's, or ``kept`` (nothing was stopped, what ran before is the active one), ``left`` (nothing was
    to be put back and nothing was stopped), ``none`` (there was nothing to put back), ``error``.

    Args:
        answer: of inference_release, or that it was skipped.
        stop: whether what failed had to be stopped.
        stopped: the answer of the stop, or that it was skipped.
        gate: what the gate said of the release that was put back, empty where it was not asked.
        notes: what else went wrong on the way.
    """
    release = answer.get("release") or {}
    found = {
        "profile": release.get("profile", ""),
        "release_id": release.get("release_id", ""),
        "ready_s": (gate.get("timings") or {}).get("ready"),
        "cause": gate.get("cause") or answer.get("why") or "",
        "msg": gate.get("msg", ""),
        "notes": list(notes),
    }
    if stop and stopped.get("msg"):
        return {**found, "verdict": "error", "cause": f"it could not be stopped: {stopped['msg']}"}
    if answer.get("msg") and "reverted_to" not in answer:
        return {**found, "verdict": "error", "cause": answer["msg"]}
    if not stop:
        return {**found, "verdict": "kept" if answer.get("changed") else "left"}
    if not answer.get("reverted_to"):
        return {**found, "verdict": "none"}
    verdict = gate.get("verdict") or "error"
    return {**found, "verdict": verdict, "cause": found["cause"] or ("" if verdict == "ready" else gate.get("msg", ""))}


def failure(msg: str, host: str, service: str, reverts: Mapping[str, Any], undo: Sequence[str]) -> str:
    """The message with which a host fails: the first verdict and that of what was put back, the worse one first."""
    back, unit = reverts[service], f"ironserve-{service}.service"
    verdict, cause = back["verdict"], back["cause"]
    what = f"{back['profile']} (release {back['release_id']})"
    head, tail = [], []
    stays = f"{unit} is stopped and stays so until the next deploy."
    if verdict == "ready":
        tail.append(f"put back {what}: ready after {duration(back['ready_s'] or 0)}")
    elif verdict == "kept":
        tail.append(f"{unit} was left as it is, and {what} is its active release again: nothing was stopped.")
    elif verdict == "left":
        tail.append(f"{unit} was left as it is.")
    elif verdict == "none":
        tail += [f"{cause}: the unit is stopped", stays]
    elif back["release_id"]:
        head.append(f"put back {what} FAILED TOO: {cause}")
        tail += ["what was put back: " + back["msg"]] if back["msg"] else []
        tail.append(stays)
    else:
        head.append(f"THE LAST GOOD RELEASE COULD NOT BE PUT BACK: {cause}")
        tail.append(f"see what runs: ansible-playbook playbooks/status.yml -l {host}")
    tail += [f"on the way: {note}" for note in back["notes"]]
    if verdict not in ("kept", "left"):
        way = f"ansible-playbook playbooks/rollback.yml -l {host} -e service={service} -e release=ID"
        tail.append(f"to put another release back: {way}")
    tail += [f"the takeover stopped something; bring it back by: {line}" for line in undo]
    return "\n".join([*(f"{host}: {line}" for line in head), msg, *(f"{host}: {line}" for line in tail)])


def steps(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of each step that was gone through, from what its module returned."""
    return {name: float(answer["elapsed_s"]) for name, answer in answers.items() if "elapsed_s" in answer}


def speed_judged(gate: Mapping[str, Any], judged: Mapping[str, Any]) -> dict[str, Any]:
    """The gate's answer for a service together with what benchmark_baseline said of its speed, as ``speed``.

    What is surely slower, talks nonsense, leaves requests unanswered or could not be measured is to be given up like
    anything else to which the gate says no.
    """
    speed = {key: judged[key] for key in ("verdict", "msg", "rows")}
    if speed["verdict"] not in REFUSED:
        return {**gate, "speed": speed}
    return {**gate, "speed": speed, "verdict": speed["verdict"], "cause": speed["msg"], "msg": speed["msg"],
            "under_gate": True}  # fmt: skip


def lost(answer: Mapping[str, Any], host: str, service: str) -> str:
    """The message with which a host fails that could not be reached any more: what is not known, and what to do."""
    doing = answer.get("doing") or "it was drained"
    why = f" ({' '.join(str(answer['error']).split())})" if answer.get("error") else ""
    return "\n".join(
        (
            f"{host}: connection lost while {doing}; its state is unknown: service {service} may serve the old "
            f"release, the new one or none, and nothing more was sent to the host{why}",
            f"{host}: see what runs once it is back: ansible-playbook playbooks/status.yml -l {host}",
            f"{host}: the same command again goes on from whatever it finds there.",
        )
    )


def rollback_problems(results: Sequence[Mapping[str, Any]], host: str) -> list[str]:
    """Why services have nothing to go back to, from the answers of inference_release for each."""
    lacking = (answer for answer in results if not answer.get("reverted_to"))
    return [f"{host}, {answer['serve_service']}: {answer.get('why') or answer.get('msg')}" for answer in lacking]


def rollback_split(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> list[str]:
    """Services of which hosts of one group would go back to different releases, as when a rollback was cut off."""
    goals: dict[tuple[str, str], dict[str, list[str]]] = {}
    for host in hosts:
        for answer in hostvars[host]["serve_chosen"]["results"]:
            release = answer["release"]
            goal = f"{release['profile']} ({release['release_id']})"
            goals.setdefault((answer["serve_service"], release["host_group"]), {}).setdefault(goal, []).append(host)
    told = []
    for (service, _), several in goals.items():
        if len(several) > 1:
            ways = " and ".join(f"{goal} on {', '.join(on)}" for goal, on in several.items())
            told.append(f"{service} would go back to {ways}: say which, -e release=ID, or take the hosts apart with -l")
    return told


def without(mapping: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """The mapping without these keys."""
    return {key: value for key, value in mapping.items() if key not in keys}


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Used by role serve and playbooks/rollback.yml."""
        return {
            "ironserve_reverted": reverted,
            "ironserve_failure": failure,
            "ironserve_lost": lost,
            "ironserve_speed_judged": speed_judged,
            "ironserve_steps": steps,
            "ironserve_rollback_problems": rollback_problems,
            "ironserve_rollback_split": rollback_split,
            "ironserve_without": without,
        }
