"""NCCL's variables: what NCCL makes of a value, and what it drops without a word. Pure; runs on the controller.

NCCL never refuses a name that it does not know, reads ``abc`` as 0 and ``16M`` as 16, and tells of none of it unless it
is asked to (``nccl_log.py``). What it takes is data, ``knowledge/nccl/``; how it reads that is in ``nccl_values.py``.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
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
from .problems import did_you_mean

Knowledge = Mapping[str, Any]
"""``variables.yml`` and ``names.yml`` of ``knowledge/nccl/`` in one mapping."""

SYSTEM_CONF = "/etc/nccl.conf"


class Setting(NamedTuple):
    """A variable with the place that it was written at."""

    name: str
    value: str
    where: str
    key: str

    def found(self, rule: str, text: str, severity: str = "", do: str = "") -> Found:
        """A finding at this place."""
        return Found(rule, self.where, self.key, text, severity, do)


def checks(knowledge: Knowledge) -> Check:
    """The check of a case's variables against what is known of NCCL."""
    return functools.partial(check, knowledge=knowledge)


def check(case: Case, knowledge: Knowledge) -> Iterator[Found]:
    """All that is wrong or doubtful about NCCL's variables of a release, those of the host's files among them."""
    own = [Setting(name, value, *case.place_of_variable(name)) for name, value in case.env.items()]
    from_files = _from_files(case)
    plugin = any(case.env.get(name) for name in knowledge["plugins"])
    for setting in [*own, *from_files]:
        yield from _name(setting, case.nccl_version, knowledge, plugin)
        yield from _value(setting, case.nccl_version, knowledge)
    # As NCCL itself does: what is in the environment stays, then the first file that says something wins.
    effective = {setting.name: setting for setting in reversed([*own, *from_files])}
    values = {name: setting.value for name, setting in effective.items()}
    for find in (_bounds, _transports, _algorithms, _engine, _debug, _interfaces, _gloo, _files):
        yield from find(case, effective, values, knowledge)
    yield from _conf_files(case)


# Names


def _name(setting: Setting, version: str, knowledge: Knowledge, plugin: bool) -> Iterator[Found]:
    name, known = setting.name, knowledge["names"]
    if name in known:
        yield from _age(setting, version, knowledge)
    elif name in knowledge["torch_names"]:
        yield setting.found("nccl-deprecated", f"is PyTorch's, and now called {knowledge['torch_names'][name]}")
    elif name.startswith("NCCL_"):
        if name.startswith(tuple(knowledge["plugin_prefixes"])):
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
            yield setting.found("nccl-unknown", f"is no variable of NCCL's{did_you_mean(name, known)}")
    elif meant := misspelt(name, known):
        yield setting.found("nccl-misspelt", f'NCCL does not read "{name}" (did you mean "{meant}"?)')


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
        yield setting.found(
            "nccl-deprecated", f"is deprecated since NCCL {deprecated['since']}; use {deprecated['use']}"
        )


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
    if text.lstrip("+-").isdigit() and int(text) != number:
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
    severity = "warning" if not entry.get("severity") else entry["severity"]
    text = (
        f"{number}{' ' + unit if unit else ''} {wanted}{of_version}: {entry.get('outside', 'NCCL does not check it')}"
    )
    yield setting.found("nccl-range", text, severity)


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
    if isinstance(found, str):
        consequence = "NCCL ignores it" if before(version, "2.24") else "the initialisation of NCCL fails"
        yield setting.found("nccl-value", f"{found}: {consequence}")


def _path(setting: Setting, entry: Mapping[str, Any], version: str) -> Iterator[Found]:
    del entry, version
    if not setting.value.startswith("/"):
        yield setting.found(
            "nccl-value", f'"{setting.value}" is no absolute path; NCCL expands neither ~ nor variables'
        )


# Variables that belong together

Effective = Mapping[str, Setting]
Values = Mapping[str, str]


def _bounds(case: Case, effective: Effective, values: Values, knowledge: Knowledge) -> Iterator[Found]:
    del case
    for bound in knowledge["bounds"]:
        least = [(number, name) for name in bound["least"] if (number := _whole(values.get(name))) is not None]
        most = [(number, name) for name in bound["most"] if (number := _whole(values.get(name))) is not None]
        if least and most and max(least)[0] > min(most)[0]:
            (low, lower), (high, upper) = max(least), min(most)
            yield effective[lower].found("nccl-min-over-max", f"{low} is more than {upper}, which is {high}")


