"""HTTP health checks for load balancers and orchestrators, on their own port.

    GET /live      200 while the event loop runs: restart the process if this fails
    GET /ready     200 while it serves; 503 while it starts, drains, or has lacked ZooKeeper or bookies for long
    GET /haproxy   as /ready, but 404 while it drains: HAProxy (`http-check disable-on-404`) then sends no new
                   connections and keeps the open ones

Invariants:
- the event loop that serves clients replies, so a blocked loop is noticed;
- only long trouble makes a proxy unready, because all proxies share it: without ZooKeeper owners go on, and bookies
  come back;
- bad input is limited in size and affects only its connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import cast

from dlog.errors import ConfigError
from dlog.hostport import join_host_port
from dlog.io import listening
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.metadata import Membership, SessionState

REQUEST_BYTES_MAX = 4096
REQUEST_S = 5.0  # a request must be complete by then
CONNECTIONS_MAX = 64
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Readiness:
    """Whether a proxy is ready. The times are passed in.

    patience_s: how long ZooKeeper may be out of reach, or every bookie gone, before it is unready. It is ready from
    `serving` to `draining`.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._is_serving = False
        self._is_draining = False
        self._since_s: dict[str, float] = {}  # trouble -> when it began

    def serving(self) -> None:
        self._is_serving = True

    def draining(self) -> None:
        self._is_draining = True

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    def note(self, trouble: str, there: bool, now_s: float) -> None:
        """Record that this trouble exists, or that it is over."""
        if there:
            self._since_s.setdefault(trouble, now_s)
        else:
            self._since_s.pop(trouble, None)

    def obstacle(self, now_s: float) -> str | None:
        """Why the proxy is not ready; None: it is."""
        if self._is_draining:
            return "draining"
        if not self._is_serving:
            return "starting"
        for trouble, since_s in self._since_s.items():
            if now_s - since_s >= self._patience_s:
                return f"{trouble} for {now_s - since_s:.0f} s"
        return None

    def troubles(self, now_s: float) -> dict[str, float]:
        """Present troubles and their duration in s, also those that do not make it unready yet."""
        return {trouble: round(now_s - since_s, 1) for trouble, since_s in self._since_s.items()}


class Health:
    """Readiness of one proxy, and its HTTP listener.

    needs_bookies: it is unready while no writable bookie is registered.
    """

    def __init__(
        self, metadata: Membership, *, patience_s: float, needs_bookies: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.readiness = Readiness(patience_s)
        self.address = ""
        self._metadata = metadata
        self._needs_bookies = needs_bookies
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._open: set[_Request] = set()
        self._unsubscribe = (metadata.on_state(lambda _: self._look()), metadata.on_members(self._look))

    async def listen(self, host: str, port: int) -> None:
        """Start serving; port 0: do not listen. Raises ConfigError if the port is taken."""
        if not port:
            return
        try:
            self._server = await listening.create_server(lambda: _Request(self._open, self.answer), host, port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen for health checks: {error.strerror or error}: address={join_host_port(host, port)}"
            ) from error
        self.address = join_host_port(host, self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop serving; idempotent."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._server is not None:
            self._server.close()
            self._server = None
        for request in tuple(self._open):
            request.abort()

    def answer(self, path: str) -> tuple[int, dict[str, object]]:
        """Status and JSON body for a path."""
        if path == "/live":
            return 200, {"live": True}
        if path not in ("/ready", "/haproxy"):
            return 404, {"paths": ["/live", "/ready", "/haproxy"]}
        self._look()
        now_s = self._clock.monotonic_s()
        obstacle = self.readiness.obstacle(now_s)
        told: dict[str, object] = {"ready": obstacle is None, "troubles": self.readiness.troubles(now_s)}
        if obstacle is None:
            return 200, told
        drains = self.readiness.is_draining and path == "/haproxy"
        return 404 if drains else 503, {**told, "because": obstacle}

    def _look(self) -> None:
        """Record the present state of ZooKeeper and the bookies."""
        now_s = self._clock.monotonic_s()
        connected = self._metadata.state is SessionState.CONNECTED
        self.readiness.note("metadata out of reach", not connected, now_s)
        if self._needs_bookies and connected:  # otherwise the known bookies are out of date
            self.readiness.note("no writable bookie", not self._metadata.known_members().writable, now_s)


class _Request(asyncio.Protocol):
    """One connection with one request."""

    def __init__(self, open_: set[_Request], answer: Callable[[str], tuple[int, dict[str, object]]]) -> None:
        self._open = open_
        self._answer = answer
        self._got = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own classes
        self._open.add(self)
        if len(self._open) > CONNECTIONS_MAX:
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(REQUEST_S, self.abort)

    def data_received(self, data: bytes) -> None:
        self._got += data[: REQUEST_BYTES_MAX + 1 - len(self._got)]
        if b"\r\n\r\n" in self._got or b"\n\n" in self._got:
            self._say(*self._judge(self._got.split(b"\n", 1)[0].split()))
        elif len(self._got) > REQUEST_BYTES_MAX:
            self._say(400, {"error": "the request is too long"}, True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _judge(self, words: list[bytes]) -> tuple[int, dict[str, object], bool]:
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return 400, {"error": "not HTTP/1"}, True
        if words[0] not in (b"GET", b"HEAD"):
            return 405, {"error": "GET or HEAD"}, True
        status, told = self._answer(words[1].decode("latin-1").partition("?")[0])
        return status, told, words[0] == b"GET"

    def _say(self, status: int, told: dict[str, object], with_body: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        body = json.dumps(told).encode() + b"\n"
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (body if with_body else b""))
        self._transport.close()
