"""Whether one measurement is faster than another: distribution-free statistics, and what a speed gate says. Pure.

A comparison is a ratio, new to old. Its estimate is that of Hodges and Lehmann, the median of all pairwise ratios; its
interval comes from the exact distribution of Mann and Whitney's U. Nothing is assumed of how runs scatter, one run that
stands far out moves nothing, and two samples of the same kind are called different in 5 % of comparisons or fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any, NamedTuple

from .problems import unknown

Measurement = Mapping[str, Any]
"""A record of the ledger whose ``event`` is ``measurement``."""

CONFIDENCE = 0.96
"""Of an interval that is told as one of 95 %: the little more keeps a sample of a few hundred comparisons there, too.
With up to five runs on each side it makes no difference, since the steps of U are that coarse."""

MARGIN = 0.03
"""Two speeds whose ratio is surely within this of 1 are the same to an operator."""

METRICS = (("output_tok_s", "", True), ("ttft_ms", "p50", False), ("itl_ms", "p50", False))
"""What is compared at a level: key of a run, key inside it, and whether more is better."""

LAUNCHES = 4
"""From so many launches on each side on, a launch is what is counted, and not a run of it."""

FAILED_SHARE = 0.01
"""What a measurement may lack of the answers to a level's requests, the same as a canary's soak may by default; one
request of a few is no share yet."""

REFUSED = ("slower", "nonsense", "failing", "not measured")
"""Verdicts on a server's speed and answers with which it is given up, like one to which the gate said no."""

NO_BASELINE = (
    "its group has no baseline, nothing was compared; ansible-playbook playbooks/benchmark.yml -l HOST "
    "-e baseline=true records one"
)

OF_RUNS = "intervals are of the runs of one start each: what differs from start to start is not in them"

TOO_FEW = "too few runs to tell: 4 repetitions or more are needed on each side"

START = 12
"""Characters of a greedy answer that have to agree: about three words. Engines, attention backends and batch sizes add
up numbers in different orders, so that honest answers part after some tokens, a few in a hundred at each token: nearly
all still begin alike. What repeats one token, is empty or random agrees in three words by no accident."""

AGREES = 0.5
"""An answer agrees with a baseline while at least this share as many answers begin like the baseline's as these do
among themselves. In the first three words another backend loses one in ten, nonsense nearly all: half is far from
both, also for eight prompts."""

SILENT = "the baseline's own greedy answers do not agree with one another"


class Ratio(NamedTuple):
    """New to old. ``low`` and ``high`` are None where there are too few values for an interval."""

    estimate: float
    low: float | None
    high: float | None
    n_old: int
    n_new: int


def ratio(old: Sequence[float], new: Sequence[float]) -> Ratio:
    """How the new values stand to the old ones, with an interval that holds the truth in 95 % of cases or more.

    Raises ValueError where there are none, or an old one is not above zero.
    """
    if not old or not new or min(old) <= 0:
        raise ValueError("a ratio needs values on both sides, and old ones above zero")
    ratios = sorted(one / other for one in new for other in old)
    outside = _outside(len(old), len(new))
    low, high = (ratios[outside - 1], ratios[-outside]) if outside else (None, None)
    return Ratio(median(ratios), low, high, len(old), len(new))


@cache
def _outside(n_old: int, n_new: int) -> int:
    """How many pairwise ratios each end of the interval may leave out, itself included; 0: there is no interval.

    The ends are the k-th smallest and largest ratio, for the largest k with P(U < k) in the half of what may go wrong.
    """
    ways = [[1] + [0] * (n_old * n_new)] + [[0] * (n_old * n_new + 1) for _ in range(n_new)]
    for rank in range(n_old + n_new):  # ways[n][u]: to choose n of the ranks so far with a U of u
        for count in range(min(rank + 1, n_new), 0, -1):
            step = rank - (count - 1)
            for u in range(n_old * n_new, step - 1, -1):
                ways[count][u] += ways[count - 1][u - step]
    allowed = sum(ways[n_new]) * (1 - CONFIDENCE) / 2
    found = so_far = 0
    for number in ways[n_new]:
        so_far += number
        if so_far > allowed:
            break
        found += 1
    return found


def verdict(found: Ratio, higher_is_better: bool, margin: float = MARGIN) -> str:
    """``faster`` or ``slower`` where the interval excludes 1, ``same`` where all of it is within the margin of 1."""
    if found.low is None or found.high is None:
        return "undecided"
    if found.low > 1:
        return "faster" if higher_is_better else "slower"
    if found.high < 1:
        return "slower" if higher_is_better else "faster"
    return "same" if found.low >= 1 - margin and found.high <= 1 + margin else "undecided"


def summary(values: Sequence[float]) -> dict[str, Any]:
    """The median, and the quartiles as its spread, between the values where they fall between two."""
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return {"median": at(0.5), "low": at(0.25), "high": at(0.75), "n": len(ordered)}


