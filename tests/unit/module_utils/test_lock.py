"""Locks: what is refused, how it is told, and what an id depends on."""

from __future__ import annotations

import random
import string
from dataclasses import replace
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import lock
from ansible.module_utils.ironserve.problems import Problems
from hypothesis import given
from hypothesis import strategies as st

LOCK = """\
engine: vllm
engine_version: "1.0"
python: "3.12"
platform: manylinux_2_28_x86_64
requires: [vllm==1.0]
"""
SPEC = lock.Spec("vllm-1.0-cpu", "vllm", "1.0", "3.12", "manylinux_2_28_x86_64", ("vllm==1.0",))
A, B = "a" * 64, "b" * 64


def requirements(text: str) -> tuple[lock.Requirement, ...]:
    problems = Problems()
    found = lock.parse_requirements(text, "requirements.txt", problems)
    assert not problems, problems.found
    return found


def complaints(text: str) -> list[str]:
    problems = Problems()
    lock.parse_requirements(text, "r.txt", problems)
    return problems.found


def write(folder: Path, spec: str = LOCK, pins: str = f"vllm==1.0 --hash=sha256:{A}\n") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "lock.yml").write_text(spec)
    (folder / "requirements.txt").write_text(pins)
    return folder


def test_every_fault_of_a_requirements_file_is_told_with_its_line():
    text = (
        f"six==1.0\nidna>=3 --hash=sha256:{A}\n--index-url https://x\n\n"
        f"zope==1 --hash=md5:1\nok==1 --hash=sha256:{B}\nOK==1 --hash=sha256:{B}\n"
    )
    assert complaints(text) == [
        "r.txt:1: six==1.0: no --hash; nothing is installed that is not known to the byte",
        "r.txt:2: idna>=3: not an exact pin (name==version)",
        "r.txt:3: --index-url: options have no place in a lock; the role says where files come from",
        "r.txt:5: zope==1: '--hash=md5:1' is not --hash=sha256: with 64 hex digits",
        "r.txt:7: ok: is listed twice",
    ]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (f"six==1.0 ; python_version < '3' --hash=sha256:{A}", "';' is not --hash"),
        (f"six==1.* --hash=sha256:{A}", "not an exact pin"),
        (f"six @ https://example.com/six.whl --hash=sha256:{A}", "not an exact pin"),
        ("six==1.0 --hash=sha256:abc", "64 hex digits"),
        ("", "no requirements"),
    ],
)
def test_what_is_no_exact_hashed_pin_is_refused(entry: str, said: str):
    assert said in "\n".join(complaints(entry))


def test_continued_lines_and_comments_are_read():
    text = f"# made by hand\nsix==1.0 \\\n    --hash=sha256:{B} \\\n    --hash=sha256:{A}\n    # via nothing\n\n"
    assert requirements(text) == (lock.Requirement("six", "1.0", (A, B)),)


names = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)
hashes = st.lists(st.text("0123456789abcdef", min_size=64, max_size=64), min_size=1, max_size=3, unique=True)
pins = st.dictionaries(
    names, st.tuples(st.sampled_from(["1.0", "2.1.post3", "0.9+cpu"]), hashes), min_size=1, max_size=6
)


@given(pins, st.randoms(), st.lists(st.sampled_from(["", "# a comment", "   ", "  # another"]), max_size=5))
def test_an_id_does_not_depend_on_order_comments_and_blank_lines(wanted, chance: random.Random, noise: list[str]):
    def entry(name: str, joint: str) -> str:
        version, digests = wanted[name]
        return joint.join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in digests)])

    plain = "\n".join(entry(name, " ") for name in sorted(wanted))
    entries = [entry(name, " \\\n    ") for name in wanted] + noise
    chance.shuffle(entries)
    assert lock.lock_id(SPEC, requirements("\n".join(entries))) == lock.lock_id(SPEC, requirements(plain))


@given(pins, st.data())
def test_an_id_depends_on_every_hash(wanted, data):
    found = tuple(lock.Requirement(name, version, tuple(digests)) for name, (version, digests) in wanted.items())
    index = data.draw(st.integers(0, len(found) - 1))
    other = replace(found[index], hashes=("0" * 64,))
    changed = (*found[:index], other, *found[index + 1 :])
    assert (lock.lock_id(SPEC, found) == lock.lock_id(SPEC, changed)) == (found[index].hashes == other.hashes)


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused_with_reasons(text: str):
    problems = Problems()
    found = lock.parse_requirements(text, "r.txt", problems)
    assert problems or found
    lock.parse_spec(text, "x", "lock.yml", problems)


@pytest.mark.parametrize(
    "other",
    [
        replace(SPEC, python="3.11"),
        replace(SPEC, platform="manylinux_2_31_x86_64"),
        replace(SPEC, shims=(lock.Note("vllm", "", "1"),)),
    ],
)
def test_an_id_covers_python_platform_and_shims(other: lock.Spec):
    found = requirements(f"vllm==1.0 --hash=sha256:{A}")
    assert lock.lock_id(SPEC, found) != lock.lock_id(other, found)


