"""What an audit finds in files: segments that are gone, open or damaged, and files that no stream names."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dlog.io.stores import open_file_store
from dlog.io.zookeeper_protocol import NoNodeError
from dlog.machine import Versioned
from dlog.model.ids import EntryId, Epoch, LedgerId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Segment, StreamKey, StreamMetadata
from dlog.spark.cluster_connection import Cluster
from dlog.spark.jobs.audit_copies import TaskReading
from dlog.spark.jobs.audit_findings import Finding, Kind
from dlog.spark.jobs.audit_orphans import Orphans, find_orphans
from dlog.spark.jobs.audit_plan import StreamFacts, look
from dlog.spark.jobs.audit_replicas import extents
from dlog.spark.jobs.audit_segments import judge
from dlog.spark.planning import Range
from dlog.stores.contract import STAGE
from dlog.stores.file.options import FileStoreOptions
from dlog.stores.file.store import FileSegmentWriter, FileStore
from dlog.wire.digest import Entry
from dlog.wire.stream_metadata import Binding, encode_binding

NAME = StreamName("s")
PAYLOADS = [b"%03d" % number * 500 for number in range(8)]


class _NoLedgers:
    async def list(self) -> AsyncIterator[LedgerId]:
        for ledger in tuple[LedgerId, ...]():
            yield ledger


class Tree:
    """A cluster without bookies: its one stream, under all `names`, and the registrations of sinks."""

    def __init__(self, store: FileStore | None) -> None:
        self.value = StreamMetadata(name=NAME, max_segment=SegmentNumber(9))
        self.names = [NAME]
        self.registered: list[str] = []
        self.zookeeper = self
        stores: dict[str, Any] = {} if store is None else {"file": store}
        self.cluster = Cluster(cast(Any, self), cast(Any, _NoLedgers()), stores)

    async def streams(self) -> list[StreamName]:
        return self.names

    async def read(self, key: StreamKey) -> Versioned:
        return Versioned(self.value, 0)

    async def children(self, path: str, *, fresh: bool = False) -> tuple[list[str], Any]:
        if path == "/d/.sinks":
            return ["sink"], None
        if path == "/d/.sinks/sink":
            return self.registered, None
        if path == "/":
            return ["d"], None
        raise NoNodeError(path)

    async def get(self, path: str, *, fresh: bool = False) -> tuple[bytes, Any]:
        return (
            b""
            if path == "/"
            else encode_binding(Binding(bookkeeper_zookeeper="h:1", ledgers_path="/ledgers", zookeeper="h:1"))
        ), None

    async def look(self, *, dry_run: bool = False) -> StreamFacts:
        (facts,) = await look(self.cluster, [NAME], dry_run=dry_run, retries=0, patience_s=0.0, on_done=lambda: None)
        return facts

    async def orphans(self, age_s: float = 0.0) -> Orphans:
        return await find_orphans(self.cluster, "h:1", "/d", age_s=age_s)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileStore]:
    options = FileStoreOptions(directory=str(tmp_path / "segments"))
    async with open_file_store(options, random.Random(3), creates=True) as opened:
        yield opened


async def written(store: FileStore, number: int = 1) -> FileSegmentWriter:
    writer = await store.create(NAME, SegmentNumber(number), Epoch(1), ())
    for entry, payload in enumerate(PAYLOADS):
        await writer.append(EntryId(entry), [payload])
    return writer


def listed(place: str, number: int = 1, **given: Any) -> Segment:
    return Segment(number=SegmentNumber(number), name=place, store="file", first_txid=Txid(0), **given)


def damage(path: str, where: bytes) -> None:
    """Change a byte in the middle of the named part of the file."""
    data = bytearray(Path(path).read_bytes())
    data[data.index(where) + len(where) // 2] ^= 1
    Path(path).write_bytes(data)


def kinds(findings: list[Finding]) -> list[tuple[Kind, int | None]]:
    return [(finding.kind, finding.segment) for finding in findings]


async def read(tree: Tree, of: Range) -> list[bytes | None]:
    reading = TaskReading(retries=0, patience_s=0.1)
    copies = [copy async for extent in extents(tree.cluster, of, reading) for copy in extent.copies[0]]
    return [bytes(copy.payload) if isinstance(copy, Entry) else None for copy in copies]


async def test_completed_and_open_segments_are_read_and_their_writer_goes_on(store: FileStore) -> None:
    one, two = await written(store), await written(store, 2)
    await one.seal()
    tree = Tree(store)
    tree.value = tree.value.with_segment(listed(one.name, completed=True, last_entry=EntryId(7)), listed(two.name, 2))
    for dry_run in (True, False):
        facts = await tree.look(dry_run=dry_run)
        assert [(s.last, s.decided_end, s.length > 12_000) for s in facts.segments] == [(7, 7, True), (7, None, True)]
        assert facts.findings == [] and facts.failures == []
    for of in facts.ranges():
        assert await read(tree, of) == PAYLOADS
    await two.append(EntryId(8), [b"and on"])


async def test_what_is_gone_open_damaged_or_ended_elsewhere_is_found(store: FileStore) -> None:
    writers = [await written(store, number) for number in (1, 2, 3, 4)]
    for writer in writers[1:]:
        await writer.seal()
    completed = [listed(w.name, n, completed=True, last_entry=EntryId(7)) for n, w in enumerate(writers, 1)]
    tree = Tree(store)
    tree.value = tree.value.with_segment(*completed[:3], replace(completed[3], last_entry=EntryId(9)))
    os.unlink((await store.describe(writers[1].name)).path)
    damage((await store.describe(writers[2].name)).path, b"dlogseg1")
    facts = await tree.look()
    found = {(Kind.FILE_OPEN, 1), (Kind.FILE_GONE, 2), (Kind.DIGEST, 3)}
    assert set(kinds(facts.findings)) == found
    assert set(kinds(judge(facts, {}).findings)) >= {*found, (Kind.LAST_ENTRY, 4)}
    assert [s.is_there for s in facts.segments] == [True, False, False, True]
    assert (facts.segments[3].last, facts.segments[3].decided_end) == (7, 7)


async def test_a_damaged_entry_is_a_hole_and_the_others_are_read(store: FileStore) -> None:
    writer = await written(store)
    await writer.seal()
    tree = Tree(store)
    tree.value = tree.value.with_segment(listed(writer.name, completed=True, last_entry=EntryId(7)))
    damage((await store.describe(writer.name)).path, PAYLOADS[3])
    (of,) = (await tree.look()).ranges()
    assert await read(tree, of) == [*PAYLOADS[:3], None, *PAYLOADS[4:]]


async def test_without_the_directory_it_is_said_what_to_set() -> None:
    tree = Tree(None)
    tree.value = tree.value.with_segment(listed("0" * 32))
    (failure,) = (await tree.look()).failures
    assert "DLOG_FILE_DIRECTORY" in str(failure["error"])
    assert (await tree.orphans()).findings == []


async def test_files_that_nothing_names_are_orphans_when_they_are_old_enough(store: FileStore) -> None:
    names = [await written(store, number) for number in (1, 2, 3)]
    stage = await store.create(NAME, STAGE, Epoch(0), ())
    orphan = await written(store, 7)
    tree = Tree(store)
    tree.value = replace(tree.value.with_segment(listed(names[0].name)), allocated=f"file:{names[1].name}")
    tree.value = tree.value.with_segment(listed(names[2].name, 2))
    tree.registered = [f"stage-{stage.name}", "txid-0-q-1"]
    found = await tree.orphans()
    assert (found.files, kinds(found.findings)) == (5, [(Kind.ORPHAN_FILE, 7)])
    assert found.findings[0].stream == NAME and orphan.name in found.findings[0].found
    assert (await tree.orphans(3600.0)).findings == []
    os.utime((await store.describe(orphan.name)).path, (1, 1))
    assert kinds((await tree.orphans(3600.0)).findings) == [(Kind.ORPHAN_FILE, 7)]
