"""Byte format of a segment object. An object is written once, sequentially, and never changed.

    object  = header | entries | block ... | summary | footer
    header  = "DLOGSEG1" | version u16 | length u32 | head: msgpack map | crc32c u32 of all before it
    entries = the payloads of the segment's entries, byte for byte and in order, nothing between them
    block   = up to 1024 rows, for as many entries
    row     = offset u64 | length u32 | crc32c u32 of the payload | first txid i64 | last txid i64 | time i64
              | first slot i32 | records u32
    summary = msgpack array [head, header's length, blocks: bytes], the blocks one after another:
              offset u64 | first entry u64 | entries u32 | crc32c u32 | first txid i64 | last txid i64 | time i64
    footer  = version u16 | entries u64 | payload bytes u64 | records u64 | object bytes u64 | summary at u64
              | summary length u32 | summary crc32c u32 | entries' crc32c u32 | object's crc32c u32 | "DLOGSEGE"
              | crc32c u32 of the footer before it

All numbers are big-endian. `head` is the same in header and summary: stream, incarnation, segment number, last entry
and slot, txids, records, source store and location (see Head). txid -1, slot -1, time 0: the entry holds no record, or
none is given. Times are unix milliseconds of the owner when it received the entry. The object's CRC covers everything
before the footer; the entries' CRC covers, for each entry in order, length u32 | crc32c u32 of its payload, so that it
identifies the entries independently of their location.

A reader needs the end (the footer locates the summary just before it), the header, and parts of blocks and entries.

Invariants:
- every byte used was checked: footer, summary and header by their own CRCs, a block by that in the summary, a payload
  by that in its row;
- sizes are checked against what exists before memory is allocated; every fault is a DamagedError, a newer version an
  UnsupportedVersionError;
- no I/O: bytes in, bytes out.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model.ids import NO_TXID
from dlog.wire.digest import crc32c

Buffer = bytes | bytearray | memoryview

VERSION = 1
MAGIC, MAGIC_END = b"DLOGSEG1", b"DLOGSEGE"
BLOCK_ENTRIES = 1024
NO_SLOT = -1
HEAD_BYTES_MAX = 16 * 1024
SUMMARY_BYTES_MAX = 16 * 1024 * 1024
ENTRY_BYTES_MAX = 64 * 1024 * 1024  # largest accepted; our stores write far less

_HEADER = struct.Struct(">8sHI")
_CRC = struct.Struct(">I")
_SUM = struct.Struct(">II")
_ROW = struct.Struct(">QIIqqqiI")
_BLOCK = struct.Struct(">QQIIqqq")
_FOOTER = struct.Struct(">HQQQQQIIII8s")
FOOTER_BYTES = _FOOTER.size + _CRC.size
ROW_BYTES = _ROW.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The segment in the object: entries 0..last_entry, described as in its stream's metadata."""

    stream: str
    incarnation: str
    number: int
    last_entry: int
    last_slot: int
    first_txid: int
    last_txid: int
    records: int
    completed_unix_ms: int
    start_sequence_id: int
    is_enveloped: bool  # False for segments of DistributedLog formats below version 4
    source_store: str
    source_name: str  # the ledger id, if it was a ledger

    @property
    def first_dlsn(self) -> tuple[int, int, int]:
        return (self.number, 0, 0)

    @property
    def last_dlsn(self) -> tuple[int, int, int]:
        return (self.number, self.last_entry, self.last_slot)


class Row(NamedTuple):
    """Index row of one entry: location of its payload, and what it holds."""

    offset: int
    length: int
    crc: int
    first_txid: int
    last_txid: int
    unix_ms: int
    first_slot: int
    records: int


class Block(NamedTuple):
    """Location of the rows of up to BLOCK_ENTRIES entries."""

    offset: int
    first: int
    entries: int
    crc: int
    first_txid: int
    last_txid: int
    unix_ms: int  # of the last entry that has one

    @property
    def bytes(self) -> int:
        return self.entries * ROW_BYTES


@dataclass(frozen=True, slots=True)
class Footer:
    """The last bytes of an object."""

    entries: int
    payload_bytes: int
    records: int
    object_bytes: int
    summary_at: int
    summary_bytes: int
    summary_crc: int
    entries_crc: int
    object_crc: int


@dataclass(frozen=True, slots=True)
class Summary:
    """All that is needed to read an object, except its rows."""

    head: Head
    header_bytes: int
    blocks: tuple[Block, ...]
    footer: Footer

    def block_of(self, entry: int) -> int:
        """Index of the block with the row of this entry."""
        assert 0 <= entry <= self.head.last_entry, f"no such entry: entry={entry} last={self.head.last_entry}"
        return entry // BLOCK_ENTRIES


class Contents(NamedTuple):
    """Records of an entry, as described in its row."""

    first_txid: int = int(NO_TXID)
    last_txid: int = int(NO_TXID)
    unix_ms: int = 0
    first_slot: int = NO_SLOT
    records: int = 0


# ---- writing --------------------------------------------------------------------------------------------------------


