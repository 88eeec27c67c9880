"""Tests entries of the metadata stream: what is encoded is decoded, and every change of a byte is noticed."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model import object_streams as model
from dlog.model.object_streams import MetadataRecord, Slice, StreamObject, StreamSetObject, WalPosition, WalSegment
from dlog.values import Columns
from dlog.wire.digest import crc32c
from dlog.wire.object_fields import ITEMS_MAX
from dlog.wire.object_records import _KINDS, EntryTooLargeError, decode_entry, encode_entry

U64 = st.integers(0, 2**64 - 1)
ID = st.integers(1, 2**64 - 1)
TEXT = st.text(min_size=1, max_size=20)
OBJECT, STREAM = ID.map(model.ObjectId), ID.map(model.ObjectStreamId)
IDS = st.lists(ID, max_size=5).map(tuple)


@st.composite
def intervals(draw: st.DrawFn) -> tuple[int, int]:
    start = draw(st.integers(0, 2**64 - 2))
    return start, draw(st.integers(start + 1, 2**64 - 1))


@st.composite
def slices(draw: st.DrawFn) -> tuple[Slice, ...]:
    return tuple(Slice(draw(STREAM), *draw(intervals())) for _ in range(draw(st.integers(0, 4))))


@st.composite
def set_objects(draw: st.DrawFn) -> StreamSetObject:
    return StreamSetObject(draw(OBJECT), draw(OBJECT), draw(U64), draw(U64), draw(slices()))


@st.composite
def stream_objects(draw: st.DrawFn) -> tuple[StreamObject, ...]:
    return tuple(
        StreamObject(draw(OBJECT), draw(STREAM), *draw(intervals()), draw(U64)) for _ in range(draw(st.integers(0, 4)))
    )


POSITIONS = st.builds(WalPosition, U64, U64)
SEGMENTS = st.builds(WalSegment, U64, ID, TEXT, TEXT)
SETS = st.lists(set_objects(), max_size=3).map(tuple)
RECORDS: st.SearchStrategy[MetadataRecord] = st.one_of(
    st.builds(model.KeyPut, TEXT, st.binary(max_size=40)),
    st.builds(model.KeyDeleted, TEXT),
    st.builds(model.StreamCreated, ID),
    st.builds(model.StreamOpened, ID, U64, TEXT, ID),
    st.builds(model.StreamsClosed, st.lists(st.tuples(ID, U64), max_size=4).map(tuple)),
    st.builds(model.StreamTrimmed, ID, U64),
    st.builds(model.RangeDropped, ID, U64),
    st.builds(model.StreamDeleted, ID, U64),
    st.builds(model.NodeOpened, TEXT, ID, st.booleans()),
    st.builds(model.WalSegmentBegun, TEXT, SEGMENTS),
    st.builds(model.WalSegmentsDeleted, TEXT, U64),
    st.builds(model.ObjectsPrepared, ID, st.integers(1, ITEMS_MAX), TEXT, ID, U64),
    st.builds(model.UploadCommitted, TEXT, ID, st.none() | set_objects(), stream_objects(), POSITIONS, U64),
    st.builds(model.CompactionCommitted, TEXT, ID, IDS, SETS, stream_objects(), U64),
    st.builds(model.ObjectsMarked, IDS, U64),
    st.builds(model.ObjectsDestroyed, IDS),
    st.builds(model.SnapshotWritten, TEXT, U64, U64, U64),
)


def commit_of(set_object: StreamSetObject, objects: tuple[StreamObject, ...] = ()) -> model.UploadCommitted:
    return model.UploadCommitted(model.NodeId("n"), model.NodeEpoch(1), set_object, objects, WalPosition(1, 2), 3)


PARTS = (
    StreamSetObject(model.ObjectId(7), model.ObjectId(7), 5, 100, (Slice(model.ObjectStreamId(1), 2, 2**40),)),
    (StreamObject(model.ObjectId(8), model.ObjectStreamId(3), 0, 9, 55),),
)
COMMIT = commit_of(*PARTS)


def sealed(value: Any, version: int = 1) -> bytes:
    packed: bytes = msgpack.packb(value)
    return struct.pack(">BI", version, crc32c(packed)) + packed


@given(U64, st.lists(RECORDS, min_size=1, max_size=4))
def test_records_read_back(before: int, records: list[MetadataRecord]) -> None:
    assert decode_entry(encode_entry(before, records)) == (before, tuple(records))


def test_each_record_has_a_kind() -> None:
    assert {cls for cls, _ in _KINDS.values()} == set(MetadataRecord.__args__)


def test_the_bytes_of_an_entry() -> None:
    data = encode_entry(9, [COMMIT, model.KeyPut("k", b"v")])
    set_object = [7, 7, 5, 100, [1, 2, 2**40 - 2]]
    commit = [13, "n", 1, set_object, [8, 3, 0, 9, 55], [1, 2], 3]
    assert data == sealed([9, [commit, [1, "k", b"v"]]])


def test_every_changed_byte_and_every_cut_is_noticed() -> None:
    data = encode_entry(9, [COMMIT])
    for at in range(len(data)):
        for changed in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data + b"\0"):
            with pytest.raises((DamagedError, UnsupportedVersionError)):
                decode_entry(changed)


def test_newer_entries_and_records_are_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="version=2"):
        decode_entry(sealed([0, [[3, 1]]], version=2))
    with pytest.raises(UnsupportedVersionError, match="kind=99"):
        decode_entry(sealed([0, [[99, 1]]]))
    with pytest.raises(DamagedError):
        decode_entry(sealed([0, [[3, 1]]], version=0))


SLICE = [1, 0, 5]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        [0],
        [2**64 - 1, [[]]],
        [0, [[3]]],
        [0, [[3, 0]]],
        [0, [[3, 1, 1]]],
        [0, [[3, "1"]]],
        [0, [[3, True]]],
        [0, [["3", 1]]],
        [0, [[2, ""]]],
        [0, [[2, b"k"]]],
        [0, [[2, "k" * 5000]]],
        [0, [[1, "k", "v"]]],
        [0, [[1, "k", b"v" * 70000]]],
        [0, [[5, [1]]]],
        [0, [[5, [0, 1]]]],
        [0, [[9, "n", 1, 1]]],
        [0, [[12, 1, 0, "n", 1, 1]]],
        [0, [[12, 1, ITEMS_MAX + 1, "n", 1, 1]]],
        [0, [[13, "n", 1, [7, 7, 5, 100, [1, 2]], [], [1, 2], 3]]],
        [0, [[13, "n", 1, [7, 7, 5, 100, [1, 2, 0]], [], [1, 2], 3]]],
        [0, [[13, "n", 1, [7, 7, 5, 100, [1, 2, 2**64 - 2]], [], [1, 2], 3]]],
        [0, [[13, "n", 1, [7, 7, 5, 100, [0, 2, 1]], [], [1, 2], 3]]],
        [0, [[13, "n", 1, [7, 7, 5, 100, SLICE * (ITEMS_MAX + 1)], [], [1, 2], 3]]],
        [0, [[13, "n", 1, None, [0, 3, 0, 9, 55], [1, 2], 3]]],
        [0, [[13, "n", 1, None, [], [1], 3]]],
        [0, [[14, "n", 1, [1], [None], [], 3]]],
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_value_that_is_no_entry_is_damage(value: Any) -> None:
    with pytest.raises(DamagedError):
        decode_entry(sealed(value))


@given(st.recursive(st.none() | st.integers(-5, 2**64 - 1) | st.text(max_size=3) | st.binary(max_size=3), st.lists))
def test_any_value_is_decoded_or_refused(value: Any) -> None:
    for given_value in (value, [0, value], [0, [value]], [0, [[14, value, value]]]):
        with contextlib.suppress(DamagedError, UnsupportedVersionError):
            before, records = decode_entry(sealed(given_value))
            assert decode_entry(encode_entry(before, records)) == (before, records)


@pytest.mark.parametrize(
    "record",
    [
        model.StreamCreated(model.ObjectStreamId(0)),
        model.StreamCreated(model.ObjectStreamId(2**64)),
        model.StreamTrimmed(model.ObjectStreamId(1), -1),
        model.KeyPut("", b""),
        model.ObjectsDestroyed((model.ObjectId(1),) * (ITEMS_MAX + 1)),
    ],
    ids=lambda record: repr(record)[:40],
)
def test_what_could_not_be_decoded_is_not_encoded(record: MetadataRecord) -> None:
    with pytest.raises(EntryTooLargeError):
        encode_entry(0, [record])


def test_an_entry_may_have_no_records() -> None:
    assert decode_entry(encode_entry(7, [])) == (7, ())


def test_slices_of_a_commit_are_decoded_to_columns() -> None:
    parts = tuple(Slice(model.ObjectStreamId(n + 1), n, n + 2) for n in range(9))
    _, [commit] = decode_entry(
        encode_entry(0, [commit_of(StreamSetObject(model.ObjectId(7), model.ObjectId(7), 5, 1, parts))])
    )
    assert isinstance(commit, model.UploadCommitted) and commit.set_object is not None
    assert isinstance(commit.set_object.slices, Columns), "no object for each of thousands"
    assert tuple(commit.set_object.slices) == parts
    assert commit.set_object == StreamSetObject(model.ObjectId(7), model.ObjectId(7), 5, 1, parts)


def test_a_commit_of_ten_thousand_slices_has_less_than_500_kb() -> None:
    parts = tuple(Slice(model.ObjectStreamId(2**40 + n), 2**45, 2**45 + 10**6) for n in range(10_000))
    commit = commit_of(StreamSetObject(model.ObjectId(7), model.ObjectId(7), 5, 100, parts))
    assert len(encode_entry(2**40, [commit])) < 500_000
