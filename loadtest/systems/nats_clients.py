"""JetStream clients of generators: nats-py as a Python program would use it, and a faster pipelined client.

The latter is our own, because nats-py has a quarter of its throughput and `nats bench` checks no record
(docs/decisions/0034-reports-and-load-test-use-libraries.md).

A batch that the application makes is one message: a mark, the number of records, their lengths, the records.

Invariants:
- an append without an answer in time, or whose connection closes, has an unknown outcome and is not sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import struct
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any

import nats
from nats.aio.client import Client as NATS
from nats.js import JetStreamContext
from nats.js.api import DeliverPolicy

from loadtest.systems.base import Acked, CannotRunError, Client, OnAnswer, Position, Refused, Writer
from loadtest.systems.nats_wire import Connection, Message

ASK_S = 5.0
SWEEP_S = 0.25
SILENCE_S = 5.0  # a subscription without messages or heartbeats for so long is created again
HEARTBEAT_S = 1.0
RETRY_S = 0.1
PATIENCE_S = 120.0  # timeout of a reader whose servers do not answer
_MARK = b"\xffbatch\x00"
_SEQUENCE = re.compile(rb'"seq":\s*(\d+)')


class OutcomeUnknownError(Exception):
    """No answer; the record may be in the stream."""

    outcome_unknown = True


def pack(records: Sequence[bytes]) -> bytes:
    """Several records as one message."""
    return b"".join((_MARK, struct.pack(f">I{len(records)}I", len(records), *map(len, records)), *records))


def unpack(sequence: int, payload: bytes) -> tuple[Position, list[bytes]]:
    """The position of a message's first record, and its records."""
    if not payload.startswith(_MARK):
        return (sequence,), [payload]
    (count,) = struct.unpack_from(">I", payload, len(_MARK))
    lengths = struct.unpack_from(f">{count}I", payload, len(_MARK) + 4)
    ends = itertools.accumulate(lengths, initial=len(_MARK) + 4 + 4 * count)
    return (sequence, 0), [payload[begin:end] for begin, end in itertools.pairwise(ends)]


def sequence_of(reply: bytes) -> int:
    """The stream sequence in the reply subject of a delivery."""
    words = reply.split(b".")
    return int(words[5] if len(words) == 9 else words[7])


class _Pending:
    """Pending messages of one writer: index of the first record -> (records, deadline)."""

    def __init__(self, on_answer: OnAnswer, ack_wait_s: float) -> None:
        self.on_answer = on_answer
        self.next = 0
        self._ack_wait_s = ack_wait_s
        self._waiting: OrderedDict[int, tuple[int, float]] = OrderedDict()
        self.idle = asyncio.Event()
        self.idle.set()

    def add(self, count: int) -> int:
        """Add a message of `count` records; the index of its first."""
        index, self.next = self.next, self.next + count
        self._waiting[index] = (count, time.monotonic() + self._ack_wait_s)
        self.idle.clear()
        return index

    def take(self, index: int) -> int:
        """Remove an answered message; its records, 0 if it was given up before."""
        count, _ = self._waiting.pop(index, (0, 0.0))
        if not self._waiting:
            self.idle.set()
        return count

    def refuse(self, index: int, error: str) -> None:
        count = self.take(index)
        if count:
            self.on_answer(Refused(index, count, error, True))

    def sweep(self, all_of_them: bool = False) -> None:
        """Give up messages past their deadline. Refusals are joined, so that many do not delay a recovering server."""
        now = time.monotonic()
        why = "the connection was closed" if all_of_them else f"no answer within {self._ack_wait_s:g} s"
        rows: list[list[int]] = []
        while self._waiting:
            index, (_, until) = next(iter(self._waiting.items()))
            if not all_of_them and until > now:
                break
            count = self.take(index)
            if rows and rows[-1][0] + rows[-1][1] == index:
                rows[-1][1] += count
            else:
                rows.append([index, count])
        for first, count in rows:
            self.on_answer(Refused(first, count, why, True))


