"""A bookie's storage as a whole: several ledger directories and one journal, and how a start brings them together.

The law of this file: the journal gives a file free only when the marks of all directories are past it; a start writes
nothing to the journal before a checkpoint has moved all marks to the new, empty file.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fastcrc.crc32 import iscsi as crc32c

from dlog.bookie.cache import Half
from dlog.bookie.events import JournalReplayed, MergeFailed, StorageDamaged
from dlog.bookie.index import LedgerRow
from dlog.bookie.journal import Damage, Group, JournalDamaged, Mark
from dlog.bookie.options import BookieOptions
from dlog.bookie.restoring import Restored
from dlog.errors import DamagedError, UnavailableError
from dlog.events import Event
from dlog.io.disk import NO_SPACE, Disk
from dlog.io.journal_files import JournalFiles
from dlog.io.ledger_dir import LedgerDir, Usage

T = TypeVar("T")
Tell = Callable[[Event], None]


class LedgerDirs:
    """All ledger directories; a ledger lives in one of them, chosen by its id for good."""

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[str],
        entry_log_bytes: int,
        entry_logs_open_max: int = 256,
        reserve_bytes: int = 0,
    ) -> None:
        """reserve_bytes: held back in each directory for what a collection writes; 0: nothing."""
        self._dirs = [
            LedgerDir(disk, directory, entry_log_bytes, entry_logs_open_max, reserve_bytes) for directory in directories
        ]

    def load(self, tell: Tell) -> list[LedgerRow]:
        """Raises DamagedError if what is there cannot be trusted."""
        rows = [row for directory in self._dirs for row in directory.load()]
        for directory in self._dirs:
            for name in directory.missing_logs():
                tell(StorageDamaged(f"entry log is missing or cut off, its entries cannot be read: file={name}"))
        return rows

    def lookup(self, ledger: int, entry: int, entries_max: int, bytes_max: int) -> list[bytes]:
        """See LedgerDir.lookup."""
        return self._of(ledger).lookup(ledger, entry, entries_max, bytes_max)

    def flush(self, entries: Half, rows: Iterable[LedgerRow], mark: Mark, *, limbo: bool = False) -> None:
        """See LedgerDir.flush. May be repeated as a whole after NO_SPACE, whatever part was done."""
        count = len(self._dirs)
        rows = list(rows)
        for number, directory in enumerate(self._dirs):
            share = entries if count == 1 else {k: v for k, v in entries.items() if k % count == number}
            states = [row for row in rows if row.ledger % count == number]
            directory.flush(share, states, max(mark, directory.manifest.mark), limbo=limbo)

    def merge_runs(self, tell: Tell) -> None:
        """Merge where enough runs have gathered; damage is told and stops nothing."""
        for directory in self._dirs:
            try:
                while directory.merge_runs():
                    pass
            except DamagedError as error:
                tell(MergeFailed(error.message))

    def bury(self, ledgers: Iterable[int]) -> dict[int, str]:
        """See LedgerDir.bury. Returns those that are not buried for want of space, each with the failure. Raises
        OSError."""
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

    def collect(self) -> Usage:
        """Free what buried ledgers hold, in all directories: first all logs that can be deleted, then the index, which
        needs room to be rewritten. What fails for want of room or by damage stops nothing else. Raises OSError."""
        usage = Usage()
        for directory in self._dirs:
            try:
                usage = usage.plus(directory.collect())
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                reason = f"no room to write down which entry logs are left: {error.strerror}"
                usage = usage.plus(Usage(failures=(reason,)))
        for directory in self._dirs:
            try:
                directory.shrink_index()
            except DamagedError as error:
                usage = usage.plus(Usage(failures=(error.message,)))
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                reason = f"no room to write the index without what is gone: {error.strerror}"
                usage = usage.plus(Usage(failures=(reason,)))
        return usage

    def hold_reserves(self) -> None:
        """Where there is room for them. Raises OSError."""
        for directory in self._dirs:
            directory.hold_reserve()

    def give_up_reserves(self) -> None:
        """For a start on a full disk. Raises OSError."""
        for directory in self._dirs:
            directory.reserve.give_up()

    def write_collection_file(self, name: str, data: bytes) -> None:
        """Put a small file beside the last directory's, durable and all or nothing; where there is no room, with that
        of the reserve. Callable from any thread. Raises OSError."""
        self._dirs[-1].reserve.write_whole(name, data)
        self._dirs[-1].hold_reserve()

    def compact(self, below: float, bytes_max: int) -> int | None:
        """See LedgerDir.compact; of the first directory that has something to do, and room to do it."""
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
        """All ledgers that were buried."""
        for directory in self._dirs:
            yield from directory.gone

    @property
    def mark(self) -> Mark:
        """Where a replay must begin."""
        return min(directory.manifest.mark for directory in self._dirs)

    @property
    def limbo(self) -> bool:
        return any(directory.manifest.limbo for directory in self._dirs)

    def has(self, ledger: int, group: int) -> bool:
        """Whether what this journal group says of the ledger was flushed already."""
        return group <= self._of(ledger).manifest.mark.group

    def close(self) -> None:
        for directory in self._dirs:
            directory.close()

    def _of(self, ledger: int) -> LedgerDir:
        return self._dirs[ledger % len(self._dirs)]


@dataclass(slots=True)
class Opened:
    """Storage that is ready to serve: everything found is in the index, the journal stands at a new file."""

    journal: JournalFiles
    dirs: LedgerDirs
    rows: list[LedgerRow]
    limbo: bool


def open_storage(
    disk: Disk,
    options: BookieOptions,
    paths: StoragePaths,
    bookie: str,
    tell: Tell,
    random_bits: Callable[[int], int] = secrets.randbits,
) -> Opened:
    """Load, replay, checkpoint. Blocks; call it before serving. random_bits: see JournalFiles.

    Raises DamagedError (JournalDamaged with the place, unless options.salvage), UnavailableError when the disk is too
    full to start, OSError.
    """
    journal = JournalFiles(disk, paths.journal, crc32c(bookie.encode()), options.journal_file_bytes, random_bits)
    dirs = LedgerDirs(
        disk,
        paths.ledgers,
        options.entry_log_bytes,
        options.entry_logs_open_max,
        options.gc_reserve_bytes if options.gc_s else 0,
    )

    def give_room() -> None:
        journal.drop_spares()
        dirs.give_up_reserves()

    restored = Restored(dirs.load(tell))
    limbo = dirs.limbo

    def on_damage(damage: Damage) -> None:
        nonlocal limbo
        text = (
            f"the journal is damaged where it was durable: dir={paths.journal} file={damage.file:016x} "
            f"offset={damage.offset} group={damage.group}"
        )
        if not options.salvage:
            raise JournalDamaged(
                f"{text}. Acknowledged entries may be lost here. Put the file back, or let other bookies re-replicate: "
                "start once with --salvage to serve what is left read-only, then decommission this bookie"
            )
        limbo = True
        tell(StorageDamaged(text))

    after = dirs.mark
    groups = 0
    for group in journal.replay(after, on_damage):
        groups += 1
        _apply(group, dirs, restored, salvage=limbo)
        after = group.end
        if restored.bytes >= options.write_cache_bytes:
            _with_room(give_room, paths, partial(dirs.flush, *restored.take(), after, limbo=limbo))
    mark = _with_room(give_room, paths, partial(journal.start, max(after, dirs.mark)))
    _with_room(give_room, paths, partial(dirs.flush, *restored.take(), mark, limbo=limbo))
    journal.release(dirs.mark)
    dirs.hold_reserves()
    tell(JournalReplayed(groups, restored.adds, len(restored.rows)))
    return Opened(journal, dirs, list(restored.rows.values()), limbo)


@dataclass(frozen=True, slots=True)
class StoragePaths:
    """Where journal and ledgers lie."""

    journal: str
    ledgers: tuple[str, ...]


def _apply(group: Group, dirs: LedgerDirs, restored: Restored, *, salvage: bool) -> None:
    for record in group.records:
        ledger = int.from_bytes(record.payload[:8], "big", signed=True)
        if not dirs.is_gone(ledger) and not dirs.has(ledger, group.number):
            restored.apply(record, salvage=salvage)


def _with_room(give_room: Callable[[], None], paths: StoragePaths, work: Callable[[], T]) -> T:
    """Do it; if the disk is full, give up what holds nothing and try once more."""
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
            f"the disk is too full to start, nothing is lost; make room and start again: journal={paths.journal} "
            f"ledgers={','.join(paths.ledgers)}"
        ) from error
