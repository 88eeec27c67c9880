"""Tests appends: gathered, sent in order, answered once, whatever the proxy does."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import dlog
from dlog.client.client import Client
from dlog.errors import (
    ClosedError,
    InvalidRequestError,
    ProducerUnknownError,
    RecordTooLargeError,
    RequestTimeoutError,
    StreamNotFoundError,
    TxidOutOfOrderError,
)
from dlog.model.dlsn import DLSN_INVALID, of
from dlog.wire import proxy
from tests.unit.client.proxy_double import Double, Log, Peer
from tests.unit.client.scripts import Holding, error_of, failing, out_of_order

Append = Callable[[Client], "asyncio.Task[dlog.DLSN]"]


async def appended(client: Client, *payloads: bytes, txid: int | None = None) -> list[dlog.DLSN]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.append("s", p, txid=txid)) for p in payloads]
    return [task.result() for task in tasks]


async def test_appends_of_one_turn_travel_together() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        places = await appended(client, b"a", b"b", b"c")
    assert places == [of(1, 0, 0), of(1, 0, 1), of(1, 0, 2)]
    assert [w.count for w in double.writes] == [3]
    assert double.log.payloads == [b"a", b"b", b"c"]


async def test_a_batch_grows_while_the_pipe_is_busy_and_goes_when_there_is_room() -> None:
    holding = Holding()
    async with Double(script=holding) as double, dlog.connect(double.target) as client, asyncio.TaskGroup() as group:
        group.create_task(client.append("s", b"first"))
        await double.wait(lambda: len(double.writes) == 1)
        for n in range(50):
            group.create_task(client.append("s", b"%d" % n))
        await asyncio.sleep(0)
        holding.let_go()
    assert [w.count for w in double.writes] == [1, 50]


async def test_a_full_batch_does_not_wait() -> None:
    holding = Holding()
    async with Double() as double, dlog.connect(double.target, batch_bytes_max=100) as client:
        await client.append("s", b"the owner is found")
        double.script = holding
        async with asyncio.TaskGroup() as group:
            for n in range(10):
                group.create_task(client.append("s", b"x" * 40 + b"%d" % n))
            await double.wait(lambda: len(double.writes) == 5)  # the fifth may get more records, and waits
            holding.let_go()
    assert [w.count for w in double.writes[1:]] == [2] * 5


async def test_records_with_another_txid_travel_apart() -> None:
    async with Double() as double, dlog.connect(double.target) as client, asyncio.TaskGroup() as group:
        for txid in (7, 7, 8):
            group.create_task(client.append("s", b"x", txid=txid))
    assert [(w.count, w.txid) for w in double.writes] == [(2, 7), (1, 8)]


async def test_sequences_count_records() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        for size in (2, 3, 1):
            await client.append_batch("s", [b"x"] * size)
    assert [w.sequence for w in double.writes] == [0, 2, 5]
    assert len({w.producer for w in double.writes}) == 1


@pytest.mark.parametrize(("window", "option", "in_flight"), [(None, 64, 5), (2, 64, 2), (16, 64, 16), (16, 7, 7)])
async def test_as_many_batches_are_in_flight_as_the_owner_told_last(
    window: int | None, option: int, in_flight: int
) -> None:
    holding = Holding()
    async with Double() as double, dlog.connect(double.target, inflight_batches_max=option) as client:
        double.log.window = window
        await client.append("s", b"the owner is found")
        double.script = holding
        async with asyncio.TaskGroup() as group:
            for n in range(20):
                group.create_task(client.append_batch("s", [b"x"], txid=n))  # other txids: they are not joined
            await double.wait(lambda: len(double.writes) >= 1 + in_flight)
            await client.incarnation("s")  # the answer to a later request
            assert len(double.writes) == 1 + in_flight
            holding.let_go()
    assert len(double.log.payloads) == 21


async def test_batches_that_wait_behind_others_travel_together_and_each_hears_its_own_place() -> None:
    holding = Holding()
    async with (
        Double() as double,
        dlog.connect(double.target, batch_bytes_max=55, inflight_batches_max=1) as client,
    ):
        await client.append("s", b"the owner is found")
        double.script = holding
        async with asyncio.TaskGroup() as group:
            first = group.create_task(client.append_batch("s", [b"first"]))
            await double.wait(lambda: len(double.writes) == 2)
            given = [[b"a", b"b"], [b"c"], [b"d" * 30], [b"e", b"f"], [b"g"]]
            txids = [None, None, None, None, 7]
            batches = [
                group.create_task(client.append_batch("s", batch, txid=txid))
                for batch, txid in zip(given, txids, strict=True)
            ]
            await asyncio.sleep(0)
            holding.let_go()
    assert first.result().first == of(1, 1, 0)
    assert [(w.count, w.txid) for w in double.writes[2:]] == [(4, None), (2, None), (1, 7)]  # full, then another txid
    told = [(b.result().first, b.result().last, b.result().count) for b in batches]
    assert told == [
        (of(1, 2, 0), of(1, 2, 1), 2),
        (of(1, 2, 2), of(1, 2, 2), 1),
        (of(1, 2, 3), of(1, 2, 3), 1),
        (of(1, 3, 0), of(1, 3, 1), 2),
        (of(1, 4, 0), of(1, 4, 0), 1),
    ]
    assert double.log.payloads[2:] == [record for batch in given for record in batch]


async def test_a_batch_that_has_waited_long_takes_no_other_along_into_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.client.batch_queue.JOIN_SHARE", 0.0)
    holding = Holding()
    async with Double() as double, dlog.connect(double.target, inflight_batches_max=1) as client:
        await client.append("s", b"the owner is found")
        double.script = holding
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(client.append_batch("s", [b"%d" % n]))
            await double.wait(lambda: len(double.writes) == 2)
            holding.let_go()
    assert [w.count for w in double.writes[1:]] == [1, 1, 1]


async def test_what_was_sent_before_is_joined_by_nothing() -> None:
    """A batch that may be written is sent again unchanged, also when it waits behind another."""
    log, lost, held = Log(), Holding(), Holding()
    async with (
        Double(log) as first,
        Double(log) as second,
        dlog.connect(f"dlog://{first.address},{second.address}") as client,
        asyncio.TaskGroup() as group,
    ):
        await client.append("s", b"the owner is found")
        owner, heir = (first, second) if first.writes else (second, first)
        owner.script, heir.script = lost, held
        group.create_task(client.append_batch("s", [b"0"]))
        await owner.wait(lambda: len(owner.writes) == 2)
        group.create_task(client.append_batch("s", [b"1"]))
        await owner.wait(lambda: len(owner.writes) == 3)
        owner.stop()
        await heir.wait(lambda: len(heir.writes) == 1)  # the first after a lost connection goes alone
        group.create_task(client.append_batch("s", [b"2"]))
        await asyncio.sleep(0)
        held.let_go()
    assert [(w.count, w.sequence, w.retry) for w in heir.writes] == [(1, 1, True), (1, 2, True), (1, 3, False)]


async def test_what_was_sent_to_a_killed_owner_is_sent_again_elsewhere_under_the_same_sequence() -> None:
    log, holding = Log(), Holding()
    async with (
        Double(log, script=holding) as first,
        Double(log) as second,
        dlog.connect(f"dlog://{first.address},{second.address}") as client,
    ):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(client.append_batch("s", [b"a", b"b"]))
            await first.wait(lambda: len(first.writes) == 1)
            first.stop()
        assert task.result().first == of(1, 0, 0)
    [before], [after] = first.writes, second.writes
    assert (before.producer, before.sequence, before.retry) == (after.producer, after.sequence, False)
    assert after.retry
    [owner] = second.of(proxy.GetOwner)
    assert owner.suspect == first.address  # type: ignore[union-attr]


async def test_a_batch_whose_answer_was_lost_is_written_once() -> None:
    log = Log()

    def write_and_die(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Write):
            log.write(message)
            peer.double.stop()
            return True
        return False

    async with (
        Double(log, script=write_and_die) as first,
        Double(log) as second,
        dlog.connect(f"dlog://{first.address},{second.address}") as client,
    ):
        result = await client.append_batch("s", [b"a", b"b"])
    assert log.payloads == [b"a", b"b"]
    assert result.duplicate
    assert (result.first, result.last) == (of(1, 0, 0), of(1, 0, 1))


async def test_a_repetition_whose_place_is_forgotten_is_a_success_without_a_place() -> None:
    log = Log()

    def write_and_die(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Write):
            log.write(message)
            log.places.clear()
            peer.double.stop()
            return True
        return False

    async with (
        Double(log, script=write_and_die) as first,
        Double(log) as second,
        dlog.connect(f"dlog://{first.address},{second.address}") as client,
    ):
        assert await client.append("s", b"a") == DLSN_INVALID
    assert log.payloads == [b"a"]


async def test_a_redirect_is_followed_and_remembered() -> None:
    log = Log()
    async with (
        Double(log) as owner,
        Double(log, script=failing(99, 302, location=owner.address)) as stranger,
        dlog.connect(stranger.target) as client,
    ):
        await client.append("s", b"a")
        await client.append("s", b"b")
    assert len(stranger.writes) == 1
    assert [w.retry for w in owner.writes] == [False, False]
    assert log.payloads == [b"a", b"b"]


async def test_an_overloaded_owner_is_asked_again() -> None:
    async with Double(script=failing(3, 517)) as double, dlog.connect(double.target) as client:
        await client.append("s", b"a")
    assert [w.sequence for w in double.writes] == [0, 0, 0, 0]
    assert not any(w.retry for w in double.writes), "a refused batch was certainly not written"
    assert double.log.payloads == [b"a"]


async def test_the_first_batch_for_an_owner_goes_alone() -> None:
    """Otherwise a refusal of the first and an acceptance of the second would change their order."""
    async with Double(script=failing(1, 517)) as double, dlog.connect(double.target, batch_bytes_max=10) as client:
        await appended(client, *(b"%08d" % n for n in range(9)))
    assert double.log.payloads == [b"%08d" % n for n in range(9)]


async def test_a_refused_batch_fails_alone_and_those_behind_it_go_on_under_a_new_producer() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        await client.append("s", b"0")
        double.script = out_of_order(3)
        tasks = [asyncio.ensure_future(client.append("s", b"%d" % n, txid=n)) for n in (5, 3, 6, 7)]  # noqa: TID251
        await asyncio.wait(tasks)
    assert [type(t.exception()) for t in tasks] == [type(None), TxidOutOfOrderError, type(None), type(None)]
    assert double.log.payloads == [b"0", b"5", b"6", b"7"]
    assert len({w.producer for w in double.writes}) == 2


async def test_a_forgotten_producer_goes_on_under_a_new_id_when_nothing_is_in_doubt() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        await client.append("s", b"a")
        double.script = failing(1, 535)
        await client.append("s", b"b")
    assert double.log.payloads == [b"a", b"b"]
    assert double.writes[0].producer != double.writes[-1].producer


async def test_a_new_producer_says_since_when_it_writes_and_its_batches_say_the_same() -> None:
    def refuse(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Write) or message.since is not None:
            return False
        peer.send(proxy.Failed(message.request, 535, "not remembered", detail={"since": [4, 7, 0]}))
        return True

    async with Double(script=refuse) as double, dlog.connect(double.target) as client:
        await client.append("s", b"a")
        await client.append("s", b"b")
    refused, first, second = double.writes
    assert double.log.payloads == [b"a", b"b"]
    assert (refused.since, first.since, second.since) == (None, (4, 7, 0), (4, 7, 0))
    assert (refused.sequence, first.sequence, second.sequence) == (0, 0, 1)
    assert refused.producer != first.producer == second.producer


async def test_an_owner_tells_a_new_producer_since_when_it_writes() -> None:
    def tell(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.GetOwner):
            return False
        peer.send(proxy.Done(message.request, {"location": peer.double.address, "since": [2, 9, 0]}))
        return True

    async with Double(script=tell) as double, dlog.connect(double.target) as client:
        await client.append("s", b"a")
        await client.append("s", b"b")
    assert [w.since for w in double.writes] == [(2, 9, 0)] * 2


async def test_a_producer_that_begins_anew_knows_since_when_from_what_it_wrote() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        await client.append("s", b"a")
        place = await client.append("s", b"b")
        double.script = failing(1, 535)
        await client.append("s", b"c")
    assert double.writes[-1].since == (place.segment, place.entry, 0)
    assert [w.since for w in double.writes[:-1]] == [None] * 3


async def test_a_forgotten_producer_whose_batch_is_in_doubt_says_so() -> None:
    log, holding = Log(), Holding()
    async with (
        Double(log, script=holding) as first,
        Double(log, script=failing(1, 535)) as second,
        dlog.connect(f"dlog://{first.address},{second.address}") as client,
    ):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(error_of(client.append("s", b"a")))
            await first.wait(lambda: len(first.writes) == 1)
            first.stop()
        error = task.result()
        assert isinstance(error, ProducerUnknownError)
        assert error.outcome_unknown
        await client.append("s", b"b")
    assert log.payloads == [b"b"]


async def test_silence_ends_in_an_unknown_outcome() -> None:
    holding = Holding()
    async with Double(script=holding) as double, dlog.connect(double.target, append_deadline_s=2.0) as client:
        with pytest.raises(RequestTimeoutError) as caught:
            await client.append("s", b"a")
        assert caught.value.outcome_unknown
        holding.on = False
        await client.append("s", b"b")  # the stream is still usable, under a new producer
    assert double.log.payloads == [b"b"]
    assert double.writes[0].producer != double.writes[-1].producer


async def test_what_was_never_sent_fails_as_not_written() -> None:
    async with Double() as double:
        pass  # stopped: its port is closed
    async with dlog.connect(double.target, append_deadline_s=2.0) as client:
        with pytest.raises(RequestTimeoutError, match=r"not written.*connection refused") as caught:
            await client.append("s", b"a")
        assert not caught.value.outcome_unknown


async def test_a_silent_connection_is_given_up_and_the_proxy_suspected() -> None:
    log = Log()

    def frozen(peer: Peer, message: proxy.Message) -> bool:
        return isinstance(message, proxy.Write | proxy.Ping)

    async with Double(log, script=frozen) as first, Double(log) as second:
        target = f"dlog://{first.address},{second.address}"
        async with dlog.connect(target, ping_after_s=0.02, lost_after_s=0.05) as client:
            await client.append("s", b"a")
    assert first.of(proxy.Ping)
    assert log.payloads == [b"a"]
    assert [m.suspect for m in second.of(proxy.GetOwner)] == [first.address]  # type: ignore[union-attr]


async def test_a_cancelled_append_forgets_the_waiter_only() -> None:
    holding = Holding()
    async with Double(script=holding) as double, dlog.connect(double.target) as client, asyncio.TaskGroup() as group:
        stays = group.create_task(client.append("s", b"a"))
        leaves = group.create_task(client.append("s", b"b"))
        await double.wait(lambda: len(double.writes) == 1)
        leaves.cancel()
        await asyncio.wait((leaves,))
        assert leaves.cancelled()
        assert not stays.done()
        holding.let_go()
    assert stays.result() == of(1, 0, 0)
    assert double.log.payloads == [b"a", b"b"]


async def test_an_append_waits_for_room_and_records_stay_in_order() -> None:
    holding = Holding()
    async with (
        Double(script=holding) as double,
        dlog.connect(double.target, buffer_bytes_max=40, batch_bytes_max=20) as client,
        asyncio.TaskGroup() as group,
    ):
        for n in range(20):
            group.create_task(client.append("s", b"%010d" % n))
        await double.wait(lambda: len(double.writes) == 1)
        taken = client._producers["s"].queue.room.held
        holding.let_go()
    assert taken <= 40 + 14
    assert double.log.payloads == [b"%010d" % n for n in range(20)]


@pytest.mark.parametrize("before", [1, 7])
async def test_nobody_who_waits_for_room_is_overtaken(before: int) -> None:
    """Later appends do not overtake either, even when they come while waiting ones are admitted one after the other."""
    holding = Holding()
    records = [b"%010d" % n for n in range(60)]
    async with (
        Double(script=holding) as double,
        dlog.connect(double.target, buffer_bytes_max=40, batch_bytes_max=200) as client,
        asyncio.TaskGroup() as group,
    ):
        for record in records[: 3 + before]:
            group.create_task(client.append("s", record))
        await double.wait(lambda: len(double.writes) == 1)
        holding.let_go()
        for record in records[3 + before :]:
            group.create_task(client.append("s", record))
            await asyncio.sleep(0)
    assert double.log.payloads == records


async def test_a_forked_child_may_not_use_its_parents_client() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        await client.append("s", b"a")
        child = os.fork()
        if child == 0:
            try:
                client.append("s", b"b").send(None)
            except ClosedError:
                os._exit(7)
            finally:
                os._exit(1)
        status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status[1]) == 7
        await client.append("s", b"c")
    assert double.log.payloads == [b"a", b"c"]


@pytest.mark.parametrize("through", ["a loan", "a new loan", "a batch"])
async def test_a_forked_child_sends_nothing_through_a_pipeline_of_its_parent(through: str) -> None:
    """It would be acknowledged to the parent in place of the parent's next record."""
    async with Double() as double, dlog.connect(double.target) as client:
        await client.append("s", b"0")
        pipeline = client.pipeline("s")
        assert pipeline.append_nowait(b"a")
        if through != "a loan":
            await pipeline.drain()
        child = os.fork()
        if child == 0:
            try:
                with suppress(ClosedError, StopIteration):
                    if through == "a batch":
                        pipeline.put([b"child's"]).send(None)
                    pipeline.append_nowait(b"child's")
                producer = client._producers["s"]
                producer._pump()
                assert producer._session is not None
                producer._session.connection._flush()
                try:
                    pipeline.drain().send(None)
                except ClosedError as error:
                    os._exit(7 if error.outcome_unknown else 8)
                except StopIteration:
                    os._exit(7 if through != "a loan" else 9)  # all records were written before the fork
            finally:
                os._exit(1)
        status = await asyncio.to_thread(os.waitpid, child, 0)
        await pipeline.drain()
        dlsn = await client.append("s", b"b")
        assert double.log.at(dlsn, 1) == [b"b"]
    assert double.log.payloads == [b"0", b"a", b"b"]
    assert os.waitstatus_to_exitcode(status[1]) == 7


