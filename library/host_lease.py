#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Takes a host for one run or for maintenance, and gives it back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_lease
short_description: Take a host for one run or for maintenance, and give it back
description:
  - A lease is a file on the host, C(/var/lib/ironserve/lease.json), that says who changes it at the moment. Another run
    is refused, with who has the host, since when and until when.
  - It expires by the host's clock. Taking one's own again renews it. A maintenance does not expire. Whoever takes a
    host for maintenance again joins it, and whoever releases it ends it.
  - In a playbook the action plugin of the same name is called. It says who the run is, and takes a lease over at once
    where it was a run of the same controller whose process is gone.
options:
  state:
    description: Have the lease, or give it back. Somebody else's is never given back.
    type: str
    choices: [taken, released]
    default: taken
  purpose:
    description: What for. Only C(maintenance) outlives the run.
    type: str
    choices: [deploy, maintenance]
    default: deploy
  ttl_s:
    description: Seconds after which the lease of a run that did not end expires.
    type: float
    default: 7200
  force:
    description: Take the host from whoever has it.
    type: bool
    default: false
  reason:
    description: Why there is a maintenance, for others to read.
    type: str
    default: ""
  inventory_name:
    description: The host's name in the inventory, for commands in messages.
    type: str
    default: HOST
  holder:
    description: Who the run is, its C(token) at least. The action plugin says it.
    type: dict
    default: {}
  replaces:
    description: Token of a lease whose holder is gone. The action plugin says it.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Says what would become of the lease, touches nothing.
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Have the host for this run
  host_lease:
    ttl_s: 7200
    inventory_name: "{{ inventory_hostname }}"

- name: Give it back
  host_lease:
    state: released

- name: Have it for maintenance
  host_lease:
    purpose: maintenance
    reason: new driver
"""

RETURN = r"""
holder:
  description: >-
    Who has the host now, with C(purpose), C(user), C(controller), C(pid), C(command), C(reason), C(age_s) and
    C(left_s). Empty, nobody.
  returned: always
  type: dict
refused:
  description: Who has the host, where that is somebody else; the task fails then. Empty otherwise.
  returned: always
  type: dict
actions:
  description: What was done, or would be in check mode.
  returned: always
  type: list
  elements: str
  sample: [take the lease]
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve import lease


def main() -> None:
    """Decide with the file locked, write it unless checking, say who has the host."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["taken", "released"], "default": "taken"},
            "purpose": {"type": "str", "choices": list(lease.PURPOSES), "default": "deploy"},
            "ttl_s": {"type": "float", "default": 7200},
            "force": {"type": "bool", "default": False},
            "reason": {"type": "str", "default": ""},
            "inventory_name": {"type": "str", "default": "HOST"},
            "holder": {"type": "dict", "default": {}},
            "replaces": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    want, now = module.params, time.time()
    mine = {"token": "somebody", **want["holder"], "purpose": want["purpose"], "reason": want["reason"], "at": now}
    mine["expires_at"] = None if want["purpose"] == "maintenance" else now + want["ttl_s"]

    def decide(held: lease.Lease) -> lease.Step:
        if want["state"] == "released":
            return lease.release(held, mine["token"], want["purpose"])
        return lease.take(held, mine, now, want["replaces"], want["force"])

    try:
        step = lease.carry_out(decide, module.check_mode)
    except OSError as error:
        module.fail_json(msg=f"the lease of this host cannot be read or written: {error}", holder={}, refused={})
    answer = {
        "changed": step.changed,
        "holder": lease.standing(step.held, now),
        "refused": step.refused,
        "actions": [step.action] if step.action else [],
    }
    if step.refused:
        module.fail_json(msg=lease.refusal(step.refused, want["inventory_name"]), **answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
