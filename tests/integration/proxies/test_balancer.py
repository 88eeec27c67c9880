"""Tests a real HAProxy with the configuration of the repository: two proxies of each role, real bookies and
ZooKeeper."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import dlog
from dlog.client.position import TAIL
from dlog.io.zookeeper_cluster import cluster_init
from dlog.wire.proxy import Ping
from tests.integration.cluster import BookieCluster, ServerProcess
from tests.integration.proxies.haproxy import HAProxy, Rows, command
from tests.integration.proxies.load import Load
from tests.integration.proxies.raw import Raw
from tests.integration.proxies.unreachable import filtered, refused
from tests.ports import free_ports

pytestmark = pytest.mark.zookeeper
NAMES = ("write1", "write2", "read1", "read2")
Start = Callable[..., "Balanced"]


class Balanced:
    """The proxies, each by its name in HAProxy's configuration, and HAProxy before them."""

    def __init__(self, bookies: BookieCluster, namespace: str, directory: Path, advertised: dict[str, str]) -> None:
        ports = free_ports(10)  # both ends of a balancer must be known before either starts
        listening = dict(zip(NAMES, ports[:4], strict=True))
        self.http = dict(zip(NAMES, ports[4:8], strict=True))
        self.proxies: dict[str, ServerProcess] = {}
        for name in NAMES:
            flags = ["--zookeeper", bookies.hosts, "--namespace", namespace, "--port", str(listening[name])]
            flags += ["--http-port", str(self.http[name]), "--log-level", "debug", "--log-format", "json"]
            flags += ["--proxy-protocol", "optional", "--proxy-protocol-from", "127.0.0.1/32"]
            if name in advertised:
                flags += ["--advertise", advertised[name], "--peer-address", "bound"]
            self.proxies[name] = ServerProcess(f"proxies.{name[:-1]}", directory / name, *flags)
        backends = {name: (f"127.0.0.1:{listening[name]}", self.http[name]) for name in NAMES}
        self.haproxy = HAProxy(directory, {"write": ports[8], "read": ports[9]}, backends)

    async def start(self) -> None:
        for process in self.proxies.values():
            process.spawn()
        for process in self.proxies.values():
            process.wait_ready()
        self.haproxy.spawn()
        await self.haproxy.wait_ready()

    def close(self) -> None:
        self.haproxy.stop()
        for process in self.proxies.values():
            process.kill()

    async def owner_of(self, client: dlog.Client, stream: str) -> str:
        """The name of the proxy that owns a stream."""
        owner = (await client.stat(stream)).owner
        assert owner is not None
        return next(name for name, process in self.proxies.items() if process.address == owner.location)

    def asked(self, name: str, path: str) -> int:
        """Status of a health check, requested as a balancer does."""
        try:
            with urlopen(f"http://127.0.0.1:{self.http[name]}{path}", timeout=90) as answer:
                return int(answer.status)
        except HTTPError as error:
            with error:
                return error.code


@pytest.fixture
def balanced(bookies: BookieCluster, tmp_path: Path) -> Iterator[Start]:
    """Makes a cluster, not started; ended with the test. hidden: no client can reach its proxies' addresses."""
    command()
    with ExitStack() as stack:

        def make(*, hidden: bool) -> Balanced:
            namespace = f"/messaging/{uuid.uuid4().hex}"
            asyncio.run(cluster_init(bookies.hosts, namespace))
            kinds = dict(zip(NAMES, (refused, filtered, filtered, refused), strict=True))
            advertised = {n: stack.enter_context(kind()) for n, kind in kinds.items()} if hidden else {}
            built = Balanced(bookies, namespace, tmp_path, advertised)
            stack.callback(built.close)
            return built

        yield make


def is_up(name: str, rows: Rows) -> bool:
    return rows[name]["status"] == "UP"


@asynccontextmanager
async def loaded(client: dlog.Client, stream: str) -> AsyncIterator[Load]:
    """A load while the scope lasts; then all of it is read back and checked. One failed append fails the test."""
    load = Load(client, stream)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        await load.acknowledged(100)
        yield load
        await load.acknowledged(200)
        load.stop()
    assert not load.unknown
    await load.check()


