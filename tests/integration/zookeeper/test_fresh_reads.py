"""A read on which a decision depends shows every change that was answered before, on any member of an ensemble.

Tested on the simulated server, one of whose members lags by a set time, and on a real ensemble, one of whose followers
was frozen while the others went on, and receives the request before the changes it missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from dlog.io.metadata import BookieInfo
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Missing, OutcomeUnknown, Versioned
from dlog.model.ids import BookieId, EntryId, Epoch, LedgerId, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata
from tests.deleting import delete_stream
from tests.integration.zookeeper.ensemble import EnsembleMember, ZooKeeperEnsemble
from tests.simulation.service.zookeeper import ZooKeeperServer
from tests.stream_settings import SETTINGS

NAMESPACE = "/messaging/dlog"
KEY = StreamKey(StreamName("orders"))
LEDGER_KEY = LedgerKey(LedgerId(3))
FRESH = StreamMetadata(name=KEY.stream, settings=SETTINGS)
OWNER = Owner(epoch=Epoch(1), proxy=ProxyId("w1"), address="127.0.0.1:8001", claim="c1")
LEDGER = LedgerMetadata(
    quorum=Quorum(ensemble=2, write=2, ack=1),
    fragments=(Fragment(EntryId(0), (BookieId("b1:1"), BookieId("b2:1"))),),
    password=b"secret",
)
LAG_S = 0.3
ROUNDS, MISSED = 10, 50

Pair = tuple[ZooKeeperMetadata, ZooKeeperMetadata]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """A writer, and a reader from a member that shows each change LAG_S late."""
    ahead = ZooKeeperServer()
    behind = ZooKeeperServer(ahead.ensemble)
    await ahead.start()
    await behind.start()
    try:
        await cluster_init(ahead.hosts, NAMESPACE)
        async with (
            await ZooKeeperMetadata.connect(ahead.hosts, NAMESPACE) as writer,
            await ZooKeeperMetadata.connect(behind.hosts, NAMESPACE) as reader,
        ):
            behind.lag(LAG_S)
            yield writer, reader
            behind.lag(0)
    finally:
        await behind.close()
        await ahead.close()


async def written(metadata: ZooKeeperMetadata, value: StreamMetadata, version: object) -> Versioned:
    outcome = await metadata.compare_and_set(KEY, value, version)
    assert isinstance(outcome, Versioned), outcome
    return outcome


async def seen(metadata: ZooKeeperMetadata, key: StreamKey | LedgerKey) -> object:
    outcome = await metadata.read(key)
    return outcome.value if isinstance(outcome, Versioned) else outcome


async def test_a_stream_is_read_as_it_stands(pair: Pair) -> None:
    writer, reader = pair
    last = await written(writer, FRESH, None)
    assert await seen(reader, KEY) == FRESH
    for number in (1, 2):  # the segment list is kept between reads, and a number may be used again
        started = Segment(number=SegmentNumber(1), name=str(number), first_txid=Txid(1))
        last = await written(writer, replace(FRESH, owner=OWNER).with_segment(started), last.version)
        assert await seen(reader, KEY) == last.value
        last = await written(writer, last.value.without_segment(1), last.version)
        assert await seen(reader, KEY) == last.value
    await delete_stream(writer, KEY.stream)
    assert await seen(reader, KEY) == Missing()
    again = await written(writer, FRESH, None)
    assert await seen(reader, KEY) == FRESH
    await delete_stream(reader, KEY.stream)
    assert await writer.read(KEY) == Missing()
    assert again.value.incarnation != last.value.incarnation


async def test_a_stream_deleted_elsewhere_is_made_again_at_once(pair: Pair) -> None:
    writer, reader = pair
    await written(writer, FRESH, None)
    assert await reader.streams() == [KEY.stream]
    await delete_stream(writer, KEY.stream)
    await written(reader, FRESH, None)


async def test_a_ledger_is_read_as_it_stands(pair: Pair) -> None:
    writer, reader = pair
    created = await writer.compare_and_set(LEDGER_KEY, LEDGER, None)
    assert isinstance(created, Versioned)
    assert await seen(reader, LEDGER_KEY) == LEDGER
    await writer.compare_and_set(LEDGER_KEY, LEDGER.in_recovery(), created.version)
    assert await seen(reader, LEDGER_KEY) == LEDGER.in_recovery()
    await writer.delete(LEDGER_KEY)
    assert await seen(reader, LEDGER_KEY) == Missing()


async def test_lists_and_members_are_what_stands(pair: Pair) -> None:
    writer, reader = pair
    bookie = BookieInfo(BookieId("b1:1"), "b1", 1)
    await written(writer, FRESH, None)
    assert await reader.streams() == [KEY.stream]
    await writer.compare_and_set(LEDGER_KEY, LEDGER, None)
    assert [ledger async for ledger in reader.ledgers()] == [LEDGER_KEY.ledger]
    await writer.register_bookie(bookie)
    assert (await reader.members()).writable == {bookie.bookie: bookie}
    await writer.write_cookie(bookie.bookie, "ours", None)
    assert isinstance(await reader.read_cookie(bookie.bookie), Versioned)


# ---- a real ensemble ------------------------------------------------------------------------------------------------


async def connected(stack: AsyncExitStack, member: EnsembleMember) -> ZooKeeperMetadata:
    return await stack.enter_async_context(
        await ZooKeeperMetadata.connect(member.hosts, NAMESPACE, connect_timeout_s=30.0)
    )


@pytest.mark.zookeeper
async def test_a_follower_that_was_frozen_does_not_answer_from_before(one_ensemble: ZooKeeperEnsemble) -> None:
    leader, follower = await one_ensemble.leader(), await one_ensemble.follower()
    async with AsyncExitStack() as stack:
        await cluster_init(leader.hosts, NAMESPACE)
        writer, reader = await connected(stack, leader), await connected(stack, follower)
        last = await writer.compare_and_set(LEDGER_KEY, LEDGER, None)
        for number in range(ROUNDS):
            assert isinstance(last, Versioned)
            assert await seen(reader, LEDGER_KEY) == last.value
            follower.freeze()
            async with asyncio.TaskGroup() as tasks:
                try:
                    for change in range(MISSED):
                        assert isinstance(last, Versioned)
                        value = replace(LEDGER, custom=(("app", b"%d %d" % (number, change)),))
                        last = await writer.compare_and_set(LEDGER_KEY, value, last.version)
                    reading = tasks.create_task(seen(reader, LEDGER_KEY), name="read")
                    await asyncio.sleep(0)  # the request is on its way, and the follower still frozen
                finally:
                    follower.thaw()
            assert isinstance(last, Versioned)
            assert reading.result() == last.value


@pytest.mark.zookeeper
async def test_without_a_quorum_a_read_is_as_one_of_a_server_that_cannot_be_reached(
    one_ensemble: ZooKeeperEnsemble,
) -> None:
    await one_ensemble.heal()
    leader, follower = await one_ensemble.leader(), await one_ensemble.follower()
    async with AsyncExitStack() as stack:
        await cluster_init(leader.hosts, NAMESPACE)
        reader = await connected(stack, follower)
        for member in one_ensemble.members:
            if member is not follower:
                member.kill()
        assert isinstance(await reader.read(LEDGER_KEY), OutcomeUnknown)
        assert isinstance(await reader.read(KEY), OutcomeUnknown)
