"""sglang-router: how it is asked. It serves vLLM as it does SGLang. Seen in 0.3.2.

It lists a worker only once that answered, adds and removes in the background (202), and forgets all of them when it
restarts. Its ``load`` of a worker stays 0 with requests in flight, so that nothing is decided by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from .. import host
from .driver import Outcomes, RefusedError, Router, SilentError, Worker

API_KEY_STATUSES = (401, 403)

OUTCOME = re.compile(r"^smg_worker_cb_outcomes_total\{([^}]*)\}\s+([0-9.eE+]+)\s*$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse_workers(document: Mapping[str, Any]) -> list[Worker]:
    """The workers in what GET /workers answers."""
    found = []
    for entry in document.get("workers") or ():
        model = str(entry.get("model_id") or "")
        found.append(
            Worker(
                str(entry["url"]).rstrip("/"),
                bool(entry.get("is_healthy")),
                int(entry.get("load") or 0),
                "" if model == "unknown" else model,
                str(entry.get("id") or ""),
            )
        )
    return found


def parse_outcomes(exposition: str) -> dict[str, Outcomes]:
    """Answers by worker in the text of the router's metrics. Those of health checks are not among them."""
    found: dict[str, Outcomes] = {}
    for labels, count in OUTCOME.findall(exposition):
        said = dict(LABEL.findall(labels))
        url, before = said.get("worker", "").rstrip("/"), found.get(said.get("worker", "").rstrip("/"), Outcomes())
        if said.get("outcome") == "success":
            found[url] = before._replace(ok=before.ok + int(float(count)))
        elif said.get("outcome") == "failure":
            found[url] = before._replace(failed=before.failed + int(float(count)))
    return found


def workers(router: Router, timeout_s: float) -> list[Worker]:
    """Those that it has."""
    return parse_workers(_ask(router, "/workers", timeout_s).json())


def add(router: Router, url: str, timeout_s: float) -> None:
    """Have it call a worker; it waits for one that does not answer yet. The key is for what it asks there."""
    _ask(router, "/workers", timeout_s, {"url": url, **({"api_key": router.key} if router.key else {})})


def remove(router: Router, worker: Worker, timeout_s: float) -> None:
    """Have it forget a worker; one that it does not know any more is as good."""
    _ask(router, f"/workers/{quote(worker.id, safe='')}", timeout_s, method="DELETE", fine=(404,))


def outcomes(router: Router, timeout_s: float) -> dict[str, Outcomes]:
    """Answers by worker since the router's start; empty where its metrics cannot be read."""
    answer = host.get(f"{router.metrics_url}/metrics", timeout_s)
    return parse_outcomes(answer.text) if answer.status == 200 else {}


def _ask(
    router: Router,
    path: str,
    timeout_s: float,
    body: dict[str, Any] | None = None,
    method: str = "",
    fine: tuple[int, ...] = (),
) -> host.Answer:
    answer = host.get(f"{router.url}{path}", timeout_s, body, router.key, method)
    if 200 <= answer.status < 300 or answer.status in fine:
        return answer
    said = f"{router.url}{path} answers {answer.status}: {answer.text[:300].strip()}"
    if answer.status in API_KEY_STATUSES:
        raise RefusedError(said)
    if answer.status == 0:
        raise SilentError(f"{router.url} does not answer: {answer.text}")
    raise (RefusedError if 400 <= answer.status < 500 and answer.status not in (408, 429) else SilentError)(said)
