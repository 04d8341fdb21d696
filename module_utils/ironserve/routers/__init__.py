"""What Ironserve knows of each kind of router: one file a kind, the same functions in each.

    workers(router, timeout_s) -> list of Worker       those that it has now
    add(router, url, timeout_s)                        have it call this one, too; again is no error
    remove(router, worker, timeout_s)                  have it send nothing new there; what is in flight ends whole
    outcomes(router, timeout_s) -> {url: Outcomes}     answers by worker since its start
    API_KEY_STATUSES                                   HTTP statuses that mean a wrong key

``workers``, ``add`` and ``remove`` raise :class:`RefusedError` for an answer that asking again does not change, and
:class:`SilentError` for none, or for one that may be another in a second. ``pool.py`` knows when to call what.
"""

from __future__ import annotations

from types import ModuleType

from . import sglang
from .driver import Outcomes, RefusedError, Router, RouterError, SilentError, Worker, worker_url

KINDS: dict[str, ModuleType] = {"sglang": sglang}

__all__ = ["KINDS", "Outcomes", "RefusedError", "Router", "RouterError", "SilentError", "Worker", "worker_url"]
