"""Connections to bookies: sends ledger machines' requests and delivers the responses (BookKeeper v2 or v3 on TCP).

Invariants:
- A process has one connection to each bookie, for all ledgers. Requests of one turn of the event loop leave in one
  vectored write; responses come by callback, without a task or future per message.
- v2 responses name only (operation, ledger, entry), or a request number instead of the entry. So two requests with the
  same key are never in flight together: the later one is held back. Non-fencing reads of one entry share a successful
  response. A response that matches no request closes the connection. On v3, responses are matched by txnId; requests
  are held back and shared in the same way.
- An overdue response or too many unanswered bytes close the connection; a long poll has its own timeout and the usual
  one. Every requester gets PeerLost, and no late response is matched with a later request. So does one that has sent
  adds with deferred sync on this connection, also if they are answered: the bookie may have lost them.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, cast

from dlog.errors import ConnectionLostError, DamagedError, ProtocolError
from dlog.events import BookieLost, Event
from dlog.io import local_transport, metrics
from dlog.io.bookie_questions import check_tls_response, read_list
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.receive_buffers import buffer_for, received
from dlog.io.tls import client_context
from dlog.ledger.ledger_options import LedgerOptions
from dlog.machine import Fact, Peer, PeerLost, Received
from dlog.model.ids import BookieId
from dlog.options import MiB, option
from dlog.wire.bookie import (
    AddEntry,
    AuthDone,
    BatchRead,
    BatchReadDone,
    Code,
    CollectionReport,
    EntriesSummarized,
    EntryAdded,
    EntryRead,
    ReadEntry,
    ResponseDecoder,
    SummarizeEntries,
    encode_request,
)
from dlog.wire.bookie_info import address_of
from dlog.wire.bookie_v3_asking import (
    ClientRequest,
    V3Reply,
    V3ReplyDecoder,
    encode_tls_request,
    encode_v3_request,
    response_to,
)
from dlog.wire.bookie_v3_messages import (
    ForceLedger,
    LacRead,
    LacWritten,
    LedgerForced,
    ListEntries,
    ReadLac,
    ReadWithLac,
    ReadWithLacDone,
    WriteLac,
)
from dlog.wire.framing import Buffer, Decoder

Resolve = Callable[[BookieId], tuple[str, int] | None]
Question = tuple[int, int, int]  # key that matches a response: operation, ledger, entry or request number

_ADD, _READ, _BATCH, _SUMMARY, _TAIL, _FORCE = 1, 2, 3, 4, 5, 6
_OnlyV3 = ReadWithLac | ForceLedger | WriteLac | ReadLac
_ClientResponse = (
    EntryAdded | EntryRead | BatchReadDone | EntriesSummarized | ReadWithLacDone | LedgerForced | LacWritten | LacRead
)
_CONNECTIONS_LOST = metrics.BOOKIE_CONNECTIONS_LOST
_TIMEOUTS = metrics.BOOKIE_TIMEOUTS
_LAGGING = metrics.BOOKIE_LAGGING
_TLS_RESPONSE_BYTES_MAX = 4096
_JOINED_BYTES_MAX = 4096  # requests up to this size are copied into one buffer: cheaper than several per bookie


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieClientOptions:
    """Timeouts, the limit of unanswered bytes, and the back-off between connection attempts to one bookie."""

    request_timeout_s: float = option(5.0, sim=(0.5, 10.0))
    connect_timeout_s: float = option(3.0, sim=(0.1, 5.0))
    lag_bytes_max: int = option(64 * MiB, sim=(64 * 1024, 64 * MiB))  # unanswered bytes at one bookie
    backoff_min_s: float = option(0.02, sim=(0.0, 0.1))
    backoff_max_s: float = option(2.0, sim=(0.1, 5.0))
    protocol: str = "v2"  # or "v3"; see LedgerOptions, also for the next four
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_check_hostname: bool = False

    def __post_init__(self) -> None:
        if self.protocol not in ("v2", "v3"):
            raise ValueError(f"protocol is v2 or v3: value={self.protocol!r}")

    def tls_context(self) -> ssl.SSLContext | None:
        """None: connections are plain. Raises ConfigError if a file of certificates cannot be used."""
        if not self.tls_ca:
            return None
        return client_context(self.tls_ca, self.tls_certificate, self.tls_key, check_hostname=self.tls_check_hostname)

    def configured(self, section: LedgerOptions) -> BookieClientOptions:
        """These settings with those of section [ledger]."""
        return replace(
            self,
            protocol=section.bookie_protocol,
            tls_ca=section.bookie_tls_ca,
            tls_certificate=section.bookie_tls_certificate,
            tls_key=section.bookie_tls_key,
            tls_check_hostname=section.bookie_tls_check_hostname,
        )


class BookieRequester:
    """Sends one machine's requests to bookies and posts responses, or PeerLost, to its driver.

    post: `driver.post`, set before the first send. `close` stops posting; it cancels no request.
    """

    __slots__ = ("_client", "post")

    def __init__(self, client: BookieClient) -> None:
        self._client = client
        self.post: Callable[[Fact], None] = _drop_fact

    def send(self, peer: Peer, message: Any) -> None:
        """Send a request of dlog/wire/bookie.py to a BookieId; on v3 also one of _OnlyV3, but no batch read
        and no summary. Raises ConnectionLostError during back-off."""
        bookie: BookieId = peer  # type: ignore[assignment]  # the peers of a ledger machine are BookieIds
        client = self._client
        (client.connections.get(bookie) or client.connect(bookie)).ask(self, message)

    def close(self) -> None:
        self.post = _drop_fact
        for connection in self._client.connections.values():
            connection.deferring.pop(self, None)


class ListingRequester(BookieRequester):
    """A BookieRequester that also sends ListEntries: each on a v3 connection of its own."""

    __slots__ = ()

    def send(self, peer: Peer, message: Any) -> None:
        if isinstance(message, ListEntries):
            self._client.list_entries(self, cast(BookieId, peer), message)
        else:
            super().send(peer, message)


class BookieClient:
    """All connections of a process to bookies: `async with BookieClient(...) as bookies`.

    resolve: a bookie's registered address; None: not registered, so its last address is tried, then its id if that is
    host:port. With `tls_ca` every connection begins with START_TLS; a bookie that refuses it is out of reach. Raises
    ConfigError if a file of certificates cannot be used.
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
        self.options = options = options or BookieClientOptions()
        self.tls = options.tls_context()
        self.clock = clock
        self._resolve = resolve
        self._rng = rng
        self._on_event = on_event
        self._tasks = asyncio.TaskGroup()
        self._listing: set[asyncio.Task[None]] = set()
        self._open = False
        self.connections: dict[BookieId, _Connection] = {}
        self._resting: dict[BookieId, tuple[int, float]] = {}  # back-off: failures in a row, end (monotonic)
        self._addresses: dict[BookieId, tuple[str, int]] = {}
        self.is_v3 = options.protocol == "v3"
        self._txn = 0
        self.encoded: tuple[ClientRequest | None, list[Buffer], int, int] = (None, [], 0, 0)

    async def __aenter__(self) -> BookieClient:
        await self._tasks.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection; pending requests get PeerLost."""
        self._open = False
        for connection in list(self.connections.values()):
            connection.lose("client closed", quietly=True)
        for task in self._listing:
            task.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    def asker(self) -> BookieRequester:
        """A request sender for one machine. Close it."""
        return BookieRequester(self)

    def listing_asker(self) -> ListingRequester:
        """As `asker`, for requests that include ListEntries."""
        return ListingRequester(self)

    def list_entries(self, asker: BookieRequester, bookie: BookieId, message: ListEntries) -> None:
        """Request a list of entries; the result is posted to the asker."""
        if not self._open:
            raise ConnectionLostError(f"bookie client is closed: bookie={bookie}", outcome_unknown=False)
        task = self._tasks.create_task(self._list_entries(asker, bookie, message), name=f"list entries of {bookie}")
        self._listing.add(task)
        task.add_done_callback(self._listing.discard)

    async def _list_entries(self, asker: BookieRequester, bookie: BookieId, message: ListEntries) -> None:
        try:
            host, port = self._address_of(bookie)
            listed = await read_list(host, port, message, self.options.request_timeout_s, self.tls)
        except (OSError, ConnectionLostError, ProtocolError) as error:  # a timeout is an OSError too
            asker.post(PeerLost(bookie, f"no list of entries: {error or type(error).__name__}"))
        else:
            if listed.ledger == message.ledger:
                asker.post(Received(bookie, listed))
            else:  # an error response may come without its content, which names the ledger
                asker.post(PeerLost(bookie, f"no list of entries: {listed.code.name}"))

    def unanswered_bytes(self, bookie: BookieId) -> int:
        """Bytes of requests to this bookie without a response."""
        connection = self.connections.get(bookie)
        return connection.unanswered_bytes if connection is not None else 0

    def encode(self, message: ClientRequest) -> tuple[ClientRequest, list[Buffer], int, int]:
        """Return message, buffers, size and txnId; kept in `encoded`, as an entry goes to several bookies in a row.

        On a connection a txnId names one request: the same message is sent again only after its response.
        """
        if self.is_v3:
            self._txn += 1
            buffers = encode_v3_request(message, self._txn)
        else:
            assert not isinstance(message, _OnlyV3), "v2 has no such request"
            buffers = encode_request(message)
        size = sum(map(len, buffers))
        if size <= _JOINED_BYTES_MAX:
            buffers = [b"".join(buffers)]
        self.encoded = encoded = (message, buffers, size, self._txn)
        return encoded

    def connect(self, bookie: BookieId) -> _Connection:
        """Start to connect. Raises ConnectionLostError during back-off or if closed."""
        if not self._open:
            raise ConnectionLostError(f"bookie client is closed: bookie={bookie}", outcome_unknown=False)
        _, not_before_s = self._resting.get(bookie, (0, 0.0))
        if self.clock.monotonic_s() < not_before_s:
            raise ConnectionLostError(
                f"the last connection to the bookie failed a moment ago, try again later: bookie={bookie}",
                outcome_unknown=False,
            )
        connection = self.connections[bookie] = _Connection(self, bookie)
        connection.connecting = self._tasks.create_task(self._dial(bookie, connection), name=f"connect {bookie}")
        return connection

    async def _dial(self, bookie: BookieId, connection: _Connection) -> None:
        try:
            host, port = self._address_of(bookie)
            async with asyncio.timeout(self.options.connect_timeout_s):
                await local_transport.connect(lambda: connection, host, port)
                if self.tls is not None:
                    await connection.start_tls(self.tls, host)
        except (OSError, ConnectionLostError, ProtocolError) as error:  # a timeout is an OSError too
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
                why = f"bookie is not registered, and its id is not host:port; is it running? bookie={bookie}"
                raise ConnectionLostError(why) from error
        self._addresses[bookie] = address
        return address

    def responded(self, bookie: BookieId) -> None:
        """Reset the back-off: the bookie has responded."""
        self._resting.pop(bookie, None)

    def forget(self, bookie: BookieId, connection: _Connection, reason: str, quietly: bool) -> None:
        """Remove an ended connection and start the back-off; a request after it opens another."""
        if self.connections.get(bookie) is connection:
            del self.connections[bookie]
        failures = self._resting.get(bookie, (0, 0.0))[0] + 1
        ceiling = min(self.options.backoff_max_s, self.options.backoff_min_s * float(2 ** min(failures - 1, 16)))
        delay_s = ceiling * (0.5 + 0.5 * self._rng.random())
        self._resting[bookie] = (failures, self.clock.monotonic_s() + delay_s)
        if not quietly:
            _CONNECTIONS_LOST.inc()
            self._on_event(BookieLost(bookie, reason))


_Held = tuple[BookieRequester, ClientRequest]


class _InflightRequest:
    """One request in flight, its requesters, and the requests that it holds back."""

    __slots__ = ("askers", "before", "due_s", "held", "message", "number", "size")

    def __init__(
        self,
        message: ClientRequest,
        askers: tuple[BookieRequester, ...],
        held: tuple[_Held, ...],
        size: int,
        due_s: float,
    ) -> None:
        self.message = message
        self.askers = askers  # more than one: non-fencing reads that share the response
        self.before = len(askers)  # how many of these were there when the request was sent
        self.size = size
        self.due_s = due_s
        self.held = held
        self.number = 0  # of a batch read or a summary: the request number that its requester gave


class _Connection(asyncio.BufferedProtocol):
    """One connection, from the start of connecting to its end; it is not reopened."""

    def __init__(self, client: BookieClient, bookie: BookieId) -> None:
        self.unanswered_bytes = 0
        self.connecting: asyncio.Task[None] | None = None
        self._client = client
        self._bookie = bookie
        self._clock = client.clock
        self._timeout_s = client.options.request_timeout_s
        self._lag_bytes_max = client.options.lag_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._by_txn: dict[int, Question] | None = {} if client.is_v3 else None  # those in flight
        self._decoder: Decoder[Any] = self._new_decoder()
        self._plain: asyncio.Transport | None = None  # while it becomes one under TLS
        self._agreed: asyncio.Future[None] | None = None  # the bookie agrees to TLS
        self._questions: dict[Question, _InflightRequest] = {}  # in flight, in the order sent
        self._numbered = 0  # requests with a number so far
        self._out: list[Buffer] = []
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._has_responded = False
        self._lost = False
        self.deferring: dict[BookieRequester, None] = {}  # sent adds with deferred sync, which a loss may undo

    # ---- requests ---------------------------------------------------------------------------------------------------

    def ask(self, asker: BookieRequester, message: ClientRequest) -> None:
        """Send the request, share the response of an equal read in flight, or hold it back."""
        number = 0
        question: Question
        if isinstance(message, AddEntry):
            question = (_ADD, message.ledger, message.entry)
            if message.deferred:
                self.deferring[asker] = None
        elif isinstance(message, ReadEntry):
            question = (_READ, message.ledger, message.entry)
        elif isinstance(message, _OnlyV3):
            self._numbered += 1
            question = (_FORCE if isinstance(message, ForceLedger) else _TAIL, message.ledger, self._numbered)
        else:
            assert isinstance(message, BatchRead | SummarizeEntries), "no other requests are sent to bookies"
            self._numbered += 1
            number, message = message.request, replace(message, request=self._numbered)
            question = (_BATCH if isinstance(message, BatchRead) else _SUMMARY, message.ledger, self._numbered)
        same = self._questions.get(question)
        if same is None:
            self._send(question, message, (asker,), (), number)
        elif _may_share(same.message, message):
            same.askers += (asker,)
        else:
            same.held += ((asker, message),)

    def _send(
        self,
        question: Question,
        message: ClientRequest,
        askers: tuple[BookieRequester, ...],
        held: tuple[_Held, ...],
        number: int = 0,
    ) -> None:
        """Send a request for `askers` and hold `held` back behind it. PeerLost may be posted before this returns."""
        last = self._client.encoded
        _, buffers, size, txn = last if last[0] is message else self._client.encode(message)
        due_s = self._clock.monotonic_s() + self._timeout_s
        if isinstance(message, ReadWithLac):
            due_s += message.timeout_ms / 1000
        asked = self._questions[question] = _InflightRequest(message, askers, held, size, due_s)
        asked.number = number
        if self._by_txn is not None:
            self._by_txn[txn] = question
        self.unanswered_bytes += size
        self._out += buffers
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._close_if_overdue)
        if not self._flushing and self._transport is not None:
            self._flushing = True
            self._loop.call_soon(self._flush)
        if self.unanswered_bytes > self._lag_bytes_max:
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

    def _close_if_overdue(self) -> None:
        """Close the connection if a request is overdue. One timer serves all requests."""
        self._timer = None
        if not self._questions:
            return
        left_s = min(asked.due_s for asked in self._questions.values()) - self._clock.monotonic_s()
        if left_s > 0:  # within timeout_s: a request that is sent behind a long poll may be due before it
            self._timer = self._loop.call_later(min(left_s, self._timeout_s), self._close_if_overdue)
            return
        _TIMEOUTS.inc()
        self.lose(f"no response within {self._timeout_s} s")

    # ---- responses --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it
        if self._lost:
            transport.abort()
            return
        if self._client.tls is not None:
            self._plain, self._decoder = transport, _FrameDecoder()
            self._agreed = self._loop.create_future()
            return
        self._begin(transport)

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Begin TLS; requests wait for it. Raises OSError, ConnectionLostError, ProtocolError; the connection is closed
        then, and when this is cancelled."""
        plain, agreed = self._plain, self._agreed
        assert plain is not None and agreed is not None
        try:
            plain.write(encode_tls_request(1))
            await agreed
            name = host if context.check_hostname else None
            transport = await self._loop.start_tls(plain, self, context, server_hostname=name)
            if transport is None:
                raise ConnectionLostError("connection closed by the bookie during the TLS handshake")
        except BaseException:
            plain.abort()
            raise
        finally:
            self._plain = self._agreed = None
        self._decoder = self._new_decoder()
        if self._lost:
            transport.abort()
        else:
            self._begin(transport)

    def _new_decoder(self) -> Decoder[Any]:
        return ResponseDecoder() if self._by_txn is None else V3ReplyDecoder()

    def _begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return buffer_for(self._decoder)

    def buffer_updated(self, nbytes: int) -> None:
        if self._lost:
            return
        if self._agreed is not None:
            self._take_agreement(self._agreed, nbytes)
            return
        if not self._has_responded:
            self._has_responded = True
            self._client.responded(self._bookie)
        try:
            for response in received(self._decoder, nbytes):
                if isinstance(response, V3Reply):
                    self._answer_reply(response)
                else:
                    self._answer(response)
        except ProtocolError as error:
            self.lose(f"protocol error: {error.message}")

    def _take_agreement(self, agreed: asyncio.Future[None], nbytes: int) -> None:
        try:
            for frame in received(self._decoder, nbytes):
                if agreed.done() or self._decoder.frames.have:
                    raise ProtocolError("a bookie sent plain text behind its answer to START_TLS")
                check_tls_response(frame)
                agreed.set_result(None)
        except (ConnectionLostError, ProtocolError) as error:
            if not agreed.done():
                agreed.set_exception(error)
            else:
                self.lose(f"protocol error: {error.message}")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lose(f"connection lost: {exc}" if exc else "connection closed by the bookie")

    def _answer_reply(self, reply: V3Reply) -> None:
        assert self._by_txn is not None
        question = self._by_txn.pop(reply.txn, None)
        if question is None:
            raise ProtocolError(f"response without a request: operation={reply.operation} txn={reply.txn}")
        self._answer_to(question, response_to(self._questions[question].message, reply))

    def _answer(self, response: _ClientResponse | AuthDone | CollectionReport) -> None:
        question: Question
        if isinstance(response, EntryAdded):
            question = (_ADD, response.ledger, response.entry)
        elif isinstance(response, EntryRead):
            question = (_READ, response.ledger, response.entry)
        elif isinstance(response, BatchReadDone):
            question = (_BATCH, response.ledger, response.request)
        elif isinstance(response, EntriesSummarized):
            question = (_SUMMARY, response.ledger, response.request)
        else:
            raise ProtocolError("response without a request: op=AUTH")
        self._answer_to(question, response)

    def _answer_to(self, question: Question, response: _ClientResponse) -> None:
        asked = self._questions.pop(question, None)
        if asked is None:
            raise ProtocolError(f"response without a request: operation, ledger, entry or number={question}")
        self.unanswered_bytes -= asked.size
        message = asked.message
        again = asked.held
        if isinstance(response, EntryAdded):
            pass  # most responses
        elif isinstance(response, EntryRead):
            if isinstance(message, ReadEntry) and message.fence and not response.fence:
                response = replace(response, fence=True)
            elif response.code is not Code.OK and len(asked.askers) > asked.before:
                # the bookie may have read before the later requesters asked, so their request is sent again
                again = (*((asker, message) for asker in asked.askers[asked.before :]), *again)
                asked.askers = asked.askers[: asked.before]
        elif isinstance(response, BatchReadDone | EntriesSummarized):
            response = replace(response, request=asked.number)
        fact = Received(self._bookie, response)
        for asker in asked.askers:
            asker.post(fact)
        if again:
            self._release(question, again)

    def _release(self, question: Question, held: tuple[_Held, ...]) -> None:
        """Send the first request held back, together with those that may share its response; hold back the rest."""
        (asker, message), *rest = held
        if self._lost:  # a requester's handling of the response closed the connection
            fact = PeerLost(self._bookie, "connection lost")
            for waiting in dict.fromkeys(asker for asker, _ in held):
                waiting.post(fact)
            return
        sharing = [other for other, request in rest if _same_plain_read(message, request)]
        others = tuple(one for one in rest if not _same_plain_read(message, one[1]))
        self._send(question, message, (asker, *sharing), others)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def lose(self, reason: str, *, quietly: bool = False) -> None:
        """Close the connection and post PeerLost once to each requester. quietly: no event, no metric."""
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
        askers |= self.deferring
        self._questions.clear()
        if self._by_txn is not None:
            self._by_txn.clear()
        self._out.clear()
        self._client.forget(self._bookie, self, reason, quietly)
        fact = PeerLost(self._bookie, reason)
        for asker in askers:
            asker.post(fact)


class _FrameDecoder(Decoder[list[memoryview]]):
    """Frames as they are, for the answer to START_TLS."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_TLS_RESPONSE_BYTES_MAX)

    def _decoded(self, frames: Iterable[memoryview]) -> list[memoryview]:
        return list(frames)


def _same_plain_read(one: ClientRequest, other: ClientRequest) -> bool:
    return isinstance(one, ReadEntry) and isinstance(other, ReadEntry) and not one.fence and not other.fence


def _may_share(sent: ClientRequest, new: ClientRequest) -> bool:
    """Whether `new` may share the response to `sent`, although the bookie may have read before `new` was requested.

    A stored entry does not change, so a successful response stays valid; the last entry (id -1) does change.
    """
    return _same_plain_read(sent, new) and sent.entry != -1  # type: ignore[union-attr]  # both are reads


def _drop_fact(_: Fact) -> None:
    """Drop a fact: the requester was closed."""
