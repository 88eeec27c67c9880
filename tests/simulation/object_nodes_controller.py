"""A model of the controller and its image, as the nodes see it: each operation is carried out whole, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dlog.errors import DLogError, StaleRequestError
from dlog.model.object_streams import ObjectId, Slice, WalPosition, WalSegment
from dlog.objects.image import ObjectState
from dlog.objects.node_operations import (
    BeginWalSegment,
    CloseStreams,
    CommitUpload,
    NodeEpochExpiredError,
    NodeRange,
    NodeState,
    ObjectNotPreparedError,
    OpenNode,
    OpenStream,
    PrepareObjects,
    RecordWalDeletion,
)
from dlog.objects.upload import order_of

RETENTION_MS = 1000


@dataclass(slots=True)
class ModelRange:
    epoch: int
    node: str
    start: int
    committed: int
    end: int | None = None


@dataclass(slots=True)
class ModelStream:
    epoch: int = -1
    start: int = 0
    ranges: list[ModelRange] = field(default_factory=list)
    slices: dict[int, tuple[int, ObjectId]] = field(default_factory=dict)  # start: end, object

    @property
    def is_open(self) -> bool:
        return bool(self.ranges) and self.ranges[-1].end is None

    def range(self, epoch: int) -> ModelRange | None:
        return next((one for one in self.ranges if one.epoch == epoch), None)


@dataclass(slots=True)
class ModelNode:
    node_epoch: int = 0
    is_failover: bool = False
    flush_point: WalPosition = WalPosition(0, 0)
    wal: list[WalSegment] = field(default_factory=list)


@dataclass(slots=True)
class ModelObject:
    node: str
    node_epoch: int
    at_ms: int  # of the expiry, or the mark
    state: ObjectState = ObjectState.PREPARED


class ModelController:
    """on_close, on_commit: called for what is recorded."""

    def __init__(
        self, streams: Iterable[int], now_ms: Callable[[], int], reached: Counter[str], expiry_ms: int
    ) -> None:
        self.streams = {stream: ModelStream() for stream in streams}
        self.nodes: dict[str, ModelNode] = {}
        self.objects: dict[ObjectId, ModelObject] = {}
        self.on_commit: Callable[[CommitUpload, list[Slice]], None] = lambda _, __: None
        self._now_ms = now_ms
        self._expiry_ms = expiry_ms
        self._reached = reached

    def node(self, name: str) -> ModelNode:
        return self.nodes.setdefault(name, ModelNode())

    def carry_out(self, operation: Any) -> Any:
        """The answer, or the error with which it is refused."""
        try:
            return self._carry_out(operation)
        except DLogError as error:
            return error

    def _carry_out(self, operation: Any) -> Any:
        node = self.node(operation.node)
        if isinstance(operation, OpenNode):
            return self._open_node(node, operation)
        if operation.node_epoch != node.node_epoch:
            self._reached["epoch_expired"] += 1
            raise NodeEpochExpiredError(f"the node has a later epoch: {node.node_epoch}")
        match operation:
            case OpenStream():
                return self._open_stream(node, operation)
            case CloseStreams(_, _, ends):
                changes: list[tuple[ModelRange, int]] = []
                for end in ends:
                    found = self.streams[end.stream].range(end.epoch)
                    if found is None or found.node != operation.node or found.end not in (None, end.end):
                        raise StaleRequestError(f"not open here: {end}")
                    if end.end < found.committed:
                        raise StaleRequestError(f"the end is below what is committed: {end}")
                    changes.append((found, end.end))
                for found, at in changes:
                    found.end = at
                return None
            case BeginWalSegment(_, _, segment):
                if segment not in node.wal:
                    if node.wal and segment.number <= node.wal[-1].number:
                        raise StaleRequestError("the number is not greater")
                    node.wal.append(segment)
                return None
            case RecordWalDeletion(_, _, number):
                if number > node.flush_point.segment:
                    raise StaleRequestError("not below the flush point")
                node.wal = [segment for segment in node.wal if segment.number >= number]
                return None
            case PrepareObjects(name, epoch, count):
                first = ObjectId(len(self.objects) + 1)
                for number in range(count):
                    expiry = self._now_ms() + self._expiry_ms
                    self.objects[ObjectId(first + number)] = ModelObject(name, epoch, expiry)
                return first
            case CommitUpload():
                return self._commit(node, operation)
        raise AssertionError(operation)

    def _open_node(self, node: ModelNode, operation: OpenNode) -> NodeState:
        if operation.node_epoch <= node.node_epoch:
            raise NodeEpochExpiredError(f"the node has a later epoch: {node.node_epoch}")
        node.node_epoch, node.is_failover = operation.node_epoch, operation.is_failover
        ranges = tuple(
            NodeRange(
                stream, one.epoch, one.start, max(one.committed, min(found.start, one.end or found.start)), one.end
            )
            for stream, found in self.streams.items()
            for one in found.ranges
            if one.node == operation.node and (one.end is None or max(one.committed, found.start) < one.end)
        )
        return NodeState(operation.node_epoch, ranges, tuple(node.wal), node.flush_point)

    def _open_stream(self, node: ModelNode, operation: OpenStream) -> int:
        stream = self.streams[operation.stream]
        if node.is_failover:
            raise StaleRequestError("the node is in failover mode")
        last = stream.ranges[-1] if stream.ranges else None
        if last is not None and last.epoch == operation.epoch and last.node == operation.node and last.end is None:
            return last.start
        if operation.epoch <= stream.epoch or stream.is_open:
            raise StaleRequestError("not closed")
        stream.epoch = operation.epoch
        start = 0 if last is None or last.end is None else last.end
        stream.ranges.append(ModelRange(operation.epoch, operation.node, start, start))
        return start

    def _commit(self, node: ModelNode, commit: CommitUpload) -> None:
        if order_of(commit.flush_point) <= order_of(node.flush_point):
            self._reached["commit_repeated"] += 1
            return
        objects = {one.object: [Slice(one.stream, one.start, one.end)] for one in commit.stream_objects}
        if commit.set_object is not None:
            objects[commit.set_object.object] = list(commit.set_object.slices)
        for object in objects:
            known = self.objects[object]
            if known.state is not ObjectState.PREPARED or known.node_epoch != commit.node_epoch:
                self._reached["commit_refused"] += 1
                raise ObjectNotPreparedError(f"not prepared: {object}")
        changes: list[tuple[ModelRange, Slice, ObjectId]] = []
        expected: dict[tuple[int, int], int] = {}
        for object, slices in objects.items():
            for one in slices:
                stream = self.streams[one.stream]
                found = next(r for r in reversed(stream.ranges) if r.start <= one.start)
                at = expected.get((one.stream, found.epoch), found.committed)
                is_gap_trimmed = at < one.start <= stream.start
                if found.node != commit.node or (one.start != at and not is_gap_trimmed):
                    raise StaleRequestError(f"does not begin at {at}: {one}")
                if found.end is not None and one.end > found.end:
                    raise StaleRequestError(f"beyond the end {found.end}: {one}")
                expected[one.stream, found.epoch] = one.end
                changes.append((found, one, object))
        for found, one, object in changes:
            found.committed = one.end
            self.streams[one.stream].slices[one.start] = (one.end, object)
        for object in objects:
            self.objects[object].state = ObjectState.COMMITTED
        node.flush_point = commit.flush_point
        self.on_commit(commit, [one for _, one, _ in changes])

    def tick(self, deleted: Callable[[ObjectId], None]) -> None:
        """Mark what has expired, and delete what was marked for long enough."""
        now_ms = self._now_ms()
        for id, object in self.objects.items():
            if object.state is ObjectState.PREPARED and now_ms > object.at_ms:
                object.state, object.at_ms = ObjectState.MARKED, now_ms
                self._reached["marked"] += 1
            elif object.state is ObjectState.MARKED and now_ms > object.at_ms + RETENTION_MS:
                deleted(id)
                object.state = ObjectState.DESTROYED
