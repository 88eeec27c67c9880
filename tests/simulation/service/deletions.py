"""Work that deletes streams and lets segments expire, and the checks of what write proxies' rounds of upkeep delete.

On in plans with `deletes`; in other plans nothing here runs. Names of streams that are deleted begin with `short-`,
those of streams with a retention with `kept-`. A deletion is requested once: its client may die together with all write
proxies, so that only a round of upkeep (proxies/write/upkeep.py) can finish it.

Invariants:
- D3: once the faults are over, metadata has neither the name nor a ledger of a stream that was marked as deleted.
- E1: no segment of a stream loses its ledger before the stream's retention has passed since it was closed.
- E3: once the faults are over, a stream loses its expired segments, with or without an owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dlog.client.client import Client
from dlog.errors import DLogError
from dlog.io.clock import unix_ms
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Missing, Versioned
from dlog.model.ids import LedgerId, StreamName
from dlog.model.segment import StreamKey, StreamMetadata
from tests.simulation.kernel import S, Violation
from tests.simulation.service import workload
from tests.simulation.service.loop import Process
from tests.simulation.service.nodes import NAMESPACE, ZOOKEEPER

if TYPE_CHECKING:
    from tests.simulation.service.world import World

DELETER, KEEPER = "deleter", "keeper"
SHORT, KEPT = "short-", "kept-"
MARK = "deletion.marked"  # a stream of SHORT is marked as deleted in metadata; faults are bound to it
KEPT_STREAMS = 3
DONE_S = 60  # after healing, until upkeep has done all that is due
ROUNDING_S = 0.01  # ages are in whole milliseconds
LATE_MS = 100  # an expired segment is overdue so long after its time


class Deletions:
    """The work of two machines that create, fill and delete streams, and the checks of its results."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_on = bool(world.plan.config.get("deletes"))
        self._retention_s = float(world.plan.config.get("kept_s", 0.0))
        self._names = 0  # given so far
        self._closed: dict[LedgerId, int] = {}  # since when a ledger is closed, in ns
        self._marked: set[str] = set()

    @property
    def works(self) -> dict[str, Callable[[Process], Awaitable[None]]]:
        """The work of each machine, by machine name."""
        return {DELETER: self._delete, KEEPER: self._keep} if self.is_on else {}

    # ---- the work ----------------------------------------------------------------------------------------------------

    async def _delete(self, process: Process) -> None:
        """Create a stream, use it, request its deletion once, and go on to the next."""
        rng, work = process.rng("delete"), self._world.work
        async with workload.connect(work, patient=False) as client:
            while not work.is_over():
                await asyncio.sleep(rng.expovariate(1.0) * work.pace_s)
                name = self._name(SHORT)
                try:
                    await client.create(name, **self._world.settings)
                    await _fill(client, name, rng.randint(1, 3))
                    await asyncio.sleep(rng.choice((0.0, 0.5)))
                    await client.delete(name)
                except DLogError:
                    work.reached["deletion.failed"] += 1
                else:
                    work.reached["deletion.answered"] += 1

    async def _keep(self, process: Process) -> None:
        """Create streams with a retention, fill them, and leave them. Some have an owner then, which may die."""
        rng, work = process.rng("keep"), self._world.work
        settings = {**self._world.settings, "retention_s": self._retention_s}
        async with workload.connect(work, patient=False) as client:
            for _ in range(KEPT_STREAMS):
                if work.is_over():
                    return
                name = self._name(KEPT)
                try:
                    await client.create(name, **settings)
                    await _fill(client, name, rng.randint(2, 4))
                    if rng.random() < 0.5:
                        await client.append(name, b"last")
                except DLogError:
                    work.reached["kept.failed"] += 1
                await asyncio.sleep(rng.expovariate(1.0))

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    # ---- events of streams ------------------------------------------------------------------------------------------

    def marked(self, stream: str) -> None:
        """Note that a stream is marked as deleted."""
        self._marked.add(stream)
        if stream.startswith(SHORT):
            self._world.reach(MARK)

    def closed(self, ledger: LedgerId) -> None:
        """Note that metadata says that a ledger is closed and not empty."""
        self._closed.setdefault(ledger, self._world.loop.now)

    def deleted(self, ledger: LedgerId) -> None:
        """Check E1 when the metadata of a ledger is deleted."""
        stream = self._world.monitor.stream_of(ledger)
        if not stream.startswith(KEPT):
            return
        closed_ns = self._closed.get(ledger)
        if closed_ns is None:
            return  # it was empty
        self._world.reached["expired"] += 1
        age_s = (self._world.loop.now - closed_ns) / S
        if age_s < self._retention_s - ROUNDING_S and self._world.loop.breach is None:
            text = f"ledger {ledger} of {stream} is deleted {age_s:.3f} s after it was closed"
            self._world.loop.breach = Violation("E1", text)

    # ---- after healing -----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Check D3 and E3. Raises Violation."""
        if self.is_on:
            self._world.ask("operator", self._wait_done, within_s=2 * DONE_S, what="streams are looked at")

    async def _wait_done(self, _process: Process) -> None:
        loop = self._world.loop
        async with await ZooKeeperMetadata.connect(ZOOKEEPER, NAMESPACE) as metadata:
            for _ in range(DONE_S):
                left = await self._left(metadata)
                if left is None:
                    return
                await asyncio.sleep(1.0)
        if loop.breach is None:
            loop.breach = left

    async def _left(self, metadata: ZooKeeperMetadata) -> Violation | None:
        """Describe what upkeep has not done yet."""
        named: dict[str, set[int]] = {}
        for number in range(1, self._names + 1):
            for name in (f"{SHORT}{number}", f"{KEPT}{number}"):
                found = await metadata.read(StreamKey(StreamName(name)))
                if isinstance(found, Missing) and found.left is not None:
                    return Violation("D3", f"{name} is marked as deleted and still there")
                if isinstance(found, Versioned):
                    if overdue := _overdue(found.value):
                        return Violation("E3", f"{name} keeps what has expired: {overdue}")
                    named[name] = {int(segment.name) for segment in found.value.listed}
        for (stream, segment), (place, _) in self._world.monitor.places.items():
            ledger = LedgerId(int(place))
            if not stream.startswith((SHORT, KEPT)) or ledger not in self._world.monitor.ledgers:
                continue
            if stream in self._marked:
                return Violation("D3", f"ledger {ledger} of segment {segment} is left of {stream}, which is deleted")
            if ledger not in named.get(stream, ()):
                return Violation("E3", f"ledger {ledger} of segment {segment} is left, and {stream} does not name it")
        return None


def _overdue(value: StreamMetadata) -> str:
    """Describe what should have been deleted by now; "" if nothing."""
    if value.truncated:
        return f"truncated segments {[segment.number for segment in value.truncated]}"
    now_ms = unix_ms()
    for segment in value.segments[:-1]:
        expires_ms = value.expires_unix_ms(segment)
        if expires_ms is not None and expires_ms + LATE_MS < now_ms:
            return f"segment {segment.number}"
    return ""


async def _fill(client: Client, name: str, segments: int) -> None:
    """Write this many segments; the stream has no owner afterwards."""
    for number in range(segments):
        await client.append(name, b"%d" % number * 100)
        await client.hand_over(name)
