"""What a service shows: texts of /proc, kernel, py-spy and NCCL, and the ten lines that an operator reads. Pure.

Evidence is what ``evidence.py`` collected, JSON-plain; any part of it may be missing.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .gpus import normal_bus_id
from .slices import duration
from .systemd import exit_text

LINES = 10
WIDTH = 200
"""Characters of a line of the summary."""

PLURALS = {"waits": "wait", "spins": "spin", "runs": "run", "is": "are"}
SPINS_PERCENT = 80.0
MOVES_S = 3.0
"""A signal that moved less than this ago moves; nobody looks more often than every second or so."""
SIGNALS = {"gpu_memory": "GPU memory", "cpu": "CPU"}
NEARLY_FULL = 0.05
KERNEL_LINES, NCCL_LINES = 100, 100

SECRET_NAME = re.compile(r"(?<!^NCCL_IB_P)KEY|TOKEN(?!IZER)|SECRET|PASSW|PASSPHRASE|CREDENTIAL", re.IGNORECASE)
"""Names of variables whose values nobody sees; rather too many than too few. NCCL_IB_PKEY is the number of an entry."""
SHOWN_NAME = re.compile(r"(?:NCCL|CUDA)_")

RANK = re.compile(r"_((?:[A-Z]{2,3}\d+_?)+)$")
"""The end of a title: ``sglang::scheduler_TP3``, ``VLLM::Worker_TP3``, ``VLLM::EngineCore_DP1``."""

KERNEL = re.compile(
    r"NVRM|Xid|nvidia|oom-kill|oom_reaper|[Oo]ut of memory|Killed process|blocked for more than|PCIe Bus Error"
)
XID = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9A-Fa-f:.]+)\): (?P<number>\d+),?\s*(?P<text>.*)")
OUT_OF_MEMORY = re.compile(r"Out of memory.*|Memory cgroup out of memory.*")
WHEN = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:,\d+)?([+-]\d\d:?\d\d) ")
"""Time of a kernel line, by ``journalctl -o short-iso`` or ``dmesg --time-format iso``."""

NCCL = (
    re.compile(
        r"NCCL WARN|ProcessGroupNCCL.*(?:WARN|ERROR|Watchdog|timeout)|Watchdog caught collective", re.IGNORECASE
    ),
    re.compile(r"NCCL version|NCCL INFO (?:NCCL_\w+ set|Using network|comm \S+ rank)"),
    re.compile(r"NCCL INFO (?:Channel|Trees|Connected|threadThresholds)"),
)
"""Lines of the log in order of their worth: warnings, version and settings, channels."""

FRAME = re.compile(r"^ {4}(?P<function>\S+) \((?P<place>[^)]+)\)", re.MULTILINE)
MAIN_THREAD = re.compile(r"^Thread [^\n]*\"MainThread\"\n(?P<frames>(?: {4}[^\n]*\n?)+)", re.MULTILINE)


def cpu_ticks(stat: str) -> int:
    """Clock ticks that a process spent in user and kernel mode, from the text of /proc/PID/stat."""
    fields = stat.rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def in_unit(cgroup: str, unit: str) -> bool:
    """Whether the text of /proc/PID/cgroup names a unit, under version 1 or 2 of control groups."""
    return any(unit in line.split("/") for line in cgroup.splitlines())


def io_bytes(io: str) -> int:
    """Bytes that a process read and wrote, pipes and page cache too, from the text of /proc/PID/io."""
    return sum(int(line.split()[1]) for line in io.splitlines() if line.startswith(("rchar:", "wchar:")))


def kernel_lines(text: str) -> list[str]:
    """The newest lines of a kernel log about GPUs, memory and stuck tasks."""
    return [line for line in text.splitlines() if KERNEL.search(line)][-KERNEL_LINES:]


def nccl_lines(lines: Iterable[str]) -> list[str]:
    """NCCL's lines of an engine's log, in their order: of each kind the newest."""
    kept: list[tuple[int, str]] = []
    told = list(enumerate(lines))
    for kind in NCCL:
        kept += [one for one in told if kind.search(one[1]) and one not in kept][-NCCL_LINES:]
    return [line for _, line in sorted(kept)]


def rank_name(title: str) -> str:
    """``TP3`` of ``sglang::scheduler_TP3``; empty where a title names no rank."""
    found = RANK.search(title)
    return found[1] if found else ""


def innermost(dump: str) -> str:
    """Where the main thread is, ``all_reduce (torch/distributed/c10d.py:2501)``, from the text of ``py-spy dump``."""
    thread = MAIN_THREAD.search(dump)
    frame = FRAME.search(thread["frames"] if thread else dump)
    return f"{frame['function']} ({frame['place']})" if frame else ""


def hidden(environment: Mapping[str, str]) -> list[str]:
    """Values that nobody may see, by the names of their variables."""
    return [value for name, value in environment.items() if SECRET_NAME.search(name)]


def rewrite(plain: Any, change: Callable[[str], str]) -> Any:
    """JSON-plain data with every text in it changed, keys too."""
    if isinstance(plain, str):
        return change(plain)
    if isinstance(plain, Mapping):
        return {change(str(key)): rewrite(value, change) for key, value in plain.items()}
    if isinstance(plain, (list, tuple)):
        return [rewrite(value, change) for value in plain]
    return plain


def summary(evidence: Mapping[str, Any]) -> list[str]:
    """At most ten lines, the most telling first."""
    parts = (_main, _still, _kernel, _ranks, _stuck, _python, _gpus, _log, _nccl, _left_behind, _space, _lacks)
    lines = [" ".join(line.split()) for part in parts for line in part(evidence)]
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], *lines[-1:]]  # what could not be read is said in any case
    return [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in lines]


def _main(evidence: Mapping[str, Any]) -> list[str]:
    unit = evidence.get("unit", {})
    where = ", ".join(filter(None, (evidence.get("phase"), evidence.get("progress"))))
    ended, pid = exit_text(unit), str(unit.get("MainPID", "0"))
    process = evidence.get("processes", {}).get(pid, {})
    if pid != "0":
        state = f", state {process['state']}" if process.get("state") else ""
        what = f"main process runs (pid {pid}{state}), unit is {unit.get('ActiveState', 'unknown')}"
    elif ended:
        what = f"main process {ended}"
    elif unit:
        what = f"no main process, unit is {unit.get('ActiveState', 'unknown')} ({unit.get('Result', 'no result')})"
    else:
        what = ""
    told = "; ".join(filter(None, (what, f"phase: {where}" if where else "")))
    return [told] if told else []


def _still(evidence: Mapping[str, Any]) -> list[str]:
    """``nothing moved: log 15m02s, io 15m00s``; while something moves, when each signal last did."""
    ages = {name: signal["age_s"] for name, signal in evidence.get("signals", {}).items()}
    if not ages or evidence.get("unit", {}).get("MainPID") == "0":
        return []
    if min(ages.values()) >= MOVES_S:
        return [
            "nothing moved: " + ", ".join(f"{SIGNALS.get(name, name)} {duration(age)}" for name, age in ages.items())
        ]
    told = (
        f"{SIGNALS.get(name, name)} {'moves' if age < MOVES_S else f'{duration(age)} ago'}"
        for name, age in ages.items()
    )
    return [f"moved last: {', '.join(told)}"]


def _ranks(evidence: Mapping[str, Any]) -> list[str]:
    ranks = _titled(evidence)
    if not ranks:
        return []
    groups = _grouped((name, doing(process)) for name, process in ranks)
    what = "rank" if all(rank_name(process.get("title", "")) for _, process in ranks) else "process"
    return [f"{_counted(len(ranks), what)}: {_told(groups)}"]


def _stuck(evidence: Mapping[str, Any]) -> list[str]:
    ranks = {process["pid"] for _, process in _titled(evidence)}
    found = [process for process in _processes(evidence) if process["pid"] not in ranks]
    groups = _grouped(
        (f"pid {process['pid']}", doing(process)) for process in found if process.get("state") in ("D", "Z")
    )
    return [f"beside the ranks: {_told(groups)}"] if groups else []


def _left_behind(evidence: Mapping[str, Any]) -> list[str]:
    pids = [str(process["pid"]) for process in _processes(evidence) if process.get("left_behind")]
    if not pids:
        return []
    return [f"left behind by an engine: pid {', '.join(pids)}; playbooks/cleanup.yml ends what still holds GPUs"]


def _python(evidence: Mapping[str, Any]) -> list[str]:
    ranks = {str(process["pid"]): name for name, process in _titled(evidence)}
    main = str(evidence.get("unit", {}).get("MainPID", "0"))
    named = {main: "main process", **ranks}
    dumps = evidence.get("python", {})
    at = ((named[pid], innermost(dump)) for pid, dump in dumps.items() if pid in named)
    groups = _grouped((name, f"in {place}") for name, place in at if place)
    return [f"Python: {_told(groups)}"] if groups else []


def _gpus(evidence: Mapping[str, Any]) -> list[str]:
    reading = evidence.get("gpus", {})
    if reading.get("failure"):
        failure = reading["failure"]
        known = {"absent": [], "hung": ["GPUs: the NVIDIA driver does not answer"]}
        return known.get(failure, [f"GPUs: {failure}"])
    looks: dict[str, list[int]] = {}
    for gpu in reading.get("gpus", ()):
        if gpu["index"] < 0:
            continue
        used, percent = gpu.get("memory_used_mib"), gpu.get("utilization")
        look = "does not say how much memory is used" if used is None else f"{used:,} MiB"
        look = gpu["error"] if gpu.get("error") else look + ("" if percent is None else f", {percent} %")
        looks.setdefault(look, []).append(gpu["index"])
    told = [
        f"GPU {_spans(indices)}: {look.replace(' MiB', ' MiB each') if len(indices) > 1 else look}"
        for look, indices in looks.items()
    ]
    if uncounted := sum(gpu["index"] < 0 for gpu in reading.get("gpus", ())):
        told.append(f"{_counted(uncounted, 'GPU')} that the driver counts no more")
    return ["; ".join(told)] if told else []


def _kernel(evidence: Mapping[str, Any]) -> list[str]:
    """Xids and kills since the service started; an older Xid may matter still, an older kill was somebody else's."""
    buses = {gpu.get("bus_id"): gpu["index"] for gpu in evidence.get("gpus", {}).get("gpus", ()) if gpu["index"] >= 0}
    started = datetime.datetime.fromisoformat(evidence["started"]) if evidence.get("started") else None
    xids: list[str] = []
    earlier: list[str] = []
    killed: list[str] = []
    for line in evidence.get("kernel", {}).get("lines", ()):
        when = _time(line)
        before = when is not None and started is not None and when < started
        at = f" at {when:%Y-%m-%d %H:%M:%S %Z}" if when else ""
        if xid := XID.search(line):
            gpu = buses.get(normal_bus_id(f"{xid['bus']}.0"))
            where = f"GPU {gpu}" if gpu is not None else f"PCI {xid['bus']}"
            (earlier if before else xids).append(f"Xid {xid['number']} on {where}{at}: {xid['text']}")
        elif (found := OUT_OF_MEMORY.search(line)) and not before:
            killed.append(f"kernel{at}: {found[0]}")
    told = xids[-2:]
    if len(xids) > 2:
        told.append(f"{len(xids) - 2} more of {len(xids)} Xids since the start are in the evidence")
    if earlier:
        told.append(f"{_counted(len(earlier), 'Xid')} before this start, the last: {earlier[-1]}")
    return [*told, *killed[-1:]]


