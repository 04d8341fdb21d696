#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Tells what speaks for and against releases on a host, and changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_preflight
short_description: Judge whether a host can take releases
description:
  - Looks at port, GPUs, driver, PCIe, kernel, network, tools, model, disk, systemd and privileges, and changes nothing.
    What else holds the port or a GPU of a service is named with its owner and left alone.
  - In a playbook the action plugin of the same name is called. It uses O(origins), O(hardware) and O(accept), asks
    M(engine_flags) where an engine's parser was not asked yet, and judges on the controller, where the rules are. It
    does not fail for what was found, since a fleet is reported as one; C(preflight_report) does.
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
  cleanup:
    description: What the site says of cleanups, as C(ironserve_cleanup) has it. M(gpu_cleanup) documents the keys.
    type: dict
    default: {}
  origins:
    description: Where the values of each service's release come from, as C(resolve_release) returns them, by service.
    type: dict
    default: {}
  hardware:
    description: What the host group says of its hardware, as C(ironserve_hardware) has it. The NVIDIA driver is asked
      where it says that there are GPUs.
    type: dict
    default: {}
  accept:
    description: Names of rules that are overruled, with commas between.
    type: str
    default: ""
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
  description: What stands in the way of any release, a line each.
  returned: always
  type: list
  elements: str
facts:
  description: What the host is, by part; C(docs/hosts.md) lists them. The action plugin judges them.
  returned: the module is called without its action plugin
  type: dict
findings:
  description: >-
    Everything that was found, problems among them, each with C(rule), C(severity), C(host), C(service), C(where),
    C(key), C(text), C(why), C(do), C(source) and C(accepted).
  returned: in a playbook
  type: list
  elements: dict
considered:
  description: For each service every rule, whether it fired, and why or why not.
  returned: in a playbook
  type: dict
refused:
  description: Whether an error was found that nobody accepted.
  returned: in a playbook
  type: bool
releases:
  description: The releases, each with the names of rules that were overruled for it, C(accepted), if any.
  returned: in a playbook
  type: list
  elements: dict
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
from ansible.module_utils.ironserve import engine_flags, host_facts, lease, nvml
from ansible.module_utils.ironserve.preflight import Inventory, check_host
from ansible.module_utils.ironserve.problems import Problems


def main() -> None:
    """Look at everything."""
    module = AnsibleModule(
        argument_spec={
            "releases": {"type": "list", "elements": "dict", "required": True},
            "user": {"type": "str", "default": "ironserve"},
            "takeover": {"type": "bool", "default": False},
            "services": {"type": "list", "elements": "str", "default": []},
            "inventory_name": {"type": "str", "default": "HOST"},
            "cleanup": {"type": "dict", "default": {}},
            "origins": {"type": "dict", "default": {}},
            "hardware": {"type": "dict", "default": {}},
            "accept": {"type": "str", "default": ""},
            "environment_problems": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    want, problems = module.params, Problems()
    for problem in want["environment_problems"]:
        problems.add("environment", "", problem)
    releases, user = want["releases"], want["user"]
    inventory = Inventory(
        want["services"], want["inventory_name"], int(want["hardware"].get("gpu_count", 0)), want["cleanup"]
    )
    reading = nvml.look(inventory.driver_timeout_s, topology=True) if inventory.gpu_count else None
    holders = check_host(releases, user, want["takeover"], inventory, reading, problems)
    gpus = host_facts.told_of(reading, inventory.driver_timeout_s) if reading else None
    facts = {
        **host_facts.gather(releases, user, gpus),
        "flags": {release["service"]: engine_flags.cached(release) for release in releases},
        "lease": lease.read(),
    }
    module.exit_json(changed=False, problems=problems.found, holders=holders, facts=facts)


if __name__ == "__main__":
    main()
