"""What every session of a proxy does, whatever its role: sort questions to those who answer them, count batches in and
out, hand on what another proxy has to answer if the connection asked for that.

The law of this room: a question has one answer. A batch costs one count in, one count out, and no task; while it is
counted its bytes may be kept, here or behind a pipe, and beyond the bounds nobody is read or taken.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from actors.runtime import Lifetime
from dlog.errors import (
    ClosedError,
    DLogError,
    InvalidRequestError,
    OwnedElsewhereError,
    ProducerUnknownError,
    RecordTooLargeError,
    UnavailableError,
)
from dlog.log.messages import BatchWritten
from dlog.wire.proxy import Done, Hello, List, Message, Ping, Stat, Write
from proxies.acks import AckRuns
from proxies.admission import Admission
from proxies.connection import Connection
from proxies.forwarding import Carriage, Forwarding
from proxies.questions import Questions

VIEWED_BYTES_MIN = 16 * 1024  # a view keeps all that was received with it; a smaller body is copied


class House(Protocol):
    """What the sessions of one process share, whatever its role."""

    role: str
    address: str
    tasks: Lifetime
    admission: Admission
    carriage: Carriage
    connection_bytes_max: int
    batch_bytes_max: int

    async def stat(self, stream: str) -> dict[str, Any]:
        """What is known of a stream here. Raises StreamNotFoundError, MetadataUnavailableError."""
        ...

    async def names(self, after: str, limit: int, listing: str | None) -> dict[str, Any]:
        """Names of streams in order. Raises MetadataUnavailableError."""
        ...


class Dispatch:
    """One connection's dealings; a role adds its handlers. `_forwarding` is there if the hello allowed a hop."""

    def __init__(self, house: House, connection: Connection, hello: Hello) -> None:
        self._connection = connection
        self._questions = Questions(house.tasks, connection)
        self._forwarding = Forwarding(house.carriage, connection) if hello.hops > 0 else None
        self._is_writable = True
        self._is_closed = False
        self._common = house
        self._acks = AckRuns()
        self._bytes = 0  # of this connection's batches in flight
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Ping: self._ping,
            List: self._list,
            Stat: self._stat,
        }

    # ---- what the connection tells ----------------------------------------------------------------------------------

    def received(self, message: Message) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            raise InvalidRequestError(f"not a question for a {self._common.role} proxy: {type(message).__name__}")
        handler(message)

    def flush(self) -> None:
        for written in self._acks.take():
            self._connection.send(written)

    def writable(self, yes: bool) -> None:
        self._is_writable = yes
        if self._forwarding is not None:
            self._forwarding.writable(yes)

    def closed(self) -> None:
        self._is_closed = True
        self._handlers.clear()  # they refer to this object
        if self._forwarding is not None:
            self._forwarding.close()

    # ---- batches ----------------------------------------------------------------------------------------------------

    def _count_in(self, batch: Write) -> int:
        """Take a batch's bytes; returns what `_answered` gives back. Raises RecordTooLargeError, OverCapacityError."""
        house, size = self._common, len(batch.body)
        if size > house.batch_bytes_max:
            raise RecordTooLargeError(f"a batch has at most {house.batch_bytes_max} bytes: bytes={size}")
        cost = house.admission.take(batch.stream, size)
        self._bytes += cost
        if self._bytes > house.connection_bytes_max:
            self._connection.hold(True)
        return cost

    def _count_out(self, stream: str, cost: int) -> None:
        bound = self._common.connection_bytes_max
        self._common.admission.give_back(stream, cost)
        was_held = self._bytes > bound
        self._bytes -= cost
        if was_held and self._bytes <= bound:
            self._connection.hold(False)

    def _written(self, request: int, stream: str, cost: int, result: BatchWritten | DLogError) -> None:
        """A batch was answered."""
        self._count_out(stream, cost)
        if isinstance(result, ProducerUnknownError):
            self._common.admission.producers_unknown += 1
        if self._is_closed:
            return
        if isinstance(result, BatchWritten):
            self._acks.add(request, result)
            self._connection.plan_flush()
        elif isinstance(result, ClosedError):  # its owner ended here; the stream goes on elsewhere
            self._connection.fail(request, UnavailableError(result.message, outcome_unknown=result.outcome_unknown))
        else:
            self._connection.fail(request, result)

    # ---- questions with one answer ----------------------------------------------------------------------------------

    def _answer(self, question: Any, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        """Do the work and answer; if it turns out to be another proxy's, and may be handed on, have that one do it."""
        if self._forwarding is None:
            self._questions.answer(question.request, work)
            return
        try:
            self._questions.answer(question.request, _or_handed_on(self._forwarding, question, work))
        except DLogError:
            work.close()
            raise

    def _ping(self, m: Ping) -> None:
        """Answered behind everything that was to be said before: who asks knows then that it has heard all."""
        self.flush()
        self._connection.send(Done(m.request))

    def _list(self, m: List) -> None:
        self._questions.answer(m.request, self._common.names(m.after, m.limit, m.listing))

    def _stat(self, m: Stat) -> None:
        self._questions.answer(m.request, self._stat_of(m))

    async def _stat_of(self, m: Stat) -> dict[str, Any]:
        """As we know it, or as its owner does, if that answers."""
        told = await self._common.stat(m.stream)
        owner = told["owner"]
        if self._forwarding is None or "state" in told or owner["released"] or not owner["location"]:
            return told
        try:
            return await self._forwarding.ask(m, owner["location"])
        except DLogError:
            return told


async def _or_handed_on(
    forwarding: Forwarding, question: Any, work: Coroutine[Any, Any, dict[str, Any]]
) -> dict[str, Any]:
    try:
        return await work
    except OwnedElsewhereError as error:
        if error.location is None:
            raise
        location = error.location
    return await forwarding.ask(question, location)


def kept(body: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    """A body as it may be kept for a while."""
    return body if len(body) >= VIEWED_BYTES_MIN else bytes(body)
