"""Rules that are data: which settings, versions and hardware do not go together. Pure; runs on the controller.

A rule of ``knowledge/rules/`` fires where its engine and version are meant and every condition of its ``when`` holds.
A condition is about a fact by name (:data:`FACTS`) and says what is wanted of it: a value, a list (any of them), null
(not set), or operators (:data:`OPERATORS`). ``a|b`` as a name means that one of the facts is enough. A fact that nobody
knows decides nothing: the rule is silent, and :func:`considered` says why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from . import model_config
from .engines import ENGINES
from .findings import Case, Found

UNKNOWN = object()
"""The value of a fact that nobody knows, as opposed to None: known to be absent."""

PLACEHOLDER = re.compile(r"\{([a-z][\w.-]*)\}")


class Fact(NamedTuple):
    """A fact that rules may ask for: what it is, how it is read, and the flags that say it; the first of them wins."""

    about: str
    read: Callable[[Case], Any]
    flags: Callable[[Case], tuple[str, ...]] = lambda _: ()


class Decision(NamedTuple):
    """Whether a rule fires, and why, or why not. None: a fact that it needs is not known."""

    fires: bool | None
    why: str


def _parallel(number: int) -> Callable[[Case], tuple[str, ...]]:
    return lambda case: ENGINES[case.engine].PARALLEL_FLAGS[number]


def _size(number: int) -> Callable[[Case], Any]:
    def read(case: Case) -> Any:
        value = first(case, _parallel(number)(case))
        return 1 if value is None else _number(value)

    return read


def _backend_flags(phase: str) -> Callable[[Case], tuple[str, ...]]:
    return lambda case: (f"{phase}-attention-backend", "attention-backend") if case.engine == "sglang" else (
        "attention-backend", "attention-config"
    )  # fmt: skip


def _backend(phase: str) -> Callable[[Case], Any]:
    def read(case: Case) -> Any:
        value = first(case, _backend_flags(phase)(case))
        return value if value is None or not str(value).startswith("{") else _json(value).get("backend")

    return read


def _gpu_count(case: Case) -> Any:
    declared = case.hardware.get("gpu_count", UNKNOWN)
    return len(case.release.get("gpus") or []) or len(case.gpus) or declared


def _gpu_memory(case: Case) -> Any:
    sizes = [gpu["memory_total_mib"] for gpu in case.gpus if gpu.get("memory_total_mib")]
    return min(sizes) if sizes else UNKNOWN


def _link(case: Case) -> Any:
    """How the service's GPUs reach each other: every pair over NVLink, none, or some of them."""
    topology = case.facts.get("gpus", {}).get("topology") or []
    places = [gpu["index"] for gpu in case.gpus if 0 <= gpu.get("index", -1) < len(topology)]
    pairs = [topology[one][other] for one in places for other in places if one < other]
    if not pairs:
        return UNKNOWN
    over_nvlink = [pair.startswith("NV") for pair in pairs]
    return "nvlink" if all(over_nvlink) else "mixed" if any(over_nvlink) else "pcie"


def _custom_all_reduce(case: Case) -> Any:
    """Whether the engine's own all-reduce serves: both engines turn it off for more than two GPUs without NVLink."""
    ranks, link = fact(case, "tensor_parallel"), _link(case)
    if _same(case.flags.get("disable-custom-all-reduce"), True) or ranks == 1:
        return False
    if ranks is UNKNOWN or (ranks > 2 and link is UNKNOWN):
        return UNKNOWN
    return ranks == 2 or link == "nvlink"


GRAPH_FLAGS = {
    "sglang": ("disable-cuda-graph", "disable-decode-cuda-graph", "cuda-graph-backend-decode"),
    "vllm": ("enforce-eager", "compilation-config", "optimization-level"),
}
GRAPHS_OFF = ("disable-cuda-graph", "disable-decode-cuda-graph", "enforce-eager")


def _cuda_graphs(case: Case) -> Any:
    """Whether decoding is captured in CUDA graphs, which is the default of both engines."""
    off = [_same(_flag(case, name), True) for name in GRAPHS_OFF]
    off.append(_same(_flag(case, "cuda-graph-backend-decode"), "disabled"))
    off.append(_same(_flag(case, "optimization-level"), 0))
    off.append(_same(_json(_flag(case, "compilation-config")).get("cudagraph_mode"), "NONE"))
    if any(off):
        return False
    return UNKNOWN if "cuda-graph-config" in case.flags else True


SPECULATION_FLAGS = {"sglang": ("speculative-num-steps",), "vllm": ("speculative-config",)}


def _speculative_tokens(case: Case) -> Any:
    value = first(case, SPECULATION_FLAGS[case.engine])
    if case.engine == "vllm" and value is not None:
        value = _json(value).get("num_speculative_tokens", UNKNOWN)
    return value if value is None or value is UNKNOWN else _number(value)


def _cuda(case: Case) -> Any:
    names = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
    return next((case.packages[name] for name in names if name in case.packages), UNKNOWN)


