"""Records and snapshots of a region: a write-ahead log of many tables in a topic.

    key:                  kind u8 | region u64 | table u64 | sequence u64 | version u8
    value, version 0:     version u8 | payload
    value, version 1:     version u8 | epoch u64 | nonce 16 | batch u64 | position u32 | count u32 | crc32c u32
                          | payload
    snapshot, version 1:  version u8 | crc32c u32 | msgpack [offset, epoch, nonce, number, [ended table, ...],
                              [[table, next, deleted below, high watermark, [sequence, offset, ...], bytes, begin],
                              ...]]

Big-endian. The checksum covers the key and the value but itself; that of a snapshot all behind it. Sequences and
offsets of a mapping are differences from those before. Version 0 is HoraeDB's format, of entries only: without a nonce,
a deposed writer's records cannot be told from others.
Source of version 0: HoraeDB, `wal/src/kv_encoder.rs`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import Any

import msgpack

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.values import value
from dlog.wire.digest import crc32c

Buffer = bytes | bytearray | memoryview

NONCE_BYTES = 16
SNAPSHOT_ARRAY_MAX = 1_000_000  # tables of a snapshot, or numbers in the mapping of one
KEY = struct.Struct(">BQQQB")
_HEAD = struct.Struct(f">BQ{NONCE_BYTES}sQII")
_CRC = struct.Struct(">I")
_START = struct.Struct(_HEAD.format + "I")  # of a value: head and checksum
_SHARED = struct.Struct(f">BQ{NONCE_BYTES}sQ")  # the part of a head that all records of a batch have
_KEY_START = struct.Struct(">BQ")  # what all keys of a batch have
_KEY_NUMBERS = f"{_KEY_START.size}xQQx"  # of a key: table and sequence
_SNAPSHOT_HEAD = struct.Struct(">BI")
_U64_END = 1 << 64


class ForeignRecordError(DamagedError):
    """A record that no region wrote: its key has another length."""


class RecordKind(enum.IntEnum):
    """First byte of a key."""

    ENTRY = 1
    FENCE = 2  # begins the work of an owner
    TABLE_END = 3
    CHECKPOINT = 4  # the payload is a snapshot
    TABLE_BEGIN = 5  # in a batch, like an entry; its sequence is 0
    TABLE_DROPPED = 6  # ends the table, and its records may be deleted


_KINDS = {int(kind): kind for kind in RecordKind}


@value
class RegionRecord:
    """One record. table, sequence: 0 in records of the whole region. epoch, nonce: of the owner that appended it; those
    that end or drop a table may come from another process. batch: its number under this nonce. position: in the
    batch, 0-based; count: records of the batch. In version 0 the fields from epoch to count have their defaults."""

    kind: RecordKind
    region: int
    table: int = 0
    sequence: int = 0
    payload: Buffer = b""
    epoch: int = 0
    nonce: bytes = bytes(NONCE_BYTES)
    batch: int = 0
    position: int = 0
    count: int = 1
    version: int = 1


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table in a snapshot. mapping: pairs of a sequence and the offset of its record, ascending. payload_bytes: of
    all its entries that ever counted. begin: the offset of the record that began it, 0 if none did."""

    table: int
    next_seq_num: int
    latest_marked_deleted: int
    current_high_watermark: int
    mapping: tuple[tuple[int, int], ...] = ()
    payload_bytes: int = 0
    begin: int = 0


@dataclass(frozen=True, slots=True)
class RegionSnapshot:
    """The state of a region behind all offsets below `offset`. epoch, nonce, number, ended: of the rule in
    dlog/region/counting.py."""

    offset: int
    epoch: int = 0
    nonce: bytes = b""
    number: int = 0
    ended: tuple[int, ...] = ()
    tables: tuple[TableSnapshot, ...] = ()


# ---- records --------------------------------------------------------------------------------------------------------


def encode_record(record: RegionRecord) -> tuple[bytes, bytes]:
    """Encode a record as key and value. Raises ValueError for a number out of range, and for anything but an entry in
    version 0."""
    if record.version == 0 and record.kind is RecordKind.ENTRY:
        try:
            key = KEY.pack(record.kind, record.region, record.table, record.sequence, 0)
        except struct.error as error:
            raise ValueError(f"a number does not fit into its field: {error}") from None
        return key, b"\0" + bytes(record.payload)
    if record.version != 1:
        raise ValueError(f"no such record: kind={record.kind.name} version={record.version}")
    which = (record.kind, record.region, record.table, record.sequence)
    return _encode(*which, record.epoch, record.nonce, record.batch, record.position, record.count, record.payload)


