"""The server inside the test's process, on a disk that fails on request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from actors.bookie.connection import Connection
from actors.bookie.server import BookieServer, DiskFailedError
from dlog.bookie.bookie import Bookie
from dlog.bookie.messages import SeenInMetadata
from dlog.bookie.options import BookieOptions
from dlog.events import Event
from dlog.io.bookie_store import StoragePaths, open_storage
from dlog.io.disk import File, RealDisk
from dlog.io.metadata import BookieInfo
from dlog.io.threads import RealThreads
from dlog.model.ids import BookieId
from dlog.wire.framing import Buffer
from dlog.wire.protobuf import bytes_field, int_field
from tests.integration.bookie.raw import KEY, add_frame, frame, packet, read_frame
from tests.memory_metadata import MemoryMetadata

OPTIONS = BookieOptions(
    journal_file_bytes=256 * 1024,
    disk_free_min_bytes=0,
    disk_free_reserve_bytes=0,
    checkpoint_s=0.05,
    disk_check_s=0.05,
)


class FailingFile:
    """A file whose syncs fail while its disk says so."""

    def __init__(self, file: File, disk: FailingDisk) -> None:
        self._file = file
        self._disk = disk

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._file.pwritev(buffers, offset)

    def reserve(self, length: int, offset: int) -> None:
        self._file.reserve(length, offset)

    def write_blocks(self, blocks: memoryview, offset: int) -> None:
        self._file.write_blocks(blocks, offset)

    def pread(self, length: int, offset: int) -> bytes:
        return self._file.pread(length, offset)

    def disable_read_ahead(self) -> None:
        self._file.disable_read_ahead()

    def datasync(self) -> None:
        if self._disk.failing:
            raise OSError(errno.EIO, "fdatasync failed")
        self._file.datasync()

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class FailingDisk(RealDisk):
    failing = False
    free: int | None = None

    def create(self, path: str) -> File:
        return FailingFile(super().create(path), self)

    def open(self, path: str) -> File:
        return FailingFile(super().open(path), self)

    def free_bytes(self, directory: str) -> int:
        return super().free_bytes(directory) if self.free is None else self.free


class RunningBookie:
    """One running server, its disk, and its result."""

    def __init__(self, path: Path, options: BookieOptions) -> None:
        self.path = path
        self.options = options
        self.disk = FailingDisk()
        self.metadata = MemoryMetadata()
        self.events: list[Event] = []
        self.stopping = asyncio.Event()
        self.port = 0
        self.machine: Bookie | None = None
        self.failure: DiskFailedError | None = None

    async def run(self, ready: asyncio.Event) -> None:
        paths = StoragePaths((str(self.path / "journal"),), (str(self.path / "ledgers"),))
        for directory in paths.all:
            self.disk.make_dir(directory)
        opened = open_storage(self.disk, self.options, paths, "b:1", self.events.append)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        server = BookieServer(
            self.options, self.disk, opened, (str(self.path),), RealThreads(loop), on_event=self.events.append
        )
        self.machine = server.machine

        async def listen(connect: Callable[[], Connection]) -> asyncio.AbstractServer:
            return await loop.create_server(connect, sock=listener)

        info = BookieInfo(BookieId("b:1"), "127.0.0.1", self.port)
        try:
            await server.run(listen, self.stopping, metadata=self.metadata, info=info, on_ready=ready.set)
        except DiskFailedError as error:
            self.failure = error
        finally:
            listener.close()
            ready.set()


@contextlib.asynccontextmanager
async def running_bookie(path: Path, options: BookieOptions = OPTIONS) -> AsyncIterator[RunningBookie]:
    made, ready = RunningBookie(path, options), asyncio.Event()
    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        group.create_task(made.run(ready), name="server")
        await ready.wait()
        yield made
        made.stopping.set()


async def test_after_a_failed_sync_nothing_is_acknowledged_and_the_bookie_ends(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as first:
        reader, writer = await asyncio.open_connection("127.0.0.1", first.port)
        writer.write(add_frame(1, 0, b"before"))
        await reader.readexactly(28)
        first.disk.failing = True
        writer.write(b"".join(add_frame(1, entry, b"during") for entry in range(1, 50)))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)) as ended:
            await reader.readexactly(28)
        if isinstance(ended.value, asyncio.IncompleteReadError):
            assert ended.value.partial == b""
        await close(writer)
    assert first.failure is not None and "fdatasync" in str(first.failure)
    async with running_bookie(tmp_path) as second:
        reader, writer = await asyncio.open_connection("127.0.0.1", second.port)
        writer.write(read_frame(1, 0))
        assert (await reader.readexactly(28 + 32 + 6))[-6:] == b"before"
        await close(writer)
    assert second.failure is None


def v3_frame(op: int, number: int, body: bytes) -> bytes:
    return frame(bytes_field(1, int_field(1, 3) + int_field(2, op) + int_field(3, 1)) + bytes_field(number, body))


async def next_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def test_a_stop_with_a_long_poll_of_an_entry_on_disk_is_clean(tmp_path: Path) -> None:
    """The stop flushes the entry, so an answer to the poll would have to read it from the disk that is closed."""
    async with running_bookie(tmp_path) as one:
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        ids = int_field(1, 1) + int_field(2, 0)
        writer.write(v3_frame(2, 101, ids + bytes_field(3, KEY) + bytes_field(4, packet(1, 0, b"x"))))
        await next_frame(reader)
        writer.write(v3_frame(1, 100, ids + int_field(4, 0) + int_field(5, 60_000)))
        writer.write(v3_frame(10, 107, int_field(1, 1)))
        assert (await next_frame(reader))[5] == 10, "the force is answered, the poll before it waits"
        one.stopping.set()
        assert await reader.read() == b""
        await close(writer)
    assert one.failure is None


async def test_what_is_learnt_without_a_record_is_checkpointed_too(tmp_path: Path) -> None:
    """Else copies of an idle bookie would be kept for ever: they are freed only when nothing of them is unflushed."""

    async def until_clean(machine: Bookie) -> None:
        while machine.is_dirty:  # noqa: ASYNC110 - a checkpoint changes it, no event tells
            await asyncio.sleep(0.01)

    async with running_bookie(tmp_path) as one:
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(add_frame(1, 0, b"entry"))
        await reader.readexactly(28)
        assert one.machine is not None
        await until_clean(one.machine)
        for chain in (6, 7):  # the first one could be stored together with the entry
            one.machine.handle(SeenInMetadata(frozenset({1}), chain))
            assert one.machine.is_dirty
            await until_clean(one.machine)
        one.machine.handle(SeenInMetadata(frozenset({1}), 8))  # and by the last checkpoint
        await close(writer)
    async with running_bookie(tmp_path) as again:
        assert again.machine is not None and again.machine.known() == {1: 8}


async def test_standing_follows_the_free_space(tmp_path: Path) -> None:
    options = BookieOptions(
        journal_file_bytes=256 * 1024, disk_free_min_bytes=1000, disk_free_reserve_bytes=0, disk_check_s=0.02
    )
    async with running_bookie(tmp_path, options) as one:
        moved = asyncio.Event()
        one.metadata.on_members(moved.set)
        assert one.metadata.known_members().writable
        for free, standing in ((10, "readonly"), (10_000, "writable")):
            moved.clear()
            one.disk.free = free
            while not getattr(one.metadata.known_members(), standing):
                await moved.wait()
                moved.clear()
    assert [event.name for event in one.events] == ["journal.replayed", "bookie.read_only", "bookie.writable"]
    assert not one.metadata.known_members().writable


async def test_incomplete_frames_are_bounded_over_all_connections(tmp_path: Path) -> None:
    options = BookieOptions(
        journal_file_bytes=256 * 1024, disk_free_min_bytes=0, disk_free_reserve_bytes=0, receive_bytes_max=100_000
    )
    async with running_bookie(tmp_path, options) as one:
        part = add_frame(1, 0, bytes(1 << 20))[:60_000]
        ended = asyncio.Event()

        async def hold() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.write(part)
            try:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read(1) == b""
                ended.set()
            finally:
                await close(writer)

        async with asyncio.TaskGroup() as clients:
            holders = [clients.create_task(hold(), name=f"holder {n}") for n in range(2)]
            await ended.wait()
            assert sum(holder.done() for holder in holders) <= 1, "one of them may stay"
            await work(one.port)
            for holder in holders:
                holder.cancel()


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def work(port: int) -> None:
    """Check that another client is served as before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(add_frame(2, 0, b"x"))
    assert (await reader.readexactly(28))[8:12] == bytes(4)
    await close(writer)


async def test_connections_are_bounded(tmp_path: Path) -> None:
    options = BookieOptions(
        journal_file_bytes=256 * 1024, disk_free_min_bytes=0, disk_free_reserve_bytes=0, connections_max=2
    )
    async with running_bookie(tmp_path, options) as one:
        kept = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(2)]
        for _, writer in kept:
            writer.write(add_frame(1, 0, b"x"))
        for reader, _ in kept:
            await reader.readexactly(28)
        reader, extra = await asyncio.open_connection("127.0.0.1", one.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read(1) == b""
        for writer in (extra, *(w for _, w in kept)):
            await close(writer)
