"""Tests where readers of a region begin, and what they are told of entries that are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from dlog.errors import DamagedError, InvalidRequestError
from dlog.region.counting import CountingRule, TableEnd
from dlog.region.messages import FindStart, LostEntries, ReadingStart
from dlog.region.reading import EntryScan, RegionEntry, TailScan, find_start
from dlog.region.state import RegionState
from tests.unit.region.topic_lists import OTHER, REGION, TopicList, batch, encoded, fence, loaded

T, U = 7, 8
Found = list[tuple[int, int] | LostEntries]


def _region() -> TopicList:
    """Entries by offset: 1: T/1, 2: U/1, 3: T/2, 4: T/3, 5: U/2, 6: T/4."""
    return TopicList(fence(), batch(0, (T, 1), (U, 1)), batch(1, (T, 2)), batch(2, (T, 3), (U, 2)), batch(3, (T, 4)))


def _state(data: TopicList) -> RegionState:
    state = loaded(data).state
    assert state is not None
    return state


def _read(
    data: TopicList,
    start: ReadingStart,
    records_at_once: int = 2,
    *,
    skips: bool = False,
    beside: Mapping[int, int] = MappingProxyType({}),
) -> Found:
    """Tables and sequences of what is read, and what is lost."""
    scan = EntryScan(REGION, start, skips=skips)
    scan.beside = beside
    found: list[RegionEntry | LostEntries] = []
    is_done = False
    while not is_done:
        is_done = scan.is_done
        found += scan.feed([] if is_done else data.stored(scan.offset)[:records_at_once])
    for one in found:
        if isinstance(one, RegionEntry):
            assert one.payload == b"%d/%d" % (one.table, one.sequence)
            assert data.stored(one.offset)[0].value.endswith(one.payload)
    return [one if isinstance(one, LostEntries) else (one.table, one.sequence) for one in found]


ALL: Found = [(T, 1), (U, 1), (T, 2), (T, 3), (U, 2), (T, 4)]


@pytest.mark.parametrize("records_at_once", [1, 2, 100])
def test_all_tables_are_read_from_their_marks(records_at_once: int) -> None:
    data = _region()
    state = _state(data)
    start = find_start(state, 0, FindStart())
    assert replace(start, floors=()) == ReadingStart(1, 7, {T: (1, 5, 7), U: (1, 3, 6)}, (), state.rule)
    assert _read(data, start, records_at_once) == ALL
    state.meta.tables[T].mark_deleted(3)
    state.meta.tables[U].mark_deleted(2)
    assert _read(data, find_start(state, 0, FindStart()), records_at_once) == [(T, 3), (U, 2), (T, 4)]


@pytest.mark.parametrize(("sequence", "begin"), [(0, 1), (1, 1), (2, 3), (3, 4), (4, 6)])
def test_one_table_is_read_from_a_sequence(sequence: int, begin: int) -> None:
    data = _region()
    state = _state(data)
    start = find_start(state, 0, FindStart(((T, sequence),)))
    assert replace(start, floors=(), seeks=None) == ReadingStart(
        begin, 7, {T: (max(1, sequence), 5, 7)}, (), state.rule
    )
    assert _read(data, start) == [(T, at) for at in range(max(1, sequence), 5)]


def test_several_tables_are_read_each_from_its_sequence() -> None:
    data = _region()
    assert _read(data, find_start(_state(data), 0, FindStart(((T, 4), (U, 2))))) == [(U, 2), (T, 4)]


def test_from_the_next_sequence_on_there_is_nothing_to_read() -> None:
    data = _region()
    start = find_start(_state(data), 0, FindStart(((T, 5),)))
    assert start.begin == start.end
    assert _read(data, start) == []


def test_beyond_the_next_sequence_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="beyond the next one: table=7 sequence=6 next=5"):
        find_start(_state(_region()), 0, FindStart(((T, 6),)))


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no record of this table was ever written: table=99"):
        find_start(_state(_region()), 0, FindStart(((99, 0),)))


def test_no_tables_and_an_empty_region() -> None:
    data = _region()
    assert _read(data, find_start(_state(data), 0, FindStart(()))) == []
    empty = TopicList()
    assert _read(empty, find_start(_state(empty), 0, FindStart())) == []


def test_below_the_mark_entries_are_lost() -> None:
    data = _region()
    state = _state(data)
    state.meta.tables[T].mark_deleted(3)
    start = find_start(state, 0, FindStart(((T, 2),)))
    assert start.lost == (LostEntries(T, 2, 3),)
    assert _read(data, start) == [LostEntries(T, 2, 3), (T, 3), (T, 4)]


def test_a_table_in_which_all_is_deleted() -> None:
    data = _region()
    state = _state(data)
    state.meta.tables[T].mark_deleted(5)
    assert _read(data, find_start(state, 0, FindStart(((T, 0),)))) == []
    assert _read(data, find_start(state, 0, FindStart(((T, 5),)))) == []
    assert _read(data, find_start(state, 0, FindStart(((T, 4),)))) == [LostEntries(T, 4, 5)]
    assert _read(data, find_start(state, 0, FindStart())) == [(U, 1), (U, 2)]


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (1, ALL),
        (2, [(U, 1), LostEntries(T, 1, 2), (T, 2), (T, 3), (U, 2), (T, 4)]),
        (3, [LostEntries(T, 1, 2), (T, 2), (T, 3), LostEntries(U, 1, 2), (U, 2), (T, 4)]),
        (6, [LostEntries(T, 1, 4), (T, 4), LostEntries(U, 1, 3)]),
        (7, [LostEntries(T, 1, 5), LostEntries(U, 1, 3)]),
    ],
)
@pytest.mark.parametrize("knows", ["owner", "reader"])
def test_the_front_was_deleted_by_another_program(first: int, expected: Found, knows: str) -> None:
    data = _region()
    state = _state(data)
    at, request = (first, FindStart()) if knows == "owner" else (0, FindStart(first=first))
    assert _read(data, find_start(state, at, request)) == expected


def test_only_the_tables_that_are_wanted_are_told_as_lost() -> None:
    data = _region()
    state = _state(data)
    assert _read(data, find_start(state, 3, FindStart(((U, 0),)))) == [LostEntries(U, 1, 2), (U, 2)]
    assert _read(data, find_start(state, 3, FindStart(((T, 3),)))) == [(T, 3), (T, 4)], "nothing of it is gone"


def test_what_is_written_after_the_start_was_found_is_not_read() -> None:
    data = _region()
    start = find_start(_state(data), 0, FindStart())
    data.add(batch(4, (T, 5)))
    assert _read(data, start, 100) == ALL


def test_batches_of_a_deposed_owner_and_second_copies_are_not_read() -> None:
    data = TopicList(fence(), batch(0, (T, 1)), batch(0, (T, 1)), fence(2, OTHER), batch(1, (T, 2)))
    data.add(batch(0, (T, 2), nonce=OTHER))
    found = _read(data, find_start(_state(data), 0, FindStart()))
    assert found == [(T, 1), (T, 2)]
    scan = EntryScan(REGION, find_start(_state(data), 0, FindStart(((T, 2),))))
    (entry,) = scan.feed(data.stored(scan.offset))
    assert isinstance(entry, RegionEntry)
    assert entry.offset == 5


def test_entries_behind_the_end_of_their_table_are_not_read() -> None:
    data = _region()
    data.add(TableEnd(T))
    data.add(batch(4, (T, 5), (U, 3)))
    state = _state(data)
    assert _read(data, find_start(state, 0, FindStart())) == [*ALL, (U, 3)]
    late = find_start(state, 0, FindStart(((U, 3),)))
    assert late.begin == 9, "behind the end of the other table"
    assert _read(data, late) == [(U, 3)]


def test_a_record_that_cannot_be_used_is_an_error_or_left_out() -> None:
    data = _region()
    key, value = data.log[3]
    data.log[3] = (key, value[:-1] + b"?")  # T/2
    data.add(fence(2, OTHER))
    data.add(batch(0, (T, 5), nonce=OTHER))
    state = _state(_region())
    state.apply((7, fence(2, OTHER)))
    state.apply((8, batch(0, (T, 5), nonce=OTHER)))
    start = find_start(state, 0, FindStart())
    with pytest.raises(DamagedError, match="offset=3"):
        _read(data, start)
    found = _read(data, start, skips=True)
    assert found[:2] == [(T, 1), (U, 1)]
    assert found[-2:] == [(T, 5), LostEntries(U, 2, 3)], "up to the next fence it is not known what counts"
    assert LostEntries(T, 2, 5) in found


def test_a_record_that_is_left_out_is_named() -> None:
    data = _region()
    state = _state(data)
    data.log[6] = encoded(fence(), region=5)[0]
    scan = EntryScan(REGION, find_start(state, 0, FindStart()), skips=True)
    found = list(scan.feed(data.stored(1)))
    assert found[-1] == LostEntries(T, 4, 5)
    assert scan.problems == ["data topic: a record of another region: region=5 offset=6"]


@pytest.mark.parametrize("records_at_once", [1, 2, 100])
def test_entries_of_tables_beside_come_along_if_they_count(records_at_once: int) -> None:
    data = TopicList(
        fence(),
        batch(0, (T, 0), (T, 1), (U, 0), (U, 1)),
        batch(1, (U, 2), (T, 2)),
        batch(9, (U, 9), nonce=OTHER),  # of a deposed owner
        batch(1, (U, 2), (T, 2)),  # a second copy
        TableEnd(U),
        batch(2, (T, 3), (U, 3)),
        batch(3, (U, 4)),
        batch(4, (T, 4)),
    )
    state = _state(data)
    start = find_start(state, 0, FindStart(((T, 1),)))
    whole: Found = [(T, 1), (U, 1), (U, 2), (T, 2), (T, 3), (T, 4)]
    assert _read(data, start, records_at_once, beside={U: 6}) == whole
    assert _read(data, start, records_at_once, beside={U: 5}) == [one for one in whole if one != (U, 2)]
    within = replace(start, begin=6, ends={T: (2, 5, state.offset)})  # a batch whose front is not read
    assert _read(data, within, records_at_once, beside={U: 6}) == [(T, 2), (T, 3), (T, 4)]
    assert state.meta.tables[U].current_high_watermark == 6


def test_the_record_that_begins_a_table_is_not_an_entry() -> None:
    data = TopicList(fence(), batch(0, (T, 0), (T, 1)), batch(1, (U, 0)))
    state = _state(data)
    start = find_start(state, 0, FindStart())
    assert start.ends == {T: (1, 2, 3), U: (1, 1, 0)}
    assert _read(data, start) == [(T, 1)]
    tail = TailScan(REGION, ReadingStart(0, 0, {}, (), CountingRule()), None)
    assert [(one.table, one.sequence) for one in tail.feed(data.stored(0))] == [(T, 1)]
