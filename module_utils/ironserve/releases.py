"""A service's releases on a host: what is staged, active and last-known-good, and the steps from here to a wish."""

from __future__ import annotations

import grp
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import host, ledger, revert, runtime, secrets, systemd
from .render import changed_directives, render_id, staged_id

HASH_KEY = Path(secrets.FOLDER) / ".hash-key"
"""A secret of this host, with which it hashes secrets."""


@dataclass(frozen=True)
class State:
    """What is on the host.

    Attributes:
        staged: whether the wished release is staged and whole.
        active, good: folder names of the active release and of the last-known-good, or None.
        release: the active release.
        unit: text of the unit in its place, or None.
        show: properties of the unit.
        gated: whether the gate still holds back restarts (its drop-in is there).
        current: whether the process that runs was started from the active release.
        stale: files that all services share (the launcher) and that are not those of this version.
        secrets: whether the files of the service's secrets are as wished.
        before: the release that was active before while its process ran: ``release`` (folder), ``activated`` (time of
            its activation) and ``started`` (start of that process, as the unit shows it).
        expected_s: how long the last good start took, of the wished release if it had one.
    """

    staged: bool
    active: str | None
    good: str | None
    release: Mapping[str, Any]
    unit: str | None
    show: Mapping[str, str]
    gated: bool
    current: bool
    stale: Sequence[str]
    secrets: bool
    before: Mapping[str, Any] = field(default_factory=dict)
    expected_s: float | None = None

    @property
    def running(self) -> bool:
        """Whether the unit has a process."""
        return self.show.get("MainPID", "0") != "0"


@dataclass
class Plan:
    """The steps to a wished state, and what is said about them."""

    state: State
    wished: str
    release: Mapping[str, Any]
    unit: str
    share: bool = False
    stage: bool = False
    write: bool = False
    write_secrets: bool = False
    activate: bool = False
    prove: bool = False
    reverts: bool = False
    reasons: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    unit_path: str = ""

    @property
    def resumed_at(self) -> float | None:
        """When the wished release was activated, if the process that runs is still its own, else None.

        So it is where an activation is taken back before anything was stopped: nothing has to be restarted for that.
        """
        before = self.state.before
        own = before.get("release") == self.wished and self.state.running
        own = own and before.get("started") == self.state.show.get("ExecMainStartTimestampMonotonic")
        return float(before["activated"]) if own and not self.state.current else None

    @property
    def rewrites(self) -> bool:
        """Whether what a start reads is written: the unit, the secrets, the link to the release."""
        return self.write or self.write_secrets or self.activate or self.resumed_at is not None

    def result(self) -> dict[str, Any]:
        """The module's answer, JSON-plain."""
        answer = {
            "changed": bool(self.actions),
            "release_id": self.wished.split("-")[0],
            "render_id": self.wished.rsplit("-", maxsplit=1)[-1],
            "previous_id": self.state.active or "",
            "last_known_good_id": self.state.good or "",
            "settled": not self.reasons,
            "running": self.state.running,
            "restart": self.state.running and self.resumed_at is None and (self.rewrites or not self.state.current),
            "expected_s": self.state.expected_s,
            "active_port": self.state.release.get("port"),
            "reasons": self.reasons,
            "actions": self.actions,
        }
        if self.write:
            answer["diff"] = {
                "before": self.state.unit or "",
                "after": self.unit,
                "before_header": self.unit_path,
                "after_header": self.unit_path,
            }
        return answer


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two releases, in an operator's words, a line each."""
    found = []
    for key, word in (("engine", "engine"), ("lock_id", "lock"), ("model", "model")):
        if old.get(key) != new.get(key):
            found.append(f"{word}: {old.get(key)} -> {new.get(key)}")
    for key in ("port", "address", "gpus"):
        if key in old and old[key] != new.get(key):
            found.append(f"{key}: {_plain(old[key])} -> {_plain(new.get(key))}")
    if old.get("engine") != new.get("engine"):
        return found  # of another engine every flag is another one
    for key, word in (("flags", "flag --"), ("env", "variable ")):
        before, after = old.get(key, {}), new.get(key, {})
        for name in sorted({*before, *after}):
            old_value, new_value = (_plain(values.get(name, "not set")) for values in (before, after))
            if old_value != new_value:
                found.append(f"{word}{name}: {old_value} -> {new_value}")
    return found


def _plain(value: Any) -> str:
    """A value as the command has it: a list is several words."""
    return " ".join(map(str, value)) or "all" if isinstance(value, list) else str(value)


