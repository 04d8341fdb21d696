"""A tune: candidates tried one after the other on one host, in rounds, and the best of them. Pure; the state is JSON.

A candidate is a profile. In each round every candidate that is still in has a trial, one launch with its measurement;
the order turns round from round to round (A B C, then C B A), so that drift of the host favours none of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from . import compare
from .problems import Problems, unknown
from .profiles import FLAG, VARIABLE
from .schema import Key, check
from .slices import duration

State = dict[str, Any]
"""``id host service objective rounds budget_s load baseline before candidates[{name text}] rejected{name: why}
releases{name: id} trials[] open finished``; ``before`` is the folder of the release that was good when the tune began.
A trial: ``candidate release_id round verdict why began_s ended_s``, and ``evidence``, ``measurement`` if there are."""

MOST = 32
"""Candidates of a tune: with ten minutes for each launch and its measurement, a round of so many takes five hours."""

NAME_LENGTH = 60

ATTEMPTS = 3
"""How often a trial is begun that nobody saw to its end. What takes the controller down with it three times is out."""

NONE_MEASURED = "no candidate could be measured"

PICKED = "it was picked as the best of {} by these very runs, which tell its lead rather too high than too low"
"""Of several that are equally fast one is always the luckiest, and its interval is that of a single comparison."""

MATRIX = Key(
    "mapping",
    "a matrix",
    keys={
        "base": Key("str", "profile that each candidate extends", required=True),
        "flags": Key("mapping", "values of each flag", values=Key("list", "values to try", values=FLAG)),
        "env": Key("mapping", "values of each variable", values=Key("list", "values to try", values=VARIABLE)),
    },
)


# Candidates


def candidates(profiles: str, matrix: Any, known: Collection[str], problems: Problems) -> list[dict[str, str]]:
    """The candidates, each with its ``name`` and, where a matrix makes it, the ``text`` of its profile.

    Args:
        profiles: names, with commas between.
        matrix: ``base``, and values by ``flags`` and ``env``; every combination is a candidate.
        known: names of the profiles that there are.
        problems: receives everything that is wrong.
    """
    if bool(profiles) == bool(matrix):
        problems.add("-e", "profiles", "name profiles to try, or give a matrix (-e @matrix.yml): one of the two")
        return []
    return _of_matrix(matrix, known, problems) if matrix else _of_profiles(profiles, known, problems)


def _of_profiles(profiles: str, known: Collection[str], problems: Problems) -> list[dict[str, str]]:
    names = [name.strip() for name in profiles.split(",") if name.strip()]
    for name in dict.fromkeys(names):
        if name not in known:
            problems.add("-e", "profiles", unknown("profile", name, known))
        elif names.count(name) > 1:
            problems.add("-e", "profiles", f'"{name}" is named twice')
    _check_count(len(names), "-e", "profiles", "name fewer", problems)
    return [{"name": name, "text": ""} for name in names]


def _of_matrix(matrix: Any, known: Collection[str], problems: Problems) -> list[dict[str, str]]:
    before = len(problems.found)
    check(matrix, MATRIX, "-e", "matrix", problems)
    if len(problems.found) > before:
        return []
    base = matrix["base"]
    if base not in known:
        problems.add("-e", "matrix.base", unknown("profile", base, known))
    axes = [(kind, name, said) for kind in ("flags", "env") for name, said in (matrix.get(kind) or {}).items()]
    count = 1
    for kind, name, said in axes:
        count *= len(said)
        if not said:
            problems.add("-e", f"matrix.{kind}.{name}", "has no value to try")
        elif len({json.dumps(value, sort_keys=True) for value in said}) < len(said):
            problems.add("-e", f"matrix.{kind}.{name}", "has a value twice")
    sizes = " x ".join(f"{len(said)} of {name}" for _, name, said in axes)
    _check_count(count, "-e", "matrix", f"take out values ({sizes})", problems)
    if len(problems.found) > before:
        return []
    found: list[dict[str, str]] = []
    taken = set(known)
    for chosen in itertools.product(*(said for _, _, said in axes)):
        settings = [(kind, str(name), value) for (kind, name, _), value in zip(axes, chosen)]
        name = _name(settings, taken)
        taken.add(name)
        words = ", ".join(f"{key} {_word(value)}" for _, key, value in settings)
        found.append({"name": name, "text": profile_text(f"{base} with {words}", base, settings)})
    return found


def _check_count(count: int, where: str, key: str, how: str, problems: Problems) -> None:
    if count > MOST:
        problems.add(where, key, f"makes {count} candidates, more than {MOST}: {how}")
    elif count < 2:
        problems.add(where, key, "makes fewer than two candidates, and a tune compares: name one more")


def _name(settings: Sequence[tuple[str, str, Any]], taken: Collection[str]) -> str:
    """``attention-backend-triton_num-continuous-decode-steps-4``; cut, with a hash, where it is long or taken."""
    name = "_".join(f"{_slug(key)}-{_slug(_word(value))}" for _, key, value in settings)
    if len(name) <= NAME_LENGTH and name not in taken:
        return name
    return f"{name[: NAME_LENGTH - 8].rstrip('-_')}-{_hash(settings)[:7]}"


def _word(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "empty"


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def profile_text(
    description: str, base: str, settings: Iterable[tuple[str, str, Any]] = (), notes: Iterable[str] = ()
) -> str:
    """A profile: ``settings`` are ``flags`` or ``env``, name and value; ``notes`` are comments at its top.

    Values are written as JSON, which is YAML, too.
    """
    lines = ["---", *(f"# {note}" for note in notes), f"description: {json.dumps(description)}", f"extends: {base}"]
    for kind, own in itertools.groupby(settings, lambda setting: setting[0]):
        lines += [f"{kind}:", *(f"  {json.dumps(name)}: {json.dumps(value)}" for _, name, value in own)]
    return "\n".join(lines) + "\n"


# State


def identity(host: str, service: str, found: Sequence[Mapping[str, str]], load: Mapping[str, Any]) -> str:
    """The id of a tune: the same host, service, candidates and load are the same tune, which a second run resumes."""
    return _hash([host, service, list(found), load])[:12]


def begin(
    host: str,
    service: str,
    found: Sequence[Mapping[str, str]],
    load: Mapping[str, Any],
    objective: str,
    rounds: int,
    budget_s: float,
    baseline: Mapping[str, Any] | None = None,
    before: str = "",
) -> State:
    """A tune of which nothing was tried yet. Raises ValueError for an objective that the load does not measure."""
    if int(compare.level_of(objective)) not in load["concurrencies"]:
        measured = ", ".join(compare.name_of(str(level)) for level in load["concurrencies"])
        raise ValueError(f"objective: the load does not measure {objective}; it measures: {measured}")
    return {
        "id": identity(host, service, found, load),
        "host": host,
        "service": service,
        "objective": objective,
        "rounds": rounds,
        "budget_s": budget_s,
        "load": dict(load),
        "baseline": baseline,
        "before": before,
        "candidates": [dict(each) for each in found],
        "rejected": {},
        "releases": {},
        "trials": [],
        "open": None,
        "finished": False,
    }


def resume(state: State, wished: State) -> State:
    """The state as a run goes on with that finds it, with its own wishes of what is to be reached.

    A trial that was begun and never recorded was interrupted: it is begun anew, until it was begun too often. Trials of
    what has become another release since, because its profile was edited, are left out.

    Args:
        state: as the earlier run left it.
        wished: as this run would begin it.
    """
    mine = ("objective", "rounds", "budget_s", "baseline", "rejected", "releases")
    trials = [trial for trial in state["trials"] if _is_current(trial, wished)]
    begun = state["open"] if state["open"] and _is_current(state["open"], wished) else None
    after = without_stale({**state, **{key: wished[key] for key in mine}, "trials": trials, "open": begun})
    cut = after["open"]
    if cut and cut["attempt"] >= ATTEMPTS:
        why = f"begun {ATTEMPTS} times, and no run saw it to its end"
        return _closed(after, cut["began_s"], {"verdict": "interrupted", "why": why})
    return after


def _is_current(trial: Mapping[str, Any], wished: State) -> bool:
    known = trial.get("release_id")  # earlier versions did not keep it
    return known is not None and wished["releases"].get(trial["candidate"], known) == known


def without_stale(state: State) -> State:
    """The state without a trial that was begun of a candidate that is out by now."""
    cut = state["open"]
    return {**state, "open": None} if cut and cut["candidate"] in out(state) else state


def out(state: State) -> dict[str, tuple[str, str]]:
    """Candidates that have no further trial, by name: verdict and why."""
    found = {name: ("rejected", why) for name, why in state["rejected"].items()}
    for trial in state["trials"]:
        if trial["verdict"] not in ("measured", "disturbed"):
            found.setdefault(trial["candidate"], (trial["verdict"], trial["why"]))
    for name in _names(state):
        if why := next(filter(None, map(compare.failing, _measured(state, name))), ""):
            found.setdefault(name, ("failing", why))
    for name, why in _talks_nonsense(state, found).items():
        found.setdefault(name, ("nonsense", why))
    return found


def _talks_nonsense(state: State, without: Collection[str]) -> dict[str, str]:
    """Candidates whose answers are not the baseline's, or without one, not those that most candidates agree with."""
    measured = {name: _measured(state, name) for name in _names(state) if name not in without}
    last = {name: found[-1] for name, found in measured.items() if found}
    reference = state["baseline"]
    if reference and not all(compare.same_model(reference, one) for one in last.values()):
        reference = None  # of another model: no measure of what this one says
    if not reference and last:
        alike = {name: sum(not compare.nonsense(one, other) for other in last.values()) for name, one in last.items()}
        reference = last[max(alike, key=lambda name: alike[name])]  # of several the first
    return {name: why for name, one in last.items() if (why := compare.nonsense(reference, one))}


