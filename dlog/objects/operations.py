"""What nodes ask of the controller, and its results. What each operation is refused for: dlog/objects/decisions.py.

All operations may be repeated after a lost answer; a repeat of one that was done is answered as done.
"""

from __future__ import annotations

from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    NodeEpoch,
    NodeId,
    ObjectId,
    ObjectStreamId,
    StreamObject,
    StreamSetObject,
    WalPosition,
    WalSegment,
)
from dlog.values import value

# ---- keys and streams -----------------------------------------------------------------------------------------------


@value
class PutKey:
    """Give a key its value, unless it has one; not a number, which names a stream (CreateStreams). Result: KeyValue."""

    key: str
    value: bytes


@value
class GetKey:
    """Result: KeyValue, or None."""

    key: str


@value
class DeleteKey:
    """Delete a key, if it is there. Result: Done."""

    key: str


@value
class CreateStreams:
    """Create streams and put their ids under a key, unless it has a value: then these are the streams. Result:
    StreamsCreated."""

    key: str
    count: int


@value
class DeleteStreams:
    """Delete closed streams, and the key that names them. Result: Done."""

    streams: tuple[ObjectStreamId, ...]
    key: str | None = None


@value
class OpenStream:
    """Begin a range at the end of a closed stream. epoch: above that of its last range. Result: StreamIsOpen."""

    node: NodeId
    node_epoch: NodeEpoch
    stream: ObjectStreamId
    epoch: Epoch


@value
class CloseStreams:
    """End the open ranges of these streams, all or none: stream, epoch and end of the range. Result: Done."""

    node: NodeId
    node_epoch: NodeEpoch
    ends: tuple[tuple[ObjectStreamId, Epoch, int], ...]


@value
class TrimStream:
    """Move the start of a stream forward. epoch: of its last range, which is the caller's. Result: Done."""

    node: NodeId
    node_epoch: NodeEpoch
    stream: ObjectStreamId
    epoch: Epoch
    start: int


@value
class DropRange:
    """Forget the entries of one ended range: another store has them. epoch: of the range. Result: Done."""

    stream: ObjectStreamId
    epoch: Epoch


# ---- nodes ----------------------------------------------------------------------------------------------------------


@value
class OpenNode:
    """Start a node, or take over its work: from here on only this epoch counts. nonce: random, of this caller; it tells
    a repeat from another caller with the same epoch. Result: NodeIsOpen."""

    node: NodeId
    node_epoch: NodeEpoch
    is_failover: bool
    nonce: bytes


@value
class BeginWalSegment:
    """Register a segment of the node's write-ahead log, before the first entry is appended to it. Result: Done."""

    node: NodeId
    node_epoch: NodeEpoch
    segment: WalSegment


@value
class WalDeleted:
    """The segments below `number` of the node's write-ahead log are deleted. Result: Done."""

    node: NodeId
    node_epoch: NodeEpoch
    number: int


# ---- objects --------------------------------------------------------------------------------------------------------


@value
class PrepareObjects:
    """Get ids of objects that may be written and committed within `expiry_ms`. Result: ObjectsArePrepared."""

    node: NodeId
    node_epoch: NodeEpoch
    count: int
    expiry_ms: int


@value
class CommitUpload:
    """Commit an upload: see UploadCommitted. Result: Done."""

    node: NodeId
    node_epoch: NodeEpoch
    set_object: StreamSetObject | None
    stream_objects: tuple[StreamObject, ...]
    flush_point: WalPosition


@value
class CommitCompaction:
    """Replace objects by others with the same live entries: see CompactionCommitted. Result: Done."""

    node: NodeId
    node_epoch: NodeEpoch
    sources: tuple[ObjectId, ...]
    set_objects: tuple[StreamSetObject, ...]
    stream_objects: tuple[StreamObject, ...]


Operation = (
    PutKey
    | GetKey
    | DeleteKey
    | CreateStreams
    | DeleteStreams
    | OpenStream
    | CloseStreams
    | TrimStream
    | DropRange
    | OpenNode
    | BeginWalSegment
    | WalDeleted
    | PrepareObjects
    | CommitUpload
    | CommitCompaction
)


# ---- results --------------------------------------------------------------------------------------------------------


@value
class Done:
    """The operation is recorded, or was before. version: number of records that the metadata had then: a follower whose
    image has as many sees it."""

    version: int = 0


@value
class KeyValue:
    """The value of a key. is_new: this operation put it there."""

    value: bytes
    is_new: bool = False


@value
class StreamsCreated:
    """The streams of a key. is_new: this operation created them."""

    streams: tuple[ObjectStreamId, ...]
    is_new: bool


@value
class StreamIsOpen:
    """start: first offset of the stream. next: the offset that its next entry gets."""

    start: int
    next: int


@value
class RangeState:
    """A range of a node that is open (end: None) or not uploaded to its end. stream_start: what is below it is gone."""

    stream: ObjectStreamId
    epoch: Epoch
    start: int
    end: int | None
    committed: int
    stream_start: int


@value
class NodeIsOpen:
    """What the node, or who takes over its work, must know to go on.

    ranges: all that are open or not completely uploaded, by stream and start. wal: the segments of its write-ahead log.
    """

    ranges: tuple[RangeState, ...]
    wal: tuple[WalSegment, ...]
    flush_point: WalPosition


@value
class ObjectsArePrepared:
    """The ids first..first+count-1."""

    first: ObjectId
    count: int


Result = Done | KeyValue | StreamsCreated | StreamIsOpen | NodeIsOpen | ObjectsArePrepared | None
