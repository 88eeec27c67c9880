"""Renders the page of job `report`: one self-contained HTML file. Pure functions.

Invariants:
- no script, style or image comes from elsewhere: the page forbids them;
- the page can be read without colours, in light and dark mode; every name is escaped;
- tables and plots are bounded, and say what they omit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from dlog.spark.jobs.report_plots import (
    COLOURS,
    Bar,
    Series,
    Stripe,
    bars,
    growth,
    size_text,
    spark,
    stripes,
    time_text,
)

STREAMS_MAX = 1000  # rows of a table
BARS_MAX = 20

Row = Mapping[str, Any]

_STATES = {
    "reads": "reads",
    "begun": "begun",
    "truncated": "next records truncated",
    "beyond": "beyond the stream's end",
    "gone": "no such stream",
}
_WRONG = ("truncated", "beyond", "gone")


def page(
    counts: Mapping[str, int], items: Sequence[Row], failures: Sequence[Row], namespace: str, now_unix_ms: int
) -> str:
    """Render a report's rows."""
    streams = sorted((row for row in items if row["what"] == "stream"), key=lambda row: (-row["bytes"], row["stream"]))
    readers = [row for row in items if row["what"] == "reader"]
    proxies = [row for row in items if row["what"] == "proxy"]
    colours = {row["stream"]: number for number, row in enumerate(streams[:COLOURS]) if row["bytes"]}
    sections = [
        _failures(failures),
        _cards(counts),
        _section("Growth", "stored bytes, one copy of each, by the end of each segment", _growth(streams, colours)),
        _section("Size", "of the largest streams", _sizes(streams, colours)),
        _section("Readers", "how far each is behind the tail of its stream", _lag(readers)),
        _section("Owners", "streams of each write proxy, a stripe for each stream", _owners(proxies, streams, colours)),
        _section("Streams", "", _stream_table(streams, now_unix_ms)),
    ]
    title = f"dlog {namespace}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>dlog <span>{escape(namespace)}</span></h1>"
        f"<p>as of <time>{time_text(now_unix_ms)}</time></p></header>\n"
        + "\n".join(part for part in sections if part)
        + "\n<footer>Made by <code>dlog pipeline report</code> from metadata; no record was read. Sizes and counts of "
        "segments in progress are estimates. Lags are upper bounds: Spark reports a batch when the "
        "next one begins.</footer>\n</main>\n</body>\n</html>\n"
    )


# ---- sections -------------------------------------------------------------------------------------------------------


def _section(title: str, words: str, body: str) -> str:
    told = f"<p>{escape(words)}</p>" if words else ""
    return f"<section><h2>{escape(title)}</h2>{told}{body}</section>"


def _cards(counts: Mapping[str, int]) -> str:
    cards = [
        ("streams", f"{counts['streams']:,}"),
        ("segments", f"{counts['segments']:,}"),
        ("records", _short(counts["records"])),
        ("stored, one copy", size_text(counts["bytes"])),
        ("a day", f"+{size_text(counts['growth_bytes_a_day'])}"),
        ("records behind, at most", _short(counts["behind_records_max"])),
    ]
    told = (f"<div><strong>{escape(value)}</strong><span>{escape(name)}</span></div>" for name, value in cards)
    return f'<section class="cards">{"".join(told)}</section>'


def _growth(streams: Sequence[Row], colours: Mapping[str, int]) -> str:
    own = [Series(row["stream"], colours[row["stream"]], row["growth"]) for row in streams if row["stream"] in colours]
    rest = [Series(row["stream"], -1, row["growth"]) for row in streams if row["stream"] not in colours]
    series = list(own)
    moments = sorted({point[0] for one in rest for point in one.points})
    if moments:
        moments = [moments[round(i * (len(moments) - 1) / 99)] for i in range(100)] if len(moments) > 100 else moments
        told = [[moment, round(sum(one.at(moment) for one in rest))] for moment in moments]
        series.append(Series(_streams(len(rest)).replace(" ", " other ", 1), -1, told))
    drawn = growth(series)
    if not drawn:
        return _nothing("No segment has ended yet; growth is known once one has.")
    return _framed(drawn) + _legend(series)


def _legend(series: Sequence[Series]) -> str:
    told = (
        f'<li><i class="{f"c{one.colour}" if one.colour >= 0 else "rest"}"></i>{escape(one.name)}</li>'
        for one in series
    )
    return f'<ul class="legend">{"".join(told)}</ul>'


def _sizes(streams: Sequence[Row], colours: Mapping[str, int]) -> str:
    shown = streams[:BARS_MAX]
    rows = [
        Bar(
            row["stream"],
            row["bytes"],
            size_text(row["bytes"]),
            f"{row['stream']}: {size_text(row['bytes'])}, {row['records']:,} records in {row['segments']:,} segments",
            colours.get(row["stream"], -1),
        )
        for row in shown
    ]
    if not rows:
        return _nothing("There are no streams.")
    return _framed(bars(rows, "Size of the largest streams")) + _left_out(len(streams), len(shown), "streams")


