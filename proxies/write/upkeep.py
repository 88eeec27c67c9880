"""Maintains streams without an owner: applies retention, completes deletions and uploads.

A round goes over the namespace, a hundred streams at a time, and reads two small znodes of each. It completes the
removal of deleted streams. A stream with truncated or expired segments is taken over, and its owner deletes them.

A proxy maintains the streams whose newest claim names it but which it does not own, because it has restarted: to all
others it is their owner. Of the streams without a claim by a registered proxy it maintains those that the ring assigns
to it. So one proxy maintains a stream, or two while members change.

Invariants:
- nothing is deleted because of what a round read: a deletion names the stream's incarnation, and segments are deleted
  by an owner under a claim;
- a stream claimed by another registered proxy is left alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from dlog.errors import DLogError
from dlog.io.metadata import StreamHead
from dlog.machine import Versioned
from dlog.model.ids import ProxyId, StreamName
from dlog.model.segment import Owner, StreamKey, StreamMetadata
from proxies.streams import ProxyMetadata

STREAMS_AT_ONCE = 100
PAUSE_S = 0.5  # after each hundred: a round takes a small share of a CPU, and 4 minutes for 50,000 streams
TAKE_S = 10.0  # for one take-over


class Owners(Protocol):
    """The streams owned by this process (proxies/write/owned_streams.py)."""

    def find(self, stream: str) -> object | None: ...

    async def ask(self, stream: str, request: None) -> object: ...


class Upkeep:
    """Upkeep by one write proxy. preferred: address of the proxy that maintains a stream; None: this one. finish:
    removes a stream marked as deleted. upload: has uploaded what this proxy's last process left in its write-ahead
    log. unix_ms: the wall clock. every_s: between rounds; 1 to 1.5 times this."""

    def __init__(
        self,
        me: ProxyId,
        metadata: ProxyMetadata,
        owners: Owners,
        *,
        preferred: Callable[[str], str | None],
        finish: Callable[[StreamName], Awaitable[object]],
        upload: Callable[[], Awaitable[object]],
        unix_ms: Callable[[], int],
        every_s: float,
        rng: random.Random,
    ) -> None:
        self._me = me
        self._metadata = metadata
        self._owners = owners
        self._preferred = preferred
        self._finish = finish
        self._upload = upload
        self._unix_ms = unix_ms
        self._every_s = every_s
        self._rng = rng

    async def run(self) -> None:
        """Make rounds until cancelled."""
        while True:
            await asyncio.sleep(self._every_s * self._rng.uniform(1.0, 1.5))
            with suppress(DLogError):  # ZooKeeper or a store is out of reach: the next round tries again
                await self.look()
            with suppress(DLogError):
                await self._upload()

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
        """Whether this proxy maintains the stream. owner: its newest claim."""
        if self._owners.find(name) is not None:
            return False
        if owner.epoch and not owner.released and not owner.deleted:
            if owner.proxy == self._me:
                return True
            if owner.proxy in self._metadata.known_members().write_proxies:
                return False
        return self._preferred(name) is None

    async def _look_after(self, name: StreamName, head: StreamHead) -> None:
        """Maintain one stream; errors are ignored, the next round tries again."""
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
