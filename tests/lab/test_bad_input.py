"""Bad input: a message that names the file or the host, an exit code that is not 0, the old service untouched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import BIN, ROOT, Fleet, lines_with, standin_hosts


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1, which serves, and h2, which nothing was deployed to."""
    return standin_hosts(make_lab("-bad"), 2)


@pytest.fixture(scope="module")
def serving(hosts, tmp_path_factory):
    """The pid and the files of the service on h1, before anything bad came in."""
    fleet = Fleet(hosts, tmp_path_factory.mktemp("served"))
    fleet.model("h1")
    fleet.model("h2")
    fleet.play("-l", "h1")
    return fleet.main_pid("h1"), fleet.written("h1")


@pytest.fixture
def fleet(hosts, serving, tmp_path):
    """The fleet, with a check at the end that whatever came in left the old service and its files alone."""
    fleet = Fleet(hosts, tmp_path)
    yield fleet
    assert (fleet.main_pid("h1"), fleet.written("h1")) == serving
    assert fleet.complete("h1")["usage"]["completion_tokens"] == 3


def refused(fleet: Fleet, *words: str, **more) -> str:
    """Run a deploy that has to be refused; return all that it printed."""
    result = fleet.play(*words, check=False, **more)
    assert result.returncode != 0, result.stdout
    return result.stdout + result.stderr


def test_unknown_profile_lists_the_known(fleet):
    output = refused(fleet, "-l", "h1", "-e", "profile=lab_vlm")
    assert (
        'unknown profile "lab_vlm" (did you mean "lab_vllm"?); known: baseline, flashinfer_nccl, lab_sglang, lab_vllm'
        in output
    )


def test_misspelt_keys_and_wrong_types_come_in_one_list(fleet):
    fleet.profile("wrong", flag={"a": 1}, startup_timeout_s="long", flags={"dtype": [["x"]]})
    output = refused(
        fleet, "-l", "h1", "-e", "profile=wrong", "-e", "ironserve_prot=9000", ironserve_port="eight thousand"
    )
    assert 'host h1: profile "wrong" cannot be deployed, nothing was touched: 5 problems' in output
    assert 'host h1: ironserve_prot: unknown variable (did you mean "ironserve_port"?)' in output
    assert "host h1: ironserve_port: expected a whole number, got text: 'eight thousand'" in output
    assert f'{fleet.folder}/profiles/wrong.yml: flag: unknown key (did you mean "flags"?)' in output
    assert f"{fleet.folder}/profiles/wrong.yml: startup_timeout_s: expected a whole number, got text: 'long'" in output
    assert f"{fleet.folder}/profiles/wrong.yml: flags.dtype[0]: a list is no item of a list" in output


def test_a_profile_that_is_no_yaml_is_named(fleet):
    (fleet.folder / "profiles" / "broken.yml").write_text("flags: {")
    output = refused(fleet, "-l", "h1", "-e", "profile=broken")
    assert f"{fleet.folder}/profiles/broken.yml:1: not YAML" in output


def test_a_port_taken_by_a_foreign_process_names_it_and_leaves_it_alone(fleet):
    fleet.profile("other", flags={"max-num-seqs": 8})
    fleet.shell("h1", "systemd-run --quiet --unit neighbour python3 -m http.server 9000")
    fleet.shell(
        "h1", "for i in $(seq 100); do curl -s http://127.0.0.1:9000/ >/dev/null && exit; sleep 0.05; done; exit 1"
    )
    pid = fleet.shell("h1", "systemctl show -P MainPID neighbour")
    output = refused(fleet, "-l", "h1", "-e", "profile=other", ironserve_port=9000)
    holder = f"port 9000: held by unit neighbour.service (pid {pid}, user root, for "
    assert holder in output
    assert '"/usr/bin/python3 -m http.server 9000". It was left alone: stop it yourself' in output
    assert "fatal: [h1]" in output
    assert fleet.shell("h1", "systemctl show -P MainPID neighbour") == pid
    fleet.shell("h1", "systemctl stop neighbour")


def test_a_missing_model_folder_and_a_full_disk_are_said_together(fleet):
    before = fleet.written("h2")
    fleet.shell("h2", "mkdir -p /opt/ironserve && mount -t tmpfs -o size=64m tmpfs /opt/ironserve")
    output = refused(fleet, "-l", "h2", ironserve_model={"path": "/srv/no/such", "served_name": "tiny"})
    fleet.shell("h2", "umount /opt/ironserve && rmdir /opt/ironserve")
    assert "model /srv/no/such: no such folder (ironserve_model.path): copy or mount the model there" in output
    assert "environment: /opt/ironserve/engines has 6" in output
    assert "fatal: [h2]" in output
    assert fleet.written("h2") == before


def test_a_limit_that_matches_nothing(fleet):
    assert "leaves us with no hosts to target" in refused(fleet, "-l", "h99")


def test_an_unreachable_host_is_named_and_no_other_is_touched(fleet):
    fleet.profile("other", flags={"max-num-seqs": 8})
    fleet.lab.cut("h2")
    output = refused(fleet, "-e", "profile=other")
    fleet.lab.join("h2")
    assert "h2" in output
    assert "UNREACHABLE" in output
    status = fleet.play("-l", "h1", playbook="playbooks/status.yml").stdout
    assert "ready" in status


def test_status_of_a_fleet_with_an_unreachable_host_shows_the_others(fleet):
    fleet.lab.cut("h2")
    output = fleet.play(playbook="playbooks/status.yml", check=False).stdout
    fleet.lab.join("h2")
    assert lines_with(output, ["h1", "main", "ready"])
    assert lines_with(output, ["h2", "main", "unreachable"])


def test_a_login_without_root_and_sudo(fleet):
    fleet.profile("other", flags={"max-num-seqs": 8})
    output = refused(fleet, "-l", "h1", "-e", "profile=other", "-e", "ansible_user=operator")
    assert "h1" in output
    assert "sudo" in output


def test_a_login_with_sudo_is_enough(fleet):
    assert "changed=0" in fleet.play("-l", "h1", "-e", "ansible_user=admin").stdout


def test_an_inventory_without_our_group_vars_is_told_how_to_get_them(fleet, tmp_path):
    inventory = tmp_path / "mine" / "hosts.yml"
    inventory.parent.mkdir()
    inventory.write_text(fleet.lab.inventory.read_text())
    output = " ".join(refused(fleet, "-l", "h1", inventory=inventory).split())
    assert "its inventory does not load Ironserve's group_vars" in output
    assert f"ln -s {ROOT}/group_vars group_vars" in output
    (inventory.parent / "group_vars").symlink_to(ROOT / "group_vars")
    assert "changed=0" in fleet.play("-l", "h1", inventory=inventory).stdout


def test_a_unit_that_systemd_refuses_is_never_activated(fleet):
    release = json.loads(fleet.shell("h1", "cat /var/lib/ironserve/main/active/release.json"))
    arguments = {
        "service": "main",
        "state": "active",
        "release": {**release, "release_id": "0123456789ab"},
        "unit": "[Service]\nExecStart=/bin/true\nNoSuchKey=1\n",
    }
    command = [
        str(BIN / "ansible"),
        "-i",
        str(fleet.lab.inventory),
        "h1",
        "-m",
        "inference_release",
        "-a",
        json.dumps(arguments),
    ]
    result = subprocess.run(command, cwd=ROOT, env=fleet.environment(), capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "systemd refuses the unit" in result.stdout
    assert "NoSuchKey" in result.stdout