def _lag(readers: Sequence[Row]) -> str:
    if not readers:
        return _nothing("No reader has reported its position; streaming queries with option readerId do.")
    furthest = sorted(readers, key=lambda row: (-(row["behind_records"] or 0), row["reader"], row["stream"]))
    shown = [row for row in furthest if row["behind_records"]][:BARS_MAX]
    rows = [
        Bar(
            f"{row['reader']} · {row['stream']}",
            row["behind_records"],
            f"{_short(row['behind_records'])} records",
            f"{row['reader']} in {row['stream']}: {row['behind_records']:,} records, {size_text(row['behind_bytes'])}",
        )
        for row in shown
    ]
    drawn = _framed(bars(rows, "Records that each reader is behind")) if rows else ""
    head = ("reader", "stream", "state", "#records behind", "#entries", "#bytes", "position", "reported at")
    table = _table(head, (_reader_cells(row) for row in furthest[:STREAMS_MAX]))
    return drawn + table + _left_out(len(furthest), len(furthest[:STREAMS_MAX]), "readers")


def _reader_cells(row: Row) -> list[str]:
    state = escape(_STATES[row["state"]])
    if row["state"] in _WRONG:
        state = f'<b class="wrong">✕ {state}</b>'
    size = "" if row["behind_bytes"] is None else size_text(row["behind_bytes"])
    return [
        escape(row["reader"]),
        escape(row["stream"]),
        state,
        *(_number(row[name]) for name in ("behind_records", "behind_entries")),
        size,
        escape(":".join(map(str, row["place"]))),
        time_text(row["told_unix_ms"]),
    ]


def _owners(proxies: Sequence[Row], streams: Sequence[Row], colours: Mapping[str, int]) -> str:
    if not proxies:
        return _nothing("No write proxy is registered.")
    sizes = {row["stream"]: row["bytes"] for row in streams}
    rows = []
    for row in proxies:
        held = [Stripe(name, sizes[name], colours.get(name, -1)) for name in row["streams"]]
        away = "" if row["registered"] else ", not registered"
        rows.append((row["address"], held, f"{_streams(len(held))}, {size_text(row['bytes'])}{away}"))
    alone = [row["stream"] for row in streams if row["owner"] is None]
    told = f"<p>{_streams(len(alone))} without an owner; the next append makes a proxy claim it.</p>" if alone else ""
    return _framed(stripes(rows, "Streams that each write proxy owns")) + told


def _stream_table(streams: Sequence[Row], now_unix_ms: int) -> str:
    shown = streams[:STREAMS_MAX]
    times = [point[0] for row in shown for point in row["growth"]]
    begin = min(times, default=0)
    head = ("stream", "growth", "#size", "#a day", "#records", "#segments", "owner", "kept for")
    rows = (_stream_cells(row, begin, now_unix_ms) for row in shown)
    return _table(head, rows) + _left_out(len(streams), len(shown), "streams")


def _stream_cells(row: Row, begin: int, now_unix_ms: int) -> list[str]:
    per_day = row["growth_bytes_a_day"]
    sealed = ' <span class="tag">sealed</span>' if row["sealed"] else ""
    return [
        escape(row["stream"]) + sealed,
        spark(row["growth"], begin, now_unix_ms, row["stream"]),
        size_text(row["bytes"]),
        "" if per_day is None else f"+{size_text(per_day)}",
        _number(row["records"]),
        _number(row["segments"]),
        escape(row["owner"] or ""),
        _duration(row["retention_s"]),
    ]


def _failures(failures: Sequence[Row]) -> str:
    if not failures:
        return ""
    told = (
        f"<li>{escape(' '.join(str(row[name]) for name in ('stream', 'reader') if row.get(name)))}: "
        f"{escape(str(row['error']))}</li>"
        for row in failures[:BARS_MAX]
    )
    more = _left_out(len(failures), len(failures[:BARS_MAX]), "failures")
    return f'<section class="failed"><h2>Not reported</h2><ul>{"".join(told)}</ul>{more}</section>'


# ---- parts ----------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Cells are HTML already. Columns whose head begins with # are numbers."""
    right = [name.startswith("#") for name in head]
    names = "".join(
        f'<th scope="col"{" class=n" if is_right else ""}>{escape(name.removeprefix("#"))}</th>'
        for name, is_right in zip(head, right, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=n' if is_right else ''}>{cell}</td>" for cell, is_right in zip(cells, right, strict=True)
        )
        + "</tr>\n"
        for cells in rows
    )
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _framed(drawn: str) -> str:
    return f'<div class="wide"><div class="frame">{drawn}</div></div>'


