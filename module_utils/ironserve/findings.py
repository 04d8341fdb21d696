"""Findings: what checks say of a release on a host before anything on it is touched. Pure.

A check looks at a :class:`Case` and yields what it found, a :class:`Found` each. Why that matters, what to do and where
it is known from is data: ``knowledge/checks/`` for the checks that are code, ``knowledge/rules/`` for those that are
data themselves. Both together are the catalogue, by rule id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple

from .problems import unknown

SEVERITIES = ("error", "warning", "note")
"""An error stops a deploy; a warning is for a person to read; a note is worth knowing."""

NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


class Found(NamedTuple):
    """Something that a check found: a rule of the catalogue, the place (file or host, and key), and what is there.

    ``severity`` and ``do`` replace the catalogue's where a check knows better.
    """

    rule: str
    where: str
    key: str
    text: str
    severity: str = ""
    do: str = ""


@dataclass(frozen=True)
class Case:
    """One release on one host, with all that is known before it starts.

    Args:
        host: inventory name.
        release: as ``resolve.py`` makes it.
        facts: what was seen on the host, see ``host_preflight``; empty where nobody looked.
        hardware: what the host group says that it has (``ironserve_hardware``).
        packages: version of each package of the lock, by its normal name (lower case, dashes).
        origins: where each value comes from, as ``explain.py`` makes it.
    """

    host: str
    release: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, Any] = field(default_factory=dict)

    @property
    def engine(self) -> str:
        """``sglang`` or ``vllm``."""
        return str(self.release["engine"])

    @property
    def engine_version(self) -> str:
        """As the lock says it; the id of what is installed follows from the lock."""
        return str(self.release["lock"]["engine_version"])

    @property
    def nccl_version(self) -> str:
        """Of the engine's NCCL; empty where the lock has none, as on a CPU."""
        return next((self.packages[name] for name in NCCL_PACKAGES if name in self.packages), "")

    @property
    def flags(self) -> Mapping[str, Any]:
        """The release's flags, long names without dashes; ``True`` for a bare one."""
        flags: Mapping[str, Any] = self.release["flags"]
        return flags

    @property
    def env(self) -> dict[str, str]:
        """Every variable that the server gets, but for secrets."""
        return {**self.release["env"], **self.release.get("host_env", {})}

    @property
    def family(self) -> str:
        """``sm120``, ``sm90``, ...: as the driver tells, else as the host group says; empty on a host without GPUs."""
        seen = {gpu.get("family") for gpu in self.facts.get("gpus", {}).get("gpus", [])} - {None, ""}
        declared = str(self.hardware.get("gpu_family", ""))
        told = next(iter(seen)) if len(seen) == 1 else declared
        return "" if told == "none" else str(told)

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """The service's GPUs as the driver tells them; all of the host where it names none."""
        named = self.release.get("gpus") or []
        seen = self.facts.get("gpus", {}).get("gpus", [])
        return [gpu for gpu in seen if not named or gpu.get("uuid") in named]

    @property
    def model(self) -> Mapping[str, Any]:
        """What the model's files say, see ``model_config.py``; empty where they could not be read."""
        found: Mapping[str, Any] = self.facts.get("models", {}).get(self.release["service"], {})
        return found

    def place_of_flag(self, name: str) -> tuple[str, str]:
        """File and key that a flag comes from."""
        for row in self.origins.get("argv", []):
            if row["words"] and row["words"][0].split("=", 1)[0] == f"--{name}":
                return _place(row["origin"], f"flags.{name}")
        return self._profile(), f"flags.{name}"

    def place_of_variable(self, name: str) -> tuple[str, str]:
        """File and key that a variable comes from."""
        for row in self.origins.get("env", []):
            if row["name"] == name:
                return _place(row["origin"], name)
        return self._profile(), f"env.{name}"

    def _profile(self) -> str:
        return f"profile {self.release['profile']}"


def _place(origin: str, name: str) -> tuple[str, str]:
    """``profiles/a.yml flags.x, size y of host group z`` as file and key; other words stand for themselves."""
    first, comma, rest = origin.partition(",")
    file, _, key = first.partition(" ")
    if not file.endswith((".yml", ".yaml")):
        return origin, name
    return file, f"{key or name}{comma}{rest}" if "NCCL set" not in rest else f"{key} ({rest.strip()}): {name}"


Check = Callable[[Case], Iterable[Found]]


def judge(
    case: Case, checks: Iterable[Check], catalogue: Mapping[str, Mapping[str, Any]], accept: Collection[str] = ()
) -> list[dict[str, Any]]:
    """All that the checks find, the gravest first, each as plain data.

    ``rule severity host service where key text why do source[] accepted``. ``accept`` names rules that a person
    overrules: what they find stops nothing.
    """
    found = dict.fromkeys(found for check in checks for found in _what_is_found(check, case))
    findings = [told(one, case.host, case.release["service"], catalogue, accept) for one in found]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding["severity"]))


def _what_is_found(check: Check, case: Case) -> Iterator[Found]:
    """What a check finds. One that does not know what to do with a case refuses nothing, and says so."""
    try:
        yield from check(case)
    except Exception as error:
        name = getattr(check, "__name__", "") or repr(check)
        yield Found("check-failed", f"host {case.host}", "", f"{name} ended with {type(error).__name__}: {error}")


def told(
    found: Found, host: str, service: str, catalogue: Mapping[str, Mapping[str, Any]], accept: Collection[str] = ()
) -> dict[str, Any]:
    """One finding with all its words, see :func:`judge`. ``service`` is empty for what concerns the host as such."""
    known = catalogue[found.rule]
    return {
        "rule": found.rule,
        "severity": found.severity or known["severity"],
        "host": host,
        "service": service,
        "where": found.where,
        "key": found.key,
        "text": found.text,
        "why": known["why"],
        "do": found.do or known["do"],
        "source": list(known.get("source", [])),
        "overrulable": known.get("overrulable", True),
        "accepted": found.rule in accept and known.get("overrulable", True),
    }


def refuses(findings: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a deploy has to stop."""
    return any(finding["severity"] == "error" and not finding["accepted"] for finding in findings)


def accepted(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The rules that a person overruled and that found something; the ledger keeps them."""
    return sorted({finding["rule"] for finding in findings if finding["accepted"]})


def parse_accept(text: str, catalogue: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The rules that ``-e accept=RULE,...`` names, and what is wrong with it, a line each."""
    names = [name for name in (part.strip() for part in text.split(",")) if name]
    wrong = [unknown("rule", name, catalogue).partition("; known:")[0] for name in names if name not in catalogue]
    fixed = [name for name in names if name in catalogue and not catalogue[name].get("overrulable", True)]
    wrong += [f"rule {name} cannot be overruled: {catalogue[name]['do']}" for name in fixed]
    return [name for name in names if name in catalogue and name not in fixed], wrong


def grouped(findings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Findings that differ in nothing but host and service as one, with ``hosts``: a fleet has each fault once."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for finding in findings:
        where = "host" if finding["where"] == f"host {finding['host']}" else finding["where"]
        same = (where, *(str(finding[key]) for key in ("rule", "severity", "key", "text", "do", "accepted")))
        group = groups.setdefault(same, {**finding, "where": where, "hosts": []})
        service = finding["service"]
        whose = finding["host"] if service in ("", "main") else f"{finding['host']} ({service})"
        if whose not in group["hosts"]:
            group["hosts"].append(whose)
    return sorted(groups.values(), key=lambda group: SEVERITIES.index(group["severity"]))