def level_of(name: str) -> str:
    """The level that a floor or an objective means: ``single_stream`` is one at a time, ``c128`` 128. Or ValueError."""
    if name == "single_stream":
        return "1"
    if name[:1] == "c" and name[1:].isdigit() and name[1:2] != "0":
        return name[1:]
    raise ValueError(f"{unknown('level', name, ['single_stream'])}, or c and how many requests at a time, as c128")


def name_of(level: str) -> str:
    """The opposite of :func:`level_of`."""
    return "single_stream" if level == "1" else f"c{level}"


def differences(old: Measurement, new: Measurement) -> list[str]:
    """Why two measurements cannot be compared, in an operator's words; empty where they can."""
    found = [
        f"{what} differs: {_text(before)} against {_text(now)}"
        for what, before, now in (
            ("the model", _model(old), _model(new)),
            ("the client", *(f"{each['client']['name']} {each['client']['version']}" for each in (old, new))),
            ("the GPU family", *(each["hardware"]["gpu_family"] for each in (old, new))),
            *(
                (f"the load's {key}", old["load"].get(key), new["load"].get(key))
                for key in ("input_tokens", "output_tokens", "seed", "concurrencies", "repetitions", "prompts")
            ),
        )
        if before != now
    ]
    for which, each in (("old", old), ("new", new)):
        if each.get("disturbed"):
            found.append(f"the {which} measurement was disturbed: {each['disturbed']}")
    return found


def _model(measurement: Measurement) -> str:
    """Its name and revision; one without a revision is told by its path."""
    model = measurement["model"]
    return f"{model['name']} ({model.get('revision') or model['path']})"


def _text(value: Any) -> str:
    return str(value) if value not in (None, "") else "nothing"


def values(measurements: Sequence[Measurement], level: str, metric: str, inner: str = "") -> list[list[float]]:
    """The values of a metric at a level, a list for each measurement; runs that have none are left out."""
    found = []
    for measurement in measurements:
        runs = [run.get(metric) for run in measurement["levels"].get(level, [])]
        said = [(run or {}).get(inner) for run in runs] if inner else runs
        found.append([float(value) for value in said if value is not None])
    return found


def table(old: Measurement, new: Measurement) -> list[dict[str, Any]]:
    """As :func:`table_of_launches`, of one measurement each. What differs between two starts is not in the interval."""
    return table_of_launches([old], [new])


def table_of_launches(old: Sequence[Measurement], new: Sequence[Measurement]) -> list[dict[str, Any]]:
    """A row for each level that both sides have, and metric: ``level metric old new ratio low high verdict of``.

    With four launches or more on each side the medians of the launches are compared, so that what differs between two
    starts of one release counts as noise; with fewer, all runs. ``of`` says which: ``launches`` or ``runs``.
    Measurements of one launch are one.
    """
    sides = [_by_launch(old), _by_launch(new)]
    of = "launches" if min(map(len, sides)) >= LAUNCHES else "runs"
    rows = []
    levels = {level for each in old for level in each["levels"]} & {level for each in new for level in each["levels"]}
    for level in sorted(levels, key=int):
        for metric, inner, higher_is_better in METRICS:
            before, now = (_units(side, level, metric, inner, of) for side in sides)
            if not before or not now or min(before) <= 0:  # one token an answer has no time between tokens
                continue
            found = ratio(before, now)
            rows.append(
                {
                    "level": level,
                    "metric": metric,
                    "old": median(before),
                    "new": median(now),
                    "ratio": found.estimate,
                    "low": found.low,
                    "high": found.high,
                    "verdict": verdict(found, higher_is_better),
                    "of": of,
                }
            )
    return rows


def _by_launch(measurements: Sequence[Measurement]) -> list[list[Measurement]]:
    """Measurements of the same start of a server together; one that does not say its start is one of its own."""
    found: dict[str, list[Measurement]] = {}
    for number, each in enumerate(measurements):
        found.setdefault(str(each.get("invocation") or number), []).append(each)
    return list(found.values())


def _units(launches: Sequence[Sequence[Measurement]], level: str, metric: str, inner: str, of: str) -> list[float]:
    """What is compared of a side: a value for each launch, or for each run."""
    runs = [[one for each in values(launch, level, metric, inner) for one in each] for launch in launches]
    return [median(own) for own in runs if own] if of == "launches" else [one for own in runs for one in own]


def agreement(one: Sequence[Sequence[str]], other: Sequence[Sequence[str]]) -> float | None:
    """Share of the fixed prompts whose greedy answers begin alike, over all askings; None where there are none."""
    pairs = [_start(a) == _start(b) for left in one for right in other for a, b in zip(left, right)]
    return sum(pairs) / len(pairs) if pairs else None


def _askings(measurement: Measurement) -> tuple[Sequence[Sequence[str]], Sequence[Sequence[str]]]:
    return measurement["continuations"][:1], measurement["continuations"][1:]


