"""A proxy in front of an S3 server that has the faults of networks, and of services that the server here never has."""

from __future__ import annotations

import asyncio
import enum
from collections import defaultdict
from types import TracebackType
from urllib.parse import urlsplit

from tests.ports import HOST


class Fault(enum.Enum):
    """What happens to a request."""

    DROP_REQUEST = "the connection breaks before the server has the request"
    DROP_ANSWER = "the connection breaks after the server has carried out the request"
    LATE_REQUEST = "the connection breaks, and the server gets the request when `land_late` is called"
    HOLD_ANSWER = "as DROP_ANSWER, but the connection breaks only when the proxy ends"
    CUT_ANSWER = "the connection breaks within the body of the answer"
    REPEAT = "the server gets the request twice, the client the second answer"
    CONFLICT = "409, as AWS answers while another request for the key is carried out"
    BUSY = "503 SlowDown"


_ANSWERS = {
    Fault.CONFLICT: ("409 Conflict", "ConditionalRequestConflict"),
    Fault.BUSY: ("503 Slow Down", "SlowDown"),
}


class S3FaultProxy:
    """Forwards requests; used as `async with S3FaultProxy(url) as proxy`. faults: by method, of the next requests.

    None: no fault. held: an answer was held.
    """

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self._server = (parts.hostname or "", parts.port or 0)
        self._release = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self.faults: defaultdict[str, list[Fault | None]] = defaultdict(list)
        self.held = asyncio.Event()
        self._late: list[tuple[str, bytes, bytes]] = []
        self.endpoint = ""

    async def __aenter__(self) -> S3FaultProxy:
        self._listening = await asyncio.start_server(self._serve, HOST, 0)
        self.endpoint = f"http://{HOST}:{self._listening.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release.set()
        self._listening.close()
        for connection in list(self._connections):
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def land_late(self) -> int:
        """Send the server the requests that are late; returns their number."""
        late, self._late = self._late, []
        for request in late:
            await self._forward(*request)
        return len(late)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._serve_request(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client or the test has ended
        finally:
            writer.close()
            self._connections.discard(task)

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; whether the connection stays."""
        head = await reader.readuntil(b"\r\n\r\n")
        fields = _fields(head)
        if fields.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        method = head.split(b" ", 1)[0].decode()
        faults = self.faults[method]
        fault = faults.pop(0) if faults else None
        if fault is Fault.LATE_REQUEST:
            self._late.append((method, head, body))
        if fault in (Fault.DROP_REQUEST, Fault.LATE_REQUEST):
            return False
        if fault in _ANSWERS:
            status, code = _ANSWERS[fault]
            text = f"<Error><Code>{code}</Code><Message>try again</Message></Error>".encode()
            if method == "HEAD":
                text = b""
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
            await writer.drain()
            return True
        answer = await self._forward(method, head, body)
        if fault is Fault.REPEAT:
            answer = await self._forward(method, head, body)
        if fault is Fault.HOLD_ANSWER:
            self.held.set()
            await self._release.wait()
        if fault in (Fault.DROP_ANSWER, Fault.HOLD_ANSWER):
            return False
        if fault is Fault.CUT_ANSWER:
            answer = answer[:-5]
        writer.write(answer)
        await writer.drain()
        return fault is not Fault.CUT_ANSWER

    async def _forward(self, method: str, head: bytes, body: bytes) -> bytes:
        """Send a request to the server; its whole answer."""
        reader, writer = await asyncio.open_connection(*self._server)
        try:
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"expect:", b"connection:"))]
            writer.write(b"\r\n".join(lines) + body)
            told = await reader.readuntil(b"\r\n\r\n")
            size = 0 if method == "HEAD" else int(_fields(told).get("content-length", "0"))
            return told + await reader.readexactly(size)
        finally:
            writer.close()


def _fields(head: bytes) -> dict[str, str]:
    """The header fields of a request or an answer, with names in lower case."""
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
