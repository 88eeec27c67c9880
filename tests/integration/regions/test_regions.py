"""Regions on three real Kafka brokers, and where cheap on a directory too: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from dlog.client.regions import Region, Regions, RegionView
from dlog.errors import (
    ClosedError,
    DamagedError,
    DLogError,
    InvalidRequestError,
    RecordTooLargeError,
    TruncatedError,
    UnavailableError,
)
from dlog.events import Event, RegionAppendInDoubt, RegionFenced, RegionRecordIgnored
from dlog.io.kafka_producer import TopicProducer
from dlog.io.kafka_settings import KafkaTopicsOptions, topic_configs
from dlog.io.kafka_topics import KafkaTopics, TopicOwner
from dlog.region.messages import LostEntries
from dlog.region.names import region_number
from dlog.region.options import RegionOptions
from dlog.region.owner import RegionFencedError
from dlog.region.topics import OwnerRefusedError, RecordBytes, TopicNotFoundError, UnsafeTopicError
from dlog.wire.region import RecordKind, decode_record
from tests.integration.cluster import ROOT
from tests.integration.regions.kafka_cluster import KafkaCluster, admin, leader, read_all

pytestmark = [pytest.mark.peers, pytest.mark.long]
PATIENCE_S = 120.0  # of a test that waits for brokers or commands
NAMESPACE = "integration"
BYTES = "org.apache.kafka.common.serialization.BytesDeserializer"


@pytest.fixture(params=["kafka", "directory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of topics: the brokers', or those of an empty directory."""
    if request.param == "directory":
        return f"file://{tmp_path}/topics"
    brokers: KafkaCluster = request.getfixturevalue("brokers")
    return brokers.address


@asynccontextmanager
async def regions_at(
    address: str, *, kafka: KafkaTopicsOptions | None = None, events: list[Event] | None = None
) -> AsyncIterator[Regions]:
    """Regions that clean only when asked to, as another process would have them."""
    told: list[Event] = [] if events is None else events
    async with Regions(address, NAMESPACE, kafka=kafka, clean_every_s=None, on_event=told.append) as regions:
        yield regions


def topic_of(region: str, kind: str = "data") -> str:
    return f"{NAMESPACE}.{kind}.{region}"


class Shadow:
    """What a region must have: every acknowledged record by table and sequence, and the marks."""

    def __init__(self) -> None:
        self.records: dict[tuple[int, int], bytes] = {}
        self.marks: Counter[int] = Counter()
        self.watermarks: dict[int, int] = {}

    def acknowledge(self, entries: Sequence[tuple[int, bytes]], sequences: Sequence[int]) -> None:
        """Note an answered write: no sequence was given out before."""
        for (table, payload), sequence in zip(entries, sequences, strict=True):
            assert (table, sequence) not in self.records, "a sequence is given out once"
            self.records[table, sequence] = payload

    async def write(self, region: Region, *entries: tuple[int, bytes]) -> None:
        self.acknowledge(entries, await region.write_many(entries))

    async def write_some(self, region: Region, table: int, count: int) -> None:
        """Write records one by one."""
        for n in range(count):
            await self.write(region, (table, b"%d: record %d" % (table, n)))

    async def mark(self, region: Region, table: int, below: int) -> None:
        await region.mark_deleted(table, below)
        self.marks[table] = below

    def next_of(self, table: int) -> int:
        return 1 + max((sequence for found, sequence in self.records if found == table), default=0)

    def live(self) -> dict[tuple[int, int], bytes]:
        """The records that are not marked."""
        return {(t, s): payload for (t, s), payload in self.records.items() if s >= self.marks[t]}

    async def note_watermarks(self, regions: Regions, region: str) -> None:
        """Take the high watermarks from the records in the topic. Called before records are deleted."""
        for stored in await read_all(regions.topics, topic_of(region)):
            record = decode_record(stored.key, stored.value)
            if record.kind is RecordKind.ENTRY:
                self.watermarks[record.table] = stored.offset + 1

    async def check(self, region: Region | RegionView) -> None:
        """Check the state, and that reading gives every live record once, in order."""
        tables = {table for table, _ in self.records}
        state = {table: (meta.next_seq_num, meta.latest_marked_deleted) for table, meta in region.tables.items()}
        assert state == {table: (self.next_of(table), self.marks[table]) for table in tables}
        if self.watermarks:
            assert {t: meta.current_high_watermark for t, meta in region.tables.items()} == self.watermarks
        found = await read_entries(region)
        assert {(table, sequence): payload for table, sequence, payload in found} == self.live()
        assert len(found) == len(self.live()), "every record is read once"
        for table in tables:
            sequences = [sequence for other, sequence, _ in found if other == table]
            assert sequences == sorted(sequences)


async def read_entries(
    region: Region | RegionView, starts: Mapping[int, int] | None = None, lost: list[LostEntries] | None = None
) -> list[tuple[int, int, bytes]]:
    """Tables, sequences and payloads. lost: gets what is lost; without it that raises."""
    entries = [one async for one in region.read(starts, on_lost=None if lost is None else lost.append)]
    offsets = [one.offset for one in entries]
    assert offsets == sorted(set(offsets)), "records are read in the order of the topic"
    return [(one.table, one.sequence, one.payload) for one in entries]


# ---- opening again ---------------------------------------------------------------------------------------------------


