"""Servers of public reports, on a clock of their own: what the probe makes of them. Numbers are those of the cases."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve import host, judge, probe
from ansible.module_utils.ironserve.engines import sglang, vllm
from ansible.module_utils.ironserve.host import Answer

RUNNING = {"ActiveState": "active", "MainPID": "42", "ExecMainCode": "0", "Result": "success"}
TEXT = '{"choices": [{"text": " x", "finish_reason": "length"}], "usage": {"completion_tokens": 16}}'
LISTED = '{"data": [{"id": "tiny"}]}'
KEY = "sk-TEST"


class Server:
    """What a path answers, as a function of time; an answer may take time."""

    def __init__(self, **paths) -> None:
        self.now, self.asked, self.paths = 0.0, [], paths
        self.takes = dict.fromkeys(paths, 0.0)

    def get(self, url: str, timeout_s: float, body=None, key: str = "") -> Answer:
        path = "/" + url.split("/", 3)[3]
        self.asked.append((path, key))
        name = path.strip("/").replace("/", "_")
        answer = self.paths.get(name, lambda now: Answer(404, ""))(self.now)
        takes = self.takes.get(name, 0.0)
        self.now += min(takes, timeout_s)
        return Answer(0, "timed out") if takes >= timeout_s else answer

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def is_up(since: float, answer: Answer, before: Answer = Answer(0, "Connection refused")):  # noqa: B008  a tuple
    """A path that answers from that second on."""
    return lambda now: answer if now >= since else before


def watch(monkeypatch, tmp_path, server: Server, engine=vllm, key: str = "", **release) -> dict:
    monkeypatch.setattr(host, "RUNTIME", tmp_path)
    monkeypatch.setattr(host, "get", server.get)
    monkeypatch.setattr(probe.time, "monotonic", lambda: server.now)
    monkeypatch.setattr(probe.time, "sleep", server.sleep)
    release = {
        "service": "main", "url": "http://127.0.0.1:8000", "port": 8000, "health_path": engine.HEALTH_PATH,
        "model_name": "tiny", "startup_timeout_s": 300, "completion_timeout_s": 120, **release,
    }  # fmt: skip
    probe.watch(release, lambda: True, "i", key)
    return probe.read("main", "i")


def verdict(found: dict) -> judge.Verdict:
    return judge.judge(RUNNING, found, 0, 300)


def early(completion, **more) -> Server:
    """The server of case 24: a model list from second 5, health and a completion from second 60."""
    return Server(
        health=is_up(60, Answer(200, ""), is_up(5, Answer(503, ""))(99)),
        v1_models=is_up(5, Answer(200, LISTED)),
        v1_completions=completion,
        **more,
    )


def test_case_24_a_model_list_at_second_5_is_no_readiness_before_second_60(monkeypatch, tmp_path):
    server = early(is_up(60, Answer(200, TEXT), Answer(503, "")))
    found = watch(monkeypatch, tmp_path, server)
    assert verdict(found).verdict == "ready"
    assert found["at"] >= 60


def test_case_24_a_server_that_never_generates_is_dead_at_its_limit(monkeypatch, tmp_path):
    server = early(is_up(0, Answer(200, TEXT)))
    server.takes["v1_completions"] = 1e9
    found = watch(monkeypatch, tmp_path, server)
    assert verdict(found).verdict == "failed"
    assert "the endpoint is up, but no completion came in 120 s: generation is dead" in verdict(found).reason
    assert 175 <= server.now <= 185


SGLANG = {  # version: what /health says of a server that listens, and does not generate yet
    "0.4.6": Answer(200, ""), "0.5.10.post1": Answer(503, ""), "0.5.23": Answer(503, ""),
}  # fmt: skip


@pytest.mark.parametrize("version", SGLANG)
def test_case_25_sglang_is_asked_where_every_version_generates_and_for_a_completion_with_the_key(
    monkeypatch, tmp_path, version
):
    server = Server(
        health=lambda now: SGLANG[version] if now < 30 else Answer(200, ""),
        health_generate=is_up(30, Answer(200, ""), Answer(503, "")),
        v1_models=is_up(0, Answer(200, LISTED)),
        v1_completions=is_up(30, Answer(200, TEXT), Answer(503, "")),
        get_model_info=is_up(0, Answer(200, "{}")),
    )
    found = watch(monkeypatch, tmp_path, server, sglang, KEY)
    assert verdict(found).verdict == "ready"
    assert found["at"] >= 30
    assert {path for path, key in server.asked} == {"/health_generate", "/v1/models", "/v1/completions"}
    assert {key for path, key in server.asked if path == "/health_generate"} == {""}
    assert {key for path, key in server.asked if path == "/v1/completions"} == {KEY}


def test_case_26_a_health_answer_after_1_002_seconds_counts_and_the_limit_is_above_the_servers_own(
    monkeypatch, tmp_path
):
    server = Server(
        health_generate=is_up(0, Answer(200, "")), v1_models=is_up(0, Answer(200, LISTED)),
        v1_completions=is_up(0, Answer(200, TEXT)),
    )  # fmt: skip
    server.takes["health_generate"] = 1.002
    assert verdict(watch(monkeypatch, tmp_path, server, sglang)).verdict == "ready"
    assert probe.HEALTH_TIMEOUT_S > 20  # no setting makes it shorter


def dead(health: int) -> Server:
    return Server(version=is_up(0, Answer(200, "{}")), health=is_up(0, Answer(health, "EngineDeadError")))


def test_case_28_health_503_under_a_version_that_says_200_is_not_ready(monkeypatch, tmp_path):
    found = watch(monkeypatch, tmp_path, dead(503))
    assert ("outcome" in found, verdict(found).verdict) == (False, "waiting")


def test_case_28_health_500_is_a_dead_engine_at_once(monkeypatch, tmp_path):
    server = dead(500)
    found = watch(monkeypatch, tmp_path, server)
    assert verdict(found) == ("failed", "health answers 500, the engine is dead: EngineDeadError")
    assert server.now == 0


def test_case_28_health_200_over_a_completion_that_hangs_is_not_ready(monkeypatch, tmp_path):
    server = Server(
        health_generate=is_up(0, Answer(200, "")), v1_models=is_up(0, Answer(200, LISTED)),
        v1_completions=is_up(0, Answer(200, TEXT)),
    )  # fmt: skip
    server.takes["v1_completions"] = 1e9
    found = watch(monkeypatch, tmp_path, server, sglang, completion_timeout_s=30)
    assert verdict(found).verdict == "failed"
    assert 30 <= server.now <= 32


def test_case_33_no_key_the_wrong_model_and_ready_are_three_things(monkeypatch, tmp_path):
    def keyed(listed: str):
        server = Server(health=is_up(0, Answer(200, "")))

        def guarded(answer: Answer):
            return lambda now: answer if server.asked[-1][1] == KEY else Answer(401, '{"error": "Unauthorized"}')

        server.paths["v1_models"] = guarded(Answer(200, listed))
        server.paths["v1_completions"] = guarded(Answer(200, TEXT))
        return server

    without = watch(monkeypatch, tmp_path, keyed(LISTED))
    other = watch(monkeypatch, tmp_path, keyed('{"data": [{"id": "old"}]}'), key=KEY)
    right = watch(monkeypatch, tmp_path, keyed(LISTED), key=KEY)
    assert [found["outcome"] for found in (without, other, right)] == ["needs_key", "wrong_model", "ready"]
    assert [verdict(found).verdict for found in (without, other, right)] == ["failed", "failed", "ready"]


def test_a_503_from_a_server_that_works_is_busy_and_asked_again(monkeypatch, tmp_path):
    server = Server(
        health=is_up(0, Answer(200, "")), v1_models=is_up(0, Answer(200, LISTED)),
        v1_completions=is_up(20, Answer(200, TEXT), Answer(503, "overloaded")),
    )  # fmt: skip
    assert verdict(watch(monkeypatch, tmp_path, server)).verdict == "ready"
    assert server.now >= 20
