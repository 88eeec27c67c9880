"""Tests that the work of nodes that do not come back is finished by the process that has the controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from dlog.model.object_streams import NodeId, WalSegment
from dlog.objects.image import ObjectState
from dlog.stores.contract import (
    MisconfiguredError,
    ReaderClosedError,
    SegmentRef,
    StoreError,
    StoreOutOfReachError,
    StoreTooSmallError,
    StoreUnavailableError,
)
from dlog.stores.s3.places import Place
from dlog.stores.s3.store import S3Store
from dlog.stores.s3.wal_segments import WalSegments
from tests.unit.stores.test_s3 import W1, W2, W3, Cluster, append, entry, read, upload


class Processes:
    """What one process knows of the others."""

    def __init__(self, live: Collection[NodeId], *, has_controller: bool = True) -> None:
        self.live = live
        self.has_controller = has_controller

    async def live_nodes(self) -> Collection[NodeId]:
        return self.live


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        yield cluster


async def leave_objects(cluster: Cluster, store: S3Store) -> list[SegmentRef]:
    """Three segments in two stream-set objects of the store's node, which writes them still."""
    segments = [await cluster.segment(store) for _ in range(3)]
    for first in (0, 5):
        for writer, _ in segments:
            await append(writer, first, first + 5)
        await upload(store)
    return [ref for _, ref in segments]


async def compact(store: S3Store) -> int:
    assert store.compactions is not None
    return await store.compactions.round(is_major=False)


async def test_objects_of_a_node_that_was_taken_over_are_compacted_where_the_controller_is(cluster: Cluster) -> None:
    gone = await cluster.store(W1)
    other = await cluster.store(W2, processes=Processes({W2, W3}, has_controller=False))
    host = await cluster.store(W3, processes=Processes({W2, W3}))
    refs = await leave_objects(cluster, gone)
    await gone.close()
    for ref in refs:
        assert (await other.recover(ref)).end == 9
    await cluster.until(lambda: not cluster.metadata.image.nodes[W1].wal)
    await other.delete(refs[0])
    cluster.objects.time_ms += 2_000_000
    assert await compact(other) == 0, "one process does it"
    assert await compact(host) > 0
    assert not cluster.metadata.image.nodes[W1].set_objects
    assert cluster.states(ObjectState.MARKED) == 2
    for ref in refs[1:]:
        assert await read(other, ref, 10) == [entry(number) for number in range(10)]


async def test_a_node_that_comes_back_compacts_its_objects_itself(cluster: Cluster) -> None:
    back, host = await cluster.store(W1), await cluster.store(W3, processes=Processes({W1, W3}))
    refs = await leave_objects(cluster, back)
    assert (await host.recover(refs[0])).end == 9
    await cluster.segment(back)
    cluster.objects.time_ms += 2_000_000
    assert await compact(host) == 0
    assert await compact(back) > 0
    assert not cluster.metadata.image.nodes[W1].set_objects


async def test_a_node_that_is_gone_is_taken_over_after_two_looks_also_without_open_streams(cluster: Cluster) -> None:
    gone, live = await cluster.store(W1), await cluster.store(W2)
    host = await cluster.store(W3, processes=Processes({W2, W3}))
    refs = []
    for store in (gone, live, host):
        writer, ref = await cluster.segment(store)
        await append(writer, 0, 5)
        await writer.seal()
        refs.append(ref)
    await gone.close()
    assert host.gone_nodes is not None
    assert await host.gone_nodes.look() == []
    assert await host.gone_nodes.look() == [W1]
    await cluster.until(lambda: not cluster.metadata.image.nodes[W1].wal)
    assert cluster.committed(refs[0]) == 5, "what it left is uploaded"
    assert [cluster.metadata.image.nodes[node].is_failover for node in (W1, W2, W3)] == [True, False, False]
    assert await host.gone_nodes.look() == await host.gone_nodes.look() == []
    assert await read(live, refs[0], 5) == [entry(number) for number in range(5)]


async def test_a_failover_whose_process_died_before_the_uploads_is_begun_again(cluster: Cluster) -> None:
    gone, other = await cluster.store(W1), await cluster.store(None)  # which has no node of its own
    host = await cluster.store(W3, processes=Processes({W3}))
    writer, ref = await cluster.segment(gone)
    await append(writer, 0, 5)
    await gone.close()
    cluster.objects.is_full = True
    assert (await other.recover(ref)).end == 4
    await other.close()
    cluster.objects.is_full = False
    assert cluster.metadata.image.nodes[W1].wal
    assert host.gone_nodes is not None
    await host.gone_nodes.look()
    assert await host.gone_nodes.look() == [W1]
    await cluster.until(lambda: not cluster.metadata.image.nodes[W1].wal)
    assert cluster.committed(ref) == 5


