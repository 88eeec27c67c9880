"""Tests following the metadata stream, from its start and from a snapshot."""

from __future__ import annotations

import pytest

from dlog.errors import DamagedError
from dlog.model.object_streams import KeyPut, MetadataRecord, SnapshotWritten
from dlog.objects.follower import EntryRead, Follower, LoadSnapshot, ReadFrom, SnapshotRead, StreamCutOff
from dlog.objects.image import Image
from dlog.objects.image_snapshot import contents_of
from dlog.wire.digest import crc32c
from dlog.wire.object_records import encode_entry
from dlog.wire.object_snapshot import encode_snapshot


def key(n: int) -> KeyPut:
    return KeyPut(f"k{n}", b"v")


def entry(before: int, *records: MetadataRecord) -> EntryRead:
    return EntryRead(encode_entry(before, records))


def snapshot(records: int) -> tuple[bytes, SnapshotWritten]:
    image = Image()
    image.apply_all(map(key, range(records)))
    data = encode_snapshot(contents_of(image))
    return data, SnapshotWritten("s", records, len(data), crc32c(data))


def version(follower: Follower) -> int:
    return -1 if follower.image is None else follower.image.version


def test_a_whole_stream_is_followed_and_no_entry_counts_twice() -> None:
    follower = Follower()
    for fact in (entry(0, key(0), key(1)), entry(0, key(0), key(1)), entry(2, key(2))):
        assert follower.handle(fact) == []
    assert version(follower) == 3


def test_a_gap_is_damage() -> None:
    follower = Follower()
    follower.handle(entry(0, key(0)))
    with pytest.raises(DamagedError, match="missing"):
        follower.handle(entry(2, key(2)))


def test_a_truncated_stream_is_followed_from_the_first_snapshot_that_fits() -> None:
    data, record = snapshot(5)
    follower = Follower()
    assert follower.handle(entry(4, key(4))) == []
    assert follower.handle(entry(5, SnapshotWritten("old", 3, 1, 1))) == []
    assert follower.handle(entry(6, record)) == [LoadSnapshot("s")]
    assert follower.handle(SnapshotRead(data)) == [ReadFrom(5)]
    follower.handle(entry(4, key(4)))
    follower.handle(entry(5, key(5)))
    assert version(follower) == 6


def test_in_place_of_a_snapshot_that_is_gone_the_next_one_is_used() -> None:
    _, record = snapshot(5)
    follower = Follower()
    follower.handle(entry(4, key(4), record))
    assert follower.handle(SnapshotRead(None)) == []
    assert follower.handle(entry(5, record)) == [LoadSnapshot("s")]


def test_a_follower_that_is_cut_off_begins_anew() -> None:
    data, record = snapshot(5)
    follower = Follower()
    follower.handle(entry(0, key(0)))
    assert follower.handle(StreamCutOff()) == [ReadFrom(0)]
    assert version(follower) == -1
    assert follower.handle(entry(5, record)) == [LoadSnapshot("s")]
    follower.handle(SnapshotRead(data))
    assert version(follower) == 5


def test_another_snapshot_than_recorded_is_damage() -> None:
    data, record = snapshot(5)
    for wrong in (data[:-1], snapshot(4)[0], bytes(len(data))):
        follower = Follower()
        follower.handle(entry(4, key(4), record))
        with pytest.raises(DamagedError):
            follower.handle(SnapshotRead(wrong))
    follower = Follower()
    follower.handle(entry(4, key(4), SnapshotWritten("s", 6, record.bytes, record.crc32c)))
    with pytest.raises(DamagedError, match="version"):
        follower.handle(SnapshotRead(data))