FACTS: dict[str, Fact] = {
    "gpu_family": Fact("family of the GPUs: sm120 for compute capability 12.x, sm100, sm90, sm89",
                       lambda case: case.family or UNKNOWN),
    "gpu_count": Fact("number of the service's GPUs", _gpu_count),
    "gpu_memory_mib": Fact("memory of the smallest of them, MiB", _gpu_memory),
    "link": Fact("nvlink where each of them reaches each over NVLink, pcie where none does, else mixed", _link),
    "driver_version": Fact("version of the NVIDIA driver",
                           lambda case: case.facts.get("gpus", {}).get("driver_version") or UNKNOWN),
    "nccl_version": Fact("version of the lock's NCCL", lambda case: case.nccl_version or UNKNOWN),
    "cuda": Fact("version of the lock's CUDA runtime", _cuda),
    "tensor_parallel": Fact("tensor parallel ranks, 1 where no flag says it", _size(0), _parallel(0)),
    "pipeline_parallel": Fact("pipeline stages, 1 where no flag says it", _size(1), _parallel(1)),
    "prefill_backend": Fact("attention backend that the flags choose for prefill; null: the engine chooses",
                            _backend("prefill"), _backend_flags("prefill")),
    "decode_backend": Fact("attention backend that the flags choose for decoding; null: the engine chooses",
                           _backend("decode"), _backend_flags("decode")),
    "custom_all_reduce": Fact("whether the engine's own all-reduce serves", _custom_all_reduce,
                              lambda _: ("disable-custom-all-reduce",)),
    "cuda_graphs": Fact("whether decoding runs as CUDA graphs", _cuda_graphs, lambda case: GRAPH_FLAGS[case.engine]),
    "speculative_tokens": Fact("tokens that are drafted in a step; null: no speculation", _speculative_tokens,
                               lambda case: SPECULATION_FLAGS[case.engine]),
}  # fmt: skip
"""Facts by name; beside them those of :data:`KINDS`."""


def _flag(case: Case, name: str) -> Any:
    """A flag's value; of vLLM's JSON flags with what dotted forms say (``--compilation-config.cudagraph_mode``)."""
    value, inside = case.flags.get(name), f"{name}."
    dotted = {flag[len(inside) :]: said for flag, said in case.flags.items() if flag.startswith(inside)}
    if not dotted:
        return value
    whole = dict(_json(value))
    for path, said in dotted.items():
        *above, key = path.split(".")
        place = whole
        for part in above:
            inner = place.get(part)
            place[part] = dict(inner) if isinstance(inner, dict) else {}
            place = place[part]
        place[key] = said
    return json.dumps(whole)


def _variable(case: Case, name: str) -> Any:
    return case.env.get(name)


def _package(case: Case, name: str) -> Any:
    return case.packages.get(name) if case.packages else UNKNOWN


def _model(case: Case, name: str) -> Any:
    return case.model.get(name, UNKNOWN)


KINDS: dict[str, tuple[str, Callable[[Case, str], Any]]] = {
    "flag": ("a flag of the release, by its long name; a bare one is true", _flag),
    "env": ("a variable that the server gets", _variable),
    "package": ("version of a package of the lock", _package),
    "model": ("what the model's files say, see below", _model),
}
"""Kinds of facts with a name of their own: ``flag.attention-backend``."""


def known(name: str) -> bool:
    """Whether there is such a fact."""
    kind, dot, rest = name.partition(".")
    return rest in model_config.FACTS if kind == "model" else kind in KINDS if dot else name in FACTS


def fact(case: Case, name: str) -> Any:
    """The value of a fact: None where it is known to be absent, :data:`UNKNOWN` where nobody knows."""
    kind, dot, rest = name.partition(".")
    return KINDS[kind][1](case, rest) if dot else FACTS[name].read(case)


class Operator(NamedTuple):
    """What a condition may say of a value that is there: whether it holds, and how a person says it."""

    holds: Callable[[Any, Any], bool]
    words: str


OPERATORS: dict[str, Operator] = {
    "not": Operator(lambda wanted, value: not _matches(wanted, value), "anything but {}"),
    "set": Operator(lambda wanted, value: (value is not None) is wanted, "whatever is set"),
    "versions": Operator(lambda wanted, value: _in_range(value, wanted), "versions {}"),
    "above": Operator(lambda wanted, value: _is_above(value, wanted), "more than {}"),
    "setting": Operator(
        lambda wanted, value: any(_same(item.strip(), wanted) for item in str(value).split(",")),
        "what has {} among its settings",
    ),
    "begins": Operator(lambda wanted, value: _text(value).startswith(_text(wanted)), "what begins with {}"),
}
"""``not`` a value, a list or null; ``set`` at all; a range of ``versions`` (PEP 440); ``above`` a number;
a ``setting`` of a comma-separated value; ``begins`` with a text."""

OF_ABSENT = ("not", "set")
"""Operators that say something of a value that is not there; all others need one."""


