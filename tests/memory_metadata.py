"""The metadata ports in memory, for tests of one process.

Invariants:
- Versions, compare-and-set and watches behave as on ZooKeeper.
- Results of most calls come one turn of the event loop later, so that callers cannot rely on immediate ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from dlog.errors import CookieError
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.metadata import (
    AbsentStream,
    BookieInfo,
    CookieCheck,
    Members,
    ProxyInfo,
    SessionState,
    StreamHead,
    Unsubscribe,
)
from dlog.machine import Conflict, Key, Missing, Outcome, OutcomeUnknown, Versioned
from dlog.model.ids import BookieId, LedgerId, ProxyId, StreamName
from dlog.model.ledger import LedgerKey
from dlog.model.segment import StreamKey, StreamMetadata


class MemoryMetadata:
    """Implements Metadata. Several clients may share one, as they share a cluster."""

    state = SessionState.CONNECTED

    def __init__(self, instance: str = "memory", *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.drop_replies = 0  # this many of the next writes take place but return OutcomeUnknown
        self._instance = instance
        self._clock = clock
        self._values: dict[Key, Versioned] = {}
        self._versions = 0
        self._ledgers = 0
        self._deletions = 0  # number of deleted streams
        self._members = Members({}, {}, {}, {})
        self._cookies: dict[BookieId, Versioned] = {}
        self._marks: dict[BookieId, Versioned] = {}
        self._watches: dict[Key, list[Callable[[], None]]] = {}
        self._on_members: list[Callable[[], None]] = []

    def on_state(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        """Do nothing: the state never changes."""
        return _nothing

    def on_unreadable(self, callback: Callable[[str], None]) -> Unsubscribe:
        """Do nothing: everything may be read."""
        return _nothing

    def unresponsive_s(self) -> float:
        """Always 0."""
        return 0.0

    async def read(self, key: Key) -> Outcome:
        await asyncio.sleep(0)
        found = self._values.get(key)
        if found is None or (isinstance(found.value, StreamMetadata) and found.value.owner.deleted):
            return Missing(left=found)
        return found

    async def compare_and_set(self, key: Key, value: object, version: object) -> Outcome:
        await asyncio.sleep(0)
        now = self._values.get(key)
        if isinstance(version, AbsentStream):
            if version.deletions != self._deletions:
                return Missing()
            version = None
        if now is None and version is not None:
            return Missing()
        if now is not None and now.version != version:
            return Conflict()
        self._versions += 1
        if isinstance(value, StreamMetadata):
            incarnation = now.value.incarnation if now is not None else value.incarnation or str(self._versions)
            value = replace(value, incarnation=incarnation).stamped(self._clock.unix_ms())
            self._deletions += value.owner.deleted
        written = self._values[key] = Versioned(value, self._versions)
        self._tell(key)
        if self.drop_replies:
            self.drop_replies -= 1
            return OutcomeUnknown("the reply was dropped")
        return written

    async def delete(self, key: LedgerKey) -> None:
        await asyncio.sleep(0)
        if self._values.pop(key, None) is not None:
            self._tell(key)

    async def remove(self, stream: StreamName, incarnation: str) -> None:
        await asyncio.sleep(0)
        key = StreamKey(stream)
        now = self._values.get(key)
        if now is not None and now.value.incarnation == incarnation and now.value.owner.deleted:
            del self._values[key]
            self._tell(key)

    async def deletions(self) -> int:
        await asyncio.sleep(0)
        return self._deletions

    def watch(self, key: Key, callback: Callable[[], None]) -> Unsubscribe:
        watchers = self._watches.setdefault(key, [])
        watchers.append(callback)
        return lambda: watchers.remove(callback) if callback in watchers else None

    async def new_ledger_id(self, ahead: int = 1) -> LedgerId:
        await asyncio.sleep(0)
        self._ledgers += ahead
        return LedgerId(self._ledgers - 1)

    async def ledgers(self) -> AsyncIterator[LedgerId]:
        for ledger in sorted(key.ledger for key in self._values if isinstance(key, LedgerKey)):
            yield ledger

    async def streams(self) -> list[StreamName]:
        return sorted(key.stream for key in self._values if isinstance(key, StreamKey))

    async def stream_heads(self, streams: Sequence[StreamName]) -> list[StreamHead | None]:
        await asyncio.sleep(0)
        found = (self._values.get(StreamKey(stream)) for stream in streams)
        return [
            StreamHead(f.value.owner, f.value.settings.retention_s, bool(f.value.truncated)) if f is not None else None
            for f in found
        ]

    async def instance_id(self) -> str:
        return self._instance

    async def members(self) -> Members:
        await asyncio.sleep(0)
        return self._members

    def known_members(self) -> Members:
        return self._members

    def on_members(self, callback: Callable[[], None]) -> Unsubscribe:
        self._on_members.append(callback)
        return lambda: self._on_members.remove(callback) if callback in self._on_members else None

    async def register_bookie(
        self, info: BookieInfo, *, readonly: bool = False, known: CookieCheck | None = None
    ) -> None:
        if known is not None:
            await known()
        writable = {b: i for b, i in self._members.writable.items() if b != info.bookie}
        resting = {b: i for b, i in self._members.readonly.items() if b != info.bookie}
        (resting if readonly else writable)[info.bookie] = info
        self._set_members(replace(self._members, writable=writable, readonly=resting))

    async def unregister_bookie(self, bookie: BookieId) -> None:
        writable = {b: i for b, i in self._members.writable.items() if b != bookie}
        resting = {b: i for b, i in self._members.readonly.items() if b != bookie}
        self._set_members(replace(self._members, writable=writable, readonly=resting))

    async def register_proxy(self, info: ProxyInfo) -> None:
        if info.role == "write":
            proxies = {**self._members.write_proxies, info.proxy: info}
            self._set_members(replace(self._members, write_proxies=proxies))
        else:
            proxies = {**self._members.read_proxies, info.proxy: info}
            self._set_members(replace(self._members, read_proxies=proxies))

    async def unregister_proxy(self, proxy: ProxyId) -> None:
        writers = {p: i for p, i in self._members.write_proxies.items() if p != proxy}
        readers = {p: i for p, i in self._members.read_proxies.items() if p != proxy}
        self._set_members(replace(self._members, write_proxies=writers, read_proxies=readers))

    async def read_cookie(self, bookie: BookieId) -> Versioned | Missing:
        return self._cookies.get(bookie) or Missing()

    async def write_cookie(self, bookie: BookieId, text: str, version: object) -> None:
        now = self._cookies.get(bookie)
        if (now.version if now is not None else None) != version:
            raise CookieError(f"the cookie was changed by another process, start again: bookie={bookie}")
        self._versions += 1
        self._cookies[bookie] = Versioned(text, self._versions)

    async def read_gc_mark(self, bookie: BookieId) -> Versioned | Missing:
        await asyncio.sleep(0)
        return self._marks.get(bookie) or Missing()

    async def write_gc_mark(self, bookie: BookieId, text: str, version: object) -> Outcome:
        await asyncio.sleep(0)
        now = self._marks.get(bookie)
        if (now.version if now is not None else None) != version:
            return Conflict() if now is not None else Missing()
        self._versions += 1
        written = self._marks[bookie] = Versioned(text, self._versions)
        return written

    async def close(self) -> None:
        """Do nothing."""

    def _set_members(self, members: Members) -> None:
        self._members = members
        for callback in list(self._on_members):
            callback()

    def _tell(self, key: Key) -> None:
        for callback in list(self._watches.get(key, ())):
            callback()


def _nothing() -> None:
    """Do nothing."""
