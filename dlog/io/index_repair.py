"""Rebuilds the index of a ledger directory of a stopped bookie from its entry logs.

The new index has, of each entry: the old row if it leads to an entry that verifies, else the newest copy in a log that
does, else the old row, so that a read of what is damaged gets an error, never "no such entry". Ledger states (key,
fence, LAC) are those of the old index: entry logs do not hold them. If a run with states or rows of a database are
lost, the directory is marked as in limbo: the bookie serves what is left read-only, as after a damaged journal.

Invariants:
- New files are written and synced beside the old ones, then named in a new MANIFEST, then the old ones are removed: a
  crash leaves the old or the new index, each whole.
- Deleted ledgers (GONE) and ledgers without a state come back only if states are lost, deleted ones never.
- The mark of the journal stays as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from dlog.bookie.entry_log import section_end
from dlog.bookie.index import (
    LedgerRow,
    MergeSource,
    RunBuilder,
    merge,
    pack_location,
)
from dlog.bookie.index_findings import Finding, LedgerSummary
from dlog.bookie.log_walk import LogRecord
from dlog.bookie.manifest import IndexKind, LogFile, Manifest, RunFile, encode
from dlog.io.db_index import remove_parts, write_database
from dlog.io.disk import BLOCK_BYTES, Disk, replace_file
from dlog.io.file_errors import named_errors
from dlog.io.index_check import CheckedLog, LedgerDirCheck
from dlog.io.index_runs import IndexRun, log_name, open_run, run_name, write_index, write_run
from dlog.io.ledger_dir import MANIFEST

_SPILL_ENTRIES = 500_000  # locations in memory, about 100 bytes each


class CheckResult:
    """Result for one directory. limbo: see Manifest, before a repair. rebuilt: whether its index or a table of contents
    was written anew."""

    __slots__ = ("directory", "findings", "ledgers", "limbo", "rebuilt", "repairable")

    def __init__(self, directory: str, check: LedgerDirCheck, *, rebuilt: bool) -> None:
        self.directory = directory
        self.findings: list[Finding] = check.findings
        self.ledgers: dict[int, LedgerSummary] = check.ledgers
        self.limbo = check.manifest is not None and check.manifest.limbo
        self.repairable = needs_index(check) or bool(logs_without_contents(check))
        self.rebuilt = rebuilt


def check_dir(disk: Disk, directory: str) -> CheckResult:
    """Check a ledger directory, whose lock the caller holds. Blocks. Raises as LedgerDirCheck.run."""
    check = LedgerDirCheck(disk, directory)
    check.run()
    check.close_runs()
    return CheckResult(directory, check, rebuilt=False)


def repair_dir(disk: Disk, directory: str) -> CheckResult:
    """Check a ledger directory, whose lock the caller holds, and repair what its entry logs allow. Blocks.

    Returns what was found before. May be killed anywhere and repeated. Raises as LedgerDirCheck.run, and OSError, after
    which nothing has changed unless the new MANIFEST was written.
    """
    with named_errors(directory):
        spill = _Spill(disk, directory)
        check = LedgerDirCheck(disk, directory, spill.add)
        try:
            check.run()
            rebuilt = _Repair(disk, directory, check, spill).run()
        finally:
            check.close_runs()
            for run in spill.runs:
                run.close()
                with contextlib.suppress(OSError):
                    disk.unlink(f"{directory}/{run_name(run.number)}")
    return CheckResult(directory, check, rebuilt=rebuilt)


def needs_index(check: LedgerDirCheck) -> bool:
    """Whether a new index would be better than the old one."""
    if check.manifest is None:
        return False
    return (
        bool(check.extras or check.lost_rows)
        or check.states_lost
        or any(chunk.is_accounted for chunk in check.damaged_chunks)
    )


def logs_without_contents(check: LedgerDirCheck) -> list[CheckedLog]:
    """Whole logs whose tables of contents do not verify."""
    return [log for log in check.logs.values() if not log.has_contents and log.is_whole]


class _Spill:
    """Locations of entries that the index does not lead to, in runs of their own when there are many."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._number = 0xFFFFFFFF  # of the next run; far from those that the MANIFEST names
        self._count = 0
        self._gathered: dict[int, dict[int, bytes]] = {}  # packed locations by ledger and entry
        self.runs: list[IndexRun] = []

    def add(self, record: LogRecord, log: int) -> None:
        location = pack_location(record.entry, log, record.length, record.offset)
        self._gathered.setdefault(record.ledger, {})[record.entry] = location
        self._count += 1
        if self._count >= _SPILL_ENTRIES:
            self.write()

    def write(self) -> None:
        """Write what is gathered as a run. Raises OSError."""
        if not self._gathered:
            return
        builder = RunBuilder()
        named = write_run(self._disk, self._directory, self._number, self._parts(builder))
        self.runs.append(open_run(self._disk, self._directory, named, builder.table))
        self._number -= 1
        self._gathered, self._count = {}, 0

    def _parts(self, builder: RunBuilder) -> Iterator[bytes]:
        for ledger in sorted(self._gathered):
            entries = self._gathered[ledger]
            yield from builder.chunks(ledger, b"".join(entries[entry] for entry in sorted(entries)))
        yield from builder.finish(())


