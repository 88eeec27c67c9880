"""One connection to one proxy: sends requests and hands each reply to its caller, writer or reader.

Everything runs in event loop callbacks, without tasks or asyncio streams.

Invariants:
- frames of one loop iteration go out in one write;
- while a request is unanswered, a silent server is pinged, and the connection closed if it stays silent;
- when it ends, each waiting caller, writer and reader gets ConnectionLostError once, and nothing after it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from dlog.client.address import split_address
from dlog.client.options import ClientOptions
from dlog.client.safe_log import SafeLog
from dlog.errors import (
    ConnectionLostError,
    DLogError,
    EndedError,
    OverCapacityError,
    PositionBeyondEndError,
    ProducerUnknownError,
    ProtocolError,
    SequenceGapError,
    TruncatedError,
    TxidOutOfOrderError,
    UnavailableError,
    from_wire,
)
from dlog.io import local_transport
from dlog.io.receive_buffers import buffer_for, received
from dlog.model.dlsn import DLSN, of
from dlog.model.window import WINDOW_MIN
from dlog.wire import proxy
from dlog.wire.proxy_codec import FrameDecoder, encode

B = TypeVar("B", contravariant=True)
_QUESTIONS = 64  # concurrent requests, if the server names no limit
_JOINED_BYTES_MAX = 4096  # of a body: copying it costs less than a vectored write

_log = SafeLog(logging.getLogger(__name__))


class WriterPort(Protocol[B]):
    """Sends batches over a connection (a producer). `batch` is the object given to `write`."""

    stream: str

    def on_written(self, batch: B, dlsn: DLSN, txid: int, duplicate: bool, window: int) -> None:
        """The batch is durable; `dlsn` is its first. window: most batches that may be unanswered from now on."""
        ...

    def on_refused(self, connection: Connection, batch: B, error: DLogError) -> None:
        """The server refused this batch with an error."""
        ...

    def on_lost(self, connection: Connection, error: DLogError) -> None:
        """The connection is lost; unanswered batches get no reply."""
        ...

    def on_moved(self, connection: Connection, location: str | None) -> None:
        """The server drains: send new batches elsewhere. Pending ones are still answered here."""
        ...

    def on_writable(self) -> None:
        """The connection accepts bytes again."""
        ...


class ReaderPort(Protocol):
    """Receives what a proxy sends for one read."""

    def on_entries(self, entries: proxy.Entries) -> None: ...

    def on_event(self, event: proxy.ReaderEvent) -> None: ...

    def on_failed(self, error: DLogError) -> None:
        """The read has ended: refused by the server, or its connection is lost."""
        ...


class Connection(asyncio.BufferedProtocol):
    """A connection to a proxy, made by `Connection.open`. Not thread-safe."""

    def __init__(self, address: str, options: ClientOptions, loop: asyncio.AbstractEventLoop, hops: int) -> None:
        self.address = address
        self.hops = hops  # how often a proxy may forward a request of this connection; 0: never
        self.role = ""
        self.limits: dict[str, int] = {}
        self.is_open = False
        self.is_draining = False  # the server announced that it shuts down
        self.is_paused = False  # the write buffer is full
        self.error: DLogError | None = None
        self._options = options
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(options.frame_bytes_max)
        self._farewell: DLogError | None = None
        self._request = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._turns = asyncio.Semaphore(1)  # limits concurrent requests; the server's limit after the handshake
        self._written: dict[int, tuple[WriterPort[Any], Any, int]] = {}  # request -> writer, batch, count
        self._left: set[int] = set()  # those of them whose writers have detached
        self._writers: list[WriterPort[Any]] = []
        self._readers: dict[int, ReaderPort] = {}
        self._out: list[bytes | bytearray | memoryview] = []
        self._flush_due = False
        self._received_s = loop.time()
        self._pinged_s: float | None = None
        self._beat: asyncio.TimerHandle | None = None

    @property
    def region(self) -> str | None:
        """The client's region for requests on this connection; None: none is configured, or the server is of a version
        that takes none."""
        return self._options.region if self._options.region and self.limits.get("regions") else None

    @classmethod
    async def open(cls, address: str, options: ClientOptions, *, hops: int = 0) -> Connection:
        """Connect and do the handshake. hops: see proxy.Hello.

        Raises UnavailableError if there is no answer within `connect_timeout_s`, OverCapacityError if the proxy has too
        many connections, UnsupportedVersionError or ProtocolError if the peer is not a compatible proxy. Cancelling
        closes the connection.
        """
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        connection = cls(address, options, loop, hops)
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                await local_transport.connect(lambda: connection, host, port)
                hello = await connection.ask(
                    lambda request: proxy.Hello(
                        request, proxy.PROTOCOL_VERSION, proxy.PROTOCOL_VERSION, "client", f"python:{os.getpid()}", hops
                    )
                )
        except TimeoutError as error:
            connection.close()
            raise UnavailableError(
                f"no answer within {options.connect_timeout_s:g} s: address={address}", outcome_unknown=False
            ) from error
        except OSError as error:
            raise UnavailableError(f"{_why(error)}: address={address}") from error
        except ConnectionLostError as error:
            farewell = connection._farewell
            if isinstance(farewell, OverCapacityError):
                raise OverCapacityError(f"{farewell.message}: address={address}") from error
            why = f", {farewell.message}" if farewell is not None else ""
            raise UnavailableError(f"closed during the handshake{why}: address={address}") from error
        except BaseException:
            connection.close()
            raise
        if not isinstance(hello, proxy.Welcome):
            connection.close()
            raise ProtocolError(f"the server is not a dlog proxy, check the address: address={address}")
        connection.role = hello.role
        connection.limits = dict(hello.limits)
        connection._turns = asyncio.Semaphore(max(1, connection.limits.get("questions_max", _QUESTIONS)))
        connection.is_open = True
        return connection

    # ---- asking ---------------------------------------------------------------------------------------------------

    async def ask(self, question: Callable[[int], proxy.Question]) -> Any:
        """Send a request that has one reply and return it: the result map of Done, or the Welcome.

        question: makes the request from its number. Waits while the server's limit of concurrent requests is reached.
        Raises the server's error, ConnectionLostError, or InvalidRequestError (not sent). Cancelling stops the wait;
        the request may still be done.
        """
        async with self._turns:
            self._check()
            request = self._next_request()
            answer: asyncio.Future[Any] = self._loop.create_future()
            self._send(question(request))
            self._asked[request] = answer
            try:
                return await answer
            finally:
                self._asked.pop(request, None)
                del answer  # breaks a reference cycle: a raised error refers to this frame

    @property
    def writers(self) -> tuple[WriterPort[Any], ...]:
        """The attached writers."""
        return tuple(self._writers)

    @property
    def is_forwarding(self) -> bool:
        """Whether the server forwards requests that another proxy must answer."""
        return min(self.hops, self.limits.get("hops_max", 0)) > 0

    def attach(self, writer: WriterPort[Any]) -> None:
        """Notify this writer of loss, drain and flow control from now on."""
        self._check()
        self._writers.append(writer)

    def detach(self, writer: WriterPort[Any]) -> None:
        """Stop notifying the writer, except of batches that become durable. It may send the others again, even here: a
        refusal of the earlier attempt is dropped."""
        if writer in self._writers:
            self._writers.remove(writer)
        self._left.update(request for request, (other, _, _) in self._written.items() if other is writer)

    def write(
        self,
        writer: WriterPort[B],
        batch: B,
        *,
        stream: str,
        producer: bytes,
        sequence: int,
        count: int,
        txid: int | None,
        crc: int,
        retry: bool,
        since: tuple[int, int] | None,
        replaces: int | None,
        incarnation: str | None,
        body: bytes,
    ) -> None:
        """Send one batch; `writer` learns the outcome. Request numbers are consecutive."""
        request = self._next_request()
        since_dlsn = None if since is None else (*since, 0)
        named = (stream, producer, sequence, count, txid, crc, retry, since_dlsn, replaces, incarnation)
        self._send(proxy.Write(request, *named, body))
        self._written[request] = (writer, batch, count)

    def read(self, reader: ReaderPort, question: Callable[[int], proxy.Read]) -> int:
        """Open a reader; returns its request number, for `credit` and `cancel`. Raises ConnectionLostError, and
        InvalidRequestError (not sent)."""
        self._check()
        request = self._next_request()
        self._send(question(request))
        self._readers[request] = reader
        return request

    def credit(self, request: int, size: int) -> None:
        """Let the server push `size` more bytes to this reader."""
        if request in self._readers and self.error is None:
            self._send(proxy.Credit(request, size))

    def cancel(self, request: int) -> None:
        """End a reader. It is not called again."""
        if self._readers.pop(request, None) is not None and self.error is None:
            self._send(proxy.Cancel(request))

    def close(self) -> None:
        """Send buffered frames, then close. All that wait here get ConnectionLostError."""
        if self._transport is None or self.error is not None:
            return
        self._flush()
        self._transport.close()
        self._end(ConnectionLostError(f"closed by this client: address={self.address}"))

    def give_up(self, reason: str) -> None:
        """Abort the connection: this server is not expected to answer."""
        was_lost = self.error is not None
        if self._transport is not None:
            self._transport.abort()
        self._end(ConnectionLostError(f"{reason}: address={self.address}"))
        if not was_lost:
            _log.info("connection given up: %s address=%s", reason, self.address)

    # ---- called by asyncio ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass of it
        self._transport = transport
        transport.set_write_buffer_limits(high=1024 * 1024)

    def get_buffer(self, sizehint: int) -> memoryview:
        return buffer_for(self._decoder)

    def buffer_updated(self, nbytes: int) -> None:
        self._received_s = self._loop.time()
        self._pinged_s = None
        try:
            for message in received(self._decoder, nbytes):
                self._dispatch(message)
        except ProtocolError as error:
            self.give_up(f"protocol violation by the server, {error.message}")

    def connection_lost(self, exc: Exception | None) -> None:
        why = _why(exc) if isinstance(exc, OSError) else "connection closed by the server"
        if self._farewell is not None:
            why = f"closed by the server, {self._farewell.message}"
        was_lost = self.error is not None
        self._end(ConnectionLostError(f"{why}: address={self.address}"))
        if not was_lost:
            _log.info("connection lost: %s address=%s", why, self.address)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        for writer in tuple(self._writers):
            writer.on_writable()

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _dispatch(self, message: proxy.Message) -> None:
        if self.error is not None:
            return
        match message:
            case proxy.Written():
                self._on_written(message)
            case proxy.Entries():
                reader = self._readers.get(message.request)
                if reader is not None:
                    reader.on_entries(message)
            case proxy.ReaderEvent():
                reader = self._readers.get(message.request)
                if reader is not None:
                    reader.on_event(message)
            case proxy.Done():
                self._answer(message.request, message.result)
            case proxy.Welcome():
                self._answer(message.request, message)
            case proxy.Failed():
                self._on_failed(message)
            case proxy.GoAway():
                self.is_draining = True
                for writer in tuple(self._writers):
                    writer.on_moved(self, message.location)
            case _:
                raise ProtocolError(f"unexpected message from the server: message={type(message).__name__}")

    def _answer(self, request: int, result: Any) -> None:
        asked = self._asked.get(request)
        if asked is not None and not asked.done():
            asked.set_result(result)

    def _on_written(self, message: proxy.Written) -> None:
        if not 0 <= message.last - message.first < len(self._written):
            raise ProtocolError(f"reply to more batches than were sent: first={message.first} last={message.last}")
        segment, entry, slot = message.dlsn
        window = message.window or WINDOW_MIN
        for request in range(message.first, message.last + 1):
            found = self._written.pop(request, None)
            if found is None:
                raise ProtocolError(f"reply to a batch that was not sent: request={request}")
            writer, batch, count = found
            self._left.discard(request)
            writer.on_written(batch, of(segment, entry, slot), message.txid, message.duplicate, window)
            slot += count

    def _on_failed(self, message: proxy.Failed) -> None:
        error = failure(message)
        if message.request == 0:  # to no request: why the server closes the connection
            self._farewell = error
            return
        written = self._written.pop(message.request, None)
        if written is not None:
            if message.request not in self._left:
                written[0].on_refused(self, written[1], error)
            self._left.discard(message.request)
            return
        reader = self._readers.pop(message.request, None)
        if reader is not None:
            reader.on_failed(error)
            return
        asked = self._asked.get(message.request)
        if asked is not None and not asked.done():
            asked.set_exception(error)

    def _end(self, error: DLogError) -> None:
        if self.error is not None:
            return
        self.error = error
        self.is_open = False
        if self._beat is not None:
            self._beat.cancel()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(error)
        readers, self._readers = self._readers, {}
        writers, self._writers = self._writers, []
        self._written.clear()
        self._out.clear()
        for reader in readers.values():
            reader.on_failed(error)
        for writer in writers:
            writer.on_lost(self, error)

    def _check(self) -> None:
        if self.error is not None:
            raise ConnectionLostError(self.error.message, outcome_unknown=False)

    def _next_request(self) -> int:
        self._request += 1
        return self._request

    def _send(self, message: proxy.Message) -> None:
        self._out.extend(encode(message))
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        if self._beat is None:
            self._received_s = self._loop.time()
            self._beat = self._loop.call_later(self._options.ping_after_s, self._on_beat)

    def _flush(self) -> None:
        self._flush_due = False
        if self._out and self._transport is not None and self.error is None:
            out, self._out = self._out, []
            if len(out) == 2 and len(out[1]) <= _JOINED_BYTES_MAX:  # a small batch: header and body
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)

    def _on_beat(self) -> None:
        """Ping a silent server, or give it up. Runs while a request is unanswered."""
        self._beat = None
        if self.error is not None or not (self._asked or self._written or self._readers):
            return
        now_s = self._loop.time()
        if self._pinged_s is not None and now_s - self._pinged_s >= self._options.lost_after_s:
            self.give_up(f"silent for {now_s - self._received_s:.1f} s")
            return
        if self._pinged_s is None and now_s - self._received_s >= self._options.ping_after_s:
            self._pinged_s = now_s
            self._out.extend(encode(proxy.Ping(self._next_request())))
            self._flush()
        self._beat = self._loop.call_later(self._options.ping_after_s, self._on_beat)


def failure(message: proxy.Failed) -> DLogError:
    """The error for a Failed frame, with attributes from its detail map."""
    error = from_wire(message.code, message.message, message.location, message.outcome_unknown)
    if isinstance(error, SequenceGapError):
        error.expected = int(message.detail.get("expected", -1))
    elif isinstance(error, TxidOutOfOrderError):
        error.last = int(message.detail.get("last", -1))
    elif isinstance(error, ProducerUnknownError):
        error.since = position_of(message.detail.get("since"))
    elif isinstance(error, EndedError) and isinstance(error, TruncatedError) and "first" in message.detail:
        error.first = str(of(*message.detail["first"]))
    elif isinstance(error, PositionBeyondEndError) and "end" in message.detail:
        error.end = str(of(*message.detail["end"]))
    return error


def position_of(value: Any) -> tuple[int, int] | None:
    """(segment, entry) of a `since` sent by a server; None if it is not valid."""
    if not isinstance(value, list | tuple) or len(value) != 3 or not all(type(part) is int for part in value):
        return None
    return value[0], value[1]


def _why(error: OSError | None) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionResetError):
        return "connection reset"
    return (error.strerror or str(error)).lower() if error is not None else "connection closed"
