"""Profiles as text, resolved for one host."""

from __future__ import annotations

import pytest
from ansible.module_utils.ironserve import yaml_text
from ansible.module_utils.ironserve.problems import Problems
from ansible.module_utils.ironserve.profiles import Source
from ansible.module_utils.ironserve.resolve import resolve

LOCK = {"id": "e-1", "name": "e", "engine_version": "1", "python": "3.11", "installed_mib": 1, "folder": "/l"}
SITE = {
    "ironserve_group_vars_loaded": True,
    "ironserve_host_group": "blackwell",
    "ironserve_profile_paths": ["profiles"],
    "ironserve_listen_address": "0.0.0.0",
    "ironserve_port": 8000,
    "ironserve_model": {"path": "/srv/m"},
    "ironserve_hardware": {"gpu_count": 8, "gpu_family": "sm120"},
    "ironserve_sizes": {"tensor_parallel": 8},
    "ironserve_nccl_sets": {"low_latency": {"NCCL_PROTO": "LL", "NCCL_NTHREADS": 512}},
    "ironserve_locks": {"sglang": "e", "vllm": "e"},
}


class Resolved:
    """A release with what was found wrong and where its values come from."""

    def __init__(self, texts: dict[str, str], profile: str, host: str, site: dict) -> None:
        self.sources = {name: self._source(name, text) for name, text in texts.items()}
        self.problems, self.origins = Problems(), {}
        locks = {"sglang": LOCK, "vllm": LOCK}
        self.release = resolve(
            host, "main", profile, {**SITE, **site}, self.sources, locks, self.problems, self.origins
        )

    @staticmethod
    def _source(name: str, text: str) -> Source:
        file, found = f"profiles/{name}.yml", Problems()
        return Source(file, yaml_text.read(text, file, found), found=tuple(found.found))

    @property
    def found(self) -> list[str]:
        return self.problems.found

    def __getattr__(self, key: str):
        assert self.found == []
        return self.release[key]


@pytest.fixture(scope="session")
def resolved():
    """Resolve ``p``, YAML text like those that it extends; ``description`` and a missing ``engine`` are added."""

    def run(p: str, host: str = "h1", site: dict | None = None, **others: str) -> Resolved:
        texts = {name: f"description: d\n{text}" for name, text in {"p": p, **others}.items()}
        said = ("extends:", "engine:")
        texts = {
            name: text if any(key in text for key in said) else f"engine: vllm\n{text}" for name, text in texts.items()
        }
        return Resolved(texts, "p", host, site or {})

    return run