def test_with_only_the_balancer_in_reach_everything_works(balanced: Start) -> None:
    cluster = balanced(hidden=True)

    async def run() -> None:
        await cluster.start()
        async with dlog.connect(cluster.haproxy.target) as client:
            for number in range(4):  # so that both write proxies own some, and each read proxy serves some
                stream = f"orders-{number}"
                await client.create(stream)
                places = [await client.append(stream, b"%d" % n) for n in range(5)]
                records = [record async for record in client.read(stream)]
                assert [(r.dlsn, r.payload) for r in records] == [(p, b"%d" % n) for n, p in enumerate(places)]
                assert [r.dlsn async for r in client.read(stream, start=places[3])] == places[3:]
                followed = client.read(stream, start=TAIL, follow=True)
                async with asyncio.timeout(90.0), asyncio.TaskGroup() as tasks:
                    first = tasks.create_task(anext(followed))
                    while not first.done():
                        await client.append(stream, b"news")
                assert first.result().payload == b"news"
                await followed.aclose()
                await client.truncate(stream, places[2])
                told = await client.stat(stream)
                assert told.owner is not None and told.owner.state == "serving"
            owners = {one.stream: one.location for one in await client.owners()}
            assert len(owners) == 4
            for _ in range(2):
                await client.hand_over("orders-0")
            await client.append("orders-0", b"after the hand-over")
            await client.seal("orders-1")
            await client.delete("orders-2")
            assert [name async for name in client.streams()] == ["orders-0", "orders-1", "orders-3"]
            await client.create("load")
            async with loaded(client, "load") as load:
                owner = await cluster.owner_of(client, "load")
                cluster.proxies[owner].kill()
                await load.acknowledged(200)
                assert await cluster.owner_of(client, "load") != owner
                await asyncio.to_thread(cluster.proxies[owner].start)
                await cluster.haproxy.until(partial(is_up, owner))
                frozen = await cluster.owner_of(client, "load")
                cluster.proxies[frozen].freeze()
                await load.acknowledged(200)
                cluster.proxies[frozen].thaw()
                assert await cluster.owner_of(client, "load") != frozen
            print(f"only the balancer in reach: longest gap over a kill and a freeze {load.gap_s * 1e3:.0f} ms")

    asyncio.run(run())


def test_with_proxies_in_reach_clients_go_direct_and_the_balancer_sees_no_more_of_them(balanced: Start) -> None:
    cluster = balanced(hidden=False)

    async def bytes_in() -> int:
        return sum(int(row["bin"]) for row in (await cluster.haproxy.servers()).values())

    async def run() -> None:
        await cluster.start()
        async with dlog.connect(cluster.haproxy.target) as client:
            for number in range(4):
                await client.create(f"orders-{number}")
                await client.append(f"orders-{number}", b"x")  # is redirected, and follows
                assert len([r async for r in client.read(f"orders-{number}")]) == 1
            before = await bytes_in()
            for number in range(4):
                many = await client.append_many(f"orders-{number}", (b"x" * 1000 for _ in range(2000)))
                assert many.count == 2000
            written = await bytes_in() - before
            assert written < 100_000, f"of 8 MB {written} bytes went through the balancer"
            for number in range(4):
                assert len([r async for r in client.read(f"orders-{number}")]) == 2001
            out = sum(int(row["bout"]) for row in (await cluster.haproxy.servers()).values())
            assert out < 200_000, f"of 8 MB {out} bytes were read through the balancer"
        for process in cluster.proxies.values():
            assert '"hops": 1' not in process.log(), "nobody asked for forwarding"

    asyncio.run(run())


@dataclass
class Follower:
    """Reads a stream from its start and follows it; keeps the records in order."""

    client: dlog.Client
    stream: str
    came: list[tuple[bytes, dlog.DLSN]] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        async for record in self.client.read(self.stream, follow=True):
            self.came.append((record.payload, record.dlsn))
            self._news.set()

    async def has(self, count: int) -> None:
        """Wait until this many records came."""
        async with asyncio.timeout(60.0):
            while len(self.came) < count:
                self._news.clear()
                await self._news.wait()


