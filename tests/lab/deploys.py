"""Deploys as people type them, against test hosts with the stand-in engine."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
UNIT = "ironserve-main.service"
WRITTEN = (
    "/etc/systemd/system /run/systemd/system /var/lib/ironserve /var/log/ironserve /opt/ironserve /etc/logrotate.d "
    "/etc/ironserve /etc/passwd"
)


def standin_hosts(lab: Any, count: int, suite: str = "bookworm", binds: Sequence[str] = ()) -> Any:
    """Bring up hosts that see the wheels of the stand-in engine, which are made where they are not there.

    ``binds`` are further folders of this machine that they see, "SRC:DST[:ro]".
    """
    make = [sys.executable, str(ROOT / "tests" / "engines" / "standin_lock.py")]
    (ROOT / ".ironserve").mkdir(exist_ok=True)
    with (ROOT / ".ironserve" / "standin.lock").open("w") as turn:  # test files run at the same time
        fcntl.flock(turn, fcntl.LOCK_EX)
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    for bind in binds:
        Path(bind.split(":")[0]).mkdir(parents=True, exist_ok=True)
    lab.up(count, suite=suite, binds=[f"{ROOT}/.ironserve/wheelhouse:/srv/wheelhouse:ro", *binds])
    return lab


CLIENT = "vllm-bench-0.32.0-py311"
"""Lock of the benchmark's client for the Python of test hosts, as in standin.yml."""


CLIENTS = f"{ROOT}/.ironserve/clients:/opt/ironserve/clients"
"""Bind of a folder for its 3 GiB, which all test hosts share: their own disk is memory."""


