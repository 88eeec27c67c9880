"""Data of a deleted stream in stores is deleted before its mark, whichever proxy does it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.runtime import TaskScope
from dlog.errors import InvalidRequestError, StreamUnavailableError
from dlog.events import SegmentDeleted, SegmentLeftBehind
from dlog.log.messages import StatStream, StreamStat
from dlog.machine import Missing, Versioned
from dlog.model.dlsn import of
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName, Txid
from dlog.model.segment import Location, Owner, Segment, StoreSettings, StreamKey, StreamMetadata
from dlog.stores.contract import (
    Capabilities,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentStore,
    StoreUnavailableError,
)
from dlog.stores.settings import SettingsSchema
from proxies.write import admin
from proxies.write.admin import Admin, Removed
from tests.memory_metadata import MemoryMetadata

NAME = StreamName("orders")
KEY = StreamKey(NAME)


class Store:
    """Deletes at once, or when `is_open` is set; locations with an error in `errors` are not deleted."""

    capabilities = Capabilities(visible_is_final=True, entry_bytes_max=1 << 20)
    settings = SettingsSchema("memory")

    def check_capacity(self, settings: StoreSettings) -> None:
        """It has no members."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.under_way = self.peak = 0
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def delete(self, ref: SegmentRef) -> None:
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        await asyncio.sleep(0)
        await self.is_open.wait()
        self.under_way -= 1
        if ref.name in self.errors:
            raise self.errors[ref.name]
        self.deleted.append(ref.name)


class Proxy:
    """An Admin over metadata and one store."""

    def __init__(
        self, metadata: MemoryMetadata, *stores: str, tasks: TaskScope | None = None, owned: object = None
    ) -> None:
        """tasks: for long streams. owned: the streams owned here."""
        self.store = Store()
        self.events: list[Any] = []
        made = cast(dict[str, SegmentStore], dict.fromkeys(stores or ("ledger",), self.store))
        nobody = cast(Any, None)
        streams = cast(Any, owned)
        self.admin = Admin(metadata, made, streams, nobody, tasks or nobody, on_event=self.events.append)


async def deleted_stream(metadata: MemoryMetadata, segments: Sequence[Segment]) -> str:
    """A stream with these segments that is marked as deleted; returns its incarnation."""
    value = StreamMetadata(name=NAME, segments=tuple(segments), owner=Owner(epoch=Epoch(1), deleted=True))
    made = await metadata.compare_and_set(KEY, value, None)
    assert isinstance(made, Versioned)
    return str(made.value.incarnation)


def segment(number: int, *, store: str = "ledger", former: Location | None = None) -> Segment:
    return Segment(
        number=SegmentNumber(number),
        name=str(number),
        store=store,
        former=former,
        first_txid=Txid(0),
        completed=True,
        last_entry=EntryId(0),
    )


async def test_everything_a_deleted_stream_holds_goes_a_few_at_a_time_and_its_mark_last() -> None:
    metadata = MemoryMetadata()
    incarnation = await deleted_stream(metadata, [segment(number) for number in range(1, 301)])
    proxy = Proxy(metadata)
    assert await proxy.admin.finish_deletion(NAME, incarnation) == Removed(300, True)
    assert len(proxy.store.deleted) == 300 and proxy.store.peak == admin.DELETES_AT_ONCE
    assert sum(isinstance(event, SegmentDeleted) for event in proxy.events) == 300
    assert await metadata.read(KEY) == Missing()
    assert await proxy.admin.finish_deletion(NAME, incarnation) == Removed(0, True)


async def test_another_life_is_not_touched() -> None:
    metadata = MemoryMetadata()
    await deleted_stream(metadata, [segment(1)])
    proxy = Proxy(metadata)
    assert await proxy.admin.finish_deletion(NAME, "another") == Removed(0, True)
    assert not proxy.store.deleted


