"""Planned restarts of bookies in a real ZooKeeper: what ends them, and that the next process sees the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from dlog.errors import InvalidRequestError
from dlog.io.zookeeper import ZooKeeper
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_pauses import BookiePauses
from dlog.model.ids import BookieId
from dlog.wire.underreplication import Pause, decode_pause
from tests.integration.recovery.polling import until

pytestmark = pytest.mark.zookeeper

PATHS = LedgerPaths()
A, B = BookieId("127.0.0.1:3181"), BookieId("127.0.0.1:3182")
OF_A = "/ledgers/underreplication/pausedBookies/127.0.0.1:3181"


@pytest.fixture
def kazoo(zookeeper_hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=zookeeper_hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
async def zk(zookeeper_hosts: str) -> AsyncIterator[ZooKeeper]:
    async with await ZooKeeper.connect(zookeeper_hosts) as made:
        yield made


async def register(zk: ZooKeeper, bookie: BookieId, *, readonly: bool = False) -> None:
    path = PATHS.readonly if readonly else PATHS.available
    await zk.create(f"{path}/{bookie}", b"", ephemeral=True, parents=True)


async def test_a_pause_is_seen_by_all_and_ended_by_request(zk: ZooKeeper, zookeeper_hosts: str) -> None:
    pauses = BookiePauses(zk, PATHS)
    assert await pauses.current() == {}
    await register(zk, A)
    await pauses.begin(A, 300)
    await pauses.begin(B, 20)
    async with await ZooKeeper.connect(zookeeper_hosts) as other:
        found = await BookiePauses(other, PATHS).expire()
        assert set(found) == {A, B} and 20 < found[A] <= 300 and 0 < found[B] <= 20
    data, stat = await zk.get(OF_A)
    assert (decode_pause(data), stat.ephemeral_owner) == (Pause(300, zk.session_id), 0)
    await pauses.begin(A, 10)
    assert (await pauses.current())[A] <= 10, "the newest announcement counts"
    assert await pauses.end(A) and not await pauses.end(A)
    assert set(await pauses.current()) == {B}


async def test_a_pause_that_may_not_be_read_hides_no_other(zk: ZooKeeper, kazoo: KazooClient) -> None:
    pauses = BookiePauses(zk, PATHS)
    await pauses.begin(A, 300)
    await pauses.begin(B, 300)
    await register(zk, B)
    for path in (OF_A, f"{PATHS.available}/{B}"):
        kazoo.set_acls(path, [make_acl("world", "anyone", write=True, create=True, delete=True, admin=True)])
    assert set(await pauses.current()) == {B}


async def test_a_pause_ends_when_the_bookie_is_back_and_not_when_it_turns_read_only(
    zk: ZooKeeper, zookeeper_hosts: str
) -> None:
    pauses = BookiePauses(zk, PATHS)
    async with await ZooKeeper.connect(zookeeper_hosts) as first:
        await register(first, A)
        await pauses.begin(A, 300)
        await register(first, A, readonly=True)
        assert set(await pauses.expire()) == {A}, "on both sides for a moment"
    assert set(await pauses.expire()) == {A}, "away"
    async with await ZooKeeper.connect(zookeeper_hosts) as second:
        await register(second, A)
        assert await pauses.current() == {}
        assert await zk.exists(OF_A) is not None, "a command that only looks deletes nothing"
        assert await pauses.expire() == {}
    assert await pauses.current() == {}, "gone again after its return: that was not announced"


async def test_a_bookie_that_is_stopped_already_may_be_announced(zk: ZooKeeper) -> None:
    pauses = BookiePauses(zk, PATHS)
    await pauses.begin(A, 300)
    assert set(await pauses.expire()) == {A}
    await register(zk, A)
    assert await pauses.expire() == {}


async def test_a_pause_ends_by_time(zk: ZooKeeper) -> None:
    pauses = BookiePauses(zk, PATHS)
    await pauses.begin(A, 1)

    async def is_over() -> bool:
        return not await pauses.expire()

    await until(is_over)
    assert await zk.exists(OF_A) is None


async def test_a_pause_ends_though_the_clock_of_zookeeper_was_set_back(
    zk: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = BookiePauses(zk, PATHS)
    await pauses.begin(A, 1)
    written = zk.set

    async def an_hour_ago(path: str, data: bytes, version: int) -> object:
        stat = await written(path, data, version)
        return stat._replace(mtime_ms=stat.mtime_ms - 3_600_000)

    monkeypatch.setattr(zk, "set", an_hour_ago)
    assert 0 < (await pauses.current())[A] <= 1

    async def is_over() -> bool:
        return not await pauses.current()

    await until(is_over)


async def test_what_is_no_pause_hides_no_other(zk: ZooKeeper) -> None:
    pauses = BookiePauses(zk, PATHS)
    await pauses.begin(A, 300)
    for name, data in (("other:1", b"\xff"), ("no id", b""), (str(B), b"seconds: 99999999\nsession: 1\n")):
        await zk.create(f"{PATHS.underreplication.pauses}/{name}", data)
    assert set(await pauses.expire()) == {A}


@pytest.mark.parametrize("seconds", [0, -1, 7 * 86_400 + 1])
async def test_a_length_out_of_bounds_is_refused(zk: ZooKeeper, seconds: int) -> None:
    with pytest.raises(InvalidRequestError, match="1 s to 7 days"):
        await BookiePauses(zk, PATHS).begin(A, seconds)
