"""Topics in three real Kafka brokers: what was appended is there, also after brokers were killed."""

from __future__ import annotations

import asyncio
import itertools
import shlex
from collections import Counter

import pytest
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from dlog.errors import RecordTooLargeError, UnavailableError
from dlog.io.kafka_settings import topic_configs
from dlog.io.kafka_topics import KafkaTopics
from dlog.region.topics import (
    OffsetOutOfRangeError,
    Stored,
    TopicExistsError,
    TopicNotFoundError,
    UnsafeTopicError,
)
from tests.integration.regions.kafka_cluster import KafkaCluster, admin, leader, read_all

pytestmark = [pytest.mark.peers, pytest.mark.long]
PATIENCE_S = 120.0  # of a test that waits for brokers
TOOLS = {"kafka-configs.sh": "kafka.admin.ConfigCommand"}


async def test_records_are_read_back_as_they_were_appended(topics: KafkaTopics) -> None:
    topic = "round.trip"
    await topics.create(topic)
    with pytest.raises(TopicExistsError, match=topic):
        await topics.create(topic)
    assert await topics.exists(topic)
    await topics.check(topic)
    batches = [[(b"k%d" % n, b"%d.%d" % (n, i)) for i in range(1 + n % 5)] for n in range(40)]
    async with asyncio.TaskGroup() as group:
        appends = [group.create_task(topics.append(topic, batch)) for batch in batches]
    expected = {
        append.result() + i: record
        for append, batch in zip(appends, batches, strict=True)
        for i, record in enumerate(batch)
    }
    total = sum(map(len, batches))
    assert sorted(expected) == list(range(total)), "the offsets are dense: every append was one batch"
    for bytes_max in (1, 50, 1 << 20):
        assert {one.offset: (one.key, one.value) for one in await read_all(topics, topic, bytes_max)} == expected
    assert await topics.read(topic, total - 1, 1) == [Stored(total - 1, *expected[total - 1])]
    assert await topics.offsets(topic) == (0, total)
    await topics.delete(topic)
    await topics.delete(topic)
    assert not await topics.exists(topic)


async def test_an_id_belongs_to_one_topic_of_a_name(topics: KafkaTopics) -> None:
    topic = "again"
    assert await topics.topic_id(topic) is None
    await topics.delete(topic, "0" * 31 + "1")
    await topics.create(topic)
    first = await topics.topic_id(topic)
    assert first and await topics.topic_id(topic) == first
    await topics.delete(topic, first)
    assert await topics.topic_id(topic) is None
    await topics.create(topic)
    await topics.append(topic, [(b"", b"new")])
    second = await topics.topic_id(topic)
    assert second and second != first
    await topics.delete(topic, first)
    for refused in (
        topics.append(topic, [(b"", b"late")], topic_id=first),
        topics.delete_before(topic, 1, topic_id=first),
    ):
        with pytest.raises(TopicNotFoundError, match="was deleted and created again"):
            await refused
    assert await topics.read(topic, 0, 1) == [Stored(0, b"", b"new")]
    assert await topics.append(topic, [(b"", b"newer")], topic_id=second) == 1
    await topics.delete_before(topic, 1, topic_id=second)
    assert await topics.offsets(topic) == (1, 2)
    for _ in range(2):
        await topics.delete(topic, second)
    assert not await topics.exists(topic)


async def test_an_append_is_one_batch(topics: KafkaTopics) -> None:
    topic = "one.batch"
    await topics.create(topic)
    sizes = [1, 500, 20]
    for size in sizes:
        await topics.append(topic, [(b"key", b"v" * 1000)] * size)
    with pytest.raises(RecordTooLargeError, match=r"batch_bytes_max=1048576"):
        await topics.append(topic, [(b"key", b"v" * 1000)] * 1100)
    found, offset = [], 0
    while offset < sum(sizes):
        fetched = await topics._brokers.fetch(topic, offset, 1 << 20)
        assert not isinstance(fetched, int)
        for batch in fetched.batches():
            found.append(batch.next_offset - batch.base_offset)
            offset = batch.next_offset
    assert found == sizes


async def test_an_empty_topic_and_a_missing_one(topics: KafkaTopics) -> None:
    await topics.create("empty")
    assert await topics.offsets("empty") == (0, 0)
    assert await topics.read("empty", 0, 1 << 20) == []
    with pytest.raises(OffsetOutOfRangeError, match="beyond the end"):
        await topics.read("empty", 1, 1 << 20)
    for call in (
        topics.append("missing", [(b"", b"")]),
        topics.read("missing", 0, 1),
        topics.offsets("missing"),
        topics.delete_before("missing", 0),
        topics.check("missing"),
    ):
        with pytest.raises(TopicNotFoundError, match="create it first: topic=missing"):
            await call
    assert not await topics.exists("missing"), "nothing created it"


