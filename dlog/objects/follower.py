"""Follows the metadata stream from its start or from a snapshot, and keeps an image of it.

A truncated stream begins in the middle. The follower then looks for the record of a snapshot that has all records
before the first entry, loads the snapshot and reads on behind it. The controller keeps the last two snapshots, and the
stream from the first of them on, so there is such a record.

Invariants:
- the image has all records below its version, and no other;
- an entry is applied once, whatever is read again; a gap between the image and the next entry is never passed over.
"""

from __future__ import annotations

from dlog.errors import DamagedError
from dlog.model.object_streams import SnapshotWritten
from dlog.objects.image import Image
from dlog.objects.image_snapshot import image_of
from dlog.values import value
from dlog.wire.digest import crc32c
from dlog.wire.object_records import decode_entry
from dlog.wire.object_snapshot import decode_snapshot


@value
class EntryRead:
    """Fact: the next entry of the metadata stream."""

    data: bytes


@value
class SnapshotRead:
    """Fact: the answer to LoadSnapshot. data: None if there is no such object."""

    data: bytes | None


@value
class StreamCutOff:
    """Fact: the stream was truncated beyond the place where this follower reads. Read it from its start again."""


@value
class LoadSnapshot:
    """Effect: read this object; deliver no entry before SnapshotRead."""

    key: str


@value
class ReadFrom:
    """Effect: go on with the entry that has the record number `version` + 1; 0: with the first entry that there is."""

    version: int


class Follower:
    """See the module's docstring. image: None until it is known."""

    def __init__(self) -> None:
        self.image: Image | None = None
        self._first: int | None = None  # number of records before the first entry that there is
        self._loading: SnapshotWritten | None = None

    def handle(self, fact: EntryRead | SnapshotRead | StreamCutOff) -> list[LoadSnapshot | ReadFrom]:
        """Raises DamagedError, UnsupportedVersionError; then this follower is used no more."""
        match fact:
            case EntryRead(data):
                return self._entry(data)
            case SnapshotRead(data):
                return self._snapshot(data)
            case StreamCutOff():
                self._first = self._loading = self.image = None
                return [ReadFrom(0)]

    def _entry(self, data: bytes) -> list[LoadSnapshot | ReadFrom]:
        before, records = decode_entry(data)
        image = self.image
        if image is None and before == 0:
            image = self.image = Image()
        if image is not None:
            if before + len(records) <= image.version:
                return []
            if before != image.version:
                raise DamagedError(f"records of the metadata stream are missing: from={image.version} next={before}")
            image.apply_all(records)
            return []
        if self._first is None:
            self._first = before
        for record in records:
            if isinstance(record, SnapshotWritten) and record.applied >= self._first and self._loading is None:
                self._loading = record
                return [LoadSnapshot(record.key)]
        return []

    def _snapshot(self, data: bytes | None) -> list[LoadSnapshot | ReadFrom]:
        record, self._loading = self._loading, None
        assert record is not None and self.image is None
        if data is None:
            return []  # newer ones have replaced it; their records lie further on
        if len(data) != record.bytes or crc32c(data) != record.crc32c:
            raise DamagedError(f"a snapshot of metadata is not the one that was recorded: key={record.key}")
        self.image = image_of(decode_snapshot(data))
        if self.image.version != record.applied:
            raise DamagedError(f"a snapshot of metadata has another version than recorded: key={record.key}")
        return [ReadFrom(record.applied)]
