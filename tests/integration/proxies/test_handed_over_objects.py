"""A write proxy that stops in order, with streams in objects: the controller goes last, and others upload the rest."""

from __future__ import annotations

import json

import pytest

import dlog
from dlog.model.ids import METADATA_STREAM
from tests.integration.proxies.processes import ProxyCluster

pytestmark = pytest.mark.zookeeper

STREAMS = [f"stream-{n}" for n in range(12)]


async def test_the_host_of_the_controller_hands_the_metadata_stream_over_last(
    cluster_with_objects: ProxyCluster,
) -> None:
    cluster = cluster_with_objects
    async with dlog.connect(cluster.target) as client:
        for name in STREAMS:
            await client.create(name, store="s3")
            await client.append(name, b"before")
        host = cluster.writer_at((await client.owner(METADATA_STREAM)).location)
        assert host.stop() == 0
        events = [json.loads(line) for line in host.log().splitlines() if line.startswith("{")]
        released = [event["stream"] for event in events if event["event"] == "stream.released"]
        assert released[-1] == METADATA_STREAM and len(released) > 1, "the others asked its controller for their ends"
        for name in STREAMS:
            await client.append(name, b"after")
            assert [record.payload async for record in client.read(name)] == [b"before", b"after"]
