"""A client that is redirected to an address it cannot reach asks for forwarding, remembers that, and returns to direct
connections when it can."""

from __future__ import annotations

import asyncio

import pytest

import dlog
from dlog.wire.proxy import Failed, GetOwner, Hello, ReaderEvent, ReaderEventKind, Write
from dlog.wire.proxy import Message as ProxyMessage
from dlog.wire.proxy import Read as ProxyRead
from tests.integration.proxies.unreachable import filtered, refused
from tests.unit.client.proxy_double import Double, Log, Peer

HANDS_ON = {"hops_max": 1}


def hops(double: Double) -> list[int]:
    return [m.hops for m in double.heard if isinstance(m, Hello)]


@pytest.mark.parametrize("kind", [refused, filtered])
async def test_work_for_an_owner_out_of_reach_goes_through_the_one_in_reach(kind: object) -> None:
    assert callable(kind)
    with kind() as address:
        async with Double() as double, dlog.connect(double.target) as client:
            double.owner, double.limits = address, HANDS_ON
            await client.append("s", b"0")
            asked = len(double.of(GetOwner))
            for number in range(1, 5):
                await client.append("s", b"%d" % number)
            assert double.log.payloads == [b"0", b"1", b"2", b"3", b"4"]
            assert hops(double) == [0, 1]
            assert len(double.of(GetOwner)) == asked, "what is out of reach is remembered"


async def test_a_proxy_that_does_not_hand_on_is_not_asked_to() -> None:
    with refused() as address:
        async with Double() as double, dlog.connect(double.target, append_deadline_s=2.0) as client:
            double.owner = address
            with pytest.raises(dlog.RequestTimeoutError) as failed:
                await client.append("s", b"x")
            assert address in str(failed.value)
            assert not double.writes


async def test_the_work_moves_to_the_owner_once_that_can_be_reached() -> None:
    log = Log()
    async with Double(log) as owner, Double(log) as between:
        with refused() as address:
            between.owner, between.limits = address, HANDS_ON
            async with dlog.connect(between.target, direct_retry_s=0.02, direct_rest_s=0.02) as client:
                await client.append("s", b"0")
                assert len(between.writes) == 1
                between.owner = owner.address  # the stream moves to an owner that the client can reach
                async with asyncio.timeout(90.0):
                    while not owner.writes:
                        await client.append("s", b"more")
                count = len(between.writes)
                await client.append("s", b"last")
                assert len(between.writes) == count
        assert [int(w.sequence) for w in (*between.writes, *owner.writes)] == list(range(len(log.payloads)))


async def test_a_read_that_is_moved_out_of_reach_is_served_where_it_was_asked() -> None:
    with refused() as address:

        def moves(peer: Peer, message: ProxyMessage) -> bool:
            if isinstance(message, ProxyRead) and not message.forwarded:
                peer.send(ReaderEvent(message.request, ReaderEventKind.MOVED, {"location": address}))
                return True
            return False

        async with Double(role="read", script=moves) as double, dlog.connect(double.target) as client:
            double.limits = HANDS_ON
            double.log.fill(b"a", b"b")
            assert [record.payload async for record in client.read("s")] == [b"a", b"b"]
            assert hops(double) == [0, 1]
            assert [m.forwarded for m in double.heard if isinstance(m, ProxyRead)] == [False, True]


class Moving:
    """Redirects every write, except on connections whose requests it forwards."""

    def __init__(self) -> None:
        self.location = ""
        self._carried: set[Peer] = set()

    def __call__(self, peer: Peer, message: ProxyMessage) -> bool:
        if isinstance(message, Hello) and message.hops:
            self._carried.add(peer)
        if not isinstance(message, Write) or not self.location or peer in self._carried:
            return False
        peer.send(Failed(message.request, 302, "handed over", self.location))
        return True


async def test_a_stream_that_moves_out_of_reach_waits_for_no_connection() -> None:
    """The address in the redirect does not answer for as long as a connection may take: here, for ever."""
    moving = Moving()
    with filtered() as address:
        async with Double(script=moving) as double, dlog.connect(double.target, connect_timeout_s=3600.0) as client:
            double.limits = HANDS_ON
            await client.append("s", b"0")
            moving.location = address
            async with asyncio.timeout(90.0):
                await client.append("s", b"1")
            assert double.log.payloads == [b"0", b"1"]
            assert hops(double) == [0, 1]


async def test_work_that_is_handed_on_already_waits_for_no_address_at_all() -> None:
    with refused() as first, filtered() as second:
        async with (
            Double() as double,
            dlog.connect(double.target, connect_timeout_s=3600.0, direct_patience_s=3600.0) as client,
        ):
            double.owner, double.limits = first, HANDS_ON
            await client.append("s", b"0")
            double.owner = second
            async with asyncio.timeout(90.0):
                await client.append("t", b"1")
            assert double.log.payloads == [b"0", b"1"]
            assert hops(double) == [0, 1]


async def test_a_configured_address_that_answers_nothing_delays_neither_a_question_nor_the_handing_on() -> None:
    with filtered() as silent, filtered() as owner:
        async with Double() as double:
            target = f"dlog://{silent},{double.address}"
            double.owner, double.limits = owner, HANDS_ON
            async with dlog.connect(target, connect_timeout_s=3600.0) as client, asyncio.timeout(90.0):
                await client.append("s", b"0")
                assert hops(double) == [0, 1]
                for peer in tuple(double.peers):
                    peer.cut()
                await client.append("s", b"1")
            assert double.log.payloads == [b"0", b"1"]


async def test_many_streams_that_go_to_one_owner_at_once_share_the_way_there() -> None:
    """A stream that is redirected while that address is being tried waits for the result, and asks for no
    forwarding."""
    log = Log()
    async with Double(log) as owner, Double(log) as asked:
        asked.owner, asked.limits = owner.address, HANDS_ON
        async with dlog.connect(asked.target, direct_patience_s=3600.0) as client, asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(client.append(f"s{number}", b"x"))
        assert hops(asked) == [0]
        assert hops(owner) == [0]
        assert len(owner.writes) == 20
