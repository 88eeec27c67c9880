"""Keeps the free space of all writable bookies' disks known, for placement by weight (dlog/ledger/disk_weights.py)."""

from __future__ import annotations

import asyncio
import random
import ssl

from dlog.errors import ConnectionLostError, ProtocolError
from dlog.io.bookie_questions import read_space
from dlog.io.metadata import BookieInfo, Membership
from dlog.ledger.disk_weights import DiskWeights
from dlog.wire.bookie import Code

TIMEOUT_S = 5.0
AT_ONCE = 8  # bookies asked at the same time
PAUSE_S = 1.0  # after a change of the registrations, so that bookies that start together are asked together


class BookieSpaces:
    """Asks each writable bookie every `ask_s` how much space it has, and new ones soon after they are registered.

    A bookie that does not report it is chosen as if its disk were as empty as the median's.
    """

    def __init__(
        self,
        members: Membership,
        weights: DiskWeights,
        ask_s: float,
        rng: random.Random,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._members = members
        self._weights = weights
        self._ask_s = ask_s
        self._rng = rng
        self._changed = asyncio.Event()
        self._asked: frozenset[str] = frozenset()  # since they were registered

    async def run(self) -> None:
        """Ask for ever; cancelling is safe."""
        unsubscribe = self._members.on_members(self._changed.set)
        try:
            while True:
                await self._ask(only_new=False)
                loop = asyncio.get_running_loop()
                due_s = loop.time() + self._ask_s * self._rng.uniform(0.8, 1.2)
                while await self._wait_changed(due_s - loop.time()):
                    await asyncio.sleep(PAUSE_S)
                    await self._ask(only_new=True)
        finally:
            unsubscribe()

    async def _wait_changed(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _ask(self, *, only_new: bool) -> None:
        self._changed.clear()
        writable = self._members.known_members().writable
        self._weights.keep(writable)
        asked = {b: info for b, info in writable.items() if not only_new or b not in self._asked}
        self._asked = frozenset(writable)
        limit = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            asking = {
                bookie: tasks.create_task(_free_bytes(info, limit, self._tls), name=f"space of {bookie}")
                for bookie, info in asked.items()
            }
        reported = {bookie: free for bookie, task in asking.items() if (free := task.result()) is not None}
        self._weights.note_round(asked.keys(), reported)


async def _free_bytes(info: BookieInfo, limit: asyncio.Semaphore, tls: ssl.SSLContext | None) -> int | None:
    """None: the bookie did not report it."""
    async with limit:
        try:
            reply = await read_space(info.host, info.port, TIMEOUT_S, tls)
        except (OSError, ConnectionLostError, ProtocolError):  # a timeout is an OSError too
            return None
        return reply.free_bytes if reply.code is Code.OK else None
