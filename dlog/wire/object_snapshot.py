"""Snapshots of the metadata of streams in objects: columns of numbers, and a description of the rest.

    snapshot = "DLOGOSNP" | version u16 | head length u32 | crc32c u32 | head | columns
    head     = msgpack [applied, next stream, next object, [[key, value], ...], [[node, node epoch], ...],
               [[node, node epoch, is failover, segment, entry, [[number, node epoch, store, name], ...]], ...],
               [[snapshot key, applied, bytes, crc32c], ...], [rows of each column, ...]]
    columns  = for each of COLUMNS its numbers, one after another

Big-endian but the columns, which are little-endian. The checksum covers all behind it. A million objects have some 60
MB, which are read without a step of Python for each. This format knows what columns there are, and not what they mean:
see dlog/objects/image_snapshot.py.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import msgpack

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.wire.digest import crc32c

Buffer = bytes | bytearray | memoryview

MAGIC = b"DLOGOSNP"
VERSION = 1
_HEAD = struct.Struct(">8sHII")

#: name and type of each column, in their order. Q: 64 bits, q: signed, I: 32 bits, B: 8 bits.
COLUMNS = {
    # objects that are not destroyed: id, state, bytes, time, owner (index), stream
    "object_ids": "Q",
    "object_states": "B",
    "object_bytes": "Q",
    "object_times": "Q",
    "object_owners": "I",
    "object_streams": "Q",
    # streams: id, epoch, start, number of ranges, number of stream objects
    "stream_ids": "Q",
    "stream_epochs": "q",
    "stream_starts": "Q",
    "stream_ranges": "I",
    "stream_objects": "I",
    # ranges, by stream: epoch, node (index), node epoch, start, end (2^64 - 1: open), committed, whether it is dropped
    "range_epochs": "Q",
    "range_nodes": "I",
    "range_node_epochs": "Q",
    "range_starts": "Q",
    "range_ends": "Q",
    "range_committed": "Q",
    "range_dropped": "B",
    # stream objects, by stream: start, end, object
    "slice_starts": "Q",
    "slice_ends": "Q",
    "slice_objects": "Q",
    # nodes: number of set objects, number of streams with slices in them
    "node_sets": "I",
    "node_streams": "I",
    # set objects, by node: id, order, time, number of slices; and the stream of each slice
    "set_ids": "Q",
    "set_orders": "Q",
    "set_times": "Q",
    "set_slices": "I",
    "set_streams": "Q",
    # streams with slices in set objects, by node: stream, number of slices; and of each slice start, end, object
    "part_streams": "Q",
    "part_slices": "I",
    "part_starts": "Q",
    "part_ends": "Q",
    "part_objects": "Q",
}


@dataclass
class SnapshotNode:
    """A node in a snapshot. wal: number, node epoch, store and name of each segment."""

    name: str
    node_epoch: int
    is_failover: bool
    flush_segment: int
    flush_entry: int
    wal: list[tuple[int, int, str, str]]


@dataclass
class SnapshotContents:
    """All that a snapshot has. applied: number of records. snapshots: key, applied, bytes and checksum of earlier ones.

    columns: by name, of the types in COLUMNS.
    """

    applied: int
    next_stream: int
    next_object: int
    keys: list[tuple[str, bytes]]
    owners: list[tuple[str, int]]
    nodes: list[SnapshotNode]
    snapshots: list[tuple[str, int, int, int]]
    columns: dict[str, array[int]] = field(default_factory=dict)

    @classmethod
    def empty(cls) -> SnapshotContents:
        """Nothing, with all columns."""
        return cls(0, 1, 1, [], [], [], [], {name: array(kind) for name, kind in COLUMNS.items()})


def encode_snapshot(contents: SnapshotContents) -> bytes:
    """Encode a snapshot: equal contents are equal bytes."""
    columns = [contents.columns[name] for name in COLUMNS]
    assert [column.typecode for column in columns] == list(COLUMNS.values())
    if sys.byteorder == "big":
        columns = [array(column.typecode, column) for column in columns]
        for column in columns:
            column.byteswap()
    nodes = [
        [node.name, node.node_epoch, node.is_failover, node.flush_segment, node.flush_entry, node.wal]
        for node in contents.nodes
    ]
    head: bytes = msgpack.packb(
        [
            *(contents.applied, contents.next_stream, contents.next_object, contents.keys, contents.owners, nodes),
            *(contents.snapshots, list(map(len, columns))),
        ]
    )
    crc = crc32c(head)
    for column in columns:
        crc = crc32c(memoryview(column).cast("B"), crc)
    return b"".join((_HEAD.pack(MAGIC, VERSION, len(head), crc), head, *columns))


def decode_snapshot(data: Buffer) -> SnapshotContents:
    """Decode and check a snapshot. Raises DamagedError, UnsupportedVersionError."""
    if len(data) < _HEAD.size:
        raise DamagedError(f"the object is too short for a snapshot of metadata: bytes={len(data)}")
    magic, version, head_bytes, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise DamagedError(f"the object is no snapshot of metadata: begins_with={magic!r}")
    if version > VERSION:
        raise UnsupportedVersionError(
            f"the snapshot of metadata has a newer format, upgrade: version={version} known={VERSION}"
        )
    body = memoryview(data).cast("B")[_HEAD.size :]
    if version != VERSION or crc32c(body) != crc:
        raise DamagedError(f"the checksum of a snapshot of metadata does not match: version={version}")
    try:
        return _contents(msgpack.unpackb(body[:head_bytes]), body[head_bytes:])
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise DamagedError(f"the snapshot of metadata is not valid: {error}") from None


def _contents(head: Any, body: memoryview) -> SnapshotContents:
    applied, next_stream, next_object, keys, owners, nodes, snapshots, lengths = head
    numbers = list(map(_u64, lengths))
    sizes = [array(kind).itemsize * rows for kind, rows in zip(COLUMNS.values(), numbers, strict=True)]
    if sum(sizes) != len(body):
        raise ValueError(f"its columns have {len(body)} bytes, not {sum(sizes)}")
    columns = {}
    for (name, kind), end, size in zip(COLUMNS.items(), accumulate(sizes), sizes, strict=True):
        column = columns[name] = array(kind)
        column.frombytes(body[end - size : end])
        if sys.byteorder == "big":
            column.byteswap()
    return SnapshotContents(
        _u64(applied),
        _u64(next_stream),
        _u64(next_object),
        [(_text(key), _blob(value)) for key, value in keys],
        [(_text(node), _u64(epoch)) for node, epoch in owners],
        [_node(*node) for node in nodes],
        [(_text(key), _u64(number), _u64(size), _u64(crc)) for key, number, size, crc in snapshots],
        columns,
    )


def _node(name: Any, epoch: Any, is_failover: Any, segment: Any, entry: Any, wal: Any) -> SnapshotNode:
    if type(is_failover) is not bool:
        raise ValueError("not a boolean")
    segments = [(_u64(number), _u64(its_epoch), _text(store), _text(key)) for number, its_epoch, store, key in wal]
    return SnapshotNode(_text(name), _u64(epoch), is_failover, _u64(segment), _u64(entry), segments)


def _u64(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError("not an unsigned 64-bit number")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("not a text")
    return value


def _blob(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError("not bytes")
    return value
