"""What benchmark.yml shows: a row a level, why nothing was measured, and how it stands to the baseline."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOOK = {"service": "main", "profile": "p", "release_id": "r1"}


def load(kind, name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "plugins" / kind / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def filters():
    return load("filter", "ironserve_benchmark")


@pytest.fixture(scope="module")
def action():
    return load("action", "benchmark_baseline")


def run(speed, failed=0):
    times = {"p50": 10.0, "p95": 20.0, "p99": 30.0}
    return {"output_tok_s": speed, "ttft_ms": times, "itl_ms": times, "requests": 8, "failed": failed}


def measurement(**more):
    return {
        "levels": {"1": [run(60.0), run(64.0), run(62.0)], "8": [run(400.0, failed=1)]}, "gpus": [], "disturbed": "",
        "model": {"name": "m", "path": "/m", "revision": ""}, "client": {"name": "c", "version": "1"}, "profile": "p",
        "load": {"concurrencies": [1, 8]}, "hardware": {"gpu_family": "sm120"}, "continuations": [["a"], ["a"]], **more,
    }  # fmt: skip


def host(found=None, **more):
    done = {"main": {"measurement": found, "compared": {"msg": "no baseline", "rows": []}}} if found else {}
    return {"benchmark_seen": {"services": [LOOK]}, "benchmark_done": done, **more}


def test_a_row_a_level_with_median_and_quartiles(filters):
    rows = filters.rows(["h1"], {"h1": host(measurement())}, False)
    cells = filters.cells(json.loads(json.dumps(rows)))
    assert [(row["level"], row["tok/s"], row["failed"]) for row in cells] == [
        (1, "62.0 [61.0..63.0]", ""), (8, "400.0 [400.0..400.0]", "1 of 8"),
    ]  # fmt: skip
    assert cells[0]["ttft ms"] == "10.0 / 20.0 / 30.0"
    assert cells[1]["note"] == "no baseline"
    assert filters.summary(rows)


def test_what_disturbed_and_what_throttled_is_told(filters):
    gpus = [{"index": 3, "throttled": {"power cap": 0.62}}]
    rows = filters.rows(["h1"], {"h1": host(measurement(gpus=gpus, disturbed="others asked"))}, False)
    assert rows[-1]["note"] == "disturbed: others asked; GPU 3 power cap 62% of the time; no baseline"


@pytest.mark.parametrize(
    ("seen", "check", "note"),
    [
        ({}, False, "not reached"),
        (host(), True, "would be measured"),
        (host(benchmark_failed="service main does not run"), False, "service main does not run"),
        ({"benchmark_failed": "connection lost"}, False, "connection lost"),
        ({"benchmark_seen": {"services": [{"service": "main", "release_id": ""}]}}, False, "not deployed"),
    ],
)
def test_why_nothing_was_measured(filters, seen, check, note):
    rows = filters.rows(["h1"], {"h1": seen}, check)
    assert [row["note"] for row in rows] == [note]
    assert filters.cells(rows)[0]["tok/s"] == ""
    assert filters.summary(rows) == ""


def test_without_a_baseline_it_says_how_one_is_recorded(action):
    assert action.compared(None, measurement())["msg"] == "no baseline is recorded: -e baseline=true records one"


def test_two_that_differ_are_not_compared(action):
    found = {"measurement": measurement(hardware={"gpu_family": "sm90"}), "recorded_at": "2026-11-30T", "host": "h9"}
    answer = action.compared(found, measurement())
    assert answer["rows"] == []
    assert answer["msg"].startswith("cannot be compared with the baseline: the GPU family differs: sm90 against sm120")


def test_a_comparison_names_its_baseline_and_its_rows_are_shown(action, filters):
    found = {"measurement": measurement(), "recorded_at": "2026-11-30T22:00:00", "host": "h9"}
    answer = action.compared(found, measurement())
    assert answer["msg"].startswith("against the baseline of 2026-11-30 (profile p, h9); 1 of 8 requests failed at c8")
    seen = host(measurement())
    seen["benchmark_done"]["main"]["compared"] = answer
    cells = filters.difference_cells(filters.differences(["h1"], {"h1": seen}))
    assert (cells[0]["baseline"], cells[0]["now"], cells[0]["ratio"]) == ("62.0", "62.0", "1.000")
    assert cells[0]["interval"] == "too few runs"


def test_a_server_that_leaves_requests_unanswered_is_told_without_a_baseline_too(action):
    found = measurement(levels={"8": [run(400.0, failed=3)]})
    assert action.judged(None, found, {"c8": 0.9})["verdict"] == "failing"
    assert action.judged(None, measurement(), {"c8": 0.9})["verdict"] == "no baseline"


@pytest.mark.parametrize(
    ("verdict", "gate"), [("passed", "ready"), ("not judged", "ready"), ("failing", "failing"), ("slower", "slower")]
)
def test_only_what_the_server_is_to_blame_for_gives_it_up(verdict, gate):
    judged = load("filter", "ironserve_revert").speed_judged(
        {"verdict": "ready", "msg": "main is ready"}, {"verdict": verdict, "msg": "why", "rows": []}
    )
    assert (judged["verdict"], judged["speed"]["verdict"]) == (gate, verdict)
    assert judged["msg"] == ("main is ready" if gate == "ready" else "why")


def test_what_a_canarys_speed_gate_could_not_read_is_a_problem_of_the_plan(tmp_path):
    unread = load("action", "roll_plan").unread
    measure = {"timeout_s": 1, "client": "vllm-bench-0.32.0", "baselines": str(tmp_path)}
    host = {"roll": {"group": "lab", "measure": measure}, "services": [{"service": "main"}]}
    assert unread(host) == []  # that there is no baseline is none
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "main.json").write_text("{")
    measure["client"] = "no-such-lock"
    wrong = " ".join(unread(host))
    assert "ironserve_locks.client" in wrong
    assert "main.json: is no JSON" in wrong
    assert unread({**host, "roll": {"group": "lab", "measure": {}}}) == []


def test_one_file_that_is_no_baseline_takes_nothing_from_the_page(tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "main.json").write_text(json.dumps({"measurement": measurement()}))
    (tmp_path / "lab" / "odd.json").write_text(json.dumps({"measurement": measurement(model={}, client=None)}))
    (tmp_path / "lab" / "chat.json").write_text("{")
    found, wrong = load("action", "ledger_page").baselines(tmp_path)
    assert list(found) == ["lab/main"]
    assert "chat.json: is no JSON" in wrong[0]
    assert "odd.json: the measurement in it has no model.name, model.path, client" in wrong[1]


def test_fast_nonsense_is_told(action):
    found = {"measurement": measurement(), "recorded_at": "2026-11-30T22:00:00", "host": "h9"}
    answer = action.compared(found, measurement(continuations=[["zzz"], ["zzz"]]))
    assert "it answers nonsense, or with other weights" in answer["msg"]
