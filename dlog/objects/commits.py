"""Checks of commits: that an upload continues what is committed, and that a compaction keeps every live entry.

Invariants:
- each slice of an upload lies in one range of its node, and begins where that range's committed part ends; a gap is
  allowed only below the start of the stream;
- the new slices of a compaction do not overlap, lie in slices of its sources, and cover all that is live in these.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple, cast

from dlog.errors import InvalidRequestError
from dlog.model.object_streams import (
    SLICES_MAX,
    CompactionCommitted,
    MetadataRecord,
    NodeEpoch,
    NodeId,
    ObjectId,
    ObjectStreamId,
    StreamObject,
    StreamSetObject,
    UploadCommitted,
    WalPosition,
)
from dlog.objects.errors import (
    CompactionMismatchError,
    ObjectNotFoundError,
    ObjectStreamNotFoundError,
    OffsetMismatchError,
    StreamFencedError,
)
from dlog.objects.image import Image, NodeImage, ObjectState, StreamImage
from dlog.objects.operations import CommitCompaction, CommitUpload

Intervals = list[tuple[int, int]]


class Part(NamedTuple):
    """A slice of a new object, as it is sorted."""

    stream: ObjectStreamId
    start: int
    end: int
    is_in_set: bool


_MAKE_PART = partial(cast("Any", tuple.__new__), Part)  # `Part._make`, without running Python code


# ---- what both have -------------------------------------------------------------------------------------------------


def _parts(image: Image, sets: Iterable[StreamSetObject], objects: tuple[StreamObject, ...]) -> list[Part]:
    """All new slices, sorted. Raises InvalidRequestError, ObjectStreamNotFoundError."""
    parts = [Part(one.stream, one.start, one.end, False) for one in objects]
    if len(parts) > SLICES_MAX:
        raise InvalidRequestError(f"too many stream objects in one commit, commit in parts: objects={len(parts)}")
    in_sets = [_MAKE_PART((*its, True)) for one in sets for its in one.slices]
    if len(in_sets) > SLICES_MAX:
        raise InvalidRequestError(f"too many slices in one commit, commit in parts: slices={len(in_sets)}")
    parts = sorted(parts + in_sets)
    stream, before = ObjectStreamId(0), 0
    for its_stream, start, end, _ in parts:
        if its_stream != stream:
            if not 1 <= its_stream < image.next_stream:
                raise ObjectStreamNotFoundError(f"this object stream was never created: stream={its_stream}")
            stream, before = its_stream, 0
        if not before <= start < end:
            raise InvalidRequestError(
                f"slices of a commit overlap or are empty: stream={stream} start={start} end={end}"
            )
        before = end
    return parts


def _check_new(image: Image, node: NodeId, node_epoch: NodeEpoch, objects: list[ObjectId]) -> None:
    """The objects are prepared, by this node under this epoch, and named once. Raises ObjectNotFoundError."""
    if len(set(objects)) != len(objects):
        raise InvalidRequestError("a commit names an object twice")
    for object in objects:
        state = image.objects.state(object)
        if state is not ObjectState.PREPARED:
            raise ObjectNotFoundError(
                f"an object is not prepared any more, write it again: object={object} state={state.name.lower()}"
            )
        if image.objects.owner(object) != (node, node_epoch):
            raise ObjectNotFoundError(f"an object was prepared for another node or epoch: object={object} node={node}")


def _is_behind(image: Image, objects: list[ObjectId]) -> bool:
    """Whether all of these were committed or marked."""
    return all(image.objects.state(object) >= ObjectState.COMMITTED for object in objects)


# ---- uploads --------------------------------------------------------------------------------------------------------


def decide_upload(image: Image, op: CommitUpload, now_ms: int) -> tuple[MetadataRecord, ...]:
    """The record of an upload; none if it was committed before. The node's epoch is checked already."""
    node = image.nodes[op.node]
    sets = [] if op.set_object is None else [op.set_object]
    parts = _parts(image, sets, op.stream_objects)
    objects = [one.object for one in sets] + [one.object for one in op.stream_objects]
    if any(one.order != one.object or not one.slices for one in sets):
        raise InvalidRequestError("a stream-set object of an upload is ordered by its id, and has slices")
    if (
        _place(op.flush_point) <= _place(node.flush_point)
        and _is_behind(image, objects)
        and all(_is_committed(image.streams.get(part.stream), part) for part in parts)
    ):
        return ()
    _check_new(image, op.node, op.node_epoch, objects)
    if _place(op.flush_point) < _place(node.flush_point):
        raise OffsetMismatchError(
            f"the flush point would go back: node={op.node} now={node.flush_point} asked={op.flush_point}"
        )
    if op.flush_point.segment > max([node.flush_point.segment, *(one.number + 1 for one in node.wal)]):
        raise InvalidRequestError(f"the flush point lies beyond the WAL: node={op.node} asked={op.flush_point}")
    _check_continues(image, op.node, parts)
    return (UploadCommitted(op.node, op.node_epoch, op.set_object, op.stream_objects, op.flush_point, now_ms),)


