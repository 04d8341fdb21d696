"""What a measurement becomes: progress, disturbances, the record; and what the unit runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import benchmark, benchmark_run, client, continuations, prompts, runtime
from ansible.module_utils.ironserve.host import Answer

LOAD = {"concurrencies": [1, 8], "input_tokens": 4, "output_tokens": 8, "repetitions": 2, "requests_per_stream": 1,
        "min_requests": 2, "seed": 1}  # fmt: skip
RELEASE = {
    "service": "main", "engine": "vllm", "url": "http://127.0.0.1:8000", "model_name": "tiny", "release_id": "r1",
    "profile": "p", "lock_id": "l1", "lock": {"engine_version": "0.33.0"}, "host_group": "blackwell",
    "model": {"path": "/m", "revision": "v1", "served_name": "tiny"}, "watchdog_s": 120, "gpus": [],
}  # fmt: skip
PLAN = benchmark.Plan(RELEASE, "inv1", "/opt/client", LOAD, "ironserve", 600)
TEXTS = [["a"] * 8] * 2


def run(level, repetition, began, ended, **figures):
    figures = {"output_tok_s": 10.0 * level, "requests": 2 * level, "failed": 0, **figures}
    return {"step": "run", "level": level, "repetition": repetition, "began": began, "ended": ended, "run": figures}


def begin(level, repetition, at):
    return {"step": "begin", "level": level, "repetition": repetition, "at": at}


def whole(requests=70, sent=70):
    """A measurement that is through; each run took 10 s."""
    found = [{"step": "counted", "requests": 1000.0}, {"step": "continuations", "texts": TEXTS}]
    for number, (repetition, level) in enumerate(benchmark_run.order(LOAD)):
        found.append(run(level, repetition, 10.0 * number, 10.0 * number + 10))
    return [*found, {"step": "counted", "requests": 1000.0 + requests, "sent": sent}, {"step": "end"}]


def test_every_level_is_measured_once_before_any_is_measured_again():
    assert list(benchmark_run.order(LOAD)) == [(-1, 1), (-1, 8), (0, 1), (0, 8), (1, 1), (1, 8)]


@pytest.mark.parametrize(
    ("steps", "now", "said"),
    [
        ([], 0, "asking for the continuations"),
        ([begin(1, -1, 0)], 5, "warm-up, 1 at a time"),
        ([begin(1, -1, 0), run(1, -1, 0, 10), begin(8, -1, 10)], 15, "warm-up, 8 at a time"),
        (
            [run(1, -1, 0, 10), run(8, -1, 10, 110), begin(1, 0, 110)],
            115,
            "repetition 1 of 2, 1 at a time (35 %, about 4 min left)",
        ),
        (
            [*whole()[2:-3], begin(8, 1, 50)],
            58,
            "repetition 2 of 2, 8 at a time (97 %, about 5 s left)",
        ),
    ],
)
def test_progress_says_how_far_it_is_and_how_long_it_takes_once_the_warm_up_told(steps, now, said):
    begun = [step for step in steps if step["step"] == "begin"]
    runs = [step for step in steps if step["step"] == "run"]
    before = [begin(each["level"], each["repetition"], each["began"]) for each in runs]
    assert benchmark.progress([*before, *begun, *runs], LOAD, now)[1] == said


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        (70, ""),
        (74, ""),  # in 60 s the helper may have asked for two tokens, and one at each end
        (75, "the engine answered 5 requests of others meanwhile, beside 70 of its own"),
        (50, ""),  # some failed
    ],
)
def test_requests_of_others_are_told_by_the_engines_own_counter(requests, said):
    assert benchmark.disturbed(whole(requests), RELEASE) == said


def test_an_engine_that_counts_nothing_is_not_called_disturbed_and_that_is_known():
    steps = whole()
    steps[0] = {"step": "counted", "requests": None}
    assert benchmark.disturbed(steps, RELEASE) == ""
    assert not benchmark.is_counted(steps)
    assert benchmark.is_counted(whole())


def test_the_record_has_the_runs_that_count_and_what_was_measured():
    found = benchmark.record(PLAN, whole(), [], {"at": "now", "client": {"name": "c"}})
    assert {level: len(runs) for level, runs in found["levels"].items()} == {"1": 2, "8": 2}
    assert found["levels"]["8"][0]["output_tok_s"] == 80
    assert found["load"] == {**LOAD, "prompts": prompts.digest(LOAD)}
    assert (found["event"], found["invocation"], found["engine_version"]) == ("measurement", "inv1", "0.33.0")
    assert found["model"] == {"name": "tiny", "path": "/m", "revision": "v1"}
    assert (found["gpus"], found["continuations"], found["disturbed"]) == ([], TEXTS, "")


def test_another_load_or_start_is_another_measurement():
    other = benchmark.Plan(RELEASE, "inv2", "/opt/client", LOAD, "ironserve", 600)
    more = benchmark.Plan(RELEASE, "inv1", "/opt/client", {**LOAD, "seed": 2}, "ironserve", 600)
    same = benchmark.Plan(RELEASE, "inv1", "/opt/client", dict(LOAD), "ironserve", 900)
    assert len({PLAN.id, other.id, more.id}) == 3
    assert same.id == PLAN.id


def test_half_a_line_is_not_read():
    text = json.dumps({"step": "counted", "requests": 1}) + '\n[1]\n{"step": "ru'
    assert benchmark.parse(text) == [{"step": "counted", "requests": 1}]


CLIENT = """#!/usr/bin/env python3
import json, os, pathlib, sys
argv = dict(zip(sys.argv, sys.argv[1:]))
prompts = pathlib.Path(argv["--dataset-path"]).read_text().splitlines()
said = {"argv": sys.argv, "key": os.environ.get("OPENAI_API_KEY")}
(pathlib.Path(argv["--result-dir"]) / "said").write_text(json.dumps(said))
if argv["--max-concurrency"] == "8":
    sys.exit("Traceback ... ConnectionError: refused")
