"""The report of a run as Markdown, and a short form for the console.

Invariants:
- every row names the durability class;
- a figure is printed with the least and greatest of its rounds; a row without figures says why.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loadtest.report import columns, compare, goals
from loadtest.report.columns import number
from loadtest.report.figures import Figures, Result, plain

WIDTH = 100  # of prose
LONGEST = 12  # listed comparisons in which dlog is better; those in which it is worse are all listed
ABOUT = (
    "Made by `python -m loadtest report` from the JSON of one run and from nothing else. The same workloads ran on "
    "dlog and on comparable systems, in turns on one machine that held all three replicas of a log and the clients. "
    "Every record was checked when it was read back: a row with a lost, repeated, reordered, misplaced, early or "
    "invented record has no figures. **Class F**: a record is acknowledged after fdatasync on an ack quorum. "
    "**Class P**: a record is acknowledged from the page cache, and a power loss can lose acknowledged records. "
    "Compare within a class, or name both."
)
_LOAD = ("mode", "record_bytes", "batch_bytes", "window", "tasks", "rate", "producers", "warmup_s", "seconds")
_OF_MODE = {"window": "window", "rate": "open", "tasks": "await"}
_FAULTS = ("rate", "record_bytes", "faults", "calm_s", "frozen_s")
_SHOWN = {
    "load": _LOAD,
    "catch-up": (*_LOAD, "backlog_mb"),
    "idle": ("idle_s",),
    "fault": _FAULTS,
    "hand-over": _FAULTS[:-1],
    "roll": _FAULTS[:-1],
    "kill-all": ("rate", "record_bytes", "backlog_mb"),
    "soak": ("rate", "record_bytes", "logs", "retention_s", "seconds"),
    "scan": ("record_bytes", "backlog_mb"),
    "reopen": ("record_bytes", "backlog_mb", "unsaved"),
    "uploads": ("rate", "record_bytes", "logs", "zipf", "warmup_s", "seconds"),
    "examine": ("objects", "logs", "backlog_mb"),
    "restart-bookie": ("backlog_mb", "ledgers", "record_bytes"),
    "lost-bookie": ("backlog_mb", "ledgers", "record_bytes", "rate", "logs", "warmup_s", "seconds"),
}
_INSTALLED = {"file": "", "s3": "versitygw"}  # what a system of another name needs; nothing


class Table(NamedTuple):
    """A table of either form of the report."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Empty if there are no rows."""
        if not self.rows:
            return ""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def markdown(figures: Figures, notes: Sequence[compare.Note] = (), *, section: str = "") -> str:
    """The whole report. section: title of a section of another report that it is, without the introduction."""
    parts = [
        "# Performance",
        ABOUT,
        _verdict(figures),
        "## Goals",
        goal_table(figures).markdown(),
        *_missed(figures, notes),
        *_lists(figures, notes),
        "## Run it again",
        *_again(figures),
        "## Machine",
        *_machine(figures),
        "## Systems",
        *(_system(figures, name) for name in figures.systems),
        "## Host conditions",
        host_bounds(figures),
        host_table(figures).markdown(),
        "## Figures",
        "Medians over the rounds, with the least and greatest in brackets. Units are in the column heads; MB are 10^6 "
        "bytes. Errors are failed appends that the client saw. Costs do not include the generators, which are separate "
        "processes.",
    ]
    for workload in figures.workloads:
        about = figures.run.workloads[workload]
        table = workload_table(figures, workload).markdown()
        parts += [f"### {workload} {about.get('name', '')}", _asked(about), table]
    if section:
        parts = [f"# {section}", *parts[2:]]
        parts = [f"#{part}" if part.startswith("#") else part for part in parts]
    return wrapped("\n\n".join(part for part in parts if part)) + "\n"


def wrapped(text: str) -> str:
    """Markdown with its prose at most WIDTH characters wide; table rows, headings and indented code stay."""
    return "\n".join(line if line.startswith(("|", "#", "    ")) else _fill(line) for line in text.split("\n"))


def _fill(line: str) -> str:
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def counts(figures: Figures) -> dict[str, int]:
    """Goals met, missed and with the moonshot reached; records sent and read; results not green and not run."""
    judged, results = goals.judged(figures), figures.run.results
    verdicts = [one["verdict"] for one in results if "verdict" in one]
    return {
        "met": sum(one.met is True for one in judged),
        "moonshots": sum(one.is_moonshot for one in judged),
        "missed": sum(one.met is False for one in judged),
        **{name: sum(int(verdict[name]) for verdict in verdicts) for name in ("sent", "read")},
        "red": sum(one.get("green") is False for one in results),
        "failed": sum("error" in one for one in results),
    }


