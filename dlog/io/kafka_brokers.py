"""Requests to Kafka brokers over aiokafka's connections, and what they answered.

aiokafka's admin client and consumer are not used: the admin client does not look at the error codes of answers, keeps
to a controller that died and lets metadata requests create topics; a consumer's request for new records holds up the
next seek for `fetch_max_wait_ms`, and it retries for ever what should fail.

Invariants:
- No request creates a topic by naming it.
- A failed connection is closed and made again for the next request; a cancelled request keeps it.
- Requests that brokers may answer late (`slow`) have connections of their own: a broker answers in order.
"""

from __future__ import annotations

import asyncio
import random
import struct
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import add
from typing import Any, NamedTuple, TypeVar

from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import CorruptRecordException, IncompatibleBrokerVersion, KafkaError, for_code
from aiokafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
)
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.default_records import DefaultRecordBatch

from dlog.errors import DamagedError, InvalidRequestError, UnauthorizedError, UnavailableError, UnsupportedVersionError
from dlog.hostport import join_host_port, split_host_port
from dlog.io.kafka_producer_id import FENCED, TRANSACTION_COORDINATOR, InitProducerIdRequest
from dlog.io.kafka_settings import ProducerId
from dlog.io.kafka_topic_ids import UNKNOWN_TOPIC_ID, DeleteByIdRequest, TopicIdRequest
from dlog.region.topics import OwnerRefusedError, Stored, TopicExistsError, TopicNotFoundError
from dlog.values import Columns
from dlog.wire.digest import crc32c

T = TypeVar("T")

_CLIENT_ID = "dlog"
_IDLE_MS = 300_000  # brokers close connections unused for 10 minutes
_LATEST, _EARLIEST = -1, -2
_READ_UNCOMMITTED = 0  # of fetches and of end offsets: with another level they would disagree on where the end is
_TOPIC = 2  # a kind of resource

# a batch of records begins: first offset i64 | bytes that follow i32 | leader epoch i32 | version i8 | crc32c u32
_BATCH_START = struct.Struct(">qiibI")
_BATCH_SIZED_FROM = 12
_BATCH_SUMMED_FROM = _BATCH_START.size  # the checksum covers everything behind it
_BATCH_VERSION = 2  # of all releases since 0.11

# error codes; aiokafka has no class for some of them
OFFSET_OUT_OF_RANGE = 1
_CORRUPT_MESSAGE = 2
_UNKNOWN_TOPIC = 3
_REQUEST_TIMED_OUT = 7
_INVALID_TOPIC = 17
_TOPIC_EXISTS = 36
_INVALID_REPLICATION_FACTOR = 38
_UNAUTHORIZED = frozenset({29, 30, 31, 53})
_NOT_CREATED = frozenset({17, 37, 39, 40, 42, 44})  # the request is refused as it is


class BrokerFailedError(Exception):
    """A broker could not be asked, or cannot serve this now. was_sent: whether the request may have been carried out.
    Another attempt may succeed."""

    def __init__(self, message: str, *, was_sent: bool = False) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class TopicLayout(NamedTuple):
    """A topic as a broker describes it. leader: node of partition 0, -1: none."""

    partitions: int
    leader: int
    replication_factor: int


_Records = tuple[Sequence[int], Sequence[bytes], Sequence[bytes]]  # offsets, keys and values


