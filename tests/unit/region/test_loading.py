"""Tests how the state of a region is found: from snapshots, check-points, the topic alone, or not at all."""

from __future__ import annotations

import pytest

from dlog.errors import DamagedError
from dlog.region.counting import Checkpoint, TableEnd
from dlog.region.items import records_of
from dlog.region.loading import RegionLoader
from dlog.region.messages import AskOffsets, OffsetsFound, Topic
from dlog.region.state import RegionState
from dlog.wire.region import RegionSnapshot, decode_snapshot, encode_snapshot
from tests.unit.region.topic_lists import NONCE, REGION, TopicList, batch, checkpoint, encoded, fence, loaded

T = 7


def _region() -> TopicList:
    """Offsets 0 to 6: a fence, and entries of two tables."""
    return TopicList(fence(), batch(0, (T, 1), (8, 1)), batch(1, (T, 2)), batch(2, (T, 3), (8, 2)), batch(3, (8, 3)))


def _state(data: TopicList, upto: int) -> RegionState:
    """The state of a region as of an offset, from the topic alone."""
    front = TopicList()
    front.append(data.log[:upto])
    state = loaded(front).state
    assert state is not None
    return state


def _meta(*states: RegionState) -> TopicList:
    return TopicList(*(checkpoint(state) for state in states))


def test_an_empty_region() -> None:
    loader = loaded(TopicList())
    assert loader.state is not None
    assert loader.state.snapshot() == RegionSnapshot(0)
    assert (loader.problems, loader.snapshots, loader.scanned_bytes) == ([], [], 0)


def test_without_a_snapshot_the_whole_topic_is_scanned() -> None:
    data = _region()
    loader = loaded(data)
    assert loader.state is not None
    assert loader.state.offset == loader.next == 7
    assert loader.state.rule.number == 4
    assert {table: meta.next_seq_num for table, meta in loader.state.meta.tables.items()} == {T: 4, 8: 4}
    assert loader.scanned_bytes == sum(len(key) + len(value) for key, value in data.log)


def test_the_newest_snapshot_is_used_and_only_what_is_behind_it_is_scanned() -> None:
    data = _region()
    newest = _state(data, 6)
    newest.meta.tables[T].mark_deleted(3)  # only a snapshot has it
    loader = loaded(data, _meta(_state(data, 1), _state(data, 4), newest))
    assert loader.state is not None
    assert loader.state.meta.tables[T].latest_marked_deleted == 3
    assert loader.scanned_bytes == sum(len(key) + len(value) for key, value in data.log[6:])
    assert loader.snapshots == [0, 1, 2]
    newest.apply((6, batch(3, (8, 3))))
    assert loader.state.snapshot() == newest.snapshot()


def test_a_snapshot_of_the_end_leaves_nothing_to_scan() -> None:
    data = _region()
    loader = loaded(data, _meta(_state(data, 7)))
    assert loader.scanned_bytes == 0
    assert loader.state is not None
    assert loader.state.snapshot() == _state(data, 7).snapshot()


def test_a_later_snapshot_of_the_same_offset_wins() -> None:
    """It has newer marks."""
    data = _region()
    marked = _state(data, 7)
    marked.meta.tables[T].mark_deleted(2)
    loader = loaded(data, _meta(_state(data, 7), marked))
    assert loader.state is not None
    assert loader.state.meta.tables[T].latest_marked_deleted == 2


@pytest.mark.parametrize("damage", ["flipped", "cut", "not a snapshot", "another region", "newer"])
def test_a_snapshot_that_does_not_verify_is_left_out_and_named(damage: str) -> None:
    data = _region()
    meta = _meta(_state(data, 4))
    snapshot = encode_snapshot(_state(data, 6).snapshot())
    key, value = encoded(Checkpoint(snapshot))[0]
    match damage:
        case "flipped":
            meta.append([(key, value[:-1] + bytes([value[-1] ^ 1]))])
        case "cut":
            meta.add(Checkpoint(snapshot[:-1]))
        case "not a snapshot":
            meta.add(fence())
        case "another region":
            meta.append(records_of(8, 1, NONCE, Checkpoint(snapshot)))
        case "newer":
            meta.add(Checkpoint(b"\2" + snapshot[1:]))
    loader = loaded(data, meta)
    assert loader.snapshots == [0]
    (problem,) = loader.problems
    assert problem.startswith("meta topic: ")
    assert loader.scanned_bytes == sum(len(key) + len(value) for key, value in data.log[4:])
    assert loader.state is not None
    assert loader.state.snapshot() == _state(data, 7).snapshot()


def test_a_snapshot_beyond_the_end_is_refused() -> None:
    data = _region()
    meta = _meta(_state(data, 4), _state(data, 7))
    del data.log[6:]
    with pytest.raises(DamagedError, match="records are lost: restore it, or drop the region: end=6 snapshot=7"):
        loaded(data, meta)


def test_the_front_is_deleted_and_a_snapshot_has_the_state() -> None:
    data = _region()
    meta = _meta(_state(data, 4))
    data.first = 4
    loader = loaded(data, meta)
    assert (loader.first, loader.next) == (4, 7)
    assert loader.state is not None
    assert loader.state.snapshot() == _state(data, 7).snapshot()


