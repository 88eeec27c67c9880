"""What our ledger client does on v3 that both kinds of bookies must serve: called by the tests of each kind."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from dlog.errors import FencedError, UnauthorizedError
from dlog.io.bookie_client import BookieClientOptions
from dlog.io.ledgers import Ledgers, LedgersOptions
from dlog.ledger.tailing import TailingOptions
from dlog.model.ids import EntryId, LedgerId
from dlog.model.quorum import Quorum
from tests.interop.java_peer import JavaLedgers
from tests.interop.payloads import follow, numbered, read_all, refused, sized, wait_whole

ON_V3 = BookieClientOptions(protocol="v3", request_timeout_s=60.0)


class Cluster(Protocol):
    """Bookies of either kind."""

    def ledgers(
        self,
        options: LedgersOptions | None = None,
        transport: BookieClientOptions | None = None,
        seed: int | None = None,
    ) -> AbstractAsyncContextManager[Ledgers]: ...


async def write_and_read(cluster: Cluster, theirs: JavaLedgers) -> None:
    """Write striped and whole ledgers, follow one that is written; Java and our v2 client read them; copies compare."""
    written = [*numbered("ours", 0, 150), sized(1_044_480), b""]
    async with cluster.ledgers(transport=ON_V3) as ours, cluster.ledgers() as on_v2:
        for quorum in (Quorum(), Quorum(ensemble=3, write=2, ack=2)):
            writer = await ours.create(quorum, password=b"secret")
            await writer.append((written[0],))
            reader = await ours.open(writer.ledger_id)
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(follow(reader, len(written)), name="follower")
                adds = [writer.append((payload[:5], payload[5:])) for payload in written[1:]]
                assert [await add for add in adds] == list(range(1, len(written)))
                assert await writer.close() == len(written) - 1
            await reader.close()
            assert following.result() == written
            assert await theirs.read_all(writer.ledger_id, password="c2VjcmV0") == written
            assert await read_all(on_v2, writer.ledger_id) == await read_all(ours, writer.ledger_id) == written
            await wait_whole(ours, writer.ledger_id)
            compared = await ours.compare(writer.ledger_id)
            assert not compared.skipped and not compared.differing and not compared.missing


async def tail(cluster: Cluster) -> None:
    """Tail an open ledger by long polls: each LAC comes at the end of one, since no other request is sent within the
    hour. One that is left at a bookie by a closed reader, and those that end without news, disturb nothing."""
    written = numbered("ours", 0, 60)
    patient = LedgersOptions(tailing=TailingOptions(poll_min_s=3600, poll_max_s=3600, long_poll_s=50))
    brief = LedgersOptions(tailing=TailingOptions(poll_min_s=0.01, poll_max_s=0.02, long_poll_s=0.05))
    async with (
        cluster.ledgers() as ours,
        cluster.ledgers(patient, transport=ON_V3) as waiting,
        cluster.ledgers(brief, transport=ON_V3) as ending,
    ):
        writer = await ours.create(Quorum(ensemble=3, write=3, ack=3))
        for payload in written[:2]:
            await writer.append((payload,))
        left = await waiting.open(writer.ledger_id)
        assert await left.wait_lac(EntryId(-1), 60.0) == 0
        assert await left.wait_lac(EntryId(0), 0.2) == 0
        await left.close()
        readers = [await waiting.open(writer.ledger_id), await ending.open(writer.ledger_id)]
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(follow(reader, 59), name="follower") for reader in readers]
            for number, payload in enumerate(written[2:], 2):
                while min(reader.lac for reader in readers) < number - 2:  # noqa: ASYNC110 - the slower of two readers, no event tells
                    await asyncio.sleep(0.001)
                if number % 20 == 0:
                    await asyncio.sleep(0.2)  # long polls end meanwhile
                await writer.append((payload,))
        assert [task.result() for task in following] == [written[:59]] * 2
        await writer.close()


async def force(cluster: Cluster, theirs: JavaLedgers) -> None:
    """Write with deferred sync: the LAC that readers see moves by a force alone; Java reads what it made durable, and
    what a close did."""
    written = numbered("ours", 0, 30)
    async with cluster.ledgers(transport=ON_V3) as ours:
        writer = await ours.create(Quorum(), deferred_sync=True)
        for payload in written[:10]:
            await writer.append((payload,))
        assert writer.lac == -1 == (await theirs.open(writer.ledger_id)).lac
        assert await writer.force() == 9 == writer.lac
        await writer.append((written[10],))
        assert await theirs.read_all(writer.ledger_id) == written[:10], "the last add carries the LAC of the force"
        adds = [writer.append((payload,)) for payload in written[11:]]
        assert await writer.close() == 29
        assert [await add for add in adds] == list(range(11, 30))
        assert await theirs.read_all(writer.ledger_id) == written == await read_all(ours, writer.ledger_id)
        await wait_whole(ours, writer.ledger_id)
        dead = await ours.create(Quorum(), deferred_sync=True)
        for payload in written:
            await dead.append((payload,))
        await dead.force()
        await dead.abandon()
        assert await theirs.read_all(dead.ledger_id, recover=True) == written


async def fence_and_recover(cluster: Cluster, theirs: JavaLedgers) -> None:
    """Fence Java's writer and be fenced by it; recover what a dead writer left; a wrong password fences nothing."""
    written = numbered("any", 0, 60)
    async with cluster.ledgers(transport=ON_V3) as ours:
        javas = await theirs.create(password="c2VjcmV0")
        assert await javas.add(written) == list(range(60))
        with pytest.raises(UnauthorizedError):
            await ours.recover(LedgerId(javas.id), password=b"guessed")
        assert await javas.add([b"not fenced"]) == [60]
        assert (await ours.recover(LedgerId(javas.id))).last_entry == 60
        assert refused(await javas.add([b"too late"]))
        assert await read_all(ours, javas.id) == [*written, b"not fenced"]
        mine = await ours.create(Quorum())
        for payload in written:
            await mine.append((payload,))
        assert await theirs.read_all(mine.ledger_id, recover=True) == written
        with pytest.raises(FencedError):
            await mine.append((b"too late",))
        dead = await ours.create(Quorum())
        adds = [dead.append((payload,)) for payload in written]
        await adds[20]
        await dead.abandon()
        end = (await ours.recover(dead.ledger_id)).last_entry
        assert 20 <= end < 60
        assert await theirs.read_all(dead.ledger_id) == written[: end + 1] == await read_all(ours, dead.ledger_id)