async def test_a_waiter_for_room_that_leaves_passes_its_turn_on() -> None:
    holding = Holding()
    async with (
        Double(script=holding) as double,
        dlog.connect(double.target, buffer_bytes_max=1) as client,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(client.append("s", b"first"))
        await double.wait(lambda: len(double.writes) == 1)
        leaves = group.create_task(client.append("s", b"second"))
        group.create_task(client.append("s", b"third"))
        await asyncio.sleep(0)
        leaves.cancel()
        holding.let_go()
    assert double.log.payloads == [b"first", b"third"]


async def test_a_draining_owner_answers_what_it_has_and_the_next_batch_goes_elsewhere() -> None:
    log, holding = Log(), Holding()
    async with (
        Double(log, script=holding) as first,
        Double(log) as second,
        dlog.connect(f"dlog://{first.address},{second.address}") as client,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(client.append("s", b"a"))
        await first.wait(lambda: len(first.writes) == 1)
        peer, write = holding.held[0]
        peer.send(proxy.GoAway(0, "drain", second.address))
        second.owner = second.address
        first.owner = second.address
        group.create_task(client.append("s", b"b"))
        peer.send(log.write(write))
    assert log.payloads == [b"a", b"b"]
    assert [w.retry for w in second.writes] == [False]


async def test_misuse_is_told_at_once() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        with pytest.raises(RecordTooLargeError):
            await client.append("s", b"x" * 1_040_345)
        with pytest.raises(RecordTooLargeError, match="split it"):
            await client.append_batch("s", [b"x" * 600_000] * 2)
        with pytest.raises(InvalidRequestError, match="at least one record"):
            await client.append_batch("s", [])
        with pytest.raises(InvalidRequestError, match="encode it first"):
            await client.append("s", "text")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="transaction id"):
            await client.append("s", b"x", txid=-1)
        with pytest.raises(InvalidRequestError, match="stream name"):
            await client.append("a/b", b"x")
        assert await client.append("s", b"x" * 1_040_344) == of(1, 0, 0)
    assert len(double.writes) == 1
    with pytest.raises(ClosedError):
        await client.append("s", b"x")


async def test_a_stream_that_is_not_there_fails_every_append() -> None:
    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.GetOwner):
            peer.send(proxy.Failed(message.request, 510, "no such stream"))
            return True
        return False

    async with Double(script=script) as double, dlog.connect(double.target) as client:
        with pytest.raises(StreamNotFoundError):
            await client.append("s", b"x")


