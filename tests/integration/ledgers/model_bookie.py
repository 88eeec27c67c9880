"""A bookie in memory behind a real socket, for tests of the transport. It stores nothing on disk.

By default it answers as a bookie does. `hold` keeps answers back until `release`, so that a test decides the order of
answers; long polls wait for it in any case. `requests` are those that arrived.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from types import TracebackType
from typing import Self, cast

from dlog.wire.bookie import (
    AddEntry,
    BatchRead,
    BatchReadDone,
    Code,
    EntryAdded,
    EntryRead,
    ReadEntry,
    Request,
    Response,
    encode_response,
)
from dlog.wire.bookie_port import RequestDecoder
from dlog.wire.bookie_v3 import V3Call, V3Request
from dlog.wire.bookie_v3_messages import (
    ForceLedger,
    GetSpace,
    LedgerForced,
    ReadWithLac,
    ReadWithLacDone,
    SpaceReply,
    V3Response,
)
from dlog.wire.bookie_v3_responses import encode_v3_response


class ModelBookie(asyncio.Protocol):
    """Serves on 127.0.0.1 at a port the kernel chose; `async with ModelBookie() as bookie`."""

    def __init__(self) -> None:
        self.requests: list[Request | ReadWithLac] = []
        self.entries: dict[tuple[int, int], bytes] = {}
        self.fenced: set[int] = set()
        self.hold = False
        self.free_bytes: int | None = 1 << 40  # None: it cannot tell
        self.space_asked = asyncio.Event()
        self.reads_wholly = True  # False: the socket is left unread
        self.heard = asyncio.Event()  # set at each request; tests clear it
        self._held: list[tuple[_Session, Request | ReadWithLac, V3Call | None]] = []
        self._sessions: set[_Session] = set()
        self._server: asyncio.Server | None = None
        self.address = ("127.0.0.1", 0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Serve again at the same port, with the stored entries."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Session(self), *self.address, start_serving=True)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        """Stop listening and reset every connection."""
        assert self._server is not None
        self._server.close()
        self.reset()
        await asyncio.sleep(0)

    def reset(self) -> None:
        """Send RST on every connection, as the death of the process does."""
        for session in list(self._sessions):
            session.reset()

    @property
    def connections(self) -> int:
        return len(self._sessions)

    def enter(self, session: _Session) -> None:
        self._sessions.add(session)

    def leave(self, session: _Session) -> None:
        self._sessions.discard(session)

    def take(self, session: _Session, request: Request | ReadWithLac, call: V3Call | None = None) -> None:
        self.requests.append(request)
        if self.hold or isinstance(request, ReadWithLac):
            self._held.append((session, request, call))
        else:
            session.say(self.answer(request), call)
        self.heard.set()

    def tell_space(self) -> SpaceReply:
        self.space_asked.set()
        return SpaceReply(Code.IO_ERROR) if self.free_bytes is None else SpaceReply(Code.OK, 1 << 41, self.free_bytes)

    def release(self, count: int | None = None) -> None:
        """Answer what is held, oldest first; all of it or the first `count`."""
        count = len(self._held) if count is None else count
        ripe, self._held = self._held[:count], self._held[count:]
        for session, request, call in ripe:
            session.say(self.answer(request), call)

    def answer(self, request: Request | ReadWithLac) -> Response:
        match request:
            case ReadWithLac(ledger, entry):
                return self.answer(ReadEntry(ledger, entry))
            case AddEntry(ledger, entry, _, parts, recovery):
                if ledger in self.fenced and not recovery:
                    return EntryAdded(ledger, entry, Code.FENCED)
                self.entries[ledger, entry] = b"".join(parts)
                return EntryAdded(ledger, entry, Code.OK)
            case ReadEntry(ledger, entry, fence):
                if fence:
                    self.fenced.add(ledger)
                stored = sorted(e for known, e in self.entries if known == ledger)
                wanted = stored[-1] if entry == -1 and stored else entry
                packet = self.entries.get((ledger, wanted))
                if packet is None:
                    return EntryRead(ledger, entry, Code.NO_ENTRY if stored or fence else Code.NO_LEDGER)
                return EntryRead(ledger, entry, Code.OK, packet)
            case BatchRead(ledger, start, number):
                packets: list[bytes] = []
                while (packet := self.entries.get((ledger, start + len(packets)))) is not None:
                    packets.append(packet)
                return BatchReadDone(ledger, start, number, Code.OK if packets else Code.NO_ENTRY, tuple(packets))
        raise AssertionError(f"not modelled: {request}")


class _Session(asyncio.Protocol):
    def __init__(self, bookie: ModelBookie) -> None:
        self._bookie = bookie
        self._decoder = RequestDecoder()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses
        self._transport = transport
        self._bookie.enter(self)
        if not self._bookie.reads_wholly:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        for request in self._decoder.feed(data):
            if isinstance(request, V3Request):
                match request.message:
                    case GetSpace():
                        self.say_bytes(b"".join(encode_v3_response(request.call, self._bookie.tell_space())))
                    case ForceLedger(ledger):
                        self.say_bytes(b"".join(encode_v3_response(request.call, LedgerForced(ledger, Code.OK))))
                    case ReadWithLac(ledger, entry, None):
                        self._bookie.take(self, ReadEntry(ledger, entry), request.call)
                    case AddEntry() | ReadEntry() | ReadWithLac() as message:
                        self._bookie.take(self, message, request.call)
                    case other:
                        raise AssertionError(f"not modelled: {other}")
            else:
                self._bookie.take(self, request)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._bookie.leave(self)
        self._transport = None

    def say(self, response: Response, call: V3Call | None) -> None:
        if self._transport is None:
            return
        if call is None:
            self._transport.writelines(encode_response(response))
        else:
            told: V3Response
            if isinstance(response, EntryRead) and not response.fence:
                told = ReadWithLacDone(response.ledger, response.entry, response.code, response.packet)
            else:
                assert isinstance(response, EntryAdded | EntryRead), "v3 has no other"
                told = response
            self._transport.writelines(encode_v3_response(call, told))

    def say_bytes(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def reset(self) -> None:
        assert self._transport is not None
        raw = self._transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
