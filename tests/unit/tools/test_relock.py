"""Making a lock: the one file of a package that fits the platform best."""

from __future__ import annotations

from dataclasses import replace

import relock
from ansible.module_utils.ironserve.lock import Spec

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
