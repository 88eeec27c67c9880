"""The regions that this process writes. Each belongs to it for its whole life; no other process opens one as its owner.

A region ends when it has many bytes or tables: the tables in it are written on, and the next segments begin in another.

Invariants:
- A table is named to its caller only after the record that begins it counts.
- A number of a table is used once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from dlog.errors import ClosedError, DLogError
from dlog.region.messages import AwaitWrites, BeginTable, OpenRegion, SaveSnapshot, Topic
from dlog.region.names import region_number, topic_names
from dlog.region.options import RegionOptions
from dlog.region.owner import RegionFencedError, RegionOwner
from dlog.region.topics import TopicNotFoundError, Topics
from dlog.stores.kafka.locations import TableLocation
from dlog.stores.kafka.options import KafkaStoreOptions
from dlog.stores.kafka.ports import RegionActor, StartActor
from dlog.wire.region import NONCE_BYTES

ATTEMPTS = 3  # to begin a table, each in a new region: another process may take an empty one for left over
CLOSE_S = 5.0  # how long closing waits for what is under way
QUEUE_BYTES_MAX = 1 << 50  # appends are bounded where they are admitted


class OwnedRegion:
    """One region. paths: of its topics. opened_s: by the clock of the event loop. tables: those that a writer writes
    now. is_closing: no more begin."""

    def __init__(
        self, name: str, paths: Mapping[Topic, str], owner: RegionOwner, actor: RegionActor, opened_s: float
    ) -> None:
        self.name = name
        self.paths = paths
        self.actor = actor
        self.opened_s = opened_s
        self.tables = 0
        self.bytes = 0
        self.begun = 0
        self.is_closing = False
        self._owner = owner

    @property
    def has_ended(self) -> bool:
        return self.actor.ended or self._owner.is_deposed

    def submit(self, request: Any, size: int, sink: Callable[[Any], None]) -> None:
        """Ask the owner, with a request that has some bytes. Raises ClosedError."""
        self.bytes += size
        self.actor.submit(request, sink)


class OwnedRegions:
    """The regions of one process. check_address: raises if new topics would not lie where the others are. on_closed:
    called with the name of each region that is closed."""

    def __init__(
        self,
        topics: Topics,
        start: StartActor,
        options: KafkaStoreOptions,
        rng: Random,
        *,
        batch_bytes_max: int,
        check_address: Callable[[], Awaitable[None]],
        spawn: Callable[[Any], object],
        on_closed: Callable[[str], None],
    ) -> None:
        self._topics = topics
        self._start = start
        self._options = options
        self._rng = rng
        self._region_options = RegionOptions(batch_bytes_max=batch_bytes_max, queue_bytes_max=QUEUE_BYTES_MAX)
        self._check_address = check_address
        self._spawn = spawn
        self._opening = asyncio.Lock()
        self._current: OwnedRegion | None = None
        self._regions: dict[str, OwnedRegion] = {}
        self._on_closed = on_closed

    def __len__(self) -> int:
        return len(self._regions)

    def is_owned(self, name: str) -> bool:
        """Whether this process writes a region, or may begin tables there."""
        found = self._regions.get(name)
        return found is not None and not found.has_ended

    async def prepare(self, namespace: str) -> None:
        """Open the region in which the next table begins, if none is open. One without tables is replaced before other
        processes take it for left over. Raises what the topics raise."""
        async with self._opening:
            current = self._current
            if current is not None and not current.begun:
                age_s = asyncio.get_running_loop().time() - current.opened_s
                if age_s >= self._options.sweep_s / 2:  # two sweeps of another process see it before it is deleted
                    self._leave(current)
                    self._may_close(current)
            await self._open(namespace)

    async def begin_table(self, namespace: str, payload: bytes) -> tuple[OwnedRegion, TableLocation]:
        """Begin a table; the caller calls `table_ended` once. Raises what the topics raise, RegionFencedError."""
        attempt = 1
        while True:
            async with self._opening:
                region = await self._open(namespace)
            region.begun += 1
            region.tables += 1
            table = region.begun
            try:
                offset: int = await region.actor.ask(BeginTable(table, payload))
            except (RegionFencedError, TopicNotFoundError, ClosedError):
                self._leave(region)
                self.table_ended(region)
                if attempt == ATTEMPTS:
                    raise
                attempt += 1
                continue
            except BaseException:  # also a cancellation: the table may have begun, and an audit finds it
                self.table_ended(region)
                raise
            return region, TableLocation(region.name, table, offset)

    def table_ended(self, region: OwnedRegion) -> None:
        """Nobody writes this table any more."""
        region.tables -= 1
        self._may_close(region)

    async def _open(self, namespace: str) -> OwnedRegion:
        """The region in which tables begin now."""
        current, options = self._current, self._options
        if current is not None:
            is_full = current.bytes >= options.region_bytes or current.begun >= options.region_tables
            if not is_full and not current.has_ended:
                return current
            self._leave(current)
            self._may_close(current)
        await self._check_address()  # the disk of a directory may be unmounted by now
        name = f"{self._rng.getrandbits(64):016x}"
        paths = topic_names(namespace, name)
        for topic in (Topic.META, Topic.DATA):  # a region has a data topic, so that is made last
            await self._topics.create(paths[topic])
            await self._topics.check(paths[topic])
        owner = RegionOwner(region_number(name), partial(self._rng.randbytes, NONCE_BYTES), self._region_options)
        actor = self._start(namespace, name, owner)
        region = OwnedRegion(name, paths, owner, actor, asyncio.get_running_loop().time())
        try:
            await region.actor.ask(OpenRegion())
        except BaseException:  # also a cancellation: the next sweep deletes the topics
            region.actor.stop()
            raise
        self._regions[name] = self._current = region
        return region

    def _leave(self, region: OwnedRegion) -> None:
        """Begin no more tables in a region."""
        region.is_closing = True
        if self._current is region:
            self._current = None

    def _may_close(self, region: OwnedRegion) -> None:
        if region.is_closing and not region.tables and self._regions.get(region.name) is region:
            self._spawn(self._close(region))

    async def _close(self, region: OwnedRegion) -> None:
        """End a region in this process, with a snapshot so that its readers have little to scan."""
        if not region.has_ended:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await region.actor.ask(AwaitWrites())
                    await region.actor.ask(SaveSnapshot())
            except (DLogError, TimeoutError):
                pass  # they scan more
        region.actor.stop()
        await region.actor.wait_ended()
        if self._regions.pop(region.name, None) is not None:
            self._on_closed(region.name)

    async def close(self) -> None:
        """End all regions in this process, and delete those in which no table began."""
        self._current = None
        for region in tuple(self._regions.values()):
            await self._close(region)
            if not region.begun:
                await self._delete(region)

    async def _delete(self, region: OwnedRegion) -> None:
        """Delete the topics of a region in which no table began: only its owner begins tables, and it has ended."""
        try:
            async with asyncio.timeout(CLOSE_S):
                for path in (region.paths[Topic.DATA], region.paths[Topic.META]):
                    await self._topics.delete(path)
        except (DLogError, TimeoutError):
            pass  # the sweep of another process deletes them