async def test_what_a_store_does_not_delete_now_keeps_the_mark_until_somebody_comes_again() -> None:
    metadata = MemoryMetadata()
    await deleted_stream(metadata, [segment(number) for number in (1, 2, 3)])
    proxy = Proxy(metadata, "ledger", "memory")
    proxy.store.errors["2"] = StoreUnavailableError("away")
    assert await proxy.admin.finish_deletion(NAME) == Removed(2, False)
    assert [e.location for e in proxy.events if isinstance(e, SegmentLeftBehind)] == ["2"]
    with pytest.raises(StreamUnavailableError, match="try again"):
        await proxy.admin.create(NAME, {"store": "memory"}, "a1", 0)
    other = Proxy(metadata)
    other.store.errors = {place: SegmentNotFoundError("gone") for place in ("1", "3")}
    assert await other.admin.finish_deletion(NAME) == Removed(1, True)
    assert await metadata.read(KEY) == Missing()


async def test_a_store_that_this_proxy_does_not_have_is_left_to_another_one() -> None:
    metadata = MemoryMetadata()
    await deleted_stream(metadata, [segment(1, store="cold", former=Location("ledger", "9"))])
    assert await Proxy(metadata).admin.finish_deletion(NAME) == Removed(1, False)
    with_cold = Proxy(metadata, "ledger", "cold")
    assert await with_cold.admin.finish_deletion(NAME) == Removed(2, True)
    assert sorted(with_cold.store.deleted) == ["1", "9"], "also where it lay before it was moved"


async def test_what_is_damaged_is_told_and_does_not_keep_the_rest() -> None:
    metadata = MemoryMetadata()
    await deleted_stream(metadata, [segment(1), segment(2)])
    proxy = Proxy(metadata)
    proxy.store.errors["1"] = SegmentCorruptError("metadata of the ledger does not parse")
    assert await proxy.admin.finish_deletion(NAME) == Removed(1, True)
    assert [e.location for e in proxy.events if isinstance(e, SegmentLeftBehind)] == ["1"]


async def test_a_forced_deletion_waits_for_no_store() -> None:
    metadata = MemoryMetadata()
    incarnation = await deleted_stream(metadata, [segment(1, store="lost"), segment(2)])
    proxy = Proxy(metadata)
    assert await proxy.admin.delete(NAME, incarnation, force=False) == {"segments": 1, "left": 0}
    assert await metadata.read(KEY) != Missing(), "it keeps its mark"
    assert await proxy.admin.delete(NAME, incarnation, force=True) == {"segments": 1, "left": 0}
    assert await metadata.read(KEY) == Missing()
    assert [e.location for e in proxy.events if isinstance(e, SegmentLeftBehind)] == ["1", "1"]


LONG = admin.REMOVED_MAX + 1


async def long_stream(metadata: MemoryMetadata) -> str:
    return await deleted_stream(metadata, [segment(number) for number in range(1, LONG + 1)])


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


async def test_a_long_stream_is_removed_behind_the_answer_and_its_name_is_taken_until_then() -> None:
    metadata = MemoryMetadata()
    incarnation = await long_stream(metadata)
    async with TaskScope() as tasks:
        proxy = Proxy(metadata, "ledger", "memory", tasks=tasks)
        proxy.store.is_open.clear()
        for _ in range(3):  # the answer may be lost, and the request repeated
            assert await proxy.admin.delete(NAME, incarnation, force=False) == {"segments": 0, "left": LONG}
        with pytest.raises(StreamUnavailableError, match="are being deleted"):
            await proxy.admin.create(NAME, {"store": "memory"}, "a1", 0)
        assert await proxy.admin.finish_deletion(NAME) == Removed(0, False, LONG), "not a second time at once"
        await until(lambda: proxy.store.under_way == admin.DELETES_AT_ONCE)
        proxy.store.is_open.set()
        await until(lambda: len(proxy.store.deleted) == LONG)
        assert proxy.store.peak == admin.DELETES_AT_ONCE
        await until(lambda: not proxy.admin._removing)
        assert await metadata.read(KEY) == Missing()
        await proxy.admin.create(NAME, {"store": "memory"}, "a1", 1)


async def test_a_proxy_that_ends_leaves_the_rest_of_a_long_stream_to_another_one() -> None:
    metadata = MemoryMetadata()
    incarnation = await long_stream(metadata)
    async with TaskScope(drain_s=0.0) as tasks:
        first = Proxy(metadata, tasks=tasks)
        assert (await first.admin.delete(NAME, incarnation, force=False))["left"] == LONG
        await until(lambda: len(first.store.deleted) > 100)
    assert 100 < len(first.store.deleted) < LONG and await metadata.read(KEY) != Missing()
    second = Proxy(metadata)
    second.store.errors = dict.fromkeys(first.store.deleted, SegmentNotFoundError("gone"))
    assert await second.admin.finish_deletion(NAME) == Removed(LONG - len(first.store.deleted), True)
    assert await metadata.read(KEY) == Missing()


