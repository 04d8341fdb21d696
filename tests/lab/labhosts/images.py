"""Root file systems of the hosts: built once by mmdebstrap, cached, never written again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from .common import LabError, locked, say

SUITES = ("bookworm", "trixie")
DEFAULT_MIRROR = "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

PACKAGES = (
    "acl",
    "ca-certificates",
    "curl",
    "dbus",
    "iproute2",
    "iputils-ping",
    "libgomp1",
    "libnuma1",
    "libpam-systemd",
    "logrotate",
    "openssh-server",
    "procps",
    "psmisc",
    "python3",
    "python3-apt",
    "python3-venv",
    "sudo",
    "systemd",
    "systemd-sysv",
)

# Units that need hardware, a console or a route out, which a lab host lacks, or that mount what is the whole machine's.
MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "getty.target",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-logind.service",
    "systemd-modules-load.service",
    "systemd-networkd-wait-online.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
    "systemd-udev-trigger.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udevd.service",
)

FILES = {
    "etc/machine-id": "",
    "etc/default/locale": "LANG=C.UTF-8\n",
    "etc/resolv.conf": "# The lab has no name server: hosts know each other from /etc/hosts.\n",
    "etc/sudoers.d/admin": "admin ALL=(ALL) NOPASSWD: ALL\n",
    "etc/ssh/sshd_config.d/lab.conf": (
        "UseDNS no\n"
        "PasswordAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
        "MaxStartups 100:30:200\n"
        "HostKey /etc/ssh/ssh_host_ed25519_key\n"
        "# One key opens every login of a lab; each lab makes its own.\n"
        "AuthorizedKeysFile .ssh/authorized_keys /etc/ssh/lab_key.pub\n"
    ),
}

# Run inside the new tree. No host key may be in an image: each host gets its own.
COMMANDS = (
    "useradd --create-home --shell /bin/bash --gid operator operator",  # Debian has the group, not the user
    "useradd --create-home --shell /bin/bash admin",
    "rm -f /etc/ssh/ssh_host_* /var/lib/dbus/machine-id",
    "systemctl set-default multi-user.target",
    "systemctl mask " + " ".join(MASKED),
)

# Nobody reads manuals in a test host, and an image that is never powered off needs no fsync.
MMDEBSTRAP = (
    "--variant=apt",
    "--mode=root",
    '--aptopt=Acquire::Languages "none"',
    "--dpkgopt=force-unsafe-io",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
)


def image(suite: str) -> Path:
    """The folder of the suite's root file system, whether or not it is built; the name changes with the recipe."""
    recipe = json.dumps([suite, PACKAGES, MASKED, FILES, COMMANDS, MMDEBSTRAP], sort_keys=True)
    cache = Path(os.environ.get("IRONSERVE_CACHE") or Path.home() / ".cache" / "ironserve")
    return cache.absolute() / "rootfs" / f"{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def ensure(suite: str) -> Path:
    """Return the suite's image, building it if it is absent."""
    target = image(suite)
    if target.is_dir():
        return target
    with locked(target.with_name(f"{target.name}.lock"), timeout_s=1800):
        if not target.is_dir():  # another may have built it while we waited
            _build(suite, target)
    return target


def _build(suite: str, target: Path) -> None:
    """Build beside `target` and rename at the end: an interrupted build is never used."""
    _require_tools()
    unfinished = target.with_name(f"{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    log = target.with_name(f"{target.name}.log")
    mirror = os.environ.get("IRONSERVE_DEBIAN_MIRROR") or machine_mirror()
    say(f"{suite}: building the image from {mirror} (once, a few minutes); log: {log}")
    # In its own mount and pid namespaces, ended with us: whatever signal ends the build leaves no mount and no process.
    command = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    command += ["mmdebstrap", *MMDEBSTRAP, f"--keyring={KEYRING}", f"--include={','.join(PACKAGES)}"]
    command += [f"--customize-hook=chroot \"$1\" sh -euc '{line}'" for line in COMMANDS]
    started = time.monotonic()
    try:
        _run_with_progress([*command, suite, str(unfinished), mirror], suite, log)
        _write_files(unfinished)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    say(f"{suite}: image ready in {time.monotonic() - started:.0f} s: {target}")


def _require_tools() -> None:
    needs = {"mmdebstrap": shutil.which("mmdebstrap"), "debian-archive-keyring": KEYRING.exists()}
    if missing := [package for package, found in needs.items() if not found]:
        raise LabError(f"building an image needs: apt-get install {' '.join(missing)}")


def _run_with_progress(command: list[str], suite: str, log: Path) -> None:
    """Run to the end; every 5 s say how long it has run and what its log says last."""
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while True:
                try:
                    returncode = process.wait(timeout=5)
                    break
                except subprocess.TimeoutExpired:
                    say(f"{suite}: {time.monotonic() - started:.0f} s: {_last_line(log)}")
        finally:
            process.kill()  # no effect on a process that has ended
            process.wait()
    if returncode != 0:
        raise LabError(f"{suite}: mmdebstrap failed ({returncode}): {_first_error(log)}; see {log}")


def _lines(log: Path) -> list[str]:
    lines = (line.strip() for line in log.read_text(errors="replace").replace("\r", "\n").splitlines())
    return [line for line in lines if line]


def _last_line(log: Path) -> str:
    return _lines(log)[-1][:100] if _lines(log) else ""


def _first_error(log: Path) -> str:
    """The first is the cause; the later ones say that it failed."""
    return next((line for line in _lines(log) if line.startswith("E: ")), _last_line(log))


def _write_files(root: Path) -> None:
    for name, text in FILES.items():
        path = root / name
        path.unlink(missing_ok=True)  # may be a link that leads out of the image
        path.write_text(text)


def machine_mirror() -> str:
    """The archive that this machine's own apt uses, if it is a Debian; else the public one."""
    release = Path("/etc/os-release").read_text()
    if "\nID=debian\n" not in f"\n{release}\n":
        return DEFAULT_MIRROR
    codename = next(
        (line.partition("=")[2].strip('"') for line in release.splitlines() if line.startswith("VERSION_CODENAME=")), ""
    )
    folder = Path("/etc/apt")
    for path in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]:
        if path.suffix in {".list", ".sources"} and path.is_file():
            parse = parse_deb822 if path.suffix == ".sources" else parse_one_line
            for uri, suites, components in parse(path.read_text()):
                if codename in suites and "main" in components:
                    return uri
    return DEFAULT_MIRROR


def parse_deb822(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Each `deb` source of a .sources file: first URI, suites, components."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in lines.split("\n\n"):
        fields = {
            key.strip().lower(): value.split()
            for key, colon, value in (line.partition(":") for line in stanza.splitlines())
            if colon
        }
        if "deb" in fields.get("types", []) and fields.get("enabled") != ["no"] and fields.get("uris"):
            yield fields["uris"][0], fields.get("suites", []), fields.get("components", [])


def parse_one_line(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Each `deb` source of a sources.list file: URI, suite, components."""
    for line in text.splitlines():
        kind, _, rest = line.partition("#")[0].strip().partition(" ")
        if rest.lstrip().startswith("["):
            rest = rest.partition("]")[2]
        words = rest.split()
        if kind == "deb" and len(words) >= 3:
            yield words[0], [words[1]], words[2:]