async def test_a_region_opens_with_the_state_that_it_had(address: str) -> None:
    name, shadow = "reopened", Shadow()
    async with regions_at(address) as regions:
        region = await regions.open(name, create=True)
        for n in range(35):  # 70 records of table 1, so that more than its first one is mapped
            await shadow.write(
                region, (1, b"%d a" % n), (1, b"%d b" % n), *((2, b"%d.%d" % (n, i)) for i in range(n % 3))
            )
        async with asyncio.TaskGroup() as group:
            for table in (3, 4, 2**64 - 1):
                group.create_task(shadow.write_some(region, table, 5))
        await shadow.note_watermarks(regions, name)
        await shadow.check(region)
    for below in (65, 70, 71):
        async with regions_at(address) as regions:
            region = await regions.open(name)
            await shadow.check(region)
            await shadow.mark(region, 1, below)
            await shadow.mark(region, 2, shadow.next_of(2))
            await shadow.mark(region, 3, 4)
            await shadow.check(region)
            await region.clean()
            assert region.tables[1].latest_marked_deleted == below
            await shadow.check(region)
    async with regions_at(address) as regions:
        view = await regions.view(name)
        await shadow.check(view)
        assert view.first > 0, "cleaning deleted the front"
        region = await regions.open(name)
        await shadow.write_some(region, 2, 3)
        await shadow.note_watermarks(regions, name)
        await shadow.check(region)


async def test_a_region_in_which_everything_is_flushed_reads_as_empty(address: str) -> None:
    name, shadow = "flushed", Shadow()
    async with regions_at(address) as regions:
        region = await regions.open(name, create=True)
        assert await read_entries(region) == []
        for table in (1, 2):
            await shadow.write_some(region, table, 3)
            await shadow.mark(region, table, 4)
        await region.clean()
    async with regions_at(address) as regions:
        for region_or_view in (await regions.view(name), await regions.open(name)):
            await shadow.check(region_or_view)
            assert await read_entries(region_or_view, {1: 4, 2: 0}) == []
        region = await regions.open(name)
        assert await region.write(1, [b"after"]) == (4,)
        assert await read_entries(region) == [(1, 4, b"after")]


async def test_an_error_of_the_body_leaves_regions_as_itself_and_closes_the_topics(address: str) -> None:
    with pytest.raises(InvalidRequestError, match="a mark lies between the last mark and the next record"):
        async with regions_at(address) as regions:
            region = await regions.open("body-fails", create=True)
            await region.write(1, [b"a"])
            await region.mark_deleted(1, 99)
    if isinstance(regions.topics, KafkaTopics):
        with pytest.raises(ClosedError):
            await regions.topics.offsets(topic_of("body-fails"))


# ---- two owners, and lost answers ------------------------------------------------------------------------------------


