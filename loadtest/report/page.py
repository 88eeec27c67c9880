"""The HTML report of a run: one self-contained page without scripts or external resources.

Invariants:
- the page contains no figure that the Markdown report lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from loadtest.report import charts, columns, compare, goals, tables
from loadtest.report.columns import number
from loadtest.report.figures import OURS, Figures, Result, plain
from loadtest.report.svg import svg

_STYLE = """
:root{--ink:#1c2530;--soft:#5b6876;--line:#dfe4ea;--paper:#fbfaf7;--card:#fff;--good:#1b7f5c;--bad:#b83246;--gold:#9a6b00}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#9aa7b4;--line:#2f3a45;--paper:#14191e;--card:#1b2229;
--good:#5fcfa4;--bad:#ff7d8e;--gold:#e8b84b}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.55 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:32px 24px 80px}h1{font-size:34px;margin:0 0 4px;letter-spacing:-.5px}
h2{font-size:22px;margin:44px 0 12px;border-bottom:1px solid var(--line);padding-bottom:6px}
h3{font-size:17px;margin:30px 0 2px}
p{margin:6px 0;max-width:80ch}.soft{color:var(--soft)}code{font-size:12.5px;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:12px;margin:22px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px}
.tile b{display:block;font-size:26px;letter-spacing:-.5px}.tile span{color:var(--soft);font-size:13px}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums;min-width:60%}
th{text-align:left;color:var(--soft);font-weight:600}th,td{padding:5px 12px 5px 0;border-bottom:1px solid var(--line);
vertical-align:top}tr.ours td{font-weight:600}td small{color:var(--soft);font-weight:400;white-space:nowrap}
.met{color:var(--good);font-weight:600}.missed{color:var(--bad);font-weight:600}.moonshot{color:var(--gold);font-weight:700}
.class{display:inline-block;border:1px solid var(--line);border-radius:5px;padding:0 6px;font-size:12px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:16px}
figure{margin:10px 0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 14px 8px}
figcaption{font-weight:600;margin-bottom:6px}svg{width:100%;height:auto;display:block}
svg text{fill:var(--soft);font:11.5px system-ui,sans-serif}svg .grid{stroke:var(--line)}
svg .spread{stroke:var(--ink);stroke-width:1.5}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;padding:0;margin:6px 0 2px;font-size:12.5px}
.legend i{display:inline-block;width:14px;height:10px;border-radius:2px;margin-right:6px}
ul.duels{padding-left:18px}ul.duels li{margin:4px 0}
"""


def html(figures: Figures, notes: Sequence[compare.Note] = ()) -> str:
    """The page."""
    drawn = charts.charts(figures)
    body = [
        _top(figures),
        "<h2>Goals</h2>",
        _goals(figures),
        _missed(figures, notes),
        _duels(figures, notes),
        "<h2>What was measured</h2>",
        _systems(figures),
        "<h2>Host conditions</h2>",
        *(_markdown_block(block) for block in tables.host_conditions(figures).split("\n\n")),
        "<h2>Workloads</h2>",
        *(_workload(figures, workload, drawn) for workload in figures.workloads),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>dlog load test</title>'
        f"<style>{_STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _top(figures: Figures) -> str:
    run = figures.run
    part = run.parts[-1] if run.parts else {}
    machine = part.get("machine", {})
    sent = sum(int(one["verdict"]["sent"]) for one in run.results if "verdict" in one)
    read = sum(int(one["verdict"]["read"]) for one in run.results if "verdict" in one)
    red = sum(one.get("green") is False for one in run.results)
    judged = goals.judged(figures)
    met = sum(one.met is True for one in judged)
    measured = sum(one.met is not None for one in judged)
    tiles = [
        (f"{met} of {measured}", "goals met, of those measured"),
        (f"{sum(one.is_moonshot for one in judged)}", "of them reached the moonshot"),
        (f"{read:,}", f"records verified, {sent:,} sent"),
        (f"{red}", "results not green"),
        (str(len(figures.systems)), "systems in the same run"),
    ]
    said = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in tiles
    )
    where = (
        f"{part.get('began')} · {machine.get('cpus')} CPUs, {machine.get('cpu')} · kernel {machine.get('kernel')} · "
        f"commit {part.get('commit')} · {part.get('rounds')} rounds, {part.get('scale')}"
    )
    commands = dict.fromkeys(str(one.get("plan") or one.get("command")) for one in run.parts)
    again = "".join(f"<p><code>{escape(plain(command))}</code></p>" for command in commands)
    return (
        f'<h1>dlog load test</h1><p class="soft">{escape(where)}</p><div class="tiles">{said}</div>'
        "<p>Every record carries its producer, its number and a CRC, and is checked when it is read back. A row with a "
        "lost, duplicated, reordered, misplaced, early, invented or diverged record has no figures. Figures are "
        "medians over the rounds.</p>"
        f"{again}"
    )


def _goals(figures: Figures) -> str:
    rows = []
    for one in goals.judged(figures):
        ours = "" if one.ours is None else f"{number(one.ours)} {one.goal.unit}"
        theirs = "" if one.theirs is None else f"{number(one.theirs)} <small>{escape(one.goal.peer)}</small>"
        ratio = "" if one.ratio is None else f"{number(one.ratio)}x"
        kind = {"met": "met", "moonshot": "moonshot", "MISSED": "missed"}.get(one.outcome, "soft")
        cells = (
            escape(one.goal.id),
            escape(one.goal.says),
            escape(ours),
            theirs,
            ratio,
            escape(one.bound(one.goal.base)),
            escape(one.bound(one.goal.moonshot)),
            f'<span class="{kind}">{escape(one.outcome)}</span>',
        )
        rows.append(("", cells))
    return _table(("", "goal", "dlog", "other system", "ratio", "base", "moonshot", "outcome"), rows)


def _missed(figures: Figures, notes: Sequence[compare.Note]) -> str:
    items = "".join(f"<li>{escape(one)}</li>" for one in compare.missed(figures, notes))
    return f"<h3>Missed goals, and why</h3><ul class='duels'>{items}</ul>" if items else ""


def _duels(figures: Figures, notes: Sequence[compare.Note]) -> str:
    found = compare.duels(figures, notes)
    if not found:
        return ""
    wins = [duel for duel in found if duel.is_win]
    losses = [duel for duel in reversed(found) if duel.is_loss]
    parts = []
    for title, duels, word, longest in (
        ("Where dlog is better", wins, "better", tables.LONGEST),
        ("Where dlog is worse, and why", losses, "worse", len(losses)),
    ):
        items = "".join(f"<li>{escape(tables.duel_text(figures, duel, word))}</li>" for duel in duels[:longest])
        more = f"<p class='soft'>and {len(duels) - longest} more, below</p>" if len(duels) > longest else ""
        parts.append(f"<div><h3>{title}</h3><ul class='duels'>{items or '<li>Nowhere.</li>'}</ul>{more}</div>")
    general = "".join(f"<p>{escape(note.text)}</p>" for note in notes if note.is_general)
    return f"<h2>Comparison with other systems</h2>{general}<div class='pair'>{''.join(parts)}</div>"


def _systems(figures: Figures) -> str:
    rows = []
    for name in figures.systems:
        about = figures.run.systems[name]
        versions = ", ".join(f"{key} {value}" for key, value in about.get("versions", {}).items())
        configuration = ", ".join(f"{key} {value}" for key, value in about.get("configuration", {}).items())
        durability = str(about.get("durability", {}).get("sentence", ""))
        cells = (
            escape(name),
            _letter(figures, name) + f" <small>{escape(durability)}</small>",
            escape(str(about.get("says", ""))),
            escape(versions),
            escape(configuration),
        )
        rows.append((_kind(name), cells))
    return _table(("system", "class", "description", "versions", "configuration"), rows)


def _workload(figures: Figures, workload: str, drawn: Sequence[charts.Chart]) -> str:
    about = figures.run.workloads[workload]
    wanted = columns.of(workload)
    rows = []
    for label in figures.labels(workload):
        for system in figures.systems:
            result = figures.get(workload, label, system)
            if result is not None:
                cells = (escape(label), escape(system), _letter(figures, system), *_cells(result, wanted))
                rows.append((_kind(system), cells))
    pictures = "".join(
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{svg(chart)}</figure>"
        for chart in drawn
        if chart.workload == workload
    )
    head = ("cell", "system", "class", *(column.title for column in wanted), "remarks")
    return (
        f"<h3>{escape(workload)} {escape(str(about.get('name', '')))}</h3>"
        f'<p class="soft">{escape(str(about.get("asks", "")))}</p>{_table(head, rows)}'
        f'<div class="pair">{pictures}</div>'
    )


def _cells(result: Result, wanted: Sequence[columns.Column]) -> list[str]:
    if result.why:
        kind = "missed" if result.is_failure else "soft"
        return [*([""] * len(wanted)), f'<span class="{kind}">{escape(result.why)}</span>']
    told = []
    for column in wanted:
        stat = result.stat(column.figure)
        if stat is None:
            told.append("")
        elif stat.rounds == 1:
            told.append(escape(column.said(stat.median)))
        else:
            spread = f"{column.said(stat.low)}-{column.said(stat.high)}"
            told.append(f"{escape(column.said(stat.median))} <small>{escape(spread)}</small>")
    return [*told, escape(", ".join(result.marks))]


def _letter(figures: Figures, system: str) -> str:
    return f'<span class="class">{escape(figures.letter(system))}</span>'


def _kind(system: str) -> str:
    return "ours" if system == OURS else ""


def _table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(f'<tr class="{kind}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>' for kind, cells in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def _markdown_block(block: str) -> str:
    """A paragraph, or a table as tables.py writes it."""
    if not block.startswith("|"):
        return f"<p>{escape(block)}</p>"
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
    return _table(head, [("", [escape(cell) for cell in row]) for row in rows])
