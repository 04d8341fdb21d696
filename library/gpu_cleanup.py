#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Frees GPUs of what engines left behind, and measures until their memory is free."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_cleanup
short_description: Free GPUs of what engines left behind, and measure until their memory is free
description:
  - Finds everybody at the GPUs of a host by the driver's process lists, by open device files (those of a zombie's
    living threads, too) and by mappings, merged by pid, and calls each one a C(victim), C(protected), C(self),
    C(out_of_scope) or C(foreign).
  - Ends victims only, and whole engines only, never single ranks. A service's unit is stopped by systemd first, within
    its own limit; then its control group is killed as a whole; then each victim that is left gets SIGTERM, and once
    SIGKILL after O(grace_s). Every signal goes to one process that was identified by pid and start time.
  - Then measures the memory that the driver calls used, without its reserve, of every GPU in scope, every 20 ms at
    first, and returns the moment that it is free. Idle is memory and processes, never utilisation.
  - States that no signal can mend are told apart, each with what a person must do. C(docs/cleanup.md) explains each.
  - Asks the driver through nvidia-ml-py, which it finds in the host's Python or in an engine environment; without it
    through nvidia-smi, which is slower, and RV(problems) says so. Either is asked in a child with a deadline, so that a
    driver that hangs does not hang the module.
  - Called through the action plugin of the same name it works in slices and a line is printed for each change. Called
    directly it waits by itself.
options:
  gpus:
    description:
      - UUIDs of the GPUs that are to be free, as C(nvidia-smi -L) prints them.
      - Empty means the GPUs of the active release of O(service). Where that names none, too, it means all GPUs of the
        host but those that another service of Ironserve's uses while it runs.
    type: list
    elements: str
    default: []
  gpu_count:
    description: How many GPUs the host has. When the driver knows fewer, one is lost. 0 is not known.
    type: int
    default: 0
  service:
    description: Service of Ironserve's whose unit is stopped first, and whose processes are victims. Empty is none.
    type: str
    default: ""
  keep_current:
    description:
      - Do nothing where the unit of O(service) runs the release that is active. A deploy that attaches to a server that
        loads already needs that.
    type: bool
    default: false
  service_user:
    description: The user as whom engines run. Its processes on these GPUs are victims. root never counts as such.
    type: str
    default: ironserve
  leftovers_only:
    description:
      - Spare all but the unit's own processes and what engines left behind, since the rest may serve somebody; it is
        foreign then. A deploy says so; M(host_takeover) ends it where that was asked for.
    type: bool
    default: false
  patterns:
    description:
      - Titles of other engines than SGLang and vLLM, as shell patterns for the first word of the command, such as
        C(myengine::*). An engine is never recognised by its name somewhere in a command line.
    type: list
    elements: str
    default: []
  protected_extra:
    description: Names of executables that are never signalled, beside those that are built in.
    type: list
    elements: str
    default: []
  unprotected:
    description: Names of executables that are built in and are not to be protected.
    type: list
    elements: str
    default: []
  consent_foreign:
    description: End foreign processes that use these GPUs, too. Nothing protected, and nothing that only watches.
    type: bool
    default: false
  agreed:
    description:
      - Those who were shown to a person who agreed to their end, as RV(victims) of a call in check mode. Nobody else is
        ended but what they started since; others that came meanwhile are reported as C(foreign). Not given, nobody was
        asked.
    type: list
    elements: dict
  grace_s:
    description: Seconds between SIGTERM and SIGKILL.
    type: float
    default: 10
  timeout_s:
    description: Seconds after SIGKILL (30 at most) after which a process counts as unkillable.
    type: float
    default: 60
  stop_timeout_s:
    description: Seconds that the unit may take to stop. Longer than its own limit, after which systemd kills.
    type: float
    default: 180
  driver_timeout_s:
    description:
      - Seconds after which a driver that does not answer counts as hung. Without persistence mode it initialises every
        GPU anew when it is asked.
    type: float
    default: 30
  free_threshold_mib:
    description: A GPU is free when no more MiB than this are used, without the driver's reserve and what may stay.
    type: int
    default: 64
  mig:
    description: Clean GPUs in MIG mode, too. Without it the module refuses them.
    type: bool
    default: false
  shm:
    description: Remove what crashed engines of O(service_user) left in C(/dev/shm) and nobody has open or mapped.
    type: bool
    default: true
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
    description: Lists the same holders and what it would do, ends nothing, removes nothing.
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
seealso:
  - module: gpu_info
  - module: host_takeover
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Free all GPUs that no service of Ironserve's uses
  gpu_cleanup:

- name: See who holds which GPU, end nothing
  gpu_cleanup:
  check_mode: true
  register: looked

- name: Free the GPUs of a service before its next start, but for a server that loads the right release already
  gpu_cleanup:
    service: main
    gpus: "{{ serve_release.gpus }}"
    keep_current: true
    leftovers_only: true

- name: Keep one's own monitor alive, and allow a long goodbye
  gpu_cleanup:
    protected_extra: [acme-gpu-exporter]
    grace_s: 60
