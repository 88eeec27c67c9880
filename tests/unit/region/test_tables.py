"""Tests the metadata of a region: the example of the design with its numbers, and a model that keeps every offset."""

from __future__ import annotations

import random

import pytest

from dlog.errors import DamagedError, InvalidRequestError
from dlog.region.tables import MAP_EVERY, MAP_EVERY_BYTES, RegionMeta, TableMeta
from dlog.wire.region import RegionSnapshot, TableSnapshot, decode_snapshot, encode_snapshot

TABLE = 7


def test_the_example_of_the_design() -> None:
    """A snapshot at high watermark 64, and the records from 64 to 100."""
    kept = RegionSnapshot(64, tables=(TableSnapshot(TABLE, 5, 2, 32, ((2, 16), (3, 16), (4, 31))),))
    region = RegionMeta.restored(decode_snapshot(encode_snapshot(kept)), map_every=1)
    for sequence, offset in ((5, 72), (6, 81), (7, 90)):
        region.add(TABLE, sequence, offset, 100)
    table = region.tables[TABLE]
    assert table.next_seq_num == 8
    assert table.latest_marked_deleted == 2
    assert table.seq_offset_mapping == {2: 16, 3: 16, 4: 31, 5: 72, 6: 81, 7: 90}
    assert table.current_high_watermark == 91, "behind the last record; the figure of the design leaves it at 32"
    assert region.safe_offset == 16
    table.mark_deleted(5)
    assert table.seq_offset_mapping == {5: 72, 6: 81, 7: 90}
    assert region.safe_offset == 72


