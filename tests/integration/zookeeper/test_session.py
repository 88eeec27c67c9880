"""Tests the session layer without faults, on a real server."""

from __future__ import annotations

import asyncio
import gc

import pytest

from dlog.errors import ClosedError, InvalidRequestError
from dlog.io.metadata import SessionState
from dlog.io.zookeeper import ANY_VERSION, Check, Create, Created, Delete, Set, Stat, ZooKeeper
from dlog.io.zookeeper_protocol import (
    REQUEST_BYTES_MAX,
    AuthFailedError,
    BadVersionError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NotConnectedError,
    NotEmptyError,
    RequestTooLargeError,
)

pytestmark = pytest.mark.zookeeper


async def test_znodes_are_created_read_changed_and_deleted(zookeeper_hosts: str) -> None:
    async with await ZooKeeper.connect(zookeeper_hosts) as zk:
        assert (await zk.create("/a", b"one")).path == "/a"
        data, stat = await zk.get("/a")
        assert (data, stat.version, stat.data_length) == (b"one", 0, 3)
        assert (await zk.set("/a", b"two", 0)).version == 1
        with pytest.raises(BadVersionError):
            await zk.set("/a", b"three", 0)
        assert (await zk.create("/a/b/c", b"", parents=True)).stat.ephemeral_owner == 0
        assert (await zk.children("/a"))[0] == ["b"]
        with pytest.raises(NotEmptyError):
            await zk.delete("/a", ANY_VERSION)
        with pytest.raises(NodeExistsError):
            await zk.create("/a")
        with pytest.raises(NoNodeError):
            await zk.get("/none")
        assert await zk.exists("/none") is None
        await zk.sync("/a")
        await zk.delete("/a/b/c", 0)
        assert await zk.exists("/a/b/c") is None


async def test_a_sequential_ephemeral_is_ours_and_goes_with_the_session(zookeeper_hosts: str) -> None:
    async with await ZooKeeper.connect(zookeeper_hosts) as other:
        async with await ZooKeeper.connect(zookeeper_hosts) as zk:
            created = await zk.create("/e-", ephemeral=True, sequential=True)
            assert created.path == "/e-0000000000"
            assert created.stat.ephemeral_owner == zk.session_id
            assert await zk.ephemerals() == ["/e-0000000000"]
        assert await other.exists("/e-0000000000") is None


async def test_a_multi_is_all_or_nothing_and_says_which_operation_failed(zookeeper_hosts: str) -> None:
    async with await ZooKeeper.connect(zookeeper_hosts) as zk:
        results = await zk.multi(
            [Create("/m"), Create("/m/s-", b"x", ephemeral=True, sequential=True), Set("/m", b"y", 0), Check("/m", 1)]
        )
        assert isinstance(results[0], Created)
        assert results[1].path == "/m/s-0000000000"
        assert isinstance(results[2], Stat)
        assert results[2].version == 1
        assert results[3] is None
        with pytest.raises(MultiFailedError) as failed:
            await zk.multi([Set("/m", b"z", 1), Delete("/none"), Create("/m/t")])
        assert failed.value.index == 1
        assert isinstance(failed.value.error, NoNodeError)
        assert failed.value.errors[0] is None
        assert (await zk.get("/m"))[0] == b"y"
        assert await zk.multi([]) == []


async def test_many_reads_come_back_in_order_with_none_for_what_is_absent(zookeeper_hosts: str) -> None:
    async with await ZooKeeper.connect(zookeeper_hosts) as zk:
        await zk.multi([Create(f"/n{i}", str(i).encode()) for i in range(1200)])
        await zk.delete("/n700", 0)
        found = await zk.get_many([f"/n{i}" for i in range(1200)])
        assert [f[0] if f else None for f in found] == [None if i == 700 else str(i).encode() for i in range(1200)]


async def test_znodes_as_large_as_they_may_be_are_read_together(zookeeper_hosts: str) -> None:
    """Together they exceed the limit of one reply. Other requests on the same connection are answered."""
    data = bytes(REQUEST_BYTES_MAX - 1000)
    async with await ZooKeeper.connect(zookeeper_hosts, session_timeout_s=30.0) as zk:
        for number in range(35):
            await zk.create(f"/{number}", data)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(zk.get_many([f"/{n}" for n in range(35)]), name="read")
            others = [tasks.create_task(zk.exists("/0"), name="other") for _ in range(10)]
        assert [found is not None and found[0] == data for found in reading.result()] == [True] * 35
        assert all(other.result() is not None for other in others)
        for number in range(35):
            await zk.delete(f"/{number}", ANY_VERSION)  # the shared server has a small heap


