# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filter that turns what hosts registered of ``engine_prune`` into rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable


def prune_rows(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for all that goes from a host and one for the sum; a host that has nothing to remove is a row too."""
    rows: list[dict[str, Any]] = []
    for host in hosts:
        done = hostvars[host].get("prune_done") or {}
        removed = done.get("removed")
        if removed is None:
            rows.append({"host": host, "mib": None, "path": "", "why": str(done.get("msg", "not asked"))})
            continue
        rows += [{"host": host, **item} for item in removed]
        kept = f"{len(done['kept'])} kept"
        rows.append({"host": host, "mib": done["freed_mib"], "path": "all", "why": kept, "kept": done["kept"]})
    return rows


class FilterModule:
    """The filter by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Rows of playbooks/prune.yml."""
        return {"ironserve_prune_rows": prune_rows}
