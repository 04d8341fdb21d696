#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Tells of a host's NVIDIA GPUs, and changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Tell of a host's NVIDIA GPUs, their memory and who uses it
description:
  - Asks the driver through NVML where nvidia-ml-py is at hand, for the host's own Python or in an engine environment,
    and through nvidia-smi otherwise. Changes nothing and needs nothing installed.
  - Used memory is without the driver's reserve, so that it is 0 on an idle GPU with either source.
  - A GPU that the kernel's driver knows and that does not answer is in the list with its C(error), and in C(problems).
  - Fails, within C(timeout_s), where no GPU can be read. The driver hangs, is not loaded, or is of another version than
    its libraries, or there is none. The message says what to do.
options:
  timeout_s:
    description:
      - Seconds that the driver has to answer. Without persistence mode it starts each GPU anew, which takes seconds a
        GPU.
    type: float
    default: 30
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
- name: Look at the GPUs
  gpu_info:
  register: seen

- name: Every GPU is there, is free and has the expected family
  ansible.builtin.assert:
    that:
      - seen.gpus | length == 8
      - seen.gpus | selectattr('error') | length == 0
      - seen.gpus | map(attribute='family') | unique == ['sm120']
      - seen.gpus | sum(attribute='memory_used_mib') == 0
"""

RETURN = r"""
driver_version:
  description: Version of the driver, as C(580.159.04).
  returned: success
  type: str
cuda_version:
  description: Newest CUDA that the driver runs, as C(13.0).
  returned: success
  type: str
source:
  description: What told it, C(nvml) or C(nvidia-smi).
  returned: success
  type: str
gpus:
  description: The GPUs, in the driver's order; those that it does not count any more come last.
  returned: success
  type: list
  elements: dict
  contains:
    index: {type: int, description: The driver's number for it; -1 where it counts it no more.}
    uuid: {type: str, description: Its UUID.}
    name: {type: str, description: "As C(NVIDIA H200)."}
    bus_id: {type: str, description: "Its PCI address as NVML writes it, C(00000000:0A:00.0)."}
    minor: {type: int, description: "Its device file is C(/dev/nvidia<minor>)."}
    compute_capability: {type: str, description: "As C(12.0); empty where it is not told."}
    family: {type: str, description: "C(sm120) for 12.x, C(sm100) only for 10.x, C(sm90); C(sm89), C(sm80) before."}
    memory_total_mib: {type: int, description: "Its memory; none of the three figures where there is an C(error)."}
    memory_used_mib: {type: int, description: Used memory without the driver's reserve.}
    memory_reserved_mib: {type: int, description: The driver's reserve.}
    utilization:
      type: int
      description: Percent of time with work. Says nothing about idleness, since it may stay at 100 on a Blackwell GPU
        that nobody uses.
    processes:
      type: list
      elements: dict
      description: Processes that the driver lists; null where it does not tell.
      contains:
        pid: {type: int, description: Its pid.}
        type: {type: str, description: "C(C) compute, C(G) graphics, C(M) through MPS, or several joined by C(+)."}
        memory_mib: {type: int, description: "Its memory; null where the driver does not tell, which is not 0."}
    persistence_mode: {type: bool, description: "Whether the driver keeps it started; null where it is not told."}
    mig_mode: {type: bool, description: Whether it is divided into MIG instances.}
    recovery_action:
      type: str
      description: What the driver asks for, C(none), C(gpu_reset), C(reboot), C(drain_p2p), C(drain_and_reset) or
        another word of NVIDIA's.
    pcie:
      type: dict
      description: C(generation) and C(width) of its PCIe link at this moment; an idle link may go down to generation 1.
        C(max_generation) and C(max_width) that GPU and slot can do.
    ecc:
      type: dict
      description: Whether ECC is C(enabled), and C(uncorrected_volatile), errors that it could not mend since the
        driver was loaded; null where the driver does not tell, as everything here.
    remapped_rows:
      type: dict
      description: Whether the replacement of a row of memory is C(pending), until a reset, or ever had a C(failure).
    retired_pages_pending: {type: bool, description: "As C(pending), on GPUs before Ampere."}
    bar1_total_mib: {type: int, description: "How much of its memory others reach over PCIe; all with resizable BAR."}
    error: {type: str, description: "C(lost), C(reset_required), C(not_supported), the driver's own words, or empty."}
topology:
  description:
    - How each GPU reaches each, a row and a column for every GPU that the driver counts. C(X) itself, C(NV18) over 18
      NVLinks, C(PIX), C(PXB), C(PHB), C(NODE), C(SYS) over PCIe, ever farther.
    - Empty where nvidia-smi does not tell.
  returned: success
  type: list
  elements: list
problems:
  description: What is wrong with single GPUs, and what is worth knowing, a line each.
  returned: always
  type: list
  elements: str
failure:
  description: C(hung), C(mismatch), C(not_loaded), C(absent) or the driver's own words.
  returned: failure
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve.gpus import as_result, explain_error, explain_failure
from ansible.module_utils.ironserve.nvml import look


def main() -> None:
    """Look, and fail where nothing can be seen."""
    module = AnsibleModule(
        argument_spec={"timeout_s": {"type": "float", "default": 30}},
        supports_check_mode=True,
    )
    timeout_s = module.params["timeout_s"]
    reading = look(timeout_s, topology=True)
    problems = [*reading.problems, *filter(None, map(explain_error, reading.gpus))]
    if reading.failure:
        module.fail_json(msg=explain_failure(reading.failure, timeout_s), failure=reading.failure, problems=problems)
    module.exit_json(
        changed=False,
        driver_version=reading.driver_version,
        cuda_version=reading.cuda_version,
        source=reading.source,
        gpus=[as_result(gpu) for gpu in reading.gpus],
        topology=reading.topology,
        problems=problems,
    )


if __name__ == "__main__":
    main()
