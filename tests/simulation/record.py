"""The record of hunts: what was run, on which commit, with which faults; and the tables of docs/reliability.md from it.

    python -m tests.simulation --seeds 20000 --first 1000000 --record tests/simulation/record.json
    python -m tests.simulation --mutants --record tests/simulation/record.json
    python -m tests.chaos --minutes 4 --json >chaos.json;  python -m tests.simulation.record --chaos chaos.json
    python -m loadtest failover --json >kills.json;        python -m tests.simulation.record --owners kills.json
    python -m tests.simulation.record            # render the tables into docs/reliability.md

Invariants:
- A hunt in a tree with uncommitted changes is not recorded, because nobody could repeat it.
- A seed counts once per commit and simulation.
- The page shows what the record contains (a test compares them).
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.simulation.hunting import Tally
from tests.simulation.mutant_table import Row
from tests.simulation.worlds import Mutant, Room

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).parent / "record.json"
PAGE = ROOT / "docs" / "reliability.md"
TABLES = ("hunts", "faults", "chaos", "gaps", "owners", "mutants")


def python_version() -> str:
    """The version as the record names it."""
    return platform.python_version()


def load(path: Path) -> dict[str, Any]:
    """The record; an empty one if there is none yet."""
    nothing = {"hunts": [], "chaos": [], "owners": {}, "mutants": {"commit": "", "python": "", "rows": []}}
    return {**nothing, **json.loads(path.read_text())} if path.exists() else nothing


def save(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def git(*arguments: str) -> str:
    """Run git in this tree and return its output."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.rstrip()  # what `status` says begins with a space


def changed_names() -> list[str]:
    """Files that differ from the commit, relative to the tree."""
    return [line[3:] for line in git("status", "--porcelain").splitlines()]


def refuse_changes(path: Path) -> str:
    """Exit if the tree has uncommitted changes, except in the record itself and the page made from it. Returns the
    commit that the present run belongs to, whatever is committed while it runs."""
    own = {str(p.resolve().relative_to(ROOT)) for p in (path, PAGE) if p.resolve().is_relative_to(ROOT)}
    others = [name for name in changed_names() if name not in own]
    if others:
        sys.exit(f"nothing is recorded of a tree with changes: {', '.join(others[:5])}")
    return git("rev-parse", "HEAD")


def add_hunt(path: Path, commit: str, room: Room, tally: Tally, first: int) -> None:
    """Add a hunt to the line of its commit and simulation. Exits if some of its seeds are in it already."""
    if not tally.seeds:
        return
    kept = load(path)
    add_to(kept, commit, room, tally, first)
    save(path, kept)


def add_to(kept: dict[str, Any], commit: str, room: Room, tally: Tally, first: int) -> None:
    """Do the work of add_hunt on the record's value."""
    key = {"commit": commit, "room": room.name, "python": python_version()}
    line = next((h for h in kept["hunts"] if all(h[k] == v for k, v in key.items())), None)
    if line is None:
        line = {**key, "styles": {}, "faults": {}, "progress": {}, "seeds": 0, "events": 0, "violations": 0}
        line.update({"simulated_s": 0, "cpu_s": 0})
        kept["hunts"].append(line)
    for style, seeds in tally.seeds.items():
        ranges = line["styles"].setdefault(style, [])
        for begun, count in ranges:
            if first < begun + count and begun < first + seeds:
                sys.exit(f"already recorded: {room.name} {style} seeds {begun} .. {begun + count - 1}")
        ranges.append([first, seeds])
    for name, counts in (("faults", tally.faults), ("progress", tally.progress(room))):
        for what, count in counts.items():
            line[name][what] = line[name].get(what, 0) + count
    line["seeds"] += tally.seeds.total()
    line["events"] += tally.events
    line["violations"] += len(tally.broken)
    line["simulated_s"] += round(tally.virtual_s)
    line["cpu_s"] += round(tally.cpu_s)


def set_mutants(path: Path, commit: str, rows: list[Row]) -> None:
    """Replace the table of mutants (of the simulations it is about)."""
    kept = load(path)
    rooms = {row.room for row in rows}
    others = [row for row in kept["mutants"]["rows"] if row["room"] not in rooms]
    kept["mutants"] = {
        "commit": commit,
        "python": python_version(),
        "rows": [*others, *(row.as_json() for row in rows)],
    }
    save(path, kept)


