"""Opens the segment store `s3-direct`.

Each cluster has a folder of its own below the root; the cluster's metadata records its name as the identity of the
store, and an object marks the folder. So clusters can share a root; and a wrong root, or one that is not mounted, where
the marker does not exist, is never taken for one whose segments were deleted.

Invariants:
- The marker exists before the name is recorded.
- A recorded name is never replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

from dlog.errors import ConfigError, DLogError
from dlog.events import Event
from dlog.io.objects import Objects
from dlog.log.contents import entry_span
from dlog.model.ids import is_location_name
from dlog.stores.contract import SegmentNotFoundError, StoreOutOfReachError, StoreUnavailableError
from dlog.stores.object_storage.locations import MARKER, Location, parse_root
from dlog.stores.object_storage.port import Objects as ObjectsPort
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.stores.s3_direct.store import (
    FindFolder,
    NoSegmentsYetError,
    S3DirectStore,
    marker_text,
    wrong_root,
)

START_TIMEOUT_S = 3.0  # for the storage to answer when the store is opened
_NONCE_DIGITS = 16


@asynccontextmanager
async def open_s3_direct_store(
    options: ObjectsOptions,
    read_cluster: Callable[[], Awaitable[str | None]],
    record_cluster: Callable[[str], Awaitable[None]],
    rng: Random,
    *,
    creates: bool = False,
    on_event: Callable[[Event], None] = lambda _: None,
) -> AsyncIterator[S3DirectStore]:
    """The store, open in the scope. read_cluster, record_cluster: the name of the cluster's folder in metadata.

    creates: make a folder if there never was one, at the first use. Raises ConfigError, with `creates` also if the
    storage answers and has no marker of this cluster; a storage that does not answer now may do later.
    """
    if not options.root:
        raise ConfigError("the store needs a root: set `root` in [objects], or DLOG_OBJECTS_ROOT")
    root = parse_root(options.root)
    async with Objects(options) as objects:
        find = folder_finder(objects, root, read_cluster, record_cluster, rng)
        if not objects.can_create_if_absent(root):
            raise ConfigError(
                "segments cannot be written there, since an object cannot be created only where there is none, use "
                f"s3://bucket/prefix or file:///directory: root={root}"
            )
        if creates and await read_cluster() is not None:
            await _check_at_start(find)
        async with S3DirectStore(
            objects, find, options, rng, creates=creates, span_of=entry_span, on_event=on_event
        ) as store:
            yield store


async def _check_at_start(find: FindFolder) -> None:
    """Raise ConfigError for a root without the marker of this cluster."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await find(creates=False)
    except StoreOutOfReachError as error:
        raise ConfigError(error.message) from None
    except (DLogError, TimeoutError):
        return


def folder_finder(
    objects: ObjectsPort,
    root: Location,
    read: Callable[[], Awaitable[str | None]],
    record: Callable[[str], Awaitable[None]],
    rng: Random,
) -> FindFolder:
    """How the store finds the folder of its cluster."""

    async def find(*, creates: bool) -> Location:
        recorded = await read()
        if recorded is None:
            if not creates:
                raise NoSegmentsYetError(f"this cluster has no segments in objects yet: root={root}")
            made = f"dlog-{rng.getrandbits(4 * _NONCE_DIGITS):0{_NONCE_DIGITS}x}"
            text = marker_text(made)
            await objects.create_if_absent(root.below(made, MARKER), [text], head_bytes=len(text))
            await record(made)
            recorded = await read()
            if recorded != made:  # another process was faster
                await objects.delete(root.below(made, MARKER))
        if recorded is None or not is_location_name(recorded) or "/" in recorded:
            raise ConfigError(f"metadata does not name a folder of objects: recorded={str(recorded)[:80]!r}")
        folder = root.below(recorded)
        text = marker_text(recorded)
        try:
            found = await objects.read(folder.below(MARKER), 0, len(text) + 1)
        except SegmentNotFoundError:
            found = b""
        except StoreUnavailableError as error:
            if root.scheme != "file":
                raise
            raise StoreOutOfReachError(f"{wrong_root(folder)} ({error.message})") from error
        if found != text:
            raise StoreOutOfReachError(wrong_root(folder))
        return folder

    return find
