#!/usr/bin/env python3
"""Write the references in docs/ anew: of profiles and variables from their schema, of causes and rules from their data.

usage: profile_reference.py [--check]     (with --check nothing is written, and a stale page is an error)
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

from ironserve import knowledge, model_config, rules, yaml_text  # noqa: E402  (needs the folder above)
from ironserve.causes import FACTS  # noqa: E402
from ironserve.flags import argv_of, words  # noqa: E402
from ironserve.problems import Problems  # noqa: E402
from ironserve.profiles import PART, PROFILE  # noqa: E402
from ironserve.schema import EXPECTED, Key  # noqa: E402
from ironserve.site import SENTINEL, VARIABLES  # noqa: E402

PAGES = ("docs/profiles.md", "docs/variables.md", "docs/causes.md", "docs/rules.md", "docs/nccl.md")
MARKED = re.compile(r"(<!-- generated: (\w+), by make docs -->\n).*?(<!-- end -->)", re.DOTALL)

SIZES = {"tensor_parallel": 8}
VALUES = {
    "the bare flag": "x: true",
    "no such flag, whoever says it": "x: false",
    "a number": "x: 0.85",
    "text": "x: triton",
    "a number below zero, or any text that begins with a dash": "x: -1",
    "a size of the host group": "x: ${tensor_parallel}",
    "several words (argparse's `nargs`)": "x: [32, 64, 128]",
    "JSON": "x: {method: mtp, num_speculative_tokens: 3}",
    "the same JSON in quotes": 'x: \'{"num_speculative_tokens": 3, "method": "mtp"}\'',
    "a size inside JSON, in quotes there; the number stays a number": 'x: {ranks: "${tensor_parallel}"}',
    "a JSON array: in quotes, since a YAML list is several words": "x: '[1, 2]'",
    "several words of JSON": 'x: [{"name": "a"}, {"name": "b"}]',
}


def rows(name: str, key: Key) -> Iterator[tuple[str, Key]]:
    """A key and all that it may hold, by path."""
    yield name, key
    inner = [(f"{name}.{child}", below) for child, below in key.keys.items()]
    if key.values:
        inner.append((f"{name}[]" if key.type == "list" else f"{name}.NAME", key.values))
    for path, below in inner:
        if below is PART:
            yield path, below
        else:
            yield from rows(path, below)


def holds(key: Key) -> str:
    """What a key may hold, in words."""
    if key is PART:
        return "any of: " + ", ".join(f"`{name}`" for name in key.keys)
    if key.choices:
        return " or ".join(f"`{choice}`" for choice in key.choices)
    bounds = [f"from {key.low:g}" if key.low is not None else "", f"to {key.high:g}" if key.high is not None else ""]
    path = " (an absolute path)" if key.absolute else ""
    return " ".join(filter(None, [EXPECTED[key.type].removeprefix("a ") + path, *bounds]))


def table(header: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """A table of Markdown."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in [list(header), ["---"] * len(header), *escaped])


def keys() -> str:
    """Every key of a profile."""
    lines = []
    for name, key in (row for top, inner in PROFILE.keys.items() for row in rows(top, inner)):
        default = f"`{key.default}`" if key.default is not None else "required" if key.required else ""
        lines.append((f"`{name}`", holds(key), default, "yes" if key.removable else "", key.about))
    return table(("key", "holds", "default", "null removes it", "what it is"), lines)


def values() -> str:
    """What each kind of value becomes, by the code that makes it so."""
    lines = []
    for about, text in VALUES.items():
        problems = Problems()
        value = yaml_text.read(text, "", problems)["x"]
        found = words(value, SIZES, "", problems.at("", text))
        if problems:
            raise ValueError(problems.report("an example is wrong"))
        argv = [] if found is None else argv_of("x", found)
        lines.append((about, f"`{text}`", f"`{shlex.join(argv)}`" if argv else "nothing"))
    return table(("value", "in the profile", "in the command, quoted as for a shell"), lines)


def variables() -> str:
    """Every site variable."""
    shipped = yaml.safe_load((ROOT / "group_vars" / "all" / "main.yml").read_text(encoding="utf-8"))
    lines = []
    for name, key in (row for top, inner in VARIABLES.items() if top != SENTINEL for row in rows(top, inner)):
        value = shipped.get(name)
        said = "" if isinstance(value, dict) or name not in shipped else f"`{value!r}`"
        lines.append((f"`{name}`", holds(key), said or ("required" if key.required else ""), key.about))
    return table(("variable", "holds", "shipped value", "what it is"), lines)


def causes() -> str:
    """Every known cause, file by file."""
    parts = []
    for file in sorted((ROOT / "knowledge" / "causes").glob("*.yml")):
        parts.append(f"## {file.stem}")
        parts += [cause_section(cause) for cause in yaml.safe_load(file.read_text(encoding="utf-8"))["causes"]]
    return "\n\n".join(parts) + "\n"


ENGINES = {"any": "either engine", "vllm": "vLLM", "sglang": "SGLang"}


def cause_section(cause: dict[str, Any]) -> str:
    """One known cause."""
    engine = ENGINES[cause["engine"]]
    versions = [f"{key} {cause[key]}" for key in ("since", "before") if key in cause]
    again = "starting again does not help" if cause["permanent"] else "starting again may help"
    lines = [f"- {' '.join([engine, *versions])}; {again}"]
    if cause.get("consequence"):
        lines.append("- told only where no other cause is found: it follows from one")
    for key, word in (("needs", "only where"), ("unless", "not where")):
        lines += [f"- {word} {said}" for said in conditions(cause.get(key, {}))]
    seen = [f"- seen as: ``{' '.join(example.split())}``" for example in cause["examples"] if cause["match"]]
    links = ", ".join(f"<{source}>" for source in cause["source"])
    return "\n".join([
        f"### `{cause['id']}`\n", f"{cause['cause']}\n", f"**What to do:** {cause['advice']}\n", *lines, *seen,
        f"- from: {links}",
    ])  # fmt: skip


