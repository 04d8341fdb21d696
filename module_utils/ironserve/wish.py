"""What an inventory wishes of a host: its services, each with a release. Pure, as ``resolve.py`` is.

A service is a view of the host's variables: what it says itself stands in the place of what the host says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .problems import Problems, unknown
from .profiles import Source
from .resolve import resolve
from .site import PREFIX, SERVICE_KEYS, VARIABLES, check_site
from .systemd import SERVICE_NAME, SERVICE_NAME_RULE

DEFAULT = "main"
"""The one service of a host whose inventory names none."""

HEX = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
UUID = re.compile(rf"(GPU|MIG)-{HEX}|MIG-GPU-{HEX}/\d+/\d+")
"""As ``nvidia-smi -L`` prints them; the last form is that of drivers before 470."""

HOW_TO_NAME_GPUS = "name GPUs by UUID, whole, as nvidia-smi -L prints them: GPU-…, MIG-…"


def own_values(site: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What each service of the host says itself, by name. A mapping without any means a host without services."""
    named = site.get("ironserve_services")
    if not isinstance(named, Mapping):
        return {DEFAULT: {}}
    texts = {str(name): own if isinstance(own, Mapping) else {} for name, own in named.items()}
    return dict(sorted(texts.items()))


def views(site: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The site's variables as each service of the host sees them. Sizes are merged, all else is replaced."""
    found = {}
    for name, own in own_values(site).items():
        view = {**site, **{f"{PREFIX}{key}": value for key, value in own.items()}}
        if isinstance(site.get("ironserve_sizes"), Mapping) and isinstance(own.get("sizes"), Mapping):
            view["ironserve_sizes"] = {**site["ironserve_sizes"], **own["sizes"]}
        found[name] = view
    return found


def meant(site: Mapping[str, Any], service: str) -> dict[str, dict[str, Any]]:
    """The views of the services that a run means: the one that ``-e service=`` names, else all."""
    return {name: view for name, view in views(site).items() if service in ("", name)}


def names(site: Mapping[str, Any], service: str = "") -> list[str]:
    """The services of the host, or the one that is meant. Raises ValueError for one that the host does not have."""
    known = list(own_values(site))
    if service and service not in known:
        raise ValueError(unknown("service", service, known))
    return [service] if service else known


def resolve_host(
    host: str,
    service: str,
    profile: str,
    site: Mapping[str, Any],
    sources: Mapping[str, Source],
    locks: Mapping[str, Mapping[str, Any]],
    problems: Problems,
    origins: list[dict[str, Any]] | None = None,
    engine_logs: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """A release for each service that is meant, by name; none when anything is wrong, and ``problems`` says what.

    Args:
        host: inventory name, for messages.
        service: name of the one service that is meant; empty means all of the host.
        profile: name of the profile; empty takes the one that the inventory declares for the service.
        site: the host's variables that begin with ``ironserve_``.
        sources: every known profile by name.
        locks: the locks of the engines, see ``resolve``.
        problems: receives everything that is wrong.
        origins: receives for each release where its values come from, in the same order; see ``resolve``.
        engine_logs: what the engines' logs say, see ``resolve``.
    """
    where, all_views = f"host {host}", views(site)
    check_site(site, where, problems)
    check_services(site, where, problems)
    if service and service not in all_views:
        problems.add(where, "service", unknown("service", service, all_views))
        return []
    if profile and not service and len(all_views) > 1:
        problems.add(
            where, "profile", f'"{profile}" is for one service: add -e service= and one of {_listed(all_views)}'
        )
        return []
    releases = []
    for name, view in meant(site, service).items():
        wished = profile or view.get("ironserve_profile")
        if wished:
            known: dict[str, Any] = {}
            releases.append(resolve(host, name, str(wished), view, sources, locks, problems, known, engine_logs))
            if origins is not None:
                origins.append(known)
        else:
            problems.add(where, _key(site, name, "profile"), "is not set, and no -e profile= was given")
    return [] if problems else [release for release in releases if release]


def check_services(site: Mapping[str, Any], where: str, problems: Problems) -> None:
    """What the services of a host miss, and in what two of them are in each other's way."""
    for name, view in views(site).items():
        if not SERVICE_NAME.fullmatch(name):
            problems.add(where, "ironserve_services", f'"{name}" {SERVICE_NAME_RULE}')
        for key in SERVICE_KEYS:
            variable = VARIABLES[f"{PREFIX}{key}"]
            if variable.required and f"{PREFIX}{key}" not in view:
                problems.add(where, _key(site, name, key, wanted=True), f"is not set: {variable.about}")
    _check_ports(site, where, problems)
    _check_gpus(site, where, problems)


def _check_ports(site: Mapping[str, Any], where: str, problems: Problems) -> None:
    holders: dict[int, list[str]] = {}
    for name, view in views(site).items():
        if isinstance(view.get("ironserve_port"), int):
            holders.setdefault(view["ironserve_port"], []).append(name)
    for port, names in holders.items():
        if len(names) > 1:
            keys = {_key(site, name, "port") for name in names}
            problems.add(where, _listed(keys), f"services {_listed(names)} have port {port}: give each one of its own")


def _check_gpus(site: Mapping[str, Any], where: str, problems: Problems) -> None:
    hardware = site.get("ironserve_hardware")
    count = hardware.get("gpu_count") if isinstance(hardware, Mapping) else None
    holders: dict[str, list[str]] = {}
    for name, view in (all_views := views(site)).items():
        said, key = view.get("ironserve_gpus"), _key(site, name, "gpus")
        gpus = [str(gpu) for gpu in said] if isinstance(said, list) else []
        if not said and len(all_views) > 1 and count:
            problems.add(
                where,
                _key(site, name, "gpus", wanted=True),
                f"is not set: of several services on a host with GPUs each has its own; {HOW_TO_NAME_GPUS}",
            )
        for gpu in dict.fromkeys(gpus):
            if not UUID.fullmatch(gpu):
                problems.add(where, key, _no_uuid(gpu))
                continue
            holders.setdefault(gpu, []).append(name)
            if gpus.count(gpu) > 1:
                problems.add(where, key, f"names {gpu} twice")
    for gpu, names in holders.items():
        if len(names) > 1:
            keys = {_key(site, name, "gpus") for name in names}
            problems.add(where, _listed(keys), f"services {_listed(names)} have {gpu}: a GPU belongs to one service")
    whole = [gpu for gpu in holders if gpu.startswith("GPU-")]
    if isinstance(count, int) and len(whole) > count:
        problems.add(
            where, "ironserve_hardware.gpu_count", f"is {count}, and the host's services name {len(whole)} GPUs"
        )


def _no_uuid(gpu: str) -> str:
    why = "is an index, and indices change with a reboot, a driver or a card" if gpu.isdigit() else "is no UUID"
    return f'"{gpu}" {why}: {HOW_TO_NAME_GPUS}'


def _key(site: Mapping[str, Any], service: str, key: str, wanted: bool = False) -> str:
    """The variable that says ``key`` of a service, or, where it is ``wanted``, should say it."""
    named = isinstance(site.get("ironserve_services"), Mapping)
    own = named and (wanted or key in own_values(site).get(service, {}))
    return f"ironserve_services.{service}.{key}" if own else f"{PREFIX}{key}"


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names)))
