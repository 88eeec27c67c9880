"""Finds proxies and stream owners, and keeps the client's connections.

Invariants:
- finding makes one attempt and reports. Only its callers (producers, readers, `ask` for all else) retry, each with one
  back-off and all with one budget, so that retries of nested layers never multiply.

A client behind a load balancer may not reach the proxy that a redirect names. A reachable proxy then forwards its
requests, over a connection opened for this (`hops` > 0). Nothing waits for the unreachable address; when it becomes
reachable, the work moves to a direct connection.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from itertools import islice
from typing import Any

from dlog.client.address_backoff import AddressBackoff
from dlog.client.backoff import Backoff, RetryBudget
from dlog.client.connection import Connection, WriterPort
from dlog.client.options import ClientOptions
from dlog.errors import (
    ClosedError,
    ConnectionLostError,
    DLogError,
    OverCapacityError,
    OwnedElsewhereError,
    ProducerUnknownError,
    ProtocolError,
    Remedy,
    RequestTimeoutError,
    StreamNotFoundError,
    UnavailableError,
    with_outcome,
)
from dlog.wire import proxy

_log = logging.getLogger(__name__)

OWNERS_MAX = 10_000  # remembered owners; beyond it the oldest are forgotten, and asked for again when needed
ADDRESSES_MAX = 1_000  # remembered proxies; beyond it the oldest that are not in use are forgotten
WRITE = "write"
READ = "read"
_READ_ONLY_REQUESTS = (
    proxy.GetOwner,
    proxy.GetOwners,
    proxy.Stat,
    proxy.List,
    proxy.GetIncarnation,
)  # requests that change nothing
_NEXT = "is `dlog up` running, and is the address right?"


class Router:
    """Connections of one client, and the last known owner of each stream.

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
        self._configured = addresses
        self._known: dict[str, None] = dict.fromkeys(addresses)  # addresses, in the order they were learned
        self._roles: dict[str, str] = {}  # address -> role, after a handshake
        self._failed_s: dict[str, float] = {}  # address -> time of its last failure
        self._reach = AddressBackoff(options.direct_rest_s)
        self._owners: dict[str, str] = {}  # stream -> last known address of its owner
        self._connections: dict[tuple[str, int], Connection] = {}  # by address and hops
        self._opening: dict[tuple[str, int], asyncio.Lock] = {}
        self._tries: dict[str, tuple[asyncio.Future[Connection | None], float]] = {}  # attempts: result, wait until
        self._is_moving_to_direct = (
            False  # `_move_to_direct` runs: work is forwarded, and moves to its owners once reachable
        )
        self._closed = False
        loop = asyncio.get_running_loop()
        self._now_s = loop.time
        self._budget = RetryBudget(options.retry_burst, options.retries_per_s, loop.time())

    # ---- connections ----------------------------------------------------------------------------------------------

    async def connect(self, address: str, *, hops: int = 0) -> Connection:
        """The open connection to this address; opens it if needed. Raises UnavailableError, ProtocolError."""
        lock = self._opening.setdefault((address, hops), asyncio.Lock())
        async with lock:
            connection = self._open_at(address, hops)
            if connection is not None:
                return connection
            self._check_open()
            try:
                connection = await Connection.open(address, self.options, hops=hops)
            except DLogError as error:
                _log.debug("not connected: %s", error)
                self._failed_s[address] = self._now_s()
                self._reach.failed(address, self._now_s())
                raise
            if self._closed:
                connection.close()
                self._check_open()
            self._failed_s.pop(address, None)
            self._reach.reached(address)
            self._roles[address] = connection.role
            self._connections[address, hops] = connection
            _log.debug("connected: address=%s role=%s hops=%d", address, connection.role, hops)
            return connection

    def _open_at(self, address: str, hops: int = 0) -> Connection | None:
        connection = self._connections.get((address, hops))
        if connection is None or not connection.is_open or connection.is_draining:
            return None
        return connection

    async def _connect_within_timeout(self, address: str, *, at_once: bool = False) -> Connection | None:
        """As `connect`, but wait `direct_patience_s` at most, and not at all for an address that failed lately.
        Concurrent callers share one attempt, which goes on in the background. Returns None if there is no connection.

        at_once: start the attempt but do not wait for it; work is forwarded until `_move_to_direct` moves it.
        """
        connection = self._open_at(address)
        if connection is not None:
            return connection
        now_s = self._now_s()
        trying = self._tries.get(address)
        if trying is None:
            if not self._reach.may_try(address, now_s):
                return None
            self._check_open()
            told: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
            trying = self._tries[address] = told, now_s + self.options.direct_patience_s
            self.spawn(self._try(address, told), f"dlog client tries {address}")
        told, until_s = trying
        if not at_once:
            await asyncio.wait((told,), timeout=max(0.0, until_s - now_s))
        return told.result() if told.done() else None

    async def _try(self, address: str, told: asyncio.Future[Connection | None]) -> None:
        try:
            told.set_result(await self.connect(address))
        except DLogError:
            told.set_result(None)
        finally:
            del self._tries[address]

    def close(self) -> None:
        """Close every connection; all that wait there get ConnectionLostError."""
        self._closed = True
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this client is closed; open another one with dlog.connect")

    def learn(self, addresses: Iterable[str]) -> None:
        """Remember proxy addresses that a server named."""
        for address in addresses:
            if address and address not in self._known:
                self._known[address] = None
        if len(self._known) > ADDRESSES_MAX:
            self._forget_addresses()

    def _forget_addresses(self) -> None:
        """Forget the oldest addresses, down to nine tenths of the bound, so that this is rare. Configured addresses and
        those with a connection that is open or being opened stay."""
        busy = {address for (address, _), connection in self._connections.items() if connection.is_open}
        busy.update(address for (address, _), lock in self._opening.items() if lock.locked())
        busy.update(self._configured, self._tries)
        surplus = len(self._known) - ADDRESSES_MAX * 9 // 10
        gone = set(islice((address for address in self._known if address not in busy), surplus))
        for address in gone:
            del self._known[address]
        for by_address in (self._roles, self._failed_s):
            for address in gone & by_address.keys():
                del by_address[address]
        for by_way in (self._connections, self._opening):
            for way in [way for way in by_way if way[0] in gone]:
                del by_way[way]

    def forget(self, stream: str, address: str) -> None:
        """Forget that the owner is at `address`."""
        if self._owners.get(stream) == address:
            del self._owners[stream]

    def forget_stream(self, stream: str) -> None:
        """Forget the owner of a deleted stream: another one may own the next stream of that name."""
        self._owners.pop(stream, None)

    def candidates(self, role: str, avoid: Collection[str] = ()) -> list[str]:
        """Addresses to try for this role, the most promising first; `avoid` comes last, as it may have recovered."""

        now_s = self._now_s()

        def hope(address: str) -> tuple[bool, bool, bool, bool, bool, float]:
            known = self._roles.get(address, "")
            is_stranger = not known and address not in self._configured
            return (
                is_stranger and not self._reach.may_try(address, now_s),
                address in avoid,
                bool(known) and not known.startswith(role),
                self._open_at(address) is None,
                is_stranger,
                self._failed_s.get(address, 0.0),
            )

        return sorted(self._known, key=hope)

    async def connect_any(self, role: str, avoid: Collection[str] = ()) -> Connection:
        """A connection to the most promising address that answers.

        Raises UnavailableError, which names all addresses tried; OverCapacityError if one had too many connections.
        """
        candidates = self.candidates(role, avoid)
        tried: list[str] = []
        wrong: list[Connection] = []
        full: OverCapacityError | None = None

        async def suits(address: str) -> Connection | None:
            nonlocal full
            if address not in self._roles and address not in self._configured:
                # named by a server; it may be unreachable from here
                connection = await self._connect_within_timeout(address)
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

        found = await self._first(candidates, suits, tried)
        if found is None and wrong:
            found = wrong[0]
        if found is None and full is not None:
            raise OverCapacityError(f"all proxies have too many connections; tried=[{'; '.join(tried)}]")
        if found is None:
            raise UnavailableError(f"no proxy answers; {_NEXT} tried=[{'; '.join(tried)}]", outcome_unknown=False)
        return found

    async def _first(
        self, addresses: Iterable[str], suits: Callable[[str], Coroutine[Any, Any, Connection | None]], tried: list[str]
    ) -> Connection | None:
        """The first suitable connection. After `direct_patience_s` without an answer the next address is tried
        concurrently (as in RFC 8305); attempts still pending when one succeeds are cancelled.

        tried: the errors of unreachable addresses are appended to it. Raises any other error.
        """

        async def attempt(address: str) -> Connection | DLogError | None:
            try:
                return await suits(address)
            except DLogError as error:
                return error

        found: Connection | None = None
        obstacle: DLogError | None = None
        left = deque(addresses)
        async with asyncio.TaskGroup() as tries:
            running: dict[asyncio.Task[Connection | DLogError | None], str] = {}
            while found is None and obstacle is None and (left or running):
                if left:
                    address = left.popleft()
                    running[tries.create_task(attempt(address), name=f"dlog client asks {address}")] = address
                patience_s = self.options.direct_patience_s if left else None
                done, _ = await asyncio.wait(running, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task in done]:  # in the order of the attempts
                    del running[task]
                    match task.result():
                        case UnavailableError() | ProtocolError() as error:
                            tried.append(error.message)
                        case DLogError() as error:
                            obstacle = obstacle or error
                        case answer:
                            found = found or answer
            for task, address in running.items():
                self._failed_s[address] = self._now_s()  # `candidates` ranks it behind others from now on
                task.cancel()
        if found is None and obstacle is not None:
            raise obstacle
        return found

    async def connect_or_forward(self, address: str, role: str) -> Connection:
        """A connection to `address`, or, if it is unreachable, to a proxy that forwards requests to it.

        Raises UnavailableError or ProtocolError of `address` if no proxy forwards.
        """
        direct = await self._connect_within_timeout(address, at_once=self._is_moving_to_direct and role == WRITE)
        if direct is not None:
            return direct
        handing = await self._forwarding_connection(role)
        return handing if handing is not None else await self.connect(address)

    async def _forwarding_connection(self, role: str) -> Connection | None:
        """A connection whose proxy forwards requests, to an address that is connected or configured; None if none."""

        async def suits(address: str) -> Connection | None:
            connection = await self.connect(address, hops=1)
            return connection if connection.is_forwarding else None

        likely = [a for a in self.candidates(role) if self._open_at(a) is not None or a in self._configured]
        found = await self._first(likely, suits, [])
        if found is not None and not self._is_moving_to_direct:
            self._is_moving_to_direct = True
            self.spawn(self._move_to_direct(), "dlog client looks for direct ways")
        return found

    async def _move_to_direct(self) -> None:
        """Move forwarded writers to direct connections, once their owners are reachable. Ends when no work is
        forwarded."""
        try:
            while handing := [c for (_, hops), c in self._connections.items() if hops and c.is_open]:
                await asyncio.sleep(self.options.direct_retry_s)
                for connection in handing:
                    for writer in connection.writers:
                        await self._take_home(connection, writer)
        finally:
            self._is_moving_to_direct = False

    async def _take_home(self, connection: Connection, writer: WriterPort[Any]) -> None:
        stream = writer.stream
        remembered = self._owners.get(stream)
        if remembered is not None and not self._reach.may_try(remembered, self._now_s()):
            return
        try:
            result = await connection.ask(lambda request: proxy.GetOwner(request, stream, None))
            location = str(result.get("location") or "")
            direct = await self._connect_within_timeout(location) if location else None
        except DLogError:
            return  # the next round tries again
        if direct is not None and writer in connection.writers:
            self.owner_is(stream, location)
            writer.on_moved(connection, location)

    async def reach(self) -> None:
        """Retry until any proxy answers."""
        backoff = Backoff(self.options.backoff_first_s, self.options.backoff_max_s, self.rng)
        while True:
            try:
                await self.connect_any(WRITE)
                return
            except UnavailableError:
                await asyncio.sleep(self.pause_s(backoff))

    # ---- owners ---------------------------------------------------------------------------------------------------

    def owner_is(self, stream: str, address: str) -> None:
        """Remember the owner that a redirect named."""
        self.learn([address])
        self._owners.pop(stream, None)
        self._owners[stream] = address
        if len(self._owners) > OWNERS_MAX:
            del self._owners[next(iter(self._owners))]

    async def owner(self, stream: str, suspect: str | None = None) -> Connection:
        """A connection to the stream's owner: the remembered one, or the one that any proxy names.

        suspect: an address that just failed; proxies check it and take the stream over if it is gone. Makes one
        attempt: raises UnavailableError, StreamUnavailableError or the proxy's error.
        """
        remembered = self._owners.get(stream)
        if remembered is not None and remembered != suspect:
            try:
                return await self._remembered(remembered)
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
        return await self.connect_or_forward(location, WRITE)

    async def _remembered(self, address: str) -> Connection:
        """A connection to a remembered owner, or to a forwarding proxy if the owner is unreachable or does not answer
        in time. Raises UnavailableError if the attempt failed, so that the caller looks for another owner."""
        hopeful = self._reach.may_try(address, self._now_s())
        direct = await self._connect_within_timeout(address, at_once=self._is_moving_to_direct)
        if direct is not None:
            return direct
        if hopeful and address not in self._tries:
            raise UnavailableError(f"not reachable: address={address}", outcome_unknown=False)
        handing = await self._forwarding_connection(WRITE)
        return handing if handing is not None else await self.connect(address)

    # ---- requests with one reply ----------------------------------------------------------------------------------

    async def ask(
        self,
        question: Callable[[int], proxy.Question],
        *,
        role: str = WRITE,
        stream: str | None = None,
        settled_by: type[DLogError] | None = None,
    ) -> dict[str, Any]:
        """Send a request until it is answered: follows redirects, tries other proxies, backs off, up to
        `request_deadline_s`.

        stream: send it to this stream's owner. settled_by: an error that, after an attempt with an unknown outcome,
        proves that the attempt succeeded. Raises the server's error, or RequestTimeoutError, which names the last
        obstacle. `outcome_unknown` is set once any attempt may have been executed (a later refusal says nothing about
        an earlier attempt), but never for requests that change nothing.
        """
        obstacle: DLogError | None = None
        unknown = False  # an earlier attempt may have been executed
        is_out = False  # this attempt was sent and is unanswered
        backoff = Backoff(self.options.backoff_first_s, self.options.backoff_max_s, self.rng)
        suspect: str | None = None

        def sent(request: int) -> proxy.Question:
            nonlocal is_out
            message = question(request)
            is_out = not isinstance(message, _READ_ONLY_REQUESTS)
            return message

        try:
            async with asyncio.timeout(self.options.request_deadline_s):
                while True:
                    connection: Connection | None = None
                    try:
                        if stream is not None:
                            connection = await self.owner(stream, suspect)
                        else:
                            connection = await self.connect_any(role, (suspect,) if suspect else ())
                        result = await connection.ask(sent)
                        return dict(result)
                    except DLogError as error:
                        if unknown and settled_by is not None and isinstance(error, settled_by):
                            return {}
                        unknown = unknown or (is_out and error.outcome_unknown)
                        is_out = False
                        # a producer's state that the log has lost stays lost: no retry helps
                        is_final = error.remedy not in (Remedy.RETRY, Remedy.FOLLOW, Remedy.REOPEN)
                        if stream is not None and isinstance(error, StreamNotFoundError):
                            self.forget_stream(stream)
                        if is_final or isinstance(error, ProducerUnknownError):
                            raise with_outcome(error, unknown) from error.__cause__
                        obstacle = error
                        _log.info("request is retried: stream=%s obstacle=%s", stream, error)
                        suspect = self._suspect(stream, connection, error)
                    await asyncio.sleep(self.pause_s(backoff))
        except TimeoutError as late:
            what = obstacle.message if obstacle is not None else "no answer"
            raise RequestTimeoutError(
                f"no success within {self.options.request_deadline_s:g} s, last obstacle: {what}",
                outcome_unknown=unknown or is_out,
            ) from late

    async def owned(self) -> list[dict[str, Any]]:
        """Streams owned by the known, reachable write proxies. Raises UnavailableError if no proxy is reachable."""
        found: dict[str, dict[str, Any]] = {}
        asked: set[str] = set()
        obstacle: DLogError | None = None
        while True:
            left = [a for a in self.candidates(WRITE) if a not in asked]
            if not left:
                break
            asked.add(left[0])
            try:
                connection = await self._connect_within_timeout(left[0])
                if connection is None:
                    raise UnavailableError(f"not reachable: address={left[0]}")
                if not connection.role.startswith(WRITE):
                    continue
                self._note_owned(found, connection, await connection.ask(lambda request: proxy.GetOwners(request)))
            except (UnavailableError, ProtocolError) as error:
                obstacle = error
        handing = await self._forwarding_connection(WRITE) if obstacle is not None else None
        if handing is not None:  # ask a proxy that forwards to all of them
            self._note_owned(found, handing, await handing.ask(lambda request: proxy.GetOwners(request)))
        elif obstacle is not None and not found:
            raise obstacle
        return [found[stream] for stream in sorted(found)]

    def _note_owned(self, found: dict[str, dict[str, Any]], connection: Connection, result: dict[str, Any]) -> None:
        for stream, epoch, state, *where in result.get("owned", ()):
            location = where[0] if where else connection.address
            if stream not in found or found[stream]["epoch"] < epoch or where:
                found[stream] = {"stream": stream, "epoch": epoch, "state": state, "location": location}

    def pause_s(self, backoff: Backoff) -> float:
        """How long to wait before the next attempt: the caller's back-off, and the client's retry budget.

        The first failure in a row is free of both: when a proxy dies, all of its streams fail once.
        """
        delay_s = backoff.next_s()
        return max(delay_s, self._budget.take(self._now_s())) if delay_s else 0.0

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
