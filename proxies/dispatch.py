"""Base of both proxies' sessions: dispatches requests, counts batches in flight, forwards if the client asked for it.

Invariants:
- a request has one reply;
- no request of a peer changes a stream that dlog keeps for itself;
- a batch is counted in once and out once, and needs no task. While counted its bytes may be kept, here or in a
  forwarding connection; above the limits connections are not read and batches are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from actors.runtime import TaskScope
from dlog.errors import (
    DLogError,
    InvalidRequestError,
    OwnedElsewhereError,
    ProducerUnknownError,
    RecordTooLargeError,
)
from dlog.log.messages import BatchWritten
from dlog.model.ids import is_reserved, user_stream_name
from dlog.model.location import NetworkLocation, region_location
from dlog.wire.proxy import (
    Alter,
    Create,
    Delete,
    Done,
    HandOver,
    Hello,
    ImportSegments,
    List,
    Message,
    MoveSegment,
    Ping,
    Seal,
    SinkWrite,
    Stat,
    Truncate,
    Write,
)
from proxies.acks import AckJoiner
from proxies.admission import Admission
from proxies.connection import Connection
from proxies.forwarding import Forwarding, ForwardingPool
from proxies.request_tasks import RequestTasks

#: requests that change a stream: refused for the streams that dlog keeps for itself
CHANGES = (Write, Create, Delete, Truncate, Seal, Alter, HandOver, ImportSegments, SinkWrite, MoveSegment)
VIEWED_BYTES_MIN = 16 * 1024  # a view keeps the whole receive buffer alive, so smaller bodies are copied


def client_location(region: str | None) -> NetworkLocation | None:
    """Where a client stands that names this region in a request. Raises InvalidRequestError."""
    return None if region is None else region_location(region)


class ServerContext(Protocol):
    """State of the process that sessions of both roles use."""

    role: str
    address: str
    tasks: TaskScope
    admission: Admission
    forwarding: ForwardingPool
    connection_bytes_max: int
    batch_bytes_max: int

    async def stat(self, stream: str) -> dict[str, Any]:
        """What this proxy knows of a stream. Raises StreamNotFoundError, MetadataUnavailableError."""
        ...

    async def names(self, after: str, limit: int, listing: str | None) -> dict[str, Any]:
        """Stream names in order. Raises MetadataUnavailableError."""
        ...


class Dispatch:
    """Session of one connection; a role adds its handlers. `_forwarding` is set if the Hello allowed a hop."""

    def __init__(self, server: ServerContext, connection: Connection, hello: Hello) -> None:
        self._connection = connection
        self._questions = RequestTasks(server.tasks, connection)
        self._forwarding = Forwarding(server.forwarding, connection) if hello.hops > 0 else None
        self._is_writable = True
        self._is_closed = False
        self._common = server
        self._acks = AckJoiner()
        self._bytes = 0  # of this connection's batches in flight
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Ping: self._ping,
            List: self._list,
            Stat: self._stat,
        }

    # ---- called by the connection ------------------------------------------------------------------------------------

    def received(self, message: Message) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            raise InvalidRequestError(
                f"a {self._common.role} proxy does not serve this request: {type(message).__name__}"
            )
        if isinstance(message, CHANGES) and is_reserved(message.stream):
            user_stream_name(message.stream)
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
        self._handlers.clear()  # breaks the reference cycle
        if self._forwarding is not None:
            self._forwarding.close()

    # ---- batches ----------------------------------------------------------------------------------------------------

    def _count_in(self, batch: Write) -> int:
        """Count a batch in; returns the cost for `_count_out`. Raises RecordTooLargeError, OverCapacityError."""
        server, size = self._common, len(batch.body)
        if size > server.batch_bytes_max:
            raise RecordTooLargeError(f"the batch is too large: max={server.batch_bytes_max} bytes={size}")
        cost = server.admission.take(batch.stream, size)
        self._bytes += cost
        if self._bytes > server.connection_bytes_max:
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
        """The result of a batch is known: count it out and reply."""
        self._count_out(stream, cost)
        if isinstance(result, ProducerUnknownError):
            self._common.admission.producers_unknown += 1
        if self._is_closed:
            return
        if isinstance(result, BatchWritten):
            self._acks.add(request, result)
            self._connection.plan_flush()
        else:
            self._connection.fail(request, result)

    # ---- requests with one reply ------------------------------------------------------------------------------------

    def _answer(self, question: Any, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        """Run `work` and reply; if another proxy owns the stream and forwarding is allowed, forward the request."""
        if self._forwarding is None:
            self._questions.answer(question.request, work)
            return
        try:
            self._questions.answer(question.request, _or_handed_on(self._forwarding, question, work))
        except DLogError:
            work.close()
            raise

    def _ping(self, m: Ping) -> None:
        """Reply after all earlier replies, so that the client knows that it has received them."""
        self.flush()
        self._connection.send(Done(m.request))

    def _list(self, m: List) -> None:
        self._questions.answer(m.request, self._common.names(m.after, m.limit, m.listing))

    def _stat(self, m: Stat) -> None:
        self._questions.answer(m.request, self._stat_of(m))

    async def _stat_of(self, m: Stat) -> dict[str, Any]:
        """The owner's description of a stream if it replies, otherwise this proxy's."""
        description = await self._common.stat(m.stream)
        owner = description["owner"]
        if self._forwarding is None or "state" in description or owner["released"] or not owner["location"]:
            return description
        try:
            return await self._forwarding.ask(m, owner["location"])
        except DLogError:
            return description


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
    """The body in a form that may be kept for long."""
    return body if len(body) >= VIEWED_BYTES_MIN else bytes(body)
