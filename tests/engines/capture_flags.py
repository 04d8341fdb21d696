#!/usr/bin/env python3
"""Write what an engine's own parser says of itself into tests/fixtures/engine_flags/, by the probe that hosts run.

usage: capture_flags.py ENGINE PYTHON            the engine of an environment: PYTHON is its bin/python3
       capture_flags.py ENGINE PYTHON SOURCES    another version: SOURCES is its wheel, unpacked

The second way takes the other packages from an environment of a newer version; what that lacks is replaced by empty
stand-ins, which is enough to make a parser. Nothing that depends on other packages is kept then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROBE = ROOT / "module_utils" / "ironserve" / "parser_probe.py"
FOLDER = ROOT / "tests" / "fixtures" / "engine_flags"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

OTHER_SOURCES = """
import importlib.abc, importlib.machinery, sys
from unittest.mock import MagicMock

class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"gguf"}:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return MagicMock()
    def exec_module(self, module):
        pass

sys.meta_path.append(Absent())
sys.path.insert(0, SOURCES)
import triton.runtime.cache as cache
for name in ("default_cache_dir", "default_dump_dir", "default_override_dir"):
    if not hasattr(cache, name):
        setattr(cache, name, str)
"""


def main() -> None:
    """Ask, and write the fixture."""
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    engine, python, *sources = sys.argv[1:]
    other = f"SOURCES = {str(Path(sources[0]).resolve())!r}\n{OTHER_SOURCES}" if sources else ""
    request = json.dumps({"engine": engine, "describe": True, "asked": {}})
    # The probe's __future__ import has to come first.
    script = f"{other}\nexec(compile({PROBE.read_text()!r}, 'probe', 'exec'))\nmain({request!r})\n"
    done = subprocess.run([python, "-I", "-"], input=script, stdout=-1, text=True, env=ENVIRONMENT, check=True)
    description = json.loads(done.stdout)["description"]
    if sources:
        own = ("VLLM_",) if engine == "vllm" else ("SGLANG_", "SGL_")
        description["variables"] = [name for name in description["variables"] if name.startswith(own)]
    write(FOLDER / f"{engine}-{description['engine_version']}.json", description)


def write(file: Path, description: dict[str, Any]) -> None:
    """The description, an option a line."""
    options = ",\n".join(json.dumps(option) for option in description["options"])
    rest = {key: value for key, value in description.items() if key != "options"}
    file.write_text(f'{json.dumps(rest)[:-1]}, "options": [\n{options}\n]}}\n')
    sys.stdout.write(f"{file}\n")


if __name__ == "__main__":
    main()
