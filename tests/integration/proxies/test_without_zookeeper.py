"""ZooKeeper is out of reach for longer than a session lasts: owners that were not fenced go on, and all recovers by
itself.

DLOG_ZOOKEEPER_AWAY_S: for how long (default three sessions; set a full minute for a long run).
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import dlog
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Versioned
from dlog.model.ids import StreamName
from dlog.model.segment import StreamKey, StreamMetadata
from proxies.parts import BackendLimits
from proxies.read import running as read_incarnation
from proxies.read.options import ReadOptions
from proxies.write import running as write_incarnation
from proxies.write.options import WriteOptions
from tests.integration.cluster import BookieCluster
from tests.integration.proxies.load import PATIENCE_S, Load
from tests.integration.zookeeper.toxic import Toxic

pytestmark = pytest.mark.zookeeper

SESSION_S = 2.0
AWAY_S = float(os.environ.get("DLOG_ZOOKEEPER_AWAY_S", 3 * SESSION_S))
SEGMENT_BYTES = 256 * 1024


class Living:
    """A proxy in this process."""

    def __init__(self, module: Any, options: Any, tasks: asyncio.TaskGroup) -> None:
        self.address = ""
        self._ready = asyncio.Event()
        work = module.run(
            options,
            asyncio.Event(),
            self._is_ready,
            on_event=_ignore,
            tuning=BackendLimits(session_timeout_s=SESSION_S),
        )
        self.task = tasks.create_task(work, name="proxy under test")

    async def started(self) -> Living:
        async with asyncio.timeout(PATIENCE_S):
            await self._ready.wait()
        return self

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.wait((self.task,))

    def _is_ready(self, proxy: Any) -> None:
        self.address = proxy.address
        self._ready.set()


def _ignore(_: object) -> None:
    """Drop the event."""


@asynccontextmanager
async def proxies(hosts: str, namespace: str) -> AsyncIterator[tuple[list[Living], Living]]:
    """Two write proxies and a read proxy that see ZooKeeper at `hosts`."""
    own: dict[str, Any] = {"zookeeper": hosts, "namespace": namespace, "port": 0}
    async with asyncio.TaskGroup() as tasks:
        started = [Living(write_incarnation, WriteOptions(**own), tasks) for _ in range(2)]
        started.append(Living(read_incarnation, ReadOptions(**own), tasks))
        try:
            for living in started:
                await living.started()
            yield started[:2], started[2]
        finally:
            for living in started:
                living.task.cancel()


async def test_owners_and_readers_go_on_without_zookeeper_and_everything_comes_back(bookies: BookieCluster) -> None:
    namespace = f"/messaging/{uuid.uuid4().hex}"
    await cluster_init(bookies.hosts, namespace)
    seen: list[int] = []
    at = [0]  # the follower's segment
    async with (
        await ZooKeeperMetadata.connect(bookies.hosts, namespace) as watcher,
        Toxic(bookies.hosts) as toxic,
        proxies(toxic.hosts, namespace) as (writers, reader),
        dlog.connect("dlog://" + ",".join(p.address for p in (*writers, reader))) as client,
    ):
        await client.create("orders", segment_bytes=SEGMENT_BYTES)
        load = Load(client, "orders", window=8)
        last = -1

        async def follow() -> None:
            async for record in client.read("orders", follow=True):
                seen.append(int(record.payload[:12]))
                at[0] = record.dlsn.segment
                if seen[-1] == last:
                    return

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(), name="load")
            following = tasks.create_task(follow(), name="follow")
            await load.acknowledged(100)
            while (before := await segments(client)) < 2:
                await load.acknowledged(100)
            port = toxic.port
            # a follower cannot learn of a segment that began just before the cut until it can read metadata
            while True:
                toxic.refuse()
                toxic.cut()
                if at[0] == await newest(watcher):
                    break
                await toxic.listen(port)
                await load.acknowledged(200)
            await load.acknowledged(50)
            acked = len(load.acked)
            end_s = time.monotonic() + AWAY_S
            while time.monotonic() < end_s:
                await load.acknowledged(50)
            async with asyncio.timeout(PATIENCE_S):  # a reader at the tail goes on
                while len(seen) < acked:
                    await load.acknowledged(1)
            assert not following.done()
            async with asyncio.timeout(PATIENCE_S):  # their sessions end
                while (await watcher.members()).write_proxies:
                    await load.acknowledged(1)

            await toxic.listen(port)
            during = len(load.acked)

            async with asyncio.timeout(PATIENCE_S):
                while not await are_registered(watcher):
                    await load.acknowledged(10)
                while await segments(client) < before + 3:
                    await load.acknowledged(10)
            location = (await client.owner("orders")).location
            owner = next(p for p in writers if p.address == location)
            await owner.kill()
            await load.acknowledged(200)
            assert len(load.acked) > during
            last = max(load.acked) + 100
            await load.acknowledged(300)
            load.stop()
        await load.check()
        assert not load.unknown
        assert seen == list(range(last + 1))
        print(f"away {AWAY_S:g} s; the longest time without an acknowledgement was {load.gap_s:.2f} s")


async def segments(client: dlog.Client) -> int:
    """The number of the newest segment."""
    return max(segment.number for segment in (await client.stat("orders")).segments)


async def newest(metadata: ZooKeeperMetadata) -> int:
    """The number of the newest segment, as its list says."""
    found = await metadata.read(StreamKey(StreamName("orders")))
    assert isinstance(found, Versioned) and isinstance(found.value, StreamMetadata)
    return max(segment.number for segment in found.value.segments)


async def are_registered(watcher: ZooKeeperMetadata) -> bool:
    members = await watcher.members()
    return len(members.write_proxies) == 2 and len(members.read_proxies) == 1
