"""Flags of a server: what a profile may give as a value, and the words of the command that it becomes.

A value becomes one of three things, and these are what a release holds: ``True`` for the bare flag, a text for a flag
with one word, a list of texts for a flag with several. JSON is always one word in one form (compact, keys sorted), so
that a mapping, JSON in quotes and a templated text of the same content are the same release.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Union

from .problems import kind_of, unknown
from .systemd import can_carry

Words = Union[bool, str, list[str]]
Complain = Callable[[str, str], None]
"""Takes where inside the value something is wrong (``[0]``, ``.method``, or nothing) and what."""

REFERENCE = re.compile(r"\$\{([^}]*)\}")

NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""What argparse takes for a value although it begins with a dash; anything else there is another flag for it."""

MEANT_AS_JSON = re.compile(r"""[{\[]\s*\\*["']|\{\s*\w[\w-]*\s*:\s""")
"""How text begins that is Python's or a shell's idea of JSON: a quote in the first place, or a bare key. Other text may
begin with a bracket and be none: a chat template, an IPv6 address."""

CONTROL = re.compile("[\x7f-\x9f]")

NOT_WHOLE = '"{}": a size is a whole value of a flag, ${{name}} and nothing beside it'
WRITE_IT_SO = "write it as a YAML mapping, or as JSON in single quotes"


def words(value: Any, sizes: Mapping[str, Any], owner: str, complain: Complain) -> Words | None:
    """What a value of a profile becomes; None for a flag that is left out, or with the reason in ``complain``.

    Args:
        value: as YAML gave it.
        sizes: what a whole value ``${name}`` stands for.
        owner: whose sizes these are, for messages.
        complain: receives what is wrong.
    """
    if value is None or value is False or not isinstance(value, (str, int, float, list, Mapping)):
        return None  # what is no value at all was said by the schema
    return _words(filled(_parsed(value, complain), sizes, owner, "", complain), complain)


def check_value(value: Any, complain: Complain) -> None:
    """Complain of all that is wrong with a value as it is written, whatever its sizes stand for."""
    if isinstance(value, (str, int, float, list, Mapping)):
        _words(_parsed(value, complain), complain)


def filled(value: Any, sizes: Mapping[str, Any], owner: str, where: str, complain: Complain) -> Any:
    """The value with each ``${size}`` in it replaced; a number stays a number."""
    if isinstance(value, Mapping):
        return {key: filled(item, sizes, owner, f"{where}.{key}", complain) for key, item in value.items()}
    if isinstance(value, list):
        return type(value)(filled(item, sizes, owner, f"{where}[{n}]", complain) for n, item in enumerate(value))
    if not isinstance(value, str) or "${" not in value:
        return value
    reference = REFERENCE.fullmatch(value)
    if not reference:
        complain(where, NOT_WHOLE.format(value))
    elif reference[1] not in sizes:
        complain(where, unknown(f"size of {owner}", reference[1], sizes))
    else:
        return _from_json(sizes[reference[1]], where, complain)
    return value


def named_in(value: Any) -> Iterator[str]:
    """The names of the sizes that a value refers to."""
    value = _parsed(value, lambda _where, _text: None)
    if isinstance(value, (Mapping, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from named_in(item)
    elif isinstance(value, str):
        yield from REFERENCE.findall(value)


def in_order(flags: Mapping[str, Any], order: tuple[str, ...]) -> list[str]:
    """The names of the flags: those in ``order`` first, then the others by name."""
    rank = {name: place for place, name in enumerate(order)}
    return sorted(flags, key=lambda flag: (rank.get(flag, len(order)), flag))


def argv_of(name: str, value: Any) -> list[str]:
    """One flag as arguments. A word that begins with a dash is joined to its flag, else it would be one itself."""
    if value is True:
        return [f"--{name}"]
    if isinstance(value, list):
        return [f"--{name}", *value]
    return [f"--{name}={value}"] if str(value).startswith("-") else [f"--{name}", str(value)]


def argv(flags: Mapping[str, Any], order: tuple[str, ...]) -> list[str]:
    """Flags as a list of arguments."""
    return [word for name in in_order(flags, order) for word in argv_of(name, flags[name])]


class _Json(list):  # type: ignore[type-arg]
    """A JSON array that came as text: one word, where a YAML list is several."""


def _words(value: Any, complain: Complain) -> Words:
    if isinstance(value, bool):
        return value
    if isinstance(value, _Json) or not isinstance(value, list):
        return _word(value, "", complain)
    if not value:
        complain("", "is an empty list: write true for the bare flag, null to remove an inherited one")
    several = []
    for number, item in enumerate(value):
        word = _word(item, f"[{number}]", complain)
        if word.startswith("-") and not NEGATIVE_NUMBER.fullmatch(word):
            complain(f"[{number}]", f'"{word}" begins with a dash, so the server would take it for a flag')
        several.append(word)
    return several


def _word(value: Any, where: str, complain: Complain) -> str:
    """One word of the command. A float is Python's shortest text that reads back as the same number."""
    if isinstance(value, (Mapping, _Json)):
        return _compact(value, where, complain)
    if isinstance(value, (bool, list)) or not isinstance(value, (str, int, float)):
        complain(where, f"{kind_of(value)} is no item of a list: write text, a number or a mapping")
    text = str(value)
    if not can_carry(text):
        complain(where, "holds a control character, which no unit can bring to a server")
    return text


def _compact(value: Any, where: str, complain: Complain) -> str:
    """JSON as one word: double quotes, no blanks, sorted keys, characters as they are."""
    before = list(_not_json(value, where))
    for place, text in before:
        complain(place, text)
    if before:
        return ""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    # JSON itself escapes only the first 32 of them.
    text = CONTROL.sub(lambda character: f"\\u{ord(character[0]):04x}", text)
    return _word(text, where, complain)


def _not_json(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Where a value of YAML holds what JSON cannot say."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                yield where, f"a key of JSON is text, and this one is {kind_of(key)}: write it in quotes"
            yield from _not_json(item, f"{where}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _not_json(item, f"{where}[{number}]")
    elif isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        yield where, f"{value} is no number of JSON"
    elif value is not None and not isinstance(value, (str, int, float)):
        yield where, f"{kind_of(value)} has no form in JSON: write it in quotes"


def _parsed(value: Any, complain: Complain) -> Any:
    """The value with JSON that came as text read: the value itself, or an item of a list. Text inside JSON is text."""
    if isinstance(value, list):
        return [_from_json(item, f"[{number}]", complain) for number, item in enumerate(value)]
    return _from_json(value, "", complain)


def _from_json(value: Any, where: str, complain: Complain) -> Any:
    """What a JSON object or array given as text says; any other value as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text[:1] in ("'", '"') and text[1:].lstrip()[:1] in ("{", "[") and text[-1] == text[0]:
        complain(where, f"{value}: the quotes would be part of the value, since no shell takes them off; {WRITE_IT_SO}")
    elif text[:1] in ("{", "["):
        try:
            found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            if not MEANT_AS_JSON.match(text) and not _is_python(text):
                return value
            complain(where, f"{value}: looks like JSON and is none ({error}); {WRITE_IT_SO}")
        else:
            return _Json(found) if isinstance(found, list) else found
    else:
        return value
    return ""  # enough was said of it


def _is_python(text: str) -> bool:
    """Whether this is what Python prints for a mapping or a list, which templates without to_json leave behind."""
    try:
        return isinstance(ast.literal_eval(text), (dict, list, set))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f'"{name}" is given twice')
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
