"""Forwards the requests of one client connection to the proxies that can execute them.

Invariants:
- forwarding is only for connections that asked for it (Hello.hops), and nothing is forwarded twice: the connections to
  other proxies say hops 0, and their reply 302 goes back to the client;
- each client connection has its own connection to each proxy, so that a slow client or owner delays no other: a full
  connection to a proxy stops the reading of the client, a full client stops the reading of the proxies;
- before a silent connection is given up the proxy is probed on a new one, since it may be slow and not dead;
- requests pending when a connection ends get a typed error, and nothing is sent again from here: the client retries,
  because it knows what may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from actors.runtime import TaskScope
from dlog.errors import (
    ConnectionLostError,
    DLogError,
    OverCapacityError,
    OwnedElsewhereError,
    RequestTimeoutError,
    UnavailableError,
)
from dlog.log.messages import BatchWritten
from dlog.wire.proxy import Credit, Failed, Message, Read, ReaderEvent, ReaderEventKind, Write
from proxies.connection import Connection, Pause
from proxies.dialling import Dialler
from proxies.forwarding_connection import Answer, ForwardingConnection, unreachable
from proxies.meters import Meters
from proxies.proxy_connection import ProxyConnection
from proxies.routes import Routes

CONNECT_S = 1.0
PING_EVERY_S = 0.25
PING_TIMEOUT_S = 0.3  # a connection silent for so long after a ping makes the proxy suspect,
GREETING_S = 0.3  # and is given up if the proxy does not accept a new one in this time: a mistake costs a retry,
SLOW_S = 10.0  # and is given up after so long a silence in any case
ANSWER_S = 15.0
READS_MAX = 1000  # of one connection
CREDIT_MAX = 2**63 - 1  # bytes, in one message
_GO_ON = (ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP, ReaderEventKind.BEHIND)  # a following reader goes on


class ForwardingPool:
    """Dialler, open connections and counters shared by all Forwarding of a process."""

    def __init__(self, dialler: Dialler, tasks: TaskScope) -> None:
        self.dialler = dialler
        self.tasks = tasks
        self.open: dict[ForwardingConnection, None] = {}
        self.batches = 0
        self.bytes = 0
        self.reads = 0
        self.questions = 0

    @property
    def pipes(self) -> int:
        """Number of open connections."""
        return len(self.open)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for proxies that do not read."""
        return sum(pipe.unsent_bytes for pipe in self.open)

    async def is_alive(self, address: str) -> bool:
        """Whether the proxy at `address` accepts a connection."""
        try:
            link = await self.dialler.open(address, GREETING_S, ProxyConnection)
        except UnavailableError:
            return False
        link.close()
        return True

    def add_to(self, meters: Meters) -> None:
        """Add these counters to the metrics."""
        meters.gauge(
            "forward_pipes", "Connections to other proxies that forward a client's requests", lambda: self.pipes
        )
        meters.gauge("forward_unsent_bytes", "Bytes that wait for proxies that do not read", lambda: self.unsent_bytes)
        meters.counter("forward_batches", "Batches forwarded to the stream's owner", lambda: self.batches)
        meters.counter("forward_bytes", "Bytes of batches forwarded to the stream's owner", lambda: self.bytes)
        meters.counter("forward_reads", "Reads forwarded to a read proxy", lambda: self.reads)
        meters.counter("forward_questions", "Other requests forwarded", lambda: self.questions)


#: What to call with the connection once it is open, or with the error
_Waiting = tuple[Callable[[ForwardingConnection], object], Callable[[Any], object]]


class _PeerRoute:
    """The connection to one proxy, or the requests that wait until it is open."""

    __slots__ = ("address", "is_full", "pipe", "waiting")

    def __init__(self, address: str) -> None:
        self.address = address
        self.pipe: ForwardingConnection | None = None
        self.waiting: dict[_Waiting, None] = {}  # in call order
        self.is_full = False


@dataclass(slots=True, eq=False)
class _ForwardedRead:
    """A reader of the client. waiting: its place among the requests that wait for the connection. number: its request
    on the connection, once that is open; until then `credit` is the sum of what the client allowed."""

    route: _PeerRoute
    waiting: _Waiting | None = None
    number: int | None = None
    credit: int = 0


