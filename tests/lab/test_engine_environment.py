"""Engine environments on a real host: built once, whole or not at all, whatever happens meanwhile.

The lock is made here, of two small packages of the index and a shim that plays the engine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
LOCK = """\
engine: vllm
engine_version: "1.0"
python: "3.11"
platform: manylinux_2_28_x86_64
requires: [six, idna]
shims: [{name: vllm, version: "1.0", why: It plays the engine.}]
"""
PLAY = [{"hosts": "h1", "gather_facts": False, "roles": ["engine_environment"]}]
# Holds every build until the file is there: systemd reads such a drop-in for all units whose names begin like this.
HOLD = "/etc/systemd/system/ironserve-environment-.service.d/hold.conf"
GO = "/var/tmp/go"
HELD = f"[Service]\nExecStartPre=/bin/sh -c 'until [ -e {GO} ]; do sleep 0.05; done'\n"

# A package index of static pages; with PASSWORD set, nobody may read it who does not name that user and password.
INDEX = """\
import base64, functools, http.server, os, sys
class Index(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        wanted = "Basic " + base64.b64encode(os.environ["PASSWORD"].encode()).decode()
        if not os.environ["PASSWORD"] or self.headers.get("Authorization") == wanted:
            return super().do_GET()
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic")
        self.end_headers()
    do_HEAD = do_GET
handler = functools.partial(Index, directory="/srv/wheelhouse")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()
"""


class Site:
    """A host, a lock, a wheelhouse that the host sees, and the playbook that brings them together."""

    def __init__(self, lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.lock = folder / "tiny-1.0"
        self.house = folder / "wheelhouse"
        self.lock.mkdir()
        (self.lock / "lock.yml").write_text(LOCK)
        self.tool("relock.py", self.lock)
        self.tool("wheelhouse.py", self.lock, "--to", self.house)
        self.tool("wheelhouse.py")
        self.id = next(self.house.glob("tiny-*")).name
        self.unit = f"ironserve-environment-{self.id}.service"
        (folder / "play.yml").write_text(json.dumps(PLAY))
        lab.up(1, binds=[f"{self.house}:/srv/wheelhouse:ro"])

    def tool(self, name: str, *arguments: object) -> None:
        subprocess.run([sys.executable, ROOT / "tools" / name, *map(str, arguments)], check=True, timeout=300)

    def start(self, root: str, *options: str, **variables: object) -> subprocess.Popen[str]:
        values = {"engine_environment_lock": str(self.lock), "engine_environment_wheelhouse": "/srv/wheelhouse"}
        values |= {"engine_environment_root": root, **variables}
        command = [PROGRAMS / "ansible-playbook", "-i", self.lab.inventory, self.folder / "play.yml", *options]
        return subprocess.Popen(
            [*command, "-e", json.dumps(values)],
            cwd=ROOT, env={**os.environ, "ANSIBLE_STDOUT_CALLBACK": "default"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def end(self, play: subprocess.Popen[str]) -> str:
        output, _ = play.communicate(timeout=120)
        return f"rc={play.returncode}\n{output}"

    def run(self, root: str, *options: str, **variables: object) -> str:
        return self.end(self.start(root, *options, **variables))

    def on_host(self, script: str) -> str:
        return self.lab.exec("h1", ["sh", "-c", script], check=False).stdout.strip()

    def wait(self, script: str, wanted: str) -> None:
        deadline = time.monotonic() + 60
        while (found := self.on_host(script)) != wanted:
            assert time.monotonic() < deadline, f"{script}: {found}, not {wanted}"
            time.sleep(0.1)

    def wait_for_build(self) -> None:
        self.wait(f"systemctl show -P ActiveState {self.unit}", "activating")

    def works(self, root: str) -> bool:
        return self.on_host(f"{root}/{self.id}/bin/python -c 'import six, idna; print(1)'") == "1"


@pytest.fixture(scope="module")
def site(make_lab, tmp_path_factory) -> Site:
    return Site(make_lab("-environment"), tmp_path_factory.mktemp("site"))


@pytest.fixture
def held(site: Site):
    """Builds start and do not get on until `touch GO`."""
    site.on_host(f"rm -f {GO}; mkdir -p $(dirname {HOLD}); cat > {HOLD} <<'E'\n{HELD}E\nsystemctl daemon-reload")
    yield site
    site.on_host(f"rm -r $(dirname {HOLD}); touch {GO}; systemctl daemon-reload")


@pytest.fixture
def harmed(site: Site):
    """A wheelhouse that a test may harm; afterwards it is whole again."""
    whole = site.folder / "whole"
    shutil.copytree(site.house / site.id, whole)
    yield site
    for file in (site.house / site.id).iterdir():
        file.unlink()
    shutil.copytree(whole, site.house / site.id, dirs_exist_ok=True)
    shutil.rmtree(whole)


def changed(output: str, times: int) -> bool:
    return output.startswith("rc=0") and f"changed={times} " in output


def test_check_mode_touches_nothing_then_it_is_built_once(site: Site):
    root = "/opt/ironserve/engines"
    assert changed(site.run(root, "--check"), 1)
    assert site.on_host("ls /opt/ironserve") == ""
    assert changed(site.run(root), 1)
    assert site.works(root)
    before = site.on_host(f"stat -c '%i %Z' {root}/{site.id}")
    assert changed(site.run(root), 0)
    assert changed(site.run(root, "--check"), 0)
    assert site.on_host(f"stat -c '%i %Z' {root}/{site.id}") == before
    assert site.on_host(f"systemctl show -P LoadState {site.unit}") == "not-found"
    assert site.on_host(f"ls -A {root}/.building") == ""


def test_another_user_runs_it_and_cannot_change_it(site: Site):
    path = f"/opt/ironserve/engines/{site.id}"
    site.run("/opt/ironserve/engines")
    assert site.on_host(f"runuser -u nobody -- {path}/bin/python -c 'import six, idna; print(six.__name__)'") == "six"
    assert site.on_host(f"runuser -u nobody -- find {path} ! -type l -writable") == ""
    assert site.on_host(f"runuser -u nobody -- find {path} ! -type l ! -readable") == ""
    assert site.on_host(f"find {path} -name '*.pyc' | grep -c six") == "1"


def test_a_killed_build_is_told_and_never_used(held: Site):
    play = held.start("/opt/killed")
    held.wait_for_build()
    held.on_host(f"systemctl kill --signal=KILL {held.unit}")
    output = held.end(play)
    assert output.startswith("rc=2")
    assert "the build was killed" in output
    assert held.on_host(f"ls /opt/killed/{held.id}") == ""
    held.on_host(f"touch {GO}")
    assert changed(held.run("/opt/killed"), 1)
    assert held.works("/opt/killed")


def test_a_build_outlives_its_play_and_the_next_one_attaches(held: Site):
    starts = f"journalctl -o cat -u {held.unit} | grep -c ^Starting"
    before = int(held.on_host(starts))
    first = held.start("/opt/attached")
    held.wait_for_build()
    os.killpg(first.pid, signal.SIGKILL)  # lint_kill: the run's own group, it has a session of its own
    first.wait()
    second = held.start("/opt/attached")
    held.wait("pgrep -fc ^/usr/bin/python3$", "2")  # the slice that the first one left behind, and the second's
    held.on_host(f"touch {GO}")
    assert held.end(second).startswith("rc=0")
    assert held.works("/opt/attached")
    assert int(held.on_host(starts)) == before + 1


def test_two_plays_share_one_build(held: Site):
    plays = [held.start("/opt/shared") for _ in range(2)]
    held.wait_for_build()
    held.on_host(f"touch {GO}")
    assert all(changed(held.end(play), 1) for play in plays)
    assert held.works("/opt/shared")


def test_a_reboot_in_the_middle_starts_it_afresh_in_the_same_play(held: Site):
    play = held.start("/opt/rebooted")
    held.wait_for_build()
    held.lab.reboot("h1")
    held.on_host(f"touch {GO}")
    output = held.end(play)
    assert "connection lost" in output, output
    assert changed(output, 1)
    assert held.works("/opt/rebooted")


@pytest.mark.parametrize(
    "harm", ["rm $(find {path} -name six.py)", "ln -sf /nowhere {path}/bin/python", "rm {path}/ironserve.json"]
)
def test_a_broken_one_is_moved_aside_and_built_again(site: Site, harm: str):
    root = "/opt/broken"
    site.run(root)
    site.on_host(harm.format(path=f"{root}/{site.id}"))
    output = site.run(root, "-v")
    assert changed(output, 1)
    assert "move the broken one aside" in output
    assert site.works(root)
    assert site.on_host(f"ls {root}/.broken") == site.id


def test_a_wheel_that_is_not_the_locked_one_is_refused(harmed: Site):
    wheel = next((harmed.house / harmed.id).glob("vllm-*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    output = harmed.run("/opt/mismatch")
    assert output.startswith("rc=2")
    assert "Hash mismatch for `vllm==1.0`" in output
    assert harmed.on_host(f"ls /opt/mismatch/{harmed.id}") == ""


def test_a_missing_wheel_is_named(harmed: Site):
    next((harmed.house / harmed.id).glob("six-*.whl")).unlink()
    output = harmed.run("/opt/missing")
    assert output.startswith("rc=2")
    assert "six was not found" in output
    assert "run tools/wheelhouse.py" in output


def test_too_little_space_is_told_before_anything_is_built(site: Site):
    site.on_host("mkdir -p /opt/small && mount -t tmpfs -o size=20m small /opt/small")
    output = site.run("/opt/small/engines")
    assert output.startswith("rc=2")
    assert "/opt/small/engines has 20 MiB free, and needs" in output
    assert site.on_host("ls -A /opt/small/engines/.building") == ""


def test_a_python_that_the_host_lacks_is_told_with_those_that_it_has(site: Site):
    other = site.folder / "tiny-other"
    shutil.copytree(site.lock, other)
    (other / "lock.yml").write_text(LOCK.replace("3.11", "3.14"))
    output = site.run("/opt/other", engine_environment_lock=str(other))
    assert output.startswith("rc=2")
    assert "no Python 3.14 on this host (found: /usr/bin/python3.11 (3.11))" in output


@pytest.fixture(scope="module")
def index(site: Site) -> Site:
    """The host has two package indexes on its loopback: one for everybody, and a mirror that wants a password."""
    simple = site.house / "simple"
    for wheel in (site.house / site.id).glob("*.whl"):
        package = simple / wheel.name.split("-")[0]
        package.mkdir(parents=True)
        shutil.copy(wheel, package)
        (package / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    (site.house / "index.py").write_text(INDEX)
    for port, password in ((8099, ""), (8098, "me:hidden")):
        site.on_host(f"systemd-run --setenv PASSWORD={password} python3 /srv/wheelhouse/index.py {port}")
        site.wait(f"python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port})); print(1)'", "1")
    return site


def from_index(address: str, wheelhouse: str = "") -> dict[str, str]:
    return {"engine_environment_wheelhouse": wheelhouse, "engine_environment_index_url": f"http://{address}/simple"}


def test_it_is_built_from_an_index(index: Site):
    assert changed(index.run("/opt/index", **from_index("127.0.0.1:8099")), 1)
    assert index.works("/opt/index")


def test_uv_is_brought_to_a_host_that_uses_a_mirror_and_no_password_is_seen(index: Site):
    output = index.run("/opt/mirror", "-vvv", **from_index("me:hidden@127.0.0.1:8098"))
    assert changed(output, 1)
    assert index.works("/opt/mirror")
    results = output.split("TASK [engine_environment : Have the engine environment of the lock]")[1]
    assert "me:hidden" not in results
    assert index.on_host("journalctl | grep -c me:hidden") == "0"
    assert index.on_host("grep -rl me:hidden /opt/mirror") == ""


def test_a_mirror_that_refuses_is_told_without_the_password(index: Site):
    output = index.run("/opt/refused", **from_index("me:wrong@127.0.0.1:8098"))
    assert output.startswith("rc=2")
    assert "401 Unauthorized" in output
    assert "user name and password in the index address" in output
    assert "me:wrong" not in output
    assert index.on_host("ls /opt/refused/.building/*/index.env") == ""


def test_what_no_index_has_comes_from_the_wheelhouse_beside_it(index: Site):
    half = f"/var/tmp/half/{index.id}"
    index.on_host(f"mkdir -p {half} && cp /srv/wheelhouse/{index.id}/vllm-*.whl {half}")
    (index.house / "simple" / "vllm" / "index.html").write_text("")
    assert changed(index.run("/opt/half", **from_index("127.0.0.1:8099", "/var/tmp/half")), 1)
    assert index.works("/opt/half")