n = len(prompts)
result = {"duration": 2.0, "output_lens": [8] * n, "input_lens": [4] * n, "ttfts": [0.1] * n,
          "itls": [[0.01] * 7] * n, "errors": [""] * n}
(pathlib.Path(argv["--result-dir"]) / argv["--result-filename"]).write_text(json.dumps(result))
"""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """A plan whose client is a script, and whose engine answers and counts."""
    program = tmp_path / "client" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(CLIENT)
    program.chmod(0o755)
    counts = iter((5.0, 21.0, 27.0))
    monkeypatch.setattr(benchmark_run, "counted", lambda *_: next(counts))
    monkeypatch.setattr(benchmark_run, "POLL_S", 0)
    monkeypatch.setattr(continuations, "ask", lambda *_: TEXTS)
    return {"release": RELEASE, "environment": str(tmp_path / "client"), "load": {**LOAD, "concurrencies": [1]}}


def test_the_runner_does_all_runs_and_tells_of_each(plan, tmp_path):
    told = []
    benchmark_run.measure(plan, "sk-secret", tmp_path, lambda step, **what: told.append((step, what)))
    assert [step for step, _ in told] == ["counted", "continuations", *["begin", "run"] * 3, "counted"]
    runs = [what for step, what in told if step == "run"]
    assert [each["repetition"] for each in runs] == [-1, 0, 1]
    assert runs[0]["run"]["output_tok_s"] == 8
    assert told[-1][1] == {"requests": 27.0, "sent": 22}
    said = json.loads((tmp_path / "said").read_text())
    assert said["key"] == "sk-secret"
    assert "sk-secret" not in " ".join(said["argv"])


def test_a_client_that_fails_is_told_with_its_last_words_and_where_it_was(plan, tmp_path):
    with pytest.raises(client.ResultError) as told:
        benchmark_run.one_run(plan, "", tmp_path, 8, 1)
    assert str(told.value).startswith("8 at a time, repetition 2: vllm bench serve ended with status 1: ")
    assert "ConnectionError: refused" in str(told.value)


def test_the_continuations_are_asked_one_at_a_time_twice():
    asked = []

    def generate(*arguments):
        asked.append(arguments)
        return Answer(200, json.dumps({"choices": [{"text": f" {len(asked)}"}]}))

    found = continuations.ask(RELEASE, "key", generate)
    assert [len(each) for each in found] == [8, 8]
    assert found[1][0] == " 9"
    assert asked[0] == (RELEASE["url"], "tiny", 32, continuations.TIMEOUT_S, "key", continuations.PROMPTS[0])


@pytest.mark.parametrize("answer", [Answer(0, "refused"), Answer(500, "boom"), Answer(200, "{}")])
def test_a_prompt_without_an_answer_is_told(answer):
    with pytest.raises(continuations.ContinuationError, match='no answer to the prompt "The capital of France is"'):
        continuations.ask(RELEASE, "", lambda *_: answer)


def test_the_program_of_the_unit_needs_nothing_but_what_it_brings(tmp_path):
    file: Path = tmp_path / "benchmark"
    file.write_bytes(runtime.program(benchmark.PROGRAM, "benchmark_run"))
    file.chmod(0o755)
    done = subprocess.run([file, tmp_path / "nowhere"], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("FileNotFoundError")


class Host:
    """A host with a server that is ready, and systemd; ``steps`` is what the unit has told."""

    def __init__(self, monkeypatch, tmp_path) -> None:
        self.server = {"MainPID": "7", "InvocationID": "inv1", "ExecMainStartTimestampMonotonic": "5000000"}
        self.unit = {"ActiveState": "inactive", "ExecMainStartTimestampMonotonic": "1000000"}
        self.found = {"outcome": "ready"}
        self.begun, self.ended, self.release = 0, 0, RELEASE
        self.folder = tmp_path / "ironserve-benchmark_main"
        host = benchmark.host
        monkeypatch.setattr(benchmark, "RUN", tmp_path)
        monkeypatch.setattr(benchmark, "SYSTEMD", tmp_path)
        monkeypatch.setattr(host, "STATE", tmp_path / "state")
        monkeypatch.setattr(host, "RUNTIME", tmp_path / "runtime")
        monkeypatch.setattr(host, "show", lambda unit: self.unit if "_" in unit else self.server)
        monkeypatch.setattr(host, "run", self.run)
        monkeypatch.setattr(benchmark.probe, "read", lambda *_: self.found)
        monkeypatch.setattr(benchmark.Releases, "active_release", lambda _: self.release)
        monkeypatch.setattr(benchmark, "end_transient", self.end)
        monkeypatch.setattr(benchmark.hardware, "read", lambda _: {"gpu_family": "none"})
        (tmp_path / "state" / "main").mkdir(parents=True)
        (tmp_path / "runtime").mkdir()
        (tmp_path / "client" / "bin").mkdir(parents=True)
        (tmp_path / "client" / "bin" / "python3").touch(mode=0o755)
        self.ledger = tmp_path / "state" / "main" / "ledger.jsonl"
        environment = str(tmp_path / "client")
        self.benchmark = benchmark.Benchmark("main", environment, LOAD, "root", 600)

    def run(self, argv, **_):
        assert argv[0] == "systemd-run"
        self.begun += 1
        self.unit |= {"ActiveState": "active", "SubState": "running"}
        return benchmark.host.Done(0, "", "")

    def end(self, *_):
        self.ended += 1
        self.unit["ActiveState"] = "inactive"
        return []

    def tell(self, steps):
        (self.folder / benchmark.STEPS).write_text("".join(json.dumps(step) + "\n" for step in steps))

    def slice(self, cursor=None):
        return self.benchmark.measured({"client": {"name": "c"}}, cursor or {}, 0.001)


@pytest.fixture
def host(monkeypatch, tmp_path):
    found = Host(monkeypatch, tmp_path)
    ticks = iter(range(100, 10_000))
    found.benchmark.clock = lambda: float(next(ticks))
    return found


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"release": {}}, "was never deployed here"),
        ({"server": {"MainPID": "0"}}, "does not run"),
        ({"found": {}}, "is not ready: it has not generated yet"),
        ({"found": {"outcome": "generation_dead", "detail": "no token"}}, "is not ready: no token"),
    ],
)
def test_only_a_server_that_is_ready_is_measured(host, changed, why):
    for name, value in changed.items():
        setattr(host, name, value)
    with pytest.raises(benchmark.BenchmarkError, match=why):
        host.slice()
    assert host.begun == 0


def test_what_runs_has_to_be_the_active_release(host):
    (benchmark.host.RUNTIME / "main.activated").write_text("6.0")
    with pytest.raises(benchmark.BenchmarkError, match="runs another release than the active one, r1: deploy it"):
        host.slice()


def test_a_second_call_attaches_and_the_record_is_written_once(host):
    first = host.slice()
    assert first["slice"]["done"] is False
    host.tell(whole()[:3])
    assert host.slice()["slice"]["cursor"] == {
        "invocation": "inv1",
        "recorded": 0,
    }  # without a cursor: another controller
    assert host.begun == 1
    host.tell(whole())
    done = host.slice(first["slice"]["cursor"])
    assert done["slice"] == {"done": True}
    assert json.loads(host.ledger.read_text()) == done["measurement"]
    assert not host.folder.exists()


def test_what_another_call_has_recorded_meanwhile_is_the_answer_of_this_one_too(host):
    cursor = host.slice()["slice"]["cursor"]
    host.tell(whole())
    first = host.slice()
    second = host.slice(cursor)
    assert second["measurement"] == first["measurement"]
    assert (host.begun, len(host.ledger.read_text().splitlines())) == (1, 1)


def test_one_with_another_load_is_ended_first(host):
    host.slice()
    host.benchmark.load = {**LOAD, "seed": 9}
    ended = host.ended
    host.slice()
    assert (host.begun, host.ended) == (2, ended + 1)


def test_one_that_was_replaced_by_another_says_so(host):
    cursor = host.slice()["slice"]["cursor"]
    (host.folder / "id").write_text("another")
    with pytest.raises(benchmark.BenchmarkError, match="somebody ended it, or measures it with another load"):
        host.slice(cursor)


def test_a_restart_between_two_slices_ends_the_measurement(host):
    cursor = host.slice()["slice"]["cursor"]
    host.server = {**host.server, "InvocationID": "inv2"}
    with pytest.raises(benchmark.BenchmarkError, match="was stopped or restarted while it was measured"):
        host.slice(cursor)
    assert host.unit["ActiveState"] == "inactive"
    assert not host.ledger.exists()


@pytest.mark.parametrize(
    ("unit", "steps", "why"),
    [
        ({}, [{"step": "failed", "msg": "8 at a time, warm-up: no request of 8 was answered"}], "no request of 8"),
        ({"SubState": "failed", "Result": "timeout"}, [], "it was not through after 10m00s: measure less"),
        ({"SubState": "failed", "ExecMainCode": "2", "ExecMainStatus": "9"}, [], "it was killed by SIGKILL"),
    ],
)
def test_a_measurement_that_ends_early_says_why(host, unit, steps, why):
    cursor = host.slice()["slice"]["cursor"]
    host.unit |= unit
    host.tell(steps)
    with pytest.raises(benchmark.BenchmarkError, match=why):
        host.slice(cursor)
    assert not host.folder.exists()


def test_no_secret_is_in_the_command_of_the_unit():
    argv = benchmark.unit_argv(PLAN)
    assert argv[-2:] == ["/run/ironserve-benchmark_main/benchmark", "/run/ironserve-benchmark_main"]
    assert not [word for word in argv if "setenv" in word or "EnvironmentFile" in word]
    assert benchmark.systemd.service_of(PLAN.unit) is None
