"""Tests offsets of a streaming query: the stream they belong to, what they remember, and when they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dlog.errors import StreamNotFoundError, TruncatedError
from dlog.spark import plans, streaming
from dlog.spark.losses import Loss
from dlog.spark.offsets import StreamPosition
from dlog.spark.options import SourceOptions
from dlog.spark.planning import SegmentView, StreamView, Tally
from dlog.spark.skipped_records import Line
from dlog.spark.source_partitions import Task
from dlog.spark.views import Seen


def segment(number: int, last: int, **given: Any) -> SegmentView:
    return SegmentView(number=number, name=str(number), store="ledger", last=last, **given)


def view(*segments: SegmentView, incarnation: str = "a", **given: Any) -> StreamView:
    return StreamView("s", segments, incarnation=incarnation, **given)


class Reader(streaming.StreamsStreamReader):
    """Sees the stream in `now`."""

    def __init__(self, now: StreamView | None, **options: Any) -> None:
        super().__init__(SourceOptions(zookeeper="h:1", streams=("s",), **options), pa.schema([]))
        self.now = now

    def _look(self, *, fresh: bool = False) -> dict[str, Seen]:
        return {} if self.now is None else {"s": Seen(cast(Any, None), self.now)}

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        return self.latestOffset(start, ReadAllAvailable())

    def entries(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
        tasks = [part for part in self.partitions(start, end) if isinstance(part, Task)]
        return [(of.segment, entry) for task in tasks for of in task.ranges for entry in range(of.first, of.last + 1)]


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, Line]:
    """The content of the directory for skipped records."""
    there: dict[str, Line] = {}

    async def leave(cluster: object, place: str, name: str, lines: list[Line]) -> None:
        (there[name],) = lines

    async def nobody(*_: object) -> int:
        return -1

    def ask(options: object, work: Callable[[Any], Any]) -> Any:
        return asyncio.run(work(None))

    monkeypatch.setattr(streaming, "ask", ask)
    monkeypatch.setattr(plans, "leave", leave)
    monkeypatch.setattr(plans, "records_before", nobody)
    return there


def offset(at: list[int], **known: Any) -> dict[str, Any]:
    return {"streams": {"s": {"at": at, **known}}, "v": 1}


OPEN = segment(1, 4, counted=50, start_sequence_id=0, is_final=False, is_completed=False)
BORNE: dict[str, Any] = {"fail_on_data_loss": False, "left_out_to": "file:///left"}


def test_an_offset_says_whose_it_is_and_what_was_read() -> None:
    reader = Reader(view(OPEN))
    end = reader.latest({"streams": {}, "v": 1})
    assert end == offset([1, 5], life="a", read=50, start=0)
    assert reader.latest(end) is end, "nothing came"
    assert reader.entries({"streams": {}, "v": 1}, end) == [(1, n) for n in range(5)]


def test_an_offset_of_before_is_told_once_whose_it_is() -> None:
    reader = Reader(view(OPEN))
    end = reader.latest({"s": [1, 5]})
    assert end["streams"]["s"]["life"] == "a"
    assert reader.entries({"s": [1, 5]}, end) == []
    assert reader.latest(end) is end
    unnamed = Reader(view(OPEN, incarnation=""))
    start = {"s": [1, 5]}
    assert unnamed.latest(start) is start, "nobody ever gave this stream a life"


def test_the_end_of_a_segment_is_noted_while_it_is_known() -> None:
    start = offset([1, 5], life="a", read=50, start=0)
    ended = view(segment(1, 4, counted=50, start_sequence_id=0), segment(2, -1, is_completed=False, is_final=False))
    end = Reader(ended).latest(start)
    assert end == offset([1, 5], ended=True, life="a", read=50, start=0)
    gone = Reader(view(segment(2, -1, is_completed=False, is_final=False), floor=StreamPosition(2, 0)))
    assert gone.latest(end) is end, "one spelling, whoever looks"
    gone.now = view(segment(2, 1, is_completed=False, is_final=False))
    after = gone.latest(end)
    assert gone.entries(end, after) == [(2, 0), (2, 1)]


def test_what_is_gone_unread_is_told_and_counted(written: dict[str, Line]) -> None:
    start = offset([1, 5], life="a", read=50, start=0)
    now = view(segment(2, 1), tallies=(Tally(1, 0, 57),))
    reader = Reader(now)
    with pytest.raises(TruncatedError, match="records lost: exactly 7"):
        reader.partitions(start, reader.latest(start))
    for _ in range(2):  # the batch is repeated by another driver
        bearing = Reader(now, **BORNE)
        assert bearing.entries(start, bearing.latest(start)) == [(2, 0), (2, 1)]
    (line,) = written.values()
    assert (line.kind, line.stream, line.segment, line.entry, line.loss) == ("lost", "s", 1, 5, Loss(7, 7))


def test_two_batches_that_are_gone_count_each_its_own(written: dict[str, Line]) -> None:
    """The batches were planned before the truncation, and are repeated after it."""
    first, second = offset([1, 5], life="a", read=50, start=0), offset([1, 9], life="a", read=90, start=0)
    last = offset([2, 2], life="a", read=9, start=95)
    reader = Reader(view(segment(2, 1, start_sequence_id=95, counted=9)), **BORNE)
    assert reader.entries(first, second) == []
    assert reader.entries(second, last) == [(2, 0), (2, 1)]
    assert [line.loss for line in written.values()] == [Loss(40, 40), Loss(5, 5)]


def test_a_stream_made_again_is_another_however_long_it_is(written: dict[str, Line]) -> None:
    start = offset([1, 5], life="a", read=50, start=0)
    other = view(segment(1, 8, counted=90, start_sequence_id=0), incarnation="b")
    with pytest.raises(
        TruncatedError, match=r"deleted and created again under the same name: stream=s wanted=\[1,5\] incarnation=a"
    ):
        Reader(other).latest(start)
    reader = Reader(other, **BORNE)
    end = reader.latest(start)
    assert end["streams"]["s"]["life"] == "b"
    assert reader.entries(start, end) == [(1, n) for n in range(9)]
    assert reader.latest(end) is end
    assert [line.loss for line in written.values()] == [Loss()]
    reader.now = view(segment(1, 20), incarnation="c")
    assert reader.entries(start, end) == [], "the batch was of one that is gone"


def test_a_stream_that_ends_before_what_was_read_is_told() -> None:
    short = view(segment(1, 1, counted=9))
    with pytest.raises(TruncatedError, match="deleted and created again under the same name"):
        Reader(short).latest({"s": [1, 5]})
    with pytest.raises(TruncatedError, match="its metadata went back"):
        Reader(short).latest(offset([1, 5], life="a"))
    reader = Reader(short, **BORNE)
    assert reader.entries({"s": [1, 5]}, reader.latest({"s": [1, 5]})) == [(1, 0), (1, 1)]


def test_a_stream_that_is_gone_is_told_once(written: dict[str, Line], capsys: pytest.CaptureFixture[str]) -> None:
    start = offset([1, 5], life="a", read=50)
    with pytest.raises(StreamNotFoundError, match="the stream was deleted; option failOnDataLoss=false"):
        Reader(None).latest(start)
    reader = Reader(None, **BORNE)
    assert reader.latest(start) is start and reader.latest(start) is start
    assert capsys.readouterr().err.count("dlog: records lost: the stream was deleted") == 1
    assert len(written) == 1
