"""Tests which dependencies a write proxy reports as out of reach."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from dlog.errors import OverCapacityError
from dlog.events import TopicsOutOfReach
from dlog.io.metadata import BookieInfo
from dlog.model.ids import BookieId
from dlog.model.segment import StoreSettings
from dlog.stores.contract import SegmentStore, StoreOutOfReachError
from proxies.write import dependency_check
from proxies.write.dependency_check import BOOKIES, METADATA, DependencyCheck, Stuck
from proxies.write.store_check import StoreCheck
from tests.memory_metadata import MemoryMetadata
from tests.memory_store import MemoryStore, MemoryStoreState

THREE = ("ledger", (("ack_quorum", 2), ("ensemble", 3), ("write_quorum", 3)))


class StuckStream:
    """A stream that makes no progress."""

    def __init__(self, *stores_in_use: tuple[str, StoreSettings]) -> None:
        self.stores_in_use = stores_in_use


class Waiting:
    """Streams with one client that waits. are_stuck: those that make no progress. looks: how often they were asked for.
    given_up: those given up, by call."""

    def __init__(self) -> None:
        self.waits = True
        self.are_stuck: list[StuckStream] = []
        self.looks = 0
        self.given_up: list[list[StuckStream]] = []

    def has_waiting(self) -> bool:
        return self.waits

    def stuck(self, for_s: float) -> Collection[StuckStream]:
        assert for_s == dependency_check.STUCK_S
        self.looks += 1
        return self.are_stuck

    def give_up_stuck(self, for_s: float, is_hit: Callable[[Stuck], bool]) -> None:
        assert for_s == dependency_check.STUCK_S
        self.given_up.append([stream for stream in self.are_stuck if is_hit(stream)])
        self.are_stuck, self.waits = [], False


ANSWERS = -1.0  # below every limit, also a limit of zero


class Silent(MemoryMetadata):
    """Metadata that does not answer."""

    silence_s = ANSWERS

    def unresponsive_s(self) -> float:
        return self.silence_s


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a waiting client count as stuck from the second check on."""
    monkeypatch.setattr(dependency_check, "STUCK_S", 0.0)
    monkeypatch.setattr(dependency_check, "PUNCTUAL_MIN", 0)


