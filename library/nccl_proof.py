#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Proves that the ranks of a release can all-reduce on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_proof
short_description: Prove that the ranks of a release can all-reduce on a host
description:
  - Runs one process a rank in the engine environment, as the service's user, with exactly the release's variables, and
    has them all-reduce messages of some sizes. Checks each sum, and measures. NCCL does it on GPUs, Gloo elsewhere.
  - P2P that the driver calls OK can hang the first collective for ever. The ranks run in a transient unit of their own,
    of which nothing is left afterwards, however it ends. The unit of the service is not touched.
  - Everything but V(passed) is a failure, with what to do in RV(msg). The GPUs have to be free.
options:
  release:
    description: The release, as the action C(resolve_release) returns it.
    type: dict
    required: true
  user:
    description: User that the engine runs as.
    type: str
    default: ironserve
  gpu_count:
    description: How many GPUs the host has. Without any, two ranks use Gloo.
    type: int
    default: 0
  engine_env:
    description: Variables that the engine sets itself, over those of the release.
    type: dict
    default: {}
  sizes:
    description: Bytes of the messages. The bandwidth is that of the largest.
    type: list
    elements: int
    default: [8192, 32768, 262144, 67108864]
  timeout_s:
    description: Seconds from when all ranks have imported PyTorch, for all the rest.
    type: float
    default: 60
attributes:
  check_mode:
    support: full
    description: Says what would run.
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Prove that the GPUs of the service can all-reduce
  nccl_proof:
    release: "{{ ironserve_releases[0] }}"
    gpu_count: "{{ ironserve_hardware.gpu_count }}"
  register: proof
"""

RETURN = r"""
verdict:
  description: C(passed), C(hung), C(failed) or C(wrong_result); empty in check mode.
  returned: always
  type: str
msg:
  description: The same for a person, with what to do.
  returned: always
  type: str
  sample: "all-reduce over 8 GPUs: 8 KiB 21 us, 32 KiB 23 us, 256 KiB 44 us, 64 MiB 2800 us; bus bandwidth 41.9 GB/s"
world_size:
  description: Number of ranks.
  returned: always
  type: int
backend:
  description: C(nccl) or C(gloo).
  returned: always
  type: str
nccl_version:
  description: As NCCL says it itself.
  returned: when it ran
  type: str
latency_us:
  description: Microseconds of an all-reduce, by bytes. The median of five rounds.
  returned: when it ran
  type: dict
bus_bandwidth_gb_s:
  description: Of the largest message, as nccl-tests counts it. None of a single rank.
  returned: when it ran
  type: float
settings:
  description: Of each of NCCL's variables C(taken), C(not read), or C(other:) with what NCCL took instead.
  returned: when it ran
  type: dict
transports:
  description: How ranks reach each other.
  returned: when it ran
  type: dict
  sample: {P2P/CUMEM: ["0->1", "1->0"]}
warnings:
  description: NCCL's own warnings.
  returned: when it ran
  type: list
  elements: str
ranks:
  description: Where each rank stood at the end.
  returned: when it ran
  type: dict
left:
  description: Pids that the kernel did not let go after they were killed.
  returned: when it ran
  type: list
  elements: int
elapsed_s:
  description: Seconds that it took in all.
  returned: when it ran
  type: float
"""

import subprocess
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve import nccl_proof

OPTIONS: dict[str, dict[str, Any]] = {
    "release": {"type": "dict", "required": True},
    "user": {"type": "str", "default": "ironserve"},
    "gpu_count": {"type": "int", "default": 0},
    "engine_env": {"type": "dict", "default": {}},
    "sizes": {"type": "list", "elements": "int", "default": [8192, 32768, 262144, 67108864]},
    "timeout_s": {"type": "float", "default": 60},
}


def main() -> None:
    """Run the proof."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    plan = nccl_proof.plan(**module.params)
    if module.check_mode:
        facts = {"world_size": plan.world, "backend": plan.backend}
        module.exit_json(changed=False, verdict="", msg=f"would {plan.summary}", **facts)
    try:
        answer = nccl_proof.Proof(plan).run()
    except (nccl_proof.ProofError, OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        module.fail_json(msg=f"the proof of service {plan.service} could not be run: {error}")
    if answer["verdict"] != "passed":
        module.fail_json(**answer)
    module.exit_json(changed=False, **answer)


if __name__ == "__main__":
    main()