# ---- pipelined client -----------------------------------------------------------------------------------------------


class RawClient(Client):
    """One connection for all writers, reopened when lost; another for each reader."""

    def __init__(self, address: Mapping[str, Any]) -> None:
        self.servers: list[str] = list(address["servers"])
        self.ack_wait_s = float(address["ack_wait_s"])
        self._writers: list[RawWriter] = []
        self._connection: Connection | None = None
        self._closing = False
        self._lock = asyncio.Lock()
        self._sweeping: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, address: Mapping[str, Any], options: Mapping[str, str]) -> RawClient:
        client = cls(address)
        await client.connection()
        client._sweeping = asyncio.get_running_loop().create_task(client._sweep(), name="sweep")
        return client

    async def close(self) -> None:
        self._closing = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._connection is not None:
            self._connection.close()

    async def writer(self, log: str, on_answer: OnAnswer) -> RawWriter:
        writer = RawWriter(self, len(self._writers), log, on_answer)
        self._writers.append(writer)
        writer.attach(await self.connection())
        return writer

    async def connection(self) -> Connection:
        """The open connection of writers; reopened on any server that answers."""
        async with self._lock:
            if self._connection is None or not self._connection.is_open:
                self._connection = await self.open(self._gone)
                for writer in self._writers:
                    writer.attach(self._connection)
            return self._connection

    async def open(self, lost: Any = lambda: None) -> Connection:
        """Connect to the first server that answers. Raises CannotRunError after ack_wait_s, 30 s at least."""
        end_s = time.monotonic() + max(self.ack_wait_s, 30.0)
        while True:
            for server in self.servers:
                connection = Connection(lost)
                try:
                    await connection.open(server)
                except (OSError, TimeoutError):
                    continue
                return connection
            if time.monotonic() > end_s:
                raise CannotRunError(f"no NATS server answers: {', '.join(self.servers)}")
            await asyncio.sleep(RETRY_S)

    def _gone(self) -> None:
        for writer in self._writers:
            writer.pending.sweep(all_of_them=True)

    async def _sweep(self) -> None:
        while not self._closing:
            await asyncio.sleep(SWEEP_S)
            for writer in self._writers:
                writer.pending.sweep()

    async def read(
        self, log: str, *, tail: bool, follow: bool
    ) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        position, end, well_s = 0, 0, time.monotonic()
        while True:
            connection = await self.open()
            try:
                if not position:
                    state = (await connection.request(f"$JS.API.STREAM.INFO.{log}", b"", ASK_S))["state"]
                    end = int(state["last_seq"])
                    position = end + 1 if tail else max(1, int(state["first_seq"]))
                if not follow and position > end:
                    return
                reading = _Reading(connection, log)
                await reading.begin(position)
                yield (position,), ()
                while follow or position <= end:
                    for sequence, payloads in await reading.more():
                        for at, records in payloads:
                            yield at, records
                        position = sequence
                    well_s = time.monotonic()
                return
            except (OSError, CannotRunError, TimeoutError):
                if time.monotonic() - well_s > PATIENCE_S:
                    raise
                await asyncio.sleep(RETRY_S)
            finally:
                connection.close()