async def test_a_topic_that_another_client_deletes_is_not_created_again(
    topics: KafkaTopics, brokers: KafkaCluster
) -> None:
    topic = "deleted"
    writer = brokers.topics(timeout_s=5.0, request_timeout_s=1.0)
    await topics.create(topic)
    await writer.append(topic, [(b"", b"first")])
    assert len(await writer.read(topic, 0, 1)) == 1
    await topics.delete(topic)
    with pytest.raises(TopicNotFoundError):
        await writer.read(topic, 0, 1)
    with pytest.raises((UnavailableError, TopicNotFoundError)):
        await writer.append(topic, [(b"", b"second")])
    with pytest.raises(TopicNotFoundError):
        await writer.append(topic, [(b"", b"third")])
    assert not await topics.exists(topic)
    await topics.create(topic)
    assert await writer.append(topic, [(b"", b"fourth")]) == 0
    await writer.close()


async def test_deleted_records_are_out_of_range(topics: KafkaTopics) -> None:
    topic = "deleting"
    await topics.create(topic)
    for n in range(10):
        await topics.append(topic, [(b"", b"%d.%d" % (n, i)) for i in range(3)])
    assert len(await topics.read(topic, 0, 1)) == 1, "the rest of what was fetched is kept"
    await topics.delete_before(topic, 4)
    await topics.delete_before(topic, 2)
    assert await topics.offsets(topic) == (4, 30)
    for offset in (0, 1, 3):
        with pytest.raises(OffsetOutOfRangeError, match="was deleted") as caught:
            await topics.read(topic, offset, 1 << 20)
        assert (caught.value.first, caught.value.next) == (4, 30)
    assert [one.offset for one in await read_all(topics, topic)] == list(range(4, 30))
    for call in (topics.delete_before(topic, 31), topics.read(topic, 31, 1)):
        with pytest.raises(OffsetOutOfRangeError, match="beyond the end") as caught:
            await call
        assert (caught.value.first, caught.value.next) == (4, 30)
    await topics.delete_before(topic, 30)
    assert await topics.offsets(topic) == (30, 30)
    assert await topics.read(topic, 30, 1) == []


async def refused(topics: KafkaTopics, topic: str) -> str | None:
    """Why `check` refuses a topic."""
    try:
        await topics.check(topic)
    except UnsafeTopicError as error:
        return error.message
    return None


async def test_the_command_in_the_message_mends_a_topic(topics: KafkaTopics, brokers: KafkaCluster) -> None:
    topic = "forgetful"
    await topics.create(topic)
    changed = {**topic_configs(topics.options), "retention.ms": "60000"}
    async with admin(brokers) as client:
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, changed)])
    async with asyncio.timeout(PATIENCE_S):
        while (message := await refused(topics, topic)) is None:  # noqa: ASYNC110 - brokers learn it in turn
            await asyncio.sleep(0.1)
        why, _, command = message.partition(", run: ")
        assert why.endswith("topic=forgetful: retention.ms is 60000, must be -1")
        tool, _, _, *arguments = shlex.split(command)
        await asyncio.to_thread(brokers.tool, TOOLS[tool], *arguments)
        while await refused(topics, topic) is not None:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.1)


async def test_other_unsafe_topics_are_refused(topics: KafkaTopics, brokers: KafkaCluster) -> None:
    safe = {"retention.ms": "-1", "retention.bytes": "-1", "flush.messages": "1"}
    refused = {
        "two-partitions": (NewTopic("two-partitions", 2, 3, topic_configs=safe), "partitions is 2, must be 1"),
        "compacted": (
            NewTopic("compacted", 1, 3, topic_configs={**safe, "cleanup.policy": "compact"}),
            "cleanup.policy is compact, must be delete",
        ),
        "unsynced": (
            NewTopic("unsynced", 1, 3, topic_configs={"retention.ms": "-1"}),
            "flush.messages is 9223372036854775807, must be 1",
        ),
        "two-replicas": (NewTopic("two-replicas", 1, 2, topic_configs=safe), "replication factor is 2, must be 3"),
    }
    async with admin(brokers) as client:
        await client.create_topics([new for new, _ in refused.values()])
    for topic, (_, why) in refused.items():
        async with asyncio.timeout(PATIENCE_S):
            while not await topics._brokers.is_known_everywhere(topic):  # noqa: ASYNC110 - brokers learn it later
                await asyncio.sleep(0.1)
        with pytest.raises(UnsafeTopicError, match=why):
            await topics.check(topic)
    unsynced = brokers.topics(flush=False)
    await unsynced.check("unsynced")
    await unsynced.close()


async def test_kafkas_own_consumer_prints_every_record(topics: KafkaTopics, brokers: KafkaCluster) -> None:
    topic, count = "printed", 300
    await topics.create(topic)
    for begin in range(0, count, 50):
        await topics.append(topic, [(b"key", b"record %d" % n) for n in range(begin, begin + 50)])
    assert (await topics.offsets(topic)) == (0, count)
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    told = await asyncio.to_thread(
        brokers.tool, consumer, "--topic", topic, "--from-beginning", "--max-messages", str(count)
    )
    printed = [line for line in told.splitlines() if line.startswith("record ")]
    assert printed == [f"record {n}" for n in range(count)]
    assert f"Processed a total of {count} messages" in told