class Forwarding:
    """Forwarding for one client connection."""

    def __init__(self, pool: ForwardingPool, connection: Connection) -> None:
        self.routes = Routes()
        self._pool = pool
        self._connection = connection
        self._routes: dict[str, _PeerRoute] = {}
        self._pipes: dict[ForwardingConnection, None] = {}  # also those whose proxy shuts down
        self._reads: dict[int, _ForwardedRead] = {}  # by the client's request
        self._writable = True
        self._is_closed = False

    # ---- forwarded requests -----------------------------------------------------------------------------------------

    def write(self, batch: Write, address: str, answer: Answer) -> None:
        """Forward a batch to the proxy at `address`, in call order; `answer` is called once with the result."""
        self.routes.found(batch.stream, address)
        self._pool.batches += 1
        self._pool.bytes += len(batch.body)
        answered = partial(self._answered, batch.stream, address, answer)
        self._through(address, lambda pipe: pipe.write(batch, answered), answered)

    def read(self, read: Read, address: str) -> None:
        """Forward a read to the read proxy at `address`. Raises OverCapacityError."""
        if len(self._reads) >= READS_MAX:
            raise OverCapacityError("too many readers on this connection, close some first")
        self._pool.reads += 1
        self._reads[read.request] = found = _ForwardedRead(self._route(address))
        found.waiting = self._through(
            address, partial(self._begin_read, read, found), partial(self._end_read, read.request)
        )

    def carries(self, request: int) -> bool:
        """Whether the reader of this request is forwarded."""
        return request in self._reads

    def credit(self, credit: Credit) -> None:
        """Pass credit on to a forwarded reader; while its connection is still opening, it is added up."""
        found = self._reads.get(credit.request)
        if found is None:
            return
        if found.number is None:
            found.credit = min(found.credit + credit.bytes, CREDIT_MAX)
        elif found.route.pipe is not None:
            found.route.pipe.send(replace(credit, request=found.number))

    def cancel(self, request: int) -> None:
        found = self._reads.pop(request, None)
        if found is None:
            return
        if found.waiting is not None:
            found.route.waiting.pop(found.waiting, None)
        if found.number is not None and found.route.pipe is not None:
            found.route.pipe.unsubscribe(found.number)

    async def ask(self, question: Any, address: str) -> dict[str, Any]:
        """Forward a request with one reply to the proxy at `address`.

        Raises the proxy's error, UnavailableError (not forwarded), or ConnectionLostError and RequestTimeoutError,
        whose outcome_unknown shows whether it may be executed.
        """
        self._pool.questions += 1
        opened: asyncio.Future[ForwardingConnection] = asyncio.get_running_loop().create_future()
        self._through(address, partial(_settle, opened), partial(_settle_error, opened))
        pipe = await opened
        try:
            async with asyncio.timeout(ANSWER_S):
                result: dict[str, Any] = await pipe.ask(lambda number: replace(question, request=number))
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"the proxy that the request was forwarded to does not reply: proxy={address}"
            ) from error
        except OwnedElsewhereError:
            self.routes.moved(question.stream, address)
            raise
        return result

    # ---- called by the connection ------------------------------------------------------------------------------------

    def writable(self, yes: bool) -> None:
        """The client reads replies (again), or does not."""
        self._writable = yes
        for pipe in self._pipes:
            pipe.hold(not yes)

    def close(self) -> None:
        """The client is gone: close every connection, which fails each pending request once."""
        self._is_closed = True
        self._reads.clear()
        for pipe in tuple(self._pipes):
            pipe.close()
        for route in tuple(self._routes.values()):
            self._fail(route, ConnectionLostError("the client is gone", outcome_unknown=False))

    # ---- lanes ------------------------------------------------------------------------------------------------------

    def _route(self, address: str) -> _PeerRoute:
        route = self._routes.get(address)
        if route is None:
            route = self._routes[address] = _PeerRoute(address)
            self._pool.tasks.start_alone(self._live(route), name=f"forward to {address} for {self._connection.peer}")
        return route

    def _through(
        self, address: str, run: Callable[[ForwardingConnection], object], fail: Callable[[Any], object]
    ) -> _Waiting | None:
        """Call `run` with the pipe, once it is open and in call order; `fail` if it cannot be opened. Returns what the
        route keeps until then."""
        if self._is_closed:
            fail(ConnectionLostError("the client is gone", outcome_unknown=False))
            return None
        route = self._route(address)
        if route.pipe is not None:
            run(route.pipe)
            return None
        waiting = (run, fail)
        route.waiting[waiting] = None
        return waiting

    async def _live(self, route: _PeerRoute) -> None:
        """Open a lane's connection, guard it, and clean up at its end."""
        try:
            pipe = await self._pool.dialler.open(route.address, CONNECT_S, ForwardingConnection)
        except UnavailableError as error:
            self._fail(route, unreachable(route.address, error))
            return
        if self._is_closed:
            pipe.close()
            return
        route.pipe = pipe
        pipe.on_end = partial(self._gone, route, pipe)
        pipe.on_goaway = partial(self._leaving, route)
        pipe.on_full = partial(self._full, route)
        self._pool.open[pipe] = self._pipes[pipe] = None
        pipe.hold(not self._writable)
        waiting, route.waiting = route.waiting, {}
        for run, _ in waiting:
            run(pipe)
        try:
            await pipe.guard(PING_EVERY_S, PING_TIMEOUT_S, SLOW_S, partial(self._pool.is_alive, route.address))
        finally:
            pipe.close()
            self._gone(route, pipe)  # if it ended before on_end was set

    def _fail(self, route: _PeerRoute, error: DLogError) -> None:
        self._ended(route)
        waiting, route.waiting = route.waiting, {}
        for _, fail in waiting:
            fail(error)

    def _gone(self, route: _PeerRoute, pipe: ForwardingConnection) -> None:
        if pipe in self._pipes:
            del self._pipes[pipe], self._pool.open[pipe]
        self._ended(route)

    def _ended(self, route: _PeerRoute) -> None:
        """The proxy is gone: drop the routes to it; the next owner lookups name it as suspect."""
        if self._routes.get(route.address) is route:
            del self._routes[route.address]
            self.routes.lost(route.address)
            self._full(route, False)

    def _leaving(self, route: _PeerRoute) -> None:
        """The proxy drains: it still replies to pending requests; later requests look up the next owner."""
        if self._routes.get(route.address) is route:
            del self._routes[route.address]
            self.routes.leaving(route.address)
            self._full(route, False)

    def _full(self, route: _PeerRoute, yes: bool) -> None:
        route.is_full = yes
        self._connection.hold(any(other.is_full for other in self._routes.values()), Pause.FORWARD)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _answered(self, stream: str, address: str, answer: Answer, result: BatchWritten | DLogError) -> None:
        if isinstance(result, OwnedElsewhereError):
            self.routes.moved(stream, address)
        answer(result)

    def _begin_read(self, read: Read, found: _ForwardedRead, pipe: ForwardingConnection) -> None:
        if self._reads.get(read.request) is not found:
            return  # cancelled while the pipe was opened

        def on_message(message: Message) -> None:
            self._connection.send(_under(read.request, message))
            if isinstance(message, Failed) or _ends(message, read.follow):
                pipe.forget(number)
                self._reads.pop(read.request, None)

        lost = ConnectionLostError("lost the connection to the read proxy of this reader", outcome_unknown=False)
        number = pipe.subscribe(
            lambda n: replace(read, request=n, forwarded=True), on_message, lambda: self._end_read(read.request, lost)
        )
        found.number = number
        if found.credit:
            pipe.send(Credit(number, found.credit))

    def _end_read(self, request: int, error: DLogError) -> None:
        if self._reads.pop(request, None) is not None:
            self._connection.fail(request, error)


def _under(request: int, message: Any) -> Message:
    """The message with the client's request number."""
    renumbered: Message = replace(message, request=request)
    return renumbered


def _ends(message: Message, follow: bool) -> bool:
    if not isinstance(message, ReaderEvent):
        return False
    return message.kind not in _GO_ON or (message.kind is ReaderEventKind.CAUGHT_UP and not follow)


def _settle(future: asyncio.Future[ForwardingConnection], pipe: ForwardingConnection) -> None:
    if not future.done():
        future.set_result(pipe)


def _settle_error(future: asyncio.Future[ForwardingConnection], error: DLogError) -> None:
    if not future.done():
        future.set_exception(error)
