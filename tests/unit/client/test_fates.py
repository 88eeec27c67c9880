"""What a client reports for records whose append failed: never "not written" for one that may be in the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

import dlog
from dlog.client.fate import Fate, Outcome
from dlog.errors import DLogError, InvalidRequestError, RequestTimeoutError, TxidOutOfOrderError
from dlog.model.dlsn import of
from dlog.wire import proxy
from dlog.wire.entry import parse_record_set
from tests.unit.client.proxy_double import Double, Log, Peer, Script
from tests.unit.client.scripts import ENDS, Holding, error_of, failing, out_of_order, source_of

FOR_GOOD = (400, 403, 413, 500, 502, 510, 512, 513, 521, 523, 531, 602)


def refusing(kind: type[proxy.Message], code: int, **extra: Any) -> Script:
    """Refuse every message of a kind."""

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, kind):
            peer.send(proxy.Failed(message.request, code, "refused by the script", **extra))  # type: ignore[union-attr]
            return True
        return False

    return script


def told(error: BaseException) -> list[tuple[int, int, Outcome]]:
    assert isinstance(error, DLogError)
    return [(fate.index, fate.count, fate.outcome) for fate in error.fates]


@pytest.mark.parametrize("code", FOR_GOOD)
@pytest.mark.parametrize("asked", [proxy.Write, proxy.GetOwner], ids=lambda kind: kind.__name__)
async def test_a_batch_that_may_be_written_fails_as_unknown_whoever_refuses_it_later(
    asked: type[proxy.Message], code: int
) -> None:
    log, holding = Log(), Holding()
    async with (
        Double(log, script=holding) as first,
        Double(log, script=refusing(asked, code)) as second,
        dlog.connect(f"dlog://{first.address},{second.address}") as client,
        asyncio.TaskGroup() as group,
    ):
        task = group.create_task(error_of(client.append("s", b"a")))
        await first.wait(lambda: len(first.writes) == 1)
        log.write(first.writes[0])  # it is in the log, and the answer is lost
        first.stop()
    error = task.result()
    assert isinstance(error, DLogError)
    assert (error.code, error.outcome_unknown) == (code, True)


@pytest.mark.parametrize("code", FOR_GOOD)
async def test_a_batch_that_was_refused_at_once_is_not_written(code: int) -> None:
    async with Double(script=failing(1, code)) as double, dlog.connect(double.target) as client:
        error = await error_of(client.append("s", b"a"))
    assert isinstance(error, DLogError)
    assert (error.code, error.outcome_unknown) == (code, False)


@pytest.mark.parametrize("code", FOR_GOOD)
async def test_a_question_that_may_be_carried_out_fails_as_unknown_whoever_refuses_it_later(code: int) -> None:
    tries = 0

    def script(peer: Peer, message: proxy.Message) -> bool:
        nonlocal tries
        if not isinstance(message, proxy.Seal):
            return False
        tries += 1
        if tries == 1:
            peer.cut()
        else:
            peer.send(proxy.Failed(message.request, code, "refused by the script"))
        return True

    async with Double(script=script) as double, dlog.connect(double.target) as client:
        error = await error_of(client.seal("s"))
    assert isinstance(error, DLogError)
    assert (error.code, error.outcome_unknown) == (code, True)


@pytest.mark.parametrize(("kind", "unknown"), [(proxy.Seal, True), (proxy.Stat, False)])
async def test_a_question_without_an_answer_is_unknown_only_if_it_changes_something(
    kind: type[proxy.Message], unknown: bool
) -> None:
    def mute(peer: Peer, message: proxy.Message) -> bool:
        return isinstance(message, kind)

    async with Double(script=mute) as double, dlog.connect(double.target, request_deadline_s=0.5) as client:
        error = await error_of(client.seal("s") if kind is proxy.Seal else client.stat("s"))
    assert isinstance(error, RequestTimeoutError)
    assert error.outcome_unknown is unknown


async def test_nothing_is_written_behind_a_refused_record_of_its_pipeline() -> None:
    """Neither records under way behind it nor waiting ones are written; the error says so, and sending them again is
    right."""
    rows: list[dlog.BatchResult] = []
    async with Double() as double, dlog.connect(double.target) as client:
        await client.append("s", b"0")
        double.script = out_of_order(3)
        pipeline = client.pipeline("s", rows.append)
        for txid in (5, 3, 6, 7, 8, 9, 10, 11):
            assert pipeline.append_nowait(b"%d" % txid, txid=txid)
        with pytest.raises(
            TxidOutOfOrderError, match="1 reported as written; of the others 0 written, 7 not written"
        ) as e:
            await pipeline.drain()
        await client.append("s", b"another's")
    assert double.log.payloads == [b"0", b"5", b"another's"]
    assert [(r.index, r.count) for r in rows] == [(0, 1)]
    assert not e.value.outcome_unknown
    assert {fate.outcome for fate in e.value.fates} == {Outcome.NOT_WRITTEN}
    assert (e.value.fates[0].index, sum(fate.count for fate in e.value.fates)) == (1, 7)
    assert pipeline.fates == e.value.fates


async def test_append_many_says_what_became_of_each_record() -> None:
    async with Double() as double, dlog.connect(double.target, batch_bytes_max=10) as client:
        await client.append("s", b"0")
        double.script = failing(1, 413)
        with pytest.raises(dlog.RecordTooLargeError) as e:
            await client.append_many("s", [b"%06d" % n for n in range(1000)])
        await client.append("s", b"another's")
    assert double.log.payloads == [b"0", b"another's"]
    assert not e.value.outcome_unknown
    assert e.value.fates[0].index == 0
    assert all(fate.outcome is Outcome.NOT_WRITTEN for fate in e.value.fates)


async def asynchronous(source: Iterable[Any]) -> AsyncIterator[Any]:
    for payload in source:
        yield payload


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("wrap", [iter, asynchronous])
async def test_what_ends_append_many_is_raised_when_the_records_before_it_are_written(ends: str, wrap: Any) -> None:
    rows: list[dlog.BatchResult] = []
    async with Double() as double, dlog.connect(double.target) as client:
        with pytest.raises(ENDS[ends]) as e:
            await client.append_many("s", wrap(source_of(ends)), on_written=rows.append)
        assert double.log.payloads == [b"0", b"1", b"2"]
        assert sum(row.count for row in rows) == 3
        await client.append("s", b"another's")
    text = "3 reported as written; of the others 0 written, 0 not written, 0 unknown"
    if isinstance(e.value, DLogError):
        assert (e.value.outcome_unknown, e.value.fates) == (False, ())
        assert text in e.value.message
    else:
        assert text in e.value.__notes__[0]
    assert double.log.payloads == [b"0", b"1", b"2", b"another's"]


@pytest.mark.parametrize("ends", ENDS)
async def test_a_record_that_fails_before_what_ends_append_many_is_its_failure(ends: str) -> None:
    async with Double(script=failing(1, 413)) as double, dlog.connect(double.target) as client:
        with pytest.raises(dlog.RecordTooLargeError, match="refused by the script") as e:
            await client.append_many("s", source_of(ends))
    assert told(e.value) == [(0, 3, Outcome.NOT_WRITTEN)]
    assert isinstance(e.value.__context__, ENDS[ends])


@pytest.mark.parametrize("ends", ENDS)
async def test_what_was_sent_before_an_end_of_append_many_and_has_no_reply_is_unknown(ends: str) -> None:
    holding = Holding()
    async with (
        Double(script=holding) as double,
        dlog.connect(double.target) as client,
        asyncio.TaskGroup() as group,
    ):
        task = group.create_task(error_of(client.append_many("s", source_of(ends))))
        await double.wait(lambda: bool(holding.held))
        assert not task.done()
        await client.close(orderly=False)
    error = task.result()
    assert isinstance(error, dlog.ClosedError)
    assert error.outcome_unknown
    assert told(error) == [(0, 3, Outcome.UNKNOWN)]


async def test_append_many_raises_its_failure_once() -> None:
    async with (
        Double(script=failing(1, 413)) as double,
        dlog.connect(double.target, buffer_bytes_max=100) as client,
    ):
        with pytest.raises(dlog.RecordTooLargeError) as e:
            await client.append_many("s", (b"%06d" % n for n in range(1000)))
    assert e.value.__context__ is None or e.value.__context__ is e.value.__cause__
    assert e.value.message.count("records of this pipeline") == 1


@pytest.mark.parametrize("fails", ["record", "listener"])
async def test_append_many_ends_after_a_failure_while_its_source_waits(fails: str) -> None:
    """As a source that makes a record for each one written: it waits for ever."""
    ended: list[str] = []

    async def source() -> AsyncIterator[bytes]:
        try:
            yield b"a"
            yield b"b"
            await asyncio.Event().wait()
        finally:
            ended.append("source")

    def listen(row: dlog.BatchResult) -> None:
        raise ZeroDivisionError

    script = failing(1, 413) if fails == "record" else None
    async with Double(script=script) as double, dlog.connect(double.target) as client:
        async with asyncio.timeout(60.0):
            error = await error_of(client.append_many("s", source(), on_written=listen))
        assert await client.append("s", b"c")
    assert isinstance(error, dlog.RecordTooLargeError if fails == "record" else ZeroDivisionError), error
    if fails == "record":
        assert told(error) == [(0, 2, Outcome.NOT_WRITTEN)]
    assert ended == ["source"]
    assert double.log.payloads == ([b"c"] if fails == "record" else [b"a", b"b", b"c"])


async def test_a_timeout_of_the_source_is_no_failure_of_a_record() -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"a"
        raise TimeoutError("of the source")

    async with Double() as double, dlog.connect(double.target) as client:
        error = await error_of(client.append_many("s", source()))
    assert isinstance(error, TimeoutError)
    assert error.args == ("of the source",)
    assert double.log.payloads == [b"a"]


async def test_a_record_that_was_written_behind_a_refused_one_is_told_with_its_place() -> None:
    def write(peer: Peer, message: proxy.Message) -> bool:
        """Write a batch as a log that accepts a producer's batch after a gap."""
        if not isinstance(message, proxy.Write):
            return False
        place = (1, len(peer.double.log.payloads), 0)
        peer.double.log.payloads += parse_record_set(message.body)
        peer.send(proxy.Written(message.request, message.request, place, message.txid or 0))
        return True

    rows: list[dlog.BatchResult] = []
    async with Double() as double, dlog.connect(double.target) as client:
        await client.append("s", b"0")
        double.script = out_of_order(3, write)
        pipeline = client.pipeline("s", rows.append)
        for txid in (3, 4):
            await pipeline.put([b"%d" % txid], txid=txid)
        with pytest.raises(TxidOutOfOrderError) as e:
            await pipeline.drain()
    assert double.log.payloads == [b"0", b"4"]
    assert not rows, "nothing is told out of order"
    assert told(e.value) == [(0, 1, Outcome.NOT_WRITTEN), (1, 1, Outcome.WRITTEN)]
    assert e.value.fates[1].result == dlog.BatchResult(of(1, 1, 0), of(1, 1, 0), 1, 4, index=1)
    assert e.value.outcome_unknown, "all that was not told may not be sent again"


