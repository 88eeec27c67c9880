"""Merges segments in the background, one at a time, and deletes their chunks after the grace period.

What a process has not finished when it ends, the next one does that opens the segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from dlog.errors import Remedy
from dlog.events import Event, MergeFailed
from dlog.objects.merge import Merged
from dlog.stores.contract import SegmentNotFoundError, StoreError

RETRY_S = 60.0
WAITING_MAX = 10_000


class SegmentMerger:
    """Merges the segments that are added. merge: as S3DirectStore.merge."""

    def __init__(
        self, merge: Callable[[str], Awaitable[Merged]], grace_s: float, on_event: Callable[[Event], None]
    ) -> None:
        self._merge = merge
        self._grace_s = grace_s
        self._on_event = on_event
        self._due_s: dict[str, float] = {}  # by segment
        self._finished: dict[str, None] = {}
        self._added = asyncio.Event()

    def add(self, name: str) -> None:
        """Merge a segment that has ended, unless that is done; adding it again changes nothing.

        If very many wait, it is left to a later call."""
        if name not in self._finished and name not in self._due_s and len(self._due_s) < WAITING_MAX:
            self._later(name, 0.0)

    async def run(self) -> None:
        """Merge for ever."""
        now_s = asyncio.get_running_loop().time
        while True:
            self._added.clear()
            name = min(self._due_s, key=self._due_s.__getitem__, default=None)
            if name is None:
                await self._added.wait()
            elif (wait_s := self._due_s[name] - now_s()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._added.wait()
            else:
                del self._due_s[name]
                await self._merge_one(name)

    async def _merge_one(self, name: str) -> None:
        try:
            result = await self._merge(name)
        except SegmentNotFoundError:
            return
        except StoreError as error:
            self._on_event(MergeFailed(name, error.message))
            if error.remedy is not Remedy.REPORT:
                self._later(name, RETRY_S)
            return
        if result is Merged.MERGED:
            self._later(name, self._grace_s)
        elif result is Merged.UNKNOWN:
            self._later(name, RETRY_S)
        else:
            self._finished[name] = None
            if len(self._finished) > WAITING_MAX:
                del self._finished[next(iter(self._finished))]

    def _later(self, name: str, delay_s: float) -> None:
        self._due_s[name] = asyncio.get_running_loop().time() + delay_s
        self._added.set()
