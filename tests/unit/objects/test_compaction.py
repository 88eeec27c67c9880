"""Tests compaction plans: which objects are replaced, by which, and the proof that no live entry is lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.model.object_streams import (
    CompactionCommitted,
    NodeId,
    ObjectId,
    ObjectsPrepared,
    ObjectStreamId,
    Slice,
    StreamObject,
    StreamSetObject,
)
from dlog.objects import compaction
from dlog.objects.compaction import (
    CompactionOptions,
    CompactionPlan,
    PlanKind,
    find_uncovered,
    plan_set_objects,
    plan_stream_objects,
    set_objects_to_read,
    streams_of,
)
from dlog.wire.stream_object import ObjectEncoder, ObjectEntry, ObjectIndex, decode_footer, decode_index, index_in
from tests.unit.objects.search_model import EPOCH, NODES, History

A, B, _ = NODES
ONE, TWO, THREE = map(ObjectStreamId, (1, 2, 3))
HOUR_MS = 3600 * 1000
OPTIONS = CompactionOptions(
    split_bytes=1000, minor_bytes=4000, major_bytes=20_000, memory_bytes=20_000, set_objects_max=50
)


def index_of(slices: tuple[Slice, ...], object: ObjectId, *, entry_bytes: int = 10) -> ObjectIndex:
    """The index of an object with these entries, each of so many bytes, in blocks of at most four."""
    encoder = ObjectEncoder(object, A, EPOCH, block_bytes=4 * (entry_bytes + 33))
    parts = []
    for part in slices:
        for offset in range(part.start, part.end):
            parts += encoder.add(part.stream, offset, ObjectEntry(b"x" * entry_bytes))
    data = b"".join([*parts, *encoder.finish()])
    footer = decode_footer(data, len(data))
    index = index_in(footer, data)
    assert index is not None
    return decode_index(footer, index)


def runs(offsets: set[tuple[ObjectStreamId, int]]) -> tuple[Slice, ...]:
    found: list[Slice] = []
    for stream, offset in sorted(offsets):
        if found and (found[-1].stream, found[-1].end) == (stream, offset):
            found[-1] = Slice(stream, found[-1].start, offset + 1)
        else:
            found.append(Slice(stream, offset, offset + 1))
    return tuple(found)


def indexes(made: History, node: NodeId = A, *, entry_bytes: int = 10) -> dict[ObjectId, ObjectIndex]:
    wanted = set_objects_to_read(made.image, node, OPTIONS)
    return {object: index_of(runs(made.objects[object]), object, entry_bytes=entry_bytes) for object in wanted}


def history(streams: int = 3) -> History:
    made = History()
    for number in range(streams):
        made.create()
        made.move(ObjectStreamId(number + 1), A)
    return made


def uploaded(made: History, *counts: int, own: int = 0) -> None:
    """So many entries of each stream, in one upload; the first `own` streams in stream objects."""
    for number, count in enumerate(counts):
        made.append(ObjectStreamId(number + 1), count)
    for node in NODES:
        if made.waiting(node):
            made.upload(node, [10**6] * 100, as_stream_objects=own)


def shown(plan: CompactionPlan) -> list[tuple[str, list[tuple[int, int, int]]]]:
    return [
        ("set" if new.is_set_object else "own", [(one.stream, one.start, one.end) for one in new.slices()])
        for new in plan.new_objects
    ]


def commit(made: History, plan: CompactionPlan, *, entry_bytes: int = 10) -> None:
    """Record a plan as if it had been run."""
    stream_objects, set_objects = [], []
    for new in plan.new_objects:
        object = made.prepare(plan.node)
        for part in new.slices():
            made.fill(object, part)
        size = sum(part.end - part.start for part in new.slices()) * entry_bytes
        if new.is_set_object:
            set_objects.append(StreamSetObject(object, new.order, new.time_ms, size, new.slices()))
        else:
            (one,) = new.slices()
            stream_objects.append(StreamObject(object, one.stream, one.start, one.end, size))
    written = [new.slices() for new in plan.new_objects]
    assert find_uncovered(made.image, plan.node, plan.sources, written) is None
    made.apply(
        CompactionCommitted(plan.node, EPOCH, plan.sources, tuple(set_objects), tuple(stream_objects), made.now_ms)
    )


# ---- stream-set objects ---------------------------------------------------------------------------------------------


def test_each_stream_of_an_old_set_object_gets_a_stream_object() -> None:
    made = history()
    uploaded(made, 3, 4, 5)
    uploaded(made, 2, 0, 1)
    (plan,) = plan_set_objects(made.image, A, 2 * HOUR_MS, indexes(made), OPTIONS)
    assert plan.kind is PlanKind.FORCE_SPLIT
    assert shown(plan) == [("own", [(1, 0, 5)]), ("own", [(2, 0, 4)]), ("own", [(3, 0, 6)])]
    assert [(part.source, part.start, part.end) for part in plan.new_objects[0].parts] == [(1, 0, 3), (2, 3, 5)]


def test_young_set_objects_that_share_a_stream_are_merged() -> None:
    made = history()
    uploaded(made, 3, 4, 0)
    uploaded(made, 0, 0, 5)  # shares no stream
    uploaded(made, 0, 7, 0)
    (plan,) = plan_set_objects(made.image, A, 2 * HOUR_MS - 1, indexes(made), OPTIONS)
    assert (plan.kind, plan.sources) == (PlanKind.MERGE, (1, 3))
    assert shown(plan) == [("set", [(1, 0, 3), (2, 0, 11)])]
    assert (plan.new_objects[0].order, plan.new_objects[0].time_ms) == (1, 0)


def test_a_large_stream_is_split_out_of_young_set_objects() -> None:
    made = history()
    uploaded(made, 3, 20, 1)
    uploaded(made, 2, 20, 1)
    (plan,) = plan_set_objects(made.image, A, 0, indexes(made, entry_bytes=30), OPTIONS)
    assert shown(plan) == [("own", [(2, 0, 40)]), ("set", [(1, 0, 5), (3, 0, 2)])]


def test_parts_of_a_stream_with_a_gap_are_not_one_stream_object() -> None:
    made = history(1)
    uploaded(made, 3)
    uploaded(made, 4, own=1)
    uploaded(made, 5)
    (plan,) = plan_set_objects(made.image, A, 9 * HOUR_MS, indexes(made), OPTIONS)
    assert shown(plan) == [("own", [(1, 0, 3)]), ("own", [(1, 7, 12)])]


def test_what_is_trimmed_dropped_or_deleted_is_left_out() -> None:
    made = history()
    uploaded(made, 3, 4, 5)
    made.move(TWO, A)
    uploaded(made, 3, 3, 3)
    made.move(TWO, A)
    uploaded(made, 3, 3, 3)
    made.trim(ONE, 4)
    made.drop(TWO, 1)
    made.delete(THREE)
    (plan,) = plan_set_objects(made.image, A, 9 * HOUR_MS, indexes(made), OPTIONS)
    assert shown(plan) == [("own", [(1, 4, 9)]), ("own", [(2, 0, 4)]), ("own", [(2, 7, 10)])]


def test_objects_without_a_live_entry_are_given_up() -> None:
    made = history()
    uploaded(made, 3)
    uploaded(made, 3)
    uploaded(made, 3, own=1)
    uploaded(made, 3, own=1)
    made.trim(ONE, 9)
    (plan,) = plan_set_objects(made.image, A, 0, {}, OPTIONS)
    assert (plan.kind, plan.sources, plan.new_objects) == (PlanKind.CLEAN_UP, (1, 2), ())
    (plan,) = plan_stream_objects(made.image, A, ONE, OPTIONS, is_major=False)
    assert (plan.kind, plan.sources, plan.new_objects) == (PlanKind.CLEAN_UP, (3,), ())


def test_the_sources_of_a_plan_keep_within_the_memory() -> None:
    made = history(1)
    for _ in range(10):
        made.append(ONE, 3)
        made.upload(A, [3], as_stream_objects=0)
    options = CompactionOptions(memory_bytes=900)
    plans = plan_set_objects(made.image, A, 0, indexes(made), options)
    assert [len(plan.sources) for plan in plans] == [3, 3, 3]
    assert all(plan.bytes <= 900 for plan in plans)


def test_a_plan_with_too_many_new_objects_keeps_the_rest_in_a_set_object() -> None:
    made = history()
    uploaded(made, 3, 4, 5)
    options = CompactionOptions(new_objects_max=2)
    (plan,) = plan_set_objects(made.image, A, 9 * HOUR_MS, indexes(made), options)
    assert shown(plan) == [("own", [(1, 0, 3)]), ("own", [(2, 0, 4)]), ("set", [(3, 0, 5)])]
    commit(made, plan)
    (plan,) = plan_set_objects(made.image, A, 9 * HOUR_MS, indexes(made), options)
    assert shown(plan) == [("own", [(3, 0, 5)])]


def test_a_merge_is_not_repeated_for_little() -> None:
    made = history(2)
    uploaded(made, 3, 3)
    uploaded(made, 3, 3)
    (plan,) = plan_set_objects(made.image, A, 0, indexes(made), OPTIONS)
    commit(made, plan, entry_bytes=100)
    uploaded(made, 1, 0)
    assert plan_set_objects(made.image, A, 0, indexes(made), OPTIONS) == []


# ---- stream objects -------------------------------------------------------------------------------------------------


def test_neighbours_are_merged_up_to_the_size() -> None:
    made = history(1)
    for _ in range(10):
        uploaded(made, 10, own=1)  # 1,000 bytes each
    plans = plan_stream_objects(made.image, A, ONE, OPTIONS, is_major=False)
    assert [shown(plan) for plan in plans] == [
        [("own", [(1, 0, 40)])],
        [("own", [(1, 40, 80)])],
        [("own", [(1, 80, 100)])],
    ]
    (plan,) = plan_stream_objects(made.image, A, ONE, OPTIONS, is_major=True)
    assert (plan.kind, shown(plan)) == (PlanKind.MAJOR, [("own", [(1, 0, 100)])])


def test_stream_objects_with_a_gap_between_them_are_not_merged() -> None:
    made = history(1)
    uploaded(made, 5, own=1)
    uploaded(made, 5)
    uploaded(made, 5, own=1)
    assert plan_stream_objects(made.image, A, ONE, OPTIONS, is_major=False) == []


def test_a_large_object_is_not_rewritten_for_small_neighbours_but_these_are_merged() -> None:
    made = history(1)
    for count in (1, 1, 30, 2, 1, 1):
        uploaded(made, count, own=1)
    plans = plan_stream_objects(made.image, A, ONE, OPTIONS, is_major=False)
    assert sorted(plan.sources for plan in plans) == [(1, 2), (4, 5, 6)]


def test_a_merge_leaves_out_what_is_dropped() -> None:
    made = history(1)
    for _ in range(3):
        uploaded(made, 5, own=1)
        made.move(ONE, A)
    (plan,) = plan_stream_objects(made.image, A, ONE, OPTIONS, is_major=False)
    commit(made, plan, entry_bytes=100)
    uploaded(made, 15, own=1)
    made.drop(ONE, 1)
    (plan,) = plan_stream_objects(made.image, A, ONE, CompactionOptions(), is_major=False)
    assert shown(plan) == [("own", [(1, 0, 5)]), ("own", [(1, 10, 30)])]


def test_the_objects_of_a_stream_are_merged_by_the_node_of_its_last_range() -> None:
    made = history(2)
    uploaded(made, 5, 5, own=2)
    made.move(ONE, B)
    assert (list(streams_of(made.image, A)), list(streams_of(made.image, B))) == ([TWO], [ONE])


# ---- steps ----------------------------------------------------------------------------------------------------------


def test_what_a_plan_needs_is_gathered_in_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "STEP", 3)
    monkeypatch.setattr(compaction, "STREAMS_STEP", 2)
    made = history(5)
    for _ in range(4):
        uploaded(made, 1, 1, 1, 1, 1, own=2)
    assert len(list(compaction.gather_set_objects(made.image, A, OPTIONS))) == 12 // 3
    assert len(list(compaction.gather_stream_objects(made.image, ONE))) == 4 // 3
    assert len(list(compaction.gather_streams(made.image, A))) == -(-5 // 2)


def test_metadata_may_change_between_the_steps_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "STEP", 1)
    made = history(4)
    for _ in range(4):
        uploaded(made, 2, 2, 2, 2)
        uploaded(made, 2, own=1)
    steps = compaction.gather_set_objects(made.image, A, OPTIONS)
    next(steps)
    uploaded(made, 0, 2, 2, 2)
    made.close(THREE)
    made.delete(THREE)
    made.create()
    plans = compaction.plan_gathered(
        A,
        compaction.finish(steps),
        9 * HOUR_MS,
        {one: index for one, index in indexes(made).items() if one < 9},
        OPTIONS,
    )
    assert plans
    for plan in plans:
        assert find_uncovered(made.image, A, plan.sources, [new.slices() for new in plan.new_objects]) is None

    steps_of_one = compaction.gather_stream_objects(made.image, ONE)
    next(steps_of_one)
    uploaded(made, 2, own=1)
    (plan,) = plan_stream_objects(made.image, A, ONE, OPTIONS, is_major=False)
    commit(made, plan)
    left = [source.object for source in compaction.finish(steps_of_one)]
    assert not set(left[1:]) & set(plan.sources), "what was replaced since is no source"


# ---- the proof ------------------------------------------------------------------------------------------------------


def test_the_proof_finds_what_is_lost_foreign_or_twice() -> None:
    made = history(2)
    uploaded(made, 10, 10)
    made.trim(ONE, 2)
    sources = (ObjectId(1),)

    def fault(*new: Slice) -> str:
        return find_uncovered(made.image, A, sources, [[part] for part in new]) or ""

    assert fault(Slice(ONE, 2, 10), Slice(TWO, 0, 10)) == ""
    assert fault(Slice(ONE, 0, 10), Slice(TWO, 0, 4), Slice(TWO, 4, 10)) == ""
    assert "lost: stream=2 entry=4" in fault(Slice(ONE, 0, 10), Slice(TWO, 0, 4), Slice(TWO, 5, 10))
    assert "lost: stream=1 entry=2" in fault(Slice(TWO, 0, 10))
    assert "lost: stream=2 entry=9" in fault(Slice(ONE, 0, 10), Slice(TWO, 0, 9))
    assert "do not have an entry of the new objects: stream=2 entry=10" in fault(Slice(ONE, 2, 10), Slice(TWO, 0, 11))
    assert "twice" in fault(Slice(ONE, 2, 10), Slice(TWO, 0, 5), Slice(TWO, 4, 10))
    made.delete(TWO)
    assert fault(Slice(ONE, 2, 10), Slice(TWO, 0, 10)) == ""


def test_the_proof_finds_that_a_source_is_gone() -> None:
    made = history(2)
    uploaded(made, 10, 10)
    (plan,) = plan_set_objects(made.image, A, 9 * HOUR_MS, indexes(made), OPTIONS)
    commit(made, plan)
    written = [new.slices() for new in plan.new_objects]
    assert "gone: object=1 state=marked" in (find_uncovered(made.image, A, plan.sources, written) or "")
    made.apply(ObjectsPrepared(made.image.next_object, 1, A, EPOCH, 0))
    assert "prepared" in (find_uncovered(made.image, A, (ObjectId(4),), []) or "")


def test_a_set_object_of_another_node_is_no_source() -> None:
    made = history(1)
    uploaded(made, 10)
    assert "another node" in (find_uncovered(made.image, B, (ObjectId(1),), []) or "")


@given(st.randoms(use_true_random=False), st.integers(0, 3 * HOUR_MS))
def test_plans_of_any_history_are_proven_and_have_no_source_in_common(rng: random.Random, now_ms: int) -> None:
    made = history()
    for _ in range(rng.randrange(12)):
        stream = ObjectStreamId(rng.randint(1, 3))
        match rng.randrange(6) if stream in made.streams else 9:
            case 0:
                made.move(stream, rng.choice(NODES))
            case 1:
                made.trim(stream, rng.randrange(20))
            case 2:
                made.drop(stream, rng.randrange(3))
            case 3 if len(made.streams) > 1 and rng.random() < 0.3:
                made.delete(stream)
            case _:
                for one in made.streams:
                    made.append(one, rng.randrange(6))
                made.upload(rng.choice(NODES), [rng.randrange(9) for _ in range(4)], as_stream_objects=rng.randrange(2))
        made.now_ms += HOUR_MS // 5
    options = CompactionOptions(split_bytes=rng.choice((1, 200, 10**6)), memory_bytes=rng.choice((300, 10**6)))
    for node in NODES:
        plans = plan_set_objects(made.image, node, now_ms, indexes(made, node), options)
        for stream in streams_of(made.image, node):
            plans += plan_stream_objects(made.image, node, stream, options, is_major=rng.random() < 0.5)
        named = [source for plan in plans for source in plan.sources]
        assert len(named) == len(set(named))
        for plan in plans:
            for new in plan.new_objects:
                assert new.parts and (new.is_set_object or len(new.slices()) == 1)
            commit(made, plan)


def test_nine_tenths_of_all_bytes_end_in_stream_objects() -> None:
    """A day of uploads, one in ten minutes, compacted each half hour: sizes are a thousandth of the real ones."""
    rng = random.Random(7)
    made = history(10)
    options = CompactionOptions(split_bytes=8_000, minor_bytes=128_000, major_bytes=10**7, memory_bytes=200_000)
    rates = [rng.choice((1, 2, 5, 40)) for _ in range(10)]
    rewritten = 0
    for minute in range(0, 24 * 60, 10):
        made.now_ms = minute * 60_000
        uploaded(made, *(rng.randrange(rate + 1) for rate in rates))
        if minute % 30 == 0:
            plans = plan_set_objects(made.image, A, made.now_ms, indexes(made, entry_bytes=100), options)
            for stream in list(streams_of(made.image, A)):
                plans += plan_stream_objects(made.image, A, stream, options, is_major=minute % 360 == 0)
            for plan in plans:
                rewritten += sum(one.end - one.start for new in plan.new_objects for one in new.slices())
                commit(made, plan, entry_bytes=100)
    its = made.image
    tables = [one.objects for one in its.streams.values()]
    own = sum(end - start for one in tables for start, end in zip(one.starts, one.ends, strict=True))
    total = sum(one.end for one in made.streams.values())
    assert own >= 0.9 * total, (own, total)
    assert rewritten <= 8 * total, (rewritten, total)
    assert max(map(len, tables)) <= 40