def _start(text: str) -> str:
    return " ".join(text.split())[:START]


def same_model(one: Measurement, other: Measurement) -> bool:
    """Whether the same answers may be expected of both."""
    return _model(one) == _model(other)


def nonsense(baseline: Measurement, measurement: Measurement) -> str:
    """Why the greedy answers are none that the baseline's model gives, or empty; of another model nothing is known."""
    if not same_model(baseline, measurement):
        return ""
    new = measurement["continuations"]
    own, found = agreement(*_askings(baseline)), agreement(baseline["continuations"], new)
    if not own or found is None or found >= AGREES * own:
        return ""
    said = next((text for asking in new for text in asking), "")
    return (
        f"{found:.0%} of the greedy answers begin as the baseline's do, which agree with themselves in {own:.0%}: "
        f"it answers nonsense, or with other weights; its first answer: {' '.join(said.split())[:80]!r}"
    )


def failing(measurement: Measurement) -> str:
    """The levels at which more requests failed than may, with how many; empty where there are none.

    Of a measurement that was disturbed it is not known who is to blame.
    """
    return "" if measurement.get("disturbed") else failed(measurement, 1, FAILED_SHARE)


def failed(measurement: Measurement, most: int = 0, share: float = 0.0) -> str:
    """The levels at which more than so many requests, and more than this share of them, failed."""
    told = []
    for level, runs in measurement["levels"].items():
        lost, asked = (sum(run.get(key, 0) for run in runs) for key in ("failed", "requests"))
        if lost > most and lost > share * asked:
            told.append(f"{lost} of {asked} requests failed at {name_of(level)}")
    return ", ".join(told)


def judge(baseline: Measurement | None, measurement: Measurement, floors: Mapping[str, float]) -> dict[str, Any]:
    """Whether a measurement may pass: ``verdict``, ``msg`` for an operator, and ``rows`` of :func:`table`.

    ``passed``; ``slower``: surely, the whole interval lies under a floor; ``undecided``: the estimate lies under a
    floor and the interval reaches over it, or there is no interval; ``nonsense``; ``failing``, too many requests did;
    ``not comparable``; ``no baseline``. What a server says and whether it answers is judged where its speed cannot be
    compared, too.

    Args:
        baseline: the measurement that was recorded to compare with; None, nobody recorded one.
        measurement: the new one.
        floors: least share of the baseline's output tok/s by level, see :func:`level_of`, which raises ValueError.
    """
    levels = {level_of(name): floor for name, floor in floors.items()}
    if said := failing(measurement):
        return {"verdict": "failing", "msg": said, "rows": []}
    if baseline is None:
        return {"verdict": "no baseline", "msg": NO_BASELINE, "rows": []}
    if said := nonsense(baseline, measurement):
        return {"verdict": "nonsense", "msg": said, "rows": []}
    why = differences(baseline, measurement)
    rows = [] if why else table(baseline, measurement)
    speeds = {row["level"]: row for row in rows if row["metric"] == "output_tok_s"}
    missing = [name_of(level) for level in levels if level not in speeds]
    if not why and missing:
        measured = ", ".join(name_of(level) for level in speeds) or "none"
        why = [
            f"the speed gate has a floor for {', '.join(missing)}, which both measured not; both measured: {measured}"
        ]
    if why:
        return {"verdict": "not comparable", "msg": f"cannot be compared: {'; '.join(why)}", "rows": rows}
    found: dict[str, list[str]] = {"slower": [], "undecided": [], "passed": []}
    for level, floor in levels.items():
        row = speeds[level]
        found[_against(row, floor)].append(_told(row, floor))
    outcome = next((name for name, told in found.items() if told), "passed")
    texts = "; ".join(found[outcome])
    notes = [OF_RUNS] if texts else []
    if not agreement(*_askings(baseline)):
        notes.append(f"whether it talks sense is not known: {SILENT}")
    if said := failed(measurement):
        notes.append(said)
    msg = {
        "slower": f"slower than the baseline, beyond noise: {texts}",
        "undecided": f"not proven to be fast enough: {texts}",
        "passed": f"fast enough: {texts}" if texts else "no floor is set",
    }
    return {"verdict": outcome, "msg": "; ".join([msg[outcome], *notes]), "rows": rows}


def _against(row: Mapping[str, Any], floor: float) -> str:
    if row["high"] is not None and row["high"] < floor:
        return "slower"
    return "undecided" if row["high"] is None or row["ratio"] < floor else "passed"


def _told(row: Mapping[str, Any], floor: float) -> str:
    known = row["high"] is not None
    interval = f"95 % interval {row['low']:.2f} to {row['high']:.2f}" if known else TOO_FEW
    speeds = f"{name_of(row['level'])} {row['new']:.1f} tok/s against {row['old']:.1f}"
    return f"{speeds}, {row['ratio']:.2f} of it ({interval}; floor {floor:g})"
