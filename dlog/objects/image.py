"""The image: all metadata of streams in objects, in memory, after a number of records of the metadata stream.

The controller and every follower apply the same records in the same order, so equal `version` means equal contents.
The image checks nothing that the controller refuses before it records: a record that does not fit is DamagedError, and
the image that raised it is used no more.

Memory is what limits a cluster, so objects are kept in arrays: some 31 bytes for each, and 24 for each slice.

A slice is *live* where its stream exists, at or above the stream's start, and not in a dropped range. An object of
which nothing is live when it is committed is marked at once.

Invariants:
- The ranges of a stream abut, from its start to its end; only the last one may be open. Ranges that end at or below the
  start are gone, except the last one.
- Of each range `committed` is the end of what was uploaded in order; committed slices of a range tile
  [range start or stream start, committed), by stream objects and stream-set objects of the range's node.
- Object ids and stream ids are never used again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from dlog.errors import DamagedError
from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    CompactionCommitted,
    KeyDeleted,
    KeyPut,
    MetadataRecord,
    NodeEpoch,
    NodeId,
    NodeOpened,
    ObjectId,
    ObjectsDestroyed,
    ObjectsMarked,
    ObjectsPrepared,
    ObjectStreamId,
    RangeDropped,
    Slice,
    SnapshotWritten,
    StreamCreated,
    StreamDeleted,
    StreamObject,
    StreamOpened,
    StreamsClosed,
    StreamSetObject,
    StreamTrimmed,
    UploadCommitted,
    WalPosition,
    WalSegment,
    WalSegmentBegun,
    WalSegmentsDeleted,
)
from dlog.objects.object_table import ObjectState, ObjectTable

__all__ = ["Image", "NodeImage", "ObjectState", "Range", "SliceTable", "StreamImage"]

SNAPSHOTS_KEPT = 2  # the last one, and the one before it, which a follower may be loading


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

    def copied_rows(self) -> Iterator[tuple[int, int, int]]:
        """Start, end and object of each slice, as they are now."""
        return zip(self.starts[:], self.ends[:], self.objects[:], strict=True)

    def floor(self, offset: int) -> int:
        """Index of the last slice that starts at or below the offset; -1: none does."""
        return bisect_right(self.starts, offset) - 1

    def add(self, start: int, end: int, object: ObjectId) -> None:
        if not self.starts or start >= self.starts[-1]:  # almost always
            self.starts.append(start)
            self.ends.append(end)
            self.objects.append(object)
            return
        at = bisect_right(self.starts, start)
        self.starts.insert(at, start)
        self.ends.insert(at, end)
        self.objects.insert(at, object)

    def remove(self, start: int, object: ObjectId) -> None:
        """Remove a slice that is there."""
        at = self.floor(start)
        assert at >= 0 and self.starts[at] == start and self.objects[at] == object
        del self.starts[at], self.ends[at], self.objects[at]

    def remove_objects(self, objects: Collection[int]) -> None:
        """Remove all slices in these objects."""
        if len(objects) <= 2:
            for object in objects:
                while True:
                    try:
                        at = self.objects.index(object)
                    except ValueError:
                        break
                    del self.starts[at], self.ends[at], self.objects[at]
            return
        kept = [at for at, object in enumerate(self.objects) if object not in objects]
        if len(kept) < len(self.objects):
            self.starts = array("Q", [self.starts[at] for at in kept])
            self.ends = array("Q", [self.ends[at] for at in kept])
            self.objects = array("Q", [self.objects[at] for at in kept])


class StreamImage:
    """One object stream. epoch: of its last opening, -1 before the first. objects: its stream objects. key: that was
    created with it and names it only."""

    __slots__ = ("epoch", "key", "objects", "ranges", "start")

    def __init__(self) -> None:
        self.epoch = Epoch(-1)
        self.key: str | None = None
        self.start = 0
        self.ranges: list[Range] = []
        self.objects = SliceTable()

    @property
    def is_open(self) -> bool:
        return bool(self.ranges) and self.ranges[-1].end is None

    @property
    def end(self) -> int | None:
        """Where the next range begins; None while the stream is open."""
        return self.ranges[-1].end if self.ranges else self.start

    def range_index(self, offset: int) -> int:
        """Index of the last range that starts at or below the offset; -1: none does."""
        if len(self.ranges) == 1:  # as of a segment of the store `s3`
            return 0 if self.ranges[0].start <= offset else -1
        return bisect_right(self.ranges, offset, key=_range_start) - 1

    def range_at(self, offset: int) -> Range | None:
        """The range of this offset; None: it is below the first range, or not below the end of a closed stream."""
        at = self.range_index(offset)
        if at < 0:
            return None
        end = self.ranges[at].end
        return self.ranges[at] if end is None or offset < end else None

    def live_parts(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are live, in order, neighbours joined."""
        start = max(start, self.start)
        if len(self.ranges) == 1:
            [its] = self.ranges
            first, last = max(start, its.start), end if its.end is None else min(end, its.end)
            return [(first, last)] if first < last and not its.is_dropped else []
        found: list[tuple[int, int]] = []
        for at in range(max(0, self.range_index(start)), len(self.ranges)):
            its = self.ranges[at]
            first, last = max(start, its.start), end if its.end is None else min(end, its.end)
            if its.start >= end:
                break
            if its.is_dropped or first >= last:
                continue
            if found and found[-1][1] == first:
                found[-1] = (found[-1][0], last)
            else:
                found.append((first, last))
        return found


