"""What an engine's own parser says of a release's flags: asked once on the host, then read from its cache.

``parser_probe.py`` asks, inside the engine's environment. Its answers depend on nothing but the lock and the words of
the flags, so they are kept below :data:`CACHE` by lock id: ``<probe>-parser.json`` is the description of the parser,
``<probe>-<digest>.json`` what it refuses of one set of flags; ``<probe>`` changes with the probe itself.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import pwd
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import host, parser_probe
from .flags import argv_of
from .problems import closest, typo_of

CACHE = Path("/opt/ironserve/flags")
"""Beside the environments, and root's as they are."""
HOME = "/var/cache/ironserve"

TIMEOUT_S = 120.0
"""SGLang 0.5.23 and vLLM 0.32.0 answer in 11 to 30 s on two cores, most of it imports."""

LARGEST = 8 << 20
"""Bytes of a file of the cache; the description of SGLang 0.5.23 has 0.2 MiB."""

CLOSE_FLAG = 0.7
"""How alike (difflib's ratio) a flag has to be to a known one: two edits in eight letters."""
SHORTEST = 8
"""A shorter name of a variable is too easily like another one: TMPDIR and TEMP_DIR are two."""

NCCL = re.compile(r"NCCL_")
"""Names that have a check of their own."""

Groups = list[tuple[str, list[str]]]
Answer = dict[str, Any]


class ProbeError(Exception):
    """The parser could not be asked; the text is for an operator."""


def groups(flags: Mapping[str, Any]) -> Groups:
    """The words of each flag, by its name; vLLM's ``--config.key`` flags of one JSON value by the name of the first."""
    grouped: dict[str, tuple[str, list[str]]] = {}
    for name in sorted(flags):
        grouped.setdefault(name.partition(".")[0], (name, []))[1].extend(argv_of(name, flags[name]))
    return list(grouped.values())


