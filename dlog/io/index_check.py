"""Checks a ledger directory of a stopped bookie: every byte of its entry logs against its index, and the reverse.

Reads index and logs once from front to back; a ledger whose rows do not all lead to an entry that verifies is looked at
row by row. Memory: about as much as the running bookie needs for its index, and 200 bytes for each ledger.

Invariants:
- a check writes nothing; an extra entry is only handed to `on_extra`;
- entries of deleted ledgers (GONE) are passed over, and those that the index has no more of ledgers whose copies were
  moved away (MOVED);
- an entry is extra only if the index leads to no copy of it that verifies, and its ledger's state is known or lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from dlog.bookie.entry_log import HEAD_BYTES, LOG_HEADER_BYTES, check_entry, log_header, read_contents
from dlog.bookie.id_set import IdSet
from dlog.bookie.index import (
    LOCATION_BYTES,
    RUN_HEADER_BYTES,
    EntryLocation,
    LedgerRow,
    MergeSource,
    RunTable,
    location_at,
    merge,
    parse_chunk,
    run_header,
)
from dlog.bookie.index_findings import FindingKind, Findings, LedgerSummary
from dlog.bookie.log_walk import LogDamage, LogRecord, walk_log
from dlog.bookie.manifest import LogFile, Manifest, decode
from dlog.errors import DamagedError
from dlog.io.database import Database, DatabaseLimits
from dlog.io.db_index import DamagedKeys, DatabaseRun, open_named
from dlog.io.disk import BLOCK_BYTES, Disk, File, read_file
from dlog.io.index_runs import OURS, ChunkFinder, IndexRun, database_name, is_named, log_name, open_run, run_name
from dlog.io.ledger_dir import GONE, MANIFEST, MOVED, read_ids
from dlog.io.open_logs import OpenLogs

_LOGS_OPEN_MAX = 256
_SECTOR_BYTES = 512  # of a disk that cannot be read there

OnExtra = Callable[[LogRecord, int], None]  # the entry, the number of its log


@dataclass(slots=True)
class DamagedChunk:
    """A chunk of the index that does not verify. found: its entries that verify in a log, as far as that is certain."""

    run: str
    ledger: int
    first: int
    last: int
    count: int
    found: set[int] = field(default_factory=set)

    @property
    def is_dense(self) -> bool:
        return self.count == self.last - self.first + 1

    @property
    def is_accounted(self) -> bool:
        """Whether all its entries verify in a log."""
        return len(self.found) >= self.count


@dataclass(slots=True)
class CheckedLog:
    """An entry log that could be opened. end: of the bytes that are there; contents: (entries, bytes) by ledger."""

    named: LogFile
    end: int
    has_contents: bool = True
    contents: dict[int, tuple[int, int]] = field(default_factory=dict)
    damage: list[LogDamage] = field(default_factory=list)
    used_damage: set[LogDamage] = field(default_factory=set)  # that index rows point to

    @property
    def is_whole(self) -> bool:
        return self.end >= self.named.length

    def damage_at(self, offset: int) -> LogDamage | None:
        return next((one for one in self.damage if one.offset <= offset < one.end), None)


class LedgerDirCheck:
    """The check of one directory, whose lock the caller holds. Call `run`; then the attributes say what was found."""

    def __init__(self, disk: Disk, directory: str, on_extra: OnExtra = lambda record, log: None) -> None:
        self._disk = disk
        self._directory = directory
        self._on_extra = on_extra
        self._found = Findings()
        self._damaged: dict[int, list[DamagedChunk]] = {}  # by ledger
        self._finders: tuple[int, list[ChunkFinder]] = (-1, [])  # of one ledger, newest run first
        self.findings = self._found.all
        self.manifest: Manifest | None = None  # None: it, GONE or MOVED cannot be read
        self.gone = IdSet()
        self.moved = IdSet()
        self.runs: list[IndexRun | DatabaseRun] = []  # oldest first; their tables without damaged chunks
        self._database: Database | None = None
        self.states_lost = False  # an index run is lost, or states in a database
        self.lost_rows: list[DamagedKeys] = []  # parts of a database
        self.states: dict[int, LedgerRow] = {}
        self.logs: dict[int, CheckedLog] = {}
        self._files = OpenLogs(
            lambda number: disk.open(self._path(log_name(number))), self.logs.__contains__, _LOGS_OPEN_MAX
        )
        self.ledgers: dict[int, LedgerSummary] = {}
        self.extras = 0

    def run(self) -> None:
        """Check everything. Blocks; reads all bytes. Raises OSError if the directory cannot be read at all, and
        UnsupportedVersionError."""
        try:
            manifest = self._read_lists()
            if manifest is None:
                return
            self.manifest = manifest
            self._find_unnamed(manifest)
            for run in manifest.runs:
                self._open_run(manifest, run.run)
            if manifest.database:
                self._open_database(manifest)
            for opened in self.runs:
                if isinstance(opened, IndexRun):
                    self._check_chunks(opened)
            for ledger, locations in merge(self.sources()):
                self._summary(ledger).indexed += len(locations) // LOCATION_BYTES
            for log in manifest.logs:
                self._open_log(log)
            for checked in self.logs.values():
                self._check_log(checked)
            self._check_rows()
            self._report_the_rest()
        finally:
            self.close()

    def close(self) -> None:
        """Close the logs. The runs stay open: a repair reads them."""
        self._files.close()

    def close_runs(self) -> None:
        """Close the index. Idempotent."""
        for run in self.runs:
            run.close()
        if self._database is not None:
            self._database.close()

    @property
    def damaged_chunks(self) -> list[DamagedChunk]:
        return [chunk for chunks in self._damaged.values() for chunk in chunks]

    def sources(self) -> list[MergeSource]:
        """The index as far as it verifies, without deleted ledgers; oldest first."""
        return [MergeSource(run.table, run.read_chunk) for run in self.runs]

    # ---- lists and index ---------------------------------------------------------------------------------------------

    def _read_lists(self) -> Manifest | None:
        lost = "put the file back, or treat all directories of this bookie as lost"
        manifest: Manifest | None = None
        try:
            data = read_file(self._disk, self._directory, MANIFEST)
            manifest = None if data is None else decode(data)
            if manifest is None:
                self._found.add(FindingKind.LIST, self._path(MANIFEST), f"it is missing: {lost}")
        except DamagedError as error:
            self._found.add(FindingKind.LIST, self._path(MANIFEST), f"{error.message}: {lost}")
        for name in (GONE, MOVED):
            try:
                ids = read_ids(self._disk, self._directory, name)
            except DamagedError as error:
                self._found.add(FindingKind.LIST, self._path(name), f"{error.message}: {lost}")
                return None
            if name == GONE:
                self.gone = ids
            else:
                self.moved = ids
        return manifest

    def _find_unnamed(self, manifest: Manifest) -> None:
        for name in self._disk.names(self._directory):
            if name.startswith(OURS) and not is_named(manifest, name):
                why = "an interrupted write left it, or somebody put it there; the next start removes it"
                self._found.add(FindingKind.FILE, self._path(name), why)

    def _open_run(self, manifest: Manifest, number: int) -> None:
        named = next(run for run in manifest.runs if run.run == number)
        path = self._path(run_name(number))
        try:
            run = open_run(self._disk, self._directory, named)
        except (DamagedError, OSError) as error:
            why = error.message if isinstance(error, DamagedError) else str(error.strerror)
            self._found.add(FindingKind.RUN, path, f"{why}; keys and fences of ledgers are lost with it")
            self.states_lost = True
            return
        self.states.update((row.ledger, row) for row in run.rows if row.ledger not in self.gone)
        run.rows = ()
        if _pread_or_zeros(run.file, RUN_HEADER_BYTES, 0) != run_header(number):
            self._found.add(FindingKind.HEADER, path, "its header does not verify; it is not needed")
        self.runs.append(run)

    def _open_database(self, manifest: Manifest) -> None:
        """Read the whole database, around the parts that do not verify."""
        path = self._path(database_name(manifest.database))
        try:
            database = open_named(self._disk, self._directory, manifest, DatabaseLimits(), read_only=True)
            self._database = database
            run = DatabaseRun(database, self.lost_rows)
        except (DamagedError, OSError) as error:
            why = error.message if isinstance(error, DamagedError) else str(error.strerror)
            self._found.add(FindingKind.RUN, path, f"{why}; keys and fences of ledgers may be lost with it")
            self.states_lost = True
            return
        self.states.update((row.ledger, row) for row in run.rows if row.ledger not in self.gone)
        for lost in self.lost_rows:
            kind = FindingKind.RUN if lost.are_states else FindingKind.CHUNK
            self._found.add(kind, path, f"a part of the index does not verify: {lost}")
            self.states_lost = self.states_lost or lost.are_states
        run.rows = ()
        run.table = _without(run.table, self.gone)
        self.runs.append(run)

    def _check_chunks(self, run: IndexRun) -> None:
        """Keep only the chunks that verify, without those of deleted ledgers."""
        table, kept = run.table, RunTable()
        for row in range(len(table)):
            ledger = table.ledger(row)
            if ledger in self.gone:
                continue
            try:
                parse_chunk(run.read_chunk(row), ledger)
            except (DamagedError, OSError):
                name = run_name(run.number)
                chunk = DamagedChunk(name, ledger, table.first(row), table.last(row), table.count(row))
                self._damaged.setdefault(ledger, []).append(chunk)
            else:
                kept.append(ledger, table.first(row), table.last(row), table.span(row)[0], table.count(row))
        run.table = kept

    def _find(self, ledger: int, entry: int) -> EntryLocation | None:
        if self._finders[0] != ledger:
            self._finders = ledger, [ChunkFinder(run, ledger) for run in reversed(self.runs)]
        for finder in self._finders[1]:
            location = finder.find(entry)
            if location is not None:
                return location
        return None

    def _chunks_around(self, ledger: int, entry: int) -> list[DamagedChunk]:
        return [chunk for chunk in self._damaged.get(ledger, ()) if chunk.first <= entry <= chunk.last]

    # ---- entry logs --------------------------------------------------------------------------------------------------

    def _open_log(self, log: LogFile) -> None:
        path = self._path(log_name(log.log))
        try:
            size = self._files.get_once(log.log).size()
        except OSError as error:
            self._found.add(FindingKind.LOG, path, f"it cannot be opened: {error.strerror}; its entries are lost here")
            return
        checked = self.logs[log.log] = CheckedLog(log, min(size, log.length))
        if not checked.is_whole:
            why = f"it is cut off at {size} of {log.length} bytes; the entries behind are lost here"
            self._found.add(FindingKind.LOG, path, why)
            return
        if size > log.length:
            why = f"{size - log.length} bytes behind its end, of an interrupted flush; the next one writes over them"
            self._found.add(FindingKind.TAIL, path, why)

    def _check_log(self, log: CheckedLog) -> None:
        path = self._path(log_name(log.named.log))
        file = self._files.get(log.named.log)

        def pread(length: int, offset: int) -> bytes:
            return _pread_or_zeros(file, length, offset)

        if pread(LOG_HEADER_BYTES, 0) != log_header(log.named.log):
            self._found.add(FindingKind.HEADER, path, "its header does not verify; it is not needed")
        listed: set[int] = set()
        try:
            listed.update(ledger for ledger, _, _ in read_contents(pread, log.named.length, log.named.section))
        except DamagedError as error:
            log.has_contents = False
            if log.is_whole:
                self._found.add(FindingKind.CONTENTS, path, f"{error.message}; its space is never freed")
        used: set[int] = set()
        for item in walk_log(pread, log.end):
            if isinstance(item, LogDamage):
                log.damage.append(item)
            elif item.ledger not in self.gone:
                entries, size = log.contents.get(item.ledger, (0, 0))
                log.contents[item.ledger] = entries + 1, size + HEAD_BYTES + item.length
                if self._check_record(item, log.named.log):
                    used.add(item.ledger)
        if log.has_contents and log.is_whole and not used <= listed:
            log.has_contents = False
            why = f"its tables of contents lack ledger {min(used - listed)}: it may be deleted too early"
            self._found.add(FindingKind.CONTENTS, path, why)
        if log.has_contents:
            log.contents.clear()

    def _check_record(self, record: LogRecord, log: int) -> bool:
        """Compare an entry with the index. Returns whether the index leads to it, or should."""
        ledger, entry = record.ledger, record.entry
        chunks = self._chunks_around(ledger, entry) if self._damaged else ()
        location = self._find(ledger, entry)
        is_lost = location is None and (self.states_lost or any(lost.has(ledger, entry) for lost in self.lost_rows))
        if location is None and ledger in self.moved and not chunks and not is_lost:
            return False
        summary = self._summary(ledger)
        summary.last, summary.lac = max(summary.last, entry), max(summary.lac, record.lac)
        if location is not None:
            is_here = location == (entry, log, record.length, record.offset)
            if is_here or self._verifies(ledger, location):
                for chunk in chunks:
                    if chunk.is_dense:
                        chunk.found.add(entry)
                if is_here:
                    summary.good += 1
                    summary.bytes += record.length
                return is_here
        if location is None and not chunks and not is_lost and self._is_unindexed(record, log):
            return False
        path = self._path(log_name(log))
        if ledger not in self.states and not self.states_lost:
            why = "the index has no key and no fence of this ledger"
            self._found.add_entry(FindingKind.STATELESS, path, why, ledger, entry)
            return False
        for chunk in chunks:
            # one that is not dense may have it only if no other part of the index leads there, and no other chunk may
            if chunk.is_dense or (len(chunks) == 1 and location is None):
                chunk.found.add(entry)
        summary.missing += 1
        if not chunks and location is None and not is_lost:
            self._found.add_entry(FindingKind.MISSING, path, "the index does not lead to them", ledger, entry)
        self.extras += 1
        self._on_extra(record, log)
        return True

    def _is_unindexed(self, record: LogRecord, log: int) -> bool:
        """Whether an interrupted flush left the entry: the journal has it, or it was never acknowledged."""
        tails = self.manifest.unindexed if self.manifest is not None else ()
        return any(tail.log == log and tail.begin <= record.offset < tail.end for tail in tails)

    def _verifies(self, ledger: int, location: EntryLocation) -> bool:
        log = self.logs.get(location.log)
        if log is None or location.offset + HEAD_BYTES + location.length > log.end:
            return False
        data = _pread_or_zeros(self._files.get(location.log), HEAD_BYTES + location.length, location.offset)
        try:
            check_entry(data[:HEAD_BYTES], data[HEAD_BYTES:], ledger, location.entry, location.length)
        except DamagedError:
            return False
        return True

    # ---- rows that lead to no entry ----------------------------------------------------------------------------------

    def _check_rows(self) -> None:
        """Look at each row of the ledgers that have rows without an entry."""
        suspects = {one.ledger for one in self.ledgers.values() if one.good < one.indexed}
        if not suspects:
            return
        for ledger, locations in merge(self.sources(), _AllBut(suspects)):
            for number in range(len(locations) // LOCATION_BYTES):
                location = location_at(locations, number)
                if not self._verifies(ledger, location) and not self._chunks_around(ledger, location.entry):
                    self._report_row(ledger, location)

    def _report_row(self, ledger: int, location: EntryLocation) -> None:
        summary, entry = self._summary(ledger), location.entry
        named = self.manifest is not None and any(log.log == location.log for log in self.manifest.logs)
        path = self._path(log_name(location.log))
        log = self.logs.get(location.log)
        end = location.offset + HEAD_BYTES + location.length
        if log is not None and (damage := log.damage_at(location.offset)) is not None:
            log.used_damage.add(damage)
            summary.damaged += 1
            if log.is_whole or damage.end < log.end:
                why = "they do not verify, copies on other bookies are needed: `dlog ledger verify LEDGER`"
                self._found.add_entry(FindingKind.ENTRY, path, why, ledger, entry)
        elif self.states_lost:
            pass  # a newer row may be lost
        elif named and (log is None or (end > log.end and end <= log.named.length)):
            summary.damaged += 1  # lost with its log, which is a finding
        elif log is None or end > log.end:
            summary.damaged += 1
            why = f"index rows point to {'no entry log' if log is None else 'behind the end of the log'}"
            self._found.add_entry(FindingKind.NOWHERE, path, why, ledger, entry)
        else:
            summary.damaged += 1
            why = "index rows point to bytes that are not their entry"
            self._found.add_entry(FindingKind.ELSEWHERE, path, why, ledger, entry)

    def _report_the_rest(self) -> None:
        for chunk in self.damaged_chunks:
            left = "all of them verify" if chunk.is_accounted else "not all of them verify"
            why = f"a part of the index does not verify; in the entry logs {left}"
            self._found.add_range(self._path(chunk.run), why, chunk.ledger, chunk.first, chunk.last, chunk.count)
        for log in self.logs.values():
            path = self._path(log_name(log.named.log))
            for damage in log.damage:
                is_reported = damage in log.used_damage or (damage.end == log.end and not log.is_whole)
                if not is_reported and (log.has_contents or not self._is_contents(log, damage)):
                    why = f"damaged bytes at offset {damage.offset} that no index row points to"
                    self._found.add(FindingKind.UNUSED, path, why)

    def _is_contents(self, log: CheckedLog, damage: LogDamage) -> bool:
        """Whether these bytes were a table of contents, for all that is known."""
        return damage.end % BLOCK_BYTES == 0 or damage.end == log.end

    def _summary(self, ledger: int) -> LedgerSummary:
        summary = self.ledgers.get(ledger)
        if summary is None:
            summary = self.ledgers[ledger] = LedgerSummary(ledger)
        return summary

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


def _without(table: RunTable, gone: IdSet) -> RunTable:
    """The rows of other ledgers."""
    kept = RunTable()
    for row in range(len(table)):
        if table.ledger(row) not in gone:
            kept.append(table.ledger(row), table.first(row), table.last(row), table.span(row)[0], table.count(row))
    return kept


class _AllBut:
    """Contains every ledger but these."""

    def __init__(self, ledgers: Iterable[int]) -> None:
        self._ledgers = frozenset(ledgers)

    def __contains__(self, ledger: object) -> bool:
        return ledger not in self._ledgers


def _pread_or_zeros(file: File, length: int, offset: int) -> bytes:
    """Read, with zeros for what the disk cannot read; fewer bytes only at the end of the file."""
    try:
        return file.pread(length, offset)
    except OSError:
        return b"".join(_sectors(file, length, offset))


def _sectors(file: File, length: int, offset: int) -> Iterator[bytes]:
    end = min(offset + length, file.size())
    while offset < end:
        size = min(_SECTOR_BYTES - offset % _SECTOR_BYTES, end - offset)
        try:
            yield file.pread(size, offset)
        except OSError:
            yield bytes(size)
        offset += size
