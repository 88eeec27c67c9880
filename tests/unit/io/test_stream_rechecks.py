"""What is reported after a loss of contact, and its cost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from dlog.io import stream_rechecks
from dlog.io.seen_versions import SeenVersions
from dlog.io.stream_metadata import StreamVersion
from dlog.io.stream_rechecks import STREAMS_AT_ONCE, StreamRechecks
from dlog.io.zookeeper import Stat, ZooKeeper
from dlog.io.zookeeper_layout import StreamPaths
from dlog.io.zookeeper_protocol import ConnectionLossError, NoRightsError, ReadResult, ZnodeError
from dlog.model.ids import Epoch, ProxyId, StreamName
from dlog.model.segment import Owner, StreamMetadata
from dlog.wire.stream_metadata import encode_number, encode_owner

PATHS = StreamPaths("/dlog")
HEARD = 100  # the last transaction that was reported
INCARNATION = "a1"


def owner(epoch: int) -> Owner:
    return Owner(epoch=Epoch(epoch), proxy=ProxyId("p"), address="p:1", claim=f"c{epoch}")


class Server:
    """Znodes with their Stat. before_answer: called when a read is requested; it may raise."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, Stat]] = {}
        self.asked: list[list[str]] = []
        self.secret: set[str] = set()  # paths that may not be read
        self.before_answer: Callable[[], Awaitable[None]] | None = None

    def write(self, path: str, data: bytes, *, version: int = 0, mzxid: int = HEARD, pzxid: int = HEARD) -> None:
        self.nodes[path] = data, Stat(1, mzxid, 1, 1, version, 0, 0, 0, len(data), 0, pzxid)

    def make(self, stream: StreamName) -> None:
        root = PATHS.root(stream)
        self.write(f"{root}/owner", encode_owner(owner(1), INCARNATION))
        self.write(f"{root}/ledgers", encode_number(1))
        self.write(f"{root}/maxtxid", encode_number(0))

    async def wait_connected(self) -> None:
        return

    async def get_each(self, paths: Sequence[str], *, like_bytes: int) -> list[ReadResult]:
        self.asked.append(list(paths))
        await asyncio.sleep(0)
        if self.before_answer is not None:
            await self.before_answer()
        return [NoRightsError(path) if path in self.secret else self.nodes.get(path) for path in paths]


class Rig:
    def __init__(self, count: int = 1) -> None:
        self.server = Server()
        self.marks = SeenVersions()
        self.rechecks = StreamRechecks(cast(ZooKeeper, self.server), PATHS, self.marks, random.Random(1))
        self.streams = [StreamName(f"s{number}") for number in range(count)]
        self.told: list[StreamName] = []
        self.watchers = {stream: self._watcher(stream) for stream in self.streams}
        for stream in self.streams:
            self.server.make(stream)
            self.saw(stream)

    def _watcher(self, stream: StreamName) -> Callable[[], None]:
        return lambda: self.told.append(stream)

    def path(self, name: str, stream: int = 0) -> str:
        return f"{PATHS.root(self.streams[stream])}/{name}"

    def saw(self, stream: StreamName, *, epoch: int = 1, version: int = 0) -> None:
        """Note that this process reads the stream."""
        value = StreamMetadata(name=stream, owner=owner(epoch), incarnation=INCARNATION)
        seen: dict[str, Any] = {"ledgers": 0, "max_txid": 0, "allocation": None, "settings": None, "sinks": None}
        self.marks.saw(stream, StreamVersion(value=value, owner=version, incarnation=INCARNATION, **seen))

    def doubt(self, reported_zxid: int = HEARD) -> None:
        for stream in self.streams:
            self.rechecks.doubt(stream, reported_zxid, self.watchers[stream])

    async def settle(self) -> None:
        """Wait until everything is checked."""
        async with asyncio.timeout(30):
            while len(self.rechecks):  # noqa: ASYNC110 - the end of it is no event
                await asyncio.sleep(0)
            await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.rechecks.run(), name="rechecks")
            yield
            running.cancel()


async def told_of(rig: Rig, reported_zxid: int = HEARD) -> bool:
    rig.doubt(reported_zxid)
    async with rig.running():
        await rig.settle()
    return rig.told == rig.streams


@pytest.mark.parametrize("reported_zxid", [0, HEARD])
async def test_a_stream_that_is_what_it_was_is_not_told_of(reported_zxid: int) -> None:
    assert not await told_of(Rig(), reported_zxid)


@pytest.mark.parametrize("name", ["owner", "ledgers", "maxtxid"])
@pytest.mark.parametrize("has_mark", [True, False])
async def test_a_znode_that_changed_after_what_was_heard_is_told_of(name: str, has_mark: bool) -> None:
    rig = Rig()
    rig.server.write(rig.path(name), rig.server.nodes[rig.path(name)][0], mzxid=HEARD + 1)
    if not has_mark:
        rig.marks._marks.clear()
    assert await told_of(rig)


async def test_a_segment_that_came_or_went_is_told_of() -> None:
    rig = Rig()
    rig.server.write(rig.path("ledgers"), encode_number(1), pzxid=HEARD + 1)
    assert await told_of(rig)


@pytest.mark.parametrize("name", ["owner", "ledgers", "maxtxid"])
async def test_a_stream_of_which_a_znode_is_missing_is_told_of(name: str) -> None:
    rig = Rig()
    del rig.server.nodes[rig.path(name)]
    assert await told_of(rig)


