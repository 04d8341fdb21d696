#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Builds the engine environment of a lock on a host, once and for all."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_environment
short_description: Build the engine environment of a lock
description:
  - Installs exactly the files of a lock, each checked against its hash, into O(root)C(/)O(lock_id).
    A finished environment is never changed and never built again. One that was interrupted is never used.
    A broken one is moved aside when its replacement is whole.
  - uv does the work in a transient systemd unit, so a lost connection does not end it and a second call attaches to it.
  - The host needs the lock's Python and nothing else. uv is unpacked from its wheel, and no interpreter is downloaded.
  - In a playbook the action plugin of the same name is called. It takes the option C(lock), a name in C(environments/)
    or a path on the controller, and fills in O(lock_id), O(python), O(platform), O(requirements), O(installed_mib) and
    O(uv). It works in slices, prints a line for each change and brings uv's wheel where the host has none in reach.
options:
  lock_id:
    description: Id of the lock.
    type: str
    required: true
  python:
    description: Python minor of the lock. The host must have this interpreter.
    type: str
    required: true
  platform:
    description: Oldest platform that the lock's files run on.
    type: str
    required: true
  requirements:
    description: The lock's requirements in normal form, a line each, with hashes.
    type: str
    required: true
  installed_mib:
    description: Size of the finished environment. This much space must be free.
    type: int
    default: 0
  uv:
    description: The pinned uv, with C(version), C(file) and C(sha256) of its wheel.
    type: dict
    required: true
  uv_wheel:
    description: Path of uv's wheel on the host, where it is not in the wheelhouse.
    type: path
  wheelhouse:
    description: Folder on the host that tools/wheelhouse.py filled. Without O(index_url) no other place is asked.
    type: path
  index_url:
    description: Address of a package index. Without it and O(wheelhouse) PyPI is asked.
    type: str
  root:
    description: Folder of all environments.
    type: path
    default: /opt/ironserve/engines
  timeout_s:
    description: Seconds after which a build is ended.
    type: float
    default: 3600
  slice_s:
    description: Seconds after which the module answers while the build goes on. 0 waits for the end.
    type: float
    default: 0
  cursor:
    description: What the slice before returned in RV(slice).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Returns the plan and what stands in its way, touches nothing.
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Have the engine from a wheelhouse that the host sees
  engine_environment:
    lock: vllm-0.32.0-cpu
    wheelhouse: /srv/wheelhouse

- name: Have the engine from an index of the site
  engine_environment:
    lock: environments/vllm-0.33.0-cuda
    index_url: https://packages.example.com/simple
"""

RETURN = r"""
path:
  description: The environment.
  returned: success
  type: str
  sample: /opt/ironserve/engines/vllm-0.32.0-cpu-5c897fc52a41
lock_id:
  description: The lock that it was built from.
  returned: success
  type: str
  sample: vllm-0.32.0-cpu-5c897fc52a41
python:
  description: Version of its interpreter. Empty where it is not built yet.
  returned: success
  type: str
  sample: 3.11.2
actions:
  description: What was done, or in check mode would be.
  returned: success
  type: list
  elements: str
  sample: [build /opt/ironserve/engines/vllm-0.32.0-cpu-5c897fc52a41 with 149 packages from PyPI]
problems:
  description: What stands in the way of the build. Outside check mode any of them is a failure.
  returned: success, or failure because of them
  type: list
  elements: str
log:
  description: The build's log on the host.
  returned: failed build
  type: str
uv_wanted:
  description: Name of uv's wheel, where the host has none. The action plugin brings it and calls again.
  returned: uv is missing
  type: str
slice:
  description: State of the build at the end of a slice.
  returned: success
  type: dict
  sample: {done: false, phase: unpacking, progress: 37/149 wheels, expected_s: null, cursor: {}}
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve.builds import Build, BuildError, UvWanted
from ansible.module_utils.ironserve.environment import Wish

OPTIONS: dict[str, dict[str, Any]] = {
    "lock_id": {"type": "str", "required": True},
    "python": {"type": "str", "required": True},
    "platform": {"type": "str", "required": True},
    "requirements": {"type": "str", "required": True},
    "installed_mib": {"type": "int", "default": 0},
    "uv": {"type": "dict", "required": True},
    "uv_wheel": {"type": "path"},
    "wheelhouse": {"type": "path"},
    "index_url": {"type": "str", "no_log": True},
    "root": {"type": "path", "default": "/opt/ironserve/engines"},
    "timeout_s": {"type": "float", "default": 3600},
    "slice_s": {"type": "float", "default": 0},
    "cursor": {"type": "dict", "default": {}},
}


def main() -> None:
    """Build, attach, or find that all is well."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    given = module.params
    wish = Wish(
        **{name: given[name] for name in ("lock_id", "python", "platform", "requirements", "installed_mib", "uv")},
        root=Path(given["root"]),
        wheelhouse=Path(given["wheelhouse"]) if given["wheelhouse"] else None,
        index_url=given["index_url"],
        timeout_s=given["timeout_s"],
    )
    build = Build(wish, Path(given["uv_wheel"]) if given["uv_wheel"] else None)
    try:
        answer = build.check() if module.check_mode else build.present(given["cursor"], given["slice_s"])
    except UvWanted as wanted:
        module.exit_json(changed=False, uv_wanted=str(wanted))
    except BuildError as error:
        module.fail_json(msg=str(error), **error.facts)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
