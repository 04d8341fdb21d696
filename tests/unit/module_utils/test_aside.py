"""Work in children that may never come back."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import pytest
from ansible.module_utils.ironserve import aside


def test_what_is_asked_aside_answers_raises_or_is_left():
    assert aside.ask(lambda: {"a": (1, 2)}, 5) == {"a": (1, 2)}
    with pytest.raises(ValueError, match="invalid literal"):
        aside.ask(lambda: int("no"), 5)
    with pytest.raises(aside.StuckError):
        aside.ask(signal.pause, 0.1)


def test_a_child_that_dies_without_a_word_is_no_answer():
    with pytest.raises(aside.StuckError):
        aside.ask(lambda: os.kill(os.getpid(), signal.SIGKILL), 5)


def test_what_a_child_told_before_it_hung_is_read_and_several_end_at_once():
    def work(pipe):
        pipe.write(b"first\n")
        pipe.flush()
        signal.pause()

    children = [aside.start(work) for _ in range(3)]
    for _, pipe in children:
        assert select.select([pipe], [], [], 10)[0]
        assert os.read(pipe, 100) == b"first\n"
        os.close(pipe)
    began = time.monotonic()
    aside.end(*(pid for pid, _ in children))
    assert time.monotonic() - began < 3 * aside.END_S
    with pytest.raises(ChildProcessError):
        os.waitpid(children[0][0], os.WNOHANG)


def test_a_child_holds_nothing_of_its_parents_open():
    _, held = os.pipe()
    assert f"{held}" not in aside.ask(lambda: [file.name for file in Path("/proc/self/fd").iterdir()], 5)