def _verdict(figures: Figures) -> str:
    """A summary in a few lines."""
    n = counts(figures)
    return (
        f"{n['met']} of {n['met'] + n['missed']} measured goals are met, {n['moonshots']} of them reach the moonshot; "
        f"{n['missed']} are missed. {n['sent']:,} records were sent and {n['read']:,} read back and checked; "
        f"{n['red']} results of a cell in a round were not green, and {n['failed']} could not be run."
    )


def _again(figures: Figures) -> list[str]:
    """The plan's command, or without a plan the command of each part."""
    parts = figures.run.parts
    whole = list(dict.fromkeys(str(part["plan"]) for part in parts if part.get("plan")))
    alone = [plain(str(part.get("command"))) for part in parts if not part.get("plan")]
    commands = [*whole, *dict.fromkeys(alone), "python -m loadtest report RUN.json --markdown FILE"]
    named = {name.partition("-")[0] for name in figures.peers}
    peers = sorted({_INSTALLED.get(name, name) for name in named} - {""})
    installs = [f"python -m loadtest peers install {name}" for name in peers]
    rows = [
        (str(part.get("piece") or ""), plain(str(part.get("command"))), str(part.get("began")), str(part.get("rounds")))
        for part in parts
    ]
    lines = "\n".join(f"    {command}" for command in [*installs, *commands])
    return [lines, Table(("piece", "command of this piece", "started", "rounds"), rows).markdown() if whole else ""]


def _machine(figures: Figures) -> list[str]:
    lines = []
    for part in figures.run.parts:
        machine = part.get("machine", {})
        lines.append(
            f"- {machine.get('cpus')} CPUs ({machine.get('cpu')}), {(machine.get('memory_bytes') or 0) / 2**30:.0f} "
            f"GiB, kernel {machine.get('kernel')}, Python {part.get('python')}, commit {part.get('commit')}, "
            f"seed {part.get('seed')}"
        )
    return ["\n".join(dict.fromkeys(lines))]


def _asked(about: Mapping[str, Any]) -> str:
    """What a workload asks, and the options that its cells share."""
    asks = str(about.get("asks", ""))
    text = f"{asks[:1].upper()}{asks[1:]}."
    shapes = [cell.get("shape", {}) for cell in about.get("cells", ())]
    script = shapes[0].get("script") if shapes else None
    common = []
    for name in _SHOWN.get(str(script), ()):
        if name in _OF_MODE and shapes[0].get("mode") != _OF_MODE[name]:
            continue
        values = {shape.get(name) for shape in shapes}
        value = values.pop() if len(values) == 1 else None
        if value:
            common.append(f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}")
    return f"{text} {', '.join(common)}." if common else text


def goal_table(figures: Figures) -> Table:
    rows = []
    for one in goals.judged(figures):
        ours = "" if one.ours is None else f"{number(one.ours)} {one.goal.unit}".strip()
        theirs = "" if one.theirs is None else f"{number(one.theirs)} ({one.goal.peer})"
        ratio = "" if one.ratio is None else f"{number(one.ratio)}x"
        bounds = (one.bound(one.goal.base), one.bound(one.goal.moonshot) if one.goal.moonshot is not None else "")
        rows.append((one.goal.id, one.goal.says, ours, theirs, ratio, *bounds, one.outcome))
    return Table(("", "goal", "dlog", "other system", "ratio", "base", "moonshot", "outcome"), rows)


def _system(figures: Figures, name: str) -> str:
    about = figures.run.systems[name]
    versions = ", ".join(f"{key} {value}" for key, value in about.get("versions", {}).items())
    sentence = about.get("durability", {}).get("sentence", "")
    options = ", ".join(f"{key} {value}" for key, value in about.get("configuration", {}).items())
    return f"- **{name}**, class {figures.letter(name)}: {sentence}. {about.get('says', '')}. {versions}." + (
        f" Started with: {plain(options)}." if options else ""
    )


def host_bounds(figures: Figures) -> str:
    """Thresholds of host conditions, and the void rounds."""
    run = figures.run
    bounds = run.parts[0].get("thresholds", {}) if run.parts else {}
    limits = ", ".join(f"{key} {value:g}" for key, value in bounds.items())
    voids = len({(turn["part"], turn["workload"], turn["round"]) for turn in run.turns if turn["void"]})
    kept = sum(bool(turn.get("faults")) for turn in run.turns if not turn["void"])
    return (
        f"A round is void if a measurement exceeds its bound: {limits}. {voids} rounds were void and repeated; {kept} "
        "turns were kept in bad host conditions and are marked."
    )


