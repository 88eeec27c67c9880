"""Tests the table of objects: states, blocks and memory."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import DamagedError
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId, ObjectStreamId
from dlog.objects.object_table import TRANSITIONS, ObjectState, ObjectTable

OWNER = (NodeId("n1"), NodeEpoch(1))


def table(count: int) -> ObjectTable:
    made = ObjectTable()
    made.prepare(ObjectId(1), count, OWNER, 1000)
    return made


def array_bytes(of: Any) -> int:
    """Bytes of all arrays that the blocks of a table hold."""
    columns = ("slots", "states", "bytes", "times", "owners", "streams")
    found: list[array[int]] = [getattr(block, name) for block in of._blocks.values() for name in columns]
    return sum(map(sys.getsizeof, found))


def test_an_object_goes_through_its_states() -> None:
    objects = table(2)
    one, two, three = map(ObjectId, (1, 2, 3))
    assert objects.state(three) is ObjectState.UNKNOWN
    assert objects.state(ObjectId(0)) is ObjectState.UNKNOWN
    assert (objects.state(one), objects.time_ms(one), objects.owner(one)) == (ObjectState.PREPARED, 1000, OWNER)
    objects.commit(one, ObjectStreamId(7), 55, 10)
    assert (objects.bytes_of(one), objects.stream_of(one), objects.time_ms(one)) == (55, 7, 10)
    assert objects.marked_bytes == 0
    objects.mark(one, 20)
    assert objects.marked_bytes == 55
    assert objects.marked_until(19, 9) == []
    assert objects.marked_until(20, 9) == [one]
    objects.destroy(one)
    assert objects.marked_bytes == 0
    assert objects.state(one) is ObjectState.DESTROYED
    objects.mark(two, 20)
    objects.destroy(two)
    assert len(objects) == 0
    objects.prepare(three, 1, OWNER, 5)
    assert objects.state(three) is ObjectState.PREPARED


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["commit", "mark", "destroy"])), max_size=20))
def test_states_change_only_as_the_table_has_them(steps: list[tuple[int, str]]) -> None:
    objects = table(3)
    for number, step in steps:
        object = ObjectId(number)
        before = objects.state(object)
        target = {"commit": ObjectState.COMMITTED, "mark": ObjectState.MARKED, "destroy": ObjectState.DESTROYED}[step]
        change: Callable[[], None] = {
            "commit": partial(objects.commit, object, None, 1, 1),
            "mark": partial(objects.mark, object, 1),
            "destroy": partial(objects.destroy, object),
        }[step]
        if target in TRANSITIONS[before]:
            change()
            assert objects.state(object) is target
        else:
            with pytest.raises(DamagedError):
                change()
            assert objects.state(object) is before


def test_expired_objects_are_found_in_order_up_to_a_limit() -> None:
    objects = table(3000)
    objects.commit(ObjectId(2), None, 1, 1)
    assert objects.expired(999, 10) == []
    assert objects.expired(1000, 3) == [1, 3, 4]
    assert len(objects.expired(1000, 9999)) == 2999


def test_blocks_are_dropped_once_all_their_objects_are_destroyed() -> None:
    objects = table(4096)
    for object in map(ObjectId, range(1, 4097)):
        objects.mark(object, 1)
        objects.destroy(object)
    assert array_bytes(objects) == 0
    assert objects.state(ObjectId(4096)) is ObjectState.DESTROYED


def test_an_object_takes_some_32_bytes() -> None:
    assert array_bytes(table(100 * 1024)) < 100 * 1024 * 36


def test_ids_that_do_not_follow_are_damage() -> None:
    objects = table(5)
    with pytest.raises(DamagedError, match="do not follow"):
        objects.prepare(ObjectId(5), 1, OWNER, 0)
    with pytest.raises(DamagedError, match="does not exist"):
        objects.mark(ObjectId(6), 0)
    with pytest.raises(DamagedError, match="does not exist"):
        objects.owner(ObjectId(5000))


def test_rows_load_into_an_equal_table() -> None:
    objects = table(3000)
    objects.prepare(ObjectId(3001), 5, (NodeId("n2"), NodeEpoch(4)), 7)
    for number in range(1, 2000, 2):
        objects.commit(ObjectId(number), None, number, 1)
    for number in range(1, 2000, 3):
        objects.mark(ObjectId(number), number)
        if number % 2:
            objects.destroy(ObjectId(number))
    rows, owners = objects.rows()
    loaded = ObjectTable()
    loaded.load(rows, owners, objects.next_id)
    assert list(loaded.ids()) == list(objects.ids())
    for number in range(3007):
        assert loaded.state(number) is objects.state(number)
    assert loaded.owner(ObjectId(3003)) == (NodeId("n2"), NodeEpoch(4))
    assert loaded.marked_until(500, 99) == objects.marked_until(500, 99)
    assert loaded.marked_bytes == objects.marked_bytes == 0, "what is left was never committed"
    objects.mark(ObjectId(3), 1)
    again = ObjectTable()
    again.load(*objects.rows(), objects.next_id)
    assert again.marked_bytes == objects.marked_bytes == 3


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("ids", [1, 2, 2]),
        ("ids", [0, 1, 2]),
        ("ids", [1, 2, 9]),
        ("states", [1, 2, 4]),
        ("owners", [0, 0, 1]),
        ("times", [1]),
    ],
)
def test_rows_that_do_not_fit_are_damage(column: str, values: list[int]) -> None:
    rows, owners = table(3).rows()
    setattr(rows, column, array(getattr(rows, column).typecode, values))
    with pytest.raises(DamagedError):
        ObjectTable().load(rows, owners, ObjectId(4))


def test_owners_without_objects_make_room_for_others() -> None:
    objects = ObjectTable()
    for epoch in range(1, 50):
        owner = (NodeId("n1"), NodeEpoch(epoch))
        first = objects.next_id
        objects.prepare(first, 2, owner, 1000)
        assert [objects.owner(ObjectId(first + n)) for n in range(2)] == [owner, owner]
        if epoch > 1:
            assert objects.owner(ObjectId(first - 1))[1] == epoch - 1
            for object in map(ObjectId, (first - 2, first - 1)):
                objects.mark(object, 1)
                objects.destroy(object)
        if epoch == 25:
            rows, owners = objects.rows()
            objects = ObjectTable()
            objects.load(rows, owners, ObjectId(first + 2))
    assert len(objects.owners) == 2
