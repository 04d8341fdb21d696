"""The launcher: ``launch SERVICE PROGRAM ARGUMENT...`` is what a unit executes.

It leaves the readiness helper in the unit's cgroup and becomes the engine: pid and command line are the engine's.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from . import host, notify, probe
from .engines import ENGINES
from .readiness import Helper

RESTART_HELPER_AFTER_S = 1.0
CRASHES_IN_A_ROW = 3
LIVED_S = 30.0
"""A helper that lived this long did not die of what killed the one before."""

CANNOT_EXECUTE = 203
"""The status by which systemd, too, says that a program cannot be executed."""


def main(argv: Sequence[str]) -> None:
    """Start the helper, execute the engine. Returns never."""
    service, command = argv[1], list(argv[2:])
    release = json.loads((host.STATE / service / "active" / "release.json").read_text())
    pid, invocation = os.getpid(), os.environ.get("INVOCATION_ID", "")
    variable = ENGINES[release["engine"]].API_KEY_VARIABLE
    key, watchdog_s = os.environ.get(variable, ""), notify.watchdog_s()
    log = host.RUNTIME / service / "helper.log"
    log_offset = host.size(host.LOGS / f"{service}.log")
    probe.tidy(service, invocation)

    def give_up() -> None:
        last = (host.read_text(log) or "").strip().splitlines()[-1:]
        detail = f"the readiness helper cannot run, so nobody can say whether the server generates: {' '.join(last)}"
        host.write_text(probe.result_path(service, invocation), json.dumps({"outcome": "no_helper", "detail": detail}))

    detach(lambda: Helper(release, pid, invocation, key, watchdog_s, log_offset).run(), give_up, log)
    try:
        os.execve(command[0], command, engine_environment(os.environ))  # noqa: S606  a shell would change pid and argv
    except OSError as error:
        print(f"ironserve: {command[0]} cannot be executed: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(CANNOT_EXECUTE)


def engine_environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment that the engine gets: the unit's, without what is between systemd, the helper and us."""
    for_helper = {engine.API_KEY_VARIABLE for engine in ENGINES.values() if not engine.READS_API_KEY_VARIABLE}
    hidden = {*notify.OWN_VARIABLES, *for_helper}
    return {name: value for name, value in own.items() if name not in hidden}


def detach(run: Callable[[], Any], give_up: Callable[[], Any], log: os.PathLike[str]) -> None:
    """Run ``run`` under a supervisor that is no child of this process, so that the engine never has to reap it."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDONLY)
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o640)
            for descriptor, target in ((null, 0), (out, 1), (out, 2)):
                os.dup2(descriptor, target)
            supervise(run, give_up)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def supervise(run: Callable[[], Any], give_up: Callable[[], Any]) -> None:
    """Run ``run`` in a child until it ends by itself. One that is killed is replaced: no engine dies for its helper.

    One that cannot live at all is given up after a few times, with a word about it.
    """
    crashes = 0
    while crashes < CRASHES_IN_A_ROW:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            try:
                run()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1] == 0:
            return
        crashes = 1 if time.monotonic() - began > LIVED_S else crashes + 1
        time.sleep(RESTART_HELPER_AFTER_S)
    give_up()
