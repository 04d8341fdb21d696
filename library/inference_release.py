#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Stages, activates, proves and puts back a release of a service on a host, and removes a service from it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_release
short_description: Stage, activate, prove and put back a release of an inference service
description:
  - A release is what is meant to run, its engine, lock, model, flags and environment.
  - On a host it becomes a systemd unit.
  - O(state=present) puts release and unit into the service's folder and lets systemd verify the unit.
    Nothing that runs is touched.
  - O(state=active) stages it where that is not done yet, writes the unit to its place and points C(active) to it.
    It neither stops nor starts anything.
  - O(state=proven) says that the active release passed the gate. It becomes the last-known-good, may start again by
    itself and is enabled at boot.
  - O(state=reverted) puts a release back that is staged on the host, as it was rendered then. It becomes the active
    one, nothing is stopped or started. Where the process that runs is still its own, since an activation went no
    further, that process counts as current again. The files of secrets stay as they are.
  - O(state=absent) removes a service that is stopped, its unit, releases, ledger, secrets and records. Its logs stay.
  - Each step is whole or not at all, and a second call finishes one that was interrupted.
options:
  service:
    description: Name of the service.
    type: str
    required: true
  state:
    description: How far to go.
    type: str
    choices: [present, active, proven, reverted, absent]
    default: active
  release:
    description: The release as the action C(resolve_release) returns it. For C(present), C(active) and C(proven).
    type: dict
  unit:
    description: Text of the systemd unit, beside O(release).
    type: str
  to:
    description:
      - With O(state=reverted), the release to put back, by its id, the beginning of that, or its folder. One that
        failed on this host may be named, too.
      - Empty takes the newest one that was good here, which is the active one only if that is the last-known-good.
      - With O(state=proven), the folder of a staged release, instead of O(release) and O(unit).
    type: str
    default: ""
  other:
    description: With O(state=reverted), the active release is not wanted, even if it is good.
    type: bool
    default: false
  engine_secrets:
    description:
      - With O(state=reverted), the service's secrets as each engine takes them, by engine, each as O(secrets). They are
        written only if the files on the host do not have all secrets that the release names.
    type: dict
    default: {}
  secrets:
    description:
      - The service's secrets, C(env) for variables of the server and C(flags) for flags that it reads from a file, as
        the filter C(ironserve_secrets) returns them. They are written to C(/etc/ironserve) with mode 0640.
      - Neither they nor a plain hash of them is returned. A new value is another RV(render_id), and so a restart.
    type: dict
    default: {}
  group:
    description: Group that may read the log and the secrets of the service.
    type: str
    default: ironserve
attributes:
  check_mode:
    support: full
    description: Returns the plan that it would have carried out, touches nothing.
  diff_mode:
    support: full
    description: Shows the unit before and after.
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Stage the release while the old one serves
  inference_release:
    service: main
    state: present
    release: "{{ resolved.release }}"
    unit: "{{ lookup('ansible.builtin.template', 'ironserve.service.j2') }}"

- name: Activate it
  inference_release:
    service: main
    state: active
    release: "{{ resolved.release }}"
    unit: "{{ lookup('ansible.builtin.template', 'ironserve.service.j2') }}"

- name: Say that it passed the gate
  inference_release:
    service: main
    state: proven
    release: "{{ resolved.release }}"
    unit: "{{ lookup('ansible.builtin.template', 'ironserve.service.j2') }}"

- name: Put the last good release back
  inference_release:
    service: main
    state: reverted
  register: reverted

- name: Remove a service that was stopped before
  inference_release:
    service: embed
    state: absent
"""

RETURN = r"""
release_id:
  description: What is meant to run; the same on all hosts of a group.
  returned: state is not absent
  type: str
  sample: 3f9c02ab117e
render_id:
  description: What the release becomes on this host.
  returned: state is not absent
  type: str
  sample: 81d20cc4aa05
previous_id:
  description: Folder of the release that was active before this call.
  returned: state is not absent
  type: str
  sample: 90ab117e3f9c-aa0581d20cc4
last_known_good_id:
  description: Folder of the newest release that passed the gate here.
  returned: state is not absent
  type: str
  sample: 90ab117e3f9c-aa0581d20cc4
