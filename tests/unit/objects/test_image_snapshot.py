"""Tests that an image comes back from its snapshot, and goes on as it would have."""

from __future__ import annotations

from array import array

import pytest

from dlog.errors import DamagedError
from dlog.model.object_streams import (
    KeyPut,
    MetadataRecord,
    NodeEpoch,
    ObjectId,
    ObjectsMarked,
    SnapshotWritten,
    WalSegment,
    WalSegmentBegun,
)
from dlog.objects.image import Image
from dlog.objects.image_snapshot import contents_of, image_of
from dlog.wire.object_snapshot import decode_snapshot, encode_snapshot
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

HISTORY: tuple[MetadataRecord, ...] = (
    KeyPut("z", b"1"),
    KeyPut("a", b"2"),
    node_opened(N2, 4),
    node_opened(),
    WalSegmentBegun(N1, WalSegment(3, NodeEpoch(1), "file", "w")),
    *(created(stream) for stream in range(1, 5)),
    *(opened(stream, 1) for stream in (4, 2, 1)),
    prepared(1, 9),
    upload(set_object(2, (4, 0, 5), (1, 0, 5)), stream_object(1, 2, 0, 7)),
    SnapshotWritten("s", 4, 9, 9),
    closed((1, 10), (2, 20)),
    opened(1, 2, N2, 4),
    prepared(10, 2, N2, 4),
    upload(set_object(3, (1, 5, 10), (2, 7, 20))),
    trimmed(1, 3),
    compaction((2, 3), (set_object(4, (1, 0, 10), order=2),), (stream_object(5, 4, 0, 5), stream_object(6, 2, 7, 20))),
    closed((1, 30)),
    dropped(1, 2),
    ObjectsMarked((ObjectId(9),), 50),
    deleted(2, 70),
    opened(1, 7),
)


@pytest.mark.parametrize("cut", range(len(HISTORY) + 1))
def test_a_snapshot_and_the_rest_make_the_image_that_all_records_make(cut: int) -> None:
    whole, first = Image(), Image()
    whole.apply_all(HISTORY)
    first.apply_all(HISTORY[:cut])
    loaded = image_of(decode_snapshot(encode_snapshot(contents_of(first))))
    assert loaded.version == cut
    assert contents_of(loaded) == contents_of(first)
    loaded.apply_all(HISTORY[cut:])
    assert contents_of(loaded) == contents_of(whole)


def test_a_snapshot_shares_nothing_with_the_image() -> None:
    image = Image()
    image.apply_all(HISTORY)
    contents = contents_of(image)
    data = encode_snapshot(contents)
    image.apply(trimmed(1, 35))
    image.apply(prepared(12))
    assert encode_snapshot(contents) == data


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("range_nodes", [9, 9, 9, 9]),
        ("stream_ranges", [1, 1, 1]),
        ("stream_ids", [1, 1, 4]),
        ("stream_ids", [1, 3, 99]),
        ("stream_starts", [0]),
        ("slice_ends", [0]),
        ("node_sets", [1]),
        ("node_streams", [1, 1]),
        ("set_slices", [2]),
        ("part_slices", [2]),
        ("range_committed", [99, 99, 99, 99]),
        ("range_starts", [0, 11, 30, 0]),
        ("object_states", [7] * 9),
    ],
)
def test_columns_that_do_not_fit_are_damage(column: str, values: list[int]) -> None:
    image = Image()
    image.apply_all(HISTORY)
    contents = contents_of(image)
    contents.columns[column] = array(contents.columns[column].typecode, values)
    with pytest.raises(DamagedError):
        image_of(contents)
