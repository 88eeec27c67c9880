"""Resolves lost answers of requests that create an object.

A request is repeated by libraries and proxies, so "there is one already" may be the answer to a repetition of our own
request; after a timeout or a broken connection the object may exist, or appear later. The object's head decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dlog.stores.contract import SegmentNotFoundError, StoreUnavailableError, copy_error
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Creation

ATTEMPTS_MAX = 3  # requests to create; each has its own timeout


async def create_resolved(
    location: Location,
    head: bytes,
    attempt: Callable[[], Awaitable[Creation]],
    read: Callable[[Location, int, int], Awaitable[bytes]],
) -> Creation:
    """Create an object by `attempt`, which sends one request with the same bytes each time; return what is certain.

    head: the beginning of the object that no other one has. attempt: raises StoreUnavailableError if it is unclear
    whether the object was created. read: as Objects.read. Raises as Objects.create_if_absent.
    """
    unclear: StoreUnavailableError | None = None
    for _ in range(ATTEMPTS_MAX):
        unclear = None
        try:
            if await attempt() is Creation.MADE:
                return Creation.MADE
        except StoreUnavailableError as error:
            unclear = error
        try:
            found = await read(location, 0, len(head))
        except SegmentNotFoundError:
            if unclear is None:
                raise SegmentNotFoundError(
                    f"the object was deleted while another one was to be created there: location={location}"
                ) from None
        except StoreUnavailableError as error:
            raise copy_error(error, outcome_unknown=True) from error
        else:
            return Creation.MADE if found == head else Creation.EXISTS
    assert unclear is not None, "the last attempt was unclear"
    raise copy_error(unclear, outcome_unknown=True)
