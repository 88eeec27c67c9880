"""Tests topics in Kafka without a broker: addresses, names, settings, sizes, fetched bytes, silent brokers."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    TopicAuthorizationFailedError,
)
from aiokafka.structs import RecordMetadata, TopicPartition

from dlog import io
from dlog.errors import (
    ClosedError,
    ConfigError,
    DamagedError,
    DLogError,
    InvalidRequestError,
    RecordTooLargeError,
    UnauthorizedError,
    UnavailableError,
)
from dlog.io.kafka_brokers import Fetched
from dlog.io.kafka_producer import NotQueuedError, TopicProducer, build_batch
from dlog.io.kafka_producer_id import InitProducerIdRequest
from dlog.io.kafka_settings import (
    KafkaTopicsOptions,
    ProducerId,
    parse_kafka_address,
    refuse_unsafe,
    topic_configs,
    unsafe_settings,
)
from dlog.io.kafka_topic_ids import DeleteByIdRequest, TopicIdRequest
from dlog.io.kafka_topics import KafkaTopics
from dlog.region.topics import OwnerRefusedError, Stored, UnsafeTopicError
from dlog.stores.contract import MisconfiguredError
from dlog.wire.digest import crc32c

TOPIC = "app.data.7"
NOBODY = "kafka://127.0.0.1:1"  # no server listens on port 1
BROKERS = ("k1:9092", "k2:9092")
DESCRIBED = {**topic_configs(KafkaTopicsOptions()), "segment.bytes": "1073741824"}


# ---- addresses, names, options ---------------------------------------------------------------------------------------


def test_an_address_names_brokers() -> None:
    assert parse_kafka_address("kafka://k1:9092,k2:9093, [::1]:9092,k1:9092") == ("k1:9092", "k2:9093", "[::1]:9092")
    assert parse_kafka_address("kafka://k1:9092/") == ("k1:9092",)


@pytest.mark.parametrize(
    "text", ["", "k1:9092", "kafka://", "kafka://k1", "kafka://k1:0", "kafka://k1:9092,", "kafka://a@b:1", "s3://b/c"]
)
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="use kafka://host:port,host:port"):
        KafkaTopics(text)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "ä", "a\n", "x" * 250])
async def test_names_that_kafka_refuses_are_refused(topic: str) -> None:
    topics = KafkaTopics(NOBODY)
    for call in (
        topics.create(topic),
        topics.exists(topic),
        topics.check(topic),
        topics.append(topic, [(b"", b"")]),
        topics.read(topic, 0, 1),
        topics.offsets(topic),
        topics.delete_before(topic, 0),
        topics.topic_id(topic),
        topics.delete(topic),
    ):
        with pytest.raises(InvalidRequestError, match="not a name of a Kafka topic"):
            await call


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="min_insync_replicas must not exceed replication_factor"):
        KafkaTopicsOptions(replication_factor=1)
    development = KafkaTopicsOptions(replication_factor=1, min_insync_replicas=1, flush=False)
    assert "flush.messages" not in topic_configs(development)
    assert topic_configs(development)["min.insync.replicas"] == "1"


def test_without_aiokafka_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    for name in ("kafka_brokers", "kafka_producer"):
        monkeypatch.delitem(sys.modules, f"dlog.io.{name}")
        monkeypatch.delattr(io, name)
    for name in [name for name in sys.modules if name.startswith("aiokafka.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MisconfiguredError, match=r"pip install 'dlogd\[kafka\]'"):
        KafkaTopics(NOBODY)


# ---- settings --------------------------------------------------------------------------------------------------------


def unsafe(
    partitions: int = 1, replication_factor: int = 3, options: KafkaTopicsOptions | None = None, **changed: str
) -> list[tuple[str, str, str]]:
    configs = {**DESCRIBED, **{name.replace("_", "."): value for name, value in changed.items()}}
    found = unsafe_settings(TOPIC, configs, partitions, replication_factor, options or KafkaTopicsOptions(), BROKERS)
    return [(one.setting, one.found, one.wanted) for one in found]


def test_what_create_sets_is_safe() -> None:
    assert unsafe() == []
    assert unsafe(replication_factor=5, min_insync_replicas="3") == []
    assert unsafe(max_message_bytes="10", message_timestamp_type="CreateTime") == []


def test_settings_that_could_lose_records_are_found() -> None:
    assert unsafe(retention_ms="604800000") == [("retention.ms", "604800000", "-1")]
    assert unsafe(retention_bytes="1000") == [("retention.bytes", "1000", "-1")]
    assert unsafe(cleanup_policy="compact,delete") == [("cleanup.policy", "compact,delete", "delete")]
    assert unsafe(unclean_leader_election_enable="true") == [("unclean.leader.election.enable", "true", "false")]
    assert unsafe(min_insync_replicas="1") == [("min.insync.replicas", "1", "2")]
    assert unsafe(min_insync_replicas="many") == [("min.insync.replicas", "many", "2")]
    assert unsafe(flush_messages="100") == [("flush.messages", "100", "1")]
    assert unsafe(flush_messages="100", options=KafkaTopicsOptions(flush=False)) == []
    assert unsafe(partitions=2, replication_factor=1) == [
        ("partitions", "2", "1"),
        ("replication factor", "1", "3 or more"),
    ]
    nothing = unsafe_settings(TOPIC, {}, 1, 3, KafkaTopicsOptions(), BROKERS)
    assert {one.found for one in nothing} == {"none"} and len(nothing) == 6


def test_the_error_names_each_setting_and_the_command_that_mends_it() -> None:
    configs = {**DESCRIBED, "retention.ms": "1", "flush.messages": "5"}
    with pytest.raises(UnsafeTopicError) as caught:
        refuse_unsafe(TOPIC, unsafe_settings(TOPIC, configs, 1, 3, KafkaTopicsOptions(), BROKERS))
    assert caught.value.message == (
        "the topic's settings could lose or reorder records: topic=app.data.7: "
        "retention.ms is 1, must be -1, run: kafka-configs.sh --bootstrap-server k1:9092 --alter --entity-type topics "
        "--entity-name app.data.7 --add-config retention.ms=-1; "
        "flush.messages is 5, must be 1, run: kafka-configs.sh --bootstrap-server k1:9092 --alter --entity-type topics "
        "--entity-name app.data.7 --add-config flush.messages=1"
    )


# ---- sizes -----------------------------------------------------------------------------------------------------------


async def test_an_append_that_does_not_fit_is_refused_before_a_broker_is_asked() -> None:
    topics = KafkaTopics(NOBODY, KafkaTopicsOptions(batch_bytes_max=1000))
    for records in ([(b"", b"v" * 1000)], [(b"key", b"v" * 100)] * 10):
        with pytest.raises(RecordTooLargeError, match=r"topic=app.data.7 records=\d+ bytes=\d+ batch_bytes_max=1000"):
            await topics.append(TOPIC, records)
    with pytest.raises(ValueError, match="at least one record"):
        await topics.append(TOPIC, [])
    assert build_batch(TOPIC, [(b"key", b"v" * 80)] * 10, 1000).record_count() == 10


# ---- fetched bytes ---------------------------------------------------------------------------------------------------


def batch_at(offset: int, values: list[bytes], *, control: bool = False) -> bytes:
    """A batch as a broker returns it. Source: Kafka protocol guide, record batch."""
    batch = build_batch(TOPIC, [(b"k", value) for value in values], 1 << 20)
    data = bytearray(batch._build())
    struct.pack_into(">q", data, 0, offset)
    if control:
        struct.pack_into(">h", data, 21, 0x20)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def test_records_are_taken_from_an_offset_on() -> None:
    data = batch_at(10, [b"a", b"b", b"c"]) + batch_at(13, [b"marker"], control=True) + batch_at(14, [b"d" * 100, b"e"])
    fetched = Fetched(TOPIC, data, 11)
    assert fetched.take(1) == [Stored(11, b"k", b"b")]
    assert fetched.take(50) == [Stored(12, b"k", b"c"), Stored(14, b"k", b"d" * 100)]
    assert fetched.take(50) == [Stored(15, b"k", b"e")]
    assert (fetched.is_exhausted, len(fetched.take(50)), fetched.next_offset) == (True, 0, 16)


def test_control_batches_move_the_next_offset() -> None:
    fetched = Fetched(TOPIC, batch_at(5, [b"marker"], control=True) + batch_at(6, [b"marker"], control=True), 5)
    assert fetched.take(1) == [] and fetched.next_offset == 7
    assert Fetched(TOPIC, b"", 5).take(1) == []
    half = batch_at(5, [b"whole"]) + batch_at(6, [b"half"])[:-3]  # brokers cut the last batch at the size asked for
    assert Fetched(TOPIC, half, 5).take(1000) == [Stored(5, b"k", b"whole")]


def test_records_that_do_not_verify_are_not_returned() -> None:
    damaged = bytearray(batch_at(1, [b"damaged"]))
    damaged[-2] ^= 1
    fetched = Fetched(TOPIC, batch_at(0, [b"sound"]) + bytes(damaged), 0)
    assert fetched.take(1000) == [Stored(0, b"k", b"sound")]
    with pytest.raises(DamagedError, match=r"topic=app\.data\.7 offset=1"):
        Fetched(TOPIC, bytes(damaged), 1).take(1000)


# ---- answers to appends ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def producer() -> AsyncIterator[TopicProducer]:
    """A producer that is not connected."""
    made = TopicProducer(TOPIC, ["127.0.0.1:1"], KafkaTopicsOptions())
    yield made
    await made.close(0.1)


def queued(answer: RecordMetadata | Exception | None) -> asyncio.Future[RecordMetadata]:
    """A batch in the queue of a producer. answer: None for one that never comes."""
    future = asyncio.get_running_loop().create_future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    elif answer is not None:
        future.set_result(answer)
    return future


def appended_at(offset: int) -> RecordMetadata:
    return RecordMetadata(TOPIC, 0, TopicPartition(TOPIC, 0), offset, -1, 1, 0)


async def test_the_offset_of_an_append_is_that_of_its_first_record() -> None:
    async with producer() as made:
        assert await made.wait_appended(queued(appended_at(7))) == 7
        assert not made.is_ended


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (appended_at(-1), "does not send the offset"),  # DUPLICATE_SEQUENCE
        (OutOfOrderSequenceNumber(), r"OUT_OF_ORDER_SEQUENCE_NUMBER \(45\)"),
        (ProducerFenced(), "newer producer"),
        (KafkaError("anything else"), "anything else"),
    ],
)
async def test_an_append_without_an_offset_is_unknown_and_ends_the_producer(
    answer: RecordMetadata | Exception, why: str
) -> None:
    async with producer() as made:
        with pytest.raises(UnavailableError, match=why) as caught:
            await made.wait_appended(queued(answer))
        assert caught.value.outcome_unknown and made.is_ended
        with pytest.raises(NotQueuedError):
            await made.queue(build_batch(TOPIC, [(b"", b"")], 1000))


class _Client:
    """A producer's connections. answer: to the next request."""

    def __init__(self, leader: int | None, answer: Any) -> None:
        self.cluster = self
        self._leader = leader
        self._answer = answer

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        assert partition == TopicPartition(TOPIC, 0)
        return self._leader

    async def send(self, node: int, request: TopicIdRequest) -> Any:
        assert node == self._leader
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("leader", "answer", "why"),
    [
        (3, SimpleNamespace(topics=[(0, TOPIC, "aa", False)]), None),
        (3, SimpleNamespace(topics=[(0, TOPIC, "bb", False)]), "was deleted, or deleted and created again"),
        (3, SimpleNamespace(topics=[(3, TOPIC, "", False)]), "was deleted, or deleted and created again"),
        (3, KafkaError("gone"), "id is not known: .*gone"),
        (3, OSError("broken pipe"), "id is not known: broken pipe"),
        (-1, None, "has no leader"),
        (None, None, "has no leader"),
    ],
)
async def test_an_append_to_another_topic_of_the_name_is_unknown(
    leader: int | None, answer: Any, why: str | None
) -> None:
    async with producer() as made:
        made._producer.client = _Client(leader, answer)
        if why is None:
            await made.check_id("aa")
            assert not made.is_ended
            return
        with pytest.raises(UnavailableError, match=why) as caught:
            await made.check_id("aa")
        assert caught.value.outcome_unknown and made.is_ended


