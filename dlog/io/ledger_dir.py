"""One ledger directory of a bookie: entry logs, index runs, and the manifest that lists the valid ones.

Invariants:
- A file is written and synced, then named in a new manifest, then used. So a crash leaves the old or the new manifest,
  each with all files it names. Files that no manifest names are removed at the next start.
- Deleted ("buried") ledgers are listed in the file GONE, replaced as a whole and durable before their entries are
  touched. From then on lookups, merges and compactions skip what index and logs still hold of them.
- Ledgers whose entries were once removed from the index, since their copies were moved to other bookies, are listed in
  the file MOVED. Of these only the index shows what of an entry log is live.
- One thread flushes, merges, buries and collects; any thread may look up.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fastcrc.crc32 import iscsi as crc32c

from dlog.bookie.cache import Half, Stored
from dlog.bookie.entry_log import (
    HEAD_BYTES,
    check_entry,
    check_ids,
    entry_head,
    log_header,
    read_contents,
    section_end,
)
from dlog.bookie.id_set import IdSet, decode_id_set
from dlog.bookie.index import EntryLocation, LedgerRow, pack_location
from dlog.bookie.journal import JournalMarks, padded
from dlog.bookie.manifest import IndexKind, LogFile, LogRange, Manifest, decode, encode
from dlog.errors import ConfigError, DamagedError
from dlog.io.database import DatabaseLimits
from dlog.io.db_index import ROW_BYTES, DbIndex
from dlog.io.disk import BLOCK_BYTES, Disk, DiskSpace, File, read_file, replace_file
from dlog.io.index_runs import OURS, create_file, log_name, remove_unnamed, run_name
from dlog.io.ledger_index import LedgerIndex
from dlog.io.open_logs import OpenLogs
from dlog.io.reserve import SpaceReserve
from dlog.io.sorted_index import SortedIndex
from dlog.wire.entry_summary import HEAD_BYTES_MAX, EntryOutline
from dlog.wire.framing import Buffer

MANIFEST = "MANIFEST"
GONE = "GONE"
MOVED = "MOVED"
DEFAULT_LIMITS = DatabaseLimits()
_WRITE_BYTES = 1 << 20
_ALONE_BYTES = 32 << 10  # entries of this average size or more are read one by one


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of entry logs: of existing ledgers, of everything else, and freed ones.

    failures: logs that could not be checked, and steps that failed for lack of space.
    """

    live_bytes: int = 0
    dead_bytes: int = 0
    reclaimed_bytes: int = 0
    failures: tuple[str, ...] = ()

    def plus(self, other: Usage) -> Usage:
        return Usage(
            self.live_bytes + other.live_bytes,
            self.dead_bytes + other.dead_bytes,
            self.reclaimed_bytes + other.reclaimed_bytes,
            self.failures + other.failures,
        )


@dataclass(slots=True)
class _CompactedLog:
    """An entry log in compaction, with its ledgers not yet copied, in order. left_bytes: still to be copied at most."""

    log: LogFile
    ledgers: deque[int]
    left_bytes: int


