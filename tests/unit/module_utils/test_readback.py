"""What a process really has against what its unit asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.ironserve.readback import differences, limits

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max open files            {nofile}                {nofile_hard}                files     
Max locked memory         {memlock}            {memlock}            bytes     
"""  # noqa: W291  as the kernel writes it
GOOD = LIMITS.format(nofile=65535, nofile_hard=65535, memlock="unlimited")
ASKED = {"argv": ["/e/bin/vllm", "serve", "/m", "--x", ""], "limits": {"nofile": 65535, "memlock": "infinity"}}
CMDLINE = "/e/bin/python\0/e/bin/vllm\0serve\0/m\0--x\0\0"


def test_the_kernels_own_table_is_understood():
    own = limits(Path("/proc/self/limits").read_text())
    assert set(own) >= {"Max open files", "Max locked memory", "Max cpu time"}


def test_a_process_that_is_what_was_asked_for_has_no_differences():
    assert differences(ASKED, {"A": "1=2"}, CMDLINE, "B=2\0A=1=2\0", GOOD) == []


def test_what_cannot_be_read_is_not_judged():
    assert differences(ASKED, {"A": "1"}, "", "\0\0\0", "") == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LIMITS.format(nofile=1024, nofile_hard=65535, memlock="unlimited"), "max open files: 1024 (hard 65535)"),
        (LIMITS.format(nofile=65535, nofile_hard=4096, memlock="unlimited"), "max open files: 65535 (hard 4096)"),
        (LIMITS.format(nofile=65535, nofile_hard=65535, memlock="8388608"), "max locked memory: 8388608"),
    ],
)
def test_case_40_a_lower_limit_is_told(text, told):
    assert [line for line in differences(ASKED, {}, "", "", text) if told in line]


def test_a_changed_command_line_or_variable_is_told():
    found = differences(ASKED, {"A": "1", "C": "3"}, CMDLINE.replace("/m", "/other"), "A=2\0", GOOD)
    assert found == [
        "its command line is not the release's: /e/bin/python /e/bin/vllm serve /other --x ",
        "variable A is '2', and the release has '1'",
        "variable C is 'not set', and the release has '3'",
    ]
