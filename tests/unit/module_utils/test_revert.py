"""Which release is put back: what was good on this host and is still staged, or what a person names."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve import ledger, revert

A, B, C = "aaaaaaaaaaaa-111111111111", "bbbbbbbbbbbb-111111111111", "abcccccccccc-111111111111"
STAGED = {name: {"profile": f"of {name[0]}"} for name in (A, B, C)}


def records(*launches: tuple[str, str]) -> list[dict[str, str]]:
    """Launches in their order, each a folder and a verdict."""
    return [
        {"staged_id": folder, "release_id": folder.split("-")[0], "verdict": verdict, "at": f"2026-01-0{day}"}
        for day, (folder, verdict) in enumerate(launches, 1)
    ]


@pytest.mark.parametrize("failure", ["failed", "stalled", "timeout"])
def test_good_is_what_was_ready_when_it_was_started_last(failure):
    launches = records((A, "ready"), (B, "ready"), (C, "ready"), (A, "ready"), (B, failure))
    assert ledger.good_releases(launches, STAGED) == [A, C]
    assert ledger.good_releases(launches, STAGED, without=A) == [C]
    assert ledger.good_releases(launches, {C}) == [C]
    assert ledger.good_releases([], STAGED) == []


def test_the_last_known_good_of_an_older_ledger_is_good_unless_it_failed_since():
    older = [{"release_id": A.split("-", maxsplit=1)[0], "verdict": "ready"}]
    assert ledger.good_releases([], STAGED, good=A) == [A]
    assert ledger.good_releases(older, STAGED, good=A) == [A]
    assert ledger.good_releases(older + records((A, "failed")), STAGED, good=A) == []
    assert ledger.good_releases([{**older[0], "verdict": "failed"}], STAGED, good=A) == []
    assert ledger.good_releases(records((B, "failed")), STAGED, good=A) == [A]


def test_what_a_tune_only_tried_is_not_good_and_what_failed_there_is_no_more():
    tried = [{**record, "tune": {"id": "t", "round": 1}} for record in records((B, "ready"), (C, "failed"))]
    launches = [*records((A, "ready"), (C, "ready")), *tried]
    assert ledger.good_releases(launches, STAGED, good=C) == [A]
    assert ledger.good_releases([*launches, *records((B, "ready"))], STAGED) == [B, A]


@pytest.mark.parametrize(
    ("launches", "active", "good", "other", "chosen"),
    [
        ([(A, "ready"), (B, "failed")], B, A, True, A),
        ([(A, "ready"), (B, "ready")], A, B, False, B),  # activated and no further: it was good once, and is not now
        ([(A, "ready"), (B, "ready")], B, B, False, B),
        ([(A, "ready"), (B, "ready")], B, B, True, A),
        ([(A, "failed"), (B, "failed")], B, A, True, ""),
        ([], None, None, False, ""),
        ([(A, "ready")], A, A, True, ""),
    ],
    ids=["failed", "refused", "nothing-failed", "rollback", "all-failed", "fresh", "only-one"],
)
def test_the_newest_good_one_that_is_not_what_just_failed(launches, active, good, other, chosen):
    assert revert.choose(records(*launches), STAGED, active, good, other) == chosen


def test_a_release_is_named_by_its_id_or_the_beginning_of_it_or_by_its_folder():
    launches = records((B, "failed"))
    for name in (B, B.split("-", maxsplit=1)[0], "bb"):
        assert revert.find(name, launches, STAGED, None) == B
    rendered = {**STAGED, "bbbbbbbbbbbb-222222222222": {}}
    assert revert.find("bb", launches, rendered, None) == B
    assert revert.find("bb", [], rendered, "bbbbbbbbbbbb-222222222222") == "bbbbbbbbbbbb-222222222222"


@pytest.mark.parametrize(("name", "said"), [("zz", 'no staged release begins with "zz"'),
                                            ("a", 'more than one staged release begins with "a"')])  # fmt: skip
def test_what_is_not_found_is_told_with_everything_that_is_staged(name, said):
    with pytest.raises(ValueError, match=said) as error:
        revert.find(name, records((A, "ready"), (B, "failed")), STAGED, None)
    assert f"{A} (of a, last ready 2026-01-01)" in str(error.value)
    assert f"{B} (of b, last failed 2026-01-02)" in str(error.value)
    assert f"{C} (of a, no start of it is recorded)" in str(error.value)


def test_a_rollback_that_was_cut_off_goes_on_and_not_back():
    """A served, then B; back to A began: A is active, B is still the last-known-good."""
    told = records((A, "ready"), (B, "ready"))
    assert revert.choose(told, STAGED, A, B, other=True, begun=A) == A
    assert revert.choose(told, STAGED, A, B, other=True) == B
    assert revert.choose(told, STAGED, B, B, other=True, begun=A) == A  # before it was activated
    failed = [*told, *records((A, "stalled"))]
    assert revert.choose(failed, STAGED, A, B, other=True, begun=A) == B


def test_a_load_that_an_operator_stopped_says_nothing_of_the_release():
    told = records((A, "ready"), (B, "ready"), (A, "stopped"))
    assert ledger.good_releases(told, STAGED, B) == [A, B]
    assert ledger.good_releases([*told, *records((A, "failed"))], STAGED, B) == [B]