def _time(line: str) -> datetime.datetime | None:
    """When a line of the kernel was written, in UTC."""
    found = WHEN.match(line)
    if not found:
        return None
    return datetime.datetime.strptime("".join(found.groups()), "%Y-%m-%dT%H:%M:%S%z").astimezone(datetime.timezone.utc)


def _nccl(evidence: Mapping[str, Any]) -> list[str]:
    return [line for line in evidence.get("log", {}).get("nccl", ()) if NCCL[0].search(line)][-1:]


def _log(evidence: Mapping[str, Any]) -> list[str]:
    log, found = evidence.get("log", {}), []
    error, tail = evidence.get("error") or log.get("error"), log.get("tail")
    if error:
        found.append(f"the engine's last error: {error}")
    if tail:
        found.append(f"last log line {duration(log.get('silent_s', 0))} ago: {tail[-1]}")
    elif "tail" in log:
        found.append("the log is empty")
    return found


def _space(evidence: Mapping[str, Any]) -> list[str]:
    return [
        f"{path} is nearly full: {space['free_mib']:,} of {space['total_mib']:,} MiB free"
        for path, space in evidence.get("space", {}).items()
        if space["free_mib"] < NEARLY_FULL * space["total_mib"]
    ]


def _lacks(evidence: Mapping[str, Any]) -> list[str]:
    groups = _grouped((what, str(why).strip().split("\n")[0]) for what, why in evidence.get("errors", {}).items())
    told = [f"{', '.join(names)} ({why})" for why, names in groups]
    return [f"not collected: {'; '.join(told)}"] if told else []