class _Repair:
    """Writes what is better than the old files, and switches to it."""

    def __init__(self, disk: Disk, directory: str, check: LedgerDirCheck, spill: _Spill) -> None:
        self._disk = disk
        self._directory = directory
        self._check = check
        self._spill = spill

    def run(self) -> bool:
        """Returns whether anything was repaired. Raises OSError."""
        old, check = self._check.manifest, self._check
        if old is None:
            return False
        new = old
        if needs_index(check):
            self._spill.write()
            if old.kind is IndexKind.DB:
                write_database(self._disk, self._directory, old.next_file, self._locations(), self._states())
                new = replace(new, database=old.next_file, database_writes=1, next_file=old.next_file + 1)
            else:
                runs = tuple(self._write_index(old.next_file))
                new = replace(new, runs=runs, next_file=old.next_file + len(runs))
            new = replace(new, limbo=old.limbo or check.states_lost or bool(check.lost_rows))
        if logs := {log.named.log: log for log in logs_without_contents(check)}:
            new = replace(
                new, logs=tuple(self._write_contents(logs[log.log]) if log.log in logs else log for log in new.logs)
            )
        if new == old:
            return False
        self._install(old, new)
        return True

    def _write_index(self, number: int) -> Iterator[RunFile]:
        """The new runs, oldest first: one that keeps the ranges of chunks that are lost, and the index."""
        lost = RunBuilder()
        parts = [lost.damaged_chunk(*one) for one in self._lost_ranges()]
        if parts:
            yield write_run(self._disk, self._directory, number, [*parts, *lost.finish(())])
            number += 1
        yield write_index(self._disk, self._directory, number, self._locations(), self._states())

    def _locations(self) -> Iterator[tuple[int, bytes]]:
        spilled = [MergeSource(run.table, run.read_chunk) for run in self._spill.runs]
        return merge([*self._check.sources(), *spilled])

    def _states(self) -> Iterator[LedgerRow]:
        """The states of the old index; of ledgers whose state is lost what their entries say."""
        known, summaries = self._check.states, self._check.ledgers
        for ledger in sorted(known.keys() | (summaries.keys() if self._check.states_lost else set())):
            row, summary = known.get(ledger, LedgerRow(ledger, b"", False, -1, -1)), summaries.get(ledger)
            if summary is not None:
                row = row._replace(last=max(row.last, summary.last), lac=max(row.lac, summary.lac))
            yield row

    def _lost_ranges(self) -> list[tuple[int, int, int, int]]:
        """(ledger, first, last, count) of the damaged chunks whose entries are not all in the logs, in order. Those
        that overlap are joined, as a run has no overlapping chunks."""
        ranges: list[tuple[int, int, int, int]] = []
        lost = [chunk for chunk in self._check.damaged_chunks if not chunk.is_accounted]
        for chunk in sorted(lost, key=lambda chunk: (chunk.ledger, chunk.first)):
            ledger, first, last, count = ranges[-1] if ranges else (-1, -1, -1, 0)
            if ledger == chunk.ledger and chunk.first <= last:
                ranges[-1] = (ledger, first, max(last, chunk.last), count + chunk.count)
            else:
                ranges.append((chunk.ledger, chunk.first, chunk.last, chunk.count))
        return ranges

    def _write_contents(self, log: CheckedLog) -> LogFile:
        """Append one table of contents for all of the log. Durable on return; valid with the MANIFEST that names it."""
        number, length, _ = log.named
        section = length + -length % BLOCK_BYTES
        table = section_end(0, [(ledger, *log.contents[ledger]) for ledger in sorted(log.contents)])
        data = bytes(section - length) + table
        data += bytes(-(length + len(data)) % BLOCK_BYTES)
        file = self._disk.open(f"{self._directory}/{log_name(number)}")
        try:
            file.pwritev([data], length)
            file.datasync()
        finally:
            file.close()
        return LogFile(number, length + len(data), section)

    def _install(self, old: Manifest, new: Manifest) -> None:
        self._disk.sync_dir(self._directory)
        replace_file(self._disk, self._directory, MANIFEST, encode(new))
        if old.database and old.database != new.database:
            self._check.close_runs()
            remove_parts(self._disk, self._directory, old.database)
        for run in {run.run for run in old.runs} - {run.run for run in new.runs}:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(f"{self._directory}/{run_name(run)}")
