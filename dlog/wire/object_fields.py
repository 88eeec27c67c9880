"""Fields of records and operations of streams in objects, as values of msgpack: how each is written, read and checked.

    set object:       nil, or [object, order, time, bytes, [stream, start, length, ...]]
    stream objects:   [object, stream, start, length, bytes, ...]
    ends:             [stream, end, ...]
    WAL position:     [segment, entry];  WAL segment: [number, node epoch, store, name]

Reading raises ValueError or TypeError for what is not such a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add, sub
from typing import Any

from dlog.model import object_streams as model
from dlog.model.object_streams import (
    SLICES_MAX,
    ObjectId,
    ObjectStreamId,
    Slice,
    StreamObject,
    StreamSetObject,
    WalPosition,
    WalSegment,
)
from dlog.values import Columns

ITEMS_MAX = SLICES_MAX  # slices of a set object; stream objects, sources or set objects of a commit; ends; object ids
TEXT_BYTES_MAX = 4096
VALUE_BYTES_MAX = 65536
_U64_END = 1 << 64

Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # a field to a value of msgpack, and back


def same(value: Any) -> Any:
    return value


def read_u64(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _U64_END:
        raise ValueError("not an unsigned 64-bit number")
    return value


def read_id(value: Any) -> int:
    if not read_u64(value):
        raise ValueError("an id is not 0")
    return int(value)


def read_text(value: Any) -> str:
    if type(value) is not str or not 1 <= len(value.encode()) <= TEXT_BYTES_MAX:
        raise ValueError("not a text, or an empty one, or too long")
    return value


def read_blob(value: Any) -> bytes:
    if type(value) is not bytes or len(value) > VALUE_BYTES_MAX:
        raise ValueError("not bytes, or too many")
    return value


def read_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("not a boolean")
    return value


def read_count(value: Any) -> int:
    if not 1 <= read_u64(value) <= ITEMS_MAX:
        raise ValueError(f"not between 1 and {ITEMS_MAX}")
    return int(value)


def read_list(value: Any, width: int = 1) -> list[Any]:
    if type(value) is not list or len(value) % width or len(value) > ITEMS_MAX * width:
        raise ValueError("not a list, or too long, or cut short")
    return value


def read_numbers(value: Any, width: int) -> list[int]:
    found = read_list(value, width)
    if found and (set(map(type, found)) != {int} or min(found) < 0 or max(found) >= _U64_END):
        raise ValueError("not an unsigned 64-bit number")
    return found


def read_ids(value: Any) -> tuple[ObjectId, ...]:
    return tuple(map(ObjectId, map(read_id, read_list(value))))


def flat_pairs(value: Any) -> list[int]:
    return [number for pair in value for number in pair]


def read_ends(value: Any) -> tuple[tuple[ObjectStreamId, int], ...]:
    flat = read_numbers(value, 2)
    if not all(flat[::2]):
        raise ValueError("an id is not 0")
    return tuple(zip(map(ObjectStreamId, flat[::2]), flat[1::2], strict=True))


def _from_slices(value: Sequence[Slice]) -> list[int]:
    """Column by column, as a commit may have thousands of slices."""
    streams, starts, ends = Columns.of(Slice, value).columns
    flat = [0] * (3 * len(value))
    flat[::3], flat[1::3], flat[2::3] = streams, starts, map(sub, ends, starts)
    return flat


def _slices(value: Any) -> Sequence[Slice]:
    flat = read_numbers(value, 3)
    streams, starts, lengths = flat[::3], flat[1::3], flat[2::3]
    ends = list(map(add, starts, lengths))
    if not (all(streams) and all(lengths)) or max(ends, default=0) >= _U64_END:
        raise ValueError("a slice is empty, or without a stream, or too far")
    return Columns(Slice, (streams, starts, ends))


def _from_stream_objects(value: tuple[StreamObject, ...]) -> list[int]:
    flat: list[int] = []
    for part in value:
        flat += (part.object, part.stream, part.start, part.end - part.start, part.bytes)
    return flat


def _stream_objects(value: Any) -> tuple[StreamObject, ...]:
    flat = read_numbers(value, 5)
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


def write_set(value: StreamSetObject | None) -> Any:
    if value is None:
        return None
    return [value.object, value.order, value.time_ms, value.bytes, _from_slices(value.slices)]


def _set(value: Any) -> StreamSetObject:
    number, order, time_ms, size, slices = value
    return StreamSetObject(
        ObjectId(read_id(number)), ObjectId(read_id(order)), read_u64(time_ms), read_u64(size), _slices(slices)
    )


def read_set_or_none(value: Any) -> StreamSetObject | None:
    return None if value is None else _set(value)


def write_sets(value: tuple[StreamSetObject, ...]) -> list[Any]:
    return list(map(write_set, value))


def read_sets(value: Any) -> tuple[StreamSetObject, ...]:
    return tuple(map(_set, read_list(value)))


def _position(value: Any) -> WalPosition:
    segment, entry = value
    return WalPosition(read_u64(segment), read_u64(entry))


def _segment(value: Any) -> WalSegment:
    number, node_epoch, store, name = value
    return WalSegment(read_u64(number), model.NodeEpoch(read_id(node_epoch)), read_text(store), read_text(name))


U64: Codec = (same, read_u64)
ID: Codec = (same, read_id)
TEXT: Codec = (same, read_text)
IDS: Codec = (list, read_ids)
STREAM_OBJECTS: Codec = (_from_stream_objects, _stream_objects)
WAL_POSITION: Codec = (lambda position: (position.segment, position.entry), _position)
WAL_SEGMENT: Codec = (lambda its: (its.number, its.node_epoch, its.store, its.name), _segment)
BOOL: Codec = (same, read_bool)
BLOB: Codec = (same, read_blob)
COUNT: Codec = (same, read_count)
ENDS: Codec = (flat_pairs, read_ends)
SET_OR_NONE: Codec = (write_set, read_set_or_none)
SETS: Codec = (write_sets, read_sets)