async def test_a_broker_that_has_a_newer_epoch_refuses_an_owner() -> None:
    made = TopicProducer(TOPIC, ["127.0.0.1:1"], KafkaTopicsOptions(), ProducerId(7, 2))
    with pytest.raises(OwnerRefusedError, match="another owner has appended: topic=app") as caught:
        await made.wait_appended(queued(ProducerFenced()))
    assert caught.value.outcome_unknown, "a first copy may be there"
    assert made.is_ended
    await made.close(0.1)


async def test_only_with_the_option_brokers_know_owners() -> None:
    assert KafkaTopics(NOBODY).new_owner() is None
    topics = KafkaTopics(NOBODY, KafkaTopicsOptions(transactional_ids=True))
    owner = topics.new_owner()
    assert owner is not None and owner.producer_id is None
    assert topics.new_owner() is not owner


def test_a_request_for_a_producer_id_names_the_current_one() -> None:
    """Source: Kafka protocol guide, InitProducerId v4: compact string, timeout, id, epoch, no tagged fields."""
    versions = {22: (0, 6)}
    tail = struct.pack(">i", 60_000)
    first = InitProducerIdRequest("t", None).prepare(versions)
    assert (first.API_VERSION, first.encode()) == (4, b"\x02t" + tail + struct.pack(">qh", -1, -1) + b"\0")
    again = InitProducerIdRequest("t", ProducerId(7, 2)).prepare(versions)
    assert again.encode() == b"\x02t" + tail + struct.pack(">qh", 7, 2) + b"\0"
    with pytest.raises(NotImplementedError):  # of brokers before 2.5: UnsupportedVersionError, see Brokers
        InitProducerIdRequest("t", None).prepare({22: (0, 2)})


