"""Short names for the values of the metadata of streams in objects, for tests."""

from __future__ import annotations

from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    CompactionCommitted,
    NodeEpoch,
    NodeId,
    NodeOpened,
    ObjectId,
    ObjectsPrepared,
    ObjectStreamId,
    RangeDropped,
    Slice,
    StreamCreated,
    StreamDeleted,
    StreamObject,
    StreamOpened,
    StreamsClosed,
    StreamSetObject,
    StreamTrimmed,
    UploadCommitted,
    WalPosition,
)

N1, N2 = NodeId("n1"), NodeId("n2")


def created(stream: int) -> StreamCreated:
    return StreamCreated(ObjectStreamId(stream))


def node_opened(node: NodeId = N1, epoch: int = 1, *, is_failover: bool = False) -> NodeOpened:
    return NodeOpened(node, NodeEpoch(epoch), is_failover)


def opened(stream: int, epoch: int, node: NodeId = N1, node_epoch: int = 1) -> StreamOpened:
    return StreamOpened(ObjectStreamId(stream), Epoch(epoch), node, NodeEpoch(node_epoch))


def closed(*ends: tuple[int, int]) -> StreamsClosed:
    return StreamsClosed(tuple((ObjectStreamId(stream), end) for stream, end in ends))


def trimmed(stream: int, start: int) -> StreamTrimmed:
    return StreamTrimmed(ObjectStreamId(stream), start)


def dropped(stream: int, epoch: int) -> RangeDropped:
    return RangeDropped(ObjectStreamId(stream), Epoch(epoch))


def deleted(stream: int, time_ms: int = 0) -> StreamDeleted:
    return StreamDeleted(ObjectStreamId(stream), time_ms)


def prepared(
    first: int, count: int = 1, node: NodeId = N1, node_epoch: int = 1, expiry_ms: int = 1000
) -> ObjectsPrepared:
    return ObjectsPrepared(ObjectId(first), count, node, NodeEpoch(node_epoch), expiry_ms)


def stream_object(object: int, stream: int, start: int, end: int, size: int = 100) -> StreamObject:
    return StreamObject(ObjectId(object), ObjectStreamId(stream), start, end, size)


def set_object(
    object: int, *slices: tuple[int, int, int], order: int | None = None, time_ms: int = 5
) -> StreamSetObject:
    parts = tuple(Slice(ObjectStreamId(stream), start, end) for stream, start, end in slices)
    return StreamSetObject(ObjectId(object), ObjectId(order or object), time_ms, 100, parts)


def upload(
    in_set: StreamSetObject | None = None,
    *objects: StreamObject,
    node: NodeId = N1,
    node_epoch: int = 1,
    flush: tuple[int, int] = (1, 0),
    time_ms: int = 10,
) -> UploadCommitted:
    return UploadCommitted(node, NodeEpoch(node_epoch), in_set, objects, WalPosition(*flush), time_ms)


def compaction(
    sources: tuple[int, ...],
    set_objects: tuple[StreamSetObject, ...] = (),
    stream_objects: tuple[StreamObject, ...] = (),
    *,
    node: NodeId = N1,
    node_epoch: int = 1,
    time_ms: int = 20,
) -> CompactionCommitted:
    ids = tuple(ObjectId(source) for source in sources)
    return CompactionCommitted(node, NodeEpoch(node_epoch), ids, set_objects, stream_objects, time_ms)
