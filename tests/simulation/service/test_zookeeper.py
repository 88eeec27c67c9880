"""Tests the simulated ZooKeeper under its own faults, with the production session layer, on the virtual loop.

tests/integration/zookeeper shows that it answers as the real server does. Here are faults that only a simulated server
can perform: replies and requests lost at will, expiry to the tick, stalls, members that lag.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from dlog.errors import MetadataUnavailableError
from dlog.io import clock, zookeeper_watches
from dlog.io.metadata import SessionState
from dlog.io.zookeeper import ANY_VERSION, ConnectionLossError, ZooKeeper
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_protocol import NodeExistsError, ZnodeError
from tests.integration.zookeeper import raw as requests
from tests.integration.zookeeper.raw import RawSession, SessionIds
from tests.simulation.service import zookeeper_wire as wire
from tests.simulation.service.loop import MS, S, SimulatedLoop
from tests.simulation.service.network import Network
from tests.simulation.service.zookeeper import ZooKeeperServer
from tests.simulation.service.zookeeper_ensemble import Ensemble

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST
TICK_S = 0.5
PORT = 2181


class Rig:
    """Members `zk-0`, `zk-1`, ... of one ensemble, and one machine that runs the scenario of a test."""

    def __init__(self, seed: int = 1, *, rng: random.Random | None = None) -> None:
        self.loop = SimulatedLoop(seed)
        self.network = Network(self.loop)
        self.rng = rng
        self.ensemble = Ensemble(tick_s=TICK_S)
        self.servers: list[ZooKeeperServer] = []
        self.processes = [self.loop.spawn("client")]
        self.add()

    def add(self) -> ZooKeeperServer:
        """Add another member, up."""
        server = ZooKeeperServer(self.ensemble, rng=self.rng)
        process = self.loop.spawn(f"zk-{len(self.servers)}")
        self.servers.append(server)
        self.processes.append(process)
        started: list[Any] = []
        process.post(lambda: started.append(self.loop.create_task(server.start(process.node, PORT))))
        assert self.loop.run(until_s=self.loop.now_s + 1, until=lambda: server.is_up)
        return server

    def do(self, act: Callable[..., object], *args: Any, member: int = 0, after_s: float = 0.0) -> None:
        """Perform a fault on a member, as an event of its process."""
        self.processes[1 + member].post(act, *args, delay_ns=int(after_s * S))

    def up(self, member: int = 0, *, after_s: float = 0.0) -> None:
        self.do(lambda: self.loop.create_task(self.servers[member].up()), member=member, after_s=after_s)

    async def connect(self, member: int = 0, *, timeout_s: float = 4.0) -> ZooKeeper:
        return await ZooKeeper.connect(f"zk-{member}:{PORT}", session_timeout_s=timeout_s, rng=random.Random(1))

    def tell(self, story: Callable[[], Awaitable[None]], *, within_s: float = 120.0) -> None:
        """Run a scenario to its end in virtual time."""
        ended: list[BaseException | None] = []

        def begin() -> None:
            task: asyncio.Task[None] = self.loop.create_task(story())
            task.add_done_callback(lambda task: ended.append(task.exception()))

        self.processes[0].post(begin)
        assert self.loop.run(until_s=self.loop.now_s + within_s, until=lambda: bool(ended)), "the story does not end"
        if ended[0] is not None:
            raise ended[0]


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    assert not rig.loop.dispose()


def _acl_of(path: str, acl: wire.Acl) -> bytes:
    return wire.text(path) + wire.acl(acl) + wire.number(-1)


def states_of(zk: ZooKeeper) -> list[SessionState]:
    states: list[SessionState] = []
    zk.on_state(states.append)
    return states


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a scenario watches a whole world
        await asyncio.sleep(0.01)  # of virtual time


def test_a_write_whose_reply_is_dropped_is_done_once_and_unknown(rig: Rig) -> None:
    async def story() -> None:
        async with await rig.connect() as zk:
            rig.servers[0].drop_replies(2)
            with pytest.raises(ConnectionLossError):
                await zk.create("/n-", sequential=True)
            with pytest.raises(ConnectionLossError):
                await zk.create("/once")
            with pytest.raises(NodeExistsError):
                await zk.create("/once")
            assert sorted((await zk.children("/"))[0]) == ["n-0000000000", "once", "zookeeper"]
            assert zk.generation == 1

    rig.tell(story)


def test_a_write_whose_request_is_dropped_is_not_done_and_unknown(rig: Rig) -> None:
    async def story() -> None:
        async with await rig.connect() as zk:
            rig.servers[0].drop_requests(1)
            with pytest.raises(ConnectionLossError):
                await zk.create("/never")
            assert await zk.exists("/never") is None

    rig.tell(story)


def test_a_session_that_nobody_was_told_of_expires_by_itself(rig: Rig) -> None:
    async def story() -> None:
        rig.servers[0].drop_handshakes(1)
        async with await rig.connect(timeout_s=2.0) as zk:
            assert rig.servers[0].sessions[-1] == zk.session_id
            assert len(rig.servers[0].sessions) == 2
            await until(lambda: rig.servers[0].sessions == [zk.session_id])
            assert zk.generation == 1

    rig.tell(story)


def test_expiry_is_the_servers_to_decide_and_takes_the_ephemerals_along(rig: Rig) -> None:
    loop = rig.loop

    async def story() -> None:
        other = await ZooKeeper.connect(f"zk-0:{PORT}", session_timeout_s=4.0)
        async with other, await rig.connect(timeout_s=2.0) as zk:
            await zk.create("/mine", ephemeral=True)
            states, gone = states_of(zk), []
            other.watch_data("/mine", lambda: gone.append(loop.time()))
            await other.exists("/mine")
            cut_s = loop.time()
            rig.do(rig.servers[0].expire, zk.session_id)
            await until(lambda: bool(gone))
            assert gone[0] - cut_s < TICK_S, "told at once, not when the session would have timed out"
            await until(lambda: states == [SUSPENDED, LOST, CONNECTED])
            assert await other.exists("/mine") is None

    rig.tell(story)


@pytest.mark.parametrize("timeout_s", [1.0, 2.0, 4.3])
def test_silence_ends_a_session_after_its_timeout_and_within_a_tick(timeout_s: float) -> None:
    rig = Rig()
    loop = rig.loop

    async def story() -> None:
        zk = await rig.connect(timeout_s=timeout_s)
        session = zk.session_id
        last_s = loop.time()
        loop.pause(rig.processes[0])
        assert session in rig.servers[0].sessions
        ended.append((session, last_s))

    ended: list[tuple[int, float]] = []
    rig.processes[0].post(lambda: stories.append(loop.create_task(story())))
    stories: list[Any] = []
    assert loop.run(until_s=loop.now_s + 60, until=lambda: bool(ended))
    session, last_s = ended[0]
    assert loop.run(until_s=loop.now_s + 60, until=lambda: session not in rig.servers[0].sessions)
    assert timeout_s - 0.1 <= loop.now_s - last_s <= timeout_s + TICK_S + 0.1
    assert not loop.dispose(judged=True)


def test_a_server_that_crashes_keeps_what_it_answered_and_gives_everybody_time(rig: Rig) -> None:
    async def story() -> None:
        async with await rig.connect(timeout_s=2.0) as zk:
            states = states_of(zk)
            await zk.create("/mine", b"x", ephemeral=True)
            heard: list[str] = []
            zk.watch_data("/later", lambda: heard.append("/later"))
            await zk.exists("/")
            session = zk.session_id
            rig.do(rig.servers[0].down)
            rig.up(after_s=1.0)
            await until(lambda: states == [SUSPENDED, CONNECTED])
            assert (await zk.get("/mine"))[1].ephemeral_owner == session == zk.session_id
            await zk.create("/later")
            await zk.exists("/")
            assert heard == ["/later"]
            rig.do(rig.servers[0].down)
            rig.up(after_s=10.0)
            await until(lambda: states[2:] == [SUSPENDED, LOST, CONNECTED])
            assert session in rig.servers[0].sessions, "no time passed for it while nobody counted"
            await until(lambda: session not in rig.servers[0].sessions)

    rig.tell(story)


def test_another_server_over_the_same_ensemble_goes_on_where_a_dead_one_stopped(rig: Rig) -> None:
    async def story() -> None:
        async with await rig.connect() as zk:
            await zk.create("/a", b"x")
            rig.loop.hand(rig.processes[1], rig.servers[0].vanish)
            rig.network.process_died(rig.processes[1])
            rig.loop.kill(rig.processes[1])
            process = rig.processes[1] = rig.loop.spawn("zk-0")
            server = rig.servers[0] = ZooKeeperServer(rig.ensemble)
            process.post(lambda: rig.loop.keep(rig.loop.create_task(server.start("zk-0", PORT))))
            states = states_of(zk)
            await until(lambda: CONNECTED in states)
            assert (await zk.get("/a"))[0] == b"x"
            assert zk.generation == 1

    rig.tell(story)


def test_a_stalled_server_answers_late_and_expires_nobody_meanwhile(rig: Rig) -> None:
    async def story() -> None:
        async with await rig.connect(timeout_s=10.0) as zk:
            await zk.create("/mine", ephemeral=True)
            begun_s = rig.loop.time()
            rig.do(rig.servers[0].stall, 3.0)
            await asyncio.sleep(0.01)
            data = await zk.get("/mine")
            assert rig.loop.time() - begun_s >= 3.0
            assert data[1].ephemeral_owner == zk.session_id

    rig.tell(story)


def test_a_stall_longer_than_a_session_may_end_it_or_not_as_the_dice_fall() -> None:
    survived: set[bool] = set()
    for seed in range(20):
        rig = Rig(seed, rng=random.Random(seed))
        outcome: list[bool] = []

        async def story(rig: Rig = rig, outcome: list[bool] = outcome) -> None:
            async with await rig.connect(timeout_s=2.0) as zk:
                session = zk.session_id
                rig.do(rig.servers[0].stall, 6.0)
                await until(lambda: zk.state is LOST)
                await zk.wait_connected()
                outcome.append(session in rig.servers[0].sessions)
                assert zk.session_id != session, "ours was given up, whatever the server thinks"

        rig.tell(story)
        survived.add(outcome[0])
        assert not rig.loop.dispose()
    assert survived == {True, False}


def test_a_lagging_member_serves_an_old_view_in_order_and_sync_brings_it_up(rig: Rig) -> None:
    rig.add()
    rig.servers[1].lag(1.0)

    async def story() -> None:
        async with await rig.connect(0) as writer, await rig.connect(1) as reader:
            heard: list[tuple[float, bytes]] = []
            await writer.create("/a", b"0")
            assert await reader.exists("/a") is None
            await reader.sync("/")
            assert (await reader.get("/a"))[0] == b"0"
            reader.watch_data("/a", lambda: heard.append((rig.loop.time(), b"")))
            await reader.exists("/a")
            at_s = rig.loop.time()
            await writer.set("/a", b"1", 0)
            assert rig.loop.time() - at_s < 0.1, "the writer's member does not lag"
            assert ((await reader.get("/a"))[0], heard) == (b"0", [])
            await reader.set("/a", b"2", ANY_VERSION)
            assert len(heard) >= 1, "what was told late was told before the answer to a later write"
            assert (await reader.get("/a"))[0] == b"2", "a client reads its own writes"
            assert rig.loop.time() - at_s >= 1.0

    rig.tell(story)


def test_a_session_moves_between_members_and_none_shows_it_an_older_view(rig: Rig) -> None:
    rig.add()
    rig.servers[1].lag(1.0)

    async def story() -> None:
        hosts = f"zk-0:{PORT},zk-1:{PORT}"
        seed = next(n for n in range(99) if ZooKeeper(hosts, rng=random.Random(n))._hosts[0][0] == "zk-0")
        async with await ZooKeeper.connect(hosts, session_timeout_s=4.0, rng=random.Random(seed)) as zk:
            session, states = zk.session_id, states_of(zk)
            for number in range(20):
                await zk.create(f"/{number}")
            rig.do(rig.servers[0].down)
            await until(lambda: states[-1:] == [CONNECTED])
            assert zk.session_id == session
            assert await zk.exists("/19") is not None

    rig.tell(story)


@pytest.mark.parametrize("seed", range(6))
def test_a_name_with_a_mute_address_is_served_by_its_other_one(seed: int) -> None:
    """A Kubernetes headless service is such a name. Tested with each address first, with a session and without."""
    rig = Rig(seed)
    rig.add()
    rig.network.names["zk"] = ("zk-0", "zk-1")
    rig.network.is_down.add("zk-0")

    async def story() -> None:
        async with await ZooKeeper.connect(f"zk:{PORT}", session_timeout_s=4.0, rng=random.Random(seed)) as zk:
            session, states, down_s = zk.session_id, states_of(zk), rig.loop.time()
            rig.network.is_down.clear()
            rig.network.is_down.add("zk-1")
            rig.do(rig.servers[1].cut_all, member=1)
            await until(lambda: states[-1:] == [CONNECTED])
            assert zk.session_id == session
            assert rig.loop.time() - down_s < 2.5, "two tries at most, of a quarter of the session's time each"

    rig.tell(story, within_s=10.0)
    assert not rig.loop.dispose()


@pytest.mark.parametrize("kind", ["session", "metadata"])
def test_a_close_that_is_cancelled_ends_the_session_all_the_same(rig: Rig, kind: str) -> None:
    async def story() -> None:
        host = f"zk-0:{PORT}"
        opened: ZooKeeper | ZooKeeperMetadata
        if kind == "session":
            opened = zk = await rig.connect(timeout_s=2.0)
        else:
            opened = await ZooKeeperMetadata.connect(host, "/dlog", session_timeout_s=2.0)
            zk = opened.zookeeper
        session = zk.session_id
        await zk.create("/mine", ephemeral=True)
        rig.do(rig.servers[0].stall, 1.0)  # it does not answer
        await asyncio.sleep(0.1)
        closing = rig.loop.create_task(opened.close())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait((closing,))
        assert closing.cancelled()
        assert zk.state is LOST
        async with await rig.connect() as other:
            await until(lambda: session not in rig.servers[0].sessions)
            assert await other.exists("/mine") is None

    rig.tell(story, within_s=20.0)


@pytest.mark.parametrize("cut_at", range(1, 13))
def test_no_watch_is_lost_wherever_the_setting_again_of_many_is_cut(
    rig: Rig, cut_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change during the absence is reported, although the connection that should have reported it ended half way."""
    monkeypatch.setattr(zookeeper_watches, "CHUNK_BYTES_MAX", 1)  # a packet for each
    rig.add()
    paths = [f"/{number}" for number in range(6)]
    heard: set[str] = set()

    async def story() -> None:
        async with await rig.connect(0, timeout_s=10.0) as zk, await rig.connect(1) as other:
            for path in paths:
                await other.create(path)
            await zk.sync("/")
            for path in paths:
                zk.watch_data(path, lambda path=path: heard.add(path))  # type: ignore[misc]  # no type of a default
            await zk.exists("/")
            rig.do(rig.servers[0].down)
            await until(lambda: zk.state is SUSPENDED)
            for path in paths:
                await other.set(path, b"", 0)
            link = rig.network.link("zk-0", "client")
            link.hold[link.sent + cut_at] = 5 * S  # what was sent before arrives, the rest is on its way
            rig.up()
            await until(lambda: zk.state is CONNECTED)
            await asyncio.sleep(0.5)
            rig.do(rig.servers[0].cut_all)
            await until(lambda: heard == set(paths))
            assert zk.generation == 1

    rig.tell(story)


