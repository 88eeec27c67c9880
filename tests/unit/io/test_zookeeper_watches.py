"""What a session requests from a server for its tree watches, and how it handles the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from dlog.io import zookeeper_watches
from dlog.io.zookeeper_protocol import AddWatchRequest, Connection, SetWatches2Request, ZnodeError
from dlog.io.zookeeper_watches import Watches

Done = Callable[[Any, Exception | None], None]
UNIMPLEMENTED = ZnodeError("", -6)


class Link:
    """A connection that keeps requests; the test answers them."""

    def __init__(self, last_zxid: int = 0) -> None:
        self.is_closed = False
        self.last_zxid = last_zxid
        self.asked: list[tuple[Any, Done]] = []

    def submit(self, request: Any, decode: Any, done: Done, path: str = "", *, xid: int = 0) -> None:
        self.asked.append((request, done))

    def answer(self, error: Exception | None = None) -> None:
        asked, self.asked = self.asked, []
        for _, done in asked:
            done(None, error)


class Session:
    """Watches, and the events that they passed on."""

    def __init__(self, count: int = 1) -> None:
        self.watches = Watches("/base")
        self.told: list[str | None] = []
        self.paths = [f"/base/t{number}" for number in range(count)]
        self.subscriptions = [self.watches.add_tree(path, self.told.append) for path in self.paths]

    def join(self, link: Link, *, is_new_session: bool = False) -> None:
        self.watches.set_all(cast(Connection, link), is_new_session=is_new_session)

    async def heard(self) -> list[str | None]:
        await asyncio.sleep(0)
        told, self.told[:] = list(self.told), []
        return told


def recursive(link: Link) -> list[list[str]]:
    """The paths of each packet."""
    assert all(type(request) is SetWatches2Request for request, _ in link.asked)
    return [request.persistent_recursive_watches for request, _ in link.asked]


@pytest.mark.parametrize("chunk_bytes", [1, 60, 128 * 1024])
async def test_trees_are_set_again_in_as_few_packets_as_a_server_takes(
    chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_watches, "CHUNK_BYTES_MAX", chunk_bytes)
    session, link = Session(10), Link()
    session.join(link)
    packets = recursive(link)
    assert [path for packet in packets for path in packet] == session.paths
    assert len(packets) == {1: 10, 60: 2, 128 * 1024: 1}[chunk_bytes]
    assert not any(session.watches.tree_is_set(path) for path in session.paths)
    link.answer()
    assert all(session.watches.tree_is_set(path) for path in session.paths)
    assert await session.heard() == [None] * 10


async def test_trees_that_are_refused_are_asked_for_again_and_assumed_to_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zookeeper_watches, "REFUSED_AGAIN_S", 0.0)
    session, link = Session(3), Link()
    session.join(link)
    assert await session.heard() == [None] * 3
    link.answer(UNIMPLEMENTED)
    async with asyncio.timeout(30):
        while not link.asked:  # noqa: ASYNC110 - a timer
            await asyncio.sleep(0)
    assert [request.path for request, _ in link.asked if type(request) is AddWatchRequest] == session.paths
    assert await session.heard() == [None] * 3
    link.answer()
    assert all(session.watches.tree_is_set(path) for path in session.paths)


async def test_an_answer_of_a_connection_that_has_ended_sets_nothing() -> None:
    session, link = Session(), Link()
    session.join(link)
    link.is_closed = True
    link.answer()
    assert not session.watches.tree_is_set(session.paths[0])


async def test_what_a_tree_has_told_of_is_known_by_the_connection_on_which_it_was_set() -> None:
    session = Session()
    path = session.paths[0]
    for zxid, answers, heard in ((50, True, 50), (80, False, 50), (90, True, 90), (70, True, 90)):
        link = Link(zxid)
        session.join(link)
        assert session.watches.tree_reported_zxid(path) <= heard
        if answers:
            link.answer()
        session.watches.detached()
        assert session.watches.tree_reported_zxid(path) == heard, "without an answer no more is known than before"
    session.watches.session_lost()
    assert session.watches.tree_reported_zxid(path) == 0
    assert session.watches.tree_reported_zxid("/base/unknown") == 0
