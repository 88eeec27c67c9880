"""Tests which dependencies a write proxy reports as out of reach."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dlog.io.metadata import BookieInfo
from dlog.model.ids import BookieId
from proxies.write import dependency_check
from proxies.write.dependency_check import BOOKIES, METADATA, DependencyCheck
from tests.memory_metadata import MemoryMetadata


class Waiting:
    """Streams with one client that waits."""

    def __init__(self) -> None:
        self.waits = True
        self.stuck = False
        self.given_up: list[float] = []

    def has_waiting(self) -> bool:
        return self.waits

    def has_stuck(self, for_s: float) -> bool:
        assert for_s == dependency_check.STUCK_S
        return self.stuck

    def give_up_stuck(self, for_s: float) -> None:
        self.given_up.append(for_s)
        self.stuck = self.waits = False


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


async def looks(judge: DependencyCheck, times: int = 2) -> str:
    for _ in range(times):
        judge.lacks = await judge._look()
    return judge.lacks


async def test_bookies_are_lacking_when_none_takes_a_connection_and_until_one_does() -> None:
    metadata, streams = MemoryMetadata(), Waiting()
    judge = DependencyCheck(metadata, streams, has_peer=lambda: True)
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
    assert await looks(DependencyCheck(metadata, streams, has_peer=lambda: True)) == ""
    with refusing_port() as closed:
        await register(metadata, closed.getsockname()[1])
        assert await looks(DependencyCheck(metadata, streams, has_peer=lambda: False)) == ""
        judge = DependencyCheck(metadata, streams, has_peer=lambda: True)
        for _ in range(5):
            judge.moves += 1
            assert await looks(judge, 1) == ""


async def test_zookeeper_is_lacking_where_a_stream_makes_no_progress_without_it_and_until_it_answers() -> None:
    metadata, streams = Silent(), Waiting()
    judge = DependencyCheck(metadata, streams, has_peer=lambda: True)
    metadata.silence_s = 1.0
    assert await looks(judge) == "", "an owner goes on without it"
    streams.stuck = True
    metadata.silence_s = ANSWERS
    assert await looks(judge) == "", "it answers"
    metadata.silence_s = 1.0
    assert await looks(DependencyCheck(metadata, streams, has_peer=lambda: False)) == "", "nobody else could serve it"
    judge.moves += 1
    assert await looks(judge, 1) == METADATA, "though other streams go on"
    streams.stuck = False
    assert await looks(judge) == METADATA
    assert not await judge.reaches(METADATA)
    metadata.silence_s = ANSWERS
    assert await looks(judge) == ""
    assert await judge.reaches(METADATA)


async def test_a_process_that_is_delayed_itself_reports_no_missing_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependency_check, "PUNCTUAL_MIN", 2)
    metadata, streams = Silent(), Waiting()
    metadata.silence_s, streams.stuck, streams.waits = 1.0, True, False
    judge = DependencyCheck(metadata, streams, has_peer=lambda: True)
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
    streams.stuck = lacks == METADATA
    judge = DependencyCheck(metadata, streams, has_peer=lambda: True)
    with refusing_port() as closed:
        await register(metadata, closed.getsockname()[1])
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            running = group.create_task(judge.run(), name="fitness")
            while not streams.given_up:
                assert judge.lacks in ("", lacks)
                await asyncio.sleep(0)
            running.cancel()
        assert judge.lacks == lacks
        assert streams.given_up[0] == (dependency_check.STUCK_S if lacks == METADATA else 0.0)
