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


class Turns:
    """In a roll: who is at work, and what became of those whose turn is over."""

    def __init__(self) -> None:
        self._at_work: list[str] = []
        self._over: dict[str, str] = {}

    def begin(self, host: str) -> None:
        """Its server may be changed from now on; of a host that is taken back it is the second turn."""
        self._over.pop(host, None)
        if host not in self._at_work:
            self._at_work.append(host)

    def end(self, host: str, verdict: str) -> None:
        """It is left as the verdict says."""
        if host in self._at_work:
            self._at_work.remove(host)
        self._over[host] = verdict

    def told(self) -> str:
        """``h3 was at work; h1: moved; h2: failed; no other host was touched``."""
        touched = {host: verdict for host, verdict in self._over.items() if verdict != "not reached"}
        parts = [f"{', '.join(self._at_work)} was at work"] if self._at_work else []
        for verdict in dict.fromkeys(touched.values()):
            parts.append(f"{', '.join(host for host, its in touched.items() if its == verdict)}: {verdict}")
        return "; ".join([*parts, "no other host was touched" if parts else "no host was touched"])
