"""The servers that a router is meant to send requests to: kept in a file beside it, since it forgets them itself.

The file is what is meant; what the router has follows it: its launcher's keeper adds what the router lacks. Whoever
adds to the router does so under the lock of the file, and waits until it is listed: so nothing is pending when one is
taken out.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from .. import host
from ..schema import share
from ..systemd import UNIT_DIRECTORY
from . import KINDS
from .driver import RefusedError, Router, RouterError, SilentError, Worker, router_of

SETTINGS = Path("/etc/ironserve/router/router.json")
ADMITTED = Path("/var/lib/ironserve/router/admitted.json")
UNIT = "ironserve-router.service"
LAUNCHER = Path("/opt/ironserve/runtime/launch_router.py")
FILES = (SETTINGS, LAUNCHER, Path(UNIT_DIRECTORY) / UNIT)
"""What the router's process was made from."""
READ = Path("/run/ironserve-router/read.json")
"""Digests of those files as the process read them. Theirs, not an age: a clock may jump."""

POLL_S = 0.2
ASK_S = 5.0
"""The longest that one question may take. The router answers in milliseconds, or is not well."""
LISTED_S = 5.0
"""How long the lock is held until the router lists what it was asked to add: longer than it tries (its launcher)."""


def parse_admitted(text: str | None) -> list[str]:
    """The URLs in the file; none where there is no file, or nothing of use in it."""
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return [str(url) for url in found] if isinstance(found, list) else []


def admit(admitted: Sequence[str], url: str) -> list[str]:
    """The list with ``url``: at its end where it is new, so that those that serve keep their place."""
    return [*admitted] if url in admitted else [*admitted, url]


def forget(admitted: Sequence[str], url: str) -> list[str]:
    """The list without ``url``."""
    return [known for known in admitted if known != url]


def is_outdated(read: Mapping[str, Any], files: Mapping[str, str]) -> bool:
    """Whether the router runs with another state of its files than they have now; both are digests by path."""
    return any(read.get(path) != digest for path, digest in files.items())


def outdated(files: Sequence[Path] = FILES, record: Path = READ) -> bool:
    """Whether the router of this host, if it runs, read its files before they were written."""
    if host.show(UNIT).get("MainPID", "0") == "0":
        return False
    now = {str(file): hashlib.sha256(host.read_bytes(file) or b"").hexdigest() for file in files}
    try:
        read = json.loads(host.read_foreign(record) or "{}")
    except ValueError:
        read = {}
    return is_outdated(read if isinstance(read, dict) else {}, now)


