"""Tests the session layer when the network, the server or the session is lost; each test on a real server, and on a
follower of a real ensemble of three.

In each of these cases aiozk's own session hangs, duplicates a write or notices too late.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
import uuid
from collections.abc import Callable
from functools import partial

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.metadata import SessionState
from dlog.io.zookeeper import ANY_VERSION, ConnectionLossError, Create, Set, ZooKeeper
from dlog.io.zookeeper_protocol import Connection, NotConnectedError, ZnodeError, decode_nothing
from tests.integration.zookeeper import raw
from tests.integration.zookeeper.ensemble import ZooKeeperEnsemble
from tests.integration.zookeeper.raw import RawSession, SessionIds
from tests.integration.zookeeper.toxic import Toxic
from tests.simulation.service import zookeeper_wire as wire

pytestmark = pytest.mark.zookeeper

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


@pytest.fixture(params=["server", "ensemble"])
async def zookeeper_hosts(
    request: pytest.FixtureRequest, zookeeper: EmbeddedZooKeeper, one_ensemble: ZooKeeperEnsemble
) -> str:
    """A chroot of this test's own: on the one server, and on a follower of three, where the leader ends sessions and
    every write goes through it."""
    server = zookeeper if request.param == "server" else await one_ensemble.follower()
    chroot = f"/{uuid.uuid4().hex}"
    async with await ZooKeeper.connect(server.hosts) as client:
        await client.create(chroot)
    return server.hosts + chroot


def states_of(zk: ZooKeeper) -> asyncio.Queue[SessionState]:
    states: asyncio.Queue[SessionState] = asyncio.Queue()
    zk.on_state(states.put_nowait)
    return states


async def until(states: asyncio.Queue[SessionState], wanted: SessionState) -> list[SessionState]:
    """The watches that fired, up to and including `wanted`."""
    told: list[SessionState] = []
    async with asyncio.timeout(90):
        while not told or told[-1] is not wanted:
            told.append(await states.get())
    return told


def first_in(hosts: list[str]) -> random.Random:
    """A random generator with which a client tries hosts[0] first."""
    for seed in range(1000):
        zk = ZooKeeper(",".join(hosts), rng=random.Random(seed))
        if zk._hosts[0] == ZooKeeper(hosts[0])._hosts[0]:
            return random.Random(seed)
    raise AssertionError("no such seed")


async def end_session(hosts: str, zk: ZooKeeper) -> None:
    """Close the session of `zk` from outside, as its expiry would. `zk` may reconnect between request and reply, and a
    member of an ensemble may end the connection with the session: the session has ended when no connection can attach
    to it."""
    host, _, port = hosts.partition("/")[0].rpartition(":")
    loop = asyncio.get_running_loop()
    from aiozk import protocol

    session, password = zk.session_id, zk._password
    while True:
        connection = Connection(lambda kind, path: None)
        await loop.create_connection(partial(_itself, connection), host, int(port))
        try:
            given, _password, _timeout = await connection.shake_hands(
                session_id=session, password=password, timeout_ms=4000, last_zxid=0
            )
            if given == session:
                await connection.ask(protocol.CloseRequest(), decode_nothing)
        except ConnectionLossError:
            continue
        finally:
            connection.drop("done")
        return


def _itself(connection: Connection) -> Connection:
    return connection


async def lose_reply(toxic: Toxic, call: Callable[[], object]) -> None:
    """Make a call whose request arrives and whose reply does not; the connection is then reset."""
    toxic.silenced.clear()
    toxic.silence_replies = True
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_expect_loss(call), name="call")
        await toxic.silenced.wait()
        assert not task.done()
        toxic.cut()
    toxic.silence_replies = False


async def _expect_loss(call: Callable[[], object]) -> None:
    with pytest.raises(ConnectionLossError) as lost:
        await call()  # type: ignore[misc]
    assert lost.value.outcome_unknown


async def test_a_sequential_create_whose_reply_is_lost_makes_one_node(zookeeper_hosts: str) -> None:
    async with Toxic(zookeeper_hosts) as toxic, await ZooKeeper.connect(toxic.hosts) as zk:
        await lose_reply(toxic, lambda: zk.create("/s-", sequential=True))
        assert (await zk.children("/"))[0] == ["s-0000000000"]
        assert zk.generation == 1


async def test_a_set_whose_reply_is_lost_is_told_as_unknown_and_done_once(zookeeper_hosts: str) -> None:
    async with Toxic(zookeeper_hosts) as toxic, await ZooKeeper.connect(toxic.hosts) as zk:
        await zk.create("/v", b"0")
        await lose_reply(toxic, lambda: zk.set("/v", b"1", 0))
        data, stat = await zk.get("/v")
        assert (data, stat.version) == (b"1", 1)


async def test_all_calls_in_flight_fail_together_and_at_once(zookeeper_hosts: str) -> None:
    async with Toxic(zookeeper_hosts) as toxic, await ZooKeeper.connect(toxic.hosts) as zk:
        toxic.silence_replies = True
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(_expect_loss(lambda: zk.get("/")), name="get") for _ in range(50)]
            await toxic.silenced.wait()
            assert not any(call.done() for call in calls)
            toxic.cut(reset=False)
        toxic.silence_replies = False
        assert await zk.exists("/") is not None


async def test_a_frame_cut_in_the_middle_is_a_loss_and_one_reconnect(zookeeper_hosts: str) -> None:
    async with Toxic(zookeeper_hosts) as toxic, await ZooKeeper.connect(toxic.hosts) as zk:
        await zk.create("/big", bytes(100_000))
        toxic.cut_in_reply_after = 5_000
        with pytest.raises(ConnectionLossError):
            await zk.get("/big")
        assert len((await zk.get("/big"))[0]) == 100_000
        assert toxic.accepted == 2
        assert zk.generation == 1


async def test_the_event_loop_stalls_while_a_frame_is_cut_in_the_middle(zookeeper_hosts: str) -> None:
    """Half a reply arrived, then the end of the connection, and the loop handled neither for longer than the session
    lasts: the call is lost at once, and the session is given up before any code may rely on it again."""
    loop = asyncio.get_running_loop()
    async with Toxic(zookeeper_hosts) as toxic, await ZooKeeper.connect(toxic.hosts, session_timeout_s=1.0) as zk:
        await zk.create("/big", bytes(100_000))
        session, states = zk.session_id, states_of(zk)
        toxic.cut_in_reply_after = 5_000
        toxic.on_cut_reply = lambda: loop.call_soon(time.sleep, 1.5)
        with pytest.raises(ConnectionLossError):
            await zk.get("/big")
        assert await until(states, CONNECTED) == [SUSPENDED, LOST, CONNECTED]
        assert zk.session_id != session
        assert len((await zk.get("/big"))[0]) == 100_000


async def test_a_stall_shorter_than_the_session_costs_a_connection_and_no_session(zookeeper_hosts: str) -> None:
    loop = asyncio.get_running_loop()
    async with Toxic(zookeeper_hosts) as toxic, await ZooKeeper.connect(toxic.hosts, session_timeout_s=10.0) as zk:
        await zk.create("/big", bytes(100_000))
        session, states = zk.session_id, states_of(zk)
        toxic.cut_in_reply_after = 5_000
        toxic.on_cut_reply = lambda: loop.call_soon(time.sleep, 0.5)
        with pytest.raises(ConnectionLossError):
            await zk.get("/big")
        assert await until(states, CONNECTED) == [SUSPENDED, CONNECTED]
        assert zk.session_id == session


async def test_a_session_that_its_server_expires_is_lost_with_what_it_owned(zookeeper_hosts: str) -> None:
    async with (
        await ZooKeeper.connect(zookeeper_hosts) as other,
        Toxic(zookeeper_hosts) as toxic,
        await ZooKeeper.connect(toxic.hosts, session_timeout_s=1.0) as zk,
    ):
        session, states, port = zk.session_id, states_of(zk), toxic.port
        await zk.create("/mine", ephemeral=True)
        gone = asyncio.Event()
        other.watch_data("/mine", gone.set)
        await other.exists("/mine")
        toxic.refuse()
        toxic.cut()
        await gone.wait()
        assert await other.exists("/mine") is None
        await toxic.listen(port)
        assert await until(states, CONNECTED) == [SUSPENDED, LOST, CONNECTED]
        assert zk.session_id != session
        assert (await zk.create("/mine", ephemeral=True)).stat.ephemeral_owner == zk.session_id


async def test_a_server_that_is_started_after_us_is_found(own_zookeeper: EmbeddedZooKeeper) -> None:
    await own_zookeeper.start()
    await own_zookeeper.stop()
    async with asyncio.TaskGroup() as tasks:
        connecting = tasks.create_task(ZooKeeper.connect(own_zookeeper.hosts, connect_timeout_s=40.0), name="connect")
        await asyncio.sleep(0)
        await own_zookeeper.start()
    async with connecting.result() as zk:
        assert await zk.exists("/") is not None
        assert zk.generation == 1


async def test_a_delete_or_an_ephemeral_whose_reply_is_lost_is_found_by_reading_again(zookeeper_hosts: str) -> None:
    async with Toxic(zookeeper_hosts) as toxic, await ZooKeeper.connect(toxic.hosts) as zk:
        await zk.create("/d")
        await lose_reply(toxic, lambda: zk.delete("/d", 0))
        assert await zk.exists("/d") is None
        await lose_reply(toxic, lambda: zk.create("/e", ephemeral=True))
        assert await zk.ephemerals() == ["/e"], "it belongs to the session, which is still ours"
        await lose_reply(toxic, lambda: zk.multi([Create("/m"), Set("/m", b"1", 0)]))
        data, stat = await zk.get("/m")
        assert (data, stat.version) == (b"1", 1)


async def test_a_frozen_first_host_does_not_keep_us_from_the_second(
    zookeeper_hosts: str, own_zookeeper: EmbeddedZooKeeper
) -> None:
    await own_zookeeper.start()
    assert own_zookeeper.pid
    os.kill(own_zookeeper.pid, signal.SIGSTOP)
    good = zookeeper_hosts.partition("/")[0]
    hosts = [own_zookeeper.hosts, good]
    async with await ZooKeeper.connect(",".join(hosts), session_timeout_s=6.0, rng=first_in(hosts)) as zk:
        # fresh: the second of an ensemble may lag behind the one where the fixture made it
        assert await zk.exists("/" + zookeeper_hosts.partition("/")[2], fresh=True) is not None
    os.kill(own_zookeeper.pid, signal.SIGCONT)


async def test_a_host_that_freezes_is_left_with_the_session_for_the_next(zookeeper_hosts: str) -> None:
    server, slash, chroot = zookeeper_hosts.partition("/")
    async with Toxic(server) as one, Toxic(server) as two:
        hosts = [one.hosts, two.hosts]
        both = ",".join(hosts) + slash + chroot
        async with await ZooKeeper.connect(both, session_timeout_s=4.0, rng=first_in(hosts)) as zk:
            session = zk.session_id
            await zk.create("/mine", ephemeral=True)
            states = states_of(zk)
            one.silence_replies = True
            assert await until(states, CONNECTED) == [SUSPENDED, CONNECTED]
            assert two.accepted == 1
            assert zk.session_id == session
            assert (await zk.get("/mine"))[1].ephemeral_owner == session


async def test_a_server_killed_and_started_again_finds_the_same_session(own_zookeeper: EmbeddedZooKeeper) -> None:
    await own_zookeeper.start()
    async with await ZooKeeper.connect(own_zookeeper.hosts, session_timeout_s=10.0) as zk:
        session, states = zk.session_id, states_of(zk)
        await zk.create("/mine", b"x", ephemeral=True)
        own_zookeeper.kill()
        assert await until(states, SUSPENDED) == [SUSPENDED]
        await own_zookeeper.start()
        assert await until(states, CONNECTED) == [CONNECTED]
        assert (zk.session_id, zk.generation) == (session, 1)
        assert (await zk.get("/mine"))[1].ephemeral_owner == session


async def test_an_expired_session_is_lost_and_another_begun(zookeeper_hosts: str) -> None:
    async with Toxic(zookeeper_hosts) as toxic, await ZooKeeper.connect(toxic.hosts) as zk:
        session, states = zk.session_id, states_of(zk)
        woken: asyncio.Queue[str] = asyncio.Queue()
        zk.watch_data("/none", lambda: woken.put_nowait("data"))
        await zk.exists("/none")
        port = toxic.port
        toxic.refuse()  # otherwise it attaches to its session again while that ends
        await end_session(zookeeper_hosts, zk)
        await toxic.listen(port)
        assert await until(states, CONNECTED) == [SUSPENDED, LOST, CONNECTED]
        assert zk.session_id not in (0, session)
        assert zk.generation == 2
        assert await woken.get() == "data"
        async with await ZooKeeper.connect(zookeeper_hosts) as other:
            await zk.exists("/none")
            while not woken.empty():
                woken.get_nowait()
            await other.create("/none")
            assert await woken.get() == "data"


async def test_out_of_contact_for_a_whole_timeout_the_session_is_given_up_without_asking(zookeeper_hosts: str) -> None:
    async with Toxic(zookeeper_hosts) as toxic, await ZooKeeper.connect(toxic.hosts, session_timeout_s=1.0) as zk:
        session, states = zk.session_id, states_of(zk)
        port = toxic.port
        toxic.refuse()
        toxic.cut()
        assert await until(states, LOST) == [SUSPENDED, LOST]
        assert zk.session_id == 0
        with pytest.raises(NotConnectedError):
            await zk.get("/")
        await toxic.listen(port)
        assert await until(states, CONNECTED) == [CONNECTED]
        assert zk.session_id != session


async def test_a_node_deleted_while_we_were_away_is_told(zookeeper_hosts: str) -> None:
    async with (
        await ZooKeeper.connect(zookeeper_hosts) as other,
        Toxic(zookeeper_hosts) as toxic,
        await ZooKeeper.connect(toxic.hosts) as zk,
    ):
        for name in ("/deleted", "/changed", "/parent", "/same"):
            await other.create(name)
        heard: asyncio.Queue[str] = asyncio.Queue()
        for name in ("/deleted", "/changed", "/created", "/same"):
            zk.watch_data(name, lambda name=name: heard.put_nowait(name))  # type: ignore[misc]
        zk.watch_children("/parent", lambda: heard.put_nowait("/parent"))
        zk.watch_tree("/tree", lambda path: heard.put_nowait(f"/tree {path}"))
        await zk.exists("/")
        states, port = states_of(zk), toxic.port
        toxic.refuse()
        toxic.cut()
        await until(states, SUSPENDED)
        await other.delete("/deleted", ANY_VERSION)
        await other.set("/changed", b"x", ANY_VERSION)
        await other.create("/created")
        await other.create("/parent/child")
        await toxic.listen(port)
        async with asyncio.timeout(90):
            told = {await heard.get() for _ in range(5)}
        assert told == {"/deleted", "/changed", "/created", "/parent", "/tree None"}
        await zk.sync("/")
        assert heard.empty(), "what did not change is not told"
        await other.create("/deleted")
        assert await heard.get() == "/deleted"


async def test_more_watches_than_fit_a_packet_are_set_again(zookeeper_hosts: str) -> None:
    async with (
        await ZooKeeper.connect(zookeeper_hosts) as other,
        Toxic(zookeeper_hosts) as toxic,
        await ZooKeeper.connect(toxic.hosts) as zk,
    ):
        heard: asyncio.Queue[int] = asyncio.Queue()
        paths = [f"/{i:06d}{'x' * 300}" for i in range(6000)]  # 1.8 MB of paths
        for i, path in enumerate(paths):
            zk.watch_data(path, lambda i=i: heard.put_nowait(i))  # type: ignore[misc]
        await zk.exists("/")
        states = states_of(zk)
        toxic.cut()
        await until(states, CONNECTED)
        await zk.exists("/")
        for i in (0, 3000, 5999):
            await other.create(paths[i])
        async with asyncio.timeout(90):
            assert [await heard.get() for _ in range(3)] == [0, 3000, 5999]
        assert (zk.generation, toxic.accepted) == (1, 2)


async def test_more_tree_watches_than_fit_a_packet_are_set_again(zookeeper_hosts: str) -> None:
    async with (
        await ZooKeeper.connect(zookeeper_hosts) as other,
        Toxic(zookeeper_hosts) as toxic,
        await ZooKeeper.connect(toxic.hosts) as zk,
    ):
        heard: asyncio.Queue[str] = asyncio.Queue()
        paths = [f"/{i:06d}{'x' * 300}" for i in range(1000)]  # 300 KB of paths
        for path in paths:
            zk.watch_tree(path, lambda path: heard.put_nowait(path) if path else None)
        await zk.exists("/")
        states = states_of(zk)
        toxic.cut()
        await until(states, CONNECTED)
        await zk.exists("/")
        assert all(zk.tree_is_watched(path) for path in paths)
        for i in (0, 500, 999):
            await other.create(f"{paths[i]}/child", parents=True)
        async with asyncio.timeout(90):
            told = [await heard.get() for _ in range(6)]
        assert told == [path for i in (0, 500, 999) for path in (paths[i], f"{paths[i]}/child")]
        assert (zk.generation, toxic.accepted) == (1, 2)


async def test_a_connection_cut_while_watches_are_set_again_is_tried_again(zookeeper_hosts: str) -> None:
    async with (
        await ZooKeeper.connect(zookeeper_hosts) as other,
        Toxic(zookeeper_hosts) as toxic,
        await ZooKeeper.connect(toxic.hosts) as zk,
    ):
        heard: asyncio.Queue[str] = asyncio.Queue()
        zk.watch_data("/w", lambda: heard.put_nowait("/w"))
        await zk.exists("/")
        states = states_of(zk)
        toxic.cut_in_request_after = 60  # the handshake passes, later requests do not
        toxic.cut()
        assert await until(states, CONNECTED) == [SUSPENDED, CONNECTED]
        assert await until(states, CONNECTED) == [SUSPENDED, CONNECTED]
        await zk.exists("/")
        await other.create("/w")
        assert await heard.get() == "/w"


async def test_more_watches_than_fit_a_packet_cut_in_the_middle_are_set_again(zookeeper_hosts: str) -> None:
    async with (
        await ZooKeeper.connect(zookeeper_hosts) as other,
        Toxic(zookeeper_hosts) as toxic,
        await ZooKeeper.connect(toxic.hosts) as zk,
    ):
        heard: asyncio.Queue[int] = asyncio.Queue()
        paths = [f"/{i:06d}{'x' * 300}" for i in range(6000)]
        for i, path in enumerate(paths):
            zk.watch_data(path, lambda i=i: heard.put_nowait(i))  # type: ignore[misc]
        await zk.exists("/")
        states = states_of(zk)
        toxic.cut_in_request_after = 700_000  # some chunks arrive whole, one in part, the others never
        toxic.cut()
        assert await until(states, CONNECTED) == [SUSPENDED, CONNECTED]
        assert await until(states, CONNECTED) == [SUSPENDED, CONNECTED]
        await zk.exists("/")
        for i in (0, 3000, 5999):
            await other.create(paths[i])
        async with asyncio.timeout(90):
            assert [await heard.get() for _ in range(3)] == [0, 3000, 5999]
        await zk.exists("/")
        assert heard.empty(), "a watch that was set twice is told once"
        assert (zk.generation, toxic.accepted) == (1, 3)


async def test_credentials_whose_replay_is_cut_are_replayed_again(zookeeper_hosts: str) -> None:
    async with Toxic(zookeeper_hosts) as toxic, await ZooKeeper.connect(toxic.hosts) as zk:
        await zk.add_auth("digest", b"user:word")
        states = states_of(zk)
        toxic.cut_in_request_after = 60  # the handshake passes, the credentials in part
        toxic.cut()
        assert await until(states, CONNECTED) == [SUSPENDED, CONNECTED]
        assert await until(states, CONNECTED) == [SUSPENDED, CONNECTED]
        session = RawSession(SessionIds())
        await session.attach(zookeeper_hosts.partition("/")[0])
        await session.ask("auth", raw.auth("digest", b"user:word"))
        acl = (wire.Ace(31, "auth", ""),)
        path = "/" + zookeeper_hosts.partition("/")[2] + "/secret"
        assert (await session.ask("create", raw.create(path, b"s", 0, acl)))[0] == 0
        await session.ask("close")
        session.abort()
        assert (await zk.get("/secret"))[0] == b"s"
        async with await ZooKeeper.connect(zookeeper_hosts) as stranger:
            with pytest.raises(ZnodeError, match="NoAuth"):
                await stranger.get("/secret")


async def test_credentials_are_replayed_before_anything_is_asked(zookeeper_hosts: str) -> None:
    def restricted() -> None:
        kazoo = KazooClient(hosts=zookeeper_hosts)
        kazoo.start()
        try:
            kazoo.create("/secret", b"s", acl=[make_digest_acl("user", "word", all=True)])
        finally:
            kazoo.stop()
            kazoo.close()

    await asyncio.to_thread(restricted)
    async with Toxic(zookeeper_hosts) as toxic, await ZooKeeper.connect(toxic.hosts) as zk:
        await zk.add_auth("digest", b"user:word")
        assert (await zk.get("/secret"))[0] == b"s"
        states = states_of(zk)
        toxic.cut()
        await until(states, CONNECTED)
        assert (await zk.get("/secret"))[0] == b"s"


async def test_a_server_that_speaks_no_zookeeper_is_passed_over(zookeeper_hosts: str) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(b"\x7f\xff\xff\xffHTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        hosts = [f"127.0.0.1:{server.sockets[0].getsockname()[1]}", zookeeper_hosts.partition("/")[0]]
        async with await ZooKeeper.connect(",".join(hosts), rng=first_in(hosts)) as zk:
            assert await zk.exists("/") is not None


async def test_close_without_a_server_does_not_wait_for_one(zookeeper_hosts: str) -> None:
    async with Toxic(zookeeper_hosts) as toxic:
        zk = await ZooKeeper.connect(toxic.hosts, session_timeout_s=10.0)
        states = states_of(zk)
        toxic.refuse()
        toxic.cut()
        await until(states, SUSPENDED)
        async with asyncio.timeout(9):
            await zk.close()
        assert await until(states, LOST) == [LOST]


async def test_close_with_a_frozen_server_does_not_wait_for_it(zookeeper_hosts: str) -> None:
    async with Toxic(zookeeper_hosts) as toxic:
        zk = await ZooKeeper.connect(toxic.hosts, session_timeout_s=10.0)
        toxic.silence_replies = True
        async with asyncio.timeout(9):
            await zk.close()


async def test_cancelled_calls_leave_the_connection_in_step(zookeeper_hosts: str) -> None:
    async with await ZooKeeper.connect(zookeeper_hosts) as zk:
        await zk.create("/c", b"0")
        for i in range(100):
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(zk.set("/c", str(i).encode(), ANY_VERSION), name="set")
                await asyncio.sleep(0)
                task.cancel()
        assert (await zk.get("/c"))[0] == b"99"
        assert zk.generation == 1
