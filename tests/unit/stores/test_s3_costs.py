"""Tests what a take-over of many segments of the store `s3` costs: questions to the controller, and reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest

from dlog.model.ids import EntryId
from dlog.model.object_streams import NodeId
from dlog.objects.operations import CloseStreams, DeleteKey, OpenNode, PutKey
from dlog.stores.contract import SegmentRef, StoreUnavailableError
from dlog.stores.s3.store import S3Store
from dlog.stores.s3.wal_follower import AHEAD, WalFollower
from tests.object_metadata import away
from tests.unit.stores.test_s3 import W1, W2, Cluster, append, entry, upload

SEGMENTS = 40


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        yield cluster


async def written(cluster: Cluster, store: S3Store) -> list[SegmentRef]:
    """Segments with entries that are not uploaded."""
    refs = []
    for _ in range(SEGMENTS):
        writer, ref = await cluster.segment(store)
        await append(writer, 0, 5)
        refs.append(ref)
    return refs


def asked(cluster: Cluster, kind: type) -> int:
    return sum(isinstance(one, kind) for one in cluster.controller.operations)


async def test_many_recoveries_at_once_ask_the_controller_a_few_times(cluster: Cluster) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    refs = await written(cluster, one)
    await two.check_node()
    cluster.controller.operations.clear()
    async with asyncio.TaskGroup() as tasks:
        recovering = [tasks.create_task(two.recover(ref)) for ref in refs]
    assert [task.result().end for task in recovering] == [4] * SEGMENTS
    assert (asked(cluster, OpenNode), asked(cluster, CloseStreams)) == (1, 1)
    assert asked(cluster, DeleteKey) <= 3, "they share the questions for a new image"


async def test_a_recovery_after_a_failover_here_returns_the_last_entries(cluster: Cluster) -> None:
    one, two, three = await cluster.store(W1), await cluster.store(W2), await cluster.store(None)
    refs = await written(cluster, one)
    last = tuple(entry(number) for number in (2, 3, 4))
    for ref in refs:
        found = await two.recover(ref)
        assert (found.end, found.last_payloads) == (4, last)
    assert (await three.recover(refs[0])).last_payloads == (), "this process has not read them"


async def test_last_entries_that_are_kept_take_at_most_half_of_the_cache(cluster: Cluster) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2, cache_bytes_max=8000)
    refs = await written(cluster, one)
    found = [await two.recover(ref) for ref in refs]
    kept = [len(one.last_payloads) for one in found]
    assert 0 < sum(kept) < 3 * SEGMENTS
    assert two.cache.bytes <= 8000


async def test_of_a_segment_that_is_partly_uploaded_the_entries_in_the_log_are_returned(cluster: Cluster) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 4)
    await upload(one)
    await append(writer, 4, 5)
    assert (await two.recover(ref)).last_payloads == (entry(4),)


async def test_calls_share_a_question_for_a_new_image_only_if_it_is_sent_after_them(cluster: Cluster) -> None:
    store = await cluster.store(W2, is_lagging=True)
    before = len(cluster.controller.operations)
    async with asyncio.TaskGroup() as tasks:
        first = [tasks.create_task(store.metadata.fresh()) for _ in range(50)]
        while len(cluster.controller.operations) == before:  # noqa: ASYNC110 - the controller tells nobody
            await asyncio.sleep(0)
        await cluster.metadata.ask(PutKey("late", b"v"))
        second = [tasks.create_task(store.metadata.fresh()) for _ in range(50)]
    assert asked(cluster, DeleteKey) == 2
    assert all("late" in task.result().keys for task in second)
    assert len({task.result().version for task in first}) == 1


async def test_calls_that_share_a_question_share_its_failure_and_the_next_one_is_asked_anew(cluster: Cluster) -> None:
    store = await cluster.store(W2)
    async with away(cluster.controller), asyncio.TaskGroup() as tasks:
        failing = [tasks.create_task(_refused(store)) for _ in range(5)]
    assert [task.result() for task in failing] == [True] * 5
    assert (await store.metadata.fresh()).version == cluster.controller.version


async def _refused(store: S3Store) -> bool:
    with pytest.raises(StoreUnavailableError):
        await store.metadata.fresh()
    return True


async def test_a_call_for_a_new_image_ends_when_the_store_is_closed(cluster: Cluster) -> None:
    store = await cluster.store(NodeId("w9"))
    asking = asyncio.Event()

    async def never(_: object) -> None:
        asking.set()
        await asyncio.Event().wait()

    with mock.patch.object(store.metadata.port, "ask", never):
        async with asyncio.TaskGroup() as tasks:
            refused = tasks.create_task(_refused(store))
            await asking.wait()
            await store.__aexit__(None, None, None)
        assert refused.result()


async def test_a_stream_with_a_little_in_many_entries_of_the_log_is_read_from_several_at_once(cluster: Cluster) -> None:
    """Those that are not in the cache any more: a reader that is far behind, of what is not uploaded."""
    one, two = await cluster.store(W1), await cluster.store(W2)
    writer, ref = await cluster.segment(one)
    for number in range(30):
        await append(writer, number, number + 1)
    reader = await two.open_reader(ref)
    await reader.wait_lac(EntryId(28), 30.0)
    two.cache._kept.clear()
    loading = most = loads = 0

    async def load(follower: WalFollower, segment: int, number: int) -> Any:
        nonlocal loading, most, loads
        loading += 1
        loads += 1
        most = max(most, loading)
        await asyncio.sleep(0)
        try:
            return await real(follower, segment, number)
        finally:
            loading -= 1

    real = WalFollower._load
    with mock.patch.object(WalFollower, "_load", load):
        found = await reader.read(EntryId(0), EntryId(29), 10_000_000)
    assert found == [entry(number) for number in range(30)]
    assert (loads, most) == (30, AHEAD + 1)
    two.cache._kept.clear()
    with mock.patch.object(WalFollower, "_load", load):
        loads = 0
        assert await reader.read(EntryId(0), EntryId(29), 1) == [entry(0)]
    assert loads == 1, "nothing is loaded that the read has no room for"
    await reader.close()
