"""Handing on what one connection asks to the proxies that can answer it, over pipes of its own.

The law of this room:
- only a connection that asked for it (Hello.hops) is served so, and what is handed on is never handed on again: our
  pipes say hops 0, and the answer 302 goes back to who asked;
- each connection has a pipe of its own to each proxy, so that one slow client or owner holds up nobody else: a pipe
  that takes no more stops the reading in front, a client that takes no more stops the reading behind;
- a proxy that does not read is not a proxy that is gone: before a silent pipe is given up it is greeted on a new one;
- what was not answered when a pipe ends is answered with a typed error; nothing is sent twice from here. Trying again
  is the client's: it knows what may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from actors.runtime import Lifetime
from dlog.errors import (
    ConnectionLostError,
    DLogError,
    OverCapacityError,
    OwnedElsewhereError,
    RequestTimeoutError,
    UnavailableError,
)
from dlog.log.messages import BatchWritten
from dlog.wire.proxy import Credit, Failed, Message, Question, Read, ReaderEvent, ReaderEventKind, Write
from proxies.connection import Connection, Pause
from proxies.dialling import Dialler
from proxies.link import Link
from proxies.meters import Meters
from proxies.pipe import Answer, Pipe, unreachable
from proxies.routes import Routes

CONNECT_S = 1.0
PING_EVERY_S = 0.25
PING_TIMEOUT_S = 0.3  # a pipe that is silent for so long after a ping is doubted,
GREETING_S = 0.3  # and given up if a new connection is not greeted in this time: a mistake costs a repeat
SLOW_S = 10.0  # and if it was silent for so long, whoever greets
ANSWER_S = 15.0
READS_MAX = 1000  # of one connection
_GO_ON = (ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP)  # a reader that follows lives on after these


class Carriage:
    """What the forwarding of all connections of a process shares."""

    def __init__(self, dialler: Dialler, tasks: Lifetime) -> None:
        self.dialler = dialler
        self.tasks = tasks
        self.open: dict[Pipe, None] = {}
        self.batches = 0
        self.bytes = 0
        self.reads = 0
        self.questions = 0

    @property
    def pipes(self) -> int:
        """How many are open."""
        return len(self.open)

    @property
    def unsent_bytes(self) -> int:
        """What waits here for proxies that do not take it."""
        return sum(pipe.unsent_bytes for pipe in self.open)

    async def lives(self, address: str) -> bool:
        """Whether the proxy there greets."""
        try:
            link = await self.dialler.open(address, GREETING_S, Link)
        except UnavailableError:
            return False
        link.close()
        return True

    def add_to(self, meters: Meters) -> None:
        """Name these numbers for the scrape."""
        meters.gauge(
            "forward_pipes", "Connections to other proxies that carry a client's questions", lambda: self.pipes
        )
        meters.gauge(
            "forward_unsent_bytes", "Bytes that wait for proxies that do not take them", lambda: self.unsent_bytes
        )
        meters.counter("forward_batches", "Batches handed to their owner", lambda: self.batches)
        meters.counter("forward_bytes", "Bytes of batches handed to their owner", lambda: self.bytes)
        meters.counter("forward_reads", "Reads handed to a read proxy", lambda: self.reads)
        meters.counter("forward_questions", "Other questions handed on", lambda: self.questions)


class _Lane:
    """The way to one proxy: a pipe, or what waits until it is open."""

    __slots__ = ("address", "is_full", "pipe", "waiting")

    def __init__(self, address: str) -> None:
        self.address = address
        self.pipe: Pipe | None = None
        self.waiting: list[tuple[Callable[[Pipe], object], Callable[[DLogError], object]]] = []
        self.is_full = False


class Forwarding:
    """Of one connection that may have its questions handed on."""

    def __init__(self, carriage: Carriage, connection: Connection) -> None:
        self.routes = Routes()
        self._carriage = carriage
        self._connection = connection
        self._lanes: dict[str, _Lane] = {}
        self._pipes: dict[Pipe, None] = {}  # also those whose proxy goes away
        self._reads: dict[int, tuple[_Lane, int | None]] = {}  # client's number -> lane, number on its pipe once asked
        self._writable = True
        self._is_closed = False

    # ---- what is handed on ------------------------------------------------------------------------------------------

    def write(self, batch: Write, address: str, answer: Answer) -> None:
        """Hand a batch to the proxy at `address`, behind all that was handed to it before; `answer` hears once."""
        self.routes.found(batch.stream, address)
        self._carriage.batches += 1
        self._carriage.bytes += len(batch.body)
        answered = partial(self._answered, batch.stream, address, answer)
        self._through(address, lambda pipe: pipe.write(batch, answered), answered)

    def read(self, read: Read, address: str) -> None:
        """Have a reader served by the read proxy at `address`. Raises OverCapacityError."""
        if len(self._reads) >= READS_MAX:
            raise OverCapacityError("too many readers on this connection")
        self._carriage.reads += 1
        self._reads[read.request] = (self._lane(address), None)
        self._through(address, partial(self._begin_read, read), partial(self._end_read, read.request))

    def carries(self, request: int) -> bool:
        """Whether a reader of this number is handed on."""
        return request in self._reads

    def credit(self, credit: Credit) -> None:
        self._tell_reader(credit.request, lambda number: replace(credit, request=number))

    def cancel(self, request: int) -> None:
        found = self._reads.pop(request, None)
        if found is not None and found[1] is not None and found[0].pipe is not None:
            found[0].pipe.unsubscribe(found[1])

    async def ask(self, question: Any, address: str) -> dict[str, Any]:
        """Hand a question with one answer to the proxy at `address`.

        Raises what it answers; UnavailableError (not handed on), ConnectionLostError and RequestTimeoutError, which say
        by outcome_unknown whether it may be carried out.
        """
        self._carriage.questions += 1
        opened: asyncio.Future[Pipe] = asyncio.get_running_loop().create_future()
        self._through(address, partial(_settle, opened), partial(_settle_error, opened))
        pipe = await opened
        try:
            async with asyncio.timeout(ANSWER_S):
                result: dict[str, Any] = await pipe.ask(lambda number: replace(question, request=number))
        except TimeoutError as error:
            raise RequestTimeoutError(f"the proxy that this was handed to does not answer: proxy={address}") from error
        except OwnedElsewhereError:
            self.routes.moved(question.stream, address)
            raise
        return result

    # ---- what the connection tells ----------------------------------------------------------------------------------

    def writable(self, yes: bool) -> None:
        """The client takes (or does not take) answers."""
        self._writable = yes
        for pipe in self._pipes:
            pipe.hold(not yes)

    def close(self) -> None:
        """The client is gone: every pipe is closed, and whoever counts what is unanswered hears of each."""
        self._is_closed = True
        self._reads.clear()
        for pipe in tuple(self._pipes):
            pipe.close()
        for lane in tuple(self._lanes.values()):
            self._fail(lane, ConnectionLostError("the client is gone", outcome_unknown=False))

    # ---- lanes ------------------------------------------------------------------------------------------------------

    def _lane(self, address: str) -> _Lane:
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = _Lane(address)
            self._carriage.tasks.start_alone(self._live(lane), name=f"pipe to {address} for {self._connection.peer}")
        return lane

    def _through(self, address: str, run: Callable[[Pipe], object], fail: Callable[[Any], object]) -> None:
        """Do it with the pipe, now or once it is open, in the order of the calls; or hear why it cannot be opened."""
        if self._is_closed:
            fail(ConnectionLostError("the client is gone", outcome_unknown=False))
            return
        lane = self._lane(address)
        if lane.pipe is not None:
            run(lane.pipe)
        else:
            lane.waiting.append((run, fail))

    async def _live(self, lane: _Lane) -> None:
        """A lane's life: open, guarded, gone."""
        try:
            pipe = await self._carriage.dialler.open(lane.address, CONNECT_S, Pipe)
        except UnavailableError as error:
            self._fail(lane, unreachable(lane.address, error))
            return
        if self._is_closed:
            pipe.close()
            return
        lane.pipe = pipe
        pipe.on_end = partial(self._gone, lane, pipe)
        pipe.on_goaway = partial(self._leaving, lane)
        pipe.on_full = partial(self._full, lane)
        self._carriage.open[pipe] = self._pipes[pipe] = None
        pipe.hold(not self._writable)
        waiting, lane.waiting = lane.waiting, []
        for run, _ in waiting:
            run(pipe)
        try:
            await pipe.guard(PING_EVERY_S, PING_TIMEOUT_S, SLOW_S, partial(self._carriage.lives, lane.address))
        finally:
            pipe.close()
            self._gone(lane, pipe)  # if it ended before anybody asked to be told

    def _fail(self, lane: _Lane, error: DLogError) -> None:
        self._ended(lane)
        waiting, lane.waiting = lane.waiting, []
        for _, fail in waiting:
            fail(error)

    def _gone(self, lane: _Lane, pipe: Pipe) -> None:
        if pipe in self._pipes:
            del self._pipes[pipe], self._carriage.open[pipe]
        self._ended(lane)

    def _ended(self, lane: _Lane) -> None:
        """The proxy there is gone: its streams have no route, and who looks for their owners doubts it."""
        if self._lanes.get(lane.address) is lane:
            del self._lanes[lane.address]
            self.routes.lost(lane.address)
            self._full(lane, False)

    def _leaving(self, lane: _Lane) -> None:
        """The proxy there drains: it answers what it has, and the next question looks for the next owner."""
        if self._lanes.get(lane.address) is lane:
            del self._lanes[lane.address]
            self.routes.leaving(lane.address)
            self._full(lane, False)

    def _full(self, lane: _Lane, yes: bool) -> None:
        lane.is_full = yes
        self._connection.hold(any(other.is_full for other in self._lanes.values()), Pause.FORWARD)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _answered(self, stream: str, address: str, answer: Answer, result: BatchWritten | DLogError) -> None:
        if isinstance(result, OwnedElsewhereError):
            self.routes.moved(stream, address)
        answer(result)

    def _begin_read(self, read: Read, pipe: Pipe) -> None:
        if read.request not in self._reads:
            return  # cancelled while the pipe was opened

        def hear(message: Message) -> None:
            self._connection.send(_under(read.request, message))
            if isinstance(message, Failed) or _ends(message, read.follow):
                pipe.forget(number)
                self._reads.pop(read.request, None)

        lost = ConnectionLostError("lost the read proxy that served this read", outcome_unknown=False)
        number = pipe.subscribe(
            lambda n: replace(read, request=n, forwarded=True), hear, lambda: self._end_read(read.request, lost)
        )
        self._reads[read.request] = (self._reads[read.request][0], number)

    def _end_read(self, request: int, error: DLogError) -> None:
        if self._reads.pop(request, None) is not None:
            self._connection.fail(request, error)

    def _tell_reader(self, request: int, question: Callable[[int], Question]) -> None:
        found = self._reads.get(request)
        if found is None:
            return
        lane, number = found
        if number is not None and lane.pipe is not None:
            lane.pipe.say(question(number))
        elif number is None:
            lane.waiting.append((lambda _: self._tell_reader(request, question), lambda _: None))


def _under(request: int, message: Any) -> Message:
    """The same message under the number of who asked."""
    renumbered: Message = replace(message, request=request)
    return renumbered


def _ends(message: Message, follow: bool) -> bool:
    if not isinstance(message, ReaderEvent):
        return False
    return message.kind not in _GO_ON or (message.kind is ReaderEventKind.CAUGHT_UP and not follow)


def _settle(future: asyncio.Future[Pipe], pipe: Pipe) -> None:
    if not future.done():
        future.set_result(pipe)


def _settle_error(future: asyncio.Future[Pipe], error: DLogError) -> None:
    if not future.done():
        future.set_exception(error)