def test_a_mapping_is_sparse_by_records_and_by_bytes() -> None:
    table = TableMeta()
    for sequence in range(1, 201):
        table.add(sequence, sequence + 1000, 10)
    assert list(table.seq_offset_mapping) == [1, 1 + MAP_EVERY, 1 + 2 * MAP_EVERY, 1 + 3 * MAP_EVERY]
    big = TableMeta()
    for sequence in range(1, 10):
        big.add(sequence, sequence, MAP_EVERY_BYTES // 2)
    assert list(big.seq_offset_mapping) == [1, 3, 5, 7, 9]


def test_the_record_behind_a_long_gap_is_mapped() -> None:
    region = RegionMeta(map_every=64)
    offset = 0
    for table, records in ((1, 5), (2, 2 * 64), (1, 3), (2, 2 * 64 - 1), (1, 3)):
        for _ in range(records):
            region.add(table, region.next_seq_num(table), offset, 10)
            offset += 1
    assert list(region.tables[1].seq_offset_mapping.items()) == [(1, 0), (6, 5 + 2 * 64)]


@pytest.mark.parametrize("pauses", [1, 64, 1000, 5000])
def test_gaps_map_at_most_one_in_map_every_records(pauses: int) -> None:
    rng, region = random.Random(pauses), RegionMeta(map_every=64)
    offset = 0
    while offset < 50_000:
        table = rng.randrange(1 + rng.randrange(50))
        for _ in range(1 + rng.randrange(pauses)):
            region.add(table, region.next_seq_num(table), offset, 10)
            offset += 1
    regular = sum(1 + (meta.next_seq_num - 1) // 64 for meta in region.tables.values())
    mapped = sum(len(meta.seq_offset_mapping) for meta in region.tables.values())
    assert mapped <= regular + offset // 64


@pytest.mark.parametrize("below", [4, 12, 0])
def test_a_mark_backwards_or_beyond_the_next_record_is_refused(below: int) -> None:
    table = TableMeta()
    for sequence in range(1, 11):
        table.add(sequence, sequence, 1)
    table.mark_deleted(5)
    with pytest.raises(InvalidRequestError, match="last_mark=5 next=11"):
        table.mark_deleted(below)
    assert table.latest_marked_deleted == 5
    table.mark_deleted(5)
    table.mark_deleted(11)
    assert table.is_all_deleted


@pytest.mark.parametrize(("sequence", "offset"), [(2, 9), (4, 9), (3, 4)])
def test_records_out_of_order_are_damage(sequence: int, offset: int) -> None:
    table = TableMeta()
    table.add(1, 3, 1)
    table.add(2, 4, 1)
    with pytest.raises(DamagedError, match="expected=3"):
        table.add(sequence, offset, 1)
    table.add(3, 5, 1)


def test_an_empty_region_and_one_in_which_all_is_deleted() -> None:
    region = RegionMeta()
    assert region.safe_offset == 0
    for sequence in range(1, 4):
        region.add(TABLE, sequence, sequence, 1)
        region.add(8, sequence, sequence + 10, 1)
    region.tables[TABLE].mark_deleted(4)
    assert region.safe_offset == 11
    region.tables[8].mark_deleted(4)
    assert region.safe_offset == 14, "behind the last record"
    region.add(TABLE, 4, 20, 1)
    assert region.safe_offset == 20
    assert region.next_seq_num(9) == 1


@pytest.mark.parametrize("seed", range(30))
def test_a_floor_is_never_behind_its_record_and_nothing_live_is_below_the_safe_offset(seed: int) -> None:
    rng = random.Random(seed)
    region = RegionMeta(map_every=rng.choice((1, 3, 64)))
    places: dict[int, dict[int, int]] = {table: {} for table in range(4)}  # by table: the offset of each sequence
    offset = 0
    for _ in range(rng.choice((20, 400))):
        table = rng.randrange(4)
        if rng.random() < 0.1 and table in region.tables:
            meta = region.tables[table]
            meta.mark_deleted(rng.randint(meta.latest_marked_deleted, meta.next_seq_num))
        elif rng.random() < 0.05:
            region = RegionMeta.restored(
                decode_snapshot(encode_snapshot(RegionSnapshot(offset, tables=region.table_snapshots()))),
                map_every=rng.choice((1, 3, 64)),
            )
        else:
            offset += rng.choice((1, 1, 5))
            sequence = region.next_seq_num(table)
            assert sequence == len(places[table]) + 1
            region.add(table, sequence, offset, rng.choice((1, MAP_EVERY_BYTES)))
            places[table][sequence] = offset
        live = []
        for number, meta in region.tables.items():
            for sequence in range(max(1, meta.latest_marked_deleted), meta.next_seq_num):
                assert meta.floor(sequence) <= places[number][sequence]
                live.append(places[number][sequence])
        assert region.safe_offset <= min(live, default=offset + 1)


def test_a_table_that_was_begun_is_kept_from_there_on_until_something_of_it_is_deleted() -> None:
    """Who reads it from its first entry on begins at the record that began it."""
    region = RegionMeta(map_every=1)
    region.add(8, 1, 3, 1)
    region.tables[8].mark_deleted(2)
    region.add(TABLE, 0, 5, 10)
    region.tables[TABLE].mark_deleted(1)
    assert (region.safe_offset, region.tables[TABLE].payload_bytes) == (5, 0)
    for sequence in (1, 2, 3):
        region.add(TABLE, sequence, sequence + 10, 1)
    assert region.safe_offset == 5
    region.tables[TABLE].mark_deleted(2)
    assert region.safe_offset == 12
    region.tables[TABLE].mark_deleted(4)
    assert region.safe_offset == 14, "behind the last record"


def test_nothing_of_a_dropped_table_is_kept() -> None:
    region = RegionMeta(map_every=1)
    region.add(TABLE, 0, 5, 10)
    region.add(TABLE, 1, 6, 1)
    region.add(8, 0, 9, 10)
    region.drop(TABLE)
    assert region.safe_offset == 9
    region.drop(8)
    region.drop(8)
    assert region.tables == {}
    assert region.safe_offset == 10, "behind the last record of all"


def test_the_begin_and_the_bytes_of_a_table_are_in_a_snapshot() -> None:
    region = RegionMeta()
    region.add(TABLE, 0, 5, 10)
    region.add(TABLE, 1, 6, 20)
    region.add(TABLE, 2, 7, 30)
    region.tables[TABLE].mark_deleted(2)
    kept = decode_snapshot(encode_snapshot(RegionSnapshot(8, tables=region.table_snapshots())))
    again = RegionMeta.restored(kept).tables[TABLE]
    assert (again.begin, again.payload_bytes, again.next_seq_num) == (5, 50, 3), "also of deleted entries"
    assert again.end == 8