class Appends:
    """Changes the appends of some topics: delegates to `append`, which a test replaces. Topic ids are not checked."""

    def __init__(self, regions: Regions, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics = regions.topics
        self.really = regions.topics.append
        monkeypatch.setattr(regions.topics, "append", self._append)

    async def _append(
        self,
        topic: str,
        records: Sequence[RecordBytes],
        owner: TopicOwner | None = None,
        *,
        topic_id: str = "",
        checks_first: bool = True,
    ) -> int:
        assert owner is None
        return await self.append(topic, records)

    async def append(self, topic: str, records: Sequence[RecordBytes]) -> int:
        return await self.really(topic, records)


def is_batch(records: Sequence[RecordBytes]) -> bool:
    """Whether an append is of entries."""
    return records[0][0][0] == RecordKind.ENTRY


class HeldAppends(Appends):
    """Holds batches from `hold` on until `wake`, as a process that stands still does."""

    def __init__(self, regions: Regions, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(regions, monkeypatch)
        self.is_held = asyncio.Event()
        self.wake = asyncio.Event()
        self.wake.set()

    async def append(self, topic: str, records: Sequence[RecordBytes]) -> int:
        if is_batch(records) and not self.wake.is_set():
            self.is_held.set()
            await self.wake.wait()
        return await self.really(topic, records)


class HeldOwner:
    """As HeldAppends, where appends name their owner. error: of the batch that was held."""

    def __init__(self, regions: Regions, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_held = asyncio.Event()
        self.wake = asyncio.Event()
        self.wake.set()
        self.error: BaseException | None = None
        self._really: Any = regions.topics.append
        monkeypatch.setattr(regions.topics, "append", self._append)

    async def _append(
        self, topic: str, records: Sequence[RecordBytes], owner: TopicOwner | None = None, **checks: Any
    ) -> int:
        assert isinstance(self._really.__self__, KafkaTopics)
        is_held = is_batch(records) and not self.wake.is_set()
        if is_held:
            self.is_held.set()
            await self.wake.wait()
        try:
            offset: int = await self._really(topic, records, owner, **checks)
            return offset
        except OwnerRefusedError as error:
            self.error = error
            raise


async def test_an_owner_that_was_taken_over_writes_no_more(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, shadow, events = "taken-over", Shadow(), list[Event]()
    refused: list[RegionFencedError] = []
    async with regions_at(address, events=events) as first, regions_at(address) as second:
        appends = HeldAppends(first, monkeypatch)
        old = await first.open(name, create=True)
        await shadow.write_some(old, 1, 3)

        async def write(n: int) -> None:
            with pytest.raises(RegionFencedError) as caught:
                await old.write(1, [b"stale %d" % n])
            refused.append(caught.value)

        async with asyncio.TaskGroup() as group:
            appends.wake.clear()
            for n in range(5):
                group.create_task(write(n))
            await appends.is_held.wait()
            new = await second.open(name)
            await shadow.write_some(new, 1, 3)
            appends.wake.set()
        with pytest.raises(RegionFencedError):
            await old.write(1, [b"stale"])
        assert old.has_ended
        assert [error.outcome_unknown for error in refused] == [False] * 5
        assert any(isinstance(event, RegionFenced) for event in events)
        await shadow.write_some(new, 2, 3)
        await shadow.check(new)
        again = await first.open(name)
        await shadow.check(again)
        with pytest.raises(RegionFencedError):
            await new.write(1, [b"stale"])


@asynccontextmanager
async def regions_of_format(address: str, format: int) -> AsyncIterator[Regions]:
    async with Regions(address, NAMESPACE, options=RegionOptions(format=format), clean_every_s=None) as regions:
        yield regions


@pytest.mark.parametrize("format", [0, 1])
async def test_an_owner_whose_region_was_recreated_acknowledges_nothing(address: str, format: int) -> None:
    name = f"recreated-{format}"
    async with regions_of_format(address, format) as first, regions_of_format(address, format) as second:
        old = await first.open(name, create=True)
        for _ in range(3):
            await old.write(1, [b"old"])
        await second.delete(name)
        heir = await second.open(name, create=True)
        for n in range(3):  # the topic ends where the old one ended
            assert await heir.write(1, [b"new"]) == (n + 1,)
        for table in (1, 2):
            with pytest.raises((TopicNotFoundError, RegionFencedError)):
                await old.write(table, [b"late"])
        with suppress(DLogError):
            await old.close()
        assert await heir.write(1, [b"newer"]) == (4,)
        await heir.close()
        expected = [(1, 1, b"new"), (1, 2, b"new"), (1, 3, b"new"), (1, 4, b"newer")]
        assert await read_entries(await second.view(name)) == expected


async def test_a_region_of_which_one_topic_is_left_is_opened_or_created(address: str) -> None:
    name = "half"
    async with regions_at(address) as regions:
        region = await regions.open(name, create=True)
        await region.write(1, [b"old"])
        await region.close()  # saves a snapshot
        await regions.topics.delete(topic_of(name, "meta"))
        assert await read_entries(await regions.view(name)) == [(1, 1, b"old")]
        region = await regions.open(name)
        assert await region.write(1, [b"older"]) == (2,)
        await region.close()
        left = await regions.topics.topic_id(topic_of(name, "meta"))
        await regions.topics.delete(topic_of(name))
        with pytest.raises(TopicNotFoundError, match="there is no such region"):
            await regions.open(name)
        heir = await regions.open(name, create=True)
        assert await heir.write(1, [b"new"]) == (1,)
        await heir.save()
        assert left is not None
        await regions.topics.delete(topic_of(name, "meta"), left)  # as a deletion that was frozen
        await heir.write(1, [b"newer"])
        await heir.save()
        assert await read_entries(await regions.view(name)) == [(1, 1, b"new"), (1, 2, b"newer")]


@pytest.mark.parametrize("format", [0, 1])
async def test_an_append_to_a_region_that_is_recreated_meanwhile_is_not_acknowledged(
    brokers: KafkaCluster, monkeypatch: pytest.MonkeyPatch, format: int
) -> None:
    name, is_held, wake = f"recreated-meanwhile-{format}", asyncio.Event(), asyncio.Event()
    async with (
        regions_of_format(brokers.address, format) as first,
        regions_of_format(brokers.address, format) as second,
    ):
        old = await first.open(name, create=True)
        await old.write(1, [b"old"])
        assert isinstance(first.topics, KafkaTopics)
        (producer,) = [one for one in first.topics._producers.values() if one.topic == topic_of(name)]
        really = producer.queue

        async def queue(batch: Any) -> Any:
            is_held.set()
            await wake.wait()
            return await really(batch)

        monkeypatch.setattr(producer, "queue", queue)

        async def write() -> None:
            with pytest.raises((TopicNotFoundError, RegionFencedError)):
                await old.write(2, [b"late"])

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            await is_held.wait()
            await second.delete(name)
            heir = await second.open(name, create=True)
            assert await heir.write(1, [b"new"]) == (1,)
            wake.set()
        with pytest.raises((TopicNotFoundError, RegionFencedError)):
            await old.write(3, [b"later"])
        assert await heir.write(1, [b"newer"]) == (2,)
        found = [one for one in await read_entries(heir) if one[0] != 2]  # what was under way may be there in format 0
        assert found == [(1, 1, b"new"), (1, 2, b"newer")]


BROKERS_REFUSE = KafkaTopicsOptions(transactional_ids=True)


async def test_brokers_refuse_the_late_batches_of_a_deposed_owner(
    brokers: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, shadow = "refused-late", Shadow()
    async with (
        regions_at(brokers.address, kafka=BROKERS_REFUSE) as first,
        regions_at(brokers.address, kafka=BROKERS_REFUSE) as second,
    ):
        appends = HeldOwner(first, monkeypatch)
        old = await first.open(name, create=True)
        await shadow.write_some(old, 1, 3)
        refused: list[RegionFencedError] = []

        async def write_late() -> None:
            with pytest.raises(RegionFencedError) as caught:
                await old.write(1, [b"late"])
            refused.append(caught.value)

        async with asyncio.TaskGroup() as group:
            appends.wake.clear()
            group.create_task(write_late())
            await appends.is_held.wait()
            new = await second.open(name)
            await shadow.write_some(new, 1, 3)
            appends.wake.set()
        assert old.has_ended and not refused[0].outcome_unknown
        assert isinstance(appends.error, OwnerRefusedError)
        values = [stored.value for stored in await read_all(second.topics, topic_of(name))]
        assert not any(value.endswith(b"late") for value in values), "the broker did not take it"
        await shadow.write_some(new, 2, 3)
        await shadow.check(new)
        again = await first.open(name)  # takes it back
        await shadow.check(again)
        await shadow.write_some(again, 1, 1)
        with pytest.raises(RegionFencedError):
            await new.write(1, [b"late"])
        await shadow.check(again)


async def test_without_the_option_brokers_take_them_and_they_do_not_count(
    brokers: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, shadow = "taken-late", Shadow()
    async with regions_at(brokers.address) as first, regions_at(brokers.address) as second:
        appends = HeldAppends(first, monkeypatch)
        old = await first.open(name, create=True)
        await shadow.write_some(old, 1, 1)

        async def write_late() -> None:
            with pytest.raises(RegionFencedError):
                await old.write(1, [b"late"])

        async with asyncio.TaskGroup() as group:
            appends.wake.clear()
            group.create_task(write_late())
            await appends.is_held.wait()
            new = await second.open(name)
            await shadow.write_some(new, 1, 1)
            appends.wake.set()
        values = [stored.value for stored in await read_all(second.topics, topic_of(name))]
        assert any(value.endswith(b"late") for value in values)
        await shadow.check(new)


async def test_an_owner_with_a_transactional_id_goes_on_with_a_new_producer(
    brokers: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new producer has the next epoch; a write whose answer was lost is there once."""
    name, shadow, events = "next-epoch", Shadow(), list[Event]()
    async with regions_at(brokers.address, kafka=BROKERS_REFUSE, events=events) as regions:
        region = await regions.open(name, create=True)
        await shadow.write_some(region, 1, 3)
        topics = regions.topics
        assert isinstance(topics, KafkaTopics)
        topics._forget(topic_of(name))  # closes its producers
        await shadow.write_some(region, 1, 3)
        assert not any(isinstance(event, RegionAppendInDoubt) for event in events)
        really = topics._new_producer.wait_appended
        is_lost = False

        async def lose(producer: TopicProducer, queued: asyncio.Future[object]) -> int:
            nonlocal is_lost
            offset = await really(producer, queued)
            if not is_lost:
                is_lost = producer.is_ended = True
                raise UnavailableError("the answer is lost", outcome_unknown=True)
            return offset

        monkeypatch.setattr(TopicProducer, "wait_appended", lose)
        await shadow.write_some(region, 1, 3)
        assert is_lost and any(isinstance(event, RegionAppendInDoubt) for event in events)
        await shadow.check(region)
        first, end = await topics.offsets(topic_of(name))
        assert [one.offset for one in await read_all(topics, topic_of(name))] == list(range(first, end)), "no markers"
    async with regions_at(brokers.address, kafka=BROKERS_REFUSE) as regions:
        await shadow.check(await regions.open(name))


async def test_a_deposed_owner_that_makes_a_new_producer_does_not_take_the_id_back(brokers: KafkaCluster) -> None:
    topic = topic_of("conditional")
    old, new = brokers.topics(transactional_ids=True), brokers.topics(transactional_ids=True)
    try:
        await new.create(topic)
        owners = old.new_owner(), new.new_owner()
        assert await old.append(topic, [(b"k", b"0")], owners[0]) == 0
        assert await new.append(topic, [(b"k", b"1")], owners[1]) == 1
        old._forget(topic)
        for _ in range(2):
            with pytest.raises(OwnerRefusedError):
                await old.append(topic, [(b"k", b"late")], owners[0])
        assert await new.append(topic, [(b"k", b"2")], owners[1]) == 2
        assert await old.append(topic, [(b"k", b"a follower's")]) == 3, "without an owner nothing is refused"
    finally:
        await old.close()
        await new.close()


async def test_closing_waits_for_the_writes_under_way(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "closing"
    async with regions_at(address) as regions:
        appends = HeldAppends(regions, monkeypatch)
        region = await regions.open(name, create=True)
        await region.write(1, [b"a"])
        appends.wake.clear()
        saved = asyncio.Event()
        really_save = region.save

        async def save() -> None:
            await really_save()
            saved.set()

        monkeypatch.setattr(region, "save", save)
        async with asyncio.TaskGroup() as group:
            write = group.create_task(region.write(1, [b"b"]))
            await appends.is_held.wait()
            group.create_task(region.close())
            with suppress(TimeoutError):  # time enough for a close that does not wait; one that waits always passes
                async with asyncio.timeout(0.5):
                    await saved.wait()
            appends.wake.set()
        assert write.result() == (2,)
        assert saved.is_set()
    async with regions_at(address) as regions:
        assert await read_entries(await regions.view(name)) == [(1, 1, b"a"), (1, 2, b"b")]


class LostAnswers(Appends):
    """Loses the answer to the next batch. When it is appended: at once, never, or behind the append that follows."""

    def __init__(self, regions: Regions, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
        super().__init__(regions, monkeypatch)
        self.is_armed = False
        self._when = when
        self._late: list[tuple[str, Sequence[RecordBytes]]] = []

    async def append(self, topic: str, records: Sequence[RecordBytes]) -> int:
        if is_batch(records) and self.is_armed:
            self.is_armed = False
            if self._when == "at once":
                await self.really(topic, records)
            elif self._when == "late":
                self._late.append((topic, records))
            raise UnavailableError("the answer is lost", outcome_unknown=True)
        offset = await self.really(topic, records)
        for append in self._late:
            await self.really(*append)
        self._late.clear()
        return offset


@pytest.mark.parametrize("when", ["at once", "never", "late"])
async def test_a_write_whose_answer_is_lost_is_there_once(
    address: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    name, shadow, events = f"lost-answer-{when.replace(' ', '-')}", Shadow(), list[Event]()
    async with regions_at(address, events=events) as regions:
        appends = LostAnswers(regions, monkeypatch, when)
        region = await regions.open(name, create=True)
        await shadow.write_some(region, 1, 2)
        appends.is_armed = True
        await shadow.write(region, (1, b"in doubt"), (2, b"in doubt"))
        assert not appends.is_armed
        assert [event for event in events if isinstance(event, RegionAppendInDoubt)] != []
        await shadow.write_some(region, 1, 2)
        await shadow.check(region)
    async with regions_at(address) as regions:
        await shadow.check(await regions.view(name))


async def test_acknowledged_writes_are_there_once_when_the_leader_dies(brokers: KafkaCluster) -> None:
    name, shadow = "leader-dies", Shadow()
    unknown, refused = set[bytes](), set[bytes]()
    hasty = KafkaTopicsOptions(timeout_s=5.0, request_timeout_s=2.0, close_s=1.0)
    enough, begun = asyncio.Event(), asyncio.Event()

    async def write(region: Region) -> None:
        """Write batches of one to three records to two tables, one after the other."""
        for n in itertools.count():
            if enough.is_set():
                return
            entries = [(1 + (n + i) % 2, b"%d.%d" % (n, i)) for i in range(1 + n % 3)]
            try:
                await shadow.write(region, *entries)
            except DLogError as error:
                (unknown if error.outcome_unknown else refused).update(payload for _, payload in entries)
            if len(shadow.records) >= 50:
                begun.set()

    async with asyncio.timeout(PATIENCE_S), regions_at(brokers.address, kafka=hasty) as regions:
        region = await regions.open(name, create=True)
        assert isinstance(regions.topics, KafkaTopics)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(write(region))
                await begun.wait()
                await brokers.kill(await leader(regions.topics, topic_of(name)))
                before = len(shadow.records)
                while len(shadow.records) < before + 50:  # noqa: ASYNC110 - the other brokers elect a leader
                    await asyncio.sleep(0.05)
                enough.set()
            found = await read_entries(region)
        finally:
            await brokers.revive()
    written = {(table, sequence): payload for table, sequence, payload in found}
    assert shadow.records.items() <= written.items(), "what was acknowledged is there, at its sequence"
    counts = Counter(payload for _, _, payload in found)
    assert set(counts.values()) == {1}, "and once"
    assert not refused & counts.keys(), "what was refused is not there"
    assert counts.keys() <= set(shadow.records.values()) | unknown
    for table in (1, 2):
        assert [s for t, s, _ in found if t == table] == list(range(1, 1 + sum(t == table for t, _ in written)))
    async with regions_at(brokers.address) as regions:
        assert await read_entries(await regions.open(name)) == found


# ---- snapshots and records that are gone -----------------------------------------------------------------------------


class LostSnapshots(Appends):
    """Answers appends to the meta topic without making them, while `lose` is set."""

    lose = False

    async def append(self, topic: str, records: Sequence[RecordBytes]) -> int:
        if self.lose and ".meta." in topic:
            _, end = await self.topics.offsets(topic)
            return end
        return await self.really(topic, records)


async def test_a_checkpoint_stands_in_for_snapshots_that_are_gone(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, shadow = "no-snapshot", Shadow()
    meta = topic_of(name, "meta")
    async with regions_at(address) as regions:
        appends = LostSnapshots(regions, monkeypatch)
        region = await regions.open(name, create=True)
        for table in (1, 2):
            await shadow.write_some(region, table, 4)
        await region.save()
        appends.lose = True
        await shadow.mark(region, 1, 5)
        await shadow.write(region, *((3, b"%d" % n) for n in range(70)))
        await shadow.mark(region, 2, 5)
        await shadow.note_watermarks(regions, name)
        assert await region.clean() is not None
        await shadow.write_some(region, 3, 1)
        shadow.watermarks.clear()
        await shadow.check(region)
    async with regions_at(address) as regions:  # the only snapshot is older than the deletion
        view = await regions.view(name)
        assert await regions.topics.offsets(meta) == (0, 1)
        assert view.first > 8
        await shadow.check(view)
        await shadow.check(await regions.open(name))
    async with regions_at(address) as regions:
        _, end = await regions.topics.offsets(meta)
        await regions.topics.delete_before(meta, end)
        await shadow.check(await regions.view(name))
        region = await regions.open(name)
        await shadow.check(region)
        await shadow.write_some(region, 1, 2)
        await shadow.check(region)


async def test_records_that_another_program_deleted_are_told_by_table(address: str) -> None:
    name, shadow = "cut", Shadow()
    data = topic_of(name)
    async with regions_at(address) as regions:
        region = await regions.open(name, create=True)
        await shadow.write_some(region, 1, 5)
        together = [(table, b"together") for table in (1, 2, 2, 3, 3)]
        await shadow.write(region, *together)
        await shadow.write_some(region, 2, 2)
        await shadow.write_some(region, 4, 2)
        await shadow.note_watermarks(regions, name)
    async with regions_at(address) as regions:
        at = next(
            stored.offset
            for stored in await read_all(regions.topics, data)
            if decode_record(stored.key, stored.value).payload == b"together"
        )
        await regions.topics.delete_before(data, at + 2)  # within a batch: the second record of table 2 is kept
        for region_or_view in (await regions.view(name), await regions.open(name)):
            lost: list[LostEntries] = []
            found = await read_entries(region_or_view, lost=lost)
            gone = {(one.table, sequence) for one in lost for sequence in range(one.first, one.end)}
            assert {one.table for one in lost} == {1, 2}
            assert LostEntries(1, 1, 7) in lost
            assert {(table, sequence): payload for table, sequence, payload in found} == {
                key: payload for key, payload in shadow.records.items() if key not in gone
            }, "each record is either read or told as lost"
            assert {(2, 3), (2, 4)}.isdisjoint(gone), "records of table 2 behind the first mapped one are read"
            with pytest.raises(TruncatedError, match=r"read from a later sequence: table=[12] first=1"):
                await read_entries(region_or_view)
            for table in (1, 2):
                with pytest.raises(TruncatedError, match=f"table={table} "):
                    await read_entries(region_or_view, {table: 0})
            assert await read_entries(region_or_view, {3: 0, 4: 2}) == [
                (3, 1, b"together"),
                (3, 2, b"together"),
                (4, 2, b"4: record 1"),
            ]
        region = await regions.open(name)
        assert {t: meta.current_high_watermark for t, meta in region.tables.items()} == shadow.watermarks
        assert await region.write(1, [b"after"]) == (7,)


async def test_a_region_without_state_for_what_is_left_does_not_open(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, shadow = "stateless", Shadow()
    async with regions_at(address) as regions:
        appends = LostSnapshots(regions, monkeypatch)
        appends.lose = True
        region = await regions.open(name, create=True)
        await shadow.write_some(region, 1, 5)
    async with regions_at(address) as regions:
        await regions.topics.delete_before(topic_of(name), 3)
        with pytest.raises(DamagedError, match="the front of the data topic was deleted by another program"):
            await regions.view(name)
        with pytest.raises(DamagedError, match="the front of the data topic was deleted by another program"):
            await regions.open(name)


async def test_a_topic_whose_retention_was_changed_is_refused(brokers: KafkaCluster) -> None:
    name, shadow = "retention", Shadow()
    async with asyncio.timeout(PATIENCE_S), regions_at(brokers.address) as regions:
        await shadow.write_some(await regions.open(name, create=True), 1, 2)
        for kind in ("data", "meta"):
            topic = topic_of(name, kind)
            good = topic_configs(KafkaTopicsOptions())
            async with admin(brokers) as client:
                changed = {**good, "retention.ms": "3600000"}
                await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, changed)])
                while (error := await refused(regions, name)) is None:  # noqa: ASYNC110 - brokers learn it in turn
                    await asyncio.sleep(0.1)
                assert re.search(rf"topic={re.escape(topic)}: retention.ms is 3600000, must be -1", error.message)
                await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, good)])
                while await refused(regions, name) is not None:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.1)
        await shadow.check(await regions.open(name))


async def alter(brokers: KafkaCluster, topic: str, **changed: str) -> None:
    """Give a topic the settings that it is created with, and others."""
    configs = topic_configs(KafkaTopicsOptions()) | {name.replace("_", "."): value for name, value in changed.items()}
    async with admin(brokers) as client:
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])


async def test_what_kafkas_retention_deleted_is_told_of_those_tables_and_no_other(brokers: KafkaCluster) -> None:
    name, shadow = "retained", Shadow()
    topic, wide = topic_of(name), bytes(100_000)
    async with asyncio.timeout(PATIENCE_S), regions_at(brokers.address) as regions:
        region = await regions.open(name, create=True)
        await alter(brokers, topic, segment_bytes="1048576")
        for n in range(40):
            await shadow.write(region, (1, b"%d" % n + wide))
        await region.save()
        await shadow.write_some(region, 2, 3)
        await alter(brokers, topic, segment_bytes="1048576", retention_bytes="1048576")
        while (await regions.topics.offsets(topic))[0] == 0:  # noqa: ASYNC110 - brokers look for it in turn
            await asyncio.sleep(0.1)
        await alter(brokers, topic)
        assert await refused_until_mended(regions, name)
    async with asyncio.timeout(PATIENCE_S), regions_at(brokers.address) as regions:
        for region_or_view in (await regions.view(name), await regions.open(name)):
            lost: list[LostEntries] = []
            found = await read_entries(region_or_view, lost=lost)
            assert {one.table for one in lost} == {1}
            gone = {(1, sequence) for one in lost for sequence in range(one.first, one.end)}
            kept = {key: payload for key, payload in shadow.records.items() if key not in gone}
            assert {(table, sequence): payload for table, sequence, payload in found} == kept
            with pytest.raises(TruncatedError, match="table=1 first=1"):
                await read_entries(region_or_view)
            assert [sequence for _, sequence, _ in await read_entries(region_or_view, {2: 0})] == [1, 2, 3]
        region = await regions.open(name)
        assert await region.write(1, [b"after"]) == (41,)


async def refused_until_mended(regions: Regions, name: str) -> bool:
    """Wait until a region's topics are safe again; whether it can be read then."""
    while True:
        try:
            await regions.view(name)
        except UnsafeTopicError:
            await asyncio.sleep(0.1)
        else:
            return True


async def test_a_write_that_the_topic_does_not_take_is_refused_with_the_command(brokers: KafkaCluster) -> None:
    name, shadow = "small-batches", Shadow()
    async with asyncio.timeout(PATIENCE_S), regions_at(brokers.address) as regions:
        region = await regions.open(name, create=True)
        await shadow.write_some(region, 1, 1)
        await alter(brokers, topic_of(name), max_message_bytes="2000")
        error: DLogError | None = None
        while error is None:  # the leader learns it in turn
            try:
                await shadow.write(region, (1, bytes(5000)))
            except DLogError as refusal:
                error = refusal
        assert isinstance(error, RecordTooLargeError) and not error.outcome_unknown
        assert "raise its max.message.bytes by kafka-configs.sh" in error.message
        await shadow.write_some(region, 1, 2)
        await shadow.check(region)
    async with regions_at(brokers.address) as regions:
        await shadow.check(await regions.open(name))


@pytest.mark.parametrize("is_committed", [True, False])
async def test_records_and_markers_of_a_foreign_transaction_are_passed_over(
    brokers: KafkaCluster, is_committed: bool
) -> None:
    """Its marker takes an offset that no record has."""
    name, shadow, events = f"foreign-transaction-{is_committed}".lower(), Shadow(), list[Event]()
    async with asyncio.timeout(PATIENCE_S), regions_at(brokers.address, events=events) as regions:
        region = await regions.open(name, create=True)
        await shadow.write_some(region, 1, 2)
        foreign = AIOKafkaProducer(bootstrap_servers=brokers.bootstrap, transactional_id=name)
        await foreign.start()
        try:
            for _ in range(2):
                await foreign.begin_transaction()
                await foreign.send_and_wait(topic_of(name), b"foreign", partition=0)
                await (foreign.commit_transaction() if is_committed else foreign.abort_transaction())
        finally:
            await foreign.stop()
        await shadow.write_some(region, 1, 2)
        await shadow.write_some(region, 2, 2)
        assert len(await read_all(regions.topics, topic_of(name))) == 9, "a fence, 6 entries, 2 foreign records"
        assert await regions.topics.offsets(topic_of(name)) == (0, 11)
        assert sum(isinstance(event, RegionRecordIgnored) for event in events) == 2
        assert not any(isinstance(event, RegionAppendInDoubt) for event in events)
        view = await regions.view(name, skip_damaged=True)
        await shadow.check(view)
        assert [re.sub(r".*offset=", "", problem) for problem in view.problems] == ["3", "5"]
        with pytest.raises(DamagedError, match="offset=3"):
            await regions.view(name)


async def test_some_of_the_brokers_in_the_address_are_enough(brokers: KafkaCluster) -> None:
    half = f"kafka://127.0.0.1:1,{brokers.bootstrap.partition(',')[0]}"
    name, shadow = "half-a-list", Shadow()
    async with asyncio.timeout(PATIENCE_S), regions_at(half) as regions:
        region = await regions.open(name, create=True)
        await shadow.write_some(region, 1, 3)
        await shadow.check(region)
    hasty = KafkaTopicsOptions(timeout_s=0.5, request_timeout_s=0.3)
    async with regions_at("kafka://127.0.0.1:1", kafka=hasty) as regions:
        with pytest.raises(UnavailableError, match=r"check that the brokers run .* brokers=127\.0\.0\.1:1 "):
            await regions.open(name)


async def test_a_region_goes_on_after_two_brokers_and_then_all_were_gone(brokers: KafkaCluster) -> None:
    """Writes wait while one broker is left; nothing that was acknowledged is lost, also when all die at once."""
    name, shadow = "all-gone", Shadow()
    patient = KafkaTopicsOptions(timeout_s=60.0, request_timeout_s=3.0)
    async with asyncio.timeout(2 * PATIENCE_S), regions_at(brokers.address, kafka=patient) as regions:
        region = await regions.open(name, create=True)
        assert isinstance(regions.topics, KafkaTopics)
        await shadow.write_some(region, 1, 5)
        leading = await leader(regions.topics, topic_of(name))
        for broker in {1, 2, 3} - {leading}:
            await brokers.kill(broker)
        async with asyncio.TaskGroup() as group:
            write = group.create_task(shadow.write(region, (1, b"waits")))
            done, _ = await asyncio.wait((write,), timeout=3.0)
            assert not done, "one replica is not enough"
            await brokers.revive()
        await shadow.write_some(region, 2, 5)
        await shadow.check(region)
        await brokers.kill_all()
        async with asyncio.TaskGroup() as group:
            group.create_task(shadow.write(region, (1, b"waits for all")))
            await brokers.revive()
        await shadow.write_some(region, 2, 5)
        await shadow.check(region)
    async with asyncio.timeout(PATIENCE_S), regions_at(brokers.address) as regions:
        await shadow.check(await regions.open(name))


async def refused(regions: Regions, name: str) -> UnsafeTopicError | None:
    """Why the region does not open."""
    try:
        region = await regions.open(name)
    except UnsafeTopicError as error:
        return error
    await region.close()
    return None


# ---- commands --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def command(address: str, *words: str) -> AsyncIterator[Process]:
    """Start `dlog region`; kill it if it still runs at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dlog", "region", *words, "--topics", address), cwd=ROOT, stdin=PIPE, stdout=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def done(address: str, *words: str, lines: bytes = b"") -> str:
    """Run `dlog region`; its output. It must succeed."""
    async with command(address, *words) as process:
        out, _ = await process.communicate(lines)
    assert process.returncode == 0, out
    return out.decode()


async def test_the_commands(address: str) -> None:
    region = f"{NAMESPACE}/commands"
    async with asyncio.timeout(PATIENCE_S):
        assert await done(address, "create", region) == f"{region} is there\n"
        told = await done(address, "write", region, "--table", "7", lines=b"a\nb\nc\n")
        assert told == f"{region} table 7: 3 records, sequences 1 to 3\n"
        assert await done(address, "write", region, "--table", "8", "--json", lines=b"d\n") != ""
        assert await done(address, "mark", region, "--table", "7", "--below", "3") != ""
        cleaned = json.loads(await done(address, "clean", region, "--json"))
        shown = json.loads(await done(address, "show", region, "--json"))
        assert shown["first"] == (cleaned["offset"] or 0)
        assert [(t["table"], t["next_seq_num"], t["latest_marked_deleted"]) for t in shown["tables"]] == [
            (7, 4, 3),
            (8, 2, 0),
        ]
        assert await done(address, "read", region) == "7\t3\tc\n8\t1\td\n"
        verified = json.loads(await done(address, "verify", region, "--json"))
    assert verified == {"region": region, "records": 2, "tables": {"7": 1, "8": 1}, "problems": []}


async def test_what_a_killed_command_wrote_is_a_prefix_of_its_input(address: str) -> None:
    name = "killed"
    region = f"{NAMESPACE}/{name}"
    async with asyncio.timeout(PATIENCE_S), regions_at(address) as regions:
        await (await regions.open(name, create=True)).close()
        told = await done(address, "write", region, "--table", "1", lines=b"".join(b"line %d\n" % n for n in range(10)))
        assert told == f"{region} table 1: 10 records, sequences 1 to 10\n"
        async with command(address, "write", region, "--table", "1") as writer, asyncio.TaskGroup() as group:
            group.create_task(feed(writer, 10))
            while (await regions.view(name)).tables[1].next_seq_num < 4000:  # noqa: ASYNC110 - another process writes
                await asyncio.sleep(0.02)
            writer.send_signal(signal.SIGKILL)
            assert await writer.wait() == -signal.SIGKILL
        # the next owner's fence ends what the killed one sent and the topic does not have yet
        assert await done(address, "write", region, "--table", "2", lines=b"next\n") != ""
        shown = json.loads(await done(address, "show", region, "--json"))
        read = await done(address, "read", region, "--table", "1")
        verified = json.loads(await done(address, "verify", region, "--json"))
    found = read.splitlines()
    assert found == [f"line {n}" for n in range(len(found))]
    assert len(found) >= 3999
    assert [(t["table"], t["next_seq_num"]) for t in shown["tables"]] == [(1, len(found) + 1), (2, 2)]
    assert verified["tables"] == {"1": len(found), "2": 1}
    assert verified["problems"] == []


async def feed(process: Process, first: int) -> None:
    """Write numbered lines to a command until it is gone."""
    assert process.stdin is not None
    try:
        for n in itertools.count(first):
            process.stdin.write(b"line %d\n" % n)
            await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError, RuntimeError):  # RuntimeError: a closed pipe of uvloop
        with suppress(BrokenPipeError, ConnectionResetError):  # Python 3.11.2 reports it if nobody asks
            await process.stdin.wait_closed()


# ---- Kafka's own consumer --------------------------------------------------------------------------------------------


def unescaped(text: str) -> bytes:
    """What Kafka's Bytes.toString printed."""
    return re.sub(rb"\\x([0-9A-F]{2})", lambda hexadecimal: bytes([int(hexadecimal[1], 16)]), text.encode("ascii"))


async def test_kafkas_own_consumer_prints_what_was_written(brokers: KafkaCluster) -> None:
    name, shadow = "console", Shadow()
    async with regions_at(brokers.address) as regions:
        region = await regions.open(name, create=True)
        for n in range(50):
            await shadow.write(
                region, *((table, b"payload %d \x00\\\n\xff" % n) for table in range(1 + n % 4)), (9, b"")
            )
        await shadow.mark(region, 9, 51)
        await region.drop_table(3)  # appends a check-point
        first, end = await regions.topics.offsets(topic_of(name))
    assert first == 0
    told = await asyncio.to_thread(
        brokers.tool,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", topic_of(name), "--from-beginning", "--max-messages", str(end)),
        *("--formatter-property", "print.key=true", "--formatter-property", f"key.deserializer={BYTES}"),
        *("--formatter-property", f"value.deserializer={BYTES}"),
    )
    assert f"Processed a total of {end} messages" in told
    printed = [line.split("\t") for line in told.splitlines() if "\t" in line]
    assert len(printed) == end
    found = {}
    for key, value in printed:
        record = decode_record(unescaped(key), unescaped(value))
        assert record.region == region_number(name)
        if record.kind is RecordKind.ENTRY:
            found[record.table, record.sequence] = bytes(record.payload)
            assert unescaped(value)[45:] == record.payload, "the header has 45 bytes"
    assert found == shadow.records