def _names(state: State) -> list[str]:
    return [each["name"] for each in state["candidates"]]


def _measured(state: State, name: str) -> list[dict[str, Any]]:
    """The measurements of a candidate that count."""
    return [
        trial["measurement"]
        for trial in state["trials"]
        if trial["candidate"] == name and trial["verdict"] == "measured"
    ]


def used_s(state: State) -> float:
    """How much of its budget a tune has used: the time of its trials, whatever passed between two runs."""
    return float(sum(trial["ended_s"] - trial["began_s"] for trial in state["trials"]))


def expected_s(state: State, name: str, ledger_s: float | None = None) -> float | None:
    """How long a trial of a candidate takes: as its own did, else as the others', else as the ledger says."""
    times = [
        (trial["candidate"], trial["ended_s"] - trial["began_s"])
        for trial in state["trials"]
        if trial["verdict"] in ("measured", "disturbed")
    ]
    own = [time for candidate, time in times if candidate == name]
    return median(own or [time for _, time in times]) if times else ledger_s


def next_trial(state: State, ledger_s: float | None = None) -> dict[str, Any]:
    """The next trial, ``candidate``, ``round``, ``attempt`` and ``expected_s``; or ``why`` there is none."""
    gone, names = out(state), _names(state)
    left = [name for name in names if name not in gone]
    if not left:
        return {"why": "no candidate is left"}
    if len(left) == 1 and len(names) > 1 and _measured(state, left[0]) and not state["open"]:
        return {"why": f"{left[0]} is the only candidate left"}
    done = {(trial["candidate"], trial["round"]) for trial in state["trials"]}
    for number in range(1, state["rounds"] + 1):
        for name in left if number % 2 else reversed(left):
            if (name, number) in done:
                continue
            expected = expected_s(state, name, ledger_s)
            ends = used_s(state) + (expected or 0)
            if ends > state["budget_s"] or used_s(state) >= state["budget_s"]:
                over = f"{duration(used_s(state))} of {duration(state['budget_s'])} are used"
                takes = f", and the next trial takes about {duration(expected)}" if expected else ""
                return {"why": f"the budget is used up: {over}{takes}"}
            cut = state["open"] or {}
            again = (cut.get("candidate"), cut.get("round")) == (name, number)
            attempt = cut["attempt"] + 1 if again else 1
            return {"candidate": name, "round": number, "attempt": attempt, "expected_s": expected}
    return {"why": f"every candidate had its {state['rounds']} trials"}