def host_table(figures: Figures) -> Table:
    """The measured host conditions."""
    looks = [turn["before"] for turn in figures.run.turns if not turn["void"] and "before" in turn]
    rows = []
    for name in looks[0] if looks else ():
        values = sorted(float(look[name]) for look in looks)
        rows.append((name, *map(number, (values[len(values) // 2], values[0], values[-1]))))
    return Table(("measured before each turn", "median", "least", "greatest"), rows)


def workload_table(figures: Figures, workload: str) -> Table:
    """The figures of a workload: a row for each cell and system."""
    wanted = columns.of(workload)
    rows = [
        (label, system, figures.letter(system), *_cells(result, wanted))
        for label in figures.labels(workload)
        for system in figures.systems
        if (result := figures.get(workload, label, system)) is not None
    ]
    return Table(("cell", "system", "class", *(c.title for c in wanted), "rounds", "remarks"), rows)


def _cells(result: Result, wanted: Sequence[columns.Column]) -> list[str]:
    if result.why:
        return [*([""] * len(wanted)), "", result.why]
    return [*(stat_text(result, column) for column in wanted), str(result.rounds), ", ".join(result.marks)]


def stat_text(result: Result, column: columns.Column) -> str:
    """A figure with its spread."""
    stat = result.stat(column.figure)
    if stat is None:
        return ""
    if stat.rounds == 1:
        return column.as_text(stat.median)
    return f"{column.as_text(stat.median)} ({column.as_text(stat.low)}-{column.as_text(stat.high)})"


def _missed(figures: Figures, notes: Sequence[compare.Note]) -> list[str]:
    found = compare.missed(figures, notes)
    return ["## Missed goals, and why", "\n".join(f"- {one}" for one in found)] if found else []


def _lists(figures: Figures, notes: Sequence[compare.Note]) -> list[str]:
    general = "\n".join(f"- {note.text}" for note in notes if note.is_general)
    parts = ["## Before you compare", general] if general else []
    for title, lines in duel_lists(figures, notes).items():
        parts += [f"## {title}", "\n".join(f"- {line}" for line in lines) or "Nowhere."]
    found = compare.duels(figures)
    if found:
        wins, losses = sum(duel.is_win for duel in found), sum(duel.is_loss for duel in found)
        even = len(found) - wins - losses
        parts.append(f"Comparisons: {wins} better, {losses} worse, {even} even (within {compare.EVEN:.0%}).")
    return parts


def duel_lists(figures: Figures, notes: Sequence[compare.Note]) -> dict[str, list[str]]:
    """The comparisons that dlog wins, at most LONGEST, and all that it loses; empty without another system."""
    found = compare.duels(figures, notes)
    if not found:
        return {}
    wins = [duel_text(figures, duel, "better") for duel in found if duel.is_win]
    more = [f"and {len(wins) - LONGEST} more in the tables below"] if len(wins) > LONGEST else []
    return {
        "Where dlog is better": wins[:LONGEST] + more,
        "Where dlog is worse, and why": [duel_text(figures, duel, "worse") for duel in reversed(found) if duel.is_loss],
    }


def duel_text(figures: Figures, duel: compare.Duel, word: str) -> str:
    """One comparison as text."""
    times = duel.better if word == "better" else (1 / duel.better if duel.better else float("inf"))
    ratio = f"{number(times)}x {word}" if times != float("inf") else f"{word} (no ratio: one value is 0)"
    ours, theirs = duel.column.as_text(duel.ours), duel.column.as_text(duel.theirs)
    kind = figures.letter(duel.system)
    text = (
        f"{duel.workload} {duel.label}, {duel.column.title}: {ours} against {theirs} of {duel.system} ({kind}), {ratio}"
    )
    return ". ".join([text, *duel.notes])


def console(figures: Figures) -> str:
    """The figures, at the end of a run."""
    lines = []
    for workload in figures.workloads:
        lines.append(f"\n{workload} {figures.run.workloads[workload].get('name', '')}")
        wanted = columns.of(workload)
        for label in figures.labels(workload):
            for system in figures.systems:
                result = figures.get(workload, label, system)
                if result is None:
                    continue
                lines.append(f"  {label:24} {system:20} {figures.letter(system)}  {_line(result, wanted)}")
    return "\n".join(lines)


def _line(result: Result, wanted: Sequence[columns.Column]) -> str:
    if result.why:
        return result.why
    figures = [f"{c.title}={stat_text(result, c)}" for c in wanted if result.stat(c.figure) is not None]
    return "  ".join([*figures, *(f"[{mark}]" for mark in result.marks)])
