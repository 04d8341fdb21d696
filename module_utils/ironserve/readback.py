"""Reading back what really runs: a drop-in or a limit of the machine may have changed what a unit asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

UNLIMITED = "unlimited"

KERNEL_NAMES = {"Max locked memory": "memlock", "Max open files": "nofile"}

LIMIT_LINE = re.compile(r"^(?P<name>\S+(?: \S+)*?) {2,}(?P<soft>\S+) +(?P<hard>\S+)", re.MULTILINE)


def limits(proc_limits: str) -> dict[str, tuple[str, str]]:
    """Soft and hard limit by name, from the text of /proc/PID/limits."""
    return {line["name"]: (line["soft"], line["hard"]) for line in LIMIT_LINE.finditer(proc_limits)}


def words(zero_ended: str) -> list[str]:
    """The items of /proc/PID/cmdline or environ, each ended by a NUL."""
    return zero_ended.split("\0")[:-1] if zero_ended.endswith("\0") else zero_ended.split("\0")


def differences(
    release: Mapping[str, Any], env: Mapping[str, str], cmdline: str, environ: str, proc_limits: str
) -> list[str]:
    """In what a process differs from what it was asked to be, a line each.

    Args:
        release: the release, for its ``argv`` and ``limits``.
        env: the variables that it must have.
        cmdline: text of /proc/PID/cmdline; an empty one, as any empty text here, is not judged.
        environ: text of /proc/PID/environ.
        proc_limits: text of /proc/PID/limits.
    """
    found = []
    argv, runs = list(release["argv"]), words(cmdline)
    # A script is run by its interpreter: what is in front of the argv's own words is the kernel's doing. An engine that
    # gave itself a title (VLLM::APIServer_0) has no command line any more.
    if cmdline and "::" not in runs[0] and runs[-len(argv) :] != argv:
        found.append(f"its command line is not the release's: {' '.join(runs)[:300]}")
    has = dict(item.split("=", 1) for item in words(environ) if "=" in item)
    for name, value in env.items():
        if environ.strip("\0") and has.get(name) != value:
            found.append(f"variable {name} is {has.get(name, 'not set')!r}, and the release has {value!r}")
    for name, (soft, hard) in limits(proc_limits).items():
        wanted = str(release["limits"].get(KERNEL_NAMES.get(name), "")).replace("infinity", UNLIMITED)
        if wanted and (_less(soft, wanted) or _less(hard, wanted)):
            found.append(f"{name.lower()}: {soft} (hard {hard}), and the unit asks for {wanted}")
    return found


def _less(limit: str, wanted: str) -> bool:
    if limit == UNLIMITED:
        return False
    return wanted == UNLIMITED or int(limit) < int(wanted)
