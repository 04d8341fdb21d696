# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filter that says which services an inventory names for a host."""

from __future__ import annotations

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


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """For playbooks that need no release."""
        return {"ironserve_service_names": service_names}
