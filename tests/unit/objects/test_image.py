"""Tests what each record does to the image, and that a record which does not fit is damage."""

from __future__ import annotations

import pytest

from dlog.errors import DamagedError
from dlog.model.object_streams import (
    KeyDeleted,
    KeyPut,
    MetadataRecord,
    NodeEpoch,
    ObjectId,
    ObjectsDestroyed,
    ObjectsMarked,
    ObjectStreamId,
    SnapshotWritten,
    WalSegment,
    WalSegmentBegun,
    WalSegmentsDeleted,
)
from dlog.objects.image import Image, ObjectState, StreamImage
from tests.unit.objects.records import (
    N1,
    N2,
    closed,
    compaction,
    created,
    deleted,
    dropped,
    node_opened,
    opened,
    prepared,
    set_object,
    stream_object,
    trimmed,
    upload,
)


def image_after(*records: MetadataRecord) -> Image:
    image = Image()
    image.apply_all(records)
    assert image.version == len(records)
    return image


def stream_of(image: Image, stream: int = 1) -> StreamImage:
    return image.streams[ObjectStreamId(stream)]


def ranges(image: Image, stream: int = 1) -> list[tuple[int, int | None, int]]:
    return [(its.start, its.end, its.committed) for its in stream_of(image, stream).ranges]


def slices(image: Image, stream: int = 1, node: str = N1) -> list[tuple[int, int, int]]:
    table = image.nodes[N1 if node == N1 else N2].slices.get(ObjectStreamId(stream))
    return [] if table is None else list(zip(table.starts, table.ends, table.objects, strict=True))


def stream_objects(image: Image, stream: int = 1) -> list[tuple[int, int, int]]:
    table = stream_of(image, stream).objects
    return list(zip(table.starts, table.ends, table.objects, strict=True))


def state(image: Image, object: int) -> ObjectState:
    return image.objects.state(object)


BEGUN = (node_opened(), created(1), created(2), opened(1, 1), opened(2, 1), prepared(1, 9))


def test_a_stream_moves_from_one_node_to_another() -> None:
    image = image_after(*BEGUN, node_opened(N2), closed((1, 10)), opened(1, 5, N2))
    assert ranges(image) == [(0, 10, 0), (10, None, 10)]
    assert stream_of(image).end is None
    image.apply(upload(set_object(1, (1, 0, 10))))
    assert ranges(image) == [(0, 10, 10), (10, None, 10)]
    found = stream_of(image).range_at(9)
    assert found is not None and found.node == N1
    found = stream_of(image).range_at(10)
    assert found is not None and (found.node, found.epoch) == (N2, 5)


def test_an_upload_is_in_stream_objects_and_a_set_object() -> None:
    image = image_after(*BEGUN, upload(set_object(1, (1, 0, 5)), stream_object(2, 2, 0, 100), flush=(1, 7)))
    assert slices(image) == [(0, 5, 1)]
    assert stream_objects(image, 2) == [(0, 100, 2)]
    assert (state(image, 1), state(image, 2), state(image, 3)) == (2, 2, 1)
    assert image.nodes[N1].flush_point.entry == 7
    assert image.nodes[N1].set_objects[ObjectId(1)][:2] == (1, 5)
    assert image.objects.stream_of(ObjectId(2)) == 2
    assert image.objects.stream_of(ObjectId(1)) is None


def test_an_empty_range_is_replaced_by_the_next() -> None:
    image = image_after(*BEGUN, closed((1, 0)), opened(1, 2))
    assert ranges(image) == [(0, None, 0)]
    assert stream_of(image).ranges[0].epoch == 2


def test_a_trim_drops_ranges_below_it_except_the_last() -> None:
    image = image_after(*BEGUN, closed((1, 10)), opened(1, 2), closed((1, 20)), trimmed(1, 10))
    assert ranges(image) == [(10, 20, 10)]
    image.apply(trimmed(1, 20))
    assert ranges(image) == [(10, 20, 10)]
    image.apply(opened(1, 3))
    assert ranges(image) == [(20, None, 20)]
    assert stream_of(image).range_at(15) is None


def test_a_dropped_range_is_not_live_and_moves_the_start_once_it_is_the_first() -> None:
    image = image_after(
        *BEGUN, closed((1, 10)), opened(1, 2), closed((1, 20)), opened(1, 3), closed((1, 30)), dropped(1, 2)
    )
    assert stream_of(image).live_parts(5, 25) == [(5, 10), (20, 25)]
    assert stream_of(image).start == 0
    image.apply(dropped(1, 1))
    assert stream_of(image).start == 20
    assert ranges(image) == [(20, 30, 20)]


def test_neighbouring_live_parts_are_joined() -> None:
    image = image_after(*BEGUN, closed((1, 10)), opened(1, 2))
    assert stream_of(image).live_parts(0, 99) == [(0, 99)]
    assert stream_of(image).live_parts(3, 3) == []


