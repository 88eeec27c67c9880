"""What a client sends over one connection, as its other end sees it."""

from __future__ import annotations

import asyncio

import pytest

import dlog
from dlog.client.connection import Connection
from dlog.client.options import ClientOptions
from dlog.errors import InvalidRequestError, UnavailableError, UnsupportedVersionError
from dlog.wire.proxy import Done, Failed, GetOwner, Hello, Message, Read
from tests.integration.proxies.unreachable import refused
from tests.unit.client.proxy_double import Double, Peer


async def test_questions_wait_their_turn_instead_of_being_refused_for_their_number() -> None:
    """A client of a thousand streams asks for a thousand owners; a server accepts a limited number at a time per
    connection."""
    waiting: list[tuple[Peer, GetOwner]] = []
    most = 0

    def hold(peer: Peer, message: Message) -> bool:
        nonlocal most
        if not isinstance(message, GetOwner):
            return False
        waiting.append((peer, message))
        most = max(most, len(waiting))
        if len(waiting) == 8:
            for asker, question in waiting:
                asker.send(Done(question.request, {"location": question.stream}))
            waiting.clear()
        return True

    async with Double(script=hold) as double:
        double.limits = {"questions_max": 8}
        connection = await Connection.open(double.address, ClientOptions())

        async def owner_of(stream: str) -> str:
            answer = await connection.ask(lambda request: GetOwner(request, stream, None))
            return str(answer["location"])

        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            asks = [group.create_task(owner_of(f"s{n}")) for n in range(80)]
        connection.close()
    assert [ask.result() for ask in asks] == [f"s{n}" for n in range(80)]
    assert most == 8


@pytest.mark.parametrize("limit", [0, 1])
async def test_a_region_is_named_to_servers_that_take_one_only(limit: int) -> None:
    async with Double() as double:
        double.limits = {"regions": limit}
        async with dlog.connect(double.address, region="eu-1") as client:
            await client.append("s", b"x")
            assert [record.payload async for record in client.read("s")] == [b"x"]
            await client.owner("s")
        named = [message.region for message in double.heard if isinstance(message, GetOwner | Read)]
        first_and_last = [named[0], named[-1]]  # the question for the incarnation is not about the owner
        assert first_and_last == (["eu-1"] * 2 if limit else [None] * 2)
        assert limit or set(named) == {None}


def test_the_region_of_the_environment_counts_if_no_other_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_REGION", "eu-2")
    assert dlog.connect("a:1").options.region == "eu-2"
    assert dlog.connect("a:1", options=ClientOptions()).options.region == "eu-2"
    assert dlog.connect("a:1", region="eu-1").options.region == "eu-1"
    monkeypatch.setenv("DLOG_REGION", "no/region")
    with pytest.raises(InvalidRequestError, match="a region is named with 1 to 63 letters"):
        dlog.connect("a:1")
    with pytest.raises(InvalidRequestError, match="such as region-1: region='-'"):
        dlog.connect("a:1", region="-")


def of_another_version(peer: Peer, message: Message) -> bool:
    if isinstance(message, Hello):
        peer.send(Failed(message.request, 521, "protocol version not supported"))
    return True


async def test_a_proxy_of_another_version_is_passed_over() -> None:
    """As in an upgrade: the others still serve."""
    async with (
        Double(script=of_another_version) as other,
        Double() as double,
        dlog.connect(f"dlog://{other.address},{double.address}") as client,
    ):
        assert await client.append("s", b"x")
        assert [record.payload async for record in client.read("s")] == [b"x"]


async def test_proxies_that_are_all_of_another_version_are_told_at_once() -> None:
    async with Double(script=of_another_version) as double, dlog.connect(double.target) as client:
        with pytest.raises(UnsupportedVersionError, match="not supported"):
            await client.append("s", b"x")


async def test_a_proxy_of_another_version_beside_one_out_of_reach_is_named_and_tried_again() -> None:
    with refused() as away:
        async with (
            Double(script=of_another_version) as other,
            dlog.connect(f"dlog://{other.address},{away}") as client,
        ):
            with pytest.raises(UnavailableError, match=r"refused.*not supported"):
                await client.reach(0.0)
