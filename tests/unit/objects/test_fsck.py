"""Tests the comparison of bucket and image: each kind of defect, planted once, is found, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.model.object_streams import (
    NodeEpoch,
    NodeId,
    ObjectId,
    ObjectsDestroyed,
    ObjectsMarked,
    ObjectStreamId,
    Slice,
    SnapshotWritten,
    WalSegment,
    WalSegmentBegun,
)
from dlog.objects.fsck import (
    Comparison,
    Kind,
    ListedChain,
    ListedObject,
    committed_objects,
    compare,
    find_unlisted_chains,
    is_removable,
    judge_unfinished,
    missing_parts,
    slices_by_object,
)
from dlog.objects.image import Image, ObjectState
from dlog.objects.keys import object_key, snapshot_key
from tests.unit.objects.records import (
    N1,
    N2,
    closed,
    created,
    node_opened,
    opened,
    prepared,
    set_object,
    stream_object,
    upload,
)
from tests.unit.objects.search_model import EPOCH, NODES, History

FOLDER = "incarnation"
NOW_MS = 10_000_000
RECENT_MS = NOW_MS  # an expiry


def key(object: int, node: NodeId = N1, node_epoch: int = 1) -> str:
    return object_key(FOLDER, ObjectId(object), node, NodeEpoch(node_epoch))


class Bucket:
    """A bucket and an image that agree: objects 1 (of stream 1) and 2 (of streams 1 and 2) are committed, 3 is marked,
    4 is destroyed, 5 and 6 are prepared, 7 is not known yet; two snapshots, and one that is being recorded."""

    def __init__(self) -> None:
        image = self.image = Image()
        image.apply_all([created(1), created(2), node_opened(), opened(1, 0), opened(2, 0)])
        image.apply(WalSegmentBegun(N1, WalSegment(1, NodeEpoch(1), "file", "w")))
        image.apply(prepared(1, 4, expiry_ms=RECENT_MS))
        image.apply(upload(set_object(2, (1, 10, 20), (2, 0, 5)), stream_object(1, 1, 0, 10)))
        image.apply(closed((1, 30)))
        image.apply(ObjectsMarked((ObjectId(3), ObjectId(4)), 5))
        image.apply(ObjectsDestroyed((ObjectId(4),)))
        image.apply(prepared(5, 2, expiry_ms=RECENT_MS))
        for applied in (2, 5):
            image.apply(SnapshotWritten(snapshot_key(FOLDER, applied, "c"), applied, 10, 0))
        self.keys = [*map(key, (1, 2, 3, 5, 7)), *(snapshot_key(FOLDER, applied, "c") for applied in (2, 5, 9))]
        self.before = committed_objects(image)

    def compare(self) -> Comparison:
        return compare(self.image, FOLDER, [ListedObject(one, 1) for one in self.keys], self.before, NOW_MS)


def test_a_bucket_and_an_image_that_agree_have_no_findings() -> None:
    found = Bucket().compare()
    assert found == Comparison((), named=6, later=2)


def orphan_of_another_owner(bucket: Bucket) -> None:
    bucket.keys.append(key(1, N2))


def orphan_of_another_epoch(bucket: Bucket) -> None:
    bucket.keys.append(key(2, node_epoch=2))


def orphan_snapshot(bucket: Bucket) -> None:
    bucket.keys.append(snapshot_key(FOLDER, 4, "died"))


def orphan_snapshot_beside_a_recorded_one(bucket: Bucket) -> None:
    bucket.keys.append(snapshot_key(FOLDER, 5, "died"))


def zombie(bucket: Bucket) -> None:
    bucket.keys.append(key(4))


def missing(bucket: Bucket) -> None:
    bucket.keys.remove(key(2))


def overdue(bucket: Bucket) -> None:
    bucket.image.apply(prepared(7, expiry_ms=1000))


def hole(bucket: Bucket) -> None:
    bucket.image.streams[ObjectStreamId(1)].objects.remove(0, ObjectId(1))


def hole_in_a_set(bucket: Bucket) -> None:
    bucket.image.nodes[N1].slices[ObjectStreamId(2)].remove(0, ObjectId(2))


def hole_without_a_log(bucket: Bucket) -> None:
    bucket.image.nodes[N1].wal.clear()


def foreign(bucket: Bucket) -> None:
    bucket.keys.append(f"{FOLDER}/somebody's file")


def foreign_incarnation(bucket: Bucket) -> None:
    bucket.keys.append(object_key("former", ObjectId(1), N1, NodeEpoch(1)))


@pytest.mark.parametrize(
    ("plant", "kind", "place"),
    [
        (orphan_of_another_owner, Kind.ORPHAN, key(1, N2)),
        (orphan_of_another_epoch, Kind.ORPHAN, key(2, node_epoch=2)),
        (orphan_snapshot, Kind.ORPHAN, snapshot_key(FOLDER, 4, "died")),
        (orphan_snapshot_beside_a_recorded_one, Kind.ORPHAN, snapshot_key(FOLDER, 5, "died")),
        (zombie, Kind.ZOMBIE, key(4)),
        (missing, Kind.MISSING, "object 2"),
        (overdue, Kind.OVERDUE, "object 7"),
        (hole, Kind.HOLE, "stream 1, entries 0 to 9"),
        (hole_in_a_set, Kind.HOLE, "stream 2, entries 0 to 4"),
        (hole_without_a_log, Kind.HOLE, "stream 1, entries 20 to 29"),
        (foreign, Kind.FOREIGN, f"{FOLDER}/somebody's file"),
        (foreign_incarnation, Kind.FOREIGN, object_key("former", ObjectId(1), N1, NodeEpoch(1))),
    ],
)
def test_what_is_planted_once_is_found_and_nothing_else(
    plant: Callable[[Bucket], None], kind: Kind, place: str
) -> None:
    bucket = Bucket()
    plant(bucket)
    assert [(one.kind, one.place) for one in bucket.compare().findings] == [(kind, place)]


def test_only_orphans_and_zombies_may_be_deleted() -> None:
    bucket = Bucket()
    for plant in (orphan_of_another_owner, orphan_snapshot, zombie, foreign, foreign_incarnation):
        plant(bucket)
    removable = {one for one in bucket.keys if is_removable(bucket.image, FOLDER, ListedObject(one, 1))}
    assert removable == {key(1, N2), snapshot_key(FOLDER, 4, "died"), key(4)}


def test_an_upload_whose_object_may_still_be_committed_is_left_alone() -> None:
    bucket = Bucket()
    bucket.image.apply(prepared(7, expiry_ms=1000))
    told = {number for number in range(1, 10) if judge_unfinished(bucket.image, FOLDER, key(number)) is not None}
    states = {number: bucket.image.objects.state(number) for number in range(1, 10)}
    assert told == {number for number, state in states.items() if state >= ObjectState.COMMITTED}
    assert {states[4], states[7], states[9]} == {ObjectState.DESTROYED, ObjectState.PREPARED, ObjectState.UNKNOWN}
    assert judge_unfinished(bucket.image, FOLDER, f"{FOLDER}/somebody's file") is None


def test_an_object_that_was_committed_while_the_bucket_was_listed_is_not_missing() -> None:
    bucket = Bucket()
    bucket.image.apply(upload(None, stream_object(5, 2, 5, 9), flush=(1, 1)))
    bucket.keys.remove(key(5))
    assert not bucket.compare().findings


def test_what_an_index_lacks_of_what_the_metadata_have_in_it() -> None:
    bucket = Bucket()
    expected = slices_by_object(bucket.image)
    one, two = ObjectStreamId(1), ObjectStreamId(2)
    assert expected == {1: [Slice(one, 0, 10)], 2: [Slice(one, 10, 20), Slice(two, 0, 5)]}
    assert missing_parts(expected[2], [Slice(one, 5, 25), Slice(two, 0, 3), Slice(two, 3, 5)]) == []
    assert missing_parts(expected[2], [Slice(one, 12, 15)]) == [
        Slice(one, 10, 12),
        Slice(one, 15, 20),
        Slice(two, 0, 5),
    ]


def test_chains_that_no_stream_lists() -> None:
    old = ListedChain("a", "s", 100)
    assert [one.place for one in find_unlisted_chains([old], {"b"}, (), 100)] == ["a"]
    assert not find_unlisted_chains([old], {"a"}, (), 100), "it is listed"
    assert not find_unlisted_chains([old], (), (), 101), "it may be listed in a moment"
    assert not find_unlisted_chains([old], (), {"s"}, 100), "its stream's metadata cannot be read"
    assert not find_unlisted_chains([ListedChain("a", "", 100)], (), {"s"}, 100), "it may be of that stream"
    assert find_unlisted_chains([old], (), {"t"}, 100)


# ---- random histories -----------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "move", "append", "close", "trim", "drop", "delete", "upload", "set", "merge"]),
        st.integers(0, 5),
        st.integers(0, 12),
    ),
    max_size=60,
)


def play(history: History, steps: list[tuple[str, int, int]]) -> None:
    for what, which, many in steps:
        streams = sorted(history.streams)
        node = NODES[which % len(NODES)]
        if what == "create":
            history.create()
        elif what == "upload":
            history.upload(node, [many, 3, many, 1], as_stream_objects=which % 3)
        elif what == "set":
            history.compact_set(node, [True, which % 2 == 0, True], [many % 2 == 0] * 3)
        elif streams:
            stream = streams[which % len(streams)]
            match what:
                case "move":
                    history.move(stream, node)
                case "append":
                    history.append(stream, many)
                case "close":
                    history.close(stream)
                case "trim":
                    history.trim(stream, many)
                case "drop":
                    history.drop(stream, many)
                case "delete":
                    history.delete(stream)
                case "merge":
                    history.compact_stream(stream, many, 3)


@given(before=STEPS, after=STEPS, destroyed=st.integers(0, 10))
def test_a_history_without_defects_has_no_findings_and_no_deletion_that_a_later_image_regrets(
    before: list[tuple[str, int, int]], after: list[tuple[str, int, int]], destroyed: int
) -> None:
    history = History()
    for node in NODES:
        history.apply(WalSegmentBegun(node, WalSegment(1, EPOCH, "file", node)))
    play(history, before)
    committed = committed_objects(history.image)
    listed = [
        ListedObject(object_key(FOLDER, object, *history.image.objects.owner(object)), 1)
        for object in history.image.objects.ids()
    ]
    play(history, after)
    image = history.image
    assert not compare(image, FOLDER, listed, committed, 0).findings
    strangers = [
        ListedObject(object_key(FOLDER, ObjectId(object), NODES[object % 3], NodeEpoch(1)), 1)
        for object in range(1, image.next_object + 5)
    ]
    orphans = [one for one in strangers if is_removable(image, FOLDER, one)]
    marked = image.objects.marked_until(1 << 60, destroyed)
    image.apply(ObjectsDestroyed(tuple(marked)))
    play(history, after)
    names = {object_key(FOLDER, object, *image.objects.owner(object)) for object in image.objects.ids()}
    assert names.isdisjoint(one.key for one in orphans)
    for one in compare(image, FOLDER, listed, committed, 0).findings:
        assert one.kind is Kind.ZOMBIE and one.object in marked


@given(steps=STEPS, which=st.integers(0, 50))
def test_each_committed_object_that_is_removed_is_missing_and_each_slice_that_is_removed_is_a_hole(
    steps: list[tuple[str, int, int]], which: int
) -> None:
    history = History()
    for node in NODES:
        history.apply(WalSegmentBegun(node, WalSegment(1, EPOCH, "file", node)))
    play(history, steps)
    image = history.image
    committed = committed_objects(image)
    if not committed:
        return
    lost = committed[which % len(committed)]
    listed = [
        ListedObject(object_key(FOLDER, object, *image.objects.owner(object)), 1)
        for object in image.objects.ids()
        if object != lost
    ]
    [found] = compare(image, FOLDER, listed, committed, 0).findings
    assert (found.kind, found.object) == (Kind.MISSING, lost)
    expected = slices_by_object(image)[lost]
    for stream in {part.stream for part in expected}:
        for table in (image.streams[stream].objects, *(n.slices.get(stream) for n in image.nodes.values())):
            if table is not None:
                table.remove_objects((lost,))
    listed.append(ListedObject(object_key(FOLDER, ObjectId(lost), *image.objects.owner(ObjectId(lost))), 1))
    found_in = {one.stream for one in compare(image, FOLDER, listed, committed, 0).findings if one.kind is Kind.HOLE}
    assert found_in == {part.stream for part in expected}
    assert image.objects.state(lost) is ObjectState.COMMITTED
