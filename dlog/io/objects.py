"""Access to objects: dispatches each call to the storage that the location's scheme names.

A storage is opened when its scheme is first used, so that unused ones cost nothing, and is closed with the scope.
dlog/stores/object_storage/port.py is the contract.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from types import TracebackType

from dlog.stores.object_storage.locations import Location, parse_root
from dlog.stores.object_storage.options import ObjectStorageOptions
from dlog.stores.object_storage.port import Buffer, Creation, Found, ObjectWriter
from dlog.stores.object_storage.port import Objects as Kind


class Objects:
    """Objects in every supported storage; used as `async with Objects(options) as objects`."""

    def __init__(self, options: ObjectStorageOptions | None = None) -> None:
        self._options = options or ObjectStorageOptions()
        self._kinds: dict[str, Kind] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Objects:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kinds.clear()
        await self._stack.__aexit__(kind, error, trace)

    async def read(self, location: Location, offset: int, size: int) -> bytes:
        return await self._kind(location).read(location, offset, size)

    async def read_end(self, location: Location, size: int) -> tuple[bytes, int]:
        return await self._kind(location).read_end(location, size)

    async def create(self, location: Location, *, marker: Location | None = None) -> ObjectWriter:
        return await self._kind(location).create(location, marker=marker)

    def can_create_if_absent(self, location: Location) -> bool:
        return self._kind(location).can_create_if_absent(location)

    async def create_if_absent(
        self, location: Location, data: Sequence[Buffer], *, head_bytes: int, marker: Location | None = None
    ) -> Creation:
        return await self._kind(location).create_if_absent(location, data, head_bytes=head_bytes, marker=marker)

    async def delete(self, location: Location) -> None:
        await self._kind(location).delete(location)

    async def delete_many(self, locations: Sequence[Location]) -> None:
        for scheme in sorted({location.scheme for location in locations}):
            some = [location for location in locations if location.scheme == scheme]
            await self._kind(some[0]).delete_many(some)

    def list(
        self, folder: Location, *, behind: Location | None = None, limit: int | None = None
    ) -> AsyncIterator[Found]:
        return self._kind(folder).list(folder, behind=behind, limit=limit)

    def unfinished(self, folder: Location) -> AsyncIterator[Found]:
        return self._kind(folder).unfinished(folder)

    async def discard(self, left: Found) -> None:
        await self._kind(parse_root(left.location)).discard(left)

    async def now_unix_ms(self, folder: Location) -> int:
        return await self._kind(folder).now_unix_ms(folder)

    def _kind(self, location: Location) -> Kind:
        kind = self._kinds.get(location.scheme)
        if kind is None:
            match location.scheme:
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
            self._kinds[location.scheme] = kind
        return kind
