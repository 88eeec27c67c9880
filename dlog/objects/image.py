"""The image: all metadata of streams in objects, in memory, after a number of records of the metadata stream.

The controller and every follower apply the same records in the same order, so equal `version` means equal contents.
The image checks nothing that the controller refuses before it records: a record that does not fit is DamagedError.

Memory is what limits a cluster, so objects are kept in arrays: some 17 bytes for each, and 24 for each slice.

Invariants:
- The ranges of a stream abut, from its start to its end; only the last one may be open.
- Of each range `committed` is the end of what was uploaded in order; committed slices of a range tile
  [range start or stream start, committed), by stream objects and stream-set objects of the range's node.
- Object ids and stream ids are never used again.
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_right

from dlog.model.ids import Epoch
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId, ObjectStreamId, WalPosition, WalSegment


class ObjectState(enum.IntEnum):
    """State of an object id. Only the next greater one follows, but an object that was never committed is marked too."""

    UNKNOWN = 0
    PREPARED = 1
    COMMITTED = 2
    MARKED = 3
    DESTROYED = 4


class Range:
    """A part of a stream that one node wrote under one epoch. end: None while it is open. committed: see the module."""

    __slots__ = ("committed", "end", "epoch", "is_dropped", "node", "node_epoch", "start")

    def __init__(self, epoch: Epoch, node: NodeId, node_epoch: NodeEpoch, start: int) -> None:
        self.epoch = epoch
        self.node = node
        self.node_epoch = node_epoch
        self.start = start
        self.end: int | None = None
        self.committed = start
        self.is_dropped = False


class SliceTable:
    """Slices of one stream, sorted by start, which do not overlap: three arrays of one length."""

    __slots__ = ("ends", "objects", "starts")

    def __init__(self) -> None:
        self.starts = array("Q")
        self.ends = array("Q")
        self.objects = array("Q")

    def __len__(self) -> int:
        return len(self.starts)

    def floor(self, offset: int) -> int:
        """Index of the last slice that starts at or below the offset; -1: none does."""
        return bisect_right(self.starts, offset) - 1

    def add(self, start: int, end: int, object: ObjectId) -> None:
        at = bisect_right(self.starts, start)
        self.starts.insert(at, start)
        self.ends.insert(at, end)
        self.objects.insert(at, object)

    def remove(self, start: int, object: ObjectId) -> None:
        """Remove a slice that is there."""
        at = self.floor(start)
        assert at >= 0 and self.starts[at] == start and self.objects[at] == object
        del self.starts[at], self.ends[at], self.objects[at]


class StreamImage:
    """One object stream. epoch: of its last opening, -1 before the first. objects: its stream objects."""

    __slots__ = ("epoch", "objects", "ranges", "start")

    def __init__(self) -> None:
        self.epoch = Epoch(-1)
        self.start = 0
        self.ranges: list[Range] = []
        self.objects = SliceTable()

    @property
    def is_open(self) -> bool:
        return bool(self.ranges) and self.ranges[-1].end is None


class NodeImage:
    """One node. slices: by stream, those in its stream-set objects. set_objects: by object id, in order of `order`.

    flush_point: of its write-ahead log. wal: segments that are not deleted.
    """

    __slots__ = ("flush_point", "is_failover", "node_epoch", "set_objects", "slices", "wal")

    def __init__(self) -> None:
        self.node_epoch = NodeEpoch(0)
        self.is_failover = False
        self.flush_point = WalPosition(0, 0)
        self.wal: list[WalSegment] = []
        self.set_objects: dict[ObjectId, tuple[ObjectId, int, tuple[ObjectStreamId, ...]]] = {}  # order, time, streams
        self.slices: dict[ObjectStreamId, SliceTable] = {}


class Image:
    """All metadata. version: number of records applied since the metadata stream began."""

    def __init__(self) -> None:
        self.version = 0
        self.next_stream = ObjectStreamId(1)
        self.next_object = ObjectId(1)
        self.keys: dict[str, bytes] = {}
        self.streams: dict[ObjectStreamId, StreamImage] = {}
        self.nodes: dict[NodeId, NodeImage] = {}