def test_a_topic_is_deleted_by_its_id() -> None:
    """Bytes as in Kafka's protocol guide: Metadata 10, DeleteTopics 6."""
    versions = {3: (0, 13), 20: (1, 6)}
    topic_id = "0102030405060708090a0b0c0d0e0f10"
    asked = TopicIdRequest("t").prepare(versions)
    assert (asked.API_VERSION, asked.encode()) == (10, b"\x02" + bytes(16) + b"\x02t\0" + b"\0\0\0\0")
    partition = struct.pack(">hiiii", 0, 0, 1, 1, 0)[:14] + b"\x02" + struct.pack(">i", 1) + b"\x01\x01\0"
    found = (struct.pack(">h", 0) + b"\x02t" + bytes.fromhex(topic_id) + b"\0\x02" + partition) + bytes(4) + b"\0"
    broker = struct.pack(">i", 1) + b"\x02h" + struct.pack(">i", 9092) + b"\0\0"
    answer = bytes(4) + b"\x02" + broker + b"\0" + struct.pack(">i", 1) + b"\x02" + found + bytes(4) + b"\0"
    (described,) = asked.RESPONSE_TYPE.decode(answer).topics
    assert described[:3] == (0, "t", topic_id)
    deletion = DeleteByIdRequest(topic_id, 500).prepare(versions)
    named = b"\x02\0" + bytes.fromhex(topic_id) + b"\0"
    assert (deletion.API_VERSION, deletion.encode()) == (6, named + struct.pack(">i", 500) + b"\0")
    for request in (TopicIdRequest("t"), DeleteByIdRequest(topic_id, 500)):
        with pytest.raises(NotImplementedError):  # of brokers before 2.8: UnsupportedVersionError, see Brokers
            request.prepare({3: (0, 9), 20: (1, 5)})


