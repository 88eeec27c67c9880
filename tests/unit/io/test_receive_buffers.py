"""Bytes from real sockets, of several connections that share a receive buffer."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterable

import pytest
import uvloop

from dlog.io.receive_buffers import buffer_for, received
from dlog.wire.framing import Decoder

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
SIZES = (1, 10, 1000, 70_000, 256 * 1024, 1 << 20, 3 << 20)


class Frames(Decoder[list[memoryview]]):
    def _decoded(self, frames: Iterable[memoryview]) -> list[memoryview]:
        return list(frames)


class Ear(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.frames: list[memoryview] = []
        self.over = asyncio.get_running_loop().create_future()
        self._decoder = Frames(4 << 20)

    def get_buffer(self, sizehint: int) -> memoryview:
        return buffer_for(self._decoder)

    def buffer_updated(self, nbytes: int) -> None:
        self.frames += received(self._decoder, nbytes)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.over.set_result(exc)


async def hear(sent: list[list[bytes]], seed: int) -> list[list[bytes]]:
    """What each of some connections received, all at the same time."""
    loop = asyncio.get_running_loop()

    async def one(frames: list[bytes], rng: random.Random) -> list[bytes]:
        near, far = socket.socketpair()
        far.setblocking(False)
        ear = Ear()
        await loop.create_unix_connection(lambda: ear, sock=near)
        stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
        at = 0
        while at < len(stream):
            size = rng.choice((1, 3, 5, 100, 60_000, 300_000, 1 << 20))
            await loop.sock_sendall(far, stream[at : at + size])
            at += size
        far.close()
        assert await ear.over is None
        return [bytes(frame) for frame in ear.frames]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(frames, random.Random(seed + i))) for i, frames in enumerate(sent)]
    return [task.result() for task in tasks]


@pytest.mark.parametrize("name", LOOPS)
def test_every_connection_hears_its_own_frames(name: str) -> None:
    rng = random.Random(7)
    sent = [[rng.randbytes(rng.choice(SIZES)) for _ in range(12)] for _ in range(4)]
    with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
        assert runner.run(hear(sent, 7)) == sent
