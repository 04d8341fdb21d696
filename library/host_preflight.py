#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Judges whether a host can take a release, and changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_preflight
short_description: Judge whether a host can take a release
description:
  - Looks at port, model folder, systemd and privileges, and reports everything that is wrong in one failure.
  - Changes nothing. What holds the port is named and left alone.
options:
  releases:
    description: The releases that the host is to take, as the action C(resolve_release) returns them.
    type: list
    elements: dict
    required: true
  user:
    description: User that the engine runs as.
    type: str
    default: ironserve
  services:
    description: Every service that the inventory gives to this host. Empty says nothing about it.
    type: list
    elements: str
    default: []
  inventory_name:
    description: The host's name in the inventory, for commands in messages.
    type: str
    default: HOST
  environment_problems:
    description: What stands in the way of the engine environment, as M(engine_environment) in check mode returns it.
    type: list
    elements: str
    default: []
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
- name: Judge the host before anything on it is touched
  host_preflight:
    releases: "{{ resolved.releases }}"
    services: "{{ resolved.services | list }}"
    inventory_name: "{{ inventory_hostname }}"
    environment_problems: "{{ environment.problems }}"
"""

RETURN = r"""
problems:
  description: Everything that is wrong, a line each.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve.preflight import check_host
from ansible.module_utils.ironserve.problems import Problems


def main() -> None:
    """Check, and fail with all problems in one message."""
    module = AnsibleModule(
        argument_spec={
            "releases": {"type": "list", "elements": "dict", "required": True},
            "user": {"type": "str", "default": "ironserve"},
            "services": {"type": "list", "elements": "str", "default": []},
            "inventory_name": {"type": "str", "default": "HOST"},
            "environment_problems": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    problems = Problems()
    for problem in module.params["environment_problems"]:
        problems.add("environment", "", problem)
    releases = module.params["releases"]
    want = module.params
    check_host(releases, want["user"], want["services"], want["inventory_name"], problems)
    if problems:
        named = ", ".join(f"{release['release_id']} as {release['service']}" for release in releases)
        headline = f"nothing was touched: this host cannot take release {named}"
        module.fail_json(msg=problems.report(headline), problems=problems.found)
    module.exit_json(changed=False, problems=[])


if __name__ == "__main__":
    main()
