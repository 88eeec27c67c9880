"""Requests that change a stream as a whole name its incarnation: learned once, the same in each try."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dlog
from dlog.client.client import Client
from dlog.errors import InvalidRequestError, RequestTimeoutError, StaleRequestError, StreamExistsError
from dlog.model.sink import SinkBatch
from dlog.wire import proxy
from tests.unit.client.proxy_double import Double, Log, Peer

CALLS: dict[type[Any], Callable[[Client], Awaitable[Any]]] = {
    proxy.Delete: lambda client: client.delete("s"),
    proxy.Truncate: lambda client: client.truncate("s", "1:0:0"),
    proxy.Seal: lambda client: client.seal("s"),
    proxy.Alter: lambda client: client.alter("s", retention_s=1.0),
    proxy.HandOver: lambda client: client.hand_over("s"),
    proxy.MoveSegment: lambda client: client.move_segment(
        "s", 1, store="ledger", location="1", to_store="cold", to_location="x"
    ),
    proxy.ImportSegments: lambda client: client.import_segments("s", [("1", 0)]),
    proxy.SinkWrite: lambda client: client.append_once("s", [b"x"], SinkBatch("k", 0, "q", 0)),
}


class NextIncarnation:
    """A script: the first request of a kind is carried out and its answer is lost; then another stream has the name."""

    def __init__(self, kind: type[Any], then: str | None = "b2") -> None:
        self.kind = kind
        self.then = then
        self.tries: list[Any] = []

    def __call__(self, peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, self.kind):
            return False
        self.tries.append(message)
        if len(self.tries) == 1:
            peer.double.log.incarnation = self.then
            peer.cut()
        elif message.incarnation == peer.double.log.incarnation or isinstance(message, proxy.Delete):
            peer.send(proxy.Done(message.request, {}))
        else:
            peer.send(proxy.Failed(message.request, 510, "the stream was deleted"))
        return True


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
async def test_each_try_names_the_life_that_was_there_at_first(kind: type[Any]) -> None:
    script = NextIncarnation(kind)
    async with Double(script=script) as double, dlog.connect(double.target) as client:
        try:
            await CALLS[kind](client)
        except dlog.StreamNotFoundError as error:
            assert kind is not proxy.Delete
            assert error.outcome_unknown, "the first try may have been carried out"
    assert {message.incarnation for message in script.tries} == {"a1"}
    assert len(script.tries) >= 2
    assert len(double.of(proxy.GetIncarnation)) == 1


async def test_what_is_not_there_is_told_and_nothing_is_asked_of_it() -> None:
    async with Double(Log(incarnation=None)) as double, dlog.connect(double.target) as client:
        for call in CALLS.values():
            with pytest.raises(dlog.StreamNotFoundError):
                await call(client)
    assert not [message for message in double.heard if isinstance(message, tuple(CALLS))]


async def test_a_creation_names_its_own_life_in_each_try() -> None:
    script = NextIncarnation(proxy.Create, None)
    async with Double(Log(incarnation=None), script=script) as double, dlog.connect(double.target) as client:
        with pytest.raises(InvalidRequestError):
            await client.create("s")
    assert len({message.incarnation for message in script.tries}) == 1
    assert len(script.tries) == 2


async def test_a_name_that_is_taken_is_told_without_a_try() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        with pytest.raises(StreamExistsError):
            await client.create("s")
    assert not double.of(proxy.Create)


@pytest.mark.parametrize("first_is_lost", [False, True])
async def test_a_creation_that_came_too_late_looks_again_and_does_not_guess(first_is_lost: bool) -> None:
    """Streams were deleted since the client read the count. A creation that certainly did not happen is repeated; one
    that may have happened is not."""
    tries: list[proxy.Create] = []

    def script(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Create):
            return False
        tries.append(message)
        if first_is_lost and len(tries) == 1:
            peer.cut()
        elif len(tries) == 1 + first_is_lost:
            peer.send(proxy.Failed(message.request, StaleRequestError.code, "streams were deleted"))
        else:
            peer.double.answer(peer, message)
        return True

    async with Double(Log(incarnation=None), script=script) as double, dlog.connect(double.target) as client:
        if first_is_lost:
            with pytest.raises(RequestTimeoutError, match="unknown") as told:
                await client.create("s")
            assert told.value.outcome_unknown
        else:
            await client.create("s")
    assert len(tries) == 2
    assert len({message.incarnation for message in tries}) == 1
    assert len(double.of(proxy.GetIncarnation)) == 2


async def test_a_deletion_that_is_not_finished_is_finished_by_any_proxy() -> None:
    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.GetIncarnation):
            told = {"incarnation": "a1", "deleted": True, "deletions": 1, "settings": {}, "settings_version": 0}
            peer.send(proxy.Done(message.request, told))
            return True
        if isinstance(message, proxy.GetOwner):
            peer.send(proxy.Failed(message.request, 510, "no such stream"))
            return True
        return False

    async with Double(script=script) as double, dlog.connect(double.target) as client:
        await client.delete("s", force=True)
        with pytest.raises(dlog.StreamNotFoundError):
            await client.seal("s")
        assert [(m.incarnation, m.force) for m in double.of(proxy.Delete) if isinstance(m, proxy.Delete)] == [
            ("a1", True)
        ]
        await client.create("s")
