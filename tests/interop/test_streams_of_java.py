"""dlog's readers on streams that Java's DistributedLog writer wrote, segments on Java bookies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dlog
from dlog.errors import EndedError, TruncatedError
from tests.integration.proxies.processes import ProxyCluster
from tests.interop.java_peer import JavaLogs
from tests.interop.payloads import sized
from tests.interop.streams import AT_ONCE, BY_TIMER, java_read, numbered_records, payloads_of, we_read

pytestmark = pytest.mark.java

COMPRESSED = BY_TIMER | {"compressionType": "lz4"}
WAYS: dict[str, dict[str, Any]] = {"at-once": AT_ONCE, "by-timer": BY_TIMER, "compressed": COMPRESSED}
#: rolled by size
SMALL_SEGMENTS = {"logSegmentRollingMinutes": 0, "maxLogSegmentBytes": 4096}


@pytest.mark.parametrize("way", WAYS)
async def test_a_completed_stream(proxies: ProxyCluster, logs: JavaLogs, stream: str, way: str) -> None:
    records = numbered_records("java", 0, 300, 1000)
    await logs.create(stream)
    writer = await logs.writer(stream, **WAYS[way])
    places = await writer.write(records)
    await writer.close()
    async with dlog.connect(proxies.target) as client:
        seen = await we_read(client, stream)
        assert seen == [(place, *record) for place, record in zip(places, records, strict=True)]
        assert seen == java_read(await logs.read(stream, 300))
        (segment,) = (await client.stat(stream)).segments
    assert segment.records == 300


@pytest.mark.parametrize("way", WAYS)
async def test_a_segment_in_progress_is_read_along(
    proxies: ProxyCluster, logs: JavaLogs, stream: str, way: str
) -> None:
    records = numbered_records("java", 0, 200, 1000)
    await logs.create(stream)
    writer = await logs.writer(stream, **WAYS[way])
    places = await writer.write(records[:10])
    async with dlog.connect(proxies.target) as client:

        async def follow() -> list[bytes]:
            return [bytes(record.payload) async for record in client.read(stream, follow=True, limit=200)]

        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(), name="our reader")
            for first in range(10, 200, 10):
                places += await writer.write(records[first : first + 10])
        assert following.result() == [payload for _, payload in records]
        assert [dlsn for dlsn, _, _ in await we_read(client, stream)] == places
    await writer.close()


@pytest.mark.parametrize("codec", ["NONE", "LZ4"])
async def test_record_sets(proxies: ProxyCluster, logs: JavaLogs, stream: str, codec: str) -> None:
    await logs.create(stream)
    writer = await logs.writer(stream, **AT_ONCE)
    first = await writer.write([(1000, b"plain")])
    written = [sized(n * 31) for n in range(40)]
    places = first + await writer.write_set(1001, written, codec) + await writer.write([(1002, b"plain again")])
    await writer.close()
    async with dlog.connect(proxies.target) as client:
        seen = await we_read(client, stream)
        assert payloads_of(seen) == [b"plain", *written, b"plain again"]
        assert [dlsn for dlsn, _, _ in seen] == places
        assert seen == java_read(await logs.read(stream, 42))
        assert await we_read(client, stream, places[17]) == seen[17:]


@pytest.mark.parametrize("way", ["at-once", "by-timer"])
async def test_what_a_dead_writer_left_in_progress(
    proxies: ProxyCluster, logs: JavaLogs, stream: str, way: str
) -> None:
    """The stream has no owner: dlog's reader finds the tail, with every acknowledged record before it."""
    records = numbered_records("java", 0, 100, 1000)
    await logs.create(stream)
    writer = await logs.writer(stream, **WAYS[way])
    places = await writer.write(records)
    await writer.abort()
    async with dlog.connect(proxies.target) as client:
        seen = await we_read(client, stream)
    assert seen == [(place, *record) for place, record in zip(places, records, strict=True)]


