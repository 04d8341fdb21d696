"""What a person reads at the terminal: whose message it is, and commands that can be copied. Pure; controller only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

COMMAND = re.compile(r"\bansible-playbook (?=playbooks/|deploy\.yml)")
"""A command that a message suggests: always ours, and written without an inventory."""


def inventories(given: Sequence[str] | None, default: Sequence[str], folder: str = "") -> list[str]:
    """The inventories that a person gave with ``-i``, as they would be typed in ``folder``; none for the default.

    Args:
        given: what the command line holds: absolute paths, or lists of hosts.
        default: what it holds where nobody gave one.
        folder: where the person is; the current folder where it is empty.
    """
    if not given or list(given) == list(default):
        return []
    here = Path(folder) if folder else Path.cwd()
    return [str(Path(one).relative_to(here)) if Path(one).is_relative_to(here) else one for one in map(str, given)]


def with_inventory(text: str, given: Sequence[str]) -> str:
    """The text, with ``-i`` in each command that it suggests: without, the command would mean another fleet."""
    words = "".join(f"-i {shlex.quote(one)} " for one in given)
    return COMMAND.sub(lambda command: command[0] + words, text)


def without_host(text: str, host: str) -> str:
    """The text without the host's name at the beginning of lines: it stands before the message, for one or for many."""
    return re.sub(rf"^(?:host )?{re.escape(host)}: ", "", text, flags=re.MULTILINE)


def told(hosts: Sequence[str], word: str, text: str) -> str:
    """``[h1, h2] FAILED: ...``, further lines indented; without hosts it is the whole run's."""
    whose = f"[{', '.join(hosts)}] " if hosts else ""
    first, *more = text.strip("\n").split("\n")
    return "\n".join([f"{whose}{word}: {first}", *(f"    {line}" if line else "" for line in more)])


def holds(text: str, part: str) -> bool:
    """Whether a text says what another one does, however both are broken into lines."""
    return " ".join(part.split()) in " ".join(text.split())