def encode_batch(
    region: int, epoch: int, nonce: bytes, batch: int, entries: Sequence[tuple[int, int, Buffer]]
) -> list[tuple[bytes, bytes]]:
    """Encode the records of a batch, in version 1. entries: table, sequence and payload of each; a sequence of 0 begins
    the table. Raises ValueError for a number out of range."""
    entry, begin, count = int(RecordKind.ENTRY), int(RecordKind.TABLE_BEGIN), len(entries)
    _check_nonce(nonce)
    pack_key, pack_head, pack_crc, join = KEY.pack, _HEAD.pack, _CRC.pack, b"".join
    found: list[tuple[bytes, bytes]] = []
    try:
        for position, (table, sequence, payload) in enumerate(entries):
            key = pack_key(entry if sequence else begin, region, table, sequence, 1)
            head = pack_head(1, epoch, nonce, batch, position, count)
            found.append((key, join((head, pack_crc(crc32c(payload, crc32c(key + head))), payload))))
    except struct.error as error:
        raise _not_fitting(error) from None
    return found


def _encode(
    kind: int,
    region: int,
    table: int,
    sequence: int,
    epoch: int,
    nonce: bytes,
    batch: int,
    position: int,
    count: int,
    payload: Buffer,
) -> tuple[bytes, bytes]:
    _check_nonce(nonce)
    try:
        key = KEY.pack(kind, region, table, sequence, 1)
        head = _HEAD.pack(1, epoch, nonce, batch, position, count)
    except struct.error as error:
        raise _not_fitting(error) from None
    return key, b"".join((head, _CRC.pack(crc32c(payload, crc32c(key + head))), payload))


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"no such record, a nonce has {NONCE_BYTES} bytes: nonce={nonce.hex()}")


def _not_fitting(error: struct.error) -> ValueError:
    return ValueError(f"a number does not fit into its field: {error}")


def decode_record(key: Buffer, value: Buffer) -> RegionRecord:
    """Decode a record. Raises ForeignRecordError, DamagedError, UnsupportedVersionError."""
    if len(key) != KEY.size:
        raise ForeignRecordError(f"not a record of a region: key_bytes={len(key)} value_bytes={len(value)}")
    if not value:
        raise DamagedError(f"not a record of a region: key_bytes={len(key)} value_bytes={len(value)}")
    number, region, table, sequence, version = KEY.unpack(key)
    if version > 1 or value[0] > 1:
        raise UnsupportedVersionError(
            f"the record's format is newer than this release: version={max(version, value[0])}"
        )
    kind = _KINDS.get(number)
    if kind is None:
        raise DamagedError(f"not a kind of record: kind={number}")
    if version != value[0] or (version == 0 and kind is not RecordKind.ENTRY):
        raise DamagedError(f"key and value do not fit: kind={number} version={version} value_version={value[0]}")
    if type(value) is not bytes:
        value = bytes(value)
    if version == 0:
        return RegionRecord(kind=kind, region=region, table=table, sequence=sequence, payload=value[1:], version=0)
    if len(value) < _START.size:
        raise DamagedError(f"the record's value is cut short: bytes={len(value)}")
    _, epoch, nonce, batch, position, count, crc = _START.unpack_from(value)
    payload = value[_START.size :]
    if crc32c(payload, crc32c(bytes(key) + value[: _HEAD.size])) != crc:
        raise DamagedError(f"the record's checksum does not match: table={table} sequence={sequence}")
    if position >= count:
        raise DamagedError(f"the record is not in its batch: position={position} count={count}")
    return RegionRecord(kind, region, table, sequence, payload, epoch, nonce, batch, position, count)


Rows = tuple[Sequence[int], Sequence[int], Sequence[bytes]]  # of entries: tables, sequences and payloads


def decode_followers(
    first: RegionRecord,
    position: int,
    offset: int,
    offsets: Sequence[int],
    keys: Sequence[bytes],
    values: Sequence[bytes],
) -> Rows:
    """Decode records of one batch that lie one behind another. Returns the table, sequence and payload of each.

    first: a record of the batch, in version 1. position, offset: of the first one to decode. offsets, keys, values: of
    as many records as one likes.

    Ends at the first record that is not the next one of the batch, or does not verify; `decode_record` reports why.
    Each field is checked for all records together, since a loop over the records takes several times as long.
    """
    length = min(len(keys), first.count - position)
    length = _equal_up_to([len(key) for key in keys[:length]], [KEY.size] * length)
    offsets, keys, values = offsets[:length], keys[:length], values[:length]
    joined = b"".join(keys)
    numbers = struct.unpack(">" + _KEY_NUMBERS * length, joined)
    tables, sequences = numbers[::2], numbers[1::2]
    entry, begin = (_KEY_START.pack(kind, first.region) for kind in (RecordKind.ENTRY, RecordKind.TABLE_BEGIN))
    starts = [entry if sequence else begin for sequence in sequences] if 0 in sequences else [entry] * length
    shared, count = _SHARED.pack(1, first.epoch, first.nonce, first.batch), _CRC.pack(first.count)
    heads = [shared + at.to_bytes(4, "big") + count for at in range(position, position + length)]
    payloads = [value[_START.size :] for value in values]
    sums = map(crc32c, payloads, map(crc32c, map(add, keys, heads)))
    good = min(
        _equal_up_to(list(offsets), list(range(offset, offset + length))),
        _equal_up_to([key[: _KEY_START.size] for key in keys], starts),
        _equal_up_to(joined[KEY.size - 1 :: KEY.size], bytes([1]) * length),  # versions
        _equal_up_to([value[: _HEAD.size] for value in values], heads),
        _equal_up_to([value[_HEAD.size : _START.size] for value in values], list(map(_CRC.pack, sums))),
    )
    return tables[:good], sequences[:good], payloads[:good]


