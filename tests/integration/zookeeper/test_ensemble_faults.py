"""The session layer on a real ensemble of three: members killed, frozen, started again; the quorum lost and back.

All tests here use one ensemble; each may leave it in any state, and the next one finds it healed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from dlog.io.metadata import SessionState
from dlog.io.zookeeper import ANY_VERSION, ConnectionLossError, ZooKeeper
from dlog.io.zookeeper_protocol import NotConnectedError, ZnodeError
from tests.integration.zookeeper.drivers import UNKNOWN, Driver, KazooDriver, OurDriver, Shown
from tests.integration.zookeeper.ensemble import EnsembleMember, ZooKeeperEnsemble
from tests.integration.zookeeper.test_session_faults import CONNECTED, SUSPENDED, first_in, states_of, until

pytestmark = pytest.mark.zookeeper

WRITES = 40
T = TypeVar("T")


@pytest.fixture
async def ensemble(one_ensemble: ZooKeeperEnsemble) -> AsyncIterator[ZooKeeperEnsemble]:
    """Three members that serve, with only their own system znodes."""
    await one_ensemble.heal()
    async with await ZooKeeper.connect(one_ensemble.hosts, connect_timeout_s=30.0) as zk:
        for name in (await zk.children("/"))[0]:
            if name != "zookeeper":
                await zk.delete(f"/{name}", ANY_VERSION)
    yield one_ensemble


def from_member(ensemble: ZooKeeperEnsemble, first: EnsembleMember) -> tuple[str, random.Random]:
    """Hosts and random generator with which a client tries `first` first, and the others after."""
    hosts = [first.hosts, *(member.hosts for member in ensemble.members if member is not first)]
    return ",".join(hosts), first_in(hosts)


async def connect(ensemble: ZooKeeperEnsemble, first: EnsembleMember) -> ZooKeeper:
    hosts, rng = from_member(ensemble, first)
    return await ZooKeeper.connect(hosts, session_timeout_s=10.0, connect_timeout_s=30.0, rng=rng)


async def goes_on(zk: ZooKeeper, states: asyncio.Queue[SessionState], session: int) -> None:
    """Check that the session is the same, its ephemerals exist, and its watches are set."""
    if zk.state is not CONNECTED:
        await until(states, CONNECTED)
    assert (zk.session_id, zk.generation) == (session, 1)
    assert (await answered(lambda: zk.get("/mine")))[1].ephemeral_owner == session


async def answered(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request until a member answers; an election may cut more than one connection."""
    while True:
        try:
            return await call()
        except (ConnectionLossError, NotConnectedError):
            continue


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_the_server_we_are_attached_to_is_killed_and_another_has_the_session(
    role: str, ensemble: ZooKeeperEnsemble
) -> None:
    victim = await (ensemble.leader() if role == "leader" else ensemble.follower())
    async with await connect(ensemble, victim) as zk:
        session, states = zk.session_id, states_of(zk)
        await zk.create("/mine", b"x", ephemeral=True)
        heard = asyncio.Event()
        zk.watch_data("/later", heard.set)
        await zk.exists("/")
        victim.kill()
        assert (await until(states, SUSPENDED)) == [SUSPENDED]
        await goes_on(zk, states, session)
        await answered(lambda: zk.exists("/"))
        other = next(member for member in ensemble.members if member is not victim)
        async with await connect(ensemble, other) as maker:
            await maker.create("/later")
        await heard.wait()


async def test_the_leader_is_killed_under_a_client_of_a_follower(ensemble: ZooKeeperEnsemble) -> None:
    leader, follower = await ensemble.leader(), await ensemble.follower()
    async with await connect(ensemble, follower) as zk:
        session, states = zk.session_id, states_of(zk)
        await zk.create("/mine", b"x", ephemeral=True)
        leader.kill()
        await ensemble.leader()
        await goes_on(zk, states, session)


