"""What is vLLM's own: its processes, endpoints, words and ends."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any, Callable, NoReturn

from . import VLLM_VERSION
from .engine import Engine, leave
from .flags import given, parse_vllm
from .log import Log, vllm_dress
from .metrics import exposition
from .processes import READY, STEP, Child, ChildDiedError, Crew, follow, remain, spawn
from .web import Reply

#: The signal by which a worker hears of the end of EngineCore (a death pipe in the real one).
ORPHANED = signal.SIGUSR1


class Vllm(Engine):
    """The OpenAI server of vLLM: API server, EngineCore below it, workers below that."""

    name = "vllm"
    dress = staticmethod(vllm_dress("APIServer"))
    opens_after = "server"
    # The port is taken, without listening, before the engine starts: refused until ready.
    binds_first = True
    ranks_stay = True
    dead_message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    _generated_before = 0
    _was_active = False
    idle_s = float(os.environ.get("VLLM_LOG_STATS_INTERVAL") or 10)

    @property
    def model(self) -> str:
        return str(self.arguments.model)

    @property
    def served_name(self) -> str:
        return str((self.arguments.served_model_name or [self.model])[0])

    @property
    def parallel(self) -> int:
        return int(self.arguments.tensor_parallel_size)

    @property
    def max_model_len(self) -> int:
        return int(self.arguments.max_model_len)

    @property
    def has_workers(self) -> bool:
        """One GPU is served by EngineCore itself unless the multi-process executor was asked for."""
        return self.parallel > 1 or self.arguments.distributed_executor_backend == "mp"

    def values(self) -> dict[str, object]:
        return {
            "version": VLLM_VERSION,
            "non_default": {**given(self.arguments, "vllm"), **self.behaviour.says},
            "max_len": self.max_model_len,
            "max_len_commas": f"{self.max_model_len:,}",
            "served_name": self.served_name,
            "backend": self.arguments.attention_backend,
            "eager": bool(self.arguments.enforce_eager),
            "mode": "drain" if self.arguments.shutdown_timeout else "abort",
            "timeout": self.arguments.shutdown_timeout,
        }

    def facts(self) -> set[str]:
        conditions = {
            "eager": self.arguments.enforce_eager,
            "dummy": self.arguments.load_format == "dummy",
            "explicit_backend": self.arguments.attention_backend,
            "workers": self.has_workers,
        }
        return {name for name, holds in conditions.items() if holds}

    def routes(self) -> dict[str, tuple[str, Callable[[dict[str, Any]], Reply]]]:
        return {
            "/health": ("GET", self.health),
            "/ping": ("GET", self.health),
            "/load": ("GET", lambda document: Reply({"server_load": 0})),
            "/version": ("GET", lambda document: Reply({"version": VLLM_VERSION})),
            "/metrics": ("GET", self.metrics),
            "/v1/models": ("GET", self.models),
            "/v1/completions": ("POST", self.completions),
            "/v1/chat/completions": ("POST", self.chat),
        }

    def guard(self) -> tuple[str | None, Callable[[str], bool]]:
        return (self.arguments.api_key or [os.environ.get("VLLM_API_KEY")])[0], lambda path: path.startswith("/v1")

    def access(self, line: str) -> None:
        self.log.raw(line)

    def error(self, status: int, kind: str, message: str) -> Reply:
        return Reply({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)

    def generate_text(self, document: dict[str, Any], chat: bool) -> Reply:
        model = document.get("model") or self.served_name
        if model not in (self.arguments.served_model_name or [self.model]) or self.listed_name != self.served_name:
            return self.error(404, "NotFoundError", f"The model `{model}` does not exist.")
        return super().generate_text(document, chat)

    def own_health(self, delay_s: float) -> Reply:
        # No generation: a hung engine stays 200. Only a dead one is seen.
        time.sleep(delay_s)
        return Reply(status=200 if self.state in ("up", "draining") else 503)

    def metrics(self, document: dict[str, Any]) -> Reply:
        """Answer /metrics."""
        stats = self.generator.stats
        with self.generator.lock:
            values = {
                "zero": 0.0,
                "running": stats.running,
                "usage": min(1.0, stats.running / 100),
                "prompt_tokens": stats.prompt_tokens,
                "generated": stats.generated,
                **{f"finished_{reason}": number for reason, number in stats.finished.items()},
            }
            labels = {"engine": "0", "model_name": self.served_name}
            return Reply(exposition(self.extras["metrics"], values, stats, labels), kind="text/plain; version=0.0.4")

    # Processes

    def make_children(self) -> None:
        title = "VLLM::EngineCore"
        self.fork("core", title, self._core, rank=None if self.has_workers else 0)

    def _core(self, channel: socket.socket) -> None:
        log = Log(vllm_dress("EngineCore"))
        player = self.new_player(log)
        workers = Crew()
        if self.has_workers:
            for rank in range(self.parallel):
                self._fork_worker(workers, rank, channel)

        def end(number: int, frame: object) -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            player.lines(self.events["core_sigterm"])
            workers.signal(ORPHANED)
            workers.reap(limit_s=4)
            raise SystemExit(0)

        def worker_gone(number: int, frame: object) -> None:
            for worker in workers.children:
                if worker.has_died():
                    player.lines(self.events["worker_died"])
                    raise SystemExit(1)

        def obey(order: str) -> None:
            phase = order.partition(" ")[2]
            if workers.children and (order in (STEP, READY) or self._process_of(phase) == "core.worker"):
                workers.order(order)
            else:
                self.obey(order, player)

        if self.behaviour.sigterm != "ignore":
            signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGCHLD, worker_gone)
        try:
            if self.has_workers:
                follow(channel, obey)
            else:
                self.serve_rank(0, channel, obey)
        except ChildDiedError:
            # Its end is seen at its socket or by the signal, whichever comes first: the line is written once.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            player.lines(self.events["worker_died"])
            raise SystemExit(1) from None
        # The API server is gone and nothing here looks for that: this process stays, with what it holds.
        remain()

    def _process_of(self, phase: str) -> str:
        return next((item.process for item in self.phases if item.name == phase), "")

    def _fork_worker(self, workers: Crew, rank: int, core_channel: socket.socket) -> None:
        suffix = f"_TP{rank}" if self.parallel > 1 else ""
        log = Log(vllm_dress(f"Worker{suffix}"))

        def orphaned(number: int, frame: object) -> None:
            log.line("INFO [multiproc_executor.py:843] Parent process exited, terminating worker queues")
            raise SystemExit(0)

        def body(channel: socket.socket) -> None:
            signal.signal(ORPHANED, orphaned)
            if self.behaviour.sigterm != "ignore":
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            player = self.new_player(log, rank)
            self.serve_rank(rank, channel, lambda order: self.obey(order, player))

        inherited = [core_channel, *(worker.channel for worker in workers.children)]
        orphan_signal = 0 if self.orphans else ORPHANED
        worker = spawn(f"VllmWorker-{rank}", f"VLLM::Worker{suffix}", body, inherited, orphan_signal)
        worker.unnoticed = self.dies_unnoticed(rank)
        workers.children.append(worker)

    # Ends

    def idle(self) -> None:
        stats = self.generator.stats
        made, self._generated_before = stats.generated - self._generated_before, stats.generated
        active = bool(made or stats.running)
        # Once more when it got quiet, then silence.
        if active or self._was_active:
            self.say("stats", running=stats.running, throughput=made / self.idle_s)
        self._was_active = active

    def port_taken(self, error: OSError) -> NoReturn:
        self.say("port_taken", error=f"[Errno {error.errno}] {os.strerror(error.errno or 0)}")
        self.crew.signal(signal.SIGKILL)
        leave(1)

    def start_failed(self) -> NoReturn:
        self.say("start_failed")
        leave(1)

    def child_died(self, child: Child) -> NoReturn:
        self.state = "dead"
        self.say("engine_dead")
        time.sleep(self.behaviour.death_notice_s)
        self.say("http_end")
        self.log.raw(f"INFO:     Finished server process [{os.getpid()}]")
        leave(0)

    def stop(self) -> NoReturn:
        self.state = "draining"
        self.say("sigterm")
        end = time.monotonic() + self.arguments.shutdown_timeout
        while self.generator.stats.running and time.monotonic() < end:
            time.sleep(0.02)
        self.generator.aborting.set()
        time.sleep(self.behaviour.sigterm_s)
        self.crew.signal(signal.SIGTERM)
        self.crew.reap(limit_s=4)
        self.say("sigterm_end")
        self.server.finish_answers()
        self.say("http_end")
        leave(0)


def main() -> NoReturn:
    """Entry point of the console script ``vllm``."""
    Vllm(parse_vllm()).run()
