#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Removes engine environments and staged releases that nothing on the host needs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_prune
short_description: Remove engine environments and releases that nothing needs
description:
  - An environment stays while C(active) or C(last-known-good) of any service leads to it, while a unit of Ironserve's
    names it, while a process runs from it, and for an hour after it was built or a release that needs it was staged.
    Of all others the O(keep) newest stay.
  - A staged release stays while C(active) or C(last-known-good) leads to it and for an hour after it was staged.
    Of the others of a service the O(keep) newest stay whose environment stays.
  - What was left over goes too, after an hour where somebody may still look at it. That is broken environments that
    were built again, builds that came to nothing, interrupted deploys and removals, older versions of uv.
  - What has no manifest of Ironserve's is never touched.
  - Everything is renamed out of its place before its files are removed, while no build begins or ends.
options:
  root:
    description: Folder of all environments.
    type: path
    default: /opt/ironserve/engines
  keep:
    description: Number of environments that stay beside those that are needed, and of releases for each service.
    type: int
    default: 2
attributes:
  check_mode:
    support: full
    description: Returns the plan that it would have carried out, touches nothing.
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Keep what is needed, and the newest one beside it
  engine_prune:
    keep: 1
"""

RETURN = r"""
removed:
  description: What went, or in check mode would go.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: Where it lay.
      type: str
    mib:
      description: Its size.
      type: float
    why:
      description: Why it is not needed.
      type: str
  sample:
    - path: /opt/ironserve/engines/vllm-0.31.0-cuda-0a1b2c3d4e5f
      mib: 9874.2
      why: no release that is kept needs it
kept:
  description: What stays. The keys are those of RV(removed), and C(why) says what needs it.
  returned: success
  type: list
  elements: dict
freed_mib:
  description: Size of all that went.
  returned: success
  type: float
  sample: 9874.2
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve.prune import Pruner


def main() -> None:
    """Parse the arguments, let the plan be made, carry it out unless checking."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/ironserve/engines"},
            "keep": {"type": "int", "default": 2},
        },
        supports_check_mode=True,
    )
    keep = module.params["keep"]
    if keep < 0:
        module.fail_json(msg=f"keep is {keep}: say how many stay beside those that are needed, 0 or more")
    pruner = Pruner(Path(module.params["root"]))
    try:
        plan = (pruner.plan if module.check_mode else pruner.carry_out)(keep, time.time())
    except OSError as error:
        module.fail_json(msg=f"{error}. What is needed was not touched; run it again for the rest.")
    module.exit_json(**plan.result())


if __name__ == "__main__":
    main()
