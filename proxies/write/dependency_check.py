"""Detects that this write proxy cannot reach ZooKeeper or the bookies, so that other proxies take its streams.

A proxy that is cut off reports it to the other write proxies in its replies to their pings, and redirects its clients
to them. The proxy that a client asks next claims the stream, as if this proxy were gone.

Invariants:
- bookies are lacking if requests wait, no stream at all has made progress since the last check (confirmed an entry or
  became ready), and no registered bookie accepts a connection. Slow bookies, or none registered, do not count;
- ZooKeeper is lacking if it does not respond, and a take-over, or one stream with pending requests, makes no progress.
  Owners go on without ZooKeeper, except in the moments in which they roll to the next segment; only the streams that
  make no progress are given up;
- a process whose own checks come late reports no missing ZooKeeper: its delay looks the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from dlog.io import local_transport
from dlog.io.metadata import BookieInfo, Membership

LOOK_S = 0.25
STUCK_S = 0.75  # no progress for so long although requests wait
CONNECT_S = 0.5
PUNCTUAL_MIN = 4  # checks in a row that must have come in time; they take longer than STUCK_S
ASKED_MAX = 8  # most bookies tried in one check

METADATA, BOOKIES = "metadata", "bookies"


class Streams(Protocol):
    """The streams of this proxy (proxies/write/owned_streams.py)."""

    def has_waiting(self) -> bool:
        """Whether a request to an owner here is pending, or a take-over is under way."""
        ...

    def has_stuck(self, for_s: float) -> bool:
        """Whether a take-over, or one stream with pending requests, made no progress for `for_s` seconds."""
        ...

    def give_up_stuck(self, for_s: float) -> None:
        """Give up the take-overs and the streams with pending requests that made no progress for so long, and redirect
        their clients."""
        ...


class DependencyCheck:
    """Finds out what one write proxy lacks. has_peer: whether another proxy could serve in its place."""

    def __init__(self, metadata: Membership, streams: Streams, has_peer: Callable[[], bool]) -> None:
        self.lacks = ""  # METADATA, BOOKIES or ""
        self.moves = 0  # incremented by others on any stream's progress
        self._metadata = metadata
        self._streams = streams
        self._has_peer = has_peer
        self._seen = -1  # `moves` at the last check
        self._punctual = 0  # checks in a row that came in time
        self._stuck_since_s: float | None = None

    async def run(self) -> None:
        """Check every LOOK_S, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            await asyncio.sleep(LOOK_S)
            self._punctual = self._punctual + 1 if loop.time() - begun_s < 2 * LOOK_S else 0
            # peers know by now what this proxy lacks, and do not send clients back
            if self.lacks:
                self._streams.give_up_stuck(STUCK_S if self.lacks == METADATA else 0.0)
            self.lacks = await self._look()

    async def reaches(self, what: str) -> bool:
        """Whether this proxy reaches what a peer lacks."""
        if what == METADATA:
            return self._metadata.unresponsive_s() < STUCK_S
        return what == BOOKIES and not self.lacks and await self._reaches_bookies()

    async def _look(self) -> str:
        if self.lacks == METADATA and self._metadata.unresponsive_s() >= STUCK_S:
            return METADATA
        if self.lacks == BOOKIES:
            return "" if await self._reaches_bookies() else BOOKIES
        has_stuck = self._streams.has_stuck(STUCK_S) and self._punctual >= PUNCTUAL_MIN
        if has_stuck and self._has_peer() and self._metadata.unresponsive_s() >= STUCK_S:
            return METADATA
        if not self._is_stuck():
            return ""
        self._stuck_since_s = None  # if bookies are reached, check again only if it lasts
        return "" if await self._reaches_bookies() else BOOKIES

    def _is_stuck(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        has_moved, self._seen = self._seen != self.moves, self.moves
        if has_moved or not self._has_peer() or not self._streams.has_waiting():
            self._stuck_since_s = None
            return False
        if self._stuck_since_s is None:
            self._stuck_since_s = now_s
        return now_s - self._stuck_since_s >= STUCK_S

    async def _reaches_bookies(self) -> bool:
        """Whether a bookie accepts a connection; True also if none is registered or this process was delayed."""
        bookies = list(self._metadata.known_members().writable.values())[:ASKED_MAX]
        if not bookies:
            return True
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        async with asyncio.TaskGroup() as tasks:
            dials = [tasks.create_task(_dial(bookie), name=f"reach {bookie.bookie}") for bookie in bookies]
            reached = False
            for dial in asyncio.as_completed(dials):
                if reached := await dial:
                    break
            for task in dials:
                task.cancel()
        return reached or loop.time() - begun_s > 1.5 * CONNECT_S


async def _dial(bookie: BookieInfo) -> bool:
    connection = _Opened()
    try:
        async with asyncio.timeout(CONNECT_S):
            await local_transport.connect(lambda: connection, bookie.host, bookie.port)
    except (OSError, UnicodeError, OverflowError):
        return False
    else:
        return True
    finally:
        connection.close()


class _Opened(asyncio.Protocol):
    """A connection that is only opened and closed."""

    def __init__(self) -> None:
        self._transport: asyncio.BaseTransport | None = None
        self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._is_closed:
            transport.close()

    def close(self) -> None:
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()
