"""Files of a ledger directory by name, and its index runs: writing, opening and searching one.

The format of a run is in dlog/bookie/index.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Protocol

from dlog.bookie.entry_log import HEAD_BYTES
from dlog.bookie.index import (
    TRAILER_BYTES,
    EntryLocation,
    LedgerRow,
    RunBuilder,
    RunTable,
    locate,
    location_at,
    parse_chunk,
    parse_footer,
    parse_trailer,
    run_header,
)
from dlog.bookie.manifest import Manifest, RunFile
from dlog.errors import DamagedError
from dlog.io.disk import Disk, File

_WRITE_BYTES = 1 << 20
OURS = ("index-", "entries-", "database-")
_REBUILD = "see `dlog bookie fsck --help`"


def run_name(number: int) -> str:
    return f"index-{number:08x}"


def log_name(number: int) -> str:
    return f"entries-{number:08x}"


def database_name(number: int) -> str:
    return f"database-{number:08x}"


def is_named(manifest: Manifest, name: str) -> bool:
    """Whether the manifest names the file, or the database that it is a part of."""
    return (
        name in {run_name(run.run) for run in manifest.runs}
        or name in {log_name(log.log) for log in manifest.logs}
        or (manifest.database > 0 and name.partition(".")[0] == database_name(manifest.database))
    )


def remove_unnamed(disk: Disk, directory: str, manifest: Manifest) -> None:
    """Remove what interrupted writes left. Raises OSError."""
    unnamed = [name for name in disk.names(directory) if name.startswith(OURS) and not is_named(manifest, name)]
    if unnamed:
        disk.sync_dir(directory)  # a process may have died before it synced this manifest
    for name in unnamed:
        if name.startswith("database-"):
            disk.remove_database(f"{directory}/{name}")
        else:
            disk.unlink(f"{directory}/{name}")


class IndexRun:
    """An open index run."""

    __slots__ = ("file", "named", "number", "rows", "size", "table")

    def __init__(self, named: RunFile, file: File, table: RunTable | None = None) -> None:
        """Read the table and ledger states, or use the table given. Raises DamagedError."""
        number, size, named_crc = named
        self.named = named
        self.number = number
        self.file = file
        self.size = size
        self.rows: Iterable[LedgerRow] = ()  # ledger states; iterate once
        if table is None:
            chunks, states, offset, crc = parse_trailer(file.pread(TRAILER_BYTES, max(0, size - TRAILER_BYTES)))
            if crc != named_crc:
                raise DamagedError("an index run is not the one that the MANIFEST names")
            footer = file.pread(size - TRAILER_BYTES - offset, offset)
            table, self.rows = parse_footer(footer, chunks, states, crc)
        self.table = table

    def read_chunk(self, row: int) -> bytes:
        offset, length = self.table.span(row)
        return self.file.pread(length, offset)

    def close(self) -> None:
        self.file.close()


class ReadableRun(Protocol):
    """An index run, or a database that is read as one."""

    table: RunTable

    def read_chunk(self, row: int) -> bytes: ...


class ChunkFinder:
    """Finds entries of one ledger in a run; caches the last chunk, as entries are asked for in order."""

    __slots__ = ("_ledger", "_locations", "_row", "_run")

    def __init__(self, run: ReadableRun, ledger: int) -> None:
        self._run = run
        self._ledger = ledger
        self._row = -1
        self._locations = b""

    def has(self, entry: int) -> bool:
        return self._number_of(entry) >= 0

    def find(self, entry: int) -> EntryLocation | None:
        number = self._number_of(entry)
        return location_at(self._locations, number) if number >= 0 else None

    def _number_of(self, entry: int) -> int:
        row = self._run.table.find(self._ledger, entry)
        if row < 0:
            return -1
        if row != self._row:
            self._row, self._locations = row, parse_chunk(self._run.read_chunk(row), self._ledger)
        return locate(self._locations, entry)


def follows(before: EntryLocation, location: EntryLocation) -> bool:
    """Whether an entry is the next one of its ledger, and next on disk."""
    return (
        location.entry == before.entry + 1
        and location.log == before.log
        and location.offset == before.offset + HEAD_BYTES + before.length
    )


def create_file(disk: Disk, directory: str, name: str) -> File:
    """Create a file; replaces one that an interrupted write left behind."""
    path = f"{directory}/{name}"
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(path)
    return disk.create(path)


def open_run(disk: Disk, directory: str, run: RunFile, table: RunTable | None = None) -> IndexRun:
    """table: of a run just written; None: read it. Raises DamagedError."""
    try:
        file = disk.open(f"{directory}/{run_name(run.run)}")
    except FileNotFoundError as error:
        raise DamagedError(f"an index run is missing, {_REBUILD}: dir={directory} run={run.run}") from error
    try:
        return IndexRun(run, file, table)
    except DamagedError as error:
        raise DamagedError(f"{error.message}, {_REBUILD}: dir={directory} run={run.run}") from error


def write_run(disk: Disk, directory: str, number: int, buffers: Iterable[bytes]) -> RunFile:
    """Write an index run; the last buffer ends with the trailer. Durable on return, its name not. Raises OSError."""
    file = create_file(disk, directory, run_name(number))
    writer = _Appender(file, 0)
    buffer = run_header(number)
    writer.add(buffer)
    for buffer in buffers:
        writer.add(buffer)
    writer.write()
    file.datasync()
    file.close()
    return RunFile(number, writer.offset, parse_trailer(buffer[-TRAILER_BYTES:])[3])


def write_index(
    disk: Disk, directory: str, number: int, locations: Iterable[tuple[int, bytes]], states: Iterable[LedgerRow]
) -> RunFile:
    """Write an index run with these locations, (ledger, packed) in order and cut to chunks, and states. As
    `write_run`."""
    builder = RunBuilder()
    chunks = (builder.chunk(ledger, packed) for ledger, packed in locations)
    parts = (part for source in (chunks, builder.finish(states)) for part in source)
    return write_run(disk, directory, number, parts)


class _Appender:
    """Collects buffers and writes them in large steps."""

    __slots__ = ("_buffers", "_file", "_gathered", "offset")

    def __init__(self, file: File, offset: int) -> None:
        self._file = file
        self._buffers: list[bytes] = []
        self._gathered = 0
        self.offset = offset  # of the next byte

    def add(self, buffer: bytes) -> None:
        self._buffers.append(buffer)
        self._gathered += len(buffer)
        self.offset += len(buffer)
        if self._gathered >= _WRITE_BYTES:
            self.write()

    def write(self) -> None:
        self._file.pwritev(self._buffers, self.offset - self._gathered)
        self._buffers, self._gathered = [], 0
