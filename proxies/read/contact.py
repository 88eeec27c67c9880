"""Detects that this read proxy cannot reach ZooKeeper, and finds other read proxies that can, to redirect readers.

Without ZooKeeper readers do not learn of new segments, and a tail reader cannot know that it misses records. A session
notices a silent server only after two thirds of its timeout, so a znode is read periodically while there are readers.
If no other proxy reaches ZooKeeper either, readers stay: what they get may be old, but not wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.retrying import FreezeTolerantTimeout
from dlog.errors import DLogError, MetadataUnavailableError, StreamNotFoundError
from dlog.io.metadata import Membership, ProxyInfo
from dlog.model.ids import ProxyId
from dlog.wire.proxy import Stat
from proxies.dialling import Dialler
from proxies.proxy_connection import ProxyConnection

_PAUSE_S = 0.1  # before a read that failed at once is repeated


class MetadataContact:
    """ZooKeeper check of one read proxy.

    better_served_by: by id, the read proxies that reach ZooKeeper while this one does not; else empty.
    """

    def __init__(
        self, metadata: Membership, dialler: Dialler, own: ProxyId, *, every_s: float, patience_s: float
    ) -> None:
        self.better_served_by: dict[ProxyId, ProxyInfo] = {}
        self._metadata = metadata
        self._dialler = dialler
        self._own = own
        self._every_s = every_s
        self._patience_s = patience_s

    async def run(self, a_stream: Callable[[], str | None], on_better: Callable[[], None]) -> None:
        """Check every `every_s`, for ever. a_stream: a stream with a reader here; None: no readers, so no check.
        on_better: called after each check that finds other proxies better."""
        while True:
            await asyncio.sleep(self._every_s)
            stream = a_stream()
            if stream is None or await self._is_reached():
                self.better_served_by = {}
                continue
            self.better_served_by = await self._who_reaches_it(stream)
            if self.better_served_by:
                on_better()

    async def _is_reached(self) -> bool:
        """Whether ZooKeeper replies within `patience_s`, not counting time in which this process was frozen."""
        patience = FreezeTolerantTimeout(self._patience_s)
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self._ask_until_answered(), name="read a znode")
            while not asking.done() and not patience.is_over:
                await patience.wait(asking)
            is_answered = asking.done()
            asking.cancel()
        return is_answered

    async def _ask_until_answered(self) -> None:
        while True:
            try:
                await self._metadata.instance_id()
            except MetadataUnavailableError:
                await asyncio.sleep(_PAUSE_S)
            except DLogError:
                return  # a reply, even if it is an error
            else:
                return

    async def _who_reaches_it(self, stream: str) -> dict[ProxyId, ProxyInfo]:
        """The other read proxies that can read this stream's metadata now."""
        members = self._metadata.known_members().read_proxies.values()
        others = {member.proxy: member for member in members if member.proxy != self._own}
        async with asyncio.TaskGroup() as tasks:
            asked = {
                other: tasks.create_task(
                    self._does_reach_it(info.address, stream), name=f"does {info.address} reach ZooKeeper"
                )
                for other, info in others.items()
            }
        return {other: others[other] for other, task in asked.items() if task.result()}

    async def _does_reach_it(self, address: str, stream: str) -> bool:
        link: ProxyConnection | None = None
        try:
            async with asyncio.timeout(self._patience_s):
                link = await self._dialler.open(address, self._patience_s, ProxyConnection)
                await link.ask(lambda request: Stat(request, stream))
            return True
        except StreamNotFoundError:
            return True
        except (TimeoutError, DLogError):
            return False
        finally:
            if link is not None:
                link.close()
