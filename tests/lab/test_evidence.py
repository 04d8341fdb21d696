"""What is kept of a start that failed, and what a service shows that runs: on the host and here, without secrets."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import Fleet, recap, standin_hosts

API_KEY, TOKEN = "sk-TEST", "hf_TESTTOKEN"
KEYS = {"ironserve_api_key": API_KEY, "ironserve_secret_env": {"HF_TOKEN": TOKEN}}
FOLDER = "/var/lib/ironserve/main/evidence"


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1, which sees the stand-in's wheelhouse."""
    return standin_hosts(make_lab("-evidence"), 1)


@pytest.fixture
def fleet(hosts, tmp_path):
    return Fleet(hosts, tmp_path)


def fetched(fleet: Fleet) -> dict:
    """The one file that came here; the host's newest has the same bytes. No secret is in either."""
    (file,) = (fleet.folder / "reports" / "evidence" / "h1").iterdir()
    newest = fleet.shell("h1", f"ls {FOLDER} | tail -n 1")
    assert newest == file.name
    assert fleet.shell("h1", f"stat -c '%U:%G %a' {FOLDER}/{newest}") == "root:ironserve 640"
    host_sum = fleet.shell("h1", f"sha256sum {FOLDER}/{newest}").split()[0]
    assert host_sum == hashlib.sha256(file.read_bytes()).hexdigest()
    text = gzip.decompress(file.read_bytes()).decode()
    assert not [secret for secret in (API_KEY, TOKEN) if secret in text]
    found = json.loads(text)
    assert found["took_s"] < 10
    assert len(found["summary"]) <= 10
    return found


def test_a_start_that_exits_leaves_its_last_words_and_no_secret(fleet):
    fleet.model("h1", {"exit_in": "weights", "exit_status": 3, "exit_message": f"ValueError: '{API_KEY}' and {TOKEN}"})
    result = fleet.play("-l", "h1", "-vvv", check=False, **KEYS)
    assert result.returncode == 2
    found = fetched(fleet)
    assert found["summary"][0] == "main process exited with status 3; phase: loading weights"
    assert found["took_s"] < 3  # nobody waits long for what an engine that is gone cannot show
    assert "the engine's last error: ValueError: '********' and ********" in found["summary"]
    assert "ValueError: '********' and ********" in "\n".join(found["log"]["tail"])
    assert (found["unit"]["ExecMainStatus"], found["environment"]["HF_HUB_OFFLINE"]) == ("3", "1")
    assert any("Started" in line or "Starting" in line for line in found["events"]["lines"])
    assert found["space"]["/dev/shm"]["total_mib"] > 0
    said = result.stdout[result.stdout.index("What was seen before anything was stopped") :]
    assert all(line in said for line in found["summary"])
    assert not [secret for secret in (API_KEY, TOKEN) if secret in result.stdout]


def test_a_start_that_hangs_is_seen_before_it_is_ended(fleet):
    fleet.model("h1", {"hang_in": "graphs", "hang_how": "spin"})
    fleet.profile("hangs", stall_timeout_s=4, flags={"tensor-parallel-size": 4, "enforce-eager": False})
    result = fleet.play("-l", "h1", "-e", "profile=hangs", check=False, **KEYS)
    assert result.returncode == 2
    assert "it hangs, nothing moves any more: log silent for" in " ".join(result.stdout.split())
    found = fetched(fleet)
    assert found["unit"]["MainPID"] != "0"
    ranks = {process["title"]: process for process in found["processes"].values() if "Worker_TP" in process["title"]}
    assert sorted(ranks) == [f"VLLM::Worker_TP{rank}" for rank in range(4)]
    assert all(process["threads"] >= 1 and process["memory_mib"] > 0 for process in ranks.values())
    # How much of a core a rank that spins gets depends on who else wants it.
    assert max(process["cpu_percent"] for process in ranks.values() if process["state"] == "R") > 0
    assert "stack" in next(iter(ranks.values())) or "kernel stack" in found["errors"]
    assert any(line.startswith("4 ranks: ") for line in found["summary"])
    assert any(line.startswith("last log line ") for line in found["summary"])
    environment = found["environment"]
    assert (environment["HF_HUB_OFFLINE"], environment["HF_TOKEN"]) == ("1", "********")
    assert environment["VLLM_API_KEY"] == "********"
    assert found["limits"]["Max open files"]
    assert fleet.main_pid("h1") == 0


def test_diagnose_tells_of_a_server_that_runs_and_leaves_it_alone(fleet):
    fleet.model("h1")
    fleet.play("-l", "h1", **KEYS)
    pid = fleet.main_pid("h1")
    checked = fleet.play("-l", "h1", "--check", playbook="playbooks/diagnose.yml")
    assert f"main process runs (pid {pid}, state S), unit is active" in checked.stdout
    assert not (fleet.folder / "reports" / "evidence").exists()
    result = fleet.play("-l", "h1", "-vvv", playbook="playbooks/diagnose.yml")
    assert f"main process runs (pid {pid}, state S), unit is active" in result.stdout
    assert recap(result.stdout, "h1")["changed"] == 0
    found = fetched(fleet)
    assert found["processes"][str(pid)]["state"] == "S"
    assert "EngineCore" in "".join(process["title"] for process in found["processes"].values())
    assert not [secret for secret in (API_KEY, TOKEN) if secret in result.stdout]
    assert fleet.main_pid("h1") == pid


def test_diagnose_tells_the_phase_of_a_service_that_starts(fleet):
    fleet.model("h1", {"hang_in": "weights"})
    fleet.shell("h1", "systemctl restart --no-block ironserve-main")
    loads = "tail -c 2000 /var/log/ironserve/main.log | grep -q 'Starting to load model'"
    hangs = f"[ $(systemctl show -P ActiveState ironserve-main) = activating ] && {loads}"
    fleet.shell("h1", f"for i in $(seq 300); do {hangs} && exit; sleep 0.1; done; exit 1")
    result = fleet.play("-l", "h1", playbook="playbooks/diagnose.yml")
    pid = fleet.main_pid("h1")
    assert f"main process runs (pid {pid}, state S), unit is activating; phase: loading weights" in result.stdout
    found = fetched(fleet)
    assert found["phase"] == "loading weights"
    assert all(line in result.stdout for line in found["summary"])
    fleet.model("h1")
    fleet.shell("h1", "systemctl stop ironserve-main")


def test_five_files_stay_and_a_service_that_is_not_there_has_none(fleet):
    answers = [fleet.module("h1", "service_evidence", {"service": "main"}) for _ in range(6)]
    kept = fleet.shell("h1", f"ls {FOLDER}").splitlines()
    assert kept == [Path(answer["evidence_file"]).name for answer in answers[1:]]
    answer = fleet.module("h1", "service_evidence", {"service": "chat"})
    assert (answer["evidence_file"], answer["changed"]) == ("", False)
    assert answer["evidence_summary"] == ["there is no service chat on this host"]
    assert fleet.shell("h1", "ls /var/lib/ironserve") == "main"