def _stream_of(value: bytes) -> ObjectStreamId:
    """The stream whose id is the value of a key; 0, which no stream has, for another value."""
    return ObjectStreamId(int(value)) if value.isdigit() and len(value) < 20 else ObjectStreamId(0)


def _range_start(its: Range) -> int:
    return its.start


class NodeImage:
    """One node. slices: by stream, those in its stream-set objects. set_objects: by object id: its order, the time of
    the oldest data in it, the streams that had live slices in it when it was committed, one item a slice.

    flush_point: of its write-ahead log. wal: segments that are not deleted.
    """

    __slots__ = ("flush_point", "is_failover", "node_epoch", "set_objects", "slices", "wal")

    def __init__(self) -> None:
        self.node_epoch = NodeEpoch(0)
        self.is_failover = False
        self.flush_point = WalPosition(0, 0)
        self.wal: list[WalSegment] = []
        self.set_objects: dict[ObjectId, tuple[ObjectId, int, array[int]]] = {}
        self.slices: dict[ObjectStreamId, SliceTable] = {}


class Image:
    """All metadata. version: number of records applied since the metadata stream began.

    snapshots: the last ones that are recorded, oldest first, at most SNAPSHOTS_KEPT. unopened: streams with a key that
    were never opened, in order.
    """

    def __init__(self) -> None:
        self.version = 0
        self.next_stream = ObjectStreamId(1)
        self.keys: dict[str, bytes] = {}
        self.streams: dict[ObjectStreamId, StreamImage] = {}
        self.nodes: dict[NodeId, NodeImage] = {}
        self.objects = ObjectTable()
        self.snapshots: list[SnapshotWritten] = []
        self.unopened: dict[ObjectStreamId, None] = {}
        self._put: KeyPut | None = None  # the last one

    @property
    def next_object(self) -> ObjectId:
        return self.objects.next_id

    def apply(self, record: MetadataRecord) -> None:
        """Apply the next record. Raises DamagedError if it does not fit; then this image is used no more."""
        getattr(self, _APPLY[type(record)])(record)
        self.version += 1

    def apply_all(self, records: Iterable[MetadataRecord]) -> None:
        for record in records:
            self.apply(record)

    # ---- keys and streams ----

    def _key_put(self, record: KeyPut) -> None:
        if record.key in self.keys:
            raise DamagedError(f"a record replaces the value of a key: key={record.key!r} version={self.version}")
        self.keys[record.key] = record.value
        self._put = record

    def _key_deleted(self, record: KeyDeleted) -> None:
        value = self.keys.pop(record.key, None)
        if value is None:
            raise DamagedError(f"a record deletes a key that is not there: key={record.key!r} version={self.version}")
        its = self.streams.get(_stream_of(value))
        if its is not None and its.key == record.key:
            its.key = None
            self.unopened.pop(_stream_of(value), None)

    def _stream_created(self, record: StreamCreated) -> None:
        if record.stream != self.next_stream:
            raise self._no_fit(record)
        self.streams[record.stream] = StreamImage()
        if self._put is not None:
            self.name_stream(self._put.key, self._put.value)
            self._put = None
        self.next_stream = ObjectStreamId(record.stream + 1)

    def name_stream(self, key: str, value: bytes) -> None:
        """Let a stream know its key, if the value is the id of one stream: only CreateStreams puts such values."""
        stream = _stream_of(value)
        its = self.streams.get(stream)
        if its is not None:
            its.key = key
            if its.epoch < 0:
                self.unopened[stream] = None

    def _stream(self, record: Any, stream: ObjectStreamId) -> StreamImage:
        found = self.streams.get(stream)
        if found is None:
            raise self._no_fit(record)
        return found

    def _no_fit(self, record: Any) -> DamagedError:
        text = repr(record)
        return DamagedError(f"a record does not fit the metadata before it: version={self.version} record={text[:300]}")

    def _stream_opened(self, record: StreamOpened) -> None:
        stream = self._stream(record, record.stream)
        end = stream.end
        if end is None or record.epoch <= stream.epoch:
            raise self._no_fit(record)
        stream.epoch = record.epoch
        self.unopened.pop(record.stream, None)
        if stream.ranges and stream.ranges[-1].start == end:
            stream.ranges.pop()
        stream.ranges.append(Range(record.epoch, record.node, record.node_epoch, end))
        self._drop_ranges(stream)

    def _streams_closed(self, record: StreamsClosed) -> None:
        for stream_id, end in record.ends:
            stream = self._stream(record, stream_id)
            if not stream.is_open or end < max(stream.ranges[-1].committed, stream.start):
                raise self._no_fit(record)
            stream.ranges[-1].end = end

    def _stream_trimmed(self, record: StreamTrimmed) -> None:
        stream = self._stream(record, record.stream)
        if record.start < stream.start:
            raise self._no_fit(record)
        stream.start = record.start
        self._drop_ranges(stream)

    def _range_dropped(self, record: RangeDropped) -> None:
        stream = self._stream(record, record.stream)
        its = next((its for its in stream.ranges if its.epoch == record.epoch), None)
        if its is None or its.end is None:
            raise self._no_fit(record)
        its.is_dropped = True
        self._drop_ranges(stream)

    def _drop_ranges(self, stream: StreamImage) -> None:
        """Drop ranges of which nothing is left, below all others: the start moves beyond them."""
        gone = 0
        for its in stream.ranges:
            if its.end is None:
                break
            if its.is_dropped:
                stream.start = max(stream.start, its.end)
            if its.end > stream.start:
                break
            gone += 1
        if gone:
            del stream.ranges[: min(gone, len(stream.ranges) - 1)]

    def _stream_deleted(self, record: StreamDeleted) -> None:
        stream = self._stream(record, record.stream)
        if stream.is_open:
            raise self._no_fit(record)
        for object in stream.objects.objects:
            self.objects.mark(ObjectId(object), record.time_ms)
        for node in self.nodes.values():
            node.slices.pop(record.stream, None)
        del self.streams[record.stream]
        self.unopened.pop(record.stream, None)

    # ---- nodes ----

    def _node(self, record: Any, node_id: NodeId) -> NodeImage:
        node = self.nodes.get(node_id)
        if node is None:
            raise self._no_fit(record)
        return node

    def _node_opened(self, record: NodeOpened) -> None:
        node = self.nodes.setdefault(record.node, NodeImage())
        if record.node_epoch <= node.node_epoch:
            raise self._no_fit(record)
        node.node_epoch = record.node_epoch
        node.is_failover = record.is_failover

    def _wal_segment_begun(self, record: WalSegmentBegun) -> None:
        node = self._node(record, record.node)
        if node.wal and record.segment.number <= node.wal[-1].number:
            raise self._no_fit(record)
        node.wal.append(record.segment)

    def _wal_segments_deleted(self, record: WalSegmentsDeleted) -> None:
        node = self._node(record, record.node)
        if record.number > node.flush_point.segment:
            raise self._no_fit(record)
        node.wal = [segment for segment in node.wal if segment.number >= record.number]

    # ---- objects ----

    def _objects_prepared(self, record: ObjectsPrepared) -> None:
        self.objects.prepare(record.first, record.count, (record.node, record.node_epoch), record.expiry_ms)

    def _upload_committed(self, record: UploadCommitted) -> None:
        node = self._node(record, record.node)
        if (record.flush_point.segment, record.flush_point.entry) < (node.flush_point.segment, node.flush_point.entry):
            raise self._no_fit(record)
        slices: list[Slice | StreamObject] = list(record.stream_objects)
        if record.set_object is not None:
            slices += record.set_object.slices
        for part in slices:
            stream = self.streams.get(part.stream)
            if stream is None:
                continue
            its = stream.range_at(part.start)
            if its is None and part.end <= stream.start:
                continue
            if its is None or its.node != record.node or (its.end is not None and part.end > its.end):
                raise self._no_fit(record)
            its.committed = max(its.committed, part.end)
        self._commit(node, record.set_object, record.stream_objects, record.time_ms)
        node.flush_point = record.flush_point

    def _compaction_committed(self, record: CompactionCommitted) -> None:
        node = self._node(record, record.node)
        by_stream: dict[ObjectStreamId, set[int]] = {}
        for source in record.sources:
            stream_id = self.objects.stream_of(source)
            if stream_id is not None:
                by_stream.setdefault(stream_id, set()).add(source)
            elif source in node.set_objects:
                for its_stream in dict.fromkeys(node.set_objects.pop(source)[2]):
                    table = node.slices.get(ObjectStreamId(its_stream))
                    if table is not None:
                        table.remove_objects((source,))
                        if not len(table):
                            del node.slices[ObjectStreamId(its_stream)]
            else:
                raise self._no_fit(record)
            self.objects.mark(source, record.time_ms)
        for stream_id, objects in by_stream.items():
            self._stream(record, stream_id).objects.remove_objects(objects)
        for set_object in record.set_objects:
            self._commit(node, set_object, (), record.time_ms)
        self._commit(node, None, record.stream_objects, record.time_ms)

    def _commit(
        self, node: NodeImage, set_object: StreamSetObject | None, stream_objects: Iterable[StreamObject], time_ms: int
    ) -> None:
        for new in stream_objects:
            self.objects.commit(new.object, new.stream, new.bytes, time_ms)
            stream = self.streams.get(new.stream)
            if stream is None or not stream.live_parts(new.start, new.end):
                self.objects.mark(new.object, time_ms)
            else:
                stream.objects.add(new.start, new.end, new.object)
        if set_object is None:
            return
        self.objects.commit(set_object.object, None, set_object.bytes, time_ms)
        streams = array("Q")
        for part in set_object.slices:
            stream = self.streams.get(part.stream)
            if stream is None or not stream.live_parts(part.start, part.end):
                continue
            table = node.slices.get(part.stream)
            if table is None:
                table = node.slices[part.stream] = SliceTable()
            table.add(part.start, part.end, set_object.object)
            streams.append(part.stream)
        if streams:
            node.set_objects[set_object.object] = (set_object.order, set_object.time_ms, streams)
        else:
            self.objects.mark(set_object.object, time_ms)

    def _objects_marked(self, record: ObjectsMarked) -> None:
        for object in record.objects:
            if self.objects.state(object) is not ObjectState.PREPARED:
                raise self._no_fit(record)
            self.objects.mark(object, record.time_ms)

    def _objects_destroyed(self, record: ObjectsDestroyed) -> None:
        for object in record.objects:
            self.objects.destroy(object)

    def _snapshot_written(self, record: SnapshotWritten) -> None:
        if record.applied > self.version or (self.snapshots and record.applied <= self.snapshots[-1].applied):
            raise self._no_fit(record)
        self.snapshots = [*self.snapshots, record][-SNAPSHOTS_KEPT:]


_APPLY: dict[type, str] = {
    KeyPut: "_key_put",
    KeyDeleted: "_key_deleted",
    StreamCreated: "_stream_created",
    StreamOpened: "_stream_opened",
    StreamsClosed: "_streams_closed",
    StreamTrimmed: "_stream_trimmed",
    RangeDropped: "_range_dropped",
    StreamDeleted: "_stream_deleted",
    NodeOpened: "_node_opened",
    WalSegmentBegun: "_wal_segment_begun",
    WalSegmentsDeleted: "_wal_segments_deleted",
    ObjectsPrepared: "_objects_prepared",
    UploadCommitted: "_upload_committed",
    CompactionCommitted: "_compaction_committed",
    ObjectsMarked: "_objects_marked",
    ObjectsDestroyed: "_objects_destroyed",
    SnapshotWritten: "_snapshot_written",
}
