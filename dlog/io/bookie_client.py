"""Connections to bookies: the port through which ledger machines send and hear (BookKeeper v2 on TCP).

The law of this room:
- one connection a bookie a process, shared by every ledger; what is sent in one turn of the loop leaves in one
  vectored write; answers are handed over by callback, with no task and no future a message;
- v2 answers name only (operation, ledger, entry), so two questions that answers could not tell apart are never in
  flight together: the later one is held back. Plain reads of one entry share an answer that is good;
- an answer that does not come closes the connection, and so does a bookie that lags by too many bytes: everybody who
  asked there hears PeerLost, and no late answer can be taken for a later question's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, cast

from dlog.errors import ConnectionLostError, DamagedError, ProtocolError
from dlog.events import BookieLost, Event
from dlog.io import metrics, nearby
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.receiving import place_for, received
from dlog.machine import Fact, Peer, PeerLost, Received
from dlog.model.ids import BookieId
from dlog.options import MiB, option
from dlog.wire.bookie import (
    AddEntry,
    BatchDone,
    BatchRead,
    Code,
    EntryAdded,
    EntryRead,
    ReadEntry,
    Request,
    Response,
    ResponseDecoder,
    encode_request,
)
from dlog.wire.bookie_info import address_of
from dlog.wire.framing import Buffer

Resolve = Callable[[BookieId], tuple[str, int] | None]
Question = tuple[int, int, int]  # operation, ledger or batch number, entry: what an answer names

_ADD, _READ, _BATCH = 1, 2, 3
_CONNECTIONS_LOST = metrics.BOOKIE_CONNECTIONS_LOST
_TIMEOUTS = metrics.BOOKIE_TIMEOUTS
_LAGGING = metrics.BOOKIE_LAGGING
_JOINED_BYTES_MAX = 4096  # of a request: one copy costs less than several buffers to each bookie


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieClientOptions:
    """How long to wait for a bookie, how far it may lag, how soon to try it again."""

    request_timeout_s: float = option(5.0, sim=(0.5, 10.0))
    connect_timeout_s: float = option(3.0, sim=(0.1, 5.0))
    lag_bytes_max: int = option(64 * MiB, sim=(64 * 1024, 64 * MiB))  # unanswered bytes at one bookie
    backoff_min_s: float = option(0.02, sim=(0.0, 0.1))
    backoff_max_s: float = option(2.0, sim=(0.1, 5.0))


class Asker:
    """One machine's door to the bookies: `send` for its driver; `post` is where answers and losses go.

    post: `driver.post`, set before the first send. After `close` nothing is posted any more; what was sent stays sent.
    """

    __slots__ = ("_client", "post")

    def __init__(self, client: BookieClient) -> None:
        self._client = client
        self.post: Callable[[Fact], None] = _nobody

    def send(self, peer: Peer, message: Any) -> None:
        """Send a request of dlog/wire/bookie.py to a BookieId. Raises ConnectionLostError if it cannot be tried now."""
        bookie: BookieId = peer  # type: ignore[assignment]  # the peers of a ledger machine are BookieIds
        client = self._client
        (client.connections.get(bookie) or client.connect(bookie)).ask(self, message)

    def close(self) -> None:
        self.post = _nobody


class BookieClient:
    """All connections of a process to bookies: `async with BookieClient(...) as bookies`.

    resolve: where a bookie listens, as last heard; None if it is not registered, then its last address is tried, then
    the id itself if it reads host:port.
    """

    def __init__(
        self,
        resolve: Resolve,
        *,
        rng: random.Random,
        options: BookieClientOptions | None = None,
        on_event: Callable[[Event], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.options = options or BookieClientOptions()
        self.clock = clock
        self._resolve = resolve
        self._rng = rng
        self._on_event = on_event
        self._tasks = asyncio.TaskGroup()
        self._open = False
        self.connections: dict[BookieId, _Connection] = {}
        self._resting: dict[BookieId, tuple[int, float]] = {}  # failures in a row, not before (monotonic)
        self._addresses: dict[BookieId, tuple[str, int]] = {}
        self.encoded: tuple[Request | None, list[Buffer], int] = (None, [], 0)

    async def __aenter__(self) -> BookieClient:
        await self._tasks.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection; whoever still waits hears PeerLost."""
        self._open = False
        for connection in list(self.connections.values()):
            connection.lose("client closed", quietly=True)
        await self._tasks.__aexit__(kind, error, trace)

    def asker(self) -> Asker:
        """A door for one machine."""
        return Asker(self)

    def lag_bytes(self, bookie: BookieId) -> int:
        """Bytes sent to this bookie and not answered yet."""
        connection = self.connections.get(bookie)
        return connection.lag_bytes if connection is not None else 0

    def encode(self, message: Request) -> tuple[Request, list[Buffer], int]:
        """The message, its buffers and their size; kept as `encoded`, since an entry goes to several bookies one after
        the other."""
        buffers = encode_request(message)
        size = sum(map(len, buffers))
        if size <= _JOINED_BYTES_MAX:
            buffers = [b"".join(buffers)]
        self.encoded = encoded = (message, buffers, size)
        return encoded

    def connect(self, bookie: BookieId) -> _Connection:
        """A connection where there is none. Raises ConnectionLostError if it cannot be tried now."""
        if not self._open:
            raise ConnectionLostError(f"bookie client is closed: bookie={bookie}", outcome_unknown=False)
        _, not_before_s = self._resting.get(bookie, (0, 0.0))
        if self.clock.monotonic_s() < not_before_s:
            raise ConnectionLostError(f"bookie was lost a moment ago: bookie={bookie}", outcome_unknown=False)
        connection = self.connections[bookie] = _Connection(self, bookie)
        connection.connecting = self._tasks.create_task(self._dial(bookie, connection), name=f"connect {bookie}")
        return connection

    async def _dial(self, bookie: BookieId, connection: _Connection) -> None:
        try:
            host, port = self._address_of(bookie)
            async with asyncio.timeout(self.options.connect_timeout_s):
                await nearby.connect(lambda: connection, host, port)
        except (OSError, ConnectionLostError) as error:  # a timeout is an OSError too
            connection.lose(f"cannot connect: {error or type(error).__name__}")
        except asyncio.CancelledError:
            connection.lose("connecting was cancelled", quietly=True)
            raise

    def _address_of(self, bookie: BookieId) -> tuple[str, int]:
        address = self._resolve(bookie) or self._addresses.get(bookie)
        if address is None:
            try:
                address = address_of(bookie, b"")
            except DamagedError as error:
                why = f"bookie is not registered, and its id is no address: bookie={bookie}"
                raise ConnectionLostError(why) from error
        self._addresses[bookie] = address
        return address

    def heard(self, bookie: BookieId) -> None:
        """The bookie answered: the next failure is the first again."""
        self._resting.pop(bookie, None)

    def forget(self, bookie: BookieId, connection: _Connection, reason: str, quietly: bool) -> None:
        """A connection ended; the next question opens another, though not at once."""
        if self.connections.get(bookie) is connection:
            del self.connections[bookie]
        failures = self._resting.get(bookie, (0, 0.0))[0] + 1
        ceiling = min(self.options.backoff_max_s, self.options.backoff_min_s * float(2 ** min(failures - 1, 16)))
        delay_s = ceiling * (0.5 + 0.5 * self._rng.random())
        self._resting[bookie] = (failures, self.clock.monotonic_s() + delay_s)
        if not quietly:
            _CONNECTIONS_LOST.inc()
            self._on_event(BookieLost(bookie, reason))