async def test_many_segments_from_every_place_and_txid(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    records = [(txid, payload * 10) for txid, payload in numbered_records("java", 0, 300, 1000)]
    await logs.create(stream)
    places = []
    for first in range(0, 300, 100):
        writer = await logs.writer(stream, **AT_ONCE, **SMALL_SEGMENTS)
        for more in range(first, first + 100, 10):
            places += await writer.write(records[more : more + 10])
        await writer.close()
    async with dlog.connect(proxies.target) as client:
        seen = await we_read(client, stream)
        assert seen == [(place, *record) for place, record in zip(places, records, strict=True)]
        assert len({dlsn.segment for dlsn, _, _ in seen}) > 2
        for at in (0, 1, 99, 150, 299):
            assert await we_read(client, stream, places[at]) == seen[at:]
            assert await we_read(client, stream, dlog.at_txid(records[at][0] - 5)) == seen[at:]


async def test_a_stream_that_java_truncated(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    records = [(txid, payload * 10) for txid, payload in numbered_records("java", 0, 200, 1000)]
    await logs.create(stream)
    writer = await logs.writer(stream, **AT_ONCE, **SMALL_SEGMENTS)
    places = [place for first in range(0, 200, 10) for place in await writer.write(records[first : first + 10])]
    await writer.close()
    cutter = await logs.writer(stream, **AT_ONCE)
    await cutter.write([(9000, b"after")])  # a Java writer truncates once it has a segment
    assert await cutter.truncate(places[75])
    await cutter.close()
    async with dlog.connect(proxies.target) as client:
        seen = await we_read(client, stream)
        assert payloads_of(seen) == [payload for _, payload in records[75:]] + [b"after"]
        assert seen[0][0] == places[75]
        with pytest.raises(TruncatedError):
            await we_read(client, stream, places[3])


async def test_a_stream_that_java_truncated_inside_an_entry(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    """dlog begins at the point; Java's own reader, from the start, with the entry that contains it."""
    await logs.create(stream)
    writer = await logs.writer(stream, **AT_ONCE)
    places = [place for txid in range(5) for place in await writer.write_set(txid, [b"%d" % i for i in range(10)])]
    await writer.close()
    cutter = await logs.writer(stream, **AT_ONCE)
    await cutter.write([(9000, b"after")])
    assert await cutter.truncate(places[23])
    await cutter.close()
    async with dlog.connect(proxies.target) as client:
        seen = await we_read(client, stream)
    assert [dlsn for dlsn, _, _ in seen][:-1] == places[23:]
    assert [record.dlsn for record in await logs.read(stream, 30)] == places[20:]
    assert java_read(await logs.read(stream, 28, places[23])) == seen


async def test_a_stream_that_java_sealed(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    records = numbered_records("java", 0, 50, 1000)
    await logs.create(stream)
    writer = await logs.writer(stream, **AT_ONCE)
    await writer.write(records)
    await writer.seal()
    await writer.close()
    async with dlog.connect(proxies.target) as client:
        async with asyncio.timeout(60):  # a sealed stream ends for followers, too
            assert payloads_of(await we_read(client, stream, follow=True)) == [payload for _, payload in records]
        with pytest.raises(EndedError):
            await client.append(stream, b"too late")


async def test_the_largest_records_of_java(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    records = [(1000, sized(1_040_364)), (1001, b""), (1002, sized(500_000))]
    await logs.create(stream)
    writer = await logs.writer(stream, **AT_ONCE)
    for record in records:
        await writer.write([record])
    await writer.close()
    async with dlog.connect(proxies.target) as client:
        assert [(txid, payload) for _, txid, payload in await we_read(client, stream)] == records


async def test_a_stream_that_java_made_and_nobody_wrote(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    await logs.create(stream)
    async with dlog.connect(proxies.target) as client:
        assert stream in [name async for name in client.streams()]
        assert await we_read(client, stream) == []
        await client.append(stream, b"ours is the first")
        assert payloads_of(await we_read(client, stream)) == [b"ours is the first"]
    assert [record.payload for record in await logs.read(stream, 1)] == [b"ours is the first"]
