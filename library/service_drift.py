#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Says what of a host's services is not as declared."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_drift
short_description: Say what of a host's inference services is not as declared
description:
  - Compares what runs with the releases that would be deployed now, flag by flag and variable by variable, of the ranks
    too; the unit's file, its drop-ins and what systemd has of them; and the packages of the engine environment, by name
    and version, with the lock. Whether files of a package were changed is not looked at.
  - Returns the versions of driver and kernel, which are judged on the controller.
  - One call looks at all services. It changes nothing, asks no server anything, and returns no secret.
options:
  wished:
    description:
      - For each service its C(release), as the action C(resolve_release) returns it, and the text of its C(unit).
    type: list
    elements: dict
    required: true
  packages:
    description: For each lock id the version of each package by its normal name.
    type: dict
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
- name: Say what is not as declared
  service_drift:
    wished:
      - release: "{{ resolved.releases[0] }}"
        unit: "{{ lookup('ansible.builtin.template', 'ironserve.service.j2') }}"
    packages: "{{ resolved.releases | ironserve_locked_packages }}"
"""

RETURN = r"""
services:
  description: The services, in the order of O(wished). A service that was never deployed has no drift.
  returned: success
  type: list
  elements: dict
  contains:
    service:
      description: Name of the service.
      type: str
    drift:
      description: What is not as declared; C(declared) and C(runs) are null where there is no such thing.
      type: list
      elements: dict
      sample: [{"kind": "flags", "key": "max-num-seqs", "declared": "16", "runs": "8"}]
    errors:
      description: What could not be read, a line each.
      type: list
      elements: str
driver:
  description: Version of the NVIDIA driver that is loaded, empty where there is none.
  returned: success
  type: str
  sample: "595.58.03"
kernel:
  description: Release of the kernel.
  returned: success
  type: str
  sample: 6.17.0-19-generic
"""

import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve.inspection import differences


def main() -> None:
    """Look."""
    module = AnsibleModule(
        argument_spec={
            "wished": {"type": "list", "elements": "dict", "required": True},
            "packages": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    try:
        seen = differences(module.params["wished"], module.params["packages"])
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        module.fail_json(msg=f"drift of this host cannot be told: {error}")
    module.exit_json(changed=False, **seen)


if __name__ == "__main__":
    main()
