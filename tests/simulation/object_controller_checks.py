"""What must hold of the metadata of streams in objects, checked at every version of its log.

The checks know what each object holds from the records alone, and compare with the image. Invariants O3, O4, O5 and O10
to O12: see invariants.py.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

from dlog.errors import DamagedError
from dlog.model.object_streams import (
    CompactionCommitted,
    KeyPut,
    MetadataRecord,
    NodeId,
    NodeOpened,
    ObjectId,
    ObjectsPrepared,
    ObjectStreamId,
    RangeDropped,
    Slice,
    StreamDeleted,
    StreamObject,
    StreamOpened,
    StreamsClosed,
    UploadCommitted,
    WalSegmentBegun,
)
from dlog.objects.image import Image, ObjectState, StreamImage
from dlog.objects.image_snapshot import contents_of
from dlog.objects.keys import parse_object_key
from dlog.objects.operations import (
    BeginWalSegment,
    CloseStreams,
    CommitCompaction,
    CommitUpload,
    CreateStreams,
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
    StreamsCreated,
    TrimStream,
    WalDeleted,
)
from dlog.wire.object_snapshot import encode_snapshot
from tests.simulation.kernel import Violation

FOLDER = "f"


def digest(image: Image) -> bytes:
    """Equal for equal images."""
    named = sorted((stream, its.key) for stream, its in image.streams.items() if its.key is not None)
    told = encode_snapshot(contents_of(image)) + repr((named, list(image.unopened))).encode()
    return hashlib.blake2b(told, digest_size=8).digest()


class MetadataChecks:
    """The log of the metadata stream: records, the image after them, and what each object holds."""

    def __init__(self) -> None:
        self.image = Image()
        self.digests = {0: digest(self.image)}
        self.records: list[MetadataRecord] = []
        self.contents: dict[int, set[tuple[int, int, int]]] = {}
        self._openers: dict[tuple[NodeId, int], bytes] = {}
        self._to_delete: set[ObjectStreamId] = set()  # streams whose deletion was requested
        self._states: dict[int, ObjectState] = {}
        self._committed: dict[tuple[int, int], tuple[int, int | None]] = {}  # by stream and epoch: committed, end

    # ---- the log ----------------------------------------------------------------------------------------------------

    def landed(self, records: tuple[MetadataRecord, ...]) -> None:
        """An entry is in the log."""
        for record in records:
            self._check_epochs(record)
            self._check_deleted(record)
            try:
                self.image.apply(record)
            except DamagedError as error:
                raise Violation("O10", f"a record does not fit the log before it: {error}") from error
            self.records.append(record)
            if isinstance(record, UploadCommitted | CompactionCommitted):
                self._see_contents(record)
        self._check_states()
        for number, stream in self.image.streams.items():
            self._check_stream(number, stream)
        self.digests[self.image.version] = digest(self.image)

    def _check_epochs(self, record: MetadataRecord) -> None:
        """O5: only the current epochs of node and stream open, prepare and commit."""
        image = self.image
        if isinstance(record, NodeOpened):
            node = image.nodes.get(record.node)
            if node is not None and record.node_epoch <= node.node_epoch:
                raise Violation("O5", f"the epoch of a node does not grow: {record}")
        if isinstance(record, StreamOpened):
            stream = image.streams[record.stream]
            if stream.is_open or record.epoch <= stream.epoch:
                raise Violation("O5", f"a stream is opened while it is open, or not with a greater epoch: {record}")
            if image.nodes[record.node].is_failover:
                raise Violation("O5", f"a node that is taken over opens a stream: {record}")
        if isinstance(record, StreamOpened | ObjectsPrepared | UploadCommitted | CompactionCommitted):
            node = image.nodes.get(record.node)
            if node is None or node.node_epoch != record.node_epoch:
                raise Violation("O5", f"a node's former epoch is recorded: {record}")
        if isinstance(record, UploadCommitted | CompactionCommitted):
            for object in _objects(record):
                if image.objects.state(object) is not ObjectState.PREPARED:
                    raise Violation("O3", f"object {object} is committed, and was not prepared: {record}")
                if image.objects.owner(object) != (record.node, record.node_epoch):
                    raise Violation("O5", f"object {object} is committed by another node or epoch: {record}")
        if isinstance(record, UploadCommitted):
            for number, start, end in _slices(record):
                stream_of = image.streams.get(ObjectStreamId(number))
                its = None if stream_of is None else stream_of.range_at(start)
                if stream_of is None or (its is None and end <= stream_of.start):
                    continue
                if its is None or its.node != record.node:
                    raise Violation("O5", f"a range of another node is committed: {record}")

    def _check_deleted(self, record: MetadataRecord) -> None:
        """O14: only streams whose deletion was requested, or that were never opened, are deleted."""
        if not isinstance(record, StreamDeleted) or record.stream in self._to_delete:
            return
        if self.image.streams[record.stream].epoch >= 0:
            raise Violation("O14", f"a stream is deleted, which nobody requested: {record}")

    def _see_contents(self, record: UploadCommitted | CompactionCommitted) -> None:
        sets = record.set_objects if isinstance(record, CompactionCommitted) else (record.set_object,)
        for one in sets:
            if one is not None:
                self.contents[one.object] = {(part.stream, part.start, part.end) for part in one.slices}
        for single in record.stream_objects:
            self.contents[single.object] = {(single.stream, single.start, single.end)}

    def _check_states(self) -> None:
        """O3: states go one way, and what is committed is found."""
        image = self.image
        found = {int(object) for stream in image.streams.values() for object in stream.objects.objects}
        found |= {int(object) for node in image.nodes.values() for object in node.set_objects}
        for number in range(1, image.next_object):
            state, before = image.objects.state(ObjectId(number)), self._states.get(number, ObjectState.UNKNOWN)
            if state < before or (state is ObjectState.DESTROYED and before not in (ObjectState.MARKED, state)):
                raise Violation("O3", f"object {number} goes from {before.name} to {state.name}")
            if (state is ObjectState.COMMITTED) != (number in found):
                raise Violation("O3", f"object {number} is {state.name}, and found: {number in found}")
            self._states[number] = state

    def _check_stream(self, number: ObjectStreamId, stream: StreamImage) -> None:
        """O4: ranges tile, committed slices tile them, what is committed stays."""
        rows = list(zip(stream.objects.starts, stream.objects.ends, stream.objects.objects, strict=True))
        nodes: dict[int, NodeId | None] = {object: None for _, _, object in rows}
        for name, node in self.image.nodes.items():
            table = node.slices.get(number)
            if table is not None:
                rows += zip(table.starts, table.ends, table.objects, strict=True)
                nodes |= dict.fromkeys(table.objects, name)
        rows.sort()
        for (_, end, _), (start, _, _) in itertools.pairwise(rows):
            if end > start:
                raise Violation("O4", f"slices of stream {number} overlap: {rows}")
        for start, end, object in rows:
            if (number, start, end) not in self.contents[object]:
                raise Violation("O4", f"object {object} does not hold {start}-{end} of stream {number}")
        for left, right in zip(stream.ranges, stream.ranges[1:], strict=False):
            if left.end != right.start:
                raise Violation("O4", f"ranges of stream {number} do not abut: {left.end} {right.start}")
        if stream.ranges and stream.ranges[0].start > stream.start:
            raise Violation("O4", f"stream {number} starts at {stream.start}, its ranges at {stream.ranges[0].start}")
        for its in stream.ranges:
            committed, ended = self._committed.get((number, its.epoch), (its.start, None))
            if its.committed < committed or (ended is not None and its.end != ended):
                raise Violation("O4", f"a range of stream {number} went back: {committed} {its.committed} {its.end}")
            self._committed[number, its.epoch] = its.committed, its.end
            at = max(its.start, stream.start)
            for start, stop, object in rows:
                if its.is_dropped or stop <= at or start >= its.committed:
                    continue
                if start > at:
                    break
                owner = nodes[object]
                if owner is not None and owner != its.node:
                    raise Violation("O4", f"a slice of node {owner} lies in a range of {its.node}: stream {number}")
                at = stop
            if at < its.committed and not its.is_dropped:
                raise Violation("O4", f"stream {number} has nothing from {at} to {its.committed}: {rows}")

    def deleted(self, keys: tuple[str, ...]) -> None:
        """These objects are deleted from the storage."""
        for key in keys:
            parsed = parse_object_key(FOLDER, key)
            if parsed is None or self.image.objects.state(parsed.object) < ObjectState.MARKED:
                raise Violation("O3", f"an object is deleted that is not marked in the log: key={key}")

    # ---- who follows it ---------------------------------------------------------------------------------------------

    def compare(self, image: Image, name: str) -> None:
        """O10: an image is that of the log at its version."""
        expected = self.digests.get(image.version)
        if expected != digest(image):
            raise Violation("O10", f"{name} has another image at version {image.version}")

    # ---- requests and answers ---------------------------------------------------------------------------------------

    def requested(self, operation: Operation) -> None:
        """A client sends this operation."""
        if isinstance(operation, DeleteStreams):
            self._to_delete |= set(operation.streams)

    def answered(self, operation: Operation, since: int, result: Any) -> None:
        """O12: what is answered as done is in the log, and rests on all that was in it when the operation came, at the
        version `since`. O5: an epoch of a node is given to one caller."""
        if isinstance(operation, OpenNode):
            which = (operation.node, operation.node_epoch)
            if self._openers.setdefault(which, operation.nonce) != operation.nonce:
                raise Violation("O5", f"two callers opened a node with one epoch: {operation}")
        if isinstance(result, Done) and result.version > self.image.version:
            raise Violation("O12", f"answered at version {result.version}, which the log does not have: {operation}")
        if isinstance(result, Done) and result.version < since:
            raise Violation("O12", f"answered at version {result.version}, the log had {since} before: {operation}")
        if not self._is_in_log(operation, result):
            raise Violation("O12", f"answered, and not in the log: {operation} {result}")

    def _is_in_log(self, operation: Operation, result: Any) -> bool:
        image, records = self.image, self.records
        match operation:
            case CreateStreams(key) if isinstance(result, StreamsCreated):
                return KeyPut(key, ",".join(map(str, result.streams)).encode()) in records
            case PutKey(key) | GetKey(key) if isinstance(result, KeyValue):
                return KeyPut(key, result.value) in records
            case OpenStream(node, node_epoch, stream, epoch):
                return StreamOpened(stream, epoch, node, node_epoch) in records
            case OpenNode(node, node_epoch, is_failover) if isinstance(result, NodeIsOpen):
                return NodeOpened(node, node_epoch, is_failover) in records
            case BeginWalSegment(node, _, segment):
                return WalSegmentBegun(node, segment) in records
            case PrepareObjects(node, node_epoch) if isinstance(result, ObjectsArePrepared):
                prepared = (one for one in records if isinstance(one, ObjectsPrepared))
                which = (result.first, result.count, node, node_epoch)
                return any((one.first, one.count, one.node, one.node_epoch) == which for one in prepared)
            case CommitUpload():
                return all(self._is_committed(number, start, end) for number, start, end in _slices(operation))
            case CommitCompaction(_, _, sources):
                commits = (one for one in records if isinstance(one, CompactionCommitted))
                is_done = all(image.objects.state(source) >= ObjectState.MARKED for source in sources)
                return is_done or any(one.sources == sources for one in commits)
            case CloseStreams(_, _, ends):
                closed = {pair for one in records if isinstance(one, StreamsClosed) for pair in one.ends}
                return all((number, end) in closed or number not in image.streams for number, _, end in ends)
            case TrimStream(_, _, number, _, start):
                return number not in image.streams or image.streams[number].start >= start
            case DropRange(number, epoch):
                left = image.streams[number].ranges if number in image.streams else []
                return RangeDropped(number, epoch) in records or all(its.epoch != epoch for its in left)
            case DeleteStreams(streams):
                return all(number not in image.streams for number in streams)
            case WalDeleted(node, _, number):
                return all(one.number >= number for one in image.nodes[node].wal)
        return True

    def _is_committed(self, number: int, start: int, end: int) -> bool:
        stream = self.image.streams.get(ObjectStreamId(number))
        if stream is None or end <= stream.start:
            return True
        its = stream.range_at(start)
        return its is not None and end <= its.committed


def _objects(record: UploadCommitted | CompactionCommitted) -> list[ObjectId]:
    sets = record.set_objects if isinstance(record, CompactionCommitted) else (record.set_object,)
    return [one.object for one in sets if one is not None] + [one.object for one in record.stream_objects]


def _slices(record: UploadCommitted | CommitUpload) -> list[tuple[int, int, int]]:
    parts: list[Slice | StreamObject] = list(record.stream_objects)
    if record.set_object is not None:
        parts += record.set_object.slices
    return [(part.stream, part.start, part.end) for part in parts]