def have_client(lab: Any) -> Any:
    """Have the benchmark's client on a lab that has been brought up with the bind ``CLIENTS``."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    wish = json.dumps({"lock": CLIENT, "wheelhouse": "/srv/wheelhouse", "root": "/opt/ironserve/clients"})
    with (ROOT / ".ironserve" / "clients.lock").open("w") as turn:  # one build at a time, test files run beside another
        fcntl.flock(turn, fcntl.LOCK_EX)
        for argv in (
            [sys.executable, str(ROOT / "tools" / "wheelhouse.py"), f"environments/{CLIENT}"],
            [str(BIN / "ansible"), "-i", str(lab.inventory), "h1", "-m", "engine_environment", "-a", wish],
        ):
            subprocess.run(argv, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return lab


class Fleet:
    """Test hosts that deploys go to; ``folder`` holds what a test writes on the controller."""

    limit_s = 300
    """No run of the stand-in takes half as long."""

    def __init__(self, lab: Any, folder: Path) -> None:
        self.lab, self.folder, self.said = lab, folder, ""
        (folder / "profiles").mkdir()
        (folder / "models").mkdir()

    def profile(self, name: str, **data: Any) -> None:
        """Write a profile of this test; one that says no more extends ``lab_vllm``."""
        data = {"description": f"{name} of a test", "extends": "lab_vllm", **data}
        (self.folder / "profiles" / f"{name}.yml").write_text(yaml.safe_dump(data))

    def model(
        self,
        host: str,
        behaviour: dict[str, Any] | None = None,
        path: str = "/srv/standin",
        config: dict[str, Any] | None = None,
    ) -> str:
        """Have a model folder on the host; return its path.

        Args:
            behaviour: what its standin.yml says, which is how the engine behaves.
            config: its config.json, by which rules know what kind of model it is.
        """
        self.lab.exec(
            host, ["sh", "-c", f"mkdir -p {path} && cat > {path}/config.json"], input=json.dumps(config or {})
        )
        self.lab.exec(host, ["sh", "-c", f"cat > {path}/standin.yml"], input=yaml.safe_dump(behaviour or {}))
        self.lab.exec(host, ["sh", "-c", f"echo weights > {path}/model.safetensors"])
        return path

    def play(
        self, *words: str, playbook: str = "deploy.yml", inventory: Path | None = None, check: bool = True, **site: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a playbook with the stand-in's site variables, then those given; fail where ``check`` is not met."""
        result = subprocess.run(
            self.command(*words, playbook=playbook, inventory=inventory, **site),
            cwd=ROOT, env=self.environment(), capture_output=True, text=True, timeout=self.limit_s, check=False,
        )  # fmt: skip
        if check and result.returncode:
            raise AssertionError(f"{result.args} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
        return result

    def command(
        self, *words: str, playbook: str = "deploy.yml", inventory: Path | None = None, **site: Any
    ) -> list[str]:
        """The argv of a run."""
        site = {
            "ironserve_profile_paths": [str(self.folder / "profiles"), "profiles"],
            "ironserve_model": {"path": "/srv/standin", "served_name": "tiny"},
            "ironserve_reports": str(self.folder / "reports"),
            **site,
        }
        return [
            str(BIN / "ansible-playbook"), "-i", str(inventory or self.lab.inventory), playbook,
            "-e", "@tests/lab/standin.yml", "-e", json.dumps(site), *words,
        ]  # fmt: skip

    def module(self, host: str, name: str, arguments: dict[str, Any], check: bool = True) -> dict[str, Any]:
        """What a module answers on the host; ``said`` is all that was printed."""
        environment = {**self.environment(), "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1", "ANSIBLE_STDOUT_CALLBACK": "minimal"}
        argv = [str(BIN / "ansible"), "-i", str(self.lab.inventory), host, "-m", name]
        argv += ["-a", json.dumps(arguments)] if arguments else []
        result = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        self.said = result.stdout
        if check and result.returncode:
            raise AssertionError(f"{argv} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
        return yaml.safe_load(result.stdout[result.stdout.index("\n", result.stdout.index(f"{host} | ")) :])

    def environment(self) -> dict[str, str]:
        """The environment of a run: the project's configuration, no colour, and Ansible's own output, of which tests
        count tasks, unless this environment names another one."""
        own = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        return {"ANSIBLE_STDOUT_CALLBACK": "default", **os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **own}

    def shell(self, host: str, script: str, check: bool = True) -> str:
        """What a script prints on the host."""
        return self.lab.exec(host, ["sh", "-c", script], check=check).stdout.strip()

    def forget(self, host: str, service: str = "main") -> None:
        """Have no such service on the host, so that no release was ever good there."""
        unit, folders = f"ironserve-{service}.service", f"/var/lib/ironserve/{service} /run/ironserve/{service}"
        gate = f"/run/systemd/system/{unit}.d"
        self.shell(
            host,
            f"systemctl disable --now {unit} 2>/dev/null; rm -rf {folders} {gate} /run/ironserve/{service}.*; "
            f"rm -f /etc/ironserve/{service}.* /etc/systemd/system/{unit}; systemctl daemon-reload",
        )

    def main_pid(self, host: str, service: str = "main") -> int:
        """Pid of the service's main process, 0 when it does not run."""
        return int(self.shell(host, f"systemctl show -P MainPID ironserve-{service}.service") or 0)

    def status(self, host: str) -> dict[str, Any]:
        """The host's row of ``playbooks/status.yml``."""
        self.play("-l", host, playbook="playbooks/status.yml")
        return self.rows("status")[host]

    def rows(self, report: str) -> dict[str, dict[str, Any]]:
        """Rows of a report, such as ``deploy``, by host."""
        return {row["host"]: row for row in json.loads(self.report(report).read_text())}

    def report(self, name: str) -> Path:
        """The file of a report."""
        return self.folder / "reports" / f"{name}.json"

    def flag(self, host: str, name: str) -> str:
        """Value of a flag of the process that runs."""
        argv = self.shell(host, f"tr '\\0' '\\n' < /proc/{self.main_pid(host)}/cmdline").splitlines()
        return argv[argv.index(name) + 1]

    def starts(self, host: str) -> int:
        """How often systemd started the unit since the host was made."""
        return int(self.shell(host, f"journalctl -u {UNIT} -o cat | grep -c '^Starting' || true"))

    def written(self, host: str) -> str:
        """Everything that a deploy may write, with sizes and times: the same text means that nothing was touched.

        What parsers answered is a cache, which judging fills.
        """
        shown = r"-type d -printf '%p\n' -o -printf '%p %s %T@ %l\n'"
        others = "grep -v -e /var/log/ironserve/.*log -e /opt/ironserve/flags"
        return self.shell(host, f"find {WRITTEN} {shown} 2>/dev/null | {others} | sort")

    def complete(self, host: str, model: str = "tiny", port: int = 8000) -> dict[str, Any]:
        """A completion, asked on the host."""
        request = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 3})
        url = f"http://127.0.0.1:{port}/v1/completions"
        answer = self.shell(host, f"curl -sf --max-time 20 {url} -H 'Content-Type: application/json' -d '{request}'")
        return json.loads(answer)


def recap(output: str, host: str) -> dict[str, int]:
    """The counts of Ansible's last table for a host."""
    line = re.search(rf"^{host}\s+: (.*)$", output, re.MULTILINE)
    assert line, output
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line[1])}


def lines_with(output: str, words: Sequence[str]) -> list[str]:
    """Lines of the output that have all the words."""
    return [line for line in output.splitlines() if all(word in line for word in words)]
