"""The playbook that tunes, with roles that only say what they were asked for, and measurements that are made up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "module_utils"))
from measurements import SENTENCES, measurement

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

PROFILES = {"base": 1.0, "hangs": 1.0, "crashes": 1.0, "babbles": 3.0, "fastest": 1.4, "slow": 0.8}

NOTE = """
import os, pathlib, signal
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        text = self._task.args["text"]
        with open({log!r}, "a") as file:
            file.write(text + "\\n")
        if self._task.args.get("lose"):
            return {{"failed": True, "lost": True, "msg": "connection lost while it was staged"}}
        once = pathlib.Path({folder!r}) / ("kill " + text)
        if once.exists():
            once.unlink()
            os.kill(os.getppid(), signal.SIGKILL)
        return {{"changed": False}}
"""
RESOLVE = """
import pathlib
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        name = self._task.args["profile"]
        if name == "refused":
            return {{"failed": True, "msg": "no", "problems": ["unknown flag --x"]}}
        edited = pathlib.Path({folder!r}) / ("edited " + name)
        release = {{"service": "main", "profile": name, "lock": {{"folder": "/lock"}},
                    "release_id": name + ("2" if edited.exists() else "")}}
        return {{"releases": [release], "origins": [{{}}], "services": {{"main": "base"}}}}
"""
LEASE = """
import pathlib
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        with open({log!r}, "a") as file:
            file.write("lease " + self._task.args.get("state", "taken") + "\\n")
        if (pathlib.Path({folder!r}) / "leased").exists():
            return {{"failed": True, "msg": "somebody has the host"}}
        return {{"changed": False}}