async def test_an_append_that_the_topic_refuses_is_not_unknown() -> None:
    for refused, error in (
        (MessageSizeTooLargeError(), RecordTooLargeError),
        (TopicAuthorizationFailedError(TOPIC), UnauthorizedError),
    ):
        async with producer() as made:
            with pytest.raises(error, match=r"kafka-(configs|acls)\.sh: topic=app\.data\.7") as caught:
                await made.wait_appended(queued(refused))
            assert isinstance(caught.value, DLogError)
            assert not caught.value.outcome_unknown
            assert made.is_ended, "the broker waits for the sequence number of the refused batch"


async def test_closing_a_producer_ends_the_appends_that_wait() -> None:
    async with producer() as made, asyncio.TaskGroup() as group:

        async def append() -> None:
            with made.use(), pytest.raises(UnavailableError, match="closed after another append") as caught:
                await made.wait_appended(queued(None))
            assert caught.value.outcome_unknown

        waiting = [group.create_task(append()) for _ in range(3)]
        await asyncio.sleep(0)
        await made.close(0.01)
        await asyncio.wait(waiting)


async def test_a_cancelled_append_ends_the_producer() -> None:
    async with producer() as made:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await made.wait_appended(queued(None))
        assert made.is_ended


async def test_a_producer_ends_before_its_sequence_numbers_do() -> None:
    async with producer() as made:
        made._records = 2**31 - 2
        with pytest.raises(NotQueuedError):
            await made.queue(build_batch(TOPIC, [(b"", b"")] * 2, 1000))
        assert made.is_ended


