"""Byte format of index runs: sorted, immutable files with the location of each entry and the state of its ledger.

Each checkpoint writes one run per ledger directory; newer runs take precedence; runs are merged as they accumulate. In
memory a run is five arrays, about 36 bytes for up to 170 entries; chunks are read from the file when needed.

    file header  "DLI1" | 0 u32 | run id u64 | crc u32 | zeros                               32 bytes
    chunk        crc u32 | count u32 | ledger i64 | count x (entry i64, log u32, length u32, offset u64)
    footer       columns ledger, first, last, offset, count of all chunks | states
    state        ledger i64 | flags u8 (1 fenced, 7 bits: seen) | key length u8 | lac i64 | last entry i64 | master key
                 if 128 is added to the key length: | length u8 | packet of the explicit LAC
    trailer      "DLIE" | chunks u32 | states u32 | footer offset u64 | footer crc u32 | trailer crc u32

Invariants:
- bytes that do not verify are never used;
- an entry in the range of a damaged chunk is damaged, never absent.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from dlog.errors import DamagedError

RUN_HEADER_BYTES = 32
CHUNK_ENTRIES = 170
CHUNK_HEAD_BYTES = 16
LOCATION_BYTES = 24

_FILE = struct.Struct(">4sIQ")
_CHUNK = struct.Struct(">Iq")
_LOCATION = struct.Struct(">qIIQ")
_STATE = struct.Struct(">qBBqq")
_TRAILER = struct.Struct(">4sIIQI")
_CRC = struct.Struct(">I")
_ENTRY = struct.Struct(">q")
TRAILER_BYTES = _TRAILER.size + 4
_COLUMNS = "qqqQI"
_STATES_AT_ONCE = 1024
_WITH_LAC = 0x80  # of a key length
_COLUMN_BYTES = 8 + 8 + 8 + 8 + 4
CHUNK_OVERHEAD_BYTES = CHUNK_HEAD_BYTES + _COLUMN_BYTES  # of a chunk in a file, without its locations


class EntryLocation(NamedTuple):
    """Location of an entry's record: entry log, length of its packet, offset of its record."""

    entry: int
    log: int
    length: int
    offset: int


class LedgerRow(NamedTuple):
    """A ledger's stored state. `last`: its highest entry here, -1 if none. `seen`: the mark chain under which its
    metadata was seen (dlog/bookie/garbage_collection.py), 0 to 127. explicit_lac: the packet, b"" if none was written.
    """

    ledger: int
    master_key: bytes
    fenced: bool
    lac: int
    last: int
    seen: int = 0
    explicit_lac: bytes = b""


def _new_columns() -> list[array[int]]:
    return [array(code) for code in _COLUMNS]