@pytest.mark.parametrize("reported_zxid", [0, HEARD])
@pytest.mark.parametrize("name", ["owner", "ledgers", "maxtxid"])
async def test_another_version_than_was_seen_is_told_of_though_its_transaction_was_heard(
    reported_zxid: int, name: str
) -> None:
    """An event was lost; or metadata was restored, and numbers transactions anew."""
    rig = Rig()
    rig.server.write(rig.path(name), rig.server.nodes[rig.path(name)][0], version=1)
    assert await told_of(rig, reported_zxid)


@pytest.mark.parametrize("found", [(2, INCARNATION), (1, "b2")])
async def test_another_claim_or_life_under_the_same_versions_is_told_of(found: tuple[int, str]) -> None:
    rig = Rig()
    rig.server.write(rig.path("owner"), encode_owner(owner(found[0]), found[1]))
    assert await told_of(rig)


async def test_after_a_lost_session_a_stream_that_was_never_seen_is_told_of() -> None:
    rig = Rig()
    rig.marks._marks.clear()
    assert not await told_of(rig, HEARD)
    assert await told_of(rig, 0)


async def test_an_owner_that_cannot_be_read_is_told_of() -> None:
    rig = Rig()
    rig.server.write(rig.path("owner"), b"\xff no owner")
    assert await told_of(rig)


async def test_what_somebody_reads_before_the_check_takes_no_notice_away() -> None:
    """Between the reconnect and the check, another part of this process reads the present state of the stream."""
    rig = Rig()
    rig.doubt(0)
    rig.server.write(rig.path("owner"), encode_owner(owner(2), INCARNATION), version=1, mzxid=HEARD + 5)
    rig.saw(rig.streams[0], epoch=2, version=1)
    async with rig.running():
        await rig.settle()
    assert rig.told == rig.streams


@pytest.mark.parametrize("later", [0, HEARD + 50])
async def test_a_second_loss_of_contact_before_the_check_forgets_nothing(later: int) -> None:
    rig = Rig()
    rig.doubt(HEARD)
    rig.server.write(rig.path("owner"), encode_owner(owner(2), INCARNATION), version=1, mzxid=HEARD + 5)
    rig.saw(rig.streams[0], epoch=2, version=1)
    rig.doubt(later)
    async with rig.running():
        await rig.settle()
    assert rig.told == rig.streams


async def test_an_answer_that_is_older_than_the_newest_doubt_decides_nothing() -> None:
    rig = Rig()

    async def lose_contact_again() -> None:
        rig.server.before_answer = None
        rig.doubt(HEARD)

    rig.server.before_answer = lose_contact_again
    assert not await told_of(rig)
    assert len(rig.server.asked) == 2


async def test_a_check_without_an_answer_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_rechecks, "RETRY_S", 0.0)
    rig = Rig()
    rig.server.write(rig.path("owner"), encode_owner(owner(2), INCARNATION), version=1)
    left = 3

    async def lose() -> None:
        nonlocal left
        left -= 1
        if left:
            raise ConnectionLossError("lost")

    rig.server.before_answer = lose
    assert await told_of(rig)
    assert len(rig.server.asked) == 3


async def test_streams_that_may_not_be_read_are_told_of_and_hold_up_nobody() -> None:
    rig = Rig(STREAMS_AT_ONCE + 1)
    refusals = [ZnodeError("/dlog", -102)]

    async def refuse() -> None:
        if refusals:
            raise refusals.pop()

    rig.server.before_answer = refuse
    rig.doubt()
    async with rig.running():
        await rig.settle()
    assert rig.told == rig.streams[:STREAMS_AT_ONCE]


async def test_a_stream_that_may_not_be_read_is_told_of_and_no_other() -> None:
    rig = Rig(3)
    rig.server.secret.add(rig.path("owner", 1))
    rig.doubt()
    async with rig.running():
        await rig.settle()
    assert rig.told == rig.streams[1:2]


async def test_who_has_left_is_not_told() -> None:
    rig = Rig(2)
    others: list[str] = []
    rig.rechecks.doubt(rig.streams[1], 0, lambda: others.append("told"))
    rig.server.nodes.clear()
    rig.doubt()
    for stream in rig.streams:
        rig.rechecks.forget(stream, rig.watchers[stream])
    assert len(rig.rechecks) == 1
    async with rig.running():
        await rig.settle()
    assert rig.told == []
    assert others == ["told"]
    assert [len(paths) for paths in rig.server.asked] == [3]


@pytest.mark.parametrize("count", [1, STREAMS_AT_ONCE, STREAMS_AT_ONCE + 1, 1000])
async def test_many_streams_share_a_packet(count: int) -> None:
    rig = Rig(count)
    assert not await told_of(rig)
    assert len(rig.server.asked) == -(-count // STREAMS_AT_ONCE)
    assert sorted(path for paths in rig.server.asked for path in paths) == sorted(rig.server.nodes)


async def test_a_few_are_checked_at_once_and_more_with_pauses_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        if seconds:
            slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    await told_of(Rig(STREAMS_AT_ONCE))
    assert slept == []
    await told_of(Rig(STREAMS_AT_ONCE * 50))
    assert len(set(slept)) == 49
    assert max(slept) <= 2 * stream_rechecks.PAUSE_S