def _whole(text: str | None) -> int | None:
    read = as_number(text) if text else None
    return read[0] if read and read[1] else None


def _is_on(text: str | None) -> bool:
    """Whether a variable says 1, as NCCL reads it."""
    read = as_number(text) if text else None
    return read is not None and read[0] == 1


def _transports(case: Case, effective: Effective, values: Values, knowledge: Knowledge) -> Iterator[Found]:
    del knowledge
    level = values.get("NCCL_P2P_LEVEL")
    p2p_off, shm_off = _is_on(values.get("NCCL_P2P_DISABLE")), _is_on(values.get("NCCL_SHM_DISABLE"))
    if p2p_off and level not in (None, "LOC", "0"):
        yield effective["NCCL_P2P_LEVEL"].found(
            "nccl-contradiction", f'"{level}" has no effect: NCCL_P2P_DISABLE=1 switches P2P off altogether'
        )
    if not (shm_off and (p2p_off or level in ("LOC", "0"))):
        return
    interfaces = _part(case, "network").get("interfaces")
    no_net = interfaces is not None and not _usable(interfaces)
    if _is_on(values.get("NCCL_NET_DISABLE_INTRA")) or no_net:
        way = "no network interface is up" if no_net else "NCCL_NET_DISABLE_INTRA forbids the network"
        text = f"no way is left between the GPUs of a host: P2P and shared memory are off, and {way}"
        yield effective["NCCL_SHM_DISABLE"].found("nccl-no-transport", text)
    else:
        text = "P2P and shared memory are both off: the GPUs of a host talk to each other over its network"
        yield effective["NCCL_SHM_DISABLE"].found("nccl-no-transport", text, "warning")


def _algorithms(case: Case, effective: Effective, values: Values, knowledge: Knowledge) -> Iterator[Found]:
    """Functions that tensor parallelism needs and for which no algorithm is left, as far as that is known."""
    known, told = knowledge["algorithms"], [name for name in ("NCCL_ALGO", "NCCL_PROTO") if values.get(name)]
    alone = ranks.expected(case.flags, ENGINES[case.engine]) == 1
    if not told or alone or before(case.nccl_version, known["no_fallback"]):
        return
    choices = {}
    for name in ("NCCL_ALGO", "NCCL_PROTO"):
        entry = _entry(name, knowledge)
        found = allowed(values.get(name, ""), entry["values"], entry["functions"])
        if isinstance(found, str):
            return  # said already
        choices[name] = found
    of_host, setting = _missing(case, values, knowledge), effective[told[0]]
    for function in known["needed"]:
        asked, protocols = choices["NCCL_ALGO"][function], choices["NCCL_PROTO"][function]
        lacks = {
            **dict.fromkeys(asked - set(known["of"][function]), f"{function} has no such algorithm"),
            **of_host,
            **({} if "Simple" in protocols else dict.fromkeys(known["only_simple"], "it needs the protocol Simple")),
        }
        if asked - set(lacks) and protocols:
            continue
        why = (
            "; ".join(f"{name}: {lacks[name]}" for name in sorted(asked & set(lacks)))
            if protocols
            else "no protocol is left"
        )
        # Engines have kernels of their own for some sizes of the other functions.
        severity = "error" if function == "AllReduce" else "warning"
        yield setting.found(
            "nccl-no-algorithm", f"no algorithm is left for {function} ({why or 'none is named'})", severity
        )


def _missing(case: Case, values: Values, knowledge: Knowledge) -> dict[str, str]:
    """Algorithms that this host surely lacks, each with the reason."""
    known = knowledge["algorithms"]
    found: dict[str, str] = {}
    if _nodes(case) == 1:
        found |= dict.fromkeys(known["several_hosts"], "it is for several hosts")
    if not _is_on(values.get("NCCL_COLLNET_ENABLE")):
        found |= dict.fromkeys(known["collnet"], "NCCL_COLLNET_ENABLE is not 1")
    if _has_no_nvlink(case):
        found |= dict.fromkeys(known["nvswitch"], "it needs NVSwitch, and these GPUs have no NVLink")
    nvls = values.get("NCCL_NVLS_ENABLE") or _defaults(case, knowledge).get("NCCL_NVLS_ENABLE")
    if _whole(nvls) == 0:
        whose = (
            "NCCL_NVLS_ENABLE is 0" if values.get("NCCL_NVLS_ENABLE") else f"{case.engine} sets NCCL_NVLS_ENABLE to 0"
        )
        found |= {name: whose for name in ("NVLS", "NVLSTree") if name not in found}
    return found


