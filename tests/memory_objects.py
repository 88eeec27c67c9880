"""An object storage in memory, with the faults that a real one has."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import AsyncIterator, Sequence

from dlog.stores.contract import SegmentNotFoundError, StoreUnavailableError
from dlog.stores.object_storage.creating import create_resolved
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Buffer, Creation, Found


class PutFault(enum.Enum):
    """What happens to a request to create an object."""

    LOST_ANSWER = "stored, but not answered"
    LOST_REQUEST = "neither stored nor answered"
    LATE = "not answered, and stored when `land_late` is called, if there is no object then"
    REPEATED = "sent twice by a library, which returns the answer to the second: there is one already"


class MemoryObjects:
    """Implements Objects of dlog/stores/object_storage/port.py.

    uploads: locations of uploads that are begun. reads: each read's offset and size. lie: what the next read returns
    instead. faults: of the next requests to create, None for one that is served. overwrites: `create_if_absent`
    replaces, as on a storage without it.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: set[str] = set()
        self.reads: list[tuple[int, int]] = []
        self.lie: bytes | None = None
        self.faults: deque[PutFault | None] = deque()
        self.late: list[tuple[str, bytes]] = []
        self.overwrites = False
        self.time_ms = 1_700_000_000_000

    async def read(self, location: Location, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        lie, self.lie = self.lie, None
        return self._find(location)[offset : offset + size] if lie is None else lie

    async def read_end(self, location: Location, size: int) -> tuple[bytes, int]:
        data = self._find(location)
        return data[-size:], len(data)

    async def create(self, location: Location, *, marker: Location | None = None) -> MemoryWriter:
        return MemoryWriter(self, str(location))

    def can_create_if_absent(self, location: Location) -> bool:
        return True

    async def create_if_absent(
        self, location: Location, data: Sequence[Buffer], *, head_bytes: int, marker: Location | None = None
    ) -> Creation:
        body = b"".join(data)

        async def attempt() -> Creation:
            fault = self.faults.popleft() if self.faults else None
            match fault:
                case PutFault.LOST_REQUEST:
                    raise StoreUnavailableError("the connection broke")
                case PutFault.LATE:
                    self.late.append((str(location), body))
                    raise StoreUnavailableError("the connection broke")
                case PutFault.LOST_ANSWER | PutFault.REPEATED:
                    self._put(str(location), body)
                    if fault is PutFault.LOST_ANSWER:
                        raise StoreUnavailableError("the connection broke")
            return self._put(str(location), body)

        return await create_resolved(location, body[:head_bytes], attempt, self.read)

    def land_late(self) -> None:
        """Carry out the requests that are late."""
        for location, body in self.late:
            self._put(location, body)
        self.late.clear()

    async def delete(self, location: Location) -> None:
        self.objects.pop(str(location), None)

    async def delete_many(self, locations: Sequence[Location]) -> None:
        for location in locations:
            await self.delete(location)

    async def list(
        self, folder: Location, *, behind: Location | None = None, limit: int | None = None
    ) -> AsyncIterator[Found]:
        names = (one for one in sorted(self.objects) if one.startswith(f"{folder}/"))
        for location in [one for one in names if behind is None or one > str(behind)][:limit]:
            yield Found(location, len(self.objects[location]), 0)

    async def unfinished(self, folder: Location) -> AsyncIterator[Found]:
        for location in sorted(self.uploads):
            if location.startswith(f"{folder}/"):
                yield Found(location, 0, 0)

    async def discard(self, left: Found) -> None:
        self.uploads.discard(left.location)

    async def now_unix_ms(self, folder: Location) -> int:
        return self.time_ms

    def _put(self, location: str, body: bytes) -> Creation:
        if location in self.objects and not self.overwrites:
            return Creation.EXISTS
        self.objects[location] = body
        return Creation.MADE

    def _find(self, location: Location) -> bytes:
        data = self.objects.get(str(location))
        if data is None:
            raise SegmentNotFoundError(f"no such object: location={location}")
        return data


class MemoryWriter:
    """Writes one object in memory."""

    def __init__(self, objects: MemoryObjects, location: str) -> None:
        self._objects = objects
        self._location = location
        self._parts: list[bytes] = []

    async def write(self, parts: Sequence[Buffer]) -> None:
        self._objects.uploads.add(self._location)
        self._parts += map(bytes, parts)

    async def finish(self) -> None:
        self._objects.uploads.discard(self._location)
        self._objects.objects[self._location] = b"".join(self._parts)

    async def abort(self) -> None:
        self._objects.uploads.discard(self._location)
        self._parts.clear()
