# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filters that say which hosts serve models, and which services an inventory names for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import ansible.module_utils
from ansible.errors import AnsibleFilterError

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import wish


def service_names(services: Any, service: str = "") -> list[str]:
    """The names in ``ironserve_services``, or of them the one that is meant."""
    try:
        return wish.names({"ironserve_services": services}, service)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


def servers(groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The hosts that serve models: all but those of the group ``router``, in the order of the inventory.

    A router on a machine that also serves is a second name of it: an inventory host with the same ``ansible_host``.
    """
    routers = set(groups.get("router", ()))
    return [host for host in groups["all"] if host not in routers]


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """For ``hosts:``, and for playbooks that need no release."""
        return {"ironserve_servers": servers, "ironserve_service_names": service_names}
