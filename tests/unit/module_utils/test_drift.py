"""Drift: what runs against what is declared."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve import drift, effects, packages, prometheus

ARGV = ["/opt/e/bin/vllm", "serve", "/srv/m", "--max-num-seqs", "16", "--enforce-eager", "--port", "8000"]
NAME = "ironserve-main.service"
UNIT = '# a comment\n[Service]\nEnvironment="NCCL_PROTO=LL"\nExecStart=/launch main vllm\nLimitNOFILE=8192\n'
PLACE = f"/etc/systemd/system/{NAME}"
SHOW = {"FragmentPath": PLACE, "NeedDaemonReload": "no"}


def row(kind, key, declared, runs):
    return {"kind": kind, "key": key, "declared": declared, "runs": runs}


def process(name, **environ):
    return effects.Process(name, 1, environ)


@pytest.mark.parametrize(
    ("runs", "rows"),
    [
        (ARGV, []),
        (["/opt/e/bin/python3.11", *ARGV], []),
        ([*ARGV[:3], "--max-num-seqs=16", *ARGV[5:]], []),
        ([*ARGV[:4], "8", *ARGV[5:]], [row("flags", "max-num-seqs", "16", "8")]),
        ([*ARGV[:5], *ARGV[6:]], [row("flags", "enforce-eager", "true", None)]),
        ([*ARGV, "--dtype", "bfloat16"], [row("flags", "dtype", None, "bfloat16")]),
        (["/opt/other/bin/vllm", "serve", "/srv/m", *ARGV[3:]],
         [row("flags", "command", "/opt/e/bin/vllm serve /srv/m", "/opt/other/bin/vllm serve /srv/m")]),
        (["VLLM::APIServer_0"], []),
        ([""], []),
    ],
    ids=["same", "interpreter", "equals-sign", "other-value", "missing", "more", "other-program", "title",
         "unreadable"],
)  # fmt: skip
def test_flags_one_by_one(runs, rows):
    assert drift.flags(ARGV, runs) == rows


def test_the_environment_of_main_process_and_ranks():
    env = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
    good = process("main process", **env)
    assert drift.environment(env, good, [process("TP0", **env, NCCL_NVLS_ENABLE="0")]) == []
    other = process("main process", NCCL_PROTO="Simple", NCCL_ALGO="Ring", NCCL_IB_HCA="mlx5", LANG="C")
    assert drift.environment(env, other, [process("TP0", NCCL_PROTO="Simple", NCCL_ALGO="Ring")]) == [
        row("env", "NCCL_PROTO", "LL", "Simple"), row("env", "NCCL_IB_HCA", None, "mlx5")]  # fmt: skip
    ranks = [process("TP0", **env), process("TP1", NCCL_PROTO="LL")]
    assert drift.environment(env, good, ranks) == [row("env", "NCCL_ALGO", "Ring", "not set (1 of 2 ranks)")]


def test_a_unit_of_the_same_directives_is_no_drift():
    gate = {f"/run/systemd/system/{NAME}.d/ironserve-gate.conf": "[Service]\nRestart=no\n"}
    of_system = {"/usr/lib/systemd/system/service.d/10-timeout-abort.conf": "[Service]\nTimeoutStopFailureMode=abort\n"}
    assert drift.unit(NAME, UNIT, UNIT.replace("# a comment", "# another"), SHOW, {**gate, **of_system}) == []


def test_a_unit_that_somebody_changed_is_told_by_directive():
    edited = UNIT.replace("8192", "1024").replace('"NCCL_PROTO=LL"', '"NCCL_PROTO=LL"\nEnvironment="NCCL_ALGO=Tree"')
    path = f"{PLACE}.d/local.conf"
    show = {**SHOW, "NeedDaemonReload": "yes"}
    found = drift.unit(NAME, UNIT, edited, show, {path: "# mine\n[Service]\nNice=5\n"})
    assert found == [
        row("unit", "Environment", None, '"NCCL_ALGO=Tree"'),
        row("unit", "LimitNOFILE", "8192", "1024"),
        row("unit", path, None, "Nice=5"),
        row("unit", "NeedDaemonReload", "no", "yes: systemd has not read what its files say now"),
    ]


def test_a_unit_that_is_elsewhere_or_gone_is_told():
    assert drift.unit(NAME, UNIT, None, {}, {}) == [row("unit", "file", PLACE, None)]
    other = f"/run/systemd/system/{NAME}"
    found = drift.unit(NAME, UNIT, UNIT, {**SHOW, "FragmentPath": other}, {})
    assert found == [row("unit", "FragmentPath", PLACE, other)]


def test_packages_against_the_lock():
    names = ["torch-2.9.0+cu130.dist-info", "Foo_Bar-1.0.dist-info", "extra-3.dist-info", "torch", "_virtualenv.py"]
    there = packages.installed(names)
    assert there == {"torch": "2.9.0+cu130", "foo-bar": "1.0", "extra": "3"}
    locked = {"torch": "2.9.0+cu130", "foo-bar": "1.1", "vllm": "0.33.0"}
    assert drift.packages(locked, there, "lock-1") == [
        row("packages", "extra", None, "3"), row("packages", "foo-bar", "1.1", "1.0"),
        row("packages", "vllm", "0.33.0", None)]  # fmt: skip
    assert drift.packages(locked, None, "lock-1") == [row("packages", "environment", "lock-1", None)]


def test_the_driver_of_the_kernel_module():
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.58.03  Release Build  (a@b)\nGCC version\n"
    assert drift.driver_version(text) == "595.58.03"
    assert drift.driver_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n") == "580.95.05"
    assert drift.driver_version("") == ""


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("595.58.03", ">=580", True), ("570.1", ">=580", False), ("595.58.03", "==595.58.03", True),
        ("595.58.03", "==595.58", False), ("595.58.03", "595", True), ("595.58.03", "59", False),
        ("595.58.03", ">=580, <600", True), ("595.58.03", ">=580,<595", False), ("6.17.0-19-generic", ">=6.17", True),
        ("6.17.0-19-generic", "6.17", True), ("6.17.0-19-generic", "6.1", False),
        ("6.8.0-40-generic", ">=6.8.0-41", False), ("580.0", "==580", True), ("580", "!=580", False),
    ],
)  # fmt: skip
def test_a_version_against_what_is_declared(version, wanted, fits):
    assert drift.fits(version, wanted) is fits


def test_a_host_is_measured_by_what_is_declared_and_else_by_most_of_its_group():
    hosts = [f"b{number}" for number in range(8)]
    seen = {**dict.fromkeys(hosts, "6.17.0"), "b3": "6.8.0-40", "h1": "5.15.0"}
    groups = {**dict.fromkeys(hosts, "blackwell"), "h1": "hopper"}
    told = row("kernel", "kernel", "7 of 8 hosts of group blackwell have 6.17.0", "6.8.0-40")
    assert drift.system("kernel", "b3", {}, seen, groups) == [told]
    assert drift.system("kernel", "b0", {}, seen, groups) == drift.system("kernel", "h1", {}, seen, groups) == []
    assert drift.system("kernel", "b3", {"b3": "6.8"}, seen, groups) == []
    assert drift.system("kernel", "b0", {"b0": ">=6.18"}, seen, groups) == [row("kernel", "kernel", ">=6.18", "6.17.0")]
    assert drift.system("driver", "b0", {"b0": ">=580"}, {}, groups) == []


def test_where_there_is_no_majority_nobody_is_told():
    seen, groups = {"a": "1", "b": "2"}, {"a": "g", "b": "g"}
    assert drift.system("kernel", "a", {}, seen, groups) == drift.system("kernel", "b", {}, seen, groups) == []


def test_the_cell_of_a_table_has_the_count_and_the_first():
    rows = [row("env", "NCCL_IB_HCA", None, "mlx5"), row("flags", "x", "1", "2")]
    assert drift.text(rows) == "2: env NCCL_IB_HCA: declared not there, runs mlx5"
    assert drift.text([]) == ""


def test_metrics_are_text_that_prometheus_reads():
    metric = prometheus.Metric("m", "What it\nmeans.", [({"host": 'a"\\b\n'}, 3.0), ({"host": "c"}, 0.0)])
    assert prometheus.exposition([metric]) == (
        '# HELP m What it\\nmeans.\n# TYPE m gauge\nm{host="a\\"\\\\b\\n"} 3\nm{host="c"} 0\n'
    )