# ---- brokers that do not answer --------------------------------------------------------------------------------------


@asynccontextmanager
async def silent_broker() -> AsyncIterator[str]:
    """A server that accepts connections and never answers."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"kafka://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def every_call_fails(address: str) -> None:
    topics = KafkaTopics(address, KafkaTopicsOptions(timeout_s=0.3, request_timeout_s=0.2, close_s=0.2))
    for call, is_change in (
        (topics.create(TOPIC), False),  # it was not yet asked for
        (topics.exists(TOPIC), False),
        (topics.check(TOPIC), False),
        (topics.append(TOPIC, [(b"", b"")]), False),
        (topics.read(TOPIC, 0, 1), False),
        (topics.offsets(TOPIC), False),
        (topics.delete_before(TOPIC, 1), True),
        (topics.topic_id(TOPIC), False),
        (topics.check_id(TOPIC, "00" * 15 + "01"), False),
        (topics.append(TOPIC, [(b"", b"")], topic_id="00" * 15 + "01"), False),
        (topics.delete(TOPIC), True),
        (topics.delete(TOPIC, "00" * 15 + "01"), True),
    ):
        with pytest.raises(UnavailableError, match=r"topic=app\.data\.7 brokers=127\.0\.0\.1:\d+ reason=") as caught:
            await call
        assert caught.value.outcome_unknown is is_change
    await topics.close()
    await topics.close()
    with pytest.raises(ClosedError):
        await topics.exists(TOPIC)
    with pytest.raises(ClosedError):
        await topics.append(TOPIC, [(b"", b"")])
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, pending = await asyncio.wait(left, timeout=5.0)
        assert not pending, "no task is left behind"


async def test_without_a_broker_every_call_fails_in_time() -> None:
    await every_call_fails(NOBODY)


async def test_with_a_silent_broker_every_call_fails_in_time() -> None:
    async with silent_broker() as address:
        await every_call_fails(address)