class Pool:
    """The workers of the router on this host.

    Args:
        kind: kind of router.
        timeout_s: how long to wait for what is asked for, a router that does not answer included.
        check: whether to change nothing and to say what would be changed.
        settings: router.json.
        admitted: the file with the URLs of those that are meant.
        clock: monotonic seconds.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        kind: str,
        timeout_s: float,
        check: bool = False,
        settings: Path = SETTINGS,
        admitted: Path = ADMITTED,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.driver, self.check, self.file, self.clock, self.sleep = KINDS[kind], check, admitted, clock, sleep
        self.timeout_s, self.until = timeout_s, clock() + timeout_s
        self.router = self._router(kind, settings)

    def listed(self, at_least: int | str = 0, whole: bool = False) -> dict[str, Any]:
        """What it has, once ``at_least`` of them are healthy and, with ``whole``, it lists all that are admitted.

        Or what it has when the time is up.
        """

        def is_so(found: list[Worker]) -> bool:
            meant = self._meant()
            lacking = set(meant) - {one.url for one in found} if whole else ()
            return sum(one.healthy for one in found) >= share(at_least, len(meant), up=True) and not lacking

        return self._answer(self._wait(is_so), False, "")

    def admitted(self, url: str) -> dict[str, Any]:
        """Have it send requests to ``url``; done when it calls that server healthy."""
        changed = self._keep(lambda known: admit(known, url))
        found = self._workers()
        known = _of(found, url)
        if self.check:
            would = changed or not known
            return self._answer(found, would, f"would admit {url}" if would else "")
        if not known:
            self._add(url)
            found, changed = self._wait(lambda now: _is_healthy(now, url)), True
        elif not known.healthy:
            found = self._wait(lambda now: _is_healthy(now, url))
        if not _is_healthy(found, url):
            state = "calls it unhealthy" if _of(found, url) else "does not list it"
            raise RouterError(
                f"{url} gets no requests: after {self.timeout_s:.0f} s the router {state}. Can its host reach that "
                f"address (ironserve_address, a firewall), and does the server have the router's key? "
                f"{self._see()}. It stays meant to be admitted; the same command tries again."
            )
        return self._answer(found, changed, f"admitted {url}" if changed else "")

    def drained(self, url: str, at_least: str = "0") -> dict[str, Any]:
        """Have it send nothing new to ``url``; done when it does not list that server any more.

        ``at_least``: so many others have to be admitted and healthy, or this one stays: a number, or a percentage of
        those that are admitted. One that gets no requests may always go.
        """

        def leave(known: Sequence[str]) -> list[str]:
            if share(at_least, len(known), up=True) > 0:
                self._enough(known, url, share(at_least, len(known), up=True))
            return forget(known, url)

        if share(at_least, 100, up=True) > 0:
            self._workers()  # a router that is silent is waited for here, not while others wait for the lock
        changed = self._keep(leave)
        found = self._workers()
        known = _of(found, url)
        changed = changed or known is not None
        if self.check:
            return self._answer(found, changed, f"would take out {url}" if changed else "")
        if known is not None:
            self._repeat(lambda: self.driver.remove(self.router, known, ASK_S))
            found = self._wait(lambda now: _of(now, url) is None)
        if _of(found, url):
            raise RouterError(
                f"{url} still gets requests: {self.timeout_s:.0f} s after it was asked to forget it the router lists "
                f"it. {self._see()}"
            )
        return self._answer(found, changed, f"took out {url}" if changed else "")

    def _enough(self, known: Sequence[str], url: str, least: int) -> None:
        """Refuse to let ``url`` go where fewer than ``least`` others serve."""
        serve = {one.url for one in self._workers() if one.healthy} & set(known)
        others = len(serve - {url})
        if url in serve and others < least:
            raise RouterError(
                f"{url} stays: without it {others} of {len(known)} admitted servers are healthy, and at least {least} "
                "have to be (ironserve_min_serving). Nothing was changed. Admit others first, or say less"
            )

    def _add(self, url: str) -> None:
        """Have the router add one, while it is meant to have it; when this ends, it has it, or has given up."""
        with self._alone():
            if url not in self._meant() or _of(self._workers(), url):
                return
            self._repeat(lambda: self.driver.add(self.router, url, ASK_S))
            self._wait(lambda now: _of(now, url) is not None, self.clock() + LISTED_S)

    def _meant(self) -> list[str]:
        return parse_admitted(host.read_text(self.file))

    def _router(self, kind: str, settings: Path) -> Router:
        text = host.read_text(settings)
        if text is None:
            raise RouterError(f"there is no router on this host ({settings}): ansible-playbook playbooks/router.yml")
        try:
            said = json.loads(text)
            found = router_of(said)
        except (ValueError, KeyError, TypeError) as error:
            raise RouterError(f"{settings} cannot be read ({error}): ansible-playbook playbooks/router.yml") from error
        if said.get("kind", kind) != kind:
            raise RouterError(f"the router of this host is of the kind {said['kind']}, and not {kind}")
        return found

    def _keep(self, change: Callable[[Sequence[str]], list[str]]) -> bool:
        """Change the file, alone: many hosts come and go at the same time. Whether it is another one now."""
        with self._alone():
            before = self._meant()
            after = change(before)
            if after != before and not self.check:
                host.write_text(self.file, json.dumps(after, indent=1) + "\n")
            return after != before

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if self.check:
            yield
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.with_name(".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)  # for as long as a question to the router takes: nobody waits long
            yield

    def _workers(self) -> list[Worker]:
        found: list[Worker] = self._repeat(lambda: self.driver.workers(self.router, ASK_S))
        return found

    def _wait(self, is_so: Callable[[list[Worker]], bool], until: float | None = None) -> list[Worker]:
        """Look until it is so, or the time is up."""
        while True:
            found = self._workers()
            if is_so(found) or self.clock() >= (self.until if until is None else until):
                return found
            self.sleep(POLL_S)

    def _repeat(self, ask: Callable[[], Any]) -> Any:
        """Ask a router that may be starting until it answers, or the time is up."""
        while True:
            try:
                return ask()
            except SilentError as error:
                if self.clock() >= self.until:
                    why = f"{error} (asked for {self.timeout_s:.0f} s)"
                    raise RouterError(f"the router does not work: {why}. {self._see()}") from error
                self.sleep(POLL_S)
            except RefusedError as error:
                hint = "the key in router.json is not the one that it runs with: ansible-playbook playbooks/router.yml"
                key = any(f" {status}:" in str(error) for status in self.driver.API_KEY_STATUSES)
                raise RouterError(f"the router refuses: {error}. {hint if key else self._see()}") from error

    def _see(self) -> str:
        state = host.show(UNIT).get("ActiveState", "unknown")
        return f"{UNIT} is {state}; see: journalctl -u {UNIT}"

    def _answer(self, found: Sequence[Worker], changed: bool, msg: str) -> dict[str, Any]:
        counted = self.driver.outcomes(self.router, ASK_S)
        return {
            "workers": [
                {"url": one.url, "healthy": one.healthy, "load": one.load, "model": one.model} for one in found
            ],
            "admitted": self._meant(),
            "errors": {url: {"ok": count.ok, "failed": count.failed} for url, count in counted.items()},
            "changed": changed,
            "msg": msg or f"{sum(one.healthy for one in found)} of {len(found)} workers healthy",
        }


def _of(workers: Sequence[Worker], url: str) -> Worker | None:
    return next((one for one in workers if one.url == url), None)


def _is_healthy(workers: Sequence[Worker], url: str) -> bool:
    worker = _of(workers, url)
    return worker is not None and worker.healthy
