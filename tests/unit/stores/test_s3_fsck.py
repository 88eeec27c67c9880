"""Tests the check of objects against metadata on a store that writes, uploads and deletes: nothing is found in it, and
what is planted once in the bucket is found, and nothing else."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dlog.io.s3_store import open_s3_store
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId
from dlog.objects.fsck import Kind
from dlog.objects.image import Image, ObjectState
from dlog.objects.keys import object_key
from dlog.objects.node_messages import UploadAll
from dlog.objects.operations import PrepareObjects
from dlog.objects.search import find_objects
from dlog.stores.contract import SegmentRef
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.stores.s3.fsck import Checked, ObjectCheck
from dlog.stores.s3.places import object_location, parse_place
from dlog.stores.s3.store import S3Store
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.wire.stream_object import ObjectEncoder, ObjectEntry
from tests.memory_objects import MemoryObjects
from tests.memory_store import MemoryStore, MemoryStoreState
from tests.object_metadata import MemoryController, MemoryMetadata

ROOT = parse_root("s3://bucket/logs/streams")
FOLDER = "incarnation"
NODE, OTHER = NodeId("w1"), NodeId("w2")
OPTIONS = ObjectsOptions(
    root="s3://bucket/logs", upload_bytes=1 << 20, upload_s=1e6, stream_object_bytes=2000, compaction_s=1e6
)


class Wal(MemoryStore):
    """A log in memory, under the name of a store that may have logs."""

    name = "ledger"


class Cluster:
    """A node that has written two segments: a short one, which is in a shared object, and a long one."""

    def __init__(self, objects: MemoryObjects, controller: MemoryController, store: S3Store) -> None:
        self.objects = objects
        self.controller = controller
        self.store = store
        self.refs: list[SegmentRef] = []

    @property
    def image(self) -> Image:
        return MemoryMetadata(self.controller).image

    async def write(self, count: int) -> SegmentRef:
        number = SegmentNumber(len(self.refs) + 1)
        writer = await self.store.create(StreamName("s"), number, Epoch(1), ())
        for entry in range(count):
            await writer.append(EntryId(entry), [b"entry %d " % entry * 10])
        await writer.seal()
        self.refs.append(SegmentRef(StreamName("s"), number, writer.name))
        return self.refs[-1]

    async def upload(self) -> None:
        assert self.store.node is not None and self.store.node.current is not None
        await self.store.node.current.actor.ask(UploadAll())

    def object_of(self, ref: SegmentRef) -> ObjectId:
        return find_objects(self.image, parse_place(ref.name).stream, 0, 1, 1).objects[0].object

    def location(self, object: ObjectId) -> str:
        return str(object_location(ROOT.below(FOLDER), object, *self.image.objects.owner(object)))

    def check(self) -> ObjectCheck:
        store = self.store
        return ObjectCheck(self.objects, ROOT, FOLDER, store.reads, store.metadata.read, store.metadata.fresh)

    async def found(self) -> list[tuple[Kind, ObjectId | None]]:
        return [(one.kind, one.object) for one in (await self.run()).findings]

    async def run(self) -> Checked:
        return await self.check().run()


@asynccontextmanager
async def opened() -> AsyncIterator[Cluster]:
    objects = MemoryObjects()
    folder = ROOT.below(FOLDER)
    controller = MemoryController(objects, Location("s3", "bucket", folder.path))

    async def find_folder() -> Location:
        return folder

    wal = Wal(MemoryStoreState(), entry_bytes_max=100_000)
    opening = open_s3_store(
        MemoryMetadata(controller),
        objects,
        find_folder,
        {"ledger": wal},
        OPTIONS,
        random.Random(os.urandom(8)),
        node=NODE,
    )
    async with opening as store:
        cluster = Cluster(objects, controller, store)
        await cluster.write(5)
        await cluster.write(100)
        await cluster.upload()
        yield cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with opened() as found:
        yield found


async def test_a_cluster_without_defects_has_no_findings_while_it_writes_uploads_and_deletes(cluster: Cluster) -> None:
    checked = await cluster.run()
    assert not checked.findings and checked.objects == 2 and checked.blocks >= 2 and checked.listed == 2
    await cluster.write(3)  # not uploaded
    assert not await cluster.found()
    await cluster.upload()
    assert (await cluster.run()).objects == 3
    await cluster.store.delete(cluster.refs[1])  # its object is marked
    assert not await cluster.found()
    await cluster.controller.tick(10**9)
    await cluster.controller.tick(10**9)
    assert len(cluster.objects.objects) == 2
    assert not await cluster.found()


async def test_a_flipped_byte_anywhere_is_found(cluster: Cluster) -> None:
    object = cluster.object_of(cluster.refs[1])
    location = cluster.location(object)
    whole = cluster.objects.objects[location]
    for at in (0, 100, len(whole) // 2, len(whole) - 20):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        cluster.objects.objects[location] = bytes(flipped)
        async with opened_again(cluster) as check:
            assert [(one.kind, one.object) for one in (await check.run()).findings] == [(Kind.DAMAGED, object)], at


async def test_an_object_that_is_cut_short_is_found(cluster: Cluster) -> None:
    object = cluster.object_of(cluster.refs[0])
    location = cluster.location(object)
    cluster.objects.objects[location] = cluster.objects.objects[location][:-1]
    assert await cluster.found() == [(Kind.DAMAGED, object)]


async def test_an_object_that_was_deleted_is_missing(cluster: Cluster) -> None:
    object = cluster.object_of(cluster.refs[0])
    del cluster.objects.objects[cluster.location(object)]
    assert await cluster.found() == [(Kind.MISSING, object)]


async def test_an_object_without_entries_that_the_metadata_have_in_it_is_a_hole(cluster: Cluster) -> None:
    """Its bytes verify, and it has as many of them."""
    object, place = cluster.object_of(cluster.refs[0]), parse_place(cluster.refs[0].name)
    location = cluster.location(object)
    encoder = ObjectEncoder(object, *cluster.image.objects.owner(object))
    parts = encoder.add(place.stream, 0, ObjectEntry(b"x" * 100))
    empty = len(b"".join([*parts, *encoder.finish()]))
    size = len(cluster.objects.objects[location])
    encoder = ObjectEncoder(object, *cluster.image.objects.owner(object))
    parts = encoder.add(place.stream, 0, ObjectEntry(b"x" * (100 + size - empty)))
    cluster.objects.objects[location] = b"".join(map(bytes, [*parts, *encoder.finish()]))
    [found] = (await cluster.run()).findings
    assert (found.kind, found.place) == (Kind.HOLE, f"stream {place.stream}, entries 1 to 4")


async def test_an_upload_that_landed_after_its_deletion_is_a_zombie_and_is_removed(cluster: Cluster) -> None:
    object = cluster.object_of(cluster.refs[1])
    location = cluster.location(object)
    data = cluster.objects.objects[location]
    await cluster.store.delete(cluster.refs[1])
    for _ in range(3):
        await cluster.controller.tick(10**9)
    assert location not in cluster.objects.objects
    assert cluster.image.objects.state(object) is ObjectState.DESTROYED
    cluster.objects.objects[location] = data
    checked = await cluster.run()
    assert [(one.kind, one.object) for one in checked.findings] == [(Kind.ZOMBIE, object)]
    assert await cluster.check().remove(checked.findings) == 1
    assert location not in cluster.objects.objects
    assert not await cluster.found()


async def test_an_object_that_is_deleted_while_the_bucket_is_listed_is_no_zombie(cluster: Cluster) -> None:
    location = cluster.location(cluster.object_of(cluster.refs[1]))
    await cluster.store.delete(cluster.refs[1])
    deleted: list[bytes] = []

    async def delete_then_read() -> Image:
        assert location in cluster.objects.objects
        data = cluster.objects.objects[location]
        for _ in range(3):
            await cluster.controller.tick(10**9)
        assert location not in cluster.objects.objects
        deleted.append(data)
        return await cluster.store.metadata.fresh()

    reads, read = cluster.store.reads, cluster.store.metadata.read
    checked = await ObjectCheck(cluster.objects, ROOT, FOLDER, reads, read, delete_then_read).run()
    assert deleted and not checked.findings


async def test_uploads_that_nobody_finishes_are_removed(cluster: Cluster) -> None:
    await cluster.controller.ask(PrepareObjects(NODE, NodeEpoch(1), 1, 10 * 60_000))
    prepared = ObjectId(cluster.image.next_object - 1)
    committed = cluster.object_of(cluster.refs[0])
    for object in (committed, prepared):
        await (await cluster.objects.create(parse_root(cluster.location(object)))).write([b"part"])
    checked = await cluster.run()
    assert [(one.kind, one.object) for one in checked.findings] == [(Kind.UNFINISHED, committed)]
    assert await cluster.check().remove(checked.findings) == 1
    assert await cluster.check().remove(checked.findings) == 0
    assert cluster.objects.uploads == {cluster.location(prepared)}, "it may be committed"


async def test_an_orphan_is_removed_and_nothing_else(cluster: Cluster) -> None:
    object = cluster.object_of(cluster.refs[0])
    there = dict(cluster.objects.objects)
    orphan = str(ROOT.below(object_key(FOLDER, object, OTHER, NodeEpoch(1))))
    later = str(ROOT.below(object_key(FOLDER, ObjectId(cluster.image.next_object), NODE, NodeEpoch(1))))
    await cluster.controller.ask(PrepareObjects(NODE, NodeEpoch(1), 1, 10 * 60_000))
    prepared = ObjectId(cluster.image.next_object - 1)
    there[str(ROOT.below(object_key(FOLDER, prepared, NODE, NodeEpoch(1))))] = b"being uploaded"
    there[later] = b"of an id that the image may not know yet"
    there[str(ROOT.below(object_key(FOLDER, ObjectId(10**6), NODE, NodeEpoch(1))))] = b"of one that it does not know"
    cluster.objects.objects.update(there)
    cluster.objects.objects[orphan] = b"whose is it?"
    checked = await cluster.run()
    assert [(one.kind, one.object) for one in checked.findings] == [(Kind.ORPHAN, object)]
    assert await cluster.check().remove(checked.findings) == 1
    assert cluster.objects.objects == there
    assert not await cluster.found()


async def test_an_object_that_was_prepared_long_ago_is_told(cluster: Cluster) -> None:
    await cluster.controller.ask(PrepareObjects(NODE, NodeEpoch(1), 1, 10 * 60_000))
    prepared = ObjectId(cluster.image.next_object - 1)
    cluster.objects.time_ms = cluster.controller.now_ms + 15 * 60_000
    assert not await cluster.found(), "the controller may be about to mark it"
    cluster.objects.time_ms += 10 * 60_000
    assert await cluster.found() == [(Kind.OVERDUE, prepared)]


@asynccontextmanager
async def opened_again(cluster: Cluster) -> AsyncIterator[ObjectCheck]:
    """A check by another process, which has nothing in its caches."""

    async def find_folder() -> Location:
        return ROOT.below(FOLDER)

    opening = open_s3_store(
        MemoryMetadata(cluster.controller),
        cluster.objects,
        find_folder,
        {"ledger": Wal(MemoryStoreState())},
        OPTIONS,
        random.Random(os.urandom(8)),
    )
    async with opening as store:
        yield ObjectCheck(cluster.objects, ROOT, FOLDER, store.reads, store.metadata.read, store.metadata.fresh)
