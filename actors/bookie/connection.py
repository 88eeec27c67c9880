"""One client connection of a bookie: decodes requests, encodes responses, one write per turn, bounded memory.

Invariants:
- a request is taken only while the client reads its responses and few of its requests wait for the disk, an add only
  while the write cache has room. Until then at most one chunk of requests waits here, and the socket is not read;
- each request but an add counts as a read until it is answered, or is a long poll that waits. Few of those may wait;
- a connection becomes a TLS one only while no other request of it waits and no byte has come behind START_TLS: what was
  sent in plain text never counts as sent under TLS;
- with `tls_required` no request reaches the state machine before the connection is a TLS one: it is answered with the
  status that BookKeeper's bookies give to a client which has not authenticated itself (EUA);
- a client that half-closes gets every pending response before the connection ends; its long polls end at once.
  Under TLS the connection ends at once.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from actors.bookie.v3_exchange import V3Exchange
from dlog.bookie.options import BookieOptions
from dlog.errors import ProtocolError
from dlog.hostport import join_host_port
from dlog.io.receive_buffers import buffer_for, received
from dlog.machine import Peer
from dlog.wire.bookie import (
    AddEntry,
    BatchRead,
    BatchReadDone,
    Code,
    Collect,
    CollectionReport,
    CollectionState,
    EntriesSummarized,
    EntryAdded,
    EntryRead,
    ReadEntry,
    SummarizeEntries,
    Unsupported,
    encode_added,
    encode_response,
)
from dlog.wire.bookie_port import PortRequest, RequestDecoder
from dlog.wire.bookie_v3 import EBADREQ, EUA, V3Request, refusal
from dlog.wire.bookie_v3_messages import ReadWithLac, ReadWithLacDone, StartTls, TlsStarted
from dlog.wire.bookie_v3_responses import encode_v3_response
from dlog.wire.framing import Buffer

Take = Callable[[Peer, Any], None]

HANDSHAKE_S = 10.0  # for a client to finish the TLS handshake; Java's gives up after as long


class Connection(asyncio.BufferedProtocol):
    """One accepted socket, which is also the state machine's peer for its v2 requests; for v3 see V3Exchange.

    take: gives one request to the state machine; responses come through `send`, at once or later. settle: called at
    the end of each turn that took requests. out_dirty: called when responses wait for `flush`. is_congested: whether
    adds must wait; `resume` is called when that ends. on_eof: the client sends nothing more, end its long polls.
    count_bytes: called with each change in bytes of incomplete frames; False: all connections together hold too many,
    close this one. is_refused: over the limit, close at once. upgrade: called to have `start_tls` run; None: the bookie
    has no certificate. on_plain: called with the client's address when a request is refused as it came in plain text.
    """

    __slots__ = (
        "_buffered",
        "_closing",
        "_count_bytes",
        "_decoder",
        "_inbox",
        "_is_congested",
        "_is_refused",
        "_lost",
        "_on_eof",
        "_on_lost",
        "_on_plain",
        "_options",
        "_out",
        "_out_bytes",
        "_out_dirty",
        "_owed",
        "_owed_reads",
        "_reading",
        "_refuses_plain",
        "_settle",
        "_take",
        "_taking",
        "_transport",
        "_under_tls",
        "_upgrade",
        "_waits_since_s",
        "_writable",
        "polling",
    )

    def __init__(
        self,
        options: BookieOptions,
        *,
        take: Take,
        settle: Callable[[], None],
        is_congested: Callable[[], bool],
        out_dirty: Callable[[Connection], None],
        on_eof: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
        count_bytes: Callable[[int], bool],
        is_refused: bool = False,
        upgrade: Callable[[Connection], None] | None = None,
        on_plain: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._take = take
        self._settle = settle
        self._is_congested = is_congested
        self._out_dirty = out_dirty
        self._on_eof = on_eof
        self._on_lost = on_lost
        self._count_bytes = count_bytes
        self._decoder = RequestDecoder()
        self._buffered = 0  # bytes of an incomplete frame
        self._waits_since_s = 0.0  # start of the incomplete frame, or of a connection without a frame; inf: neither
        self._inbox: deque[PortRequest] = deque()
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._owed = 0  # requests without a response
        self._owed_reads = 0
        self.polling: dict[V3Exchange, None] = {}  # long polls that wait for a LAC to move
        self._reading = True
        self._writable = True
        self._taking = False
        self._closing = False
        self._lost = False
        self._is_refused = is_refused
        self._upgrade = upgrade
        self._under_tls = False
        self._on_plain = on_plain
        self._refuses_plain = options.tls_required  # until TLS has begun
        self._transport: asyncio.Transport

    # ---- called by the loop ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._is_refused:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._options.connection_out_bytes_max)
        self._waits_since_s = asyncio.get_running_loop().time()

    def get_buffer(self, sizehint: int) -> memoryview:
        return buffer_for(self._decoder)

    def buffer_updated(self, nbytes: int) -> None:
        frames = self._decoder.frames
        begun = frames.begun
        try:
            requests = received(self._decoder, nbytes)
        except ProtocolError:
            self._transport.abort()  # the protocol has no response for it; what was acknowledged stays
            return
        buffered = frames.buffered
        if buffered != self._buffered:
            change, self._buffered = buffered - self._buffered, buffered
            if not self._count_bytes(change):
                self._transport.abort()
                return
        if requests or frames.begun != begun:  # otherwise the same frame continues
            self._waits_since_s = asyncio.get_running_loop().time() if buffered else math.inf
        self._inbox.extend(requests)
        self._take_requests()
        self._settle()

    def eof_received(self) -> bool:
        self._closing = True
        self._on_eof(self)
        self._close_if_done()
        return not self._under_tls  # stay open for pending responses; TLS has no half-closed connections

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._take_requests()
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._count_bytes(-self._buffered)
        self._buffered = 0
        self._inbox.clear()
        self._out.clear()
        self._on_lost(self)

    # ---- called by the actor -----------------------------------------------------------------------------------------

    def send(self, message: Any) -> None:
        """Queue a response; `flush` writes it."""
        self._owed -= 1
        if message.__class__ is not EntryAdded:
            self._owed_reads -= 1
        if self._lost:
            return
        if not self._out:
            self._out_dirty(self)
        if message.__class__ is EntryAdded:
            buffer: Buffer = encode_added(message)
            self._out.append(buffer)
            self._out_bytes += len(buffer)
            return
        buffers = [message.answer] if isinstance(message, Unsupported) else encode_response(message)
        self._out += buffers
        for buffer in buffers:
            self._out_bytes += len(buffer)

    def wait_v3(self, exchange: V3Exchange) -> None:
        """A v3 request waits for a LAC to move."""
        exchange.counts_as_read = False
        self._owed_reads -= 1
        self.polling[exchange] = None

    def reply_v3(self, exchange: V3Exchange, buffers: list[Buffer]) -> None:
        """Queue the answer to a v3 request; `flush` writes it."""
        self._owed -= 1
        self.polling.pop(exchange, None)
        if exchange.counts_as_read:
            self._owed_reads -= 1
        if self._lost:
            return
        if not self._out:
            self._out_dirty(self)
        self._out += buffers
        for buffer in buffers:
            self._out_bytes += len(buffer)

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Do the TLS handshake, as its server; the connection is lost if it fails. Cancelling loses the connection."""
        loop = asyncio.get_running_loop()
        transport: asyncio.Transport | None = None
        try:
            if not self._lost:
                transport = await loop.start_tls(
                    self._transport, self, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
                )
        except OSError:
            pass  # no TLS, no accepted certificate, or too slow: the loop has closed the socket
        finally:
            if transport is None:
                self._transport.abort()
                self.connection_lost(None)  # the loop reports no end of a connection that was in its handshake
        if transport is not None and not self._lost:
            self._transport = transport
            self._transport.set_write_buffer_limits(high=self._options.connection_out_bytes_max)

    def flush(self) -> None:
        """Write the queue in one call, then take waiting requests."""
        if self._out and not self._lost:
            out, self._out, self._out_bytes = self._out, [], 0
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)
        if self._inbox:
            self._take_requests()
        elif self._closing:
            self._close_if_done()

    def resume(self) -> None:
        """Take requests that waited for congestion to end."""
        if self._inbox and not self._lost:
            self._take_requests()

    def end_if_late(self, since_s: float) -> None:
        """Abort if a request has been incomplete, or the first one missing, since before `since_s` while we read."""
        if self._reading and self._waits_since_s < since_s:
            self.abort()

    def stop_taking(self) -> None:
        """Drop requests that were not taken yet; responses still go out."""
        self._inbox.clear()
        self._closing = True
        if not self._lost:
            self._transport.pause_reading()

    def close(self) -> None:
        """Close once everything written is sent."""
        if not self._lost:
            self._transport.close()

    def abort(self) -> None:
        if not self._lost:
            self._transport.abort()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _take_requests(self) -> None:
        if self._taking:
            return  # re-entered: `take` sent a response at once
        self._taking = True
        inbox, options = self._inbox, self._options
        while (
            inbox
            and self._writable
            and self._out_bytes < options.connection_out_bytes_max
            and self._owed_reads < options.connection_reads_max
        ):
            request = inbox[0]
            if self._refuses_plain and not _begins_tls(request):
                inbox.popleft()
                self._refuse_plain(request)
                continue
            if request.__class__ is AddEntry:
                if self._is_congested():
                    break
            elif isinstance(request, V3Request):
                if request.message.__class__ is AddEntry and self._is_congested():
                    break
                inbox.popleft()
                self._take_v3(request)
                continue
            else:
                self._owed_reads += 1
            inbox.popleft()
            self._owed += 1
            self._take(self, request)
        self._taking = False
        if bool(inbox) is self._reading and not self._lost and not self._closing:
            self._reading = not inbox
            if self._reading:
                if self._buffered:
                    self._waits_since_s = asyncio.get_running_loop().time()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _begin_tls(self, request: V3Request) -> None:
        if self._upgrade is None or self._under_tls:
            self._owed += 1
            self._owed_reads += 1
            self.send(Unsupported(refusal(request.call.header, EBADREQ)))
            return
        if self._owed or self._out or self._inbox or self._decoder.frames.have:
            self._transport.abort()  # these were, or would be, plain text on a connection that counts as encrypted
            return
        self._under_tls, self._refuses_plain = True, False
        self._waits_since_s = asyncio.get_running_loop().time()
        self._transport.pause_reading()  # what comes next belongs to the handshake, which resumes it
        self._transport.writelines(encode_v3_response(request.call, TlsStarted(Code.OK)))
        self._upgrade(self)

    def _refuse_plain(self, request: PortRequest) -> None:
        """Answer EUA to a request that did not come under TLS; v2 has no such answer to some, which end the
        connection."""
        name = self._transport.get_extra_info("peername")
        self._on_plain(join_host_port(*name[:2]) if isinstance(name, tuple) else "")
        refused = _refused(request)
        if refused is None:
            self._inbox.clear()
            self._transport.abort()
            return
        self._owed += 1
        if refused.__class__ is not EntryAdded:
            self._owed_reads += 1
        self.send(refused)

    def _take_v3(self, request: V3Request) -> None:
        exchange, message = V3Exchange(request, self), request.message
        if isinstance(message, StartTls):
            self._begin_tls(request)
            return
        self._owed += 1
        if exchange.counts_as_read:
            self._owed_reads += 1
        if exchange.may_poll and len(self.polling) >= self._options.connection_long_polls_max:
            assert isinstance(message, ReadWithLac)
            exchange.send(ReadWithLacDone(message.ledger, message.entry, Code.TOO_MANY_REQUESTS))
            return
        self._take(exchange, message)
        if self._closing and exchange in self.polling:
            self._on_eof(self)

    def _close_if_done(self) -> None:
        if not self._owed and not self._inbox and not self._out and not self._lost:
            self._transport.close()


def _begins_tls(request: PortRequest) -> bool:
    return isinstance(request, V3Request) and isinstance(request.message, StartTls)


def _refused(request: PortRequest) -> Any:
    """The answer to a request of a client that must use TLS; None: there is none."""
    code = Code.UNAUTHORIZED
    match request:
        case V3Request():
            return Unsupported(refusal(request.call.header, EUA))
        case AddEntry():
            return EntryAdded(request.ledger, request.entry, code)
        case ReadEntry():
            return EntryRead(request.ledger, request.entry, code, b"", request.fence)
        case BatchRead():
            return BatchReadDone(request.ledger, request.start, request.request, code)
        case SummarizeEntries():
            return EntriesSummarized(request.ledger, request.first, request.request, code)
        case Collect():
            return CollectionReport(request.number, CollectionState.UNKNOWN, code=code)
        case Unsupported():
            return request
    return None
