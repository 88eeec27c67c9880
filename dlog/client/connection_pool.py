"""The connections of one client: opens them when needed, and chooses among proxies.

Invariants:
- one attempt is made and reported; callers retry (routing.py, asking.py);
- at most one connection is being opened for each address and number of hops.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

from dlog.client.address_book import AddressBook
from dlog.client.connection import Connection
from dlog.client.options import ClientOptions
from dlog.client.safe_log import SafeLog
from dlog.errors import ClosedError, DLogError, OverCapacityError, ProtocolError, UnavailableError

_log = SafeLog(logging.getLogger(__name__))

_NEXT = "is `dlog up` running, and is the address right?"


class ConnectionPool:
    """Connections to the proxies of a cluster.

    spawn: runs a coroutine as a named task that ends with the client.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        options: ClientOptions,
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self.addresses = AddressBook(addresses, options.direct_rest_s, options.region)
        self._options = options
        self._spawn = spawn
        self._connections: dict[tuple[str, int], Connection] = {}  # by address and hops
        self._opening: dict[tuple[str, int], asyncio.Lock] = {}
        self._tries: dict[str, tuple[asyncio.Future[Connection | None], float]] = {}  # attempts: result, wait until
        self._closed = False
        self._now_s = asyncio.get_running_loop().time

    # ---- one address ----------------------------------------------------------------------------------------------

    async def connect(self, address: str, *, hops: int = 0) -> Connection:
        """The open connection to this address; opens it if needed. Raises UnavailableError, ProtocolError."""
        lock = self._opening.setdefault((address, hops), asyncio.Lock())
        async with lock:
            connection = self._open_at(address, hops)
            if connection is not None:
                return connection
            self._check_open()
            try:
                connection = await Connection.open(address, self._options, hops=hops)
            except DLogError as error:
                _log.debug("not connected: %s", error)
                self.addresses.on_failed(address, self._now_s())
                raise
            if self._closed:
                connection.close()
                self._check_open()
            self.addresses.on_connected(address, connection.role)
            self._connections[address, hops] = connection
            _log.debug("connected: address=%s role=%s hops=%d", address, connection.role, hops)
            return connection

    async def connect_within_timeout(self, address: str, *, at_once: bool = False) -> Connection | None:
        """As `connect`, but wait `direct_patience_s` at most, and not at all for an address that failed lately.
        Concurrent callers share one attempt, which goes on in the background. Returns None if there is no connection.

        at_once: start the attempt but do not wait for it.
        """
        connection = self._open_at(address)
        if connection is not None:
            return connection
        now_s = self._now_s()
        trying = self._tries.get(address)
        if trying is None:
            if not self.addresses.may_try(address, now_s):
                return None
            self._check_open()
            attempt: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
            trying = self._tries[address] = attempt, now_s + self._options.direct_patience_s
            self._spawn(self._try(address, attempt), f"dlog client tries {address}")
        attempt, until_s = trying
        if not at_once:
            await asyncio.wait((attempt,), timeout=max(0.0, until_s - now_s))
        return attempt.result() if attempt.done() else None

    async def _try(self, address: str, attempt: asyncio.Future[Connection | None]) -> None:
        try:
            attempt.set_result(await self.connect(address))
        except DLogError:
            attempt.set_result(None)
        finally:
            del self._tries[address]

    def is_trying(self, address: str) -> bool:
        """Whether an attempt of `connect_within_timeout` is running."""
        return address in self._tries

    def may_try(self, address: str) -> bool:
        """Whether no pause after a failure is running for the address."""
        return self.addresses.may_try(address, self._now_s())

    def _open_at(self, address: str, hops: int = 0) -> Connection | None:
        connection = self._connections.get((address, hops))
        if connection is None or not connection.is_open or connection.is_draining:
            return None
        return connection

    def _is_connected(self, address: str) -> bool:
        return self._open_at(address) is not None

    # ---- any address ----------------------------------------------------------------------------------------------

    def candidates(self, role: str, avoid: Collection[str] = ()) -> list[str]:
        """Addresses to try for this role, the most promising first."""
        return self.addresses.ranked(role, avoid, self._is_connected, self._now_s())

    async def connect_any(self, role: str, avoid: Collection[str] = ()) -> Connection:
        """A connection to the most promising address that answers.

        Raises UnavailableError, which names all addresses tried; OverCapacityError if one had too many connections. If
        all refuse for good, raises the error of one, such as UnsupportedVersionError.
        """
        tried: list[str] = []
        refused: list[DLogError] = []
        wrong: list[Connection] = []
        full: OverCapacityError | None = None

        async def suits(address: str) -> Connection | None:
            nonlocal full
            if self.addresses.is_stranger(address):
                connection = await self.connect_within_timeout(address)
            else:
                try:
                    connection = await self.connect(address)
                except OverCapacityError as error:
                    full = error
                    raise
            if connection is None:
                tried.append(f"not reachable: address={address}")
            elif not connection.role.startswith(role):
                wrong.append(connection)
                return None
            return connection

        found = await self._first(self.candidates(role, avoid), suits, tried, refused)
        if found is None and wrong:
            found = wrong[0]
        if found is None and refused and not tried:
            raise refused[0]
        tried += (error.message for error in refused)
        if found is None and full is not None:
            raise OverCapacityError(f"all proxies have too many connections; tried=[{'; '.join(tried)}]")
        if found is None:
            raise UnavailableError(f"no proxy answers; {_NEXT} tried=[{'; '.join(tried)}]", outcome_unknown=False)
        return found

    async def connect_forwarding(self, role: str) -> Connection | None:
        """A connection whose proxy forwards requests, to an address that is connected or configured; None if none."""

        async def suits(address: str) -> Connection | None:
            connection = await self.connect(address, hops=1)
            return connection if connection.is_forwarding else None

        likely = [a for a in self.candidates(role) if self._is_connected(a) or a in self.addresses.configured]
        return await self._first(likely, suits, [], [])

    async def _first(
        self,
        addresses: Iterable[str],
        suits: Callable[[str], Coroutine[Any, Any, Connection | None]],
        tried: list[str],
        refused: list[DLogError],
    ) -> Connection | None:
        """The first suitable connection. After `direct_patience_s` without an answer the next address is tried
        concurrently (as in RFC 8305); attempts still pending when one succeeds are cancelled.

        tried: the errors of unreachable addresses are appended to it. refused: those that no retry helps against.
        """

        async def attempt(address: str) -> Connection | DLogError | None:
            try:
                return await suits(address)
            except DLogError as error:
                return error

        found: Connection | None = None
        left = deque(addresses)
        async with asyncio.TaskGroup() as tries:
            running: dict[asyncio.Task[Connection | DLogError | None], str] = {}
            while found is None and (left or running):
                if left:
                    address = left.popleft()
                    running[tries.create_task(attempt(address), name=f"dlog client asks {address}")] = address
                patience_s = self._options.direct_patience_s if left else None
                done, _ = await asyncio.wait(running, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task in done]:  # in the order of the attempts
                    del running[task]
                    match task.result():
                        case UnavailableError() | ProtocolError() as error:
                            tried.append(error.message)
                        case DLogError() as error:
                            refused.append(error)
                        case answer:
                            found = found or answer
            for task, address in running.items():
                self.addresses.on_slow(address, self._now_s())
                task.cancel()
        return found

    # ---- all ------------------------------------------------------------------------------------------------------

    def learn(self, addresses: Iterable[str], regions: Mapping[str, str] | None = None) -> None:
        """Remember proxy addresses that a server named, and the regions of some. If there are too many, forget the
        oldest that have no connection, and none is being opened there."""
        if not self.addresses.learn(addresses, regions or {}):
            return
        busy = {address for (address, _), connection in self._connections.items() if connection.is_open}
        busy.update(address for (address, _), lock in self._opening.items() if lock.locked())
        gone = self.addresses.forget_surplus(busy | self._tries.keys())
        for by_key in (self._connections, self._opening):
            for key in [key for key in by_key if key[0] in gone]:
                del by_key[key]

    def forwarding(self) -> list[Connection]:
        """The open connections over which a proxy may forward requests."""
        return [connection for (_, hops), connection in self._connections.items() if hops and connection.is_open]

    def close(self) -> None:
        """Close every connection; all that wait there get ConnectionLostError."""
        self._closed = True
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this client is closed; open another one with dlog.connect")