def test_a_watch_that_was_refused_is_set_once_it_may_be(rig: Rig) -> None:
    """An access control list forbids reading the children; it is opened while the connection stays the same."""
    heard: list[str] = []
    secret = (wire.Ace(31 - wire.READ, "world", "anyone"),)

    async def story() -> None:
        raw = RawSession(SessionIds())
        await raw.attach(f"zk-0:{PORT}")
        assert (await raw.ask("create", requests.create("/secret", b"", 0)))[0] == 0
        assert (await raw.ask("set_acl", _acl_of("/secret", secret)))[0] == 0
        async with await rig.connect() as zk, await rig.connect() as other:
            zk.watch_children("/secret", lambda: heard.append("child"))
            with pytest.raises(ZnodeError, match="NoAuth"):
                await zk.children("/secret")
            await other.create("/secret/before")
            connection = zk._connection
            assert (await raw.ask("set_acl", _acl_of("/secret", wire.OPEN_ACL)))[0] == 0
            await until(lambda: heard == ["child"])  # a change before that was not noticed
            await other.create("/secret/after")
            await until(lambda: heard == ["child", "child"])
            assert zk._connection is connection
        raw.abort()

    rig.tell(story, within_s=30.0)


def test_the_same_seed_is_the_same_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def trace(seed: int) -> int:
        rng = random.Random(seed)
        rig = Rig(seed, rng=random.Random(seed))
        server = rig.servers[0]
        monkeypatch.setattr(clock, "unix_ms", lambda: rig.loop.now // MS)

        async def story() -> None:
            async with await rig.connect(timeout_s=2.0) as zk, await rig.connect(timeout_s=2.0) as other:
                for name in ("/a", "/b", "/c"):
                    other.watch_tree(name, lambda path: None)
                for number in range(200):
                    match rng.randrange(12):
                        case 0:
                            server.drop_replies(1)
                        case 1:
                            rig.do(server.cut_all)
                        case 2:
                            rig.do(server.stall, rng.random() * 3)
                        case 3 if server.sessions:
                            rig.do(server.expire, rng.choice(server.sessions))
                        case _:
                            pass
                    try:
                        await zk.create(f"/{rng.choice('abc')}-", bytes(number), ephemeral=True, sequential=True)
                        await zk.children("/")
                    except MetadataUnavailableError:
                        continue

        rig.tell(story, within_s=1000)
        found = rig.loop.trace_hash
        assert not rig.loop.dispose()
        return found

    first = trace(5)
    assert trace(5) == first
    assert trace(6) != first