def seed_of_catch(room: Room, mutant: Mutant) -> int | None:
    """The first seed that caught a planted defect when the table of mutants was recorded, or None if it has no row."""
    found = _seeds_of_catches().get((room.name, mutant.name, mutant.style or room.styles[0]))
    return found if found in range(mutant.seeds) else None


@cache
def _seeds_of_catches() -> dict[tuple[str, str, str], int]:
    """By simulation, defect and style."""
    return {(row["room"], row["name"], row["style"]): row["seed"] for row in load(RECORD)["mutants"]["rows"]}


def add_chaos(path: Path, report: dict[str, Any]) -> None:
    """Add the report of a run of tests.chaos with --json. A seed counts once per commit."""
    kept, commit = load(path), git("rev-parse", "HEAD")
    kept["chaos"] = [run for run in kept["chaos"] if (run["commit"], run["seed"]) != (commit, report["seed"])]
    verdict = report["verdict"]
    kept["chaos"].append(
        {
            "commit": commit,
            "seed": report["seed"],
            "seconds": report["seconds"],
            "exit": report["exit"],
            "takeovers": report["takeovers"],
            "faults": report["faults"],
            "ack_gap_ms": report["ack_gap_ms"],
            "acknowledged": verdict["acknowledged"],
            "delivered": verdict["delivered"],
            "readers": verdict["readers"],
            "breaches": sum(verdict["breaches"].values()) + verdict["unread"],
            "not_run": report["not_run"],
        }
    )
    save(path, kept)


def set_owners(path: Path, report: dict[str, Any]) -> None:
    """Replace the report of `python -m loadtest failover`, `freeze`, `handover`, `heirs` or `away`."""
    kept = load(path)
    kept["owners"][report["fault"]] = {"commit": git("rev-parse", "HEAD"), **report}
    save(path, kept)


# ---- the page -------------------------------------------------------------------------------------------------------


def render(kept: dict[str, Any]) -> dict[str, str]:
    """The tables in Markdown, by name."""
    return {
        "hunts": _hunts(kept["hunts"]),
        "faults": _faults(kept["hunts"]),
        "chaos": _chaos(kept["chaos"]),
        "gaps": _gaps(kept["chaos"]),
        "owners": _owners(kept["owners"]),
        "mutants": _mutants(kept["mutants"]),
    }


def _hunts(hunts: list[dict[str, Any]]) -> str:
    head = ("room", "commit", "python", "seeds", "first seeds", "faults", "simulated hours", "reached", "CPU", "broken")
    rows = []
    for line in hunts:
        firsts = sorted({begun for ranges in line["styles"].values() for begun, _ in ranges})
        rows.append(
            (
                line["room"],
                f"`{line['commit'][:10]}`",
                line["python"],
                f"{line['seeds']:,}",
                ", ".join(f"{first:,}" for first in firsts),
                f"{sum(line['faults'].values()):,}",
                f"{line['simulated_s'] / 3600:,.1f}",
                ", ".join(f"{count:,} {name}" for name, count in line["progress"].items()),
                f"{line['cpu_s'] / 60:,.0f} min",
                str(line["violations"]),
            )
        )
    return _table(head, rows)


def _faults(hunts: list[dict[str, Any]]) -> str:
    rooms = sorted({line["room"] for line in hunts})
    kinds = sorted({kind for line in hunts for kind in line["faults"]})
    rows = []
    for kind in kinds:
        counts = [sum(h["faults"].get(kind, 0) for h in hunts if h["room"] == room) for room in rooms]
        rows.append((kind, *(f"{n:,}" if n else "" for n in counts)))
    return _table(("fault", *rooms), rows)


