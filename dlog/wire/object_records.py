"""Entries of the metadata stream of streams in objects: each has records that count all together or not at all.

    entry  = version u8 | crc32c u32 | msgpack [before, [record, ...]]
    record = [kind, field, ...], the fields in the order of the record's class
             set object:       nil, or [object, order, time, bytes, [stream, start, length, ...]]
             stream objects:   [object, stream, start, length, bytes, ...]
             ends:             [stream, end, ...]
             WAL position:     [segment, entry];  WAL segment: [number, node epoch, store, name]

Big-endian. The checksum covers all behind it. before: number of records before this entry since the metadata stream
began, so that a gap or a repeated entry is seen. msgpack writes small numbers in few bytes: a commit of 10,000 slices
has some 120 KB.

Invariants:
- what `encode_entry` returns, `decode_entry` accepts and gives back;
- every fault is a DamagedError, a newer version or a kind of record that is not known an UnsupportedVersionError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import msgpack

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model import object_streams as model
from dlog.model.object_streams import (
    SLICES_MAX,
    MetadataRecord,
    ObjectId,
    ObjectStreamId,
    Slice,
    StreamObject,
    StreamSetObject,
    WalPosition,
    WalSegment,
)
from dlog.wire.digest import crc32c

Buffer = bytes | bytearray | memoryview

VERSION = 1
RECORDS_MAX = 20_000  # of one entry
ITEMS_MAX = SLICES_MAX  # slices of a set object; stream objects, sources or set objects of a commit; ends; object ids
TEXT_BYTES_MAX = 4096
VALUE_BYTES_MAX = 65536
_HEAD = struct.Struct(">BI")
_U64_END = 1 << 64

Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # a field to a value of msgpack, and back


class EntryTooLargeError(ValueError):
    """The records do not fit into one entry, or a number or text does not fit into its field."""


# ---- fields ---------------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _u64(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _U64_END:
        raise ValueError("not an unsigned 64-bit number")
    return value


def _id(value: Any) -> int:
    if not _u64(value):
        raise ValueError("an id is not 0")
    return int(value)


def _text(value: Any) -> str:
    if type(value) is not str or not 1 <= len(value.encode()) <= TEXT_BYTES_MAX:
        raise ValueError("not a text, or an empty one, or too long")
    return value


def _blob(value: Any) -> bytes:
    if type(value) is not bytes or len(value) > VALUE_BYTES_MAX:
        raise ValueError("not bytes, or too many")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("not a boolean")
    return value


def _count(value: Any) -> int:
    if not 1 <= _u64(value) <= ITEMS_MAX:
        raise ValueError(f"not between 1 and {ITEMS_MAX}")
    return int(value)


def _list(value: Any, width: int = 1) -> list[Any]:
    if type(value) is not list or len(value) % width or len(value) > ITEMS_MAX * width:
        raise ValueError("not a list, or too long, or cut short")
    return value


def _numbers(value: Any, width: int) -> list[int]:
    found = _list(value, width)
    for number in found:
        if type(number) is not int or not 0 <= number < _U64_END:
            raise ValueError("not an unsigned 64-bit number")
    return found


def _ids(value: Any) -> tuple[ObjectId, ...]:
    return tuple(map(ObjectId, map(_id, _list(value))))


def _from_ends(value: Any) -> list[int]:
    return [number for pair in value for number in pair]


def _ends(value: Any) -> tuple[tuple[ObjectStreamId, int], ...]:
    flat = _numbers(value, 2)
    if not all(flat[::2]):
        raise ValueError("an id is not 0")
    return tuple(zip(map(ObjectStreamId, flat[::2]), flat[1::2], strict=True))


def _from_slices(value: tuple[Slice, ...]) -> list[int]:
    flat: list[int] = []
    for part in value:
        flat += (part.stream, part.start, part.end - part.start)
    return flat


def _slices(value: Any) -> tuple[Slice, ...]:
    flat = _numbers(value, 3)
    parts = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
    if not all(stream and length and start + length < _U64_END for stream, start, length in parts):
        raise ValueError("a slice is empty, or without a stream, or too far")
    return tuple([Slice(ObjectStreamId(stream), start, start + length) for stream, start, length in parts])


def _from_stream_objects(value: tuple[StreamObject, ...]) -> list[int]:
    flat: list[int] = []
    for part in value:
        flat += (part.object, part.stream, part.start, part.end - part.start, part.bytes)
    return flat


def _stream_objects(value: Any) -> tuple[StreamObject, ...]:
    flat = _numbers(value, 5)
    parts = list(zip(flat[::5], flat[1::5], flat[2::5], flat[3::5], flat[4::5], strict=True))
    if not all(
        number and stream and length and start + length < _U64_END for number, stream, start, length, _ in parts
    ):
        raise ValueError("a stream object is empty, or without an id or a stream, or too far")
    return tuple(
        [
            StreamObject(ObjectId(number), ObjectStreamId(stream), start, start + length, size)
            for number, stream, start, length, size in parts
        ]
    )


def _from_set(value: StreamSetObject | None) -> Any:
    if value is None:
        return None
    return [value.object, value.order, value.time_ms, value.bytes, _from_slices(value.slices)]


def _set(value: Any) -> StreamSetObject:
    number, order, time_ms, size, slices = value
    return StreamSetObject(ObjectId(_id(number)), ObjectId(_id(order)), _u64(time_ms), _u64(size), _slices(slices))


def _set_or_none(value: Any) -> StreamSetObject | None:
    return None if value is None else _set(value)


def _from_sets(value: tuple[StreamSetObject, ...]) -> list[Any]:
    return list(map(_from_set, value))


def _sets(value: Any) -> tuple[StreamSetObject, ...]:
    return tuple(map(_set, _list(value)))


def _position(value: Any) -> WalPosition:
    segment, entry = value
    return WalPosition(_u64(segment), _u64(entry))


def _segment(value: Any) -> WalSegment:
    number, node_epoch, store, name = value
    return WalSegment(_u64(number), model.NodeEpoch(_id(node_epoch)), _text(store), _text(name))


_U64: Codec = (_same, _u64)
_ID: Codec = (_same, _id)
_TEXT: Codec = (_same, _text)
_IDS: Codec = (list, _ids)
_STREAM_OBJECTS: Codec = (_from_stream_objects, _stream_objects)
_WAL_POSITION: Codec = (lambda position: (position.segment, position.entry), _position)
_WAL_SEGMENT: Codec = (lambda its: (its.number, its.node_epoch, its.store, its.name), _segment)

#: kind -> the class, and how each of its fields is written; a kind is never used again for something else
_KINDS: dict[int, tuple[type[Any], tuple[Codec, ...]]] = {
    1: (model.KeyPut, (_TEXT, (_same, _blob))),
    2: (model.KeyDeleted, (_TEXT,)),
    3: (model.StreamCreated, (_ID,)),
    4: (model.StreamOpened, (_ID, _U64, _TEXT, _ID)),
    5: (model.StreamsClosed, ((_from_ends, _ends),)),
    6: (model.StreamTrimmed, (_ID, _U64)),
    7: (model.RangeDropped, (_ID, _U64)),
    8: (model.StreamDeleted, (_ID, _U64)),
    9: (model.NodeOpened, (_TEXT, _ID, (_same, _bool))),
    10: (model.WalSegmentBegun, (_TEXT, _WAL_SEGMENT)),
    11: (model.WalSegmentsDeleted, (_TEXT, _U64)),
    12: (model.ObjectsPrepared, (_ID, (_same, _count), _TEXT, _ID, _U64)),
    13: (model.UploadCommitted, (_TEXT, _ID, (_from_set, _set_or_none), _STREAM_OBJECTS, _WAL_POSITION, _U64)),
    14: (model.CompactionCommitted, (_TEXT, _ID, _IDS, (_from_sets, _sets), _STREAM_OBJECTS, _U64)),
    15: (model.ObjectsMarked, (_IDS, _U64)),
    16: (model.ObjectsDestroyed, (_IDS,)),
    17: (model.SnapshotWritten, (_TEXT, _U64, _U64, _U64)),
}
_NAMES = {cls: tuple(field.name for field in fields(cls)) for cls, _ in _KINDS.values()}
_WRITERS = {
    cls: (kind, tuple(zip(_NAMES[cls], [write for write, _ in codecs], strict=True)))
    for kind, (cls, codecs) in _KINDS.items()
}


# ---- entries --------------------------------------------------------------------------------------------------------


def encode_entry(before: int, records: Sequence[MetadataRecord]) -> bytes:
    """Encode the records of one entry. before: number of records before it. Raises EntryTooLargeError for what
    `decode_entry` would not accept."""
    plain = []
    for record in records:
        kind, writers = _WRITERS[type(record)]
        plain.append([kind, *(write(getattr(record, name)) for name, write in writers)])
    try:
        packed: bytes = msgpack.packb([before, plain])
        _records([before, plain])
    except (ValueError, TypeError, OverflowError) as error:
        raise EntryTooLargeError(f"no such entry: records={len(records)} error={error}") from None
    return _HEAD.pack(VERSION, crc32c(packed)) + packed


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
    if type(plain) is not list or not 1 <= len(plain) <= RECORDS_MAX:
        raise ValueError("not a list of records, or too long")
    return _u64(before), tuple(map(_record, plain))


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
