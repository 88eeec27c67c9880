"""Topics in Kafka, by aiokafka (installed by `dlogd[kafka]`): one partition each, every append one batch.

Invariants:
- A topic is created only by `create`.
- An append is acknowledged when all in-sync replicas, at least min.insync.replicas, have it.
- No lock is held while a batch is under way; a task that outlives its caller ends within a bound.
- With transactional ids, an owner that was refused never takes the id from the next owner.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from dlog.errors import ClosedError, UnavailableError, UnsupportedVersionError
from dlog.io.kafka_settings import (
    KafkaTopicsOptions,
    check_topic_name,
    parse_kafka_address,
    refuse_unsafe,
    topic_configs,
    unsafe_settings,
)
from dlog.region.topics import (
    OffsetOutOfRangeError,
    OwnerRefusedError,
    RecordBytes,
    Stored,
    TopicExistsError,
    TopicNotFoundError,
    topic_recreated,
)
from dlog.stores.contract import MisconfiguredError

if TYPE_CHECKING:
    from dlog.io.kafka_brokers import Fetched
    from dlog.io.kafka_producer import TopicProducer
    from dlog.io.kafka_settings import ProducerId

_RETRY_S, _RETRY_MAX_S = 0.05, 0.5
_FETCH_BYTES_MAX = 16 * 1024 * 1024

T = TypeVar("T")
_Writer = tuple[str, "TopicOwner | None"]  # a topic, and its owner; None: a writer that is not the owner


class TopicOwner:
    """An owner of a topic, by the transactional id that has the topic's name. Made by KafkaTopics.new_owner.

    producer_id: under which the owner appends; None: it did not append yet. refused: why it cannot append any more.
    """

    def __init__(self) -> None:
        self.producer_id: ProducerId | None = None
        self.refused: OwnerRefusedError | None = None


class KafkaTopics:
    """Topics in Kafka; see Topics. Use it in one event loop, and `close` it.

    address: kafka://host:port,host:port, some of the brokers. Raises ConfigError for another address and
    MisconfiguredError without aiokafka.

    Every call ends within options.timeout_s, with UnavailableError if no broker served it. A broker notes about once
    a minute what `delete_before` deleted: after the crash of all replicas at once, deleted records may be there again.
    """

    def __init__(
        self, address: str, options: KafkaTopicsOptions | None = None, rng: random.Random | None = None
    ) -> None:
        self.options = options or KafkaTopicsOptions()
        self._bootstrap = parse_kafka_address(address)
        try:
            from dlog.io import kafka_brokers, kafka_producer
        except ImportError as error:
            raise MisconfiguredError(f"Kafka needs aiokafka: pip install 'dlogd[kafka]' ({error})") from None
        self._failed = kafka_brokers.BrokerFailedError
        self._not_queued = kafka_producer.NotQueuedError
        self._build_batch = kafka_producer.build_batch
        self._new_producer = kafka_producer.TopicProducer
        self._brokers = kafka_brokers.Brokers(
            self._bootstrap, self.options.request_timeout_s, rng or random.SystemRandom()
        )
        self._producers: dict[_Writer, TopicProducer] = {}  # the one used last is the last
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # kept by calls of `_producer`
        self._scans: dict[tuple[str, int], Fetched] = {}  # by topic and the offset where the last read ended
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def close(self) -> None:
        """Close all connections, within about 5 x close_s. Idempotent. Appends under way have an unknown outcome."""
        self._is_closed = True
        self._scans.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.close_s):
                for making in list(self._making.values()):
                    async with making:  # what is being started is retired, as this is closed
                        pass
        for producer in list(self._producers.values()):
            self._retire(producer)
        if self._closing:
            await asyncio.wait(self._closing)  # each has a bound of its own
        with suppress(TimeoutError):  # a connection closes when what it sent was taken
            async with asyncio.timeout(self.options.close_s):
                await self._brokers.close()

    # ---- topics ------------------------------------------------------------------------------------------------------

    async def create(self, topic: str) -> None:
        is_sent = is_created = False

        async def create() -> None:
            nonlocal is_sent, is_created
            if not is_created:
                if await self._brokers.describe(topic) is not None:
                    raise TopicExistsError(f"there is a topic of this name: topic={topic}")
                is_sent = True
                try:
                    await self._brokers.create(topic, self.options.replication_factor, topic_configs(self.options))
                except self._failed as error:
                    if error.was_sent:  # another attempt could not tell its own topic from that of somebody else
                        raise self._unavailable("create a topic", topic, str(error), True) from error
                    is_sent = False
                    raise
                is_created = True
            if not await self._brokers.is_known_everywhere(topic):
                raise self._failed("not every broker knows the new topic")  # an append may ask any of them

        await self._until_done("create a topic", topic, create, lambda: is_sent)

    async def exists(self, topic: str) -> bool:
        async def describe() -> bool:
            return await self._brokers.describe(topic) is not None

        return await self._until_done("look for a topic", topic, describe)

    async def topic_id(self, topic: str) -> str | None:
        """See Topics. "" of brokers before 2.8, which have no ids."""

        async def topic_id() -> str | None:
            if await self._brokers.describe(topic) is None:
                return None
            try:
                found = await self._brokers.topic_ids(topic)
            except UnsupportedVersionError:
                return ""
            if len(found) > 1:
                raise self._failed("a broker still knows an earlier topic of the name")
            return found.pop() if found else None

        return await self._until_done("ask for a topic's id", topic, topic_id)

    async def check_id(self, topic: str, topic_id: str) -> None:
        """Raises TopicNotFoundError unless the topic has this id: behind a read, that it was this topic's."""

        async def check() -> None:
            await self._check_id(topic, topic_id)

        await self._until_done("ask for a topic's id", topic, check)

    async def names(self, prefix: str) -> list[str]:
        async def names() -> list[str]:
            return sorted(name for name in await self._brokers.topics() if name.startswith(prefix))

        return await self._until_done("list topics", prefix, names)

    async def check(self, topic: str) -> None:
        async def check() -> None:
            layout = await self._brokers.describe(topic)
            configs = await self._brokers.configs(topic) if layout is not None else None
            if layout is None or configs is None:
                raise _not_found(topic)
            refuse_unsafe(
                topic,
                unsafe_settings(
                    topic, configs, layout.partitions, layout.replication_factor, self.options, self._bootstrap
                ),
            )

        await self._until_done("read a topic's settings", topic, check)

    async def delete(self, topic: str, topic_id: str = "") -> None:
        self._forget(topic)

        async def delete() -> None:
            if topic_id:
                await self._brokers.describe(topic)  # learns which broker is the controller
                await self._brokers.delete_by_id(topic, topic_id)
                if topic_id in await self._brokers.topic_ids(topic):
                    raise self._failed("a broker still knows the topic")
                return
            if await self._brokers.describe(topic) is not None:
                await self._brokers.delete(topic)
            if not await self._brokers.is_forgotten_everywhere(topic):
                raise self._failed("a broker still knows the topic")

        await self._until_done("delete a topic", topic, delete, lambda: True)
        self._forget(topic)

    # ---- records -----------------------------------------------------------------------------------------------------

    def new_owner(self) -> TopicOwner | None:
        """A new owner of a topic, for `append`: from its first append on, brokers refuse what owners before it sent
        and arrives later. None: the option `transactional_ids` is off."""
        return TopicOwner() if self.options.transactional_ids else None

    async def append(
        self,
        topic: str,
        records: Sequence[RecordBytes],
        owner: TopicOwner | None = None,
        *,
        topic_id: str = "",
        checks_first: bool = True,
    ) -> int:
        """See Topics. Raises RecordTooLargeError for what does not fit into one batch, before anything is sent, and
        OwnerRefusedError if a later owner has begun. Appends without an owner are never refused for that.

        Kafka does not check the topic's id. So it is checked before the records are sent, unless `checks_first` is
        false, and again before this returns: records that went to another topic of the name are never acknowledged
        (UnavailableError, outcome unknown), but they are in that topic.
        """
        if not records:
            raise ValueError("an append has at least one record")
        self._check_open()
        check_topic_name(topic)
        batch = self._build_batch(topic, records, self.options.batch_bytes_max)
        is_queued = False
        async with self._deadline("append", topic, lambda: is_queued) as note_failure:
            delay_s = _RETRY_S
            while True:
                try:
                    if checks_first:
                        await self._check_id(topic, topic_id)
                    producer = await self._producer(topic, owner)
                    try:
                        with producer.use():
                            queued = await producer.queue(batch)
                            is_queued = True
                            offset = await producer.wait_appended(queued)
                            if topic_id:
                                await producer.check_id(topic_id)
                            return offset
                    finally:
                        if producer.is_ended:
                            self._retire(producer)
                except OwnerRefusedError as error:
                    assert owner is not None, "only owners are refused"
                    owner.refused = error
                    raise
                except (self._not_queued, self._failed) as error:
                    note_failure(error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _RETRY_MAX_S)

    async def read(self, topic: str, offset: int, bytes_max: int) -> Sequence[Stored]:
        scan = self._scans.pop((topic, offset), None)
        if scan is not None:
            found = scan.take(bytes_max)
            if found:
                self._remember(topic, scan, found)
                return found
        if offset < 0:
            raise ValueError(f"an offset is 0 or above: offset={offset}")

        async def read() -> Sequence[Stored]:
            at = offset
            while True:
                fetched = await self._brokers.fetch(
                    topic, at, min(max(bytes_max, self.options.fetch_bytes), _FETCH_BYTES_MAX)
                )
                if not isinstance(fetched, int):
                    found = fetched.take(bytes_max)
                    if found:
                        self._remember(topic, fetched, found)
                        return found
                    if fetched.next_offset > at:
                        at = fetched.next_offset  # only control batches, which have offsets and no records
                        continue
                first, end = await self._brokers.offsets(topic)
                if at == end:
                    return []
                if not first <= at <= end:
                    raise _out_of_range(topic, at, first, end)
                raise self._failed("the leader does not have all confirmed records yet")

        return await self._until_done("read", topic, read)

    async def offsets(self, topic: str) -> tuple[int, int]:
        async def offsets() -> tuple[int, int]:
            return await self._brokers.offsets(topic)

        return await self._until_done("ask for offsets", topic, offsets)

    async def delete_before(self, topic: str, offset: int, *, topic_id: str = "") -> None:
        """See Topics. The topic's id is checked before the request is sent, since Kafka does not check it."""
        if offset < 0:
            raise ValueError(f"an offset is 0 or above: offset={offset}")

        async def delete() -> None:
            await self._check_id(topic, topic_id)
            if not await self._brokers.delete_records(topic, offset):
                first, end = await self._brokers.offsets(topic)
                if offset > end:
                    raise _out_of_range(topic, offset, first, end)
                raise self._failed("the leader does not have all confirmed records yet")

        await self._until_done("delete records", topic, delete, lambda: True)
        for key in [key for key in self._scans if key[0] == topic and key[1] < offset]:
            del self._scans[key]

    # ---- inside ------------------------------------------------------------------------------------------------------

    async def _until_done(
        self, what: str, topic: str, attempt: Callable[[], Awaitable[T]], is_unknown: Callable[[], bool] = lambda: False
    ) -> T:
        """Attempt until it succeeds or the time is over. is_unknown: whether a change may have been made then."""
        self._check_open()
        check_topic_name(topic)
        async with self._deadline(what, topic, is_unknown) as note_failure:
            delay_s = _RETRY_S
            while True:
                try:
                    return await attempt()
                except self._failed as error:
                    note_failure(error)
                self._check_open()
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _RETRY_MAX_S)

    @asynccontextmanager
    async def _deadline(
        self, what: str, topic: str, is_unknown: Callable[[], bool]
    ) -> AsyncIterator[Callable[[Exception], None]]:
        """Ends the body after timeout_s, with UnavailableError. Yields a function that notes a failed attempt, for the
        error's message."""
        failures: list[Exception] = []

        def note_failure(error: Exception) -> None:
            failures[:] = [error]

        try:
            async with asyncio.timeout(self.options.timeout_s):
                yield note_failure
        except TimeoutError:
            why = f"not done within {self.options.timeout_s:g} s"
            if failures:
                why += f", the last attempt: {failures[0]}"
            raise self._unavailable(what, topic, why, is_unknown()) from None

    def _unavailable(self, what: str, topic: str, why: str, is_unknown: bool) -> UnavailableError:
        return UnavailableError(
            f"Kafka cannot {what} now, check that the brokers run and reach each other: topic={topic} "
            f"brokers={','.join(self._bootstrap)} reason={why}",
            outcome_unknown=is_unknown,
        )

    async def _check_id(self, topic: str, topic_id: str) -> None:
        """Raise TopicNotFoundError unless the topic has this id; "": any will do."""
        if not topic_id or await self._brokers.topic_id_by_leader(topic) == topic_id:
            return
        if topic_id in await self._brokers.topic_ids(topic):
            raise self._failed("not every broker knows the topic")
        raise topic_recreated(topic)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the topics of Kafka were closed: brokers={','.join(self._bootstrap)}")

    def _remember(self, topic: str, scan: Fetched, found: Sequence[Stored]) -> None:
        """Keep what is left of a fetch for the next read, which begins where this one ended."""
        if scan.is_exhausted:
            return
        self._scans[topic, found[-1].offset + 1] = scan
        if len(self._scans) > self.options.scans_max:
            del self._scans[next(iter(self._scans))]

    def _forget(self, topic: str) -> None:
        for producer in [one for one in self._producers.values() if one.topic == topic]:
            self._retire(producer)
        for key in [key for key in self._scans if key[0] == topic]:
            del self._scans[key]

    async def _producer(self, topic: str, owner: TopicOwner | None) -> TopicProducer:
        """The producer of a topic, or of an owner of it; a new one if there is none that works. Raises
        TopicNotFoundError, OwnerRefusedError."""
        making = self._making.setdefault(topic, asyncio.Lock())
        async with making:
            self._check_open()
            if owner is not None and owner.refused is not None:
                raise OwnerRefusedError(owner.refused.message, outcome_unknown=False)  # nothing is sent
            producer = self._producers.pop((topic, owner), None)
            if producer is None or producer.is_ended:
                if await self._brokers.describe(topic) is None:
                    raise _not_found(topic)
                producer_id = None
                if owner is not None:  # its next epoch: batches of the producer before it are refused, too
                    owner.producer_id = producer_id = await self._brokers.producer_id(topic, owner.producer_id)
                    self._retire_owners(topic)
                self._make_place()
                producer = self._new_producer(topic, self._bootstrap, self.options, producer_id)
                try:
                    await producer.start()
                    self._check_open()
                except BaseException:
                    self._retire(producer)
                    raise
            self._producers[topic, owner] = producer
            return producer

    def _retire_owners(self, topic: str) -> None:
        """Close the producers of owners of a topic, which a new one has ended."""
        for (_, owner), producer in list(self._producers.items()):
            if producer.topic == topic and owner is not None and producer.is_idle:
                self._retire(producer)

    def _make_place(self) -> None:
        """Close the producer that was not used for longest, if there are too many."""
        if len(self._producers) >= self.options.producers_max:
            for producer in self._producers.values():
                if producer.is_idle:
                    self._retire(producer)
                    return

    def _retire(self, producer: TopicProducer) -> None:
        """Close a producer in the background. The next append makes a new one."""
        producer.is_ended = True
        for writer in [writer for writer, one in self._producers.items() if one is producer]:
            del self._producers[writer]
        if producer.is_retired:
            return
        producer.is_retired = True
        task = asyncio.get_running_loop().create_task(
            producer.close(self.options.close_s), name=f"close the producer of {producer.topic}"
        )
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _not_found(topic: str) -> TopicNotFoundError:
    return TopicNotFoundError(f"no such topic, create it first: topic={topic}")


def _out_of_range(topic: str, offset: int, first: int, end: int) -> OffsetOutOfRangeError:
    why = "beyond the end" if offset > end else "the offset was deleted"
    return OffsetOutOfRangeError(f"{why}: topic={topic} offset={offset} first={first} next={end}", first, end)