def test_objects_of_a_deleted_stream_are_marked() -> None:
    image = image_after(
        *BEGUN, upload(set_object(1, (1, 0, 5), (2, 0, 5)), stream_object(2, 1, 5, 9)), closed((1, 12)), deleted(1, 77)
    )
    assert (state(image, 1), state(image, 2)) == (ObjectState.COMMITTED, ObjectState.MARKED)
    assert slices(image) == []
    image.apply(upload(set_object(3, (1, 9, 12)), stream_object(4, 1, 9, 12)))
    assert (state(image, 3), state(image, 4)) == (ObjectState.MARKED, ObjectState.MARKED)
    image.apply(compaction((1,), (), (stream_object(5, 2, 0, 5),)))
    assert (state(image, 1), state(image, 5)) == (ObjectState.MARKED, ObjectState.COMMITTED)
    assert image.nodes[N1].set_objects == {}


def test_an_upload_below_the_start_marks_its_objects() -> None:
    image = image_after(*BEGUN, trimmed(1, 10), upload(None, stream_object(1, 1, 0, 10)))
    assert state(image, 1) is ObjectState.MARKED
    assert ranges(image) == [(0, None, 10)]
    image = image_after(*BEGUN, closed((1, 10)), opened(1, 2), trimmed(1, 10), upload(None, stream_object(1, 1, 0, 10)))
    assert state(image, 1) is ObjectState.MARKED
    assert ranges(image) == [(10, None, 10)]


def test_a_compaction_replaces_objects() -> None:
    image = image_after(
        *BEGUN,
        upload(set_object(1, (1, 0, 5), (2, 0, 5))),
        upload(set_object(2, (1, 5, 9), (2, 5, 9))),
        compaction((1, 2), (set_object(3, (2, 0, 9), order=1, time_ms=5),), (stream_object(4, 1, 0, 9),)),
    )
    assert slices(image) == []
    assert slices(image, 2) == [(0, 9, 3)]
    assert stream_objects(image) == [(0, 9, 4)]
    assert (state(image, 1), state(image, 2)) == (ObjectState.MARKED, ObjectState.MARKED)
    assert image.nodes[N1].set_objects[ObjectId(3)][0] == 1


def test_stream_objects_are_merged() -> None:
    image = image_after(*BEGUN, *(upload(None, stream_object(n, 1, 10 * n - 10, 10 * n)) for n in range(1, 6)))
    image.apply(compaction((2, 3, 4), (), (stream_object(6, 1, 10, 40),)))
    assert stream_objects(image) == [(0, 10, 1), (10, 40, 6), (40, 50, 5)]


def test_marked_objects_are_destroyed() -> None:
    image = image_after(*BEGUN, ObjectsMarked((ObjectId(4),), 50), ObjectsDestroyed((ObjectId(4),)))
    assert state(image, 4) is ObjectState.DESTROYED


def test_wal_segments_come_and_go() -> None:
    segments = [WalSegment(n, NodeEpoch(1), "file", f"w{n}") for n in (1, 2, 4)]
    image = image_after(*BEGUN, *(WalSegmentBegun(N1, segment) for segment in segments), upload(flush=(4, 2)))
    image.apply(WalSegmentsDeleted(N1, 4))
    assert image.nodes[N1].wal == [segments[2]]


def test_the_last_two_snapshots_are_known() -> None:
    image = image_after(*BEGUN, *(SnapshotWritten(f"s{n}", n, 1, 2) for n in (1, 3, 6)))
    assert [snapshot.key for snapshot in image.snapshots] == ["s3", "s6"]


SEGMENT = WalSegment(3, NodeEpoch(1), "file", "w")


@pytest.mark.parametrize(
    "record",
    [
        KeyPut("k", b"again"),
        KeyDeleted("other"),
        created(2),
        created(9),
        opened(1, 2),
        opened(2, 1),
        opened(9, 1),
        closed((2, 30)),
        closed((1, 4)),
        closed((9, 4)),
        trimmed(2, 9),
        dropped(1, 1),
        dropped(2, 7),
        deleted(1),
        deleted(9),
        node_opened(),
        WalSegmentBegun(N2, SEGMENT),
        WalSegmentBegun(N1, SEGMENT),
        WalSegmentsDeleted(N1, 2),
        prepared(2),
        upload(flush=(0, 9)),
        upload(node=N2),
        upload(None, stream_object(2, 2, 20, 31)),
        upload(None, stream_object(2, 2, 31, 32)),
        upload(None, stream_object(1, 1, 5, 9)),
        upload(None, stream_object(99, 1, 5, 9)),
        compaction((2,)),
        compaction((99,)),
        compaction((1,), node=N2),
        ObjectsMarked((ObjectId(1),), 5),
        ObjectsDestroyed((ObjectId(2),)),
        SnapshotWritten("s", 999, 1, 1),
    ],
    ids=repr,
)
def test_a_record_that_does_not_fit_is_damage(record: MetadataRecord) -> None:
    image = image_after(
        *(KeyPut("k", b"v"), *BEGUN, WalSegmentBegun(N1, SEGMENT)),
        *(upload(set_object(1, (1, 0, 5))), closed((2, 30)), trimmed(2, 10)),
    )
    version = image.version
    with pytest.raises(DamagedError):
        image.apply(record)
    assert image.version == version