def _place(position: WalPosition) -> tuple[int, int]:
    return position.segment, position.entry


def _is_committed(stream: StreamImage | None, part: Part) -> bool:
    if stream is None or part.end <= stream.start:
        return True
    its = stream.range_at(part.start)
    return its is not None and part.end <= its.committed


def _check_continues(image: Image, node: NodeId, parts: list[Part]) -> None:
    """Each slice continues its range. Raises OffsetMismatchError, StreamFencedError."""
    committed: dict[tuple[ObjectStreamId, int], int] = {}
    for part in parts:
        stream = image.streams.get(part.stream)
        if stream is None:
            continue
        its = stream.range_at(part.start)
        if its is None and part.end <= stream.start:
            continue
        if its is None or (its.end is not None and part.end > its.end):
            raise OffsetMismatchError(
                f"a slice does not lie in one range: stream={part.stream} start={part.start} end={part.end}"
            )
        if its.node != node:
            raise StreamFencedError(
                f"a slice lies in a range of another node: stream={part.stream} start={part.start} node={its.node}"
            )
        expected = committed.get((part.stream, its.start), its.committed)
        does_continue = expected <= part.start <= max(expected, stream.start)
        if not does_continue and not its.is_dropped:
            raise OffsetMismatchError(
                f"a slice does not continue what is committed: stream={part.stream} start={part.start} "
                f"expected={expected}",
                expected=expected,
            )
        committed[part.stream, its.start] = part.end


# ---- compactions ----------------------------------------------------------------------------------------------------


def decide_compaction(image: Image, op: CommitCompaction, now_ms: int) -> tuple[MetadataRecord, ...]:
    """The record of a compaction; none if it was committed before. The node's epoch is checked already."""
    node = image.nodes[op.node]
    if not op.sources or len(op.sources) > SLICES_MAX or len(set(op.sources)) != len(op.sources):
        raise InvalidRequestError(
            f"a compaction has from 1 to {SLICES_MAX} different sources: sources={len(op.sources)}"
        )
    parts = _parts(image, op.set_objects, op.stream_objects)
    objects = [one.object for one in op.set_objects] + [one.object for one in op.stream_objects]
    if len(objects) > 2 * SLICES_MAX or any(not one.slices for one in op.set_objects):
        raise InvalidRequestError("a compaction has too many new objects, or one without slices")
    if _is_behind(image, objects) and all(image.objects.state(one) > ObjectState.COMMITTED for one in op.sources):
        return ()
    for source in op.sources:
        if image.objects.state(source) is not ObjectState.COMMITTED:
            raise ObjectNotFoundError(f"a source of the compaction is gone, plan it again: object={source}")
    _check_new(image, op.node, op.node_epoch, objects)
    of_sets, of_objects = _held_by_sources(image, node, op)
    _check_order(node, op)
    new: dict[ObjectStreamId, Intervals] = {}
    for part in parts:
        if part.stream not in image.streams:
            continue  # deleted meanwhile
        held = of_sets.get(part.stream, [])
        if not part.is_in_set:
            held = held + of_objects.get(part.stream, [])
        if not _covers(_joined(held), part.start, part.end):
            raise CompactionMismatchError(
                f"a new slice is not in the sources: stream={part.stream} start={part.start} end={part.end}"
            )
        new.setdefault(part.stream, []).append((part.start, part.end))
    for stream_id in of_sets.keys() | of_objects.keys():
        kept = _joined(new.get(stream_id, []))
        for start, end in of_sets.get(stream_id, []) + of_objects.get(stream_id, []):
            for first, last in image.streams[stream_id].live_parts(start, end):
                if not _covers(kept, first, last):
                    raise CompactionMismatchError(
                        f"live entries of a source are in no new object: stream={stream_id} start={first} end={last}"
                    )
    return (CompactionCommitted(op.node, op.node_epoch, op.sources, op.set_objects, op.stream_objects, now_ms),)


