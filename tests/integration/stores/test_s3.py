"""The store `s3` keeps the contract: on objects in memory, in a directory and on an S3 server, with the node's
write-ahead log in memory, in files and as objects. The metadata have a controller inside the test's process."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dlog.events import Event, UploadStalled
from dlog.io.disk import RealDisk
from dlog.io.objects import Objects
from dlog.io.reserve import SpaceReserve
from dlog.io.s3_store import open_s3_store
from dlog.io.threads import RealThreads
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.object_streams import NodeId
from dlog.objects.node_messages import UploadAll
from dlog.options import KiB
from dlog.stores.contract import MisconfiguredError, SegmentRef, SegmentStore
from dlog.stores.file.options import FileStoreOptions
from dlog.stores.file.store import FileStore
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.stores.object_storage.port import Objects as ObjectsPort
from dlog.stores.object_storage.probe import NONCE_HEX, probe
from dlog.stores.s3 import storage_check
from dlog.stores.s3.store import S3Store
from dlog.stores.s3_direct.options import ObjectsOptions
from tests.integration.storage import Storage
from tests.integration.stores.contract import OpenStore, StoreContract
from tests.integration.stores.s3_fault_proxy import Fault, S3FaultProxy
from tests.integration.stores.test_s3_direct import SMALL, Stores, on_s3
from tests.memory_objects import MemoryObjects, PutFault
from tests.memory_store import MemoryStore, MemoryStoreState
from tests.object_metadata import MemoryController, MemoryMetadata

OpenWal = Callable[[], Awaitable[SegmentStore]]

#: uploads begin after a few entries, and go on while the suite reads
EAGER: dict[str, Any] = {
    **SMALL,
    "upload_bytes": 2000,
    "upload_s": 0.02,
    "stream_object_bytes": 1000,
    "node_cache_bytes_max": 400_000,
    "wal_segment_bytes": 4000,
    "compaction_s": 0.05,
    "split_after_s": 0.001,
    "poll_max_s": 0.02,
}
#: nothing is uploaded: everything is read from the log
LAZY: dict[str, Any] = {**EAGER, "upload_bytes": 1 << 30, "upload_s": 1e6}


class Processes:
    """Opens stores of one cluster, as its processes do."""

    def __init__(
        self, objects: ObjectsPort, folder: Location, open_wal: OpenWal, options: ObjectsOptions, *, is_lagging: bool
    ) -> None:
        self.check_objects: Callable[[], Awaitable[None]] | None = None
        self.stalled: asyncio.Queue[UploadStalled] = asyncio.Queue()
        self.controller = MemoryController(objects, folder)
        self._objects = objects
        self._folder = folder
        self._open_wal = open_wal
        self._options = options
        self._is_lagging = is_lagging
        self._numbers = itertools.count(1)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Processes:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def _tell(self, event: Event) -> None:
        if isinstance(event, UploadStalled):
            self.stalled.put_nowait(event)

    async def _find_folder(self) -> Location:
        return self._folder

    async def open(self) -> S3Store:
        wal = await self._open_wal()
        opening = open_s3_store(
            MemoryMetadata(self.controller, is_lagging=self._is_lagging),
            self._objects,
            self._find_folder,
            {wal.name: wal},
            self._options,
            random.Random(os.urandom(8)),
            node=NodeId(f"w{next(self._numbers)}:1"),
            check_objects=self.check_objects,
            on_event=self._tell,
        )
        return await self._stack.enter_async_context(opening)

    async def open_segment_store(self) -> SegmentStore:
        return await self.open()


class _WalInMemory(MemoryStore):
    """A log in memory, under the name of a store that may have logs."""

    name = "ledger"


def memory_wal() -> OpenWal:
    state = MemoryStoreState()

    async def open_wal() -> SegmentStore:
        return _WalInMemory(state, entry_bytes_max=100_000)

    return open_wal


class _InMemory(StoreContract):
    options = EAGER
    is_lagging = False
    faults = 0.0

    @pytest.fixture
    async def stores(self) -> AsyncIterator[OpenStore]:
        objects, rng = MemoryObjects(), random.Random(13)
        if self.faults:
            kinds = list(PutFault)
            objects.faults.extend(rng.choice(kinds) if rng.random() < self.faults else None for _ in range(20_000))
        folder = parse_root("s3://bucket/logs/objects")
        options = ObjectsOptions(root="s3://bucket/logs", **self.options)
        async with Processes(objects, folder, memory_wal(), options, is_lagging=self.is_lagging) as processes:
            yield processes.open_segment_store


class TestWhileItUploads(_InMemory):
    """Entries are uploaded and compacted while the suite runs."""


class TestFromTheLog(_InMemory):
    """Nothing is uploaded."""

    options = LAZY


class TestWithLaggingImages(_InMemory):
    """Each process follows the metadata only as far as it must."""

    is_lagging = True


class TestWithFaults(_InMemory):
    """Every fifth request to create an object is lost, late or repeated, or loses its answer."""

    faults = 0.2


class TestOnADirectory(StoreContract):
    """Objects in a directory, the log in files."""

    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[OpenStore]:
        opened: list[FileStore] = []

        async def open_wal() -> SegmentStore:
            threads = RealThreads(asyncio.get_running_loop())
            options = FileStoreOptions(directory=str(tmp_path / "wal"), reserve_bytes=64 * KiB)
            reserve = SpaceReserve(RealDisk(), options.directory, options.reserve_bytes)
            store = FileStore(
                RealDisk(), threads, random.Random(os.urandom(8)), options, reserve, entry_bytes_max=100_000
            )
            opened.append(store)
            await store.open()
            return store

        (tmp_path / "objects").mkdir()
        options = ObjectsOptions(root=f"file://{tmp_path}", **EAGER)
        folder = parse_root(f"file://{tmp_path}/objects/f")
        async with (
            Objects(options) as objects,
            Processes(objects, folder, open_wal, options, is_lagging=False) as processes,
        ):
            yield processes.open_segment_store
        for store in opened:
            await store.close()


class _OnObjects(StoreContract):
    """Objects, and the log as `s3-direct`, below one root."""

    async def run_stores(self, options: Callable[..., ObjectsOptions]) -> AsyncIterator[OpenStore]:
        async with Stores(options) as chains:

            async def open_wal() -> SegmentStore:
                return await chains.open(linger_s=0.0)

            given = options(**EAGER)
            folder = parse_root(given.root).below("objects", "f")
            async with (
                Objects(given) as objects,
                Processes(objects, folder, open_wal, given, is_lagging=False) as processes,
            ):
                await objects.now_unix_ms(folder)  # makes the client, which takes a while
                yield processes.open_segment_store


class TestOnADirectoryWithoutAnythingElse(_OnObjects):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[OpenStore]:
        (tmp_path / "root" / "objects").mkdir(parents=True)

        def options(**changes: object) -> ObjectsOptions:
            return ObjectsOptions(**{"root": f"file://{tmp_path}/root", **SMALL, **changes})

        async for open_store in self.run_stores(options):
            yield open_store


class TestOnS3(_OnObjects):
    @pytest.fixture
    async def stores(self, s3: Storage) -> AsyncIterator[OpenStore]:
        async for open_store in self.run_stores(on_s3(s3)):
            yield open_store


# ---- a storage that refuses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"root": "s3://another/logs"}, "NoSuchBucket"),
        ({"s3_secret_key": "wrong"}, "SignatureDoesNotMatch"),
        ({"s3_access_key": "nobody"}, "No user exists"),
    ],
)
async def test_a_storage_that_is_named_wrongly_is_refused_for_the_first_segment(
    s3: Storage, changes: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_check, "ANSWER_S", 1e6)  # however slow the machine is
    options = on_s3(s3)(**{**EAGER, **changes})
    folder = parse_root(options.root).below("objects", "f")
    async with (
        Objects(options) as objects,
        Processes(objects, folder, memory_wal(), options, is_lagging=False) as processes,
    ):
        processes.check_objects = partial(probe, objects, folder, "a" * NONCE_HEX)
        store = await processes.open()
        with pytest.raises(MisconfiguredError, match=told):
            await store.create(StreamName("s"), SegmentNumber(1), Epoch(1), ())


@pytest.mark.parametrize("fault", [Fault.DENIED, Fault.SKEWED, Fault.ELSEWHERE])
async def test_a_storage_that_begins_to_refuse_delays_uploads_and_no_acknowledgement(s3: Storage, fault: Fault) -> None:
    async with S3FaultProxy(s3.environment["DLOG_COLD_S3_ENDPOINT"]) as proxy:
        options = on_s3(s3, s3_endpoint=proxy.endpoint)(**EAGER)
        folder = parse_root(options.root).below("objects", "f")
        async with (
            Objects(options) as objects,
            Processes(objects, folder, memory_wal(), options, is_lagging=False) as processes,
        ):
            store = await processes.open()
            writer = await store.create(StreamName("s"), SegmentNumber(1), Epoch(1), ())
            proxy.faults["PUT"] = [fault] * 1000
            await writer.append(EntryId(0), [b"x" * 3000])
            stalled = await processes.stalled.get()
            assert stalled.reason
            await writer.append(EntryId(1), [b"y"])
            proxy.faults.clear()
            assert store.node is not None and store.node.current is not None
            await store.node.current.actor.ask(UploadAll())
            assert await writer.seal() == 1
            assert [one async for one in objects.list(folder)]
            other = await processes.open()
            ref = SegmentRef(StreamName("s"), SegmentNumber(1), writer.name)
            assert not (await other.verify(ref)).damaged
