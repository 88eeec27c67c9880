"""Interface of segment stores to an object storage; dlog/io/objects.py implements it for S3, WebHDFS and directories.

Errors are those of the store contract: SegmentNotFoundError, StoreUnavailableError (retry), MisconfiguredError (no such
bucket, no permission, a missing package).

Invariants:
- an object exists completely or not at all: it appears at its location once its writer has finished, and is then as
  durable as that kind of storage can make it;
- of all calls of `create_if_absent` for one location one at most returns MADE;
- an object that `list` yields, or because of which `create_if_absent` returns EXISTS, is durable.
"""

from __future__ import annotations

import enum
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


class Creation(enum.Enum):
    """Result of `create_if_absent`."""

    MADE = "made"
    EXISTS = "exists"  # an object of another call is at the location


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

    async def create(self, location: Location, *, marker: Location | None = None) -> ObjectWriter:
        """Begin an object, which replaces another once it is finished. marker: see `create_if_absent`."""
        ...

    def can_create_if_absent(self, location: Location) -> bool:
        """Whether this kind of storage has `create_if_absent`. What an S3 service really does, `probe` finds out."""
        ...

    async def create_if_absent(
        self, location: Location, data: Sequence[Buffer], *, head_bytes: int, marker: Location | None = None
    ) -> Creation:
        """Create a whole object, unless there is one at the location.

        head_bytes: length of the beginning of `data`, with a random number, that no other call's data begins with. A
        lost answer is resolved by it: the object at the location is read, and is this call's if it begins like that.
        marker: an object that must exist. A storage that is a file system creates nothing if the marker is missing:
        then its disk is not mounted. Other storages ignore it.
        Raises StoreUnavailableError (outcome unknown: repeat the call with the same bytes), MisconfiguredError,
        SegmentNotFoundError (the object was deleted meanwhile: the location had been used before).
        Cancelling stops the wait only: the object may still be created, also later.
        """
        ...

    async def delete(self, location: Location) -> None:
        """Delete an object. Idempotent."""
        ...

    async def delete_many(self, locations: Sequence[Location]) -> None:
        """Delete objects, in as few requests as the storage can. Idempotent. After an error some may be deleted."""
        ...

    def list(
        self, folder: Location, *, behind: Location | None = None, limit: int | None = None
    ) -> AsyncIterator[Found]:
        """Yield the objects below a folder, at any depth, in the order of their locations; none if the folder does not
        exist. behind: only those whose location is greater. limit: at most so many, for a cheaper request."""
        ...

    def unfinished(self, folder: Location) -> AsyncIterator[Found]:
        """Yield the unfinished uploads below a folder, abandoned or in progress."""
        ...

    async def discard(self, left: Found) -> None:
        """Remove an unfinished upload. Idempotent."""
        ...

    async def now_unix_ms(self, folder: Location) -> int:
        """The storage's own time, which `Found.modified_unix_ms` is in; its unit may be a whole second. Creates no
        folder."""
        ...