class _Asked:
    """One question in flight, who waits for it, and what it holds back."""

    __slots__ = ("askers", "batch", "before", "held", "message", "sent_s", "size")

    def __init__(
        self, message: Request, askers: list[Asker], held: list[tuple[Asker, Request]], size: int, sent_s: float
    ) -> None:
        self.message = message
        self.askers = askers  # more than one: plain reads that share
        self.before = len(askers)  # how many of them asked before it was sent
        self.size = size
        self.sent_s = sent_s
        self.held = held
        self.batch = 0  # the asker's own number of a batch read


class _Connection(asyncio.BufferedProtocol):
    """One connection, from the decision to dial until it is lost; never revived."""

    def __init__(self, client: BookieClient, bookie: BookieId) -> None:
        self.lag_bytes = 0
        self.connecting: asyncio.Task[None] | None = None
        self._client = client
        self._bookie = bookie
        self._clock = client.clock
        self._timeout_s = client.options.request_timeout_s
        self._lag_bytes_max = client.options.lag_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = ResponseDecoder()
        self._questions: dict[Question, _Asked] = {}  # in the order sent
        self._batches = 0
        self._out: list[Buffer] = []
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._heard = False
        self._lost = False

    # ---- questions --------------------------------------------------------------------------------------------------

    def ask(self, asker: Asker, message: Request) -> None:
        """Send, hold back, or share."""
        number = 0
        question: Question
        if isinstance(message, AddEntry):
            question = (_ADD, message.ledger, message.entry)
        elif isinstance(message, ReadEntry):
            question = (_READ, message.ledger, message.entry)
        else:
            assert isinstance(message, BatchRead), "only adds and reads are sent to bookies"
            self._batches += 1
            number, message = message.request, replace(message, request=self._batches)
            question = (_BATCH, self._batches, 0)
        same = self._questions.get(question)
        if same is None:
            self._send(question, message, [asker], [], number)
        elif _may_share(same.message, message):
            same.askers.append(asker)
        else:
            same.held.append((asker, message))

    def _send(
        self,
        question: Question,
        message: Request,
        askers: list[Asker],
        held: list[tuple[Asker, Request]],
        number: int = 0,
    ) -> None:
        """Send a question of these, and let others wait behind it. All of them hear the answer or the loss, which may
        come before this returns."""
        last = self._client.encoded
        _, buffers, size = last if last[0] is message else self._client.encode(message)
        asked = self._questions[question] = _Asked(message, askers, held, size, self._clock.monotonic_s())
        asked.batch = number
        self.lag_bytes += size
        self._out += buffers
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look_for_timeouts)
        if not self._flushing and self._transport is not None:
            self._flushing = True
            self._loop.call_soon(self._flush)
        if self.lag_bytes > self._lag_bytes_max:
            _LAGGING.inc()
            self.lose(f"lags by more than {self._lag_bytes_max} bytes")

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is not None and self._out:
            out, self._out = self._out, []
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)

    def _look_for_timeouts(self) -> None:
        """The oldest question decides; the timer follows it instead of having one each."""
        self._timer = None
        oldest = next(iter(self._questions.values()), None)
        if oldest is None:
            return
        left_s = oldest.sent_s + self._timeout_s - self._clock.monotonic_s()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look_for_timeouts)
            return
        _TIMEOUTS.inc()
        self.lose(f"no answer within {self._timeout_s} s")

    # ---- answers ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are none by class
        if self._lost:
            transport.abort()
            return
        self._transport = transport
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return place_for(self._decoder)

    def buffer_updated(self, nbytes: int) -> None:
        if self._lost:
            return
        if not self._heard:
            self._heard = True
            self._client.heard(self._bookie)
        try:
            for response in received(self._decoder, nbytes):
                self._answer(response)
        except ProtocolError as error:
            self.lose(f"spoke out of turn: {error.message}")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lose(f"connection lost: {exc}" if exc else "connection closed by the bookie")

    def _answer(self, response: Response) -> None:
        question: Question
        if isinstance(response, EntryAdded):
            question = (_ADD, response.ledger, response.entry)
        elif isinstance(response, EntryRead):
            question = (_READ, response.ledger, response.entry)
        elif isinstance(response, BatchDone):
            question = (_BATCH, response.request, 0)
        else:
            raise ProtocolError("answer to a question that was not asked: op=AUTH")
        asked = self._questions.pop(question, None)
        if asked is None:
            raise ProtocolError(f"answer to a question that was not asked: question={question}")
        self.lag_bytes -= asked.size
        message = asked.message
        again = asked.held
        if isinstance(response, EntryRead):
            if isinstance(message, ReadEntry) and message.fence:
                response = replace(response, fence=True)
            elif response.code is not Code.OK and len(asked.askers) > asked.before:
                # "not here" may be older than the questions of those who joined later: they are asked again
                again = [(asker, message) for asker in asked.askers[asked.before :]] + again
                del asked.askers[asked.before :]
        elif isinstance(response, BatchDone):
            response = replace(response, request=asked.batch)
        fact = Received(self._bookie, response)
        for asker in asked.askers:
            asker.post(fact)
        if again:
            self._release(question, again)

    def _release(self, question: Question, held: list[tuple[Asker, Request]]) -> None:
        """Ask what was held back: the first, with all that may share it; the others go on waiting."""
        (asker, message), *rest = held
        if self._lost:  # by what somebody did with the answer
            fact = PeerLost(self._bookie, "connection lost")
            for waiting in dict.fromkeys(asker for asker, _ in held):
                waiting.post(fact)
            return
        sharing = [other for other, request in rest if _same_plain_read(message, request)]
        others = [one for one in rest if not _same_plain_read(message, one[1])]
        self._send(question, message, [asker, *sharing], others)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def lose(self, reason: str, *, quietly: bool = False) -> None:
        """End the connection and tell everybody who asked here, once each."""
        if self._lost:
            return
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        elif self.connecting is not None and self.connecting is not asyncio.current_task():
            self.connecting.cancel()
        askers = dict.fromkeys(
            asker
            for asked in self._questions.values()
            for asker in (*asked.askers, *(held_asker for held_asker, _ in asked.held))
        )
        self._questions.clear()
        self._out.clear()
        self._client.forget(self._bookie, self, reason, quietly)
        fact = PeerLost(self._bookie, reason)
        for asker in askers:
            asker.post(fact)


def _same_plain_read(one: Request, other: Request) -> bool:
    return isinstance(one, ReadEntry) and isinstance(other, ReadEntry) and not one.fence and not other.fence


def _may_share(sent: Request, new: Request) -> bool:
    """Whether `new` may wait for the answer to `sent`, which may have been given before `new` was asked.

    An entry that is there stays there, so a good answer holds for later askers; "the last you have" changes.
    """
    return _same_plain_read(sent, new) and sent.entry != -1  # type: ignore[union-attr]  # both are reads


def _nobody(_: Fact) -> None:
    """The asker has left."""
