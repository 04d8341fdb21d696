"""What every test shares: the project's module_utils under Ansible's own name, and modules run in process."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import ansible.module_utils
import pytest
from ansible.module_utils.testing import patch_module_args
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

# Two busy cores are no reason to fail: tests judge what comes out, not how long it took.
settings.register_profile("ironserve", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ironserve")


@pytest.fixture
def root() -> Path:
    """The folder of the checkout."""
    return ROOT


@pytest.fixture
def run_module(capsys):
    """Run library/NAME.py in this process and return its result (a dict), as Ansible would read it."""

    def run(name: str, check: bool = False, diff: bool = False, **arguments) -> dict:
        module = importlib.import_module(name)
        arguments |= {"_ansible_check_mode": check, "_ansible_diff": diff}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out)

    return run
