"""What a process that watches many streams asks of ZooKeeper when contact is back: counted in packets.

Each stream is owned here, and whoever is told of it reads it, as an owner does.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from dlog.io.metadata import SessionState
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_members import MemberOptions
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_protocol import Connection
from dlog.machine import Versioned
from dlog.model.ids import Epoch, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata
from tests.simulation.service.test_zookeeper import PORT, Rig, until

HOSTS = f"zk-0:{PORT}"
SESSION_S = 4.0
MEMBERS = MemberOptions(again_s=1e6)  # the list is read when a watch tells of it
SETTLED_S = 5.0  # without a packet but for pings


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    assert not rig.loop.dispose()


def owner(epoch: int, proxy: str = "p1") -> Owner:
    return Owner(epoch=Epoch(epoch), proxy=ProxyId(proxy), address=f"{proxy}:1", claim=f"{proxy}-{epoch}")


class Packets:
    """What is sent while this is entered, by the kind of request; pings are left out."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.sent.total()

    def __enter__(self) -> Packets:
        tell = Connection.tell

        def counted(connection: Connection, request: Any, *args: Any, **kwargs: Any) -> None:
            self.sent[type(request).__name__] += 1
            tell(connection, request, *args, **kwargs)

        self._patch = mock.patch.object(Connection, "tell", counted)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()
        del self.sent["PingRequest"]

    async def settled(self) -> None:
        """Return when nothing but pings was sent for a while."""
        before = -1
        while (now := self.total - self.sent["PingRequest"]) != before:
            before = now
            await asyncio.sleep(SETTLED_S)


class Owners:
    """Streams that this process has claimed, watches, and reads when it is told of them."""

    def __init__(self, metadata: ZooKeeperMetadata, count: int, tasks: asyncio.TaskGroup) -> None:
        self.keys = [StreamKey(StreamName(f"s{number}")) for number in range(count)]
        self.told: Counter[str] = Counter()
        self.seen: dict[StreamKey, Versioned] = {}
        self._metadata = metadata
        self._tasks = tasks

    async def take(self) -> None:
        for key in self.keys:
            segment = Segment(number=SegmentNumber(1), place="1", store="memory", first_txid=Txid(0))
            value = StreamMetadata(name=key.stream, segments=(segment,), max_segment=SegmentNumber(1), owner=owner(1))
            assert isinstance(await self._metadata.compare_and_set(key, value, None), Versioned)
            await self._read(key)
            self._metadata.watch(key, self._look(key))

    async def change(self, by: ZooKeeperMetadata, key: StreamKey) -> None:
        """Somebody else claims the stream."""
        found = await by.read(key)
        assert isinstance(found, Versioned)
        claimed = dataclasses.replace(found.value, owner=owner(2))
        assert isinstance(await by.compare_and_set(key, claimed, found.version), Versioned)

    def _look(self, key: StreamKey) -> Callable[[], None]:
        def look() -> None:
            self.told[key.stream] += 1
            self._tasks.create_task(self._read(key))

        return look

    async def _read(self, key: StreamKey) -> None:
        found = await self._metadata.read(key)
        if isinstance(found, Versioned):
            self.seen[key] = found


async def connect(member: int = 0) -> ZooKeeperMetadata:
    hosts = f"zk-{member}:{PORT}"
    return await ZooKeeperMetadata.connect(hosts, "/dlog", session_timeout_s=SESSION_S, members=MEMBERS)


async def lose_contact(rig: Rig, metadata: ZooKeeperMetadata, *, session: bool) -> None:
    """Return when contact is back. session: the session is lost with it."""
    states: list[SessionState] = []
    unsubscribe = metadata.on_state(states.append)
    if session:
        rig.do(rig.servers[0].expire, metadata.zookeeper.session_id)
    else:
        rig.do(rig.servers[0].cut_all)
    await until(lambda: states[-1:] == [SessionState.CONNECTED])
    assert (SessionState.LOST in states) is session
    unsubscribe()


@pytest.mark.parametrize("count", [10, 100, 1000])
@pytest.mark.parametrize(("session", "a_stream"), [(False, 0.1), (True, 2.1)])
def test_packets_for_each_stream_when_contact_is_back(session: bool, a_stream: float, count: int, rig: Rig) -> None:
    """A tenth checks the stream, and in a new session the lock member takes two; watches are set all at once."""

    async def story() -> None:
        await cluster_init(HOSTS, "/dlog")
        async with await connect() as one, asyncio.TaskGroup() as tasks:
            owners = Owners(one, count, tasks)
            await owners.take()
            with Packets() as packets:
                await lose_contact(rig, one, session=session)
                await packets.settled()
            assert packets.total <= a_stream * count + 15, packets.sent
            assert not owners.told, "nothing has changed"
            await owners.change(one, owners.keys[0])
            await until(lambda: owners.seen[owners.keys[0]].value.owner == owner(2))

    rig.tell(story, within_s=10_000)


@pytest.mark.parametrize("session", [False, True])
def test_only_who_owns_a_stream_that_changed_meanwhile_is_told(session: bool, rig: Rig) -> None:
    """It is changed through another member of the ensemble, while ours is away, and again when contact is back."""
    rig.add()
    changed = {0, 7, 39}

    async def story() -> None:
        await cluster_init(HOSTS, "/dlog")
        async with await connect() as one, await connect(1) as two, asyncio.TaskGroup() as tasks:
            owners = Owners(one, 40, tasks)
            await owners.take()
            rig.do(rig.servers[0].down)
            await until(lambda: one.state is not SessionState.CONNECTED)
            for number in changed:
                await owners.change(two, owners.keys[number])
            if session:
                await until(lambda: one.state is SessionState.LOST)
            rig.up()
            await until(lambda: one.state is SessionState.CONNECTED)
            await until(lambda: all(owners.seen[owners.keys[n]].value.owner == owner(2) for n in changed))
            await asyncio.sleep(SETTLED_S)
            assert set(owners.told) == {owners.keys[number].stream for number in changed}
            await owners.change(two, owners.keys[1])
            await until(lambda: owners.seen[owners.keys[1]].value.owner == owner(2))

    rig.tell(story, within_s=1000)