async def test_what_keeps_a_long_stream_from_being_removed_is_tried_again_when_somebody_asks() -> None:
    metadata = MemoryMetadata()
    incarnation = await long_stream(metadata)
    async with TaskScope() as tasks:
        proxy = Proxy(metadata, tasks=tasks)
        proxy.store.errors["7"] = StoreUnavailableError("away")
        assert (await proxy.admin.delete(NAME, incarnation, force=False))["left"] == LONG
        await until(lambda: len(proxy.store.deleted) == LONG - 1 and not proxy.admin._removing)
        assert await metadata.read(KEY) != Missing()
        proxy.store.errors = {place: SegmentNotFoundError("gone") for place in proxy.store.deleted}
        assert (await proxy.admin.delete(NAME, incarnation, force=False))["left"] == LONG
        await until(lambda: not proxy.admin._removing)
        assert await metadata.read(KEY) == Missing() and len(proxy.store.deleted) == LONG


async def test_few_long_streams_are_removed_at_a_time_and_the_others_keep_their_marks() -> None:
    metadata = MemoryMetadata()
    async with TaskScope(drain_s=0.0) as tasks:
        proxy = Proxy(metadata, tasks=tasks)
        proxy.store.is_open.clear()
        segments = tuple(segment(number) for number in range(1, LONG + 1))
        for number in range(admin.REMOVALS_MAX + 2):
            name = StreamName(f"s{number}")
            value = StreamMetadata(name=name, segments=segments, owner=Owner(epoch=Epoch(1), deleted=True))
            made = await metadata.compare_and_set(StreamKey(name), value, None)
            assert isinstance(made, Versioned)
            assert (await proxy.admin.delete(name, str(made.value.incarnation), force=False))["left"] == LONG
        await until(lambda: proxy.store.under_way == admin.REMOVALS_MAX * admin.DELETES_AT_ONCE)
        assert len(proxy.admin._removing) == admin.REMOVALS_MAX


async def test_a_stream_that_names_no_store_gets_the_first_that_can_be_written() -> None:
    for stores in (("file",), ("file", "memory"), ("memory", "file")):
        proxy = Proxy(MemoryMetadata(), *stores)
        made = await proxy.admin.create("s", {}, "life", 0)
        assert made["settings"]["store"] == stores[0]
        named = await proxy.admin.create("t", {"store": stores[-1]}, "life", 0)
        assert named["settings"]["store"] == stores[-1]


async def test_a_store_that_this_cluster_lacks_is_refused_with_those_that_it_has() -> None:
    proxy = Proxy(MemoryMetadata(), "file", "memory")
    with pytest.raises(InvalidRequestError, match=r"choose one of \['file', 'memory'\]: store=ledger"):
        await proxy.admin.create("s", {"store": "ledger"}, "life", 0)


@pytest.mark.parametrize("epoch", [1, 2])
async def test_what_a_former_owner_remembers_of_the_tail_is_not_shown(epoch: int) -> None:
    class Owning:
        """The owner of epoch 1, which may have been deposed without knowing it."""

        serving = True

        def find(self, stream: StreamName) -> Any:
            return SimpleNamespace(owner=self, serving=True)

        async def ask(self, request: StatStream) -> StreamStat:
            return StreamStat(Epoch(1), "serving", SegmentNumber(1), EntryId(3), of(1, 3, 0), 4, 40, 1)

    metadata = MemoryMetadata()
    value = StreamMetadata(name=NAME, segments=(segment(1),), owner=Owner(epoch=Epoch(epoch)))
    assert isinstance(await metadata.compare_and_set(KEY, value, None), Versioned)
    proxy = Proxy(metadata, owned=Owning())
    description = await proxy.admin.stat(NAME)
    assert (description.get("state") == "serving") is (epoch == 1)
    assert (description.get("last_dlsn") == [1, 3, 0]) is (epoch == 1)