def _chaos(runs: list[dict[str, Any]]) -> str:
    head = ("seed", "commit", "minutes", "faults", "take-overs", "acknowledged", "delivered to readers", "breaches")
    rows = [
        (
            str(run["seed"]),
            f"`{run['commit'][:10]}`",
            f"{run['seconds'] / 60:.1f}",
            str(sum(run["faults"].values())),
            str(run["takeovers"]),
            f"{run['acknowledged']:,}",
            f"{run['delivered']:,}",
            str(run["breaches"]),
        )
        for run in runs
    ]
    left_out = sorted({line for run in runs for line in run["not_run"]})
    said = f"\n\nNot run: {'; '.join(left_out)}." if left_out else ""
    return _table(head, rows) + said


def _gaps(runs: list[dict[str, Any]]) -> str:
    """The median of the medians of all runs, and the longest gap."""
    gaps: dict[str, list[dict[str, int]]] = {}
    times: Counter[str] = Counter()
    for run in runs:
        times.update(run["faults"])
        for fault, gap in run["ack_gap_ms"].items():
            gaps.setdefault(fault, []).append(gap)
    rows = []
    for fault, found in sorted(gaps.items()):
        middle = sorted(gap["p50"] for gap in found)[len(found) // 2]
        rows.append((fault, str(times[fault]), f"{middle:,}", f"{max(gap['max'] for gap in found):,}"))
    return _table(("fault", "times", "ack gap p50 ms", "longest ms"), rows)


def _owners(kinds: dict[str, dict[str, Any]]) -> str:
    head = ("what", "rounds", "ack gap p50 ms", "longest ms", "goal", "lost, duplicated, failed appends", "commit")
    rows = []
    for name, told in sorted(kinds.items()):
        goals = ", ".join(f"{figure[:3]} <= {goal['at_most']:,.0f}" for figure, goal in sorted(told["goals"].items()))
        wrong = 0 if told["green"] else len(told["failed"]) or 1
        half = f"{told['p50_ms']:,.0f}" if "p50_ms" in told else ""
        figures = (str(told["rounds"]), half, f"{told['max_ms']:,.0f}")
        what = f"{name}, {told['said']}" if "said" in told else name
        rows.append((what, *figures, goals, str(wrong), f"`{told['commit'][:10]}`"))
    return _table(head, rows)


def _mutants(mutants: dict[str, Any]) -> str:
    head = ("invariant", "planted defect", "room", "style", "first seed", "CPU s")
    rows = [
        (
            row["invariant"] or "NOT CAUGHT",
            row["name"],
            row["room"],
            row["style"],
            str(row["seed"]),
            f"{row['cpu_s']:.2f}",
        )
        for row in sorted(mutants["rows"], key=lambda row: (row["room"], row["invariant"], row["name"]))
    ]
    if not rows:
        return _table(head, rows)
    slowest = max(row["cpu_s"] for row in mutants["rows"])
    said = f"{len(rows)} planted defects, the slowest caught after {slowest:.1f} CPU seconds"
    return f"{said} (commit `{mutants['commit'][:10]}`, Python {mutants['python']}).\n\n{_table(head, rows)}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markers(name: str) -> tuple[str, str]:
    """The markers before and after a table in the page."""
    return f"<!-- {name}: rendered from tests/simulation/record.json -->", f"<!-- {name}: end -->"


def between(page: str, name: str) -> str:
    """The text between a table's markers. Raises ValueError if they are missing."""
    begin, end = markers(name)
    return page[page.index(begin) + len(begin) : page.index(end)].strip()


def rendered(page: str, kept: dict[str, Any]) -> str:
    """The page with its tables rendered again."""
    for name, table in render(kept).items():
        begin, end = markers(name)
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return page


def main(argv: Sequence[str] | None = None) -> int:
    """Take reports into the record and render the page. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.record", description="The record and its page.")
    parser.add_argument("--chaos", type=Path, action="append", default=[], help="what tests.chaos told with --json")
    parser.add_argument("--owners", type=Path, action="append", default=[], help="what loadtest failover ... told")
    given = parser.parse_args(argv)
    if given.chaos or given.owners:
        refuse_changes(RECORD)
    for report in given.chaos:
        add_chaos(RECORD, json.loads(report.read_text()))
    for report in given.owners:
        set_owners(RECORD, json.loads(report.read_text()))
    PAGE.write_text(rendered(PAGE.read_text(), load(RECORD)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