class _Reading:
    """A push consumer of one stream, with flow control."""

    def __init__(self, connection: Connection, log: str) -> None:
        self._connection = connection
        self._log = log
        self._subject = connection.inbox + b".given"
        self._came: deque[list[Message]] = deque()
        self._news = asyncio.Event()

    async def begin(self, sequence: int) -> None:
        """Raises CannotRunError, OSError."""
        self._connection.subscribe(self._subject, self._receive)
        config = {
            "deliver_subject": self._subject.decode(),
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": sequence,
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * 1e9),
            "num_replicas": 1,
            "mem_storage": True,
        }
        asked = json.dumps({"stream_name": self._log, "config": config}).encode()
        await self._connection.request(f"$JS.API.CONSUMER.CREATE.{self._log}", asked, ASK_S)

    async def more(self) -> list[tuple[int, list[tuple[Position, list[bytes]]]]]:
        """New messages: [(sequence after them, [(position, records)])]. Raises TimeoutError after SILENCE_S."""
        async with asyncio.timeout(SILENCE_S):
            while not self._came:
                self._news.clear()
                await self._news.wait()
        found: list[tuple[Position, list[bytes]]] = []
        after = 0
        while self._came:
            for message in self._came.popleft():
                if message.headers.startswith(b"NATS/1.0 100"):  # a heartbeat, or a flow control request
                    if message.reply:
                        self._connection.publish(message.reply, [b""], [b""])
                    continue
                sequence = sequence_of(message.reply)
                at, records = unpack(sequence, message.payload)
                last = found[-1] if found else None
                if last is not None and len(at) == 1 and last[0] == (sequence - len(last[1]),):
                    last[1].extend(records)
                else:
                    found.append((at, records))
                after = sequence + 1
        return [(after, found)] if found else []

    def _receive(self, messages: list[Message]) -> None:
        self._came.append(messages)
        self._news.set()


class RawWriter(Writer):
    """One stream."""

    def __init__(self, client: RawClient, number: int, log: str, on_answer: OnAnswer) -> None:
        self.pending = _Pending(on_answer, client.ack_wait_s)
        self._client = client
        self._number = number
        self._log = log.encode()
        self._connection: Connection | None = None
        self._prefix = b""
        self._awaited: dict[int, asyncio.Future[Position]] = {}
        self._on_answer = on_answer
        self.pending.on_answer = self._route

    def attach(self, connection: Connection) -> None:
        """Publish on this connection."""
        self._connection = connection
        self._prefix = b"%b.w%d." % (connection.inbox, self._number)
        connection.subscribe(self._prefix + b"*", self._receive)

    async def hand_over(self, records: Sequence[bytes]) -> None:
        await self._publish(records, [1] * len(records))

    async def hand_over_batch(self, records: Sequence[bytes]) -> None:
        await self._publish([pack(records)], [len(records)])

    async def append(self, record: bytes) -> Position | None:
        answer: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._awaited[self.pending.next] = answer
        await self._publish([record], [1])
        return await answer

    async def flush(self) -> None:
        await self.pending.idle.wait()

    async def close(self) -> None:
        """Nothing: the connection is the client's."""

    async def _publish(self, payloads: Sequence[bytes], counts: Sequence[int]) -> None:
        indices = [self.pending.add(count) for count in counts]
        try:
            connection = self._connection
            if connection is None or not connection.is_open:
                connection = await self._client.connection()
            prefix = self._prefix
            connection.publish(self._log, [b"%b%d" % (prefix, index) for index in indices], payloads)
            await connection.drain()
        except (OSError, CannotRunError) as error:
            for index in indices:
                self.pending.refuse(index, repr(error))
            await asyncio.sleep(0)

    def _receive(self, messages: list[Message]) -> None:
        """Join consecutive acknowledgements into one answer."""
        skip = len(self._prefix)
        first = count = position = 0
        for message in messages:
            index = int(message.subject[skip:])
            found = None if message.headers else _SEQUENCE.search(message.payload)
            if found is None or b'"error"' in message.payload:
                self.pending.refuse(index, (message.headers or message.payload)[:120].decode(errors="replace").strip())
                continue
            records, sequence = self.pending.take(index), int(found[1])
            if records == 1 and count and index == first + count and sequence == position + count:
                count += 1
                continue
            if count:
                self._route(Acked(first, count, (position,)))
                count = 0
            if records == 1:
                first, count, position = index, 1, sequence
            elif records > 1:
                self._route(Acked(index, records, (sequence, 0)))
        if count:
            self._route(Acked(first, count, (position,)))

    def _route(self, answer: Acked | Refused) -> None:
        """Resolve awaited appends; pass other answers to `on_answer`."""
        if not self._awaited:
            self._on_answer(answer)
            return
        for index in range(answer.first, answer.first + answer.count):
            future = self._awaited.pop(index, None)
            position = answer.position if isinstance(answer, Acked) else None
            if future is None:
                at = None if position is None else (*position[:-1], position[-1] + index - answer.first)
                one = Acked(index, 1, at) if isinstance(answer, Acked) else Refused(index, 1, answer.error, True)
                self._on_answer(one)
            elif future.done():
                continue
            elif isinstance(answer, Refused):
                future.set_exception(OutcomeUnknownError(answer.error))
            else:
                assert position is not None, "a JetStream acknowledgement has a sequence"
                future.set_result((*position[:-1], position[-1] + index - answer.first))


