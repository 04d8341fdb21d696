# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Refuses a run with a misspelt or empty variable, before anything is touched, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: check_run
short_description: Refuse a run with a misspelt or empty variable
description:
  - Runs on the controller, once, and sends nothing to any host.
  - Fails where a variable that C(-e) gives is nearly one of those of a run, such as C(relase) for C(release), or empty.
    Ansible would ignore the one, and take the other as if nobody had given it.
  - What resolves releases checks that too (M(resolve_release)).
options:
  site:
    description: Check the host's own variables, too, for a host that no release is resolved for.
    type: bool
    default: false
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Refuse a misspelt variable
  check_run:
  run_once: true
"""

RETURN = r"""
problems:
  description: Everything that is wrong, a line each.
  returned: always
  type: list
  elements: str
"""

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.site import PREFIX, check_extra_variables, check_said, numbers_as_such


class ActionModule(ActionBase):
    """Look at the extra variables."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("site",))
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Fail with all that is wrong in one message."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        problems = Problems()
        check_extra_variables(load_extra_vars(self._loader), problems)
        if self._task.args.get("site"):
            said = task_vars or {}
            named = {name: self._templar.template(said[name]) for name in said if name.startswith(PREFIX)}
            check_said(numbers_as_such(named), f"host {said['inventory_hostname']}", problems)
        answer = {**result, "changed": False, "problems": problems.found}
        if problems:
            return {**answer, "failed": True, "msg": problems.report("nothing was touched")}
        return answer
