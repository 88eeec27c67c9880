"""Three regions, far from each other: each is cut off in turn, and the streams of all go on in the other two.

Every stream needs two regions (`min_regions`) of bookies for an acknowledgement. So whatever was acknowledged is read
back without any one of the regions, and appended to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import dlog
from tests.chaos.cluster import HARNESS, READY_S, Cluster

pytestmark = [pytest.mark.zookeeper, pytest.mark.long]

REGIONS = ("region-1", "region-2", "region-3")
COUNTS = {"bookie": 6, "write": 3, "read": 3}
#: without a region four bookies are left, at least two of each ledger's: enough for a segment and for a take-over
SETTINGS: dict[str, Any] = {"ensemble": 4, "write_quorum": 4, "ack_quorum": 3, "min_regions": 2}
DISTANCE_S = 0.01
RECORDS = 10
PATIENT: dict[str, Any] = {"append_deadline_s": 240.0, "request_deadline_s": 240.0, "read_deadline_s": 240.0}


class History:
    """What each stream acknowledged, in order, and what its clients read."""

    def __init__(self, clients: dict[str, dlog.Client]) -> None:
        self._clients = clients
        self._acknowledged: dict[str, list[bytes]] = {region: [] for region in clients}

    async def append(self, stream: str, region: str) -> None:
        """Append to the stream of one region from another one, one record after the other."""
        done = self._acknowledged[stream]
        for _ in range(RECORDS):
            payload = b"%s from %s: %d" % (stream.encode(), region.encode(), len(done))
            await self._clients[region].append(stream, payload)
            done.append(payload)

    async def check(self, stream: str, region: str) -> str:
        """Read all of the stream from a region: what was acknowledged, once and in order. Returns the address of the
        read proxy that served it."""
        served_by = ""
        found: list[bytes] = []
        reader = self._clients[region].read(stream, follow=False)
        async for record in reader:
            found.append(bytes(record.payload))
            session = reader._progress.session
            assert session is not None
            if session._connection is not None:
                served_by = session._connection.address
        assert found == self._acknowledged[stream]
        return served_by


def separate(cluster: Cluster) -> None:
    """Lengthen the links between regions."""
    for source in cluster.parts:
        for target in cluster.parts:
            here, there = cluster.region_of(source), cluster.region_of(target)
            if here != there and here and there:
                cluster.links.conditions(source, target).delay_s = DISTANCE_S


def cut_off(cluster: Cluster, region: str) -> None:
    """Hold all that enters or leaves the region, ZooKeeper's and clients' connections, too."""
    for source in (*cluster.parts, HARNESS):
        for target in cluster.parts:
            if (cluster.region_of(source) == region) != (cluster.region_of(target) == region):
                conditions = cluster.links.conditions(source, target)
                conditions.hold_requests = conditions.hold_replies = 1
    cluster.links.changed()


async def wait_registered(cluster: Cluster, names: Sequence[str]) -> None:
    """Wait until all parts are members again, each in its region."""
    wanted = {cluster.addresses[name]: cluster.region_of(name) for name in names}
    async with asyncio.timeout(READY_S):
        while not wanted.items() <= (await members(cluster)).items():  # noqa: ASYNC110 - other processes register, no event tells
            await asyncio.sleep(0.2)


async def members(cluster: Cluster) -> dict[str, str]:
    """The region of each part that is registered and can be written, by address."""
    found = (await cluster.run_dlog("cluster", "status", "--json"))["members"]
    return {member["address"]: member["region"] for member in found if member["state"] != "read-only"}


async def test_every_stream_goes_on_without_any_one_of_three_regions(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        cluster = Cluster(tmp_path / "cluster", tasks, mounts=False, counts=COUNTS, regions=len(REGIONS))
        try:
            await cluster.start()
            separate(cluster)
            await _cut_each_region_off(cluster)
        finally:
            await cluster.close()


async def _cut_each_region_off(cluster: Cluster) -> None:
    parts = [name for name in cluster.parts if cluster.region_of(name)]
    async with AsyncExitStack() as stack:
        clients = {
            region: await stack.enter_async_context(dlog.connect(cluster.target, region=region, **PATIENT))
            for region in REGIONS
        }
        history = History(clients)
        for number, region in enumerate(REGIONS, 1):
            await clients[region].create(region, **SETTINGS)
            await history.append(region, region)
            assert (await clients[region].owner(region)).location == cluster.addresses[f"write-{number}"]
            for other, reader in enumerate(REGIONS, 1):
                assert await history.check(region, reader) == cluster.addresses[f"read-{other}"]
        for cut in REGIONS:
            cut_off(cluster, cut)
            left = [region for region in REGIONS if region != cut]
            async with asyncio.TaskGroup() as appending:
                for stream in REGIONS:
                    region = left[0] if stream == cut else stream
                    appending.create_task(history.append(stream, region), name=f"append to {stream}")
            writers = {cluster.addresses[f"write-{region[-1]}"] for region in left}
            for stream in REGIONS:
                for region in left:
                    await history.check(stream, region)
                assert (await clients[left[0]].owner(stream)).location in writers
            cluster.heal()
            await wait_registered(cluster, parts)
        for stream in REGIONS:
            for region in REGIONS:
                await history.check(stream, region)
