"""Long work done in slices: a module works for a few seconds, answers, and is called again with its own cursor.

No ssh session is held open for minutes, a lost connection costs one slice, and the person at the terminal sees a line
for every change. A module takes the arguments ``slice_s`` and ``cursor`` and answers with ``slice``:

    {"done": bool, "phase": str, "progress": str, "expected_s": float or None, "cursor": {...}}

and with ``elapsed_s`` where the work began at another time than the first call.

``cursor`` is opaque to all but the module. The action plugin of the module's name calls :func:`drive`.
"""

from __future__ import annotations

import time
from typing import Any, Callable

Result = dict[str, Any]

SLICE_S = 15.0
"""The longest a module may work before it answers. Under any usual ServerAlive limit."""

SAY_EVERY_S = 15.0
"""A line at least this often while nothing changes."""

RECONNECT_TIMEOUT_S = 120.0
"""A host that reboots is back within this; a longer outage is the operator's to judge."""


def duration(seconds: float) -> str:
    """Seconds as a person writes them: ``9s``, ``2m10s``, ``1h05m``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def line(host: str, subject: str, phase: str, progress: str, elapsed_s: float, expected_s: float | None) -> str:
    """One line for the terminal: ``[h1] main: loading weights 37/96, 2m10s (last time 3m02s in all)``."""
    what = f"{phase} {progress}".strip() or "working"
    expected = f" (last time {duration(expected_s)} in all)" if expected_s else ""
    return f"[{host}] {subject}: {what}, {duration(elapsed_s)}{expected}"


def drive(
    execute: Callable[[dict[str, Any]], Result],
    say: Callable[[str], None],
    host: str,
    subject: str,
    lost: type[BaseException] | tuple[type[BaseException], ...],
    reconnect_timeout_s: float = RECONNECT_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Call ``execute(cursor)`` until its result is done or failed; return that result.

    The caller has reached the host before: what fails here is a connection that was lost, and worth waiting for.

    Args:
        execute: runs the module for one slice with the cursor of the slice before (``{}`` at first).
        say: prints one line.
        host: name of the host, for the line.
        subject: what is worked on, for the line.
        lost: exceptions that mean a lost connection, after which the slice is tried again.
        reconnect_timeout_s: how long a connection may stay lost; then the exception goes on to the caller.
        clock: monotonic seconds.
        sleep: waits that many seconds.
    """
    began = said_at = clock()
    said: tuple[str, str] | None = None
    lost_since: float | None = None
    cursor: dict[str, Any] = {}
    while True:
        try:
            result = execute(cursor)
        except lost as error:
            now = clock()
            if lost_since is None:
                lost_since = now
                say(f"[{host}] {subject}: connection lost ({error}); trying for {duration(reconnect_timeout_s)}")
            if now - lost_since >= reconnect_timeout_s:
                raise
            sleep(2.0)
            continue
        if lost_since is not None:
            say(f"[{host}] {subject}: connected again after {duration(clock() - lost_since)}")
            lost_since = None
        state = result.get("slice")
        if result.get("failed") or state is None or state["done"]:
            return result
        cursor = state["cursor"]
        now = clock()
        here = (state["phase"], state["progress"])
        if here != said or now - said_at >= SAY_EVERY_S:
            elapsed_s = state.get("elapsed_s", now - began)
            say(line(host, subject, state["phase"], state["progress"], elapsed_s, state.get("expected_s")))
            said, said_at = here, now
