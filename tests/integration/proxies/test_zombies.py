"""A frozen owner that resumes: requests that arrived while it was frozen are not acknowledged, and not in the log."""

from __future__ import annotations

import asyncio

import pytest

import dlog
from dlog.wire.proxy import Failed
from tests.integration.proxies.processes import ProxyCluster
from tests.integration.proxies.raw import Raw, RawProducer

pytestmark = pytest.mark.zookeeper


async def test_what_a_frozen_owner_finds_before_its_door_is_refused(cluster: ProxyCluster) -> None:
    async with dlog.connect(cluster.target) as client:
        await client.create("orders")
        await client.append("orders", b"before")
        owner = cluster.writer_at((await client.owner("orders")).location)
        async with Raw(owner.address) as raw:
            sleeping = RawProducer(raw, "orders")
            await sleeping.write([b"taken"])
            owner.freeze()
            batches = [sleeping.batch([b"late %d" % n]) for n in range(20)]
            raw.say(*batches)
            await client.append("orders", b"meanwhile")
            assert cluster.writer_at((await client.owner("orders")).location) is not owner
            owner.thaw()
            async with asyncio.timeout(90.0):
                answers = [await sleeping.answer(batch.request) for batch in batches]
        assert all(isinstance(answer, Failed) for answer in answers), answers
        await client.append("orders", b"after")
        payloads = [record.payload async for record in client.read("orders")]
        assert payloads == [b"before", b"taken", b"meanwhile", b"after"]
