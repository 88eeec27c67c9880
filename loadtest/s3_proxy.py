"""A proxy in front of an S3 server: forwards whole requests, and can delay them as a distant service would.

    python -m loadtest.s3_proxy --port PORT --server URL [--delay PUT=0.1 --delay GET=0.03]

The fault proxy of the tests is a subclass, which answers some requests otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from urllib.parse import urlsplit

HOST = "127.0.0.1"
BUFFER_BYTES = 1 << 20  # read at once


class S3Proxy:
    """Forwards requests; used as `async with S3Proxy(url) as proxy`. port: 0 means a free one.

    delays_s: by method, how long a request waits before the server gets it.
    """

    def __init__(self, server: str, *, port: int = 0, delays_s: Mapping[str, float] | None = None) -> None:
        parts = urlsplit(server)
        self._server = (parts.hostname or "", parts.port or 0)
        self._port = port
        self._delays_s = dict(delays_s or {})
        self._connections: set[asyncio.Task[None]] = set()
        self.endpoint = ""

    async def __aenter__(self) -> S3Proxy:
        self._listening = await asyncio.start_server(self._serve, HOST, self._port, limit=BUFFER_BYTES)
        self.endpoint = f"http://{HOST}:{self._listening.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        for connection in list(self._connections):
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._serve_request(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client, or the scope of the proxy, has ended
        finally:
            writer.close()
            self._connections.discard(task)

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; whether the connection stays."""
        head = await reader.readuntil(b"\r\n\r\n")
        fields = fields_of(head)
        if fields.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        return await self._answer(head.split(b" ", 1)[0].decode(), head, body, writer)

    async def _answer(self, method: str, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; whether the connection stays."""
        await asyncio.sleep(self._delays_s.get(method, 0.0))
        writer.write(await self._forward(method, head, body))
        await writer.drain()
        return True

    async def _forward(self, method: str, head: bytes, body: bytes) -> bytes:
        """Send a request to the server; its whole answer."""
        reader, writer = await asyncio.open_connection(*self._server, limit=BUFFER_BYTES)
        try:
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"expect:", b"connection:"))]
            writer.write(b"\r\n".join(lines))
            writer.write(body)
            answer_head = await reader.readuntil(b"\r\n\r\n")
            size = 0 if method == "HEAD" else int(fields_of(answer_head).get("content-length", "0"))
            return answer_head + await reader.readexactly(size)
        finally:
            writer.close()


def fields_of(head: bytes) -> dict[str, str]:
    """The header fields of a request or an answer, with names in lower case."""
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until the process is ended."""
    import uvloop

    parser = argparse.ArgumentParser(prog="python -m loadtest.s3_proxy")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--server", required=True, metavar="URL")
    parser.add_argument("--delay", action="append", default=[], metavar="METHOD=SECONDS")
    given = parser.parse_args(arguments)
    delays_s = {method: float(seconds) for method, _, seconds in (option.partition("=") for option in given.delay)}

    async def run() -> None:
        async with S3Proxy(given.server, port=given.port, delays_s=delays_s):
            await asyncio.Event().wait()

    uvloop.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
