"""The file store keeps the contract, on a real directory that several stores share as processes do."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dlog.io.disk import RealDisk
from dlog.io.threads import RealThreads
from dlog.stores.contract import SegmentStore
from dlog.stores.file.options import FileStoreOptions
from dlog.stores.file.store import FileStore
from tests.integration.stores.contract import OpenStore, StoreContract


class TestFileStore(StoreContract):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[OpenStore]:
        opened: list[FileStore] = []

        async def open_store() -> SegmentStore:
            threads = RealThreads(asyncio.get_running_loop())
            options = FileStoreOptions(directory=str(tmp_path / "segments"))
            store = FileStore(RealDisk(), threads, random.Random(os.urandom(8)), options, entry_bytes_max=100_000)
            opened.append(store)
            await store.open()
            return store

        yield open_store
        for store in opened:
            await store.close()
