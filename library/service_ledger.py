#!/usr/bin/python
# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Reads the ledgers of a host's services."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_ledger
short_description: Read the ledgers of a host's inference services
description:
  - Returns every launch and every measurement that the host has on record, the oldest first. Changes nothing.
  - Services that are on the host and that no inventory names any more have their ledgers, too.
options:
  service:
    description: The only service whose ledger is wanted; empty, those of all.
    type: str
    default: ""
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
- name: Read the ledgers
  service_ledger:
  register: told
"""

RETURN = r"""
ledgers:
  description: The records of each service, as docs/report.md lists them. A line that a crash cut off is left out.
  returned: success
  type: dict
  sample: {"main": [{"at": "2026-11-30T04:04:34+00:00", "profile": "baseline", "verdict": "ready"}]}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ironserve import host, ledger


def main() -> None:
    """Read."""
    module = AnsibleModule(argument_spec={"service": {"type": "str", "default": ""}}, supports_check_mode=True)
    wanted = module.params["service"]
    try:
        found = {
            file.parent.name: ledger.parse(file.read_text(errors="replace"))
            for file in sorted(host.STATE.glob("*/ledger.jsonl"))
            if wanted in ("", file.parent.name)
        }
    except OSError as error:
        module.fail_json(msg=f"a ledger under {host.STATE} cannot be read: {error}")
    module.exit_json(changed=False, ledgers=found)


if __name__ == "__main__":
    main()
