"""The protocol of a segment in files: how it is created, appended to, fenced, ended, read and deleted.

A segment has up to three files: `.entries` (format.py), `.writable`, an empty file that permits appends, and `.end`.

    create      write and sync the header, create `.writable`, sync the directory and the one above it
    append      write entries, sync them, check that `.writable` exists, move the watermark, confirm
    fence       remove `.writable`
    end         fence; write again and sync the valid entries after the watermark; name a file with the end `.end`,
                unless another process has named one: then that is the end
    delete      fence; remove `.entries`, then everything else

Invariants:
- An append is confirmed only if `.writable` existed after its entries were synced. An end is decided from what is in
  the file after `.writable` was removed. So every confirmed entry is below the end, whatever process decides it and
  however long the writer slept before it confirms.
- The watermark covers confirmed entries only, so a reader that goes by it sees nothing that a recovery drops.
- `.end` is created once, by a rename, and never replaced. A process that finds it syncs the directory before it relies
  on it.
- Entries that a failed sync may have dropped from memory are written again before they are counted.
- On a full disk a segment can be ended: space.py.

All functions block and may be called from any thread. They raise OSError, besides the errors they name. `Disk` is the
part of dlog/io/disk.py that is needed here. Renaming without replacement decides between processes of one machine, so
the directory is on a local file system.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from dlog.model.ids import EntryId
from dlog.stores.contract import (
    Buffer,
    SegmentFencedError,
    SegmentNotFoundError,
    Verification,
)
from dlog.stores.file.format import (
    ENTRIES_OFFSET,
    ENTRY_BYTES_MAX,
    ENTRY_HEAD,
    HEADER_BYTES,
    POINT_SPACING_BYTES,
    WATERMARK_BYTES,
    WATERMARK_OFFSET,
    End,
    Header,
    Point,
    decode_end,
    decode_header,
    decode_watermark,
    encode_end,
    encode_header,
    encode_watermark,
    entry_crc,
)
from dlog.stores.file.space import Space

_LOCATION = re.compile(r"[0-9a-f]{32}\Z")
_PIECE_BYTES = 1024 * 1024  # of one read while entries are looked at in sequence
FIRST: Point = (0, ENTRIES_OFFSET)


class File(Protocol):
    """The operations of File in dlog/io/disk.py that segments in files need."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None: ...
    def pread(self, length: int, offset: int) -> bytes: ...
    def datasync(self) -> None: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """The operations of Disk in dlog/io/disk.py that segments in files need."""

    def create(self, path: str) -> File: ...
    def open(self, path: str) -> File: ...
    def rename_new(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def exists(self, path: str) -> bool: ...
    def names(self, directory: str) -> list[str]: ...
    def sync_dir(self, directory: str) -> None: ...
    def make_dir(self, path: str) -> None: ...
    def free_bytes(self, directory: str) -> int: ...


def is_location(text: str) -> bool:
    """Whether a segment of this store can have this location: 32 hexadecimal digits, chosen at random."""
    return _LOCATION.match(text) is not None


def locations(disk: Disk, root: str, directory: str) -> list[str]:
    """Locations of the segments in one of the directories of `root`."""
    names = disk.names(f"{root}/{directory}")
    return [name[:32] for name in names if name.endswith(".entries") and is_location(name[:32])]


class SegmentFiles:
    """The files of one segment. draft_id: no other object of this or another process has the same. space: of `root`."""

    __slots__ = ("_disk", "_draft", "_end", "_entries", "_root", "_writable", "directory", "location", "space")

    def __init__(self, disk: Disk, root: str, location: str, draft_id: str, space: Space) -> None:
        """Raises SegmentNotFoundError for a location that no segment can have."""
        if not is_location(location):
            raise SegmentNotFoundError(f"not the location of a segment file: location={location[:80]!r}")
        self.location = location
        self.space = space
        self.directory = f"{root}/{location[:2]}"
        self._disk = disk
        self._root = root
        path = f"{self.directory}/{location}"
        self._entries, self._writable, self._end = f"{path}.entries", f"{path}.writable", f"{path}.end"
        self._draft = f"{path}.{draft_id}.draft"  # becomes `.end`

    @property
    def path(self) -> str:
        """Of the file of entries."""
        return self._entries

    # ---- writing ----------------------------------------------------------------------------------------------------

    def create(self, header: Header) -> File:
        """Create the segment, durably, and return its file of entries. After an OSError nothing of it is left, as far
        as it can be removed: nobody knows of it."""
        with self.space.for_entries():
            self._disk.make_dir(self.directory)
            file = self._disk.create(self._entries)
            try:
                file.pwritev([encode_header(header)], 0)
                file.datasync()
                self._disk.create(self._writable).close()
                self._disk.sync_dir(self.directory)
                self._disk.sync_dir(self._root)  # another process may have made the directory, and not synced its name
            except OSError:
                file.close()
                for path in (self._writable, self._entries):
                    with contextlib.suppress(OSError):
                        self._disk.unlink(path)
                raise
        return file

    def is_writable(self) -> bool:
        """Whether no process has fenced the segment."""
        return self._disk.exists(self._writable)

    def fence(self) -> bool:
        """Fence the segment: from now on no append is confirmed. Returns whether it was not fenced before."""
        try:
            self._disk.unlink(self._writable)
        except FileNotFoundError:
            return False
        return True

    # ---- ending -----------------------------------------------------------------------------------------------------

    def open(self) -> tuple[File, Header]:
        """Open the file of entries. Raises SegmentNotFoundError, SegmentCorruptError."""
        try:
            file = self._disk.open(self._entries)
        except FileNotFoundError:
            raise SegmentNotFoundError(f"no such segment: store=file location={self.location}") from None
        try:
            return file, decode_header(file.pread(HEADER_BYTES, 0), self.location)
        except BaseException:
            file.close()
            raise

    def read_end(self, nonce: bytes, *, expected: EntryId | None = None) -> End | None:
        """The decided end, durable; None: not decided. expected: a last entry that is known to be durable. Raises
        SegmentCorruptError.
        """
        try:
            file = self._disk.open(self._end)
        except FileNotFoundError:
            return None
        try:
            end = decode_end(nonce, file.pread(file.size(), 0), self.location)
        finally:
            file.close()
        if end.last_entry != expected:
            self._disk.sync_dir(self.directory)
        return end

    def decide_end(self) -> End:
        """Fence the segment and return its end, deciding it if no process has. Raises SegmentNotFoundError,
        SegmentCorruptError.
        """
        file, header = self.open()
        try:
            self.fence()
            end = self.read_end(header.nonce)
            return end or self.publish(header.nonce, self.space.for_ending(self._valid_entries, file, header.nonce))
        finally:
            file.close()

    def publish(self, nonce: bytes, end: End) -> End:
        """Make `end` the end of the fenced segment, unless it has one; return the one that it has. Raises
        SegmentNotFoundError.
        """
        self.space.for_ending(self._write_draft, encode_end(nonce, end))
        try:
            self._disk.rename_new(self._draft, self._end)
        except FileExistsError:
            self._disk.unlink(self._draft)
        decided = self.read_end(nonce)
        if decided is not None and self._disk.exists(self._entries):
            return decided
        self.delete()  # another process deletes it, and may have done so before the end was there
        raise SegmentNotFoundError(f"the segment was deleted: store=file location={self.location}")

    def _write_draft(self, data: bytes) -> None:
        file = self._disk.create(self._draft)
        try:
            file.pwritev([data], 0)
            file.datasync()
        except OSError:  # it is written again, and each recovery would leave its own
            with contextlib.suppress(OSError):
                self._disk.unlink(self._draft)
            raise
        finally:
            file.close()

    def find_tail(self) -> EntryId:
        """See SegmentStore.find_tail. If the segment is fenced, its end."""
        file, header = self.open()
        try:
            found = self._valid_entries(file, header.nonce).last_entry
            if self.is_writable():
                return found
        finally:
            file.close()
        return self.decide_end().last_entry

    def delete(self) -> None:
        """Delete the segment, durably. Idempotent, also after a failure."""
        self.fence()
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self._entries)
        with contextlib.suppress(FileNotFoundError):  # no segment was ever created in that directory
            for name in self._disk.names(self.directory):  # an end that is named later is removed by `publish`
                if name.startswith(self.location):
                    with contextlib.suppress(FileNotFoundError):
                        self._disk.unlink(f"{self.directory}/{name}")
            self._disk.sync_dir(self.directory)

    def _valid_entries(self, file: File, nonce: bytes) -> End:
        """The entries that are confirmed, and those after them that are complete; all of them durable on return."""
        start = read_watermark(file, nonce)
        entry, offset = scan(file, nonce, start)
        at = start[1]
        while at < offset:  # a failed sync marks pages as clean, though they are not on the disk
            piece = file.pread(min(_PIECE_BYTES, offset - at), at)
            file.pwritev([piece], at)
            at += len(piece)
        file.datasync()
        points = (FIRST,) if start == FIRST else (FIRST, start)
        return End(EntryId(entry - 1), offset, points)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def read_progress(self, file: File, nonce: bytes) -> tuple[End | None, int]:
        """The end, if it is decided, and the number of confirmed entries.

        Raises SegmentNotFoundError, SegmentCorruptError.
        """
        end = self.read_end(nonce)
        if end is None and not self._disk.exists(self._entries):
            raise SegmentNotFoundError(f"the segment was deleted: store=file location={self.location}")
        return end, read_watermark(file, nonce)[0]

    def verify(self) -> Verification:
        """Check every entry up to the end, or up to the watermark if the segment has none. After an entry whose length
        is damaged the others cannot be found: they count as damaged.
        """
        file, header = self.open()
        try:
            end = self.read_end(header.nonce)
            count = end.last_entry + 1 if end is not None else read_watermark(file, header.nonce)[0]
            damaged: list[tuple[EntryId, str]] = []
            entry, offset = scan(file, header.nonce, FIRST, count)
            while entry < count:
                damaged.append((EntryId(entry), "the checksum does not match"))
                length = _head_length(file.pread(ENTRY_HEAD.size, offset))
                if length is None:
                    damaged += [(EntryId(e), "it is behind a damaged entry") for e in range(entry + 1, count)]
                    break
                entry, offset = scan(file, header.nonce, (entry + 1, offset + ENTRY_HEAD.size + length), count)
            return Verification(count, tuple(damaged))
        finally:
            file.close()


