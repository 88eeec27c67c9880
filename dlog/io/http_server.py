"""HTTP server of a process for Prometheus, load balancers and orchestrators, on a port of its own; h11 parses.

    GET /metrics   metrics of the process in Prometheus' text format
    GET /live      200 while the event loop runs: restart the process if this fails
    other paths    JSON that the process supplies: /ready, and /haproxy of a proxy

Invariants:
- The event loop that serves clients answers, so a blocked loop is noticed. A thread renders metrics, one scrape at a
  time, so that a scrape does not block the loop.
- A connection carries one request and one response. Their number, and size and time of each, are bounded.
- Malformed input affects only its connection, which gets an error response or is closed.

This module loads h11: import it only in a process that has a port for it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import h11

from dlog.errors import ConfigError
from dlog.hostport import join_host_port
from dlog.io import listening, metrics

REQUEST_BYTES_MAX = 8192
REQUEST_S = 5.0  # a request must be complete by then
CONNECTION_S = 30.0  # and its response received, and the connection closed by the client
CONNECTIONS_MAX = 64
_READ_BYTES = 1024
_IGNORED_READS_MAX = 1024  # what follows a request is read, since closing before could discard the response

Page = Callable[[], tuple[int, dict[str, object]]]  # returns status and JSON body


class HttpServer:
    """Serves `pages`, by path, beside /metrics and /live. address: host:port, once it listens."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self.address = ""
        self._pages: dict[str, Page] = {"/live": lambda: (200, {"live": True}), **pages}
        self._render = metrics.renderer()
        self._thread = ThreadPoolExecutor(1, "metrics")
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        """Start serving; port 0: any free one. Raises ConfigError if it cannot listen there."""
        try:
            self._server = await listening.create_server(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(REQUEST_BYTES_MAX), self._accept), host, port
            )
        except OSError as error:
            raise ConfigError(
                f"http_port cannot be listened on, choose another: {error.strerror or error}: "
                f"address={join_host_port(host, port)}"
            ) from error
        self.address = join_host_port(host, self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop serving; idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or len(self._connections) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return

        def end(_: asyncio.Task[None]) -> None:
            self._connections.discard(task)
            writer.transport.abort()

        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="HTTP connection")
        self._connections.add(task)
        task.add_done_callback(end)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.transport.set_write_buffer_limits(0)  # `drain` waits until all is sent
            async with asyncio.timeout(CONNECTION_S):
                writer.write(await self._respond(reader))
                await writer.drain()
                writer.write_eof()
                for _ in range(_IGNORED_READS_MAX):
                    if not await reader.read(_READ_BYTES):
                        return
        except OSError:
            return  # the client is gone, or too slow (TimeoutError)

    async def _respond(self, reader: asyncio.StreamReader) -> bytes:
        """Read the request and return the bytes of its response."""
        http = h11.Connection(h11.SERVER, REQUEST_BYTES_MAX)
        is_head = False
        try:
            async with asyncio.timeout(REQUEST_S):
                while (event := http.next_event()) is h11.NEED_DATA:
                    http.receive_data(await reader.read(_READ_BYTES))
        except h11.RemoteProtocolError as error:
            status, content_type, body = _json(error.error_status_hint, {"error": str(error)[:200]})
        else:
            if not isinstance(event, h11.Request):
                return b""  # the client closed without a request
            is_head = event.method == b"HEAD"
            status, content_type, body = await self._find(event.method, event.target)
        headers = [("Content-Type", content_type), ("Content-Length", str(len(body)))]
        headers += [("Allow", "GET, HEAD"), ("Connection", "close")]
        response = http.send(h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase))
        return response if is_head else response + http.send(h11.Data(data=body))

    async def _find(self, method: bytes, target: bytes) -> tuple[int, str, bytes]:
        """Return status, content type and body."""
        path = target.decode("latin-1").partition("?")[0]
        if method not in (b"GET", b"HEAD"):
            return _json(405, {"error": "GET or HEAD"})
        if path == "/metrics":
            return 200, *await asyncio.get_running_loop().run_in_executor(self._thread, self._render)
        if path in self._pages:
            return _json(*self._pages[path]())
        return _json(404, {"paths": ["/metrics", *self._pages]})


def _json(status: int, body: dict[str, object]) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(body).encode() + b"\n"