def _has_no_nvlink(case: Case) -> bool:
    """Whether the topology shows no NVLink between GPUs; where nobody looked, the family of the GPU tells."""
    rows = _part(case, "gpus").get("topology") or ()
    words = {word for row in rows for word in row}
    if words:
        return not any(re.fullmatch(r"NV\d+", word) for word in words)
    return case.family == "sm120"


def _defaults(case: Case, knowledge: Knowledge) -> dict[str, str]:
    return {rule["name"]: rule["default"] for rule in _engine_rules(case, knowledge) if "default" in rule}


def _engine_rules(case: Case, knowledge: Knowledge) -> Iterator[Mapping[str, Any]]:
    def is_set(flags: Sequence[str]) -> bool:
        return any(case.flags.get(flag, False) is not False for flag in flags)

    version = case.engine_version
    for rule in knowledge["engines"]:
        if (
            rule["engine"] != case.engine
            or ("when" in rule and not is_set(rule["when"]))
            or is_set(rule.get("unless", ()))
        ):
            continue
        if not (before(version, rule.get("since", "0")) or ("upto" in rule and before(rule["upto"], version))):
            yield rule


def _engine(case: Case, effective: Effective, values: Values, knowledge: Knowledge) -> Iterator[Found]:
    for rule in _engine_rules(case, knowledge):
        setting = effective.get(rule["name"])
        if setting is None:
            continue
        who = f"{case.engine} {case.engine_version}"
        if "sets" in rule and values[setting.name] != rule["sets"]:
            flags = [flag for flag in rule.get("when", ()) if flag in case.flags]
            why = f" because of --{flags[0]}" if flags else ""
            text = f"{values[setting.name]} never arrives: {who} sets it to {rule['sets']} itself{why}"
            yield setting.found("nccl-engine-sets", text)
        elif rule.get("removes"):
            yield setting.found("nccl-engine-sets", f"{who} removes it from its environment")


def _debug(case: Case, effective: Effective, values: Values, knowledge: Knowledge) -> Iterator[Found]:
    del case, knowledge
    text, level = values.get("NCCL_DEBUG_SUBSYS", ""), values.get("NCCL_DEBUG", "").upper()
    if not text:
        return
    setting, words = effective["NCCL_DEBUG_SUBSYS"], {word.strip() for word in text.lstrip("^").upper().split(",")}
    if level not in ("INFO", "TRACE"):
        yield setting.found("nccl-debug", "has no effect without NCCL_DEBUG=INFO", "note")
        return
    inverted = text.startswith("^")

    def shows(word: str) -> bool:
        return ("ALL" in words or word in words) is not inverted

    if not shows("ENV"):
        text = "leaves ENV out: the log will not show which settings NCCL took"
        yield setting.found("nccl-debug", text, do="Add ENV to the list.")
    if loud := [word for word in ("TUNING", "COLL", "CALL") if shows(word)]:
        text = f"holds {', '.join(loud)}: NCCL writes a line for each collective, thousands a second in decoding"
        yield setting.found("nccl-debug", text, do="Leave it out of what serves; take it for one measurement only.")


# Network


def _interfaces(case: Case, effective: Effective, values: Values, knowledge: Knowledge) -> Iterator[Found]:
    del knowledge
    network = _part(case, "network")
    text, interfaces = values.get("NCCL_SOCKET_IFNAME", ""), network.get("interfaces")
    if len(text) > 1 and interfaces is not None:  # NCCL ignores a single character
        usable = _usable(interfaces)
        if not selection(text).chosen(usable):
            has = f"those that are up: {', '.join(usable) or 'none'}"
            yield effective["NCCL_SOCKET_IFNAME"].found(
                "nccl-interface", f'"{text}" chooses no interface of the host; {has}'
            )
    text, hcas = values.get("NCCL_IB_HCA", ""), network.get("hcas")
    if text and hcas is not None and not selection(text).chosen(hcas):
        has = f"it has {', '.join(hcas)}" if hcas else "it has none"
        told = f'"{text}" chooses no InfiniBand or RoCE device of the host; {has}, and NCCL falls back to sockets'
        yield effective["NCCL_IB_HCA"].found("nccl-hca", told)


def _usable(interfaces: Mapping[str, Any]) -> list[str]:
    return sorted(name for name, seen in interfaces.items() if seen.get("up") and seen.get("addresses"))