@pytest.mark.parametrize("hidden", [True, False])
def test_proxies_taken_out_for_maintenance_drain_without_one_failed_append_or_a_gap_in_a_read(
    balanced: Start, hidden: bool
) -> None:
    cluster = balanced(hidden=hidden)

    async def maintain(name: str, state: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        server = f"dlog_{name[:-1]}/{name}"
        said = await cluster.haproxy.say(f"set server {server} state {state}")
        assert not said.strip(), said
        assert await asyncio.to_thread(cluster.proxies[name].stop) == 0
        await meanwhile()
        await asyncio.to_thread(cluster.proxies[name].start)
        await cluster.haproxy.say(f"set server {server} state ready")
        await cluster.haproxy.until(partial(is_up, name))

    async def run() -> None:
        await cluster.start()
        async with dlog.connect(cluster.haproxy.target) as client, asyncio.TaskGroup() as tasks:
            await client.create("load")
            follower = Follower(client, "load")
            following = tasks.create_task(follower.run())
            async with loaded(client, "load") as load:

                async def both_go_on() -> None:
                    await load.acknowledged(200)
                    await follower.has(len(load.acked))

                for _ in range(2):  # each write proxy once
                    owner = await cluster.owner_of(client, "load")
                    await maintain(owner, "drain", both_go_on)
                    assert await cluster.owner_of(client, "load") != owner
                # one of the two serves the follower: if it is not the first, it is the second
                await maintain("read1", "drain", both_go_on)
                await maintain("read2", "maint", both_go_on)
            await follower.has(len(load.acked))
            following.cancel()
            assert follower.came == [(load.record(number), load.acked[number]) for number in range(len(load.acked))]
            print(f"longest gap between acknowledgements, hidden={hidden}: {load.gap_s * 1e3:.0f} ms")

    asyncio.run(run())


async def knows_clients(cluster: Balanced) -> None:
    """HAProxy names the client of a connection by the PROXY protocol, and the proxies' logs name it too."""
    for role, address in (("write", cluster.haproxy.write), ("read", cluster.haproxy.read)):
        async with Raw(address) as raw:
            assert await raw.ask(Ping) == {}
            assert raw.transport is not None
            host, number = raw.transport.get_extra_info("sockname")[:2]
        logs = "".join(cluster.proxies[f"{role}{n}"].log() for n in (1, 2))
        assert f'"{host}:{number}"' in logs, f"the {role} proxies know who their client is"


@pytest.mark.real_time  # a proxy that does not answer its health check in time is out of the rotation
def test_health_is_polled_and_a_draining_proxy_leaves_the_rotation_before_it_closes(balanced: Start) -> None:
    cluster = balanced(hidden=False)
    leaving = cluster.proxies["write1"]
    leaving.flags += ("--notice-s", "3600")

    async def stream_of_the_leaving(client: dlog.Client) -> str:
        for number in range(30):
            stream = f"orders-{number}"
            await client.create(stream)
            await client.append(stream, b"before")
            if await cluster.owner_of(client, stream) == "write1":
                return stream
        raise AssertionError("the ring gives one proxy nothing")

    async def run() -> None:
        await cluster.start()
        ask = cluster.asked
        for name in NAMES:
            for path in ("/live", "/ready", "/haproxy"):
                assert await asyncio.to_thread(ask, name, path) == 200, (name, path)
        await knows_clients(cluster)
        held = Raw(leaving.address)
        async with held, dlog.connect(cluster.haproxy.target) as client:
            stream = await stream_of_the_leaving(client)
            leaving.terminate()
            rows = await cluster.haproxy.until(lambda rows: rows["write1"]["status"] == "NOLB")
            for path, status in (("/live", 200), ("/ready", 503), ("/haproxy", 404)):
                assert await asyncio.to_thread(ask, "write1", path) == status, path
            sessions = int(rows["write1"]["stot"])
            for _ in range(10):
                async with Raw(cluster.haproxy.write) as raw:
                    assert await raw.ask(Ping) == {}
            rows = await cluster.haproxy.servers()
            assert int(rows["write1"]["stot"]) == sessions, "nothing new is sent to a proxy that leaves"
            assert await held.ask(Ping) == {}, "what is open goes on"
            for _ in range(20):
                await client.append(stream, b"during the notice")
            assert await cluster.owner_of(client, stream) == "write1", "streams move when the notice is over"
        cluster.proxies["write2"].freeze()
        await cluster.haproxy.until(lambda rows: rows["write2"]["status"] == "DOWN")
        cluster.proxies["write2"].thaw()
        await cluster.haproxy.until(lambda rows: rows["write2"]["status"] == "UP")

    asyncio.run(run())
