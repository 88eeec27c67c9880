"""A TCP relay between a client and a ZooKeeper server that performs faults on request."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from types import TracebackType

from tests.ports import free_port


class Toxic:
    """Listens on a free port and relays to `target`. Each switch acts on all its connections at once."""

    def __init__(self, target: str) -> None:
        host, _, port = target.partition("/")[0].rpartition(":")
        self._target = (host, int(port))
        self._chroot = target.partition("/")[1] + target.partition("/")[2]
        self._server: asyncio.Server | None = None
        self._tasks = asyncio.TaskGroup()
        self._links: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self.silence_replies = False  # drop the server's bytes
        self.silence_after: bytes | None = None  # do so from the request on that contains these bytes
        self.cut_in_reply_after: int | None = None  # forward so many of the server's bytes, then FIN
        self.on_cut_reply: Callable[[], object] = lambda: None  # called when those have been sent
        self.cut_in_request_after: int | None = None  # forward so many of the client's bytes, then RST
        self.accepted = 0
        self._cuts = 0
        self.silenced = asyncio.Event()  # a reply has been dropped

    @property
    def hosts(self) -> str:
        assert self._server
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}{self._chroot}"

    async def __aenter__(self) -> Toxic:
        await self._tasks.__aenter__()
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        self.cut()
        await self._tasks.__aexit__(kind, error, trace)

    async def listen(self, port: int | None = None) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port or free_port())

    @property
    def _serves(self) -> bool:
        return self._server is not None and self._server.is_serving()

    @property
    def port(self) -> int:
        assert self._server
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def refuse(self) -> None:
        """Accept no more connections (refused at once)."""
        if self._server:
            self._server.close()

    def cut(self, *, reset: bool = True) -> None:
        """End every connection, by RST or by FIN; also one whose link to the server is not open yet."""
        self._cuts += 1
        for pair in list(self._links):
            for writer in pair:
                _end(writer, reset)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        cuts = self._cuts
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _end(writer, True)
            return
        if cuts != self._cuts or not self._serves:  # cut or refused since it was accepted
            _end(writer, True)
            _end(up_writer, True)
            return
        pair = (writer, up_writer)
        self._links.add(pair)
        self._tasks.create_task(self._requests(reader, up_writer, pair), name="toxic requests")
        self._tasks.create_task(self._replies(up_reader, writer, pair), name="toxic replies")

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        try:
            while data := await reader.read(65536):
                if self.silence_after is not None and self.silence_after in data:
                    self.silence_replies, self.silence_after = True, None
                if self.cut_in_request_after is not None:
                    data = data[: self.cut_in_request_after]
                    self.cut_in_request_after -= len(data)
                    writer.write(data)
                    if self.cut_in_request_after == 0:
                        await writer.drain()
                        self.cut_in_request_after = None
                        break
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        self._drop(pair)

    async def _replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        try:
            while data := await reader.read(65536):
                if self.silence_replies:
                    self.silenced.set()
                    continue
                if self.cut_in_reply_after is not None:
                    writer.write(data[: self.cut_in_reply_after])
                    self.cut_in_reply_after = None
                    await writer.drain()
                    writer.close()
                    self.on_cut_reply()
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        self._drop(pair)

    def _drop(self, pair: tuple[asyncio.StreamWriter, ...]) -> None:
        self._links.discard(pair)
        for writer in pair:
            _end(writer, False)


def _end(writer: asyncio.StreamWriter, reset: bool) -> None:
    sock = writer.get_extra_info("socket")
    if reset and sock is not None and not writer.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()
