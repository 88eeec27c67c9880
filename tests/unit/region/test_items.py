"""Tests the records of a region's items: a round trip, records that cannot be used, and a batch without its front."""

from __future__ import annotations

import re

import pytest

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.region.counting import (
    Batch,
    Checkpoint,
    Entry,
    Item,
    Placed,
    PlainEntry,
    RegionFence,
    TableDropped,
    TableEnd,
    record_count,
)
from dlog.region.items import RECORD_OVERHEAD_BYTES, ItemReader, decode_stored, records_of
from dlog.region.topics import Stored
from dlog.wire.region import KEY, RegionSnapshot, encode_snapshot
from tests.unit.region.topic_lists import NONCE, OTHER, REGION, TopicList, batch, encoded, fence

U64_MAX = (1 << 64) - 1
ITEMS: list[Item] = [
    RegionFence(NONCE, 1),
    RegionFence(OTHER, U64_MAX),
    Batch(NONCE, 0, (Entry(7, 1, b""),)),
    Batch(NONCE, U64_MAX, (Entry(0, U64_MAX, b"x" * 1000), Entry(U64_MAX, 1, b"\0"))),
    Batch(NONCE, 3, (Entry(7, 0, b"about it"), Entry(7, 1, b"x"), Entry(8, 0))),
    TableEnd(7, NONCE),
    TableEnd(U64_MAX),
    TableDropped(7),
    Checkpoint(encode_snapshot(RegionSnapshot(5, 1, NONCE))),
    PlainEntry(Entry(7, 1, b"")),
    PlainEntry(Entry(U64_MAX, U64_MAX, b"\0\1")),
]


def _items(reader: ItemReader, stored: list[Stored]) -> list[Placed]:
    found: list[Placed] = []
    for one in reader.feed(stored):
        assert not isinstance(one, Exception), f"all records can be used: {one}"
        found.append(one)
    return found


def _error(reader: ItemReader, stored: Stored) -> Exception:
    (error,) = reader.feed([stored])
    assert isinstance(error, Exception)
    return error


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: type(item).__name__)
def test_an_item_comes_back_from_its_records(item: Item) -> None:
    topic = TopicList(fence(), item)
    assert len(topic.log) == 1 + record_count(item)
    reader = ItemReader(REGION, 0)
    assert _items(reader, topic.stored(0)) == [(0, fence()), (1, item)]
    assert reader.offset == len(topic.log)


def test_a_record_bears_the_epoch_and_the_nonce_of_its_owner() -> None:
    for item in ITEMS[2:]:
        if item == TableEnd(U64_MAX) or isinstance(item, PlainEntry):
            continue  # of a process that owns nothing, or in version 0
        key, value = records_of(REGION, 3, NONCE, item)[0]
        record = decode_stored(REGION, Stored(0, key, value))
        assert (record.epoch, record.nonce) == (3, NONCE)


def test_an_entry_takes_no_more_than_its_overhead_allows() -> None:
    (key, value), *_ = encoded(batch(0, (7, 1)))
    assert len(key) + len(value) - len(b"7/1") <= RECORD_OVERHEAD_BYTES


def test_a_number_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        records_of(REGION, 1, NONCE, Batch(NONCE, 0, (Entry(U64_MAX + 1, 1),)))


def _version_2() -> tuple[bytes, bytes]:
    key, value = encoded(fence())[0]
    return key[:-1] + b"\2", b"\2" + value[1:]