def conditions(wanted: dict[str, Any]) -> Iterator[str]:
    """Conditions of a cause, in words."""
    for name, value in wanted.items():
        about = FACTS[name]
        if isinstance(value, bool):
            yield f"there {'are' if value else 'are no'} {about} (`{name}`)"
        elif isinstance(value, dict):
            yield from (f"{about} have `{key}` matching `{pattern}`" for key, pattern in value.items())
        else:
            yield f"{about} matches `{value}`"


def facts() -> str:
    """Every fact that a rule may ask for."""
    lines = [(f"`{name}`", one.about) for name, one in rules.FACTS.items()]
    lines += [(f"`{kind}.NAME`", about) for kind, (about, _) in rules.KINDS.items()]
    lines += [(f"`model.{name}`", about) for name, about in model_config.FACTS.items()]
    return table(("fact", "what it is"), lines)


def catalogue() -> str:
    """Every rule and check that may find something: a table, then each."""
    known = list(knowledge.catalogue(ROOT).values())
    lines = [(f"[`{one['id']}`](#{one['id']})", one["severity"], range_of(one)) for one in known]
    return "\n\n".join([table(("rule", "severity", "for"), lines).rstrip("\n"), *map(rule_section, known)]) + "\n"


def range_of(rule: dict[str, Any]) -> str:
    """Engine and versions that a rule is for."""
    if "engine" not in rule:
        return "every release"
    versions = rule.get("versions", "")
    return f"{ENGINES[rule['engine']]} {versions}".strip()


def rule_section(rule: dict[str, Any]) -> str:
    """One rule, or a check that is code."""
    whens = [f"{' or '.join(f'`{name}`' for name in names.split('|'))} is {rules.in_words(wanted)}"
             for names, wanted in rule.get("when", {}).items()]  # fmt: skip
    fixed = "" if rule.get("overrulable", True) else "; cannot be overruled"
    lines = [f"- {rule['severity']}, for {range_of(rule)}{fixed}"]
    lines += ["- when " + ", and ".join(whens)] if whens else []
    lines += ["- from: " + ", ".join(f"<{source}>" for source in rule["source"])] if rule.get("source") else []
    said = [f"### {rule['id']}\n", *([f"{rule['text']}.\n"] if "text" in rule else [])]
    return "\n".join([*said, f"**Why:** {rule['why']}\n", f"**What to do:** {rule['do']}\n", *lines])


def nccl() -> str:
    """What NCCL takes as values of its variables."""
    known = yaml.safe_load((ROOT / "knowledge" / "nccl" / "variables.yml").read_text(encoding="utf-8"))
    lines = [
        (f"`{entry['name']}`", taken(entry), entry.get("outside") or entry.get("missing", ""), f"`{entry['source']}`")
        for entry in sorted(known["variables"], key=lambda entry: entry["name"])
    ]
    return table(("variable", "takes", "anything else", "in NCCL"), lines)


def taken(entry: dict[str, Any]) -> str:
    """The values of one of NCCL's variables, in words."""
    kinds = {
        "file": "the absolute path of a file", "interfaces": "`[^][=]NAME,...`, prefixes unless `=`",
        "hcas": "`[^][=]NAME[:PORT],...`, prefixes unless `=`",
    }  # fmt: skip
    since = entry.get("value_since", {})
    words = [f"{value} (since {since[value]})" if value in since else str(value) for value in entry.get("values", ())]
    least, most = entry.get("range") or (None, None)
    older = entry.get("range_before")
    pieces = [
        kinds.get(entry["kind"], ""),
        ", ".join(words),
        f"several joined by `{entry['separator']}`" if "separator" in entry else "",
        "" if least is None else f"{least} to {most}" if most is not None else f"{least} or more",
        f"to {older['range'][1]} before {older['before']}" if older else "",
        f"multiples of {entry['multiple']}" if "multiple" in entry else "",
        entry.get("unit", ""),
        f"`{entry['inverted']}` in front: all but these" if "inverted" in entry else "",
        "per function: `AllReduce:...;Reduce:...`; `^` in front: all but these" if entry["kind"] == "functions" else "",
        f"deprecated since {entry['deprecated']['since']}" if "deprecated" in entry else "",
    ]
    return "; ".join(filter(None, pieces))


GENERATORS = {
    "keys": keys, "values": values, "variables": variables, "causes": causes, "facts": facts, "catalogue": catalogue,
    "nccl": nccl,
}  # fmt: skip


def page(text: str) -> str:
    """The page with its generated parts anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{GENERATORS[found[2]]()}\n{found[3]}", text)


def main() -> int:
    """Write or check the pages."""
    stale = []
    for name in PAGES:
        old = (ROOT / name).read_text(encoding="utf-8")
        if page(old) != old:
            stale.append(name)
            if "--check" not in sys.argv[1:]:
                (ROOT / name).write_text(page(old), encoding="utf-8")
    for name in stale:
        print(f"{name}: {'is stale: make docs' if '--check' in sys.argv[1:] else 'written'}")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
