"""Both real engines behind one router, on the CPU: a flag is rolled out over them while streams are in flight."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from deploys import BIN, ROOT
from real_engines import BINDS, LOCKS
from rollout_fleet import RolloutFleet, with_tools

ENGINES = {"h1": "vllm", "h2": "sglang"}
FLAGS = {"vllm": "max-num-seqs", "sglang": "max-running-requests"}

pytestmark = pytest.mark.timeout(2400)
"""With cold caches the first test fetches the wheels of both engines and builds their environments."""


class RealRolloutFleet(RolloutFleet):
    """h1 with vLLM and h2 with SGLang, each with a profile of its own, behind the router on h3."""

    limit_s = 1500

    def __init__(self, lab: Any, folder: Path) -> None:
        super().__init__(lab, folder, len(ENGINES))
        groups = yaml.safe_load(self.groups.read_text())
        groups["lab"] = {"hosts": {host: {"ironserve_profile": f"real_{engine}"} for host, engine in ENGINES.items()}}
        self.groups.write_text(yaml.safe_dump(groups))

    def requests(self, number: int) -> None:
        """Have both profiles allow so many requests at a time."""
        for engine, flag in FLAGS.items():
            self.profile(f"real_{engine}", extends=f"lab_{engine}", flags={flag: number})

    def command(
        self, *words: str, playbook: str = "deploy.yml", inventory: Path | None = None, **site: Any
    ) -> list[str]:
        """The argv of a run: what the hosts are is said by the inventory, nothing is of the stand-in."""
        site = {
            "ironserve_profile_paths": [str(self.folder / "profiles"), "profiles"],
            "ironserve_reports": str(self.folder / "reports"),
            **site,
        }
        inventories = ["-i", str(inventory or self.lab.inventory), "-i", str(self.groups)]
        return [str(BIN / "ansible-playbook"), *inventories, playbook, "-e", json.dumps(site), *words]


@pytest.fixture
def real(make_lab, tmp_path):
    """Both engines serve, and are admitted; hosts share the folder of environments, so one at a time builds there."""
    lab = make_lab("-roll-real")
    with (ROOT / ".ironserve" / "engines.lock").open("w") as turn:  # test files run at the same time
        fcntl.flock(turn, fcntl.LOCK_EX)
        tools = ["tools/engines.sh", "router", *LOCKS]
        subprocess.run(tools, cwd=ROOT, env=with_tools(), check=True, stdout=subprocess.DEVNULL)
        lab.up(len(ENGINES) + 1, binds=[f"{ROOT}/.ironserve/{bind}" for bind in BINDS])
        for host, engine in ENGINES.items():
            wish = json.dumps({"lock": LOCKS[engine], "wheelhouse": "/srv/wheelhouse"})
            build = [str(BIN / "ansible"), "-i", str(lab.inventory), host, "-m", "engine_environment", "-a", wish]
            subprocess.run(build, cwd=ROOT, env=with_tools(), check=True, stdout=subprocess.DEVNULL)
    fleet = RealRolloutFleet(lab, tmp_path)
    fleet.requests(8)
    fleet.play(playbook="playbooks/router.yml")
    fleet.play()
    assert fleet.workers() == dict.fromkeys(ENGINES, True)
    return fleet


def test_a_flag_is_rolled_out_over_both_real_engines_and_no_request_is_lost(real):
    # With pauses: an engine that always has something to do leaves the one that starts beside it no core.
    load = real.load("--timeout", "120", "--pause", "1", streams=4)
    pids = real.pids()
    real.requests(6)
    real.play(ironserve_min_serving=1)
    sums = load.end()
    assert (sums["errors"], sums["truncated"], sums["unaccounted"]) == (0, 0, 0), sums
    assert sums["ok"] > 4
    assert load.fewest_healthy() == 1
    assert {host: real.flag(host, f"--{FLAGS[engine]}") for host, engine in ENGINES.items()} == {"h1": "6", "h2": "6"}
    assert all(pid not in (0, pids[host]) for host, pid in real.pids().items())
    assert real.workers() == dict.fromkeys(ENGINES, True)
