"""Fewer bookies than a segment needs: who waits hears so by name, and goes on when they are back."""

from __future__ import annotations

import asyncio

import pytest

import dlog
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.ids import LedgerId
from tests.integration.proxies.processes import ProxyCluster
from tests.integration.proxies.raw import Raw, RawProducer

pytestmark = pytest.mark.zookeeper


async def gone(cluster: ProxyCluster, count: int) -> None:
    """End so many bookies."""
    for bookie in cluster.bookies.bookies[:count]:
        await asyncio.to_thread(bookie.stop)  # in order, so that its registration goes with it
    async with await ZooKeeperMetadata.connect(cluster.bookies.hosts, cluster.namespace) as metadata:
        assert len((await metadata.members()).writable) == len(cluster.bookies.bookies) - count


async def test_an_append_that_no_segment_can_take_is_refused_by_name_and_taken_when_bookies_are_back(
    own_cluster: ProxyCluster,
) -> None:
    async with dlog.connect(own_cluster.target) as client:
        await client.create("orders")
        await gone(own_cluster, 1)
        location = (await client.owner("orders"))["location"]
        async with Raw(location) as raw:
            answer = await RawProducer(raw, "orders").write([b"refused"])
            assert (answer.code, answer.outcome_unknown) == (533, False)  # type: ignore[union-attr]
            assert "writable=2" in answer.message  # type: ignore[union-attr]
            again = await RawProducer(raw, "orders").write([b"refused"])
            assert again.code == 533  # type: ignore[union-attr]
        async with dlog.connect(own_cluster.target, append_deadline_s=1.0) as hasty:
            with pytest.raises(dlog.RequestTimeoutError, match=r"last obstacle: .*bookies") as told:
                await hasty.append("orders", b"given up")
            assert not told.value.outcome_unknown
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(client.append("orders", b"taken"), name="append")
            await asyncio.to_thread(own_cluster.bookies.bookies[0].start)
        assert waiting.result().segment == 1
        assert [record.payload async for record in client.read("orders")] == [b"taken"]


async def test_a_segment_is_opened_on_fewer_bookies_than_asked_for_but_not_below_the_write_quorum(
    own_cluster: ProxyCluster,
) -> None:
    async with dlog.connect(own_cluster.target) as client:
        await client.create("orders", ensemble=3, write_quorum=2, ack_quorum=2)
        await gone(own_cluster, 1)
        await client.append("orders", b"on two")
        (segment,) = (await client.stat("orders"))["segments"]
        async with own_cluster.bookies.ledgers() as ledgers:
            quorum = (await ledgers.metadata_of(LedgerId(int(segment["place"])))).quorum
        assert (quorum.ensemble, quorum.write, quorum.ack) == (2, 2, 2)
        await asyncio.to_thread(own_cluster.bookies.bookies[0].start)
        await client.release("orders")
        await client.append("orders", b"on three")
        newest = (await client.stat("orders"))["segments"][-1]
        async with own_cluster.bookies.ledgers() as ledgers:
            assert (await ledgers.metadata_of(LedgerId(int(newest["place"])))).quorum.ensemble == 3
