"""Checks that an object storage does what segments need, on scratch objects, before anything is written there."""

from __future__ import annotations

from contextlib import suppress

from dlog.stores.contract import MisconfiguredError, StoreError
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Creation, Objects

PROBE_FOLDER = "probe"  # below the root
NONCE_HEX = 32


async def probe(objects: Objects, root: Location, nonce: str) -> None:
    """Create, read, list and delete two objects below the root.

    nonce: NONCE_HEX random hexadecimal digits. Raises MisconfiguredError if an object can be overwritten by
    `create_if_absent`, is not listed at once, or is not read in ranges; else as the calls of Objects.
    """
    if not objects.can_create_if_absent(root):
        raise MisconfiguredError(
            f"this kind of storage cannot create an object only where there is none, so it cannot fence a writer; "
            f"choose s3://bucket/prefix or file:///directory: location={root}"
        )
    assert len(nonce) == NONCE_HEX
    folder = root.below(PROBE_FOLDER)
    first, second = folder.below(f"{nonce}-1"), folder.below(f"{nonce}-2")
    text = f"{nonce} begins an object that may be deleted".encode()
    try:
        _check(await _create(objects, first, text) is Creation.MADE, "there is an object at a new location", root)
        refused = await _create(objects, first, text[::-1]) is Creation.EXISTS
        is_same = await objects.read(first, 0, len(text) + 1) == text
        _check(refused and is_same, "it replaces an object that should be created only if there is none", root)
        _check(await objects.read(first, 4, 7) == text[4:11], "it does not read a range of an object", root)
        _check(await objects.read_end(first, 7) == (text[-7:], len(text)), "it does not read an object's end", root)
        _check(await _listed(objects, folder, None, first), "it does not list an object at once", root)
        await _create(objects, second, text)
        _check(await _listed(objects, folder, first, second), "it does not list objects behind a name in order", root)
    finally:
        with suppress(StoreError):
            await objects.delete_many((first, second))


async def _create(objects: Objects, location: Location, text: bytes) -> Creation:
    return await objects.create_if_absent(location, (text,), head_bytes=NONCE_HEX)


async def _listed(objects: Objects, folder: Location, behind: Location | None, wanted: Location) -> bool:
    """Whether `wanted` is listed: first, if `behind` is given."""
    limit = None if behind is None else 1
    return str(wanted) in [found.location async for found in objects.list(folder, behind=behind, limit=limit)]


def _check(holds: bool, fault: str, root: Location) -> None:
    if not holds:
        raise MisconfiguredError(
            f"the object storage cannot hold segments, {fault}; choose a service with conditional writes and ordered "
            f"listing, or file:///directory: location={root}"
        )
