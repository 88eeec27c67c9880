"""Each record is written once, through kills and with more producers than an owner remembers; memory is bounded."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import dlog
from dlog.wire.proxy import Create, Failed, Written
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.processes import PRODUCERS_MAX, ProxyCluster
from tests.integration.proxies.raw import Raw, RawProducer, write_from_many

MEMORY = {"store": "memory"}


async def test_a_first_batch_held_up_until_its_producer_is_forgotten_is_not_written_twice(local: LocalProxies) -> None:
    """A frozen proxy could do this when it resumes: send once more, byte for byte, what was written long ago."""
    proxy = await local.write_proxy(producers_max=PRODUCERS_MAX)
    async with Raw(proxy.address) as raw:
        await raw.ask(Create, "orders", MEMORY)
        first = RawProducer(raw, "orders")
        batch = first.batch([b"once"])
        raw.say(batch)
        assert isinstance(await first.answer(batch.request), Written)
        await write_from_many(raw, "orders", PRODUCERS_MAX + 10)
        late = RawProducer(raw, "orders", first.producer)
        answer = await late.write([b"once"])
        assert isinstance(answer, Failed)
        assert (answer.code, answer.outcome_unknown) == (535, False)
        assert proxy.proxy.admission.producers_unknown > 0
    async with dlog.connect("dlog://" + proxy.address + "," + (await local.read_proxy()).address) as client:
        found = Counter([record.payload async for record in client.read("orders")])
    assert found == {b"once": 1, b".": PRODUCERS_MAX + 10}


@pytest.mark.zookeeper
async def test_thousands_of_producers_through_kills_write_each_record_once(
    cluster: ProxyCluster, tmp_path: Path
) -> None:
    """Each producer has a client of its own, so each has an id of its own; owners are killed under them."""
    count = PRODUCERS_MAX + 200
    async with dlog.connect(cluster.target) as admin:
        await admin.create("orders")
        acked: set[int] = set()
        numbers = iter(range(count))

        async def produce() -> None:
            for number in numbers:
                async with dlog.connect(cluster.target) as client:
                    await client.append("orders", b"%d" % number)
                    acked.add(number)

        async def hurt() -> None:
            for after in (count // 3, PRODUCERS_MAX + 100):
                while len(acked) < after:
                    await admin.append("pulse", b".")
                owner = cluster.writer_at((await admin.owner("orders")).location)
                owner.kill()
                await asyncio.to_thread(owner.start)

        await admin.create("pulse")
        async with asyncio.TaskGroup() as tasks:
            for _ in range(32):
                tasks.create_task(produce())
            tasks.create_task(hurt())
        found = Counter([record.payload async for record in admin.read("orders")])
        told = await admin.stat("orders")
    assert acked == set(range(count))
    assert found == Counter(b"%d" % number for number in range(count)), "each record is there once"
    assert told.producers is not None and told.producers <= PRODUCERS_MAX
