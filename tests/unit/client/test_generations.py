"""A producer that gives up batches of unknown outcome continues under the next generation of its id.

Records reported afterwards as "not written" or acknowledged stay so, whatever a deposed owner answers and whenever a
frame arrives.
"""

from __future__ import annotations

import asyncio

import pytest

import dlog
from dlog.errors import ProducerUnknownError, RequestTimeoutError
from dlog.wire import proxy
from tests.unit.client.proxy_double import Double, Log, Peer
from tests.unit.client.scripts import error_of, out_of_order


def generation(write: proxy.Write) -> int:
    return int.from_bytes(write.producer[12:], "big")


async def test_a_batch_that_was_written_is_not_written_again_because_a_deposed_owner_expects_an_older_one() -> None:
    log = Log()

    def written_and_lost(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Write) and message.sequence == 1:
            log.write(message)
            peer.cut()
            owner.script = None
            return True
        return False

    def deposed(peer: Peer, message: proxy.Message) -> bool:
        """Answers from an old producer table, and then redirects to the owner."""
        if not isinstance(message, proxy.Write):
            return False
        if message.retry:
            peer.send(proxy.Failed(message.request, 530, "a batch is missing", detail={"expected": 0}))
        else:
            peer.send(proxy.Failed(message.request, 302, "elsewhere", owner.address))
        return True

    async with (
        Double(log) as owner,
        Double(log, script=deposed) as stale,
        dlog.connect(f"dlog://{owner.address},{stale.address}") as client,
    ):
        await client.append("s", b"0")
        owner.script = written_and_lost
        owner.owner = stale.address
        with pytest.raises(ProducerUnknownError) as caught:
            await client.append("s", b"1")
        assert caught.value.outcome_unknown
        owner.owner = None
        await client.append("s", b"2")
    assert log.payloads == [b"0", b"1", b"2"]


async def test_a_batch_given_up_is_never_written_once_the_next_one_is_acknowledged() -> None:
    held: list[proxy.Write] = []

    def holding(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Write) and b"barrier" not in bytes(message.body):
            held.append(message)
            return True
        return False

    async with Double(script=holding) as double, dlog.connect(double.target, append_deadline_s=0.3) as client:
        with pytest.raises(RequestTimeoutError) as caught:
            await client.append("s", b"given up")
        assert caught.value.outcome_unknown
        await client.append("s", b"barrier")
        for late in held:
            assert isinstance(double.log.write(late), proxy.Failed)
        last = double.writes[-1]
    assert double.log.payloads == [b"barrier"]
    assert (generation(held[0]), held[0].replaces) == (0, None)
    assert (generation(last), last.replaces, last.sequence) == (1, 1, 1)
    assert held[0].producer[:12] == last.producer[:12]


async def test_what_goes_on_under_the_next_generation_is_named_by_its_lowest_sequence() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        await client.append("s", b"0")
        double.script = out_of_order(3)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(error_of(client.append("s", b"%d" % n, txid=n))) for n in (5, 3, 6, 7)]
    assert [type(task.result()) for task in tasks] == [type(None), dlog.TxidOutOfOrderError, type(None), type(None)]
    assert double.log.payloads == [b"0", b"5", b"6", b"7"]
    begun = next(w for w in double.writes if generation(w) == 1)
    assert (begun.sequence, begun.replaces, begun.txid) == (3, 3, 6)


async def test_a_refusal_of_an_earlier_sending_says_nothing_of_the_later_one() -> None:
    """The client left the connection, came back and sent again; then the answer to the first request arrives."""
    refused: list[int] = []

    def script(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Write) or message.sequence == 0:
            return False
        if message.sequence == 1 and not message.retry and not refused:
            return True  # no answer yet
        if message.sequence == 2 and not message.retry:
            refused.append(message.request)
            peer.send(proxy.Failed(message.request - 1, 302, "elsewhere", peer.double.address))
            return True
        if message.sequence == 2:
            peer.send(proxy.Failed(refused[0], 413, "too large"))  # to the first request
        return False

    async with Double(script=script) as double, dlog.connect(double.target, batch_bytes_max=8) as client:
        await client.append("s", b"0000")
        async with asyncio.TaskGroup() as group:
            for payload in (b"1111", b"2222"):
                group.create_task(client.append("s", payload))
        assert refused
    assert double.log.payloads == [b"0000", b"1111", b"2222"]


async def test_an_owner_that_cannot_confirm_its_claim_is_not_the_one_that_is_asked_whose_the_stream_is() -> None:
    log = Log()

    def cut_off(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Write):
            peer.send(proxy.Failed(message.request, 515, "metadata cannot be read"))
            return True
        return False

    async with (
        Double(log, script=cut_off) as stale,
        Double(log) as owner,
        dlog.connect(f"dlog://{stale.address},{owner.address}") as client,
    ):
        await client.append("s", b"0")
        assert len(stale.writes) == 1
        assert [m.suspect for m in owner.heard if isinstance(m, proxy.GetOwner)] == [stale.address]
    assert log.payloads == [b"0"]