class LedgerDir:
    """See the module. Call `load` first."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        entry_log_bytes: int,
        entry_logs_open_max: int = 256,
        reserve_bytes: int = 0,
        kind: IndexKind = IndexKind.SORTED,
        limits: DatabaseLimits = DEFAULT_LIMITS,
    ) -> None:
        """kind: of the index; limits: of the memory of a database."""
        self._disk = disk
        self._directory = directory
        self.reserve = SpaceReserve(disk, directory, reserve_bytes)
        self._entry_log_bytes = entry_log_bytes
        self._blocks: memoryview | None = None  # write buffer of `flush`
        self._logs = OpenLogs(self._open_log, self._has_log, entry_logs_open_max)
        self._victim: _CompactedLog | None = None
        self._damaged_logs: set[int] = set()  # damaged logs: never compacted
        self._searched: dict[int, int] = {}  # lost log -> ledger: no existing ledger below it has an entry there
        self.gone = IdSet()  # buried ledgers; replaced as a whole
        self.moved = IdSet()  # once removed from the index; replaced as a whole
        self.manifest = Manifest(kind=kind)
        self.index: LedgerIndex
        if kind is IndexKind.DB:
            self.index = DbIndex(disk, directory, limits, lambda: self.gone)
        else:
            self.index = SortedIndex(disk, directory, lambda: self.gone)

    def load(self) -> list[LedgerRow]:
        """Open the files that the manifest names and remove others. Returns the ledgers' states.

        Raises DamagedError if manifest, GONE, MOVED or index are damaged, ConfigError if the index is of the other
        kind.
        """
        kind = self.manifest.kind
        stored = read_manifest(self._disk, self._directory)
        if stored is not None:
            if stored.kind is not kind:
                raise ConfigError(
                    f'the index of this bookie is "{stored.kind}", not "{kind}": set [bookie] index = "{stored.kind}", '
                    f"or run `dlog bookie convert DIR --to {kind}`: dir={self._directory}"
                )
            self.manifest = stored
        self.gone = read_ids(self._disk, self._directory, GONE)
        self.moved = read_ids(self._disk, self._directory, MOVED)
        rows = self.index.load(self.manifest)
        remove_unnamed(self._disk, self._directory, self.manifest)
        return [row for row in rows if row.ledger not in self.gone]

    def stored_kind(self) -> IndexKind | None:
        """The kind of the index in the directory; None: there is no MANIFEST yet. Raises as `read_manifest`."""
        stored = read_manifest(self._disk, self._directory)
        return None if stored is None else stored.kind

    def space(self) -> DiskSpace:
        """Raises OSError."""
        return self._disk.space(self._directory)

    def missing_logs(self) -> list[str]:
        """Entry logs that are missing or cut off: reads of their entries get I/O errors."""
        return [self._log_path(log.log) for log in self.manifest.logs if not self._is_whole(log)]

    def _is_whole(self, log: LogFile) -> bool:
        """Whether the file is there, under its name, with all bytes that the manifest names. Raises OSError."""
        try:
            return self._disk.exists(self._log_path(log.log)) and self._logs.get_once(log.log).size() >= log.length
        except DamagedError:
            return False

    def _log_path(self, number: int) -> str:
        return f"{self._directory}/{log_name(number)}"

    # ---- lookups -----------------------------------------------------------------------------------------------------

    def lookup(self, ledger: int, entry: int, entries_max: int, bytes_max: int) -> list[bytes]:
        """Packets of `entry` and of the next entries without a gap that follow it on disk; empty: no such entry.

        Raises DamagedError if the index or entry is damaged, OSError if the disk cannot be read.
        """
        while True:
            version = self.index.version
            try:
                locations = self.index.find(ledger, entry, entries_max, bytes_max)
                return self._read(ledger, locations) if locations else []
            except DamagedError:
                if ledger in self.gone:
                    return []
                if version == self.index.version:
                    raise  # otherwise the log may have been compacted meanwhile: look up the new location

    def entry_runs(self, ledger: int) -> list[Iterator[tuple[int, int]]]:
        """(first, last) of consecutive ids of the ledger's entries in the present index: for each of its runs in order,
        read as they are taken. Those of one index run may touch, those of several may overlap.

        Taking raises DamagedError and OSError. A ledger that is deleted meanwhile has no more.
        """
        return self.index.entry_runs(ledger)

    def outlines(self, ledger: int) -> Callable[[int], EntryOutline | None]:
        """A function that reads the first bytes of one entry's packet; None: the present index has no such entry. It is
        fast for increasing ids, and checks the ids in the packet only.

        It raises DamagedError if the index or the entry is damaged, OSError if the disk cannot be read.
        """
        version = self.index.version
        find = self.index.finder(ledger)

        def outline(entry: int) -> EntryOutline | None:
            nonlocal version, find
            while True:
                try:
                    return self._outline(find(entry), ledger)
                except DamagedError:
                    if ledger in self.gone:
                        return None
                    if version == self.index.version:
                        raise  # otherwise the log may have been compacted meanwhile: look up the new location
                    version = self.index.version
                    find = self.index.finder(ledger)

        return outline

    def _outline(self, location: EntryLocation | None, ledger: int) -> EntryOutline | None:
        if location is None:
            return None
        size = min(location.length, HEAD_BYTES_MAX)
        head = self._logs.get(location.log).pread(size, location.offset + HEAD_BYTES)
        check_ids(head, ledger, location.entry)
        return EntryOutline(location.entry, head, location.length)

    def _read(self, ledger: int, locations: Sequence[EntryLocation]) -> list[bytes]:
        log = self._logs.get(locations[0].log)
        packets: list[bytes] = []
        for location, (head, packet) in zip(locations, _stored(log, locations), strict=True):
            try:
                check_entry(head, packet, ledger, location.entry, location.length)
            except DamagedError:
                if not packets:
                    raise
                break
            packets.append(packet)
        return packets

    def _open_log(self, number: int) -> File:
        try:
            file = self._disk.open(self._log_path(number))
        except FileNotFoundError as error:
            raise DamagedError(f"an entry log is missing: dir={self._directory} log={number}") from error
        file.disable_read_ahead()
        return file

    def _has_log(self, number: int) -> bool:
        return any(log.log == number for log in self.manifest.logs)

    # ---- flushing ----------------------------------------------------------------------------------------------------

    def flush(self, entries: Half, rows: Iterable[LedgerRow], marks: JournalMarks, *, limbo: bool = False) -> None:
        """Make entries and ledger states durable and move the marks of the journals; then lookups find them.

        marks: of all journals of the bookie. limbo: set the limbo flag for good. Raises OSError; after NO_SPACE the
        marks have not moved: repeat the flush.
        """
        old = self.manifest
        assert all(mark >= before for mark, before in zip(marks, padded(old.marks, len(marks)), strict=True)), (
            "the marks of journals never move backwards"
        )
        rows = [row for row in rows if row.ledger not in self.gone]
        if self.gone:
            entries = {ledger: held for ledger, held in entries.items() if ledger not in self.gone}
        limbo = limbo or old.limbo
        if not entries and not rows:
            if marks != old.marks or limbo != old.limbo:
                self._install(replace(old, marks=marks, limbo=limbo))
            return
        locations: list[tuple[int, bytes]] = []
        new = replace(old, marks=marks, limbo=limbo)
        if self.index.changes_in_place:
            self._check_room(entries, len(rows))
        if entries:
            logs = old.logs
            if logs and self._may_grow(logs[-1]):
                log, logs = logs[-1], logs[:-1]
            else:
                log = LogFile(old.next_file, 0, 0)
                new = replace(new, next_file=old.next_file + 1)
            written = self._write_entries(log, entries, locations)
            new = replace(new, logs=(*logs, written))
            if self.index.changes_in_place:
                tail = LogRange(written.log, log.length, written.length)
                self._install(replace(new, marks=old.marks, unindexed=(*old.unindexed, tail)))
        self._install(self.index.write(locations, rows, new))

    def _may_grow(self, log: LogFile) -> bool:
        """Whether a flush may append to this log. One that is missing or cut off stays as it is: the manifest still
        names it, so its entries are I/O errors. Raises OSError."""
        return log.length < self._entry_log_bytes and not log.length % BLOCK_BYTES and self._is_whole(log)

    def _check_room(self, entries: Half, rows: int) -> None:
        """Entries that are written for nothing are not overwritten by the next flush. So look for space before."""
        rows += sum(map(len, entries.values()))
        need = sum(map(_entries_bytes, entries.values())) + rows * ROW_BYTES
        if self._disk.free_bytes(self._directory) < need:
            raise OSError(errno.ENOSPC, "no space for the entries and their index", self._directory)

    def _write_entries(self, log: LogFile, entries: Half, locations: list[tuple[int, bytes]]) -> LogFile:
        """Append all entries in order and a table of contents, in whole blocks. Durable on return."""
        if log.length:
            file = self._logs.get(log.log)
        else:
            file = create_file(self._disk, self._directory, log_name(log.log))
            file.disable_read_ahead()
            self._logs.add(log.log, file)
        if self._blocks is None:
            self._blocks = memoryview(mmap.mmap(-1, _WRITE_BYTES))
        writer = _DirectWriter(file, log.length, self._blocks)
        file.reserve(sum(_entries_bytes(held) for held in entries.values()), log.length)
        if log.length == 0:
            writer.add(log_header(log.log))
        contents: list[tuple[int, int, int]] = []
        for ledger in sorted(entries):
            contents.append(_append_ledger(writer, log.log, ledger, entries[ledger], locations))
        section = writer.offset
        writer.add(section_end(log.section, contents))
        writer.end()
        file.datasync()
        if writer.offset >= self._entry_log_bytes:
            self._logs.drop(log.log)  # full, never written again; readers reopen it
        return LogFile(log.log, writer.offset, section)

    def _install(self, manifest: Manifest, *, frees: bool = False) -> None:
        """Replace the manifest. The directory is synced first, so that the names of new files are durable.

        frees: files will be deleted by it, so without space for it the reserve is given up.
        """
        self._disk.sync_dir(self._directory)
        if frees:
            self.reserve.replace_file(MANIFEST, encode(manifest))
        else:
            replace_file(self._disk, self._directory, MANIFEST, encode(manifest))
        self.manifest = manifest
        self.index.installed()

    # ---- merging -----------------------------------------------------------------------------------------------------

    def merge_runs(self) -> bool:
        """Merge parts of the index if there are enough; returns whether it did.

        Raises DamagedError if one of them is damaged (nothing is changed), OSError as `flush`.
        """
        return self._replace_index(self.index.merged(self.manifest))

    def _replace_index(self, new: Manifest | None) -> bool:
        if new is None:
            return False
        old = self.manifest
        self._install(new)
        for run in set(old.runs) - set(new.runs):
            self._disk.unlink(f"{self._directory}/{run_name(run.run)}")
        return True

    # ---- garbage collection ------------------------------------------------------------------------------------------

    def bury(self, ledgers: Iterable[int]) -> None:
        """Record in GONE that these ledgers are deleted; durable on return. Without space the reserve is given up.
        Raises OSError; then nothing has changed."""
        gone = self.gone.union(ledgers)
        self.reserve.replace_file(GONE, gone.encode())
        self.gone = gone

    def drop_entries(self, rows: Sequence[LedgerRow]) -> None:
        """Remove all entries of these ledgers from the index, and store these states; durable on return.

        Raises OSError; after NO_SPACE nothing has changed. Raises DamagedError if an index run is damaged.
        """
        moved = self.moved.union(row.ledger for row in rows)
        self.reserve.replace_file(MOVED, moved.encode())  # first: without it their bytes would count as live for good
        self.moved = moved
        self._replace_index(self.index.without_entries(rows, self.manifest))

    def collect(self) -> Usage:
        """Delete entry logs without entries of existing ledgers. Reads each log's tables of contents, or the index for
        a log that is missing or cut off. Without space for the new manifest the reserve is given up, and taken again
        afterwards.

        Raises OSError; after NO_SPACE nothing has changed.
        """
        live_bytes, dead_bytes, damage = 0, 0, []
        empty: list[LogFile] = []
        for log in self.manifest.logs:
            try:
                with _unreadable_is_damaged():
                    live = self._live_bytes(log)
            except DamagedError as error:
                damage.append(f"{error.message}: file={self._log_path(log.log)}")
                live = log.length
            live_bytes += live
            if live:
                dead_bytes += log.length - live
            else:
                empty.append(log)
        reclaimed_bytes = sum(log.length for log in empty if self._is_whole(log))
        self._drop_logs(empty)
        self.hold_reserve()
        return Usage(live_bytes, dead_bytes, reclaimed_bytes, tuple(damage))

    def shrink_index(self) -> None:
        """Rewrite the index if at least a quarter of its chunks belong to deleted ledgers.

        Raises OSError; after NO_SPACE nothing has changed. Raises DamagedError if an index run is damaged.
        """
        self._replace_index(self.index.without_deleted(self.manifest))

    def hold_reserve(self) -> None:
        """See SpaceReserve.hold. Raises OSError."""
        self.reserve.hold(len(self.gone.encode()) + len(self.moved.encode()) + len(encode(self.manifest)))

    def _live_bytes(self, log: LogFile) -> int:
        """Bytes of the log that belong to existing ledgers: by its tables of contents; of moved ledgers by the index. A
        log that is missing or cut off has lost tables: it counts as live while the index points into it. Raises
        DamagedError."""
        if not self._is_whole(log):
            return log.length if self._is_indexed(log.log) else 0
        return self._live_of(log, list(self._contents(log)))

    def _is_indexed(self, log: int) -> bool:
        """Whether the index points to this log, which no flush appends to, for an entry of an existing ledger. The next
        call searches on from the ledger that was found. Raises DamagedError."""
        for ledger in self.index.ledgers(self._searched.get(log, 0)):
            if ledger not in self.gone and next(self.index.locations_in(log, ledger), None) is not None:
                self._searched[log] = ledger
                return True
        return False

    def _live_of(self, log: LogFile, contents: Sequence[tuple[int, int]]) -> int:
        gone, moved = self.gone, self.moved
        live = sum(size for ledger, size in contents if ledger not in gone and ledger not in moved)
        for ledger in {ledger for ledger, _ in contents if ledger in moved and ledger not in gone}:
            live += sum(HEAD_BYTES + found.length for found in self.index.locations_in(log.log, ledger))
        return live

    def _contents(self, log: LogFile) -> Iterator[tuple[int, int]]:
        """(ledger, bytes) of each ledger in each table of contents. Raises DamagedError if one does not verify."""
        pread = self._logs.get_once(log.log).pread
        return ((ledger, size) for ledger, _, size in read_contents(pread, log.length, log.section))

    def compact(self, below: float, bytes_max: int) -> int | None:
        """Do one step of compacting full logs in which less than the share `below` of the bytes is of existing ledgers.

        Copies about `bytes_max` of entries as a flush would, or deletes a log with nothing left to copy. Returns the
        bytes copied; None: nothing to do. Copied entries are all live, so this ends. A log is deleted only when each
        of its entries in the index is durable and indexed at another location.

        Copies from a log only with space for all its live bytes and a quarter more, as part of them would free
        nothing: otherwise raises OSError with NO_SPACE. Raises OSError as `flush`, and DamagedError if an entry of the
        log does not verify: the log is not compacted any more.
        """
        victim, self._victim = self._victim, None
        if victim is None or victim.log not in self.manifest.logs:  # deleted meanwhile
            victim = self._choose_victim(below)
        if victim is None:
            return None
        if self._disk.free_bytes(self._directory) < victim.left_bytes * 5 // 4:
            raise OSError(errno.ENOSPC, "less space is free than the live entries of the emptiest entry log need")
        try:
            with _unreadable_is_damaged():
                entries, size = self._entries_to_move(victim, bytes_max)
        except DamagedError:
            self._damaged_logs.add(victim.log.log)
            raise
        if entries:
            self.flush(entries, (), self.manifest.marks)
            victim.left_bytes = max(0, victim.left_bytes - size)
            self._victim = victim  # a failed step forgets it: the log is then scanned again from its start
        else:
            self._drop_logs([victim.log])
        return size

    def _choose_victim(self, below: float) -> _CompactedLog | None:
        """The full log with the smallest live share, if below `below`."""
        best, least = None, below
        for log in self.manifest.logs:
            if log.log in self._damaged_logs or log.length < self._entry_log_bytes:
                continue
            try:
                with _unreadable_is_damaged():
                    contents = list(self._contents(log))
                    live = self._live_of(log, contents)
            except DamagedError:
                self._damaged_logs.add(log.log)
                continue
            total = sum(size for _, size in contents)
            share = live / max(1, total)
            if share < least:
                best, least = _CompactedLog(log, deque(sorted({ledger for ledger, _ in contents})), live), share
        return best

    def _entries_to_move(self, victim: _CompactedLog, bytes_max: int) -> tuple[Half, int]:
        """Next entries indexed in this log, up to about bytes_max, at least one if any. Ledgers without more of them
        are removed from the victim. Raises DamagedError."""
        entries: Half = {}
        size = 0
        while victim.ledgers:
            ledger = victim.ledgers[0]
            if ledger not in self.gone:
                for location in self.index.locations_in(victim.log.log, ledger):
                    (packet,) = self._read(ledger, [location])
                    entries.setdefault(ledger, {})[location.entry] = Stored(packet, crc32c(packet))
                    size += location.length
                    if size >= bytes_max:
                        return entries, size
            victim.ledgers.popleft()
        return entries, size

    def _drop_logs(self, logs: Sequence[LogFile]) -> None:
        """Remove logs from the manifest, then delete them. Readers go on: the last one closes the file."""
        if not logs:
            return
        kept = tuple(log for log in self.manifest.logs if log not in logs)
        names = {log.log for log in kept}
        unindexed = tuple(tail for tail in self.manifest.unindexed if tail.log in names)
        self._install(replace(self.manifest, logs=kept, unindexed=unindexed), frees=True)
        for log in logs:
            self._logs.drop(log.log)
            self._searched.pop(log.log, None)
            with contextlib.suppress(FileNotFoundError):  # it was missing
                self._disk.unlink(self._log_path(log.log))

    def close(self) -> None:
        self._logs.close()
        self.index.close()


def read_manifest(disk: Disk, directory: str) -> Manifest | None:
    """The MANIFEST; None: there is none yet. Raises DamagedError, UnsupportedVersionError."""
    data = read_file(disk, directory, MANIFEST)
    if data is not None:
        try:
            return decode(data)
        except DamagedError as error:
            raise DamagedError(f"{error.message}: dir={directory}") from error
    if any(name.startswith(OURS) for name in disk.names(directory)):
        raise DamagedError(
            f"MANIFEST is missing in a directory that holds entries; put it back, or treat all directories of this "
            f"bookie as lost: dir={directory}"
        )
    return None


def read_ids(disk: Disk, directory: str, name: str) -> IdSet:
    """The ledgers in one of the files GONE and MOVED. Raises DamagedError."""
    data = read_file(disk, directory, name)
    try:
        return IdSet() if data is None else decode_id_set(data)
    except DamagedError as error:
        raise DamagedError(f"{error.message}: file={directory}/{name}") from error


@contextlib.contextmanager
def _unreadable_is_damaged() -> Iterator[None]:
    """Turn a read error into DamagedError: it affects what is stored there and does not end the bookie."""
    try:
        yield
    except OSError as error:
        raise DamagedError(f"the disk cannot be read: {error.strerror}") from error


class _DirectWriter:
    """Copies buffers into whole blocks and writes them past the page cache.

    Flushed entries are in the bookie's caches or will hardly be read soon. Writing through the page cache would cost
    more, and the journal would wait behind a datasync of tens of MiB.
    """

    __slots__ = ("_blocks", "_file", "_gathered", "offset")

    def __init__(self, file: File, offset: int, blocks: memoryview) -> None:
        """offset: a multiple of BLOCK_BYTES. blocks: a buffer that only this writer uses."""
        assert offset % BLOCK_BYTES == 0
        self._file = file
        self._blocks = blocks
        self._gathered = 0
        self.offset = offset  # of the next byte

    def add(self, buffer: Buffer) -> None:
        gathered, size = self._gathered, len(buffer)
        self.offset += size
        if gathered + size <= len(self._blocks):
            self._blocks[gathered : gathered + size] = buffer
            self._gathered = gathered + size
        else:
            self._add_in_parts(memoryview(buffer))

    def _add_in_parts(self, rest: memoryview) -> None:
        written = self.offset - self._gathered - len(rest)
        while rest:
            part = rest[: len(self._blocks) - self._gathered]
            self._blocks[self._gathered : self._gathered + len(part)] = part
            self._gathered += len(part)
            rest = rest[len(part) :]
            if self._gathered == len(self._blocks):
                self._file.write_blocks(self._blocks, written)
                written += self._gathered
                self._gathered = 0

    def end(self) -> None:
        """Pad the last block with zeros and write the rest."""
        self.add(bytes(-self.offset % BLOCK_BYTES))
        if self._gathered:
            self._file.write_blocks(self._blocks[: self._gathered], self.offset - self._gathered)
            self._gathered = 0


def _entries_bytes(entries: dict[int, Stored]) -> int:
    return sum([HEAD_BYTES + len(stored.packet) for stored in entries.values()])


def _append_ledger(
    writer: _DirectWriter, log: int, ledger: int, entries: dict[int, Stored], into: list[tuple[int, bytes]]
) -> tuple[int, int, int]:
    """Append one ledger's entries in order; returns its line of the table of contents."""
    begin = writer.offset
    locations: list[bytes] = []
    for entry in sorted(entries):
        stored = entries[entry]
        locations.append(pack_location(entry, log, len(stored.packet), writer.offset))
        writer.add(entry_head(stored))
        writer.add(stored.packet)
    into.append((ledger, b"".join(locations)))
    return ledger, len(entries), writer.offset - begin


def _stored(log: File, locations: Sequence[EntryLocation]) -> Iterator[tuple[bytes, bytes]]:
    """Each entry's head and packet. Small entries are read together and sliced; large ones one by one, as a system call
    costs less than the copy."""
    first, last = locations[0], locations[-1]
    size = last.offset + HEAD_BYTES + last.length - first.offset
    if size >= _ALONE_BYTES * len(locations):
        for location in locations:
            yield log.pread(HEAD_BYTES, location.offset), log.pread(location.length, location.offset + HEAD_BYTES)
        return
    data = log.pread(size, first.offset)
    for location in locations:
        at = location.offset - first.offset + HEAD_BYTES
        yield data[at - HEAD_BYTES : at], data[at : at + location.length]