@dataclass(slots=True)
class RunTable:
    """A run's sparse index: one row per chunk, ordered by (ledger, first)."""

    columns: list[array[int]] = field(default_factory=_new_columns)

    def append(self, ledger: int, first: int, last: int, offset: int, count: int) -> None:
        for column, value in zip(self.columns, (ledger, first, last, offset, count), strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(self.columns[0])

    def find(self, ledger: int, entry: int) -> int:
        """Row of the chunk whose range contains the entry, or -1."""
        ledgers, firsts, lasts = self.columns[0], self.columns[1], self.columns[2]
        low = bisect_left(ledgers, ledger)
        high = bisect_right(ledgers, ledger, low)
        row = bisect_right(firsts, entry, low, high) - 1
        return row if row >= low and lasts[row] >= entry else -1

    def rows_of(self, ledger: int) -> range:
        """Rows of a ledger's chunks, in entry order."""
        ledgers = self.columns[0]
        low = bisect_left(ledgers, ledger)
        return range(low, bisect_right(ledgers, ledger, low))

    def goes_on(self, row: int) -> bool:
        """Whether the next chunk continues this one without a gap."""
        ledgers, firsts, lasts = self.columns[0], self.columns[1], self.columns[2]
        return row + 1 < len(ledgers) and ledgers[row + 1] == ledgers[row] and firsts[row + 1] == lasts[row] + 1

    def ledger(self, row: int) -> int:
        return self.columns[0][row]

    def first(self, row: int) -> int:
        return self.columns[1][row]

    def last(self, row: int) -> int:
        return self.columns[2][row]

    def count(self, row: int) -> int:
        return self.columns[4][row]

    def span(self, row: int) -> tuple[int, int]:
        """Offset and length of the chunk."""
        return self.columns[3][row], CHUNK_HEAD_BYTES + self.columns[4][row] * LOCATION_BYTES


# ---- writing ---------------------------------------------------------------------------------------------------------


def run_header(run_id: int) -> bytes:
    head = _FILE.pack(b"DLI1", 0, run_id)
    return (head + _CRC.pack(crc32c(head))).ljust(RUN_HEADER_BYTES, b"\0")


class RunBuilder:
    """Encodes a run from sorted locations; the caller writes the returned bytes, in order, after the header."""

    __slots__ = ("_offset", "table")

    def __init__(self) -> None:
        self.table = RunTable()
        self._offset = RUN_HEADER_BYTES

    def chunk(self, ledger: int, locations: bytes) -> bytes:
        """One chunk of packed locations of one ledger, sorted by entry; 1 to CHUNK_ENTRIES of them."""
        count = len(locations) // LOCATION_BYTES
        assert 0 < count <= CHUNK_ENTRIES
        (first,) = struct.unpack_from(">q", locations)
        (last,) = struct.unpack_from(">q", locations, len(locations) - LOCATION_BYTES)
        self.table.append(ledger, first, last, self._offset, count)
        data = pack_chunk(ledger, locations)
        self._offset += len(data)
        return data

    def chunks(self, ledger: int, locations: bytes) -> Iterator[bytes]:
        """Chunks of any number of packed locations of one ledger, sorted by entry."""
        step = CHUNK_ENTRIES * LOCATION_BYTES
        for at in range(0, len(locations), step):
            yield self.chunk(ledger, locations[at : at + step])

    def damaged_chunk(self, ledger: int, first: int, last: int, count: int) -> bytes:
        """A chunk that does not verify, in place of a damaged one: entries in its range are damaged, never absent."""
        self.table.append(ledger, first, last, self._offset, count)
        data = bytes(CHUNK_HEAD_BYTES + count * LOCATION_BYTES)
        self._offset += len(data)
        return data

    def finish(self, states: Iterable[LedgerRow]) -> Iterator[bytes]:
        """Footer and trailer, in parts: there may be a million states. The last part is the trailer."""
        crc, count = 0, 0
        for column in self.table.columns:
            part = _big_endian(column)
            crc = crc32c(part, crc)
            yield part
        rows = iter(states)
        while packed := [pack_state(row) for row in islice(rows, _STATES_AT_ONCE)]:
            count += len(packed)
            part = b"".join(packed)
            crc = crc32c(part, crc)
            yield part
        trailer = _TRAILER.pack(b"DLIE", len(self.table), count, self._offset, crc)
        yield trailer + _CRC.pack(crc32c(trailer))


def pack_state(row: LedgerRow) -> bytes:
    ledger, key, fenced, lac, last, seen, explicit_lac = row
    if not explicit_lac:
        return _STATE.pack(ledger, fenced | seen << 1, len(key), lac, last) + key
    head = _STATE.pack(ledger, fenced | seen << 1, len(key) | _WITH_LAC, lac, last)
    return b"".join((head, key, bytes((len(explicit_lac),)), explicit_lac))


def pack_chunk(ledger: int, locations: bytes) -> bytes:
    """A chunk as it is stored."""
    body = _CHUNK.pack(len(locations) // LOCATION_BYTES, ledger) + locations
    return _CRC.pack(crc32c(body)) + body


def pack_location(entry: int, log: int, length: int, offset: int) -> bytes:
    return _LOCATION.pack(entry, log, length, offset)


def _big_endian(column: array[int]) -> bytes:
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()


# ---- reading ---------------------------------------------------------------------------------------------------------


def parse_trailer(data: bytes) -> tuple[int, int, int, int]:
    """Return chunks, states, footer offset, footer crc. Raises DamagedError."""
    if len(data) == TRAILER_BYTES:
        magic, chunks, states, offset, crc = _TRAILER.unpack_from(data)
        if magic == b"DLIE" and _CRC.unpack_from(data, _TRAILER.size)[0] == crc32c(data[: _TRAILER.size]):
            return chunks, states, offset, crc
    raise DamagedError("an index run's trailer does not verify")


def parse_footer(data: bytes, chunks: int, states: int, crc: int) -> tuple[RunTable, Iterator[LedgerRow]]:
    """Return the table, and an iterator that decodes the states. Raises DamagedError."""
    if crc32c(data) != crc or len(data) < chunks * _COLUMN_BYTES:
        raise DamagedError("an index run's footer does not verify")
    at = 0
    columns = _new_columns()
    for column in columns:
        size = chunks * column.itemsize
        column.frombytes(data[at : at + size])
        if sys.byteorder == "little":
            column.byteswap()
        at += size
    return RunTable(columns), _rows(data, at, states)


def _rows(data: bytes, at: int, states: int) -> Iterator[LedgerRow]:
    for _ in range(states):
        ledger, flags, key_size, lac, last = _STATE.unpack_from(data, at)
        at += _STATE.size
        with_lac, key_size = key_size & _WITH_LAC, key_size & ~_WITH_LAC
        key = data[at : at + key_size]
        at += key_size
        explicit_lac = b""
        if with_lac:
            end = at + 1 + data[at]
            explicit_lac = data[at + 1 : end]
            at = end
        yield LedgerRow(ledger, key, bool(flags & 1), lac, last, flags >> 1, explicit_lac)


def parse_state(data: bytes) -> LedgerRow:
    """Inverse of `pack_state`, of bytes that verify."""
    return next(_rows(data, 0, 1))


def parse_chunk(data: bytes, ledger: int) -> bytes:
    """Return a chunk's packed locations. Raises DamagedError if it does not verify or is of another ledger."""
    if len(data) > CHUNK_HEAD_BYTES:
        (crc,) = _CRC.unpack_from(data)
        count, stored_ledger = _CHUNK.unpack_from(data, 4)
        if (
            crc == crc32c(data[4:])
            and stored_ledger == ledger
            and len(data) == CHUNK_HEAD_BYTES + count * LOCATION_BYTES
        ):
            return data[CHUNK_HEAD_BYTES:]
    raise DamagedError(f"an index chunk does not verify: ledger={ledger}")


def locate(locations: bytes, entry: int) -> int:
    """Return the entry's position among packed locations, or -1."""
    count = len(locations) // LOCATION_BYTES
    first: int = _ENTRY.unpack_from(locations)[0]
    guess = entry - first
    if 0 <= guess < count and struct.unpack_from(">q", locations, guess * LOCATION_BYTES)[0] == entry:
        return guess
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if _ENTRY.unpack_from(locations, middle * LOCATION_BYTES)[0] < entry:
            low = middle + 1
        else:
            high = middle
    if low < count and struct.unpack_from(">q", locations, low * LOCATION_BYTES)[0] == entry:
        return low
    return -1


def location_at(locations: bytes, number: int) -> EntryLocation:
    return EntryLocation._make(_LOCATION.unpack_from(locations, number * LOCATION_BYTES))


# ---- merging ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MergeSource:
    """A run to merge; `read_chunk(row)` returns a chunk's bytes as stored."""

    table: RunTable
    read_chunk: Callable[[int], bytes]


def runs_to_merge(sizes: Sequence[int], *, together: int = 4) -> int:
    """Return how many of the newest runs (the last of `sizes`) to merge into one now; 0 for none.

    A run is included while it is at most twice as large as all newer ones together, so an entry is rewritten a
    logarithmic number of times and runs stay few.
    """
    total, count = 0, 0
    for size in reversed(sizes):
        if count and size > 2 * total:
            break
        total += size
        count += 1
    return count if count >= together else 0


def merge(sources: Sequence[MergeSource], gone: Container[int] = ()) -> Iterator[tuple[int, bytes]]:
    """Yield (ledger, packed locations) of the merged run, in order, cut to chunks. sources: oldest first. Ledgers in
    `gone` are left out.

    Chunks with disjoint ranges are concatenated without decoding; where they overlap, the newest location of an entry
    wins. Raises DamagedError.
    """
    rows = sorted(
        (source.table.ledger(row), source.table.first(row), age, row)
        for age, source in enumerate(sources)
        for row in range(len(source.table))
        if source.table.ledger(row) not in gone
    )
    at = 0
    pending_ledger, pending = 0, b""
    while at < len(rows):
        ledger, _, age, row = rows[at]
        end = sources[age].table.last(row)
        stop = at + 1
        while stop < len(rows) and rows[stop][0] == ledger and rows[stop][1] <= end:
            end = max(end, sources[rows[stop][2]].table.last(rows[stop][3]))
            stop += 1
        locations = _join(sources, rows[at:stop])
        if pending and (pending_ledger != ledger or len(pending) + len(locations) > CHUNK_ENTRIES * LOCATION_BYTES):
            yield from _cut(pending_ledger, pending)
            pending = b""
        pending_ledger, pending = ledger, pending + locations
        at = stop
    if pending:
        yield from _cut(pending_ledger, pending)


def _join(sources: Sequence[MergeSource], rows: list[tuple[int, int, int, int]]) -> bytes:
    if len(rows) == 1:
        ledger, _, age, row = rows[0]
        return parse_chunk(sources[age].read_chunk(row), ledger)
    newest: dict[int, bytes] = {}
    for ledger, _, age, row in sorted(rows, key=lambda r: (r[2], r[3])):
        locations = parse_chunk(sources[age].read_chunk(row), ledger)
        for at in range(0, len(locations), LOCATION_BYTES):
            newest[struct.unpack_from(">q", locations, at)[0]] = locations[at : at + LOCATION_BYTES]
    return b"".join(newest[entry] for entry in sorted(newest))


def _cut(ledger: int, locations: bytes) -> Iterator[tuple[int, bytes]]:
    step = CHUNK_ENTRIES * LOCATION_BYTES
    for at in range(0, len(locations), step):
        yield ledger, locations[at : at + step]