def check(case: Case, rules: Sequence[Mapping[str, Any]]) -> Iterator[Found]:
    """What fires, at the setting that it is about."""
    for rule in rules:
        if decide(case, rule).fires:
            yield Found(rule["id"], *_place(case, rule), _filled(case, rule["text"]))


def considered(case: Case, rules: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every rule with whether it ``fired`` and ``why``: all that holds, or the first thing that does not."""
    decisions = [(rule["id"], decide(case, rule)) for rule in rules]
    return [{"rule": name, "fired": bool(found.fires), "why": found.why} for name, found in decisions]


def decide(case: Case, rule: Mapping[str, Any]) -> Decision:
    """Whether a rule fires: engine, version, then its conditions in their order."""
    if rule["engine"] not in ("any", case.engine):
        return Decision(False, f"engine is {case.engine}, the rule is for {rule['engine']}")
    try:
        return _decide_for(case, rule)
    except InvalidVersion as error:
        return Decision(None, f"not decided: {error}")


def _decide_for(case: Case, rule: Mapping[str, Any]) -> Decision:
    """The same for a rule of the case's engine."""
    versions = rule.get("versions", "")
    if not _in_range(case.engine_version, versions):
        return Decision(False, f"{case.engine} is {case.engine_version}, the rule is for {versions}")
    reasons = []
    for names, wanted in rule["when"].items():
        decision = _decide(case, names.split("|"), wanted)
        if not decision.fires:
            return decision
        reasons.append(decision.why)
    return Decision(True, ", ".join(reasons))


def _decide(case: Case, names: Sequence[str], wanted: Any) -> Decision:
    """One condition: whether one of the facts is as wanted."""
    values = {name: fact(case, name) for name in names}
    for name, value in values.items():
        if value is not UNKNOWN and _matches(wanted, value):
            return Decision(True, f"{name} is {_said(value)}")
    unknown = [name for name, value in values.items() if value is UNKNOWN]
    if unknown:
        return Decision(None, f"not decided: {unknown[0]} is not known")
    seen = ", ".join(f"{name} is {_said(value)}" for name, value in values.items())
    return Decision(False, f"{seen}, the rule is for {in_words(wanted)}")


def _matches(wanted: Any, value: Any) -> bool:
    """Whether a known value is as wanted."""
    if isinstance(wanted, Mapping):
        return all(
            (value is not None or name in OF_ABSENT) and OPERATORS[name].holds(operand, value)
            for name, operand in wanted.items()
        )
    if isinstance(wanted, (list, tuple)):
        return any(_matches(one, value) for one in wanted)
    return _same(value, wanted)


def in_words(wanted: Any) -> str:
    """What is wanted of a fact, for a person."""
    if isinstance(wanted, Mapping):
        return " and ".join(OPERATORS[name].words.format(in_words(operand)) for name, operand in wanted.items())
    if isinstance(wanted, (list, tuple)):
        return " or ".join(in_words(one) for one in wanted)
    return _said(wanted)


def _said(value: Any) -> str:
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _same(value: Any, wanted: Any) -> bool:
    """Whether two values are the same text, whatever its case: flags and variables are text, rules may have numbers."""
    return value is wanted if value is None or wanted is None else _text(value) == _text(wanted)


def _text(value: Any) -> str:
    return str(value).casefold()


def _in_range(version: Any, versions: str) -> bool:
    return not versions or SpecifierSet(versions).contains(Version(str(version)), prereleases=True)


def _number(value: Any) -> Any:
    try:
        return int(str(value))
    except ValueError:
        return UNKNOWN


def _is_above(value: Any, number: float) -> bool:
    """Whether it is a number above this one."""
    try:
        return float(str(value)) > number
    except ValueError:
        return False


def _json(value: Any) -> Mapping[str, Any]:
    """The mapping that a flag's JSON holds; empty where it holds none."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def first(case: Case, flags: Iterable[str]) -> Any:
    """The value of the first of these flags that is given, None where none is."""
    return next((value for value in (_flag(case, name) for name in flags) if value is not None), None)


def _place(case: Case, rule: Mapping[str, Any]) -> tuple[str, str]:
    """File and key of the first setting that the rule is about; the host where it is about none that is written."""
    for names, wanted in rule["when"].items():
        for name in names.split("|"):
            kind, _, rest = name.partition(".")
            if kind == "env" and rest in case.env and _matches(wanted, case.env[rest]):
                return case.place_of_variable(rest)
            flags = (rest,) if kind == "flag" else FACTS[name].flags(case) if name in FACTS else ()
            for flag in flags:
                if flag in case.flags and _matches(wanted, fact(case, name)):
                    return case.place_of_flag(flag)
    return f"host {case.host}", ""


def _filled(case: Case, text: str) -> str:
    """The text with its placeholders filled: ``{fact}``, ``{engine}``, ``{version}``."""
    own = {"engine": case.engine, "version": case.engine_version}

    def value(found: re.Match[str]) -> str:
        told = own[found[1]] if found[1] in own else fact(case, found[1])
        return "unknown" if told is UNKNOWN else _said(told)

    return PLACEHOLDER.sub(value, text)
