"""Detects that this write proxy cannot reach ZooKeeper or a segment store, so that other proxies take its streams.

A proxy that is cut off reports what it lacks in its replies to the pings of the other write proxies. A proxy that
reaches this suspects the one that is cut off, and says so in its own ping replies. Then the proxy that is cut off
redirects its clients, and the proxy that a client asks next claims the stream, as if the first one were gone.

Invariants:
- all bookies are lacking if requests wait, no stream at all has made progress for STUCK_S (confirmed an entry or became
  ready), and no registered bookie accepts a connection. Slow bookies are not lacking, nor are bookies if none is
  registered;
- another store is lacking if a stream that needs it makes no progress and the store's own check fails. Bookies are
  lacking for one stream if fewer of them accept a connection than its ensemble has, though as many are registered;
- ZooKeeper is lacking if it does not respond, and a take-over, or one stream with pending requests, makes no progress.
  Owners go on without ZooKeeper, except in the moments in which they roll to the next segment;
- only streams that make no progress and need what is lacking, or may need it, are given up, and only while a peer says
  that it reaches what is lacking: if no proxy reaches it, all keep their streams;
- a proxy that lacks anything itself reaches, for its peers, no store. What it reaches it checks again every STUCK_S;
- a process whose own checks come late reports no missing ZooKeeper or store: its own delay looks like a missing reply.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from dlog.errors import DLogError
from dlog.io import local_transport
from dlog.io.metadata import BookieInfo, Membership
from dlog.model.segment import LEDGER, StoreSettings
from dlog.stores.contract import SegmentStore
from dlog.stores.ledger import LEDGER_SETTINGS
from proxies.write.store_check import checks_of

LOOK_S = 0.25
STUCK_S = 0.75  # no progress for so long although requests wait
CONNECT_S = 0.5
STORE_S = 1.0  # for the checks of a store other than the one of ledgers
PUNCTUAL_MIN = 4  # checks in a row that must have come in time; they take longer than STUCK_S
ASKED_MAX = 8  # bookies tried at once; more only if too few of them accept
KEPT_S = 4.0  # for so long the result of a check stands in for a later one that is in doubt

METADATA, BOOKIES = "metadata", "bookies"  # what is lacking: also "bookies:N" (fewer than N accept), or a store's name


class Stuck(Protocol):
    """A take-over or an owner that makes no progress."""

    @property
    def stores_in_use(self) -> Collection[tuple[str, StoreSettings]]:
        """The stores that the stream needs, each with its settings; empty until known."""
        ...


class Streams(Protocol):
    """The streams of this proxy (proxies/write/owned_streams.py)."""

    def has_waiting(self) -> bool:
        """Whether a request to an owner here is pending, or a take-over is under way."""
        ...

    def stuck(self, for_s: float) -> Collection[Stuck]:
        """The take-overs, and the streams with pending requests, that made no progress for `for_s` seconds."""
        ...

    def give_up_stuck(self, for_s: float, is_hit: Callable[[Stuck], bool]) -> None:
        """Give up, of the take-overs and the streams with pending requests that made no progress for so long, those
        that `is_hit` names, and redirect their clients."""
        ...


class DependencyCheck:
    """Finds out what one write proxy lacks.

    stores: of this proxy, by name. has_peer: whether there is another write proxy that is not suspected. is_suspected:
    whether another proxy says that it suspects this one for what it lacks.
    """

    def __init__(
        self,
        metadata: Membership,
        streams: Streams,
        stores: Mapping[str, SegmentStore],
        *,
        has_peer: Callable[[], bool],
        is_suspected: Callable[[], bool],
    ) -> None:
        self.lacks = ""  # METADATA, BOOKIES, "bookies:N", the name of a store, or ""
        self.moves = 0  # incremented by others on any stream's progress
        self._metadata = metadata
        self._streams = streams
        self._stores = stores
        self._has_peer = has_peer
        self._is_suspected = is_suspected
        self._seen = -1  # `moves` at the last check
        self._punctual = 0  # checks in a row that came in time
        self._stuck_since_s: float | None = None
        self._next_check_s = 0.0  # when the stores of streams without progress are checked again
        self._reached: dict[str, tuple[float, bool]] = {}  # what peers lack: when it was checked, and whether reached

    @property
    def is_unfit(self) -> bool:
        """Whether this proxy lacks something that another one reaches, so that it is to give streams up."""
        return bool(self.lacks) and self._is_suspected()

    async def run(self) -> None:
        """Check every LOOK_S, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            await asyncio.sleep(LOOK_S)
            self._punctual = self._punctual + 1 if loop.time() - begun_s < 2 * LOOK_S else 0
            if self.is_unfit:
                self._streams.give_up_stuck(STUCK_S, self._is_hit)
            self.lacks = await self._look()

    async def reaches(self, what: str) -> bool:
        """Whether this proxy reaches what a peer lacks; False for a store while this one lacks anything itself.

        A store is checked every STUCK_S at most, however many ask. If this process was delayed, the last result holds.
        """
        if what == METADATA:
            return self._metadata.unresponsive_s() < STUCK_S
        if self.lacks:
            return False
        now_s = asyncio.get_running_loop().time()
        self._reached = {of: one for of, one in self._reached.items() if now_s - one[0] < KEPT_S}
        checked_s, is_reached = self._reached.get(what, (-math.inf, False))
        if now_s - checked_s >= STUCK_S:
            self._reached[what] = now_s, is_reached  # others that ask meanwhile do not check, too
            is_reached = await self._reaches(what, if_in_doubt=is_reached)
            self._reached[what] = now_s, is_reached
        return is_reached and not self.lacks

    def _is_hit(self, stream: Stuck) -> bool:
        """Whether the stream needs what is lacking, or may need it: all streams need ZooKeeper, and the stores of a
        take-over are not known at first."""
        if self.lacks == METADATA or not stream.stores_in_use:
            return True
        store = LEDGER if self.lacks.partition(":")[0] == BOOKIES else self.lacks
        return any(name == store for name, _ in stream.stores_in_use)

    async def _look(self) -> str:
        stuck, has_stopped = self._streams.stuck(STUCK_S), self._has_stopped()  # always: regular calls show them
        if self.lacks == METADATA and self._metadata.unresponsive_s() >= STUCK_S:
            return METADATA
        if self.lacks and self.lacks != METADATA:
            return "" if await self._reaches(self.lacks) else self.lacks
        if self._punctual < PUNCTUAL_MIN or not self._has_peer():
            stuck = ()
        if stuck and self._metadata.unresponsive_s() >= STUCK_S:
            return METADATA
        if has_stopped:
            self._stuck_since_s = None  # if bookies are reached, check again only if it lasts
            if not await self._reaches(BOOKIES):
                return BOOKIES
        now_s = asyncio.get_running_loop().time()
        if stuck and now_s >= self._next_check_s:
            self._next_check_s = now_s + STUCK_S
            for what in self._needs(stuck):
                if not await self._reaches(what):
                    return what
        return ""

    def _has_stopped(self) -> bool:
        """Whether requests wait and no stream has made progress for STUCK_S."""
        now_s = asyncio.get_running_loop().time()
        has_moved, self._seen = self._seen != self.moves, self.moves
        if has_moved or not self._has_peer() or not self._streams.has_waiting():
            self._stuck_since_s = None
            return False
        if self._stuck_since_s is None:
            self._stuck_since_s = now_s
        return now_s - self._stuck_since_s >= STUCK_S

    def _needs(self, stuck: Collection[Stuck]) -> list[str]:
        """The stores that these streams need: "bookies:N" for the store of ledgers, else the name of the store."""
        in_use = {one for stream in stuck for one in stream.stores_in_use}
        found = {name for name, _ in in_use if name != LEDGER and name in self._stores}
        ensembles = [
            dict(LEDGER_SETTINGS.complete_stored(dict(given)))["ensemble"] for name, given in in_use if name == LEDGER
        ]
        if ensembles:
            registered = len(self._metadata.known_members().writable)  # segments are opened on fewer if there are fewer
            found.add(f"{BOOKIES}:{min(max(ensembles), registered)}")
        return sorted(found)

    async def _reaches(self, what: str, *, if_in_doubt: bool = True) -> bool:
        """Whether this proxy reaches a store: "bookies:N" is N bookies, BOOKIES one of them, else it is the store's
        name. if_in_doubt: the result if fewer bookies are registered, or this process was delayed."""
        kind, _, number = what.partition(":")
        if kind == BOOKIES:
            return await self._reaches_bookies(int(number) if number.isdecimal() else 1, if_in_doubt)
        return what in self._stores and await self._reaches_store(self._stores[what], if_in_doubt)

    async def _reaches_bookies(self, enough: int, if_in_doubt: bool) -> bool:
        """Whether `enough` registered bookies accept a connection."""
        bookies = list(self._metadata.known_members().writable.values())
        if len(bookies) < max(1, enough):
            return if_in_doubt
        loop = asyncio.get_running_loop()
        reached, asked = 0, max(ASKED_MAX, enough)
        for batch in (bookies[:asked], bookies[asked:]):
            begun_s = loop.time()
            async with asyncio.TaskGroup() as tasks:
                dials = [tasks.create_task(_dial(bookie), name=f"reach {bookie.bookie}") for bookie in batch]
                for dial in asyncio.as_completed(dials):
                    reached += await dial
                    if reached >= enough:
                        break
                for task in dials:
                    task.cancel()
            if reached >= enough:
                return True
            if loop.time() - begun_s > 1.5 * CONNECT_S:
                return if_in_doubt
        return False

    async def _reaches_store(self, store: SegmentStore, if_in_doubt: bool) -> bool:
        """Whether those checks of the store find no trouble without which it acknowledges no append."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            async with asyncio.timeout(STORE_S):
                for of in checks_of(store):
                    if of.is_needed:
                        await of.check()
        except (DLogError, TimeoutError):
            return if_in_doubt and loop.time() - begun_s > 1.5 * STORE_S
        return True


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
