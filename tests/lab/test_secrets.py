"""Secrets: they reach the server, and nobody else. Inputs are those of field case 43."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from deploys import BIN, UNIT, Fleet, recap, standin_hosts

API_KEY, TOKEN = "sk-TEST", "hf_TESTTOKEN"
EVERYWHERE = "/etc/systemd /run/systemd/system /run/ironserve /var/lib/ironserve"


@pytest.fixture(scope="module")
def hosts(make_lab):
    """h1, which sees the stand-in's wheelhouse."""
    return standin_hosts(make_lab("-secrets"), 1)


@pytest.fixture
def fleet(hosts, tmp_path):
    fleet = Fleet(hosts, tmp_path)
    fleet.model("h1")
    return fleet


def vault(fleet: Fleet, **secrets) -> list[str]:
    """Words of a command that gives secrets from a vault."""
    password, file = fleet.folder / "password", fleet.folder / "secrets.yml"
    password.write_text("of a test\n")
    file.write_text(json.dumps(secrets))
    subprocess.run(
        [BIN / "ansible-vault", "encrypt", "--vault-password-file", password, file],
        env=fleet.environment(), capture_output=True, check=True,
    )  # fmt: skip
    assert "$ANSIBLE_VAULT" in file.read_text()
    return ["-e", f"@{file}", "--vault-password-file", str(password)]


def ask(fleet: Fleet, key: str) -> str:
    """HTTP status of a completion asked with a key."""
    request = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 2})
    return fleet.shell(
        "h1",
        "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/v1/completions "
        f"-H 'Content-Type: application/json' -H 'Authorization: Bearer {key}' -d '{request}'",
    )


def assert_nowhere(fleet: Fleet, *outputs: str, folders: str = EVERYWHERE) -> None:
    """Neither secret is in what was printed or reported, nor in a file on the host but those of the secrets."""
    reports = "".join(file.read_text() for file in (fleet.folder / "reports").glob("*.json"))
    pid = fleet.main_pid("h1")
    unit = f"systemctl show {UNIT}; systemctl cat {UNIT}"
    shown = fleet.shell("h1", f"{unit}; tr '\\0' ' ' < /proc/{pid}/cmdline; ps -eo args")

    for secret in (API_KEY, TOKEN):
        for text in (*outputs, reports, shown):
            assert secret not in text
        assert fleet.shell("h1", f"grep -rl {secret} {folders} || true") == ""
    assert fleet.shell("h1", f"runuser -u nobody -- cat /proc/{pid}/environ /etc/ironserve/main.env || true") == ""


def test_case_43_secrets_of_vllm_from_a_vault_reach_the_server_and_nobody_else(fleet):
    words = vault(fleet, ironserve_api_key=API_KEY, ironserve_secret_env={"HF_TOKEN": TOKEN})
    checked = fleet.play("-l", "h1", "-vvv", "--check", "--diff", *words).stdout
    assert fleet.shell("h1", "ls -a /etc/ironserve 2>/dev/null || true") == ""
    output = fleet.play("-l", "h1", "-vvv", "--diff", *words).stdout
    assert_nowhere(fleet, checked, output, folders=f"{EVERYWHERE} /var/log/ironserve")
    assert "write the files of the secrets (HF_TOKEN, VLLM_API_KEY)" in output
    assert (ask(fleet, API_KEY), ask(fleet, "sk-WRONG")) == ("200", "401")
    assert fleet.shell("h1", "stat -c '%n %U:%G %a' /etc/ironserve/* /etc/ironserve/.hash-key").splitlines() == [
        "/etc/ironserve/main.env root:ironserve 640", "/etc/ironserve/.hash-key root:root 600",
    ]  # fmt: skip
    environ = fleet.shell("h1", f"tr '\\0' '\\n' < /proc/{fleet.main_pid('h1')}/environ").splitlines()
    assert {f"VLLM_API_KEY={API_KEY}", f"HF_TOKEN={TOKEN}"} <= set(environ)

    pid = fleet.main_pid("h1")
    assert recap(fleet.play("-l", "h1", *words).stdout, "h1")["changed"] == 0
    assert fleet.main_pid("h1") == pid