async def test_the_failure_is_raised_when_what_is_under_way_behind_it_is_known() -> None:
    holding = Holding()
    async with Double() as double, dlog.connect(double.target) as client, asyncio.TaskGroup() as group:
        await client.append("s", b"0")
        double.script = out_of_order(3, holding)
        pipeline = client.pipeline("s")
        for txid in (3, 4):
            await pipeline.put([b"%d" % txid], txid=txid)
        task = group.create_task(error_of(pipeline.room()))
        await double.wait(lambda: bool(holding.held))
        await double.wait(lambda: not pipeline.append_nowait(b"x"))  # until the refusal has arrived
        assert not pipeline.append_nowait(b"x"), "nothing is taken any more, and what to say is not known yet"
        room = group.create_task(error_of(pipeline.room()))
        put = group.create_task(error_of(pipeline.put([b"x"])))
        await asyncio.sleep(0)
        assert not (room.done() or put.done())
        [(peer, write)] = holding.held
        peer.send(proxy.Failed(write.request, 530, "gap", detail={"expected": 1}))
    assert isinstance(task.result(), TxidOutOfOrderError) or task.result() is None
    assert isinstance(room.result(), TxidOutOfOrderError)
    assert isinstance(put.result(), TxidOutOfOrderError)
    assert double.log.payloads == [b"0"]


