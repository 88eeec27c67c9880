"""Objects of the store `s3` that are damaged in any byte, cut short anywhere, or written by a newer version: readers
get an error that says what to do, or what was written, and never other bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from dlog.model.ids import EntryId
from dlog.stores.contract import SegmentCorruptError, SegmentRef
from dlog.stores.s3.store import S3Store
from dlog.wire.digest import crc32c
from dlog.wire.stream_object import decode_footer
from tests.unit.stores.test_s3 import W1, Cluster, append, entry, upload

ENTRIES = 3


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        yield cluster


async def uploaded(cluster: Cluster) -> tuple[SegmentRef, str]:
    """A segment that has ended and is in one object, and the object's name."""
    store = await cluster.store(W1)
    writer, ref = await cluster.segment(store)
    await append(writer, 0, ENTRIES)
    await upload(store)
    await writer.seal()
    (name,) = cluster.objects.objects
    return ref, name


async def found(store: S3Store, ref: SegmentRef) -> list[bytes]:
    """All entries, read past the cache. Raises SegmentCorruptError."""
    store.cache._kept.clear()
    reader = await store.open_reader(ref)
    try:
        entries: list[bytes] = []
        while len(entries) < ENTRIES:
            entries += await reader.read(EntryId(len(entries)), EntryId(ENTRIES - 1), 10_000)
        return entries
    finally:
        await reader.close()


def changes(data: bytes) -> Iterator[tuple[str, bytes]]:
    for at in range(len(data)):
        yield f"byte {at} is flipped", data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
    for size in range(len(data)):
        yield f"cut to {size} bytes", data[:size]


async def test_no_changed_byte_and_no_cut_gives_other_entries(cluster: Cluster) -> None:
    ref, name = await uploaded(cluster)
    sound, store = cluster.objects.objects[name], await cluster.store(None)
    expected, noticed = [entry(number) for number in range(ENTRIES)], 0
    for what, data in changes(sound):
        cluster.objects.objects[name] = data
        try:
            assert await found(store, ref) == expected, what
        except SegmentCorruptError as error:
            noticed += 1
            assert "object=1" in error.message, (what, error.message)
    assert noticed > 1.9 * len(sound)
    cluster.objects.objects[name] = sound
    assert await found(store, ref) == expected


async def test_an_object_of_a_newer_version_says_to_upgrade(cluster: Cluster) -> None:
    ref, name = await uploaded(cluster)
    data = bytearray(cluster.objects.objects[name])
    footer = decode_footer(data, len(data)).bytes
    data[-9] = 2
    for text in ("checksum of an object's footer does not match", "upgrade"):
        cluster.objects.objects[name] = bytes(data)
        with pytest.raises(SegmentCorruptError, match=text):
            await found(await cluster.store(None), ref)
        data[-14:-10] = crc32c(data[-10:], crc32c(data[-footer:-14])).to_bytes(4)


async def test_other_objects_at_the_root_change_nothing(cluster: Cluster) -> None:
    ref, name = await uploaded(cluster)
    folder = name.rsplit("/", 2)[0]
    for foreign in (
        f"{folder}/readme.txt",
        f"{folder}/00/0000000000000000-1-w1",
        f"{name}.bak",
        f"{folder}/snapshots/x",
    ):
        cluster.objects.objects[foreign] = b"not ours"
    assert await found(await cluster.store(None), ref) == [entry(number) for number in range(ENTRIES)]
