"""Memory stays bounded whatever peers do: resident size of the real processes, before and after. Rows `memory.*`.

The bounds are generous: they hold on any machine, and they distinguish bounded from unbounded memory.
DLOG_HOSTILE_SCALE multiplies the sizes (10 streams by 10,000: `DLOG_HOSTILE_SCALE=25`); every case prints what it
measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.wire import proxy
from dlog.wire.entry import build_record_set
from dlog.wire.protobuf import bytes_field, int_field
from tests.integration.bookie.raw import Raw, add_frame, frame, read_frame
from tests.integration.cluster import BookieCluster, ServerProcess, start_bookies
from tests.integration.hostile.conftest import SETTINGS, Bystander, SmallCluster, resident_mib, small_cluster
from tests.integration.hostile.table import row
from tests.integration.hostile.talk import REQUEST, Talk, said, write

pytestmark = pytest.mark.zookeeper
SCALE = int(os.environ.get("DLOG_HOSTILE_SCALE", "1"))
STREAM = "bystander"
FRAME_MAX = 1_040_364 + 64 * 1024 + 6
SETTLE_S = 90.0


@pytest.fixture(scope="module")
def bookies(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookieCluster]:
    """One bookie of this module alone: its memory is measured."""
    cluster = start_bookies(zookeeper, tmp_path_factory.mktemp("measured"), 1, "--frame-s", "5")
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def cluster(bookies: BookieCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    yield from small_cluster(bookies, tmp_path_factory.mktemp("proxies"), "--hello-s", "6")


@pytest.fixture(scope="module")
def full(cluster: SmallCluster, bystander: Bystander) -> None:
    """Every process has worked once, and the stream holds some MiB to read."""

    async def fill() -> None:
        await bystander.work()
        async with bystander.client() as client:
            await client.create("large", **SETTINGS)
            await client.append_many("large", (bytes(100_000) for _ in range(80)))
            assert len([None async for _ in client.read("large")]) == 80

    asyncio.run(fill())


@contextlib.contextmanager
def grows_less_than(mib: float, answer: str, *processes: ServerProcess, times: int = 1) -> Iterator[None]:
    """Check how much the resident memory of the processes grows over the body. times: the bound at a larger scale."""
    assert answer == f"less than {mib:g} MiB more, and others are served"
    before = [resident_mib(process.pid) for process in processes]
    yield
    for process, was in zip(processes, before, strict=True):
        now = resident_mib(process.pid)
        print(f"{process.module}: {was:.0f} MiB before, {now:.0f} MiB after")
        assert now - was < mib * times, f"{process.module} grew from {was:.0f} to {now:.0f} MiB"


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=90)


def sockets_of(process: ServerProcess) -> int:
    """How many sockets the process has open."""
    found = 0
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(entry).startswith("socket:")
    return found


def has_few_sockets(process: ServerProcess, count: int) -> bool:
    return sockets_of(process) < count


def wait_until(reached: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + SETTLE_S
    while not reached():
        assert time.monotonic() < end_s, what
        time.sleep(0.05)


def push(connection: socket.socket, data: bytes, count: int) -> int:
    """Send `data` again and again until the peer accepts no more; returns how often it was sent."""
    connection.settimeout(0.5)
    for number in range(count):
        try:
            connection.sendall(data)
        except (TimeoutError, ConnectionError):
            return number
    return count


@row("memory.half-open-hellos")
def test_connections_that_never_say_hello(cluster: SmallCluster, full: None, bystander: Bystander, answer: str) -> None:
    """Round after round, as many connections as one process may open; each sends nothing, half a hello, or a length."""
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2048) - 200
    starts = (b"", b"\0\0", struct.pack(">I", 4096) + b"x" * 100, struct.pack(">IH", 60, 58) + b"\x96")
    targets = (cluster.writer, cluster.reader, cluster.bookies.bookies[0])
    base = {process.address: sockets_of(process) for process in targets}
    total = 0
    with grows_less_than(40, answer, *targets):
        for process in targets:
            for _ in range(2 * SCALE):
                held = []
                for number in range(limit):
                    with contextlib.suppress(OSError):
                        held.append(connected(process.address))
                        held[-1].sendall(starts[number % len(starts)])
                total += len(held)
                for stranger in held:
                    stranger.close()
            wait_until(partial(has_few_sockets, process, base[process.address] + 20), "their places are free again")
        asyncio.run(bystander.work())
    print(f"{total} connections")
    assert total > 5000


@row("memory.silent-connections-lose-their-place")
def test_silent_connections_are_put_out(cluster: SmallCluster, full: None, answer: str) -> None:
    """No peer closes them; the deadline for a hello, or for a first request, does."""
    closed = 0
    for process in (cluster.writer, cluster.reader, cluster.bookies.bookies[0]):
        held = [connected(process.address) for _ in range(100)]
        for stranger in held:
            with contextlib.suppress(ConnectionError):
                assert stranger.recv(1) == b""
            closed += 1
            stranger.close()
    assert answer == f"{closed} of 300 closed by the deadline"


@row("memory.huge-frames-dripped")
def test_frames_announced_and_never_whole(cluster: SmallCluster, full: None, bystander: Bystander, answer: str) -> None:
    """Sixty peers announce the largest frame and send half of it."""
    half = struct.pack(">I", FRAME_MAX) + bytes(FRAME_MAX // 2)
    with grows_less_than(220, answer, cluster.writer, cluster.bookies.bookies[0]):
        held = []
        for _ in range(60):
            held.append(Talk(cluster.writer.address))
            push(held[-1].socket, half, 1)
        strangers = [connected(cluster.bookies.bookies[0].address) for _ in range(60)]
        for stranger in strangers:
            push(stranger, struct.pack(">I", 5_242_876) + bytes(1 << 20), 1)
        asyncio.run(bystander.work())
        for talk in held:
            talk.socket.close()
        for stranger in strangers:
            stranger.close()


@row("memory.readers-that-do-not-read")
def test_readers_that_never_take_what_they_asked_for(
    cluster: SmallCluster, full: None, bystander: Bystander, answer: str
) -> None:
    with grows_less_than(200, answer, cluster.reader):
        held = [Talk(cluster.reader.address) for _ in range(100)]
        for talk in held:
            talk.send(said(proxy.Read(REQUEST, "large", proxy.Start.START, None, 2**40, True, True)))
        asyncio.run(bystander.work())
        for talk in held:
            talk.socket.close()


@row("memory.questions-without-listening")
def test_who_asks_and_never_listens(cluster: SmallCluster, full: None, bystander: Bystander, answer: str) -> None:
    question = said(proxy.Stat(REQUEST, "no-such-stream" * 10)) * 200
    ping = said(proxy.Ping(REQUEST)) * 2000
    with grows_less_than(120, answer, cluster.writer, cluster.reader):
        held = [Talk(process.address) for process in (cluster.writer, cluster.reader) for _ in range(10)]
        for number, talk in enumerate(held):
            push(talk.socket, question if number % 2 else ping, 100)
        asyncio.run(bystander.work())
        for talk in held:
            talk.socket.close()


@row("memory.bookie-reads-without-listening")
def test_reads_of_a_bookie_whose_answers_nobody_takes(
    cluster: SmallCluster, full: None, bystander: Bystander, answer: str
) -> None:
    bookie = cluster.bookies.bookies[0]
    host, _, port = bookie.address.rpartition(":")
    with Raw((host, int(port))) as good:
        assert good.add(4_000_000, 0, bytes(500_000)) == 0
    with grows_less_than(220, answer, bookie):
        held = [connected(bookie.address) for _ in range(20)]
        for stranger in held:
            push(stranger, read_frame(4_000_000, 0) * 100, 20)
        asyncio.run(bystander.work())
        for stranger in held:
            stranger.close()


@row("memory.writes-without-reading-acks")
def test_a_flood_of_batches_whose_answers_nobody_reads(
    cluster: SmallCluster, full: None, bystander: Bystander, answer: str
) -> None:
    body = build_record_set([bytes(60_000)])
    with grows_less_than(260, answer, cluster.writer):
        held = []
        for number in range(6):
            talk = Talk(cluster.writer.address)
            name = b"flooding %7d" % number
            for sequence in range(100 * SCALE):
                frame = said(write("large", body, count=1, sequence=sequence, producer=name, request=sequence + 1))
                if not push(talk.socket, frame, 1):
                    break
            held.append(talk)
        asyncio.run(bystander.work())
        for talk in held:
            talk.socket.close()


@row("memory.bookie-adds-without-reading-acks")
def test_a_flood_of_adds_whose_answers_nobody_reads(
    cluster: SmallCluster, full: None, bystander: Bystander, answer: str
) -> None:
    """Small adds between large garbage: the entry is stored, and the receive buffer that it came in is not kept."""
    bookie = cluster.bookies.bookies[0]
    with grows_less_than(260, answer, bookie):
        held = [connected(bookie.address) for _ in range(4)]
        for number, stranger in enumerate(held):
            for at in range(100 * SCALE):
                first = at * 50
                if not push(stranger, b"".join(add_frame(4_100_000 + number, first + n, b"x") for n in range(50)), 1):
                    break
        asyncio.run(bystander.work())
        for stranger in held:
            stranger.close()


@row("memory.bookie-v3-polls-without-listening")
def test_long_polls_of_a_bookie_whose_answers_nobody_takes(
    cluster: SmallCluster, full: None, bystander: Bystander, answer: str
) -> None:
    """Half of them have a megabyte in their header and would wait; the others are reads dressed as long polls."""
    bookie = cluster.bookies.bookies[0]
    host, _, port = bookie.address.rpartition(":")
    ledger = 4_200_000
    with Raw((host, int(port))) as good:
        assert good.add(ledger, 0, bytes(500_000)) == good.add(ledger, 1, bytes(500_000)) == 0
    header = int_field(1, 3) + int_field(2, 1) + int_field(3, 1)
    long_header = header + bytes_field(15, bytes(1 << 20))
    ids = int_field(1, ledger) + int_field(2, 0) + int_field(5, 60_000)
    waits = frame(bytes_field(1, long_header) + bytes_field(100, ids + int_field(4, 1)))
    reads = frame(bytes_field(1, header) + bytes_field(100, ids + int_field(4, -1))) * 100
    with grows_less_than(220, answer, bookie):
        held = [connected(bookie.address) for _ in range(20)]
        for number, stranger in enumerate(held):
            push(stranger, reads if number % 2 else waits, 40 * SCALE)
        asyncio.run(bystander.work())
        for stranger in held:
            stranger.close()


@row("memory.streams-in-a-loop")
def test_streams_made_in_a_loop(cluster: SmallCluster, full: None, bystander: Bystander, answer: str) -> None:
    """Each stream is created, written once and described: 400 of them; DLOG_HOSTILE_SCALE=25 makes ten thousand."""
    count = 400 * SCALE

    async def make() -> None:
        async with bystander.client() as client:
            for number in range(count):
                await client.create(f"loop-{number}", **SETTINGS)
                if number % 10 == 0:
                    await client.append(f"loop-{number}", b"x")
            names = [name async for name in client.streams()]
            assert len([name for name in names if name.startswith("loop-")]) == count

    begun_s = time.monotonic()
    with grows_less_than(60, answer, cluster.writer, cluster.reader, times=max(1, SCALE // 8)):
        asyncio.run(make())
        asyncio.run(bystander.work())
    print(f"{count} streams in {time.monotonic() - begun_s:.1f} s")
