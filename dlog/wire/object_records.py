"""Entries of the metadata stream of streams in objects: each has records that count all together or not at all.

    entry  = version u8 | crc32c u32 | msgpack [before, [record, ...]]
    record = [kind, field, ...], the fields in the order of the record's class (dlog/wire/object_fields.py)

Big-endian. The checksum covers all behind it. before: number of records before this entry since the metadata stream
began, so that a gap or a repeated entry is seen. msgpack writes small numbers in few bytes: a commit of 10,000 slices
has some 120 KB.

Invariants:
- what `encode_entry` returns, `decode_entry` accepts and gives back;
- every fault is a DamagedError, a newer version or a kind of record that is not known an UnsupportedVersionError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import msgpack

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model import object_streams as model
from dlog.model.object_streams import MetadataRecord
from dlog.wire.digest import crc32c
from dlog.wire.object_fields import (
    BLOB,
    BOOL,
    COUNT,
    ENDS,
    ID,
    IDS,
    SET_OR_NONE,
    SETS,
    STREAM_OBJECTS,
    TEXT,
    U64,
    WAL_POSITION,
    WAL_SEGMENT,
    Codec,
    read_u64,
)

Buffer = bytes | bytearray | memoryview

VERSION = 1
RECORDS_MAX = 20_000  # of one entry
_HEAD = struct.Struct(">BI")


class EntryTooLargeError(ValueError):
    """The records do not fit into one entry, or a number or text does not fit into its field."""


#: kind -> the class, and how each of its fields is written; a kind is never used again for something else
_KINDS: dict[int, tuple[type[Any], tuple[Codec, ...]]] = {
    1: (model.KeyPut, (TEXT, BLOB)),
    2: (model.KeyDeleted, (TEXT,)),
    3: (model.StreamCreated, (ID,)),
    4: (model.StreamOpened, (ID, U64, TEXT, ID)),
    5: (model.StreamsClosed, (ENDS,)),
    6: (model.StreamTrimmed, (ID, U64)),
    7: (model.RangeDropped, (ID, U64)),
    8: (model.StreamDeleted, (ID, U64)),
    9: (model.NodeOpened, (TEXT, ID, BOOL)),
    10: (model.WalSegmentBegun, (TEXT, WAL_SEGMENT)),
    11: (model.WalSegmentsDeleted, (TEXT, U64)),
    12: (model.ObjectsPrepared, (ID, COUNT, TEXT, ID, U64)),
    13: (model.UploadCommitted, (TEXT, ID, SET_OR_NONE, STREAM_OBJECTS, WAL_POSITION, U64)),
    14: (model.CompactionCommitted, (TEXT, ID, IDS, SETS, STREAM_OBJECTS, U64)),
    15: (model.ObjectsMarked, (IDS, U64)),
    16: (model.ObjectsDestroyed, (IDS,)),
    17: (model.SnapshotWritten, (TEXT, U64, U64, U64)),
}
_NAMES = {cls: tuple(field.name for field in fields(cls)) for cls, _ in _KINDS.values()}
_WRITERS = {
    cls: (kind, tuple(zip(_NAMES[cls], [write for write, _ in codecs], strict=True)))
    for kind, (cls, codecs) in _KINDS.items()
}


# ---- entries --------------------------------------------------------------------------------------------------------


def encode_records(records: Sequence[MetadataRecord]) -> bytes:
    """Encode records of an entry, to be joined with others by `join_entry`. Raises EntryTooLargeError for what
    `decode_entry` would not accept."""
    plain = []
    for record in records:
        kind, writers = _WRITERS[type(record)]
        plain.append([kind, *(write(getattr(record, name)) for name, write in writers)])
    try:
        packed = b"".join(map(msgpack.packb, plain))
        _records([0, plain])
    except (ValueError, TypeError, OverflowError) as error:
        raise EntryTooLargeError(f"no such entry: records={len(records)} error={error}") from None
    return packed


def join_entry(before: int, count: int, parts: Iterable[bytes]) -> bytes:
    """An entry of the records in these results of `encode_records`. before: number of records before it. count: of the
    records, at most RECORDS_MAX."""
    packer = msgpack.Packer()
    head = (packer.pack_array_header(2), packer.pack(before), packer.pack_array_header(count))
    packed = b"".join((*head, *parts))
    return _HEAD.pack(VERSION, crc32c(packed)) + packed


def encode_entry(before: int, records: Sequence[MetadataRecord]) -> bytes:
    """Encode an entry. before: number of records before it. Raises EntryTooLargeError."""
    return join_entry(before, len(records), [encode_records(records)])


def decode_entry(data: Buffer) -> tuple[int, tuple[MetadataRecord, ...]]:
    """The number of records before an entry, and its records. Raises DamagedError, UnsupportedVersionError."""
    if len(data) < _HEAD.size:
        raise DamagedError(f"an entry of the metadata stream is cut short: bytes={len(data)}")
    version, crc = _HEAD.unpack_from(data)
    if version > VERSION:
        raise UnsupportedVersionError(
            f"an entry of the metadata stream has a newer format, upgrade: version={version} known={VERSION}"
        )
    packed = memoryview(data)[_HEAD.size :]
    if version != VERSION or crc32c(packed) != crc:
        raise DamagedError(f"the checksum of an entry of the metadata stream does not match: version={version}")
    try:
        return _records(msgpack.unpackb(packed))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise DamagedError(f"an entry of the metadata stream is not valid: {error}") from None


def _records(value: Any) -> tuple[int, tuple[MetadataRecord, ...]]:
    before, plain = value
    if type(plain) is not list or len(plain) > RECORDS_MAX:
        raise ValueError("not a list of records, or too long")
    return read_u64(before), tuple(map(_record, plain))


def _record(value: Any) -> MetadataRecord:
    if type(value) is not list or not value or type(value[0]) is not int:
        raise ValueError("not a record")
    known = _KINDS.get(value[0])
    if known is None:
        raise UnsupportedVersionError(f"a metadata record of a newer release, upgrade: kind={value[0]}")
    cls, codecs = known
    read = [read(plain) for (_, read), plain in zip(codecs, value[1:], strict=True)]
    made: MetadataRecord = cls(*read)
    return made