def test_notes_and_measurements_are_not_part_of_an_id():
    found = requirements(f"vllm==1.0 --hash=sha256:{A}")
    assert lock.lock_id(SPEC, found) == lock.lock_id(replace(SPEC, notes="x", installed_mib=3, download_mib=4), found)


def test_a_lock_is_loaded(tmp_path: Path):
    found = lock.load(write(tmp_path / "vllm-1.0-cpu"))
    assert found.id.startswith("vllm-1.0-cpu-")
    assert len(found.id) == len("vllm-1.0-cpu-") + 12
    assert found.text == f"vllm==1.0 --hash=sha256:{A}\n"
    assert (found.spec.glibc, found.spec.machine) == ((2, 28), "x86_64")
    assert found.spec.platforms[:2] == ["manylinux_2_28_x86_64", "manylinux_2_27_x86_64"]


def test_both_files_are_judged_in_one_go(tmp_path: Path):
    folder = write(tmp_path / "vllm-1.0-cpu", 'engin: vllm\npython: 3.12\nplatform: linux\nplatform: "x"\n', "six\n")
    with pytest.raises(lock.LockError) as refused:
        lock.load(folder)
    text = str(refused.value)
    for said in (
        'lock.yml:1: engin: unknown key (did you mean "engine"?)',
        "lock.yml:2: python: expected text, got a number: 3.12",
        'lock.yml:3: platform: "linux" is not the oldest platform',
        "lock.yml:4: platform: is given twice",
        "lock.yml: engine: is missing",
        "requirements.txt:1: six: not an exact pin",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("spec", "pins", "said"),
    [
        (LOCK, f"six==1.0 --hash=sha256:{A}", "vllm: is missing, and lock.yml says 1.0"),
        (LOCK, f"vllm==1.1 --hash=sha256:{A}", "vllm: is 1.1, and lock.yml says 1.0"),
        (
            f"{LOCK}exclude: [{{name: six, why: not here}}]\n",
            f"vllm==1.0 --hash=sha256:{A}\nsix==1 --hash=sha256:{B}",
            "leaves it out: not here",
        ),
        (
            f'{LOCK}overrides: [{{name: six, version: "2", why: a test}}]\n',
            f"vllm==1.0 --hash=sha256:{A}\nsix==1 --hash=sha256:{B}",
            "six: is 1, and lock.yml says 2",
        ),
        (
            f'{LOCK}bare: [{{name: six, version: "2", why: a test}}]\n',
            f"vllm==1.0 --hash=sha256:{A}",
            "six: is missing, and lock.yml says 2",
        ),
        (f"{LOCK}bare: [{{name: six, why: a test}}]\n", f"vllm==1.0 --hash=sha256:{A}", "bare[0].version: is missing"),
        ("- a list\n", f"vllm==1.0 --hash=sha256:{A}", "is not a mapping"),
        ("a: [\n", f"vllm==1.0 --hash=sha256:{A}", "not YAML"),
        ("", f"vllm==1.0 --hash=sha256:{A}", "is empty"),
    ],
)
def test_files_that_do_not_fit_each_other_are_refused(tmp_path: Path, spec: str, pins: str, said: str):
    with pytest.raises(lock.LockError) as refused:
        lock.load(write(tmp_path / "vllm-1.0-cpu", spec, pins))
    assert said in str(refused.value)


def test_a_shim_carries_what_its_folder_holds(tmp_path: Path):
    shims = (
        f'{LOCK}shims: [{{name: some-name, version: "1", why: a test}}, {{name: other, version: "1", why: a test}}]\n'
    )
    pins = f"vllm==1.0 --hash=sha256:{A}\nsome-name==1 --hash=sha256:{A}\nother==1 --hash=sha256:{A}\n"
    folder = write(tmp_path / "vllm-1.0-cpu", shims, pins)
    for name in ("b/c.py", "a.py", "b/__pycache__/c.pyc"):
        file = folder / "shims" / "some-name" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {name}\n")
    some, other = lock.load(folder).spec.shims
    assert some.files == (("a.py", "# a.py\n"), ("b/c.py", "# b/c.py\n"))
    assert other.files == ()


def test_a_missing_lock_is_named(tmp_path: Path):
    with pytest.raises(lock.LockError, match=r"lock\.yml: cannot be read: No such file"):
        lock.load(tmp_path / "nowhere")


def test_every_lock_of_the_project_can_be_loaded(root: Path):
    folders = [file.parent for file in (root / "environments").glob("*/lock.yml")]
    assert folders
    for folder in folders:
        assert lock.load(folder).requirements
    assert {"x86_64", "aarch64"} <= set(lock.load_uv(root / "environments" / "uv.yml").wheels)


@pytest.mark.parametrize("name", ["vllm-0.32.0-cpu", "sglang-0.5.23-cpu"])
def test_no_lock_for_the_cpu_holds_a_file_of_the_cuda_build(root: Path, name: str):
    found = {item.name: item for item in lock.load(root / "environments" / name).requirements}
    assert found["torch"].version == "2.13.0+cpu"
    assert found["torch"].hashes == ("6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",)
    # nvidia-ml-py is Python only, and asks a driver where there is one.
    assert not [name for name in found if name.startswith("nvidia-") and name != "nvidia-ml-py"]
