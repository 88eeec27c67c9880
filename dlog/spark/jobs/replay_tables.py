"""Assigns runs to tables and parts, and checks the sequences of tables. Pure computation.

Invariants:
- a table is complete, from the record after its mark to its last record; else it fails here, with the position of the
  fault, and no other table with it;
- a part is bounded in bytes, whatever the size of its table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlog.spark.jobs.flushed_sequences import Marks
from dlog.spark.jobs.replay_runs import ROW, RUN, Split, Structured
from dlog.spark.jobs.wal import KnownTable


@dataclass(frozen=True, slots=True)
class TableRuns:
    """The runs of a table, in the order of its region. files: the run file of each run."""

    region: str
    table: int
    files: tuple[str, ...]
    runs: Structured

    @property
    def records(self) -> int:
        return int(self.runs["rows"].sum())

    @property
    def bytes(self) -> int:
        """Bytes of payloads."""
        return int(self.runs["data_bytes"].sum())

    def as_map(self) -> dict[str, Any]:
        """The first fields of a manifest."""
        first, last = self.runs[0], self.runs[-1]
        return {
            "region": self.region,
            "table": self.table,
            "first_dlsn": dlsn_text(first, "first"),
            "last_dlsn": dlsn_text(last, "last"),
            "first_sequence": int(first["first_sequence"]),
            "last_sequence": int(last["last_sequence"]),
            "records": self.records,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive records of a table, handled by one task. number: from 0, of `parts`."""

    of: TableRuns
    number: int
    parts: int

    @property
    def name(self) -> str:
        return f"{self.of.region}-{self.of.table}-{self.number:05d}"

    @property
    def weight(self) -> int:
        return _weight(self.of.runs)


def dlsn_text(run: Any, side: str) -> str:
    return f"{run[f'{side}_segment']}:{run[f'{side}_entry']}:{run[f'{side}_slot']}"


def tables_of(region: str, splits: Sequence[Split]) -> Iterator[TableRuns]:
    """The runs of each table in a region. splits: its pieces, in order. Tables are sorted by number."""
    runs = np.concatenate([split.runs for split in splits]) if splits else np.zeros(0, RUN)
    if not len(runs):
        return
    files = [split.file for split in splits]
    piece = np.repeat(np.arange(len(splits)), [len(split.runs) for split in splits])
    order = np.argsort(runs["table"], kind="stable")  # stable: runs of a table stay in the order of the region
    runs, piece = runs[order], piece[order]
    begins = np.flatnonzero(np.concatenate(([True], runs["table"][1:] != runs["table"][:-1])))
    for begin, end in zip(begins, [*begins[1:], len(runs)], strict=True):
        names = tuple(files[number] for number in piece[begin:end])
        yield TableRuns(region, int(runs["table"][begin]), names, runs[begin:end])


def broken(of: TableRuns, marks: Marks, known: KnownTable | None = None) -> dict[str, Any] | None:
    """The first break in the sequence of a table; None if there is none. known: by its store."""
    runs = of.runs
    mark = marks.of_table(of.table)
    expected = np.empty(len(runs), np.int64)
    expected[0] = known.first if known is not None else runs["first_sequence"][0] if mark is None else mark + 1
    expected[1:] = runs["last_sequence"][:-1] + 1
    before = runs["first_sequence"] != expected
    inside = runs["break_segment"] >= 0
    if not (before | inside).any():
        last = int(runs["last_sequence"][-1])
        if known is None or last + 1 == known.next:
            return None
        return _break(known, dlsn_text(runs[-1], "last"), last + 1, known.next, _ADVICE["gap"])
    at = int(np.argmax(before | inside))
    run = runs[at]
    wanted, found = (expected[at], run["first_sequence"]) if before[at] else (run["break_expected"], run["break_found"])
    advice = _ADVICE["gap" if found > wanted else "regression"]
    if known is None and not at and before[at]:
        advice = f"{advice}, or the mark belongs to another table"
    return _break(of, dlsn_text(run, "first" if before[at] else "break"), int(wanted), int(found), advice)


def missing(known: KnownTable) -> dict[str, Any] | None:
    """Why a table of which nothing was found fails; None if it has no record behind its mark."""
    if known.first == known.next:
        return None
    advice = _ADVICE["gap"]
    if known.first > known.next:
        advice = "the mark is beyond the last record: it belongs to another table, or the region has lost records"
    return _break(known, "", known.first, known.next, advice)


def _break(of: TableRuns | KnownTable, dlsn: str, expected: int, found: int, advice: str) -> dict[str, Any]:
    return {
        "region": of.region,
        "table": of.table,
        "error": f"sequence {'gap' if found > expected else 'regression'}",
        "dlsn": dlsn,
        "expected": expected,
        "found": found,
        "advice": advice,
    }


_ADVICE = {
    "gap": "records between were truncated or never written: read from an earlier position, or restore the table",
    "regression": "two writers numbered the same table: nothing of it was replayed",
}


def parts_of(of: TableRuns, part_bytes: int) -> list[Part]:
    """Divide a table into parts of at most `part_bytes`, each of at least one run."""
    ends = []
    weight = 0
    for at, run in enumerate(of.runs):
        size = int(run["data_bytes"]) + int(run["rows"]) * ROW.itemsize
        if weight and weight + size > part_bytes:
            ends.append(at)
            weight = 0
        weight += size
    ends.append(len(of.runs))
    begins = [0, *ends[:-1]]
    return [
        Part(TableRuns(of.region, of.table, of.files[begin:end], of.runs[begin:end]), number, len(ends))
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]


def packed(parts: Sequence[Part], task_bytes: int) -> list[list[Part]]:
    """Group small parts into tasks, in order, up to `task_bytes`."""
    tasks: list[list[Part]] = []
    weight = 0
    for part in parts:
        size = part.weight
        if not tasks or weight + size > task_bytes:
            tasks.append([])
            weight = 0
        tasks[-1].append(part)
        weight += size
    return tasks


def _weight(runs: Structured) -> int:
    return int(runs["data_bytes"].sum()) + int(runs["rows"].sum()) * ROW.itemsize
