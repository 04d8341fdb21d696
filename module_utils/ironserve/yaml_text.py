"""YAML as people write it, with what PyYAML lets pass: a key that is given twice, and where each key stands.

Used on the controller only: hosts have no yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from .problems import Problems


class _Loader(yaml.SafeLoader):
    """YAML whose plain numbers are those of JSON, so that a mapping means the same when it is written as JSON.

    YAML 1.1 takes 1e-5 for text, 010 for eight, 12:30 for 750 and 2026-01-02 for a date; here the first is a number and
    the others are the text that stands there.
    """


_NUMBERS = {
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+",
    "tag:yaml.org,2002:float": r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
}
_ELSEWHERE = {*_NUMBERS, "tag:yaml.org,2002:timestamp"}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _ELSEWHERE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), list("-+.0123456789"))


class _Fast(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same by libyaml, where PyYAML has it: ten times as fast, but it does not say as well what is wrong."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def read(text: str, file: str, problems: Problems) -> Any:
    """What the text says; nothing, with the reason in ``problems``, when it is no YAML."""
    return _document(text, file, problems, lambda loader, node: loader.construct_document(node))


def pairs(text: str, file: str, problems: Problems) -> list[tuple[int, str, Any]]:
    """The top-level keys of a YAML mapping with their lines and values."""

    def construct(loader: _Loader, node: yaml.Node) -> list[tuple[int, str, Any]] | None:
        if not isinstance(node, yaml.MappingNode):
            return None
        return [(_line(key), str(key.value), loader.construct_object(value, deep=True)) for key, value in node.value]

    before = len(problems.found)
    found = _document(text, file, problems, construct)
    if found is None and len(problems.found) == before:
        problems.add(file, "", "is not a mapping of keys to values")
    return found or []


def _document(text: str, file: str, problems: Problems, construct: Any) -> Any:
    found = Problems()
    document = _read(_Fast, text, file, found, construct)
    if found:
        return _read(_Loader, text, file, problems, construct)
    return document


def _read(kind: Any, text: str, file: str, problems: Problems, construct: Any) -> Any:
    try:
        loader = kind(text)
        node = loader.get_single_node()
        if node is None:
            return None
        for line, key in _twice(node, "", ()):
            problems.add(f"{file}:{line}", key, "is given twice")
        return construct(loader, node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a number of too many digits
        mark = getattr(error, "problem_mark", None)
        problems.add(f"{file}:{mark.line + 1}" if mark else file, "", f"not YAML: {getattr(error, 'problem', error)}")
    return None


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _twice(node: yaml.Node, path: str, above: tuple[yaml.Node, ...]) -> Iterator[tuple[int, str]]:
    """Line and path of each key that its mapping has already."""
    if node in above:
        raise yaml.MarkedYAMLError(problem="an anchor inside of itself", problem_mark=node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _twice(item, f"{path}[{number}]", (*above, node))
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            name = f"{path}.{key.value}" if path else str(key.value)
            if (key.tag, str(key.value)) in seen:
                yield _line(key), name
            seen.add((key.tag, str(key.value)))
            yield from _twice(value, name, (*above, node))
