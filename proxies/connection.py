"""One accepted connection of a proxy: decodes and encodes frames, one write per turn of the event loop.

Invariants:
- a PROXY protocol header comes first or not at all, and only from sources that may send one;
- nothing here blocks, and bad input affects only its connection: bytes that are no frames, a first frame that is no
  Hello, or no Hello in time close the connection and do nothing else;
- what is sent during one turn of the event loop leaves in one write at its end;
- a peer that does not read our replies is not read either, so the memory it can take is bounded; of many messages that
  arrive at once TURN_MESSAGES_MAX are handled per turn, and a frame must be complete within FRAME_S.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator
from typing import Protocol, cast

from dlog.errors import (
    ClosedError,
    DLogError,
    OverCapacityError,
    PositionBeyondEndError,
    ProducerUnknownError,
    ProtocolError,
    RequestTimeoutError,
    SequenceGapError,
    TruncatedError,
    TxidOutOfOrderError,
    UnauthorizedError,
    UnavailableError,
)
from dlog.errors import UnsupportedVersionError as VersionError
from dlog.hostport import join_host_port
from dlog.io import local_transport, receive_buffers
from dlog.model import dlsn
from dlog.wire import proxy_protocol
from dlog.wire.proxy import PROTOCOL_VERSION, Failed, Hello, Message, Welcome
from dlog.wire.proxy_codec import FrameDecoder, encode
from proxies.proxy_header_policy import HeaderExpectation

TURN_MESSAGES_MAX = 256  # of one peer, handled before the other connections have their turn
FRAME_S = 30.0  # a frame must be complete within this, or the connection is closed
HELLO_BYTES_MAX = 4096  # largest frame before the Hello
JOINED_BYTES_MAX = 64 * 1024  # up to here one copy is cheaper than a long vector of buffers
OUTPUT_HIGH_BYTES = 512 * 1024  # with more unsent bytes the session is asked to pause, and the peer is not read


class Session(Protocol):
    """Handles one connection's messages. Methods do not block; a DLogError raised by them is the reply."""

    def received(self, message: Message) -> None:
        """A request came, in order."""
        ...

    def flush(self) -> None:
        """The turn ends: send what was collected in it."""
        ...

    def writable(self, yes: bool) -> None:
        """The peer reads what we send (again), or does not."""
        ...

    def closed(self) -> None:
        """The connection is closed; called once."""
        ...


class ConnectionServer(Protocol):
    """The server that accepted a connection, as the connection uses it."""

    role: str
    name: str
    limits: dict[str, int]
    hello_s: float

    def admit(self, connection: Connection) -> Acceptance:
        """Count a new connection and decide whether it is served."""
        ...

    def expects(self, host: str) -> HeaderExpectation:
        """Whether a connection from this host begins with a PROXY protocol header."""
        ...

    def identify(self, connection: Connection) -> bool:
        """`peer` is known now; False if its host has too many connections."""
        ...

    def refused(self, connection: Connection, error: DLogError) -> None:
        """A connection is refused: it began wrongly, or there are too many."""
        ...

    def open(self, connection: Connection, hello: Hello) -> Session:
        """The Hello came and was replied to: make the session."""
        ...

    def leave(self, connection: Connection) -> None:
        """The connection is closed, also after a refusing `admit`."""
        ...

    def keeps(self, change: int) -> bool:
        """Incomplete frames take `change` more (or fewer) bytes; False if the total is too much."""
        ...


class Acceptance(enum.Enum):
    """What happens to a new connection."""

    SERVED = enum.auto()
    REFUSED = (
        enum.auto()
    )  # over capacity: gets an error, and is closed once its first bytes were read or `hello_s` has passed
    CUT = enum.auto()  # too many are being refused: gets an error and is closed at once, so the error may be lost


class Pause(enum.Flag):
    """Reasons why the socket is not read."""

    NOT = 0
    OUTPUT = enum.auto()  # the peer does not read our replies
    ADMISSION = enum.auto()  # enough of its batches are in flight
    FORWARD = enum.auto()  # the proxy that its requests are forwarded to does not read
    TURN = enum.auto()  # it sent many messages at once, and other connections have their turn


