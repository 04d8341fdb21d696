# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Says once, and with what to do, that an inventory is not there or is no YAML; see DOCUMENTATION below."""

from __future__ import annotations

DOCUMENTATION = r"""
name: ironserve
short_description: Say in one message what is wrong with an inventory file
description:
  - Reads no inventory. It comes before the plugins that do, and ends the run where a file is not there or is no YAML.
    Each of the others would say in its own words why it cannot read the file.
author: Ironserve contributors
"""

import sys
from pathlib import Path
from typing import Any, NoReturn

import yaml
from ansible.plugins.inventory import BaseInventoryPlugin
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]


def fault(path: str) -> str:
    """What is wrong with a source of hosts, and what to do; empty where it may be readable."""
    file = Path(path)
    if "," in path:  # a list of hosts
        return ""
    if not file.exists():
        own, example = (ROOT / "inventory" / name for name in ("hosts.yml", "hosts.example.yml"))
        todo = f"cp {example} {own} and name your hosts there" if file == own else "correct what -i names"
        return f"there is no inventory {path}, nothing was touched. What to do: {todo}."
    if file.suffix not in (".yml", ".yaml") or not file.is_file():
        return ""
    try:
        for _ in yaml.parse(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            pass
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        where = getattr(error, "problem_mark", None)
        place = f"{path}:{where.line + 1}:{where.column + 1}" if where else path
        why = " ".join(filter(None, (getattr(error, "context", ""), getattr(error, "problem", "")))) or str(error)
        return f"{place}: the inventory cannot be read, nothing was touched: {why}"
    return ""


class InventoryModule(BaseInventoryPlugin):
    """Takes only what nobody can read."""

    NAME = "ironserve"

    def verify_file(self, path: str) -> bool:
        """Whether there is a fault to be told."""
        return bool(fault(path))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> NoReturn:  # noqa: ARG002
        """Tell it and end: an error would be one more among those of the other plugins."""
        Display().error(fault(path))
        sys.exit(1)
