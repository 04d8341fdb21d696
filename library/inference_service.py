#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Starts a service under the gate, or stops it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_service
short_description: Start an inference service under the gate, or stop it
description:
  - O(state=started) starts the active release, or attaches to it where it runs already, and watches until there is a
    verdict. C(ready) means that the server generated a token under the right model name. A process that exits is a
    failure at once, with its status, the engine's own error and the last lines of its log.
  - While the gate watches, systemd does not start the service again; see M(inference_release) with C(state=proven).
  - Called through the action plugin of the same name the module works in slices and a line is printed for each change.
    Called directly it waits by itself.
  - M(host_services) looks at services.
options:
  service:
    description: Name of the service.
    type: str
    required: true
  state:
    description: What to do.
    type: str
    choices: [started, stopped]
    default: started
  release:
    description:
      - With O(state=started), folder name of the release that has to be active; M(inference_release) returns its parts.
        Another active release is an error; in check mode it means that the service would be started anew.
      - Empty takes whichever is active.
    type: str
    default: ""
  causes:
    description:
      - Known causes of a failed start. The action plugin takes them from C(knowledge/causes); C(docs/causes.md) lists
        them and says what each key means.
    type: list
    elements: dict
    default: []
  cleanup:
    description: What the site says of cleanups, as C(ironserve_cleanup) has it. M(gpu_cleanup) documents the keys.
    type: dict
    default: {}
  steps:
    description:
      - With O(state=started), seconds of what was done before the start, by step, C(drain), C(clean), C(prove_nccl), as
        far as it was done. The ledger keeps them with the launch.
    type: dict
    default: {}
  tune:
    description:
      - With O(state=started), which tune tries the release, C(id) and C(round), for the ledger. A release that was only
        ever tried is not put back.
    type: dict
    default: {}
  secrets:
    description: The service's secrets, as M(inference_release) has them. Nothing that is returned or kept holds them.
    type: dict
    default: {}
  reason:
    description:
      - With O(state=stopped), why the active release is given up, where the host itself does not know it. The ledger
        keeps it with O(verdict), and so M(host_services) tells it.
    type: str
    default: ""
  verdict:
    description: With O(reason), C(failed) of a release that was not even started, else what its measurement said.
    type: str
    default: failed
  stop_timeout_s:
    description: Seconds that a stop may take. Longer than the unit's own limit, after which systemd kills.
    type: float
    default: 180
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
    description: Says whether it would start or stop something, touches nothing.
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Start the active release and wait until it generates
  inference_service:
    service: main
    state: started

- name: Stop it until the next deploy, over a reboot too
  inference_service:
    service: main
    state: stopped
"""

RETURN = r"""
verdict:
  description: C(ready), C(failed), C(stalled), C(timeout), or C(waiting) at the end of a slice and in check mode.
  returned: state is started
  type: str
phase:
  description: Phase of the start that the engine's log shows.
  returned: state is started
  type: str
  sample: loading weights
progress:
  description: Count within the phase.
  returned: state is started
  type: str
  sample: 37/96
timings:
  description: Seconds from the start of the engine to each phase, and to C(ready).
  returned: state is started
  type: dict
  sample: {"loading weights": 12.4, "ready": 58.1}
under_gate:
  description: The gate watches this start, by this call or an earlier one; it is no server that was proven before.
  returned: state is started
  type: bool
cause:
  description: Why the start failed, in a line.
  returned: verdict is failed, stalled or timeout
  type: str
cause_id:
  description: Known cause that fits best, by its name in C(docs/causes.md).
  returned: verdict is failed, stalled or timeout, and a known cause fits
  type: str
  sample: leftover_holds_gpu_memory
advice:
  description: What to do about that cause.
  returned: verdict is failed, stalled or timeout, and a known cause fits
  type: str
permanent:
  description: Whether starting again as it is cannot help.
  returned: verdict is failed, stalled or timeout, and a known cause fits
  type: bool
evidence:
  description: Properties of the unit, end of the log, the engine's own error.
  returned: verdict is failed, stalled or timeout
  type: dict
evidence_file:
  description: >-
    File on the host that keeps what the service showed before anything was stopped: processes, kernel, GPUs, log,
    environment without secrets. Empty where it could not be collected, which is a warning.
  returned: verdict is failed, stalled or timeout
  type: str
  sample: /var/lib/ironserve/main/evidence/20261130T040434Z-ea4d454e55ef-0f1e2d3c4b5a.json.gz
evidence_summary:
  description: At most ten lines of it.
  returned: verdict is failed, stalled or timeout
  type: list
  elements: str
  sample: ["8 ranks: 7 wait in futex_wait_queue (0 % CPU), TP3 spins at 100 %"]
took_effect:
  description:
    - What every rank and the server itself run with, where that is not what the release says. It changes no verdict.
    - C(ranks) counts the processes that were read, C(unreadable) has the pids of those whose environment could not be.
    - C(env) has the variables of the release that ranks have otherwise, each with C(release), C(runs) (null where it is
      not set) and C(ranks); C(added) those of NCCL, CUDA and the engine that the release does not say.
    - C(argv) has the flags with which the server says that it runs otherwise, each with C(release), C(runs) and
      C(engine_chose), which is true where the release leaves it to the engine. C(argv_source) is C(server_info), C(log)
      or empty where the server said nothing.
    - C(nccl), where NCCL_DEBUG is set, has NCCL's C(version) and what it says itself of each of its variables in
      C(settings), which is C(taken), C(not read) or C(other) with the value.
    - C(notes) says in lines what a person should know of it; each is a warning of the task, too.
  returned: verdict is ready
  type: dict
  sample:
    ranks: 8
    env: {NCCL_CUMEM_ENABLE: {release: "1", runs: "0", ranks: [TP0, TP1, TP2, TP3, TP4, TP5, TP6, TP7]}}
    added: {CUDA_DEVICE_MAX_CONNECTIONS: "8"}
    unreadable: []
    argv: {}
    argv_source: server_info
    notes: ["variable NCCL_CUMEM_ENABLE: the release says 1, and 8 of 8 ranks run with 0"]
main_pid:
  description: Pid of the engine's main process.
  returned: state is started
  type: int
slice:
  description: State of work done in slices, for the action plugin.
  returned: state is started or stopped
  type: dict
"""

import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve.services import Service


def main() -> None:
    """Parse the arguments and let the service do it."""
    module = AnsibleModule(
        argument_spec={
            "service": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
            "release": {"type": "str", "default": ""},
            "causes": {"type": "list", "elements": "dict", "default": []},
            "cleanup": {"type": "dict", "default": {}},
            "steps": {"type": "dict", "default": {}},
            "tune": {"type": "dict", "default": {}},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "reason": {"type": "str", "default": ""},
            "verdict": {"type": "str", "default": "failed"},
            "stop_timeout_s": {"type": "float", "default": 180},
            "slice_s": {"type": "float", "default": 0},
            "cursor": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    want = module.params
    service = Service(want["service"], module.check_mode, want["secrets"])
    try:
        if want["state"] == "stopped":
            told = (want["verdict"], want["reason"]) if want["reason"] else None
            answer = service.stopped(want["cursor"], want["slice_s"], want["stop_timeout_s"], told)
        else:
            answer = service.started(
                want["release"], want["cursor"], want["slice_s"], want["causes"], want["cleanup"],
                want["steps"], want["tune"],
            )  # fmt: skip
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        module.fail_json(msg=f"service {want['service']}: {error}")
    for notice in answer.pop("notices", []):
        module.warn(notice)
    if answer.get("failed"):
        module.fail_json(**answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