"""
NOTHING = """
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        return {"changed": False, "problems": []}
"""


def noted(text: str) -> dict:
    return {"name": text, "note": {"text": text}}


def serve() -> dict[str, list[dict]]:
    """The files of the role: each notes that it was included; the gate says no to two of the releases."""
    profile = "{{ serve_release.profile }}"
    verdicts = {"hangs": "stalled", "crashes": "failed"}
    verdict = "{{ verdicts[serve_release.profile] | default('ready') }}"
    gate = {"main": {"verdict": verdict, "cause": f"it {profile}"}}
    chosen = {
        "serve_service": "main",
        "last_known_good_id": "good-1",
        "reverted_to": "good-1",
        "release": {"service": "main", "profile": "old"},
    }
    return {
        "main": [noted(f"serves {profile}")],
        "rollback": [noted(f"puts back {profile} {{{{ serve_staged }}}}")],
        "choose": [{"name": "Choose", "set_fact": {"serve_chosen": {"results": [chosen]}}}],
        "gate": [
            noted(f"gate {profile}"),
            {"name": "Judge", "set_fact": {"serve_gates": gate}, "vars": {"verdicts": verdicts}},
            {"name": "Fail", "fail": {"msg": "no"}, "when": "serve_gates.main.verdict != 'ready'"},
        ],
        "lost": [
            noted("alive? {{ serve_release.profile }}"),
            {
                "name": "Lost",
                "when": "lose == serve_release.profile",
                "block": [
                    {"name": "Keep", "set_fact": {"serve_lost": {"main": "it was gated"}}},
                    {"name": "Say", "fail": {"msg": "connection lost while it was gated"}},
                ],
            },
        ],
        "stop": [noted(f"stop {profile}")],
        "fetch_evidence": [{"name": "Fetch", "set_fact": {"serve_evidence": {"dest": f"/evidence/{profile}"}}}],
        "drain": [noted("drain")],
        **{name: [] for name in ("begin", "prepare", "activate", "clean", "user")},
    }


class Tune:
    """A folder with the playbook, stand-ins and profiles."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        plays = folder / "playbooks"
        (plays / "tasks").mkdir(parents=True)
        for file in ["tune.yml", *(f"tasks/{name}.yml" for name in (
            "tune_trial", "tune_launch", "tune_judge", "judge", "release_lease"))]:  # fmt: skip
            shutil.copy(ROOT / "playbooks" / file, plays / file)
        # `found` says what, the first time and again.
        again = "gpu_host_releases[0].profile in judged_before | default([])"
        finding = f"{{{{ found['again' if {again} else 'first'] | default([]) }}}}"
        judged = [
            {
                "name": "Judge",
                "set_fact": {"gpu_host_judged": {"findings": finding, "releases": "{{ gpu_host_releases }}"}},
            },
            {
                "name": "Remember",
                "set_fact": {"judged_before": "{{ judged_before | default([]) + [gpu_host_releases[0].profile] }}"},
            },
        ]
        found = "{{ lookup('file', measurements ~ '/' ~ serve_release.profile ~ '.json') | from_json }}"
        measured = [
            noted("measure {{ serve_release.profile }}"),
            {"name": "Measure", "set_fact": {"benchmark_result": {"measurement": found}}},
        ]
        roles = {"serve": serve(), "gpu_host": {"main": judged}, "engine_environment": {"main": []},
                 "benchmark": {"client": [], "measure": measured}}  # fmt: skip
        for role, files in roles.items():
            (plays / "roles" / role / "tasks").mkdir(parents=True)
            for name, tasks in files.items():
                (plays / "roles" / role / "tasks" / f"{name}.yml").write_text(yaml.safe_dump(tasks))
        (folder / "roles/benchmark/vars").mkdir(parents=True)
        load = {"benchmark__load": measurement()["load"], "benchmark__said": {"timeout_s": 60}}
        (folder / "roles/benchmark/vars/main.yml").write_text(yaml.safe_dump(load))
        (plays / "action_plugins").mkdir()
        note = NOTE.format(log=str(self.log), folder=str(folder))
        lease, resolve = (text.format(log=str(self.log), folder=str(folder)) for text in (LEASE, RESOLVE))
        plugins = {"note": note, "resolve_release": resolve, "host_lease": lease, "engine_environment": NOTHING}
        for name, text in plugins.items():
            (plays / "action_plugins" / f"{name}.py").write_text(text)
        (plays / "library").mkdir()
        (plays / "library" / "note.py").write_text("")
        (folder / "profiles").mkdir()
        for name in [*PROFILES, "refused"]:
            (folder / "profiles" / f"{name}.yml").write_text("")
        for number, (name, factor) in enumerate(PROFILES.items()):
            texts = ["!" * 64] * len(SENTENCES) if name == "babbles" else SENTENCES
            record = measurement(number, factor, continuations=[texts, texts])
            (folder / f"{name}.json").write_text(json.dumps(record))
        site = {
            "ironserve_profile_paths": [str(folder / "profiles")], "ironserve_host_group": "lab",
            "ironserve_hardware": {"gpu_count": 0}, "ironserve_routers": [], "ironserve_min_serving": 0,
            "ironserve_drain_timeout_s": 5, "ironserve_lease_s": 60, "ironserve_wheelhouse": "",
            "ironserve_index_url": "", "ironserve_locks": {"client": "c"}, "ironserve_reports": str(folder),
            "measurements": str(folder), "ansible_connection": "local", "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
        }  # fmt: skip
        hosts = {"lab": {"hosts": {"h1": {}, "h2": {}}, "vars": site}}
        self.say()
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": hosts}}))

    def say(self, **variables: Any) -> None:
        """What the stand-ins are to do."""
        (self.folder / "group_vars").mkdir(exist_ok=True)
        (self.folder / "group_vars" / "lab.yml").write_text(yaml.safe_dump({"found": {}, "lose": "", **variables}))

    def run(self, *words: str, limit: str = "h1") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "ansible-playbook", "-i", self.folder / "hosts.yml", self.folder / "playbooks/tune.yml", "-l", limit,
             *words],
            cwd=ROOT, env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def did(self, *kinds: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(kinds)]

    def verdicts(self) -> dict[str, str]:
        return {row["candidate"]: row["verdict"] for row in json.loads((self.folder / "tune.json").read_text())}


def test_a_tune_over_all_kinds_of_candidates_ends_on_the_fastest(tmp_path):
    tune = Tune(tmp_path)
    result = tune.run("-e", "profiles=base,hangs,crashes,babbles,refused,fastest,slow", "-e", "rounds=2")
    assert result.returncode == 0, result.stdout + result.stderr
    assert tune.verdicts() == {
        "base": "measured", "hangs": "stalled", "crashes": "failed", "babbles": "nonsense", "refused": "rejected",
        "fastest": "measured", "slow": "measured",
    }  # fmt: skip
    assert tune.did("gate") == [
        f"gate {name}" for name in ("base", "hangs", "crashes", "babbles", "fastest", "slow", "slow", "fastest", "base")
    ]
    assert tune.did("stop") == [line.replace("gate", "stop") for line in tune.did("gate")]
    assert tune.did("serves", "puts back") == ["serves fastest"]
    profile = yaml.safe_load((tmp_path / "profiles/tuned_lab.yml").read_text())
    assert profile["extends"] == "fastest"
    assert "fastest is the fastest by single_stream" in result.stdout
    (state,) = tmp_path.glob("tune/*/state.json")
    trials = json.loads(state.read_text())["trials"]
    assert [trial["evidence"] for trial in trials if "evidence" in trial] == ["/evidence/hangs", "/evidence/crashes"]


