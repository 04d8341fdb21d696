#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Lists the servers behind the router of a host, admits one or takes one out."""

from __future__ import annotations

DOCUMENTATION = r"""
module: router_worker
short_description: Admit a server to the router of a host, or take it out
description:
  - Called on the router's own host, by C(delegate_to) in a play for the hosts that serve. Role C(router) installs it.
  - Which servers are meant is kept in a file beside the router, since it forgets them itself. A process that its
    launcher starts, the keeper, adds to the router those of the file that it lacks and that answer. Calls for many
    servers at the same time are fine.
  - Port and API key are read from the router's own settings.
options:
  kind:
    description: Kind of router.
    type: str
    choices: [sglang]
    default: sglang
  state:
    description:
      - V(admitted) has the router send requests to O(url), over its restarts too, and waits until it calls the server
        healthy.
      - V(drained) has it send nothing new there, and waits until it does not list the server any more. Requests in
        flight end whole; M(service_drain) waits for them.
      - V(listed) looks.
    type: str
    choices: [listed, admitted, drained]
    default: listed
  url:
    description: The server, as the router reaches it. Required unless O(state=listed).
    type: str
    default: ""
  at_least:
    description:
      - With O(state=listed), wait until so many are healthy. When they are not in time, that is no failure.
      - With O(state=drained), refuse to take out a server that gets requests when fewer than so many others would be
        left that are admitted and healthy; nothing is changed then. Looking and taking out are one step for all that
        ask at the same time.
      - A number, or a percentage of those that are admitted, rounded up, such as V(25%).
    type: str
    default: "0"
  all:
    description: With O(state=listed), wait until the router lists all that are admitted. When it does not in time, that
      is no failure.
    type: bool
    default: false
  timeout_s:
    description: How long to wait, for a router that does not answer too.
    type: float
    default: 60
attributes:
  check_mode:
    support: full
    description: Says what it would change, touches nothing.
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Take the server out of a router
  router_worker:
    state: drained
    url: http://10.0.0.7:8000
  delegate_to: r1

- name: Wait until seven of eight serve
  router_worker:
    at_least: 7
  delegate_to: r1
"""

RETURN = r"""
workers:
  description: Servers that the router has.
  returned: success
  type: list
  elements: dict
  sample: [{url: "http://10.0.0.7:8000", healthy: true, load: 0, model: ""}]
admitted:
  description: URLs of those that are meant to get requests, in the order in which they came.
  returned: always
  type: list
  elements: str
errors:
  description: By URL, requests answered (C(ok)) and not (C(failed)), counted since the router's start.
  returned: success
  type: dict
  sample: {"http://10.0.0.7:8000": {ok: 1000, failed: 0}}
outdated:
  description: Whether the router runs with older settings than its files have. Role C(router) restarts it then.
  returned: always
  type: bool
msg:
  description: What was done, or seen, in a line; or why it failed, and what to do.
  returned: always
  type: str
"""

import re
import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve import host
from ansible.module_utils.ironserve.routers import KINDS, RouterError
from ansible.module_utils.ironserve.routers.pool import ADMITTED, Pool, outdated, parse_admitted

SHARE = re.compile(r"[0-9]+%?")


def main() -> None:
    """Parse the arguments and ask the router."""
    module = AnsibleModule(
        argument_spec={
            "kind": {"type": "str", "choices": sorted(KINDS), "default": "sglang"},
            "state": {"type": "str", "choices": ["listed", "admitted", "drained"], "default": "listed"},
            "url": {"type": "str", "default": ""},
            "at_least": {"type": "str", "default": "0"},
            "all": {"type": "bool", "default": False},
            "timeout_s": {"type": "float", "default": 60},
        },
        required_if=[("state", "admitted", ("url",)), ("state", "drained", ("url",))],
        supports_check_mode=True,
    )
    want = module.params
    url = want["url"].rstrip("/")
    if not SHARE.fullmatch(want["at_least"]):
        module.fail_json(msg=f"at_least: expected a number or a percentage such as 25%, got: {want['at_least']!r}")
    try:
        pool = Pool(want["kind"], want["timeout_s"], module.check_mode)
        if want["state"] == "admitted":
            answer = pool.admitted(url)
        elif want["state"] == "drained":
            answer = pool.drained(url, want["at_least"])
        else:
            answer = pool.listed(want["at_least"], want["all"])
    except (RouterError, OSError, subprocess.TimeoutExpired) as error:
        module.fail_json(msg=str(error), outdated=outdated(), admitted=parse_admitted(host.read_text(ADMITTED)))
    module.exit_json(**answer, outdated=outdated())


if __name__ == "__main__":
    main()
