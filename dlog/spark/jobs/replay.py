"""Job `replay`: splits regions by table, from where each table was flushed, into files or calls of a function.

    pieces of a region --(a task each)--> run files --(index, on the driver)--> tables --(parts)--> files, or calls

Invariants:
- rows never pass through the driver or a shuffle, only the index of runs does;
- a table that is not complete fails, without affecting others;
- what a killed run has done is not done again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

from dlog.errors import ConfigError, DLogError
from dlog.spark.jobs.flushed_sequences import Marks
from dlog.spark.jobs.frame import Progress, Report, Selection, reporting, scatter
from dlog.spark.jobs.replay_merge import FORMATS, Merge, function_of
from dlog.spark.jobs.replay_runs import Split, Splitter, write_split
from dlog.spark.jobs.replay_tables import Part, TableRuns, broken, missing, packed, parts_of, tables_of
from dlog.spark.jobs.replay_work import Work
from dlog.spark.jobs.wal import NUMBER_MAX, KnownTable, RegionPiece, StreamWal, Wal, WalPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BYTES_MAX = 1 << 30  # of a run: offsets have 32 bits
_LEFT_OUT_MAX = 1000  # lines that a piece reports


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What is done with regions. All workers must have access to the directories.

    marks: how far each table was flushed. tables: only these; empty: all. to: directory for files of `format`; or
    function: `module:function`, called as function(TablePart, batches). at_once: parts of one table may be passed to
    the function concurrently, else one after another. work: directory for run files; default: in `to`. source: options
    of the source, e.g. startingOffsets. piece_bytes: of a region, for a task. run_bytes: of records that a task holds
    in memory. part_bytes: of a table, for a task.
    """

    marks: Marks = field(default_factory=Marks)
    tables: tuple[int, ...] = ()
    to: str = ""
    function: str = ""
    format: str = "parquet"
    at_once: bool = False
    work: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    piece_bytes: int = 64 << 20
    run_bytes: int = 32 << 20
    part_bytes: int = 128 << 20
    dry_run: bool = False

    def __post_init__(self) -> None:
        if not self.dry_run and bool(self.to) == bool(self.function):
            raise ConfigError("set either a directory for files (to) or a replay function (function)")
        if self.function and not self.dry_run and not self.work:
            raise ConfigError("a replay function needs a work directory that all workers can access, set work")
        if self.format not in FORMATS:
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}: format={self.format[:40]}")
        if any(not 0 <= table <= NUMBER_MAX for table in self.tables):
            raise ConfigError("a table must be a whole number from 0 to 2**63 - 1")
        for name in ("piece_bytes", "run_bytes", "part_bytes"):
            if not 1 <= getattr(self, name) <= _BYTES_MAX:
                raise ConfigError(f"{name} must be from 1 to {_BYTES_MAX}: value={getattr(self, name)}")

    def identity(self) -> dict[str, Any]:
        """The options that determine the output, as JSON."""
        return {
            "marks": self.marks.as_map(),
            "tables": sorted(set(self.tables)),
            "function": self.function,
            "format": self.format,
            "piece_bytes": self.piece_bytes,
            "run_bytes": self.run_bytes,
            "part_bytes": self.part_bytes,
        }


def replay(
    spark: SparkSession,
    selection: Selection | None,
    options: ReplayOptions,
    *,
    progress: Progress | None = None,
    wal: Wal | None = None,
) -> Report:
    """Replay the streams that `selection` names, or the regions of `wal`. Items of the report: a manifest for each
    table.

    Failures: tables with a gap or a regression in their sequence, with files that cannot be written or a function that
    fails; and regions that cannot be read. The next run continues with those. A function is called again for a part if
    the job was killed before the part was recorded as done.
    Raises ConfigError, and DLogError if nothing could be planned.
    """
    with reporting("replay", dry_run=options.dry_run) as report:
        if wal is None:
            if selection is None:
                raise ConfigError("name the streams that are regions (selection), or another write-ahead log (wal)")
            wal = StreamWal(selection, options.source)
        if options.dry_run:
            _look(_Job(spark, options, report, progress), wal)
            return report
        if options.function:
            function_of(options.function)
        to = Path(options.to).absolute() if options.to else None
        root = Path(options.work).absolute() if options.work else (to or Path()) / "_replay"
        with Work(root, to) as work:
            _replay(_Job(spark, options, report, progress), wal, work)
    return report


