"""Who serves a stream: addresses we know, owners we were told of, connections that are open.

The law of this file: it makes one try and reports. The retrying is done by who called (a producer, a reader, `ask` for
the rest), with one backoff and one budget, so that three layers of three tries never become twenty-seven.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable
from typing import Any

from dlog.client.backoff import Backoff, RetryBudget
from dlog.client.connection import Connection
from dlog.client.options import ClientOptions
from dlog.errors import (
    ClosedError,
    ConnectionLostError,
    DLogError,
    OwnedElsewhereError,
    ProtocolError,
    Remedy,
    RequestTimeoutError,
    UnavailableError,
)
from dlog.wire import proxy

WRITE = "write"
READ = "read"
_NEXT = "is `dlog up` running, and is the address right?"


class Router:
    """Connections of one client, and where each stream's owner was last seen."""

    def __init__(self, addresses: tuple[str, ...], options: ClientOptions, rng: random.Random) -> None:
        self.options = options
        self.rng = rng
        self._configured = addresses
        self._known: list[str] = list(addresses)
        self._roles: dict[str, str] = {}  # address -> role, once greeted
        self._failed_s: dict[str, float] = {}  # address -> when it last refused us
        self._owners: dict[str, str] = {}  # stream -> address of its owner, as last told
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._closed = False
        loop = asyncio.get_running_loop()
        self._now_s = loop.time
        self._budget = RetryBudget(options.retry_burst, options.retries_per_s, loop.time())

    # ---- connections ----------------------------------------------------------------------------------------------

    async def connect(self, address: str) -> Connection:
        """The open connection to this address, opening it if need be. Raises UnavailableError, ProtocolError."""
        lock = self._opening.setdefault(address, asyncio.Lock())
        async with lock:
            connection = self._connections.get(address)
            if connection is not None and connection.is_open and not connection.is_draining:
                return connection
            self._check_open()
            try:
                connection = await Connection.open(address, self.options)
            except DLogError:
                self._failed_s[address] = self._now_s()
                raise
            if self._closed:
                connection.close()
                self._check_open()
            self._failed_s.pop(address, None)
            self._roles[address] = connection.role
            self._connections[address] = connection
            return connection

    def close(self) -> None:
        """Close every connection; what waits there hears ConnectionLostError."""
        self._closed = True
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this client is closed")

    def learn(self, addresses: Iterable[str]) -> None:
        """Remember addresses of proxies that a server named."""
        for address in addresses:
            if address and address not in self._known:
                self._known.append(address)

    def forget(self, stream: str, address: str) -> None:
        """The owner is no longer at `address`."""
        if self._owners.get(stream) == address:
            del self._owners[stream]

    def candidates(self, role: str, avoid: Collection[str] = ()) -> list[str]:
        """Addresses to try for this role, the most hopeful first; `avoid` comes last, since it may be back."""

        def hope(address: str) -> tuple[bool, bool, bool, float]:
            known = self._roles.get(address, "")
            connection = self._connections.get(address)
            is_open = connection is not None and connection.is_open and not connection.is_draining
            return (
                address in avoid,
                bool(known) and not known.startswith(role),
                not is_open,
                self._failed_s.get(address, 0.0),
            )

        return sorted(self._known, key=hope)

    async def connect_any(self, role: str, avoid: Collection[str] = ()) -> Connection:
        """A connection to the most hopeful address that answers. Raises UnavailableError naming all that were tried."""
        tried: list[str] = []
        wrong: Connection | None = None
        for address in self.candidates(role, avoid):
            try:
                connection = await self.connect(address)
            except (UnavailableError, ProtocolError) as error:
                tried.append(error.message)
                continue
            if connection.role.startswith(role):
                return connection
            wrong = wrong or connection
        if wrong is not None:
            return wrong
        raise UnavailableError(f"no proxy answers; {_NEXT} tried=[{'; '.join(tried)}]", outcome_unknown=False)

    async def reach(self) -> None:
        """Try until some proxy answers."""
        backoff = Backoff(self.options.backoff_first_s, self.options.backoff_max_s, self.rng)
        while True:
            try:
                await self.connect_any(WRITE)
                return
            except UnavailableError:
                await asyncio.sleep(self.pause_s(backoff))

    # ---- owners ---------------------------------------------------------------------------------------------------

    def owner_is(self, stream: str, address: str) -> None:
        """Remember what a redirect said."""
        self.learn([address])
        self._owners[stream] = address

    async def owner(self, stream: str, suspect: str | None = None) -> Connection:
        """A connection to the stream's owner: as remembered, or as any proxy says.

        suspect: an address that just failed us; proxies check it and take the stream over if it is gone. One try:
        raises UnavailableError, StreamUnavailableError or what the proxy answered; when to try again is the caller's.
        """
        remembered = self._owners.get(stream)
        if remembered is not None and remembered != suspect:
            try:
                return await self.connect(remembered)
            except UnavailableError:
                self.forget(stream, remembered)
                suspect = remembered
        connection = await self.connect_any(WRITE, (suspect,) if suspect else ())
        try:
            result = await connection.ask(lambda request: proxy.GetOwner(request, stream, suspect))
            location = str(result.get("location") or connection.address)
            self.learn(str(a) for a in result.get("proxies", ()))
        except OwnedElsewhereError as error:
            if error.location is None:
                raise
            location = error.location
        self.owner_is(stream, location)
        return await self.connect(location)

    # ---- questions with one answer --------------------------------------------------------------------------------

    async def ask(
        self,
        question: Callable[[int], proxy.Question],
        *,
        role: str = WRITE,
        stream: str | None = None,
        settled_by: type[DLogError] | None = None,
    ) -> dict[str, Any]:
        """Ask until answered: follows redirects, tries other proxies, waits between tries, up to the request deadline.

        stream: ask its owner. settled_by: an error which, after a try of unknown outcome, says that the try was
        carried out. Raises the server's error, or RequestTimeoutError that names the last obstacle.
        """
        obstacle: DLogError | None = None
        unknown = False
        backoff = Backoff(self.options.backoff_first_s, self.options.backoff_max_s, self.rng)
        suspect: str | None = None
        try:
            async with asyncio.timeout(self.options.request_deadline_s):
                while True:
                    connection: Connection | None = None
                    try:
                        if stream is not None:
                            connection = await self.owner(stream, suspect)
                        else:
                            connection = await self.connect_any(role, (suspect,) if suspect else ())
                        result = await connection.ask(question)
                        return dict(result)
                    except DLogError as error:
                        if unknown and settled_by is not None and isinstance(error, settled_by):
                            return {}
                        if error.remedy not in (Remedy.RETRY, Remedy.FOLLOW, Remedy.REOPEN):
                            raise
                        obstacle = error
                        unknown = unknown or error.outcome_unknown
                        suspect = self._suspect(stream, connection, error)
                    await asyncio.sleep(self.pause_s(backoff))
        except TimeoutError as late:
            what = obstacle.message if obstacle is not None else "no answer"
            raise RequestTimeoutError(
                f"gave up after {self.options.request_deadline_s:g} s, last obstacle: {what}", outcome_unknown=unknown
            ) from late

    async def owned(self) -> list[dict[str, Any]]:
        """Streams owned by the write proxies that we know and can reach. Raises UnavailableError if there is none."""
        found: dict[str, dict[str, Any]] = {}
        asked: set[str] = set()
        obstacle: DLogError | None = None
        while True:
            left = [a for a in self.candidates(WRITE) if a not in asked]
            if not left:
                break
            asked.add(left[0])
            try:
                connection = await self.connect(left[0])
                if not connection.role.startswith(WRITE):
                    continue
                result = await connection.ask(lambda request: proxy.GetOwners(request))
            except (UnavailableError, ProtocolError) as error:
                obstacle = error
                continue
            self.learn(str(a) for a in result.get("proxies", ()))
            for stream, epoch, state in result.get("owned", ()):
                one = {"stream": stream, "epoch": epoch, "state": state, "location": connection.address}
                if stream not in found or found[stream]["epoch"] < epoch:
                    found[stream] = one
        if obstacle is not None and not found:
            raise obstacle
        return [found[stream] for stream in sorted(found)]

    def pause_s(self, backoff: Backoff) -> float:
        """How long to wait before the next try, by this caller's backoff and the client's budget."""
        return max(backoff.next_s(), self._budget.take(self._now_s()))

    def _suspect(self, stream: str | None, connection: Connection | None, error: DLogError) -> str | None:
        if connection is None:
            return None
        if isinstance(error, OwnedElsewhereError):
            if error.location is not None:
                self.learn([error.location])
            if stream is not None:
                self.forget(stream, connection.address)
                if error.location is not None:
                    self.owner_is(stream, error.location)
            return None
        if isinstance(error, ConnectionLostError):
            if stream is not None:
                self.forget(stream, connection.address)
            return connection.address
        return None