def opened(state: State, trial: Mapping[str, Any], now_s: float) -> State:
    """The state once a trial of :func:`next_trial` was begun."""
    kept = {key: trial[key] for key in ("candidate", "round", "attempt")}
    release_id = state["releases"].get(trial["candidate"], "")
    return {**state, "open": {**kept, "release_id": release_id, "began_s": now_s}}


def recorded(state: State, now_s: float, outcome: Mapping[str, Any]) -> State:
    """The state once the trial that was begun came to its end.

    Args:
        state: with an open trial, else ValueError is raised.
        now_s: the time.
        outcome: ``measurement``; or a ``verdict`` with ``why`` it could not be measured, and ``evidence``, a file.
    """
    if not state["open"]:
        raise ValueError("no trial was begun, so that none can be recorded")
    measurement = outcome.get("measurement")
    if not measurement:
        return _closed(state, now_s, outcome)
    disturbed = str(measurement.get("disturbed") or "")
    verdict = "disturbed" if disturbed else "measured"
    return _closed(state, now_s, {"verdict": verdict, "why": disturbed, "measurement": measurement})


def _closed(state: State, now_s: float, outcome: Mapping[str, Any]) -> State:
    cut = state["open"]
    trial = {key: cut[key] for key in ("candidate", "release_id", "round", "began_s")}
    kept = {key: outcome[key] for key in ("evidence", "measurement") if outcome.get(key)}
    said = {"verdict": str(outcome["verdict"]), "why": str(outcome.get("why") or "")}
    return {**state, "open": None, "trials": [*state["trials"], {**trial, "ended_s": now_s, **said, **kept}]}


