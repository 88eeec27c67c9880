"""Tests how lost answers of an object storage are resolved, and what its probe refuses, on objects in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from dlog.stores.contract import MisconfiguredError, SegmentNotFoundError, StoreUnavailableError
from dlog.stores.object_storage.creating import ATTEMPTS_MAX, create_resolved
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.stores.object_storage.port import Buffer, Creation, Found
from dlog.stores.object_storage.probe import NONCE_HEX, probe
from tests.memory_objects import MemoryObjects, PutFault

ROOT = parse_root("s3://bucket/x")
PLACE = ROOT.below("1")


async def create(objects: MemoryObjects, text: bytes) -> Creation:
    return await objects.create_if_absent(PLACE, (text,), head_bytes=4)


@pytest.mark.parametrize("fault", list(PutFault))
async def test_after_any_fault_an_object_of_ours_is_known_as_ours(fault: PutFault) -> None:
    objects = MemoryObjects()
    objects.faults.append(fault)
    assert await create(objects, b"ours, the whole of it") is Creation.MADE
    objects.land_late()
    assert await objects.read(PLACE, 0, 100) == b"ours, the whole of it"


@pytest.mark.parametrize("fault", [None, *PutFault])
async def test_after_any_fault_an_object_of_another_is_not_taken_for_ours(fault: PutFault | None) -> None:
    objects = MemoryObjects()
    assert await create(objects, b"other") is Creation.MADE
    objects.faults.append(fault)
    assert await create(objects, b"ours, the whole of it") is Creation.EXISTS
    objects.land_late()
    assert await objects.read(PLACE, 0, 100) == b"other"


async def test_what_stays_unclear_has_an_unknown_outcome() -> None:
    objects = MemoryObjects()
    objects.faults.extend([PutFault.LATE] * ATTEMPTS_MAX)
    with pytest.raises(StoreUnavailableError) as raised:
        await create(objects, b"ours")
    assert raised.value.outcome_unknown
    objects.land_late()
    assert await create(objects, b"ours") is Creation.MADE, "the call may be repeated"


async def test_an_object_that_cannot_be_read_back_has_an_unknown_outcome() -> None:
    async def exists() -> Creation:
        return Creation.EXISTS

    async def cannot(*_: object) -> bytes:
        raise StoreUnavailableError("the connection broke")

    with pytest.raises(StoreUnavailableError) as raised:
        await create_resolved(PLACE, b"ours", exists, cannot)
    assert raised.value.outcome_unknown


async def test_a_location_that_was_used_before_is_told() -> None:
    """There was an object, and it is gone when its head is read: somebody deletes objects that are being written."""

    async def exists() -> Creation:
        return Creation.EXISTS

    with pytest.raises(SegmentNotFoundError, match="deleted"):
        await create_resolved(PLACE, b"ours", exists, MemoryObjects().read)


class Unordered(MemoryObjects):
    """Lists objects in no order, as directory buckets do."""

    async def list(
        self, folder: Location, *, behind: Location | None = None, limit: int | None = None
    ) -> AsyncIterator[Found]:
        for place in list(self.objects)[:limit]:
            yield Found(place, 0, 0)


class Late(MemoryObjects):
    """Does not list new objects yet."""

    async def list(
        self, folder: Location, *, behind: Location | None = None, limit: int | None = None
    ) -> AsyncIterator[Found]:
        for place in list(self.objects)[:0]:
            yield Found(place, 0, 0)


class WholeReads(MemoryObjects):
    """Ignores ranges."""

    async def read(self, location: Location, offset: int, size: int) -> bytes:
        return self._find(location)


class NoEnds(MemoryObjects):
    """Ignores ranges that count from the end."""

    async def read_end(self, location: Location, size: int) -> tuple[bytes, int]:
        data = self._find(location)
        return data, len(data)


class Refusing(MemoryObjects):
    """Has no permission to write."""

    async def create_if_absent(
        self, location: Location, data: Sequence[Buffer], *, head_bytes: int, marker: Location | None = None
    ) -> Creation:
        raise MisconfiguredError("AccessDenied")


class TestProbe:
    """Each storage that cannot hold segments is told by what it lacks."""

    async def test_a_storage_that_does_all_passes(self) -> None:
        objects = MemoryObjects()
        await probe(objects, ROOT, "ab" * (NONCE_HEX // 2))
        assert objects.objects == {}

    @pytest.mark.parametrize(
        "objects, fault",
        [
            (Unordered(), "does not list objects behind a name"),
            (Late(), "does not list an object at once"),
            (WholeReads(), "does not read a range"),
            (NoEnds(), "does not read an object's end"),
            (Refusing(), "AccessDenied"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, MemoryObjects) else "",
    )
    async def test_a_storage_that_lacks_something_is_refused(self, objects: MemoryObjects, fault: str) -> None:
        with pytest.raises(MisconfiguredError, match=fault):
            await probe(objects, ROOT, "ab" * (NONCE_HEX // 2))
        assert objects.objects == {}

    async def test_a_storage_that_replaces_objects_is_refused(self) -> None:
        objects = MemoryObjects()
        objects.overwrites = True
        with pytest.raises(MisconfiguredError, match="replaces an object"):
            await probe(objects, ROOT, "ab" * (NONCE_HEX // 2))
