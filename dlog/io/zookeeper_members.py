"""Cluster membership: keeps our own registrations in ZooKeeper and lists those of other processes.

Invariants:
- A registration is an ephemeral znode that is created again in every new session.
- A znode with a condition is created in one transaction with it, in every session.
- A znode of the same name from an earlier session or process of ours is deleted; another process's is waited for.
- A process whose registration this one may not read is not listed; the session reports the znode (`on_unreadable`).
- The list is read again as a whole after every watch event, and seldom without one. `known` may be old; a fresh `read`
  is current.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from dlog.errors import CookieError, DLogError, MetadataUnavailableError
from dlog.io.metadata import BookieInfo, Members, ProxyInfo, SessionState, Unsubscribe
from dlog.io.zookeeper import ANY_VERSION, ZooKeeper
from dlog.io.zookeeper_layout import PROXY_ROLES, LedgerPaths, StreamPaths
from dlog.io.zookeeper_protocol import (
    BadVersionError,
    ConnectionLossError,
    Create,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    Op,
)
from dlog.model.ids import BookieId, ProxyId, bookie_id
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation, parse_location
from dlog.options import check_address, check_positive, option
from dlog.wire.bookie_info import address_of, has_summaries, location_of

RETRY_S = 0.5
GONE_S = 2.0  # between two checks, without a watch event, whether another process's znode of our name is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """How old the list of members may be if no watch reports a change."""

    again_s: float = option(10.0, sim=(2.0, 20.0))  # longest time between two reads; the shortest is half of it

    def __post_init__(self) -> None:
        check_positive(self, "again_s")


MEMBERS = MemberOptions()


@dataclass(slots=True)
class _Registration:
    data: bytes
    condition: Callable[[], Awaitable[Op]] | None = None
    generation: int = -1  # session in which it was last created


class Registrations:
    """The ephemeral znodes that this process keeps registered."""

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk
        self._wanted: dict[str, _Registration] = {}
        self._sessions = {zk.session_id}  # ids this process has had
        self._wake = asyncio.Event()
        self._unsubscribe = zk.on_state(self._state_changed)

    async def keep(self, path: str, data: bytes, condition: Callable[[], Awaitable[Op]] | None = None) -> None:
        """Register, and stay registered until `drop`. Waits up to 1.5 session timeouts for the znode of another process
        that may have died. Raises CookieError (it stays) or MetadataUnavailableError; then it is not kept.

        condition: awaited before each creation of the znode, for what must hold then. An error that it raises ends the
        registration, also in a later session, unless it is a MetadataUnavailableError.
        """
        registration = self._wanted[path] = _Registration(data, condition)
        try:
            async with asyncio.timeout(self._zk.timeout_s * 1.5):
                await self._make(path, registration)
        except TimeoutError:
            self._forget(path, registration)
            raise CookieError(f"another process is registered under this name; stop it first: path={path}") from None
        except BaseException:
            self._forget(path, registration)
            raise

    async def drop(self, path: str) -> None:
        """Unregister; idempotent. Another process's znode stays."""
        if self._wanted.pop(path, None) is None:
            return
        stat = await self._zk.exists(path)
        if stat is not None and stat.ephemeral_owner in self._sessions:
            try:
                await self._zk.delete(path, ANY_VERSION)
            except NoNodeError:
                return

    async def run(self) -> None:
        """Register again in every new session; never returns."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._zk.wait_connected()
            for path, registration in list(self._wanted.items()):
                if registration.generation not in (-1, self._zk.generation):
                    try:
                        async with asyncio.timeout(self._zk.timeout_s):
                            await self._make(path, registration)
                    except (MetadataUnavailableError, TimeoutError):
                        await asyncio.sleep(RETRY_S)
                        self._wake.set()
                    except DLogError:  # the condition does not hold any more
                        self._forget(path, registration)

    def close(self) -> None:
        self._unsubscribe()

    def _state_changed(self, _: SessionState) -> None:
        self._sessions.add(self._zk.session_id)
        self._wake.set()

    async def _make(self, path: str, registration: _Registration) -> None:
        while self._wanted.get(path) is registration:
            generation = self._zk.generation
            try:
                try:
                    if not await self._create(path, registration):
                        continue
                except NodeExistsError:
                    if not await self._is_ours(path, registration):
                        continue
            except ConnectionLossError:
                continue  # the next round finds out whether it was created
            if generation == self._zk.generation and self._zk.state is not SessionState.LOST:
                registration.generation = generation
                return

    async def _create(self, path: str, registration: _Registration) -> bool:
        """Create the znode. Returns False if its condition changed meanwhile. Raises NodeExistsError, and the errors of
        the condition."""
        if registration.condition is None:
            await self._zk.create(path, registration.data, ephemeral=True, parents=True)
            return True
        ops: list[Op] = [await registration.condition(), Create(path, registration.data, ephemeral=True)]
        try:
            await self._zk.multi(ops)
        except MultiFailedError as failed:
            if isinstance(failed.error, NodeExistsError):
                raise failed.error from failed
            if failed.index == 0 and isinstance(failed.error, NoNodeError | BadVersionError):
                return False
            if failed.index == 1 and isinstance(failed.error, NoNodeError):
                await self._zk.ensure_path(path.rpartition("/")[0])
                return False
            raise
        return True

    async def _is_ours(self, path: str, registration: _Registration) -> bool:
        """Whether the existing znode belongs to this session. One of ours is deleted: it has the same data (the address
        we listen on), or is of a session that this process has lost. Another's gets GONE_S to go."""
        try:
            data, stat = await self._zk.get(path)
            if stat.ephemeral_owner == self._zk.session_id:
                if data != registration.data:
                    await self._zk.set(path, registration.data, stat.version)
                return True
            if stat.ephemeral_owner in self._sessions or data == registration.data:
                await self._zk.delete(path, stat.version)
                return False
        except (NoNodeError, BadVersionError):
            return False
        gone = asyncio.Event()
        unsubscribe = self._zk.watch_data(path, gone.set)
        try:
            if await self._zk.exists(path) is not None:
                async with asyncio.timeout(GONE_S):
                    await gone.wait()
        except TimeoutError:
            return False  # the caller tries again
        finally:
            unsubscribe()
        return False

    def _forget(self, path: str, registration: _Registration) -> None:
        if self._wanted.get(path) is registration:
            del self._wanted[path]


