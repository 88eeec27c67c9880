"""What a node asks the controller, and what it answers."""

from __future__ import annotations

from dlog.errors import DLogError, FencedError, Remedy
from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    NodeEpoch,
    NodeId,
    ObjectStreamId,
    StreamObject,
    StreamSetObject,
    WalPosition,
    WalSegment,
)
from dlog.values import value


class NodeEpochExpiredError(FencedError):
    """The node has a later epoch: it was begun anew, or another node took over its work."""

    outcome_unknown = False


class ObjectNotPreparedError(DLogError):
    """An object of a commit is not prepared any more: it expired. Write the data under new ids."""

    remedy = Remedy.REOPEN


@value
class OpenNode:
    """A node starts, or another node takes over its work. Answered with NodeState."""

    node: NodeId
    node_epoch: NodeEpoch
    is_failover: bool


@value
class NodeRange:
    """A range of a node. end: None while it is open. committed: where its next slice begins; entries below are in
    objects, or below the start of the stream."""

    stream: ObjectStreamId
    epoch: Epoch
    start: int
    committed: int
    end: int | None


@value
class NodeState:
    """ranges: the node's open ones, and those with committed < end. wal: its segments that are not deleted."""

    node_epoch: NodeEpoch
    ranges: tuple[NodeRange, ...]
    wal: tuple[WalSegment, ...]
    flush_point: WalPosition


@value
class OpenStream:
    """Answered with the offset of the next entry."""

    stream: ObjectStreamId
    epoch: Epoch
    node: NodeId
    node_epoch: NodeEpoch


@value
class StreamEnd:
    stream: ObjectStreamId
    epoch: Epoch
    end: int


@value
class CloseStreams:
    """Answered with None."""

    node: NodeId
    node_epoch: NodeEpoch
    ends: tuple[StreamEnd, ...]


@value
class BeginWalSegment:
    """Answered with None."""

    node: NodeId
    node_epoch: NodeEpoch
    segment: WalSegment


@value
class RecordWalDeletion:
    """Segments below `number` are deleted. Answered with None."""

    node: NodeId
    node_epoch: NodeEpoch
    number: int


@value
class PrepareObjects:
    """Answered with the first of `count` ids."""

    node: NodeId
    node_epoch: NodeEpoch
    count: int


@value
class CommitUpload:
    """Answered with None; also if it was committed before."""

    node: NodeId
    node_epoch: NodeEpoch
    set_object: StreamSetObject | None
    stream_objects: tuple[StreamObject, ...]
    flush_point: WalPosition


Operation = OpenNode | OpenStream | CloseStreams | BeginWalSegment | RecordWalDeletion | PrepareObjects | CommitUpload
