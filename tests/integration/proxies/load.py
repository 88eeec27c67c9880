"""A load of numbered records, and the check of what is read back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Unpack

import dlog
from dlog.model.dlsn import DLSN

PATIENCE_S = 180.0


@dataclass
class Load:
    """Appends `record(0)`, `record(1)`, ... until it is stopped; keeps what was acknowledged and when."""

    client: dlog.Client
    stream: str
    size: int = 200
    window: int = 64
    acked: dict[int, DLSN] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    gaps_s: list[float] = field(default_factory=list)
    _count: int = 0
    _stopping: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Keep `window` appends under way until `stop`."""
        room = asyncio.Semaphore(self.window)
        async with asyncio.TaskGroup() as tasks:
            while not self._stopping:
                await room.acquire()
                append = tasks.create_task(self._append(self._count), name=f"append {self._count}")
                append.add_done_callback(lambda _: room.release())
                self._count += 1

    def stop(self) -> None:
        self._stopping = True

    async def acknowledged(self, more: int) -> None:
        """Wait until this many more are acknowledged than now."""
        wanted = len(self.acked) + more
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acked) < wanted:
                self._news.clear()
                await self._news.wait()

    @property
    def gap_s(self) -> float:
        """The longest time between two acknowledgements."""
        return max(self.gaps_s, default=0.0)

    async def check(self) -> list[bytes]:
        """Read everything back: each acknowledged record at its position, once, in order, and nothing else."""
        found: dict[int, DLSN] = {}
        numbers: list[int] = []
        payloads: list[bytes] = []
        async for record in self.client.read(self.stream):
            number = int(record.payload[:12])
            assert record.payload == self.record(number), "a record is as it was sent"
            assert number not in found, f"record {number} is there twice: {found[number]} and {record.dlsn}"
            found[number] = record.dlsn
            numbers.append(number)
            payloads.append(record.payload)
        lost = self.acked.keys() - found.keys()
        assert not lost, f"{len(lost)} acknowledged records are lost, first {min(lost)}"
        misplaced = [n for n, dlsn in self.acked.items() if found[n] != dlsn and dlsn.segment > 0]
        assert not misplaced, f"record {misplaced[0]} is at {found[misplaced[0]]}, said {self.acked[misplaced[0]]}"
        invented = found.keys() - self.acked.keys() - self.unknown
        assert not invented, f"{len(invented)} records were not acknowledged and not unknown"
        assert numbers == sorted(numbers), "records are in the order they were appended"
        return payloads

    def record(self, number: int) -> bytes:
        return b"%012d" % number + b"." * self.size

    async def _append(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            place = await self.client.append(self.stream, self.record(number))
        except dlog.DLogError as error:
            if error.outcome_unknown:
                self.unknown.add(number)
            raise
        now_s = loop.time()
        if self.acked:
            self.gaps_s.append(now_s - self._last_s)
        self._last_s = now_s
        self.acked[number] = place
        self._news.set()

    _last_s: float = 0.0


@asynccontextmanager
async def loaded(target: str, **settings: Unpack[dlog.SettingsChanges]) -> AsyncIterator[Load]:
    """A stream under load; all acknowledged records are looked for at the end, through the read proxies."""
    async with dlog.connect(target) as client:
        await client.create("orders", **settings)
        load = Load(client, "orders")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(), name="load")
            await load.acknowledged(200)
            yield load
            await load.acknowledged(200)
            load.stop()
        await load.check()
        assert not load.unknown
