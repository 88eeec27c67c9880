"""Counts the packets that a process which watches many streams sends to ZooKeeper when contact is back.

Each stream is owned by this process, and its watch makes the process read it, as an owner does.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest

from dlog.errors import DamagedError
from dlog.io.metadata import SessionState
from dlog.io.zookeeper import ANY_VERSION
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
MEMBERS = MemberOptions(again_s=1e6)  # the list is read only when a watch fires
SETTLED_S = 5.0  # without a packet but for pings


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    assert not rig.loop.dispose()


def owner(epoch: int, proxy: str = "p1") -> Owner:
    return Owner(epoch=Epoch(epoch), proxy=ProxyId(proxy), address=f"{proxy}:1", claim=f"{proxy}-{epoch}")


class Packets:
    """Counts the requests sent while this context is entered, by kind; pings are left out."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.sent.total()

    def __enter__(self) -> Packets:
        submit = Connection.submit

        def counted(connection: Connection, request: Any, *args: Any, **kwargs: Any) -> None:
            self.sent[type(request).__name__] += 1
            submit(connection, request, *args, **kwargs)

        self._patch = mock.patch.object(Connection, "submit", counted)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()
        del self.sent["PingRequest"]

    async def settled(self) -> None:
        """Return when nothing but pings was sent for SETTLED_S."""
        before = -1
        while (now := self.total - self.sent["PingRequest"]) != before:
            before = now
            await asyncio.sleep(SETTLED_S)


class Owners:
    """Streams that this process has claimed, watches, and reads when a watch fires."""

    def __init__(self, metadata: ZooKeeperMetadata, count: int, tasks: asyncio.TaskGroup) -> None:
        self.keys = [StreamKey(StreamName(f"s{number}")) for number in range(count)]
        self.told: Counter[str] = Counter()
        self.seen: dict[StreamKey, Versioned] = {}
        self._metadata = metadata
        self._tasks = tasks

    async def take(self) -> None:
        for key in self.keys:
            segment = Segment(number=SegmentNumber(1), name="1", store="memory", first_txid=Txid(0))
            value = StreamMetadata(name=key.stream, segments=(segment,), max_segment=SegmentNumber(1), owner=owner(1))
            assert isinstance(await self._metadata.compare_and_set(key, value, None), Versioned)
            await self._read(key)
            self._metadata.watch(key, self._look(key))

    async def change(self, by: ZooKeeperMetadata, key: StreamKey) -> None:
        """Claim the stream for another proxy."""
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
        with suppress(DamagedError):
            found = await self._metadata.read(key)
            if isinstance(found, Versioned):
                self.seen[key] = found


async def connect(member: int = 0) -> ZooKeeperMetadata:
    hosts = f"zk-{member}:{PORT}"
    return await ZooKeeperMetadata.connect(hosts, "/dlog", session_timeout_s=SESSION_S, members=MEMBERS)


async def lose_contact(rig: Rig, metadata: ZooKeeperMetadata, *, session: bool) -> None:
    """Lose contact; return when it is back. session: the session is lost with it."""
    states: list[SessionState] = []
    unsubscribe = metadata.on_state(states.append)
    if session:
        rig.do(rig.servers[0].expire, metadata.zookeeper.session_id)
    else:
        rig.do(rig.servers[0].cut_all)
    await until(lambda: states[-1:] == [SessionState.CONNECTED])
    assert (SessionState.LOST in states) is session
    unsubscribe()


async def lock_members(metadata: ZooKeeperMetadata, keys: list[StreamKey]) -> list[list[str]]:
    """The lock members of each stream that were made in the present session."""
    found = [(await metadata.zookeeper.children(f"/dlog/{key.stream}/<default>/lock"))[0] for key in keys]
    return [[name for name in names if f"_s{metadata.zookeeper.session_id:10d}_" in name] for names in found]


@pytest.mark.parametrize("count", [10, 100, 1000])
@pytest.mark.parametrize(("session", "a_stream"), [(False, 0.1), (True, 0.1 + 2 / 31)])
def test_packets_for_each_stream_when_contact_is_back(session: bool, a_stream: float, count: int, rig: Rig) -> None:
    """A check of the stream takes a tenth of a packet; in a new session 31 lock members take two packets. All watches
    are set at once."""

    async def story() -> None:
        await cluster_init(HOSTS, "/dlog")
        async with await connect() as one, asyncio.TaskGroup() as tasks:
            owners = Owners(one, count, tasks)
            await owners.take()
            with Packets() as packets:
                await lose_contact(rig, one, session=session)
                await packets.settled()
            assert packets.total <= a_stream * count + 20, packets.sent
            assert not owners.told, "nothing has changed"
            assert [len(members) for members in await lock_members(one, owners.keys)] == [1] * count
            await owners.change(one, owners.keys[0])
            await until(lambda: owners.seen[owners.keys[0]].value.owner == owner(2))

    rig.tell(story, within_s=10_000)


@pytest.mark.parametrize("session", [False, True])
def test_only_who_owns_a_stream_that_changed_meanwhile_is_told(session: bool, rig: Rig) -> None:
    """A stream is changed through another member of the ensemble, while our connection is away and again when contact
    is back."""
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


def test_a_stream_that_cannot_be_shown_as_ours_keeps_no_other_from_it(rig: Rig) -> None:
    """One stream is another proxy's by now, one has no lock, and the owner of one cannot be read; all are tried in one
    multi first."""
    rig.add()

    async def story() -> None:
        await cluster_init(HOSTS, "/dlog")
        async with await connect() as one, await connect(1) as two, asyncio.TaskGroup() as tasks:
            owners = Owners(one, 20, tasks)
            await owners.take()
            rig.do(rig.servers[0].down)
            await until(lambda: one.state is SessionState.LOST)
            taken, lockless, damaged = owners.keys[3], owners.keys[5], owners.keys[11]
            await owners.change(two, taken)
            root = f"/dlog/{lockless.stream}/<default>"
            for name in (await two.zookeeper.children(f"{root}/lock"))[0]:
                await two.zookeeper.delete(f"{root}/lock/{name}", ANY_VERSION)
            await two.zookeeper.delete(f"{root}/lock", ANY_VERSION)
            await two.zookeeper.set(f"/dlog/{damaged.stream}/<default>/owner", b"no owner", ANY_VERSION)
            rig.up()
            others = [key for key in owners.keys if key not in (taken, lockless, damaged)]
            await until(lambda: one.state is SessionState.CONNECTED)
            await asyncio.sleep(SETTLED_S)
            assert [len(members) for members in await lock_members(one, others)] == [1] * 17
            assert await lock_members(one, [taken, damaged]) == [[], []]
            await two.zookeeper.create(f"{root}/lock")
            await asyncio.sleep(SETTLED_S)
            assert [len(members) for members in await lock_members(one, [lockless])] == [1], "it is tried again"

    rig.tell(story, within_s=1000)
