"""Tests the simulated network itself: order, flow control, cuts, resets, deaths, and the same hash twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.kernel import Violation
from tests.simulation.service.loop import MS, Process, S, SimulatedLoop
from tests.simulation.service.network import Network


class Echo(asyncio.Protocol):
    """Sends back what it receives."""

    def __init__(self, seen: list[str] | None = None) -> None:
        self.seen = seen if seen is not None else []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.seen.append("made")

    def data_received(self, data: bytes) -> None:
        self.seen.append("data")
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.seen.append(f"lost {type(exc).__name__}")


class Collect(asyncio.Protocol):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.made = 0
        self.lost: list[Exception | None] = []
        self.is_paused = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.made += 1

    def data_received(self, data: bytes) -> None:
        assert self.made == 1, "data before connection_made"
        assert not self.lost, "data after connection_lost"
        self.got += data

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Rig:
    """Two hosts, a server on one of them."""

    def __init__(self, seed: int, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self.loop = SimulatedLoop(seed)
        self.network = Network(self.loop)
        self.server = self.loop.spawn("server")
        self.client = self.loop.spawn("client")
        self.factory = factory
        self.begin(self.server, self._serve())

    def begin(self, process: Process, work: Any) -> list[Any]:
        """Run a coroutine as a process; its result is appended to the returned list."""
        results: list[Any] = []

        def start() -> None:
            task = self.loop.create_task(work)
            task.add_done_callback(lambda t: results.append(t.exception() or t.result()))

        process.post(start)
        return results

    async def _serve(self) -> Any:
        return await self.loop.create_server(self.factory, "server", 7)

    async def dial(self) -> Collect:
        collect = Collect()
        await self.loop.create_connection(lambda: collect, "server", 7)
        return collect

    def dialled(self) -> Collect:
        results = self.begin(self.client, self.dial())
        self.run(1.0)
        assert isinstance(results[0], Collect)
        return results[0]

    def run(self, for_s: float, until: Callable[[], bool] | None = None) -> bool:
        return self.loop.run(until_s=self.loop.now_s + for_s, until=until)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_whole_and_in_order_through_cuts_and_pauses(seed: int) -> None:
    rig = Rig(seed, Echo)
    collect = rig.dialled()
    rng = random.Random(seed)
    sent = bytearray()
    for _ in range(60):
        data = rng.randbytes(rng.choice((1, 10, 1000, 70_000)))
        sent += data
        rig.client.post(collect.transport.write, data, delay_ns=rng.randint(0, 2 * S))
        if rng.random() < 0.2:
            pair = rng.choice((("client", "server"), ("server", "client")))
            rig.loop.at(
                rig.loop.now + rng.randint(0, 2 * S), rig.loop.world, rig.network.cut, *pair, rig.loop.now + 3 * S
            )
        if rng.random() < 0.2:
            at = rig.loop.now + rng.randint(0, 2 * S)
            rig.loop.at(at, rig.loop.world, rig.loop.pause, rig.server)
            rig.loop.at(at + S, rig.loop.world, rig.loop.resume, rig.server)
    assert rig.run(60.0, lambda: len(collect.got) == len(sent))
    assert sorted(collect.got) == sorted(sent)
    assert not rig.loop.dispose()


def test_what_is_written_in_one_order_is_heard_in_that_order() -> None:
    rig = Rig(1, Echo)
    collect = rig.dialled()
    sent = b"".join(number.to_bytes(4, "big") for number in range(50_000))
    rig.client.post(collect.transport.write, sent)
    rig.network.cut("server", "client", rig.loop.now + S // 100)
    assert rig.run(60.0, lambda: len(collect.got) == len(sent))
    assert bytes(collect.got) == sent


def test_a_reader_that_does_not_read_stops_the_writer() -> None:
    lazy = Collect()
    rig = Rig(2, lambda: lazy)
    collect = rig.dialled()
    rig.server.post(lazy.transport.pause_reading)
    rig.run(0.01)
    rig.client.post(collect.transport.write, bytes(2_000_000))
    rig.run(5.0)
    assert (collect.is_paused, collect.transport.get_write_buffer_size() > 1_000_000) == (True, True)
    assert not lazy.got
    rig.server.post(lazy.transport.resume_reading)
    assert rig.run(60.0, lambda: len(lazy.got) == 2_000_000)
    rig.run(1.0)
    assert (collect.is_paused, collect.transport.get_write_buffer_size()) == (False, 0)


def test_a_port_nobody_listens_on_refuses_and_a_dead_host_is_silent() -> None:
    rig = Rig(3, Echo)

    async def dial(port: int) -> str:
        try:
            async with asyncio.timeout(5.0):
                await rig.loop.create_connection(Collect, "server", port)
        except OSError as error:
            return type(error).__name__
        return "connected"

    refused = rig.begin(rig.client, dial(8))
    rig.run(1.0)
    assert refused == ["ConnectionRefusedError"]
    rig.loop.kill(rig.server)
    rig.network.power_cut(rig.server)
    silent = rig.begin(rig.client, dial(7))
    rig.run(4.0)
    assert len(silent) == 0
    rig.run(2.0)
    assert silent == ["TimeoutError"]


def test_a_killed_process_is_heard_of_and_does_nothing_more() -> None:
    ended: list[str] = []
    rig = Rig(4, Echo)

    async def live() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("the dead did something")

    rig.begin(rig.server, live())
    collect = rig.dialled()
    rig.loop.kill(rig.server)
    rig.network.process_died(rig.server)
    rig.run(1.0)
    assert len(collect.lost) == 1
    assert ended == []
    assert not rig.loop.dispose()


def test_a_host_without_power_is_not_heard_of_until_it_is_back() -> None:
    rig = Rig(5, Echo)
    collect = rig.dialled()
    rig.loop.kill(rig.server)
    rig.network.power_cut(rig.server)
    rig.client.post(collect.transport.write, b"is anybody there")
    rig.run(5.0)
    assert collect.lost == []
    rig.network.power_back("server")
    rig.run(2.0)
    assert [type(error) for error in collect.lost] == [ConnectionResetError]
    assert collect.got == b""


def test_a_silent_end_is_found_by_keepalive() -> None:
    rig = Rig(6, Echo)
    collect = rig.dialled()
    rig.loop.kill(rig.server)
    rig.network.power_cut(rig.server)
    rig.run(40.0)
    assert [type(error) for error in collect.lost] == [TimeoutError]


def test_a_one_way_cut_holds_and_then_delivers() -> None:
    rig = Rig(7, Echo)
    collect = rig.dialled()
    rig.network.cut("server", "client", rig.loop.now + 4 * S)
    rig.client.post(collect.transport.write, b"question")
    rig.run(3.0)
    assert collect.got == b""
    rig.run(2.0)
    assert collect.got == b"question"
    assert collect.lost == []


def test_the_kth_chunk_is_held_or_resets_the_connection() -> None:
    rig = Rig(8, Echo)
    collect = rig.dialled()
    link = rig.network.link("client", "server")
    link.hold[1] = 2 * S
    rig.client.post(collect.transport.write, b"x")
    rig.run(1.0)
    assert collect.got == b""
    rig.run(2.0)
    assert collect.got == b"x"
    link.lose.add(2)
    rig.client.post(collect.transport.write, b"y")
    rig.run(1.0)
    assert collect.got == b"x"
    assert len(collect.lost) == 1


def test_closing_says_goodbye_after_what_was_written() -> None:
    seen: list[str] = []
    rig = Rig(9, lambda: Echo(seen))
    collect = rig.dialled()

    def part() -> None:
        collect.transport.write(bytes(300_000))
        collect.transport.close()

    rig.client.post(part)
    rig.run(2.0)
    assert collect.lost == [None]
    assert seen[-1] in ("lost NoneType", "lost ConnectionResetError")  # it echoes to a peer that has left
    assert seen.count("data") > 1
    assert not rig.network.transports[rig.client]
    assert not rig.network.transports[rig.server]


def test_a_forgotten_exception_fails_the_trial() -> None:
    rig = Rig(10, Echo)

    async def fail() -> None:
        raise ValueError("nobody asks")

    rig.client.post(lambda: rig.loop.create_task(fail()))
    with pytest.raises(Violation, match="nobody asks"):
        rig.run(1.0)


def test_a_process_that_spins_fails_the_trial() -> None:
    rig = Rig(11, Echo)

    def spin() -> None:
        rig.loop.call_soon(spin)

    rig.client.post(spin)
    with pytest.raises(Violation, match="spins"):
        rig.run(1.0)


def test_what_cannot_be_simulated_raises() -> None:
    loop = SimulatedLoop(0)
    refused: list[Callable[[], Any]] = [
        lambda: loop.add_reader(0, print),
        lambda: loop.add_signal_handler(15, print),
        lambda: loop.run_until_complete(None),
        lambda: loop.run_in_executor(object(), print),
    ]
    for call in refused:
        with pytest.raises(RuntimeError, match="simulat"):
            call()


def test_a_timer_is_never_due_before_its_time() -> None:
    """1008.3021673650001 s is between two nanoseconds; a timer that fires too early is set again, for ever."""
    loop = SimulatedLoop(0)
    when_s = 1008.3021673650001
    heard: list[float] = []
    loop.call_at(when_s, lambda: heard.append(loop.time()))
    loop.run(until_s=1010.0)
    assert len(heard) == 1
    assert heard[0] >= when_s


def test_a_process_whose_timers_are_due_at_once_for_ever_spins() -> None:
    loop = SimulatedLoop(0)

    def again() -> None:
        loop.call_later(0.0, again)

    loop.call_later(0.0, again)
    with pytest.raises(Violation, match="spins, by timers"):
        loop.run(until_s=1001.0)


def test_work_for_a_thread_is_done_later_in_one_piece() -> None:
    rig = Rig(12, Echo)
    results = rig.begin(rig.client, asyncio.to_thread(lambda: 42))
    begun = rig.loop.now
    assert rig.run(1.0, lambda: bool(results))
    assert results == [42]
    assert begun < rig.loop.now < begun + 100 * MS


def test_the_same_seed_has_the_same_trace() -> None:
    def trace(seed: int) -> int:
        rig = Rig(seed, Echo)
        collect = rig.dialled()
        for number in range(100):
            rig.client.post(collect.transport.write, bytes(number), delay_ns=number * MS)
        rig.run(3.0)
        rig.loop.dispose()
        return rig.loop.trace_hash

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)
