"""The checks of the simulation `compaction`: what is confirmed, what the storage has, and what readers get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlog.errors import DLogError
from dlog.model.object_streams import (
    CompactionCommitted,
    MetadataRecord,
    NodeId,
    ObjectId,
    ObjectStreamId,
    Slice,
    UploadCommitted,
)
from dlog.objects.image import Image, ObjectState
from dlog.objects.keys import object_key, parse_object_key
from dlog.objects.search import find_objects
from dlog.wire.stream_object import Buffer, ObjectEntry, Span, decode_block, decode_footer, decode_index, index_in
from tests.simulation.kernel import Violation

if TYPE_CHECKING:
    from tests.simulation.compaction_world import CompactionWorld

FOLDER = "objects/1"
QUIET_S = 30.0  # in which each node's objects are compacted, if any are old
GRACE_MS = 15_000  # a controller deletes a few objects at a time
Content = dict[tuple[ObjectStreamId, int], ObjectEntry]


def entry_of(stream: ObjectStreamId, offset: int) -> ObjectEntry:
    """The entry of an offset: everybody knows what was appended there."""
    payload = f"{stream}/{offset}".encode() * (1 + offset % 7)
    return ObjectEntry(payload, Span(offset, offset + 1, -offset, stream) if offset % 3 else None)


def decode_object(data: Buffer) -> Content:
    """All entries of an object, checked. Raises DamagedError."""
    footer = decode_footer(data, len(data))
    index = index_in(footer, data)
    assert index is not None
    view, found = memoryview(data), {}
    for row in decode_index(footer, index).blocks:
        for at, entry in enumerate(decode_block(row, view[row.position : row.position + row.bytes])):
            found[row.stream, row.start + at] = entry
    return found


def uploaded_to(image: Image, stream: ObjectStreamId, start: int, end: int) -> int:
    """Up to where all entries from start on are uploaded and not gone, as the ranges of an image say."""
    at = start
    for its in image.streams[stream].ranges:
        if its.end is not None and its.end <= at:
            continue
        if its.start > at or its.is_dropped or its.committed <= at:
            break
        at = its.committed
        if its.committed != its.end:
            break
    return min(at, end)


class CompactionChecks:
    """Judges each record as it is confirmed, each deletion and each read. wrong: new objects of compactions that got
    wrong bytes from the storage. deleted: streams that somebody asked to delete."""

    def __init__(self, world: CompactionWorld) -> None:
        self.wrong: set[ObjectId] = set()
        self.deleted: set[ObjectStreamId] = set()
        self._world = world
        self._live: set[tuple[ObjectStreamId, int]] = set()
        self.tried_s: dict[NodeId, float] = {}  # when a compaction of a node's objects wrote or ended last

    # ---- records ----------------------------------------------------------------------------------------------------

    def before(self, record: MetadataRecord) -> None:
        if isinstance(record, CompactionCommitted):
            self._live = self._live_entries(record)

    def after(self, record: MetadataRecord) -> None:
        if not isinstance(record, UploadCommitted | CompactionCommitted):
            return
        sets = record.set_objects if isinstance(record, CompactionCommitted) else (record.set_object,)
        new = [(one.object, one.slices) for one in sets if one is not None]
        new += [(one.object, (Slice(one.stream, one.start, one.end),)) for one in record.stream_objects]
        found: Content = {}
        for object, slices in new:
            found |= self._check_object(object, slices)
        if isinstance(record, CompactionCommitted):
            lost = self._live - found.keys()
            if lost:
                raise Violation("O8", f"{len(lost)} live entries are lost by a compaction, one is {min(lost)}")
            self._world.reached["compacted"] += 1

    def _live_entries(self, record: CompactionCommitted) -> set[tuple[ObjectStreamId, int]]:
        image, sources, found = self._world.confirmed, set(record.sources), set()
        tables = list(image.nodes[record.node].slices.items()) if record.node in image.nodes else []
        tables += [(stream, its.objects) for stream, its in image.streams.items()]
        for stream, table in tables:
            for start, end, object in zip(table.starts, table.ends, table.objects, strict=True):
                if object in sources and stream in image.streams:
                    for first, last in image.streams[stream].live_parts(start, end):
                        found |= {(stream, offset) for offset in range(first, last)}
        return found

    def _check_object(self, object: ObjectId, slices: Sequence[Slice]) -> Content:
        """A new object has the entries that its slices say, and these are the right ones."""
        name = "O7" if object in self.wrong else "O8"
        data = self._world.storage.object(object, self._world.confirmed)
        if data is None:
            raise Violation("O1", f"object {object} is committed and not in the storage")
        try:
            found = decode_object(data)
        except DLogError as error:
            raise Violation(name, f"object {object} is committed and damaged: {error}") from error
        named = {(part.stream, offset) for part in slices for offset in range(part.start, part.end)}
        if named != found.keys():
            raise Violation(
                name, f"object {object} has not the entries of its slices: {sorted(named ^ found.keys())[:3]}"
            )
        for (stream, offset), entry in found.items():
            if not is_right(stream, offset, entry):
                raise Violation(name, f"object {object} has a wrong entry: stream={stream} offset={offset}")
        return found

    # ---- the storage ------------------------------------------------------------------------------------------------

    def object_deleted(self, key: str) -> None:
        """An object is deleted: its mark must be confirmed."""
        parsed = parse_object_key(FOLDER, key)
        assert parsed is not None
        state = self._world.confirmed.objects.state(parsed.object)
        if state is ObjectState.COMMITTED:
            raise Violation("O1", f"object {parsed.object} is deleted, and metadata refers to it")
        if state not in (ObjectState.MARKED, ObjectState.DESTROYED):
            raise Violation("O2", f"object {parsed.object} is deleted, and was never marked: {state.name.lower()}")

    # ---- readers ----------------------------------------------------------------------------------------------------

    def missing(self, object: ObjectId) -> None:
        """A reader did not find an object of its metadata in the storage."""
        if self._world.confirmed.objects.state(object) is ObjectState.COMMITTED:
            raise Violation("O1", f"object {object} is not in the storage, and metadata refers to it")
        self._world.reached["gone"] += 1

    def read(self, stream: ObjectStreamId, start: int, end: int, found: Content, *, is_wrong: bool) -> None:
        """A reader takes these entries from an object; is_wrong: the storage gave it wrong bytes."""
        for offset in range(start, end):
            entry = found.get((stream, offset))
            if entry is None or not is_right(stream, offset, entry):
                what = "misses" if entry is None else "has a wrong"
                raise Violation("O7" if is_wrong else "O9", f"a reader {what} entry: stream={stream} offset={offset}")
        self._world.reached["read"] += end - start

    def searched(self, image: Image, stream: ObjectStreamId, start: int, end: int, limit: int) -> None:
        """A search of a reader covers what is uploaded, as its own metadata says, or as many objects as it wanted."""
        result = find_objects(image, stream, start, end, limit)
        known = uploaded_to(image, stream, start, end)
        if result.covered_to > known:
            raise Violation("O9", f"a search covers what is not there: {result} uploaded={known}")
        if len(result.objects) < limit and result.covered_to < known:
            raise Violation("O9", f"a search stops before what is uploaded: stream={stream} {result} uploaded={known}")

    # ---- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """In quiet times everything is uploaded, found and read, and nothing else is left."""
        world = self._world
        image = world.confirmed
        for stream, its in image.streams.items():
            if stream in self.deleted:
                continue
            state = world.streams.get(stream)
            start, end = its.start, max(its.start, 0 if state is None else state.end)
            for one in its.ranges:
                if not one.is_dropped:
                    self._read_all(stream, max(start, one.start), end if one.end is None else one.end)
        referenced = {
            object_key(FOLDER, object, *image.objects.owner(object))
            for object in image.objects.ids()
            if image.objects.state(object) is ObjectState.COMMITTED
        }
        there = world.storage.objects.keys()
        if referenced - there:
            raise Violation("O1", f"referenced objects are missing: {sorted(referenced - there)[:3]}")
        orphans = [key for key in there - referenced - world.storage.zombies if not self._is_young(key)]
        if orphans:
            raise Violation("O2", f"orphans are left in quiet times: {sorted(orphans)[:3]}")

        for name, node in image.nodes.items():
            oldest_ms = min((its[1] for its in node.set_objects.values()), default=world.now_ms)
            overdue_s = (world.now_ms - oldest_ms - world.config["force_split_ms"]) / 1000
            if overdue_s > QUIET_S and world.now_s - self.tried_s.get(name, 0.0) > QUIET_S:
                raise Violation("O2", f"objects of a node are not compacted any more: node={name}")

    def _is_young(self, key: str) -> bool:
        """Whether an object that nothing refers to may still be there: it is about to expire or to be deleted."""
        image, now_ms = self._world.confirmed, self._world.now_ms
        parsed = parse_object_key(FOLDER, key)
        assert parsed is not None
        match image.objects.state(parsed.object):
            case ObjectState.PREPARED:
                return now_ms < image.objects.time_ms(parsed.object) + GRACE_MS
            case ObjectState.MARKED:
                retention_ms: int = self._world.config["retention_ms"]
                return now_ms < image.objects.time_ms(parsed.object) + retention_ms + GRACE_MS
            case _:
                return False

    def _read_all(self, stream: ObjectStreamId, start: int, end: int) -> None:
        image, at = self._world.confirmed, start
        while at < end:
            try:
                result = find_objects(image, stream, at, end, 4)
            except DLogError as error:
                raise Violation("O9", f"an acknowledged entry cannot be read: {error}") from error
            if result.covered_to == at:
                raise Violation("O9", f"an acknowledged entry is never found: stream={stream} offset={at} end={end}")
            for ref in result.objects:
                data = self._world.storage.object(ref.object, image)
                if data is None:
                    raise Violation("O1", f"object {ref.object} is missing in quiet times")
                last = min(ref.end, end)
                self.read(stream, at, last, decode_object(data), is_wrong=False)
                at = last


def is_right(stream: ObjectStreamId, offset: int, entry: ObjectEntry) -> bool:
    expected = entry_of(stream, offset)
    return bytes(entry.payload) == expected.payload and entry.span == expected.span
