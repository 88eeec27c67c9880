"""What a client keeps of streams that it wrote: of all it writes now, and of a limited number of others."""

from __future__ import annotations

import asyncio
import gc

import pytest

import dlog
from dlog.client import client as client_module
from dlog.client import routing
from dlog.client.address_book import ADDRESSES_MAX
from dlog.errors import (
    ClosedError,
    DLogError,
    EndOfStreamError,
    InvalidRequestError,
    RecordTooLargeError,
    SequenceGapError,
    StreamNotFoundError,
    TxidOutOfOrderError,
    UnauthorizedError,
)
from dlog.wire import proxy
from tests.unit.client.proxy_double import Double, Log, Peer
from tests.unit.client.scripts import Holding, error_of, failing

MAX = 10
ROUNDS = 1000


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PRODUCERS_MAX", MAX)
    monkeypatch.setattr(routing, "OWNERS_MAX", MAX)


async def test_what_was_written_once_costs_nothing_for_good() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        await client.append("first", b"x")
        tasks = len(asyncio.all_tasks())
        client._producers_max = MAX
        for n in range(20 * MAX):
            await client.append(f"s{n}", b"x")
        gc.collect()
        assert len(asyncio.all_tasks()) <= tasks, "no stream has a task of its own"
        assert len(client._producers) <= MAX
        assert not client._resting
        assert client._router is not None
        assert len(client._router.owners) <= MAX
        assert len(double.peers) == 1
        [connection] = client._router.pool._connections.values()
        assert len(connection.writers) <= MAX
    assert len(double.log.payloads) == 20 * MAX + 1


async def test_a_pipeline_goes_on_under_its_producer_after_a_rest() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        client._producers_max = MAX
        pipeline = client.pipeline("s")
        for n in range(3):
            assert pipeline.append_nowait(b"%d" % n)
            await pipeline.drain()
            for other in range(2 * MAX):
                await client.append(f"other {n} {other}".replace(" ", "-"), b"x")
            gc.collect()
            assert "s" not in client._producers
        await client.append("s", b"3")
        mine = [w for w in double.writes if w.stream == "s"]
    assert [w.sequence for w in mine] == [0, 1, 2, 3]
    assert len({w.producer for w in mine}) == 1
    with pytest.raises(ClosedError):
        pipeline.append_nowait(b"x")


async def test_who_waits_for_an_answer_is_not_forgotten() -> None:
    """A batch of unknown outcome is sent again under its own id and sequence, however many streams were written
    since."""
    holding, log = Holding(), Log()

    def script(peer: Peer, message: object) -> bool:
        return getattr(message, "stream", "") == "s" and holding(peer, message)  # type: ignore[arg-type]

    async with (
        Double(script=script) as first,
        Double(log) as second,
        dlog.connect(f"dlog://{first.address},{second.address}") as client,
        asyncio.TaskGroup() as group,
    ):
        client._producers_max = MAX
        task = group.create_task(client.append("s", b"a"))
        await first.wait(lambda: bool(holding.held))
        for n in range(5 * MAX):
            await client.append(f"s{n}", b"x")
        first.stop()
        await task
    [before] = [w for w in first.writes if w.stream == "s"]
    [after] = [w for w in second.writes if w.stream == "s"]
    assert (before.producer, before.sequence, True) == (after.producer, after.sequence, after.retry)


async def test_a_closed_client_ends_what_rests_too() -> None:
    async with Double(script=Holding()) as double, dlog.connect(double.target) as client:
        client._producers_max = 1
        pipeline = client.pipeline("s")
        for n in range(3):
            client.pipeline(f"s{n}")
        assert "s" in client._resting
        assert pipeline.append_nowait(b"x")
        await double.wait(lambda: bool(double.writes))
        await client.close(orderly=False)
        error = await error_of(pipeline.drain())
    assert isinstance(error, ClosedError)
    assert error.outcome_unknown


async def test_a_generation_that_the_log_has_not_heard_of_is_not_forgotten() -> None:
    """A batch that failed as outcome unknown may still be written; the next record of this client must prevent that."""
    script = failing(1, TxidOutOfOrderError.code, outcome_unknown=True)
    async with Double(script=script) as double, dlog.connect(double.target) as client:
        client._producers_max = MAX
        with pytest.raises(TxidOutOfOrderError):
            await client.append("s", b"a", txid=1)
        for n in range(5 * MAX):
            await client.append(f"s{n}", b"x")
        gc.collect()
        await client.append("s", b"b")
    first, second = (w for w in double.writes if w.stream == "s")
    assert second.producer[:12] == first.producer[:12]
    assert second.replaces is not None


