"""A router that cannot be reached: a failure of the task that says which one, and never an unreachable host."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

FILE = Path(__file__).resolve().parents[3] / "plugins" / "action" / "router_worker.py"


@pytest.fixture
def call(monkeypatch):
    """Run the plugin for h1, delegated to a router or not; what it asks answers by ``execute``."""
    spec = importlib.util.spec_from_file_location("router_worker", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})

    def run(execute, delegate_to=None, **variables):
        action = module.ActionModule.__new__(module.ActionModule)
        action._task = SimpleNamespace(args={"state": "listed"}, delegate_to=delegate_to)
        monkeypatch.setattr(action, "_execute_module", execute)
        return action.run(None, {"inventory_hostname": "h1", **variables})

    return run


def lose(*_, **__):
    raise AnsibleConnectionFailure("no route to host")


@pytest.mark.parametrize("variables", [{}, {"serve_lost_fails": True}, {"serve_lost_fails": False}])
@pytest.mark.parametrize(("delegate_to", "router"), [("r1", "r1"), (None, "h1")])
def test_a_lost_connection_is_a_failure_that_names_the_router(call, variables, delegate_to, router):
    answer = call(lose, delegate_to, **variables)
    assert answer["failed"]
    assert "unreachable" not in answer
    assert answer["msg"] == f"router {router} cannot be reached: no route to host"


def test_what_the_router_says_is_handed_on(call):
    assert call(lambda *_, **__: {"workers": [], "changed": False}, "r1") == {"workers": [], "changed": False}
