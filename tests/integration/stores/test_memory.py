"""The memory store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dlog.model.ids import EntryId
from dlog.stores.contract import SegmentCorruptError, SegmentRef, SegmentStore, StoreUnavailableError
from tests.integration.stores.contract import OpenStore, RemovalContract
from tests.memory_store import MemoryStore, MemoryStoreState


class TestMemoryStore(RemovalContract):
    @pytest.fixture
    async def stores(self) -> AsyncIterator[OpenStore]:
        state = MemoryStoreState()
        opened: list[SegmentStore] = []

        async def open_store() -> SegmentStore:
            opened.append(MemoryStore(state, entry_bytes_max=100_000))
            return opened[-1]

        yield open_store
        for store in opened:
            await store.close()

    async def remove(self, store: SegmentStore, ref: SegmentRef) -> None:
        assert isinstance(store, MemoryStore)
        store.state.remove(ref.name)

    async def test_damage_is_an_error_and_never_bytes(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        for _ in range(3):
            run.append()
        await run.writer.seal()
        assert isinstance(store, MemoryStore)
        store.state.segments[run.ref.name].entries[1] = b"other bytes"
        assert [entry for entry, _ in (await store.verify(run.ref)).damaged] == [1]
        reader = await store.open_reader(run.ref)
        assert len(await reader.read(EntryId(0), EntryId(2), 1 << 20)) == 1
        with pytest.raises(SegmentCorruptError):
            await reader.read(EntryId(1), EntryId(2), 1 << 20)

    async def test_a_closed_store_abandons_its_writers(self, stores: OpenStore) -> None:
        one, two = await stores(), await stores()
        run = await self._run(one)
        pending = run.append()
        await one.close()
        with pytest.raises(StoreUnavailableError) as caught:
            await pending
        assert caught.value.outcome_unknown
        with pytest.raises(StoreUnavailableError):
            await self._run(one)
        await run.recover(two)
        await run.conclude(two)
