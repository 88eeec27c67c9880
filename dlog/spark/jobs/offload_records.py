"""What is remembered of segments on their way to cold storage, in ZooKeeper: `<namespace>/.offloaded/<stream>/...`.

    <number>-<store>-<place>   a record: where the segment lay, and every object that it was told to lie in
    swept-<object's name>      an object that is being swept; the data is its place

The law of this file: a record is there before the segment's stream is told, and until nothing is left to be done: so
whoever comes after a kill finds both places. It is changed by compare-and-set, as dlog/model/offloading.py has it. An
object that is being swept gets no record, and one that has a record is not swept; both are decided by the same multi.
Java tools skip names that begin with a dot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import quote

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
from dlog.model.ids import StreamName, stream_name
from dlog.model.offloading import Record
from dlog.spark.reach import Cluster
from dlog.stores.cold.places import parse_object

_SWEPT = "swept-"
_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Kept:
    """A record as it was read. version: of its znode."""

    record: Record
    version: int


class SweptError(MetadataUnavailableError):
    """The object is being swept as one that nobody names: what it holds must be copied again."""


class Records:
    """Those of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._zk = cluster.metadata.zookeeper
        self._root = f"{namespace}/.offloaded"

    async def streams(self) -> list[StreamName]:
        """Streams that something is remembered of, in order."""
        return [stream_name(name) for name in sorted(await self._children(self._root))]

    async def of(self, stream: str) -> list[Kept]:
        """All of a stream, by number. Raises DamagedError."""
        names = sorted(name for name in await self._children(f"{self._root}/{stream}") if not name.startswith(_SWEPT))
        kept: list[Kept] = []
        for at in range(0, len(names), _AT_ONCE):
            paths = [f"{self._root}/{stream}/{name}" for name in names[at : at + _AT_ONCE]]
            for path, found in zip(paths, await self._zk.get_many(paths, fresh=True), strict=True):
                if found is not None:
                    kept.append(Kept(_decoded(path, found[0]), found[1].version))
        return kept

    async def swept(self, stream: str) -> list[str]:
        """Places of objects of this stream that somebody began to sweep."""
        places = []
        for name in sorted(await self._children(f"{self._root}/{stream}")):
            if name.startswith(_SWEPT):
                try:
                    data, _ = await self._zk.get(f"{self._root}/{stream}/{name}", fresh=True)
                except NoNodeError:
                    continue
                places.append(data.decode(errors="replace"))
        return places

    # ---- of a segment -----------------------------------------------------------------------------------------------

    async def begin(self, record: Record, was: Kept | None = None) -> Kept:
        """Remember it, in the place of what was. Raises SweptError; BadVersionError, NodeExistsError if somebody else
        remembered something of this segment meanwhile; MetadataUnavailableError."""
        path, marker = self._path(record), self._marker(record.stream, record.object)
        await self._zk.ensure_path(f"{self._root}/{record.stream}")
        data = _encoded(record)
        ops: list[Op] = [Create(marker), Delete(marker, ANY_VERSION)]  # refused while it is being swept
        ops.append(Create(path, data) if was is None else Set(path, data, was.version))
        try:
            results = await self._zk.multi(ops)
        except MultiFailedError as failed:
            if failed.index == 0:
                raise SweptError(f"the object was swept before its segment was told of it: {record.object}") from failed
            raise failed.error from failed
        return Kept(record, 0 if was is None else results[2].version)

    async def change(self, kept: Kept, record: Record) -> Kept:
        """Put this in the place of what was read. Raises BadVersionError, NoNodeError."""
        return Kept(record, (await self._zk.set(self._path(record), _encoded(record), kept.version)).version)

    async def forget(self, kept: Kept) -> None:
        """Nothing is left to be done. Raises BadVersionError."""
        try:
            await self._zk.delete(self._path(kept.record), kept.version)
        except NoNodeError:
            return

    async def forget_stream(self, stream: str) -> None:
        """There is no such stream any more; unless something is remembered of it."""
        try:
            await self._zk.delete(f"{self._root}/{stream}", ANY_VERSION)
        except (NoNodeError, NotEmptyError):
            return

    # ---- of objects that nobody names -------------------------------------------------------------------------------

    async def claim(self, stream: str, place: str) -> None:
        """From now on no record of this object can be made; look then whether there is one. Idempotent."""
        await self._zk.ensure_path(f"{self._root}/{stream}")
        try:
            await self._zk.create(self._marker(stream, place), place.encode())
        except NodeExistsError:
            return

    async def unclaim(self, stream: str, place: str) -> None:
        """The object is deleted, or it was found to be named."""
        try:
            await self._zk.delete(self._marker(stream, place), ANY_VERSION)
        except NoNodeError:
            return

    async def _children(self, path: str) -> Sequence[str]:
        try:
            return (await self._zk.children(path, fresh=True))[0]
        except NoNodeError:
            return ()

    def _path(self, record: Record) -> str:
        name = f"{record.number:018d}-{quote(record.store, safe='')}-{quote(record.place, safe='')}"
        return f"{self._root}/{record.stream}/{name}"

    def _marker(self, stream: str, place: str) -> str:
        return f"{self._root}/{stream}/{_SWEPT}{place.rpartition('/')[2]}"


def named_objects(kept: Iterable[Kept]) -> set[str]:
    """Places of all objects that these name."""
    return {place for one in kept for place in one.record.objects}


def _encoded(record: Record) -> bytes:
    return json.dumps(asdict(record), sort_keys=True).encode()


def _decoded(path: str, data: bytes) -> Record:
    try:
        told = json.loads(data)
        listed = {name: tuple(told.get(name, ())) for name in ("objects", "taken_back_from")}
        record = Record(**{**told, **listed})
        sound = record.objects and all(parse_object(place) for place in record.objects)
        sound = sound and all(type(text) is str for text in (record.stream, record.store, record.place))
        sound = sound and type(record.number) is int and type(record.moved_unix_ms) is int
        sound = sound and type(record.is_damaged) is bool and type(record.is_deleting) is bool
        sound = sound and set(record.taken_back_from) <= set(record.objects)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise DamagedError(f"what is remembered of an offloaded segment cannot be read: path={path}")
    return record
