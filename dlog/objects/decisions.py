"""Decides an operation: a refusal, or the records that carry it out. Pure functions of the image.

The image has all records before, those on their way, too. A refusal is an exception (dlog/objects/errors.py).

Invariants:
- a decision changes nothing; its records fit the image;
- only the current epoch of a node opens, closes, trims, prepares and commits for it;
- an operation that was done is done again without a record.

Source: AutoMQ 1.1.0, StreamControlManager and S3ObjectControlManager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlog.errors import InvalidRequestError, OverCapacityError
from dlog.model.object_streams import (
    KeyDeleted,
    KeyPut,
    MetadataRecord,
    NodeEpoch,
    NodeId,
    NodeOpened,
    ObjectsPrepared,
    ObjectStreamId,
    RangeDropped,
    StreamCreated,
    StreamDeleted,
    StreamOpened,
    StreamsClosed,
    StreamTrimmed,
    WalSegmentBegun,
    WalSegmentsDeleted,
)
from dlog.objects.commits import decide_compaction, decide_upload
from dlog.objects.errors import (
    NodeEpochExpiredError,
    NodeInFailoverError,
    ObjectStreamNotFoundError,
    OffsetMismatchError,
    StreamFencedError,
    StreamNotClosedError,
)
from dlog.objects.image import Image, NodeImage, StreamImage
from dlog.objects.operations import (
    BeginWalSegment,
    CloseStreams,
    CommitCompaction,
    CommitUpload,
    CreateStreams,
    DeleteKey,
    DeleteStreams,
    Done,
    DropRange,
    GetKey,
    KeyValue,
    NodeIsOpen,
    ObjectsArePrepared,
    OpenNode,
    OpenStream,
    Operation,
    PrepareObjects,
    PutKey,
    RangeState,
    Result,
    StreamIsOpen,
    StreamsCreated,
    TrimStream,
    WalDeleted,
)
from dlog.objects.options import ControllerOptions

Decision = tuple[tuple[MetadataRecord, ...], Result]
DONE = Done()


def decide(image: Image, operation: Operation, now_ms: int, options: ControllerOptions) -> Decision:
    """The records of an operation, none if it was done before, and its result once they are recorded.

    now_ms: the object storage's time. Raises what it is refused for.
    """
    return _DECIDERS[type(operation)](image, operation, now_ms, options)


def check_node(image: Image, node_id: NodeId, node_epoch: NodeEpoch) -> NodeImage:
    """The node, if this is its epoch. Raises NodeEpochExpiredError."""
    node = image.nodes.get(node_id)
    current = 0 if node is None else node.node_epoch
    if node is None or node_epoch != current:
        raise NodeEpochExpiredError(
            f"this is not the node's current epoch, begin it anew: node={node_id} epoch={node_epoch} current={current}",
            current=current,
        )
    return node


def _check_runs(image: Image, node_id: NodeId, node_epoch: NodeEpoch) -> NodeImage:
    node = check_node(image, node_id, node_epoch)
    if node.is_failover:
        raise NodeInFailoverError(f"another node takes over the work of this one: node={node_id} epoch={node_epoch}")
    return node


def _stream(image: Image, stream_id: ObjectStreamId) -> StreamImage:
    stream = image.streams.get(stream_id)
    if stream is None:
        raise ObjectStreamNotFoundError(f"there is no such object stream: stream={stream_id}")
    return stream


# ---- keys and streams -----------------------------------------------------------------------------------------------


def _put_key(image: Image, op: PutKey, _now_ms: int, options: ControllerOptions) -> Decision:
    there = image.keys.get(op.key)
    if there is not None:
        return (), KeyValue(there)
    if op.value.isdigit():  # see Image.name_stream
        raise InvalidRequestError(f"only CreateStreams gives a key the id of a stream: key={op.key!r}")
    _check_room_for_key(image, options)
    return (KeyPut(op.key, op.value),), KeyValue(op.value, True)


def _check_room_for_key(image: Image, options: ControllerOptions) -> None:
    if len(image.keys) >= options.keys_max:
        raise OverCapacityError(f"the metadata has as many keys as it may, delete streams: keys={len(image.keys)}")


def _get_key(image: Image, op: GetKey, _now_ms: int, _options: ControllerOptions) -> Decision:
    there = image.keys.get(op.key)
    return (), None if there is None else KeyValue(there)


def _delete_key(image: Image, op: DeleteKey, _now_ms: int, _options: ControllerOptions) -> Decision:
    return ((KeyDeleted(op.key),) if op.key in image.keys else ()), DONE


def stream_ids(value: bytes) -> tuple[ObjectStreamId, ...]:
    """The ids that CreateStreams puts under a key. Raises InvalidRequestError for another value."""
    try:
        return tuple(ObjectStreamId(int(part)) for part in value.decode("ascii").split(","))
    except ValueError:
        raise InvalidRequestError(f"the value of the key is no list of streams: value={value[:80]!r}") from None


def _create_streams(image: Image, op: CreateStreams, _now_ms: int, options: ControllerOptions) -> Decision:
    there = image.keys.get(op.key)
    if there is not None:
        return (), StreamsCreated(stream_ids(there), False)
    if not 1 <= op.count <= options.streams_per_key_max:
        raise InvalidRequestError(f"so many streams cannot be created at once: count={op.count}")
    if len(image.streams) + op.count > options.streams_max:
        raise OverCapacityError(f"there are as many object streams as may be: streams={len(image.streams)}")
    _check_room_for_key(image, options)
    streams = tuple(ObjectStreamId(image.next_stream + n) for n in range(op.count))
    value = ",".join(map(str, streams)).encode()
    return (KeyPut(op.key, value), *map(StreamCreated, streams)), StreamsCreated(streams, True)


def _delete_streams(image: Image, op: DeleteStreams, now_ms: int, _options: ControllerOptions) -> Decision:
    records: list[MetadataRecord] = []
    for stream_id in dict.fromkeys(op.streams):
        if not 1 <= stream_id < image.next_stream:
            raise ObjectStreamNotFoundError(f"this object stream was never created: stream={stream_id}")
        stream = image.streams.get(stream_id)
        if stream is None:
            continue
        if stream.is_open:
            raise StreamNotClosedError(
                f"the object stream is open, close it first: stream={stream_id} node={stream.ranges[-1].node}"
            )
        records.append(StreamDeleted(stream_id, now_ms))
    if op.key is not None and op.key in image.keys:
        records.append(KeyDeleted(op.key))
    return tuple(records), DONE


def _open_stream(image: Image, op: OpenStream, _now_ms: int, options: ControllerOptions) -> Decision:
    _check_runs(image, op.node, op.node_epoch)
    stream = _stream(image, op.stream)
    last = stream.ranges[-1] if stream.ranges else None
    caller = (op.epoch, op.node, op.node_epoch, None)
    if last is not None and (last.epoch, last.node, last.node_epoch, last.end) == caller:
        return (), StreamIsOpen(stream.start, max(stream.start, last.start))
    if op.epoch <= stream.epoch:
        raise StreamFencedError(
            f"the object stream was opened with this epoch or a greater one: stream={op.stream} "
            f"epoch={op.epoch} current={stream.epoch}"
        )
    if last is not None and last.end is None:
        raise StreamNotClosedError(f"the object stream is open: stream={op.stream} node={last.node} epoch={last.epoch}")
    if len(stream.ranges) >= options.ranges_max:
        raise OverCapacityError(
            f"the object stream has too many ranges, truncate it: stream={op.stream} ranges={len(stream.ranges)}"
        )
    end = stream.end
    assert end is not None
    return (StreamOpened(op.stream, op.epoch, op.node, op.node_epoch),), StreamIsOpen(
        stream.start, max(stream.start, end)
    )


def _close_streams(image: Image, op: CloseStreams, _now_ms: int, options: ControllerOptions) -> Decision:
    check_node(image, op.node, op.node_epoch)
    if len(op.ends) > options.streams_per_close_max:
        raise InvalidRequestError(
            f"so many streams cannot be closed at once, close them in parts: count={len(op.ends)}"
        )
    ends: dict[ObjectStreamId, int] = {}
    for stream_id, epoch, end in op.ends:
        stream = image.streams.get(stream_id)
        if stream is None and 1 <= stream_id < image.next_stream:
            continue  # it was closed, and then deleted
        its = next((its for its in reversed(_stream(image, stream_id).ranges) if its.epoch == epoch), None)
        if stream is None or its is None or its.node != op.node or stream_id in ends:
            raise StreamFencedError(f"the node does not have the stream open: stream={stream_id} epoch={epoch}")
        if its.end is not None and its.end == end:
            continue
        least = max(its.committed, stream.start)
        if its.end is not None or end < least:
            raise OffsetMismatchError(
                f"the stream cannot end there: stream={stream_id} end={end} least={least} closed={its.end}",
                expected=least if its.end is None else its.end,
            )
        ends[stream_id] = end
    return ((StreamsClosed(tuple(ends.items())),) if ends else ()), DONE


def _trim_stream(image: Image, op: TrimStream, _now_ms: int, _options: ControllerOptions) -> Decision:
    check_node(image, op.node, op.node_epoch)
    stream = _stream(image, op.stream)
    if op.epoch != stream.epoch or not stream.ranges or stream.ranges[-1].node != op.node:
        raise StreamFencedError(
            f"the node does not have the last range of the stream: stream={op.stream} epoch={op.epoch}"
        )
    end = stream.end
    if end is not None and op.start > end:
        raise OffsetMismatchError(
            f"a stream cannot be trimmed beyond its end: stream={op.stream} start={op.start} end={end}", expected=end
        )
    return ((StreamTrimmed(op.stream, op.start),) if op.start > stream.start else ()), DONE


def _drop_range(image: Image, op: DropRange, _now_ms: int, _options: ControllerOptions) -> Decision:
    stream = _stream(image, op.stream)
    if not 0 <= op.epoch <= stream.epoch:
        raise InvalidRequestError(f"the stream has no such range: stream={op.stream} epoch={op.epoch}")
    its = next((its for its in stream.ranges if its.epoch == op.epoch), None)
    if its is None or its.is_dropped:
        return (), DONE
    if its.end is None:
        raise StreamNotClosedError(f"the range is open, close it first: stream={op.stream} epoch={op.epoch}")
    return (RangeDropped(op.stream, op.epoch),), DONE


# ---- nodes ----------------------------------------------------------------------------------------------------------


def node_state(image: Image, node_id: NodeId) -> NodeIsOpen:
    """What a node must know to go on."""
    found: list[RangeState] = []
    for stream_id, stream in sorted(image.streams.items()):
        for its in stream.ranges:
            is_unfinished = its.end is None or (not its.is_dropped and max(its.committed, stream.start) < its.end)
            if its.node == node_id and is_unfinished:
                found.append(RangeState(stream_id, its.epoch, its.start, its.end, its.committed, stream.start))
    node = image.nodes.get(node_id, NodeImage())
    return NodeIsOpen(tuple(found), tuple(node.wal), node.flush_point)


def _open_node(image: Image, op: OpenNode, _now_ms: int, options: ControllerOptions) -> Decision:
    node = image.nodes.get(op.node)
    current = 0 if node is None else node.node_epoch
    if op.node_epoch <= current:
        raise NodeEpochExpiredError(
            f"the node had this epoch or a greater one: node={op.node} epoch={op.node_epoch} current={current}",
            current=current,
        )
    if node is None and len(image.nodes) >= options.nodes_max:
        raise OverCapacityError(f"there are as many nodes as may be: nodes={len(image.nodes)}")
    return (NodeOpened(op.node, op.node_epoch, op.is_failover),), node_state(image, op.node)


def _begin_wal_segment(image: Image, op: BeginWalSegment, _now_ms: int, options: ControllerOptions) -> Decision:
    node = _check_runs(image, op.node, op.node_epoch)
    if op.segment in node.wal:
        return (), DONE
    least = max([node.flush_point.segment, 1, *(segment.number + 1 for segment in node.wal)])
    if op.segment.number < least or op.segment.node_epoch != op.node_epoch:
        raise OffsetMismatchError(
            f"numbers of WAL segments grow: node={op.node} number={op.segment.number} least={least}", expected=least
        )
    if len(node.wal) >= options.wal_segments_max:
        raise OverCapacityError(f"the node has as many WAL segments as it may: node={op.node} segments={len(node.wal)}")
    return (WalSegmentBegun(op.node, op.segment),), DONE


def _wal_deleted(image: Image, op: WalDeleted, _now_ms: int, _options: ControllerOptions) -> Decision:
    node = check_node(image, op.node, op.node_epoch)
    if op.number > node.flush_point.segment:
        raise InvalidRequestError(
            f"the write-ahead log is not uploaded so far, none of it may be deleted: node={op.node} "
            f"number={op.number} uploaded={node.flush_point.segment}"
        )
    is_there = bool(node.wal) and node.wal[0].number < op.number
    return ((WalSegmentsDeleted(op.node, op.number),) if is_there else ()), DONE


# ---- objects --------------------------------------------------------------------------------------------------------


def _prepare_objects(image: Image, op: PrepareObjects, now_ms: int, options: ControllerOptions) -> Decision:
    check_node(image, op.node, op.node_epoch)
    if not 1 <= op.count <= options.prepare_max:
        raise InvalidRequestError(f"so many ids are not given at once: count={op.count} most={options.prepare_max}")
    if not options.expiry_min_ms <= op.expiry_ms <= options.expiry_max_ms:
        raise InvalidRequestError(
            f"the time for the upload is out of bounds: ms={op.expiry_ms} least={options.expiry_min_ms} "
            f"most={options.expiry_max_ms}"
        )
    prepared = image.objects.prepared
    if prepared + op.count > options.prepared_max:
        raise OverCapacityError(f"too many objects are prepared and not committed: prepared={prepared}")
    first = image.next_object
    record = ObjectsPrepared(first, op.count, op.node, op.node_epoch, now_ms + op.expiry_ms)
    return (record,), ObjectsArePrepared(first, op.count)


def _commit_upload(image: Image, op: CommitUpload, now_ms: int, _options: ControllerOptions) -> Decision:
    check_node(image, op.node, op.node_epoch)
    return decide_upload(image, op, now_ms), DONE


def _commit_compaction(image: Image, op: CommitCompaction, now_ms: int, _options: ControllerOptions) -> Decision:
    check_node(image, op.node, op.node_epoch)
    return decide_compaction(image, op, now_ms), DONE


_DECIDERS: dict[type, Callable[[Image, Any, int, ControllerOptions], Decision]] = {
    PutKey: _put_key,
    GetKey: _get_key,
    DeleteKey: _delete_key,
    CreateStreams: _create_streams,
    DeleteStreams: _delete_streams,
    OpenStream: _open_stream,
    CloseStreams: _close_streams,
    TrimStream: _trim_stream,
    DropRange: _drop_range,
    OpenNode: _open_node,
    BeginWalSegment: _begin_wal_segment,
    WalDeleted: _wal_deleted,
    PrepareObjects: _prepare_objects,
    CommitUpload: _commit_upload,
    CommitCompaction: _commit_compaction,
}