async def test_closing_says_of_each_append_what_is_known() -> None:
    holding = Holding()
    async with Double(script=holding) as double, dlog.connect(double.target, batch_bytes_max=10) as client:
        tasks = [asyncio.ensure_future(client.append("s", b"12345678")) for _ in range(2)]  # noqa: TID251
        await double.wait(lambda: len(double.writes) == 1)
        await client.close(orderly=False)
        await asyncio.wait(tasks)
    errors = [t.exception() for t in tasks]
    assert [isinstance(e, ClosedError) and e.outcome_unknown for e in errors] == [True, False]


async def test_append_many_tells_where_everything_lies() -> None:
    told: list[dlog.BatchResult] = []
    async with Double() as double, dlog.connect(double.target, batch_bytes_max=100) as client:
        summary = await client.append_many("s", (b"%04d" % n for n in range(100)), on_written=told.append)
        nothing = await client.append_many("s", [])
    assert double.log.payloads == [b"%04d" % n for n in range(100)]
    places = [place for row in told for place in row.dlsns()]
    assert places[:13] == [of(1, 0, n) for n in range(12)] + [of(1, 1, 0)]
    assert (summary.count, summary.first, summary.last) == (100, places[0], places[-1])
    assert (nothing.count, nothing.first, nothing.last) == (0, None, None)


