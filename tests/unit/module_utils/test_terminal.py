"""Whose message it is, and commands that can be copied."""

from __future__ import annotations

from ansible.module_utils.ironserve.table import table
from ansible.module_utils.ironserve.terminal import Turns, holds, inventories, told, with_inventory, without_host

DEFAULT = ["/project/inventory/hosts.yml"]


def test_an_inventory_is_named_as_a_person_in_that_folder_would_type_it():
    assert inventories(DEFAULT, DEFAULT, "/project") == []
    assert inventories(None, DEFAULT, "/project") == []
    assert inventories(["/project/lab/hosts.yml", "/etc/fleet.yml", "h1,"], DEFAULT, "/project") == [
        "lab/hosts.yml", "/etc/fleet.yml", "h1,",
    ]  # fmt: skip


def test_commands_of_ours_get_the_inventory_and_others_stay():
    text = "ansible-playbook playbooks/stop.yml; ansible-playbook -i x playbooks/stop.yml; ansible-playbook other.yml"
    assert with_inventory(text, ["my hosts.yml"]) == text.replace(
        "ansible-playbook playbooks", "ansible-playbook -i 'my hosts.yml' playbooks"
    )
    assert with_inventory(text, []) == text


def test_the_hosts_name_goes_from_the_beginning_of_lines_only():
    assert without_host("host h1: no: h1: x\nh1: put back\nh11: stays", "h1") == "no: h1: x\nput back\nh11: stays"


def test_further_lines_are_indented():
    assert told(["h1", "h2"], "FAILED", "one\n  two\n\nthree\n") == "[h1, h2] FAILED: one\n      two\n\n    three"
    assert told([], "FAILED", "all of us") == "FAILED: all of us"


def test_a_text_holds_another_however_it_is_broken():
    assert holds("main is not ready: it\n  exited", "it exited")
    assert not holds("main is not ready", "it exited")


def test_a_table_is_cut_in_its_last_column_only_and_stays_legible():
    rows = [{"host": "h1" * 9, "why": "x" * 50}]
    assert table(["host", "why"], rows).splitlines()[1].endswith("x" * 50)
    assert len(table(["host", "why"], rows, 50).splitlines()[1]) == 50
    assert table(["host", "why"], rows, 10).splitlines()[1] == f"{'h1' * 9}  {'x' * 21}..."


def test_of_a_roll_who_is_at_work_and_what_became_of_the_others_is_told():
    turns = Turns()
    assert turns.told() == "no host was touched"  # the hosts are held, or a batch is opened
    turns.begin("h1")
    turns.begin("h1")
    assert turns.told() == "h1 was at work; no other host was touched"
    turns.end("h1", "moved")
    assert turns.told() == "h1: moved; no other host was touched"  # the canary soaks
    for host, verdict in {"h2": "moved", "h3": "failed", "h4": "not reached"}.items():
        turns.end(host, verdict)
    assert turns.told() == "h1, h2: moved; h3: failed; no other host was touched"
    turns.begin("h2")  # is taken back
    assert turns.told() == "h2 was at work; h1: moved; h3: failed; no other host was touched"
    turns.end("h2", "taken back")
    assert turns.told() == "h1: moved; h3: failed; h2: taken back; no other host was touched"