class Appender:
    """Appends entries to a segment that this process created. One thread at a time may use it."""

    def __init__(self, files: SegmentFiles, file: File, nonce: bytes) -> None:
        self._files = files
        self._file = file
        self._nonce = nonce
        self._next: Point = FIRST
        self._points: list[Point] = [FIRST]

    def append(self, parts: Sequence[Buffer], sizes: Sequence[int]) -> None:
        """Append entries and return once they are confirmed. parts: heads and payloads; sizes: bytes of each entry with
        its head. Raises SegmentFencedError: they may be in the segment or not.

        After an error this must not be called again: the file's contents after the confirmed entries are unknown.
        """
        entry, offset = self._next
        with self._files.space.for_entries():
            self._file.pwritev(parts, offset)
            self._file.datasync()
        for size in sizes:
            if offset - self._points[-1][1] >= POINT_SPACING_BYTES:
                self._points.append((entry, offset))
            entry += 1
            offset += size
        if not self._files.is_writable():
            raise SegmentFencedError(f"the segment was fenced, reopen the stream: location={self._files.location}")
        self._file.pwritev([encode_watermark(self._nonce, entry, offset)], WATERMARK_OFFSET)
        self._next = entry, offset

    def seal(self) -> EntryId:
        """Fence the segment and make the last confirmed entry its end. Raises SegmentFencedError if another process
        has fenced it, SegmentNotFoundError if it was deleted.
        """
        if not self._files.fence():
            raise SegmentFencedError(f"another process ended the segment: location={self._files.location}")
        entry, offset = self._next
        return self._files.publish(self._nonce, End(EntryId(entry - 1), offset, tuple(self._points))).last_entry


