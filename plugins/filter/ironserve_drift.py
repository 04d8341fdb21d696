# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Filter that says which packages releases are locked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import ansible.module_utils
from ansible.errors import AnsibleFilterError

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import lock


def locked_packages(releases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Version of each package by the id of the lock, for the locks of some releases."""
    folders = {str(release["lock"]["id"]): Path(release["lock"]["folder"]) for release in releases}
    try:
        locks = {lock_id: lock.load(folder) for lock_id, folder in folders.items()}
    except lock.LockError as error:
        raise AnsibleFilterError(str(error)) from error
    return {lock_id: found.packages for lock_id, found in locks.items()}


class FilterModule:
    """The filter by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Used by role serve."""
        return {"ironserve_locked_packages": locked_packages}
