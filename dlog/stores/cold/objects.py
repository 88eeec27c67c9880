"""What the cold store asks of a kind of storage; dlog/io/objects.py keeps it for S3, WebHDFS and directories.

An object is there whole or not at all: it appears under its place when its writer has finished, and is on stable
storage then, as far as that kind of storage can promise it. Errors are those of the store contract:
SegmentNotFoundError, StoreUnavailableError (try again), MisconfiguredError (no such bucket, no right, a part missing).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dlog.stores.cold.places import Location

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Found:
    """An object, or what a writer began and did not finish. handle: what the storage calls the latter."""

    place: str
    bytes: int
    modified_unix_ms: int
    handle: str = ""


class ObjectWriter(Protocol):
    """Writes one object, from its first byte to its last."""

    async def write(self, parts: Sequence[Buffer]) -> None:
        """These, joined, come next; they must not change until this returns."""
        ...

    async def finish(self) -> None:
        """The object is there from now on, in the place of what was there."""
        ...

    async def abort(self) -> None:
        """There will be none. Best effort: what is left of it shows in `unfinished`. Idempotent."""
        ...


class Objects(Protocol):
    """Objects of every kind of place that is known here."""

    async def read(self, place: Location, offset: int, size: int) -> bytes:
        """These bytes; fewer if the object ends before."""
        ...

    async def read_end(self, place: Location, size: int) -> tuple[bytes, int]:
        """The last `size` bytes, or all there are, and how many the object has."""
        ...

    async def create(self, place: Location) -> ObjectWriter: ...

    async def delete(self, place: Location) -> None:
        """Idempotent."""
        ...

    def list(self, folder: Location) -> AsyncIterator[Found]:
        """Objects below a folder, at any depth; none if there is no such folder."""
        ...

    def unfinished(self, folder: Location) -> AsyncIterator[Found]:
        """What writers left behind below a folder, or are about to finish."""
        ...

    async def discard(self, left: Found) -> None:
        """Take away what `unfinished` told of. Idempotent."""
        ...
