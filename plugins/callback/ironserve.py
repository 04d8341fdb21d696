# Copyright: Ironserve contributors
# SPDX-License-Identifier: Apache-2.0
"""What a run shows on the terminal; see DOCUMENTATION below."""

from __future__ import annotations

DOCUMENTATION = r"""
name: ironserve
type: stdout
short_description: Stages, progress, and each error once
description:
  - Shows a line where a stage begins, what Ironserve's own actions say, and each error exactly once.
  - Of Ansible's own output it keeps warnings, C(--diff), the tasks that would change something in check mode, C(debug)
    and questions. With C(-v) it is Ansible's default output.
  - An error that a C(rescue) takes care of is not shown, but what the rescue itself fails with is. Where that says
    nothing of the error, the error is shown before it.
  - Of a task that is delegated, it is the host that it was delegated to that could not be reached.
  - The last line says how the run ended and how long it took, after an interruption (Ctrl-C or SIGTERM) too.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
author: Ironserve contributors
"""

import atexit
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible import constants, context
from ansible.playbook.block import Block
from ansible.plugins.callback import default

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.ironserve.slices import duration
from ansible.module_utils.ironserve.terminal import Turns, holds, inventories, told, with_inventory, without_host

TOUCHED = {
    "resolve": "nothing was touched",
    "validate": "nothing was touched",
    "plan": "nothing was touched",
    "prepare": "no service was touched, all hosts serve what they served",
}
"""What a deploy that ends in a stage has done, by the stage's file in playbooks/."""

ENDS_S = 10
"""Seconds after Ctrl-C in which Ansible has ended its workers and itself. It waits for ever for a worker that was ended
while it handed over a line: the line's lock is gone with it."""

INTERRUPTED = 99
"""Ansible's exit status after Ctrl-C."""

WORDED = ("ansible.builtin.fail", "ansible.builtin.assert")
"""Their messages are ours, and say all. Those of Ansible's other modules need the task's name to be understood."""


def is_rescued(task: Any) -> bool:
    """Whether a rescue takes care of a failure of this task. What a rescue itself fails with is the last word on it."""
    child, parent = task, task._parent
    while parent is not None:
        if isinstance(parent, Block) and parent.rescue:
            # Tasks and blocks are copied on the way, with their ids.
            if any(child._uuid == one._uuid for one in parent.block):
                return True
            if any(child._uuid == one._uuid for one in parent.rescue):
                return False
        child, parent = parent, parent._parent
    return False


def message(result: Any) -> str:
    """What a failed task, or an item of it, says, as a person needs it."""
    answer, task = result.result, result.task
    said = answer.get("msg") or answer.get("censored") or "it failed and did not say why"
    text = "\n".join(map(str, said)) if isinstance(said, list) else str(said)
    if answer.get("stderr"):  # of a command
        text = f"{text} {answer['stderr'].strip()}"
    plain = text.removeprefix("Task failed: ")  # how Ansible begins what no module and no action said itself
    errors = str(answer.get("module_stderr") or answer.get("module_stdout") or "").strip().splitlines()
    if plain != text or "module_stderr" in answer:
        cause = ": ".join([task.get_name(), plain, *errors[-1:]])
        return f"{cause}\nrun again with -vvv to see where ({task.get_path()})"
    foreign = str(task.resolved_action).startswith("ansible.") and task.resolved_action not in WORDED
    return f"{task.get_name()}: {text}" if foreign else text


def unreached(result: Any) -> tuple[str, str]:
    """Who could not be reached by a task, or an item of it, and what the connection said.

    Ansible counts the host that the task is for as unreachable, though it may be fine: see delegate_to.
    """
    who = result.task.delegate_to or result.host.get_name()
    return who, str(result.result.get("msg") or "it cannot be reached").removeprefix("Task failed: ")


