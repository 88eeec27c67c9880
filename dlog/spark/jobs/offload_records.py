"""Stores records of segments that move to cold storage, in ZooKeeper: `<namespace>/.offloaded/<stream>/...`.

    <number>-<store>-<place>   a record: the segment's old location, and every object to which a move was requested
    swept-<object's name>      marks an object that is being swept; the data is its location

Invariants:
- a record exists from before the move is requested until nothing is left to do, so that a run after a kill finds both
  locations;
- records are changed by compare-and-set, by the rules of dlog/model/offloading.py;
- an object that is being swept gets no record, and a recorded one is not swept; one multi decides both.

Java tools skip names that begin with a dot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from dlog.errors import DamagedError, MetadataUnavailableError
from dlog.io.zookeeper_protocol import (
    ANY_VERSION,
    Create,
    Delete,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Op,
    Set,
)
from dlog.model.ids import StreamName, escape_name, stream_name
from dlog.model.offloading import Record
from dlog.spark.cluster_connection import Cluster
from dlog.stores.cold.locations import parse_object

_SWEPT = "swept-"
_AT_ONCE = 200
_NAME_KEY = "place"  # of `Record.name` in a stored record


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it was read. version: of its znode."""

    record: Record
    version: int


class SweptError(MetadataUnavailableError):
    """The object is being swept as unnamed: its segment must be copied again."""


class OffloadRecords:
    """The records of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._zk = cluster.metadata.zookeeper
        self._root = f"{namespace}/.offloaded"

    async def streams(self) -> list[StreamName]:
        """Streams with records or marks, sorted."""
        return [stream_name(name) for name in sorted(await self._children(self._root))]

    async def of(self, stream: str) -> list[StoredRecord]:
        """All records of a stream, by number. Raises DamagedError."""
        names = sorted(name for name in await self._children(f"{self._root}/{stream}") if not name.startswith(_SWEPT))
        kept: list[StoredRecord] = []
        for at in range(0, len(names), _AT_ONCE):
            paths = [f"{self._root}/{stream}/{name}" for name in names[at : at + _AT_ONCE]]
            for path, found in zip(paths, await self._zk.get_many(paths, fresh=True), strict=True):
                if found is not None:
                    kept.append(StoredRecord(_decoded(path, found[0]), found[1].version))
        return kept

    async def swept(self, stream: str) -> list[str]:
        """Locations of objects of this stream that are marked as being swept."""
        names = []
        for name in sorted(await self._children(f"{self._root}/{stream}")):
            if name.startswith(_SWEPT):
                try:
                    data, _ = await self._zk.get(f"{self._root}/{stream}/{name}", fresh=True)
                except NoNodeError:
                    continue
                names.append(data.decode(errors="replace"))
        return names

    # ---- records of a segment ---------------------------------------------------------------------------------------

    async def begin(self, record: Record, was: StoredRecord | None = None) -> StoredRecord:
        """Create a record, or replace `was`. Raises SweptError; BadVersionError, NodeExistsError if another run changed
        this segment's record meanwhile; MetadataUnavailableError."""
        path, marker = self._path(record), self._marker(record.stream, record.object)
        await self._zk.ensure_path(f"{self._root}/{record.stream}")
        data = _encoded(record)
        ops: list[Op] = [Create(marker), Delete(marker, ANY_VERSION)]  # fails while it is being swept
        ops.append(Create(path, data) if was is None else Set(path, data, was.version))
        try:
            results = await self._zk.multi(ops)
        except MultiFailedError as failed:
            if failed.index == 0:
                raise SweptError(f"the object was swept before it was recorded, run again: {record.object}") from failed
            raise failed.error from failed
        return StoredRecord(record, 0 if was is None else results[2].version)

    async def change(self, kept: StoredRecord, record: Record) -> StoredRecord:
        """Replace a record that was read. Raises BadVersionError, NoNodeError."""
        return StoredRecord(record, (await self._zk.set(self._path(record), _encoded(record), kept.version)).version)

    async def forget(self, kept: StoredRecord) -> None:
        """Delete a record; nothing is left to do for it. Raises BadVersionError."""
        try:
            await self._zk.delete(self._path(kept.record), kept.version)
        except NoNodeError:
            return

    async def forget_stream(self, stream: str) -> None:
        """Delete the znode of a deleted stream, unless it has records."""
        try:
            await self._zk.delete(f"{self._root}/{stream}", ANY_VERSION)
        except (NoNodeError, NotEmptyError):
            return

    # ---- marks of objects that are being swept ----------------------------------------------------------------------

    async def claim(self, stream: str, name: str) -> None:
        """Mark an object: from now on it cannot be recorded. Then look for an earlier record. Idempotent."""
        await self._zk.ensure_path(f"{self._root}/{stream}")
        try:
            await self._zk.create(self._marker(stream, name), name.encode())
        except NodeExistsError:
            return

    async def unmark_swept(self, stream: str, name: str) -> None:
        """Remove the mark: the object is deleted, or was found to be named."""
        try:
            await self._zk.delete(self._marker(stream, name), ANY_VERSION)
        except NoNodeError:
            return

    async def _children(self, path: str) -> Sequence[str]:
        try:
            return (await self._zk.children(path, fresh=True))[0]
        except NoNodeError:
            return ()

    def _path(self, record: Record) -> str:
        name = f"{record.number:018d}-{escape_name(record.store)}-{escape_name(record.name)}"
        return f"{self._root}/{record.stream}/{name}"

    def _marker(self, stream: str, name: str) -> str:
        return f"{self._root}/{stream}/{_SWEPT}{name.rpartition('/')[2]}"


def named_objects(kept: Iterable[StoredRecord]) -> set[str]:
    """Locations of all objects that these records name."""
    return {name for one in kept for name in one.record.objects}


def _encoded(record: Record) -> bytes:
    fields = asdict(record)
    fields[_NAME_KEY] = fields.pop("name")
    return json.dumps(fields, sort_keys=True).encode()


def _decoded(path: str, data: bytes) -> Record:
    try:
        fields = json.loads(data)
        listed = {name: tuple(fields.get(name, ())) for name in ("objects", "taken_back_from")}
        name = fields.pop(_NAME_KEY)
        record = Record(**{**fields, **listed, "name": name})
        sound = record.objects and all(parse_object(name) for name in record.objects)
        sound = sound and all(
            type(text) is str for text in (record.stream, record.store, record.name, record.incarnation)
        )
        sound = sound and type(record.number) is int and type(record.moved_unix_ms) is int
        sound = sound and type(record.is_damaged) is bool and type(record.is_deleting) is bool
        sound = sound and set(record.taken_back_from) <= set(record.objects)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise DamagedError(f"the record of an offloaded segment cannot be read: path={path}")
    return record
