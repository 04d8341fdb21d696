#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Judges whether a host can take a release, and changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_preflight
short_description: Judge whether a host can take a release
description:
  - Looks at port, GPUs, model folder, systemd and privileges, and reports everything that is wrong in one failure.
  - Changes nothing. What else holds the port or a GPU of a service is named with its owner and left alone.
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
  takeover:
    description:
      - Whether what holds a port or GPU may be stopped later by M(host_takeover). It is no problem then, unless it
        cannot be taken over.
    type: bool
    default: false
  services:
    description: Every service that the inventory gives to this host. Empty says nothing about it.
    type: list
    elements: str
    default: []
  inventory_name:
    description: The host's name in the inventory, for commands in messages.
    type: str
    default: HOST
  gpu_count:
    description: How many GPUs the host has. Where there are any, the NVIDIA driver is asked for them.
    type: int
    default: 0
  cleanup:
    description: What the site says of cleanups, as C(ironserve_cleanup) has it. M(gpu_cleanup) documents the keys.
    type: dict
    default: {}
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
holders:
  description: Each process that is none of the service's own and holds its port or a GPU of it.
  returned: always
  type: list
  elements: dict
  contains:
    pid: {type: int, description: Its pid.}
    start_ticks: {type: int, description: "Its start in clock ticks since boot: with the pid it names one process."}
    age_s: {type: float, description: Seconds since it started.}
    user: {type: str, description: Its user.}
    command: {type: str, description: "Its command, shortened, without secrets."}
    owner:
      type: dict
      description: C(kind) (C(unit), C(user_unit), C(container), C(process), C(service), C(kubernetes), C(slurm),
        C(driver)), C(name), and C(text) for people.
    ports: {type: list, elements: int, description: Ports that it holds.}
    gpus: {type: list, elements: str, description: "GPUs that it holds: UUIDs, or device files where no UUID is known."}
    services: {type: list, elements: str, description: Services that are to have them.}
    refusal: {type: str, description: "Why it cannot be taken over; empty when it can."}
    leftover: {type: bool, description: "Left behind on GPUs by an engine; M(gpu_cleanup) ends it, nothing refuses it."}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve.preflight import Inventory, check_host
from ansible.module_utils.ironserve.problems import Problems


def main() -> None:
    """Check, and fail with all problems in one message."""
    module = AnsibleModule(
        argument_spec={
            "releases": {"type": "list", "elements": "dict", "required": True},
            "user": {"type": "str", "default": "ironserve"},
            "takeover": {"type": "bool", "default": False},
            "services": {"type": "list", "elements": "str", "default": []},
            "inventory_name": {"type": "str", "default": "HOST"},
            "gpu_count": {"type": "int", "default": 0},
            "cleanup": {"type": "dict", "default": {}},
            "environment_problems": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    problems = Problems()
    for problem in module.params["environment_problems"]:
        problems.add("environment", "", problem)
    releases = module.params["releases"]
    want = module.params
    inventory = Inventory(want["services"], want["inventory_name"], want["gpu_count"], want["cleanup"])
    holders = check_host(releases, want["user"], want["takeover"], inventory, problems)
    if problems:
        named = ", ".join(f"{release['release_id']} as {release['service']}" for release in releases)
        headline = f"nothing was touched: this host cannot take release {named}"
        module.fail_json(msg=problems.report(headline), problems=problems.found, holders=holders)
    module.exit_json(changed=False, problems=[], holders=holders)


if __name__ == "__main__":
    main()
