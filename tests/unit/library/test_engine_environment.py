"""The module as Ansible runs it, with the real uv and small wheels made here; only systemd is a stand-in."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import shim_wheel
from ansible.module_utils.ironserve import host

PYTHON = "{}.{}".format(*sys.version_info)
UV = Path(sys.executable).with_name("uv")
LOCK_ID = "tiny-1.0-0123456789ab"

# One file plays systemd-run, systemctl and the manager: a unit is a folder with its pid and how it ended.
SYSTEMD = """\
#!{python}
import json, os, pathlib, shutil, signal, subprocess, sys
UNITS = pathlib.Path("{units}")
def unit(name): return UNITS / name
def run(words):
    options, argv = [word for word in words if word.startswith("--")], words
    while argv[0].startswith("--"): argv = argv[1:]
    values = dict(word[2:].split("=", 1) for word in options if "=" in word and not word.startswith("--property"))
    properties = dict(word[11:].split("=", 1) for word in options if word.startswith("--property="))
    environment = dict(word[9:].split("=", 1) for word in options if word.startswith("--setenv="))
    folder = unit(values["unit"])
    if folder.exists(): sys.exit("Unit " + folder.name + " was already loaded")
    folder.mkdir(parents=True)
    (folder / "argv").write_text(json.dumps(words))
    log = open(properties["StandardOutput"][5:], "w")
    secrets = open(properties["EnvironmentFile"]).read()
    if os.fork(): return
    os.setsid()
    for stream in (0, 1, 2): os.dup2(log.fileno(), stream)
    process = subprocess.Popen(argv, env={{**os.environ, **environment}})
    (folder / "pid").write_text(str(process.pid))
    status = process.wait()
    (folder / "result").write_text("success" if status == 0 else "signal" if status < 0 else "exit-code")
def show(name):
    folder = unit(name)
    if not folder.exists(): return print("LoadState=not-found", "ActiveState=inactive", "Job=", sep="\\n")
    result = (folder / "result").read_text() if (folder / "result").exists() else None
    state = {{None: ("activating", "start"), "success": ("active", "exited")}}.get(result, ("failed", "failed"))
    print("LoadState=loaded", "ActiveState=" + state[0], "SubState=" + state[1], "Result=" + str(result),
          "InvocationID=" + str(folder.stat().st_ino), sep="\\n")
def stop(name):
    if (unit(name) / "result").exists() and (unit(name) / "result").read_text() == "success": shutil.rmtree(unit(name))
