"""Drift on test hosts: whatever somebody changed beside a deploy is told, and nothing else is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import UNIT, Fleet, lines_with, standin_hosts

PLACE = f"/etc/systemd/system/{UNIT}"
DROP_IN = f"{PLACE}.d/local.conf"
RESTART = f"systemctl daemon-reload && systemctl restart {UNIT}"


@pytest.fixture(scope="module")
def fleet(make_lab, tmp_path_factory):
    """h1 serves, nothing was ever deployed to h2."""
    fleet = Fleet(standin_hosts(make_lab("-drift"), 2), tmp_path_factory.mktemp("drift"))
    fleet.model("h1")
    fleet.play("-l", "h1")
    return fleet


@pytest.fixture
def settled(fleet):
    """What a test changed is taken back."""
    yield fleet
    fleet.shell("h1", f"rm -rf {PLACE}.d; cp /var/lib/ironserve/main/active/{UNIT} {PLACE}; {RESTART}")


def status(fleet, *words: str, **site) -> tuple[dict[str, dict], str]:
    """The rows by host, and what was printed."""
    output = fleet.play("-e", "drift=true", *words, playbook="playbooks/status.yml", **site).stdout
    return {row["host"]: row for row in json.loads(fleet.report("status").read_text())}, output


def differences(fleet, **site) -> list[tuple]:
    """The drift of h1: kind, key, what is declared, what runs."""
    rows, _ = status(fleet, "-l", "h1", **site)
    assert rows["h1"]["drift_unknown"] == ""
    return [(row["kind"], row["key"], row["declared"], row["runs"]) for row in rows["h1"]["drift"]]


def test_a_fleet_as_it_was_deployed_has_no_drift(fleet):
    rows, output = status(fleet)
    kernel = fleet.shell("h1", "uname -r")
    assert (rows["h1"]["drift"], rows["h1"]["kernel"], rows["h1"]["driver"]) == ([], kernel, "")
    assert (rows["h2"]["status"], rows["h2"]["drift"]) == ("absent", [])
    assert lines_with(output, ["h1", "main", "ready", "none"])
    metrics = fleet.report("status").with_suffix(".prom").read_text().splitlines()
    assert 'ironserve_service_ready{host="h1",service="main"} 1' in metrics
    assert 'ironserve_service_ready{host="h2",service="main"} 0' in metrics
    assert 'ironserve_drift{host="h1",service="main",kind="flags"} 0' in metrics


def test_who_does_not_ask_for_drift_gets_the_status_as_it_is(fleet):
    result = fleet.play(playbook="playbooks/status.yml")
    assert "drift" not in json.loads(fleet.report("status").read_text())[0]
    [heads] = lines_with(result.stdout.lower(), ["host", "service", "wants", "note"])
    assert "drift" not in heads


def test_a_drop_in_that_changes_a_flag_and_variables_is_told_with_each(settled):
    line = settled.shell("h1", f"grep ^ExecStart= {PLACE}")
    assert "--max-num-seqs 16" in line
    other = line.replace("--max-num-seqs 16", "--max-num-seqs 8")
    says = (
        f"[Service]\nExecStart=\n{other}\nEnvironment=HF_HUB_OFFLINE=0 NCCL_IB_HCA=mlx5_0 VLLM_OTHER_TOKEN=sk-hidden\n"
    )
    settled.lab.exec("h1", ["sh", "-c", f"mkdir -p {PLACE}.d && cat > {DROP_IN} && {RESTART}"], input=says)
    rows, output = status(settled, "-l", "h1")
    found = {(row["kind"], row["key"]): (row["declared"], row["runs"]) for row in rows["h1"]["drift"]}
    assert set(found) == {("flags", "max-num-seqs"), ("env", "HF_HUB_OFFLINE"), ("env", "NCCL_IB_HCA"),
                          ("env", "VLLM_OTHER_TOKEN"), ("unit", DROP_IN)}  # fmt: skip
    assert found["flags", "max-num-seqs"] == ("16", "8")
    assert found["env", "HF_HUB_OFFLINE"] == ("1", "0")
    assert found["env", "NCCL_IB_HCA"] == (None, "mlx5_0")
    assert lines_with(output, ["h1", "main", "5: flags max-num-seqs: declared 16, runs 8"])
    assert lines_with(output, ["h1", "main", "env", "NCCL_IB_HCA", "not there", "mlx5_0"])
    report = settled.report("status").read_text() + settled.report("drift").read_text()
    assert "sk-hidden" not in output + report
    assert 'ironserve_drift{host="h1",service="main",kind="env"} 3' in (
        settled.report("status").with_suffix(".prom").read_text()
    )


def test_a_unit_that_was_edited_by_hand_is_told_and_that_systemd_has_not_read_it(settled):
    settled.shell("h1", f"sed -i 's/^RestartSec=10/RestartSec=99/' {PLACE}")
    assert differences(settled) == [
        ("unit", "RestartSec", "10", "99"),
        ("unit", "NeedDaemonReload", "no", "yes: systemd has not read what its files say now"),
    ]


def test_a_package_of_another_version_one_too_many_and_one_that_is_gone_are_told(fleet):
    folder = fleet.shell("h1", "echo /opt/ironserve/engines/standin-vllm-*/lib/python3*/site-packages")
    [name] = fleet.shell("h1", f"cd {folder} && ls -d setproctitle-*.dist-info").splitlines()
    version = name[len("setproctitle-") : -len(".dist-info")]
    try:
        fleet.shell("h1", f"cd {folder} && mv {name} setproctitle-0.1.dist-info && mkdir torch-2.9.dist-info")
        assert differences(fleet) == [
            ("packages", "setproctitle", version, "0.1"), ("packages", "torch", None, "2.9")]  # fmt: skip
        fleet.shell("h1", f"cd {folder} && mv setproctitle-0.1.dist-info /root && rmdir torch-2.9.dist-info")
        assert differences(fleet) == [("packages", "setproctitle", version, None)]
        fleet.shell("h1", f"mv /root/setproctitle-0.1.dist-info {folder}/{name}")
        assert differences(fleet) == []
    finally:
        fleet.shell(
            "h1", f"cd {folder} && rm -rf torch-2.9.dist-info; mv /root/setproctitle-0.1.dist-info {name}; true"
        )


def test_a_kernel_that_is_not_the_declared_one_is_told_and_so_is_a_changed_inventory(fleet):
    kernel = fleet.shell("h1", "uname -r")
    hardware = {"gpu_count": 8, "gpu_family": "sm120", "kernel": ">=99"}
    assert differences(fleet, ironserve_hardware=hardware) == [("kernel", "kernel", ">=99", kernel)]
    fleet.profile("more", flags={"max-num-seqs": 32})
    found = differences(fleet, ironserve_profile="more")
    assert [row for row in found if row[0] != "unit"] == [("flags", "max-num-seqs", "32", "16")]
    assert [row[1] for row in found if row[0] == "unit"] == ["ExecStart"]


def test_a_host_that_is_down_and_one_that_does_not_resolve_are_lines_like_any_other(fleet):
    fleet.lab.cut("h1")
    try:
        rows, output = status(fleet)
    finally:
        fleet.lab.join("h1")
    assert (rows["h1"]["status"], rows["h1"]["drift"]) == ("unreachable", None)
    assert rows["h2"]["drift"] == []
    assert lines_with(output, ["h1", "main", "unreachable", "unknown"])
    metrics = fleet.report("status").with_suffix(".prom").read_text()
    assert 'ironserve_service_ready{host="h1",service="main"} 0' in metrics
    assert 'ironserve_drift{host="h1"' not in metrics
    rows, _ = status(fleet, "-l", "h2", ironserve_profile="no-such")
    assert rows["h2"]["drift"] is None