def test_a_controller_that_is_killed_in_a_trial_resumes_with_that_trial(tmp_path):
    tune = Tune(tmp_path)
    words = ("-e", "profiles=base,fastest", "-e", "rounds=1")
    (tmp_path / "kill measure fastest").touch()
    assert tune.run(*words).returncode != 0
    assert tune.did("measure") == ["measure base", "measure fastest"]
    result = tune.run(*words)
    assert result.returncode == 0, result.stdout + result.stderr
    assert tune.did("measure") == ["measure base", "measure fastest", "measure fastest"]
    assert tune.did("serves") == ["serves fastest"]
    assert tune.run(*words).returncode == 0  # finished: the same command begins anew
    assert len(tune.did("measure")) == 5


def test_a_profile_that_was_edited_since_is_measured_anew(tmp_path):
    tune = Tune(tmp_path)
    words = ("-e", "profiles=base,slow,fastest", "-e", "rounds=1")
    (tmp_path / "kill measure fastest").touch()
    assert tune.run(*words).returncode != 0
    (tmp_path / "edited slow").touch()
    result = tune.run(*words)
    assert result.returncode == 0, result.stdout + result.stderr
    assert tune.did("measure")[3:] == ["measure slow", "measure fastest"]
    assert "goes on: 1 trials of an earlier run count" in result.stdout


def test_a_host_that_is_lost_once_a_candidate_was_measured_has_that_trial_begun_anew(tmp_path):
    tune = Tune(tmp_path)
    words = ("-e", "profiles=base,fastest", "-e", "rounds=1")
    tune.say(lose="base")
    assert tune.run(*words).returncode == 2
    assert tune.did("measure", "stop", "alive", "serves", "puts", "lease") == [
        "lease taken", "measure base", "stop base", "alive? base",
    ]  # fmt: skip
    tune.say()
    assert tune.run(*words).returncode == 0
    assert tune.did("measure") == ["measure base", "measure base", "measure fastest"]


def test_a_host_that_is_lost_while_candidates_are_staged_is_sent_nothing_more(tmp_path):
    tune = Tune(tmp_path)
    lost = {"name": "Stage", "note": {"text": "stage {{ item }}", "lose": True}, "loop": [1, 2]}
    prepare = tmp_path / "playbooks/roles/serve/tasks/prepare.yml"
    prepare.write_text(yaml.safe_dump([lost]))
    result = tune.run("-e", "profiles=base,fastest")
    assert result.returncode == 2
    assert "[h1] FAILED: connection lost while it was staged" in result.stdout + result.stderr
    assert tune.did("stage", "serves", "puts", "drain", "lease") == ["lease taken", "stage 1", "stage 2"]


def test_a_host_that_is_lost_ends_the_tune_says_nothing_of_the_candidate_and_the_same_command_goes_on(tmp_path):
    tune = Tune(tmp_path)
    words = ("-e", "profiles=base,crashes,fastest", "-e", "rounds=1")
    tune.say(lose="crashes")
    result = tune.run(*words)
    assert result.returncode == 2
    assert "connection lost while it was gated" in result.stdout + result.stderr
    assert tune.did("stop", "serves", "puts back") == ["stop base"]
    (state,) = tmp_path.glob("tune/*/state.json")
    kept = json.loads(state.read_text())
    assert [trial["candidate"] for trial in kept["trials"]] == ["base"]
    assert (kept["open"]["candidate"], kept["finished"]) == ("crashes", False)
    tune.say()
    result = tune.run(*words)
    assert result.returncode == 0, result.stdout + result.stderr
    assert tune.did("measure", "serves") == ["measure base", "measure fastest", "serves fastest"]


def test_a_tune_of_a_host_that_somebody_has_writes_nothing(tmp_path):
    tune = Tune(tmp_path)
    (tmp_path / "leased").touch()
    result = tune.run("-e", "profiles=base,slow")
    assert result.returncode == 2
    assert "somebody has the host" in result.stdout + result.stderr
    assert list(tmp_path.glob("tune/*/state.json")) == []
    assert tune.did("gate", "drain") == []


