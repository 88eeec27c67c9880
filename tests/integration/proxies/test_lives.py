"""A stream that is deleted and created again is another incarnation: no request for the first changes the second."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import dlog
from dlog.events import SegmentDeleted
from dlog.machine import Missing, Versioned
from dlog.model.ids import SegmentNumber, StreamName
from dlog.model.segment import StreamKey, StreamMetadata
from dlog.model.sink import SinkBatch
from dlog.wire.digest import crc32c
from dlog.wire.entry import build_record_set
from dlog.wire.proxy import (
    Alter,
    Create,
    Delete,
    Failed,
    HandOver,
    ImportSegments,
    MoveSegment,
    Seal,
    SinkWrite,
    Truncate,
    Written,
)
from proxies.write.admin import REMOVED_MAX
from tests.deleting import mark_deleted
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.processes import ProxyCluster
from tests.integration.proxies.raw import Raw, RawProducer

MEMORY: dlog.SettingsChanges = {"store": "memory"}
STREAM = StreamName("orders")
BODY = build_record_set([b"of a sink"])


def questions_of(incarnation: str) -> list[tuple[type[Any], tuple[Any, ...]]]:
    """One request of each kind that changes the stream of this incarnation, without its request number."""
    sink = ("sink", 0, "q", 0, None)
    return [
        (Seal, (STREAM, incarnation)),
        (Alter, (STREAM, incarnation, 0, {"retention_s": 1.0})),
        (Truncate, (STREAM, incarnation, (1, 0, 0))),
        (HandOver, (STREAM, incarnation)),
        (MoveSegment, (STREAM, incarnation, 1, "ledger", "1", "cold", "x")),
        (ImportSegments, (STREAM, incarnation, "", 0, "", 0, None, None, (("1", 0),))),
        (SinkWrite, (STREAM, incarnation, *sink, 1, None, crc32c(BODY), BODY)),
    ]


async def stream_now(local: LocalProxies) -> StreamMetadata:
    seen = await local.metadata.read(StreamKey(STREAM))
    assert isinstance(seen, Versioned)
    value: StreamMetadata = seen.value
    return value


async def test_what_was_meant_for_a_deleted_stream_changes_nothing_of_the_next(local: LocalProxies) -> None:
    writer = await local.write_proxy()
    async with Raw(writer.address) as raw:
        await raw.ask(Create, STREAM, MEMORY)
        incarnation = (await raw.incarnation(STREAM))["incarnation"]
        assert isinstance(await RawProducer(raw, STREAM).write([b"first"]), Written)
        await raw.ask(Delete, STREAM)
        await raw.ask(Create, STREAM, MEMORY)
        assert isinstance(await RawProducer(raw, STREAM).write([b"second"]), Written)
        before = await stream_now(local)
        for cls, fields in questions_of(incarnation):
            answer = await raw.ask_exactly(cls, *fields)
            assert isinstance(answer, Failed), cls
            assert answer.code == 510, cls
        assert await raw.ask_exactly(Delete, STREAM, incarnation, False) == {"segments": 0, "left": 0}
        assert await raw.ask_exactly(Delete, STREAM, incarnation, True) == {"segments": 0, "left": 0}
        assert await stream_now(local) == before
        assert (await stream_now(local)).incarnation == before.incarnation != incarnation


async def test_a_long_stream_is_deleted_and_made_again_at_once(local: LocalProxies) -> None:
    """The segments are deleted after the answer to the deletion; the creation waits until they are gone."""
    writer = await local.write_proxy()
    async with dlog.connect(writer.address) as client:
        await client.create(STREAM, **MEMORY)
        await client.append(STREAM, b"first")
        await client.hand_over(STREAM)
        seen = await local.metadata.read(StreamKey(STREAM))
        assert isinstance(seen, Versioned)
        first = seen.value.segments[-1].number + 1
        more = [
            replace(seen.value.segments[-1], number=SegmentNumber(number), name=f"x{number}", completed=True)
            for number in range(first, first + REMOVED_MAX)
        ]
        assert isinstance(
            await local.metadata.compare_and_set(StreamKey(STREAM), seen.value.with_segment(*more), seen.version),
            Versioned,
        )
        await client.delete(STREAM)
        assert isinstance(await local.metadata.read(StreamKey(STREAM)), Missing)
        await client.create(STREAM, **MEMORY)
        await client.append(STREAM, b"second")
    assert len((await stream_now(local)).segments) == 1
    deleted = await writer.events.of(SegmentDeleted, REMOVED_MAX + 1)
    assert len(deleted) == REMOVED_MAX + 1


async def test_a_creation_makes_one_life_however_often_and_late_it_comes(local: LocalProxies) -> None:
    writer = await local.write_proxy()
    async with Raw(writer.address) as raw:
        told = await raw.incarnation(STREAM)
        assert told == {"incarnation": None, "deleted": False, "deletions": 0}
        create = (Create, STREAM, "a1", told["deletions"], MEMORY)
        made = await raw.ask_exactly(*create)
        assert not isinstance(made, Failed)
        assert await raw.ask_exactly(*create) == made
        other = await raw.ask_exactly(Create, STREAM, "b2", told["deletions"], MEMORY)
        assert isinstance(other, Failed)
        assert other.code == 522
        await raw.ask(Delete, STREAM)
        late = await raw.ask_exactly(*create)
        assert isinstance(late, Failed)
        assert late.code == 555
        assert (await raw.incarnation(STREAM))["incarnation"] is None


async def test_a_deletion_that_was_interrupted_is_finished_by_the_next_and_by_a_creation(local: LocalProxies) -> None:
    writer = await local.write_proxy()
    async with dlog.connect(f"dlog://{writer.address}") as client:
        for finish in ("delete", "create"):
            await client.create(STREAM, **MEMORY)
            await client.append(STREAM, b"x")
            await client.hand_over(STREAM)
            await mark_deleted(local.metadata, STREAM)
            assert local.state.segments
            with pytest.raises(dlog.StreamNotFoundError):
                await client.stat(STREAM)
            with pytest.raises(dlog.StreamNotFoundError):
                await client.seal(STREAM)
            if finish == "delete":
                await client.delete(STREAM)
                assert await local.metadata.read(StreamKey(STREAM)) == Missing()
                assert not local.state.segments
        await client.create(STREAM, **MEMORY)
        assert not local.state.segments
        assert (await client.stat(STREAM)).records == 0


async def test_a_life_is_told_and_may_be_named_later(local: LocalProxies) -> None:
    writer = await local.write_proxy()
    async with dlog.connect(f"dlog://{writer.address}") as client:
        with pytest.raises(dlog.StreamNotFoundError):
            await client.incarnation(STREAM)
        await client.create(STREAM, **MEMORY)
        incarnation = await client.incarnation(STREAM)
        assert (await client.stat(STREAM)).incarnation == incarnation
        await client.delete(STREAM)
        await client.create(STREAM, **MEMORY)
        batch = SinkBatch("sink", 0, "q", 0)
        with pytest.raises(dlog.StreamNotFoundError):
            await client.append_once(STREAM, [b"late"], batch, incarnation=incarnation)
        assert (await client.stat(STREAM)).last_dlsn is None


@pytest.mark.zookeeper
async def test_what_lies_before_the_door_of_a_frozen_owner_does_not_touch_the_next_stream(
    cluster: ProxyCluster,
) -> None:
    async with dlog.connect(cluster.target) as client:
        await client.create(STREAM)
        await client.append(STREAM, b"first")
        incarnation = await client.incarnation(STREAM)
        owner = cluster.writer_at((await client.owner(STREAM)).location)
        async with Raw(owner.address) as raw:
            producer = RawProducer(raw, STREAM)
            await producer.write([b"taken"])
            deletions = (await raw.incarnation(STREAM))["deletions"]
            owner.freeze()
            batches = [producer.batch([b"late %d" % n]) for n in range(5)]
            newcomer = RawProducer(raw, STREAM)  # the next owner cannot know it
            newcomer.incarnation = incarnation
            batches += [newcomer.batch([b"later %d" % n]) for n in range(2)]
            late: list[Any] = [cls(raw.next_request(), *fields) for cls, fields in questions_of(incarnation)]
            late.append(Delete(raw.next_request(), STREAM, incarnation, True))
            late.append(Create(raw.next_request(), "another", "a1", deletions, {}))
            raw.say(*batches, *late)
            await client.delete(STREAM)
            await client.create(STREAM)
            await client.append(STREAM, b"second")
            now = await client.stat(STREAM)
            owner.thaw()
            async with asyncio.timeout(90.0):
                written = [await producer.answer(batch.request) for batch in batches]
                for message in late:
                    await raw.hear(object, request=message.request)
        assert all(isinstance(answer, Failed) for answer in written), written
        with pytest.raises(dlog.StreamNotFoundError):
            await client.stat("another")
        after = await client.stat(STREAM)
        for name in ("incarnation", "is_sealed", "settings", "first_dlsn", "owner"):
            assert getattr(after, name) == getattr(now, name)
        await client.append(STREAM, b"third")
        assert [record.payload async for record in client.read(STREAM)] == [b"second", b"third"]
