"""Tests the index search: transcripts of what the steps find, their number, and a comparison with a plain model."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dlog.errors import TruncatedError
from dlog.model.object_streams import ObjectId, ObjectRef, ObjectStreamId, SearchResult
from dlog.objects.image import Image, SliceTable
from dlog.objects.search import find_objects
from tests.unit.objects.search_model import NODES, History, Version

ONE = ObjectStreamId(1)
A, B, _ = NODES


def history() -> History:
    """A stream, open on node a."""
    made = History()
    made.create()
    made.move(ONE, A)
    return made


def uploaded(made: History, count: int, *, own: bool = False) -> None:
    made.append(ONE, count)
    node = made.streams[ONE].node
    assert node is not None
    made.upload(node, [count], as_stream_objects=1 if own else 0)


def found(result: SearchResult) -> list[tuple[int, int, bool]]:
    return [(ref.start, ref.end, ref.is_set_object) for ref in result.objects]


def test_set_objects_and_stream_objects_are_found_in_turns() -> None:
    made = history()
    for own in (False, True, True, False, False, True):
        uploaded(made, 10, own=own)
    result = find_objects(made.image, ONE, 5, 100, 100)
    assert found(result) == [
        (0, 10, True),
        (10, 20, False),
        (20, 30, False),
        (30, 40, True),
        (40, 50, True),
        (50, 60, False),
    ]
    assert (result.covered_to, result.version) == (60, made.image.version)


def test_a_search_ends_where_it_was_asked_to() -> None:
    made = history()
    for own in (True, False, True):
        uploaded(made, 10, own=own)
    result = find_objects(made.image, ONE, 12, 18, 4)
    assert (found(result), result.covered_to) == ([(10, 20, True)], 18)
    result = find_objects(made.image, ONE, 0, 30, 2)
    assert (found(result), result.covered_to) == ([(0, 10, False), (10, 20, True)], 20)
    assert find_objects(made.image, ONE, 7, 7, 4) == SearchResult((), 7, made.image.version)


def test_the_set_objects_of_the_node_that_wrote_the_range_are_searched() -> None:
    made = history()
    uploaded(made, 10)
    made.move(ONE, B)
    uploaded(made, 10)
    made.move(ONE, A)
    uploaded(made, 10)
    assert found(find_objects(made.image, ONE, 0, 30, 9)) == [(0, 10, True), (10, 20, True), (20, 30, True)]


def test_a_hole_that_is_not_uploaded_ends_the_result() -> None:
    """The node that had the stream before has not uploaded its rest, the one that has it now has."""
    made = history()
    uploaded(made, 10)
    made.append(ONE, 5)
    made.move(ONE, B)
    uploaded(made, 10)
    result = find_objects(made.image, ONE, 0, 100, 9)
    assert (found(result), result.covered_to) == ([(0, 10, True)], 10)
    assert found(find_objects(made.image, ONE, 12, 100, 9)) == []
    assert found(find_objects(made.image, ONE, 15, 100, 9)) == [(15, 25, True)]
    made.upload(A, [5], as_stream_objects=0)
    assert find_objects(made.image, ONE, 0, 100, 9).covered_to == 25


def test_metadata_that_lags_gives_a_partial_result_with_its_version() -> None:
    made = history()
    uploaded(made, 10)
    made.keep()
    uploaded(made, 10)
    older = made.versions[-1].image
    assert find_objects(older, ONE, 0, 20, 4) == SearchResult(
        (find_objects(made.image, ONE, 0, 20, 4).objects[0],), 10, older.version
    )
    assert find_objects(older, ONE, 15, 20, 4) == SearchResult((), 15, older.version)
    assert find_objects(made.versions[0].image, ONE, 0, 20, 4) == SearchResult((), 0, made.versions[0].image.version)


def test_what_is_gone_for_good_is_told_from_what_is_not_there_yet() -> None:
    made = history()
    uploaded(made, 10)
    made.move(ONE, B)
    uploaded(made, 10)
    made.move(ONE, A)
    uploaded(made, 10)
    made.trim(ONE, 3)
    with pytest.raises(TruncatedError, match="start=3"):
        find_objects(made.image, ONE, 2, 9, 4)
    made.drop(ONE, 1)
    with pytest.raises(TruncatedError, match="another store"):
        find_objects(made.image, ONE, 15, 18, 4)
    assert find_objects(made.image, ONE, 3, 30, 4).covered_to == 10
    assert find_objects(made.image, ONE, 20, 30, 4).covered_to == 30
    made.delete(ONE)
    with pytest.raises(TruncatedError, match="deleted"):
        find_objects(made.image, ONE, 20, 30, 4)


def test_a_dropped_range_inside_an_object_ends_the_result() -> None:
    made = history()
    for node in (B, A, B):
        uploaded(made, 10, own=True)
        made.move(ONE, node)
    made.compact_stream(ONE, 0, 3)
    assert found(find_objects(made.image, ONE, 0, 30, 4)) == [(0, 30, False)]
    made.drop(ONE, 1)
    assert find_objects(made.image, ONE, 0, 30, 4).covered_to == 10
    assert find_objects(made.image, ONE, 20, 30, 4).covered_to == 30


class CountingArray:
    """An array that counts how often it is read."""

    def __init__(self, items: array[int], count: Callable[[], None]) -> None:
        self._items = items
        self._count = count

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, at: int) -> int:
        self._count()
        return self._items[at]


def counted(table: SliceTable, count: Callable[[], None]) -> SliceTable:
    made = SliceTable()
    for name in SliceTable.__slots__:
        setattr(made, name, cast(Any, CountingArray(getattr(table, name), count)))
    return made


@pytest.mark.parametrize(("objects", "steps"), [(100, 70), (10_000, 120)])
def test_the_steps_grow_with_the_logarithm_of_the_objects(objects: int, steps: int) -> None:
    made = history()
    for at in range(objects):
        (made.image.streams[ONE].objects if at % 3 else made.image.nodes[A].slices.setdefault(ONE, SliceTable())).add(
            at * 10, at * 10 + 10, cast(Any, at + 1)
        )
    taken = [0]

    def count() -> None:
        taken[0] += 1

    stream, node = made.image.streams[ONE], made.image.nodes[A]
    stream.objects, node.slices[ONE] = counted(stream.objects, count), counted(node.slices[ONE], count)
    result = find_objects(made.image, ONE, objects * 5, objects * 10, 4)
    assert len(result.objects) == 4
    assert taken[0] <= steps


def test_a_search_that_makes_no_progress_is_an_assertion() -> None:
    """A slice without entries is a bug of the image, and must not become an endless loop."""
    made = history()
    uploaded(made, 10, own=True)
    made.image.streams[ONE].objects.add(10, 10, ObjectId(7))
    with pytest.raises(AssertionError, match="out of order"):
        find_objects(made.image, ONE, 0, 1000, 1000)


# ---- against a model ------------------------------------------------------------------------------------------------

streams = st.integers(1, 3).map(ObjectStreamId)
nodes = st.sampled_from(NODES)


def check(version: Version, made: History, stream: ObjectStreamId, start: int, length: int, limit: int) -> None:
    """Compare a search in one version with the model of that version."""
    image, its = version.image, version.streams.get(stream)
    end = start + length
    try:
        result = find_objects(image, stream, start, end, limit)
    except TruncatedError:
        assert stream < image.next_stream
        assert its is None or start < its.start or (start < its.end and start not in its.uploaded)
        return
    assert result.version == image.version
    if its is None:
        assert stream >= image.next_stream and result == SearchResult((), start, image.version)
        return
    whole = its.run(start, end)
    assert result.covered_to <= whole, "a result covers entries that are not uploaded or gone"
    assert len(result.objects) <= limit
    at = start
    for ref in result.objects:
        assert ref.start <= at < ref.end, "a result has a gap, or an object in vain"
        there = made.objects[ref.object]
        assert all((stream, offset) in there for offset in range(ref.start, ref.end))
        assert holds(image, ref, stream)
        at = ref.end
    assert result.covered_to == max(start, min(at, whole))
    if len(result.objects) < limit:
        assert result.covered_to == whole, "a result stops before what is uploaded"


def holds(image: Image, ref: ObjectRef, stream: ObjectStreamId) -> bool:
    """Whether the image has the object as committed, and as of the kind that the result says."""
    its_stream = image.objects.stream_of(ref.object)
    return image.objects.state(ref.object).name == "COMMITTED" and its_stream == (None if ref.is_set_object else stream)


class SearchAgainstModel(RuleBasedStateMachine):
    """Random histories; after each step the searches of a lagging and of the present image are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.made = History()
        for _ in range(3):
            self.made.create()

    def alive(self, stream: ObjectStreamId) -> bool:
        return stream in self.made.streams

    @rule(stream=streams, node=nodes)
    def move(self, stream: ObjectStreamId, node: Any) -> None:
        if self.alive(stream):
            self.made.move(stream, node)

    @rule(stream=streams, count=st.integers(1, 5))
    def append(self, stream: ObjectStreamId, count: int) -> None:
        if self.alive(stream):
            self.made.append(stream, count)

    @rule(node=nodes, shares=st.lists(st.integers(0, 8), min_size=1, max_size=6), own=st.integers(0, 2))
    def upload(self, node: Any, shares: list[int], own: int) -> None:
        self.made.upload(node, shares, as_stream_objects=own)

    @rule(stream=streams, start=st.integers(0, 30))
    def trim(self, stream: ObjectStreamId, start: int) -> None:
        if self.alive(stream):
            self.made.trim(stream, start)

    @rule(stream=streams, which=st.integers(0, 5))
    def drop(self, stream: ObjectStreamId, which: int) -> None:
        if self.alive(stream):
            self.made.drop(stream, which)

    @precondition(lambda self: len(self.made.streams) > 1)
    @rule(stream=streams, sure=st.integers(0, 9))
    def delete(self, stream: ObjectStreamId, sure: int) -> None:
        if self.alive(stream) and not sure:
            self.made.delete(stream)

    @rule(node=nodes, which=st.lists(st.booleans(), min_size=1, max_size=5), splits=st.lists(st.booleans(), max_size=5))
    def compact_set(self, node: Any, which: list[bool], splits: list[bool]) -> None:
        self.made.compact_set(node, which, splits)

    @rule(stream=streams, first=st.integers(0, 5), count=st.integers(1, 4))
    def compact_stream(self, stream: ObjectStreamId, first: int, count: int) -> None:
        if self.alive(stream):
            self.made.compact_stream(stream, first, count)

    @rule()
    def keep(self) -> None:
        self.made.keep()

    @rule(stream=streams, start=st.integers(0, 40), length=st.integers(0, 40), limit=st.integers(1, 5))
    def search(self, stream: ObjectStreamId, start: int, length: int, limit: int) -> None:
        for version in self.made.versions:
            check(version, self.made, stream, start, length, limit)

    @invariant()
    def all_is_found(self) -> None:
        present = Version(self.made.image, self.made.streams)
        for stream, its in self.made.streams.items():
            check(present, self.made, stream, its.start, its.end + 1 - its.start, 1000)


TestSearchAgainstModel = SearchAgainstModel.TestCase
TestSearchAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
