"""Segment objects in memory: made as the job makes them, and damaged ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from dlog.model.ids import SegmentNumber, StreamName
from dlog.stores.cold.format import Builder, Contents, Head
from dlog.stores.cold.locations import ObjectName
from dlog.stores.contract import SegmentNotFoundError, SegmentRef
from dlog.stores.object_storage.locations import Location, folder_of, parse_root
from dlog.stores.object_storage.port import Found

Buffer = bytes | bytearray | memoryview

ROOT = parse_root("file:///cold")


def head(entries: int, **changes: object) -> Head:
    told: dict[str, object] = {
        "stream": "orders",
        "incarnation": "abc",
        "number": 7,
        "last_entry": entries - 1,
        "last_slot": 3,
        "first_txid": 10,
        "last_txid": 20,
        "records": 5,
        "completed_unix_ms": 1_700_000_000_000,
        "start_sequence_id": 0,
        "is_enveloped": True,
        "source_store": "ledger",
        "source_name": "4711",
    }
    return Head(**{**told, **changes})  # type: ignore[arg-type]


def contents(entry: int) -> Contents:
    """The content of an entry in these tests; every fourth holds no record."""
    return Contents() if entry % 4 == 3 else Contents(100 + entry, 101 + entry, 5000 + entry, entry % 3, 2)


def built(payloads: Sequence[bytes], of: Head | None = None) -> bytes:
    """The object of a segment with these entries."""
    builder = Builder(of or head(len(payloads)))
    parts: list[Buffer] = [builder.begin()]
    for entry, payload in enumerate(payloads):
        builder.add(payload, contents(entry))
        parts.append(payload)
    return b"".join([*parts, *builder.end()])


def ref(size: int = 0, number: int = 7, stream: str = "orders") -> SegmentRef:
    """The location of an object in these tests."""
    folder = folder_of(ROOT, "cluster", "/dlog", stream)
    place = folder.below(str(ObjectName(number, "00112233aabbccdd", size)))
    return SegmentRef(StreamName(stream), SegmentNumber(number), str(place))


class MemoryObjects:
    """The port in memory; every read is noted."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.reads: list[tuple[int, int]] = []
        self.lie: bytes | None = None  # what the next read returns instead

    async def read(self, place: Location, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        lie, self.lie = self.lie, None
        return self._find(place)[offset : offset + size] if lie is None else lie

    async def read_end(self, place: Location, size: int) -> tuple[bytes, int]:
        data = self._find(place)
        return data[-size:], len(data)

    async def create(self, place: Location) -> MemoryWriter:
        return MemoryWriter(self, str(place))

    async def delete(self, place: Location) -> None:
        self.objects.pop(str(place), None)

    async def list(self, folder: Location) -> AsyncIterator[Found]:
        for place, data in sorted(self.objects.items()):
            if place.startswith(f"{folder}/"):
                yield Found(place, len(data), 0)

    async def unfinished(self, folder: Location) -> AsyncIterator[Found]:
        nothing: tuple[Found, ...] = ()
        for found in nothing:
            yield found

    async def discard(self, left: Found) -> None:
        raise AssertionError("nothing is left here")

    def _find(self, place: Location) -> bytes:
        data = self.objects.get(str(place))
        if data is None:
            raise SegmentNotFoundError(f"no such object: place={place}")
        return data


class MemoryWriter:
    def __init__(self, objects: MemoryObjects, place: str) -> None:
        self._objects = objects
        self._place = place
        self._parts: list[bytes] = []

    async def write(self, parts: Sequence[Buffer]) -> None:
        self._parts += map(bytes, parts)

    async def finish(self) -> None:
        self._objects.objects[self._place] = b"".join(self._parts)

    async def abort(self) -> None:
        self._parts.clear()
