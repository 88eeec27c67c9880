"""Access to cold storage objects: dispatches each call to the storage that the location's scheme names.

A storage is opened when its scheme is first used, so that unused ones cost nothing, and is closed with the scope.
dlog/stores/cold/objects.py is the contract.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import TracebackType

from dlog.stores.cold.locations import Location, parse_root
from dlog.stores.cold.objects import Found, ObjectWriter
from dlog.stores.cold.objects import Objects as Kind
from dlog.stores.cold.options import ColdOptions


class Objects:
    """Objects in every supported storage; used as `async with Objects(options) as objects`."""

    def __init__(self, options: ColdOptions | None = None) -> None:
        self._options = options or ColdOptions()
        self._kinds: dict[str, Kind] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Objects:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kinds.clear()
        await self._stack.__aexit__(kind, error, trace)

    async def read(self, place: Location, offset: int, size: int) -> bytes:
        return await self._kind(place).read(place, offset, size)

    async def read_end(self, place: Location, size: int) -> tuple[bytes, int]:
        return await self._kind(place).read_end(place, size)

    async def create(self, place: Location) -> ObjectWriter:
        return await self._kind(place).create(place)

    async def delete(self, place: Location) -> None:
        await self._kind(place).delete(place)

    def list(self, folder: Location) -> AsyncIterator[Found]:
        return self._kind(folder).list(folder)

    def unfinished(self, folder: Location) -> AsyncIterator[Found]:
        return self._kind(folder).unfinished(folder)

    async def discard(self, left: Found) -> None:
        await self._kind(parse_root(left.place)).discard(left)

    def _kind(self, place: Location) -> Kind:
        kind = self._kinds.get(place.scheme)
        if kind is None:
            match place.scheme:
                case "file":
                    from dlog.io.directory_objects import DirectoryObjects

                    kind = DirectoryObjects()
                case "s3":
                    from dlog.io.s3_objects import S3Objects

                    s3 = kind = S3Objects(self._options)
                    self._stack.push_async_callback(s3.close)
                case _:
                    from dlog.io.webhdfs_objects import WebHdfsObjects

                    kind = WebHdfsObjects(self._options)
            self._kinds[place.scheme] = kind
        return kind