@dataclass(frozen=True, slots=True)
class _Job:
    spark: SparkSession
    options: ReplayOptions
    report: Report
    progress: Progress | None

    def scatter(self, tasks: Sequence[Any], work: Callable[[Any], Any], what: str) -> list[Any]:
        return scatter(self.spark, tasks, work, what=what, progress=self.progress)


def _look(job: _Job, wal: Wal) -> None:
    """Dry run: report the tables, without files."""
    plan = _planned(job, wal)
    work = partial(_split, wal=wal, known=plan.tables, options=job.options, directory=None)
    for table in _tables(job, plan, job.scatter(plan.pieces, work, "count")):
        parts = parts_of(table, job.options.part_bytes)
        job.report.items.append({**table.as_map(), "parts": len(parts)})
        job.report.add("parts", len(parts))
        job.report.add("bytes", table.bytes)


def _planned(job: _Job, wal: Wal) -> WalPlan:
    return wal.plan(job.options.piece_bytes, job.options.marks, job.options.tables)


def _replay(job: _Job, wal: Wal, work: Work) -> None:
    token = uuid4().hex[:12]
    identity = {"wal": wal.identity(), **job.options.identity()}
    plan = work.plan(identity, partial(_planned, job, wal), token)
    pieces = plan.pieces
    over = work.report()
    if over is not None:
        job.report.counts, job.report.items = over["counts"], over["items"]
        job.report.findings = over["findings"]
        return
    known = {(piece.region, piece.number): work.split_of(piece) for piece in pieces}
    todo = [piece for piece in pieces if known[piece.region, piece.number] is None]
    job.report.add("pieces_kept", len(pieces) - len(todo))
    split = partial(_split_in, wal=wal, known=plan.tables, options=job.options, work=work.runs)
    done = job.scatter(todo, split, "split")
    results = dict(zip(((piece.region, piece.number) for piece in todo), done, strict=True))
    splits = [_found(work, piece, results.get((piece.region, piece.number), "")) for piece in pieces]
    _merge(job, work, _tables(job, plan, splits), token)
    if not job.report.failures:
        work.finish(job.report.as_map(), token)


# ---- pieces into runs -----------------------------------------------------------------------------------------------


