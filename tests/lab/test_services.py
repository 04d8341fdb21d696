"""Several services on a host: each has its own GPUs, port, unit, log and state, and no one touches another's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import ROOT, Fleet, lines_with, recap, standin_hosts

GPUS = [f"GPU-{digit * 8}-0000-1111-2222-333333333333" for digit in "abc"]


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1 with several services, h2 without any."""
    return standin_hosts(make_lab("-services"), 2)


def services(**changes) -> dict:
    """`chat` and `embed` as an inventory names them, with what a test changes."""
    wanted = {
        "chat": {"gpus": [GPUS[0], GPUS[1]], "port": 8001},
        # Templates, as an inventory may have them.
        "embed": {
            "gpus": [GPUS[2]],
            "port": "{{ 8000 + 2 }}",
            "model": {"path": "/srv/embed", "served_name": "{{ 'embed' }}der"},
        },
    }
    for name, change in changes.items():
        wanted[name] = {**wanted[name], **change}
    return wanted


class Services:
    """Runs of playbooks for h1 whose inventory names `wanted`."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.wanted = fleet, services()

    def play(self, *words: str, host: str = "h1", **more):
        return self.fleet.play("-l", host, *words, **{"ironserve_services": self.wanted, **more})

    def status(self, *words: str, **more) -> tuple[dict, str]:
        output = self.play(*words, playbook="playbooks/status.yml", **more).stdout
        rows = json.loads(self.fleet.report("status").read_text())
        return {row["service"]: row for row in rows}, output

    def pids(self) -> dict[str, int]:
        return {name: self.fleet.main_pid("h1", name) for name in ("chat", "embed")}

    def environ(self, service: str) -> list[str]:
        pid = self.fleet.main_pid("h1", service)
        return self.fleet.shell("h1", f"tr '\\0' '\\n' < /proc/{pid}/environ").splitlines()


@pytest.fixture
def two(hosts, tmp_path):
    """Both services serve on h1, as the inventory names them."""
    fleet = Fleet(hosts, tmp_path)
    fleet.model("h1")
    fleet.model("h1", path="/srv/embed")
    # The driver's list of GPUs, which is where the host knows their UUIDs from.
    for minor, uuid in enumerate(GPUS):
        folder = f"/proc/driver/nvidia/gpus/0000:0{minor}:00.0"
        mount = "mountpoint -q /proc/driver || mount -t tmpfs tmpfs /proc/driver"
        text = f"Model: \\t NVIDIA H200\\nGPU UUID: \\t {uuid}\\nDevice Minor: \\t {minor}\\n"
        fleet.shell("h1", f"{mount}; mkdir -p {folder}; printf '{text}' > {folder}/information")
    two = Services(fleet)
    two.play()
    return two


def test_two_services_serve_beside_each_other_and_a_second_run_changes_nothing(two):
    fleet = two.fleet
    assert fleet.complete("h1", port=8001)["model"] == "tiny"
    assert fleet.complete("h1", model="embedder", port=8002)["model"] == "embedder"
    assert f"CUDA_VISIBLE_DEVICES={GPUS[0]},{GPUS[1]}" in two.environ("chat")
    assert f"CUDA_VISIBLE_DEVICES={GPUS[2]}" in two.environ("embed")
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in two.environ("embed")
    for name in ("chat", "embed"):
        assert fleet.shell("h1", f"systemctl is-enabled ironserve-{name}.service") == "enabled"
        assert fleet.shell(
            "h1", f"test -s /var/log/ironserve/{name}.log && tail -n 1 /var/lib/ironserve/{name}/ledger.jsonl"
        )
    pids, written = two.pids(), fleet.written("h1")
    again = two.play().stdout
    assert recap(again, "h1")["changed"] == 0
    assert lines_with(again, ["h1", "chat", "unchanged"])
    assert lines_with(again, ["h1", "embed", "unchanged"])
    assert (two.pids(), fleet.written("h1")) == (pids, written)

    seen, output = two.status()
    assert {name: (row["status"], row["settled"], row["port"], row["gpus"]) for name, row in seen.items()} == {
        "chat": ("ready", True, 8001, GPUS[:2]), "embed": ("ready", True, 8002, GPUS[2:])}  # fmt: skip
    assert "2 services on 1 host: 2 ready as the inventory wants" in output


def test_a_change_of_one_restarts_that_one_only(two):
    fleet, pids = two.fleet, two.pids()
    fleet.profile("more", flags={"max-num-seqs": 8})
    refused = two.play("-e", "profile=more", check=False)
    assert refused.returncode == 2
    assert (
        'profile: "more" is for one service: add -e service= and one of chat, embed' in refused.stdout + refused.stderr
    )
    output = two.play("-e", "profile=more", "-e", "service=embed").stdout
    assert lines_with(output, ["h1", "embed", "more", "ready", "inventory wants"])
    assert not lines_with(output, ["h1", "chat", "lab_vllm"])
    now = two.pids()
    assert now["chat"] == pids["chat"]
    assert now["embed"] != pids["embed"]
    seen, output = two.status()
    assert (seen["embed"]["note"], seen["embed"]["settled"]) == ("inventory wants lab_vllm", False)
    assert "1 ready as the inventory wants, 1 ready, but not as the inventory wants" in output

    two.wanted = services(chat={"gpus": GPUS[:1]})
    assert two.status()[0]["chat"]["note"] == f"inventory says gpus {GPUS[0]} now: deploy would change it"
    output = two.play("-e", "service=chat").stdout
    assert lines_with(output, ["h1", "chat", "ready", "gpus:"])
    assert f"CUDA_VISIBLE_DEVICES={GPUS[0]}" in two.environ("chat")
    assert two.pids()["embed"] == now["embed"]


def test_a_failed_service_gets_its_last_good_release_back_and_the_others_are_not_touched(two):
    two.fleet.profile("bad", flags={"no-such-flag": True})
    two.fleet.profile("more", flags={"max-num-seqs": 4})
    pids = two.pids()
    two.wanted = services(chat={"profile": "bad"}, embed={"profile": "more"})
    result = two.play(check=False)
    assert result.returncode == 2
    assert lines_with(result.stdout, ["h1", "chat", "bad", "failed"])
    assert lines_with(result.stdout, ["h1", "embed", "more", "not reached"])
    assert lines_with(result.stdout, ["h1", "chat", "failed; put back: lab_vllm"])
    now = two.pids()
    assert now["embed"] == pids["embed"]
    assert now["chat"] not in (0, pids["chat"])
    assert two.fleet.complete("h1", port=8001)
    assert two.fleet.complete("h1", model="embedder", port=8002)

    # The other one fails now, after one that is deployed: what was said of each stays apart.
    two.wanted = services(chat={"profile": "more"}, embed={"profile": "bad"})
    result = two.play(check=False)
    assert result.returncode == 2
    assert lines_with(result.stdout, ["h1", "chat", "more", "ready"])
    assert not lines_with(result.stdout, ["h1", "chat", "more", "put back"])
    assert lines_with(result.stdout, ["h1", "embed", "bad", "failed; put back: lab_vllm"])
    assert two.fleet.complete("h1", model="embedder", port=8002)


def test_stopping_one_leaves_the_other_and_both_come_back_as_they_were_after_a_reboot(two):
    pids = two.pids()
    two.play("-e", "service=chat", playbook="playbooks/stop.yml")
    assert two.pids() == {"chat": 0, "embed": pids["embed"]}
    seen, output = two.status()
    assert (seen["chat"]["status"], seen["chat"]["note"]) == ("stopped", "stopped by an operator")
    assert "1 ready as the inventory wants, 1 stopped" in output
    unknown = two.play("-e", "service=chta", playbook="playbooks/stop.yml", check=False)
    assert 'unknown service "chta" (did you mean "chat"?); known: chat, embed' in unknown.stdout + unknown.stderr
    two.play()
    two.fleet.lab.reboot("h1")
    for port in (8001, 8002):
        waits = f"for i in $(seq 100); do curl -sf http://127.0.0.1:{port}/health && exit; sleep 0.1; done; exit 1"
        two.fleet.shell("h1", waits)
    assert recap(two.play().stdout, "h1")["changed"] == 0
    two.play(playbook="playbooks/stop.yml")
    assert two.pids() == {"chat": 0, "embed": 0}


def test_a_renamed_service_is_told_to_remove_the_old_one_and_then_serves(two):
    fleet, embed = two.fleet, two.pids()["embed"]
    two.wanted["talk"] = two.wanted.pop("chat")
    refused = two.play(check=False)
    assert refused.returncode == 2
    told = " ".join((refused.stdout + refused.stderr).split())
    assert "No inventory names service chat: if it is the old name of this one, or not wanted any more, " in told
    assert (
        f"ansible-playbook -i {fleet.lab.inventory.relative_to(ROOT)} playbooks/remove.yml -e service=chat -l h1"
        in told
    )
    seen, output = two.status()
    remove = "ansible-playbook playbooks/remove.yml -e service=chat -l h1"
    assert seen["chat"]["note"] == f"no inventory names this service: {remove}"
    assert (seen["chat"]["status"], seen["chat"]["settled"], seen["talk"]["status"]) == ("ready", False, "absent")
    assert "3 services on 1 host: 1 ready as the inventory wants, 1 absent, 1 that no inventory names" in output

    before = fleet.written("h1")
    two.play("-e", "service=chat", "--check", playbook="playbooks/remove.yml")
    assert (fleet.written("h1"), two.pids()["chat"] != 0) == (before, True)
    # As after removals by hand: the process is all that is whole of it.
    gone = "/var/lib/ironserve/chat /etc/systemd/system/ironserve-chat.service"
    fleet.shell("h1", f"rm -r {gone} && systemctl daemon-reload")
    seen, _ = two.status("-e", "service=chat")
    assert (seen["chat"]["status"], seen["chat"]["named"], seen["chat"]["main_pid"] != 0) == ("unhealthy", False, True)
    removed = two.play("-e", "service=chat", playbook="playbooks/remove.yml").stdout
    assert "service chat is removed. Its logs stay: /var/log/ironserve/chat.log" in " ".join(removed.split())
    left = "find /etc/systemd /run /var/lib -name '*chat*' 2>/dev/null; systemctl list-units --all 'ironserve-*'"
    assert "chat" not in fleet.shell("h1", left)
    assert recap(two.play("-e", "service=chat", playbook="playbooks/remove.yml").stdout, "h1")["changed"] == 0
    assert two.pids()["embed"] == embed
    two.play()
    assert fleet.complete("h1", port=8001)
    seen, output = two.status("-e", "service=talk")
    assert list(seen) == ["talk"]
    assert "1 service on 1 host: 1 ready as the inventory wants" in output
    two.wanted = {"embed": two.wanted["embed"]}
    two.play("-e", "service=talk", playbook="playbooks/remove.yml")


def test_what_cannot_be_is_refused_with_a_word_of_what_to_do(two):
    def told(*words, **more):
        result = two.play(*words, check=False, **more)
        assert result.returncode != 0, result.stdout
        return " ".join((result.stdout + result.stderr).split())

    pids, before = two.pids(), two.fleet.written("h1")
    remove = "playbooks/remove.yml"
    assert "say which service, -e service=NAME" in told(playbook=remove)
    named = told("-e", "service=chat", playbook=remove)
    assert "the inventory names service chat for h1, and the next deploy would bring it back" in named
    assert "is no name for a service" in told("-e", "service=..", playbook=remove)
    swapped = services(chat={"port": 8002}, embed={"port": 8001})
    swap = told(ironserve_services=swapped)
    assert (
        "It is service embed of this host: where that one moves to another port, deploy it first (-e service=embed"
        in swap
    )
    wrong = told(ironserve_services=services(chat={"gpus": [0]}, embed={"port": 8001, "prot": 1}))
    assert 'host h1: profile "lab_vllm" cannot be deployed, nothing was touched: 3 problems' in wrong
    seen, _ = two.status(ironserve_services=services(chat={"profile": "lab_vlm"}))
    assert seen["chat"]["note"].startswith('the inventory does not resolve: profile: unknown profile "lab_vlm"')
    seen, _ = two.status(ironserve_services={"chat": {"port": "{{ no_such_variable }}"}})
    assert "the inventory does not resolve: Task failed: 'no_such_variable' is undefined" in seen["main"]["note"]
    assert (two.pids(), two.fleet.written("h1")) == (pids, before)


def test_removing_where_nothing_is(hosts, tmp_path):
    fleet = Fleet(hosts, tmp_path)
    output = fleet.play("-l", "h2", "-e", "service=chat", playbook="playbooks/remove.yml").stdout
    assert recap(output, "h2")["changed"] == 0
    assert "service chat is not there. Its logs stay: there are none" in " ".join(output.split())
    assert fleet.play("-l", "h2", ironserve_services={}).returncode == 0
