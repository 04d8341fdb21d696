"""NCCL's variables: what NCCL makes of a value, and what it drops without a word. Pure; runs on the controller.

NCCL never refuses a name that it does not know, reads ``abc`` as 0 and ``16M`` as 16, and tells of none of it unless it
is asked to (``nccl_log.py``). What it takes is data, ``knowledge/nccl/``; how it reads that is in ``nccl_values.py``.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import ranks
from .engines import ENGINES
from .findings import Case, Check, Found
from .nccl_values import (
    OLD_LEVELS,
    allowed,
    as_number,
    before,
    conf_settings,
    misspelt,
    selection,
)
from .problems import closest, did_you_mean

Knowledge = Mapping[str, Any]
"""``variables.yml`` and ``names.yml`` of ``knowledge/nccl/`` in one mapping."""

SYSTEM_CONF = "/etc/nccl.conf"

CLOSE = 0.8
"""How alike (difflib's ratio) an unknown name has to be to a known one: two edits in ten letters."""


class Setting(NamedTuple):
    """A variable with the place that it was written at."""

    name: str
    value: str
    where: str
    key: str

    def found(self, rule: str, text: str, severity: str = "", do: str = "") -> Found:
        """A finding at this place."""
        return Found(rule, self.where, self.key, text, severity, do)


@dataclass(frozen=True)
class View:
    """A case with what is known of NCCL, its version (empty: unknown), and the settings as NCCL finds them."""

    case: Case
    version: str
    knowledge: Knowledge
    settings: Mapping[str, Setting]

    def value(self, name: str) -> str:
        """The text of a variable; empty where it is not set."""
        return self.settings[name].value if name in self.settings else ""

    def number(self, name: str) -> int | None:
        """The number of a variable, None where it is none."""
        return _whole(self.value(name))

    def is_on(self, name: str) -> bool:
        """Whether a variable says 1, as NCCL reads it."""
        read = as_number(self.value(name))
        return read is not None and read[0] == 1

    def part(self, name: str) -> Mapping[str, Any]:
        """A part of the facts; empty where it could not be read."""
        return _part(self.case, name)

    def found(self, name: str, rule: str, text: str, severity: str = "", do: str = "") -> Found:
        """A finding about a variable that is set."""
        return self.settings[name].found(rule, text, severity, do)


def checks(knowledge: Knowledge) -> Check:
    """The check of a case's variables against what is known of NCCL."""
    return functools.partial(check, knowledge=knowledge)


def check(case: Case, knowledge: Knowledge) -> Iterator[Found]:
    """All that is wrong or doubtful about NCCL's variables of a release, those of the host's files among them."""
    own = [Setting(name, value, *case.place_of_variable(name)) for name, value in case.env.items()]
    # The engine may be told to load another NCCL than that of its lock: which one, nobody knows.
    version = "" if any(case.env.get(name) for name in knowledge["library_paths"]) else case.nccl_version
    files = _read_files(case, version)
    from_files = _from_files(case, files)
    plugin = any(case.env.get(name) for name in knowledge["plugins"])
    for setting in [*own, *from_files]:
        yield from _name(setting, version, knowledge, plugin)
        yield from _value(setting, version, knowledge)
    # As NCCL itself does: what is in the environment stays, then the first file that says something wins.
    seen = View(case, version, knowledge, {setting.name: setting for setting in reversed([*own, *from_files])})
    for find in (_bounds, _transports, _algorithms, _engine, _debug, _interfaces, _gloo, _files):
        yield from find(seen)
    yield from _conf_files(case, files)


# Names


def _name(setting: Setting, version: str, knowledge: Knowledge, plugin: bool) -> Iterator[Found]:
    name, known = setting.name, knowledge["names"]
    if name in known:
        yield from _age(setting, version, knowledge)
    elif name in knowledge["torch_names"]:
        yield setting.found("nccl-deprecated", f"is PyTorch's, and now called {knowledge['torch_names'][name]}")
    elif name.startswith("NCCL_"):
        if name in knowledge["of_others"] or name.startswith(tuple(knowledge["plugin_prefixes"])):
            return
        if name.strip() != name:
            yield setting.found("nccl-unknown", f'is called "{name}": NCCL trims no blanks, and never reads it')
            return
        newest = str(knowledge["newest"])
        if plugin:
            yield setting.found("nccl-unknown", "is no variable of NCCL's; its plugin may know it", "warning")
        elif before(newest, version):
            yield setting.found("nccl-unknown", f"is no variable of NCCL's up to {newest}", "warning")
        else:
            yield setting.found("nccl-unknown", f"is no variable of NCCL's{_meant(name, known)}")
    elif meant := misspelt(name, known):
        yield setting.found("nccl-misspelt", f'NCCL does not read "{name}" (did you mean "{meant}"?)')


def _meant(name: str, known: Iterable[str]) -> str:
    meant = closest(name, known, CLOSE)
    return f' (did you mean "{meant}"?)' if meant else ""


def _age(setting: Setting, version: str, knowledge: Knowledge) -> Iterator[Found]:
    name = setting.name
    since, until = (knowledge["names"][name].get(key, "") for key in ("since", "until"))
    use = knowledge["replaced"].get(name)
    instead = f"; {use} took its place" if use else ""
    if since and before(version, since):
        yield setting.found("nccl-too-new", f"is read by NCCL {since} and newer, and the engine has {version}")
    if until and not before(version, until):
        has = f", and the engine has {version}" if version else ""
        yield setting.found("nccl-removed", f"is not read by NCCL {until} and newer{has}{instead}")
        return
    deprecated = _entry(name, knowledge).get("deprecated")
    if deprecated and not before(version, deprecated["since"]):
        instead = f"; use {deprecated['use']}" if "use" in deprecated else ""
        yield setting.found("nccl-deprecated", f"is deprecated since NCCL {deprecated['since']}{instead}")


def _entry(name: str, knowledge: Knowledge) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((entry for entry in knowledge["variables"] if entry["name"] == name), {})
    return found


# Values


def _value(setting: Setting, version: str, knowledge: Knowledge) -> Iterator[Found]:
    entry = _entry(setting.name, knowledge)
    if not entry:
        return
    kind = entry["kind"]
    if not setting.value and kind != "level":
        yield setting.found("nccl-empty", "is empty, which is as if it were not set")
        return
    judges = {"integer": _integer, "level": _level, "words": _words, "functions": _functions, "file": _path}
    if kind in judges:
        yield from judges[kind](setting, entry, version)


def _integer(setting: Setting, entry: Mapping[str, Any], version: str) -> Iterator[Found]:
    text = setting.value
    read = as_number(text)
    if read is None:
        yield setting.found("nccl-value", f'"{text}" is too large a number: NCCL takes its default')
        return
    number, whole = read
    if not whole:
        yield setting.found("nccl-value", f'"{text}" is no whole number: NCCL makes {number} of it without a word')
        return
    digits = text.strip().lstrip("+-")
    if digits.isdigit() and (digits.lstrip("0") or "0") != str(abs(number)):
        yield setting.found("nccl-value", f'"{text}" begins with 0 and counts as octal: NCCL makes {number} of it')
        return
    older = entry.get("range_before")
    span = older["range"] if older and before(version, older["before"]) else entry.get("range")
    least, most = span or (None, None)
    values, multiple, unit = entry.get("values"), entry.get("multiple", 1), entry.get("unit", "")
    if values and number not in values:
        wanted = f"is none of {', '.join(map(str, values))}"
    elif (least is not None and number < least) or (most is not None and number > most):
        wanted = f"is not in {least} to {most}" if most is not None else f"is below {least}"
    elif number % multiple:
        wanted = f"is no multiple of {multiple}"
    else:
        return
    of_version = f" of NCCL {version}" if older and before(version, older["before"]) else ""
    what = f"{number} {unit}".strip()
    text = f"{what} {wanted}{of_version}: {entry.get('outside', 'NCCL does not check it')}"
    yield setting.found("nccl-range", text, entry.get("severity", ""))


def _level(setting: Setting, entry: Mapping[str, Any], version: str) -> Iterator[Found]:
    text = setting.value
    known = _of_version(entry, version)
    if text in known:
        return
    if text[:1].isascii() and text[:1].isdigit():
        read = as_number(text)
        number = len(OLD_LEVELS) - 1 if read is None else min(read[0], len(OLD_LEVELS) - 1)
        yield setting.found("nccl-level-number", f'"{text}" is of the old numbering: it counts as {OLD_LEVELS[number]}')
        return
    said = f'"{text}"' if text else "an empty text"
    meant = f' (did you mean "{text.upper()}"?)' if text.upper() in known else did_you_mean(text, known)
    yield setting.found("nccl-value", f"{said} is no level, and NCCL ignores it without a word{meant}")


def _of_version(entry: Mapping[str, Any], version: str) -> list[str]:
    since = entry.get("value_since", {})
    return [value for value in entry["values"] if not (value in since and before(version, since[value]))]


def _words(setting: Setting, entry: Mapping[str, Any], version: str) -> Iterator[Found]:
    known = _of_version(entry, version)
    if "numbers" in entry and as_number(setting.value) in [(number, True) for number in entry["numbers"]]:
        return
    text = setting.value.removeprefix(entry["inverted"]) if "inverted" in entry else setting.value
    separator = entry.get("separator")
    words = [word for word in text.split(separator) if word] if separator else [text]
    if "trims_since" in entry and not before(version, entry["trims_since"]):
        words = [word.strip() for word in words]
    exact = entry.get("case") == "exact"
    strange = [word for word in words if (word if exact else word.upper()) not in known]
    if strange or not words:
        said = f'"{(strange or [setting.value])[0]}"'
        outside = entry.get("outside", "NCCL ignores it")
        meant = did_you_mean(strange[0].upper() if strange else "", known)
        yield setting.found(
            "nccl-value", f"{said} is none of {', '.join(known)}{meant}: {outside}", entry.get("severity", "")
        )


def _functions(setting: Setting, entry: Mapping[str, Any], version: str) -> Iterator[Found]:
    found = allowed(setting.value, _of_version(entry, version), entry["functions"])
    since = entry["functions_since"]
    if re.search("[:;]", setting.value) and before(version, since):
        yield setting.found("nccl-value", f"a list for each function is for NCCL {since} and newer: it is ignored")
    elif isinstance(found, str):
        consequence = "NCCL ignores it" if before(version, "2.24") else "the initialisation of NCCL fails"
        yield setting.found("nccl-value", f"{found}: {consequence}")


def _path(setting: Setting, entry: Mapping[str, Any], version: str) -> Iterator[Found]:
    del entry, version
    if not setting.value.startswith("/"):
        yield setting.found(
            "nccl-value", f'"{setting.value}" is no absolute path; NCCL expands neither ~ nor variables'
        )


# Variables that belong together


def _bounds(seen: View) -> Iterator[Found]:
    for bound in seen.knowledge["bounds"]:
        least, most = (
            [(number, name) for name in bound[end] if (number := seen.number(name)) is not None]
            for end in ("least", "most")
        )
        if least and most and max(least)[0] > min(most)[0]:
            (low, lower), (high, upper) = max(least), min(most)
            yield seen.found(lower, "nccl-min-over-max", f"{low} is more than {upper}, which is {high}")


def _transports(seen: View) -> Iterator[Found]:
    level, p2p_off, shm_off = (
        seen.value("NCCL_P2P_LEVEL"),
        seen.is_on("NCCL_P2P_DISABLE"),
        seen.is_on("NCCL_SHM_DISABLE"),
    )
    if p2p_off and level not in ("", "LOC", "0"):
        text = f'"{level}" has no effect: NCCL_P2P_DISABLE=1 switches P2P off altogether'
        yield seen.found("NCCL_P2P_LEVEL", "nccl-contradiction", text)
    if not (shm_off and (p2p_off or level in ("LOC", "0"))):
        return
    interfaces = seen.part("network").get("interfaces")
    no_net = interfaces is not None and not _usable(interfaces)
    if seen.is_on("NCCL_NET_DISABLE_INTRA") or no_net:
        way = "no network interface is up" if no_net else "NCCL_NET_DISABLE_INTRA forbids the network"
        text = f"no way is left between the GPUs of a host: P2P and shared memory are off, and {way}"
        yield seen.found("NCCL_SHM_DISABLE", "nccl-no-transport", text)
    else:
        text = "P2P and shared memory are both off: the GPUs of a host talk to each other over its network"
        yield seen.found("NCCL_SHM_DISABLE", "nccl-no-transport", text, "warning")


def _algorithms(seen: View) -> Iterator[Found]:
    """Functions that tensor parallelism needs and for which no algorithm is left, as far as that is known."""
    known, case = seen.knowledge["algorithms"], seen.case
    told = [name for name in ("NCCL_ALGO", "NCCL_PROTO") if seen.value(name)]
    alone = ranks.expected(case.flags, ENGINES[case.engine]) == 1
    if not told or alone or before(seen.version, known["no_fallback"]):
        return
    algorithms, protocols = (_choices(seen, name) for name in ("NCCL_ALGO", "NCCL_PROTO"))
    if algorithms is None or protocols is None:
        return  # the value itself is wrong, which is said already
    of_host = _missing(seen)
    for function in known["needed"]:
        asked, simple = algorithms[function], "Simple" in protocols[function]
        lacks = {
            **dict.fromkeys(asked - set(known["of"][function]), f"{function} has no such algorithm"),
            **of_host,
            **({} if simple else dict.fromkeys(known["only_simple"], "it needs the protocol Simple")),
        }
        if asked - set(lacks) and protocols[function]:
            continue
        reasons = [f"{name}: {lacks[name]}" for name in sorted(asked & set(lacks))] if protocols[function] else []
        why = "; ".join(reasons) or f"{told[0]} leaves none"
        # Engines have kernels of their own for some sizes of the other functions.
        severity = "error" if function == "AllReduce" else "warning"
        yield seen.found(told[0], "nccl-no-algorithm", f"no algorithm is left for {function} ({why})", severity)


def _choices(seen: View, name: str) -> Mapping[str, set[str]] | None:
    entry = _entry(name, seen.knowledge)
    found = allowed(seen.value(name), entry["values"], entry["functions"])
    return None if isinstance(found, str) else found


def _missing(seen: View) -> dict[str, str]:
    """Algorithms that this host surely lacks, each with the reason."""
    known, name = seen.knowledge["algorithms"], "NCCL_NVLS_ENABLE"
    found: dict[str, str] = {}
    if seen.number(name) == 0:
        found |= dict.fromkeys(known["nvls"], f"{name} is 0")
    elif not seen.value(name) and engine_env(seen.case, seen.knowledge).get(name) == "0":
        found |= dict.fromkeys(known["nvls"], f"{seen.case.engine} sets {name} to 0")
    if not seen.is_on("NCCL_COLLNET_ENABLE"):
        found |= dict.fromkeys(known["collnet"], "NCCL_COLLNET_ENABLE is not 1")
    if _nodes(seen.case) == 1:
        found |= dict.fromkeys(known["several_hosts"], "it is for several hosts")
    if _has_no_nvlink(seen):
        found |= dict.fromkeys(known["nvswitch"], "it needs NVSwitch, and these GPUs have no NVLink")
    return found


def _has_no_nvlink(seen: View) -> bool:
    """Whether the topology shows no NVLink between GPUs; where nobody looked, the family of the GPU tells."""
    words = {word for row in seen.part("gpus").get("topology") or () for word in row}
    if words:
        return not any(re.fullmatch(r"NV\d+", word) for word in words)
    return seen.case.family == "sm120"


# Engines


def engine_env(case: Case, knowledge: Knowledge) -> dict[str, str]:
    """The variables that the engine sets itself: some where the release does not, some whatever it says."""
    rules = list(_engine_rules(case, knowledge))
    defaults = {rule["name"]: rule["default"] for rule in rules if "default" in rule and rule["name"] not in case.env}
    return {**defaults, **{rule["name"]: rule["sets"] for rule in rules if "sets" in rule}}


def _engine_rules(case: Case, knowledge: Knowledge) -> Iterator[Mapping[str, Any]]:
    """What the engine of this version, with these flags, does to variables."""
    version = case.engine_version

    def is_set(flags: Sequence[str]) -> bool:
        return any(case.flags.get(flag, False) is not False for flag in flags)

    for rule in knowledge["engines"]:
        is_older, is_newer = before(version, rule.get("since", "0")), "upto" in rule and before(rule["upto"], version)
        applies = "when" not in rule or is_set(rule["when"])
        if rule["engine"] == case.engine and applies and not (is_older or is_newer or is_set(rule.get("unless", ()))):
            yield rule


def _engine(seen: View) -> Iterator[Found]:
    who = f"{seen.case.engine} {seen.case.engine_version}"
    for rule in _engine_rules(seen.case, seen.knowledge):
        name = rule["name"]
        value = seen.value(name)
        if "sets" in rule and value not in ("", rule["sets"]):
            flags = [flag for flag in rule.get("when", ()) if flag in seen.case.flags]
            why = f" because of --{flags[0]}" if flags else ""
            text = f"{value} never arrives: {who} sets it to {rule['sets']} itself{why}"
            yield seen.found(name, "nccl-engine-sets", text)
        elif rule.get("removes") and value:
            yield seen.found(name, "nccl-engine-sets", f"{who} removes it from its environment")


def _debug(seen: View) -> Iterator[Found]:
    name = "NCCL_DEBUG_SUBSYS"
    listed = seen.value(name)
    words, inverted = {word.strip() for word in listed.lstrip("^").upper().split(",")}, listed.startswith("^")
    if not listed:
        return
    if seen.value("NCCL_DEBUG").upper() not in ("INFO", "TRACE"):
        yield seen.found(name, "nccl-debug", "has no effect without NCCL_DEBUG=INFO", "note")
        return

    def shows(word: str) -> bool:
        return ("ALL" in words or word in words) is not inverted

    if not shows("ENV"):
        text = "leaves ENV out: the log will not show which settings NCCL took"
        yield seen.found(name, "nccl-debug", text, do="Add ENV to the list.")
    if loud := [word for word in ("TUNING", "COLL", "CALL") if shows(word)]:
        text = f"holds {', '.join(loud)}: NCCL writes a line for each collective, thousands a second in decoding"
        yield seen.found(name, "nccl-debug", text, do="Leave it out of what serves; measure with it only.")


# The network of the host


def _interfaces(seen: View) -> Iterator[Found]:
    network = seen.part("network")
    name, interfaces = "NCCL_SOCKET_IFNAME", network.get("interfaces")
    text = seen.value(name)
    if len(text) > 1 and interfaces is not None:  # NCCL ignores a single character
        usable = _usable(interfaces)
        if not selection(text).chosen(usable):
            has = f"those that are up: {', '.join(usable) or 'none'}"
            yield seen.found(name, "nccl-interface", f'"{text}" chooses no interface of the host; {has}')
    name, hcas = "NCCL_IB_HCA", network.get("hcas")
    text = seen.value(name)
    without = seen.is_on("NCCL_IB_DISABLE") or seen.value("NCCL_NET").casefold() == "socket"
    if text and hcas is not None and not without and not selection(text).chosen(hcas):
        has = f"it has {', '.join(hcas)}" if hcas else "it has none"
        told = f'"{text}" chooses no InfiniBand or RoCE device of the host; {has}, and NCCL falls back to sockets'
        yield seen.found(name, "nccl-hca", told, "error" if _nodes(seen.case) > 1 else "warning")


def _usable(interfaces: Mapping[str, Any]) -> list[str]:
    return sorted(name for name, look in interfaces.items() if look.get("up") and look.get("addresses"))


def _gloo(seen: View) -> Iterator[Found]:
    """Gloo's variable has another syntax: names of interfaces, and nothing else (ProcessGroupGloo of PyTorch)."""
    network, variable = seen.part("network"), "GLOO_SOCKET_IFNAME"
    text, interfaces = seen.value(variable), network.get("interfaces")
    names = [name for name in text.split(",") if name]
    wrong, severity = "", ""
    if re.search(r"[\^=]", text):
        wrong = f'"{text}" is in NCCL\'s syntax: Gloo looks for an interface of that very name'
    elif interfaces is not None and (lost := [name for name in names if not interfaces.get(name, {}).get("addresses")]):
        lacks = "has no address" if lost[0] in interfaces else "is no interface of the host"
        wrong = f'"{lost[0]}" {lacks}; with an address: {", ".join(_usable(interfaces)) or "none"}'
    elif len(names) > 1:
        wrong, severity = f'"{text}" names {len(names)} interfaces: all hosts need as many, in this order', "warning"
    if wrong:
        yield seen.found(variable, "nccl-gloo-interface", wrong, severity)
    # Without a name Gloo takes the address of the host's own name. Alone on a host that is well, whatever it is.
    together = _nodes(seen.case) > 1 or bool(text or seen.value("NCCL_SOCKET_IFNAME"))
    is_named = bool(text) and (not wrong or bool(severity))
    addresses = network.get("hostname_addresses")
    if together and not is_named and addresses and all(_is_loopback(address) for address in addresses):
        own = f"the host's own name, {network.get('hostname', '')}, resolves to {', '.join(addresses)}"
        yield Found("nccl-hostname-loopback", f"host {seen.case.host}", "", f"{own}, which no other host can reach")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _nodes(case: Case) -> int:
    """How many hosts serve the model together, by the engine's flags."""
    names = ENGINES[case.engine].PARALLEL_FLAGS[3]
    found = (_whole(str(case.flags[name])) for name in names if name in case.flags)
    return next((number for number in found if number), 1)


# Files on the host


def _read_files(case: Case, version: str) -> dict[str, str]:
    """The files that NCCL reads for this release, in their order: its own or the one at home, then the system's."""
    told = _part(case, "nccl").get("conf_files") or {}
    files = {path: text for path, text in told.items() if isinstance(text, str)}
    own = "" if before(version, "2.23") else case.env.get("NCCL_CONF_FILE", "")
    first = [own] if own else [path for path in files if path.endswith("/.nccl.conf")]
    return {path: files[path] for path in [*first, SYSTEM_CONF] if path in files}


def _from_files(case: Case, files: Mapping[str, str]) -> list[Setting]:
    return [
        Setting(name, value, f"host {case.host}", f"{path}: {name}")
        for path, text in files.items()
        for name, value in conf_settings(text).items()
    ]


def _conf_files(case: Case, files: Mapping[str, str]) -> Iterator[Found]:
    """Settings that reach NCCL beside the release, and those that the release keeps out."""
    env = dict(case.env)
    for path, text in files.items():
        said = conf_settings(text)
        added = [f"{name}={value}" for name, value in said.items() if name not in env]
        lost = [f"{name}={value} loses to {env[name]}" for name, value in said.items() if env.get(name, value) != value]
        if added and path != env.get("NCCL_CONF_FILE"):  # which the release itself names
            told = f"adds {', '.join(added)} to what the release says"
            yield Found("nccl-conf-file", f"host {case.host}", path, told)
        if lost:
            yield Found("nccl-conf-file", f"host {case.host}", path, ", ".join(lost), "note")
        env = {**said, **env}


def _files(seen: View) -> Iterator[Found]:
    """Files that a variable names and that are not there, where the facts tell."""
    told = seen.part("nccl")
    there = {path: text is not None for path, text in (told.get("conf_files") or {}).items()}
    there |= {path: bool(readable) for path, readable in (told.get("files") or {}).items()}
    for entry in seen.knowledge["variables"]:
        path = seen.value(entry["name"]) if entry["kind"] == "file" else ""
        was_looked_for = path in there or (entry["name"] == "NCCL_CONF_FILE" and "conf_files" in told)
        if path.startswith("/") and was_looked_for and not there.get(path):
            text = f"{path} is not there, or the service's user cannot read it: {entry['missing']}"
            yield seen.found(entry["name"], "nccl-file-missing", text, entry.get("severity", ""))


def _part(case: Case, name: str) -> Mapping[str, Any]:
    found = case.facts.get(name)
    return found if isinstance(found, Mapping) and "error" not in found else {}


def _whole(text: str) -> int | None:
    read = as_number(text) if text else None
    return read[0] if read and read[1] else None
