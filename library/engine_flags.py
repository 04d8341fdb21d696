#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Asks the parser of an installed engine what it makes of a release's flags."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_flags
short_description: Ask an engine's own parser about flags and variables
description:
  - Has the parser of the engine, in the environment of each release, judge the release's flags. It knows which flags
    and variables this version has, which are deprecated, which nothing reads, and what values it takes.
  - The engine is imported as the service user, without network and GPU, in a unit that systemd ends after
    O(timeout_s). It is not started, and what serves meanwhile is left alone.
  - Answers are kept below /opt/ironserve/flags by lock id and words of the flags. Asking again reads two files.
options:
  releases:
    description: The releases, as the action C(resolve_release) returns them.
    type: list
    elements: dict
    required: true
  user:
    description: User that the engine runs as.
    type: str
    default: ironserve
  timeout_s:
    description: Seconds that one parser may take.
    type: float
    default: 120
  cached_only:
    description: Read the cache and ask nobody.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Reads the cache and asks nobody, as with O(cached_only).
  diff_mode:
    support: none
  platform:
    support: full
    platforms: posix
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Ask the parsers of all services
  engine_flags:
    releases: "{{ resolved.releases }}"
  register: asked
"""

RETURN = r"""
flags:
  description: The answer for each service, by its name. Flags are written without dashes in front.
  returned: always
  type: dict
  contains:
    state:
      type: str
      description: >-
        C(known); C(unasked) where nobody asked yet, C(pending) where nobody can without an environment, or C(failed)
        where the parser gave no answer.
    reason: {type: str, description: Why it is not C(known).}
    engine_version: {type: str, description: As the installed package says it.}
    unknown: {type: list, elements: dict, description: "C(flag), and C(suggestion), which may be empty."}
    abbreviated: {type: list, elements: dict, description: "C(flag), and the flags that begin so, C(meant)."}
    deprecated: {type: list, elements: dict, description: "C(flag), and C(text), the parser's help."}
    without_effect: {type: list, elements: str, description: Flags that the parser takes and nothing reads.}
    invalid:
      type: list
      elements: dict
      description: C(flag) and C(text), the parser's words. An empty C(flag) says that several do not go together.
    unknown_variables: {type: list, elements: dict, description: "C(name), and C(suggestion), which may be empty."}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve import engine_flags


def main() -> None:
    """Ask."""
    module = AnsibleModule(
        argument_spec={
            "releases": {"type": "list", "elements": "dict", "required": True},
            "user": {"type": "str", "default": "ironserve"},
            "timeout_s": {"type": "float", "default": engine_flags.TIMEOUT_S},
            "cached_only": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    releases = module.params["releases"]
    if module.check_mode or module.params["cached_only"]:
        flags = {release["service"]: engine_flags.cached(release) for release in releases}
    else:
        flags = engine_flags.ask(releases, module.params["user"], module.params["timeout_s"])
    module.exit_json(changed=False, flags=flags)


if __name__ == "__main__":
    main()
