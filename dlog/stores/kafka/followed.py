"""The regions that this process reads: one follower each, which all readers of the region share.

Invariants:
- One read of a region's tail is under way at a time; all readers that wait for new entries share it.
- Readers of older entries fetch one after the other, and share what they came by (dlog/stores/kafka/passed_entries.py).
- A follower that failed is not used again; the next caller gets another one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from dlog.region.follower import RegionFollower
from dlog.region.messages import CatchUp, ReadingStart, ReadOn, Topic
from dlog.region.names import region_number, topic_names
from dlog.region.options import FollowerOptions
from dlog.region.reading import EntryScan, find_seeks
from dlog.region.state import RegionState
from dlog.region.tables import TableMeta
from dlog.stores.kafka.options import KafkaStoreOptions
from dlog.stores.kafka.passed_entries import PassedEntries
from dlog.stores.kafka.ports import RegionActor, StartActor
from dlog.wire.region import NONCE_BYTES


@dataclass(slots=True)
class ReadBytes:
    """fetched: bytes of records that were read from topics. delivered: bytes of entries that readers got."""

    fetched: int = 0
    delivered: int = 0


class FollowedRegion:
    """One region. users: readers and calls that use it now. passed: entries that scans came by. counts: those of the
    process."""

    def __init__(
        self,
        name: str,
        data_topic: str,
        follower: RegionFollower,
        actor: RegionActor,
        passed: PassedEntries,
        counts: ReadBytes,
    ) -> None:
        self.name = name
        self.number = region_number(name)
        self.data_topic = data_topic
        self.actor = actor
        self.users = 0
        self.left_at_s = 0.0  # when the last user left
        self.passed = passed
        self.counts = counts
        self._counted_bytes = 0  # of what the follower read
        self._follower = follower
        self._turn: asyncio.Future[bool] | None = None  # the read under way, or the last one
        self._turn_at_s = 0.0
        self._news = asyncio.Event()  # replaced each time it is set

    def __enter__(self) -> FollowedRegion:
        self.users += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """One user less. The newest entries are kept for users only."""
        self.users -= 1
        self.left_at_s = asyncio.get_running_loop().time()
        if not self.users:
            self._follower.recent.clear()

    @property
    def is_loaded(self) -> bool:
        """Whether anything is known."""
        return self._follower.state is not None

    @property
    def state(self) -> RegionState:
        """What is known. Call `ask` before."""
        assert self._follower.state is not None, "a request was answered before"
        return self._follower.state

    def table(self, table: int) -> TableMeta | None:
        """What is known of a table; None: it was not begun, or is dropped."""
        return self.state.meta.tables.get(table)

    def has_ended(self, table: int) -> bool:
        return table in self.state.rule.ended

    def recent(self, table: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        """See RecentEntries.find."""
        return self._follower.recent.find(table, first, last, bytes_max)

    def scan(self, table: int, first: int) -> EntryScan:
        """A scan of one table's entries, from a sequence on up to those that are known now. The first one must be
        known.

        It begins at most MAP_EVERY records of the table, or MAP_EVERY_BYTES, before that one, and passes over records
        of other tables where the mapping shows that they are SEEK_BYTES or more. If another scan came by an entry
        nearer to the first one, it begins there, and takes all records: readers of the other tables want them, too.
        """
        state = self.state
        meta = state.meta.known(table)
        ends = {table: (first, meta.next_seq_num, meta.current_high_watermark)}
        floor, place = meta.floor(first), self.passed.place(table, first)
        seeks = find_seeks(state, ends) if floor >= place else None
        start = ReadingStart(max(floor, place), state.offset, ends, (), state.rule, seeks=seeks)
        return EntryScan(self.number, start, skips=True)

    async def ask(self, request: Any) -> Any:
        """Ask the follower. Raises what the topics raise, DamagedError, UnsupportedVersionError, ClosedError."""
        try:
            return await self.actor.ask(request)
        finally:
            self._count()

    def _count(self) -> None:
        self.counts.fetched += self._follower.read_bytes - self._counted_bytes
        self._counted_bytes = self._follower.read_bytes

    async def catch_up(self) -> None:
        """Know everything that the topic has now."""
        await self.ask(CatchUp())
        self.wake()

    async def read_on(self, age_s: float) -> None:
        """Read what follows, unless somebody did that less than age_s ago."""
        turn, now_s = self._turn, asyncio.get_running_loop().time()
        if turn is None or (turn.done() and now_s - self._turn_at_s >= age_s):
            turn = self._turn = self.actor.ask(ReadOn())
            self._turn_at_s = now_s
            turn.add_done_callback(self._turn_done)
        if not turn.done():
            await asyncio.wait((turn,))  # cancelling one reader does not cancel the read of the others
            turn.result()

    def _turn_done(self, turn: asyncio.Future[bool]) -> None:
        self._count()
        if not turn.cancelled() and (turn.exception() is not None or turn.result()):
            self.wake()

    def wake(self) -> None:
        """Wake all readers that wait for new entries."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def news(self) -> asyncio.Event:
        """An event that is set at the next new entries."""
        return self._news


async def wait_set(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until the event is set, for some time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


class FollowedRegions:
    """The followers of one process. The state of regions without users is kept for the last few."""

    def __init__(self, start: StartActor, options: KafkaStoreOptions, rng: Random) -> None:
        self._start = start
        self._options = options
        self._rng = rng
        self._regions: dict[str, FollowedRegion] = {}  # the one used last is the last
        self._stopping: list[RegionActor] = []
        self.counts = ReadBytes()

    def __len__(self) -> int:
        return len(self._regions)

    def get(self, namespace: str, name: str) -> FollowedRegion:
        """The follower of a region. Use it as a context manager, or count yourself in `users`. One that nobody has used
        for a while is replaced: a snapshot is read sooner than all that was appended since."""
        found = self._regions.get(name)
        if found is not None and not found.users:
            is_old = asyncio.get_running_loop().time() - found.left_at_s > self._options.reload_after_s
            if is_old and found.is_loaded:
                self._forget(found)
        found = self._regions.pop(name, None)
        if found is None or found.actor.ended:
            options = FollowerOptions(recent_bytes=self._options.recent_bytes)
            machine = RegionFollower(region_number(name), partial(self._rng.randbytes, NONCE_BYTES), options)
            actor = self._start(namespace, name, machine)
            data_topic = topic_names(namespace, name)[Topic.DATA]
            passed = PassedEntries(self._options.recent_bytes)
            found = FollowedRegion(name, data_topic, machine, actor, passed, self.counts)
        self._regions[name] = found
        idle = [one for one in self._regions.values() if not one.users and one is not found]
        for one in idle[: max(0, len(idle) - self._options.regions_max)]:
            self._forget(one)
        return found

    def forget(self, name: str) -> None:
        """The region is deleted."""
        found = self._regions.get(name)
        if found is not None:
            self._forget(found)

    def _forget(self, region: FollowedRegion) -> None:
        del self._regions[region.name]
        region.actor.stop()
        region.wake()
        self._stopping = [actor for actor in self._stopping if not actor.ended]
        self._stopping.append(region.actor)

    async def close(self) -> None:
        for region in tuple(self._regions.values()):
            self._forget(region)
        for actor in self._stopping:
            await actor.wait_ended()