# What comes out


def decide(state: State) -> dict[str, Any]:
    """The ``winner``, its ``speed`` by the objective, how it stands to ``others``, whether that is ``proven``, ``msg``.

    ``of``: the best of how many it is; ``others``: the second best and the first candidate, each with ``name``,
    ``ratio low high verdict``.
    """
    level, gone = compare.level_of(state["objective"]), out(state)
    speeds = {
        name: median(units)
        for name in _names(state)
        if name not in gone and (units := _speeds(_measured(state, name), level))
    }
    if not speeds:
        return {"winner": "", "speed": None, "of": 0, "others": {}, "proven": False, "msg": NONE_MEASURED}
    best, *rest = sorted(speeds, key=lambda name: -speeds[name])  # of equal ones the first
    first = _names(state)[0]
    compared = {"second": rest[0] if rest else "", "first": first if first in rest else ""}
    others = {which: _standing(state, name, best, level) for which, name in compared.items() if name}
    proven = "second" not in others or others["second"]["verdict"] == "faster"
    told = [f"{best} is the fastest by {state['objective']}: {speeds[best]:.1f} tok/s"]
    for each in {each["name"]: each for each in others.values()}.values():
        sure = "" if each["verdict"] == "faster" else ", not proven to be faster"
        told.append(f"{_interval(each)} of {each['name']}{sure}")
    if rest[1:]:
        told.append(PICKED.format(len(speeds)))
    found = {"winner": best, "speed": speeds[best], "of": len(speeds), "others": others, "proven": proven}
    return {**found, "msg": "; ".join(told)}


def _speeds(measurements: Sequence[Mapping[str, Any]], level: str) -> list[float]:
    """A speed for each launch: the median of its runs."""
    return [median(runs) for runs in compare.values(measurements, level, "output_tok_s") if runs]


