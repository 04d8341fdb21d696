#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Collects what a service shows at this moment, and touches nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_evidence
short_description: Collect what an inference service shows at this moment
description:
  - "What M(inference_service) keeps of a start that failed, told of a service in any state: unit, processes
    with states, kernel stacks and use of CPU, Python stacks where C(py-spy) is installed, GPUs, lines of the kernel and
    of NCCL, environment, end of the log. No secret is in it."
  - Ends, stops and restarts nothing. It takes 10 s at most, whatever driver and processes do.
  - The newest five files of a service stay on the host.
options:
  service:
    description: Name of the service.
    type: str
    required: true
attributes:
  check_mode:
    support: full
    description: Collects and tells, and writes no file.
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: See what the service does
  service_evidence:
    service: main
  register: seen
"""

RETURN = r"""
evidence_file:
  description: File on the host that keeps it; empty in check mode and where there is no such service.
  returned: always
  type: str
  sample: /var/lib/ironserve/main/evidence/20261130T040434Z-ea4d454e55ef-0f1e2d3c4b5a.json.gz
evidence_of_helper:
  description:
    - Files of what the engine showed each time since the last call that its readiness helper or the watchdog ended it,
      while no gate watched. They are among the five that stay.
  returned: always
  type: list
  elements: str
evidence_summary:
  description: At most ten lines of it.
  returned: always
  type: list
  elements: str
"""

import subprocess
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve import evidence, gate, host, probe, symptoms, systemd
from ansible.module_utils.ironserve.releases import Releases


def main() -> None:
    """Collect."""
    module = AnsibleModule(argument_spec={"service": {"type": "str", "required": True}}, supports_check_mode=True)
    name = module.params["service"]
    if not systemd.SERVICE_NAME.fullmatch(name):
        module.fail_json(msg=f'"{name}" {systemd.SERVICE_NAME_RULE}')
    path, adopted = "", []
    try:
        releases = Releases(name)
        release = releases.active_release()
        show = host.show(releases.unit)
        if not release and show.get("LoadState") == "not-found":
            lines = [f"there is no service {name} on this host"]
        else:
            known = evidence.known_secrets(name)
            phases = (release.get("log") or {}).get("phases", [])
            reading = gate.read_start(host.LOGS / f"{name}.log", phases, known)
            # Of a server that serves they say nothing: the helper looks at them while it starts.
            starts = show.get("ActiveState") == "activating"
            signals = probe.signals(name, show.get("InvocationID", ""), time.monotonic()) if starts else {}
            found = evidence.collect(name, release, known, reading, signals)
            lines = symptoms.summary(found)
            if not module.check_mode:
                adopted = [str(adopted) for adopted in evidence.adopt(name)]
                path = str(evidence.write(releases.folder / "evidence", found))
    except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        module.fail_json(msg=f"no evidence of service {name} was collected: {error}")
    if adopted:
        lines = [
            *lines[: symptoms.LINES - 1],
            f"ended since by its helper or the watchdog: {len(adopted)} times, see the files",
        ]
    module.exit_json(changed=bool(path), evidence_file=path, evidence_summary=lines, evidence_of_helper=adopted)


if __name__ == "__main__":
    main()