def digest(flags: Mapping[str, Any]) -> str:
    """Twelve hex digits over the words of the flags."""
    return _digest(json.dumps(groups(flags)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def answer(description: Mapping[str, Any], faults: Iterable[Mapping[str, str]], release: Mapping[str, Any]) -> Answer:
    """What the parser says of a release.

    Returns ``state`` (``known``), ``reason`` (empty), ``engine_version``, ``unknown[{flag suggestion}]``,
    ``abbreviated[{flag meant[]}]``, ``deprecated[{flag text}]``, ``without_effect[flag]``, ``invalid[{flag text}]``
    and ``unknown_variables[{name suggestion}]``. Flags are written as a profile does, without dashes in front; a fault
    of several flags together has an empty ``flag``. A suggestion may be empty.
    """
    declared = {string: option for option in description["options"] for string in option["strings"]}
    long_names = [string[2:] for string in declared if string.startswith("--")]
    found: dict[str, list[Any]] = {key: [] for key in ("unknown", "abbreviated", "deprecated", "without_effect")}
    named = set()
    for flag in release["flags"]:
        name = flag.partition(".")[0] if description["engine"] == "vllm" else flag
        option = declared.get(f"--{name}")
        if option is None:
            named.add(name)
            meant = [known for known in long_names if known.startswith(name)] if description["abbreviates"] else []
            entry = {"meant": meant} if meant else {"suggestion": closest(name, long_names, CLOSE_FLAG)}
            found["abbreviated" if meant else "unknown"].append({"flag": flag, **entry})
            continue
        if option["deprecated"]:
            found["deprecated"].append({"flag": flag, "text": option["text"]})
        if option["dest"] in description["unread"]:
            found["without_effect"].append(flag)
    return {
        "state": "known",
        "reason": "",
        "engine_version": description["engine_version"],
        **found,
        "invalid": [dict(fault) for fault in faults if fault["flag"].partition(".")[0] not in named],
        "unknown_variables": unknown_variables(description, release["env"]),
    }


def unknown_variables(description: Mapping[str, Any], env: Iterable[str]) -> list[dict[str, str]]:
    """Variables that nothing reads, each ``name`` and ``suggestion``.

    Those with the engine's prefix are known or not. Of others, which any library may read, only one that is a known
    name with a typo or two is told, and not where the two differ in their digits only.
    """
    known = set(description["variables"])
    own = parser_probe.OWN_VARIABLES[description["engine"]]
    found = []
    for name in env:
        if name in known or NCCL.match(name):
            continue
        if own.fullmatch(name):
            found.append({"name": name, "suggestion": closest(name, known, CLOSE_FLAG)})
            continue
        near = typo_of(name, known) if len(name) >= SHORTEST else ""
        if near and re.sub(r"\d+", "0", name) != re.sub(r"\d+", "0", near):
            found.append({"name": name, "suggestion": near})
    return found


def no_answer(state: str, reason: str) -> Answer:
    """The answer where the parser was not asked: ``unasked``, ``pending``, or ``failed`` where it gave none."""
    lists = ("unknown", "abbreviated", "deprecated", "without_effect", "invalid", "unknown_variables")
    return {"state": state, "reason": reason, "engine_version": "", **{key: [] for key in lists}}


def cached(release: Mapping[str, Any], cache: Path = CACHE) -> Answer:
    """The answer from the cache: reads two files, runs and writes nothing.

    Where they are not there it is ``unasked``, or ``pending`` without an environment whose parser could be asked.
    """
    folder = cache / release["lock"]["id"]
    try:
        description, faults = _load(folder / _name("parser")), _load(folder / _name(digest(release["flags"])))
    except FileNotFoundError:
        if interpreter(release).exists():
            return no_answer("unasked", "its parser was not asked yet")
        return no_answer("pending", "its environment is not on the host yet")
    except (OSError, ValueError) as error:
        return no_answer("failed", f"the cache {folder} cannot be read, remove it: {error}")
    return answer(description, faults, release)


def interpreter(release: Mapping[str, Any]) -> Path:
    """The Python of the release's environment."""
    return Path(release["environment"]) / "bin" / "python3"


def ask(
    releases: Sequence[Mapping[str, Any]], user: str, timeout_s: float = TIMEOUT_S, cache: Path = CACHE
) -> dict[str, Answer]:
    """The answer for each service: from the cache, else from the parser, which is then asked once for each lock.

    Args:
        releases: of different services.
        user: whom the engine runs as.
        timeout_s: seconds that one question may take.
        cache: where answers are kept.
    """
    answers = {release["service"]: cached(release, cache) for release in releases}
    waiting: dict[str, list[Mapping[str, Any]]] = {}
    for release in releases:
        if answers[release["service"]]["state"] == "unasked":
            waiting.setdefault(release["lock"]["id"], []).append(release)
    for lock_id, several in waiting.items():
        try:
            _fill(cache, lock_id, several, user, timeout_s)
            told = {release["service"]: cached(release, cache) for release in several}
        except (ProbeError, OSError) as error:
            told = {release["service"]: no_answer("failed", str(error)) for release in several}
        answers.update(told)
    return answers


def _fill(cache: Path, lock_id: str, releases: Sequence[Mapping[str, Any]], user: str, timeout_s: float) -> None:
    """Ask the parser of a lock and keep what it says, each file whole; what other versions of the probe said goes."""
    folder = cache / lock_id
    asked = {digest(release["flags"]): groups(release["flags"]) for release in releases}
    parser = folder / _name("parser")
    described = parser.exists()
    request = {"engine": releases[0]["engine"], "describe": not described, "asked": asked}
    told = probe(interpreter(releases[0]), request, user, timeout_s)
    if not isinstance(told.get("faults"), dict) or not (described or isinstance(told.get("description"), dict)):
        raise ProbeError(f"{interpreter(releases[0])} answered something else than it was asked")
    for old in folder.glob("*.json"):
        if not old.name.startswith(_probe_id()):
            old.unlink(missing_ok=True)
    kept = {
        folder / _name(key): told["faults"].get(key, []) for key in asked
    }  # names of files are ours, whatever it says
    if not described:
        kept[parser] = told["description"]
    for file, content in kept.items():
        host.write_text(file, json.dumps(content, separators=(",", ":")))


def unit_argv(python: Path, user: str, timeout_s: float) -> list[str]:
    """The command that runs the probe, its source on stdin: as the service user, in a unit of its own.

    systemd ends all of it in time. It has no network, no GPU and nothing to write to but the user's own caches, and it
    gives way to the server that runs meanwhile.
    """
    seconds = f"{timeout_s:.0f}"
    limits = [
        f"User={user}", f"TimeoutStartSec={seconds}", f"RuntimeMaxSec={seconds}", "TimeoutStopSec=5", "Nice=19",
        "LimitCORE=0", "NoNewPrivileges=yes", "PrivateNetwork=yes", "PrivateDevices=yes", "PrivateTmp=yes",
        "ProtectSystem=strict", "CacheDirectory=ironserve", f"WorkingDirectory={HOME}",
    ]  # fmt: skip
    variables = [
        f"PATH={python.parent}:/usr/local/bin:/usr/bin:/bin", f"HOME={HOME}", "LC_ALL=C.UTF-8", "HF_HUB_OFFLINE=1",
        "TRANSFORMERS_OFFLINE=1", "CUDA_VISIBLE_DEVICES=", "PYTHONDONTWRITEBYTECODE=1",
    ]  # fmt: skip
    return [
        "systemd-run", "--wait", "--pipe", "--collect", "--description=Ironserve asks an engine for its flags",
        *(f"--property={limit}" for limit in limits), *(f"--setenv={variable}" for variable in variables),
        str(python), "-I", "-",
    ]  # fmt: skip


def probe(python: Path, request: Mapping[str, Any], user: str, timeout_s: float) -> dict[str, Any]:
    """What the probe answers. Raises ProbeError with the end of what it said instead."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise ProbeError(f"there is no user {user} on this host yet") from None
    source = f"{inspect.getsource(parser_probe)}\nmain({json.dumps(json.dumps(request))})\n"
    try:
        done = host.run(unit_argv(python, user, timeout_s), timeout_s + 30, source)
    except subprocess.TimeoutExpired:
        raise ProbeError(f"systemd did not end the question to {python} after {timeout_s:.0f} s") from None
    if "result: timeout" in done.err:
        raise ProbeError(f"{python} did not answer in {timeout_s:.0f} s")
    try:
        told: dict[str, Any] = dict(json.loads(done.out[:LARGEST]))
    except (ValueError, TypeError):
        said = [line.strip() for line in done.err.splitlines() if line.strip() and not _of_systemd(line)]
        ended = "; ".join(said[-2:]) or f"it ended with status {done.rc} and said nothing"
        raise ProbeError(f"{python} could not make the engine's parser: {ended}") from None
    return told


def _of_systemd(line: str) -> bool:
    return line.startswith(("Running as unit:", "Finished with result:", "Main processes terminated with:",
                            "Service runtime:", "CPU time consumed:", "Memory peak:", "Memory swap peak:"))  # fmt: skip


@functools.cache
def _probe_id() -> str:
    return _digest(inspect.getsource(parser_probe))


def _name(what: str) -> str:
    return f"{_probe_id()}-{what}.json"


def _load(file: Path) -> Any:
    return json.loads(file.read_text())