def _gloo(case: Case, effective: Effective, values: Values, knowledge: Knowledge) -> Iterator[Found]:
    """Gloo's variable has another syntax: names of interfaces, and nothing else (ProcessGroupGloo of PyTorch)."""
    del knowledge
    network = _part(case, "network")
    text, interfaces = values.get("GLOO_SOCKET_IFNAME", ""), network.get("interfaces")
    names = [name for name in text.split(",") if name] if len(text) > 1 else []
    good = bool(names)
    for name in names:
        setting = effective["GLOO_SOCKET_IFNAME"]
        if re.match(r"[\^=]", name):
            good = False
            yield setting.found(
                "nccl-gloo-interface", f'"{text}" is in NCCL\'s syntax: Gloo looks for an interface of that very name'
            )
            break
        if interfaces is not None and not interfaces.get(name, {}).get("addresses"):
            good = False
            has = ", ".join(_usable(interfaces)) or "none"
            lacks = "has no address" if name in interfaces else "is no interface of the host"
            yield setting.found("nccl-gloo-interface", f'"{name}" {lacks}; with an address: {has}')
    if good and len(names) > 1:
        yield effective["GLOO_SOCKET_IFNAME"].found(
            "nccl-gloo-interface",
            f'"{text}" names {len(names)} interfaces: all hosts need as many, in this order',
            "warning",
        )
    # Without a name Gloo takes the address of the host's own name. Alone on a host that is well, whatever it is.
    together = _nodes(case) > 1 or "NCCL_SOCKET_IFNAME" in values or "GLOO_SOCKET_IFNAME" in values
    addresses = network.get("hostname_addresses")
    if together and not good and addresses and all(_is_loopback(address) for address in addresses):
        name, listed = network.get("hostname", ""), ", ".join(addresses)
        text = f"the host's own name, {name}, resolves to {listed}, which no other host can reach"
        yield Found("nccl-hostname-loopback", f"host {case.host}", "", text)


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


# Files


def _read_files(case: Case) -> dict[str, str]:
    """The files that NCCL reads for this release, in their order: its own or the one at home, then the system's."""
    seen = _part(case, "nccl").get("conf_files")
    files = {path: text for path, text in seen.items() if isinstance(text, str)} if isinstance(seen, Mapping) else {}
    own = "" if before(case.nccl_version, "2.23") else case.env.get("NCCL_CONF_FILE", "")
    first = [own] if own else [path for path in files if path.endswith("/.nccl.conf")]
    return {path: files[path] for path in [*first, SYSTEM_CONF] if path in files}


def _from_files(case: Case) -> list[Setting]:
    return [
        Setting(name, value, f"host {case.host}", f"{path}: {name}")
        for path, text in _read_files(case).items()
        for name, value in conf_settings(text).items()
    ]


def _conf_files(case: Case) -> Iterator[Found]:
    """Settings that reach NCCL beside the release, and those that the release keeps out."""
    env = dict(case.env)
    for path, text in _read_files(case).items():
        if path == case.env.get("NCCL_CONF_FILE"):
            continue  # the release names it
        said = conf_settings(text)
        if added := {name: value for name, value in said.items() if name not in env}:
            listed = ", ".join(f"{name}={value}" for name, value in added.items())
            yield Found("nccl-conf-file", f"host {case.host}", path, f"adds {listed} to what the release says")
        if lost := {name: value for name, value in said.items() if env.get(name, value) != value}:
            listed = ", ".join(f"{name}={value} loses to {env[name]}" for name, value in lost.items())
            yield Found("nccl-conf-file", f"host {case.host}", path, listed, "note")
        env = {**said, **env}


def _files(case: Case, effective: Effective, values: Values, knowledge: Knowledge) -> Iterator[Found]:
    """Files that a variable names and that are not there, where the facts tell."""
    seen = _part(case, "nccl")
    there = {path: text is not None for path, text in (seen.get("conf_files") or {}).items()}
    there |= {path: bool(readable) for path, readable in (seen.get("files") or {}).items()}
    for entry in knowledge["variables"]:
        path = values.get(entry["name"], "") if entry["kind"] == "file" else ""
        known = path in there or (entry["name"] == "NCCL_CONF_FILE" and "conf_files" in seen)
        if path.startswith("/") and known and not there.get(path):
            text = f"{path} is not there, or the service's user cannot read it: {entry['missing']}"
            yield effective[entry["name"]].found("nccl-file-missing", text, entry.get("severity", ""))


def _part(case: Case, name: str) -> Mapping[str, Any]:
    """A part of the facts; empty where it could not be read."""
    found = case.facts.get(name)
    return found if isinstance(found, Mapping) and "error" not in found else {}