# ---- entries of a file ----------------------------------------------------------------------------------------------


def read_watermark(file: File, nonce: bytes) -> Point:
    """The number of confirmed entries and the offset after them, as far as their writer has reported."""
    return decode_watermark(nonce, file.pread(WATERMARK_BYTES, WATERMARK_OFFSET))


def scan(file: File, nonce: bytes, start: Point, count: int = 1 << 63) -> Point:
    """Check entries from `start` on; return the first that is not complete and valid, or `count`, and its offset."""
    entry, offset = start
    while entry < count:
        data = file.pread(_PIECE_BYTES, offset)
        at = 0
        while entry < count and (length := _length_at(data, at)) is not None:
            if not _is_valid(nonce, entry, data, at, length):
                return entry, offset + at
            at += ENTRY_HEAD.size + length
            entry += 1
        if at == 0:
            if (length := _head_length(data)) is None or len(data) < _PIECE_BYTES:
                break
            data = file.pread(ENTRY_HEAD.size + length, offset)  # an entry that is larger than a piece
            if _length_at(data, 0) is None or not _is_valid(nonce, entry, data, 0, length):
                break
            at = len(data)
            entry += 1
        offset += at
    return entry, offset


class EntryOffsets:
    """Finds offsets of entries: from index points, and by walking from one entry's head to the next. One thread at a
    time may use it."""

    def __init__(self, points: Sequence[Point] = (FIRST,)) -> None:
        self._points = list(points)
        self._cursor: Point = FIRST  # where the last read ended

    def add(self, points: Sequence[Point]) -> None:
        self._points = sorted({*self._points, *points})

    def read_upto(self, entry: int, offset: int) -> None:
        self._cursor = entry, offset

    def find(self, file: File, entry: int) -> int | None:
        """The offset of an entry at or below the LAC; None: a head on the way to it is damaged."""
        at = self._points[bisect_right(self._points, (entry, 1 << 63)) - 1]
        if at[0] < self._cursor[0] <= entry:
            at = self._cursor
        number, offset = at
        while number < entry:
            data = file.pread(_PIECE_BYTES, offset)
            position = 0
            while number < entry and (length := _head_length(data, position)) is not None:
                position += ENTRY_HEAD.size + length
                number += 1
                if offset + position - self._points[-1][1] >= POINT_SPACING_BYTES:
                    self._points.append((number, offset + position))
            if position == 0:
                return None
            offset += position
        return offset


