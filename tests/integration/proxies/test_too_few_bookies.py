"""Fewer bookies than a segment needs: a waiting client gets an error that says so, and goes on when they are back."""

from __future__ import annotations

import asyncio
import uuid

import pytest

import dlog
from dlog.model.ids import LedgerId
from dlog.model.quorum import Quorum
from dlog.wire.proxy import Create, Failed
from tests.integration.proxies.processes import ProxyCluster
from tests.integration.proxies.raw import Raw, RawProducer

pytestmark = pytest.mark.zookeeper
PATIENCE_S = 120.0
THREE = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2}


async def one_gone(cluster: ProxyCluster) -> None:
    """Stop a bookie; returns once both write proxies know of only two."""
    await asyncio.to_thread(cluster.bookies.bookies[0].stop)  # in order, so that its registration goes with it
    await known(cluster, enough=False)


async def known(cluster: ProxyCluster, *, enough: bool) -> None:
    """Wait until each write proxy accepts streams on three bookies, or refuses them."""
    for writer in cluster.writers:
        async with Raw(writer.address) as raw, asyncio.timeout(PATIENCE_S):
            while isinstance(await raw.ask(Create, f"probe-{uuid.uuid4().hex}", THREE), Failed) is enough:
                pass


async def test_an_append_that_no_segment_can_take_is_refused_by_name_and_taken_when_bookies_are_back(
    own_cluster: ProxyCluster,
) -> None:
    async with dlog.connect(own_cluster.target) as client:
        await client.create("orders")
        await one_gone(own_cluster)
        location = (await client.owner("orders")).location
        async with Raw(location) as raw:
            answer = await RawProducer(raw, "orders").write([b"refused"])
            assert isinstance(answer, Failed)
            assert (answer.code, answer.outcome_unknown) == (533, False)
            assert "writable=2" in answer.message
            again = await RawProducer(raw, "orders").write([b"refused"])
            assert isinstance(again, Failed)
            assert again.code == 533
        async with dlog.connect(own_cluster.target, append_deadline_s=5.0) as hasty:
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
    async def quorum() -> Quorum:
        """The quorum of the newest segment."""
        newest = (await client.stat("orders")).segments[-1]
        async with own_cluster.bookies.ledgers() as ledgers:
            return (await ledgers.metadata_of(LedgerId(int(newest.location)))).quorum

    async with dlog.connect(own_cluster.target) as client:
        await client.create("orders", ensemble=3, write_quorum=2, ack_quorum=2)
        await one_gone(own_cluster)
        await client.append("orders", b"on two")
        assert len((await client.stat("orders")).segments) == 1
        found = await quorum()
        assert (found.ensemble, found.write, found.ack) == (2, 2, 2)
        await asyncio.to_thread(own_cluster.bookies.bookies[0].start)
        await known(own_cluster, enough=True)
        await client.hand_over("orders")
        await client.append("orders", b"on three")
        assert (await quorum()).ensemble == 3