def _equal_up_to(found: Sequence[Any], expected: Sequence[Any]) -> int:
    """How many elements are equal, from the first on. Both have the same length."""
    if found == expected:
        return len(found)
    return next(i for i, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)


# ---- snapshots ------------------------------------------------------------------------------------------------------


def encode_snapshot(snapshot: RegionSnapshot) -> bytes:
    """Encode a snapshot. Raises ValueError for what `decode_snapshot` would not accept: a number out of range, a nonce
    of another length, or more than SNAPSHOT_ARRAY_MAX elements."""
    mappings = (2 * len(table.mapping) for table in snapshot.tables)
    largest = max([len(snapshot.tables), len(snapshot.ended), *mappings])
    if largest > SNAPSHOT_ARRAY_MAX or len(snapshot.nonce) not in (0, NONCE_BYTES):
        raise ValueError(f"no such snapshot: elements={largest} nonce={snapshot.nonce.hex()}")
    tables = [
        (
            t.table,
            t.next_seq_num,
            t.latest_marked_deleted,
            t.current_high_watermark,
            list(_differences(t.mapping)),
            t.payload_bytes,
            t.begin,
        )
        for t in snapshot.tables
    ]
    fields = (snapshot.offset, snapshot.epoch, snapshot.nonce, snapshot.number, snapshot.ended, tables)
    try:
        packed: bytes = msgpack.packb(fields)
    except OverflowError as error:
        raise ValueError(f"a number does not fit into its field: {error}") from None
    return _SNAPSHOT_HEAD.pack(1, crc32c(packed)) + packed


def decode_snapshot(data: Buffer) -> RegionSnapshot:
    """Decode a snapshot. Raises DamagedError, UnsupportedVersionError."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise DamagedError(f"the snapshot is cut short: bytes={len(data)}")
    version, crc = _SNAPSHOT_HEAD.unpack_from(data)
    if version != 1:
        raise UnsupportedVersionError(f"the snapshot's format is not known to this release: version={version}")
    packed = memoryview(data)[_SNAPSHOT_HEAD.size :]
    if crc32c(packed) != crc:
        raise DamagedError("the snapshot's checksum does not match")
    try:
        offset, epoch, nonce, number, ended, tables = msgpack.unpackb(packed, max_array_len=SNAPSHOT_ARRAY_MAX)
        if type(nonce) is not bytes or len(nonce) not in (0, NONCE_BYTES):
            raise ValueError("not a nonce")
        return RegionSnapshot(
            _u64(offset), _u64(epoch), nonce, _u64(number), tuple(map(_u64, ended)), tuple(map(_table, tables))
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise DamagedError(f"the snapshot is not valid: {error}") from None


def _differences(mapping: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Of each pair, how far it is from the one before: small numbers, so that a snapshot fits into one record."""
    sequence = offset = 0
    for next_sequence, next_offset in mapping:
        yield next_sequence - sequence
        yield next_offset - offset
        sequence, offset = next_sequence, next_offset


def _table(value: Any) -> TableSnapshot:
    table, next_seq_num, deleted, watermark, flat, payload_bytes, begin = value
    numbers = tuple(map(_u64, flat))
    if not all(numbers[::2]):
        raise ValueError("a mapping is not in order")
    sequences, offsets = (map(_u64, accumulate(part)) for part in (numbers[::2], numbers[1::2]))
    mapping = tuple(zip(sequences, offsets, strict=True))
    made = TableSnapshot(
        _u64(table),
        _u64(next_seq_num),
        _u64(deleted),
        _u64(watermark),
        mapping,
        payload_bytes=_u64(payload_bytes),
        begin=_u64(begin),
    )
    if made.next_seq_num == 0 or made.latest_marked_deleted > made.next_seq_num:
        raise ValueError("a table's numbers contradict each other")
    return made


def _u64(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _U64_END:
        raise ValueError("not an unsigned 64-bit integer")
    return value
