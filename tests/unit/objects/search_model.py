"""Random histories of metadata records, with a model that knows for each entry in which objects it is.

The model keeps sets of offsets, one entry at a time, so it is slow and plain. It is what searches and compactions are
compared with.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field

from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    CompactionCommitted,
    MetadataRecord,
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
from dlog.objects.image import Image

NODES = tuple(map(NodeId, "abc"))
EPOCH = NodeEpoch(1)


@dataclass
class StreamModel:
    """One stream: where it is open, its ranges (epoch, node, start, end), and for each entry that is left whether it is
    uploaded."""

    epoch: int = -1
    start: int = 0
    end: int = 0
    node: NodeId | None = None
    ranges: list[list[object]] = field(default_factory=list)
    uploaded: dict[int, bool] = field(default_factory=dict)

    def run(self, start: int, end: int) -> int:
        """Up to where all entries from start on are uploaded and not gone."""
        while start < end and self.uploaded.get(start):
            start += 1
        return start


@dataclass
class Version:
    """An image and the model as it was then."""

    image: Image
    streams: dict[ObjectStreamId, StreamModel]


class History:
    """Applies records to an image and keeps the model in step. objects: for each object the entries that it has."""

    def __init__(self) -> None:
        self.image = Image()
        self.streams: dict[ObjectStreamId, StreamModel] = {}
        self.objects: dict[ObjectId, set[tuple[ObjectStreamId, int]]] = {}
        self.versions: list[Version] = []
        self.now_ms = 0
        for node in NODES:
            self.apply(NodeOpened(node, EPOCH, False))
        self.keep()

    def apply(self, record: MetadataRecord) -> None:
        self.image.apply(record)

    def keep(self) -> None:
        """Keep the present version for lagging readers."""
        self.versions = [*self.versions, Version(copy.deepcopy(self.image), copy.deepcopy(self.streams))][-4:]

    def prepare(self, node: NodeId) -> ObjectId:
        object = self.image.next_object
        self.apply(ObjectsPrepared(object, 1, node, EPOCH, 10**6))
        self.objects[object] = set()
        return object

    # ---- streams ----

    def create(self) -> None:
        stream = self.image.next_stream
        self.apply(StreamCreated(stream))
        self.streams[stream] = StreamModel()

    def move(self, stream: ObjectStreamId, node: NodeId) -> None:
        its = self.streams[stream]
        self.close(stream)
        its.epoch += 1
        its.node = node
        self.apply(StreamOpened(stream, Epoch(its.epoch), node, EPOCH))
        its.ranges.append([its.epoch, node, its.end, None])

    def close(self, stream: ObjectStreamId) -> None:
        its = self.streams[stream]
        if its.node is not None:
            self.apply(StreamsClosed(((stream, its.end),)))
            its.ranges[-1][3] = its.end
            its.node = None

    def append(self, stream: ObjectStreamId, count: int) -> None:
        its = self.streams[stream]
        if its.node is not None:
            its.uploaded |= dict.fromkeys(range(its.end, its.end + count), False)
            its.end += count

    def trim(self, stream: ObjectStreamId, start: int) -> None:
        its = self.streams[stream]
        if max(its.start, self.image.streams[stream].start) <= start <= its.end:  # a dropped range moves it, too
            self.apply(StreamTrimmed(stream, start))
            its.start = start
            its.uploaded = {offset: there for offset, there in its.uploaded.items() if offset >= start}

    def drop(self, stream: ObjectStreamId, which: int) -> None:
        its = self.streams[stream]
        there = {its_range.epoch for its_range in self.image.streams[stream].ranges if not its_range.is_dropped}
        ended = [one for one in its.ranges if one[3] is not None and one[0] in there]
        if ended:
            epoch, _, start, end = ended[which % len(ended)]
            assert isinstance(epoch, int) and isinstance(start, int) and isinstance(end, int)
            self.apply(RangeDropped(stream, Epoch(epoch)))
            its.uploaded = {offset: done for offset, done in its.uploaded.items() if not start <= offset < end}

    def delete(self, stream: ObjectStreamId) -> None:
        self.close(stream)
        self.apply(StreamDeleted(stream, self.now_ms))
        del self.streams[stream]

    # ---- objects ----

    def waiting(self, node: NodeId) -> list[Slice]:
        """What this node has to upload: the entries of its ranges, in runs."""
        found: list[Slice] = []
        for stream, its in sorted(self.streams.items()):
            for _, its_node, start, end in its.ranges:
                assert isinstance(start, int)
                last = its.end if end is None else end
                assert isinstance(last, int)
                for offset in range(start, last):
                    if its_node == node and its.uploaded.get(offset) is False:
                        if found and (found[-1].stream, found[-1].end) == (stream, offset) and start != offset:
                            found[-1] = Slice(stream, found[-1].start, offset + 1)
                        else:
                            found.append(Slice(stream, offset, offset + 1))
        return found

    def upload(self, node: NodeId, shares: Iterable[int], *, as_stream_objects: int) -> None:
        """Upload the first entries of some runs: the first as stream objects, the others in one stream-set object."""
        slices = []
        seen: set[ObjectStreamId] = set()
        for part, share in zip(self.waiting(node), shares, strict=False):
            if share and (share >= part.end - part.start or part.stream not in seen):
                slices.append(Slice(part.stream, part.start, min(part.end, part.start + share)))
            seen.add(part.stream)
        own = [(self.prepare(node), part) for part in slices[:as_stream_objects]]
        stream_objects = tuple(
            StreamObject(object, part.stream, part.start, part.end, 100 * (part.end - part.start))
            for object, part in own
        )
        shared, set_object = slices[as_stream_objects:], None
        if shared:
            object = self.prepare(node)
            size = 100 * sum(part.end - part.start for part in shared)
            set_object = StreamSetObject(object, object, self.now_ms, size, tuple(shared))
        for object, part in [*own, *((set_object.object, part) for part in shared if set_object is not None)]:
            self.fill(object, part)
            for offset in range(part.start, part.end):
                self.streams[part.stream].uploaded[offset] = True
        self.apply(UploadCommitted(node, EPOCH, set_object, stream_objects, WalPosition(0, 0), self.now_ms))

    def fill(self, object: ObjectId, part: Slice) -> None:
        self.objects[object] |= {(part.stream, offset) for offset in range(part.start, part.end)}

    def compact_set(self, node: NodeId, which: Iterable[bool], splits: Iterable[bool]) -> None:
        """Replace some stream-set objects: each live run of a stream becomes a stream object, or all others one set."""
        sources = [object for object, is_in in zip(self.image.nodes[node].set_objects, which, strict=False) if is_in]
        runs: list[Slice] = []
        for stream, table in sorted(self.image.nodes[node].slices.items()):
            for at in range(len(table)):
                if table.objects[at] not in sources:
                    continue
                for start, end in self.image.streams[stream].live_parts(table.starts[at], table.ends[at]):
                    if runs and (runs[-1].stream, runs[-1].end) == (stream, start):
                        runs[-1] = Slice(stream, runs[-1].start, end)
                    else:
                        runs.append(Slice(stream, start, end))
        if not sources:
            return
        stream_objects, shared = [], []
        for run, is_split in zip(runs, [*splits, *[False] * len(runs)], strict=False):
            if is_split:
                object = self.prepare(node)
                self.fill(object, run)
                stream_objects.append(StreamObject(object, run.stream, run.start, run.end, 1))
            else:
                shared.append(run)
        set_objects = []
        if shared:
            object = self.prepare(node)
            for run in shared:
                self.fill(object, run)
            set_objects.append(StreamSetObject(object, min(sources), self.now_ms, 1, tuple(shared)))
        self._compacted(node, sources, set_objects, stream_objects)

    def compact_stream(self, stream: ObjectStreamId, first: int, count: int) -> None:
        """Merge neighbours among the objects of a stream, each live run into one."""
        its = self.image.streams[stream]
        table = its.objects
        if not len(table):
            return
        first %= len(table)
        numbers = range(first, min(len(table), first + count))
        sources = [ObjectId(table.objects[at]) for at in numbers]
        runs: list[tuple[int, int]] = []
        for at in numbers:
            for start, end in its.live_parts(table.starts[at], table.ends[at]):
                if runs and runs[-1][1] == start:
                    runs[-1] = runs[-1][0], end
                else:
                    runs.append((start, end))
        stream_objects = []
        for start, end in runs:
            object = self.prepare(NODES[0])
            self.fill(object, Slice(stream, start, end))
            stream_objects.append(StreamObject(object, stream, start, end, 1))
        self._compacted(NODES[0], sources, [], stream_objects)

    def _compacted(
        self,
        node: NodeId,
        sources: list[ObjectId],
        set_objects: list[StreamSetObject],
        stream_objects: list[StreamObject],
    ) -> None:
        self.apply(
            CompactionCommitted(node, EPOCH, tuple(sources), tuple(set_objects), tuple(stream_objects), self.now_ms)
        )
