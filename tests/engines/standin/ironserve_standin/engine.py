"""The life of a server, common to both engines: phases, port, children, signals, end."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, NoReturn

from . import behaviour as behaviours
from .data import engine_data
from .flags import spelled
from .generation import EngineDeadError, GenerationFailedError, Generator
from .log import Dress, Log
from .openai import InvalidRequestError, OpenAI
from .phases import ExitRequestedError, Phase, Player
from .processes import (
    READY,
    Child,
    ChildDiedError,
    Crew,
    follow,
    later,
    leave_main_thread,
    remain,
    show_environment,
    spawn,
)
from .web import Reply, Server, Site

END_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def leave(status: int) -> NoReturn:
    """End this process with `status`, whatever its threads do. All output is unbuffered."""
    os._exit(status)


def end_by(number: signal.Signals) -> NoReturn:
    """End this process by a signal, as a program that crashed."""
    import resource  # noqa: PLC0415 - for this alone

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), number)
    remain()


class Engine:
    """A server of one engine. Subclasses say what differs."""

    name: str
    dress: Dress
    #: The phase after which the port is opened.
    opens_after: str
    #: How often something is logged although nothing happens.
    idle_s: float = 10.0
    #: Whether the port is bound (without listening) before the engine starts.
    binds_first = False
    #: Whether the server asks itself for text before it calls itself ready.
    warms_up = False
    #: Whether a rank without its parent waits for a signal to end.
    ranks_stay = False
    health_delay_s = 0.0
    #: What a request is told when the engine is dead.
    dead_message: str
    _bound = False
    _open = False

    def __init__(self, arguments: argparse.Namespace, argv: list[str] | None = None) -> None:
        self.arguments = arguments
        self.argv = argv
        data = engine_data(self.name)
        self.events: dict[str, list[Any]] = data["events"]
        self.phases = [Phase(**item) for item in data["phases"]]
        self.heartbeat: str = data["heartbeat"]
        self.log = Log(self.dress)
        self.behaviour = self._read_behaviour()
        self.state = "starting"
        self.player = self.new_player(self.log)
        self.crew = Crew()
        self.generator = Generator(self.behaviour, self.crew, self.log_decode)
        answers = engine_data(f"{self.name}_answers")
        self.openai = OpenAI(self.generator, answers["openai"])
        self.extras: dict[str, Any] = answers
        self.site = Site({(method, path): route for path, (method, route) in self.routes().items()}, self.access)
        self.site.failures = {
            EngineDeadError: lambda failure: self.error(500, "InternalServerError", self.dead_message),
            GenerationFailedError: lambda failure: self.error(500, "InternalServerError", str(failure)),
            InvalidRequestError: lambda failure: self.error(400, "BadRequestError", str(failure)),
        }
        self.site.key, self.site.needs_key = self.guard()
        self.site.wrong_body = lambda message: self.error(400, "BadRequestError", message)
        self.server = Server(arguments.host, arguments.port, self.site)

    # What differs between the engines

    @property
    def model(self) -> str:
        """The folder of the model."""
        raise NotImplementedError

    @property
    def served_name(self) -> str:
        """The name under which the model is served."""
        raise NotImplementedError

    @property
    def parallel(self) -> int:
        """The number of GPUs that share the model."""
        raise NotImplementedError

    def values(self) -> dict[str, object]:
        """What the line templates may name."""
        raise NotImplementedError

    def facts(self) -> set[str]:
        """The conditions that lines and phases depend on."""
        raise NotImplementedError

    def routes(self) -> dict[str, tuple[str, Callable[[dict[str, Any]], Reply]]]:
        """The endpoints."""
        raise NotImplementedError

    def guard(self) -> tuple[str | None, Callable[[str], bool]]:
        """The API key, and which paths need it."""
        raise NotImplementedError

    def error(self, status: int, kind: str, message: str) -> Reply:
        """An error as the engine words it."""
        raise NotImplementedError

    def access(self, line: str) -> None:
        """Log a request."""
        raise NotImplementedError

    def make_children(self) -> None:
        """Fork the processes of the engine."""
        raise NotImplementedError

    def port_taken(self, error: OSError) -> NoReturn:
        """End because the port is in use."""
        raise NotImplementedError

    def child_died(self, child: Child) -> NoReturn:
        """End because a child died after the start."""
        raise NotImplementedError

    def start_failed(self) -> NoReturn:
        """End because a child died during the start."""
        raise NotImplementedError

    def stop(self) -> NoReturn:
        """End because of a signal."""
        raise NotImplementedError

    def after(self, phase: Phase) -> None:
        """Do what the engine does at the end of a phase."""

    def idle(self) -> None:
        """Log what was done lately, when nothing happened for a while."""

    def log_decode(self, tokens: int) -> None:
        """Log that decoding moves."""

    # What is common

    def _read_behaviour(self) -> behaviours.Behaviour:
        """Read the behaviour file; without its folder end as the engines do: they take it for a name on the hub."""
        if not Path(self.model).is_dir():
            values: dict[str, object] = {"model": self.model, "executable": sys.argv[0]}
            Player(behaviours.Behaviour(), self.log, values, frozenset(), "").lines(self.events["missing_model"])
            leave(1)
        try:
            return behaviours.load(
                self.model,
                behaviours.Start(
                    phases=[phase.name for phase in self.phases],
                    rank_phases=[phase.name for phase in self.phases if phase.is_of_ranks],
                    ranks=self.parallel,
                    flags=lambda: spelled(self.name, self.argv),
                ),
            )
        except behaviours.BehaviourError as error:
            raise SystemExit(str(error)) from None

    def new_player(self, log: Log, rank: int = 0) -> Player:
        """A player of phases for one process."""
        values = {
            **self.values(),
            "model": self.model,
            "host": self.arguments.host,
            "port": self.arguments.port,
            "parallel": self.parallel,
            "rank": rank,
            "shards": self._shards(),
        }
        return Player(self.behaviour, log, values, frozenset(self.facts()), self.heartbeat, rank)

    def _shards(self) -> int:
        steady = self.behaviour.load_in("weights", "steady")
        number = round(steady["seconds"] / steady.get("interval_s", 1.0)) if steady else None
        return int(max(1, number) if number is not None else self.behaviour.weights.get("shards", 4))

    def say(self, event: str, **values: object) -> None:
        """Log the lines of an event."""
        Player(self.behaviour, self.log, {**self.player.values, **values}, self.player.facts, "").lines(
            self.events[event]
        )

    def run(self) -> NoReturn:
        """Start, serve, end."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        for end_signal in END_SIGNALS:
            signal.signal(end_signal, self._end)
        if self.behaviour.sigterm == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            for number, phase in enumerate(self.phases):
                self._start_phase(phase)
                if number == 0:
                    self._open_workshop()
        except ExitRequestedError:
            self._end_as_wanted(lambda: leave(1))
        except ChildDiedError:
            self._end_as_wanted(self.start_failed)
        self._serve()

    def _end_as_wanted(self, otherwise: Callable[[], NoReturn]) -> NoReturn:
        """End this process in the way that the behaviour wants, or else as the engine does."""
        self.crew.signal(signal.SIGKILL)
        if self.behaviour.exit_how:
            end_by(signal.Signals[f"SIG{self.behaviour.exit_how['signal']}"])
        if self.behaviour.exit_status is not None:
            leave(self.behaviour.exit_status)
        otherwise()

    def _end_abruptly(self, phase: Phase) -> None:
        self.player.last_words()
        failed = self.state == "starting" and phase.process != "main"
        self._end_as_wanted(self.start_failed if failed else lambda: leave(1))

    def up(self) -> None:
        """From now on requests are answered, and as the behaviour wants it."""
        if "die_after_s" in self.behaviour.rank:
            ranks = next(phase.process for phase in self.phases if phase.is_of_ranks)
            self.crew.order(READY, among=ranks.partition(".")[0])
        self.state = "up"
        self.generator.ready = True

    def _end(self, number: int, frame: object) -> None:
        """Take a signal: once up the server ends in order, before that everything ends at once."""
        if self.state == "up":
            self.stop()
        if self.state in ("starting", "warming"):
            self.crew.signal(signal.SIGKILL)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _start_phase(self, phase: Phase) -> None:
        after_s = self.behaviour.exit_after_s
        if after_s is not None and self.behaviour.exit_in == phase.name and phase.unless not in self.player.facts:
            later(after_s, lambda: self._end_abruptly(phase))
        if phase.process == "main":
            self.player.play(phase)
        elif phase.unless not in self.player.facts:
            self.crew.order(f"phase {phase.name}", among=phase.process.partition(".")[0])
        if phase.name == self.opens_after:
            if self.warms_up:
                self.state = "warming"
            else:
                self.up()
            time.sleep(behaviours.option_s(self.behaviour.port, "late_s"))
            self.open_port()
        self.after(phase)

    def _open_workshop(self) -> None:
        """Fork the children, and only then have threads."""
        if self.binds_first:
            self.bind()
        self.make_children()
        if self.behaviour.opens_early:
            self.open_port()

    def bind(self) -> None:
        """Take the port."""
        try:
            self.server.server_bind()
        except OSError as error:
            self.port_taken(error)
        self._bound = True

    def open_port(self) -> None:
        """Answer requests from now on."""
        if self._open:
            return
        if not self._bound:
            self.bind()
        try:
            self.server.server_activate()
        except OSError as error:
            self.port_taken(error)
        threading.Thread(target=self._serve_requests, daemon=True).start()
        self._open = True

    def _serve_requests(self) -> None:
        # Signals are for the main thread; the threads of the connections inherit this mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
        self.server.serve_forever(poll_interval=60)

    def _serve(self) -> NoReturn:
        # Blocked and waited for: with a handler alone a signal just before the wait would be seen only after it.
        ignored = {signal.SIGTERM} if self.behaviour.sigterm == "ignore" else set()
        awaited = (END_SIGNALS | {signal.SIGCHLD}) - ignored
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        if self.behaviour.engine_core:
            death = threading.Timer(
                self.behaviour.engine_core["die_after_s"], self.crew.children[0].signal, [signal.SIGKILL]
            )
            death.daemon = True
            death.start()
        while True:
            for child in self.crew.children:
                if child.has_died():
                    self.child_died(child)
            event = signal.sigtimedwait(awaited, self.idle_s)
            if event is None:
                self.idle()
            elif event.si_signo != signal.SIGCHLD:
                self.stop()

    def obey(self, order: str, player: Player) -> None:
        """Carry out an order in a child; a step needs nothing but the answer."""
        kind, _, name = order.partition(" ")
        if kind == READY:
            player.doom()
        if kind != "phase":
            return
        try:
            player.play(next(phase for phase in self.phases if phase.name == name))
        except ExitRequestedError:
            raise SystemExit(self.behaviour.exit_status or 1) from None

    def fork(
        self,
        name: str,
        title: str,
        body: Callable[[socket.socket], None],
        rank: int | None = None,
        orphan_signal: int = 0,
    ) -> None:
        """Fork a child that gets orders."""
        others = [child.channel for child in self.crew.children]
        child = spawn(name, title, body, [self.server.socket, *others], orphan_signal)
        child.unnoticed = self.dies_unnoticed(rank)
        self.crew.children.append(child)

    def dies_unnoticed(self, rank: int | None) -> bool:
        """Whether nobody shall notice the death of this rank."""
        wanted = self.behaviour.rank
        return rank is not None and rank == wanted.get("number") and not wanted.get("notice", True)

    @property
    def orphans(self) -> bool:
        """Whether no child ends because its parent has ended."""
        return self.behaviour.workers.get("orphan", False)

    def serve_rank(self, rank: int, channel: socket.socket, obey: Callable[[str], None]) -> None:
        """Carry out orders as a rank of the model, until the parent is gone or longer."""
        if self.behaviour.rank_env:
            show_environment(self.behaviour.rank_env)

        def serve() -> None:
            follow(channel, obey)
            if self.orphans or self.ranks_stay:
                remain()

        if self.behaviour.workers.get("zombie_leader") and rank == self.parallel - 1:
            leave_main_thread(serve)
        serve()

    def health(self, document: dict[str, Any]) -> Reply:
        """Answer /health as the behaviour wants it, else as the engine does."""
        wanted = self.behaviour.health
        if wanted == "always_200":
            return Reply()
        if wanted == 500:
            return Reply(status=500)
        return self.own_health(behaviours.option_s(wanted, "delay_s", self.health_delay_s))

    def own_health(self, delay_s: float) -> Reply:
        """What the engine's health endpoint answers, after `delay_s`."""
        raise NotImplementedError

    def not_started(self) -> Reply:
        """Answer a request that came through an early port."""
        return self.error(503, "ServiceUnavailableError", "The engine has not started yet.")

    @property
    def listed_name(self) -> str:
        """The name that /v1/models shows."""
        return "another-model" if self.behaviour.completion == "wrong_model" else self.served_name

    def models(self, document: dict[str, Any]) -> Reply:
        """Answer /v1/models."""
        if self.state == "starting" and not self.behaviour.models_early:
            return self.not_started()
        created = {"created": int(time.time())}
        card = {"id": self.listed_name, "object": "model", **created, "owned_by": self.name, "root": self.model}
        own = {"parent": None, "max_model_len": self.max_model_len}
        return Reply({"object": "list", "data": [{**card, **own, **self.extras["model_card"]}]})

    @property
    def max_model_len(self) -> int:
        """The longest text, in tokens."""
        raise NotImplementedError

    def completions(self, document: dict[str, Any]) -> Reply:
        """Answer /v1/completions."""
        return self.generate_text(document, chat=False)

    def chat(self, document: dict[str, Any]) -> Reply:
        """Answer /v1/chat/completions."""
        return self.generate_text(document, chat=True)

    def generate_text(self, document: dict[str, Any], chat: bool) -> Reply:
        """Answer a request for text."""
        if self.state == "starting":
            return self.not_started()
        if self.state == "dead":
            raise EngineDeadError
        return self.openai.reply(document, document.get("model") or self.served_name, chat)