# ---- nats-py --------------------------------------------------------------------------------------------------------


class NatsClient(Client):
    """nats-py."""

    def __init__(self, connection: NATS, ack_wait_s: float) -> None:
        self._connection = connection
        self._ack_wait_s = ack_wait_s
        self._stream = connection.jetstream(timeout=ack_wait_s, publish_async_max_pending=1 << 20)
        self._writers: list[NatsWriter] = []
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep(), name="sweep")

    @classmethod
    async def connect(cls, address: Mapping[str, Any], options: Mapping[str, str]) -> NatsClient:
        servers = [f"nats://{server}" for server in address["servers"]]
        connection = await nats.connect(
            servers,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            pending_size=64 << 20,
            error_cb=_ignore_error,
        )
        return cls(connection, float(address["ack_wait_s"]))

    async def close(self) -> None:
        self._sweeping.cancel()
        await self._connection.close()

    async def writer(self, log: str, on_answer: OnAnswer) -> NatsWriter:
        writer = NatsWriter(self._stream, log, on_answer, self._ack_wait_s)
        self._writers.append(writer)
        return writer

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for writer in self._writers:
                writer.pending.sweep()

    async def read(
        self, log: str, *, tail: bool, follow: bool
    ) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        end = (await self._stream.stream_info(log)).state.last_seq
        position = end + 1 if tail else 1
        if not follow and position > end:
            return
        policy = DeliverPolicy.NEW if tail else DeliverPolicy.ALL
        given = await self._stream.subscribe(log, stream=log, ordered_consumer=True, deliver_policy=policy)
        try:
            yield (position,), ()
            while follow or position <= end:
                try:
                    message = await given.next_msg(timeout=1.0)
                except nats.errors.TimeoutError:
                    continue
                sequence = message.metadata.sequence.stream
                yield unpack(sequence, message.data)
                position = sequence + 1
        finally:
            with contextlib.suppress(nats.errors.Error):
                await given.unsubscribe()


async def _ignore_error(_: Exception) -> None:
    """Ignore: pending requests raise the error."""


class NatsWriter(Writer):
    """One stream: `publish_async`, or `publish` for `append`."""

    def __init__(self, stream: JetStreamContext, log: str, on_answer: OnAnswer, ack_wait_s: float) -> None:
        self.pending = _Pending(on_answer, ack_wait_s)
        self._stream = stream
        self._log = log
        self._on_answer = on_answer

    async def hand_over(self, records: Sequence[bytes]) -> None:
        for record in records:
            await self._publish(record, 1)

    async def hand_over_batch(self, records: Sequence[bytes]) -> None:
        await self._publish(pack(records), len(records))

    async def append(self, record: bytes) -> Position | None:
        self.pending.next += 1
        return ((await self._stream.publish(self._log, record)).seq,)

    async def flush(self) -> None:
        await self.pending.idle.wait()

    async def close(self) -> None:
        """Nothing: the connection is the client's."""

    async def _publish(self, payload: bytes, count: int) -> None:
        index = self.pending.add(count)
        try:
            answer = await self._stream.publish_async(self._log, payload)
        except nats.errors.Error as error:
            self.pending.refuse(index, repr(error))
            return
        answer.add_done_callback(partial(self._answered, index))

    def _answered(self, index: int, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            self.pending.refuse(index, repr(error))
            return
        count = self.pending.take(index)
        if count:
            sequence = answer.result().seq
            self._on_answer(Acked(index, count, (sequence,) if count == 1 else (sequence, 0)))