class Connection(asyncio.BufferedProtocol):
    """Server side of one connection of the proxy protocol.

    peer: host:port of the client; behind a load balancer, what that reports. via: host:port of the socket's peer.
    """

    def __init__(self, reception: ConnectionServer) -> None:
        self.peer = ""
        self.via = ""
        self._reception = reception
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(HELLO_BYTES_MAX)
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self._hello_timer: asyncio.TimerHandle | None = None
        self._expect: HeaderExpectation | None = HeaderExpectation.NONE  # of a PROXY header; None once past it
        self._is_identified = False
        self._is_refused = False  # the error was sent; what the peer sends is dropped
        self._preamble = b""  # incomplete PROXY header
        self._kept = 0  # bytes of an incomplete header or frame
        self._begun = 0  # frames begun, when `_half_since_s` was set
        self._half_since_s = 0.0  # when the incomplete frame began
        self._late_timer: asyncio.TimerHandle | None = None
        self._messages: Iterator[Message] = iter(())  # received, not handled yet
        self._out: list[bytes | bytearray | memoryview] = []
        self._out_bytes = 0
        self._planned = False
        self._paused = Pause.NOT

    # ---- called by the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own classes
        address = self._transport.get_extra_info("peername")
        host = str(address[0]) if isinstance(address, tuple) else ""
        connected = None if host else self._transport.get_extra_info("socket")
        self.peer = self.via = join_host_port(host, address[1]) if host else local_transport.peer_name(connected)
        self._expect = self._reception.expects(host)
        self._transport.set_write_buffer_limits(high=OUTPUT_HIGH_BYTES)
        acceptance = self._reception.admit(self)
        if acceptance is not Acceptance.SERVED:
            error = OverCapacityError(
                "too many connections to this proxy: close some, start more proxies, or raise connections_max"
            )
            self._reception.refused(self, error)
            if acceptance is Acceptance.CUT:
                self.end(error)
                return
            self._end_after_first_bytes(error)
        self._hello_timer = self._loop.call_later(self._reception.hello_s, self._no_hello)

    def get_buffer(self, sizehint: int) -> memoryview:
        return receive_buffers.buffer_for(self._decoder)

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_refused:
            self.end()
            return
        if self._expect is None:
            self._messages = receive_buffers.received(self._decoder, nbytes)
        else:
            data = self._preamble + receive_buffers.chunk(nbytes)
            self._messages = self._decoder.feed(self._take_preamble(self._expect, data))
        self._listen()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._cancel_hello_timer()
        if self._late_timer is not None:
            self._late_timer.cancel()
            self._late_timer = None
        self._reception.keeps(-self._kept)
        self._kept = 0
        session, self._session = self._session, None
        if session is not None:
            session.closed()
        self._reception.leave(self)

    def pause_writing(self) -> None:
        self._pause(Pause.OUTPUT)
        if self._session is not None:
            self._session.writable(False)

    def resume_writing(self) -> None:
        self._resume(Pause.OUTPUT)
        if self._session is not None:
            self._session.writable(True)

    # ---- called by the session --------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_identified(self) -> bool:
        """Whether `ConnectionServer.identify` was called."""
        return self._is_identified

    @property
    def is_paused(self) -> bool:
        """Whether the peer is not being read."""
        return bool(self._paused)

    @property
    def unsent_bytes(self) -> int:
        """Bytes sent here that have not left."""
        return self._out_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    def send(self, message: Message) -> None:
        """Send at the end of this turn, or at once if much is queued. Dropped if the connection is closed."""
        if self._transport is None or self._is_refused:
            return
        for part in encode(message):
            self._out.append(part)
            self._out_bytes += len(part)
        if self._out_bytes < OUTPUT_HIGH_BYTES:
            self.plan_flush()
        else:
            self._write()  # the transport can call pause_writing at once

    def fail(self, request: int, error: DLogError) -> None:
        """Reply to a request with an error."""
        self.send(failure(request, error))

    def plan_flush(self) -> None:
        """Call `Session.flush` and write the output at the end of this turn."""
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._flush)

    def hold(self, yes: bool, why: Pause = Pause.ADMISSION) -> None:
        """Stop (or resume) reading this peer; it is read when no reason is left."""
        if yes:
            self._pause(why)
        else:
            self._resume(why)

    def end(self, error: DLogError | None = None) -> None:
        """Close after the queue is sent. error: sent first, for request 0; left out if the peer broke the protocol."""
        if self._transport is None:
            return
        if error is not None:
            self.send(failure(0, error))
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close now and drop the queue."""
        if self._transport is not None:
            self._transport.abort()

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Handle up to TURN_MESSAGES_MAX received messages, the rest in the next turn of the event loop."""
        left = TURN_MESSAGES_MAX
        try:
            for message in self._messages:
                if self._session is not None:
                    self._received(self._session, message)
                elif self.is_open:
                    self._greet(message)
                left -= 1
                if not left:
                    self._pause(Pause.TURN)
                    self._loop.call_soon(self._listen_on)
                    return
        except ProtocolError:
            self.end()
        frames = self._decoder.frames
        before, kept = self._kept, frames.buffered + len(self._preamble)
        self._kept = kept
        begun = frames.begun
        if kept and (not before or begun != self._begun):  # another frame began
            self._begun = begun
            self._half_since_s = self._loop.time()
            if self._late_timer is None:
                self._late_timer = self._loop.call_later(FRAME_S, self._look_if_late)
        if kept != before and not self._reception.keeps(kept - before):
            self.end(OverCapacityError("too many bytes of incomplete frames at this proxy, connect again later"))
        self._resume(Pause.TURN)

    def _listen_on(self) -> None:
        if self._transport is not None:
            self._listen()

    def _look_if_late(self) -> None:
        """Close if the rest of a frame did not come in time while the socket was read."""
        self._late_timer = None
        if not self._kept or self._transport is None:
            return
        left_s = self._half_since_s + FRAME_S - self._loop.time()
        if left_s <= 0 and not self._paused:
            self.end(RequestTimeoutError("the rest of a frame did not arrive in time", outcome_unknown=False))
        else:
            self._late_timer = self._loop.call_later(max(left_s, 1.0), self._look_if_late)

    def _take_preamble(self, expect: HeaderExpectation, data: bytes) -> bytes:
        """Handle a PROXY header; returns the bytes after it, nothing while the header is incomplete."""
        self._preamble = b""
        if not proxy_protocol.begins(data):
            if expect is HeaderExpectation.ALWAYS:
                return self._refuse(
                    UnauthorizedError("a PROXY protocol header is required: connect through the load balancer")
                )
            return self._identified(data)
        if expect is HeaderExpectation.NONE:
            return self._refuse(
                UnauthorizedError("a PROXY protocol header is not accepted from this source: see proxy_protocol_from")
            )
        try:
            found = proxy_protocol.parse(data)
        except ProtocolError as error:
            return self._refuse(error)
        if found is None:
            self._preamble = data
            return b""
        self.peer = found.source or self.peer
        return self._identified(data[found.size :])

    def _identified(self, data: bytes) -> bytes:
        self._expect = None
        self._is_identified = True
        if self._reception.identify(self):
            return data
        return self._refuse(
            OverCapacityError("too many connections from this host: close some, or raise connections_per_host_max")
        )

    def _refuse(self, error: DLogError) -> bytes:
        """Send the error and close."""
        self._expect = None
        self._reception.refused(self, error)
        self.end(error)
        return b""

    def _end_after_first_bytes(self, error: DLogError) -> None:
        """Send the error and an EOF, but close only after the peer's Hello was read.

        If the socket were closed at once, that Hello would reset it, and the peer's send would fail before it reads.
        """
        self.send(failure(0, error))
        self._write()
        self._is_refused = True
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def _received(self, session: Session, message: Message) -> None:
        try:
            session.received(message)
        except ProtocolError:
            raise
        except DLogError as error:
            self.fail(getattr(message, "request", 0), error)

    def _greet(self, message: Message) -> None:
        if not isinstance(message, Hello):
            raise ProtocolError(f"the first frame of a connection must be Hello: got={type(message).__name__}")
        if not message.version_min <= PROTOCOL_VERSION <= message.version_max:
            asked = f"{message.version_min}..{message.version_max}"
            self.fail(
                message.request,
                VersionError(f"protocol version not supported: supported={PROTOCOL_VERSION} asked={asked}"),
            )
            self.end()
            return
        self._cancel_hello_timer()
        here = self._reception
        self.send(Welcome(message.request, PROTOCOL_VERSION, here.name, here.role, here.limits))
        self._decoder.length_max = here.limits["frame_bytes_max"]
        self._session = here.open(self, message)

    def _no_hello(self) -> None:
        self._hello_timer = None
        self.end()

    def _cancel_hello_timer(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None

    def _flush(self) -> None:
        self._planned = False
        if self._session is not None:
            self._session.flush()
        self._write()

    def _write(self) -> None:
        out, size = self._out, self._out_bytes
        if not out or self._transport is None:
            return
        self._out, self._out_bytes = [], 0
        if self._transport.is_closing():
            return
        if len(out) > 1 and size > JOINED_BYTES_MAX:
            self._transport.writelines(out)
        else:
            self._transport.write(b"".join(out) if len(out) > 1 else out[0])

    def _pause(self, why: Pause) -> None:
        if self._paused is Pause.NOT and self._transport is not None:
            self._transport.pause_reading()
        self._paused |= why

    def _resume(self, why: Pause) -> None:
        was = self._paused
        if was is Pause.NOT:
            return
        self._paused &= ~why
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            if was is not Pause.TURN:
                self._half_since_s = self._loop.time()  # its frame could not arrive while paused
            self._transport.resume_reading()


def failure(request: int, error: DLogError) -> Failed:
    """The Failed frame with `error` as the reply to `request`.

    ClosedError is sent as UnavailableError: what was closed is an owner here, not the client's own handle, and another
    owner may serve.
    """
    if isinstance(error, ClosedError):
        error = UnavailableError(error.message, location=error.location, outcome_unknown=error.outcome_unknown)
    detail: dict[str, object] = {}
    if isinstance(error, SequenceGapError) and error.expected >= 0:
        detail["expected"] = error.expected
    if isinstance(error, TxidOutOfOrderError) and error.last >= 0:
        detail["last"] = error.last
    if isinstance(error, ProducerUnknownError) and error.since is not None:
        detail["since"] = [*error.since, 0]
    if isinstance(error, TruncatedError) and error.first is not None:
        detail["first"] = list(dlsn.parse(error.first))
    if isinstance(error, PositionBeyondEndError) and error.end is not None:
        detail["end"] = list(dlsn.parse(error.end))
    return Failed(request, error.code, error.message, error.location, error.outcome_unknown, detail)
