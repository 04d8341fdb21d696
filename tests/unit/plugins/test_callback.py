"""What a person sees of a run: small playbooks on this machine, with the project's ansible.cfg."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = str(Path(sys.executable).parent / "ansible-playbook")

SAYS = """
import sys
from pathlib import Path
import ansible.module_utils
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
ansible.module_utils.__path__.append(ROOT)
from ansible.module_utils.ironserve import slices

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        states = iter(range(40))
        def execute(cursor):
            number = next(states)
            state = {"done": number == 39, "phase": "weights", "progress": "x" * 99 + str(number), "cursor": {}}
            return {"slice": state}
        slices.drive(execute, Display().display, task_vars["inventory_hostname"], "main", lost=())
        return {"changed": False}
""".replace("ROOT", repr(str(ROOT / "module_utils")))

CRASHES = """
from ansible.module_utils.basic import AnsibleModule
AnsibleModule(argument_spec={})
raise ValueError("kaputt")
"""


class Site:
    """A folder with an inventory of this machine under several names, and what is played there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "action").mkdir()
        (folder / "library").mkdir()
        (folder / "action" / "says.py").write_text(SAYS)
        (folder / "library" / "crashes.py").write_text(CRASHES)
        self.hosts("h1", "h2")

    def hosts(self, *names: str) -> None:
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        inventory = {"all": {"hosts": dict.fromkeys(names), "vars": local, "children": {"nobody": {}}}}
        (self.folder / "hosts.yml").write_text(json.dumps(inventory))

    def write(self, *tasks: Mapping[str, Any], name: str = "Stage", **keys: Any) -> None:
        plays = [
            {"name": "Nobody is in it", "hosts": "nobody", "tasks": []},
            {"name": name, "hosts": "all", "gather_facts": False, "tasks": list(tasks), **keys},
        ]
        (self.folder / "play.yml").write_text(json.dumps(plays))

    def environment(self) -> dict[str, str]:
        named = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "COLUMNS"))}
        return {
            **named, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_LIBRARY": str(self.folder / "library"),
            "ANSIBLE_ACTION_PLUGINS": f"{self.folder}/action:{ROOT}/plugins/action",
        }  # fmt: skip

    def run(self, *words: str) -> str:
        """Play; the output, with the exit status as the last line."""
        done = subprocess.run(
            [PROGRAM, "-i", "hosts.yml", "play.yml", *words], cwd=self.folder, env=self.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        return re.sub(r"in \d+s", "in Ns", f"{done.stdout}rc={done.returncode}")

    def play(self, *tasks: Mapping[str, Any], words: tuple[str, ...] = (), **keys: Any) -> list[str]:
        self.write(*tasks, **keys)
        return self.run(*words).splitlines()

    def on_terminal(self, columns: int) -> str:
        """What a terminal of that width gets."""
        mine, theirs = pty.openpty()
        size = ["stty", "cols", str(columns)]
        subprocess.run(size, stdin=theirs, check=True)
        play = subprocess.Popen(
            [PROGRAM, "-i", "hosts.yml", "play.yml"], cwd=self.folder, env={**self.environment(), "TERM": "xterm"},
            stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        said = b""
        while True:
            try:
                said += os.read(mine, 65536)
            except OSError:  # nobody has the other end any more
                break
        play.wait(60)
        os.close(mine)
        return said.decode().replace("\r\n", "\n")


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def fail(text: str, **keys: Any) -> dict[str, Any]:
    return {"name": "Fail", "ansible.builtin.fail": {"msg": text}, **keys}


QUIET = [
    {"name": "Look", "ansible.builtin.command": "true"},
    {"name": "Not now", "ansible.builtin.command": "true", "when": False},
    {"name": "Say", "ansible.builtin.debug": {"msg": "{{ inventory_hostname }}: two\nlines"}, "run_once": True},
]


def test_stages_and_what_is_said_and_how_it_ended(site):
    assert site.play(*QUIET) == ["== Stage", "[h1] two", "lines", "done in Ns", "rc=0"]


def test_with_v_it_is_ansibles_own_output(site):
    output = "\n".join(site.play(*QUIET, words=("-v",)))
    assert "PLAY RECAP" in output
    assert "TASK [Look]" in output
    assert "done in" not in output


def test_a_run_that_no_host_is_meant_by_says_so(site):
    assert site.play(hosts="nobody") == ["done in Ns: no host of the inventory is meant, nothing was done", "rc=0"]


def table(why: str) -> dict[str, Any]:
    rows = [{"host": "h1", "why": why}]
    return {
        "name": "Show",
        "fleet_table": {"title": "Rows", "columns": ["host", "why"], "rows": rows, "json": "{{ playbook_dir }}/t.json"},
        "run_once": True,
    }


def rescued(inner: str, *rescue: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": "Try", "block": [fail(inner)], "rescue": list(rescue)}


GOES_ON = {"name": "Go on", "ansible.builtin.set_fact": {"x": 1}}
GONE = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
COMMAND = "see ansible-playbook playbooks/status.yml -l h1, then ansible-playbook deploy.yml"
SCENES: dict[str, list[dict[str, Any]]] = {
    "same": [fail("host {{ inventory_hostname }}: no such profile: 1 problem\n  1. profile: x")],
    "items": [fail("no {{ item }}", loop=["a", "b", "a"])],
    "rescued": [rescued("first", GOES_ON)],
    "inside": [{"name": "Outer", "block": [{"name": "Inner", "block": [fail("first")]}], "rescue": [GOES_ON]}],
    "ignored": [fail("first", ignore_errors=True)],
    "meant": [fail("first", failed_when=False)],
    "said": [rescued("it exited", fail("main is not ready: it\nexited, put back"))],
    "unsaid": [rescued("disk full", GOES_ON, fail("the roll stops, see above"))],
    "twice": [
        {
            "name": "Roll",
            "block": [rescued("it exited", fail("it exited, put back"))],
            "rescue": [GOES_ON, fail("no further host was touched")],
        }
    ],
    "files": [
        {
            "name": "Roll",
            "block": [{"ansible.builtin.include_tasks": "inner.yml"}],
            "rescue": [{"ansible.builtin.include_tasks": "give_up.yml"}],
        }
    ],
    "crash": [{"name": "Stage the releases", "crashes": {}}],
    "module": [{"name": "Have the file", "ansible.builtin.file": {"path": "/no/such", "state": "file"}}],
    "gone": [{"name": "Reach", "ansible.builtin.ping": {}, "vars": GONE}],
    "away": [{"name": "Reach", "ansible.builtin.ping": {}, "vars": GONE, "ignore_unreachable": True}],
    "command": [fail(COMMAND)],
    "table": [table(f"{COMMAND} {'x' * 200}")],
}
"""By name what hosts h1 and h2 do; a third host does nothing, since a play in which all hosts fail is the last one."""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """What was shown of each scene: one run for all."""
    site = Site(tmp_path_factory.mktemp("scenes"))
    (site.folder / "inner.yml").write_text(json.dumps([fail("it exited")]))
    (site.folder / "give_up.yml").write_text(json.dumps([GOES_ON, fail("it exited, put back")]))
    site.hosts(*(f"{name}-{end}" for name in SCENES for end in ("h1", "h2", "rest")))
    plays = []
    for name, tasks in SCENES.items():
        two = {"name": "Not the third", "block": tasks, "when": "not inventory_hostname.endswith('-rest')"}
        plays.append({"name": name, "hosts": f"{name}-*", "gather_facts": False, "tasks": [two]})
    (site.folder / "play.yml").write_text(json.dumps(plays))
    output = re.sub(rf"({'|'.join(SCENES)})-(h\d|rest)", r"\2", site.run())
    assert "\x1b" not in output
    *sections, last = output.split("== ")[1:]
    return {
        name: text.splitlines()
        for name, _, text in (section.partition("\n") for section in [*sections, last.rpartition("FAILED in")[0]])
    } | {"folder": site.folder, "end": output.splitlines()[-2:]}


def shown(scenes: Mapping[str, Any], name: str) -> list[str]:
    return [line for line in scenes[name] if line]


def test_the_same_message_of_several_hosts_is_told_once_without_their_names(scenes):
    assert shown(scenes, "same") == ["[h1, h2] FAILED: no such profile: 1 problem", "      1. profile: x"]


def test_items_that_fail_are_told_each_once(scenes):
    assert shown(scenes, "items") == ["[h1, h2] FAILED: no a", "    no b"]


@pytest.mark.parametrize("name", ["rescued", "inside", "ignored", "meant"])
def test_an_error_that_is_taken_care_of_is_not_shown(scenes, name):
    assert shown(scenes, name) == []


def test_of_an_error_and_what_its_rescue_says_of_it_the_latter_is_shown(scenes):
    assert shown(scenes, "said") == ["[h1, h2] FAILED: main is not ready: it", "    exited, put back"]


def test_an_error_of_which_its_rescue_says_nothing_is_shown_before(scenes):
    assert shown(scenes, "unsaid") == ["[h1, h2] FAILED: disk full", "[h1, h2] FAILED: the roll stops, see above"]


def test_the_last_word_of_a_rescue_is_shown_where_another_rescue_takes_over(scenes):
    assert shown(scenes, "twice") == [
        "[h1, h2] FAILED: it exited, put back",
        "[h1, h2] FAILED: no further host was touched",
    ]


def test_tasks_that_come_from_a_file_are_rescued_like_others(scenes):
    assert shown(scenes, "files") == ["[h1, h2] FAILED: it exited, put back"]


def test_a_crash_is_told_in_short_with_where_to_look(scenes):
    what, where = shown(scenes, "crash")
    assert what == "[h1, h2] FAILED: Stage the releases: Module failed: kaputt"
    assert "run again with -vvv to see where" in where


def test_a_module_of_ansible_is_told_with_the_name_of_its_task(scenes):
    [said] = shown(scenes, "module")
    assert said.startswith("[h1, h2] FAILED: Have the file: file (/no/such) is absent")


def test_hosts_that_cannot_be_reached_are_told_with_what_to_do(scenes):
    what, todo = shown(scenes, "gone")
    assert what.startswith("[h1, h2] UNREACHABLE: ")
    assert "ansible -i hosts.yml h1,h2 -m ping" in todo
    assert "-l 'all:!h1:!h2'" in todo


def test_a_host_that_the_play_goes_on_without_is_the_plays_to_tell(scenes):
    assert shown(scenes, "away") == []


def test_a_suggested_command_names_the_inventory_of_the_run(scenes):
    assert shown(scenes, "command") == [
        "[h1, h2] FAILED: see ansible-playbook -i hosts.yml playbooks/status.yml -l h1, then "
        "ansible-playbook -i hosts.yml deploy.yml"
    ]


def test_a_table_suggests_such_commands_too_and_is_whole_where_no_terminal_cuts_it(scenes):
    [row] = [line for line in scenes["table"] if line.startswith("h1 ")]
    assert "ansible-playbook -i hosts.yml playbooks/status.yml" in row
    assert row.endswith("x" * 200)
    assert json.loads((scenes["folder"] / "t.json").read_text())[0]["why"].startswith(COMMAND)


def test_who_failed_and_who_could_not_be_reached_is_told_in_the_end(scenes):
    last, status = scenes["end"]
    assert last == f"FAILED in Ns: {', '.join(['h1, h2'] * 9)}; unreachable: h1, h2"
    assert status == "rc=4"


def test_a_message_for_all_hosts_is_nobodys_own(site):
    assert site.play(fail("nothing goes on", run_once=True)) == [
        "== Stage", "FAILED: nothing goes on", "FAILED in Ns", "rc=2",
    ]  # fmt: skip


def test_on_a_terminal_errors_are_red_and_a_table_fits(site):
    site.write(table("y" * 200), fail("no"))
    seen = site.on_terminal(60)
    assert "\x1b[0;31m[h1, h2] FAILED: no\x1b[0m" in seen
    [row] = [line for line in seen.splitlines() if line.startswith("h1 ")]
    assert len(row) == 60
    assert row.endswith("yyy...")


def test_check_mode_tells_what_would_change_a_line_each_and_diff_what_would_differ(site):
    write = {
        "name": "Write",
        "ansible.builtin.copy": {"content": "new {{ item }}\n", "dest": f"{site.folder}/f{{{{ item }}}}"},
        "loop": [1, 2],
    }
    said = site.play(write, words=("--check", "--diff", "-l", "h1"))
    assert [line for line in said if "would change" in line] == [
        "[h1] would change: Write (1)", "[h1] would change: Write (2)",
    ]  # fmt: skip
    assert "+new 1" in said
    assert said[-2] == "done in Ns, in check mode: nothing was changed"
    assert not (site.folder / "f1").exists()
    wrote = site.play(write, words=("--diff", "-l", "h1"))
    assert "[h1] changed: Write (1)" in wrote
    assert "+new 2" in wrote
    assert wrote[-2] == "done in Ns"


def test_lines_of_eight_hosts_at_once_stay_whole(site):
    site.hosts(*(f"h{number}" for number in range(1, 9)))
    said = site.play({"name": "Work", "says": {}})
    assert len(said) == 8 * 39 + 3
    assert all(re.fullmatch(r"\[h\d\] main: weights x{99}\d+, 0s", line) for line in said[1:-2])


def cut_off(site: Site) -> str:
    """What is said after Ctrl-C, pressed while the last task works."""
    site.write(
        {"name": "Begin", "ansible.builtin.debug": {"msg": "begun"}},
        {"name": "Work long", "ansible.builtin.command": f"sh -c 'touch {site.folder}/works; exec sleep 60'"},
    )
    play = subprocess.Popen(
        [PROGRAM, "-i", "hosts.yml", "-l", "h1", "play.yml"], cwd=site.folder, env=site.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    while not (site.folder / "works").exists() and play.poll() is None:
        pass
    play.send_signal(signal.SIGINT)
    said, _ = play.communicate(timeout=60)
    assert play.returncode == 99
    return re.sub(r"after \d+s", "after Ns", said)


def test_a_run_that_is_cut_off_says_who_was_at_work(site):
    assert cut_off(site).splitlines()[-1] == ('cut off after Ns: h1 was at "Work long". Run the same command again')


def test_a_deploy_that_is_refused_says_that_nothing_was_touched():
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    environment.pop("ANSIBLE_STDOUT_CALLBACK", None)
    words = ["-i", "inventory/hosts.example.yml", "deploy.yml", "-l", "gpu-a01", "-e", "profile=triton_ncl"]
    done = subprocess.run([PROGRAM, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(re.findall("unknown profile", done.stdout + done.stderr)) == 1
    assert re.search(r"^FAILED in \d+s: gpu-a01; nothing was touched$", done.stdout, re.MULTILINE)
