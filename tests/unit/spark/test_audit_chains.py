"""What an audit finds in objects: segments that are gone or open, and chains that no stream names."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from dlog.io.s3_direct_store import open_s3_direct_store
from dlog.io.s3_store import open_s3_store
from dlog.model.ids import METADATA_STREAM, EntryId, Epoch, SegmentNumber, Txid
from dlog.model.object_streams import NodeId
from dlog.model.segment import Segment
from dlog.spark.jobs.audit_findings import Kind
from dlog.stores.contract import SegmentRef
from dlog.stores.object_storage.locations import Location, parse_location, parse_root
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.stores.s3_direct.store import S3DirectStore
from dlog.stores.s3_direct.writer import S3DirectWriter
from tests.memory_objects import MemoryObjects
from tests.object_metadata import MemoryController, MemoryMetadata
from tests.unit.spark.test_audit_files import NAME, PAYLOADS, Tree, kinds, read


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[S3DirectStore]:
    recorded: list[str] = []

    async def find() -> str | None:
        return recorded[0] if recorded else None

    async def record(name: str) -> None:
        recorded.append(name)

    options = ObjectsOptions(root=f"file://{tmp_path}/objects")
    async with open_s3_direct_store(options, find, record, random.Random(3), creates=True) as opened:
        yield opened


def tree_of(store: S3DirectStore) -> Tree:
    tree = Tree(None)
    cast(dict[str, Any], tree.cluster.stores)["s3-direct"] = store
    return tree


async def written(store: S3DirectStore, number: int) -> S3DirectWriter:
    writer = await store.create(NAME, SegmentNumber(number), Epoch(1), ())
    for entry, payload in enumerate(PAYLOADS):
        await writer.append(EntryId(entry), [payload])
    return writer


def listed(name: str, number: int, **given: Any) -> Segment:
    return Segment(number=SegmentNumber(number), name=name, store="s3-direct", first_txid=Txid(0), **given)


def completed(name: str, number: int) -> Segment:
    return listed(name, number, completed=True, last_entry=EntryId(7))


async def test_completed_and_open_segments_are_read_and_their_writer_goes_on(store: S3DirectStore) -> None:
    one, two = await written(store, 1), await written(store, 2)
    await one.seal()
    tree = tree_of(store)
    tree.value = tree.value.with_segment(completed(one.name, 1), listed(two.name, 2))
    size = sum(map(len, PAYLOADS))
    for dry_run in (True, False):
        facts = await tree.look(dry_run=dry_run)
        assert [(s.last, s.decided_end, s.length) for s in facts.segments] == [(7, 7, size), (7, None, size)]
        assert facts.findings == [] and facts.failures == []
    for of in facts.ranges():
        assert await read(tree, of) == PAYLOADS
    await two.append(EntryId(8), [b"and on"])


async def test_what_is_gone_or_open_is_found(store: S3DirectStore) -> None:
    one, two = await written(store, 1), await written(store, 2)
    await two.seal()
    tree = tree_of(store)
    tree.value = tree.value.with_segment(completed(one.name, 1), completed(two.name, 2))
    await store.delete(SegmentRef(NAME, SegmentNumber(2), two.name))
    facts = await tree.look()
    assert set(kinds(facts.findings)) == {(Kind.CHAIN_OPEN, 1), (Kind.CHAIN_GONE, 2)}


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_nodes_log_is_no_orphan_and_is_not_judged_while_it_is_unknown(
    store: S3DirectStore, is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.object_metadata.TRIES", 2)
    objects, folder = MemoryObjects(), parse_root("s3://bucket/streams/i")
    controller = MemoryController(objects, folder)

    async def find_folder() -> Location:
        return folder

    opening = open_s3_store(
        MemoryMetadata(controller),
        objects,
        find_folder,
        {"s3-direct": store},
        ObjectsOptions(root="s3://bucket"),
        random.Random(3),
        node=NodeId("w1"),
    )
    async with opening as logged:
        writer = await logged.create(NAME, SegmentNumber(1), Epoch(1), ())
        await writer.append(EntryId(0), [b"x"])
        [log] = [name async for name in store.list()]
        orphan = await written(store, 2)
        tree = tree_of(store)
        cast(dict[str, Any], tree.cluster.stores)["s3"] = logged
        assert len((await tree.orphans()).findings) == 2, "without a metadata stream there are no logs"
        tree.names.append(METADATA_STREAM)
        controller.is_away = is_away
        orphans = await tree.orphans()
        assert [orphan.name in one.found for one in orphans.findings] == [True] and log != orphan.name
        assert len(orphans.failures) == is_away
        controller.is_away = False


async def test_chains_that_nothing_names_are_orphans(store: S3DirectStore) -> None:
    named, orphan, rest, fenced = [await written(store, number) for number in (1, 2, 3, 4)]
    await store.delete(SegmentRef(NAME, SegmentNumber(4), fenced.name))
    begin = parse_location(f"{await store.folder_of(rest.name)}/{0:020d}")
    assert begin is not None
    await store.objects.delete(begin)
    tree = tree_of(store)
    tree.value = tree.value.with_segment(listed(named.name, 1))
    assert (await tree.orphans(3600.0)).findings == [], "they are young"
    orphans = await tree.orphans(0.0)
    assert orphans.chains == 3 and orphans.failures == []
    found = {finding.found.partition("segments/")[2].partition(",")[0]: finding for finding in orphans.findings}
    assert {finding.kind for finding in orphans.findings} == {Kind.ORPHAN_CHAIN}
    assert (found[orphan.name].stream, found[orphan.name].segment) == (NAME, 2)
    assert "interrupted deletion" in found[rest.name].found and len(found) == 2