async def test_a_failover_that_waits_for_the_storage_is_not_begun_again(cluster: Cluster) -> None:
    gone, host = await cluster.store(W1), await cluster.store(W3, processes=Processes({W3}))
    writer, ref = await cluster.segment(gone)
    await append(writer, 0, 5)
    await gone.close()
    cluster.objects.is_full = True
    assert (await host.recover(ref)).end == 4
    epoch = cluster.metadata.image.nodes[W1].node_epoch
    assert host.gone_nodes is not None
    for _ in range(3):
        assert await host.gone_nodes.look() == [], "what it read is in memory, and would be read again"
    cluster.objects.is_full = False
    await cluster.until(lambda: not cluster.metadata.image.nodes[W1].wal)
    assert (cluster.committed(ref), cluster.metadata.image.nodes[W1].node_epoch) == (5, epoch)


async def test_a_node_whose_log_is_out_of_reach_keeps_no_other_waiting(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, other = await cluster.store(W1), await cluster.store(W2)
    host = await cluster.store(W3, processes=Processes({W3}))
    refs = []
    for store in (gone, other):
        writer, ref = await cluster.segment(store)
        await append(writer, 0, 5)
        refs.append(ref)
        await store.close()
    lost = {segment.name for segment in cluster.metadata.image.nodes[W1].wal}
    whole = WalSegments.recover

    async def recover(log: WalSegments, segment: WalSegment) -> int:
        if segment.name in lost:
            raise StoreUnavailableError("the store of the log is out of reach")
        return await whole(log, segment)

    monkeypatch.setattr(WalSegments, "recover", recover)
    assert host.gone_nodes is not None
    await host.gone_nodes.look()
    assert await host.gone_nodes.look() == [W1, W2]
    await cluster.until(lambda: not cluster.metadata.image.nodes[W2].wal)
    assert (cluster.committed(refs[0]), cluster.committed(refs[1])) == (0, 5)
    lost.clear()
    await cluster.until(lambda: not cluster.metadata.image.nodes[W1].wal)
    assert cluster.committed(refs[0]) == 5


async def test_a_node_that_makes_progress_is_left_alone_also_if_it_is_not_registered(cluster: Cluster) -> None:
    busy, host = await cluster.store(W1), await cluster.store(W3, processes=Processes({W3}))
    away = await cluster.store(W2, processes=Processes({W2}, has_controller=False))
    writer, _ = await cluster.segment(busy)
    assert host.gone_nodes is not None and away.gone_nodes is not None
    for first in range(0, 12, 4):
        await append(writer, first, first + 4)
        await upload(busy)
        assert await host.gone_nodes.look() == await away.gone_nodes.look() == []
    assert await away.gone_nodes.look() == [], "only the process with the controller takes over"


async def test_a_failover_goes_on_without_who_waited_and_a_store_that_is_closed_closes_what_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, goes_on, logs, whole = asyncio.Event(), asyncio.Event(), list[WalSegments](), WalSegments.read

    async def read_late(log: WalSegments, *which: Any) -> Any:
        found = await whole(log, *which)
        logs.append(log)
        reading.set()
        await goes_on.wait()
        return found

    async with Cluster() as cluster:
        one, two = await cluster.store(W1), await cluster.store(W2)
        writer, ref = await cluster.segment(one)
        await append(writer, 0, 5)
        monkeypatch.setattr(WalSegments, "read", read_late)
        async with asyncio.TaskGroup() as group:
            recovery = group.create_task(two.recover(ref), name="recovery")
            await reading.wait()
            recovery.cancel()
        assert logs[0]._readers
        epoch = cluster.metadata.image.nodes[W1].node_epoch
        async with asyncio.TaskGroup() as group:
            recovery = group.create_task(two.recover(ref), name="another one that waits")
            await cluster.until(lambda: cluster.metadata.image.nodes[W1].is_failover)
            goes_on.set()
        assert recovery.result().end == 4
        assert cluster.metadata.image.nodes[W1].node_epoch == epoch, "it waited for the failover that ran"
        goes_on.clear()
        reading.clear()
        three = await cluster.store(W3)
        writer, ref = await cluster.segment(three)
        await append(writer, 0, 5)
        async with asyncio.TaskGroup() as group:
            recovery = group.create_task(two.recover(ref), name="recovery")
            await reading.wait()
            recovery.cancel()
        assert logs[-1]._readers
        [segment] = cluster.metadata.image.nodes[W3].wal
    assert not logs[-1]._readers
    monkeypatch.undo()
    with pytest.raises(StoreUnavailableError):
        await logs[-1].read(segment, 0, 1)
    assert not logs[-1]._readers, "what is opened too late is closed, too"


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        (StoreUnavailableError, StoreOutOfReachError),
        (StoreOutOfReachError, StoreOutOfReachError),
        (StoreTooSmallError, StoreTooSmallError),
    ],
)
async def test_who_waits_for_a_log_that_is_out_of_reach_is_told_and_the_failover_goes_on(
    cluster: Cluster, why: type[StoreError], expected: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2, retry_s=0.5)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 5)

    async def recover(*_: Any) -> int:
        raise why("too few bookies answer")

    with monkeypatch.context() as patch:
        patch.setattr(WalSegments, "recover", recover)
        with pytest.raises(expected, match="too few bookies answer") as caught:
            await two.recover(ref)
        assert type(caught.value) is expected
        epoch = cluster.metadata.image.nodes[W1].node_epoch
        with pytest.raises(expected, match="too few bookies answer") as caught:
            await two.recover(ref)
        assert type(caught.value) is expected
        assert two._failovers is not None
        (failover,) = two._failovers._running.values()
        assert len(failover.worker._asking) == 1, "requests of those who gave up do not gather"
    assert (await two.recover(ref)).end == 4
    assert cluster.metadata.image.nodes[W1].node_epoch == epoch, "one failover did it"


