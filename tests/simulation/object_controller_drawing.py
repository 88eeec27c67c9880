"""Draws what a node asks of the controller, from an image that may lag: mostly right, sometimes wrong or late."""

from __future__ import annotations

import random
from collections.abc import Callable

from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    NodeEpoch,
    NodeId,
    ObjectId,
    ObjectStreamId,
    Slice,
    StreamObject,
    StreamSetObject,
    WalPosition,
    WalSegment,
)
from dlog.objects.image import Image, NodeImage, Range, StreamImage
from dlog.objects.operations import (
    BeginWalSegment,
    CloseStreams,
    CommitCompaction,
    CommitUpload,
    CreateStreams,
    DeleteKey,
    DeleteStreams,
    DropRange,
    GetKey,
    OpenNode,
    OpenStream,
    Operation,
    PrepareObjects,
    PutKey,
    TrimStream,
    WalDeleted,
)

KEYS = ("a", "b", "c", "d", "e")


class Drawing:
    """Draws operations of one node. node_epoch: that the caller believes to have. ids: prepared and not used."""

    def __init__(self, rng: random.Random, node: NodeId) -> None:
        self.rng = rng
        self.node = node
        self.node_epoch = NodeEpoch(0)
        self.ids: list[ObjectId] = []
        self._kinds: list[tuple[Callable[[Image, NodeImage], Operation | None], int]] = [
            (self._upload, 12),
            (self._prepare, 5),
            (self._compaction, 6),
            (self._open_stream, 6),
            (self._close, 4),
            (self._trim, 2),
            (self._drop, 1),
            (self._delete, 1),
            (self._create, 2),
            (self._key, 2),
            (self._wal, 4),
        ]

    def draw(self, image: Image) -> Operation | None:
        rng = self.rng
        node = image.nodes.get(self.node)
        if node is None or self.node_epoch == 0 or rng.random() < 0.01:
            current = max(self.node_epoch, 0 if node is None else node.node_epoch)
            epoch = NodeEpoch(current + rng.choice((1, 1, 1, 2, 0)))
            return OpenNode(self.node, epoch, rng.random() < 0.2, rng.randbytes(4))
        kinds, weights = zip(*self._kinds, strict=True)
        draw: Callable[[Image, NodeImage], Operation | None] = rng.choices(kinds, weights)[0]
        return draw(image, node)

    def _own_ranges(self, image: Image) -> list[tuple[ObjectStreamId, StreamImage, Range]]:
        """Those of the node; seldom any other."""
        found = [(n, stream, its) for n, stream in image.streams.items() for its in stream.ranges]
        others = [one for one in found if one[2].node != self.node]
        if others and self.rng.random() < 0.1:
            return [self.rng.choice(others)]
        return [(n, stream, its) for n, stream, its in found if its.node == self.node]

    def _some_stream(self, image: Image) -> ObjectStreamId:
        known = list(image.streams)
        return self.rng.choice(known) if known and self.rng.random() < 0.95 else ObjectStreamId(self.rng.randint(1, 30))

    # ---- objects ----

    def _prepare(self, _image: Image, _node: NodeImage) -> Operation | None:
        if len(self.ids) > 20:
            return None
        return PrepareObjects(
            self.node, self.node_epoch, self.rng.randint(1, 6), self.rng.choice((1000, 30_000, 90_000, 90_000))
        )

    def _take(self) -> ObjectId:
        rng = self.rng
        if rng.random() < 0.03 or not self.ids:
            return ObjectId(rng.randint(1, 60))
        return self.ids.pop(0) if rng.random() < 0.97 else rng.choice(self.ids)

    def _upload(self, image: Image, node: NodeImage) -> Operation | None:
        rng = self.rng
        if not self.ids:
            return self._prepare(image, node)
        slices: list[Slice] = []
        objects: list[StreamObject] = []
        for number, stream, its in self._own_ranges(image):
            start = its.committed if rng.random() < 0.7 else max(its.committed, stream.start)
            end = start + rng.randint(1, 8)
            if rng.random() < 0.05:
                start += rng.choice((-1, 1))
            if its.end is not None and rng.random() < 0.95:
                end = min(end, its.end)
            if rng.random() < 0.4 or not 0 <= start < end:
                continue
            if rng.random() < 0.3 and self.ids:
                objects.append(StreamObject(self._take(), number, start, end, 10))
            else:
                slices.append(Slice(number, start, end))
        made = None
        if slices and self.ids:
            number_of_set = self._take()
            made = StreamSetObject(number_of_set, number_of_set, rng.randint(1, 99), 10, tuple(slices))
        flush = node.flush_point
        if rng.random() < 0.3:
            flush = WalPosition(flush.segment + 1, 0)
        else:
            flush = WalPosition(flush.segment, max(0, flush.entry + rng.choice((1, 1, 5, 0, -1))))
        return CommitUpload(self.node, self.node_epoch, made, tuple(objects), flush)

    def _compaction(self, image: Image, node: NodeImage) -> Operation | None:
        rng = self.rng
        if len(self.ids) < 4:
            return self._prepare(image, node)
        sets = [one for one in node.set_objects if rng.random() < 0.5]
        of_sets: dict[ObjectStreamId, list[tuple[int, int]]] = {}
        for number, table in sorted(node.slices.items()):
            rows = zip(table.starts, table.ends, table.objects, strict=True)
            held = [(start, end) for start, end, object in rows if object in sets]
            if held and number in image.streams:
                of_sets[number] = held
        sources = list(sets)
        of_objects: dict[ObjectStreamId, list[tuple[int, int]]] = {}
        for number, stream in sorted(image.streams.items()):
            if len(stream.objects) and stream.ranges[-1].node == self.node and rng.random() < 0.4:
                sources += map(ObjectId, stream.objects.objects)
                of_objects[number] = list(zip(stream.objects.starts, stream.objects.ends, strict=True))
        if not sources:
            return None
        slices: list[Slice] = []
        objects: list[StreamObject] = []
        for number in sorted({*of_sets, *of_objects}):
            stream = image.streams[number]
            held = sorted(of_sets.get(number, []) + of_objects.get(number, []))
            parts = _joined(held)
            if rng.random() < 0.5:
                parts = [live for start, end in parts for live in stream.live_parts(start, end)]
            if rng.random() < 0.1 and parts:
                parts = rng.choice((parts[1:], [(start, end - 1) for start, end in parts if end > start + 1]))
            if number in of_objects or rng.random() < 0.4:
                objects += [StreamObject(self._take(), number, start, end, 10) for start, end in parts]
            else:
                slices += [Slice(number, start, end) for start, end in parts]
        made: tuple[StreamSetObject, ...] = ()
        if slices:
            order = min((node.set_objects[one][0] for one in sets), default=ObjectId(1))
            time_ms = min((node.set_objects[one][1] for one in sets), default=1)
            made = (StreamSetObject(self._take(), order, time_ms, 10, tuple(slices)),)
        return CommitCompaction(self.node, self.node_epoch, tuple(sources), made, tuple(objects))

    # ---- streams and keys ----

    def _open_stream(self, image: Image, _node: NodeImage) -> Operation:
        number = self._some_stream(image)
        stream = image.streams.get(number)
        epoch = Epoch((-1 if stream is None else stream.epoch) + self.rng.choice((1, 1, 1, 1, 5, 0)))
        return OpenStream(self.node, self.node_epoch, number, max(Epoch(0), epoch))

    def _close(self, image: Image, _node: NodeImage) -> Operation | None:
        rng = self.rng
        ends = [
            (number, its.epoch, max(its.committed, stream.start) + rng.choice((0, 0, 3, 10)) - (rng.random() < 0.03))
            for number, stream, its in self._own_ranges(image)
            if its.end is None and rng.random() < 0.6
        ]
        return CloseStreams(self.node, self.node_epoch, tuple(ends)) if ends else None

    def _trim(self, image: Image, _node: NodeImage) -> Operation | None:
        number = self._some_stream(image)
        stream = image.streams.get(number)
        if stream is None or not stream.ranges:
            return None
        last = stream.ranges[-1]
        start = self.rng.randint(stream.start, max(stream.start, last.committed) + (self.rng.random() < 0.1))
        return TrimStream(self.node, self.node_epoch, number, last.epoch, start)

    def _drop(self, image: Image, _node: NodeImage) -> Operation | None:
        number = self._some_stream(image)
        stream = image.streams.get(number)
        if stream is None or not stream.ranges:
            return None
        return DropRange(number, self.rng.choice(stream.ranges).epoch)

    def _delete(self, image: Image, _node: NodeImage) -> Operation:
        return DeleteStreams((self._some_stream(image),), self.rng.choice((None, *KEYS)))

    def _create(self, _image: Image, _node: NodeImage) -> Operation:
        return CreateStreams(self.rng.choice(KEYS), self.rng.randint(1, 3))

    def _key(self, _image: Image, _node: NodeImage) -> Operation:
        key = "kv-" + self.rng.choice(KEYS) if self.rng.random() < 0.9 else ""  # an empty one is refused
        return self.rng.choice((PutKey(key, self.rng.choice((b"v1", b"v2", b"17"))), GetKey(key), DeleteKey(key)))

    def _wal(self, _image: Image, node: NodeImage) -> Operation:
        if self.rng.random() < 0.4:
            return WalDeleted(
                self.node, self.node_epoch, max(0, node.flush_point.segment + self.rng.choice((0, 0, -1, 1)))
            )
        number = max([node.flush_point.segment, 1, *(one.number + 1 for one in node.wal)])
        segment = WalSegment(number, self.node_epoch, "file", f"{self.node}-{self.rng.randrange(10**6)}")
        return BeginWalSegment(self.node, self.node_epoch, segment)


def _joined(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in parts:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
