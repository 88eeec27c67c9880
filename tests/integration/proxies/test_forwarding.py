"""Proxies whose advertised addresses no client can reach: a client reaches one of them, and it forwards to the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

import dlog
from dlog.client.position import TAIL
from dlog.errors import EndedError
from dlog.options import MiB
from dlog.wire.proxy import (
    PROTOCOL_VERSION,
    Alter,
    Cancel,
    Create,
    Credit,
    Entries,
    Failed,
    GetOwners,
    HandOver,
    Hello,
    Ping,
    Read,
    ReaderEvent,
    ReaderEventKind,
    Seal,
    Start,
    Stat,
    Truncate,
    Welcome,
    Write,
    Written,
)
from proxies import forwarding
from proxies.connection import Pause
from proxies.forwarding_connection import OUTPUT_HIGH_BYTES
from proxies.write.server import WriteProxy
from tests.integration.proxies.load import Load
from tests.integration.proxies.local_proxies import LocalProxies, Running
from tests.integration.proxies.raw import ANYTHING, Raw, RawProducer
from tests.integration.proxies.unreachable import filtered, refused

MEMORY: dlog.SettingsChanges = {"store": "memory"}
RECEIVED_AT_ONCE_BYTES = 512 * 1024  # one reading of a socket, and the frame that it ends


class Hopping(Raw):
    """A connection whose requests may be forwarded."""

    async def __aenter__(self) -> Raw:
        host, _, port = self.address.rpartition(":")
        await asyncio.get_running_loop().create_connection(lambda: self, host, int(port))
        self.say(Hello(1, PROTOCOL_VERSION, PROTOCOL_VERSION, "tool", "raw", 1))
        self.welcome = await self.hear(Welcome)
        return self


class Hidden:
    """Two write proxies and two read proxies of a `LocalProxies`, with the addresses at which they can be reached."""

    def __init__(self, local: LocalProxies, unreachable: list[str]) -> None:
        self.local = local
        self._unreachable = unreachable
        self.writers: list[Running] = []
        self.readers: list[Running] = []

    async def start(self, **options: Any) -> None:
        for _ in range(2):
            self.writers.append(await self.local.write_proxy(**self._hidden(), **options))
        for _ in range(2):
            self.readers.append(await self.local.read_proxy(**self._hidden()))

    def bound(self, running: Running) -> str:
        """The address at which a proxy can be reached."""
        return self.local.metadata.known_members().peer_address_of(running.address)

    async def owner_of(self, stream: str) -> tuple[Running, Running]:
        """The owner, and the other one."""
        async with Raw(self.bound(self.writers[0])) as raw:
            told = await raw.ask(Stat, stream)
            assert isinstance(told, dict)
        owner = next(w for w in self.writers if w.address == told["owner"]["location"])
        return owner, next(w for w in self.writers if w is not owner)

    async def stream_elsewhere(self, stream: str = "orders") -> tuple[Running, Running]:
        """Create a stream that has an owner; returns the owner and the other proxy."""
        async with Hopping(self.bound(self.writers[0])) as raw:
            assert isinstance(await raw.ask(Create, stream, MEMORY), dict)
            assert isinstance(await RawProducer(raw, stream).write([b"first"]), Written)
        return await self.owner_of(stream)

    def _hidden(self) -> dict[str, str]:
        return {"advertise": self._unreachable.pop(), "peer_address": "bound"}


@pytest.fixture(params=[refused, filtered])
def unreachable(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(request.param()) for _ in range(4)]


@asynccontextmanager
async def hidden(local: LocalProxies, unreachable: list[str], **options: Any) -> AsyncIterator[Hidden]:
    built = Hidden(local, unreachable)
    await built.start(**options)
    yield built


def forwarded(running: Running) -> int:
    assert isinstance(running.proxy, WriteProxy)
    return running.proxy.forwarding.batches


def pipes(running: Running) -> int:
    return running.proxy.forwarding.pipes


async def nothing_left(running: Running) -> None:
    """Wait until no pipe is open and no batch is counted. Pings of another connection drive the wait."""
    async with Raw(running.proxy.listener.bound) as raw, asyncio.timeout(90.0):
        while pipes(running) or running.proxy.admission.process.bytes:
            await raw.ask(Ping)


async def test_a_client_that_reaches_one_proxy_does_everything_through_it(
    local: LocalProxies, unreachable: list[str]
) -> None:
    async with hidden(local, unreachable) as cluster:
        for target in (cluster.bound(cluster.writers[0]), cluster.bound(cluster.readers[0])):
            name = f"orders-{target.rpartition(':')[2]}"
            async with dlog.connect(f"dlog://{target}") as client:
                for number in range(4):  # so that both proxies own some
                    stream = f"{name}-{number}"
                    await client.create(stream, **MEMORY)
                    places = [await client.append(stream, b"%d" % n) for n in range(5)]
                    many = await client.append_many(stream, (b"m%d" % n for n in range(100)))
                    assert many.count == 100
                    found = [record async for record in client.read(stream)]
                    assert [r.payload for r in found[:5]] == [b"0", b"1", b"2", b"3", b"4"]
                    assert [r.dlsn for r in found[:5]] == places
                    assert len(found) == 105
                    later = [record.dlsn async for record in client.read(stream, start=places[3])]
                    assert later[0] == places[3]
                    followed = client.read(stream, start=TAIL, follow=True)
                    async with asyncio.timeout(90.0), asyncio.TaskGroup() as tasks:
                        first = tasks.create_task(anext(followed))
                        while not first.done():
                            await client.append(stream, b"news")
                    assert first.result().payload == b"news"
                    await followed.aclose()
                    told = await client.stat(stream)
                    assert told.owner is not None and told.owner.state == "serving"
                    owners = {owner.stream: owner.location for owner in await client.owners()}
                    assert owners[stream] == told.owner.location
                    await client.truncate(stream, places[2])
                    await client.hand_over(stream)
                    await client.append(stream, b"after the hand-over")
                    await client.seal(stream)
                    with pytest.raises(EndedError):
                        await client.append(stream, b"too late")
                    await client.delete(stream)
                    with pytest.raises(dlog.StreamNotFoundError):
                        await client.stat(stream)


async def test_an_owner_that_dies_behind_the_one_that_hands_on_loses_and_repeats_nothing(
    local: LocalProxies, unreachable: list[str]
) -> None:
    async with hidden(local, unreachable) as cluster:
        owner, other = await cluster.stream_elsewhere()
        async with dlog.connect(f"dlog://{cluster.bound(other)}") as client, asyncio.TaskGroup() as tasks:
            await client.create("load", **MEMORY)
            load = Load(client, "load")
            running = tasks.create_task(load.run())
            await load.acknowledged(200)
            serving, _ = await cluster.owner_of("load")
            if serving is owner:
                assert forwarded(other) > 0
            await owner.kill()
            await load.acknowledged(500)
            load.stop()
            await running
            await load.check()
            assert not load.unknown


async def test_a_planned_hand_over_behind_the_one_that_hands_on_is_no_error(
    local: LocalProxies, unreachable: list[str]
) -> None:
    async with hidden(local, unreachable) as cluster:
        owner, other = await cluster.stream_elsewhere()
        async with dlog.connect(f"dlog://{cluster.bound(other)}") as client, asyncio.TaskGroup() as tasks:
            load = Load(client, "orders", size=20)
            running = tasks.create_task(load.run())
            await load.acknowledged(200)
            assert forwarded(other) > 0
            await owner.drain()
            await load.acknowledged(200)
            load.stop()
            await running
            assert not load.unknown


async def test_what_was_handed_on_is_never_handed_on_again(local: LocalProxies, unreachable: list[str]) -> None:
    """A connection with no hops left, as between proxies, gets a redirect and is not forwarded further."""
    async with hidden(local, unreachable) as cluster:
        owner, other = await cluster.stream_elsewhere()
        async with Raw(cluster.bound(other)) as raw:
            answer = await RawProducer(raw, "orders").write([b"x"])
            assert isinstance(answer, Failed)
            assert (answer.code, answer.location) == (302, owner.address)
            for question in ((Truncate, (1, 0, 0)), (Alter, 0, {"retention_s": 1.0}), (Seal,), (HandOver,)):
                refusal = await raw.ask(question[0], "orders", *question[1:])
                assert isinstance(refusal, Failed), question
                assert (refusal.code, refusal.location) == (302, owner.address), question
            raw.say(Read(5, "orders", Start.START, None, 1000, False, True))
            moved = await raw.hear(ReaderEvent, request=5)
            assert moved.kind is ReaderEventKind.MOVED
        assert forwarded(other) == forwarded(owner) == 0 or forwarded(owner) == 0


async def test_batches_that_are_handed_on_are_answered_in_order_with_what_the_owner_says(
    local: LocalProxies, unreachable: list[str]
) -> None:
    async with hidden(local, unreachable) as cluster:
        _, other = await cluster.stream_elsewhere()
        async with Hopping(cluster.bound(other)) as raw:
            producer = RawProducer(raw, "orders")
            batches: list[Write] = [producer.batch([b"x" * 1000]) for _ in range(50)]
            raw.say(*batches)
            answered: list[int] = []
            places: list[tuple[int, int, int]] = []
            while len(answered) < len(batches):
                written = await raw.hear(Written)
                answered += range(written.first, written.last + 1)
                places.append(written.dlsn)
            assert answered == [batch.request for batch in batches]
            assert places == sorted(places)
            repeated = await RawProducer(raw, "orders", producer.producer).write([b"x" * 1000], retry=True)
            assert isinstance(repeated, Written)
            assert repeated.duplicate
            gap = await RawProducer(raw, "orders", producer.producer, sequence=90).write([b"z"])
            assert isinstance(gap, Failed)
            assert (gap.code, gap.detail["expected"]) == (530, 50)


async def test_a_read_that_is_handed_on_keeps_to_its_credit_and_can_be_cancelled(
    local: LocalProxies, unreachable: list[str]
) -> None:
    async with hidden(local, unreachable) as cluster:
        await cluster.stream_elsewhere()
        async with Hopping(cluster.bound(cluster.writers[0])) as raw:
            producer = RawProducer(raw, "orders")
            for _ in range(20):
                assert isinstance(await producer.write([b"x" * 1000]), Written)
            raw.say(Read(5, "orders", Start.START, None, 3000, True, True))
            got = 0
            while got < 3000:
                got += len((await raw.hear(Entries, request=5)).body)
            before = got
            assert before < 6000
            raw.say(Credit(5, 4000))
            while got < before + 3000:
                got += len((await raw.hear(Entries, request=5)).body)
            raw.say(Cancel(5))
            assert isinstance(await raw.ask(Stat, "orders"), dict)
            raw.say(Read(6, "orders", Start.START, None, 1 << 20, False, True))
            while (await raw.hear(ReaderEvent, request=6)).kind is not ReaderEventKind.CAUGHT_UP:
                pass


async def test_a_slow_owner_holds_back_its_client_and_not_the_memory_of_the_one_between(
    local: LocalProxies, unreachable: list[str]
) -> None:
    """The owner gets out of reach while a stream is written: what the client may push is bounded by its window."""
    async with hidden(local, unreachable, connection_bytes_max=100_000, stream_bytes_max=10_000_000) as cluster:
        _, other = await cluster.stream_elsewhere()
        assert isinstance(other.proxy, WriteProxy)
        async with Hopping(cluster.bound(other)) as raw:
            producer = RawProducer(raw, "orders")
            batches = [producer.batch([b"x" * 50_000]) for _ in range(100)]
            raw.say(*batches)
            left = {batch.request for batch in batches}
            while left:
                message = await raw.hear(ANYTHING)
                assert isinstance(message, Written), message
                left -= set(range(message.first, message.last + 1))
                # one read of the socket may exceed the bound; the next waits
                assert other.proxy.admission.process.bytes <= 100_000 + 600_000
            assert other.proxy.admission.process.bytes == 0
            assert other.proxy.admission.process.peak < 1_000_000


@asynccontextmanager
async def stopped_pipe(
    local: LocalProxies, monkeypatch: pytest.MonkeyPatch, slow_s: float
) -> AsyncIterator[tuple[Hidden, Running, Running, Raw, RawProducer, Callable[[bool], None]]]:
    """A producer of "orders" on `raw`, forwarded by the second proxy to the first, which owns the stream and, on
    request, reads nothing more from that pipe while it does everything else."""
    monkeypatch.setattr(forwarding, "PING_EVERY_S", 0.02)
    monkeypatch.setattr(forwarding, "PING_TIMEOUT_S", 0.05)
    monkeypatch.setattr(forwarding, "GREETING_S", 10.0)
    monkeypatch.setattr(forwarding, "SLOW_S", slow_s)
    bounds = dict.fromkeys(("connection_bytes_max", "stream_bytes_max"), 100 * MiB)
    with ExitStack() as stack:
        async with hidden(local, [stack.enter_context(refused()) for _ in range(4)], **bounds) as cluster:
            owner, other = await cluster.stream_elsewhere()
            await nothing_left(other)  # of the connection that made the stream
            known = set(owner.proxy.listener.connections)
            async with Hopping(cluster.bound(other)) as raw:
                producer = RawProducer(raw, "orders")
                assert isinstance(await producer.write([b"before"]), Written)
                [piped] = set(owner.proxy.listener.connections) - known
                yield cluster, owner, other, raw, producer, lambda yes: piped.hold(yes, Pause.OUTPUT)


async def test_an_owner_that_reads_no_more_stops_the_client_in_front_and_nobody_else(
    local: LocalProxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = stopped_pipe(local, monkeypatch, slow_s=3600.0)
    async with stopped as (cluster, owner, other, raw, producer, hold), Hopping(cluster.bound(other)) as second:
        forwarding, bound = other.proxy.forwarding, OUTPUT_HIGH_BYTES + RECEIVED_AT_ONCE_BYTES
        raw.say(Read(5, "orders", Start.TAIL, None, 100 * MiB, True, True))
        await raw.hear(ReaderEvent, request=5)
        neighbour = RawProducer(second, "orders")
        assert isinstance(await neighbour.write([b"on a pipe of its own"]), Written)
        hold(True)
        batches = [producer.batch([b"x" * 50_000]) for _ in range(400)]
        raw.say(*batches)
        async with asyncio.timeout(90.0):
            while forwarding.unsent_bytes < OUTPUT_HIGH_BYTES:
                await second.ask(Ping)
        await second.ask(Ping)  # now the client has to wait too
        taken, greeted = forwarding.batches, owner.proxy.listener.accepted
        assert taken < len(batches)
        async with asyncio.timeout(90.0):
            while owner.proxy.listener.accepted < greeted + 3:  # the pipe was suspected three times, and kept
                assert isinstance(await neighbour.write([b"meanwhile"]), Written)
                assert OUTPUT_HIGH_BYTES <= forwarding.unsent_bytes <= bound
        while b"meanwhile" not in bytes((await raw.hear(Entries, request=5)).body):
            pass  # a reader beside it goes on
        assert forwarding.batches - taken == neighbour.sequence - 1, "of the client that floods nothing more was read"
        hold(False)
        answered: list[int] = []
        places: list[tuple[int, int, int]] = []
        while len(answered) < len(batches):
            message: Any = await raw.hear(ANYTHING)
            if isinstance(message, Entries | ReaderEvent):
                continue
            assert isinstance(message, Written), message
            assert not message.duplicate
            answered += range(message.first, message.last + 1)
            places.append(message.dlsn)
        assert answered == [batch.request for batch in batches]
        assert places == sorted(places)
        assert forwarding.unsent_bytes == other.proxy.admission.process.bytes == 0
        async with dlog.connect(f"dlog://{cluster.bound(other)}") as client:
            payloads = [record.payload async for record in client.read("orders")]
        assert payloads.count(b"x" * 50_000) == len(batches)
        assert len(payloads) == 2 + len(batches) + neighbour.sequence


async def test_a_pipe_that_is_silent_for_too_long_is_given_up_though_its_proxy_lives(
    local: LocalProxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stopped_pipe(local, monkeypatch, slow_s=0.2) as (_, _, _, _, producer, hold):
        hold(True)
        answer = await producer.write([b"perhaps"])
        assert isinstance(answer, Failed)
        assert answer.outcome_unknown
        again = await RawProducer(producer.raw, "orders", producer.producer, 1).write([b"perhaps"], retry=True)
        assert isinstance(again, Written), "its owner is found anew, and is the same"


async def test_when_a_client_goes_nothing_of_it_stays(local: LocalProxies, unreachable: list[str]) -> None:
    async with hidden(local, unreachable) as cluster:
        _, other = await cluster.stream_elsewhere()
        await nothing_left(other)  # of the connection that made the stream
        async with Hopping(cluster.bound(other)) as raw:
            producer = RawProducer(raw, "orders")
            assert isinstance(await producer.write([b"x"]), Written)
            raw.say(Read(5, "orders", Start.START, None, 100, True, True))
            await raw.hear(ReaderEvent, request=5)
            assert pipes(other) == 2
            raw.say(*(producer.batch([b"x" * 10_000]) for _ in range(20)))
        await nothing_left(other)


async def test_owners_are_told_of_all_proxies(local: LocalProxies, unreachable: list[str]) -> None:
    async with hidden(local, unreachable) as cluster:
        await cluster.stream_elsewhere()
        for running in (*cluster.writers, *cluster.readers):
            async with Hopping(cluster.bound(running)) as raw:
                told = await raw.ask(GetOwners)
                assert isinstance(told, dict)
                owner, _ = await cluster.owner_of("orders")
                assert told["owned"] == [["orders", 1, "serving", owner.address]]


async def test_who_can_reach_the_owner_goes_there_and_leaves_the_one_between(local: LocalProxies) -> None:
    """The owner could not be reached until a moment ago: the client's work moves to it as soon as it can be."""
    with refused() as address:
        hidden_owner = await local.write_proxy(advertise=address, peer_address="bound")
    seen = await local.write_proxy()
    members = local.metadata.known_members()
    async with dlog.connect(f"dlog://{seen.address}", direct_retry_s=0.1, direct_rest_s=0.2) as client:
        for number in range(20):  # until the ring gives one to the other proxy
            stream = f"s{number}"
            await client.create(stream, **MEMORY)
            await client.append(stream, b"1")
            owner = (await client.stat(stream)).owner
            if owner is not None and owner.location == address:
                break
        assert forwarded(seen) > 0
        host, _, port = members.peer_address_of(address).rpartition(":")
        listening = asyncio.Event()

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            listening.set()
            there, back = await asyncio.open_connection(host, int(port))

            async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    sink.write(data)
                sink.close()

            async with asyncio.TaskGroup() as both:
                both.create_task(copy(reader, back))
                both.create_task(copy(there, writer))

        server = await asyncio.start_server(pass_on, "127.0.0.1", int(address.rpartition(":")[2]))
        async with asyncio.timeout(90.0):
            while True:
                before = forwarded(seen)
                await client.append(stream, b"2")
                if listening.is_set() and forwarded(seen) == before:
                    break
        server.close()
    assert hidden_owner.address == address
