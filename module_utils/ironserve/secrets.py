"""Secrets of a service: API keys and tokens, which live in files that only root and the service user read.

A secret never becomes part of a release, a unit, an argument or a report. What is said of it is its name, and a hash
keyed with a secret of the host, so that a new value restarts the server.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .engines import ENGINES
from .problems import Problems

FOLDER = "/etc/ironserve"
SHORTEST = 6
"""Characters. What is shorter is guessed, and hiding it in reports would hide half of what they say."""

MASK = "********"

Values = Mapping[str, Mapping[str, str]]
"""``env``: variables of the server; ``flags``: flags that it reads from its ``--config`` file."""


def place(engine: str, api_key: str, env: Mapping[str, str], flags: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Which secret goes to which file, for one engine.

    vLLM reads its key from a variable. SGLang reads it from a flag only, which goes to its configuration file; a
    variable with it is for the readiness helper, and is hidden from the engine.
    """
    known = ENGINES[engine]
    placed = {"env": dict(env), "flags": dict(flags)}
    if api_key:
        placed["env"][known.API_KEY_VARIABLE] = api_key
        if not known.READS_API_KEY_VARIABLE:
            placed["flags"]["api-key"] = api_key
    return placed


def names(values: Values) -> list[str]:
    """What may be said of secrets: ``HF_TOKEN``, ``--admin-api-key``."""
    return sorted([*values["env"], *(f"--{flag}" for flag in values["flags"])])


def texts(values: Values | None) -> list[str]:
    """The secrets themselves, longest first, for :func:`redact`; also as Python and JSON print them."""
    found = {text for several in (values or {}).values() for text in several.values()}
    printed = {form(text)[1:-1] for text in found for form in (repr, json.dumps)}
    return sorted({*found, *printed}, key=len, reverse=True)


def redact(text: str, secret_texts: Iterable[str]) -> str:
    """A text without secrets."""
    for secret in secret_texts:
        text = text.replace(secret, MASK)
    return text


def env_path(service: str) -> str:
    """The file that the unit reads as EnvironmentFile=."""
    return f"{FOLDER}/{service}.env"


def config_path(service: str) -> str:
    """The file that the engine reads as --config."""
    return f"{FOLDER}/{service}.yml"


def files(service: str, values: Values | None) -> dict[str, str]:
    """Text of each file of a service's secrets by path; empty where there must be no file."""
    env = "".join(f"{name}={_quoted(text)}\n" for name, text in sorted((values or {}).get("env", {}).items()))
    flags = "".join(
        f"{name}: {json.dumps(text, ensure_ascii=False)}\n"
        for name, text in sorted((values or {}).get("flags", {}).items())
    )
    return {env_path(service): env, config_path(service): flags}


def read(env_text: str, config_text: str) -> dict[str, dict[str, str]]:
    """The secrets in the texts of both files that :func:`files` writes; what somebody edited is read as it stands."""
    env = dict(line.split("=", 1) for line in env_text.splitlines() if "=" in line)
    flags = dict(line.split(": ", 1) for line in config_text.splitlines() if ": " in line)
    return {
        "env": {name: _unquoted(text) for name, text in env.items()},
        "flags": {name: _from_json(text) for name, text in flags.items()},
    }


def _unquoted(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] == '"'
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if quoted else text


def _from_json(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def api_key(engine: str, texts: tuple[str, str]) -> str:
    """The API key in the texts of a service's files, environment first; empty where its server wants none."""
    return read(*texts)["env"].get(ENGINES[engine].API_KEY_VARIABLE, "")


def names_in(service: str, texts: Mapping[str, str]) -> set[str]:
    """The names of the secrets in the texts of a service's files, as :func:`names` has them."""
    env, flags = (texts.get(path, "").splitlines() for path in (env_path(service), config_path(service)))
    return {line.split("=", 1)[0] for line in env} | {f"--{line.split(':', 1)[0]}" for line in flags}


def _quoted(text: str) -> str:
    """A value as systemd reads it from an EnvironmentFile: ``"``, backslash, backtick and ``$`` escaped in quotes."""
    return '"' + "".join(f"\\{char}" if char in '"\\`$' else char for char in text) + '"'


def digest(values: Values | None, key: bytes) -> str:
    """Twelve hex digits over the secrets, which say nothing without the key; empty where there are no secrets."""
    if not texts(values):
        return ""
    return hmac.new(key, json.dumps(values, sort_keys=True).encode(), hashlib.sha256).hexdigest()[:12]


def check(name: str, text: Any, where: str, problems: Problems) -> None:
    """Note what makes a secret unusable. The text itself is never said."""
    if not isinstance(text, str):
        problems.add(where, name, "is a secret, and must be text: put it in quotes")
    elif len(text) < SHORTEST:
        problems.add(
            where, name, f"is shorter than {SHORTEST} characters, which is no secret (is the vault's value empty?)"
        )
    elif not text.isprintable():
        problems.add(where, name, "holds a line break or another control character: a secret is one line of text")
