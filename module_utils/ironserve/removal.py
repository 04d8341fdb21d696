"""Removing a service from a host: everything that is its own, but for its logs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import host, secrets, systemd

SECRETS = Path(secrets.FOLDER)


class Removal:
    """What is left of a service on this host, in the order in which it goes; the folder that tells of it goes last."""

    def __init__(self, service: str) -> None:
        if not systemd.SERVICE_NAME.fullmatch(service):
            raise RuntimeError(f'"{service}" {systemd.SERVICE_NAME_RULE}')
        self.service, self.unit = service, systemd.unit_name(service)
        units, state = Path(systemd.UNIT_DIRECTORY), host.STATE / service
        self.unit_files = _there(
            [
                *(wants / self.unit for wants in units.glob("*.wants")),
                units / self.unit,
                units / f"{self.unit}.d",
                Path(systemd.GATE_DROP_IN.format(unit=self.unit)).parent,
            ]
        )
        # A service's name has no dot in it: "chat.*" belongs to no other.
        own = [*SECRETS.glob(f"{service}.*"), *host.RUNTIME.glob(f"{service}.*"), host.RUNTIME / service, state]
        self.files = _there(own)
        self.logs = sorted(str(log) for log in host.LOGS.glob(f"{service}.log*"))

    def result(self) -> dict[str, Any]:
        """The module's answer, JSON-plain."""
        actions = [f"remove {path}" for path in (*self.unit_files, *self.files)]
        return {"changed": bool(actions), "actions": actions, "kept": self.logs}

    def carry_out(self) -> None:
        """Remove it all. A service that still runs is refused: its unit is what would stop it."""
        state = host.show(self.unit).get("ActiveState", "inactive")
        if state not in ("inactive", "failed"):
            raise RuntimeError(f"{self.unit} is {state}: stop it first")
        for path in self.unit_files:
            _remove(path)
        if self.unit_files:
            host.systemctl("daemon-reload")
            host.forget_starts(self.unit)
        for path in self.files:
            _remove(path)


def _there(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.exists() or path.is_symlink()]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