async def test_a_deadline_leaves_unknown_what_was_sent_and_sends_nothing_more() -> None:
    holding = Holding()
    async with (
        Double(script=holding) as double,
        dlog.connect(double.target, append_deadline_s=1.0, inflight_batches_max=2) as client,
    ):
        pipeline = client.pipeline("s")
        for n in range(5):
            assert pipeline.append_nowait(b"%d" % n, txid=n)
        with pytest.raises(RequestTimeoutError) as e:
            await pipeline.drain()
        holding.on = False
        await client.append("s", b"another's")
    assert e.value.outcome_unknown
    sent = len([w for w in double.writes if w.txid is not None])
    assert [fate.outcome for fate in e.value.fates] == [Outcome.UNKNOWN] * sent + [Outcome.NOT_WRITTEN] * (5 - sent)
    assert double.log.payloads == [b"another's"]


async def test_nothing_meant_for_a_deleted_stream_goes_to_the_next_of_that_name() -> None:
    async with Double() as double, dlog.connect(double.target, batch_bytes_max=10) as client:
        await client.append("s", b"0")
        double.script = failing(1, 510)  # the stream is deleted, and created again at once
        pipeline = client.pipeline("s")
        for n in range(8):
            assert pipeline.append_nowait(b"%06d" % n)
        single = asyncio.ensure_future(error_of(client.append("s", b"a single")))  # noqa: TID251
        await asyncio.sleep(0)
        with pytest.raises(dlog.StreamNotFoundError) as e:
            await pipeline.drain()
        assert isinstance(await single, dlog.StreamNotFoundError)
        await client.append("s", b"new")
    assert double.log.payloads == [b"0", b"new"]
    assert not e.value.outcome_unknown