async def test_a_subscription_hears_every_kind_of_change_and_outlives_each_event(zookeeper_hosts: str) -> None:
    async with await ZooKeeper.connect(zookeeper_hosts) as zk, await ZooKeeper.connect(zookeeper_hosts) as other:
        heard: asyncio.Queue[str] = asyncio.Queue()
        zk.watch_data("/w", lambda: heard.put_nowait("data"))
        zk.watch_children("/w", lambda: heard.put_nowait("children"))
        await zk.exists("/w")  # the watches are set before this is answered
        await other.create("/w")
        assert {await heard.get(), await heard.get()} == {"data", "children"}
        await zk.exists("/w")
        await other.set("/w", b"1", ANY_VERSION)
        assert await heard.get() == "data"
        await zk.exists("/w")  # a request made after an event is answered after the watch is set again
        await other.create("/w/x")
        assert await heard.get() == "children"
        await zk.exists("/w")
        await other.delete("/w/x", 0)
        assert await heard.get() == "children"
        await zk.exists("/w")
        await other.delete("/w", ANY_VERSION)
        assert {await heard.get(), await heard.get()} == {"data", "children"}
        await zk.exists("/w")
        await other.create("/w")
        assert {await heard.get(), await heard.get()} == {"data", "children"}


async def test_a_withdrawn_subscription_hears_nothing(zookeeper_hosts: str) -> None:
    async with await ZooKeeper.connect(zookeeper_hosts) as zk:
        await zk.create("/w")
        heard: asyncio.Queue[str] = asyncio.Queue()
        unsubscribe = zk.watch_data("/w", lambda: heard.put_nowait("withdrawn"))
        zk.watch_data("/w", lambda: heard.put_nowait("kept"))
        unsubscribe()
        unsubscribe()
        await zk.set("/w", b"", 0)
        assert await heard.get() == "kept"
        assert heard.empty()


async def test_a_tree_watch_tells_each_path_below(zookeeper_hosts: str) -> None:
    async with await ZooKeeper.connect(zookeeper_hosts) as zk, await ZooKeeper.connect(zookeeper_hosts) as other:
        await zk.create("/t")
        heard: asyncio.Queue[str | None] = asyncio.Queue()
        unsubscribe = zk.watch_tree("/t", heard.put_nowait)
        await zk.exists("/t")
        assert zk.tree_is_watched("/t")
        await other.create("/t/a/b", b"", parents=True)
        await other.set("/t/a/b", b"1", ANY_VERSION)
        await other.delete("/t/a/b", ANY_VERSION)
        assert [await heard.get() for _ in range(4)] == ["/t/a", "/t/a/b", "/t/a/b", "/t/a/b"]
        unsubscribe()
        await zk.exists("/t")
        await other.create("/t/z")
        await zk.sync("/t")
        assert heard.empty()


async def test_a_value_the_server_would_not_take_is_refused_before_it_is_sent(zookeeper_hosts: str) -> None:
    async with await ZooKeeper.connect(zookeeper_hosts) as zk:
        session = zk.session_id
        with pytest.raises(RequestTooLargeError):
            await zk.create("/big", bytes(1024 * 1024))
        await zk.create("/big", bytes(1000 * 1024))
        assert len((await zk.get("/big"))[0]) == 1000 * 1024
        assert zk.session_id == session
        assert zk.generation == 1


async def test_credentials_are_sent_and_wrong_ones_refused(zookeeper_hosts: str) -> None:
    async with await ZooKeeper.connect(zookeeper_hosts) as zk:
        await zk.add_auth("digest", b"user:secret")
        with pytest.raises(AuthFailedError):
            await zk.add_auth("nosuchscheme", b"x")


async def test_a_closed_session_answers_nothing_and_closes_again_quietly(zookeeper_hosts: str) -> None:
    zk = await ZooKeeper.connect(zookeeper_hosts)
    states: list[SessionState] = []
    zk.on_state(states.append)
    await zk.close()
    await zk.close()
    assert zk.state is SessionState.LOST
    assert states == [SessionState.LOST]
    with pytest.raises(ClosedError):
        await zk.get("/")


async def test_no_server_is_an_error_that_names_the_hosts() -> None:
    with pytest.raises(NotConnectedError, match=r"127\.0\.0\.1:1"):
        await ZooKeeper.connect("127.0.0.1:1", connect_timeout_s=0.2)


async def test_paths_that_are_none_are_refused(zookeeper_hosts: str) -> None:
    async with await ZooKeeper.connect(zookeeper_hosts) as zk:
        for path in ("a", "/a/", "//a", ""):
            with pytest.raises(InvalidRequestError):
                await zk.get(path)


async def test_questions_that_are_answered_with_an_error_leave_no_garbage(zookeeper_hosts: str) -> None:
    async with await ZooKeeper.connect(zookeeper_hosts) as zk:
        await zk.exists("/missing")
        gc.collect()
        gc.disable()
        try:
            for _ in range(1000):
                assert await zk.exists("/missing", fresh=True) is None
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            assert not [value for value in gc.garbage if isinstance(value, Exception | asyncio.Future)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