def _cleaned() -> tuple[TopicList, RegionState]:
    """A region whose front is deleted, with a check-point behind the front; and its true state at the end."""
    data = _region()
    state = _state(data, 7)
    state.meta.tables[T].mark_deleted(3)
    state.meta.tables[8].mark_deleted(2)
    safe = state.meta.safe_offset
    assert safe == 4
    point = checkpoint(state)
    at = data.add(point)
    data.add(batch(4, (8, 4)))
    state.apply((at, point))
    state.apply((at + 1, batch(4, (8, 4))))
    data.first = safe
    return data, state


def test_the_front_is_deleted_and_a_check_point_behind_it_has_the_state() -> None:
    data, state = _cleaned()
    loader = loaded(data)
    assert loader.state is not None
    assert loader.state.snapshot() == state.snapshot()
    assert loader.state.meta.tables[T].latest_marked_deleted == 3, "the marks are in the check-point"


def test_the_check_point_has_an_offset_before_its_own() -> None:
    """A late batch of a deposed owner came between; what it is true at is still there, so the scan begins there."""
    data = _region()
    state = _state(data, 7)
    state.meta.tables[T].mark_deleted(3)
    state.meta.tables[8].mark_deleted(2)
    point = checkpoint(state)
    stale = batch(0, (T, 9), nonce=b"x" * 16)
    for item in (stale, batch(4, (8, 4)), point, batch(5, (8, 5))):
        placed = (data.add(item), item)
        state.apply(placed)
    data.first = state.meta.safe_offset
    assert data.first == 4
    loader = loaded(data)
    assert loader.state is not None
    assert loader.state.snapshot() == state.snapshot()
    with_snapshot = loaded(data, _meta(_state_of(point)))
    assert with_snapshot.state is not None
    assert with_snapshot.state.snapshot() == state.snapshot()


def _state_of(point: Checkpoint) -> RegionState:
    return RegionState.restored(decode_snapshot(point.snapshot), map_every=1)


def test_a_check_point_whose_offset_was_deleted_is_not_used() -> None:
    data, _ = _cleaned()
    data.first = 8  # the check-point lies at 7 and is true at 7; another one follows
    state = RegionState(9, map_every=1)
    data.add(checkpoint(state))
    data.first = 9
    loader = loaded(data)
    assert loader.state is not None
    assert loader.state.offset == 10
    assert not loader.state.meta.tables


@pytest.mark.parametrize("first", [1, 2, 5, 7])
def test_the_front_is_deleted_and_nothing_has_the_state(first: int) -> None:
    data = _region()
    data.first = first
    with pytest.raises(
        DamagedError, match=f"deleted by another program, and no snapshot is left.*first={first} next=7"
    ):
        loaded(data)


def test_a_snapshot_before_the_deleted_front_is_not_used() -> None:
    data = _region()
    meta = _meta(_state(data, 1))
    data.first = 5
    with pytest.raises(DamagedError, match="first=5 next=7"):
        loaded(data, meta)


def test_a_record_of_another_program_in_the_data_topic_is_an_error_or_left_out() -> None:
    data = _region()
    data.append([(b"foreign", b"x")])
    data.add(batch(4, (8, 4)))
    with pytest.raises(DamagedError, match=r"not a record of a region.*offset=7"):
        loaded(data)
    loader = loaded(data, skips=True)
    assert loader.state is not None
    assert loader.state.meta.next_seq_num(8) == 5
    (problem,) = loader.problems
    assert problem.startswith("data topic: ")


def test_an_entry_out_of_order_is_damage() -> None:
    data = _region()
    data.add(batch(4, (8, 6)))
    with pytest.raises(DamagedError, match="sequence=6 expected=4"):
        loaded(data)


def test_a_table_that_has_ended_stays_ended_in_a_snapshot() -> None:
    data = _region()
    data.add(TableEnd(8))
    meta = _meta(_state(data, 8))
    data.add(batch(4, (8, 4), (T, 4)))
    for loader in (loaded(data, meta), loaded(data)):
        assert loader.state is not None
        assert loader.state.rule.ended == {8}
        assert loader.state.meta.next_seq_num(8) == 4
        assert loader.state.meta.next_seq_num(T) == 5


def test_the_topic_is_read_up_to_the_offset_that_was_asked_for() -> None:
    """What is appended while a loader reads is not its business: the owner's fence comes behind it."""
    data = _region()
    numbers = iter(range(100))
    loader = RegionLoader(REGION, lambda: next(numbers), map_every=1)
    asking = loader.begin()
    while True:
        topic, question = asking
        reply = (data if topic is Topic.DATA else TopicList()).answer(question, records_max=100)
        if topic is Topic.DATA and isinstance(question, AskOffsets):
            assert reply == OffsetsFound(question.number, 0, 7)
            data.add(batch(4, (8, 4)))
        following = loader.handle(reply)
        if following is None:
            break
        asking = following
    assert loader.state is not None
    assert (loader.state.offset, loader.state.meta.next_seq_num(8)) == (7, 4)
