#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Looks at all services of a host, those that an inventory names and those that none does."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_services
short_description: Look at all inference services of a host
description:
  - Says of each service what runs, since when, which release it is, and whether it says that it is healthy.
  - Finds services that are on the host and were not asked for, by their units and their folders under
    C(/var/lib/ironserve), such as those that an inventory named once.
  - Changes nothing. All servers are asked for their health at the same time.
options:
  services:
    description: Names of the services that the inventory gives to this host.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Look at every service of the host
  host_services:
    services: [chat, embed]
"""

RETURN = r"""
services:
  description: The services that were asked for, in that order.
  returned: always
  type: list
  elements: dict
  contains: &service
    service:
      description: Name of the service.
      type: str
    unit:
      description: Its unit.
      type: str
    status:
      description: C(absent), C(starting), C(ready), C(unhealthy), C(stopped), C(failed) or C(down).
      type: str
    cause:
      description: >-
        Why the last launch failed, what the helper says of a server that generates nothing, or why a server that passed
        the gate is starting again.
      type: str
    profile:
      description: Profile of the active release.
      type: str
    declared_profile:
      description: Profile that the inventory declared when that release was resolved.
      type: str
    engine:
      description: Engine of the active release.
      type: str
    release_id:
      description: The active release.
      type: str
    render_id:
      description: What that release is on this host.
      type: str
    last_known_good_id:
      description: Folder of the newest release that passed the gate here.
      type: str
    address:
      description: Address that the server listens on.
      type: str
    port:
      description: TCP port of the server.
      type: int
    model:
      description: Name under which the model is served.
      type: str
    gpus:
      description: UUIDs of the GPUs that the service may use; none means all.
      type: list
      elements: str
    secrets:
      description: Names of its secrets, never more.
      type: list
      elements: str
    main_pid:
      description: Pid of the engine's main process, 0 where none runs.
      type: int
    since:
      description: When the unit became active, as systemd writes it.
      type: str
    health:
      description: HTTP status of the health endpoint; 0 when there was no answer in 5 s.
      type: int
    enabled:
      description: Whether the service starts at boot.
      type: bool
    restarts:
      description: How often systemd started the service again by itself.
      type: int
unknown:
  description: Services of Ironserve's on this host that were not asked for.
  returned: always
  type: list
  elements: dict
  contains: *service
lease:
  description: Who has the host, for a run or for maintenance, as M(host_lease) returns it; empty, nobody.
  returned: always
  type: dict
"""

import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve import lease
from ansible.module_utils.ironserve.inspection import look


def main() -> None:
    """Look."""
    module = AnsibleModule(
        argument_spec={"services": {"type": "list", "elements": "str", "required": True}}, supports_check_mode=True
    )
    try:
        seen = look(module.params["services"])
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        module.fail_json(msg=f"the services of this host cannot be looked at: {error}")
    module.exit_json(changed=False, lease=lease.read(), **seen)


if __name__ == "__main__":
    main()
