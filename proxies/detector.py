"""Detects failed write proxies: pings every registered one all the time, and probes one at once on request.

A suspicion is only a hint: it lets a proxy try a claim, and the claim's compare-and-set and the fence decide. So it may
be wrong without harm, and must be fast.

Invariants:
- a dead process is noticed by its closed connection, a frozen one by missing ping replies; both are confirmed on a new
  connection;
- the time limit follows the peer's earlier reply times (dlog/ownership/adaptive_timeout.py). Up to HELD_UP_MAX waits in
  a row do not count if this process itself was delayed;
- a proxy whose last ping reply says that it lacks ZooKeeper or a store is suspected exactly if this proxy reaches what
  it lacks, whatever it was suspected for before. Only then do the replies to its own pings say that it is suspected;
- replies are awaited beyond the limit: a late one ends the suspicion, unless it says what is lacking, and raises the
  limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from dlog.errors import UnavailableError
from dlog.events import Event, ProxySuspected, ProxyTrusted
from dlog.io.metadata import Membership
from dlog.model.ids import ProxyId
from dlog.options import option
from dlog.ownership.adaptive_timeout import AdaptiveTimeout
from dlog.wire.proxy import Ping
from proxies.dialling import Dialler
from proxies.proxy_connection import ProxyConnection

SUSPECTS_MAX = 1000  # addresses of suspected proxies in one ping reply
HELD_UP_MAX = 4  # waits in a row that do not count because this process was delayed


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorOptions:
    """Ping interval, and the lower and upper bound of the time limit for a reply."""

    ping_every_s: float = option(0.15, sim=(0.01, 0.5))
    ping_timeout_s: float = option(0.3, sim=(0.05, 1.0))
    ping_timeout_max_s: float = option(5.0)


class Detector:
    """Watches the other write proxies.

    reaches: whether this proxy reaches what a peer lacks; called at each ping reply that says so.
    """

    def __init__(
        self,
        me: ProxyId,
        address: str,
        metadata: Membership,
        options: DetectorOptions,
        dialler: Dialler,
        *,
        reaches: Callable[[str], Awaitable[bool]],
        on_event: Callable[[Event], None],
    ) -> None:
        self._me = me
        self._address = address
        self._metadata = metadata
        self._options = options
        self._dialler = dialler
        self._reaches = reaches
        self._on_event = on_event
        self._suspected: set[str] = set()
        self._unfit: set[str] = set()  # addresses of proxies that lack, by their last ping reply, what this one reaches
        self._suspected_by: set[str] = set()  # addresses of proxies whose last ping reply names this one as suspected
        self._limits: dict[str, AdaptiveTimeout] = {}  # by address
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._probes: dict[str, asyncio.Task[bool]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def suspects(self, address: str) -> bool:
        """Whether the proxy at this address is suspected."""
        return address in self._suspected

    @property
    def unfit(self) -> list[str]:
        """Addresses of the proxies suspected for what they lack, in order; at most SUSPECTS_MAX."""
        return sorted(self._unfit)[:SUSPECTS_MAX]

    @property
    def is_suspected(self) -> bool:
        """Whether a proxy that this one does not suspect said in its last ping reply that it suspects this one for what
        it lacks."""
        return not self._suspected_by <= self._suspected

    async def is_gone(self, address: str) -> bool:
        """Probe now: True if there was no reply on two new connections in a row. Calls for one address share a probe.

        Cancelling stops the wait only. The proxy stays suspected until it replies again.
        """
        if address in self._suspected:
            return True
        assert self._tasks is not None, "the detector runs"
        probe = self._probes.get(address)
        if probe is None:
            probe = self._tasks.create_task(self._probe(address), name=f"probe {address}")
            self._probes[address] = probe
            probe.add_done_callback(lambda _: self._probes.pop(address, None))
        await asyncio.wait((probe,))
        return not probe.cancelled() and probe.result()

    async def run(self) -> None:
        """Watch until cancelled."""
        wake = asyncio.Event()
        unsubscribe = self._metadata.on_members(wake.set)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                while True:
                    self._follow_members(self._tasks)
                    await wake.wait()
                    wake.clear()
        finally:
            unsubscribe()

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _follow_members(self, tasks: asyncio.TaskGroup) -> None:
        proxies = self._metadata.known_members().write_proxies
        wanted = {p.address: None for p in proxies.values() if p.proxy != self._me and p.address != self._address}
        for address in [address for address in self._watched if address not in wanted]:
            self._watched.pop(address).cancel()
            self._suspected.discard(address)
            self._unfit.discard(address)
            self._suspected_by.discard(address)
            self._limits.pop(address, None)
        for address in [address for address in wanted if address not in self._watched]:
            self._limits[address] = self._new_limit()
            self._watched[address] = tasks.create_task(self._watch(address), name=f"watch proxy {address}")

    async def _watch(self, address: str) -> None:
        while True:
            try:
                link = await self._wait_open(address)
            except UnavailableError as error:
                if address not in self._suspected and not await self._answers(address):
                    self._suspect(address, error.message)
                await asyncio.sleep(self._options.ping_every_s)
                continue
            try:
                while await self._wait_pong(address, link):  # noqa: ASYNC110 - pings periodically
                    await asyncio.sleep(self._options.ping_every_s)
            finally:
                link.close()

    async def _wait_open(self, address: str) -> ProxyConnection:
        """Connect within ping_timeout_max_s; beyond the time limit the peer is suspected meanwhile."""
        assert self._tasks is not None, "the detector runs"
        work = self._open(address)
        opening = self._tasks.create_task(_settled(work), name=f"connect to proxy {address}")
        opening.add_done_callback(lambda _: work.close())  # needed if cancelled before the first step
        try:
            if not await self._is_in_time(address, opening) and not await self._answers(address):
                self._suspect(address, "no Welcome in time")
            opened = await opening
        except BaseException:
            if (
                not opening.cancel()
                and not opening.cancelled()
                and isinstance(link := opening.result(), ProxyConnection)
            ):
                link.close()
            raise
        if isinstance(opened, UnavailableError):
            raise opened
        return opened

    async def _wait_pong(self, address: str, link: ProxyConnection) -> bool:
        """Whether a ping is replied to within ping_timeout_max_s; beyond the limit the peer is suspected meanwhile."""
        asked = link.ask(Ping)
        if not await self._is_in_time(address, asked):
            if not asked.done() and not await self._answers(address):
                self._suspect(address, "no reply to a ping in time")
            await asyncio.wait((asked,), timeout=self._options.ping_timeout_max_s)
        if not asked.done() or asked.cancelled() or asked.exception() is not None:
            asked.cancel()
            return False
        reply = asked.result()
        fields = reply if isinstance(reply, dict) else {}
        suspects, lacks = fields.get("suspects"), fields.get("lacks")
        if isinstance(suspects, list) and self._address in suspects:
            self._suspected_by.add(address)
        else:
            self._suspected_by.discard(address)
        if lacks and await self._reaches(str(lacks)):
            self._unfit.add(address)
            self._suspect(address, f"it reports that it does not reach: {lacks!s:.20}")
        else:
            self._unfit.discard(address)
            self._trust(address)
        return True

    async def _is_in_time(self, address: str, asked: asyncio.Future[Any]) -> bool:
        """Whether `asked` is done within the peer's limit. A reply adjusts the limit, however late it is."""
        limit = self._limits.get(address) or self._new_limit()  # for a proxy not watched: the default
        now_s = asyncio.get_running_loop().time
        begun_s = now_s()
        asked.add_done_callback(lambda done: limit.answered(now_s() - begun_s) if _is_answer(done) else None)
        for _ in range(1 + HELD_UP_MAX):
            limit_s, waits_s = limit.limit_s, now_s()
            await asyncio.wait((asked,), timeout=limit_s)
            if asked.done():
                return True
            if now_s() - waits_s < 1.5 * limit_s:
                break
        return False

    def _new_limit(self) -> AdaptiveTimeout:
        return AdaptiveTimeout(self._options.ping_timeout_s, self._options.ping_timeout_max_s)

    async def _probe(self, address: str) -> bool:
        for _ in range(2):
            if await self._answers(address):
                return False
        self._suspect(address, "no reply to a probe on request")
        return True

    async def _answers(self, address: str) -> bool:
        """Whether the peer replies on a new connection in time."""
        assert self._tasks is not None, "the detector runs"
        asked = self._tasks.create_task(self._ask(address), name=f"ask proxy {address}")
        try:
            return await self._is_in_time(address, asked) and asked.result()
        finally:
            asked.cancel()

    async def _ask(self, address: str) -> bool:
        try:
            link = await self._open(address)
        except UnavailableError:
            return False
        try:
            return await link.ping(self._options.ping_timeout_max_s)
        finally:
            link.close()

    async def _open(self, address: str) -> ProxyConnection:
        return await self._dialler.open(address, self._options.ping_timeout_max_s, ProxyConnection)

    def _suspect(self, address: str, reason: str) -> None:
        if address not in self._suspected:
            self._suspected.add(address)
            self._on_event(ProxySuspected(address, reason))

    def _trust(self, address: str) -> None:
        if address in self._suspected:
            self._suspected.discard(address)
            self._on_event(ProxyTrusted(address))


async def _settled(opening: Coroutine[Any, Any, ProxyConnection]) -> ProxyConnection | UnavailableError:
    """Return the error instead of raising it, so that it does not end the task group."""
    try:
        return await opening
    except UnavailableError as error:
        return error


def _is_answer(done: asyncio.Future[Any]) -> bool:
    if done.cancelled() or done.exception() is not None:
        return False
    return done.result() is not False and not isinstance(done.result(), UnavailableError)
