"""Converts entries into Arrow: the columns contain what was written."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import DamagedError
from dlog.log.dedup_trailer import encode_trailer
from dlog.spark.columns import COLUMNS, Batches, EqualLengthValues, Run, runs_of
from dlog.spark.planning import Range
from dlog.wire.digest import crc32c
from dlog.wire.entry import CONTROL, RECORD_SET, Record, build_record_set, encode_entry

SCHEMA = pa.schema(list(COLUMNS.items()))
PART = Range(stream="s", segment=3, name="7", store="ledger", first=0, last=9, start_sequence_id=100)


def entry_of(sets: list[tuple[int, list[bytes]]], *, unix_ms: int = 5000, crc: int | None = None) -> bytes:
    """An entry as an owner packs it: record sets, then the dedup trailer."""
    records, noted, slot, position = [], [], 0, 1
    for txid, values in sets:
        body = build_record_set(values)
        records.append(Record(RECORD_SET, position, txid, body))
        noted.append((b"p" * 16, slot, len(values), crc32c(body) if crc is None else crc, slot))
        slot += len(values)
        position += len(values)
    records.append(Record(CONTROL, position - 1, 9, encode_trailer(unix_ms, -1, noted, None)))
    return b"".join(map(bytes, encode_entry(records)))


few = st.lists(st.binary(max_size=40), min_size=1, max_size=9)
alike = st.tuples(st.integers(0, 30), st.integers(1, 60)).map(lambda t: [bytes([i]) * t[0] for i in range(t[1])])
almost = alike.map(lambda values: [*values, b"one more"])
sets = st.lists(st.tuples(st.integers(0, 2**40), st.one_of(few, alike, almost)), max_size=5)


@given(st.lists(sets, max_size=4))
def test_columns_say_what_was_written(entries: list[list[tuple[int, list[bytes]]]]) -> None:
    gathered, expected = Batches(SCHEMA), []
    for number, told in enumerate(entries):
        slot = 0
        for run in runs_of(entry_of(told), number):
            assert gathered.add(PART, run) is None
        for txid, values in told:
            for value in values:
                expected.append((3, number, slot, txid, 100 + slot, 5000, value))
                slot += 1
    batch = gathered.take()
    if not expected:
        assert batch is None
        return
    assert batch is not None and batch.schema == SCHEMA
    batch.validate(full=True)
    rows = batch.to_pylist()
    got = [(r["segment"], r["entry"], r["slot"], r["txid"], r["sequence_id"], r["value"]) for r in rows]
    assert got == [(s, e, slot, t, q, v) for s, e, slot, t, q, _, v in expected]
    assert {r["stream"] for r in rows} == {"s"} and {r["timestamp"].timestamp() for r in rows} == {5.0}


def test_any_columns_in_any_order() -> None:
    """Trap 7: columns that are not selected are not made."""
    gathered = Batches(pa.schema([("value", pa.binary()), ("txid", pa.int64())]))
    gathered.add(PART, Run(0, 0, 1, 7, 0, [b"a", b"b"]))
    batch = gathered.take()
    assert batch is not None and batch.to_pylist() == [{"value": b"a", "txid": 7}, {"value": b"b", "txid": 7}]


def test_what_nobody_knows_is_null() -> None:
    gathered = Batches(SCHEMA)
    gathered.add(Range(stream="s", segment=1, name="1", store="ledger", first=0, last=0), Run(0, 0, 1, 7, 0, [b"a"]))
    gathered.add(PART, Run(0, 1, 2, 7, 1000, [b"b"]))
    batch = gathered.take()
    assert batch is not None
    assert [row["sequence_id"] for row in batch.to_pylist()] == [None, 101]
    assert [row["timestamp"] is None for row in batch.to_pylist()] == [True, False]


def test_a_run_is_cut_at_slots() -> None:
    run = Run(4, 2, 11, 7, 0, [b"c", b"d", b"e"])
    assert run.cut(0, 0) is run
    assert run.cut(3, 4) == Run(4, 3, 12, 7, 0, [b"d"])
    assert run.cut(5, 0) is None and run.cut(0, 2) is None


def test_values_of_one_length_are_not_taken_apart() -> None:
    values = [b"%03d" % n for n in range(40)]
    (run,) = runs_of(entry_of([(7, values)]), 0)
    assert isinstance(run.values, EqualLengthValues) and (len(run.values), run.values.length) == (40, 3)
    part = run.cut(10, 13)
    assert part is not None and (part.slot, part.position, len(part.values)) == (10, 11, 3)
    gathered = Batches(pa.schema([("value", pa.binary()), ("slot", pa.int32())]))
    gathered.add(PART, part)
    gathered.add(PART, Run(1, 0, 41, 7, 0, [b"", b"another"]))
    batch = gathered.take()
    assert batch is not None
    assert batch.column("value").to_pylist() == [b"010", b"011", b"012", b"", b"another"]
    assert batch.column("slot").to_pylist() == [10, 11, 12, 0, 1]


@pytest.mark.parametrize("lengths", [(3, 3), (3, 5), (0, 0), (0, 4)])
def test_sets_of_records_of_one_length_each_come_to_lie_behind_one_another(lengths: tuple[int, int]) -> None:
    sets = [[b"%0*d" % (length, n) if length else b"" for n in range(20)] for length in lengths]
    gathered = Batches(pa.schema([("value", pa.binary())]))
    for run in runs_of(entry_of([(7, values) for values in sets]), 0):
        assert isinstance(run.values, EqualLengthValues)
        gathered.add(PART, run)
    batch = gathered.take()
    assert batch is not None
    batch.validate(full=True)
    assert batch.column("value").to_pylist() == sets[0] + sets[1]


def test_lengths_that_differ_are_not_taken_for_one() -> None:
    values = [b"123", b"12345", b"1"] * 7 + [b"123"]  # as many bytes as if each had three
    (run,) = runs_of(entry_of([(7, values)]), 0)
    assert run.values == values


def test_single_records_behind_a_set_of_them_are_a_run_of_their_own() -> None:
    """A DistributedLog writer packs entries like this if it sends some records in a set and some singly."""
    body = build_record_set([b"%02d" % n for n in range(20)])
    records = [Record(RECORD_SET, 1, 9, body), Record(0, 21, 9, b"x"), Record(0, 22, 9, b"y")]
    runs = runs_of(b"".join(map(bytes, encode_entry(records))), 4)
    assert [(run.slot, run.position, len(run.values)) for run in runs] == [(0, 1, 20), (20, 21, 2)]
    assert runs[1].values == [b"x", b"y"]


def test_a_checksum_that_does_not_hold_is_damage_unless_nobody_wants_to_know() -> None:
    wrong = entry_of([(1, [b"a"])], crc=1)
    with pytest.raises(DamagedError, match="the producer's checksum does not match"):
        runs_of(wrong, 0)
    assert runs_of(wrong, 0, verify="none")[0].values == [b"a"]


def test_order_is_looked_at_where_that_is_asked_for() -> None:
    back = entry_of([(5, [b"a"]), (4, [b"b"])])
    assert len(runs_of(back, 0)) == 2
    with pytest.raises(DamagedError, match="txids go back"):
        runs_of(back, 0, verify="full")


def test_batches_are_cut_when_they_are_large() -> None:
    gathered = Batches(SCHEMA)
    made = [gathered.add(PART, Run(n, 0, 1, 0, 0, [b"x"] * 1000)) for n in range(40)]
    assert [batch.num_rows for batch in made if batch is not None] == [17_000, 17_000]
    heavy = Batches(SCHEMA)
    made = [heavy.add(PART, Run(n, 0, 1, 0, 0, [b"%d" % n * 3_000_000])) for n in range(7)]
    assert [batch.num_rows for batch in made if batch is not None] == [3, 3]
    assert [len(value) for batch in made if batch is not None for value in batch.column("value").to_pylist()] == [
        3_000_000
    ] * 6


def test_values_that_are_no_column_are_not_kept() -> None:
    gathered = Batches(pa.schema([("txid", pa.int64())]))
    value = b"x" * 1000
    before = sys.getrefcount(value)
    gathered.add(PART, Run(0, 0, 1, 5, 0, [value]))
    assert sys.getrefcount(value) == before


@given(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 20_000)), min_size=1, max_size=20))
def test_many_short_runs_and_few_long_ones_are_spread_alike(counts: list[int]) -> None:
    counts = [count for count in counts if count] or [1]
    schema = pa.schema([(name, COLUMNS[name]) for name in ("entry", "slot", "sequence_id", "timestamp", "stream")])
    gathered = Batches(schema)
    made = [gathered.add(PART, Run(n, 3, 7, 0, n, [b""] * count)) for n, count in enumerate(counts)]
    batches = [batch for batch in [*made, gathered.take()] if batch is not None]
    table = pa.Table.from_batches(batches)
    assert table.column("entry").to_numpy().tolist() == [n for n, count in enumerate(counts) for _ in range(count)]
    assert table.column("slot").to_numpy().tolist() == [3 + i for count in counts for i in range(count)]
    assert table.column("sequence_id").to_numpy().tolist() == [106 + i for count in counts for i in range(count)]
    times = table.column("timestamp").cast(pa.int64())
    assert times.null_count == counts[0]  # time 0 is none
    assert set(table.column("stream").unique().to_pylist()) == {"s"}