async def test_a_frozen_first_server_does_not_keep_us_from_the_others(ensemble: ZooKeeperEnsemble) -> None:
    frozen = await ensemble.follower()
    frozen.freeze()
    async with await connect(ensemble, frozen) as zk:
        await zk.create("/a", b"x")
        assert (await zk.get("/a"))[0] == b"x"


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_the_server_we_are_attached_to_freezes_and_another_has_the_session(
    role: str, ensemble: ZooKeeperEnsemble
) -> None:
    frozen = await (ensemble.leader() if role == "leader" else ensemble.follower())
    async with await connect(ensemble, frozen) as zk:
        session, states = zk.session_id, states_of(zk)
        await zk.create("/mine", b"x", ephemeral=True)
        frozen.freeze()
        await until(states, CONNECTED)
        await goes_on(zk, states, session)
        frozen.thaw()
        await zk.sync("/")
        assert zk.session_id == session


async def test_without_a_quorum_nothing_is_answered_and_with_it_all_is_there(ensemble: ZooKeeperEnsemble) -> None:
    async with await connect(ensemble, ensemble.members[0]) as zk:
        session, states = zk.session_id, states_of(zk)
        await zk.create("/kept", b"x")
        for member in ensemble.members[1:]:
            member.kill()
        await until(states, SUSPENDED)
        await ensemble.heal()
        assert (await answered(lambda: zk.get("/kept")))[0] == b"x"
        same = zk.session_id == session
        assert same == (zk.generation == 1), "either the session outlived it, or it was told as lost"
        if not same:
            assert SessionState.LOST in await until(states, CONNECTED)


@pytest.mark.parametrize("kind", [OurDriver, KazooDriver])
async def test_writes_while_the_leader_dies_are_done_once_or_told_as_unknown(
    kind: type[OurDriver] | type[KazooDriver], ensemble: ZooKeeperEnsemble
) -> None:
    """The same script for both clients: sequential creates and compare-and-sets, while the leader is killed."""
    driver: Driver = kind(ensemble.hosts, Shown(0))
    await driver.open()
    try:
        await driver.create("/counter", b"0", False, False)
        made: list[str] = []
        unknown = version = 0
        for number in range(WRITES):
            if number == WRITES // 2:
                (await ensemble.leader()).kill()
            created = await driver.create("/n-", b"", False, True)
            if created[0] == "ok":
                made.append(created[1].rpartition("/")[2])
            else:
                assert created == UNKNOWN
                unknown += 1
            changed = await driver.set("/counter", str(number).encode(), version)
            if changed == UNKNOWN:
                await settled(driver)
                data, stat = (await driver.get("/counter"))[1:]
                assert (stat[3] == version + 1) == (data == str(number).encode()), "done wholly or not at all"
                version = stat[3]
            else:
                assert changed[0] == "ok", "nobody else writes: a conflict would be our own write, sent twice"
                version += 1
        await settled(driver)
        names = [name for name in (await driver.children("/"))[1] if name.startswith("n-")]
        assert set(made) <= set(names), "what was told as made is there"
        assert len(names) - len(made) <= unknown, "each create made one znode at most"
        assert len(made) + unknown == WRITES
        assert len(made) > WRITES // 2, "the ensemble went on"
    finally:
        await driver.close()


async def settled(driver: Driver) -> None:
    """Return once a member answers again."""
    while (await driver.exists("/"))[0] != "ok":
        await driver.settled()


async def test_an_ensemble_that_is_started_late_is_found(ensemble: ZooKeeperEnsemble) -> None:
    for member in ensemble.members:
        member.kill()
    async with asyncio.TaskGroup() as tasks:
        connecting = tasks.create_task(
            ZooKeeper.connect(ensemble.hosts, session_timeout_s=10.0, connect_timeout_s=50.0), name="connect"
        )
        await asyncio.sleep(0)
        await ensemble.heal()
    async with connecting.result() as zk:
        assert await answered(lambda: zk.exists("/")) is not None


async def test_a_refusal_is_no_loss_on_any_member(ensemble: ZooKeeperEnsemble) -> None:
    for member in ensemble.members:
        async with await connect(ensemble, member) as zk:
            with pytest.raises(ZnodeError):
                await zk.set("/none", b"", ANY_VERSION)
            assert zk.generation == 1
