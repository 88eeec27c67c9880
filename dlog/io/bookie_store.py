"""A bookie's storage: its ledger directories, its journals, and their replay at a start.

Invariants:
- A journal file is reused only when the marks of all ledger directories are past it.
- A start writes nothing to a journal before a checkpoint has moved all marks to the new, empty files. So all records of
  a ledger after the marks are in one journal, also if the number of journals was another one before the start.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from dlog.bookie.cache import Half
from dlog.bookie.events import JournalReplayed, MergeFailed, StorageDamaged
from dlog.bookie.index import LedgerRow
from dlog.bookie.journal import Damage, Group, JournalDamaged, JournalMarks, journal_owner, padded
from dlog.bookie.journal_replay import Restored
from dlog.bookie.manifest import IndexKind
from dlog.bookie.options import BookieOptions
from dlog.errors import ConfigError, DamagedError, UnavailableError
from dlog.events import Event
from dlog.io.database import DatabaseLimits
from dlog.io.disk import NO_SPACE, Disk
from dlog.io.journal_files import JournalFiles
from dlog.io.ledger_dir import DEFAULT_LIMITS, LedgerDir, Usage
from dlog.wire.entry_summary import EntryOutline

T = TypeVar("T")
OnEvent = Callable[[Event], None]


class LedgerDirs:
    """All ledger directories. A ledger is always in the same one, chosen by its id."""

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[str],
        entry_log_bytes: int,
        entry_logs_open_max: int = 256,
        reserve_bytes: int = 0,
        kind: IndexKind = IndexKind.SORTED,
        limits: DatabaseLimits = DEFAULT_LIMITS,
    ) -> None:
        """reserve_bytes: space reserved in each directory for the files of a collection; 0: none. kind, limits: see
        LedgerDir."""
        self._dirs = [
            LedgerDir(disk, directory, entry_log_bytes, entry_logs_open_max, reserve_bytes, kind, limits)
            for directory in directories
        ]

    def load(self, on_event: OnEvent) -> list[LedgerRow]:
        """Load all directories. Raises as LedgerDir.load, and ConfigError if a conversion of indexes was
        interrupted."""
        self._check_kinds()
        rows = [row for directory in self._dirs for row in directory.load()]
        for directory in self._dirs:
            for name in directory.missing_logs():
                on_event(StorageDamaged(f"entry log is missing or cut off, its entries cannot be read: file={name}"))
        return rows

    def _check_kinds(self) -> None:
        kinds = {kind for directory in self._dirs if (kind := directory.stored_kind()) is not None}
        if len(kinds) > 1:
            raise ConfigError(
                'some ledger directories of this bookie have the index "db", some "sorted", as a conversion was '
                "interrupted: run `dlog bookie convert DIR --to db` or `--to sorted`, which converts the rest, and set "
                "[bookie] index to that kind"
            )

    def lookup(self, ledger: int, entry: int, entries_max: int, bytes_max: int) -> list[bytes]:
        """See LedgerDir.lookup."""
        return self._of(ledger).lookup(ledger, entry, entries_max, bytes_max)

    def entry_runs(self, ledger: int) -> list[Iterator[tuple[int, int]]]:
        """See LedgerDir.entry_runs."""
        return self._of(ledger).entry_runs(ledger)

    def outlines(self, ledger: int) -> Callable[[int], EntryOutline | None]:
        """See LedgerDir.outlines."""
        return self._of(ledger).outlines(ledger)

    def space(self) -> tuple[int, int]:
        """Total and free bytes of the file systems with ledger directories, each counted once. Raises OSError."""
        seen = {space.device: space for space in [directory.space() for directory in self._dirs]}.values()
        return sum(space.total_bytes for space in seen), sum(space.free_bytes for space in seen)

    def flush(self, entries: Half, rows: Iterable[LedgerRow], marks: JournalMarks, *, limbo: bool = False) -> None:
        """See LedgerDir.flush. After NO_SPACE repeat it, even if some directories were flushed."""
        count = len(self._dirs)
        rows = list(rows)
        for number, directory in enumerate(self._dirs):
            share = entries if count == 1 else {k: v for k, v in entries.items() if k % count == number}
            states = [row for row in rows if row.ledger % count == number]
            own = padded(directory.manifest.marks, len(marks))
            directory.flush(share, states, tuple(map(max, marks, own)), limbo=limbo)

    def merge_runs(self, on_event: OnEvent) -> None:
        """Merge index runs where there are enough; damage is reported and stops nothing."""
        for directory in self._dirs:
            try:
                while directory.merge_runs():
                    pass
            except DamagedError as error:
                on_event(MergeFailed(error.message))

    def bury(self, ledgers: Iterable[int]) -> dict[int, str]:
        """See LedgerDir.bury. Returns the ledgers not buried for lack of space, with the reason. Raises OSError."""
        failed: dict[int, str] = {}
        ledgers = tuple(ledgers)
        for number, directory in enumerate(self._dirs):
            share = [ledger for ledger in ledgers if ledger % len(self._dirs) == number]
            if not share:
                continue
            try:
                directory.bury(share)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                failed.update(dict.fromkeys(share, str(error.strerror)))
        return failed

    def drop_entries(self, rows: Iterable[LedgerRow]) -> dict[int, str]:
        """See LedgerDir.drop_entries. Returns the unchanged ledgers, with the reason. Raises OSError."""
        failed: dict[int, str] = {}
        rows = tuple(rows)
        for number, directory in enumerate(self._dirs):
            share = [row for row in rows if row.ledger % len(self._dirs) == number]
            if not share:
                continue
            try:
                directory.drop_entries(share)
            except DamagedError as error:
                failed.update(dict.fromkeys((row.ledger for row in share), error.message))
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                reason = f"no space to rewrite the index: {error.strerror}"
                failed.update(dict.fromkeys((row.ledger for row in share), reason))
        return failed

    def collect(self) -> Usage:
        """Free the space of buried ledgers in all directories: first delete entry logs, then rewrite indexes, which
        needs space. Lack of space and damage in one directory do not stop the others. Raises OSError."""
        usage = Usage()
        for directory in self._dirs:
            try:
                usage = usage.plus(directory.collect())
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                reason = f"no space to write the manifest of the remaining entry logs: {error.strerror}"
                usage = usage.plus(Usage(failures=(reason,)))
        for directory in self._dirs:
            try:
                directory.shrink_index()
            except DamagedError as error:
                usage = usage.plus(Usage(failures=(error.message,)))
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                reason = f"no space to rewrite the index without deleted ledgers: {error.strerror}"
                usage = usage.plus(Usage(failures=(reason,)))
        return usage

    def hold_reserves(self) -> None:
        """Take the reserves where there is space. Raises OSError."""
        for directory in self._dirs:
            directory.hold_reserve()

    def give_up_reserves(self) -> None:
        """Delete the reserves, for a start on a full disk. Raises OSError."""
        for directory in self._dirs:
            directory.reserve.give_up()

    def write_collection_file(self, name: str, data: bytes) -> None:
        """Replace a small file in the last directory, durably and atomically, with the reserve's space if need be. Any
        thread may call it. Raises OSError."""
        self._dirs[-1].reserve.replace_file(name, data)
        self._dirs[-1].hold_reserve()

    def compact(self, below: float, bytes_max: int) -> int | None:
        """See LedgerDir.compact; in the first directory with work and space for it."""
        no_room: OSError | None = None
        for directory in self._dirs:
            try:
                copied = directory.compact(below, bytes_max)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                no_room = error
                continue
            if copied is not None:
                return copied
        if no_room is not None:
            raise no_room
        return None

    def is_gone(self, ledger: int) -> bool:
        return ledger in self._of(ledger).gone

    def gone(self) -> Iterator[int]:
        """All buried ledgers."""
        for directory in self._dirs:
            yield from directory.gone

    def moved(self) -> Iterator[int]:
        """All ledgers whose entries were once removed by `drop_entries`, but for buried ones."""
        for directory in self._dirs:
            yield from (ledger for ledger in directory.moved if ledger not in directory.gone)

    def marks(self, journals: int) -> JournalMarks:
        """Where a replay of each of so many journals begins."""
        own = [padded(directory.manifest.marks, journals) for directory in self._dirs]
        return tuple(min(marks) for marks in zip(*own, strict=True))

    @property
    def limbo(self) -> bool:
        return any(directory.manifest.limbo for directory in self._dirs)

    def has(self, ledger: int, journal: int, group: int) -> bool:
        """Whether the ledger's records of this group of a journal were flushed already."""
        marks = self._of(ledger).manifest.marks
        return journal < len(marks) and group <= marks[journal].group

    def close(self) -> None:
        for directory in self._dirs:
            directory.close()

    def _of(self, ledger: int) -> LedgerDir:
        return self._dirs[ledger % len(self._dirs)]