def _check_order(node: NodeImage, op: CommitCompaction) -> None:
    sets = [node.set_objects[source] for source in op.sources if source in node.set_objects]
    if op.set_objects and not sets:
        raise InvalidRequestError("a compaction without stream-set objects as sources makes none")
    for one in op.set_objects:
        order, time_ms = min(its[0] for its in sets), min(its[1] for its in sets)
        if (one.order, one.time_ms) != (order, time_ms):
            raise InvalidRequestError(
                f"a new stream-set object has the least order and time of its sources: object={one.object} "
                f"order={one.order} least={order} time={one.time_ms} oldest={time_ms}"
            )


def _held_by_sources(
    image: Image, node: NodeImage, op: CommitCompaction
) -> tuple[dict[ObjectStreamId, Intervals], dict[ObjectStreamId, Intervals]]:
    """Slices of the sources by stream: of stream-set objects, and of stream objects. Raises ObjectNotFoundError,
    StreamFencedError."""
    sources, touched = set(op.sources), set[ObjectStreamId]()
    streams: set[ObjectStreamId] = set()
    for source in op.sources:
        stream_id = image.objects.stream_of(source)
        if stream_id is not None:
            streams.add(stream_id)
        elif source in node.set_objects:
            touched.update(map(ObjectStreamId, node.set_objects[source][2]))
        else:
            raise ObjectNotFoundError(
                f"a source is a stream-set object of another node: object={source} node={op.node}"
            )
    of_objects: dict[ObjectStreamId, Intervals] = {}
    for stream_id in streams:
        stream = image.streams[stream_id]
        if stream.ranges[-1].node != op.node:
            raise StreamFencedError(
                f"stream objects are merged by the node of the last range: stream={stream_id} "
                f"node={stream.ranges[-1].node}"
            )
        table = stream.objects
        rows = zip(table.starts, table.ends, table.objects, strict=True)
        of_objects[stream_id] = [(start, end) for start, end, object in rows if object in sources]
    of_sets: dict[ObjectStreamId, Intervals] = {}
    for stream_id in touched:
        table_of_node = node.slices.get(stream_id)
        if table_of_node is not None and stream_id in image.streams:
            rows = zip(table_of_node.starts, table_of_node.ends, table_of_node.objects, strict=True)
            of_sets[stream_id] = [(start, end) for start, end, object in rows if object in sources]
    return of_sets, of_objects


def _joined(intervals: Intervals) -> Intervals:
    """Sorted, and those that abut joined."""
    found: Intervals = []
    for start, end in sorted(intervals):
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _covers(joined: Intervals, start: int, end: int) -> bool:
    at = bisect_right(joined, start, key=lambda interval: interval[0]) - 1
    return at >= 0 and joined[at][1] >= end