if sys.argv[0].endswith("systemd-run"): run(sys.argv[1:])
elif sys.argv[1] == "show": show(sys.argv[2])
elif sys.argv[1] == "stop": stop(sys.argv[2])
elif sys.argv[1] == "reset-failed": shutil.rmtree(unit(sys.argv[2]))
else: sys.exit("not played: " + str(sys.argv))
"""


class Host:
    """A folder that stands for a host, and the arguments of a lock of two packages."""

    def __init__(self, folder: Path, run_module) -> None:
        self.folder, self.run_module = folder, run_module
        self.root, self.units, self.wheelhouse = folder / "engines", folder / "units", folder / "wheelhouse"
        self.path = self.root / LOCK_ID
        self.building = self.root / ".building" / LOCK_ID
        self.wheels = self.wheelhouse / LOCK_ID
        self.wheels.mkdir(parents=True)
        pins = [
            f"{name}=={version} --hash=sha256:{self.add_wheel(name, version)}"
            for name, version in (("alpha", "1.0"), ("beta", "2.0"))
        ]
        (self.wheelhouse / "uv").mkdir()
        uv = io.BytesIO()
        with zipfile.ZipFile(uv, "w") as archive:
            archive.writestr("uv-0.1.data/scripts/uv", f'#!/bin/sh\nexec {UV} "$@"\n')
        (self.wheelhouse / "uv" / "uv.whl").write_bytes(uv.getvalue())
        self.arguments = {
            "lock_id": LOCK_ID,
            "python": PYTHON,
            "platform": "manylinux_2_17_x86_64",
            "requirements": "".join(f"{pin}\n" for pin in pins),
            "uv": {"version": "0.1", "file": "uv.whl", "sha256": hashlib.sha256(uv.getvalue()).hexdigest()},
            "wheelhouse": str(self.wheelhouse),
            "root": str(self.root),
            "timeout_s": 60,
        }

    def add_wheel(self, name: str, version: str) -> str:
        file = self.wheels / shim_wheel.file_name(name, version)
        file.write_bytes(shim_wheel.build(name, version, "for tests"))
        with zipfile.ZipFile(file, "a") as wheel:
            module = zipfile.ZipInfo(f"{name}/__init__.py")
            module.external_attr = 0o100600 << 16
            wheel.writestr(module, f"VERSION = {version!r}\n")
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def run(self, check: bool = False, **arguments) -> dict:
        return self.run_module("engine_environment", check=check, **{**self.arguments, **arguments})

    def snapshot(self) -> list[tuple[str, int]]:
        return sorted((str(path), path.lstat().st_mtime_ns) for path in self.folder.rglob("*"))

    def python(self, code: str) -> str:
        return host.run([str(self.path / "bin" / "python"), "-c", code]).out.strip()


@pytest.fixture
def target(tmp_path: Path, run_module, monkeypatch) -> Host:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("systemctl", "systemd-run"):
        (programs / name).write_text(SYSTEMD.format(python=sys.executable, units=tmp_path / "units"))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin")
    return Host(tmp_path, run_module)


def test_a_fresh_host_gets_the_whole_environment(target: Host):
    result = target.run()
    assert result["changed"]
    assert result["path"] == str(target.path)
    assert result["actions"] == [
        f"unpack uv 0.1 to {target.root}/.uv/0.1/uv",
        f"build {target.path} with 2 packages from the wheelhouse {target.wheels}",
    ]
    assert result["slice"]["done"]
    assert target.python("import alpha, beta; print(alpha.VERSION, beta.VERSION)") == "1.0 2.0"
    manifest = json.loads((target.path / "ironserve.json").read_text())
    assert manifest["lock_id"] == LOCK_ID
    assert manifest["files"]["alpha"] == 1
    assert result["python"] == manifest["python"]
    assert manifest["python"].startswith(f"{PYTHON}.")
    assert list(target.path.rglob("alpha/__pycache__/*.pyc"))
    assert not target.building.exists()
    assert not list(target.units.glob("*"))


def test_every_user_may_read_it_and_only_root_may_write(target: Host):
    target.run()
    for path in [target.path, *target.path.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            assert mode & 0o044 == 0o044, path
            assert mode & 0o022 == 0, path
            assert not path.is_dir() or mode & 0o011 == 0o011, path


def test_a_finished_one_is_left_alone_without_uv_and_wheels(target: Host):
    target.run()
    shutil.rmtree(target.root / ".uv")
    shutil.rmtree(target.wheelhouse)
    before = target.snapshot()
    result = target.run()
    assert not result["changed"]
    assert result["actions"] == []
    assert result["python"]
    assert target.snapshot() == before
    assert not target.run(check=True)["changed"]


def test_check_mode_tells_the_same_plan_and_touches_nothing(target: Host):
    before = target.snapshot()
    planned = target.run(check=True)
    assert target.snapshot() == before
    assert planned["changed"]
    assert planned["problems"] == []
    assert planned["actions"] == target.run()["actions"]


def test_check_mode_tells_what_stands_in_the_way(target: Host):
    result = target.run(check=True, python="3.1", wheelhouse=str(target.folder / "nowhere"))
    assert "no Python 3.1 on this host" in result["problems"][0]
    assert "nowhere/tiny-1.0-0123456789ab is not on this host" in result["problems"][1]


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"python": "3.1"}, "no Python 3.1 on this host"),
        ({"installed_mib": 10**9}, "MiB free, and needs 1000000000 MiB"),
        ({"wheelhouse": "/nowhere"}, "is not on this host"),
    ],
)
def test_what_stands_in_the_way_is_a_failure_before_anything_is_built(target: Host, wish: dict, said: str):
    result = target.run(**wish)
    assert result["failed"]
    assert said in result["msg"]
    assert not target.building.exists()


def test_a_host_without_uv_asks_for_it(target: Host):
    wheel = target.folder / "brought.whl"
    (target.wheelhouse / "uv" / "uv.whl").rename(wheel)
    result = target.run()
    assert (result["changed"], result["uv_wanted"]) == (False, "uv.whl")
    assert target.run(uv_wheel=str(wheel))["changed"]


def test_another_uv_than_the_pinned_one_is_refused(target: Host):
    (target.wheelhouse / "uv" / "uv.whl").write_bytes(b"another")
    result = target.run()
    assert "is not the uv that is pinned" in result["msg"]
    assert not (target.root / ".uv").exists()


def test_a_file_that_is_not_the_locked_one_is_never_used(target: Host):
    target.add_wheel("beta", "2.0")
    with zipfile.ZipFile(target.wheels / shim_wheel.file_name("beta", "2.0"), "a") as wheel:
        wheel.writestr("beta/more.py", "")
    result = target.run()
    assert result["failed"]
    assert "beta" in result["msg"]
    assert "Hash mismatch" in result["msg"]
    assert Path(result["log"]).exists()
    assert not target.path.exists()


def test_a_missing_wheel_is_named_and_the_next_run_starts_afresh(target: Host):
    wheel = target.wheels / shim_wheel.file_name("beta", "2.0")
    wheel.rename(target.folder / "hidden")
    result = target.run()
    assert "beta was not found" in result["msg"]
    assert "tools/wheelhouse.py" in result["msg"]
    (target.folder / "hidden").rename(wheel)
    assert target.run()["changed"]
    assert target.python("import beta; print(beta.VERSION)") == "2.0"


@pytest.mark.parametrize("harm", ["interpreter", "file", "extra", "manifest"])
def test_a_broken_one_is_moved_aside_and_built_again(target: Host, harm: str):
    target.run()
    alpha = next(target.path.rglob("alpha/__init__.py"))
    if harm == "interpreter":
        (target.path / "bin" / "python").unlink()
    elif harm == "file":
        alpha.unlink()
    elif harm == "extra":
        alpha.with_name("added.py").touch()
    else:
        (target.path / "ironserve.json").write_text("{")
    result = target.run()
    assert result["changed"]
    assert f"move the broken one aside to {target.root}/.broken/{LOCK_ID}: " in result["actions"][-1]
    assert target.python("import alpha; print(alpha.VERSION)") == "1.0"
    assert (target.root / ".broken" / LOCK_ID).is_dir()
    assert not target.run()["changed"]


def test_what_an_interrupted_build_left_is_not_used(target: Host):
    left = target.building / "env" / "lib"
    left.mkdir(parents=True)
    (left / "half").touch()
    assert target.run()["changed"]
    assert not list(target.root.rglob("half"))


def test_the_end_of_a_slice_is_not_the_end_of_the_build(target: Host):
    holder = target.root / ".uv" / "0.1" / "uv"
    holder.parent.mkdir(parents=True)
    gate = target.folder / "gate"
    holder.write_text(f'#!/bin/sh\n[ $1 = venv ] || while [ ! -e {gate} ]; do sleep 0.05; done\nexec {UV} "$@"\n')
    holder.chmod(0o755)
    first = target.run(slice_s=0.1)
    assert not first["slice"]["done"]
    assert first["slice"]["phase"] == "unpacking"
    attached = target.run(slice_s=0.1)
    assert attached["slice"]["cursor"] == {"invocation": first["slice"]["cursor"]["invocation"]}
    gate.touch()
    last = target.run(slice_s=15, cursor=first["slice"]["cursor"])
    assert last["slice"]["done"]
    assert last["changed"]
    assert last["actions"] == [f"build {target.path} with 2 packages from the wheelhouse {target.wheels}"]


def test_a_failure_of_yesterday_is_not_reported_today(target: Host):
    wheel = target.wheels / shim_wheel.file_name("beta", "2.0")
    wheel.rename(target.folder / "hidden")
    failed = target.run(slice_s=0)
    assert failed["failed"]
    (target.folder / "hidden").rename(wheel)
    assert target.run(slice_s=15)["changed"]


def test_the_address_of_an_index_is_in_no_argument_and_no_result(target: Host):
    address = "https://me:secret@127.0.0.1:1/simple"
    arguments = {**target.arguments, "wheelhouse": None, "index_url": address}
    uv = target.folder / "brought.whl"
    (target.wheelhouse / "uv" / "uv.whl").rename(uv)
    seen: list[str] = []
    secrets = target.building / "index.env"

    def look() -> None:
        while not stop.is_set():
            if secrets.exists() and not seen:
                seen.append(oct(secrets.stat().st_mode & 0o777))

    stop = threading.Event()
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        result = target.run_module("engine_environment", **arguments, uv_wheel=str(uv))
    finally:
        stop.set()
        watcher.join()
    assert "secret" not in json.dumps(result)
    assert seen == ["0o600"]
    assert not secrets.exists()
    assert "secret" not in "".join(path.read_text() for path in target.units.glob("*/argv"))
