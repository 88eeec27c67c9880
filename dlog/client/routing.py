"""Finds stream owners, and proxies that forward to them.

Invariants:
- finding makes one attempt and reports. Only its callers (producers, readers, asking.py for all else) retry, each with
  one back-off and all with one budget, so that retries of nested layers never multiply.

A client behind a load balancer may not reach the proxy that a redirect names. A reachable proxy then forwards its
requests, over a connection opened for this (`hops` > 0). Nothing waits for the unreachable address; when it becomes
reachable, the work moves to a direct connection.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from dlog.client.backoff import Backoff, RetryBudget
from dlog.client.connection import Connection, WriterPort
from dlog.client.connection_pool import ConnectionPool
from dlog.client.options import ClientOptions
from dlog.errors import DLogError, OwnedElsewhereError, UnavailableError
from dlog.wire import proxy

OWNERS_MAX = 10_000  # remembered owners; beyond it the oldest are forgotten, and asked for again when needed
WRITE = "write"
READ = "read"


class Router:
    """The last known owner of each stream, the connections of one client, and its retry budget.

    spawn: runs a coroutine as a named task that ends with the client.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        options: ClientOptions,
        rng: random.Random,
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self.options = options
        self.rng = rng
        self.spawn = spawn
        self.pool = ConnectionPool(addresses, options, spawn)
        self.owners: dict[str, str] = {}  # stream -> last known address of its owner
        # `_move_to_direct` runs: work is forwarded, and moves to its owners once reachable
        self._is_moving_to_direct = False
        self._now_s = asyncio.get_running_loop().time
        self._budget = RetryBudget(options.retry_burst, options.retries_per_s, self._now_s())

    # ---- owners ---------------------------------------------------------------------------------------------------

    def owner_is(self, stream: str, address: str) -> None:
        """Remember the owner that a redirect named."""
        self.pool.learn([address])
        self.owners.pop(stream, None)
        self.owners[stream] = address
        if len(self.owners) > OWNERS_MAX:
            del self.owners[next(iter(self.owners))]

    def forget(self, stream: str, address: str) -> None:
        """Forget that the owner is at `address`."""
        if self.owners.get(stream) == address:
            del self.owners[stream]

    def forget_stream(self, stream: str) -> None:
        """Forget the owner of a deleted stream: another one may own the next stream of that name."""
        self.owners.pop(stream, None)

    async def owner(self, stream: str, suspect: str | None = None) -> Connection:
        """A connection to the stream's owner: the remembered one, or the one that any proxy names.

        suspect: an address that just failed; proxies check it and take the stream over if it is gone. Makes one
        attempt: raises UnavailableError, StreamUnavailableError or the proxy's error.
        """
        remembered = self.owners.get(stream)
        if remembered is not None and remembered != suspect:
            try:
                return await self._remembered(remembered)
            except UnavailableError:
                self.forget(stream, remembered)
                suspect = remembered
        connection = await self.pool.connect_any(WRITE, (suspect,) if suspect else ())
        try:
            region = connection.region
            result = await connection.ask(lambda request: proxy.GetOwner(request, stream, suspect, region))
            location = str(result.get("location") or connection.address)
            self.pool.learn((str(a) for a in result.get("proxies", ())), result.get("regions"))
        except OwnedElsewhereError as error:
            if error.location is None:
                raise
            location = error.location
        self.owner_is(stream, location)
        return await self.connect_or_forward(location, WRITE)

    async def _remembered(self, address: str) -> Connection:
        """A connection to a remembered owner, or to a forwarding proxy if the owner is unreachable or does not answer
        in time. Raises UnavailableError if the attempt failed, so that the caller looks for another owner."""
        hopeful = self.pool.may_try(address)
        direct = await self.pool.connect_within_timeout(address, at_once=self._is_moving_to_direct)
        if direct is not None:
            return direct
        if hopeful and not self.pool.is_trying(address):
            raise UnavailableError(f"not reachable: address={address}", outcome_unknown=False)
        forwarding = await self.connect_forwarding(WRITE)
        return forwarding if forwarding is not None else await self.pool.connect(address)

    # ---- forwarding -----------------------------------------------------------------------------------------------

    async def connect_or_forward(self, address: str, role: str) -> Connection:
        """A connection to `address`, or, if it is unreachable, to a proxy that forwards requests to it.

        Raises UnavailableError or ProtocolError of `address` if no proxy forwards.
        """
        at_once = self._is_moving_to_direct and role == WRITE  # `_move_to_direct` moves it once it is reachable
        direct = await self.pool.connect_within_timeout(address, at_once=at_once)
        if direct is not None:
            return direct
        forwarding = await self.connect_forwarding(role)
        return forwarding if forwarding is not None else await self.pool.connect(address)

    async def connect_forwarding(self, role: str) -> Connection | None:
        """A connection whose proxy forwards requests; None if there is none. Its writers move to direct connections
        once their owners are reachable."""
        found = await self.pool.connect_forwarding(role)
        if found is not None and not self._is_moving_to_direct:
            self._is_moving_to_direct = True
            self.spawn(self._move_to_direct(), "dlog client looks for direct ways")
        return found

    async def _move_to_direct(self) -> None:
        """Move forwarded writers to direct connections, once their owners are reachable. Ends when no work is
        forwarded."""
        try:
            while forwarding := self.pool.forwarding():
                await asyncio.sleep(self.options.direct_retry_s)
                for connection in forwarding:
                    for writer in connection.writers:
                        await self._move_writer(connection, writer)
        finally:
            self._is_moving_to_direct = False

    async def _move_writer(self, connection: Connection, writer: WriterPort[Any]) -> None:
        stream = writer.stream
        remembered = self.owners.get(stream)
        if remembered is not None and not self.pool.may_try(remembered):
            return
        try:
            result = await connection.ask(lambda request: proxy.GetOwner(request, stream, None))
            location = str(result.get("location") or "")
            direct = await self.pool.connect_within_timeout(location) if location else None
        except DLogError:
            return  # the next round tries again
        if direct is not None and writer in connection.writers:
            self.owner_is(stream, location)
            writer.on_moved(connection, location)

    # ---- retrying -------------------------------------------------------------------------------------------------

    def pause_s(self, backoff: Backoff) -> float:
        """How long to wait before the next attempt: the caller's back-off, and the client's retry budget.

        The first failure in a row is free of both: when a proxy dies, all of its streams fail once.
        """
        delay_s = backoff.next_s()
        return max(delay_s, self._budget.take(self._now_s())) if delay_s else 0.0

    async def reach(self) -> None:
        """Retry until any proxy answers."""
        backoff = Backoff(self.options.backoff_first_s, self.options.backoff_max_s, self.rng)
        while True:
            try:
                await self.pool.connect_any(WRITE)
                return
            except UnavailableError:
                await asyncio.sleep(self.pause_s(backoff))
