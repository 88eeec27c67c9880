"""Java's DistributedLog reader on streams that dlog's proxies wrote, segments on Java bookies (its reader needs v3)."""

from __future__ import annotations

import asyncio

import pytest

import dlog
from dlog.model.dlsn import of
from dlog.wire.entry import RECORD_BYTES_MAX
from tests.integration.proxies.processes import ProxyCluster
from tests.interop.java_peer import JavaError, JavaLogs, JavaPeer
from tests.interop.payloads import long_numbered, numbered, sized
from tests.interop.streams import AT_ONCE, java_read, payloads_of, we_read

pytestmark = pytest.mark.java

END_OF_STREAM, NOT_FOUND = 512, 510
SEGMENT_BYTES = 65_536  # the smallest allowed
#: for the Java reader: it also counts positions, and one that does not follow the last is an error
STRICT = {"positionGapDetectionEnabled": True}


async def test_record_sets_of_a_completed_stream(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    written = numbered("ours", 0, 1000)
    async with dlog.connect(proxies.target) as client:
        await client.create(stream)
        rows: list[dlog.BatchResult] = []
        await client.append_many(stream, written, on_written=rows.append)
        await client.hand_over(stream)
        seen = await we_read(client, stream)
    found = await logs.read(stream, 1000, **STRICT)
    assert java_read(found) == seen
    told = [dlsn for row in rows for dlsn in row.dlsns()]
    assert payloads_of(seen) == written and [dlsn for dlsn, _, _ in seen] == told
    assert [record.sequence for record in found] == list(range(1000))
    assert [record.position for record in found] == list(range(1, 1001))


async def test_records_appended_one_by_one(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    written = numbered("ours", 0, 60)
    async with dlog.connect(proxies.target) as client:
        await client.create(stream)
        places = [await client.append(stream, payload, txid=500 + i) for i, payload in enumerate(written)]
        found = await logs.read(stream, 60, **STRICT)  # in progress: control records carry the LAC
    assert java_read(found) == [(places[i], 500 + i, written[i]) for i in range(60)]


async def test_from_every_place_of_an_entry(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    async with dlog.connect(proxies.target) as client:
        await client.create(stream)
        for first in range(0, 40, 10):
            await client.append_batch(stream, numbered("ours", first, 10))
        seen = await we_read(client, stream)
        for at in range(0, 40, 3):
            assert java_read(await logs.read(stream, 40 - at, seen[at][0])) == seen[at:]
        # behind the last record of an entry comes its dedup trailer, then the next entry
        segment, entry, slot = seen[9][0]
        assert java_read(await logs.read(stream, 30, of(segment, entry, slot + 1))) == seen[10:]


async def test_from_a_txid(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    async with dlog.connect(proxies.target) as client:
        await client.create(stream, segment_bytes=SEGMENT_BYTES)
        for i in range(60):
            await client.append(stream, b"%04d" % i * 1000, txid=1000 + 10 * i)
        await client.hand_over(stream)
        seen = await we_read(client, stream)
        assert len((await client.stat(stream)).segments) > 2
        for txid, first in ((0, 0), (1000, 0), (1001, 1), (1255, 26), (1300, 30), (1590, 59)):
            assert await we_read(client, stream, dlog.at_txid(txid)) == seen[first:]
            assert java_read(await logs.read(stream, 60 - first, txid)) == seen[first:]
            assert await logs.seek(stream, txid) == seen[first][0]


async def test_many_segments(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    written = long_numbered("ours", 0, 200)
    async with dlog.connect(proxies.target) as client:
        await client.create(stream, segment_bytes=SEGMENT_BYTES)
        for first in range(0, 200, 10):
            await client.append_batch(stream, written[first : first + 10])
        await client.hand_over(stream)
        seen = await we_read(client, stream)
    found = await logs.read(stream, 200, **STRICT)
    assert java_read(found) == seen and payloads_of(seen) == written
    assert [record.sequence for record in found] == list(range(200))
    told = await logs.describe(stream, records=True)
    segments = told["segments"]
    assert [segment["number"] for segment in segments] == list(range(1, len(segments) + 1))
    assert len(segments) > 2
    # a segment that a roll had just begun is left to the next owner
    assert all(segment["completed"] for segment in segments[:-1]) and (
        segments[-1]["completed"] or not segments[-1]["records"]
    )
    assert (told["count"], told["last"], told["last_txid"]) == (200, list(seen[-1][0]), seen[-1][1])


async def test_the_tail_of_a_segment_in_progress(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    """Each record reaches the Java reader although nothing is written after it."""
    written = numbered("ours", 0, 30)
    async with dlog.connect(proxies.target) as client:
        await client.create(stream)
        first = await client.append(stream, written[0])
        reader = await logs.reader(stream, **STRICT)
        assert [record.dlsn for record in await reader.take(1)] == [first]
        for payload in written[1:]:
            place = await client.append(stream, payload)
            (record,) = await reader.take(1)
            assert (record.dlsn, record.payload) == (place, payload)
        await reader.close()


async def test_the_tail_across_segments(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    written = long_numbered("ours", 0, 200)
    async with dlog.connect(proxies.target) as client:
        await client.create(stream, segment_bytes=SEGMENT_BYTES)
        await client.append(stream, written[0])
        reader = await logs.reader(stream, **STRICT)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(reader.take(200), name="java's reader")
            for first in range(1, 200, 7):
                await client.append_many(stream, written[first : first + 7])
        await reader.close()
        assert java_read(reading.result()) == await we_read(client, stream)
        assert [record.payload for record in reading.result()] == written
        assert len((await client.stat(stream)).segments) > 3


async def test_a_reader_that_stays_when_the_owner_is_killed(
    java: JavaPeer, own_proxies: ProxyCluster, stream: str
) -> None:
    logs = JavaLogs(java, own_proxies.bookies.hosts, own_proxies.namespace)
    written = numbered("ours", 0, 300)
    async with dlog.connect(own_proxies.target) as client:
        await client.create(stream)
        await client.append(stream, written[0])
        reader = await logs.reader(stream, **STRICT)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(reader.take(300), name="java's reader")
            for number, payload in enumerate(written[1:]):
                if number == 150:
                    own_proxies.writer_at((await client.owner(stream)).location).kill()
                await client.append(stream, payload)
        await reader.close()
        assert java_read(reading.result()) == await we_read(client, stream)
        assert [record.payload for record in reading.result()] == written


async def test_a_truncated_stream(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    async with dlog.connect(proxies.target) as client:
        await client.create(stream, segment_bytes=SEGMENT_BYTES)
        for first in range(0, 200, 10):
            await client.append_batch(stream, long_numbered("ours", first, 10))
        await client.hand_over(stream)
        seen = await we_read(client, stream)
        await client.truncate(stream, seen[75][0])
        left = await we_read(client, stream)
        assert left == seen[75:]
        assert java_read(await logs.read(stream, 125, seen[75][0])) == left
        # from the start Java begins with the entry that contains the point, on its own streams too
        assert java_read(await logs.read(stream, 130)) == seen[70:]
        assert java_read(await logs.read(stream, 10, seen[150][0])) == seen[150:160]
        told = (await logs.describe(stream))["segments"]
        assert told[0]["truncation"] == "PARTIALLY_TRUNCATED" and told[0]["min"] == list(seen[75][0])
        await client.append(stream, b"after")
        assert java_read(await logs.read(stream, 126, seen[75][0])) == await we_read(client, stream)


async def test_a_sealed_stream_ends_for_java(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    written = numbered("ours", 0, 50)
    async with dlog.connect(proxies.target) as client:
        await client.create(stream)
        await client.append_many(stream, written)
        await client.seal(stream)
        await client.hand_over(stream)  # otherwise Java would notice the lock first
        seen = await we_read(client, stream)
    reader = await logs.reader(stream, **STRICT)
    records, ended = await reader.next(100, 60.0)
    assert ended and java_read(records) == seen and payloads_of(seen) == written
    told = await logs.describe(stream, records=True)
    assert told["sealed"] and told["count"] == 50
    (refusal,) = await (await logs.writer(stream, **AT_ONCE)).try_write([(2**62, b"too late")])
    assert isinstance(refusal, JavaError) and refusal.code == END_OF_STREAM


async def test_the_largest_batches_and_records(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    written = [sized(RECORD_BYTES_MAX - 20), b"", sized(300_000), b"x"]
    async with dlog.connect(proxies.target) as client:
        await client.create(stream)
        for payload in written:
            await client.append(stream, payload)
        await client.append_batch(stream, [sized(10_000)] * 100)
        await client.hand_over(stream)
        seen = await we_read(client, stream)
    assert payloads_of(seen) == written + [sized(10_000)] * 100
    assert java_read(await logs.read(stream, 104, **STRICT)) == seen


async def test_a_deleted_stream_is_gone_for_java(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    async with dlog.connect(proxies.target) as client:
        await client.create(stream)
        await client.append(stream, b"gone")
        await client.delete(stream)
    with pytest.raises(JavaError) as refusal:
        await logs.read(stream, 1)
    assert refusal.value.code == NOT_FOUND