def _nothing(words: str) -> str:
    return f'<p class="nothing">{escape(words)}</p>'


def _left_out(there: int, shown: int, what: str) -> str:
    return f"<p>{there - shown:,} more {what} are in the JSON report.</p>" if there > shown else ""


def _streams(number: int) -> str:
    return f"{number:,} stream{'' if number == 1 else 's'}"


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _short(number: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if number >= size:
            return f"{number / (1000 if unit == 'k' else size):,.1f} {unit}"
    return f"{number:,}"


def _duration(seconds: float) -> str:
    if not seconds:
        return "ever"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


_LIGHT = (
    "--page:#f6f6f3;--card:#fff;--ink:#191918;--soft:#5d5c57;--line:#e3e2dc;--accent:#2a6fdb;--wrong:#b3261e;"
    "--rest:#b9b8b0;--c0:#2a6fdb;--c1:#0f9d76;--c2:#e0910a;--c3:#7a4fd0;--c4:#d8473c;--c5:#0e93b4;--c6:#c2559a"
)
_DARK = (
    "--page:#161615;--card:#1f1f1d;--ink:#efeee9;--soft:#a3a29a;--line:#35342f;--accent:#5b9bff;--wrong:#ff8a80;"
    "--rest:#63625b;--c0:#5b9bff;--c1:#34c79a;--c2:#f2b13c;--c3:#a98bf5;--c4:#f5776d;--c5:#3fbfe0;--c6:#e585c0"
)
_STYLE = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}}
main{{max-width:1080px;margin:0 auto;padding:32px 20px 48px}}
header{{display:flex;flex-wrap:wrap;align-items:baseline;justify-content:space-between;gap:0 24px;margin-bottom:20px}}
h1{{font-size:26px;line-height:1.2;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}}
h1 span{{color:var(--soft);font-weight:400}}
h2{{font-size:17px;margin:0}}
p{{margin:0;color:var(--soft)}}
section{{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:20px;margin:0 0 16px}}
section>p,section>.wide,section>.nothing{{margin-top:4px}}
.wide{{overflow-x:auto}}
.wide+.wide{{margin-top:16px}}
.frame{{min-width:640px;padding-top:12px}}
.cards{{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:1px;padding:0;overflow:hidden;
background:var(--line)}}
.cards div{{background:var(--card);padding:16px 20px}}
.cards strong{{display:block;font-size:23px;line-height:1.25;font-weight:600;letter-spacing:-.01em}}
.cards span{{color:var(--soft);font-size:13px}}
.failed{{border-color:var(--wrong)}}
.failed h2,.wrong{{color:var(--wrong)}}
.failed ul{{margin:8px 0 0;padding-left:20px;overflow-wrap:anywhere}}
.legend{{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:12px 0 0;padding:0;font-size:13px}}
.legend li{{overflow-wrap:anywhere}}
.legend i{{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:7px;vertical-align:-1px}}
svg{{display:block;width:100%;height:auto}}
.spark{{width:120px;height:26px}}
.spark polygon{{fill:var(--accent);opacity:.14}}
.spark polyline{{fill:none;stroke:var(--accent);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}}
text{{font-size:14px;fill:var(--ink)}}
text.tick{{font-size:13px;fill:var(--soft)}}
text.value{{fill:var(--soft)}}
text.end{{text-anchor:end}}
text.middle{{text-anchor:middle}}
.grid{{stroke:var(--line);stroke-width:1}}
.area{{stroke:var(--card);stroke-width:1;fill-opacity:.88}}
.hit{{fill:transparent}}
.accent{{fill:var(--accent)}}
.rest{{fill:var(--rest);background:var(--rest)}}
{"".join(f".c{n}{{fill:var(--c{n});background:var(--c{n})}}" for n in range(COLOURS))}
table{{border-collapse:collapse;width:100%;font-size:14px;margin-top:12px}}
th{{text-align:left;font-weight:600;color:var(--soft);font-size:13px;white-space:nowrap}}
th,td{{padding:6px 18px 6px 0;border-bottom:1px solid var(--line);vertical-align:middle}}
td{{font-variant-numeric:tabular-nums;white-space:nowrap}}
td:first-child{{min-width:140px;white-space:normal;overflow-wrap:anywhere}}
.n{{text-align:right}}
th:last-child,td:last-child{{padding-right:0}}
tbody tr:last-child td{{border-bottom:0}}
.tag{{border:1px solid var(--line);border-radius:6px;padding:0 6px;font-size:12px;color:var(--soft)}}
footer{{color:var(--soft);font-size:13px;margin-top:24px}}
code{{font-family:ui-monospace,monospace;font-size:.95em}}
@media print{{section{{break-inside:avoid}}}}
""".strip()