async def test_a_batch_names_the_stream_it_is_meant_for_and_the_next_one_is_asked_for_after_a_refusal() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        await client.append("s", b"0")
        double.log = Log(incarnation="b2")  # deleted, and created again
        with pytest.raises(dlog.StreamNotFoundError) as e:
            await client.append("s", b"1")
        assert not e.value.outcome_unknown
        await client.append("s", b"new")
        assert double.log.payloads == [b"new"]
        assert [write.incarnation for write in double.writes] == ["a1", "a1", "b2"]
        assert double.writes[-1].since is None, "a place of the first stream says nothing of the second"
        await client.append("s", b"newer")
        assert len(double.of(proxy.GetOwner)) == 4, "for each stream: where its owner is, and which one it is"


async def test_others_in_the_same_batch_are_written_though_a_pipeline_withdraws_from_it() -> None:
    """Each source gets the answer for its own records; those of the failed pipeline are in no batch any more."""
    holding = Holding()
    rows: list[dlog.BatchResult] = []
    async with Double() as double, dlog.connect(double.target) as client, asyncio.TaskGroup() as group:
        await client.append("s", b"0")
        double.script = out_of_order(3, holding)
        fails, stays = client.pipeline("s"), client.pipeline("s", rows.append)
        blocks = [group.create_task(client.append("s", b"b%d" % n, txid=100 + n)) for n in range(2)]
        await asyncio.sleep(0)
        await fails.put([b"refused"], txid=3)
        for n in range(3):  # one batch of three sources
            assert fails.append_nowait(b"f%d" % n)
            assert stays.append_nowait(b"s%d" % n)
            blocks.append(group.create_task(client.append("s", b"t%d" % n)))
            await asyncio.sleep(0)
        failure = group.create_task(error_of(fails.drain()))
        await double.wait(lambda: len(holding.held) >= 2)
        holding.let_go()
        error = await failure
        await stays.drain()
    assert isinstance(error, TxidOutOfOrderError)
    assert not error.outcome_unknown
    assert sum(fate.count for fate in error.fates) == 4
    assert [p for p in double.log.payloads if p[:1] == b"f"] == []
    places = {record: place for place, record in _places(double.log)}
    assert [place for row in rows for place in _of(row)] == [places[b"s%d" % n] for n in range(3)]
    assert [task.result() for task in blocks[2:]] == [places[b"t%d" % n] for n in range(3)]