ENTRY = encoded(batch(0, (7, 1)))[0]
UNUSABLE = {
    "another region": (encoded(fence(), region=8)[0], DamagedError, "another region: region=8"),
    "value cut short": ((ENTRY[0], ENTRY[1][:-1]), DamagedError, "checksum"),
    "head cut short": ((ENTRY[0], ENTRY[1][:10]), DamagedError, "cut short"),
    "key cut short": ((ENTRY[0][:-1], ENTRY[1]), DamagedError, "not a record of a region"),
    "no value": ((ENTRY[0], b""), DamagedError, "not a record of a region"),
    "bit flipped": ((ENTRY[0], ENTRY[1][:-1] + b"\xff"), DamagedError, "checksum"),
    "no such kind": ((b"\x63" + ENTRY[0][1:], ENTRY[1]), DamagedError, "not a kind of record"),
    "newer version": (_version_2(), UnsupportedVersionError, "newer than this release: version=2"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_record_that_cannot_be_used_is_an_error_with_its_offset_and_can_be_left_out(name: str) -> None:
    record, error, text = UNUSABLE[name]
    topic = TopicList(fence())
    topic.append([record])
    topic.add(batch(0, (7, 1), (8, 1)))
    reader = ItemReader(REGION, 0)
    before, unusable, behind = reader.feed(topic.stored(0))
    assert (before, behind) == ((0, fence()), (2, batch(0, (7, 1), (8, 1))))
    assert isinstance(unusable, error)
    assert re.search(f"{text}.* ?offset=1$", str(unusable))


def test_every_key_that_is_cut_short_or_too_long_is_an_error() -> None:
    for size in range(KEY.size):
        assert "offset=4" in str(_error(ItemReader(REGION, 4), Stored(4, ENTRY[0][:size], ENTRY[1])))
    assert "offset=4" in str(_error(ItemReader(REGION, 4), Stored(4, ENTRY[0] + b"x", ENTRY[1])))


def test_a_batch_without_its_middle_is_an_error() -> None:
    first, _, third = TopicList(batch(0, (7, 1), (7, 2), (7, 3))).stored(0)
    reader = ItemReader(REGION, 0)
    assert _items(reader, [first]) == [] and reader.is_within_batch
    assert "not whole: batch=0 offset=1" in str(_error(reader, Stored(1, third.key, third.value)))
    assert not reader.is_within_batch


def test_the_rest_of_another_batch_is_an_error() -> None:
    topic = TopicList(batch(0, (7, 1), (7, 2)))
    other = encoded(batch(0, (7, 1), (7, 2), nonce=OTHER))[1]
    reader = ItemReader(REGION, 0)
    assert _items(reader, topic.stored(0)[:1]) == []
    assert "not whole: batch=0 offset=1" in str(_error(reader, Stored(1, *other)))


def test_a_batch_without_its_front_is_an_error_behind_another_record() -> None:
    reader = ItemReader(REGION, 0)
    assert _items(reader, TopicList(fence()).stored(0)) == [(0, fence())]
    error = _error(reader, Stored(1, *encoded(batch(0, (7, 1), (7, 2)))[1]))
    assert "not whole: batch=0 offset=1" in str(error)


@pytest.mark.parametrize("begin", [1, 2])
def test_the_front_of_the_first_batch_may_be_missing(begin: int) -> None:
    topic = TopicList(batch(4, (7, 1), (8, 1), (7, 2)), batch(5, (7, 3)))
    reader = ItemReader(REGION, begin)
    kept = batch(4, (7, 1), (8, 1), (7, 2)).entries[begin:]
    assert _items(reader, topic.stored(begin)) == [(begin, Batch(NONCE, 4, kept)), (3, batch(5, (7, 3)))]


def test_a_gap_in_the_offsets_is_passed_over_between_items() -> None:
    """Kafka leaves gaps, for example after a transaction of another program."""
    one, other = encoded(batch(0, (7, 1)))[0], encoded(batch(1, (7, 2)))[0]
    reader = ItemReader(REGION, 3)
    assert _items(reader, [Stored(3, *one), Stored(9, *other)]) == [(3, batch(0, (7, 1))), (9, batch(1, (7, 2)))]
    assert reader.offset == 10


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_batch_may_come_in_parts(size: int) -> None:
    topic = TopicList(fence(), batch(0, (7, 1), (8, 1), (7, 2)), batch(1, (7, 3)), batch(2, (7, 4), (7, 5)))
    stored, reader = topic.stored(0), ItemReader(REGION, 0)
    found = [one for at in range(0, len(stored), size) for one in _items(reader, stored[at : at + size])]
    assert found == _items(ItemReader(REGION, 0), stored)
    assert [offset for offset, _ in found] == [0, 1, 4, 5]


def test_records_at_the_end_are_left_out_but_for_those_of_a_batch_that_began_before() -> None:
    topic = TopicList(fence(), batch(0, (7, 1), (8, 1), (7, 2)), batch(1, (7, 3)))
    reader = ItemReader(REGION, 0, 2)
    assert _items(reader, topic.stored(0)) == [(0, fence()), (1, batch(0, (7, 1), (8, 1), (7, 2)))]
    assert reader.offset == 4
    for end in (4, 9):
        reader = ItemReader(REGION, 4, end)
        assert _items(reader, [Stored(9, *encoded(batch(1, (7, 3)))[0])]) == []
        assert reader.offset == end, "no record lies before the end"


def test_the_first_record_is_kept_even_if_its_batch_is_not_whole() -> None:
    first, _, third = TopicList(batch(4, (7, 1), (7, 2), (7, 3))).stored(0)
    reader = ItemReader(REGION, 0)
    assert reader.first is None
    _error(reader, Stored(1, ENTRY[0], b""))
    assert reader.first is None
    reader = ItemReader(REGION, 0)
    assert _items(reader, [first]) == []
    _error(reader, third)
    assert reader.first is not None and (reader.first.batch, reader.first.position) == (4, 0)
