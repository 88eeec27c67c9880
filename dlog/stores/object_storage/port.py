"""Interface of segment stores to an object storage; dlog/io/objects.py implements it for S3, WebHDFS and directories.

Errors are those of the store contract: SegmentNotFoundError, StoreUnavailableError (retry), MisconfiguredError (no such
bucket, no permission, a missing package).

Invariants:
- an object exists completely or not at all: it appears at its location once its writer has finished, and is then as
  durable as that kind of storage can make it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dlog.stores.object_storage.locations import Location

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Found:
    """An object, or an unfinished upload; handle: the storage's id of the latter."""

    location: str
    bytes: int
    modified_unix_ms: int
    handle: str = ""


class ObjectWriter(Protocol):
    """Writes one object, from its first byte to its last."""

    async def write(self, parts: Sequence[Buffer]) -> None:
        """Append these parts. They must not change until this returns."""
        ...

    async def finish(self) -> None:
        """Make the object visible, replacing an older one at its location."""
        ...

    async def abort(self) -> None:
        """Give up the object. Best effort: leftovers are listed by `unfinished`. Idempotent."""
        ...


class Objects(Protocol):
    """Access to objects of every supported scheme."""

    async def read(self, location: Location, offset: int, size: int) -> bytes:
        """Return these bytes; fewer if the object ends before."""
        ...

    async def read_end(self, location: Location, size: int) -> tuple[bytes, int]:
        """Return the last `size` bytes, or all, and the object's size."""
        ...

    async def create(self, location: Location) -> ObjectWriter: ...

    async def delete(self, location: Location) -> None:
        """Delete an object. Idempotent."""
        ...

    def list(self, folder: Location) -> AsyncIterator[Found]:
        """Yield the objects below a folder, at any depth; none if the folder does not exist."""
        ...

    def unfinished(self, folder: Location) -> AsyncIterator[Found]:
        """Yield the unfinished uploads below a folder, abandoned or in progress."""
        ...

    async def discard(self, left: Found) -> None:
        """Remove an unfinished upload. Idempotent."""
        ...
