"""Nothing in the project ends processes by a pattern."""

from __future__ import annotations

import subprocess
import sys

import lint_kill
import pytest


@pytest.mark.parametrize(
    "line",
    [
        "pkill -f sglang.launch_server",
        "    ansible.builtin.shell: pkill -f 'vllm serve' || true",
        'subprocess.run(["/usr/bin/pkill", "-f", name])',
        "sudo killall -9 python3",
        "killall5 -9",
        "fuser -k 8000/tcp",
        "fuser -v -k /dev/nvidia0",
        "fuser -vk /dev/nvidia0",
        "fuser --kill /dev/nvidia0",
        "argv: [fuser, '-k', /dev/nvidia0]",
        "- fuser\n      - -k\n      - /dev/nvidia0",
        "kill $(pgrep -f vllm)",
        "kill -9 `pidof python3`",
        "kill -9 -- $(ps; pgrep vllm)",
        "pgrep -f vllm | xargs -r kill -9",
        "os.killpg(pid, signal.SIGKILL)",
        "from os import killpg",
    ],
)
def test_what_ends_by_a_pattern_is_found(line):
    assert [number for number, _ in lint_kill.check(f"one\n{line}\nthree\n")] == [2]


@pytest.mark.parametrize(
    "line",
    [
        "os.kill(pid, signal.SIGTERM)",
        "signal.pidfd_send_signal(handle, number)",
        "kill -- $PID",
        "systemctl kill --signal=SIGKILL ironserve-main",
        "pgrep -f vllm",
        "fuser -v /dev/nvidia0",
        "spkill = pkill_count",
        "KillMode=mixed",
    ],
)
def test_what_ends_one_process_is_not(line):
    assert list(lint_kill.check(f"{line}\n")) == []


def test_a_reason_on_the_line_excuses_it_and_nothing_else():
    text = "os.killpg(pid, 9)  # lint_kill: the group is the test's own\nos.killpg(pid, 9)\n"
    assert [number for number, _ in lint_kill.check(text)] == [2]
    assert [number for number, _ in lint_kill.check("os.killpg(pid, 9)  # lint_kill:\n")] == [1]


def test_a_reason_for_nothing_is_found():
    assert list(lint_kill.check("os.kill(pid, 9)  # lint_kill: by pid\n")) == [(1, "gives a reason for nothing")]


@pytest.mark.parametrize(
    ("name", "judged"),
    [
        ("roles/serve/tasks/main.yml", True),
        ("tests/lab/test_lab.py", True),
        ("Makefile", True),
        ("docs/takeover.md", False),
        ("docs/decisions/0005-notify-units.md", False),
        ("docs/example.sh", True),
        ("roles/serve/README.md", False),
        ("README.md", False),
        ("CHANGELOG.md", False),
        ("CONTRIBUTING.md", True),
        ("tools/lint_kill.py", False),
    ],
)
def test_pages_may_speak_of_it(name, judged):
    assert lint_kill.is_product(name) is judged


def test_the_project_is_clean():
    done = subprocess.run([sys.executable, lint_kill.__file__], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_finding_is_said_with_file_and_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "start.sh").write_text("#!/bin/sh\npkill vllm\n")
    monkeypatch.setattr(lint_kill, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["lint_kill", str(tmp_path / "start.sh")])
    with pytest.raises(SystemExit) as raised:
        lint_kill.main()
    assert str(raised.value.code).startswith("start.sh:2: ends processes by a pattern")