def _processes(evidence: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(evidence.get("processes", {}).values())


def _titled(evidence: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Ranks with their names, in the order of these; without any rank the other processes that have a title."""
    own = [process for process in _processes(evidence) if not process.get("left_behind")]
    named = [(rank_name(process.get("title", "")), process) for process in own]
    ranks = [one for one in named if one[0]]
    if not ranks:
        titles = ((process.get("title", ""), process) for process in own)
        ranks = [(title.split("::")[1].split()[0], process) for title, process in titles if re.search(r"::\w", title)]
    return sorted(ranks, key=lambda one: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", one[0])])


def doing(process: Mapping[str, Any]) -> str:
    """``spins at 100 %``, ``waits in futex_wait (0 % CPU)``, ``is stuck in the kernel, in nv_ioctl``."""
    state, percent = process.get("state", ""), round(process.get("cpu_percent", 0.0), -1)  # alike, not the same
    wchan = process.get("wchan", "")
    place = f" in {wchan}" if wchan else ""
    if state == "Z":
        return "is a zombie" + (f" with {process['threads']} threads" if process.get("threads", 1) > 1 else "")
    if state == "D":
        return f"is stuck in the kernel{',' if place else ''}{place}"
    if state in ("T", "t"):
        return "is stopped by a signal or a debugger"
    if percent >= SPINS_PERCENT:
        return f"spins at {percent:.0f} %"
    return f"waits{place} ({percent:.0f} % CPU)" if state == "S" else f"runs at {percent:.0f} %"


def _grouped(named: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """What is done, and by whom; what most do comes first."""
    groups: dict[str, list[str]] = {}
    for name, what in named:
        groups.setdefault(what, []).append(name)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def _told(groups: Sequence[tuple[str, list[str]]]) -> str:
    """``7 wait in …, TP3 spins at 100 %``: few are named, many are counted."""
    told = []
    for what, names in groups:
        verb, _, rest = what.partition(" ")
        plural = f"{PLURALS.get(verb, verb)} {rest}"
        if len(names) == 1:
            told.append(f"{names[0]} {what}")
        elif len(groups) == 1:
            told.append(f"all {plural}")
        else:
            told.append(f"{' and '.join(names) if len(names) == 2 else len(names)} {plural}")
    return ", ".join(told)


def _spans(numbers: Sequence[int]) -> str:
    """``0-3, 5`` of 0, 1, 2, 3, 5."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _counted(count: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{count} {what}" if count == 1 else f"{count} {what}{plural}"
