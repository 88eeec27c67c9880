"""Appends to one Kafka topic by aiokafka's idempotent producer.

Invariants:
- An append is one batch. The producer numbers batches, and a broker refuses one that is out of order or there already.
- A producer ends with the first append that does not succeed. aiokafka would send its batch again for ever, and after a
  refused batch every later one is out of order.
- A batch that is not yet in aiokafka's queue is certainly not appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    BrokerResponseError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
    TopicAuthorizationFailedError,
)
from aiokafka.producer.message_accumulator import BatchBuilder

from dlog.errors import RecordTooLargeError, UnauthorizedError, UnavailableError
from dlog.io.kafka_settings import BATCH_OVERHEAD_BYTES, KafkaTopicsOptions, ProducerId
from dlog.io.kafka_topic_ids import TopicIdRequest
from dlog.region.topics import OwnerRefusedError, RecordBytes

_RECORDS_MAX = 2**31 - 1  # aiokafka's sequence numbers become negative behind it, which brokers refuse
_METADATA_STEP_S = 0.1


class NotQueuedError(Exception):
    """The producer did not take the batch: nothing was sent. Another producer may."""


def build_batch(topic: str, records: Sequence[RecordBytes], bytes_max: int) -> Any:
    """A batch of all the records. Raises RecordTooLargeError."""
    batch = BatchBuilder(bytes_max + BATCH_OVERHEAD_BYTES, 0)
    for key, value in records:
        # the first record of a batch is taken at any size
        if batch.append(timestamp=None, key=key, value=value) is None or batch.size() > bytes_max:
            size = sum(len(key) + len(value) for key, value in records)
            raise RecordTooLargeError(
                f"an append is too large for a batch of Kafka, split it or raise batch_bytes_max: topic={topic} "
                f"records={len(records)} bytes={size} batch_bytes_max={bytes_max}"
            )
    batch.close()  # aiokafka adds nothing to a closed batch
    return batch


class TopicProducer:
    """A producer of one topic, from `start` to the first failure, or `close`.

    is_ended: it takes no more batches. is_retired: somebody closes it. producer_id: of batches; None: a new one.
    """

    def __init__(
        self, topic: str, brokers: Sequence[str], options: KafkaTopicsOptions, producer_id: ProducerId | None = None
    ) -> None:
        self.topic = topic
        self.is_ended = False
        self.is_retired = False
        self._brokers = ",".join(brokers)
        self._producer_id = producer_id
        self._records = 0
        self._waiting = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._turn = asyncio.Lock()  # aiokafka counts the time of those that wait for its queue twice
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._producer = AIOKafkaProducer(
            bootstrap_servers=list(brokers),
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            max_batch_size=options.batch_bytes_max + BATCH_OVERHEAD_BYTES,
            max_request_size=options.batch_bytes_max + 4096,
            request_timeout_ms=int(options.request_timeout_s * 1000),
        )
        if producer_id is not None:  # with a `transactional_id` aiokafka would take batches in transactions only
            self._producer._txn_manager.set_pid_and_epoch(*producer_id)

    async def start(self) -> None:
        """Connect, and learn the topic. May wait for ever. Raises NotQueuedError. Call `close` in any case."""
        client = self._producer.client
        try:
            await self._producer.start()
            # aiokafka asks brokers for a topic that it does not know by name, which creates it if they may; a client
            # that follows no topic asks for all there are
            while client.cluster.partitions_for_topic(self.topic) is None:
                await client.force_metadata_update()
                if client.cluster.partitions_for_topic(self.topic) is None:
                    await asyncio.sleep(_METADATA_STEP_S)
        except (KafkaError, OSError, TimeoutError) as error:
            raise NotQueuedError(_error_text(error)) from error

    @contextmanager
    def use(self) -> Iterator[None]:
        """The scope of an append, which `close` waits for."""
        self._waiting += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._idle.set()

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    async def queue(self, batch: Any) -> asyncio.Future[Any]:
        """Put a batch into aiokafka's queue, behind earlier ones. Raises NotQueuedError. A cancelled call did not."""
        async with self._turn:
            if self._records + batch.record_count() > _RECORDS_MAX:
                self.is_ended = True
            if not self.is_ended and self._producer.client.cluster.partitions_for_topic(self.topic) is None:
                self.is_ended = True  # deleted, or its leader is unknown: see `start`
            if self.is_ended:
                raise NotQueuedError("the producer has ended")
            try:
                queued: asyncio.Future[Any] = await self._producer.send_batch(batch, self.topic, partition=0)
            except (KafkaError, AssertionError) as error:  # AssertionError: any call after a fatal error
                self.is_ended = True
                raise NotQueuedError(_error_text(error)) from error
            self._records += batch.record_count()
            return queued

    async def wait_appended(self, queued: asyncio.Future[Any]) -> int:
        """The offset of the first record of a queued batch. May wait for ever. Raises UnavailableError; the outcome is
        unknown after a cancelled wait, too. The producer ends unless this succeeds."""
        try:
            await asyncio.wait((queued, self._closed), return_when=asyncio.FIRST_COMPLETED)
            if not queued.done() or queued.cancelled():
                raise self._unknown("the producer was closed after another append")
            offset = int(queued.result().offset)
            if offset < 0:  # DUPLICATE_SEQUENCE: the broker has the batch, but not its offset any more
                raise self._unknown("the broker does not send the offset of the batch")
            return offset
        except KafkaError as error:
            self.is_ended = True
            raise self._refusal(error) from error
        except BaseException:
            self.is_ended = True
            raise
        finally:
            queued.cancel()  # of the wait; an error that comes later is then not reported as unhandled

    async def check_id(self, topic_id: str) -> None:
        """Check that the topic of the last append has this id. Asks the broker that answered the append, on the same
        connection: it knew the topic that it appended to. May wait for ever. Raises UnavailableError with an unknown
        outcome: the append may be in another topic of the name. The producer ends unless this succeeds."""
        client = self._producer.client
        leader = client.cluster.leader_for_partition(TopicPartition(self.topic, 0))
        try:
            if leader is None or leader < 0:
                raise self._unknown("the topic has no leader, so its id is not known")
            answer = await client.send(leader, TopicIdRequest(self.topic))
            if not any(name == self.topic and found == topic_id for _, name, found, *_ in answer.topics):
                raise self._unknown("the topic was deleted, or deleted and created again")
        except (KafkaError, OSError, TimeoutError, NotImplementedError) as error:
            self.is_ended = True
            raise self._unknown(f"the topic's id is not known: {_error_text(error)}") from error
        except BaseException:
            self.is_ended = True
            raise

    async def close(self, within_s: float) -> None:
        """Close it, once the appends under way have ended, but at most about 4 x within_s later. Their outcome is then
        unknown."""
        self.is_ended = True
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        if not self._closed.done():
            self._closed.set_result(None)
        # AIOKafkaProducer.stop() waits for queued batches without a bound, and leaves a task behind if it is cancelled
        self._producer._closed = True
        sender = self._producer._sender.sender_task
        if sender is not None:
            # the first cancellation lets it wait for the request under way, the second cancels that
            for _ in range(2):
                sender.cancel()
                await asyncio.wait((sender,), timeout=within_s / 2)
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(within_s):
                await self._producer.client.close()

    def _refusal(self, error: KafkaError) -> Exception:
        where = f"topic={self.topic} brokers={self._brokers}"
        if isinstance(error, TopicAuthorizationFailedError):
            return UnauthorizedError(f"Kafka denies appends, grant Write by kafka-acls.sh: {where}")
        if isinstance(error, MessageSizeTooLargeError):
            return RecordTooLargeError(
                f"the topic takes no batches of this size, raise its max.message.bytes by kafka-configs.sh: {where}"
            )
        if isinstance(error, ProducerFenced) and self._producer_id is not None:
            return OwnerRefusedError(f"the brokers refuse an append, another owner has appended: {where}")
        return self._unknown(_error_text(error))

    def _unknown(self, why: str) -> UnavailableError:
        return UnavailableError(
            f"Kafka did not confirm an append, read the topic's end to see whether it is there: topic={self.topic} "
            f"brokers={self._brokers} reason={why}",
            outcome_unknown=True,
        )


def _error_text(error: BaseException) -> str:
    if isinstance(error, BrokerResponseError):
        return f"{error.message} ({error.errno})"
    return str(error) or type(error).__name__
