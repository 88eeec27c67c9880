"""Tests a whole bookie (connections, actor, state machine, files) on a simulated loop and disk, without a thread."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from actors.bookie.connection import Connection
from actors.bookie.running import BookieEnvironment, run
from actors.bookie.server import DiskFailedError
from dlog.bookie.options import BookieOptions
from dlog.errors import CookieError
from dlog.events import Event
from dlog.io.metadata import BookieInfo, CookieCheck
from tests.integration.bookie.raw import FENCE, KEY, add_frame, packet, read_frame
from tests.memory_metadata import MemoryMetadata
from tests.simulation.disk import SimulatedDisk, coin
from tests.simulation.service.loop import Process, SimulatedLoop
from tests.simulation.service.network import Network
from tests.simulation.service.threads import Latency, SimulatedThreads

OPTIONS = BookieOptions(
    dir="/bookie",
    bookie_id="b1",
    journal_file_bytes=32 * 1024,
    write_cache_bytes=8 * 1024,
    entry_log_bytes=16 * 1024,
    checkpoint_s=0.5,
    disk_check_s=0.1,
    disk_free_min_bytes=0,
    disk_free_reserve_bytes=0,
    gc_s=0.0,  # off: these tests check the journal and checkpoints alone
)
TWO_JOURNALS = dataclasses.replace(OPTIONS, journal_dirs="/disk1/journal,/disk2/journal")
OK, NO_ENTRY, IO_ERROR, FENCED, READ_ONLY = 0, 2, 101, 104, 105


class Rig:
    """One bookie and its clients; the disk outlives the processes of the bookie."""

    def __init__(self, seed: int) -> None:
        self.options = OPTIONS
        self.loop = SimulatedLoop(seed)
        self.network = Network(self.loop)
        self.rng = random.Random(seed)
        self.disk = SimulatedDisk(settling=True)
        self.metadata = MemoryMetadata()
        self.events: list[Event] = []
        self.ended: list[BaseException | None] = []
        self.ready = False
        self.slow = 1.0

    def start(self) -> None:
        self.process = self.loop.spawn("bookie")
        self.mount = self.disk.mount()
        latency = Latency(self.process.rng("disk"), factor=self.slow)
        self.threads = SimulatedThreads(self.loop, self.mount, latency)
        self.stopping = asyncio.Event()
        self.ready = False
        self.begin(self.process, self._live())
        assert self.loop.run(until_s=self.loop.now_s + 60, until=lambda: self.ready or bool(self.ended))

    def begin(self, process: Process, work: object) -> None:
        process.post(lambda: self.loop.create_task(work))

    async def _live(self) -> None:
        @asynccontextmanager
        async def connect() -> AsyncIterator[MemoryMetadata]:
            yield self.metadata

        async def listen(factory: Callable[[], Connection]) -> asyncio.AbstractServer:
            server: asyncio.AbstractServer = await self.loop.create_server(factory, "bookie", 3181)
            return server

        def on_ready(_: object) -> None:
            self.ready = True

        environment = BookieEnvironment(
            disk=self.mount,
            threads=self.threads,
            connect=connect,
            listen=listen,
            address="bookie:3181",
            random_bits=self.process.rng("nonces").getrandbits,
        )
        try:
            await run(self.options, environment, self.stopping, on_event=self.events.append, on_ready=on_ready)
        except (DiskFailedError, CookieError) as error:
            self.ended.append(error)
        else:
            self.ended.append(None)

    def stop(self) -> None:
        self.ended.clear()
        self.process.post(self.stopping.set)
        assert self.loop.run(until_s=self.loop.now_s + 60, until=lambda: bool(self.ended))

    def die(self, *, power: bool) -> None:
        self.threads.die(self.rng)
        if power:
            self.disk.power_cut(coin(self.rng, self.rng.choice((0.0, 0.5, 0.9))))
        else:
            self.disk.kill()
        self.loop.kill(self.process)
        self.network.process_died(self.process)

    def dispose(self) -> list[str]:
        """Drop every reference that leads to a coroutine, then end the trial."""
        loop = self.loop
        self.__dict__.clear()
        return loop.dispose()

    def client(self) -> Client:
        client = Client(self)
        self.begin(client.process, client.connect())
        assert self.loop.run(until_s=self.loop.now_s + 60, until=lambda: client.connected)
        return client


class Client(asyncio.Protocol):
    """Sends frames and keeps answers in order of arrival."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.process = rig.loop.spawn("client")
        self.connected = self.lost = False
        self.answers: list[tuple[int, int, int, bytes]] = []
        self._in = b""
        self.transport: asyncio.Transport

    async def connect(self) -> None:
        await self.rig.loop.create_connection(lambda: self, "bookie", 3181)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.connected = True

    def data_received(self, data: bytes) -> None:
        self._in += data
        while len(self._in) >= 4 and len(self._in) >= 4 + int.from_bytes(self._in[:4], "big"):
            length = int.from_bytes(self._in[:4], "big")
            frame, self._in = self._in[4 : 4 + length], self._in[4 + length :]
            _, rc, ledger, entry = struct.unpack_from(">Iiqq", frame)
            self.answers.append((rc, ledger, entry, frame[24:]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def send(self, data: bytes) -> None:
        self.process.post(lambda: self.transport.write(data))

    def ask(self, data: bytes) -> tuple[int, int, int, bytes]:
        count = len(self.answers)
        self.send(data)
        assert self.rig.loop.run(until_s=self.rig.loop.now_s + 60, until=lambda: len(self.answers) > count)
        return self.answers[-1]

    def wait(self, condition: Callable[[], bool]) -> None:
        assert self.rig.loop.run(until_s=self.rig.loop.now_s + 60, until=lambda: condition() or self.lost)


def body(entry: int) -> bytes:
    return random.Random(entry).randbytes(entry * 7 % 900)


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = Rig(getattr(request, "param", 0))
    yield made
    assert not made.dispose()


def live_and_die(rig: Rig, rounds: int) -> int:
    """Run rounds of adds and fences, each ended by a crash; the next process must serve all that was acknowledged."""
    rng = rig.rng
    acked: dict[tuple[int, int], bytes] = {}
    fenced: set[int] = set()
    entry = 0
    for number in range(rounds):
        rig.start()
        assert not rig.ended, rig.ended
        client = rig.client()
        for ledger in sorted(fenced):
            assert client.ask(add_frame(ledger, 10**6))[0] == FENCED
        for (ledger, at), sent in rng.sample(sorted(acked.items()), min(60, len(acked))):
            assert client.ask(read_frame(ledger, at))[::3] == (OK, sent)
        client.answers.clear()
        sent_now: dict[tuple[int, int], bytes] = {}
        for _ in range(rng.randint(1, 120)):
            ledger = entry % 3 + 1 + 10 * number
            sent_now[ledger, entry] = packet(ledger, entry, body(entry))
            client.send(add_frame(ledger, entry, body(entry)))
            entry += 1
            if rng.random() < 0.1:
                rig.loop.run(until_s=rig.loop.now_s + rng.choice((0.001, 0.02, 0.3)))
        if rng.random() < 0.5:
            client.send(read_frame(10 * number + 7, -1, key=KEY, flags=FENCE))
        rig.loop.run(until_s=rig.loop.now_s + rng.choice((0.0005, 0.001, 0.005, 1.0)))
        for rc, ledger, at, _ in client.answers:
            if (ledger, at) in sent_now:
                assert rc == OK
                acked[ledger, at] = sent_now[ledger, at]
            else:
                fenced.add(ledger)
        rig.die(power=rng.random() < 0.6)
    rig.start()
    client = rig.client()
    for (ledger, at), sent in acked.items():
        assert client.ask(read_frame(ledger, at))[::3] == (OK, sent)
    rig.stop()
    assert rig.ended == [None]
    return len(acked)


@pytest.mark.parametrize("rig", range(4), indirect=True)
def test_what_was_acknowledged_survives_kills_and_power_cuts(rig: Rig) -> None:
    if rig.loop.seed in (1, 3):
        rig.options = TWO_JOURNALS
    assert live_and_die(rig, 12) > 100
    assert len(rig.disk.operations) < 50, "a settled disk keeps nothing of what was synced"


def test_the_same_seed_is_the_same_run() -> None:
    ends = []
    for _ in range(2):
        rig = Rig(5)
        live_and_die(rig, 4)
        ends.append((rig.loop.trace_hash, rig.loop.events, rig.disk.image))
        assert not rig.dispose()
    assert ends[0] == ends[1]


def test_a_failed_sync_ends_it_and_nothing_is_acknowledged_after_that(rig: Rig) -> None:
    """One sync fails and the next one would succeed: the kernel has dropped the pages, so no later sync covers them
    (fsyncgate)."""
    rig.start()
    client = rig.client()
    assert client.ask(add_frame(1, 0, b"before"))[0] == OK
    rig.disk.syncs_to_fail = 1
    client.answers.clear()
    for entry in range(1, 50):
        client.send(add_frame(1, entry, b"during"))
    client.wait(lambda: bool(rig.ended))
    rig.loop.run(until_s=rig.loop.now_s + 5)
    assert isinstance(rig.ended[0], DiskFailedError) and client.lost and client.answers == []
    assert rig.disk.syncs_failed == 1
    rig.ended.clear()
    rig.die(power=True)
    rig.start()
    client = rig.client()
    assert client.ask(read_frame(1, 0))[::3] == (OK, packet(1, 0, b"before"))
    assert client.ask(read_frame(1, 1))[0] == NO_ENTRY


def test_after_a_failed_sync_of_one_journal_the_others_acknowledge_nothing_either(rig: Rig) -> None:
    rig.options = TWO_JOURNALS
    rig.start()
    client = rig.client()
    assert client.ask(add_frame(1, 0, b"before"))[0] == client.ask(add_frame(2, 0, b"before"))[0] == OK
    client.answers.clear()
    rig.disk.syncs_to_fail = 1
    client.send(add_frame(1, 1, b"during"))
    client.wait(lambda: rig.disk.syncs_failed == 1)
    for entry in range(1, 50):
        client.send(add_frame(2, entry, b"after"))
    client.wait(lambda: bool(rig.ended))
    rig.loop.run(until_s=rig.loop.now_s + 5)
    assert isinstance(rig.ended[0], DiskFailedError) and client.lost and client.answers == []
    rig.ended.clear()
    rig.die(power=True)
    rig.start()
    client = rig.client()
    for ledger in (1, 2):
        assert client.ask(read_frame(ledger, 0))[::3] == (OK, packet(ledger, 0, b"before"))


def test_a_full_disk_is_read_only_until_there_is_room(rig: Rig) -> None:
    rig.start()
    client = rig.client()
    rig.disk.bytes_max = rig.disk.used + 40_000
    taken = 0
    while client.ask(add_frame(1, taken, bytes(3000)))[0] == OK:
        taken += 1
        rig.loop.run(until_s=rig.loop.now_s + 0.05)
        assert taken < 500
    assert client.answers[-1][0] == READ_ONLY and taken > 5
    assert rig.metadata.known_members().readonly
    for entry in range(taken):
        assert client.ask(read_frame(1, entry))[::3] == (OK, packet(1, entry, bytes(3000)))
    rig.disk.bytes_max = 1 << 40
    rig.loop.run(until_s=rig.loop.now_s + 5)
    assert rig.metadata.known_members().writable
    assert client.ask(add_frame(1, taken, b"room again"))[0] == OK


def test_an_unreadable_sector_is_an_io_error_and_no_more(rig: Rig) -> None:
    rig.start()
    client = rig.client()
    for entry in range(4):
        assert client.ask(add_frame(1, entry, bytes(600)))[0] == OK
    rig.stop()
    path = next(path for path in rig.disk.image.names if "/entries-" in path)
    rig.disk.make_unreadable(path, 700)
    rig.ended.clear()
    rig.start()
    client = rig.client()
    codes = [client.ask(read_frame(1, entry))[0] for entry in range(5)]
    assert codes.count(OK) in (2, 3) and codes.count(IO_ERROR) == 4 - codes.count(OK) and codes[4] == NO_ENTRY


class Decommissioned(MemoryMetadata):
    """Deletes the bookie's cookie as soon as it registers for the `at`-th time."""

    at = 1
    registered: tuple[BookieInfo, bool, CookieCheck | None]

    async def register_bookie(
        self, info: BookieInfo, *, readonly: bool = False, known: CookieCheck | None = None
    ) -> None:
        self.registered = info, readonly, known
        self.at -= 1
        if not self.at:
            self._cookies.clear()  # by a process that saw no registration before
        await super().register_bookie(info, readonly=readonly, known=known)

    async def register_in_another_session(self) -> None:
        info, readonly, known = self.registered
        await self.unregister_bookie(info.bookie)
        with suppress(CookieError):
            await self.register_bookie(info, readonly=readonly, known=known)


def test_a_bookie_whose_cookie_was_deleted_while_it_started_ends() -> None:
    rig = Rig(1)
    rig.metadata = Decommissioned()
    rig.start()
    (error,) = rig.ended
    assert isinstance(error, CookieError) and "taken out of the cluster while it started" in error.message
    assert not rig.ready


def test_a_bookie_whose_cookie_was_deleted_while_it_had_no_session_ends() -> None:
    rig = Rig(1)
    metadata = rig.metadata = Decommissioned()
    metadata.at = 3
    rig.start()
    assert rig.ready
    rig.begin(rig.process, metadata.register_in_another_session())
    rig.loop.run(until_s=rig.loop.now_s + 5)
    assert not rig.ended, "its cookie is there"
    rig.begin(rig.process, metadata.register_in_another_session())
    assert rig.loop.run(until_s=rig.loop.now_s + 5, until=lambda: bool(rig.ended))
    (error,) = rig.ended
    assert isinstance(error, CookieError) and "cut off from ZooKeeper" in error.message
    assert [event.name for event in rig.events if event.level == "error"] == ["bookie.refused"]
    assert not metadata.known_members().writable
