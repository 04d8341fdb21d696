"""systemd's own rules: quoting for unit files, what ``systemctl show`` and ``systemd-analyze verify`` print."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping

UNIT_DIRECTORY = "/etc/systemd/system"
GATE_DROP_IN = "/run/systemd/system/{unit}.d/ironserve-gate.conf"
GATE_DROP_IN_TEXT = """\
# While the gate watches, an exit is a failure and not a reason to start again.
[Service]
Restart=no
# Without it systemd forgets how the engine ended as soon as it exits with status 0.
RemainAfterExit=yes
"""

SIGNAL_NAMES = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM",
}  # fmt: skip


# Statuses that systemd itself gives a process that it could not start (systemd.exec(5)).
SYSTEMD_STATUSES = {
    200: "CHDIR, its working folder cannot be entered", 203: "EXEC, the program cannot be executed",
    205: "LIMITS, a resource limit cannot be set", 209: "STDOUT, its log cannot be opened",
    216: "GROUP, no such group", 217: "USER, no such user", 226: "NAMESPACE, its file system view cannot be made",
    239: "CACHE_DIRECTORY, its cache folder cannot be made",
}  # fmt: skip


SERVICE_NAME = re.compile(r"(?!environment-|router$)[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?")
"""Names of services: they become names of units, files and folders. Engine environments are built by units that are
named ironserve-environment-LOCK, and a router's unit is ironserve-router."""

SERVICE_NAME_RULE = (
    'is no name for a service: lower-case letters, digits and dashes inside, 48 at most, not "environment-" in front, '
    'not "router"'
)


def unit_name(service: str) -> str:
    """The unit of a service: ``ironserve-main.service``."""
    return f"ironserve-{service}.service"


def service_of(unit: str) -> str | None:
    """The service of a unit, None where the unit is none of a service's."""
    match = re.fullmatch(r"ironserve-(.+)\.service", unit)
    return match[1] if match and SERVICE_NAME.fullmatch(match[1]) else None


def can_carry(value: str) -> bool:
    """Whether a unit can bring this text to a process: line breaks and tabs it can, other control characters not.

    systemd refuses them in a variable, and nothing gets a NUL or half a surrogate pair into a command line.
    """
    return all(char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs") for char in value)


def text(value: str) -> str:
    """A plain value of a directive such as Description=: ``%`` doubled, so that no specifier is seen in it."""
    return value.replace("%", "%%").replace("\n", " ")


def quoted(value: str) -> str:
    """One quoted item, such as an assignment of Environment=: ``%`` doubled; ``$`` has no meaning there."""
    escaped = (
        value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    )
    return f'"{escaped.replace("%", "%%")}"'


def exec_line(argv: Iterable[str]) -> str:
    """Argv for ExecStart=: one quoted item a word, ``%`` and ``$`` doubled; a word of plain characters stays bare."""
    plain = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@")
    return " ".join(word if word and set(word) <= plain else quoted(word).replace("$", "$$") for word in argv)


def parse_show(output: str) -> dict[str, str]:
    """``systemctl show`` prints KEY=VALUE a line."""
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


def verify_complaints(stderr: str, unit: str) -> list[str]:
    """The lines of ``systemd-analyze verify`` that are about ``unit``.

    Its exit status says nothing: an unknown key exits 0 with a line here, and other units' faults appear here too.
    """
    return [line.strip() for line in stderr.splitlines() if unit in line]


def exit_text(show: Mapping[str, str]) -> str | None:
    """How the main process ended, ``exited with status 2`` or ``was killed by SIGKILL``; None while it runs."""
    code, status = show.get("ExecMainCode", "0"), show.get("ExecMainStatus", "0")
    if code == "1" and int(status) in SYSTEMD_STATUSES:
        return f"could not be started by systemd ({status}/{SYSTEMD_STATUSES[int(status)]})"
    if code == "1":
        return f"exited with status {status}"
    if show.get("Result") == "watchdog":  # the helper stopped feeding it, see readiness.py
        return "was killed by systemd's watchdog: requests waited and it gave no token"
    if code in ("2", "3"):
        name = SIGNAL_NAMES.get(int(status), f"signal {status}")
        return f"was killed by {name}"
    return None
