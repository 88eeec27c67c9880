"""Where bookies stand, as far as registrations tell or told."""

from __future__ import annotations

import pytest

from dlog.io import bookie_locations
from dlog.io.bookie_locations import BookieLocations
from dlog.io.metadata import BookieInfo
from dlog.model.ids import BookieId
from dlog.model.location import NetworkLocation
from tests.memory_metadata import MemoryMetadata

A, B, C = (BookieId(name) for name in "abc")


async def register(metadata: MemoryMetadata, bookie: BookieId, rack: str, *, readonly: bool = False) -> None:
    await metadata.register_bookie(BookieInfo(bookie, "h", 1, NetworkLocation(rack=rack)), readonly=readonly)


async def test_a_bookie_that_is_gone_stands_where_it_was_seen_last() -> None:
    metadata = MemoryMetadata()
    locations = BookieLocations(metadata)
    assert locations.locate(A) is None
    await register(metadata, A, "r1")
    await register(metadata, B, "r2", readonly=True)
    assert locations.writable() == [A] and locations.writable([A]) == []
    assert {b: place.rack for b, place in locations.registered().items()} == {A: "r1", B: "r2"}
    await register(metadata, A, "r3")
    assert locations.locate(A) == NetworkLocation(rack="r3")
    await metadata.unregister_bookie(A)
    assert locations.writable() == [] and locations.registered().keys() == {B}
    assert locations.locate(A) == NetworkLocation(rack="r3")


async def test_it_looks_at_once_and_at_every_change() -> None:
    metadata = MemoryMetadata()
    await register(metadata, A, "r1")
    locations = BookieLocations(metadata)
    await metadata.unregister_bookie(A)
    await register(metadata, B, "r2")
    await metadata.unregister_bookie(B)
    assert locations.locate(A) == NetworkLocation(rack="r1") and locations.locate(B) == NetworkLocation(rack="r2")
    locations.close()
    await register(metadata, C, "r3")
    await metadata.unregister_bookie(C)
    assert locations.locate(C) is None


async def test_the_memory_of_bookies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookie_locations, "REMEMBERED_MAX", 2)
    metadata = MemoryMetadata()
    locations = BookieLocations(metadata)
    for bookie in (A, B, C):
        await register(metadata, bookie, "r1")
        assert locations.locate(bookie) is not None
        await metadata.unregister_bookie(bookie)
    assert [locations.locate(bookie) is not None for bookie in (A, B, C)] == [False, True, True]