async def test_a_store_that_is_closed_or_in_doubt_while_it_recovers_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    _, ref = await cluster.segment(one)
    for error, expected in (
        (ReaderClosedError("the store is closed"), ReaderClosedError),
        (StoreUnavailableError("no answer", outcome_unknown=True), StoreOutOfReachError),
    ):

        async def fail(*_: Any, error: StoreError = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(S3Store, "_decide", fail)
            with pytest.raises(expected, match=error.message) as caught:
                await two.recover(ref)
            assert (type(caught.value), caught.value.outcome_unknown) == (expected, error.outcome_unknown)
    await two.close()
    with pytest.raises(ReaderClosedError, match="the store is closed"):
        await two.recover(ref)


async def test_a_node_whose_log_has_too_few_bookies_tells_so(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await cluster.store(W1, retry_s=0.5)

    async def create(*_: Any) -> None:
        raise StoreTooSmallError("two bookies of three")

    monkeypatch.setattr(WalSegments, "create", create)
    with pytest.raises(StoreTooSmallError, match="two bookies of three"):
        await cluster.segment(one)


async def test_a_process_that_waits_for_an_end_asks_the_controller_less_and_less_often(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2, retry_s=1e6)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 5)
    pauses: list[float] = []
    whole = S3Store._wait_ended

    async def fail(*_: Any) -> None:
        if len(pauses) == 10:
            raise MisconfiguredError("that is enough")
        raise StoreUnavailableError("the log is out of reach")

    async def wait_ended(store: S3Store, place: Place, timeout_s: float) -> None:
        pauses.append(timeout_s)
        await whole(store, place, 0.001)

    monkeypatch.setattr(S3Store, "_wait_ended", wait_ended)
    monkeypatch.setattr(S3Store, "_close_range", fail)
    with pytest.raises(MisconfiguredError):
        await two.recover(ref)
    assert pauses[0] <= 0.05 and pauses[5] >= 0.8
    assert max(pauses) <= 2.0


async def test_a_process_that_waits_for_an_end_sees_at_once_that_another_one_decided_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 5)
    waiting = asyncio.Event()
    whole = S3Store._wait_ended

    async def fail(*_: Any) -> None:
        raise StoreUnavailableError("the log is out of reach")

    async def wait_ended(store: S3Store, place: Place, timeout_s: float) -> None:
        waiting.set()
        await whole(store, place, 1e6)

    monkeypatch.setattr(S3Store, "_wait_ended", wait_ended)
    monkeypatch.setattr(S3Store, "_close_range", fail)
    async with asyncio.TaskGroup() as group:
        recovery = group.create_task(two.recover(ref), name="recovery")
        await waiting.wait()
        await writer.seal()
    assert recovery.result().end == 4
