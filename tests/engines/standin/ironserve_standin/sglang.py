"""What is SGLang's own: its processes, endpoints, words and ends."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any, Callable, NoReturn

from . import SGLANG_VERSION
from .engine import Engine, leave
from .flags import parse_sglang
from .generation import OWN_LENGTH, EngineDeadError, Request, text_tokens
from .log import Log, sglang_dress
from .metrics import exposition
from .phases import Phase
from .processes import Child, follow, remain
from .web import Body, Reply

NO_KEY_NEEDED = ("/health", "/ready", "/metrics")


class Sglang(Engine):
    """The server of SGLang: main process, schedulers and detokenizer below it."""

    name = "sglang"
    dress = staticmethod(sglang_dress())
    # Refused until the schedulers are up; then 503 until the warm-up request has succeeded.
    opens_after = "http"
    warms_up = True
    dead_message = "The scheduler is gone."
    # The real handler sleeps a second before it looks for an answer.
    health_delay_s = 1.0

    @property
    def model(self) -> str:
        return str(self.arguments.model_path)

    @property
    def served_name(self) -> str:
        return str(self.arguments.served_model_name or self.model)

    @property
    def parallel(self) -> int:
        return int(self.arguments.tp_size)

    @property
    def max_model_len(self) -> int:
        return int(self.arguments.context_length)

    def values(self) -> dict[str, object]:
        # With the key: 0.5.23 hides nothing but what is of watermarks (engine.py, _server_args_for_logging).
        return {"server_args": {**vars(self.arguments), **self.behaviour.says}, "max_len": self.max_model_len}

    def facts(self) -> set[str]:
        conditions = {
            "eager": self.arguments.disable_cuda_graph or self.arguments.attention_backend == "torch_native",
            "dummy": self.arguments.load_format == "dummy",
            "explicit_backend": self.arguments.attention_backend,
        }
        return {name for name, holds in conditions.items() if holds}

    def routes(self) -> dict[str, tuple[str, Callable[[dict[str, Any]], Reply]]]:
        always: dict[str, tuple[str, Callable[[dict[str, Any]], Reply]]] = {
            "/health": ("GET", self.health),
            "/health_generate": ("GET", self.health),
            "/ready": ("GET", self.flag_only),
            "/ping": ("GET", self.flag_only),
            "/model_info": ("GET", self.model_info),
            "/get_model_info": ("GET", self.model_info),
            "/server_info": ("GET", self.server_info),
            "/get_server_info": ("GET", self.server_info),
            "/v1/loads": ("GET", self.loads),
            "/v1/models": ("GET", self.models),
            "/v1/completions": ("POST", self.completions),
            "/v1/chat/completions": ("POST", self.chat),
            "/generate": ("POST", self.generate),
            "/freeze_gc": ("POST", lambda document: Reply("Garbage collection frozen.\n")),
        }
        return {**always, "/metrics": ("GET", self.metrics)} if self.arguments.enable_metrics else always

    def guard(self) -> tuple[str | None, Callable[[str], bool]]:
        return self.arguments.api_key, lambda path: not path.startswith(NO_KEY_NEEDED)

    def access(self, line: str) -> None:
        self.log.line(line)

    def error(self, status: int, kind: str, message: str) -> Reply:
        return Reply({"object": "error", "message": message, "type": kind, "param": None, "code": status}, status)

    # Endpoints

    def flag_only(self, document: dict[str, Any]) -> Reply:
        """Answer /ready and /ping: no look at the schedulers."""
        return Reply(status=200 if self.state == "up" else 503)

    def own_health(self, delay_s: float) -> Reply:
        if self.state != "up":
            return Reply(status=503)
        limit_s = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT") or 20)
        began = time.monotonic()
        threading.Thread(target=self._probe, daemon=True).start()
        # Any answer of the schedulers counts, also one to another request.
        while time.monotonic() < began + max(limit_s, delay_s):
            time.sleep(delay_s or 0.01)
            if self.crew.last_answer > began:
                return Reply()
        self.say("health_failed", limit=int(limit_s), since=time.strftime("%H:%M:%S"))
        return Reply(status=503)

    def _probe(self) -> None:
        try:
            list(self.generator.tokens(Request(1, 1, limited_by_client=True, seed=0, health_probe=True)))
        except tuple(self.site.failures):
            return

    def model_info(self, document: dict[str, Any]) -> Reply:
        """Answer /model_info: static, and before the warm-up ends."""
        own = {"model_path": self.model, "tokenizer_path": self.model, "served_model_name": self.served_name}
        return Reply({**own, **self.extras["model_info"]})

    def server_info(self, document: dict[str, Any]) -> Reply:
        """Answer /server_info: asks the schedulers, so it hangs with them."""
        list(self.generator.tokens(Request(0, 1, limited_by_client=True, seed=0, health_probe=True)))
        state = {"last_gen_throughput": self.generator.stats.throughput}
        tokens = {"max_total_num_tokens": 2024912, "max_req_input_len": self.max_model_len - 6}
        # With the key, as in the log.
        arguments = {**vars(self.arguments), **self.behaviour.says, "launch_command": shlex.join(sys.argv)}
        return Reply({**arguments, **tokens, "internal_states": [state], "version": SGLANG_VERSION})

    def loads(self, document: dict[str, Any]) -> Reply:
        """Answer /v1/loads: what each data parallel rank has to do."""
        running = self.generator.stats.running
        load = {"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": 0, "num_waiting_uncached_tokens": 0}
        return Reply({"version": SGLANG_VERSION, "loads": [load]})

    def generate_text(self, document: dict[str, Any], chat: bool) -> Reply:
        self._log_prefill(text_tokens(str(document.get("messages") or document.get("prompt") or "")))
        return super().generate_text(document, chat)

    def log_decode(self, tokens: int) -> None:
        stats = self.generator.stats
        self.say("decode", running=stats.running, tokens=tokens, throughput=stats.throughput)

    def _log_prefill(self, tokens: int) -> None:
        self.say("prefill", tokens=tokens, others=self.generator.stats.running)

    def generate(self, document: dict[str, Any]) -> Reply:
        """Answer /generate, the engine's own endpoint."""
        if self.state in ("starting", "dead"):
            raise EngineDeadError
        prompt = document.get("text") or document.get("input_ids")
        if not prompt:
            return self.error(400, "BadRequestError", "Either text, input_ids or input_embeds should be provided.")
        limit = (document.get("sampling_params") or {}).get("max_new_tokens") or OWN_LENGTH
        request = Request(text_tokens(prompt), int(limit), limited_by_client=True, seed=0)
        self._log_prefill(request.prompt_tokens)
        answers = self._generations(request)
        if document.get("stream"):
            return Reply(events=answers)
        *_, whole = answers
        return Reply(whole)

    def _generations(self, request: Request) -> Iterator[Body]:
        began = time.monotonic()
        identity = uuid.uuid4().hex
        text = ""
        for number, (token, reason) in enumerate(self.generator.tokens(request), 1):
            text += token
            meta = {
                "id": identity,
                "finish_reason": {"type": reason, "length": number} if reason else None,
                "prompt_tokens": request.prompt_tokens,
                "completion_tokens": number,
                "cached_tokens": 0,
                "e2e_latency": time.monotonic() - began,
                **self.extras["meta_info"],
            }
            yield {"text": text, "output_ids": list(range(number)), "meta_info": meta}

    def metrics(self, document: dict[str, Any]) -> Reply:
        """Answer /metrics."""
        stats = self.generator.stats
        with self.generator.lock:
            values = {
                "zero": 0.0,
                "running": stats.running,
                "usage": min(1.0, stats.running / 100),
                "used_tokens": stats.running * 100,
                "max_tokens": 2024912.0,
                "throughput": stats.throughput,
                "requests": stats.requests,
                "aborted": stats.finished["abort"],
                "prompt_tokens": stats.prompt_tokens,
                "generated": stats.generated,
                # Unlike vLLM's this counter grows when a request ends, not while it runs.
                "generated_finished": stats.generated_finished,
            }
            labels = {"engine_type": "unified", "model_name": self.served_name}
            return Reply(exposition(self.extras["metrics"], values, stats, labels), kind="text/plain; version=0.0.4")

    # Start

    def make_children(self) -> None:
        orphan_signal = 0 if self.orphans else signal.SIGKILL
        for rank in range(self.parallel):
            title = "sglang::scheduler" + (f"_TP{rank}" if self.parallel > 1 else "")
            self.fork(f"scheduler_{rank}", title, self._body(rank), rank, orphan_signal)
        self.fork("detokenizer", "sglang::detokenizer", self._detokenizer, orphan_signal=orphan_signal)

    def _detokenizer(self, channel: socket.socket) -> None:
        if self.behaviour.sigterm != "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        follow(channel, lambda order: None)
        if self.orphans:
            remain()

    def _body(self, rank: int) -> Callable[[socket.socket], None]:
        def body(channel: socket.socket) -> None:
            if self.behaviour.sigterm != "ignore":
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            log = Log(sglang_dress(f"TP{rank}" if self.parallel > 1 else ""))
            player = self.new_player(log, rank)
            self.serve_rank(rank, channel, lambda order: self.obey(order, player))

        return body

    def after(self, phase: Phase) -> None:
        if phase.name == "http":
            self.say("listening")
        if phase.name == "warmup":
            self._warm_up()
            self.up()

    def _warm_up(self) -> None:
        """Ask the own server for text over HTTP, as the real one does."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.arguments.host, self.arguments.host)
        connection = http.client.HTTPConnection(host, self.arguments.port, timeout=60)
        key = {"Authorization": f"Bearer {self.arguments.api_key}"} if self.arguments.api_key else {}
        text = json.dumps({"text": "The capital city of France is", "sampling_params": {"max_new_tokens": 8}})
        for method, path, body in (
            ("GET", "/model_info", None),
            ("POST", "/generate", text),
            ("POST", "/freeze_gc", None),
        ):
            connection.request(method, path, body, key)
            connection.getresponse().read()
        connection.close()

    # Ends

    def port_taken(self, error: OSError) -> NoReturn:
        self.say("port_taken", number=error.errno, text=os.strerror(error.errno or 0).lower())
        self.crew.signal(signal.SIGKILL)
        leave(1)

    def start_failed(self) -> NoReturn:
        self.say("start_failed")
        self._kill_process_tree()

    def child_died(self, child: Child) -> NoReturn:
        self.state = "dead"
        self.say("child_died", child=child.name, child_pid=child.pid, status=child.status())
        time.sleep(self.behaviour.death_notice_s)
        self.say("child_died_end")
        self._kill_process_tree()

    def _kill_process_tree(self) -> NoReturn:
        """End by SIGKILL, the own one: no exit status tells what happened."""
        self.crew.signal(signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
        raise AssertionError("alive after SIGKILL")

    def stop(self) -> NoReturn:
        self.state = "draining"
        self.say("sigterm")
        # No upper bound: a request that never ends keeps the server.
        while True:
            time.sleep(self.behaviour.sigterm_s)
            remaining = self.generator.stats.running
            self.say("draining", remaining=remaining, rids=[f"request-{number}" for number in range(remaining)])
            if not remaining:
                break
        self.server.finish_answers()
        self.crew.signal(signal.SIGKILL)
        self.say("sigterm_end")
        leave(0)


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point of ``python -m sglang.launch_server``."""
    Sglang(parse_sglang(argv), argv).run()
