"""Is that proxy alive? Asked of every registered write proxy all the time, and of one at once when somebody doubts it.

The law of this room: a suspicion is a hint and never more. It starts a claim; the claim's compare-and-set and the fence
decide. So it may be wrong without harm, and must be fast: a process that died is noticed by its closed connection, a
frozen one by unanswered pings, each confirmed once by a fresh connection (so that our own pause accuses nobody).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dlog.errors import UnavailableError
from dlog.events import Event, ProxySuspected, ProxyTrusted
from dlog.io.metadata import Metadata
from dlog.model.ids import ProxyId
from dlog.options import option
from proxies.dialling import Dialler
from proxies.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorOptions:
    """How often peers are asked, and how long an answer may take."""

    ping_every_s: float = option(0.15, sim=(0.01, 0.5))
    ping_timeout_s: float = option(0.3, sim=(0.05, 1.0))


class Detector:
    """Watches the other write proxies.

    on_suspect: called once per suspicion with the address that does not answer.
    """

    def __init__(
        self,
        me: ProxyId,
        address: str,
        metadata: Metadata,
        options: DetectorOptions,
        dialler: Dialler,
        *,
        on_suspect: Callable[[str], None],
        tell: Callable[[Event], None],
    ) -> None:
        self._me = me
        self._address = address
        self._metadata = metadata
        self._options = options
        self._dialler = dialler
        self._on_suspect = on_suspect
        self._tell = tell
        self._suspected: set[str] = set()
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._probes: dict[str, asyncio.Task[bool]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def suspects(self, address: str) -> bool:
        """Whether the proxy at this address did not answer of late."""
        return address in self._suspected

    async def is_gone(self, address: str) -> bool:
        """Ask now: True when two fresh connections in a row went unanswered. Askers of one address share a probe.

        Cancelling stops the wait only. The verdict is remembered until the proxy answers again.
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
        for address in [address for address in wanted if address not in self._watched]:
            self._watched[address] = tasks.create_task(self._watch(address), name=f"watch proxy {address}")

    async def _watch(self, address: str) -> None:
        while True:
            try:
                link = await self._open(address)
            except UnavailableError as error:
                if address not in self._suspected and not await self._answers(address):
                    self._suspect(address, error.message)
                await asyncio.sleep(self._options.ping_every_s)
                continue
            self._trust(address)
            try:
                await link.watch(self._options.ping_every_s, self._options.ping_timeout_s)
            finally:
                link.close()

    async def _probe(self, address: str) -> bool:
        for _ in range(2):
            if await self._answers(address):
                return False
        self._suspect(address, "asked because of a doubt, no answer")
        return True

    async def _answers(self, address: str) -> bool:
        try:
            link = await self._open(address)
        except UnavailableError:
            return False
        try:
            return await link.ping(self._options.ping_timeout_s)
        finally:
            link.close()

    async def _open(self, address: str) -> Link:
        return await self._dialler.open(address, self._options.ping_timeout_s, Link)

    def _suspect(self, address: str, reason: str) -> None:
        if address not in self._suspected:
            self._suspected.add(address)
            self._tell(ProxySuspected(address, reason))
            self._on_suspect(address)

    def _trust(self, address: str) -> None:
        if address in self._suspected:
            self._suspected.discard(address)
            self._tell(ProxyTrusted(address))
