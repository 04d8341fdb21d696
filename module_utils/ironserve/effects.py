"""What took effect: the settings of a release against what every rank has and what the server says of itself. Pure.

A variable that a unit sets reaches the main process; what the ranks run with is the engine's to decide. SGLang 0.5.3
overwrites NCCL_CUMEM_ENABLE whatever is set, later versions set what nobody said. And a flag may be taken and changed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .holders import mask
from .readback import words
from .secrets import MASK
from .symptoms import RANK, SECRET_NAME

ADDED = ("NCCL_", "CUDA_", "VLLM_", "SGLANG_", "GLOO_", "PYTORCH_")
"""How variables begin that change what an engine does: those that a release does not say are listed."""

VISIBLE = "CUDA_VISIBLE_DEVICES"

LEFT_TO_THE_ENGINE = "auto"
"""The value of a flag that leaves the choice to the engine: that it runs with another one is what was asked for."""

SHOWN = 100
"""Characters of a value in a note."""

LINE_CHARS = 1 << 17
"""Of the line with all arguments: SGLang's has 19,000."""

# Text in quotes that nobody closed goes on to the end, so that each character is looked at once.
_PIECE = re.compile(r"""'(?:\\.|[^'\\])*\\?(?:'|\Z)|"(?:\\.|[^"\\])*\\?(?:"|\Z)|[(\[{]|[)\]}]|,|[^'"()\[\]{},]+""")
_NAME = re.compile(r"""\s*(?:(['"])(?P<key>\w+)\1\s*:|(?P<name>\w+)\s*=)(?P<value>.*)""", re.DOTALL)
_NUMBER = re.compile(r"(?P<digits>-?\d+(?:\.\d+)?)(?P<unit>[kmgtKMGT]?)")
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 1 << 10,
    "M": 1 << 20,
    "G": 1 << 30,
    "T": 1 << 40,
}
"""vLLM reads 32k as 32,000 and 32K as 32,768."""


class Process(NamedTuple):
    """A process of an engine; ``environ`` is None where it cannot be read."""

    name: str
    pid: int
    environ: Mapping[str, str] | None


def process(title: str, pid: int, environ: str) -> Process:
    """A process from its title and the text of /proc/PID/environ.

    Process titles may overwrite the environment, which then reads as nothing but NULs: that is no empty one.
    """
    label = RANK.search(title)
    items = dict(item.split("=", 1) for item in words(environ) if "=" in item)
    return Process(label[1] if label else title, pid, items or None)


def environment(env: Mapping[str, str], processes: Sequence[Process], secrets: Iterable[str] = ()) -> dict[str, Any]:
    """In what the environment of processes differs from what it has to be.

    ``ranks`` (how many), ``env`` (``NAME: {release, runs, ranks[]}`` where any differs; ``runs`` is None where it is
    not set, and names all values where they differ among themselves), ``added`` (``NAME: value`` of variables that
    matter and that the release does not say), ``unreadable`` (pids).

    Args:
        env: the variables of the release and of the host.
        processes: the ranks.
        secrets: names of variables that are the service's secrets, of which nothing is said.
    """
    seen = [(one.name, one.environ) for one in processes if one.environ is not None]
    differing: dict[str, Any] = {}
    for name, wanted in env.items():
        values = {rank: environ.get(name) for rank, environ in seen}
        unlike = {rank: value for rank, value in values.items() if not _has(name, wanted, value)}
        if unlike:
            said = _told(_masked(name, value) for value in unlike.values())
            differing[name] = {"release": _masked(name, wanted), "runs": said, "ranks": list(unlike)}
    known = {*env, *secrets}
    names = sorted({name for _, environ in seen for name in environ if name.startswith(ADDED)} - known)
    return {
        "ranks": len(processes),
        "env": differing,
        "added": {name: _told(_masked(name, environ.get(name)) for _, environ in seen) for name in names},
        "unreadable": [one.pid for one in processes if one.environ is None],
    }


def _has(name: str, wanted: str, value: str | None) -> bool:
    """Whether a rank has a variable as it should. Of the GPUs that a service may use a rank may see its own alone."""
    if name == VISIBLE and value:
        return set(value.split(",")) <= set(wanted.split(","))
    return value == wanted


def _masked(name: str, value: str | None) -> str | None:
    return MASK if value and SECRET_NAME.search(name) else value and mask(value)


def _told(values: Iterable[str | None]) -> str | None:
    """The values of several processes as one: ``0``, or ``0 | 1 | not set``; None where none has any."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) == 1:
        return distinct[0]
    return " | ".join("not set" if value is None else value for value in distinct)


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments in the text after ``ServerArgs(`` or ``{``: ``name=value, ...`` or ``'name': value, ...``.

    A value that is no literal of Python, such as that of an enumeration, is left out: nothing can be said of it.
    """
    found = {}
    for piece in _pieces(text):
        match = _NAME.fullmatch(piece)
        if match:
            try:
                found[match["key"] or match["name"]] = ast.literal_eval(match["value"].strip())
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
    return found


