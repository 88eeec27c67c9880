"""A ZooKeeper session: the one connection that a process keeps, its state, its watches, and its requests.

Invariants:
1. A written request is never sent again. If its connection ends first, the caller at once gets ConnectionLossError
   (outcome unknown), and must read again and compare.
2. The state is SUSPENDED as soon as contact is lost. It is LOST when the server says so, or when no request sent within
   the last session timeout was answered: then the session id is never used again, even if the server still knows it.
3. A watch is a hint. A subscriber is called at least once after each change, after LOST, and after a reconnect that may
   have hidden a change; it reads again.
4. Every call has a deadline; close is bounded and may be repeated.
5. A server may show an old view. A `fresh` read shows every change that any client saw confirmed before the call: a
   sync precedes it on the same connection, and the server replies in that order, so this costs no extra round trip.
   Later reads of the session are never older. (A leader that was replaced and has not noticed yet, which takes at most
   syncLimit ticks, answers a sync by itself: there only compare-and-set helps.)

Source: ZooKeeper programmer's guide, "ZooKeeper Sessions", "ZooKeeper Watches" and "Consistency Guarantees".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from aiozk import protocol

from dlog.errors import ClosedError, InvalidRequestError
from dlog.io.metadata import SessionState, Unsubscribe
from dlog.io.zookeeper_hosts import Servers, split_hosts
from dlog.io.zookeeper_protocol import (
    ANY_VERSION,
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    XID_AUTH,
    Check,
    Connection,
    ConnectionLossError,
    Create,
    Created,
    Delete,
    GetEphemeralsRequest,
    MultiReadRequest,
    NodeExistsError,
    NoNodeError,
    NoRightsError,
    NotConnectedError,
    Op,
    ReadResult,
    Set,
    Stat,
    create_request,
    decode_children,
    decode_created,
    decode_data,
    decode_ephemerals,
    decode_many,
    decode_multi,
    decode_nothing,
    decode_stat,
    multi_request,
)
from dlog.io.zookeeper_watches import TreeCallback, WatchCallback, Watches, drop_if_refused

__all__ = [
    "ANY_VERSION",
    "Check",
    "ConnectionLossError",
    "Create",
    "Created",
    "Delete",
    "Set",
    "Stat",
    "ZooKeeper",
]

BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 1.0
CLOSE_TIMEOUT_S = 1.0
#: A server bounds requests, and so every znode (jute.maxbuffer), but not replies. ANSWER_BYTES: what a reply should at
#: most cost a server. GET_AT_ONCE_MAX: how many znodes of the largest size fit the largest reply that we accept.
ANSWER_BYTES = 8 * 1024 * 1024
GET_AT_ONCE_MAX = REPLY_BYTES_MAX // (REQUEST_BYTES_MAX + 1024)
UNREADABLE_MAX = 1024  # unreadable znodes of which it is remembered that they were reported


class ZooKeeper:
    """A ZooKeeper client: one session at a time, which reconnects until closed.

    Paths are absolute, below the chroot of the hosts string.

    All calls raise ConnectionLossError (written, outcome unknown), NotConnectedError (not sent), ClosedError, the
    server's ZnodeError, or ReplyTooLargeError (above 32 MiB). A cancelled call may still take effect.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_s: float = 10.0,
        request_timeout_s: float | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._hosts, self._chroot = split_hosts(hosts)
        self._rng = rng or random.Random()
        self._hosts = sorted(self._hosts, key=lambda _: self._rng.random())
        self._servers = Servers(self._hosts, self._rng)
        self._asked_timeout_s = session_timeout_s
        self._request_timeout_s = request_timeout_s or session_timeout_s
        self._connection: Connection | None = None
        self._state = SessionState.LOST
        self._state_callbacks: dict[object, Callable[[SessionState], None]] = {}
        self._unreadable: dict[str, None] = {}  # used as an ordered set of paths, oldest first
        self._unreadable_callbacks: dict[object, Callable[[str], None]] = {}
        self._attached = asyncio.Event()
        self._password = b""
        self._last_zxid = 0
        self._contact_s = 0.0
        self._credentials: list[tuple[str, bytes]] = []
        self._watches = Watches(self._chroot)
        self._task: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._closing = False
        self.session_id = 0
        self.generation = 0  # number of sessions so far
        self.timeout_s = session_timeout_s  # as agreed with the server

    @classmethod
    async def connect(
        cls,
        hosts: str,
        *,
        session_timeout_s: float = 10.0,
        request_timeout_s: float | None = None,
        connect_timeout_s: float = 10.0,
        rng: random.Random | None = None,
    ) -> ZooKeeper:
        """Open a session. Raises NotConnectedError if no server grants one within connect_timeout_s; ConfigError."""
        client = cls(hosts, session_timeout_s=session_timeout_s, request_timeout_s=request_timeout_s, rng=rng)
        client._task = asyncio.get_running_loop().create_task(client._live(), name=f"zookeeper session {hosts}")
        client._task.add_done_callback(report_crash)
        try:
            async with asyncio.timeout(connect_timeout_s):
                await client._attached.wait()
        except TimeoutError:
            await client.close()
            raise NotConnectedError(
                f"no ZooKeeper server answers; check that it runs: hosts={hosts} waited_s={connect_timeout_s:g}"
            ) from None
        except BaseException:
            await client.close()
            raise
        return client

    async def __aenter__(self) -> ZooKeeper:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def unresponsive_s(self) -> float:
        """How long the oldest request has waited, or there has been no contact; 0: nothing is pending."""
        connection = self._connection
        if connection is not None and not connection.is_closed:
            return connection.unresponsive_s
        return asyncio.get_running_loop().time() - self._contact_s

    def on_state(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        """Call `callback(state)` at each change of state, in order."""
        key = object()
        self._state_callbacks[key] = callback

        def unsubscribe() -> None:
            self._state_callbacks.pop(key, None)

        return unsubscribe

    def on_unreadable(self, callback: Callable[[str], None]) -> Unsubscribe:
        """Call `callback(path)` for each znode that `get_each` or `get_many` may not read: at once for those found
        before; for each only once, until it was readable or missing in between."""
        key = object()
        self._unreadable_callbacks[key] = callback
        for path in tuple(self._unreadable):
            callback(path)

        def unsubscribe() -> None:
            self._unreadable_callbacks.pop(key, None)

        return unsubscribe

    async def wait_connected(self) -> None:
        """Return once there is a session and a connection."""
        await self._attached.wait()

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def get(self, path: str, *, fresh: bool = False) -> tuple[bytes, Stat]:
        request = protocol.GetDataRequest(path=self._abs(path), watch=False)
        data: tuple[bytes, Stat] = await self._call(request, decode_data, path, fresh=fresh)
        return data

    async def get_many(
        self, paths: Sequence[str], *, fresh: bool = False, like_bytes: int = REQUEST_BYTES_MAX
    ) -> list[tuple[bytes, Stat] | None]:
        """As `get_each`, but raises NoRightsError if this process may not read one of the znodes: for znodes of which
        a missing one has a meaning."""
        found: list[tuple[bytes, Stat] | None] = []
        for item in await self.get_each(paths, fresh=fresh, like_bytes=like_bytes):
            if isinstance(item, NoRightsError):
                raise item
            found.append(item)
        return found

    async def get_each(
        self, paths: Sequence[str], *, fresh: bool = False, like_bytes: int = REQUEST_BYTES_MAX
    ) -> list[ReadResult]:
        """Read many znodes, in order; None for missing ones, NoRightsError for those that this process may not read
        (which `on_unreadable` reports). Each packet has a deadline and asks for as many znodes as fit ANSWER_BYTES if
        each is as large as `like_bytes` (first packet) or the largest so far (later ones)."""
        found: list[ReadResult] = []
        count, largest = min(ANSWER_BYTES // like_bytes, GET_AT_ONCE_MAX), 1
        while len(found) < len(paths):
            some = await self._get_some(paths[len(found) : len(found) + count], fresh=fresh and not found)
            found += some
            largest = max(largest, *(len(item[0]) for item in some if isinstance(item, tuple)), 1)
            count = min(max(1, ANSWER_BYTES // largest), GET_AT_ONCE_MAX)
        for path, item in zip(paths, found, strict=True):
            self._note_rights(path, is_unreadable=isinstance(item, NoRightsError))
        return found

    async def exists(self, path: str, *, fresh: bool = False) -> Stat | None:
        request = protocol.ExistsRequest(path=self._abs(path), watch=False)
        try:
            stat: Stat = await self._call(request, decode_stat, path, fresh=fresh)
        except NoNodeError:
            return None
        return stat

    async def children(self, path: str, *, fresh: bool = False) -> tuple[list[str], Stat]:
        """The children's names, unordered, and the znode's own Stat."""
        request = protocol.GetChildren2Request(path=self._abs(path), watch=False)
        found: tuple[list[str], Stat] = await self._call(request, decode_children, path, fresh=fresh)
        return found

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        """Set a znode's data; version ANY_VERSION overwrites. Raises BadVersionError, NoNodeError."""
        request = protocol.SetDataRequest(path=self._abs(path), data=data, version=version)
        stat: Stat = await self._call(request, decode_stat, path)
        return stat

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False, parents: bool = False
    ) -> Created:
        """Create a znode. parents: create missing parents too, empty and permanent. Raises NodeExistsError, or
        NoNodeError without a parent."""
        request = create_request(self._abs(path), data, ephemeral=ephemeral, sequential=sequential)
        while True:
            try:
                created: Created = await self._call(request, decode_created, path)
            except NoNodeError:
                if not parents or path.count("/") < 2:
                    raise
                await self.ensure_path(path.rpartition("/")[0])
            else:
                return Created(self._rel(created.path), created.stat)

    async def ensure_path(self, path: str) -> None:
        """Create the znode and its parents, empty, if they are missing."""
        try:
            await self.create(path, parents=True)
        except NodeExistsError:
            return

    async def delete(self, path: str, version: int) -> None:
        """Delete a znode; version ANY_VERSION is not checked. Raises BadVersionError, NoNodeError, NotEmptyError."""
        await self._call(protocol.DeleteRequest(path=self._abs(path), version=version), decode_nothing, path)

    async def multi(self, ops: Sequence[Op]) -> list[Any]:
        """Perform all operations or none; results in order (see the operations). Raises MultiFailedError."""
        if not ops:
            return []
        absolute = [type(op)(self._abs(op.path), *(getattr(op, name) for name in _FIELDS[type(op)])) for op in ops]
        results: list[Any] = await self._call(multi_request(absolute), decode_multi(ops), ops[0].path)
        return [Created(self._rel(r.path), r.stat) if isinstance(r, Created) else r for r in results]

    async def sync(self, path: str) -> None:
        """Let the connected server catch up with the leader."""
        await self._call(protocol.SyncRequest(path=self._abs(path)), decode_nothing, path)

    async def ephemerals(self, prefix: str = "/") -> list[str]:
        """Paths of this session's ephemeral znodes below `prefix`."""
        found: list[str] = await self._call(GetEphemeralsRequest(prefix=self._abs(prefix)), decode_ephemerals, prefix)
        return [self._rel(path) for path in found]

    async def add_auth(self, scheme: str, credential: bytes) -> None:
        """Authenticate this session, now and after every reconnect. Raises AuthFailedError."""
        request = protocol.AuthRequest(type=0, scheme=scheme, auth=credential)
        await self._call(request, decode_nothing, scheme, xid=XID_AUTH)
        self._credentials.append((scheme, credential))

    def watch_data(self, path: str, callback: WatchCallback) -> Unsubscribe:
        """Call `callback()` when the znode may have been created, changed or deleted."""
        return self._watches.add_data(self._abs(path), callback)

    def watch_children(self, path: str, callback: WatchCallback) -> Unsubscribe:
        """Call `callback()` when the set of the znode's children may have changed."""
        return self._watches.add_children(self._abs(path), callback)

    def watch_tree(self, path: str, callback: TreeCallback) -> Unsubscribe:
        """Call `callback(path)` for each change at or below `path`, with None if any number may have been missed. Needs
        ZooKeeper 3.6. Do not combine with the other kinds of watch on one path."""
        return self._watches.add_tree(self._abs(path), callback)

    def tree_is_watched(self, path: str) -> bool:
        """Whether every change at or below `path` since the last `callback(None)` has been or will be reported."""
        return self._watches.tree_is_set(self._abs(path))

    def tree_reported_zxid(self, path: str) -> int:
        """For `callback(None)` of a tree's watch: the zxid up to which every change at or below `path` was reported. 0:
        unknown, or of an earlier session."""
        return self._watches.tree_reported_zxid(self._abs(path))

    async def close(self) -> None:
        """End the session (a reachable server removes its ephemerals at once) and fail waiting calls. Takes about a
        second at most; idempotent. Cancelling only stops the wait for the server: the session ends in any case."""
        self._closing = True
        connection = self._connection
        try:
            if connection is not None and not connection.is_closed:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await connection.ask(protocol.CloseRequest(), decode_nothing)
        except (TimeoutError, ConnectionLossError):
            pass
        finally:
            if connection is not None:
                connection.drop("closed")
            if self._task is not None:
                self._task.cancel()
            self._lose("closed")
            self._attached.set()  # let waiting calls see that the session is closed
        if self._task is not None:
            await asyncio.wait((self._task,))

    # ---- the session's task ----------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Connect, keep the session alive, reconnect; until `close` cancels it."""
        pause_s = BACKOFF_MIN_S
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            connection = await self._attach()
            if connection is not None:
                await self._keep_alive(connection)
                self._detach(connection)
                if loop.time() - began_s > BACKOFF_MAX_S:
                    pause_s, failures = BACKOFF_MIN_S, 0
                    continue  # the connection lasted: try the next address at once
            failures += 1
            if failures % self._servers.size == 0:
                await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.5))
                pause_s = min(2 * pause_s, BACKOFF_MAX_S)

    async def _attach(self) -> Connection | None:
        """Try the next address once: resolve it, connect and shake hands, within time limits. None: it failed."""
        loop = asyncio.get_running_loop()
        session_id = self.session_id
        connection = Connection(self._received_event)
        try:
            async with asyncio.timeout(self._limit_s()):
                host, port = await self._servers.next()
            async with asyncio.timeout(self._limit_s()):
                await loop.create_connection(lambda: connection, host, port)
                given, password, timeout_s = await connection.shake_hands(
                    session_id=session_id,
                    password=self._password if session_id else bytes(16),
                    timeout_ms=int(self._asked_timeout_s * 1000),
                    last_zxid=self._last_zxid,
                )
        except (OSError, TimeoutError, ConnectionLossError) as error:
            connection.drop(f"no handshake: {error}")
            return None
        except BaseException:
            connection.drop("cancelled")
            raise
        if session_id != self.session_id or given == 0 or timeout_s <= 0:
            connection.drop("session expired")
            if session_id == self.session_id:
                self._lose("the server says so")
            return None
        self._joined(connection, given, password, timeout_s)
        return connection

    def _limit_s(self) -> float:
        """How long to try one address: all take at most half a session timeout, and none outlasts the session."""
        limit_s = max(0.1, self._asked_timeout_s / (2 * self._servers.size))
        if not self.session_id:
            return limit_s
        return min(limit_s, max(0.0, self._contact_s + self.timeout_s - asyncio.get_running_loop().time()))

    def _joined(self, connection: Connection, session_id: int, password: bytes, timeout_s: float) -> None:
        """Send credentials and watches before any other request on this connection, then enter CONNECTED."""
        same = session_id == self.session_id
        self.session_id, self._password, self.timeout_s = session_id, password, timeout_s
        if not same:
            self.generation += 1
        self._connection = connection
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for scheme, credential in self._credentials:
            request = protocol.AuthRequest(type=0, scheme=scheme, auth=credential)
            connection.submit(request, decode_nothing, drop_if_refused(connection), scheme, xid=XID_AUTH)
        self._watches.set_all(connection, is_new_session=not same)
        self._enter(SessionState.CONNECTED)
        self._attached.set()

    async def _keep_alive(self, connection: Connection) -> None:
        """Keep the session alive; return when the connection has ended or is useless."""
        loop = asyncio.get_running_loop()
        ping_s, silence_s = self.timeout_s / 3, self.timeout_s * 2 / 3
        next_ping_s = loop.time() + ping_s
        while not connection.is_closed:
            now_s = loop.time()
            if now_s - connection.last_answered_s >= self.timeout_s:
                self._contact_s = connection.last_answered_s
                connection.drop("nothing answered for a whole session timeout")
                self._lose("out of contact")
            elif now_s - connection.last_received_s >= silence_s:
                connection.drop(f"silent for {silence_s:.1f} s")
            else:
                if now_s >= next_ping_s:
                    connection.ping()
                    next_ping_s = now_s + ping_s
                wait_s = min(next_ping_s, connection.last_received_s + silence_s) - now_s
                await asyncio.wait((connection.closed,), timeout=max(wait_s, 0.001))

    def _detach(self, connection: Connection) -> None:
        self._connection = None
        self._attached.clear()
        self._watches.detached()
        if self.session_id:
            self._last_zxid = max(self._last_zxid, connection.last_zxid)
            self._contact_s = connection.last_answered_s
            self._enter(SessionState.SUSPENDED)
            at_s = self._contact_s + self.timeout_s
            self._expiry = asyncio.get_running_loop().call_at(at_s, self._lose, "out of contact")

    def _lose(self, reason: str) -> None:
        """Forget the session for good. reason: for debugging only."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self.session_id, self._password, self._last_zxid = 0, b"", 0
        if self._state is not SessionState.LOST:
            self._enter(SessionState.LOST)
            if not self._closing:
                self._watches.session_lost()

    def _enter(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        loop = asyncio.get_running_loop()
        for callback in list(self._state_callbacks.values()):
            loop.call_soon(callback, state)

    def _received_event(self, kind: int, path: str) -> None:
        self._watches.event_received(kind, path)

    # ---- requests --------------------------------------------------------------------------------------------------

    async def _call(
        self, request: Any, decode: Callable[[bytes], Any], path: str, *, xid: int = 0, fresh: bool = False
    ) -> Any:
        futures: list[asyncio.Future[Any]] = []
        try:
            async with asyncio.timeout(self._request_timeout_s):
                connection = await self._wait_connection()
                if fresh:
                    futures.append(self._ask_sync(connection, path))
                futures.append(connection.ask(request, decode, path, xid=xid))
                if fresh:
                    await futures[0]
                return await futures[-1]
        except TimeoutError:
            raise self._late(bool(futures), path) from None
        finally:
            while futures:  # an error raised by one of them refers to this frame, which must not refer to the error
                _forget(futures.pop())

    def _ask_sync(self, connection: Connection, path: str) -> asyncio.Future[Any]:
        return connection.ask(protocol.SyncRequest(path=self._abs(path)), decode_nothing, path)

    async def _get_some(self, paths: Sequence[str], *, fresh: bool) -> list[ReadResult]:
        absolute = [self._abs(path) for path in paths]
        found: list[ReadResult] = await self._call(
            MultiReadRequest(absolute), decode_many(paths), paths[0], fresh=fresh
        )
        return found

    def _note_rights(self, path: str, *, is_unreadable: bool) -> None:
        """Report an unreadable znode, unless that was done; forget one that is not."""
        if not is_unreadable:
            self._unreadable.pop(path, None)
        elif path not in self._unreadable:
            self._unreadable[path] = None
            while len(self._unreadable) > UNREADABLE_MAX:
                del self._unreadable[next(iter(self._unreadable))]
            for callback in list(self._unreadable_callbacks.values()):
                callback(path)

    async def _wait_connection(self) -> Connection:
        while self._connection is None or self._connection.is_closed:
            if self._closing:
                raise ClosedError("this ZooKeeper session was closed")
            if self._connection is not None:
                await asyncio.sleep(0)  # it was just dropped; the session's task detaches it
            await self._attached.wait()
        if self._closing:
            raise ClosedError("this ZooKeeper session was closed")
        return self._connection

    def _late(self, written: bool, path: str) -> Exception:
        waited = f"path={path} waited_s={self._request_timeout_s:g}"
        if written:
            return ConnectionLossError(f"no answer in time, the outcome is unknown: {waited}")
        return NotConnectedError(f"no ZooKeeper connection in time: {waited}")

    def _abs(self, path: str) -> str:
        if not path.startswith("/") or (path.endswith("/") and path != "/") or "//" in path:
            raise InvalidRequestError(f"not a znode path: path={path}")
        return (self._chroot + path) if path != "/" else (self._chroot or "/")

    def _rel(self, path: str) -> str:
        return path.removeprefix(self._chroot) or "/"


_FIELDS: dict[type, tuple[str, ...]] = {
    Create: ("data", "ephemeral", "sequential"),
    Set: ("data", "version"),
    Delete: ("version",),
    Check: ("version",),
}


def report_crash(task: asyncio.Task[None]) -> None:
    """Report the exception of a background task at once; its owner awaits the task only at close."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": f"{task.get_name()} died", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)


def _forget(future: asyncio.Future[Any]) -> None:
    """Cancel the future, or mark its error as seen: no caller waits for it any more."""
    if not future.done():
        future.cancel()
    elif not future.cancelled():
        future.exception()