class MemberList:
    """The registered bookies and proxies."""

    def __init__(
        self, zk: ZooKeeper, ledgers: LedgerPaths, streams: StreamPaths, options: MemberOptions, rng: random.Random
    ) -> None:
        self._zk = zk
        self._ledgers = ledgers
        self._streams = streams
        self._options = options
        self._rng = rng
        self._known = Members({}, {}, {}, {})
        self._callbacks: dict[object, Callable[[], None]] = {}
        self._stale = asyncio.Event()
        self._reading = asyncio.Lock()  # so that an older read never replaces a newer one
        directories = [ledgers.available, ledgers.readonly, *(streams.proxy_role(role) for role in PROXY_ROLES)]
        self._unsubscribes = [zk.watch_children(path, self._stale.set) for path in directories]

    @property
    def known(self) -> Members:
        return self._known

    def on_change(self, callback: Callable[[], None]) -> Unsubscribe:
        key = object()
        self._callbacks[key] = callback

        def unsubscribe() -> None:
            self._callbacks.pop(key, None)

        return unsubscribe

    async def read(self, *, fresh: bool = True) -> Members:
        """Read the list and report a change. Raises MetadataUnavailableError."""
        async with self._reading:
            return await self._read(fresh=fresh)

    async def run(self) -> None:
        """Keep `known` current; never returns. It shows a change without a watch event within `again_s`."""
        while True:
            await self._hint()
            self._stale.clear()
            try:
                await self.read(fresh=False)
            except MetadataUnavailableError:
                await asyncio.sleep(RETRY_S)
                self._stale.set()

    def close(self) -> None:
        for unsubscribe in self._unsubscribes:
            unsubscribe()

    async def _hint(self) -> None:
        """Return when a watch fired, or none did for `again_s` (at random up to half less)."""
        try:
            async with asyncio.timeout(self._options.again_s * self._rng.uniform(0.5, 1.0)):
                await self._stale.wait()
        except TimeoutError:
            return

    async def _read(self, *, fresh: bool) -> Members:
        writable = await self._read_below(self._ledgers.available, fresh=fresh)
        readonly = await self._read_below(self._ledgers.readonly)
        proxies = [await self._read_below(self._streams.proxy_role(role)) for role in PROXY_ROLES]
        members = Members(
            _bookies(item for item in writable if item[0] != "readonly"),
            _bookies(readonly),
            _proxies(PROXY_ROLES[0], proxies[0]),
            _proxies(PROXY_ROLES[1], proxies[1]),
        )
        if members != self._known:
            self._known = members
            loop = asyncio.get_running_loop()
            for callback in list(self._callbacks.values()):
                loop.call_soon(callback)
        return members

    async def _read_below(self, directory: str, *, fresh: bool = False) -> list[tuple[str, bytes]]:
        try:
            names = sorted((await self._zk.children(directory, fresh=fresh))[0])
        except NoNodeError:
            return []
        found = await self._zk.get_each([f"{directory}/{name}" for name in names])
        return [(name, item[0]) for name, item in zip(names, found, strict=True) if isinstance(item, tuple)]


def encode_proxy(info: ProxyInfo) -> bytes:
    fields = {"address": info.address}
    if info.peer_address:
        fields["peer"] = info.peer_address
    if info.location != DEFAULT_LOCATION:
        fields["location"] = str(info.location)
    return json.dumps(fields, separators=(",", ":")).encode()


def _bookies(found: Iterable[tuple[str, bytes]]) -> dict[BookieId, BookieInfo]:
    bookies: dict[BookieId, BookieInfo] = {}
    for name, data in found:
        try:
            bookie = bookie_id(name)
            host, port = address_of(bookie, data)
        except DLogError:
            continue  # its registration has no usable address: not a member
        bookies[bookie] = BookieInfo(bookie, host, port, location_of(data), has_summaries(data))
    return bookies


def _proxies(role: str, found: Iterable[tuple[str, bytes]]) -> dict[ProxyId, ProxyInfo]:
    proxies: dict[ProxyId, ProxyInfo] = {}
    for name, data in found:
        try:
            fields = json.loads(data)
            address, peer = fields["address"], fields.get("peer", "")
            if not address:
                continue
            check_address(address)
            check_address(peer)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue  # its registration has no usable address: not a member
        proxies[ProxyId(name)] = ProxyInfo(ProxyId(name), role, address, peer, _location(fields.get("location")))
    return proxies


def _location(text: object) -> NetworkLocation:
    """A proxy's location; the default one if it published none (older versions), or none that can be read."""
    try:
        return parse_location(text) if isinstance(text, str) else DEFAULT_LOCATION
    except DLogError:
        return DEFAULT_LOCATION