class Builder:
    """Builds an object, which consists of the result of `begin`, each entry's payload, and the result of `end`, in this
    order. Uses 48 bytes per entry.
    """

    def __init__(self, head: Head) -> None:
        self.head = head
        self.entries = 0
        self.records = 0
        self.entries_crc = 0
        self._object_crc = 0
        self._at = 0
        self._header_bytes = 0
        self._rows = bytearray()
        self._blocks: list[tuple[int, int, int]] = []  # of full blocks: first txid, last txid, time
        self._range = (int(NO_TXID), int(NO_TXID), 0)

    @property
    def payload_bytes(self) -> int:
        """Of the entries added so far."""
        return self._at - self._header_bytes

    def begin(self) -> bytes:
        packed = _packed_head(self.head)
        header = _HEADER.pack(MAGIC, VERSION, len(packed)) + packed
        header += _CRC.pack(crc32c(header))
        self._header_bytes = len(header)
        self._passed(header)
        return header

    def add(self, payload: Buffer, holds: Contents) -> None:
        """Add the next entry; the caller writes its payload next."""
        assert self.entries <= self.head.last_entry, "no more entries than in the head"
        crc = crc32c(payload)
        row = (self._at, len(payload), crc, holds.first_txid, holds.last_txid, holds.unix_ms)
        self._rows += _ROW.pack(*row, holds.first_slot, holds.records)
        first, last, unix_ms = self._range
        self._range = (first if first >= 0 else holds.first_txid, max(last, holds.last_txid), holds.unix_ms or unix_ms)
        self.entries += 1
        self.records += holds.records
        if self.entries % BLOCK_ENTRIES == 0:
            self._end_block()
        self.entries_crc = next_entry(self.entries_crc, len(payload), crc)
        self._passed(payload)

    def end(self) -> tuple[Buffer, ...]:
        """Return the parts after the entries. Asserts that all entries of the head were added."""
        assert self.entries == self.head.last_entry + 1, "as many entries as in the head"
        if self.entries % BLOCK_ENTRIES:
            self._end_block()
        payload_bytes, blocks, packed = self.payload_bytes, [], memoryview(self._rows)
        for number, block_range in enumerate(self._blocks):
            first = number * BLOCK_ENTRIES
            rows = packed[first * ROW_BYTES : (first + BLOCK_ENTRIES) * ROW_BYTES]
            blocks.append(_BLOCK.pack(self._at, first, len(rows) // ROW_BYTES, crc32c(rows), *block_range))
            self._passed(rows)
        summary: bytes = msgpack.packb([_head_map(self.head), self._header_bytes, b"".join(blocks)])
        at = self._at
        self._passed(summary)
        footer = _FOOTER.pack(
            *(VERSION, self.entries, payload_bytes, self.records, self._at + FOOTER_BYTES, at, len(summary)),
            *(crc32c(summary), self.entries_crc, self._object_crc, MAGIC_END),
        )
        return packed, summary, footer + _CRC.pack(crc32c(footer))

    def _end_block(self) -> None:
        self._blocks.append(self._range)
        self._range = (int(NO_TXID), int(NO_TXID), 0)

    def _passed(self, data: Buffer) -> None:
        self._object_crc = crc32c(data, self._object_crc)
        self._at += len(data)


# ---- reading --------------------------------------------------------------------------------------------------------


def parse_footer(data: Buffer, object_bytes: int) -> Footer:
    """Parse the last FOOTER_BYTES of an object of `object_bytes`. Raises DamagedError, UnsupportedVersionError."""
    if len(data) != FOOTER_BYTES:
        raise DamagedError(f"shorter than any segment object: bytes={object_bytes}")
    version, *numbers, magic = _FOOTER.unpack_from(data)
    if magic != MAGIC_END:
        raise DamagedError("not a segment object, or an incomplete one: its last bytes are wrong")
    if _CRC.unpack_from(data, _FOOTER.size)[0] != crc32c(bytes(data[: _FOOTER.size])):
        raise DamagedError("the footer's checksum does not match")
    if version != VERSION:
        raise UnsupportedVersionError(f"segment object of a newer format: version={version} known={VERSION}")
    footer = Footer(*numbers)
    if footer.object_bytes != object_bytes:
        raise DamagedError(f"the object's size changed: bytes={object_bytes} expected={footer.object_bytes}")
    before = object_bytes - FOOTER_BYTES
    if footer.summary_at + footer.summary_bytes != before or footer.summary_bytes > SUMMARY_BYTES_MAX:
        raise DamagedError(f"the summary does not end where the footer begins: at={footer.summary_at}")
    return footer


def parse_summary(data: Buffer, footer: Footer) -> Summary:
    """Parse the summary. Raises DamagedError."""
    if crc32c(bytes(data)) != footer.summary_crc or len(data) != footer.summary_bytes:
        raise DamagedError("the summary's checksum does not match")
    try:
        head, header_bytes, packed = msgpack.unpackb(data, use_list=False, max_array_len=8, **_BOUNDS)
    except (ValueError, TypeError) as error:
        raise DamagedError(f"the summary cannot be read: {error}") from None
    if type(header_bytes) is not int or type(packed) is not bytes or len(packed) % _BLOCK.size:
        raise DamagedError("the summary has unexpected contents")
    summary = Summary(_head_of(head), header_bytes, tuple(map(Block._make, _BLOCK.iter_unpack(packed))), footer)
    _check_plan(summary)
    return summary


def parse_header(data: Buffer, summary: Summary) -> None:
    """Check that the first `summary.header_bytes` of the object match the summary. Raises DamagedError."""
    if len(data) != summary.header_bytes or len(data) < _HEADER.size + _CRC.size:
        raise DamagedError(f"the header's length is wrong: bytes={len(data)}")
    magic, version, length = _HEADER.unpack_from(data)
    body, end = bytes(data[: -_CRC.size]), len(data) - _CRC.size
    if _CRC.unpack_from(data, end)[0] != crc32c(body):
        raise DamagedError("the header's checksum does not match")
    if magic != MAGIC or version != VERSION or length != end - _HEADER.size:
        raise DamagedError("the header is not one of a segment object")
    if _head_of(_unpacked(body[_HEADER.size :])) != summary.head:
        raise DamagedError("header and summary belong to different objects")


def rows_from(data: Buffer, index: int) -> Iterator[Row]:
    """Iterate over the rows of a checked block, from this index on."""
    return map(Row._make, _ROW.iter_unpack(memoryview(data)[index * ROW_BYTES :]))


def parse_rows(data: Buffer, block: Block, summary: Summary) -> list[Row]:
    """Parse and check the rows of a block. Raises DamagedError."""
    if len(data) != block.bytes or crc32c(bytes(data)) != block.crc:
        raise DamagedError(f"a block of the index does not match its checksum: first_entry={block.first}")
    rows = list(map(Row._make, _ROW.iter_unpack(data)))
    end = summary.footer.payload_bytes + summary.header_bytes
    at = rows[0].offset
    for row in rows:
        if row.offset != at or row.length > ENTRY_BYTES_MAX:
            raise DamagedError(f"a block of the index has a gap: first_entry={block.first} at={at}")
        at += row.length
    if rows[0].offset < summary.header_bytes or at > end:
        raise DamagedError(f"a block of the index points outside of the object: first_entry={block.first} end={at}")
    return rows


def next_entry(entries_crc: int, length: int, crc: int) -> int:
    """The entries' CRC, extended by one entry."""
    return crc32c(_SUM.pack(length, crc), entries_crc)


def is_sound(payload: Buffer, row: Row) -> bool:
    """Whether this is the payload of that row."""
    return len(payload) == row.length and crc32c(payload) == row.crc


def _check_plan(summary: Summary) -> None:
    """Check that header, entries, blocks and summary are adjacent and fill the object."""
    footer, at = summary.footer, summary.header_bytes + summary.footer.payload_bytes
    if not _HEADER.size < summary.header_bytes <= HEAD_BYTES_MAX + _HEADER.size + _CRC.size:
        raise DamagedError(f"the header's length is impossible: bytes={summary.header_bytes}")
    first = 0
    for block in summary.blocks:
        is_full = block.entries == BLOCK_ENTRIES or block is summary.blocks[-1]
        if block.offset != at or block.first != first or not 0 < block.entries <= BLOCK_ENTRIES or not is_full:
            raise DamagedError(f"the blocks of the index do not follow each other: first_entry={block.first}")
        at += block.bytes
        first += block.entries
    if at != footer.summary_at or first != footer.entries or first != summary.head.last_entry + 1:
        raise DamagedError(f"the index has a wrong number of entries: entries={first} expected={footer.entries}")


def _head_map(head: Head) -> dict[str, Any]:
    return {_KEYS.get(name, name): getattr(head, name) for name, _ in _KINDS}


def _packed_head(head: Head) -> bytes:
    packed: bytes = msgpack.packb(_head_map(head))
    assert len(packed) <= HEAD_BYTES_MAX, "names and locations are short"
    return packed


_KEYS = {"incarnation": "life", "source_name": "source_place"}  # fields whose key in the stored map is not their name
_BOUNDS: dict[str, Any] = {"strict_map_key": True, "max_map_len": 64, "max_ext_len": 0}
_KINDS: Sequence[tuple[str, type]] = [
    (field.name, {"str": str, "int": int, "bool": bool}[str(field.type)]) for field in dataclasses.fields(Head)
]


def _unpacked(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data, use_list=False, **_BOUNDS)
    except (ValueError, TypeError) as error:
        raise DamagedError(f"the header cannot be read: {error}") from None


def _head_of(fields: Any) -> Head:
    """Unknown fields are ignored: a later version may add some."""
    if type(fields) is not dict or any(type(fields.get(_KEYS.get(name, name))) is not kind for name, kind in _KINDS):
        raise DamagedError("the object does not name its segment")
    head = Head(**{name: fields[_KEYS.get(name, name)] for name, _ in _KINDS})
    if head.number < 1 or head.last_entry < 0:
        raise DamagedError(
            f"the object names an impossible segment: segment={head.number} last_entry={head.last_entry}"
        )
    return head