class Fetched:
    """Records of a fetch that were not read yet, from an offset on.

    next_offset: behind the batches that were read. It is beyond the last record if control batches follow, whose
    offsets no record has. is_exhausted: there are no more.
    """

    def __init__(self, topic: str, data: bytes, offset: int) -> None:
        self.next_offset = offset
        self.is_exhausted = False
        self._topic = topic
        self._offset = offset
        self._data = data
        self._batches = self.batches()
        self._left: _Records = ([], [], [])  # of the last batch

    def take(self, bytes_max: int) -> Columns[Stored]:
        """The next records, of about bytes_max bytes, but at least one unless there are no more. Raises DamagedError
        if the first of them does not verify."""
        columns: tuple[list[Any], ...] = ([], [], [])
        found = Columns(Stored, columns)
        size, bytes_max = 0, max(1, bytes_max)
        try:
            while size < bytes_max:
                left = self._left if self._left[0] else self._records_of(next(self._batches))
                sizes = list(accumulate(map(add, map(len, left[1]), map(len, left[2])), initial=size))
                taken = min(bisect_left(sizes, bytes_max), len(sizes) - 1)
                size = sizes[taken]
                for into, column in zip(columns, left, strict=True):
                    into += column[:taken]
                self._left = left[0][taken:], left[1][taken:], left[2][taken:]
            return found
        except StopIteration:
            pass
        except (KafkaError, ValueError, RuntimeError) as error:
            if not found:
                raise DamagedError(
                    f"records do not verify, compare the replicas: topic={self._topic} offset={self.next_offset} "
                    f"error={error}"
                ) from error
        self.is_exhausted = True
        return found

    def _records_of(self, batch: Any) -> _Records:
        """Of a batch. A fetch returns the whole batch in which its offset lies."""
        first = self._offset
        records = [record for record in batch if record.offset >= first]
        return (
            [record.offset for record in records],
            [record.key or b"" for record in records],
            [record.value or b"" for record in records],
        )

    def batches(self) -> Iterator[Any]:
        """The batches of records, without control batches. Raises CorruptRecordException if one does not verify."""
        data, at = memoryview(self._data), 0
        while at + _BATCH_START.size <= len(data):
            _, size, _, version, checksum = _BATCH_START.unpack_from(data, at)
            begin, at = at, at + _BATCH_SIZED_FROM + size
            if at > len(data):
                return  # brokers cut the last batch at the size asked for
            if version != _BATCH_VERSION:
                raise CorruptRecordException(f"not a version of batches: version={version}")
            if crc32c(data[begin + _BATCH_SUMMED_FROM : at]) != checksum:
                raise CorruptRecordException("checksum")
            batch = DefaultRecordBatch(data[begin:at])
            if not batch.is_control_batch:
                yield batch
            self.next_offset = batch.next_offset