def side_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two releases without being part of what runs."""
    keys = ("profile", "startup_timeout_s", "stall_timeout_s", "completion_timeout_s")
    return [f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys if old.get(key) != new.get(key)]


def reasons(state: State, wished: str, release: Mapping[str, Any], unit: str) -> list[str]:
    """Why a host is not settled on the wished release; nothing when it is."""
    found: list[str] = []
    aside: list[str] = []
    if state.active is None:
        found.append("no release is active")
    else:
        found += changes(state.release, release)
        aside = side_changes(state.release, release)
    if state.active not in (None, wished) and not found:
        found += [f"unit: {line}" for line in changed_directives(state.unit or "", unit)] or ["the secrets changed"]
    if not state.secrets and not found:
        found.append("the files of the secrets are not those that were activated")
    if render_id(state.unit or "") != render_id(unit) and not found:
        found.append("the unit file is not the one that was activated")
    restarts = bool(found)
    found += aside if restarts else [f"{line} (no restart)" for line in aside]
    if state.active == wished and (state.good != wished or state.gated):
        found.append("the active release has not passed the gate")
    if not state.running:
        found.append(f"the unit is {state.show.get('ActiveState', 'not there')}")
    elif state.active == wished and not state.current:
        found.append("an older release still runs")
    elif state.show.get("ActiveState") == "activating":
        found.append("the server is still starting")
    elif state.show.get("ActiveState") == "deactivating":
        found.append("the server is being stopped")
    elif state.active == wished == state.good and state.show.get("UnitFileState") != "enabled":
        found.append("the unit is not enabled at boot")
    if not found:  # what is deployed anyway brings them along
        found += [f"{path} is not there or of another version (no restart)" for path in state.stale]
    return found


def decide(state: State, wish: str, wished: str, release: Mapping[str, Any], unit: str, unit_path: str) -> Plan:
    """The steps from ``state`` to ``wish`` (present, active or proven)."""
    plan = Plan(state, wished, release, unit, unit_path=unit_path)
    plan.reasons = reasons(state, wished, release, unit)
    write, activate = render_id(state.unit or "") != render_id(unit), state.active != wished
    if wish == "proven":
        # Only check mode still meets what a start would change here: that one is proven then.
        starts = write or activate or not (state.secrets and state.running and state.current)
        plan.prove = state.good != wished or state.gated or state.show.get("UnitFileState") != "enabled" or starts
        if plan.prove:
            plan.actions.append(f"last-known-good {wished}, enabled at boot")
        return plan
    plan.share = bool(state.stale)
    plan.actions += [f"write {path}" for path in state.stale]
    plan.stage = not state.staged
    if plan.stage:
        plan.actions.append(f"stage {wished}")
    if wish == "active":
        plan.write, plan.activate, plan.write_secrets = write, activate, not state.secrets
        if plan.write_secrets:
            said = ", ".join(release.get("secrets", [])) or "none"
            plan.actions.append(f"write the files of the secrets ({said})")
        if plan.write:
            plan.actions.append(f"write {unit_path}")
        if plan.activate:
            plan.actions.append(f"activate {wished}")
    return plan


class Releases:
    """The releases of one service on this host.

    A process belongs to the active release when it started after the last activation. The time of that is kept under
    /run in monotonic seconds, as systemd gives a process's start; after a boot everything started from what is active.
    """

    def __init__(self, service: str, group: str = "ironserve", values: secrets.Values | None = None) -> None:
        """``values``: the service's secrets; None leaves their files as they are."""
        self.service, self.group, self.secrets = service, group, values
        self.hash_key = host.read_bytes(HASH_KEY) or os.urandom(32)
        self.folder = host.STATE / service
        self.unit = systemd.unit_name(service)
        self.unit_path = Path(systemd.UNIT_DIRECTORY) / self.unit
        self.activated = host.RUNTIME / f"{service}.activated"
        self.before = host.RUNTIME / f"{service}.activated-before"
        self.reverting = self.folder / "reverting"
        """Folder of the release that is being put back: a rollback that was cut off goes on with it, and not back."""
        self.drop_in = Path(systemd.GATE_DROP_IN.format(unit=self.unit))

    def active_release(self) -> dict[str, Any]:
        """The active release, empty when there is none."""
        return self._read_release(self.folder / "active")

    @staticmethod
    def _read_release(folder: Path) -> dict[str, Any]:
        text = host.read_text(folder / "release.json")
        return json.loads(text) if text else {}

    def look(self, wished: str, release: Mapping[str, Any]) -> State:
        """What is on the host, with a view to ``release`` in the folder ``wished``."""
        show = host.show(self.unit)
        return State(
            staged=self._read_release(self.folder / "releases" / wished) == release,
            active=host.link_target(self.folder / "active"),
            good=host.link_target(self.folder / "last-known-good"),
            release=self.active_release(),
            unit=host.read_text(self.unit_path),
            show=show,
            gated=self.drop_in.exists(),
            current=self.is_current(show),
            stale=[str(path) for path in runtime.stale()],
            secrets=self._has_secrets(),
            before=json.loads(host.read_text(self.before) or "{}"),
            expected_s=ledger.expected_s(ledger.read(self.folder / "ledger.jsonl"), release["release_id"]),
        )

    def was_edited(self) -> bool:
        """Whether unit or secrets in their places are not the active release's: a deploy writes them, and restarts."""
        staged = host.read_text(self.folder / "active" / self.unit) or ""
        edited = render_id(host.read_text(self.unit_path) or "") != render_id(staged)
        return edited or not self._has_secrets()

    def _has_secrets(self) -> bool:
        return all((host.read_text(path) or "") == text for path, text in self._secret_files())

    def is_current(self, show: Mapping[str, str]) -> bool:
        """Whether the process of the unit, if there is one, was started from the active release."""
        activated = float(host.read_text(self.activated) or 0)
        return int(show.get("ExecMainStartTimestampMonotonic") or 0) / 1e6 >= activated

    def plan(self, wish: str, release: Mapping[str, Any], unit: str) -> Plan:
        """The steps to ``wish`` (present, active or proven)."""
        wished = staged_id(release["release_id"], unit, secrets.digest(self.secrets, self.hash_key))
        return decide(self.look(wished, release), wish, wished, release, unit, str(self.unit_path))

    def plan_staged(self, wish: str, folder: str) -> Plan:
        """The steps to ``wish`` (active or proven) for a release as it is staged in a folder on this host."""
        release, unit = self._read_release(self.folder / "releases" / folder), self._staged_unit(folder)
        if not release or unit is None:
            raise RuntimeError(f"{folder} is not staged on this host")
        return decide(self.look(folder, release), wish, folder, release, unit, str(self.unit_path))

    def plan_reverted(
        self, to: str, other: bool, engine_secrets: Mapping[str, secrets.Values]
    ) -> tuple[Plan | None, str]:
        """Choose the release to put back: the steps to it, or None and why there is none.

        Args:
            to: a release that a person names, see :func:`revert.find`; a ValueError tells when it cannot be put back.
            other: without ``to``, the active one is not wanted in any case.
            engine_secrets: the secrets that the inventory has now, as each engine takes them; used only if the
                files do not have all that the release names.
        """
        records, staged = ledger.read(self.folder / "ledger.jsonl"), self._staged()
        active, good = (host.link_target(self.folder / link) for link in ("active", "last-known-good"))
        if to:
            folder = revert.find(to, records, staged, good)
        else:
            begun = (host.read_text(self.reverting) or "").strip()
            folder = revert.choose(records, staged, active, good, other, begun)
        if not folder:
            none = "no other release was" if other and active and active == good else "no release was"
            return None, f"{none} good on this host before"
        lacking = self._lacking_secrets(staged[folder], engine_secrets)
        if lacking:
            why = (
                f"{folder} ({staged[folder].get('profile')}) cannot be put back: it names the secrets "
                f"{', '.join(lacking)}, which neither the files in {secrets.FOLDER} nor the inventory have any more"
            )
            if to:
                raise ValueError(why)
            return None, why
        plan = self.plan_staged("active", folder)
        plan.reverts = True
        return plan, ""

    def _lacking_secrets(self, release: Mapping[str, Any], engine_secrets: Mapping[str, secrets.Values]) -> list[str]:
        """Names of secrets that a release needs and that are nowhere. Those that are only given are written then.

        What the files have is used: an operator may put a release back without a vault at hand. An engine that
        served meanwhile has files of its own, though: SGLang and vLLM take the same key from different places.
        """
        self.secrets = None
        named = set(release.get("secrets", []))
        texts = {path: host.read_text(Path(path)) or "" for path in secrets.files(self.service, None)}
        lacking = named - secrets.names_in(self.service, texts)
        given = engine_secrets.get(str(release.get("engine")))
        if lacking and given and named <= set(secrets.names(given)):
            self.secrets, lacking = given, set()
        return sorted(lacking)

    def _staged(self) -> dict[str, dict[str, Any]]:
        """The releases that are staged and whole, by folder."""
        folders = sorted((self.folder / "releases").glob("[!.]*"))
        found = {path.name: self._read_release(path) for path in folders if self._staged_unit(path.name) is not None}
        return {name: release for name, release in found.items() if release}

    def _staged_unit(self, folder: str) -> str | None:
        return host.read_text(self.folder / "releases" / folder / self.unit)

    def carry_out(self, plan: Plan) -> None:
        """Do what the plan says. A link moves last, so that an interrupted step is seen as one and done again."""
        os.umask(0o022)  # the engine's user reads releases
        if plan.share:
            runtime.install()
        if secrets.texts(self.secrets) and not HASH_KEY.exists():
            host.write_bytes(HASH_KEY, self.hash_key, mode=0o600)
        if plan.stage:
            self._stage(plan)
        if plan.rewrites:
            if plan.reverts:
                host.write_text(self.reverting, plan.wished)
            self._activate(plan)
            if not plan.reverts:
                self.reverting.unlink(missing_ok=True)
        if plan.prove:
            self._prove(plan)

    def _prove(self, plan: Plan) -> None:
        if plan.state.active != plan.wished:
            raise RuntimeError(f"{plan.wished} is not the active release, {plan.state.active} is")
        self.drop_in.unlink(missing_ok=True)
        host.systemctl("daemon-reload")
        host.forget_starts(self.unit)
        host.systemctl("--quiet", "enable", self.unit)
        host.link(self.folder / "last-known-good", f"releases/{plan.wished}")
        self.reverting.unlink(missing_ok=True)

    def _stage(self, plan: Plan) -> None:
        """Release and verified unit into a folder of their own, whole or not at all."""
        final = self.folder / "releases" / plan.wished
        text = json.dumps(plan.release, indent=2, sort_keys=True) + "\n"
        if host.read_text(final / self.unit) == plan.unit:
            host.write_text(final / "release.json", text)
            return
        parent = self.folder / "releases"
        parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=parent, prefix=".staging-"))
        try:
            (building / self.unit).write_text(plan.unit)
            self._verify(building / self.unit)
            (building / "release.json").write_text(text)
            building.chmod(0o755)
            shutil.rmtree(final, ignore_errors=True)
            building.rename(final)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise

    def _verify(self, path: Path) -> None:
        done = host.run(["systemd-analyze", "verify", str(path)])
        complaints = systemd.verify_complaints(done.err, path.name)
        if complaints:
            raise RuntimeError(f"systemd refuses the unit: {'; '.join(complaints).rstrip('.')}")

    def _activate(self, plan: Plan) -> None:
        group = grp.getgrnam(self.group).gr_gid
        host.LOGS.mkdir(exist_ok=True)
        for folder in (host.LOGS, host.STATE, self.folder, self.folder / "releases"):
            folder.chmod(0o755)  # the helper reads there
        state = plan.state
        if plan.activate and state.active and state.running and state.current:
            activated = float(host.read_text(self.activated) or 0)
            started = state.show.get("ExecMainStartTimestampMonotonic")
            host.write_text(
                self.before, json.dumps({"release": state.active, "activated": activated, "started": started})
            )
        # Before the first file and after the last: cut off in between, what runs counts as older than what is there.
        host.write_text(self.activated, str(time.monotonic()))
        log = host.LOGS / f"{self.service}.log"
        if not log.exists():
            host.write_text(log, "", mode=0o640, group=group)
        self._write_secrets(group)
        host.write_text(self.unit_path, plan.unit)
        host.systemctl("daemon-reload")
        resumed_at = plan.resumed_at
        host.write_text(self.activated, str(time.monotonic() if resumed_at is None else resumed_at))
        host.link(self.folder / "active", f"releases/{plan.wished}")

    def _secret_files(self) -> list[tuple[Path, str]]:
        if self.secrets is None:
            return []
        return [(Path(path), text) for path, text in secrets.files(self.service, self.secrets).items()]

    def _write_secrets(self, group: int) -> None:
        for path, text in self._secret_files():
            if text:
                host.write_text(path, text, mode=0o640, group=group)
            else:
                path.unlink(missing_ok=True)