def _standing(state: State, name: str, best: str, level: str) -> dict[str, Any]:
    row = _row(_measured(state, name), _measured(state, best), level)
    return {"name": name, **{key: row.get(key) for key in ("ratio", "low", "high")}, "verdict": row.get("verdict", "")}


def _row(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], level: str) -> dict[str, Any]:
    rows = compare.table_of_launches(old, new)
    return next((row for row in rows if (row["level"], row["metric"]) == (level, "output_tok_s")), {})


def _interval(row: Mapping[str, Any]) -> str:
    """``1.30 (1.28 to 1.33)``."""
    if row.get("ratio") is None:
        return ""
    within = "too few runs for an interval" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}"
    return f"{row['ratio']:.2f} ({within})"


def against(state: State) -> str:
    """What the column ``against`` of :func:`rows` compares with: the recorded baseline, else the first candidate."""
    return "baseline" if _comparable(state) else _names(state)[0]


def _comparable(state: State) -> bool:
    measured = [one for name in _names(state) for one in _measured(state, name)]
    return bool(state["baseline"]) and not any(compare.differences(state["baseline"], one) for one in measured)


def rows(state: State) -> list[dict[str, Any]]:
    """A row for each candidate: ``candidate verdict trials``, a speed by level, ``against`` and ``why`` it is out."""
    gone, objective = out(state), compare.level_of(state["objective"])
    reference = [state["baseline"]] if _comparable(state) else _measured(state, _names(state)[0])
    found = []
    for name in _names(state):
        measured = _measured(state, name)
        trials = [trial for trial in state["trials"] if trial["candidate"] == name]
        settled = ("measured" if measured else trials[-1]["verdict"] if trials else "not tried", "")
        verdict, why = gone.get(name, settled)
        row: dict[str, Any] = {"candidate": name, "verdict": verdict, "trials": len(trials)}
        for level in state["load"]["concurrencies"]:
            speeds = _speeds(measured, str(level))
            row[compare.name_of(str(level))] = round(median(speeds), 1) if speeds else None
        own = bool(measured) and measured == reference
        row["against"] = "" if own or not reference or not measured else _interval(_row(reference, measured, objective))
        found.append({**row, "why": why})
    return found


def winner_text(state: State, decision: Mapping[str, Any], group: str, date: str) -> str:
    """The profile ``tuned_GROUP`` that says what won, with its numbers; empty where that is the winner itself."""
    winner = next(each for each in state["candidates"] if each["name"] == decision["winner"])
    if winner["name"] == f"tuned_{group}":
        return ""
    table = rows(state)
    row = next(row for row in table if row["candidate"] == winner["name"])
    levels = [compare.name_of(str(level)) for level in state["load"]["concurrencies"]]

    def speeds(of: Mapping[str, Any]) -> str:
        return ", ".join(f"{level} {of[level]:g}" for level in levels if of[level] is not None)

    measured = _measured(state, winner["name"])[-1]
    said = f"{winner['name']} won a tune on {state['host']} ({date}): {speeds(row)} output tok/s"
    load, others = state["load"], {each["name"]: each for each in decision["others"].values()}
    notes = [
        f"Written by playbooks/tune.yml, tune {state['id']}: {len(table)} candidates, objective {state['objective']}.",
        f"Measured with {measured['client']['name']} {measured['client']['version']}: {load['input_tokens']} tokens "
        f"in, {load['output_tokens']} out; of the winner {row['trials']} x {load['repetitions']} runs of each level.",
        *(f"{_interval(each)} of {name}: {each['verdict']}." for name, each in others.items()),
        *([PICKED.format(decision["of"])] if decision["of"] > 2 else []),
        *(
            f"{each['candidate']}: {', '.join(filter(None, (each['verdict'], speeds(each), each['why'])))}"
            for each in table
        ),
    ]
    notes = [" ".join(note.split()) for note in notes]
    if not winner["text"]:
        return profile_text(said, winner["name"], notes=notes)
    _, _, settings = winner["text"].split("\n", 2)  # without its own description
    return "\n".join(["---", *(f"# {note}" for note in notes), f"description: {json.dumps(said)}", settings])