class Appended:
    """What was appended to a topic, and how it ended. Every append has two records of one value."""

    def __init__(self, topics: KafkaTopics, topic: str) -> None:
        self.acknowledged: dict[bytes, int] = {}  # value and offset
        self.unknown: set[bytes] = set()
        self._topics = topics
        self._topic = topic

    async def append(self, value: bytes) -> None:
        try:
            self.acknowledged[value] = await self._topics.append(self._topic, [(b"a", value), (b"b", value)])
        except UnavailableError as error:
            if error.outcome_unknown:
                self.unknown.add(value)

    async def append_until_it_works(self) -> None:
        for attempt in itertools.count():
            await self.append(b"attempt %d" % attempt)
            if b"attempt %d" % attempt in self.acknowledged:
                return

    async def check(self) -> None:
        """Check that the topic has every acknowledged append once, at its offset, and others once or not at all."""
        found = await read_all(self._topics, self._topic)
        by_offset = {one.offset: (one.key, one.value) for one in found}
        for value, offset in self.acknowledged.items():
            assert [by_offset.get(offset), by_offset.get(offset + 1)] == [(b"a", value), (b"b", value)]
        counts = Counter(one.value for one in found)
        assert {counts[value] for value in self.acknowledged} == {2}
        assert {counts[value] for value in self.unknown} <= {0, 2}, "all or none, and not twice"
        assert set(counts) <= self.acknowledged.keys() | self.unknown


async def test_a_cancelled_append_does_not_hold_up_others(topics: KafkaTopics) -> None:
    topic = "cancelled"
    await topics.create(topic)
    appended = Appended(topics, topic)
    await appended.append_until_it_works()

    async def append_at_most(ms: int) -> None:
        try:
            async with asyncio.timeout(ms / 1000):
                await appended.append(b"at most %d ms" % ms)
        except TimeoutError:
            appended.unknown.add(b"at most %d ms" % ms)

    for ms in (0, 1, 2, 4, 8, 16, 32):
        async with asyncio.TaskGroup() as group:
            group.create_task(appended.append(b"before %d" % ms))
            group.create_task(append_at_most(ms))
            group.create_task(appended.append(b"after %d" % ms))
    assert {b"before 0", b"after 0", b"before 32", b"after 32"} <= appended.acknowledged.keys()
    await appended.check()


async def test_what_was_acknowledged_is_there_once_while_brokers_die(brokers: KafkaCluster) -> None:
    topic = "dying"
    topics = brokers.topics(timeout_s=5.0, request_timeout_s=2.0, close_s=1.0)
    appended = Appended(topics, topic)
    async with asyncio.timeout(PATIENCE_S):
        await topics.create(topic)
        await the_leader_dies(appended, topics, topic, brokers)
        await a_second_broker_dies(appended, topics, topic, brokers)
        await brokers.kill_all()
        hasty = brokers.topics(timeout_s=0.5)
        with pytest.raises(UnavailableError, match=brokers.bootstrap):
            await hasty.append(topic, [(b"", b"nobody")])
        await hasty.close()
        await brokers.revive()
        await appended.append_until_it_works()
        await appended.check()
        await topics.check(topic)
    await topics.close()


async def the_leader_dies(appended: Appended, topics: KafkaTopics, topic: str, brokers: KafkaCluster) -> None:
    """Kill the leader under the appends of four writers, and go on until appends succeed again."""
    enough, begun = asyncio.Event(), asyncio.Event()

    async def write(writer: int) -> None:
        number = 0
        while not enough.is_set():
            number += 1
            await appended.append(b"%d.%d" % (writer, number))
            if len(appended.acknowledged) >= 20:
                begun.set()

    async with asyncio.TaskGroup() as group:
        for writer in range(4):
            group.create_task(write(writer))
        await begun.wait()
        await brokers.kill(await leader(topics, topic))
        before = len(appended.acknowledged)
        while len(appended.acknowledged) < before + 20:  # noqa: ASYNC110 - the other brokers elect a leader
            await asyncio.sleep(0.05)
        enough.set()
    await appended.check()


async def a_second_broker_dies(appended: Appended, topics: KafkaTopics, topic: str, brokers: KafkaCluster) -> None:
    """Leave only the leader: fewer brokers than min.insync.replicas."""
    left = await leader(topics, topic)
    for broker in {1, 2, 3} - {left}:
        await brokers.kill(broker)
    with pytest.raises(UnavailableError, match=r"topic=dying brokers=127\.0\.0\.1:") as caught:
        await topics.append(topic, [(b"a", b"lonely"), (b"b", b"lonely")])
    assert caught.value.outcome_unknown
    appended.unknown.add(b"lonely")
