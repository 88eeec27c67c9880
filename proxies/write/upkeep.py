"""Looks after streams that no proxy owns: nobody else would delete what has expired, or finish a deletion.

A round goes over the namespace, a hundred streams at a time, by two small znodes of each. A stream that was deleted and
is not removed is removed; one that has truncated or expired segments is taken over, and its owner does the rest. Each
proxy looks after the streams whose newest claim names it and of which it knows nothing, for it died since and began
anew: to all others it is their owner. Of the streams that no registered proxy has claimed it looks after those that it
would own. So a stream is looked after by one proxy, or by two while members change.

Invariants:
- Nothing is deleted on what a round has read: the deletion of a stream names its life, and segments are truncated by an
  owner, under a claim.
- A stream that another registered proxy has claimed is left to that one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from dlog.errors import DLogError
from dlog.io.metadata import Metadata, StreamHead
from dlog.machine import Versioned
from dlog.model.ids import ProxyId, StreamName
from dlog.model.segment import Owner, StreamKey, StreamMetadata

STREAMS_AT_ONCE = 100
PAUSE_S = 0.5  # between them: a round costs a small share of a CPU, and 50,000 streams take four minutes
TAKE_S = 10.0  # for one take-over


class Owners(Protocol):
    """The streams of this process (proxies/write/holdings.py)."""

    def find(self, stream: str) -> object | None: ...

    async def ask(self, stream: str, request: None) -> object: ...


class Upkeep:
    """Of one write proxy. preferred: the address of the proxy that would own a stream; None: this one. finish: removes
    a stream that is marked as deleted. unix_ms: the wall clock. every_s: between rounds, up to half of it more."""

    def __init__(
        self,
        me: ProxyId,
        metadata: Metadata,
        owners: Owners,
        *,
        preferred: Callable[[str], str | None],
        finish: Callable[[StreamName], Awaitable[object]],
        unix_ms: Callable[[], int],
        every_s: float,
        rng: random.Random,
    ) -> None:
        self._me = me
        self._metadata = metadata
        self._owners = owners
        self._preferred = preferred
        self._finish = finish
        self._unix_ms = unix_ms
        self._every_s = every_s
        self._rng = rng

    async def run(self) -> None:
        """Round after round, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s * self._rng.uniform(1.0, 1.5))
            with suppress(DLogError):  # metadata is away, or a stream's store is: the next round comes
                await self.look()

    async def look(self) -> None:
        """One round. Raises MetadataUnavailableError."""
        names = [name for name in await self._metadata.streams() if self._owners.find(name) is None]
        for start in range(0, len(names), STREAMS_AT_ONCE):
            some = names[start : start + STREAMS_AT_ONCE]
            for name, head in zip(some, await self._metadata.stream_heads(some), strict=True):
                if head is not None and self._is_ours(name, head.owner):
                    await self._look_after(name, head)
            await asyncio.sleep(PAUSE_S)

    def _is_ours(self, name: StreamName, owner: Owner) -> bool:
        """Whether this proxy has to look after the stream, which `owner` was the last to claim."""
        if self._owners.find(name) is not None:
            return False
        if owner.epoch and not owner.released and not owner.deleted:
            if owner.proxy == self._me:
                return True
            if owner.proxy in self._metadata.known_members().write_proxies:
                return False
        return self._preferred(name) is None

    async def _look_after(self, name: StreamName, head: StreamHead) -> None:
        """What fails for one stream is tried again in the next round, and stops no other."""
        with suppress(DLogError, TimeoutError):
            if head.owner.deleted:
                await self._finish(name)
            elif head.is_truncated or head.retention_s > 0:
                found = await self._metadata.read(StreamKey(name))
                if isinstance(found, Versioned) and self._has_something_to_delete(found.value):
                    async with asyncio.timeout(TAKE_S):
                        await self._owners.ask(name, None)

    def _has_something_to_delete(self, value: StreamMetadata) -> bool:
        if value.truncated:
            return True
        expires_ms = value.expires_unix_ms(value.segments[0]) if len(value.segments) > 1 else None
        return expires_ms is not None and expires_ms < self._unix_ms()
