"""What a person sees of a run: small playbooks on this machine, with the project's ansible.cfg.

A start of ansible-playbook takes a second, and a module half of one: what can be seen side by side is a scene of one
run.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
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

WORKS = """
import time
from pathlib import Path
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        Path(self._task.args["begun"]).touch()
        time.sleep(60)
        return {"changed": False}
"""

HOLDS = """
import time
from pathlib import Path
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        Display()._final_q._wlock.acquire()
        Path(self._task.args["begun"]).touch()
        time.sleep(60)
"""

CRASHES = """
from ansible.module_utils.basic import AnsibleModule
AnsibleModule(argument_spec={})
raise ValueError("kaputt")
"""


GONE = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


class Site:
    """A folder with an inventory of this machine under several names, and what is played there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "action").mkdir()
        (folder / "library").mkdir()
        (folder / "action" / "says.py").write_text(SAYS)
        (folder / "action" / "works.py").write_text(WORKS)
        (folder / "action" / "holds.py").write_text(HOLDS)
        (folder / "library" / "crashes.py").write_text(CRASHES)
        self.hosts("h1", "h2")

    def hosts(self, *names: str, away: Sequence[str] = ()) -> None:
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        hosts = {**dict.fromkeys(names), **dict.fromkeys(away, GONE)}
        inventory = {"all": {"hosts": hosts, "vars": local, "children": {"nobody": {}}}}
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

    def run(self, *words: str, playbook: str = "play.yml") -> str:
        """Play; the output, with the exit status as the last line."""
        done = subprocess.run(
            [PROGRAM, "-i", "hosts.yml", playbook, *words], cwd=self.folder, env=self.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        return re.sub(r"in \d+s", "in Ns", f"{done.stdout}rc={done.returncode}")

    def cut_off(self, number: signal.Signals, playbook: str = "play.yml", **environment: str) -> str:
        """What is shown of a run that gets a signal while a task ``works``."""
        run = subprocess.Popen(
            [PROGRAM, "-i", "hosts.yml", playbook], cwd=self.folder, env={**self.environment(), **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        while not (self.folder / "begun").exists() and run.poll() is None:
            time.sleep(0.01)
        run.send_signal(number)
        said, _ = run.communicate(timeout=60)
        assert run.returncode == 99
        return re.sub(r"after \d+s", "after Ns", said)

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


def test_with_v_it_is_ansibles_own_output(site):
    output = "\n".join(site.play({"name": "Look", "ansible.builtin.debug": {"msg": "x"}}, words=("-v",)))
    assert "PLAY RECAP" in output
    assert "TASK [Look]" in output
    assert "done in" not in output


def test_a_run_that_no_host_is_meant_by_says_so(site):
    assert site.play(hosts="nobody") == ["done in Ns: no host of the inventory is meant, nothing was done", "rc=0"]


def test_a_run_says_how_it_ended_and_that_nothing_was_changed(site):
    say = {"name": "Say", "ansible.builtin.debug": {"msg": "{{ inventory_hostname }}: two\nlines"}, "run_once": True}
    end = "done in Ns, in check mode: nothing was changed"
    assert site.play(say, words=("--check",)) == ["== Stage", "[h1] two", "lines", end, "rc=0"]


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
OUTCOME = {"name": "Note it", "ansible.builtin.set_fact": {"roll_outcome": {"verdict": "failed", "cause": "x"}}}
REACH = {"name": "Reach", "ansible.builtin.raw": "true"}


def ask(task: Mapping[str, Any], *routers: str, **keys: Any) -> dict[str, Any]:
    return {**task, "delegate_to": "{{ item }}", "loop": list(routers), **keys}


def write(folder: str, **keys: Any) -> dict[str, Any]:
    file = {"path": f"{{{{ playbook_dir }}}}/{folder}{{{{ item }}}}", "line": "new {{ item }}", "create": True}
    only = "inventory_hostname.endswith('-h1')"
    return {"name": "Write", "ansible.builtin.lineinfile": file, "loop": [1, 2], "when": only, **keys}


COMMAND = "see ansible-playbook playbooks/status.yml -l h1, then ansible-playbook deploy.yml"
SCENES: dict[str, list[dict[str, Any]]] = {
    "quiet": [
        {"name": "Look", "ansible.builtin.raw": "true"},
        {"name": "Not now", "ansible.builtin.raw": "true", "when": False},
    ],
    "checked": [write("c", check_mode=True)],
    "written": [write("w")],
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
    "turn": [
        {
            "name": "Roll",
            "block": [rescued("it exited", fail("it exited, put back\nevidence is there"))],
            "rescue": [OUTCOME],
        },
        {"name": "Tell", "ansible.builtin.debug": {"msg": "the table"}, "run_once": True},
        fail("h1, main: failed: put back"),
    ],
    "noted": [rescued("no lease", OUTCOME), fail("main: failed: no lease")],
    "files": [
        {
            "name": "Roll",
            "block": [{"ansible.builtin.include_tasks": "inner.yml"}],
            "rescue": [{"ansible.builtin.include_tasks": "give_up.yml"}],
        }
    ],
    "crash": [{"name": "Stage the releases", "crashes": {}}],
    "module": [{"name": "Have the file", "ansible.builtin.file": {"path": "/no/such", "state": "file"}}],
    "gone": [{**REACH, "vars": GONE}],
    "loop": [{**REACH, "vars": GONE, "loop": ["a", "b"]}],
    "asked": [{**REACH, "delegate_to": "asked-r1"}],
    "routers": [ask(REACH, "routers-r1", "routers-rest", "routers-r2")],
    "once": [ask(REACH, "once-r1", run_once=True)],
    "both": [ask({"name": "Ask", "ansible.builtin.raw": "echo kaputt; false"}, "both-r1", "both-rest")],
    "away": [{**REACH, "vars": GONE, "ignore_unreachable": True}],
    "apart": [ask(REACH, "apart-r1", ignore_unreachable=True)],
    "command": [fail(COMMAND)],
    "table": [table(f"{COMMAND} {'x' * 200}")],
    "all": [fail("nothing goes on", run_once=True)],  # the last
}
"""By name what hosts h1 and h2 do; a third host does nothing, since a play in which all hosts fail is the last one.
Routers r1 and r2 are not there."""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """What was shown of each scene: one run for all."""
    site = Site(tmp_path_factory.mktemp("scenes"))
    (site.folder / "inner.yml").write_text(json.dumps([fail("it exited")]))
    (site.folder / "give_up.yml").write_text(json.dumps([GOES_ON, fail("it exited, put back")]))
    routers = [f"{name}-{end}" for name in SCENES for end in ("r1", "r2")]
    site.hosts(*(f"{name}-{end}" for name in SCENES for end in ("h1", "h2", "rest")), away=routers)
    plays = []
    for name, tasks in SCENES.items():
        two = {"name": "Not the third", "block": tasks, "when": "not inventory_hostname.endswith('-rest')"}
        plays.append({"name": name, "hosts": f"{name}-*:!*-r1:!*-r2", "gather_facts": False, "tasks": [two]})
    (site.folder / "play.yml").write_text(json.dumps(plays))
    output = re.sub(rf"({'|'.join(SCENES)})-([hr]\d|rest)", r"\2", site.run("--diff"))
    assert "\x1b" not in output
    *sections, last = output.split("== ")[1:]
    return {
        name: text.splitlines()
        for name, _, text in (section.partition("\n") for section in [*sections, last.rpartition("FAILED in")[0]])
    } | {"folder": site.folder, "end": output.splitlines()[-2:]}


def shown(scenes: Mapping[str, Any], name: str) -> list[str]:
    return [line for line in scenes[name] if line]


def test_what_goes_well_and_what_is_skipped_is_not_shown(scenes):
    assert shown(scenes, "quiet") == []


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


def test_a_host_that_fails_in_its_turn_is_told_then_and_in_whole_and_in_the_end_in_short(scenes):
    assert shown(scenes, "turn") == [
        "[h1, h2] FAILED: it exited, put back",
        "    evidence is there",
        "[h1] the table",
        "[h1, h2] FAILED: h1, main: failed: put back",
    ]


def test_what_a_turn_ended_with_is_told_once_where_the_report_says_it(scenes):
    assert shown(scenes, "noted") == ["[h1, h2] FAILED: main: failed: no lease"]


def test_tasks_that_come_from_a_file_are_rescued_like_others(scenes):
    assert shown(scenes, "files") == ["[h1, h2] FAILED: it exited, put back"]


def test_a_crash_is_told_in_short_with_where_to_look(scenes):
    what, where = shown(scenes, "crash")
    assert what == "[h1, h2] FAILED: Stage the releases: Module failed: kaputt"
    assert "run again with -vvv to see where" in where


def test_a_module_of_ansible_is_told_with_the_name_of_its_task(scenes):
    [said] = shown(scenes, "module")
    assert said.startswith("[h1, h2] FAILED: Have the file: file (/no/such) is absent")


@pytest.mark.parametrize("name", ["gone", "loop"])
def test_hosts_that_cannot_be_reached_are_told_with_what_to_do(scenes, name):
    what, todo = shown(scenes, name)
    assert what.startswith("[h1, h2] UNREACHABLE: Failed to connect to the host")
    assert "ansible -i hosts.yml h1,h2 -m ping" in todo
    assert "-l 'all:!h1:!h2'" in todo


@pytest.mark.parametrize(("name", "away"), [("asked", ["r1"]), ("routers", ["r1", "r2"]), ("once", ["r1"])])
def test_where_a_router_cannot_be_reached_it_is_told_and_not_the_hosts_it_is_asked_for(scenes, name, away):
    what, todo = shown(scenes, name)
    assert what.startswith(f"[{', '.join(away)}] UNREACHABLE: Failed to connect to the host")
    assert todo.endswith(f"What to do: ansible -i hosts.yml {','.join(away)} -m ping tries the connection alone.")


def test_where_one_router_fails_and_another_cannot_be_reached_both_are_told(scenes):
    said = shown(scenes, "both")
    assert said[0].startswith("[h1, h2] FAILED: r1 cannot be reached: Failed to connect to the host")
    assert said[-1].startswith("    Ask: non-zero return code")


@pytest.mark.parametrize("name", ["away", "apart"])
def test_a_host_that_the_play_goes_on_without_is_the_plays_to_tell(scenes, name):
    assert shown(scenes, name) == []


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
    failed, away = last.removeprefix("FAILED in Ns: ").split("; unreachable: ")
    assert set(failed.split(", ")) == {"h1", "h2"}
    assert away == "r1, h1, h2, h1, h2, r1, r1, r2"  # by scene: asked, gone, loop, once, routers
    assert status == "rc=4"


def test_a_message_for_all_hosts_is_nobodys_own(scenes):
    assert shown(scenes, "all") == ["FAILED: nothing goes on"]


def test_on_a_terminal_errors_are_red_and_a_table_fits(site):
    site.write(table("y" * 200), fail("no"))
    seen = site.on_terminal(60)
    assert "\x1b[0;31m[h1, h2] FAILED: no\x1b[0m" in seen
    [row] = [line for line in seen.splitlines() if line.startswith("h1 ")]
    assert len(row) == 60
    assert row.endswith("yyy...")


def test_check_mode_tells_what_would_change_a_line_each_and_diff_what_would_differ(scenes):
    said = shown(scenes, "checked")
    assert [line for line in said if line.startswith("[")] == [
        "[h1] would change: Write (1)", "[h1] would change: Write (2)",
    ]  # fmt: skip
    assert "+new 1" in said
    assert not (scenes["folder"] / "c1").exists()
    wrote = shown(scenes, "written")
    assert "[h1] changed: Write (1)" in wrote
    assert "+new 2" in wrote
    assert (scenes["folder"] / "w1").exists()


def test_lines_of_eight_hosts_at_once_stay_whole(site):
    site.hosts(*(f"h{number}" for number in range(1, 9)))
    said = site.play({"name": "Work", "says": {}})
    assert len(said) == 8 * 39 + 3
    assert all(re.fullmatch(r"\[h\d\] main: weights x{99}\d+, 0s", line) for line in said[1:-2])
    assert said[-2:] == ["done in Ns", "rc=0"]


def works(site: Site, name: str) -> dict[str, Any]:
    return {"name": name, "works": {"begun": f"{site.folder}/begun"}}


def test_a_run_that_is_cut_off_says_who_was_at_work(site):
    site.hosts("h1")
    site.write({"name": "Begin", "ansible.builtin.debug": {"msg": "begun"}}, works(site, "Work long"))
    last = site.cut_off(signal.SIGINT).splitlines()[-1]
    assert last == 'cut off after Ns: h1 was at "Work long". Run the same command again'


def test_a_run_ends_even_where_a_worker_takes_the_lock_of_lines_with_it(site):
    """Ansible itself waits for ever: seen where Ctrl-C met a worker that was handing over a line of progress."""
    site.hosts("h1")
    site.write({"name": "Hold", "holds": {"begun": f"{site.folder}/begun"}})
    last = site.cut_off(signal.SIGTERM).splitlines()[-1]
    assert last == 'cut off after Ns: h1 was at "Hold". Run the same command again'


def test_a_roll_that_is_ended_says_who_was_at_work_and_what_became_of_the_others(site):
    """Ended by SIGTERM, as by a CI that loses patience; in a project of its own: the callback knows our playbooks."""
    site.hosts("h1", "h2", "h3", "h4")
    for folder in ("plugins/callback", "roles/serve/tasks", "playbooks"):
        (site.folder / folder).mkdir(parents=True)
    shutil.copy(ROOT / "plugins" / "callback" / "ironserve.py", site.folder / "plugins" / "callback")
    (site.folder / "module_utils").symlink_to(ROOT / "module_utils")
    third = {**works(site, "Gate"), "when": "inventory_hostname == 'h3'"}
    second = fail("it exited", when="inventory_hostname == 'h2'")
    (site.folder / "roles" / "serve" / "tasks" / "main.yml").write_text(json.dumps([second, third]))
    turn = {
        "name": "Roll the host",
        "block": [
            {"name": "Serve", "ansible.builtin.include_role": {"name": "serve"}},
            {"name": "Moved", "ansible.builtin.set_fact": {"roll_outcome": {"verdict": "moved"}}},
        ],
        "rescue": [OUTCOME],
    }
    opening = {"name": "Open the batch", "ansible.builtin.debug": {"msg": "opens"}}
    give_back = {"name": "Give the hosts back", "hosts": "all", "gather_facts": False, "tasks": []}
    roll = {"name": "Roll", "hosts": "all", "gather_facts": False, "serial": 1, "tasks": [opening, turn]}
    (site.folder / "playbooks" / "roll.yml").write_text(json.dumps([roll, give_back]))
    ours = {"ANSIBLE_CALLBACK_PLUGINS": f"{site.folder}/plugins/callback", "ANSIBLE_ROLES_PATH": f"{site.folder}/roles"}
    last = site.cut_off(signal.SIGTERM, "playbooks/roll.yml", **ours).splitlines()[-1]
    assert last == (
        "cut off after Ns: h3 was at work; h1: moved; h2: failed; no other host was touched. The same command goes on "
        "from here; what runs now: ansible-playbook -i hosts.yml playbooks/status.yml"
    )


def test_a_deploy_that_is_refused_says_that_nothing_was_touched():
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    environment.pop("ANSIBLE_STDOUT_CALLBACK", None)
    words = ["-i", "inventory/hosts.example.yml", "deploy.yml", "-l", "gpu-a01", "-e", "profile=triton_ncl"]
    done = subprocess.run([PROGRAM, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(re.findall("unknown profile", done.stdout + done.stderr)) == 1
    assert re.search(r"^FAILED in \d+s: gpu-a01; nothing was touched$", done.stdout, re.MULTILINE)