class CallbackModule(default.CallbackModule):
    """Ansible's default output without its noise."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "ironserve"

    def __init__(self) -> None:
        super().__init__()
        if self._display.verbosity:
            self.__class__ = default.CallbackModule  # type: ignore[assignment]  # all that Ansible has to say
            return
        self._began = time.monotonic()
        self._pid = 0
        self._play_id = self._stage_shown = ""
        self._stage = ""  # of a playbook of ours its file; plays that nobody is left for do not count
        self._pending: dict[tuple[str, str, bool], list[str]] = {}  # what several hosts say is told once
        # What items of a task said, by host and task: who could not be reached, else nobody, and the message.
        self._items: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self._held: dict[str, list[str]] = {}
        self._said: dict[str, list[str]] = {}
        self._failed: set[str] = set()
        self._away: dict[str, set[str]] = {}  # by host for which a task was, who could not be reached
        self._batch: dict[str, str] = {}
        self._turns = Turns()

    # What is shown, and when

    def _say(self, text: str, color: str | None = None) -> None:
        self._display.display(with_inventory(text, self._inventories()), color=color)

    def _inventories(self) -> list[str]:
        return inventories(context.CLIARGS.get("inventory"), constants.DEFAULT_HOST_LIST)

    def _flush(self) -> None:
        """Tell what failed, when all hosts are through with the task."""
        pending, self._pending = self._pending, {}
        unreachable = sorted(host for (word, _, _), hosts in pending.items() if word == "UNREACHABLE" for host in hosts)
        for (word, text, whole), hosts in pending.items():
            color = constants.COLOR_UNREACHABLE if word == "UNREACHABLE" else constants.COLOR_ERROR
            self._say(told([] if whole else sorted(hosts), word, text), color)
        if unreachable:
            given = [word for one in self._inventories() for word in ("-i", one)]
            words = shlex.join(["ansible", *given, ",".join(unreachable), "-m", "ping"])
            # Of the others something is asked for hosts of the run, whoever these are.
            meant = [f"!{host}" for host in unreachable if host in self._away.get(host, ())]
            limit = f"; -l '{':'.join(['all', *meant])}' leaves out who is away" if meant else ""
            self._say(f"    What to do: {words} tries the connection alone{limit}.")

    def _fail(self, host: str, word: str, text: str, whole: bool = False) -> None:
        """Have a message told, unless the host said the same before."""
        if any(holds(before, text) for before in self._said.setdefault(host, [])):
            return
        self._said[host].append(text)
        self._pending.setdefault((word, text, whole), []).append(host)

    def _changed(self, result: Any, answer: dict[str, Any], verb: str) -> str:
        label = self._get_item_label(answer)
        which = f" ({label})" if isinstance(label, (str, int)) and result.task.loop else ""
        return f"[{result.host.get_name()}] {verb}: {result.task.get_name()}{which}"

    # Ansible's events

    def v2_playbook_on_start(self, playbook: Any) -> None:  # noqa: ARG002  # Ansible calls it
        """Be asked at the end of the process, too: a run that is cut off has no other event."""
        self._pid = os.getpid()
        atexit.register(self._cut_off)
        ends_workers = signal.getsignal(signal.SIGINT)

        def interrupt(number: int, frame: Any) -> Any:
            signal.alarm(ENDS_S)
            return ends_workers(number, frame) if callable(ends_workers) else None

        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGALRM, lambda *_: self._leave())
        signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """A batch of a roll is a play of the same id."""
        self._flush()
        self._play_id, self._play, self._batch = play._uuid, play, {}

    def _task_start(self, task: Any, prefix: str | None = None) -> None:  # noqa: ARG002  # Ansible calls it
        """Say that a stage begins; one that no host is in has no task."""
        self._flush()
        if self._play and self._stage_shown != self._play_id:
            self._say(f"{chr(10) if self._stage_shown else ''}== {self._play.get_name().strip()}")
            self._stage_shown = self._play_id
            file = Path(self._play.get_path().rpartition(":")[0])
            self._stage = file.stem if file.parent == ROOT / "playbooks" else ""

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Know who is at work: in a roll only role serve touches a host."""
        self._batch[host.get_name()] = task.get_name()
        if self._stage == "roll" and task._role and task._role.get_name() == "serve":
            self._turns.begin(host.get_name())

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Tell it, or hold it until its rescue has said what came of it."""
        self._handle_warnings(result.result)
        host = result.host.get_name()
        items = self._items.pop((host, result.task._uuid), None) or [("", message(result))]
        if ignore_errors:
            return
        said = [f"{away} cannot be reached: {text}" if away else text for away, text in items]
        text = without_host("\n".join(dict.fromkeys(said)), host)
        if is_rescued(result.task):
            self._held.setdefault(host, []).append(text)
            return
        for held in self._held.pop(host, []):
            if not holds(text, held):
                self._fail(host, "FAILED", held)
        whole = result.task.run_once is True
        if not whole:
            self._failed.add(host)
        self._fail(host, "FAILED", text, whole)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Tell it, unless the play does so itself."""
        self._handle_warnings(result.result)
        host = result.host.get_name()
        items = self._items.pop((host, result.task._uuid), None) or [unreached(result)]
        if result.task.ignore_unreachable:
            return
        for away, text in items:
            self._away.setdefault(host, set()).add(away)
            self._fail(away, "UNREACHABLE", text)
        if host not in self._away[host] and result.task.run_once is not True:
            self._failed.add(host)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Only what debug says, and in check mode what would change."""
        self._handle_warnings(result.result)
        if outcome := (result.result.get("ansible_facts") or {}).get("roll_outcome"):
            self._turns.end(result.host.get_name(), outcome["verdict"])
        if not result.task.loop:
            self._tell_ok(result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """As a task of its own."""
        self._handle_warnings(result.result)
        self._tell_ok(result)

    def _tell_ok(self, result: Any) -> None:
        answer, host = result.result, result.host.get_name()
        if result.task.action in constants._ACTION_DEBUG:
            self._clean_results(answer, result.task.action)
            said = answer["msg"] if "msg" in answer else self._dump_results(answer).strip("\n")
            self._say(f"[{host}] {without_host(str(said), host)}")
        elif answer.get("changed") and result.task.check_mode:
            self._say(self._changed(result, answer, "would change"))

    def v2_on_file_diff(self, result: Any) -> None:
        """The diff under the name of its task."""
        answers = result.result["results"] if result.task.loop and "results" in result.result else [result.result]
        for answer in answers:
            if answer.get("diff") and answer.get("changed") and (diff := self._get_diff(answer["diff"])):
                if not result.task.check_mode:  # else it is said anyway
                    self._say(self._changed(result, answer, "changed"))
                self._display.display(diff)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Only warnings."""
        self._handle_warnings(result.result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        """Keep what it says: the task itself only knows that items failed."""
        self._handle_warnings(result.result)
        key = (result.host.get_name(), result.task._uuid)
        said = unreached(result) if result.is_unreachable() else ("", message(result))
        self._items.setdefault(key, []).append(said)

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        """Only warnings."""
        self._handle_warnings(result.result)

    def v2_playbook_on_include(self, included_file: Any) -> None:
        """Nothing."""

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """Nothing: a stage that no host needs is not there."""

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """Nothing: who failed is told."""

    # The end

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """How it ended, in a line."""
        self._pid = 0
        self._flush()
        took = duration(time.monotonic() - self._began)
        failed = [host for host in sorted({*stats.failures, *stats.dark}) if host in self._failed]
        away = sorted({who for host in stats.dark for who in self._away.get(host, {host})})
        if not stats.failures and not stats.dark:
            checked = ", in check mode: nothing was changed" if context.CLIARGS.get("check") else ""
            nobody = "" if self._stage_shown else ": no host of the inventory is meant, nothing was done"
            self._say(f"done in {took}{checked}{nobody}")
            return
        parts = [", ".join(failed), f"unreachable: {', '.join(away)}" if away else ""]
        parts.append(TOUCHED.get(self._stage, ""))
        what = "; ".join(filter(None, parts))
        self._say(f"FAILED in {took}{f': {what}' if what else ''}", constants.COLOR_ERROR)

    def _leave(self) -> None:
        """End the process, which Ansible should have done."""
        self._cut_off()
        sys.stdout.flush()
        os._exit(INTERRUPTED)

    def _cut_off(self) -> None:
        """Say what became of the hosts where a run ended before its end."""
        if self._pid != os.getpid():  # the end was told, or this is a worker
            return
        self._flush()
        took = duration(time.monotonic() - self._began)
        if self._stage in TOUCHED:
            what = f"{TOUCHED[self._stage]}. Run the same command again"
        elif self._stage in ("roll", "report"):
            what = (
                f"{self._turns.told()}. The same command goes on from here; what runs now: "
                "ansible-playbook playbooks/status.yml"
            )
        elif self._batch:
            work = "; ".join(f'{host} was at "{task}"' for host, task in self._batch.items())
            what = f"{work}. Run the same command again"
        else:
            what = "no host was touched"
        self._say(f"cut off after {took}: {what}", constants.COLOR_ERROR)
