"""Whose message it is, and commands that can be copied."""

from __future__ import annotations

from ansible.module_utils.ironserve.table import table
from ansible.module_utils.ironserve.terminal import holds, inventories, told, with_inventory, without_host

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