RAISED = (ZeroDivisionError, asyncio.CancelledError, GeneratorExit, SystemExit)


@pytest.mark.parametrize("kind", RAISED)
async def test_what_the_listener_raises_ends_the_writing_and_the_pipeline_says_what_became_of_the_rest(
    kind: type[BaseException],
) -> None:
    def listen(row: dlog.BatchResult) -> None:
        raise kind(row.index)

    async with Double() as double, dlog.connect(double.target, inflight_batches_max=1) as client:
        pipeline = client.pipeline("s", listen)
        for n in range(4):
            assert pipeline.append_nowait(b"%d" % n, txid=n)
        with pytest.raises(kind) as e:
            await pipeline.drain()
        await client.append("s", b"another's", txid=9)
    assert double.log.payloads == [b"0", b"another's"]
    assert pipeline.fates == tuple(Fate(n, 1, Outcome.NOT_WRITTEN) for n in (1, 2, 3))
    assert "1 reported as written; of the others 0 written, 3 not written, 0 unknown" in e.value.__notes__[0]


@pytest.mark.parametrize("kind", RAISED)
async def test_others_in_the_same_batch_get_their_reply_whatever_a_listener_raises(kind: type[BaseException]) -> None:
    def listen(row: dlog.BatchResult) -> None:
        raise kind

    async with Double() as double, dlog.connect(double.target) as client:
        pipeline = client.pipeline("s", listen)
        assert pipeline.append_nowait(b"a")
        async with asyncio.TaskGroup() as group:
            single = group.create_task(client.append("s", b"b"))
        with pytest.raises(kind):
            await pipeline.room()
        with pytest.raises(kind):
            await client.append_many("s", [b"c", b"d"], on_written=listen)
        await client.append("s", b"e")
        assert len(double.peers) == 1
    assert single.result() == of(1, 0, 1)
    assert double.log.payloads == [b"a", b"b", b"c", b"d", b"e"]


async def test_misuse_by_the_pipelines_own_caller_is_not_its_failure() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        pipeline = client.pipeline("s")
        with pytest.raises(InvalidRequestError) as e:
            pipeline.append_nowait("text")  # type: ignore[arg-type]
        assert e.value.fates == ()
        assert pipeline.append_nowait(b"a")
        await pipeline.drain()
    assert pipeline.fates == ()


def _places(log: Log) -> list[tuple[dlog.DLSN, bytes]]:
    return [
        (of(1, entry, slot), record)
        for entry, payload in enumerate(log.entries)
        for slot, record in enumerate(log.at(of(1, entry, 0), 1000))
        if payload
    ]


def _of(row: dlog.BatchResult) -> list[dlog.DLSN]:
    return row.dlsns()
