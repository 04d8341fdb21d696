"""What runs on hosts runs under the oldest Python that a host may have."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTROLLER_ONLY = {
    "checks.py", "flag_checks.py", "model_fit.py", "knowledge.py", "lock.py", "rules.py", "page.py", "sliced.py",
    "yaml_text.py",
}  # fmt: skip

IMPORT = """
import importlib.util, pathlib, sys, types
root = pathlib.Path(sys.argv[1])
for name in ("ansible", "ansible.module_utils"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(root / "module_utils")]
basic = types.ModuleType("ansible.module_utils.basic")
basic.AnsibleModule = object
sys.modules["ansible.module_utils.basic"] = basic
for name in sys.argv[2:]:
    spec = importlib.util.spec_from_file_location("probe", root / name) if name.startswith("library") else None
    if spec:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    else:
        importlib.import_module("ansible.module_utils.ironserve." + name)
"""


def python_39() -> str | None:
    candidates = [shutil.which("python3.9"), *Path.home().glob(".pyenv/versions/3.9.*/bin/python")]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(candidate)
    return None


@pytest.mark.skipif(python_39() is None, reason="this machine has no Python 3.9")
def test_modules_and_their_thinking_import_under_3_9():
    folder = ROOT / "module_utils" / "ironserve"
    names = [path.stem for path in folder.glob("*.py") if path.name not in CONTROLLER_ONLY | {"__init__.py"}]
    modules = [f"library/{path.name}" for path in (ROOT / "library").glob("*.py")]
    command = [python_39(), "-c", IMPORT, str(ROOT), *names, "engines", "routers", "routers.pool", *modules]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
