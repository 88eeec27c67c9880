"""The run as text: tables in Markdown, and a short form for the console.

The law of this file: the durability class stands in each row; a figure stands beside its least and greatest round; what
has no figure says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadtest.report import columns, compare, goals
from loadtest.report.columns import number
from loadtest.report.figures import Figures, Result

LONGEST = 12  # entries of the lists of wins and losses


def markdown(figures: Figures, notes: Sequence[compare.Note] = ()) -> str:
    """A whole page."""
    parts = [
        "# Load test",
        *_about(figures),
        "## Goals",
        goal_table(figures),
        *_lists(figures, notes),
        "## Figures",
        "Median of the rounds; least and greatest in brackets. F: fdatasync on an ack quorum before the "
        "acknowledgement. P: in page caches only.",
    ]
    for workload in figures.workloads:
        about = figures.run.workloads[workload]
        parts += [f"### {workload} {about.get('name', '')}", str(about.get("asks", "")), *_workload(figures, workload)]
    return "\n\n".join(part for part in parts if part) + "\n"


def goal_table(figures: Figures) -> str:
    rows = []
    for one in goals.judged(figures):
        ours = "" if one.ours is None else f"{number(one.ours)} {one.goal.unit}".strip()
        theirs = "" if one.theirs is None else f"{number(one.theirs)} ({one.goal.peer})"
        ratio = "" if one.ratio is None else f"{number(one.ratio)}x"
        bounds = (one.bound(one.goal.base), one.bound(one.goal.moonshot))
        rows.append((one.goal.id, one.goal.says, ours, theirs, ratio, *bounds, one.outcome))
    return table(("", "goal", "ours", "peer's", "ratio", "base", "moonshot", "outcome"), rows)


def _about(figures: Figures) -> list[str]:
    run = figures.run
    lines = []
    for part in run.parts:
        machine = part.get("machine", {})
        lines.append(
            f"- {part.get('began')}: {machine.get('cpus')} CPUs ({machine.get('cpu')}), "
            f"{(machine.get('memory_bytes') or 0) / 2**30:.0f} GiB, kernel {machine.get('kernel')}, "
            f"Python {part.get('python')}, commit {part.get('commit')}, {part.get('scale')}, "
            f"{part.get('rounds')} rounds, seed {part.get('seed')}: `{part.get('command')}`"
        )
    said = [_system(figures, name) for name in figures.systems]
    return ["\n".join(lines), "## Systems", "\n".join(said), "## Weather", weather(figures)]


def _system(figures: Figures, name: str) -> str:
    about = figures.run.systems[name]
    versions = ", ".join(f"{key} {value}" for key, value in about.get("versions", {}).items())
    sentence = about.get("durability", {}).get("sentence", "")
    return f"- **{name}** ({figures.letter(name)}: {sentence}): {about.get('says', '')}. {versions}"


def weather(figures: Figures) -> str:
    """What it was, and what was void."""
    run = figures.run
    bounds = run.parts[0].get("thresholds", {}) if run.parts else {}
    limits = ", ".join(f"{key} {value:g}" for key, value in bounds.items())
    looks = [turn["before"] for turn in run.turns if not turn["void"] and "before" in turn]
    voids = len({(turn["part"], turn["workload"], turn["round"]) for turn in run.turns if turn["void"]})
    kept = sum(bool(turn.get("faults")) for turn in run.turns if not turn["void"])
    lines = [
        f"A round is void beyond: {limits}. {voids} rounds were void and done again; {kept} turns were kept in bad "
        "weather and are marked."
    ]
    if looks:
        names = list(looks[0])
        rows = [(name, *(number(v) for v in _spread([float(look[name]) for look in looks]))) for name in names]
        lines.append(table(("before each turn", "median", "least", "greatest"), rows))
    return "\n\n".join(lines)


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[0], ordered[-1]


def _workload(figures: Figures, workload: str) -> list[str]:
    wanted = columns.of(workload)
    rows = []
    for label in figures.labels(workload):
        for system in figures.systems:
            result = figures.get(workload, label, system)
            if result is not None:
                rows.append((label, system, figures.letter(system), *_cells(result, wanted)))
    return [table(("cell", "system", "class", *(c.title for c in wanted), "rounds", "remarks"), rows)]


def _cells(result: Result, wanted: Sequence[columns.Column]) -> list[str]:
    if result.why:
        return [*([""] * len(wanted)), "", result.why]
    return [*(stat_text(result, column) for column in wanted), str(result.rounds), ", ".join(result.marks)]


def stat_text(result: Result, column: columns.Column) -> str:
    """A figure and its spread."""
    stat = result.stat(column.figure)
    if stat is None:
        return ""
    if stat.rounds == 1:
        return column.said(stat.median)
    return f"{column.said(stat.median)} ({column.said(stat.low)}-{column.said(stat.high)})"


def _lists(figures: Figures, notes: Sequence[compare.Note]) -> list[str]:
    found = compare.duels(figures, notes)
    if not found:
        return []
    wins = [duel for duel in found if duel.is_win]
    losses = [duel for duel in reversed(found) if duel.is_loss]
    even = len(found) - len(wins) - len(losses)
    return [
        "## Where we win",
        _duels(figures, wins, "better") or "Nowhere.",
        "## Where we lose, and why",
        _duels(figures, losses, "worse") or "Nowhere.",
        f"{len(wins)} comparisons won, {len(losses)} lost, {even} even (within {compare.EVEN:.0%}).",
    ]


def _duels(figures: Figures, duels: Sequence[compare.Duel], word: str) -> str:
    lines = [duel_text(figures, duel, word) for duel in duels[:LONGEST]]
    if len(duels) > LONGEST:
        lines.append(f"and {len(duels) - LONGEST} more, in the tables")
    return "\n".join(f"- {line}" for line in lines)


def duel_text(figures: Figures, duel: compare.Duel, word: str) -> str:
    """One comparison in words."""
    times = duel.better if word == "better" else (1 / duel.better if duel.better else float("inf"))
    said = f"{number(times)}x {word}" if times != float("inf") else f"{word}, the other being 0"
    ours, theirs = duel.column.said(duel.ours), duel.column.said(duel.theirs)
    kind = figures.letter(duel.system)
    text = (
        f"{duel.workload} {duel.label}, {duel.column.title}: {ours} against {theirs} of {duel.system} ({kind}), {said}"
    )
    return ". ".join([text, *duel.notes])


def console(figures: Figures) -> str:
    """What a person wants to see at the end of a run."""
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
    told = [f"{c.title}={stat_text(result, c)}" for c in wanted if result.stat(c.figure) is not None]
    return "  ".join([*told, *(f"[{mark}]" for mark in result.marks)])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