async def test_append_many_of_records_without_end_holds_no_more_the_longer_it_lasts() -> None:
    held: list[int] = []

    def endless() -> Iterator[bytes]:
        for n in range(300):
            if n == 299:
                gc.collect()
                held.append(sum(type(thing) is dlog.BatchResult for thing in gc.get_objects()))
            yield b"%05d" % n

    async with Double() as double, dlog.connect(double.target, batch_bytes_max=1, buffer_bytes_max=1) as client:
        await client.append_many("s", endless())
    assert len(double.writes) == 300
    assert held[0] < 10, "one for each batch would be some 300"


async def test_append_many_stops_at_the_first_failure() -> None:
    async with Double() as double, dlog.connect(double.target, batch_bytes_max=20) as client:
        double.script = failing(99, 413)
        with pytest.raises(RecordTooLargeError):
            await client.append_many("s", [b"x" * 10] * 1000)
        await client.close(orderly=False)  # the others are still tried


async def test_a_producer_id_is_12_bytes_of_chance_and_a_generation() -> None:
    async with Double() as double:
        for stream in ("a", "b", "a"):
            async with dlog.connect(double.target) as client:
                await client.append(stream, b"x")
    ids = [write.producer for write in double.writes]
    assert [(len(name), name[12:]) for name in ids] == [(16, bytes(4))] * 3
    assert len({name[:12] for name in ids}) == 3
