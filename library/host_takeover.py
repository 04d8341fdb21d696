#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Stops and disables what else holds the port or the GPUs of a service."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_takeover
short_description: Stop and disable what else holds the port or the GPUs of a service
description:
  - Stops what owns the processes that hold the port or a GPU, and what would start it again. A unit is stopped and
    disabled with the sockets, timers and paths that start it; a container gets the restart policy C(no) and is stopped
    with its own grace; a bare process is sent SIGTERM by pid and start time, with its children and the script that runs
    it, and SIGKILL after O(grace_s).
  - Waits until port and GPUs are free and nothing comes back, and fails with who still holds them otherwise.
  - Refuses what belongs to Kubernetes, Slurm, the driver or another service of Ironserve's, what the host needs, and
    that through which it is connected. M(host_preflight) says so before.
  - Called through the action plugin of the same name the module works in slices and a line is printed for each change.
    Called directly it waits by itself.
options:
  releases:
    description: The releases that are to have the ports and GPUs, as the action C(resolve_release) returns them.
    type: list
    elements: dict
    required: true
  cleanup:
    description:
      - What the site says of cleanups, as C(ironserve_cleanup) has it. Executables in C(protected_extra) are left
        alone, and what has a title of C(patterns) is an engine.
    type: dict
    default: {}
  grace_s:
    description: Seconds that a bare process has to end after SIGTERM.
    type: float
    default: 30
  timeout_s:
    description: Seconds after which waiting ends. Longer than the stop limit of any unit or container in the way.
    type: float
    default: 300
  slice_s:
    description: Seconds after which the module answers though it is not done. 0 waits for the end.
    type: float
    default: 0
  cursor:
    description: What the slice before returned as RV(slice).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Says what it would stop, touches nothing.
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Free the port and the GPUs of a service
  host_takeover:
    releases: ["{{ serve_release }}"]
"""

RETURN = r"""
actions:
  description: What was done, or would be in check mode, a line each.
  returned: always
  type: list
  elements: str
  sample: ["disable my-vllm.service", "stop my-vllm.service"]
undo:
  description: How to bring back what was stopped, a line each.
  returned: always
  type: list
  elements: str
  sample: ["systemctl enable --now my-vllm.service"]
holders:
  description: Whom it found, as M(host_preflight) describes them.
  returned: always
  type: list
  elements: dict
slice:
  description: State of work done in slices, for the action plugin.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve.takeover import Takeover, TakeoverError


def main() -> None:
    """Parse the arguments and take over."""
    module = AnsibleModule(
        argument_spec={
            "releases": {"type": "list", "elements": "dict", "required": True},
            "cleanup": {"type": "dict", "default": {}},
            "grace_s": {"type": "float", "default": 30},
            "timeout_s": {"type": "float", "default": 300},
            "slice_s": {"type": "float", "default": 0},
            "cursor": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    want = module.params
    takeover = Takeover(want["releases"], module.check_mode, want["grace_s"], want["timeout_s"], want["cleanup"])
    try:
        answer = takeover.run(want["cursor"], want["slice_s"])
    except TakeoverError as error:
        module.fail_json(msg=f"takeover: {error}", changed=bool(error.facts["actions"]), **error.facts)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