def _split(
    piece: RegionPiece, *, wal: Wal, known: Sequence[KnownTable], options: ReplayOptions, directory: Path | None
) -> Split | str:
    """In a task: the runs of a piece, or an error message."""
    into = Split(piece.region, piece.number)

    def on_skipped(text: str) -> None:
        if len(into.left_out) < _LEFT_OUT_MAX:
            into.left_out.append(text)

    def splitter(into: Split, file: IO[bytes] | None) -> Splitter:
        return Splitter(into, file, marks=options.marks, tables=options.tables, run_bytes=options.run_bytes)

    try:
        batches = wal.read(piece, known, on_skipped)
        if directory is not None:
            return write_split(into, directory, uuid4().hex[:12], batches, splitter)
        work = splitter(into, None)
        for batch in batches:
            work.add(batch)
        return work.end()
    except DLogError as error:
        return error.message
    except (OSError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"


def _split_in(piece: RegionPiece, *, wal: Wal, known: Sequence[KnownTable], options: ReplayOptions, work: Path) -> str:
    """In a task: write the runs of a piece, for the driver to read; returns an error message, or ""."""
    done = _split(piece, wal=wal, known=known, options=options, directory=work)
    return done if isinstance(done, str) else ""


def _found(work: Work, piece: RegionPiece, why: str) -> Split | str:
    if why:
        return why
    split = work.split_of(piece)
    return split or f"the driver cannot see a worker's files, set a shared work directory: directory={work.runs}"


# ---- runs into tables -----------------------------------------------------------------------------------------------


def _tables(job: _Job, plan: WalPlan, done: Sequence[Split | str]) -> list[TableRuns]:
    """Complete tables of readable regions; the others are reported."""
    report, pieces = job.report, plan.pieces
    report.counts |= dict.fromkeys(("records", "flushed", "others", "tables", "parts", "bytes"), 0)
    report.add("pieces", len(pieces))
    regions = dict.fromkeys([*(piece.region for piece in pieces), *(table.region for table in plan.tables)])
    by_region: dict[str, list[Split]] = {region: [] for region in regions}
    unread: set[str] = set()
    for piece, split in zip(pieces, done, strict=True):
        if isinstance(split, str):
            unread.add(piece.region)
            report.failures.append({"region": piece.region, "piece": piece.number, "error": split[:500]})
            continue
        by_region[piece.region].append(split)
        for name in ("records", "flushed", "others"):
            report.add(name, getattr(split, name))
        report.findings += [{"region": piece.region, "kind": "left out", "text": text} for text in split.left_out]
    report.add("regions", len(by_region))
    known = {(table.region, table.table): table for table in plan.tables}
    whole = []
    for region, splits in by_region.items():
        for table in tables_of(region, splits) if region not in unread else ():
            failure = broken(table, job.options.marks, known.pop((region, table.table), None))
            report.add("tables")
            if failure is None:
                whole.append(table)
            else:
                report.failures.append(failure)
    for left in known.values():
        if left.region not in unread and (failure := missing(left)) is not None:
            report.add("tables")
            report.failures.append(failure)
    return whole


# ---- tables into files, or calls ------------------------------------------------------------------------------------


def _merge(job: _Job, work: Work, tables: Sequence[TableRuns], token: str) -> None:
    options, report = job.options, job.report
    merge = Merge(runs=work.runs, notes=work.notes, files=work.parts, function=options.function, format=options.format)
    waiting: list[list[Part]] = []
    for table in tables:
        there = work.manifest_of(table.region, table.table)
        if there is None:
            waiting.append(parts_of(table, options.part_bytes))
        else:
            report.items.append(there)
            report.add("tables_kept")
    notes: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    failed: set[tuple[str, int]] = set()
    for round_, parts in enumerate(_rounds(waiting, bool(options.function) and not options.at_once)):
        left = [part for part in parts if (part.of.region, part.of.table) not in failed]
        report.add("parts_kept", sum(merge.note_of(part).exists() for part in left))
        tasks = packed(left, options.part_bytes)
        what = "call" if options.function else "merge"
        for done in job.scatter(tasks, partial(_merge_in, merge=merge), f"{what} {round_ + 1}" if round_ else what):
            for note in done:
                key = (note["region"], note["table"])
                if "error" in note:
                    failed.add(key)
                    report.failures.append(note)
                else:
                    notes[key].append(note)
    for parts in waiting:
        key = (parts[0].of.region, parts[0].of.table)
        if key not in failed:
            _publish(job, work, sorted(notes[key], key=lambda note: int(note["part"])), token)
    report.items.sort(key=lambda item: (item["region"], item["table"]))
    report.add("parts", sum(item["parts"] for item in report.items))
    report.add("bytes", sum(item["bytes"] for item in report.items))


def _rounds(tables: Sequence[Sequence[Part]], in_order: bool) -> list[list[Part]]:
    """Parts by round: all in one, or one part of each table a round."""
    if not in_order:
        return [[part for parts in tables for part in parts]] if tables else []
    most = max((len(parts) for parts in tables), default=0)
    return [[parts[number] for parts in tables if number < len(parts)] for number in range(most)]


def _merge_in(parts: Sequence[Part], *, merge: Merge) -> list[dict[str, Any]]:
    return merge.do(parts, uuid4().hex[:12])


def _publish(job: _Job, work: Work, notes: Sequence[dict[str, Any]], token: str) -> None:
    try:
        job.report.items.append(work.publish(notes, token))
    except (OSError, ConfigError) as error:
        text = error.message if isinstance(error, DLogError) else str(error)
        job.report.failures.append({"region": notes[0]["region"], "table": notes[0]["table"], "error": text[:500]})