def _pieces(text: str) -> Iterator[str]:
    """What stands between the commas of a call or a mapping, up to its closing bracket."""
    whole, depth = "", 0
    for piece in _PIECE.findall(text):
        depth += (piece in "([{") - (piece in ")]}")
        if depth < 0:
            break
        if piece == "," and depth == 0:
            yield whole
            whole = ""
        else:
            whole += piece
    yield whole


def arguments_in(log: str, line: str) -> dict[str, Any]:
    """The arguments that the newest start in a log says, empty where it says none.

    Args:
        log: text of the log.
        line: regular expression of what stands before them, see ``ARGUMENTS_LINE`` in ``engines/``.
    """
    *_, last = (None, *re.finditer(line, log))
    return parse_arguments(log[last.end() : last.end() + LINE_CHARS].partition("\n")[0]) if last else {}


def arguments(
    flags: Mapping[str, Any], says: Mapping[str, Any], fields: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The flags with which a server runs otherwise than the release says.

    ``FLAG: {release, runs, engine_chose}``; ``engine_chose``: the release leaves it to the engine. What the server does
    not say, or says as None, is not judged: another flag may have taken the place of an old one.

    Args:
        flags: long names without dashes, values as a release has them.
        says: the server's arguments by the engine's own names.
        fields: the engine's names of flags that are not the flag's with underscores.
    """
    found = {}
    for flag, value in flags.items():
        name, wanted = flag, value
        if flag.startswith("no-") and value is True:
            name, wanted = flag[len("no-") :], False
        runs = says.get(fields.get(name, name.replace("-", "_")))
        if runs is not None and not same(wanted, runs):
            chose = str(value).lower() == LEFT_TO_THE_ENGINE
            found[flag] = {"release": value, "runs": runs, "engine_chose": chose}
    return found


def same(wanted: Any, runs: Any) -> bool:
    """Whether two ways to write a value mean the same: ``"8"`` and 8, ``true`` and True, JSON and a mapping.

    A mapping may have more keys than was wished: engines fill in what nobody said.
    """
    wanted, runs = _plain(wanted), _plain(runs)
    if isinstance(wanted, Mapping) and isinstance(runs, Mapping):
        return all(key in runs and same(value, runs[key]) for key, value in wanted.items())
    if isinstance(wanted, list) or isinstance(runs, list):
        several, others = (_items(*pair) for pair in ((wanted, runs), (runs, wanted)))
        return len(several) == len(others) and all(map(same, several, others))
    if wanted is True and not isinstance(runs, bool):  # a bare flag that stands for a value of its own
        return bool(runs)
    return bool(wanted == runs)


def _plain(value: Any) -> Any:
    """A value without the way in which it is written."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            return text
    number = _NUMBER.fullmatch(text)
    if number:
        return float(number["digits"]) * _UNITS[number["unit"]]
    return {"true": True, "false": False}.get(text.lower(), text.lower())


def _items(value: Any, other: Any) -> list[Any]:
    """A value as several, where the other one is a list: ``1,2,4`` stands for three."""
    if isinstance(value, list):
        return value
    return re.split(r"[,\s]+", value) if isinstance(value, str) and len(other) > 1 else [value]


def notes(found: Mapping[str, Any]) -> list[str]:
    """What a person should know of what took effect, a line each; nothing where all is as the release says.

    ``nccl.settings`` has for each variable ``taken``, ``not read`` or ``other: VALUE``. What NCCL did not read it may
    read later, or never need: that is no news.
    """
    ranks = found.get("ranks", 0)
    lines = []
    for name, row in found.get("env", {}).items():
        who = f"{len(row['ranks'])} of {ranks} ranks"
        if row["runs"] is None and len(row["ranks"]) == ranks:
            lines.append(f"variable {name}: the release says {_short(row['release'])}, and no rank has it")
        else:
            has = "do not have it" if row["runs"] is None else f"run with {_short(row['runs'])}"
            lines.append(f"variable {name}: the release says {_short(row['release'])}, and {who} {has}")
    for flag, row in found.get("argv", {}).items():
        if not row["engine_chose"]:
            said, runs = _short(row["release"]), _short(row["runs"])
            lines.append(f"flag --{flag}: the release says {said}, and the server runs with {runs}")
    for name, said in found.get("nccl", {}).get("settings", {}).items():
        if said.startswith("other: "):
            lines.append(f"variable {name}: NCCL itself took {said[len('other: ') :]}")
    if found.get("unreadable"):
        pids = ", ".join(map(str, found["unreadable"]))
        lines.append(f"the environment of {len(found['unreadable'])} of {ranks} ranks cannot be read back (pid {pids})")
    if found.get("error"):
        lines.append(f"what took effect could not be read back: {found['error']}")
    return lines


def _short(value: Any) -> str:
    text = "true" if value is True else " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
