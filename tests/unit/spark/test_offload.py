"""Decisions of `offload`, without a cluster: which segments are moved, and the next steps of those on their way."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dlog.errors import ConfigError, DamagedError, StreamNotFoundError
from dlog.log.dedup_trailer import encode_trailer
from dlog.model.ids import EntryId, SegmentNumber, StreamName, Txid
from dlog.model.offloading import Record, Step, decide
from dlog.model.segment import Segment, StreamMetadata, Truncation
from dlog.spark.jobs.frame import Report
from dlog.spark.jobs.offload import _record_of
from dlog.spark.jobs.offload_copy import examine
from dlog.spark.jobs.offload_plan import candidates, named, packed, parquet_location, source_of
from dlog.spark.jobs.offload_records import StoredRecord, _decoded, _encoded, named_objects
from dlog.spark.jobs.offload_settle import _move_back, _move_segment
from dlog.spark.jobs.offload_work import OffloadOptions
from dlog.stores.cold.format import Contents
from dlog.stores.object_storage.locations import parse_root
from dlog.wire.digest import crc32c
from dlog.wire.entry import CONTROL, RECORD_SET, build_record_set, encode_entry
from dlog.wire.entry import Record as LogRecord

HOUR_MS = 3_600_000
NOW = 1_700_000_000_000
OBJECTS = tuple(f"file:///cold/c/dlog/s/{number:018d}-{'0' * 15}{number}-99.seg" for number in (1, 2))


def segment(number: int, **changes: object) -> Segment:
    made = Segment(
        number=SegmentNumber(number),
        name=str(100 + number),
        first_txid=Txid(number * 10),
        completed=True,
        last_txid=Txid(number * 10 + 9),
        last_entry=EntryId(4),
        last_slot=2,
        record_count=50,
        completed_unix_ms=NOW - number * HOUR_MS,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def stream(*segments: Segment) -> StreamMetadata:
    return StreamMetadata(name=StreamName("s"), segments=segments, max_segment=SegmentNumber(9), incarnation="abc")


def record(**changes: object) -> StoredRecord:
    made = Record(stream="s", number=1, store="ledger", name="101", objects=OBJECTS)
    return StoredRecord(replace(made, **changes), 0)  # type: ignore[arg-type]


def step(kept: StoredRecord, value: StreamMetadata | None, grace_s: float = 3600.0) -> tuple[Step, str]:
    decision = decide(kept.record, value, now_unix_ms=NOW, grace_s=grace_s)
    return decision.step, decision.lies_at


def test_a_segment_that_lies_where_it_lay_is_to_be_told_of() -> None:
    assert step(record(), stream(segment(1))) == (Step.REQUEST_MOVE, "")
    assert step(record(moved_unix_ms=5), stream(segment(1))) == (Step.REQUEST_MOVE, ""), "it was taken back"
    truncated = stream(segment(1), segment(2)).with_truncated_before(2)
    assert step(record(), truncated) == (Step.WAIT, ""), "its stream deletes what it names"


@pytest.mark.parametrize("place", OBJECTS)
def test_a_segment_in_one_of_its_objects_waits_for_the_grace_period(place: str) -> None:
    moved = stream(segment(1, store="cold", name=place))
    assert step(record(), moved) == (Step.NOTE, place)
    assert step(record(moved_unix_ms=NOW - HOUR_MS + 1), moved) == (Step.WAIT, place)
    assert step(record(moved_unix_ms=NOW - HOUR_MS), moved) == (Step.RETIRE, place)
    assert step(record(moved_unix_ms=NOW + HOUR_MS), moved, grace_s=0.0) == (Step.WAIT, place), "clocks may differ"
    gone = stream(segment(1, store="cold", name=place), segment(2)).with_truncated_before(2)
    assert step(record(), gone) == (Step.DROP, place)


def test_an_object_that_was_found_damaged_is_looked_at_again_at_once() -> None:
    moved = stream(segment(1, store="cold", name=OBJECTS[-1]))
    assert step(record(is_damaged=True), moved) == (Step.RETIRE, OBJECTS[-1])
    assert step(record(is_damaged=True), stream(segment(1))) == (Step.REQUEST_MOVE, "")
    older = stream(segment(1, store="cold", name=OBJECTS[0]))
    assert step(record(is_damaged=True), older) == (Step.NOTE, OBJECTS[0])


@pytest.mark.parametrize(
    "value",
    [
        None,
        stream(),
        stream(segment(2)),
        stream(segment(1, name="999")),  # another stream of the name
        stream(segment(1, store="cold", name="file:///cold/c/dlog/s/another.seg")),
        stream(segment(1, store="kafka")),
    ],
)
def test_what_metadata_does_not_name_is_cleared(value: StreamMetadata | None) -> None:
    assert step(record(), value) == (Step.CLEAR, "")


def test_old_segments_go_but_for_the_newest() -> None:
    value = stream(*(segment(number, completed_unix_ms=NOW - (9 - number) * HOUR_MS) for number in range(1, 7)))

    def chosen(older_than_s: float, keep: int, being_moved: set[int] = set()) -> list[int]:  # noqa: B006
        found = candidates(value, being_moved, now_unix_ms=NOW, older_than_s=older_than_s, keep=keep)
        return [int(one.number) for one in found]

    assert chosen(0.0, 0) == [1, 2, 3, 4, 5, 6]
    assert chosen(0.0, 2) == [1, 2, 3, 4]
    assert chosen(0.0, 10) == []
    assert chosen(5 * 3600.0, 0) == [1, 2, 3, 4]
    assert chosen(5 * 3600.0 + 1, 0) == [1, 2, 3]
    assert chosen(0.0, 0, {2, 3}) == [1, 4, 5, 6]


def test_open_truncated_and_empty_segments_stay() -> None:
    value = stream(
        segment(1),
        segment(2, last_entry=EntryId(-1)),
        segment(3, truncation=Truncation.PARTIAL, min_entry=EntryId(1), min_slot=2),
        segment(4, store="cold", name=OBJECTS[0]),
        segment(5, completed=False),
    ).with_truncated_before(2)
    found = candidates(value, {4}, now_unix_ms=NOW, older_than_s=0.0, keep=0)
    assert [int(one.number) for one in found] == [3, 4], "a cold one may still want its Parquet"
    source = source_of(value, found[0], folder="file:///cold/x", payload_bytes=7, parquet="", compression="snappy")
    assert (source.first_entry, source.first_slot, source.bytes) == (1, 2, 7)
    assert (source.head.stream, source.head.number, source.head.incarnation) == ("s", 3, "abc")
    assert (source.head.last_entry, source.head.records, source.head.source_name) == (4, 50, "103")
    assert source.ref.name == "103" and source.head.is_enveloped


def test_what_metadata_names_is_every_place_of_it() -> None:
    assert named(stream(segment(1), segment(2, store="cold", name="x"))) == {("ledger", "101"), ("cold", "x")}
    assert named(None) == set()
    assert named_objects([record(), record(objects=OBJECTS[:1])]) == set(OBJECTS)


def test_small_neighbours_share_a_task() -> None:
    sizes = [10 << 20] * 10 + [100 << 20] + [1] * 130
    tasks = packed(sizes, lambda size: size)
    assert [len(task) for task in tasks] == [6, 4, 1, 64, 64, 2]
    assert [size for task in tasks for size in task] == sizes
    assert packed([], lambda size: size) == []


def test_a_parquet_file_has_one_name_for_each_segment_of_a_life() -> None:
    folder = parse_root("s3://bucket/p/s")
    assert parquet_location(folder, "abc", 7) == "s3://bucket/p/s/abc-000000000000000007.parquet"
    assert parquet_location(folder, "", 7) == "s3://bucket/p/s/java-000000000000000007.parquet"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"stream":"s"}',
        _encoded(record().record).replace(b'"number": 1', b'"number": "1"'),
        _encoded(record().record).replace(b".seg", b".txt"),
        _encoded(replace(record().record, objects=())),
        _encoded(replace(record().record, incarnation="7")).replace(b'"7"', b"7"),
        _encoded(record().record)[:-1] + b', "more": 1}',
    ],
)
def test_a_record_that_cannot_be_read_is_never_guessed_at(data: bytes) -> None:
    with pytest.raises(DamagedError):
        _decoded("/dlog/.offloaded/s/x", data)


def test_a_record_is_read_as_it_was_written() -> None:
    kept = record(moved_unix_ms=NOW, is_damaged=True).record
    assert _decoded("/x", _encoded(kept)) == kept
    assert kept.object == OBJECTS[-1] and replace(kept, objects=()).object == ""
    assert _decoded("/x", _encoded(replace(kept, incarnation="abc"))).incarnation == "abc"


def test_a_record_of_an_earlier_version_has_no_incarnation() -> None:
    fields = json.loads(_encoded(record().record))
    del fields["incarnation"]
    assert _decoded("/x", json.dumps(fields).encode()) == record().record


class Owner:
    """A client of a stream whose present incarnation is `second`. moved: the requests that it took."""

    def __init__(self) -> None:
        self.moved: list[str] = []

    async def move_segment(self, stream: str, number: int, *, to_store: str, incarnation: str | None, **_: str) -> None:
        if incarnation not in (None, "second"):
            raise StreamNotFoundError("the stream was deleted and created again")
        self.moved.append(to_store)


@pytest.mark.parametrize(
    ("incarnation", "moved"), [("first", []), ("second", ["cold", "ledger"]), ("", ["cold", "ledger"])]
)
async def test_a_move_is_requested_of_the_incarnation_in_the_record(incarnation: str, moved: list[str]) -> None:
    owner, job = Owner(), SimpleNamespace(report=Report(job="offload"), item=lambda *_: None)
    kept = record(incarnation=incarnation)
    given = cast(Any, None), cast(Any, owner), cast(Any, job), kept
    assert await _move_segment(*given) is bool(moved)
    await _move_back(*given[1:3], kept.record, OBJECTS[0])
    assert owner.moved == moved
    assert job.report.counts.get("segments_taken_back", 0) == len(moved) // 2


def test_a_new_record_names_the_incarnation_of_its_stream() -> None:
    source = source_of(stream(), segment(1), folder="f", payload_bytes=1, parquet="", compression="snappy")
    assert _record_of(source).incarnation == "abc"


@pytest.mark.parametrize(
    "changes",
    [
        {"to": "/mnt/cold"},
        {"older_than_s": -1.0},
        {"grace_s": float("nan")},
        {"orphan_age_s": 1e12},
        {"keep": -1},
        {"parquet": "hdfs://nn/x"},
    ],
)
def test_options_that_mean_nothing_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        OffloadOptions(**{"to": "file:///cold", **changes})  # type: ignore[arg-type]


# ---- entries --------------------------------------------------------------------------------------------------------


def entry(crc: int | None = None) -> bytes:
    batch = build_record_set([b"one", b"two", b"three"])
    crc = crc32c(batch) if crc is None else crc
    note = encode_trailer(777, -1, [(b"p" * 16, 0, 3, crc, 1)], None)
    records = [LogRecord(0, 1, 5, b"single"), LogRecord(RECORD_SET, 2, 6, batch), LogRecord(CONTROL, 4, 6, note)]
    return b"".join(map(bytes, encode_entry(records)))


def test_what_an_entry_holds_is_counted_without_opening_its_batches() -> None:
    assert examine(entry(), 9, is_enveloped=True) == Contents(5, 6, 777, 0, 4)
    control = b"".join(map(bytes, encode_entry([LogRecord(CONTROL, 4, 6, b"control")])))
    assert examine(control, 9, is_enveloped=True) == Contents()


def test_an_entry_that_is_not_what_its_producer_sent_is_told_with_its_number() -> None:
    with pytest.raises(DamagedError, match=r"the producer's checksum does not match: slot=1: entry=9"):
        examine(entry(crc=1), 9, is_enveloped=True)
    with pytest.raises(DamagedError, match="entry=3"):
        examine(b"no entry", 3, is_enveloped=True)
