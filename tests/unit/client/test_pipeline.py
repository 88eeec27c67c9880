"""Records appended one by one without a future each: taken in order, answered in rows, refused when there is no
space."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlog
from dlog.errors import ClosedError, InvalidRequestError, RecordTooLargeError, RequestTimeoutError, TxidOutOfOrderError
from dlog.model.dlsn import DLSN_INVALID, of
from dlog.wire import proxy
from tests.unit.client.proxy_double import Double, Log, Peer
from tests.unit.client.scripts import Holding, error_of, failing, out_of_order


async def test_records_of_one_turn_travel_together_and_are_told_in_one_row() -> None:
    rows: list[dlog.BatchResult] = []
    async with Double() as double, dlog.connect(double.target) as client:
        pipeline = client.pipeline("s", rows.append)
        for n in range(5):
            assert pipeline.append_nowait(b"%d" % n)
        await pipeline.drain()
        assert pipeline.append_nowait(b"5")
        await pipeline.drain()
    assert [(r.index, r.count, r.first, r.last) for r in rows] == [
        (0, 5, of(1, 0, 0), of(1, 0, 4)),
        (5, 1, of(1, 1, 0), of(1, 1, 0)),
    ]
    assert double.log.payloads == [b"%d" % n for n in range(6)]


async def test_records_that_come_while_the_pipe_is_busy_gather() -> None:
    holding = Holding()
    async with Double(script=holding) as double, dlog.connect(double.target) as client:
        pipeline = client.pipeline("s")
        assert pipeline.append_nowait(b"first")
        await double.wait(lambda: len(double.writes) == 1)
        for n in range(50):
            assert pipeline.append_nowait(b"%d" % n)
            await asyncio.sleep(0)
        holding.let_go()
        await pipeline.drain()
    assert [w.count for w in double.writes] == [1, 50]


async def test_a_full_buffer_refuses_and_room_is_waited_for() -> None:
    holding = Holding()
    async with (
        Double(script=holding) as double,
        dlog.connect(double.target, buffer_bytes_max=100, batch_bytes_max=30) as client,
    ):
        pipeline = client.pipeline("s")
        taken = 0
        while pipeline.append_nowait(b"%06d" % taken):
            taken += 1
        assert taken == 10
        assert not pipeline.append_nowait(b""), "nothing is taken past the bound"
        assert client._producers["s"].queue.room.held == 100
        async with asyncio.TaskGroup() as group:
            waits = group.create_task(pipeline.room())
            await double.wait(lambda: len(double.writes) == 1)
            assert not waits.done()
            holding.let_go()
        while taken < 100:
            while not pipeline.append_nowait(b"%06d" % taken):
                await pipeline.room()
            taken += 1
        await pipeline.drain()
    assert double.log.payloads == [b"%06d" % n for n in range(100)]


async def test_room_comes_in_turn_to_all_who_wait() -> None:
    async with Double() as double, dlog.connect(double.target, buffer_bytes_max=30, batch_bytes_max=20) as client:

        async def send(name: bytes) -> None:
            pipeline = client.pipeline("s")
            for n in range(30):
                while not pipeline.append_nowait(b"%b%d" % (name, n)):
                    await pipeline.room()
            await pipeline.drain()

        async with asyncio.TaskGroup() as group:
            for name in (b"a", b"b"):
                group.create_task(send(name))
            for n in range(30):
                group.create_task(client.append("s", b"c%d" % n))
    for name in (b"a", b"b", b"c"):
        assert [p for p in double.log.payloads if p[:1] == name] == [b"%b%d" % (name, n) for n in range(30)]


async def test_one_who_leaves_the_wait_for_room_gives_its_turn_on() -> None:
    holding = Holding()
    async with (
        Double(script=holding) as double,
        dlog.connect(double.target, buffer_bytes_max=1) as client,
        asyncio.TaskGroup() as group,
    ):
        pipeline = client.pipeline("s")
        assert pipeline.append_nowait(b"first")
        await double.wait(lambda: len(double.writes) == 1)
        leaves = group.create_task(pipeline.room())
        group.create_task(client.append("s", b"second"))
        await asyncio.sleep(0)
        leaves.cancel()
        holding.let_go()
    assert double.log.payloads == [b"first", b"second"]


async def test_misuse_is_told_at_once_and_takes_nothing() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        pipeline = client.pipeline("s")
        for begun in (False, True):  # without a lot of the pipeline, and within one
            with pytest.raises(InvalidRequestError, match="encode it first: type=str"):
                pipeline.append_nowait("text")  # type: ignore[arg-type]
            with pytest.raises(InvalidRequestError, match="encode it first: type=NoneType"):
                pipeline.append_nowait(None)  # type: ignore[arg-type]
            with pytest.raises(RecordTooLargeError):
                pipeline.append_nowait(b"x" * 1_040_345)
            with pytest.raises(InvalidRequestError, match="transaction id"):
                pipeline.append_nowait(b"x", txid=-1)
            with pytest.raises(InvalidRequestError, match="encode it first: type=int"):
                await pipeline.put([b"x", 1])  # type: ignore[list-item]
            with pytest.raises(InvalidRequestError, match="at least one record"):
                await pipeline.put([])
            with pytest.raises(RecordTooLargeError, match="split it"):
                await pipeline.put([b"x" * 600_000] * 2)
            if not begun:
                assert pipeline.append_nowait(b"good")
        await pipeline.drain()
    assert double.log.payloads == [b"good"]
    with pytest.raises(ClosedError):
        pipeline.append_nowait(b"x")


async def test_what_may_change_later_is_copied() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        pipeline = client.pipeline("s")
        changes = bytearray(b"as it was")
        for _ in range(3):
            assert pipeline.append_nowait(changes)  # type: ignore[arg-type]
        assert pipeline.append_nowait(memoryview(changes))  # type: ignore[arg-type]
        changes[:] = b"!" * 9
        await pipeline.drain()
    assert double.log.payloads == [b"as it was"] * 4
    assert [w.count for w in double.writes] == [4]


async def test_records_with_another_txid_travel_apart() -> None:
    rows: list[dlog.BatchResult] = []
    async with Double() as double, dlog.connect(double.target) as client:
        pipeline = client.pipeline("s", rows.append)
        for txid in (7, 7, 8, None):
            assert pipeline.append_nowait(b"x", txid=txid)
        await pipeline.drain()
    assert [(w.count, w.txid) for w in double.writes] == [(2, 7), (1, 8), (1, None)]
    assert [(r.index, r.count) for r in rows] == [(0, 2), (2, 1), (3, 1)]


async def test_others_share_the_batch_and_each_hears_of_its_own_records() -> None:
    rows: dict[str, list[dlog.BatchResult]] = {"a": [], "b": []}
    async with Double() as double, dlog.connect(double.target) as client, asyncio.TaskGroup() as group:
        one, two = client.pipeline("s", rows["a"].append), client.pipeline("s", rows["b"].append)
        assert one.append_nowait(b"a0")
        assert one.append_nowait(b"a1")
        task = group.create_task(client.append("s", b"single"))
        await asyncio.sleep(0)
        assert two.append_nowait(b"b0")
        assert one.append_nowait(b"a2")
        await one.drain()
        await two.drain()
    assert double.log.payloads == [b"a0", b"a1", b"single", b"b0", b"a2"]
    assert task.result() == of(1, 0, 2)
    assert [(r.index, r.count, r.first) for r in rows["a"]] == [(0, 2, of(1, 0, 0)), (2, 1, of(1, 0, 4))]
    assert [(r.index, r.count, r.first) for r in rows["b"]] == [(0, 1, of(1, 0, 3))]


async def test_rows_told_may_make_room_for_the_next_record() -> None:
    """A window of three records, kept full from inside the callback of the answers."""
    async with Double() as double, dlog.connect(double.target) as client:
        sent = 0

        def refill(row: dlog.BatchResult) -> None:
            nonlocal sent
            for _ in range(row.count):
                if sent < 60:
                    assert pipeline.append_nowait(b"%d" % sent)
                    sent += 1

        pipeline = client.pipeline("s", refill)
        for _ in range(3):
            assert pipeline.append_nowait(b"%d" % sent)
            sent += 1
        await double.wait(lambda: len(double.log.payloads) == 60)
        await pipeline.drain()
    assert double.log.payloads == [b"%d" % n for n in range(60)]
    assert max(w.count for w in double.writes) <= 3


async def test_the_first_failure_ends_it_and_rows_before_it_were_told() -> None:
    rows: list[dlog.BatchResult] = []
    async with Double(script=out_of_order(3)) as double, dlog.connect(double.target) as client:
        pipeline = client.pipeline("s", rows.append)
        for txid in (1, 1, 3, 4):
            assert pipeline.append_nowait(b"%d" % txid, txid=txid)
        with pytest.raises(TxidOutOfOrderError):
            await pipeline.drain()
        for call in (pipeline.drain, pipeline.room):
            with pytest.raises(TxidOutOfOrderError):
                await call()
        with pytest.raises(TxidOutOfOrderError):
            pipeline.append_nowait(b"x", txid=4)
        with pytest.raises(TxidOutOfOrderError):
            await pipeline.put([b"x"])
        await client.append("s", b"another's", txid=5)
    assert [(r.index, r.count) for r in rows] == [(0, 2)]
    assert double.log.payloads == [b"1", b"1", b"another's"]


async def test_a_failure_is_heard_at_the_next_record_even_within_a_lot() -> None:
    holding = Holding()
    async with Double(script=holding) as double, dlog.connect(double.target) as client, asyncio.TaskGroup() as group:
        pipeline = client.pipeline("s")
        assert pipeline.append_nowait(b"refused")
        drain = group.create_task(error_of(pipeline.drain()))
        await double.wait(lambda: len(double.writes) == 1)
        assert pipeline.append_nowait(b"begins a lot")
        [(peer, write)] = holding.held
        peer.send(proxy.Failed(write.request, 413, "refused by the test"))
        assert isinstance(await drain, RecordTooLargeError)
        with pytest.raises(RecordTooLargeError):
            pipeline.append_nowait(b"x")
        await client.close(orderly=False)  # the record that began a lot gets no answer


async def test_silence_ends_in_an_unknown_outcome() -> None:
    async with Double(script=Holding()) as double, dlog.connect(double.target, append_deadline_s=2.0) as client:
        pipeline = client.pipeline("s")
        assert pipeline.append_nowait(b"a")
        with pytest.raises(RequestTimeoutError) as caught:
            await pipeline.drain()
        assert caught.value.outcome_unknown


async def test_closing_fails_what_is_not_answered() -> None:
    async with Double(script=Holding()) as double, dlog.connect(double.target) as client:
        pipeline = client.pipeline("s")
        assert pipeline.append_nowait(b"a")
        await double.wait(lambda: len(double.writes) == 1)
        assert pipeline.append_nowait(b"b")
        await client.close(orderly=False)
        with pytest.raises(ClosedError) as caught:
            pipeline.append_nowait(b"c")
        assert caught.value.outcome_unknown


async def test_a_cancelled_drain_loses_nothing() -> None:
    holding = Holding()
    async with Double(script=holding) as double, dlog.connect(double.target) as client, asyncio.TaskGroup() as group:
        pipeline = client.pipeline("s")
        assert pipeline.append_nowait(b"a")
        leaves = group.create_task(pipeline.drain())
        await double.wait(lambda: len(double.writes) == 1)
        leaves.cancel()
        await asyncio.wait((leaves,))
        holding.let_go()
        await pipeline.drain()
    assert double.log.payloads == [b"a"]


async def test_drain_waits_for_what_was_taken_before_it_only() -> None:
    """Another source that never pauses does not keep a drain waiting for ever."""
    async with Double() as double, dlog.connect(double.target) as client, asyncio.TaskGroup() as group:
        pipeline = client.pipeline("s")

        async def never_pauses() -> None:
            while True:
                pipeline.append_nowait(b"more")
                await asyncio.sleep(0)

        source = group.create_task(never_pauses())
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await pipeline.drain()
        source.cancel()


async def test_what_the_listener_raises_ends_the_pipeline_and_nothing_else() -> None:
    def listen(row: dlog.BatchResult) -> None:
        raise ZeroDivisionError(row.index)

    async with Double() as double, dlog.connect(double.target) as client:
        pipeline = client.pipeline("s", listen)
        assert pipeline.append_nowait(b"a")
        with pytest.raises(ZeroDivisionError):
            await pipeline.drain()
        with pytest.raises(ZeroDivisionError):
            pipeline.append_nowait(b"b")
        await client.append("s", b"c")
    assert double.log.payloads == [b"a", b"c"]


async def test_a_repetition_whose_place_is_forgotten_is_told_without_a_place() -> None:
    log = Log()

    def write_and_die(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Write):
            log.write(message)
            log.places.clear()
            peer.double.stop()
            return True
        return False

    rows: list[dlog.BatchResult] = []
    async with (
        Double(log, script=write_and_die) as first,
        Double(log) as second,
        dlog.connect(f"dlog://{first.address},{second.address}") as client,
    ):
        pipeline = client.pipeline("s", rows.append)
        assert pipeline.append_nowait(b"a")
        assert pipeline.append_nowait(b"b")
        await pipeline.drain()
    assert log.payloads == [b"a", b"b"]
    assert [(r.first, r.last, r.count, r.duplicate) for r in rows] == [(DLSN_INVALID, DLSN_INVALID, 2, True)]


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 1), st.integers(0, 40), st.sampled_from((None, None, None, 7))),
            st.tuples(st.just("put"), st.integers(0, 1), st.integers(1, 4), st.none()),
            st.tuples(st.just("single"), st.just(0), st.integers(0, 40), st.none()),
            st.tuples(st.just("turns"), st.just(0), st.integers(1, 4), st.none()),
        ),
        max_size=60,
    ),
    batch_bytes_max=st.integers(1, 100),
    buffer_bytes_max=st.integers(1, 300),
)
def test_rows_say_of_each_record_where_it_lies(
    steps: list[tuple[str, int, int, Any]], batch_bytes_max: int, buffer_bytes_max: int
) -> None:
    """Two pipelines and awaited appends in one stream: in any mix, every record is answered once, with its position."""
    asyncio.run(_mix(steps, batch_bytes_max, buffer_bytes_max))


async def _mix(steps: list[tuple[str, int, int, Any]], batch_bytes_max: int, buffer_bytes_max: int) -> None:
    sent: tuple[list[bytes], list[bytes]] = ([], [])
    rows: tuple[list[dlog.BatchResult], list[dlog.BatchResult]] = ([], [])
    singles: dict[bytes, asyncio.Task[dlog.DLSN]] = {}
    async with (
        Double() as double,
        dlog.connect(double.target, batch_bytes_max=batch_bytes_max, buffer_bytes_max=buffer_bytes_max) as client,
        asyncio.TaskGroup() as group,
    ):
        pipelines = [client.pipeline("s", told.append) for told in rows]
        for number, (what, who, size, txid) in enumerate(steps):
            name = b"%d:" % number
            match what:
                case "append":
                    record = name + bytes(size)
                    while not pipelines[who].append_nowait(record, txid=txid):
                        await pipelines[who].room()
                    sent[who].append(record)
                case "put":
                    batch = [b"%b%d" % (name, n) for n in range(size)]
                    await pipelines[who].put(batch, txid=txid)
                    sent[who].extend(batch)
                case "single":
                    singles[name] = group.create_task(client.append("s", name + bytes(size)))
                case _:
                    for _ in range(size):
                        await asyncio.sleep(0)
        for pipeline in pipelines:
            await pipeline.drain()
        if singles:
            await asyncio.wait(singles.values())
        places = {record.dlsn: record.payload async for record in client.read("s")}
        assert client._producers["s"].queue.room.held == 0, "all that was taken was given back"
    for records, told in zip(sent, rows, strict=True):
        index = 0
        for row in told:
            assert row.index == index
            assert row.last == row.first.next_slot(row.count - 1)
            for n in range(row.count):
                assert places.pop(row.first.next_slot(n)) == records[index + n]
            index += row.count
        assert index == len(records)
    for name, task in singles.items():
        assert places.pop(task.result()).startswith(name)
    assert not places


# ---- as a block -----------------------------------------------------------------------------------------------------


async def test_the_end_of_the_block_waits_for_all_records() -> None:
    rows: list[dlog.BatchResult] = []
    async with (
        Double() as double,
        dlog.connect(double.target, buffer_bytes_max=1000) as client,
    ):
        async with client.pipeline("s", rows.append) as pipeline:
            for n in range(500):  # more than the buffer takes
                await pipeline.append(b"%06d" % n)
        assert sum(row.count for row in rows) == 500
        with pytest.raises(ClosedError, match="block"):
            await pipeline.append(b"late")
    assert double.log.payloads == [b"%06d" % n for n in range(500)]


async def test_the_end_of_the_block_raises_the_first_failure() -> None:
    async with Double(script=out_of_order(3)) as double, dlog.connect(double.target) as client:
        with pytest.raises(TxidOutOfOrderError) as error:
            async with client.pipeline("s") as pipeline:
                for txid in (1, 3, 4):
                    await pipeline.append(b"%d" % txid, txid=txid)
        assert [(fate.index, fate.outcome) for fate in error.value.fates] == [
            (1, dlog.Outcome.NOT_WRITTEN),
            (2, dlog.Outcome.NOT_WRITTEN),
        ]
    assert double.log.payloads == [b"1"]


@pytest.mark.parametrize("how", ["error", "cancelled", "cancelled at its end"])
async def test_a_block_that_is_left_by_an_exception_sends_nothing_more_and_does_not_hide_it(how: str) -> None:
    """Records that were sent may be written; their outcome is not reported any more."""
    holding = Holding()
    rows: list[dlog.BatchResult] = []

    async def write(client: dlog.Client) -> None:
        async with client.pipeline("s", rows.append) as pipeline:
            await pipeline.append(b"sent")
            await double.wait(lambda: len(double.writes) == 1)
            await pipeline.append(b"not sent")
            if how == "error":
                raise KeyError("of the program")
            if how == "cancelled":
                await asyncio.Event().wait()

    async with Double(script=holding) as double, dlog.connect(double.target) as client:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(error_of(write(client)))
            if how != "error":
                await double.wait(lambda: len(double.writes) == 1)
                await asyncio.sleep(0)
                task.cancel()
        assert isinstance(task.result(), KeyError if how == "error" else asyncio.CancelledError)
        holding.let_go()
        await client.append("s", b"another's")
    assert double.log.payloads == [b"sent", b"another's"]
    assert rows == []


async def test_a_failure_within_the_block_is_raised_as_it_is() -> None:
    async with Double(script=failing(1, TxidOutOfOrderError.code)) as double, dlog.connect(double.target) as client:
        with pytest.raises(TxidOutOfOrderError) as error:
            async with client.pipeline("s") as pipeline:
                await pipeline.append(b"a")
                await pipeline.drain()
        assert len(error.value.fates) == 1
