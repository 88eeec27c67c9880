"""Pieces of a region, read independently, have what a reader of the whole region finds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

from dlog.errors import DamagedError
from dlog.region.messages import FindStart
from dlog.region.pieces import Cut, Piece, PiecePlan, PieceScan, WantedTable
from dlog.region.reading import EntryScan, RegionEntry, find_start
from dlog.region.state import RegionState
from dlog.region.topics import Stored
from tests.unit.region.histories import History
from tests.unit.region.topic_lists import OTHER, REGION, TopicList, batch, fence, loaded

T, U = 7, 8


class Counted:
    """Reads of a topic. offsets: that were read, once for each time."""

    def __init__(self, data: TopicList) -> None:
        self._data = data
        self.offsets: list[int] = []

    def read(self, offset: int, records: int) -> Sequence[Stored]:
        found = self._data.stored(offset)[:records]
        self.offsets += [stored.offset for stored in found]
        return found


def _oracle(data: TopicList, state: RegionState, wanted: Mapping[int, int]) -> list[RegionEntry]:
    scan = EntryScan(REGION, find_start(state, data.first, FindStart(tuple(wanted.items()))))
    found: list[RegionEntry] = []
    is_done = False
    while not is_done:
        is_done = scan.is_done
        found += [one for one in scan.feed([] if is_done else data.stored(scan.offset)) if isinstance(one, RegionEntry)]
    return found


def _pieces(
    data: TopicList, state: RegionState, wanted: Mapping[int, int], piece_bytes: int, seek_bytes: int = 1 << 20
) -> list[Piece]:
    plan = PiecePlan(REGION, state, wanted, data.first, seek_bytes=seek_bytes)
    cuts: list[Cut] = []
    size = piece_bytes
    for point in plan.points:
        if size >= piece_bytes:
            cut = plan.cut(point, data.stored(point.offset)[0])
            if not cuts or cut.may_follow(cuts[-1]):
                cuts.append(cut)
            size = 0
        size += point.bytes
    ends = [*(cut.begin for cut in cuts[1:]), plan.end][: len(cuts)]
    return [plan.piece(cut, end) for cut, end in zip(cuts, ends, strict=True)]


def _wanted(state: RegionState, starts: Mapping[int, int]) -> dict[int, WantedTable]:
    return {
        table: WantedTable(first, meta.next_seq_num, meta.current_high_watermark)
        for table, first in starts.items()
        if first < (meta := state.meta.tables[table]).next_seq_num
    }


def _read(
    topic: Counted, state: RegionState, piece: Piece, starts: Mapping[int, int], at_once: int
) -> list[RegionEntry]:
    scan = PieceScan(REGION, piece, _wanted(state, starts))
    found: list[RegionEntry] = []
    while not scan.is_done:
        found += scan.feed(topic.read(scan.offset, at_once))
    return found


@pytest.mark.parametrize("seed", range(150))
def test_pieces_have_what_a_reader_of_the_whole_region_finds(seed: int) -> None:
    rng = random.Random(seed)
    history = History(rng, rng.choice((5, 40, 300)), map_every=rng.choice((1, 3, 10)))
    data, state = history.data, history.state
    tables = state.meta.tables
    if seed % 3 == 0 and data.log:
        data.first = rng.randrange(len(data.log))  # deleted by another program
    chosen = [table for table in tables if rng.random() < rng.choice((0.3, 1))]
    starts = {
        table: rng.randint(max(1, tables[table].latest_marked_deleted), tables[table].next_seq_num) for table in chosen
    }
    pieces = _pieces(data, state, starts, rng.choice((1, 500, 5000)), rng.choice((1, 500, 1 << 20)))
    assert all(one.end == other.begin for one, other in pairwise(pieces))
    read = {n: _read(Counted(data), state, pieces[n], starts, rng.choice((1, 4, 50))) for n in _mixed(rng, len(pieces))}
    found = [entry for n in range(len(pieces)) for entry in read[n]]
    begin = find_start(state, data.first, FindStart(tuple(starts.items()))).begin
    assert [entry for entry in found if entry.offset >= begin] == _oracle(data, state, starts)
    assert data.first or all(entry.offset >= begin for entry in found)
    assert all(begin - entry.offset < 5 for entry in found), "what is left of the batch of the first point"


def _mixed(rng: random.Random, count: int) -> list[int]:
    return rng.sample(range(count), count)


def test_the_histories_have_many_pieces_and_what_does_not_count() -> None:
    sizes, void = [], 0
    for seed in range(30):
        history = History(random.Random(seed), 300)
        starts = {table: max(1, meta.latest_marked_deleted) for table, meta in history.state.meta.tables.items()}
        sizes.append(len(_pieces(history.data, history.state, starts, 500)))
        counting = sum(meta.next_seq_num - 1 for meta in history.state.meta.tables.values())
        void += len(history.data.log) - counting
    assert sum(sizes) / len(sizes) > 5
    assert void > 1000


def test_a_piece_begins_with_a_whole_item() -> None:
    data = TopicList(fence(), batch(0, (T, 1), (T, 2), (U, 1)), batch(1, (U, 2), (U, 3), (T, 3)), batch(2, (T, 4)))
    state = loaded(data).state  # maps every record
    assert state is not None
    pieces = _pieces(data, state, {T: 1, U: 1}, 1)
    assert [(piece.begin, piece.end, piece.number) for piece in pieces] == [(1, 4, 0), (4, 7, 1), (7, 8, 2)]


def _bursts() -> tuple[TopicList, RegionState]:
    """Table 1 is written in five bursts; the other tables between them."""
    data, state = TopicList(), RegionState(map_every=4)
    number = 0

    def add(*entries: tuple[int, int]) -> None:
        nonlocal number
        state.apply((data.add(made := batch(number, *entries)), made))
        number += 1

    state.apply((data.add(fence()), fence()))
    for burst in range(5):
        for n in range(8):
            add((1, 8 * burst + n + 1))
        for n in range(200):
            for table in (2, 3):
                add((table, 200 * burst + n + 1))
    return data, state


@pytest.mark.parametrize("piece_bytes", [1, 10_000, 1 << 20])
def test_one_table_is_read_without_much_of_the_others(piece_bytes: int) -> None:
    data, state = _bursts()
    starts = {1: 1}
    topic = Counted(data)
    pieces = _pieces(data, state, starts, piece_bytes, seek_bytes=1000)
    found = [entry for piece in pieces for entry in _read(topic, state, piece, starts, 4)]
    assert [entry.sequence for entry in found] == list(range(1, 41))
    assert found == _oracle(data, state, starts)
    assert len(topic.offsets) < 4 * 40, f"of {len(data.log)} records"
    late = {1: 33}
    topic = Counted(data)
    pieces = _pieces(data, state, late, piece_bytes, seek_bytes=1000)
    assert [e.sequence for piece in pieces for e in _read(topic, state, piece, late, 4)] == list(range(33, 41))
    assert len(topic.offsets) < 20
    assert _pieces(data, state, {1: 41}, piece_bytes) == [], "nothing is wanted"


def test_a_point_whose_record_is_another_one_is_damage() -> None:
    data = TopicList(fence(), batch(0, (T, 1)), batch(1, (T, 2)))
    state = loaded(data).state
    assert state is not None
    plan = PiecePlan(REGION, state, {T: 1}, 0)
    with pytest.raises(DamagedError, match="not the one that the region's state names: table=7 sequence=1 offset=1"):
        plan.cut(plan.points[0], data.stored(2)[0])


def test_a_piece_of_a_region_that_was_created_again_is_refused() -> None:
    data = TopicList(fence(), batch(0, (T, 1)))
    state = loaded(data).state
    assert state is not None
    (piece,) = _pieces(data, state, {T: 1}, 1)
    again = TopicList(fence(1, OTHER), batch(0, (T, 1), nonce=OTHER))
    with pytest.raises(DamagedError, match="another region has been created under this name, plan again: offset=1"):
        _read(Counted(again), state, piece, {T: 1}, 10)


def test_a_record_that_cannot_be_used_is_an_error_or_left_out_up_to_the_next_piece() -> None:
    data = TopicList(fence(), *(batch(n, (T, n + 1)) for n in range(6)))
    state = loaded(data).state
    assert state is not None
    each = PiecePlan(REGION, state, {T: 1}, 0).points[0].bytes
    pieces = _pieces(data, state, {T: 1}, 2 * each)
    assert [(piece.begin, piece.end) for piece in pieces] == [(1, 3), (3, 5), (5, 7)]
    key, value = data.log[1]
    data.log[1] = key, value[:-1] + b"?"
    with pytest.raises(DamagedError, match=r"checksum.*offset=1"):
        _read(Counted(data), state, pieces[0], {T: 1}, 10)
    scans = [PieceScan(REGION, piece, _wanted(state, {T: 1}), skips=True) for piece in pieces]
    found = [[entry.sequence for entry in scan.feed(data.stored(scan.offset))] for scan in scans]
    assert found[0] == []
    assert [s for part in found[1:] for s in part] == list(range(pieces[0].end, 7))
    assert len(scans[0].problems) == 1 and "offset=1" in scans[0].problems[0]