def test_a_new_secret_restarts_and_the_old_one_no_longer_opens(fleet):
    fleet.play("-l", "h1", ironserve_api_key=API_KEY)
    pid = fleet.main_pid("h1")
    output = fleet.play("-l", "h1", ironserve_api_key="sk-NEWKEY").stdout
    assert fleet.rows("deploy")["h1"]["why"] == "the secrets changed"
    assert "sk-NEWKEY" not in output
    assert fleet.main_pid("h1") not in (0, pid)
    assert (ask(fleet, "sk-NEWKEY"), ask(fleet, API_KEY)) == ("200", "401")

    fleet.shell("h1", "sed -i s/NEW/OLD/ /etc/ironserve/main.env")
    fleet.play("-l", "h1", ironserve_api_key="sk-NEWKEY")
    assert ask(fleet, "sk-NEWKEY") == "200"

    fleet.play("-l", "h1")
    assert fleet.shell("h1", "ls /etc/ironserve") == ""
    assert ask(fleet, "none") == "200"


def test_case_43_sglang_reads_its_key_from_its_configuration_file(fleet):
    words = {"ironserve_api_key": API_KEY, "ironserve_secret_flags": {"admin-api-key": TOKEN}}
    output = fleet.play("-l", "h1", "-v", "--diff", "-e", "profile=triton_nccl", **words).stdout
    assert_nowhere(fleet, output)  # but for its own log: SGLang prints its arguments there
    assert API_KEY in fleet.shell("h1", "cat /var/log/ironserve/main.log")
    assert fleet.shell("h1", "stat -c '%U:%G %a' /var/log/ironserve/main.log") == "root:ironserve 640"
    assert fleet.flag("h1", "--config") == "/etc/ironserve/main.yml"
    assert fleet.shell("h1", "stat -c '%U:%G %a' /etc/ironserve/main.yml") == "root:ironserve 640"
    assert (ask(fleet, API_KEY), ask(fleet, "sk-WRONG")) == ("200", "401")
    environ = fleet.shell("h1", f"tr '\\0' '\\n' < /proc/{fleet.main_pid('h1')}/environ")
    assert API_KEY not in environ


def test_a_key_that_the_engine_prints_is_taken_out_of_the_report(fleet):
    fleet.model("h1", {"exit_in": "weights", "exit_message": f"ValueError: api_key='{API_KEY}' is bad"})
    result = fleet.play("-l", "h1", "-vvv", check=False, ironserve_api_key=API_KEY)
    assert result.returncode == 2
    assert "ValueError: api_key='********' is bad" in result.stdout
    assert API_KEY not in result.stdout + fleet.report("deploy").read_text()


def test_case_43_a_key_as_a_plain_flag_or_variable_is_refused_with_its_place(fleet):
    fleet.profile("open", flags={"api-key": API_KEY}, env={"HF_TOKEN": TOKEN})
    result = fleet.play("-l", "h1", "-e", "profile=open", check=False)
    assert result.returncode != 0
    assert "flags.api-key: looks like a secret" in result.stdout
    assert "env.HF_TOKEN: looks like a secret" in result.stdout
    assert "ironserve_secret_env" in result.stdout
    assert not [secret for secret in (API_KEY, TOKEN) if secret in result.stdout]


def test_a_secret_that_is_none_is_told_without_it(fleet):
    result = fleet.play("-l", "h1", check=False, ironserve_api_key=12345678, ironserve_secret_env={"A": "x"})
    assert result.returncode != 0
    assert "ironserve_api_key: expected text, got something else, which is not shown" in result.stdout
    assert "12345678" not in result.stdout.split("TASK [Resolve the releases]")[1]
