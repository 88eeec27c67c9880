"""The cold store keeps the contract as far as it applies without a writer: on a directory, a real S3 and a real HDFS.

A segment gets there as the job copies it: whole, and after it was sealed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dlog.io.objects import Objects
from dlog.io.settings import load
from dlog.model.ids import NO_ENTRY, EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.segment import StoreSettings
from dlog.stores.cold.format import Builder, Contents, Head
from dlog.stores.cold.locations import ObjectName
from dlog.stores.cold.options import ColdOptions
from dlog.stores.cold.store import ColdStore
from dlog.stores.contract import (
    AppendSink,
    Buffer,
    Capabilities,
    EntryTooLargeError,
    MisconfiguredError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentSealedError,
    SegmentStat,
    SegmentStore,
    SegmentWriter,
    StoreUnavailableError,
)
from dlog.stores.object_storage.locations import Location, folder_of, parse_root
from tests.integration.storage import Storage, options_of
from tests.integration.stores.contract import OpenStore, Run, StoreContract, payload
from tests.ports import free_port


class Bringing(ColdStore):
    """A store that keeps a segment in memory and copies it to cold storage as an object when it is sealed."""

    def __init__(self, objects: Objects, options: ColdOptions, root: str) -> None:
        super().__init__(objects, options)
        self._root = parse_root(root)
        self.capabilities = Capabilities(visible_is_final=True, entry_bytes_max=1_000_000)

    async def create(
        self, stream: StreamName, number: SegmentNumber, epoch: Epoch, settings: StoreSettings
    ) -> SegmentWriter:
        name = ObjectName(number, os.urandom(8).hex(), 0)
        place = folder_of(self._root, "cluster", "/dlog", stream).below(str(name))
        return BringingWriter(self, place, stream, number)


class BringingWriter:
    def __init__(self, store: Bringing, place: Location, stream: str, number: int) -> None:
        self.name = str(place)
        self._store = store
        self._location = place
        self._whose = (stream, number)
        self._entries: list[bytes] = []
        self._sealed = False

    @property
    def last_confirmed(self) -> EntryId:
        return EntryId(len(self._entries) - 1)

    def append(self, entry_id: EntryId, payload: Sequence[Buffer]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        body = b"".join(payload)
        if self._sealed:
            future.set_exception(SegmentSealedError("sealed"))
        elif len(body) > self._store.capabilities.entry_bytes_max:
            future.set_exception(EntryTooLargeError("too large"))
        else:
            self._entries.append(body)
            future.set_result(None)
        return future

    def submit(self, entry_id: EntryId, payload: Sequence[Buffer], sink: AppendSink) -> None:
        error = self.append(entry_id, payload).exception()
        sink(error if error is None or isinstance(error, (SegmentSealedError, EntryTooLargeError)) else None)

    def flush(self) -> None:
        """Do nothing: this writer does not batch."""

    async def seal(self) -> EntryId:
        if not self._sealed:
            self._sealed = True
            await bring(self._store.objects, self._location, self._entries, *self._whose)
        return self.last_confirmed

    async def abandon(self) -> None:
        """Do nothing: this writer holds no resources."""


async def bring(objects: Any, place: Location, entries: Sequence[bytes], stream: str, number: int) -> None:
    """Write an object as the job does."""
    builder = Builder(
        Head(
            stream=stream,
            incarnation="",
            number=number,
            last_entry=len(entries) - 1,
            last_slot=0,
            first_txid=0,
            last_txid=0,
            records=0,
            completed_unix_ms=1,
            start_sequence_id=0,
            is_enveloped=True,
            source_store="ledger",
            source_name="1",
        )
    )
    writer = await objects.create(place)
    await writer.write((builder.begin(),))
    for entry in entries:
        builder.add(entry, Contents())
    await writer.write(entries)
    await writer.write(builder.end())
    await writer.finish()


class TestColdStore:
    """The tests of the contract in which a segment is sealed before it is read."""

    async def _run(self, store: SegmentStore, epoch: int = 1) -> Run:
        return await StoreContract._run(StoreContract(), store, epoch)

    @pytest.fixture
    async def stores(self, kept: Storage) -> AsyncIterator[OpenStore]:
        async with AsyncExitStack() as stack:

            async def open_store() -> Bringing:
                options = options_of(kept, extent_bytes=4_000)
                objects = await stack.enter_async_context(Objects(options))
                store = Bringing(objects, options, kept.root)
                await stack.enter_async_context(store)
                return store

            yield open_store

    test_what_was_sealed_is_read_back = StoreContract.test_appends_resolve_in_order_and_are_read_back
    test_a_sink_hears_of_each_entry = StoreContract.test_a_sink_hears_of_each_entry_once_and_in_order
    test_seal_is_idempotent_and_final = StoreContract.test_seal_is_idempotent_and_final
    test_a_large_entry = StoreContract.test_an_entry_too_large_is_refused_and_nothing_is_taken
    test_reads_are_contiguous_and_bounded = StoreContract.test_reads_are_contiguous_and_bounded
    test_the_end_may_be_told = StoreContract.test_the_end_may_be_told_instead_of_asked
    test_the_end_that_was_decided = StoreContract.test_the_end_that_is_told_gives_way_to_the_one_that_was_decided
    test_what_never_was_is_not_found = StoreContract.test_what_never_was_is_not_found
    test_verify_counts_what_is_sound = StoreContract.test_verify_counts_what_is_sound

    async def test_stat_tells_the_end_in_the_object_and_the_size_in_its_name(self, stores: OpenStore) -> None:
        store = await stores()
        assert isinstance(store, Bringing)
        name = ObjectName(7, os.urandom(8).hex(), 5020)
        place = folder_of(store._root, "cluster", "/dlog", "s").below(str(name))
        await bring(store.objects, place, [payload(0, 20), payload(1, 5000)], "s", 7)
        ref = SegmentRef(StreamName("s"), SegmentNumber(7), str(place))
        assert await store.stat(ref) == SegmentStat(EntryId(1), 5020)
        await store.delete(ref)
        assert await store.stat(ref, sealed_at=EntryId(1)) == SegmentStat(EntryId(1), 5020), "nothing is read"
        with pytest.raises(SegmentNotFoundError):
            await store.stat(ref)

    async def test_delete_is_idempotent_and_certain(self, stores: OpenStore) -> None:
        store = await stores()
        run, left = await self._run(store), await self._run(store)
        for one in (run, left):
            one.append()
            await one.writer.seal()
        await store.delete(run.ref)
        await store.delete(run.ref)
        places = [place async for place in (await stores()).list()]
        assert run.ref.name not in places and left.ref.name in places
        for call in (store.open_reader, store.find_tail, store.verify):
            with pytest.raises(SegmentNotFoundError):
                await call(run.ref)
        with pytest.raises(SegmentNotFoundError):
            await store.recover(run.ref)

    async def test_nothing_is_created_but_by_the_job(self, kept: Storage) -> None:
        async with Objects(options_of(kept)) as objects, ColdStore(objects, options_of(kept)) as store:
            assert not store.capabilities.is_written
            with pytest.raises(MisconfiguredError, match="dlog pipeline offload"):
                await store.create(StreamName("s"), SegmentNumber(1), Epoch(1), ())


@pytest.mark.parametrize("kind", ["file", "s3", "webhdfs"])
async def test_storage_that_is_away_is_asked_again_later(kind: str, tmp_path: Path) -> None:
    """A server that has ended, or a mount that is gone, does not mean that the objects are gone."""
    name = ("cluster", "dlog", "s", str(ObjectName(1, "0" * 16, 5)))
    nobody = f"127.0.0.1:{free_port()}"
    root = {"file": f"file://{tmp_path}/cold", "s3": "s3://cold/logs", "webhdfs": f"webhdfs://{nobody}/cold"}[kind]
    place = parse_root(root).below(*name)
    told = {"S3_ENDPOINT": f"http://{nobody}", "S3_REGION": "x", "S3_ACCESS_KEY": "a", "S3_SECRET_KEY": "b"}
    environ = {f"DLOG_COLD_{key}": value for key, value in told.items()}
    options = load(ColdOptions, "cold", None, {"timeout_s": 5.0}, environ=environ)
    ref = SegmentRef(StreamName("s"), SegmentNumber(1), str(place))
    async with Objects(options) as objects, ColdStore(objects, options) as store:
        if kind == "file":
            await bring(objects, place, [b"entry"], "s", 1)
            (tmp_path / "cold").rename(tmp_path / "unmounted")
        for call in (store.open_reader, store.verify, store.delete):
            with pytest.raises(StoreUnavailableError):
                await call(ref)
        if kind == "file":
            (tmp_path / "unmounted").rename(tmp_path / "cold")
            assert (await store.open_reader(ref)).end == 0


async def test_a_damaged_file_is_told_and_what_is_sound_is_read(directory: Storage) -> None:
    place = folder_of(parse_root(directory.root), "cluster", "/dlog", "s").below(str(ObjectName(1, "0" * 16, 0)))
    ref = SegmentRef(StreamName("s"), SegmentNumber(1), str(place))
    async with Objects() as objects, ColdStore(objects) as store:
        await bring(objects, place, [b"first entry", b"second entry"], "s", 1)
        assert (await store.open_reader(ref, sealed_at=NO_ENTRY)).end == 1
        file = directory.file_of(str(place))
        data = bytearray(file.read_bytes())
        data[data.index(b"second") + 1] ^= 1
        file.write_bytes(data)
        reader = await store.open_reader(ref)
        assert await reader.read(EntryId(0), EntryId(1), 1 << 20) == [b"first entry"]
        with pytest.raises(SegmentCorruptError):
            await reader.read(EntryId(1), EntryId(1), 1 << 20)
        assert [entry for entry, _ in (await store.verify(ref)).damaged] == [1]
