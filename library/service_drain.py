#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Waits until a server that gets no new requests has none left."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_drain
short_description: Wait until a server has no request left
description:
  - For a server that every router was told to leave alone, M(router_worker) with C(state=drained). It waits until the
    engine itself says in two looks that no request runs or waits. Where connections are open then, the numbers have to
    stay so for 6 s, since engines count a request only after its first step.
  - vLLM says so in its metrics, SGLang at C(/v1/loads) (0.5.23) or, with C(--enable-metrics), in its metrics. Of an
    engine that says nothing the open connections to its port are counted.
  - Requests that are left after O(timeout_s) are no failure. What to do with them is the caller's to decide; usually
    the server is stopped, and they are cut.
  - Called through the action plugin of the same name it works in slices, and a line says how many are left.
options:
  service:
    description: Name of the service.
    type: str
    required: true
  timeout_s:
    description: How long to wait.
    type: float
    default: 300
  slice_s:
    description: Seconds after which the module answers with C(waiting). 0 waits for the end.
    type: float
    default: 0
  cursor:
    description: What the slice before returned as RV(slice).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Looks once and does not wait.
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Wait until what is in flight has ended
  service_drain:
    service: main
    timeout_s: 120
"""

RETURN = r"""
state:
  description:
    - C(drained), C(not_running), or C(timeout) with requests left.
    - C(unknown) where time was up and the engine does not tell its requests, so that only open connections are known.
    - C(waiting) at the end of a slice.
  returned: success
  type: str
running:
  description: Requests that the engine works on; -1 where it does not tell.
  returned: success
  type: int
waiting:
  description: Requests that wait for it; -1 where it does not tell.
  returned: success
  type: int
connections:
  description: Open connections to its port. Some may be idle.
  returned: success
  type: int
cut:
  description: Requests that are left when the time is up, or connections where the engine does not tell. Else 0.
  returned: success
  type: int
elapsed_s:
  description: How long it took.
  returned: success
  type: float
msg:
  description: The same in a line.
  returned: always
  type: str
slice:
  description: State of work done in slices, for the action plugin.
  returned: success
  type: dict
"""

import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve import systemd
from ansible.module_utils.ironserve.drain import Server


def main() -> None:
    """Parse the arguments and wait."""
    module = AnsibleModule(
        argument_spec={
            "service": {"type": "str", "required": True},
            "timeout_s": {"type": "float", "default": 300},
            "slice_s": {"type": "float", "default": 0},
            "cursor": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    want = module.params
    name = want["service"]
    if not systemd.SERVICE_NAME.fullmatch(name):
        module.fail_json(msg=f'"{name}" {systemd.SERVICE_NAME_RULE}')
    try:
        answer = Server(name, module.check_mode).drained(want["timeout_s"], want["cursor"], want["slice_s"])
    except (OSError, RuntimeError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        module.fail_json(msg=f"service {name} cannot be looked at: {type(error).__name__}: {error}")
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
