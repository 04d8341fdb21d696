# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""Resolves profile + host group + host to releases, on the controller; see DOCUMENTATION below."""

from __future__ import annotations

DOCUMENTATION = r"""
module: resolve_release
short_description: Resolve profile, host group and host to the releases of a host's services
description:
  - Runs on the controller for each target host and sends nothing to it.
  - Reads the host's variables that begin with C(ironserve_), the profiles and the locks of the engines.
  - Everything that is wrong is reported at once, each with file and key and, where something is close, what was
    perhaps meant.
options:
  profile:
    description:
      - Name of the profile. Empty takes for each service the one that the inventory declares.
      - On a host with several services O(service) has to say which one is meant.
    type: str
    default: ""
  service:
    description: Name of the one service that is meant. Empty means all services of the host.
    type: str
    default: ""
  profile_folder:
    description: A folder with further profiles, beside those of the host's variables, which count first.
    type: str
    default: ""
author: Ironserve contributors
"""

EXAMPLES = r"""
- name: Resolve the releases of this host
  resolve_release:
    profile: "{{ profile | default('') }}"
    service: "{{ service | default('') }}"
  register: resolved
"""

RETURN = r"""
releases:
  description:
    - A release for each service that is meant, by name.
    - C(module_utils/ironserve/resolve.py) says what its keys mean.
  returned: success
  type: list
  elements: dict
origins:
  description: For each release where its flags, variables and time limits come from, as C(argv), C(env) and
    C(settings); see C(module_utils/ironserve/explain.py).
  type: list
  elements: dict
roll:
  description: What the host's variables say of a roll, see C(module_utils/ironserve/rollout.py).
  returned: success
  type: dict
services:
  description: All services that the inventory names for this host, each with the profile that it declares.
  returned: success, or problems
  type: dict
  sample: {"chat": "triton_nccl", "embed": "baseline"}
problems:
  description: Everything that is wrong, a line each.
  returned: problems
  type: list
  elements: str
"""

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve import knowledge, lock, rollout, yaml_text
from ansible.module_utils.ironserve.findings import parse_accept
from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.profiles import Inventory, Source, check_names, engine_of
from ansible.module_utils.ironserve.site import (
    PREFIX,
    SENTINEL,
    check_extra_variables,
    no_host_group,
    numbers_as_such,
)
from ansible.module_utils.ironserve.wish import meant, resolve_host, views

TUNES = ("profiles", "matrix", "objective", "rounds", "budget_min")
"""What only a tune knows."""


def read_profiles(folders: list[str], problems: Problems) -> dict[str, Source]:
    """Every profile of the folders by name; of two with one name the first folder's counts."""
    sources: dict[str, Source] = {}
    for folder in (ROOT / folder for folder in folders):
        if not folder.is_dir():
            problems.add(str(folder), "", "no such folder (ironserve_profile_paths)")
        for file in sorted(folder.glob("*.yml")):
            shown = str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)
            sources.setdefault(file.stem, read_profile(file, shown))
    return sources


def read_profile(file: Path, shown: str) -> Source:
    """One profile; what is wrong with it matters only to those who use it."""
    found = Problems()
    try:
        data = yaml_text.read(file.read_text(encoding="utf-8"), shown, found)
    except (OSError, UnicodeDecodeError) as error:
        return Source(shown, None, str(error))
    return Source(shown, data, found=tuple(found.found))


def read_locks(named: dict[str, str], problems: Problems) -> dict[str, dict[str, Any]]:
    """The lock that the site names for each engine."""
    locks = {}
    for engine, name in named.items():
        try:
            folder = lock.find(name, ROOT)
            found = lock.load(folder)
        except lock.LockError as error:
            for problem in error.found:
                problems.add(f"ironserve_locks.{engine}", "", problem)
            continue
        locks[engine] = {
            "name": found.spec.name,
            "id": found.id,
            "folder": str(folder),
            "engine_version": found.spec.engine_version,
            "python": found.spec.python,
            "installed_mib": found.spec.installed_mib,
        }
    return locks


class ActionModule(ActionBase):
    """Resolve on the controller; nothing is sent to the host."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("profile", "service", "profile_folder"))
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Read what the controller knows of the host and resolve it."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        host = variables["inventory_hostname"]
        if SENTINEL not in variables:
            raise AnsibleActionFail(
                f"host {host}: its inventory does not load Ironserve's group_vars. One given with -i sees only the "
                f"group_vars beside it: in that inventory's folder run ln -s {ROOT / 'group_vars'} group_vars"
            )
        named = {name: self._templar.template(variables[name]) for name in variables if name.startswith(PREFIX)}
        site = numbers_as_such(named)
        if "ironserve_host_group" not in site:
            known = {file.stem for file in (ROOT / "group_vars").iterdir()} - {"all"}
            raise AnsibleActionFail(no_host_group(host, variables["group_names"], known))
        profile, service = (str(self._task.args.get(key) or "") for key in ("profile", "service"))
        declared = {name: str(view.get("ironserve_profile", "")) for name, view in views(site).items()}
        problems = Problems()
        extra = load_extra_vars(self._loader)
        check_extra_variables(extra, problems)
        if accept := str(extra.get("accept") or ""):
            for wrong in parse_accept(accept, knowledge.catalogue(ROOT))[1]:
                problems.add("-e", "accept", wrong)
        further = [folder] if (folder := str(self._task.args.get("profile_folder") or "")) else []
        for name in () if further else TUNES:  # no tune asks: what is declared would be deployed without a word
            if name in extra:
                problems.add("-e", name, "is for playbooks/tune.yml: to deploy one profile say profile=NAME")
        sources = read_profiles([*_texts(site.get("ironserve_profile_paths")), *further], problems)
        profiles = {profile or declared[name] for name in meant(site, service)}
        locks = read_locks(_engine_locks(site.get("ironserve_locks"), profiles, sources), problems)
        groups, own = variables["groups"], str(site["ironserve_host_group"])
        inventory = Inventory(groups, groups["all"], own, variables["group_names"])
        for name in sorted(profiles):
            check_names(name, sources, inventory, problems)
        origins: list[dict[str, Any]] = []
        releases = resolve_host(
            host, service, profile, site, sources, locks, problems, origins, knowledge.engine_logs(ROOT)
        )
        roll = {} if problems else rollout.settings(site, groups, host, problems)
        answer = {**result, "changed": False, "services": declared}
        if problems:
            what = f'profile "{profiles.pop()}"' if len(profiles) == 1 else "what the inventory says"
            told = problems.report(f"host {host}: {what} cannot be deployed, nothing was touched")
            return {**answer, "failed": True, "msg": told, "problems": problems.found}
        return {**answer, "releases": releases, "origins": origins, "roll": roll}


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _engine_locks(named: Any, profiles: set[str], sources: dict[str, Source]) -> dict[str, str]:
    """Of the site's locks only those that the profiles' engines need: a broken lock of another does not matter."""
    engines = {engine_of(profile, sources) for profile in profiles}
    return {key: str(value) for key, value in named.items() if key in engines} if isinstance(named, dict) else {}
