"""From runs to tables: whose sequence holds, and which runs make up which part of which table. Arithmetic alone.

The law of this file: a table is whole, record after record, from behind its mark to its last record, or it fails here
with the place where it is not, and no other table with it. A part is bounded in bytes, whatever the table weighs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlog.spark.jobs.replay_marks import Marks
from dlog.spark.jobs.replay_runs import ROW, RUN, Split, Structured


@dataclass(frozen=True, slots=True)
class TableRuns:
    """The runs of a table, in the order of its region. files: of each run its own."""

    region: str
    table: int
    files: tuple[str, ...]
    runs: Structured

    @property
    def records(self) -> int:
        return int(self.runs["rows"].sum())

    @property
    def bytes(self) -> int:
        """Of payloads."""
        return int(self.runs["data_bytes"].sum())

    def as_map(self) -> dict[str, Any]:
        """What a manifest begins with."""
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
    """Consecutive records of a table: what one task takes at least. number: from 0, of `parts`."""

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
    """What the pieces of a region, in its order, hold of each table; tables in their order."""
    runs = np.concatenate([split.runs for split in splits]) if splits else np.zeros(0, RUN)
    if not len(runs):
        return
    files = [split.file for split in splits]
    piece = np.repeat(np.arange(len(splits)), [len(split.runs) for split in splits])
    order = np.argsort(runs["table"], kind="stable")  # blocks of a piece follow each other already
    runs, piece = runs[order], piece[order]
    begins = np.flatnonzero(np.concatenate(([True], runs["table"][1:] != runs["table"][:-1])))
    for begin, end in zip(begins, [*begins[1:], len(runs)], strict=True):
        names = tuple(files[number] for number in piece[begin:end])
        yield TableRuns(region, int(runs["table"][begin]), names, runs[begin:end])


def broken(of: TableRuns, marks: Marks) -> dict[str, Any] | None:
    """Where the sequence of a table breaks first; None: it holds."""
    runs = of.runs
    mark = marks.of_table(of.table)
    expected = np.empty(len(runs), np.int64)
    expected[0] = runs["first_sequence"][0] if mark is None else mark + 1
    expected[1:] = runs["last_sequence"][:-1] + 1
    before = runs["first_sequence"] != expected
    inside = runs["break_segment"] >= 0
    if not (before | inside).any():
        return None
    at = int(np.argmax(before | inside))
    run = runs[at]
    wanted, found = (expected[at], run["first_sequence"]) if before[at] else (run["break_expected"], run["break_found"])
    what = "gap" if found > wanted else "regression"
    return {
        "region": of.region,
        "table": of.table,
        "error": f"sequence {what}",
        "dlsn": dlsn_text(run, "first" if before[at] else "break"),
        "expected": int(wanted),
        "found": int(found),
        "advice": _ADVICE[what] if at or not before[at] else f"{_ADVICE[what]}, or the mark is of another table",
    }


_ADVICE = {
    "gap": "records between were truncated or never written: read from further back, or restore the table elsewhere",
    "regression": "two writers numbered the same table: nothing of it was handed on",
}


def parts_of(of: TableRuns, part_bytes: int) -> list[Part]:
    """A table in parts of at most so many bytes, but of one run at least."""
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
    """Small parts share a task, in their order, up to so many bytes."""
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