def refusing_port() -> socket.socket:
    """A port that refuses connections as long as the socket is bound."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


async def register(metadata: MemoryMetadata, port: int) -> None:
    bookie = BookieId(f"127.0.0.1:{port}")
    await metadata.register_bookie(BookieInfo(bookie, "127.0.0.1", port))


def check(
    metadata: MemoryMetadata,
    streams: Waiting,
    stores: Mapping[str, SegmentStore] = {},
    *,
    has_peer: bool = True,
    is_suspected: bool = True,
) -> DependencyCheck:
    return DependencyCheck(metadata, streams, stores, has_peer=lambda: has_peer, is_suspected=lambda: is_suspected)


async def looks(judge: DependencyCheck, times: int = 2) -> str:
    for _ in range(times):
        judge.lacks = await judge._look()
    return judge.lacks


async def test_bookies_are_lacking_when_none_takes_a_connection_and_until_one_does() -> None:
    metadata, streams = MemoryMetadata(), Waiting()
    judge = check(metadata, streams)
    with refusing_port() as closed:
        await register(metadata, closed.getsockname()[1])
        assert await looks(judge) == BOOKIES
        assert not await judge.reaches(BOOKIES)
        streams.waits = False
        assert await looks(judge) == BOOKIES, "that nobody waits any more proves nothing"
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            await register(metadata, server.sockets[0].getsockname()[1])
            assert await looks(judge) == ""
            assert await judge.reaches(BOOKIES)


async def test_nothing_is_lacking_while_streams_go_on_or_nobody_else_could_serve_them_or_no_bookie_is_there() -> None:
    metadata, streams = MemoryMetadata(), Waiting()
    assert await looks(check(metadata, streams)) == ""
    with refusing_port() as closed:
        await register(metadata, closed.getsockname()[1])
        assert await looks(check(metadata, streams, has_peer=False)) == ""
        judge = check(metadata, streams)
        for _ in range(5):
            judge.moves += 1
            assert await looks(judge, 1) == ""


async def test_zookeeper_is_lacking_where_a_stream_makes_no_progress_without_it_and_until_it_answers() -> None:
    metadata, streams = Silent(), Waiting()
    judge = check(metadata, streams)
    metadata.silence_s = 1.0
    assert await looks(judge) == "", "an owner goes on without it"
    streams.are_stuck = [StuckStream()]
    metadata.silence_s = ANSWERS
    assert await looks(judge) == "", "it answers"
    metadata.silence_s = 1.0
    assert await looks(check(metadata, streams, has_peer=False)) == "", "nobody else could serve it"
    judge.moves += 1
    assert await looks(judge, 1) == METADATA, "though other streams go on"
    streams.are_stuck = []
    assert await looks(judge) == METADATA
    assert not await judge.reaches(METADATA)
    metadata.silence_s = ANSWERS
    assert await looks(judge) == ""
    assert await judge.reaches(METADATA)


async def test_a_process_that_is_delayed_itself_reports_no_missing_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependency_check, "PUNCTUAL_MIN", 2)
    metadata, streams = Silent(), Waiting()
    metadata.silence_s, streams.are_stuck, streams.waits = 1.0, [StuckStream()], False
    judge = check(metadata, streams)
    for punctual, lacks in ((0, ""), (1, ""), (2, METADATA)):
        judge._punctual = punctual
        assert await looks(judge, 1) == lacks


@pytest.mark.parametrize("lacks", [BOOKIES, METADATA])
async def test_who_waits_is_sent_elsewhere_a_look_after_peers_could_hear_what_is_lacking(
    lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependency_check, "LOOK_S", 0.0)
    metadata, streams = Silent(), Waiting()
    metadata.silence_s = 1.0 if lacks == METADATA else ANSWERS
    streams.are_stuck = stuck = [StuckStream()]
    judge = check(metadata, streams)
    with refusing_port() as closed:
        await register(metadata, closed.getsockname()[1])
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            running = group.create_task(judge.run(), name="fitness")
            while not streams.given_up:
                assert judge.lacks in ("", lacks)
                await asyncio.sleep(0)
            running.cancel()
        assert judge.lacks == lacks
        assert streams.given_up[0] == stuck


@pytest.mark.parametrize(
    ("lacks", "given_up"),
    [
        (BOOKIES, {"ledger", "both", "unknown"}),
        ("bookies:3", {"ledger", "both", "unknown"}),
        ("file", {"file", "both", "unknown"}),
        (METADATA, {"ledger", "file", "both", "unknown"}),
    ],
)
async def test_only_what_may_need_what_is_lacking_is_given_up(
    lacks: str, given_up: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependency_check, "LOOK_S", 0.0)
    monkeypatch.setattr(dependency_check, "STUCK_S", 0.75)
    streams = Waiting()
    file = ("file", ())
    stuck = {
        "ledger": StuckStream(THREE),
        "file": StuckStream(file),
        "both": StuckStream(THREE, file),  # its last segment is in another store than its next
        "unknown": StuckStream(),
    }
    streams.are_stuck = list(stuck.values())
    judge = check(Silent(), streams)
    judge.lacks = lacks
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        running = group.create_task(judge.run(), name="fitness")
        while not streams.given_up:  # noqa: ASYNC110 - it runs beside this
            await asyncio.sleep(0)
        running.cancel()
    assert streams.given_up[0] == [stuck[name] for name in stuck if name in given_up]


async def test_streams_without_progress_are_followed_while_something_is_lacking() -> None:
    metadata, streams = Silent(), Waiting()
    judge = check(metadata, streams)
    with refusing_port() as closed:
        await register(metadata, closed.getsockname()[1])
        for lacks in (METADATA, BOOKIES, "bookies:1"):
            judge.lacks = lacks
            metadata.silence_s = 1.0 if lacks == METADATA else ANSWERS
            streams.looks = 0
            assert await looks(judge, 3) == lacks
            assert streams.looks == 3, "what is not followed could count as stuck for a request that has just come"


async def test_too_few_bookies_for_a_stuck_stream_are_lacking_until_enough_are_reached() -> None:
    metadata, streams = Silent(), Waiting()
    streams.waits = False
    judge, peer = check(metadata, streams), check(metadata, Waiting())
    async with AsyncExitStack() as servers:
        with refusing_port() as closed:
            for _ in range(2):
                server = await servers.enter_async_context(await _serve())
                await register(metadata, server.sockets[0].getsockname()[1])
            streams.are_stuck = [StuckStream(THREE)]
            assert await looks(judge) == "", "no more are registered, and a segment is opened on as many"
            await register(metadata, port := closed.getsockname()[1])
            streams.are_stuck = []
            assert await looks(judge) == "", "no stream is stuck"
            streams.are_stuck = [StuckStream(), StuckStream(("memory", ()))]
            assert await looks(judge) == "", "no stuck stream needs bookies"
            streams.are_stuck = [StuckStream(("ledger", (("ensemble", 2), ("write_quorum", 2), ("ack_quorum", 2))))]
            assert await looks(judge) == "", "two are reached"
            streams.are_stuck = [StuckStream(THREE)]
            assert await looks(check(metadata, streams, has_peer=False)) == "", "nobody else could serve it"
            assert await looks(judge) == "bookies:3"
            assert not await peer.reaches("bookies:3"), "it reaches no more"
            assert await peer.reaches(BOOKIES)
            assert not await judge.reaches(BOOKIES), "it lacks something itself"
        await servers.enter_async_context(await _serve(port))
        assert await peer.reaches("bookies:3")
        streams.are_stuck = []
        assert await looks(judge) == ""


async def _serve(port: int = 0) -> asyncio.Server:
    return await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port)


@pytest.mark.parametrize("is_mute", [False, True])
async def test_a_store_is_lacking_where_a_stream_in_it_is_stuck_and_its_check_fails(
    is_mute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Distant(MemoryStore):
        async def reached(self) -> None:
            if is_cut and is_mute:
                await asyncio.Event().wait()
            if is_cut:
                raise StoreOutOfReachError("no answer")

        async def unneeded(self) -> None:
            raise OverCapacityError("not needed to acknowledge an append")

    def checks_of(store: Any) -> tuple[StoreCheck, ...]:
        if not isinstance(store, Distant):
            return ()
        return (
            StoreCheck(store.reached, "out of reach", TopicsOutOfReach),
            StoreCheck(store.unneeded, "no matter", TopicsOutOfReach, is_needed=False),
        )

    monkeypatch.setattr(dependency_check, "checks_of", checks_of)
    monkeypatch.setattr(dependency_check, "STORE_S", 0.01)
    state, streams = MemoryStoreState(), Waiting()
    stores = {"memory": MemoryStore(state), "distant": Distant(state)}
    judge = check(Silent(), streams, stores)
    peer = check(Silent(), Waiting(), stores)
    is_cut = True
    streams.are_stuck = [StuckStream(("memory", ()), THREE)]
    assert await looks(judge) == "", "its stream is in another store"
    streams.are_stuck.append(StuckStream(("distant", ())))
    while await looks(judge) != "distant":  # a process that was delayed cannot tell
        pass
    is_cut = False
    assert await peer.reaches("distant")
    assert not await peer.reaches("unknown")
    assert await looks(judge) == ""


class Metered(MemoryStore):
    """A store that counts the checks of it. is_cut: they fail."""

    def __init__(self) -> None:
        super().__init__(MemoryStoreState())
        self.is_cut = False
        self.checks = 0

    async def reached(self) -> None:
        self.checks += 1
        await asyncio.sleep(0)
        if self.is_cut:
            raise StoreOutOfReachError("no answer")


def metered(monkeypatch: pytest.MonkeyPatch) -> tuple[Metered, DependencyCheck]:
    """A store "s3" that counts checks, and a proxy that has it."""
    store = Metered()
    checks = (StoreCheck(store.reached, "out of reach", TopicsOutOfReach),)
    monkeypatch.setattr(dependency_check, "checks_of", lambda _: checks)
    return store, check(Silent(), Waiting(), {"s3": store})


async def test_a_store_that_several_peers_lack_is_checked_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    store, judge = metered(monkeypatch)
    monkeypatch.setattr(dependency_check, "STUCK_S", 3600.0)
    monkeypatch.setattr(dependency_check, "KEPT_S", 3600.0)
    async with asyncio.TaskGroup() as tasks:
        for number in range(9):
            tasks.create_task(judge.reaches("s3"), name=f"reaches {number}")
    store.is_cut = True
    assert await judge.reaches("s3"), "as found a moment ago"
    assert store.checks == 1
    judge.lacks = "file"
    assert not await judge.reaches("s3"), "it lacks something itself"
    judge.lacks = ""
    monkeypatch.setattr(dependency_check, "STUCK_S", 0.0)
    assert not await judge.reaches("s3")
    assert store.checks == 2


async def test_a_store_is_not_reached_by_a_proxy_that_loses_something_during_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, judge = metered(monkeypatch)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(judge.reaches("s3"), name="reaches")
        while not store.checks:  # noqa: ASYNC110 - it runs beside this
            await asyncio.sleep(0)
        judge.lacks = "file"
    assert not asked.result()


async def test_a_check_in_doubt_leaves_what_was_found_shortly_before(monkeypatch: pytest.MonkeyPatch) -> None:
    store, judge = metered(monkeypatch)
    store.is_cut = True
    monkeypatch.setattr(dependency_check, "STORE_S", -1.0)  # every check counts as delayed
    assert not await judge.reaches("s3"), "nothing was found before"
    for kept_s, is_reached in ((3600.0, True), (0.0, False)):
        with monkeypatch.context() as patch:
            store.is_cut = False
            patch.setattr(dependency_check, "STORE_S", 30.0)
            assert await judge.reaches("s3")
        store.is_cut = True
        monkeypatch.setattr(dependency_check, "KEPT_S", kept_s)
        assert await judge.reaches("s3") is is_reached


async def test_nothing_is_given_up_while_no_peer_would_serve_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependency_check, "LOOK_S", 0.0)
    metadata, streams = Silent(), Waiting()
    metadata.silence_s, streams.are_stuck = 1.0, [StuckStream()]
    is_suspected = False
    judge = DependencyCheck(metadata, streams, {}, has_peer=lambda: True, is_suspected=lambda: is_suspected)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        running = group.create_task(judge.run(), name="fitness")
        while judge.lacks != METADATA:  # noqa: ASYNC110 - it runs beside this
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not judge.is_unfit
        assert streams.given_up == []
        is_suspected = True
        while not streams.given_up:  # noqa: ASYNC110 - it runs beside this
            await asyncio.sleep(0)
        running.cancel()