async def test_a_batch_whose_first_frame_may_arrive_late_is_not_forgotten_though_it_is_not_written() -> None:
    """Its first attempt was not answered. The log ends before it, says the answer to the second one: it is not written,
    but the first frame may still be in flight."""
    writes: list[proxy.Write] = []

    def script(peer: Peer, message: object) -> bool:
        if not isinstance(message, proxy.Write) or message.stream != "s" or message.sequence == 0:
            return False
        writes.append(message)
        match len(writes):
            case 1:
                peer.cut()
            case 2:
                peer.send(proxy.Failed(message.request, SequenceGapError.code, "a gap", detail={"expected": 0}))
            case 3:
                peer.send(proxy.Failed(message.request, TxidOutOfOrderError.code, "out of order"))
            case _:
                return False
        return True

    async with Double(script=script) as double, dlog.connect(double.target, backoff_first_s=0.0) as client:
        client._producers_max = MAX
        await client.append("s", b"a")
        with pytest.raises(TxidOutOfOrderError) as caught:
            await client.append("s", b"b", txid=1)
        assert not caught.value.outcome_unknown
        del caught  # it refers to the producer
        for n in range(5 * MAX):
            await client.append(f"s{n}", b"x")
        gc.collect()
        await client.append("s", b"c")
    last = next(write for write in reversed(double.writes) if write.stream == "s")
    assert last.producer[:12] == writes[0].producer[:12], "otherwise the log takes the late frame, too"
    assert last.producer > writes[0].producer
    assert last.replaces is not None


@pytest.mark.parametrize(
    "refusal", [EndOfStreamError, TxidOutOfOrderError, RecordTooLargeError, InvalidRequestError, UnauthorizedError]
)
async def test_streams_that_refused_their_only_batch_are_forgotten(refusal: type[DLogError]) -> None:
    async with Double(script=failing(20 * MAX, refusal.code)) as double, dlog.connect(double.target) as client:
        client._producers_max = MAX
        for n in range(20 * MAX):
            with pytest.raises(refusal) as caught:
                await client.append(f"s{n}", b"x")
            assert not caught.value.outcome_unknown
        del caught
        gc.collect()
        assert client._router is not None
        [connection] = client._router.pool._connections.values()
        assert len(client._producers) <= 2 * MAX
        assert not client._resting
        assert len(connection.writers) <= 2 * MAX
    assert double.log.payloads == []


async def test_a_stream_that_was_deleted_is_forgotten_though_its_last_append_failed() -> None:
    script = failing(1, StreamNotFoundError.code)
    async with Double(script=script) as double, dlog.connect(double.target) as client:
        client._producers_max = MAX
        with pytest.raises(StreamNotFoundError):
            await client.append("s", b"a")
        for n in range(5 * MAX):
            await client.append(f"s{n}", b"x")
        gc.collect()
        assert "s" not in client._producers
        assert "s" not in client._resting


async def test_a_stream_that_this_client_deleted_is_forgotten() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        client._producers_max = MAX
        await client.append("s", b"a")
        await client.delete("s")
        for n in range(5 * MAX):
            await client.append(f"s{n}", b"x")
        gc.collect()
        assert "s" not in client._producers
        assert "s" not in client._resting


async def test_of_a_thousand_deleted_streams_nothing_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PRODUCERS_MAX", 2 * ROUNDS)
    monkeypatch.setattr(routing, "OWNERS_MAX", 2 * ROUNDS)
    async with Double() as double, dlog.connect(double.target) as client:
        client._producers_max = 2 * ROUNDS
        await client.append("kept", b"x")
        for n in range(ROUNDS):
            double.log.incarnation = None
            await client.create(f"s{n}")
            double.log.incarnation = "a1"
            await client.append(f"s{n}", b"x")
            await client.delete(f"s{n}")
        assert list(client._producers) == ["kept"]
        assert client._router is not None
        assert list(client._router.owners) == ["kept"]
        [connection] = client._router.pool._connections.values()
        assert len(connection.writers) == 1


async def test_the_owner_of_a_stream_that_somebody_else_deleted_is_forgotten() -> None:
    def script(peer: Peer, message: object) -> bool:
        if isinstance(message, proxy.Stat | proxy.Write) and message.stream != "kept":
            peer.send(proxy.Failed(message.request, StreamNotFoundError.code, "no such stream"))
            return True
        return False

    async with Double(script=script) as double, dlog.connect(double.target) as client:
        await client.append("kept", b"x")
        with pytest.raises(StreamNotFoundError):
            await client.stat("asked")
        with pytest.raises(StreamNotFoundError):
            await client.append("written", b"x")
        assert client._router is not None
        assert list(client._router.owners) == ["kept"]


async def test_a_pipeline_outlives_the_deletion_of_its_stream_and_writes_the_next_one() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        pipeline = client.pipeline("s")
        assert pipeline.append_nowait(b"a")
        await pipeline.drain()
        await client.delete("s")
        assert "s" not in client._producers
        double.log.incarnation = None
        await client.create("s")
        double.log.incarnation = "b2"
        assert pipeline.append_nowait(b"b")
        await pipeline.drain()
    assert [write.incarnation for write in double.writes] == ["a1", "b2"]


async def test_addresses_of_proxies_that_were_named_and_are_not_used_have_a_bound() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        await client.append("s", b"x")
        assert client._router is not None
        pool = client._router.pool
        book = pool.addresses
        for n in range(5 * ADDRESSES_MAX):
            address = f"proxy-{n}:7400"
            pool.learn([address])
            book.on_failed(address, 1.0)
            pool._opening[address, 0] = asyncio.Lock()
        assert len(book.known) <= ADDRESSES_MAX
        assert book._failed_s.keys() <= book.known.keys()
        assert {address for address, _ in pool._opening} <= book.known.keys()
        assert book.known.keys() >= {double.address}, "it was configured, and is connected"
        assert address in book.known, "what was named last stays"
