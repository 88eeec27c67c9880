"""The ports of a read proxy's source, as models: metadata, a segment store, subscriptions to owners.

Invariants:
- A port may answer late, with less than was requested, or with an error; what it answers is true.
- Metadata may be as old as `lag_s`, because a follower of the ensemble answers reads, but never older than what this
  session has seen.
- A watch may fire late or twice; after contact was lost all watches fire.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from actors.owner_feed import OwnerListener
from dlog.errors import ConnectionLostError, OwnedElsewhereError, StreamUnavailableError
from dlog.io.metadata import SessionState, Unsubscribe
from dlog.machine import Missing, Outcome, OutcomeUnknown, Versioned
from dlog.model.ids import EntryId, StreamName
from dlog.stores.contract import (
    Capabilities,
    SegmentNotFoundError,
    SegmentRef,
    StoreUnavailableError,
)
from tests.simulation.cache_stream import Channel, StoredSegment, Word, lac_word
from tests.simulation.plan import FaultKind
from tests.simulation.service.loop import Process

if TYPE_CHECKING:
    from tests.simulation.cache_world import CacheWorld

S = 1_000_000_000


class MetadataPort:
    """A VersionedStore, as far as a source uses one."""

    def __init__(self, world: CacheWorld, process: Process) -> None:
        self._world = world
        self._process = process
        self.seen_at = 0  # time of the newest metadata that was answered
        self.reads = 0  # under way
        self._read_at = 0  # no read shows an older state than the one before it
        self._lost_until = 0
        self._watches: list[Callable[[], None]] = []
        self._contacts: list[Callable[[SessionState], None]] = []

    def lose(self, until: int) -> None:
        """Lose the session; contact returns with a new one."""
        self._lost_until = until
        self._world.tell("the session", "is lost until", f"{until / S - 1000:.6f}")
        self._world.loop.at(until, self._world.loop.world, self.back)

    @property
    def state(self) -> SessionState:
        return SessionState.SUSPENDED if self._is_away else SessionState.CONNECTED

    @property
    def _is_away(self) -> bool:
        return self._world.is_on(FaultKind.META_CUT) or self._world.loop.now < self._lost_until

    async def read(self, key: object) -> Outcome:
        self.reads += 1
        try:
            return await self._read()
        finally:
            self.reads -= 1

    async def _read(self) -> Outcome:
        world = self._world
        await asyncio.sleep(world.latency_s(0.001))
        if self._is_away:
            await asyncio.sleep(0.1 if world.is_on(FaultKind.META_CUT) else 0.0)
            return OutcomeUnknown("out of reach")
        lag = int(world.rng.random() * world.config["lag_s"] * S)
        self._read_at = read_at = max(self._read_at, world.loop.now - lag)
        value = world.stream.value_at(read_at)
        late_s = world.rate(FaultKind.META_DELAY)
        await asyncio.sleep(world.latency_s(0.001) + world.rng.random() * late_s)
        if world.loop.now < self._lost_until or world.rng.random() < world.rate(FaultKind.META_REPLY_LOST):
            return OutcomeUnknown("the reply was lost")
        self.seen_at = max(self.seen_at, read_at)
        world.tell("the source", "reads the list as of", f"{read_at / S - 1000:.6f}")
        return Missing() if value is None else Versioned(value, read_at)

    def watch(self, key: object, callback: Callable[[], None]) -> Unsubscribe:
        self._watches.append(callback)
        return lambda: self._watches.remove(callback) if callback in self._watches else None

    def on_state(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        self._contacts.append(callback)
        return lambda: self._contacts.remove(callback) if callback in self._contacts else None

    def changed(self) -> None:
        """Fire the watches of what was written, sooner or later."""
        world = self._world
        if self._is_away:
            return
        late_s = world.rate(FaultKind.WATCH_LATE)
        times = 2 if world.rng.random() < 0.1 else 1
        for _ in range(times):
            # A watch fires on the follower that the session reads from, so never before a read would show the change.
            delay_s = world.config["lag_s"] + world.latency_s(0.001) + world.rng.random() * late_s
            self._process.post(self._call, delay_ns=int(delay_s * S))

    def back(self) -> None:
        """Restore contact after it was lost."""
        self._process.post(self._come_back, delay_ns=int(self._world.config["lag_s"] * S))

    def _come_back(self) -> None:
        for hear in tuple(self._contacts):
            hear(self.state)
        self._call()

    def _call(self) -> None:
        for callback in tuple(self._watches):
            callback()


class StorePort:
    """A SegmentStore, as far as a source uses one."""

    name = "ledger"

    def __init__(self, world: CacheWorld) -> None:
        self._world = world
        final = world.stream.final
        self.capabilities = Capabilities(visible_is_final=final, entry_bytes_max=1 << 20)

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> ReaderPort:
        await self._world.store_answers()
        return ReaderPort(self._world, self.find(ref.name), sealed_at)

    async def find_tail(self, ref: SegmentRef) -> EntryId:
        await self._world.store_answers()
        return EntryId(self.find(ref.name).confirmed)

    def find(self, name: str) -> StoredSegment:
        place = self._world.stream.stored[name]
        if place.is_gone:
            raise SegmentNotFoundError(f"no such segment: place={name}")
        return place


class ReaderPort:
    """A SegmentReader."""

    def __init__(self, world: CacheWorld, place: StoredSegment, sealed_at: EntryId | None) -> None:
        self._world = world
        self._place = place
        self._end = sealed_at if sealed_at is None or place.end is None else EntryId(place.end)
        self._lac = place.lac_of_store if self._end is None else self._end
        self._is_open = True

    @property
    def last_confirmed(self) -> EntryId:
        return EntryId(self._lac)

    @property
    def end(self) -> EntryId | None:
        return self._end

    def learn_lac(self, lac: EntryId) -> None:
        self._lac = max(self._lac, lac)

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        assert first <= self._lac, f"read above the LAC: place={self._place.name} first={first} lac={self._lac}"
        await self._answers()
        place, rng = self._place, self._world.rng
        last = EntryId(min(last, self._lac, first + rng.choice((0, 1, 100))))
        found: list[bytes] = []
        size = 0
        for entry in range(first, min(last, len(place.payloads) - 1) + 1):
            found.append(place.payloads[entry])
            size += len(found[-1])
            if size >= max_bytes:
                break
        if not found:
            raise StoreUnavailableError(f"not there: place={place.name} entry={first}")
        if rng.random() < self._world.rate(FaultKind.LOSS):
            raise StoreUnavailableError("the answer was lost")
        return found

    async def locate(self, first: EntryId, last: EntryId, least: int, *, by_time: bool) -> tuple[EntryId, EntryId]:
        """Narrow nothing: there is no index of txids and times."""
        return first, last

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId:
        deadline = self._world.loop.now + int(timeout_s * S)
        while True:
            await self._answers()
            self._lac = max(self._lac, self._place.lac_of_store)
            if self._end is None and self._place.end is not None:
                self._end = EntryId(self._place.end)
            if self._lac > known or self._end is not None or self._world.loop.now >= deadline:
                return EntryId(self._lac)
            await asyncio.sleep(min(0.02, timeout_s))

    async def _answers(self) -> None:
        await self._world.store_answers()
        if not self._is_open:
            raise StoreUnavailableError("the reader is closed")
        if self._place.is_gone:
            raise SegmentNotFoundError(f"the segment is gone: place={self._place.name}")

    async def close(self) -> None:
        self._is_open = False


class OwnersPort:
    """An OwnerSubscriptions: links to owners, which may be cut, frozen, deposed or gone."""

    def __init__(self, world: CacheWorld, process: Process) -> None:
        self._world = world
        self._process = process
        self._open: dict[OwnerListener, tuple[str, _Followed]] = {}

    async def follow(
        self, address: str, stream: StreamName, listener: OwnerListener, on_open: Callable[[], None]
    ) -> None:
        world = self._world
        await self._reach()
        owner = world.stream.owners.get(address)
        if owner is None or not (owner.is_alive or owner.is_unaware):
            current = world.stream.owner
            if owner is not None and current is not None and current.is_ready and world.rng.random() < 0.5:
                raise OwnedElsewhereError("owned elsewhere", location=current.address)
            raise ConnectionLostError(f"nobody listens: address={address}")
        if not owner.is_ready and world.rng.random() < 0.5:
            raise StreamUnavailableError("the owner takes the stream over")
        followed = _Followed()
        self._open[listener] = address, followed
        on_open()
        process = self._process

        def say(word: Word) -> None:
            if world.is_on(FaultKind.CUT) or followed.held:
                followed.held.append(word)
            else:
                send(word)

        def send(word: Word) -> None:
            followed.flying += 1  # also while the process is frozen; what was held comes after it
            process.post(deliver, word)

        def deliver(word: Word) -> None:
            followed.deliver(listener, word)
            world.checks.genuine(world.cache)

        def lose() -> None:
            process.post(followed.wake, True)

        channel = Channel(say, lose)
        owner.channels.append(channel)
        for number, last in owner.ended[-1:]:
            world.stream.say(channel, lac_word(number, last, True))
        if owner.segment is not None:
            world.stream.say(channel, lac_word(owner.segment.number, owner.segment.confirmed, False))
        try:
            while not followed.is_lost:
                if world.is_on(FaultKind.CUT) and world.loop.now - world.struck[FaultKind.CUT] > S:
                    break  # pings stay unanswered
                if not world.is_on(FaultKind.CUT):
                    held, followed.held = followed.held, []
                    for word in held:
                        send(word)
                await followed.sleep(0.05)
        finally:
            followed.is_over = True
            if channel in owner.channels:
                owner.channels.remove(channel)
            self._open.pop(listener, None)
        listener.end()
        await asyncio.sleep(world.rng.choice((0.0, 0.0, 0.05, 0.5)))  # it asks others who owns the stream now
        raise ConnectionLostError(f"lost the owner: address={address}")

    async def sync(self, listener: OwnerListener) -> None:
        """Ping the owner; the answer comes after all that was sent before."""
        await self._reach()
        address, followed = self._open.get(listener, ("", None))
        owner = self._world.stream.owners.get(address)
        if followed is None or followed.is_lost or owner is None or not (owner.is_alive or owner.is_unaware):
            raise ConnectionLostError(f"lost the owner: address={address}")
        due = max((channel.heard_at for channel in owner.channels), default=0)
        while followed.held or followed.flying or self._world.loop.now <= due:
            if followed.is_lost or followed.is_over:
                raise ConnectionLostError(f"lost the owner: address={address}")
            await asyncio.sleep(0.001)

    async def _reach(self) -> None:
        """Wait for a round trip, or as long as the link is cut."""
        world = self._world
        await asyncio.sleep(world.latency_s(0.001))
        waited = 0.0
        while world.is_on(FaultKind.CUT):
            await asyncio.sleep(0.02)
            waited += 0.02
            if waited > 0.5:
                raise ConnectionLostError("no answer")


class _Followed:
    """One link that is open."""

    def __init__(self) -> None:
        self.held: list[Word] = []
        self.flying = 0
        self.is_lost = False
        self.is_over = False
        self._wake = asyncio.Event()

    def deliver(self, listener: OwnerListener, word: Word) -> None:
        self.flying -= 1
        if not self.is_lost and not self.is_over:
            word(listener)

    def wake(self, lost: bool) -> None:
        self.is_lost = self.is_lost or lost
        self._wake.set()

    async def sleep(self, seconds: float) -> None:
        """Wait until something happens, or for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return


def draw_latency(rng: random.Random, mean_s: float) -> float:
    """Exponential, with a heavy tail."""
    return rng.expovariate(1.0) * mean_s * (50 if rng.random() < 0.01 else 1)