class Brokers:
    """Brokers of a Kafka cluster: connections, and requests about topics of one partition.

    Any method may raise BrokerFailedError, UnauthorizedError, and UnsupportedVersionError.
    """

    def __init__(self, bootstrap: Sequence[str], request_timeout_s: float, rng: random.Random) -> None:
        self._bootstrap = tuple(bootstrap)
        self._timeout_ms = int(request_timeout_s * 1000)
        self._rng = rng
        self._nodes: dict[int, str] = {}
        self._controller = -1
        self._leaders: dict[str, int] = {}
        self._connections: dict[tuple[str, bool], AIOKafkaConnection] = {}
        self._connecting: defaultdict[tuple[str, bool], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._is_closed = False

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self._is_closed = True
        connections, self._connections = list(self._connections.values()), {}
        closed = [connection.close() for connection in connections]
        for one in closed:
            if one is not None:
                await one

    # ---- topics ------------------------------------------------------------------------------------------------------

    async def describe(self, topic: str) -> TopicLayout | None:
        """The topic; None if no broker that answers knows it. One that knows it is enough: others may lag behind."""
        failed: BrokerFailedError | None = None
        is_answered = False
        for address in self._addresses():
            try:
                layout = await self._describe_by(address, topic)
            except BrokerFailedError as error:
                failed = error
                continue
            if layout is not None:
                self._leaders[topic] = layout.leader
                return layout
            is_answered = True
        self._leaders.pop(topic, None)
        if not is_answered:
            raise failed or BrokerFailedError("no broker is known")
        return None

    async def topics(self) -> set[str]:
        """The names of all topics that a broker knows which answers."""
        found: set[str] = set()
        failed: BrokerFailedError | None = None
        is_answered = False
        for address in self._addresses():
            try:
                answer = await self._ask(address, MetadataRequest(None, allow_auto_topic_creation=False))
            except BrokerFailedError as error:
                failed = error
                continue
            is_answered = True
            found.update(name for _, name, _, _ in answer.topics)
        if not is_answered:
            raise failed or BrokerFailedError("no broker is known")
        return found

    async def is_known_everywhere(self, topic: str) -> bool:
        """Whether every broker that answers knows the topic and a leader of it."""
        return all(layout is not None and layout.leader >= 0 for layout in await self._described(topic))

    async def is_forgotten_everywhere(self, topic: str) -> bool:
        """Whether no broker that answers knows the topic any more."""
        return all(layout is None for layout in await self._described(topic))

    async def topic_ids(self, topic: str) -> set[str]:
        """The ids of the topic according to the brokers that answer, of which some may lag behind. Raises
        UnsupportedVersionError for brokers without ids."""
        found: set[str] = set()
        for answer in await self._of_each(lambda address: self._ask(address, TopicIdRequest(topic))):
            for code, name, topic_id, *_ in answer.topics:
                if name == topic and code != _UNKNOWN_TOPIC:
                    _check(code, topic)
                    found.add(topic_id)
        return found

    async def topic_id_by_leader(self, topic: str) -> str | None:
        """The id of the topic according to its leader; None if that does not know it (any more). Raises
        TopicNotFoundError, UnsupportedVersionError."""
        answer = await self._ask_leader(topic, TopicIdRequest(topic))
        for code, name, topic_id, *_ in answer.topics:
            if name == topic and code != _UNKNOWN_TOPIC:
                self._check_leader(code, topic)
                return str(topic_id)
        self._leaders.pop(topic, None)
        return None

    async def create(self, topic: str, replication_factor: int, configs: Mapping[str, str]) -> None:
        """Create a topic of one partition. Raises TopicExistsError, InvalidRequestError."""
        request = CreateTopicsRequest(
            [(topic, 1, replication_factor, [], list(configs.items()))], self._timeout_ms // 2, False
        )
        answer = await self._ask(self._address(self._controller), request, slow=True)
        for _, code, *details in answer.topic_errors:
            why = f"{_name(code)}: {details[0] if details and details[0] else 'no reason given'}"
            if code == _TOPIC_EXISTS:
                raise TopicExistsError(f"there is a topic of this name: topic={topic}")
            if code == _INVALID_REPLICATION_FACTOR:
                raise UnavailableError(
                    f"too few brokers for the topic, start them or lower replication_factor: topic={topic} {why}"
                )
            if code in _NOT_CREATED:
                raise InvalidRequestError(f"Kafka refuses to create the topic: topic={topic} {why}")
            _check(code, topic)

    async def delete(self, topic: str) -> None:
        """Delete a topic. Idempotent."""
        self._leaders.pop(topic, None)
        request = DeleteTopicsRequest([topic], self._timeout_ms // 2)
        answer = await self._ask(self._address(self._controller), request, slow=True)
        for _, code, *_ in answer.topic_error_codes:
            if code != _UNKNOWN_TOPIC:
                _check(code, topic)

    async def delete_by_id(self, topic: str, topic_id: str) -> None:
        """Delete the topic with this id, which had this name. Idempotent."""
        self._leaders.pop(topic, None)
        request = DeleteByIdRequest(topic_id, self._timeout_ms // 2)
        answer = await self._ask(self._address(self._controller), request, slow=True)
        for _, _, code, *_ in answer.topics:
            if code != UNKNOWN_TOPIC_ID:
                _check(code, topic)

    async def configs(self, topic: str) -> dict[str, str] | None:
        """The settings of a topic, with the brokers' defaults; None if the broker does not know it."""
        answer = await self._ask(self._addresses()[0], DescribeConfigsRequest([(_TOPIC, topic, None)]))
        for code, _, _, _, entries in answer.resources:
            if code == _UNKNOWN_TOPIC:
                return None
            _check(code, topic)
            return {name: "" if value is None else value for name, value, *_ in entries}
        raise BrokerFailedError("the settings were not described")

    # ---- records -----------------------------------------------------------------------------------------------------

    async def fetch(self, topic: str, offset: int, bytes_max: int) -> Fetched | int:
        """What the leader has from an offset on, at once, or an error code; nothing is not yet the end: a new leader
        may not know how far records are confirmed. bytes_max: of the answer, but at least one batch."""
        request = FetchRequest(0, 1, bytes_max, _READ_UNCOMMITTED, [(topic, [(0, offset, bytes_max)])])
        answer = await self._ask_leader(topic, request)
        for _, partitions in answer.topics:
            for _, code, _, *rest in partitions:
                if code == OFFSET_OUT_OF_RANGE:
                    return OFFSET_OUT_OF_RANGE
                self._check_leader(code, topic)
                return Fetched(topic, rest[-1] or b"", offset)
        raise BrokerFailedError("the answer to a fetch has no partition")

    async def offsets(self, topic: str) -> tuple[int, int]:
        """The first offset and the end offset."""
        first = await self._offset(topic, _EARLIEST)
        return first, await self._offset(topic, _LATEST)

    async def end_offset(self, topic: str) -> int:
        return await self._offset(topic, _LATEST)

    async def delete_records(self, topic: str, offset: int) -> bool:
        """Delete the records below an offset; False if it is beyond the end."""
        request = DeleteRecordsRequest([(topic, [(0, offset)])], self._timeout_ms // 2)
        answer = await self._ask_leader(topic, request, slow=True)
        for _, partitions, *_ in answer.topics:
            for _, _, code, *_ in partitions:
                if code == OFFSET_OUT_OF_RANGE:
                    return False
                self._check_leader(code, topic)
        return True

    async def producer_id(self, transactional_id: str, current: ProducerId | None) -> ProducerId:
        """Take a transactional id from the producer that has it. current: what this caller got last; None: nothing. If
        another producer took the id since then, it keeps it: raises OwnerRefusedError."""
        found = await self._ask(self._addresses()[0], FindCoordinatorRequest(transactional_id, TRANSACTION_COORDINATOR))
        _check(found.error_code, transactional_id)
        answer = await self._ask(
            join_host_port(found.host, found.port), InitProducerIdRequest(transactional_id, current), slow=True
        )
        if answer.error_code in FENCED:
            raise OwnerRefusedError(f"another owner has the transactional id of the topic: topic={transactional_id}")
        _check(answer.error_code, transactional_id)
        return ProducerId(answer.producer_id, answer.producer_epoch)

    async def _offset(self, topic: str, which: int) -> int:
        answer = await self._ask_leader(topic, OffsetRequest(-1, _READ_UNCOMMITTED, [(topic, [(0, which)])]))
        for _, partitions in answer.topics:
            for _, code, _, offset, *_ in partitions:
                self._check_leader(code, topic)
                return int(offset)
        raise BrokerFailedError("the answer to a question for an offset has no partition")

    def _check_leader(self, code: int, topic: str) -> None:
        if code:
            self._leaders.pop(topic, None)
        _check(code, topic)

    async def _ask_leader(self, topic: str, request: Any, *, slow: bool = False) -> Any:
        """Ask the leader of a topic. Raises TopicNotFoundError."""
        leader = self._leaders.get(topic, -1)
        if leader < 0:
            layout = await self.describe(topic)
            if layout is None:
                raise TopicNotFoundError(f"no such topic, create it first: topic={topic}")
            leader = layout.leader
        if leader < 0:
            raise BrokerFailedError("the partition has no leader")
        try:
            return await self._ask(self._address(leader), request, slow=slow)
        except BrokerFailedError:
            self._leaders.pop(topic, None)
            raise

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _addresses(self) -> list[str]:
        """Brokers to ask what any of them knows: connected ones first."""
        known = list(dict.fromkeys((*self._nodes.values(), *self._bootstrap)))
        self._rng.shuffle(known)
        return sorted(known, key=lambda address: (address, False) not in self._connections)

    def _address(self, node: int) -> str:
        address = self._nodes.get(node)
        if address is None:
            raise BrokerFailedError(f"the broker is not among those that live: node={node}")
        return address

    async def _described(self, topic: str) -> list[TopicLayout | None]:
        """What each broker that answers reports of a topic; of those in the cluster, once they are known."""
        return await self._of_each(lambda address: self._describe_by(address, topic))

    async def _of_each(self, ask: Callable[[str], Awaitable[T]]) -> list[T]:
        """What each broker that answers replies; of those in the cluster, once they are known."""
        found: list[T] = []
        failed: BrokerFailedError | None = None
        for address in list(self._nodes.values()) or self._addresses():
            try:
                found.append(await ask(address))
            except BrokerFailedError as error:
                failed = error
        if not found:
            raise failed or BrokerFailedError("no broker is known")
        return found

    async def _describe_by(self, address: str, topic: str) -> TopicLayout | None:
        answer = await self._ask(address, MetadataRequest([topic], allow_auto_topic_creation=False))
        if answer.brokers:  # empty while a broker starts
            self._nodes = {node: join_host_port(host, port) for node, host, port, *_ in answer.brokers}
            self._controller = answer.controller_id
        for code, name, _, partitions in answer.topics:
            if name != topic or code == _UNKNOWN_TOPIC:
                continue
            _check(code, topic)
            first = next((one for one in partitions if one[1] == 0), None)
            if first is not None:
                return TopicLayout(len(partitions), first[2], len(first[3]))
        return None

    async def _ask(self, address: str, request: Any, *, slow: bool = False) -> Any:
        """Send a request and return the answer."""
        key = (address, slow)
        connection: AIOKafkaConnection | None = None
        try:
            connection = await self._connection(key)
            return await connection.send(request)
        except (IncompatibleBrokerVersion, NotImplementedError) as error:
            raise UnsupportedVersionError(
                f"the broker's release does not fit, use Kafka 2.2 or later: {error} broker={address}"
            ) from error
        except (KafkaError, OSError, TimeoutError) as error:
            if connection is not None:
                connection.close()
                if self._connections.get(key) is connection:
                    del self._connections[key]
            why = str(error) or type(error).__name__
            raise BrokerFailedError(f"{why}: broker={address}", was_sent=connection is not None) from error

    async def _connection(self, key: tuple[str, bool]) -> AIOKafkaConnection:
        async with self._connecting[key]:
            connection = self._connections.get(key)
            if connection is None or not connection.connected():
                host, port = split_host_port(key[0])
                connection = await create_conn(
                    host, port, client_id=_CLIENT_ID, request_timeout_ms=self._timeout_ms, max_idle_ms=_IDLE_MS
                )
                if self._is_closed:
                    connection.close()
                    raise BrokerFailedError("the client was closed")
                self._connections[key] = connection
            return connection


def _check(code: int, topic: str) -> None:
    """Raise unless the code means success."""
    if not code:
        return
    if code in _UNAUTHORIZED:
        raise UnauthorizedError(f"Kafka denies access, grant it by kafka-acls.sh: topic={topic} error={_name(code)}")
    if code == _CORRUPT_MESSAGE:
        raise DamagedError(f"the broker's records do not verify, compare the replicas: topic={topic}")
    if code == _INVALID_TOPIC:
        raise InvalidRequestError(f"Kafka refuses the topic's name: topic={topic}")
    raise BrokerFailedError(_name(code), was_sent=code == _REQUEST_TIMED_OUT)


def _name(code: int) -> str:
    message = for_code(code).message
    return f"{message} ({code})"
