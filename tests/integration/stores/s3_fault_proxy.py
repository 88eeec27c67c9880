"""A proxy in front of an S3 server that has the faults of networks, and of services that the server here never has."""

from __future__ import annotations

import asyncio
import enum
from collections import defaultdict
from types import TracebackType

from loadtest.s3_proxy import S3Proxy


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
    DENIED = "403, as for a key without the permission"
    SKEWED = "403, as for a clock that is a day off"
    ELSEWHERE = "301, as for a bucket in another region"


_ANSWERS = {
    Fault.CONFLICT: ("409 Conflict", "ConditionalRequestConflict"),
    Fault.BUSY: ("503 Slow Down", "SlowDown"),
    Fault.DENIED: ("403 Forbidden", "AccessDenied"),
    Fault.SKEWED: ("403 Forbidden", "RequestTimeTooSkewed"),
    Fault.ELSEWHERE: ("301 Moved Permanently", "PermanentRedirect"),
}


class S3FaultProxy(S3Proxy):
    """Forwards requests; used as `async with S3FaultProxy(url) as proxy`. faults: by method, of the next requests.

    None: no fault. held: an answer was held.
    """

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self._release = asyncio.Event()
        self.faults: defaultdict[str, list[Fault | None]] = defaultdict(list)
        self.held = asyncio.Event()
        self._late: list[tuple[str, bytes, bytes]] = []

    async def __aenter__(self) -> S3FaultProxy:
        await super().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release.set()
        await super().__aexit__(kind, error, trace)

    async def land_late(self) -> int:
        """Send the server the requests that are late; returns their number."""
        late, self._late = self._late, []
        for request in late:
            await self._forward(*request)
        return len(late)

    async def _answer(self, method: str, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
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
