"""Metadata of streams in objects: identifiers, the records of the metadata stream, what search and commits refer to.

An *object stream* is a sequence of entries with offsets from 0, kept in objects of an object storage. A *range* is a
part of it that one node wrote under one epoch; ranges abut. A *node* is a write proxy; its write-ahead log is a row of
segments of another store. A *slice* is a half-open interval of offsets of one stream, in one object.

All offsets are 64-bit and all intervals are half-open. All times are Unix milliseconds of the object storage's clock.

Source: AutoMQ 1.1.0, metadata of S3Stream (records of KRaft); names follow it where dlog has no older word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NewType

from dlog.model.ids import Epoch
from dlog.values import value

ObjectStreamId = NewType("ObjectStreamId", int)  # from 1, never used again
ObjectId = NewType("ObjectId", int)  # from 1, never used again
NodeId = NewType("NodeId", str)  # a write proxy's id, the same after a restart
NodeEpoch = NewType("NodeEpoch", int)  # each start of a node adds one, each failover too; the first is 1

NO_OBJECT = ObjectId(0)
SLICES_MAX = 10_000  # of one stream-set object, so that a commit is one record


class Slice(NamedTuple):
    """Entries first..end-1 of one stream, in one object."""

    stream: ObjectStreamId
    start: int
    end: int


@value
class StreamObject:
    """An object with entries of one stream only. bytes: of the whole object."""

    object: ObjectId
    stream: ObjectStreamId
    start: int
    end: int
    bytes: int


@value
class StreamSetObject:
    """An object with entries of many streams of one node.

    order: objects of a node are searched in this order; that of an upload is its object id, that of a compaction the
    least of its sources. time_ms: of the oldest data in it. slices: sorted by stream and start.
    """

    object: ObjectId
    order: ObjectId
    time_ms: int
    bytes: int
    slices: Sequence[Slice]


@value
class WalPosition:
    """A position in a node's write-ahead log: everything in segments below `segment`, and in this segment all entries
    below `entry`. segment: numbers of one node grow over all its epochs."""

    segment: int
    entry: int


@value
class WalSegment:
    """A segment of a node's write-ahead log. store, name: where it lies, as in a SegmentRef."""

    number: int
    node_epoch: NodeEpoch
    store: str
    name: str


# ---- records of the metadata stream ---------------------------------------------------------------------------------


@value
class KeyPut:
    """Record: a key gets its value. It had none: values are never replaced."""

    key: str
    value: bytes


@value
class KeyDeleted:
    """Record: a key and its value are gone."""

    key: str


@value
class StreamCreated:
    """Record: a stream exists, closed, empty, with offset 0 next."""

    stream: ObjectStreamId


@value
class StreamOpened:
    """Record: a range begins at the end of the one before. The stream is open on this node under this epoch."""

    stream: ObjectStreamId
    epoch: Epoch
    node: NodeId
    node_epoch: NodeEpoch


@value
class StreamsClosed:
    """Record: the last ranges of these streams end there, and the streams are closed.

    ends: stream and end of its last range. What is not uploaded below that end stays the duty of the range's node.
    """

    ends: tuple[tuple[ObjectStreamId, int], ...]


@value
class StreamTrimmed:
    """Record: offsets below `start` are gone."""

    stream: ObjectStreamId
    start: int


@value
class RangeDropped:
    """Record: the entries of one ended range are gone, whatever ranges lie around it: they were moved to another
    store."""

    stream: ObjectStreamId
    epoch: Epoch


@value
class StreamDeleted:
    """Record: the stream is gone; its stream objects are marked, its slices in stream-set objects do not count.

    time_ms: when its objects were marked.
    """

    stream: ObjectStreamId
    time_ms: int


@value
class NodeOpened:
    """Record: a node starts (is_failover False), or another node takes over its work (True). From here on only this
    node epoch commits for the node."""

    node: NodeId
    node_epoch: NodeEpoch
    is_failover: bool


@value
class WalSegmentBegun:
    """Record: a segment of a node's write-ahead log exists. Recorded before the first entry is appended to it."""

    node: NodeId
    segment: WalSegment


@value
class WalSegmentsDeleted:
    """Record: the segments below `number` of a node's write-ahead log are deleted. All lie below its flush point."""

    node: NodeId
    number: int


@value
class ObjectsPrepared:
    """Record: object ids first..first+count-1 may be written by this node under this node epoch, until expiry_ms."""

    first: ObjectId
    count: int
    node: NodeId
    node_epoch: NodeEpoch
    expiry_ms: int


@value
class UploadCommitted:
    """Record: an upload of a node, whole or not at all.

    set_object: of all streams that are not in stream objects; None: there are none. flush_point: every entry of the
    node's write-ahead log below it is in committed objects, or below the start of its stream. time_ms: of the commit.
    """

    node: NodeId
    node_epoch: NodeEpoch
    set_object: StreamSetObject | None
    stream_objects: tuple[StreamObject, ...]
    flush_point: WalPosition
    time_ms: int


@value
class CompactionCommitted:
    """Record: objects of a node are replaced by others with the same entries, whole or not at all.

    sources: object ids; they are marked at time_ms. set_objects, stream_objects: the new ones.
    """

    node: NodeId
    node_epoch: NodeEpoch
    sources: tuple[ObjectId, ...]
    set_objects: tuple[StreamSetObject, ...]
    stream_objects: tuple[StreamObject, ...]
    time_ms: int


@value
class ObjectsMarked:
    """Record: these objects are to be deleted; no commit refers to them from here on."""

    objects: tuple[ObjectId, ...]
    time_ms: int


@value
class ObjectsDestroyed:
    """Record: these objects were deleted from the object storage."""

    objects: tuple[ObjectId, ...]


@value
class SnapshotWritten:
    """Record: a snapshot of the whole image, as it was after the record number `applied`, is in the object `key`."""

    key: str
    applied: int
    bytes: int
    crc32c: int


MetadataRecord = (
    KeyPut
    | KeyDeleted
    | StreamCreated
    | StreamOpened
    | StreamsClosed
    | StreamTrimmed
    | RangeDropped
    | StreamDeleted
    | NodeOpened
    | WalSegmentBegun
    | WalSegmentsDeleted
    | ObjectsPrepared
    | UploadCommitted
    | CompactionCommitted
    | ObjectsMarked
    | ObjectsDestroyed
    | SnapshotWritten
)


# ---- what a search returns ------------------------------------------------------------------------------------------


@value
class ObjectRef:
    """Where entries start..end-1 of one stream are. Start and end are those that the object has, not those asked."""

    object: ObjectId
    start: int
    end: int
    is_set_object: bool


@value
class SearchResult:
    """Objects with entries from the asked start on, without a gap, up to covered_to.

    covered_to: end of the last object, at most the asked end; the asked start if nothing was found. version: number of
    records that the image had applied.
    """

    objects: tuple[ObjectRef, ...]
    covered_to: int
    version: int