def test_flags_that_only_a_new_environment_knows_are_judged_before_the_host_is_drained(tmp_path):
    tune = Tune(tmp_path)
    note = {"rule": "flag-unverified", "severity": "note", "accepted": False, "text": "not there yet"}
    wrong = {"rule": "flag-unknown", "severity": "error", "accepted": False, "text": "unknown flag --y"}
    tune.say(found={"first": [note], "again": [wrong]})
    result = tune.run("-e", "profiles=base,slow")
    assert result.returncode == 2
    assert "[h1] FAILED: no candidate may be launched: unknown flag --y" in result.stdout + result.stderr
    assert tune.did("drain", "gate") == []
    assert tune.verdicts() == {"base": "rejected", "slow": "rejected"}


def test_a_winner_that_does_not_serve_leaves_the_tune_to_go_on(tmp_path):
    tune = Tune(tmp_path)
    words = ("-e", "profiles=base,fastest", "-e", "rounds=1")
    main = tmp_path / "playbooks/roles/serve/tasks/main.yml"
    serves = main.read_text()
    main.write_text(yaml.safe_dump([{"name": "Serve", "fail": {"msg": "it stalled"}}]))
    result = tune.run(*words)
    assert result.returncode == 2
    assert "[h1] FAILED: it stalled" in result.stdout + result.stderr
    main.write_text(serves)
    assert tune.run(*words).returncode == 0
    assert tune.did("measure", "serves") == ["measure base", "measure fastest", "serves fastest"]


def test_a_tune_that_fails_before_its_first_trial_has_what_was_good_serve(tmp_path):
    tune = Tune(tmp_path)
    client = tmp_path / "playbooks/roles/benchmark/tasks/client.yml"
    client.write_text(yaml.safe_dump([{"name": "Have the client", "fail": {"msg": "disk full"}}]))
    result = tune.run("-e", "profiles=base,fastest")
    assert result.returncode == 2
    assert "[h1] FAILED: disk full" in result.stdout + result.stderr
    assert tune.did("gate", "serves", "puts back") == ["puts back old good-1"]
    client.write_text("[]")
    assert tune.run("-e", "profiles=base,fastest").returncode == 0  # the same command goes on
    assert tune.did("serves") == ["serves fastest"]


def test_what_was_good_before_comes_back_where_no_candidate_could_be_measured(tmp_path):
    tune = Tune(tmp_path)
    result = tune.run("-e", "profiles=hangs,crashes")
    assert result.returncode == 2, result.stdout + result.stderr
    assert tune.did("serves", "puts back") == ["puts back old good-1"]
    assert "[h1] FAILED: no candidate could be measured" in result.stdout + result.stderr
    assert not (tmp_path / "profiles/tuned_lab.yml").exists()


def test_a_matrix_is_tried_and_its_profiles_are_files(tmp_path):
    tune = Tune(tmp_path)
    for name in ("x-1", "x-2"):
        shutil.copy(tmp_path / "base.json", tmp_path / f"{name}.json")
    matrix = json.dumps({"matrix": {"base": "base", "flags": {"x": [1, 2]}}, "rounds": 1})
    result = tune.run("-e", matrix)
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(file.stem for file in tmp_path.glob("tune/*/profiles/*.yml")) == ["x-1", "x-2"]
    assert yaml.safe_load((tmp_path / "profiles/tuned_lab.yml").read_text())["flags"] == {"x": 1}


@pytest.mark.parametrize(
    ("words", "limit", "said"),
    [
        (["-e", "profiles=base,slow"], "all", "a tune is for one host, and this run has 2"),
        (["-e", "profiles=base,slo"], "h1", 'unknown profile "slo" (did you mean "slow"?)'),
        (["-e", "profiles=base,slow", "-e", "objective=c32"], "h1", "the load does not measure c32"),
        (
            ["-e", '{"profiles": "base,slow", "ironserve_services": {"a": {}, "b": {}}}'],
            "h1",
            "name one with -e service=",
        ),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_the_host_is_touched(tmp_path, words, limit, said):
    tune = Tune(tmp_path)
    result = tune.run(*words, limit=limit)
    assert result.returncode == 2
    assert said in result.stdout + result.stderr
    assert tune.did("") == []


def test_check_mode_says_what_would_be_tried_and_touches_nothing(tmp_path):
    tune = Tune(tmp_path)
    result = tune.run("-e", "profiles=base,slow", "--check")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "would try base, slow" in result.stdout
    assert (tune.did(""), list(tmp_path.glob("tune/*"))) == ([], [])