settled:
  description: The release is active, passed the gate, is enabled and runs. A deploy has nothing to do.
  returned: state is not absent
  type: bool
running:
  description: A process of the unit is there; a deploy that changes nothing attaches to it.
  returned: state is not absent
  type: bool
restart:
  description: The running server has to be restarted for what differs.
  returned: state is not absent
  type: bool
expected_s:
  description:
    - Seconds that the last good start of the service took, by its ledger. Of this release if it was started here, else
      of any, and none where there was no such start.
  returned: state is not absent
  type: float
reasons:
  description: Why this host is not settled, a line each.
  returned: state is not absent
  type: list
  elements: str
  sample: ["flag --max-num-seqs: 16 -> 8"]
actions:
  description: What was done, or would be in check mode, in order.
  returned: always
  type: list
  elements: str
  sample: ["write /etc/systemd/system/ironserve-main.service", "activate 3f9c02ab117e-81d20cc4aa05"]
reverted_to:
  description: Folder of the release that was put back, empty where there is none.
  returned: state is reverted
  type: str
  sample: 90ab117e3f9c-aa0581d20cc4
why:
  description: Why no release was put back, in a line.
  returned: state is reverted
  type: str
  sample: no release was good on this host before
release:
  description: The release that was put back, as it is staged.
  returned: state is reverted
  type: dict
kept:
  description: The logs of the service, which stay.
  returned: state is absent
  type: list
  elements: str
  sample: ["/var/log/ironserve/embed.log"]
"""

import subprocess
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve.releases import Releases
from ansible.module_utils.ironserve.removal import Removal


def main() -> None:
    """Parse the arguments, let the plan be made, carry it out unless checking."""
    module = AnsibleModule(
        argument_spec={
            "service": {"type": "str", "required": True},
            "state": {
                "type": "str",
                "choices": ["present", "active", "proven", "reverted", "absent"],
                "default": "active",
            },
            "release": {"type": "dict"},
            "unit": {"type": "str"},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "to": {"type": "str", "default": ""},
            "other": {"type": "bool", "default": False},
            "engine_secrets": {"type": "dict", "default": {}, "no_log": True},
            "group": {"type": "str", "default": "ironserve"},
        },
        required_if=[("state", state, ("release", "unit")) for state in ("present", "active")],
        supports_check_mode=True,
    )
    try:
        answer = {"absent": absent, "reverted": reverted}.get(module.params["state"], deployed)(module)
    except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        module.fail_json(msg=f"release of service {module.params['service']}: {error}. No process was touched.")
    module.exit_json(**answer)


def deployed(module: AnsibleModule) -> dict[str, Any]:
    """Plan the way to a release, go it unless checking, and say what it is."""
    want = module.params
    if want["state"] == "proven" and not (want["to"] or want["release"]):
        module.fail_json(msg="state is proven but any of the following are missing: to, release")
    if want["state"] == "proven" and want["to"]:
        releases = Releases(want["service"], want["group"])
        plan = releases.plan_staged("proven", want["to"])
    else:
        releases = Releases(want["service"], want["group"], want["secrets"])
        plan = releases.plan(want["state"], want["release"], want["unit"])
    if not module.check_mode:
        releases.carry_out(plan)
    return plan.result()


def reverted(module: AnsibleModule) -> dict[str, Any]:
    """Choose the release to put back, make it the active one unless checking, and say which it is."""
    want = module.params
    releases = Releases(want["service"], want["group"])
    plan, why = releases.plan_reverted(want["to"], want["other"], want["engine_secrets"])
    if plan is None:
        return {"changed": False, "reverted_to": "", "why": why, "release": {}, "actions": []}
    if not module.check_mode:
        releases.carry_out(plan)
    return {**plan.result(), "reverted_to": plan.wished, "why": "", "release": plan.release}


def absent(module: AnsibleModule) -> dict[str, Any]:
    """Find what is left of the service, remove it unless checking, and say what it is."""
    removal = Removal(module.params["service"])
    if not module.check_mode:
        removal.carry_out()
    return removal.result()


if __name__ == "__main__":
    main()
