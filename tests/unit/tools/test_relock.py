"""Making a lock: what a wish becomes, and the one file of a package that fits the platform best."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace

import dry_run
import make_lock
import pytest
import relock
import shim_wheel
from ansible.module_utils.ironserve.lock import Spec
from ironserve.lock import load

SPEC = Spec("tiny", "vllm", "1", "3.12", "manylinux_2_28_x86_64", ("alpha",))


def best(*files: str) -> str:
    order = {tag: rank for rank, tag in enumerate(relock.tags(SPEC))}
    return relock.wheel(relock.best_file([{"url": f"https://example.com/{file}"} for file in files], order))


def test_a_file_for_the_platform_comes_before_one_for_any():
    binary = "alpha-1.0-cp312-cp312-manylinux_2_17_x86_64.whl"
    assert best("alpha-1.0-py3-none-any.whl", binary) == binary


def test_the_newest_c_library_that_the_platform_has_comes_first():
    old, fit, new = (f"alpha-1.0-cp312-cp312-manylinux_2_{minor}_x86_64.whl" for minor in (17, 28, 34))
    assert best(old, fit, new) == fit


def test_a_stable_abi_fits():
    stable = "alpha-1.0-cp39-abi3-manylinux2014_x86_64.whl"
    assert best("alpha-1.0-cp311-cp311-manylinux2014_x86_64.whl", stable) == stable


def test_a_name_is_read_from_an_escaped_address():
    assert (
        relock.wheel({"url": "https://example.com/torch-2.13.0%2Bcpu-py3-none-any.whl"})
        == "torch-2.13.0+cpu-py3-none-any.whl"
    )


def test_only_a_lock_that_wants_local_versions_sees_them(monkeypatch):
    monkeypatch.setattr(relock, "find_links", lambda: ["/wheels"])
    assert relock.places(SPEC) == []
    assert relock.places(replace(SPEC, local_index="https://example.com")) == ["--find-links", "/wheels"]


def test_without_find_links_the_index_of_local_versions_is_asked(monkeypatch):
    monkeypatch.setattr(relock, "find_links", list)
    assert "https://example.com" in relock.places(replace(SPEC, local_index="https://example.com"))


def test_requirements_are_sorted_and_hold_one_hash_each():
    packages = [(name, "1.0", {"hashes": {"sha256": name * 64}}) for name in ("b", "a")]
    text = relock.requirements(SPEC, packages)
    assert text.splitlines()[1:] == [
        "a==1.0 \\",
        f"    --hash=sha256:{'a' * 64}",
        "b==1.0 \\",
        f"    --hash=sha256:{'b' * 64}",
    ]


def add_wheel(folder, name: str, version: str, *requires: str) -> None:
    """A wheel with requirements: all that a resolver reads."""
    folder.mkdir(exist_ok=True)
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    with zipfile.ZipFile(folder / shim_wheel.file_name(name, version), "w") as wheel:
        info = f"{name}-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wish(tmp_path, monkeypatch):
    """Write a lock.yml before an index that is a folder of wheels: vllm needs beta and gamma, beta needs gamma 1.0."""
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "index"))
    for name, version, *requires in (
        ("vllm", "1.0", "beta", "gamma"), ("beta", "1.0", "gamma==1.0"), ("gamma", "1.0"), ("gamma", "2.0"),
        ("delta", "1.0", "gamma==3.0"),
    ):  # fmt: skip
        add_wheel(tmp_path / "index", name, version, *requires)

    def write(more: str = "", requires: str = "vllm==1.0"):
        folder = tmp_path / "tiny"
        folder.mkdir(exist_ok=True)
        (folder / "lock.yml").write_text(
            f'engine: vllm\nengine_version: "1.0"\npython: "3.12"\nplatform: manylinux_2_28_x86_64\n'
            f"requires: [{requires}]\n{more}"
        )
        return folder

    return write


def pins(folder) -> list[str]:
    return [line.split(" ")[0] for line in (folder / "requirements.txt").read_text().splitlines() if "==" in line]


def test_a_lock_is_written_and_made_again_with_nothing_new_is_not_touched(wish):
    folder = wish()
    assert relock.relock(folder)[0].endswith("written")
    assert pins(folder) == ["beta==1.0", "gamma==1.0", "vllm==1.0"]
    before = (folder / "requirements.txt").stat().st_mtime_ns
    assert relock.relock(folder)[0].endswith("as before")
    assert (folder / "requirements.txt").stat().st_mtime_ns == before


def test_locked_versions_stay_until_an_upgrade_is_asked_for(wish, tmp_path):
    folder = wish()
    relock.relock(folder)
    add_wheel(tmp_path / "index", "beta", "1.1")
    relock.relock(folder)
    assert "beta==1.0" in pins(folder)
    relock.relock(folder, upgrade=True)
    assert pins(folder) == ["beta==1.1", "gamma==2.0", "vllm==1.0"]


def test_a_version_is_taken_that_others_do_not_allow(wish):
    folder = wish('overrides: [{name: gamma, version: "2.0", why: a test}]\n')
    relock.relock(folder)
    assert pins(folder) == ["beta==1.0", "gamma==2.0", "vllm==1.0"]


def test_a_package_is_left_out_and_one_is_taken_without_what_it_requires(wish):
    folder = wish('exclude: [{name: beta, why: a test}]\nbare: [{name: delta, version: "1.0", why: a test}]\n')
    relock.relock(folder)
    assert pins(folder) == ["delta==1.0", "gamma==2.0", "vllm==1.0"]


def test_a_wish_that_cannot_be_met_is_told_in_the_words_of_uv_and_writes_nothing(wish):
    folder = wish(requires="vllm==1.0, gamma==3.0")
    with pytest.raises(relock.UnresolvedError, match=r"there is no version of gamma==3\.0"):
        relock.relock(folder)
    assert not (folder / "requirements.txt").exists()


def test_a_dry_run_names_files_that_the_index_does_not_have(wish, tmp_path):
    folder = wish()
    relock.relock(folder)
    found = load(folder)
    assert dry_run.gone(found) == []
    assert dry_run.plan(found, tmp_path).returncode == 0
    add_wheel(tmp_path / "index", "beta", "1.0", "gamma==1.0", "gamma<9")
    assert dry_run.gone(found) == ["beta==1.0"]


@pytest.fixture
def make_lock_in(wish, tmp_path, monkeypatch):
    """tools/make_lock.py in a checkout of its own, in front of the same index."""
    wish()
    monkeypatch.setattr(make_lock, "ROOT", tmp_path)
    (tmp_path / "environments").mkdir()

    def run(*words: str):
        monkeypatch.setattr("sys.argv", ["make_lock.py", *words])
        make_lock.main()
        return tmp_path / "environments"

    return run


def test_a_new_lock_gets_a_name_of_engine_version_variant_and_an_unusual_python(make_lock_in):
    folder = make_lock_in("vllm", "1.0")
    make_lock_in("vllm", "1.0", "--python", "3.10")
    assert sorted(path.name for path in folder.iterdir()) == ["vllm-1.0-cuda", "vllm-1.0-cuda-py310"]
    assert load(folder / "vllm-1.0-cuda-py310").spec.python == "3.10"


def test_a_lock_that_is_there_keeps_what_was_written_by_hand(make_lock_in):
    file = make_lock_in("vllm", "1.0") / "vllm-1.0-cuda" / "lock.yml"
    by_hand = file.read_text().replace("notes: >-", "exclude: [{name: beta, why: a test}]\nnotes: >-")
    file.write_text(by_hand)
    make_lock_in("vllm", "1.0")
    assert file.read_text() == by_hand
    assert pins(file.parent) == ["gamma==1.0", "vllm==1.0"]


def test_a_cpu_lock_is_made_from_the_newest_of_its_engine_with_its_shims(make_lock_in, tmp_path):
    old = make_lock_in("vllm", "1.0") / "vllm-1.0-cpu"
    shutil.move(old.with_name("vllm-1.0-cuda"), old)
    with (old / "lock.yml").open("a") as file:
        file.write('shims: [{name: omega, version: "5", why: a test}]\n')
    (old / "shims" / "omega").mkdir(parents=True)
    (old / "shims" / "omega" / "omega.py").write_text("LETTER = 24\n")
    add_wheel(tmp_path / "index", "vllm", "1.1", "beta")
    made = load(make_lock_in("vllm", "1.1", "--variant", "cpu") / "vllm-1.1-cpu")
    assert made.spec.engine_version == "1.1"
    assert made.spec.shims[0].files == (("omega.py", "LETTER = 24\n"),)
    assert pins(old.with_name("vllm-1.1-cpu")) == ["beta==1.0", "gamma==1.0", "omega==5", "vllm==1.1"]


def test_a_version_that_there_is_not_is_told_with_those_next_to_it_and_nothing_is_written(make_lock_in, monkeypatch):
    monkeypatch.setattr(make_lock, "near", lambda package, number: f"next to {package} {number}")
    with pytest.raises(SystemExit, match=r"no version of vllm==9\.9(.|\n)*next to vllm 9\.9"):
        make_lock_in("vllm", "9.9")
    assert list((make_lock.ROOT / "environments").iterdir()) == []


def test_versions_next_to_one_that_there_is_not():
    known = ["0.5.9", "0.5.10", "0.5.10.post1", "0.5.11", "0.6.0", "0.4.0"]
    assert make_lock.around("0.5.10.1", known).endswith("0.5.9, 0.5.10, 0.5.10.post1, 0.5.11, 0.6.0")
    assert make_lock.around("9", known).endswith("0.5.10.post1, 0.5.11, 0.6.0")
    assert make_lock.around("9", []) == "The index has no version of it"
