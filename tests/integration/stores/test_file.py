"""The file store keeps the contract, on a real directory that several stores share as processes do."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dlog.events import Event, StoreFull
from dlog.io.disk import RealDisk
from dlog.io.reserve import SpaceReserve
from dlog.io.threads import RealThreads
from dlog.model.ids import Epoch, SegmentNumber, StreamName
from dlog.options import KiB
from dlog.stores.contract import SegmentStore, StoreOutOfReachError
from dlog.stores.file.options import FileStoreOptions
from dlog.stores.file.store import FileStore
from tests.integration.stores.contract import OpenStore, StoreContract


class TestFileStore(StoreContract):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[OpenStore]:
        opened: list[FileStore] = []

        async def open_store() -> SegmentStore:
            threads = RealThreads(asyncio.get_running_loop())
            options = FileStoreOptions(directory=str(tmp_path / "segments"), reserve_bytes=64 * KiB)
            reserve = SpaceReserve(RealDisk(), options.directory, options.reserve_bytes)
            rng = random.Random(os.urandom(8))
            store = FileStore(RealDisk(), threads, rng, options, reserve, entry_bytes_max=100_000)
            opened.append(store)
            await store.open()
            return store

        yield open_store
        for store in opened:
            await store.close()


async def test_a_store_without_space_for_more_than_ending_segments_says_so(tmp_path: Path) -> None:
    threads = RealThreads(asyncio.get_running_loop())
    events: list[Event] = []
    options = FileStoreOptions(directory=str(tmp_path), reserve_bytes=1 << 60)
    reserve = SpaceReserve(RealDisk(), options.directory, options.reserve_bytes)
    store = FileStore(RealDisk(), threads, random.Random(), options, reserve, on_event=events.append)
    await store.open()
    try:
        for _ in range(2):
            with pytest.raises(
                StoreOutOfReachError,
                match="free space on the disk of the segments: no space left on device for more than ending segments",
            ):
                await store.create(StreamName("s"), SegmentNumber(1), Epoch(1), ())
    finally:
        await store.close()
    assert [type(event) for event in events] == [StoreFull]
