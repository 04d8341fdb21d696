#!/usr/bin/env python3
"""Find what ends processes by a pattern, or whole groups of them: it hits others, and the shell that asks for it.

usage: tools/lint_kill.py [FILE...]

Without files, all that git tracks is read, but for pages that may speak of it: docs/, README.md, CHANGELOG.md. A line
that has to stay says why in itself: ``lint_kill: the group is the test's own``. Prints ``file:line: why``; exits with 1
when there is any.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = re.compile(r"docs/.*\.md|(.*/)?README\.md|CHANGELOG\.md")
OWN = {"tools/lint_kill.py", "tests/unit/tools/test_lint_kill.py"}
REASON = re.compile(r"lint_kill: \w")

FORBIDDEN = {
    "ends processes by a pattern, which its own shell matches too": re.compile(r"\bpkill\b"),
    "ends every process of a name, whoever's it is": re.compile(r"\bkillall5?\b"),
    # Its flag may be another item of a list, on one of the next lines.
    "ends whoever has a file or port open, monitors too": re.compile(
        r"\bfuser\b(?:[^\n]*\n){0,3}?[^\n]*?[\s\"'](?:-\w*k|--kill\b)"
    ),
    "ends processes that were found by a pattern": re.compile(
        r"\bkill\b[^\n]*(?:\$\(|`)[^\n]*\b(?:pgrep|pidof)\b|\b(?:pgrep|pidof)\b[^\n]*\|[^\n]*\bkill\b"
    ),
    "ends a process group: whatever is in it by now, or has its number": re.compile(r"\bkillpg\b"),
}
ADVICE = "end one process by its pid and start time (ironserve.processes.send), or a unit by systemctl"


def main() -> None:
    """Read the files, say what is wrong."""
    named = [Path(word).resolve().relative_to(ROOT).as_posix() for word in sys.argv[1:]]
    found = [
        f"{name}:{line}: {why}" for name in filter(is_product, named or tracked()) for line, why in check(read(name))
    ]
    if found:
        raise SystemExit("\n".join([*found, f"instead: {ADVICE}"]))


def tracked() -> list[str]:
    """All files that git tracks, from the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name]


def is_product(name: str) -> bool:
    """Whether the rule applies to a file: pages speak of such commands, and this file and its test spell them."""
    return name not in OWN and not PAGES.fullmatch(name)


def read(name: str) -> str:
    """The text of a file; of one that is deleted and not yet committed, and of a link to a folder, there is none."""
    path = ROOT / name
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def check(text: str) -> Iterator[tuple[int, str]]:
    """Lines, counted from 1, with what is wrong with each: something forbidden, or a reason that excuses nothing."""
    lines = text.split("\n")
    found = sorted(
        {(text.count("\n", 0, match.start()), why) for why, what in FORBIDDEN.items() for match in what.finditer(text)}
    )
    excused = {number for number, line in enumerate(lines) if REASON.search(line)}
    yield from ((number + 1, why) for number, why in found if number not in excused)
    yield from ((number + 1, "gives a reason for nothing") for number in sorted(excused - {at for at, _ in found}))


if __name__ == "__main__":
    main()
