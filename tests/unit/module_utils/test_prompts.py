"""The prompts of a benchmark: the same everywhere, and none that begins as another."""

from __future__ import annotations

from ansible.module_utils.ironserve.prompts import WARM_UP, digest, of_run, texts

LOAD = {
    "concurrencies": [1, 8, 32], "input_tokens": 40, "output_tokens": 8, "repetitions": 3, "requests_per_stream": 2,
    "min_requests": 8, "seed": 1,
}  # fmt: skip


def test_what_was_drawn_once_is_drawn_for_ever():
    assert texts(2, 4, 1) == ["fruit any board night", "desk above able close"]
    assert digest(LOAD) == "85accb396279ce2c"


def test_each_has_the_words_asked_for():
    assert [len(text.split()) for text in texts(5, 17, 3)] == [17] * 5


def test_a_level_has_its_streams_and_never_too_few():
    assert [len(of_run(LOAD, level, 0)) for level in LOAD["concurrencies"]] == [8, 16, 64]


def test_no_prefix_is_shared_over_a_whole_measurement():
    runs = [of_run(LOAD, level, n) for level in LOAD["concurrencies"] for n in range(WARM_UP, LOAD["repetitions"])]
    starts = [tuple(text.split()[:4]) for run in runs for text in run]
    assert len(set(starts)) == len(starts) == 4 * (8 + 16 + 64)


def test_the_digest_tells_other_prompts_apart():
    others = [{**LOAD, key: LOAD[key] + 1} for key in ("seed", "input_tokens", "repetitions", "requests_per_stream")]
    assert len({digest(LOAD), *map(digest, others)}) == 5
    assert digest({**LOAD, "output_tokens": 99}) == digest(LOAD)