"""

RETURN = r"""
state:
  description:
    - C(clean) when all GPUs in scope are free; C(held) in check mode when something would be ended; C(in_use) when
      O(service) runs its active release and was left alone (O(keep_current)), or when services that run use all GPUs;
      C(not_measurable) when the driver tells no memory of a GPU and nothing is wrong with that.
    - The module fails with C(wedged_no_owner), C(driver_hung), C(driver_unusable), C(unkillable), C(foreign_holder),
      C(respawning), C(zombie), C(gpu_lost), C(reset_required) or C(mig_mode).
  returned: always
  type: str
  sample: clean
msg:
  description: Why it is in this state and what a person must do about it.
  returned: always
  type: str
victims:
  description: Who was ended, or would be in check mode.
  returned: always
  type: list
  elements: dict
  contains: &holder
    pid: {description: Process id., type: int}
    ppid: {description: Its parent's., type: int}
    start_ticks: {description: Start time in clock ticks since boot., type: int}
    age_s: {description: Seconds since it started., type: float}
    user: {description: Its effective user., type: str}
    state: {description: "R, S, D, Z and so on.", type: str}
    name: {description: The name that the kernel keeps., type: str}
    argv: {description: Its command or the title that it gave itself. Secrets are masked., type: list, elements: str}
    command: {description: The same in a line., type: str}
    cgroup: {description: Its control group., type: str}
    unit: {description: The unit of systemd that it belongs to., type: str}
    container_id: {description: The container that it runs in., type: str}
    gpus: {description: UUIDs of the GPUs that it uses., type: list, elements: str}
    memory_mib: {description: MiB of GPU memory; null where the driver does not tell., type: int}
    seen: {description: "How it was found: driver, mapped, open, shm; empty: by others.", type: list, elements: str}
    class: {description: "victim, protected, self, out_of_scope or foreign.", type: str}
    why: {description: Why it is of this class., type: str}
protected:
  description: Who belongs to the driver, watches it, is the desktop's, or carries this run.
  returned: always
  type: list
  elements: dict
  contains: *holder
reported:
  description: Everybody else, left alone.
  returned: always
  type: list
  elements: dict
  contains: *holder
gpus:
  description: The GPUs of the host, whether they were to be freed, and the memory used before and after.
  returned: always
  type: list
  elements: dict
  sample:
    - {index: 0, uuid: GPU-81e540af-1718-43f5-3b6a-791b20ddf894, in_scope: true, before_mib: 77824, after_mib: 0}
freed_mib:
  description: MiB that became free. 0 in check mode.
  returned: always
  type: int
elapsed_s:
  description: Seconds that it took.
  returned: always
  type: float
shm_removed:
  description: Files that were removed from C(/dev/shm), or would be, with the memory that they took.
  returned: always
  type: list
  elements: dict
  sample: [{"name": "nccl-abc123", "bytes": 9637888}]
actions:
  description: What was done, or would be in check mode, in order.
  returned: always
  type: list
  elements: str
  sample: ["stop ironserve-main.service", "end VLLM::EngineCore (pid 4002), VLLM::Worker_TP0 (pid 4003) and 7 more"]
problems:
  description: What is worth knowing and stopped nothing.
  returned: always
  type: list
  elements: str
source:
  description: How the driver was asked.
  returned: always
  type: str
  sample: nvml
slice:
  description: State of work done in slices, for the action plugin.
  returned: always
  type: dict
"""

import os
import subprocess
from dataclasses import fields
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve.cleanup import Cleanup, Wish

SPEC: dict[str, dict[str, Any]] = {
    "gpus": {"type": "list", "elements": "str", "default": []},
    "gpu_count": {"type": "int", "default": 0},
    "service": {"type": "str", "default": ""},
    "keep_current": {"type": "bool", "default": False},
    "service_user": {"type": "str", "default": "ironserve"},
    "leftovers_only": {"type": "bool", "default": False},
    "patterns": {"type": "list", "elements": "str", "default": []},
    "protected_extra": {"type": "list", "elements": "str", "default": []},
    "unprotected": {"type": "list", "elements": "str", "default": []},
    "consent_foreign": {"type": "bool", "default": False},
    "agreed": {"type": "list", "elements": "dict"},
    "grace_s": {"type": "float", "default": 10},
    "timeout_s": {"type": "float", "default": 60},
    "stop_timeout_s": {"type": "float", "default": 180},
    "driver_timeout_s": {"type": "float", "default": 30},
    "free_threshold_mib": {"type": "int", "default": 64},
    "mig": {"type": "bool", "default": False},
    "shm": {"type": "bool", "default": True},
    "slice_s": {"type": "float", "default": 0},
    "cursor": {"type": "dict", "default": {}},
}


def main() -> None:
    """Parse the arguments and clean."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    if os.geteuid() != 0:
        module.fail_json(
            msg="gpu_cleanup sees and ends processes of all users, and so has to run as root: become: true"
        )
    cleanup = Cleanup(Wish(**{known.name: module.params[known.name] for known in fields(Wish)}), module.check_mode)
    try:
        answer = cleanup.run(module.params["cursor"], module.params["slice_s"])
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        actions = cleanup.state.actions
        module.fail_json(msg=f"cleanup of GPUs: {error}", changed=bool(actions), actions=actions)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