@dataclass(slots=True)
class OpenedStorage:
    """Storage ready to serve: everything replayed is in the index, each journal is at a new file."""

    journals: tuple[JournalFiles, ...]
    dirs: LedgerDirs
    rows: list[LedgerRow]
    limbo: bool

    @property
    def marks(self) -> JournalMarks:
        """The durable end of each journal."""
        return tuple(journal.mark for journal in self.journals)

    def close(self) -> None:
        """Close all files."""
        for journal in self.journals:
            journal.close()
        self.dirs.close()


def open_storage(
    disk: Disk,
    options: BookieOptions,
    paths: StoragePaths,
    bookie: str,
    on_event: OnEvent,
    random_bits: Callable[[int], int] = secrets.randbits,
) -> OpenedStorage:
    """Load the directories, replay the journals, make a checkpoint. Blocks. random_bits: see JournalFiles.

    Raises DamagedError (JournalDamaged with file and offset, unless options.salvage; ForeignJournalError),
    UnavailableError if the disk is too full to start, OSError.
    """
    journals = tuple(
        JournalFiles(disk, directory, journal_owner(bookie, number), options.journal_file_bytes, random_bits)
        for number, directory in enumerate(paths.journals)
    )
    for journal in journals:
        journal.check_owner()
    dirs = LedgerDirs(
        disk,
        paths.ledgers,
        options.entry_log_bytes,
        options.entry_logs_open_max,
        options.gc_reserve_bytes if options.gc_s else 0,
        IndexKind(options.index),
        DatabaseLimits(options.index_db_cache_bytes, options.index_db_write_buffer_bytes),
    )

    def give_room() -> None:
        for journal in journals:
            journal.drop_spares()
        dirs.give_up_reserves()

    restored = Restored(dirs.load(on_event))
    limbo = dirs.limbo

    def on_damage(directory: str, damage: Damage) -> None:
        nonlocal limbo
        text = (
            f"the journal is damaged in a part that was durable: dir={directory} file={damage.file:016x} "
            f"offset={damage.offset} group={damage.group}"
        )
        if not options.salvage:
            raise JournalDamaged(
                f"{text}. Acknowledged entries may be lost on this bookie. Put the file back, or let other bookies "
                "re-replicate: start once with --salvage to serve what is left read-only, then decommission this bookie"
            )
        limbo = True
        on_event(StorageDamaged(text))

    after = list(dirs.marks(len(journals)))
    groups = 0
    for number, journal in enumerate(journals):
        for group in journal.replay(after[number], partial(on_damage, paths.journals[number])):
            groups += 1
            _apply(number, group, dirs, restored, salvage=limbo)
            after[number] = group.end
            if restored.bytes >= options.write_cache_bytes:
                _with_room(give_room, paths, partial(dirs.flush, *restored.take(), tuple(after), limbo=limbo))
    started = tuple(
        _with_room(give_room, paths, partial(journal.start, end))
        for journal, end in zip(journals, map(max, after, dirs.marks(len(journals))), strict=True)
    )
    opened = OpenedStorage(journals, dirs, list(restored.rows.values()), limbo)
    _with_room(give_room, paths, partial(dirs.flush, *restored.take(), started, limbo=limbo))
    for journal, mark in zip(journals, dirs.marks(len(journals)), strict=True):
        journal.release(mark)
    dirs.hold_reserves()
    on_event(JournalReplayed(groups, restored.adds, len(restored.rows)))
    return opened


@dataclass(frozen=True, slots=True)
class StoragePaths:
    """Absolute paths of the journal and ledger directories, in order."""

    journals: tuple[str, ...]
    ledgers: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.journals, *self.ledgers)


def _apply(journal: int, group: Group, dirs: LedgerDirs, restored: Restored, *, salvage: bool) -> None:
    for record in group.records:
        ledger = int.from_bytes(record.payload[:8], "big", signed=True)
        if not dirs.is_gone(ledger) and not dirs.has(ledger, journal, group.number):
            restored.apply(record, salvage=salvage)


def _with_room(give_room: Callable[[], None], paths: StoragePaths, work: Callable[[], T]) -> T:
    """Do the work; if the disk is full, call give_room and try once more."""
    try:
        return work()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
    give_room()
    try:
        return work()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise UnavailableError(
            f"the disk is too full to start, no data is lost; free space and start again: dirs={','.join(paths.all)}"
        ) from error
