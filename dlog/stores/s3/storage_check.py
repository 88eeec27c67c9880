"""Checks, before a process creates its first segment, that the object storage can hold what will be uploaded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dlog.errors import to_raise
from dlog.stores.contract import MisconfiguredError
from dlog.stores.object_storage.async_lru_cache import AsyncLruCache

ANSWER_S = 3.0  # for the storage to answer


class StorageCheck:
    """The check of one process. check_objects: raises StoreError; None: there is nothing to check. scope: runs it.

    Invariants:
    - A storage that was found unfit is refused. One that does not answer is not: appends need only the write-ahead log,
      and the check is repeated when the next segment is created.
    """

    def __init__(self, check_objects: Callable[[], Awaitable[None]] | None, scope: AsyncLruCache[Any, Any]) -> None:
        self._check_objects = check_objects
        self._scope = scope
        self._last: asyncio.Future[None] | None = None
        self._wait_until_s = 0.0  # for the answer of the last one

    async def check(self) -> None:
        """Check now. Raises StoreError."""
        if self._check_objects is not None:
            await self._check_objects()

    def begin(self) -> asyncio.Future[None]:
        """Start the first check, or the next one after one that failed; returns the last one started. Raises
        ReaderClosedError."""
        last, now_s = self._last, asyncio.get_running_loop().time()
        error = last.exception() if last is not None and last.done() else None
        if last is None or error is not None:
            last = self._last = self._scope.start(self.check, "check the object storage")
            if error is None or isinstance(error, MisconfiguredError):
                self._wait_until_s = now_s + ANSWER_S
        return last

    async def wait_not_refused(self) -> None:
        """Wait a moment for the first check, and for one after a refusal. Raises MisconfiguredError if it found the
        storage unfit."""
        last = self.begin()
        if not last.done():
            left_s = self._wait_until_s - asyncio.get_running_loop().time()
            await asyncio.wait((last,), timeout=max(0.0, left_s))
        if last.done() and isinstance(error := last.exception(), MisconfiguredError):
            raise to_raise(error)
