"""Proxies as processes on real bookies and a real ZooKeeper, killed and frozen under load: nothing acknowledged is
lost."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import pytest

import dlog
from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.zookeeper_cluster import cluster_init
from tests.integration.cluster import ServerProcess, start_bookies
from tests.integration.proxies.load import Load, loaded
from tests.integration.proxies.processes import ProxyCluster
from tests.ports import free_port

pytestmark = pytest.mark.zookeeper


async def owner_of(cluster: ProxyCluster, load: Load) -> ServerProcess:
    return cluster.writer_at((await load.client.owner(load.stream)).location)


async def test_what_one_proxy_wrote_is_read_through_any_other(cluster: ProxyCluster) -> None:
    async with dlog.connect("dlog://" + cluster.writers[0].address) as writer:
        await writer.create("orders")
        rows: list[dlog.BatchResult] = []
        await writer.append_many("orders", [b"%d" % i for i in range(1000)], on_written=rows.append)
    for reader in cluster.readers:
        async with dlog.connect("dlog://" + reader.address) as client:
            records = [record async for record in client.read("orders")]
            assert [record.payload for record in records] == [b"%d" % i for i in range(1000)]
            assert [record.dlsn for record in records] == [dlsn for row in rows for dlsn in row.dlsns()]


async def test_an_owner_killed_under_load_loses_and_repeats_nothing(cluster: ProxyCluster) -> None:
    async with loaded(cluster.target) as load:
        owner = await owner_of(cluster, load)
        owner.kill()
        await load.acknowledged(200)
        assert (await owner_of(cluster, load)) is cluster.other_writer(owner)


async def test_owners_killed_one_after_the_other_and_started_again(cluster: ProxyCluster) -> None:
    async with loaded(cluster.target) as load:
        for _ in range(3):
            owner = await owner_of(cluster, load)
            owner.kill()
            await load.acknowledged(200)
            await asyncio.to_thread(owner.start)


async def test_an_owner_that_is_told_to_end_hands_over(cluster: ProxyCluster) -> None:
    async with loaded(cluster.target) as load:
        owner = await owner_of(cluster, load)
        assert await asyncio.to_thread(owner.stop) == 0
        assert '"proxy.drained"' in owner.log()
        assert '"left": 0' in owner.log()
        await load.acknowledged(200)


async def test_a_frozen_owner_is_replaced_and_gets_nothing_acknowledged_when_it_wakes(cluster: ProxyCluster) -> None:
    async with loaded(cluster.target) as load:
        owner = await owner_of(cluster, load)
        owner.freeze()
        await load.acknowledged(200)
        assert (await owner_of(cluster, load)) is cluster.other_writer(owner)
        owner.thaw()
        await load.acknowledged(200)


async def test_a_reader_at_the_tail_sees_everything_through_rolls_and_a_takeover(cluster: ProxyCluster) -> None:
    seen: list[int] = []

    async with loaded(cluster.target, segment_bytes=64 * 1024) as load:

        async def follow() -> None:
            async for record in load.client.read("orders", follow=True):
                seen.append(int(record.payload[:12]))
                if seen[-1] == last:
                    return

        last = -1
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follow(), name="follow")
            await load.acknowledged(1000)
            (await owner_of(cluster, load)).kill()
            await load.acknowledged(1000)
            last = max(load.acked) + 500
            await load.acknowledged(1000)
    assert seen == list(range(last + 1))


async def test_a_bookie_killed_under_load_is_replaced_or_done_without(own_cluster: ProxyCluster) -> None:
    async with loaded(own_cluster.target) as load:
        own_cluster.bookies.bookies[0].kill()
        await load.acknowledged(500)
        own_cluster.bookies.bookies[0].start()


async def test_writing_and_reading_go_on_without_zookeeper_and_takeovers_after_it(
    own_zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    await own_zookeeper.start()
    cluster = await asyncio.to_thread(start_proxies, own_zookeeper, tmp_path)
    try:
        async with loaded(cluster.target) as load:
            assert len([record async for record in load.client.read("orders", limit=100)]) == 100
            own_zookeeper.kill()
            await load.acknowledged(2000)
            assert len([record async for record in load.client.read("orders", limit=150)]) == 150
            await own_zookeeper.start()
            owner = await owner_of(cluster, load)
            owner.kill()
            await load.acknowledged(200)
    finally:
        cluster.close()
        cluster.bookies.close()


async def test_everything_killed_at_once_comes_back_with_all_that_was_acknowledged(own_cluster: ProxyCluster) -> None:
    async with dlog.connect(own_cluster.target) as client:
        await client.create("orders")
        load = Load(client, "orders")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(load.run(), name="load")
            await load.acknowledged(2000)
            own_cluster.close()
            own_cluster.bookies.close()
            running.cancel()
        acked = dict(load.acked)
    for bookie in own_cluster.bookies.bookies:
        bookie.spawn()
    for bookie in own_cluster.bookies.bookies:
        await asyncio.to_thread(bookie.wait_ready)
    await asyncio.to_thread(own_cluster.start)
    async with dlog.connect(own_cluster.target) as client:
        again = Load(client, "orders", acked=acked, unknown=set(range(10**6)))
        place = await client.append("orders", again.record(10**6))
        assert place.segment > 1
        again.acked[10**6] = place
        await again.check()


async def test_a_proxy_is_scraped(cluster: ProxyCluster, tmp_path: Path) -> None:
    async with dlog.connect(cluster.target) as client:
        await client.create("orders")
        await client.append("orders", b"x")
        assert len([record async for record in client.read("orders")]) == 1
    for role, wanted in (("write", "dlog_write_batches_total"), ("read", "dlog_read_cache_bytes")):
        port = free_port()
        process = cluster.extra(role, "--http-port", str(port))
        await asyncio.to_thread(process.start)
        try:
            told = await asyncio.to_thread(scrape, port)
            assert wanted in told
            assert "dlog_proxy_connections " in told
        finally:
            assert await asyncio.to_thread(process.stop) == 0


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text: str = answer.read().decode()
    return text


def start_proxies(zookeeper: EmbeddedZooKeeper, directory: Path) -> ProxyCluster:
    """Bookies and proxies on a ZooKeeper of the test's own."""
    bookies = start_bookies(zookeeper, directory / "bookies")
    asyncio.run(cluster_init(bookies.hosts, bookies.namespace))
    cluster = ProxyCluster(bookies, bookies.namespace, directory)
    try:
        cluster.start()
    except BaseException:
        cluster.close()
        bookies.close()
        raise
    return cluster


async def test_all_that_was_acknowledged_is_read_when_no_write_proxy_is_left(own_cluster: ProxyCluster) -> None:
    async with dlog.connect(own_cluster.target) as client:
        await client.create("orders")
        load = Load(client, "orders")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(load.run(), name="load")
            await load.acknowledged(500)
            for process in own_cluster.writers:
                process.kill()
            running.cancel()
        acked = dict(load.acked)
    under_way = set(range(max(acked) + 1, max(acked) + 1 + 2 * load.window))
    async with dlog.connect("dlog://" + own_cluster.readers[0].address) as client:
        again = Load(client, "orders", acked=acked, unknown=under_way)
        first = await again.check()
        assert await again.check() == first, "what one reader was shown, the next is shown"
    for process in own_cluster.writers:
        process.spawn()
    for process in own_cluster.writers:
        await asyncio.to_thread(process.wait_ready)
    async with dlog.connect(own_cluster.target) as client:
        await client.append("orders", load.record(max(under_way) + 1))
        after = [record.payload async for record in client.read("orders")]
        assert after[: len(first)] == first, "the next owner keeps what was shown"