def read_entries(
    file: File, nonce: bytes, offset: int, first: int, last: int, max_bytes: int
) -> tuple[list[memoryview], int]:
    """Payloads of entries first.. as far as `last`, max_bytes and their checksums allow, and the offset after them.

    At least one, unless the first is damaged: then none.
    """
    data = file.pread(max_bytes + ENTRY_HEAD.size * min(last - first + 1, 1024), offset)
    length = _head_length(data)
    if length is not None and len(data) < ENTRY_HEAD.size + length:
        data = file.pread(ENTRY_HEAD.size + length, offset)
    found: list[memoryview] = []
    at, room = 0, max_bytes
    view = memoryview(data)
    for entry in range(first, last + 1):
        length = _length_at(data, at)
        if length is None or (found and length > room) or not _is_valid(nonce, entry, data, at, length):
            break
        start = at + ENTRY_HEAD.size
        found.append(view[start : start + length])
        at = start + length
        room -= length
    return found, offset + at


def _head_length(data: bytes, at: int = 0) -> int | None:
    """The payload length of the entry that begins at `at`; None: not all of its head is there, or it is no head."""
    if at + ENTRY_HEAD.size > len(data):
        return None
    length: int = ENTRY_HEAD.unpack_from(data, at)[0]
    return length if length <= ENTRY_BYTES_MAX else None


def _length_at(data: bytes, at: int) -> int | None:
    """As `_head_length`, of an entry that is completely in `data`."""
    length = _head_length(data, at)
    return length if length is not None and at + ENTRY_HEAD.size + length <= len(data) else None


def _is_valid(nonce: bytes, entry: int, data: bytes, at: int, length: int) -> bool:
    start = at + ENTRY_HEAD.size
    crc: int = ENTRY_HEAD.unpack_from(data, at)[1]
    return crc == entry_crc(nonce, entry, length, [memoryview(data)[start : start + length]])
