#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures how fast a server generates."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_benchmark
short_description: Measure how fast a server generates
description:
  - Asks the server of a service for completions, one level (so many at a time) after the other, all levels again for
    each repetition, after a warm-up that does not count. Appends what it measured to the service's ledger.
  - A transient unit of its own does it, as the service's user. A second call with the same O(load) attaches to it. One
    that was left behind and measures something else is ended first.
  - The server has to be ready, and to run the active release. It stays as it is. Where it is restarted meanwhile,
    nothing was measured.
  - The API key comes from the files of the service's secrets, on the host.
options:
  service:
    description: Name of the service.
    type: str
    required: true
  environment:
    description: Folder of the environment that the client is in.
    type: str
    required: true
  client:
    description: What the record says of the client, C(name), C(version) and C(lock_id).
    type: dict
    required: true
  load:
    description: C(concurrencies), C(input_tokens), C(output_tokens), C(repetitions), C(requests_per_stream),
      C(min_requests) and C(seed).
    type: dict
    required: true
  user:
    description: User that the client runs as.
    type: str
    default: ironserve
  tune:
    description: Which tune measures, C(id) and C(round). Empty, none does.
    type: dict
    default: {}
  timeout_s:
    description: Seconds after which the measurement is ended.
    type: float
    default: 7200
  slice_s:
    description: Seconds after which the module answers how far it is. 0 waits for the end.
    type: float
    default: 0
  cursor:
    description: What the slice before returned as RV(slice).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Says what would be measured.
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Measure the server
  service_benchmark:
    service: main
    environment: "{{ engine_environment_result.path }}"
    client: {name: vllm, version: 0.33.0, lock_id: 0123456789ab}
    load: {concurrencies: [1, 8], input_tokens: 512, output_tokens: 128, repetitions: 5, requests_per_stream: 2,
           min_requests: 8, seed: 1}
  register: measured
"""

RETURN = r"""
measurement:
  description: The record of the ledger; empty in check mode and before the end.
  returned: success
  type: dict
server_failed:
  description: >-
    Whether it is the server that could not be measured, because it was not ready, was restarted or left requests
    unanswered, and not the host that lacks what a measurement needs.
  returned: failure
  type: bool
msg:
  description: What was measured, or how far it is, in a line.
  returned: always
  type: str
slice:
  description: State of work done in slices, for the action plugin.
  returned: success
  type: dict
"""

import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve import systemd
from ansible.module_utils.ironserve.benchmark import Benchmark, BenchmarkError, SetupError


def main() -> None:
    """Parse the arguments and measure."""
    module = AnsibleModule(
        argument_spec={
            "service": {"type": "str", "required": True},
            "environment": {"type": "str", "required": True},
            "client": {"type": "dict", "required": True},
            "load": {"type": "dict", "required": True},
            "user": {"type": "str", "default": "ironserve"},
            "tune": {"type": "dict", "default": {}},
            "timeout_s": {"type": "float", "default": 7200},
            "slice_s": {"type": "float", "default": 0},
            "cursor": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    want = module.params
    name = want["service"]
    if not systemd.SERVICE_NAME.fullmatch(name):
        module.fail_json(msg=f'"{name}" {systemd.SERVICE_NAME_RULE}')
    benchmark = Benchmark(name, want["environment"], want["load"], want["user"], want["timeout_s"])
    start = {key: want[key] for key in ("client", "tune")}
    try:
        if module.check_mode:
            module.exit_json(
                changed=False, measurement={}, msg=f"would {benchmark.plan().summary}", slice={"done": True}
            )
        answer = benchmark.measured(start, want["cursor"], want["slice_s"])
    except BenchmarkError as error:
        module.fail_json(msg=str(error), server_failed=not isinstance(error, SetupError))
    except (OSError, RuntimeError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        module.fail_json(
            msg=f"service {name} could not be measured: {type(error).__name__}: {error}", server_failed=False
        )
    module.exit_json(**{"changed": False, "measurement": {}, **answer})


if __name__ == "__main__":
    main()
