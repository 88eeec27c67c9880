"""dlog's ZooKeeper client and kazoo behind one interface, so that the same script can drive either.

An outcome is ("ok", value), or the name of a refusal, or ("unknown",) for a write whose connection ended before its
reply. Stats come without times, with zxids counted from the script's start and session ids by order of appearance.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol.states import Callback, EventType
from kazoo.retry import KazooRetry

from dlog.io.metadata import SessionState, Unsubscribe
from dlog.io.zookeeper import Check, ConnectionLossError, Create, Delete, Set, Stat, ZooKeeper
from dlog.io.zookeeper_protocol import MultiFailedError, Op, ZnodeError
from tests.integration.zookeeper.raw import RawSession, SessionIds

SESSION_TIMEOUT_S = 10.0
UNKNOWN = ("unknown",)

Outcome = tuple[Any, ...]


class Shown:
    """The part of a server's answers that two runs of a script have in common."""

    def __init__(self, zxid: int) -> None:
        self._zxid = zxid
        self._ids = SessionIds()

    def stat(self, stat: Sequence[int]) -> Outcome:
        czxid, mzxid, ctime, mtime, version, cversion, aversion, owner, size, children, pzxid = stat
        assert ctime <= mtime
        zxids = tuple(zxid - self._zxid for zxid in (czxid, mzxid, pzxid))
        return *zxids, version, cversion, aversion, self._ids.ordinal(owner), size, children


class Driver(Protocol):
    """A session; it reconnects when its connection is cut."""

    told: list[str]  # paths of watches that fired, or whose owner was told to read again

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    def create(self, path: str, data: bytes, ephemeral: bool, sequential: bool) -> Coroutine[Any, Any, Outcome]: ...
    def delete(self, path: str, version: int) -> Coroutine[Any, Any, Outcome]: ...
    def set(self, path: str, data: bytes, version: int) -> Coroutine[Any, Any, Outcome]: ...
    def get(self, path: str) -> Coroutine[Any, Any, Outcome]: ...
    def exists(self, path: str) -> Coroutine[Any, Any, Outcome]: ...
    def children(self, path: str) -> Coroutine[Any, Any, Outcome]: ...
    def multi(self, ops: Sequence[Op]) -> Coroutine[Any, Any, Outcome]: ...
    async def watch_data(self, path: str) -> None: ...
    async def watch_children(self, path: str) -> None: ...
    async def settled(self) -> None:
        """Return once connected, when all watches for earlier changes have fired."""
        ...

    def identity(self) -> tuple[int, bytes]: ...
    def forget_watches(self) -> None: ...
    async def lost(self) -> None:
        """Wait until the session is over."""
        ...


class OurDriver:
    def __init__(self, hosts: str, shown: Shown) -> None:
        self._hosts, self._shown = hosts, shown
        self._zk: ZooKeeper
        self._watches: dict[tuple[str, str], Unsubscribe] = {}
        self.told: list[str] = []

    async def open(self) -> None:
        self._zk = await ZooKeeper.connect(self._hosts, session_timeout_s=SESSION_TIMEOUT_S)

    async def close(self) -> None:
        self.forget_watches()
        await self._zk.close()

    async def create(self, path: str, data: bytes, ephemeral: bool, sequential: bool) -> Outcome:
        created = await self._try(lambda: self._zk.create(path, data, ephemeral=ephemeral, sequential=sequential))
        return ("ok", created[1].path, self._shown.stat(created[1].stat)) if created[0] == "ok" else created

    async def delete(self, path: str, version: int) -> Outcome:
        return await self._try(lambda: self._zk.delete(path, version))

    async def set(self, path: str, data: bytes, version: int) -> Outcome:
        return await self._try(lambda: self._zk.set(path, data, version))

    async def get(self, path: str) -> Outcome:
        found = await self._try(lambda: self._zk.get(path))
        return ("ok", found[1][0], self._shown.stat(found[1][1])) if found[0] == "ok" else found

    async def exists(self, path: str) -> Outcome:
        return await self._try(lambda: self._zk.exists(path))

    async def children(self, path: str) -> Outcome:
        found = await self._try(lambda: self._zk.children(path))
        return ("ok", sorted(found[1][0]), self._shown.stat(found[1][1])) if found[0] == "ok" else found

    async def multi(self, ops: Sequence[Op]) -> Outcome:
        try:
            results = await self._zk.multi(ops)
        except MultiFailedError as failed:
            return "multi", failed.index, name_of(failed.error)
        except ConnectionLossError:
            return UNKNOWN
        return "ok", [r.path if hasattr(r, "path") else self._shown.stat(r) if r else None for r in results]

    async def watch_data(self, path: str) -> None:
        self._watch("data", path, self._zk.watch_data)

    async def watch_children(self, path: str) -> None:
        self._watch("children", path, self._zk.watch_children)

    async def settled(self) -> None:
        for _ in range(3):  # an event, the watch set again for it, and the event of that one
            while (await self._try(lambda: self._zk.exists("/")))[0] != "ok":
                await self._zk.wait_connected()

    def identity(self) -> tuple[int, bytes]:
        return self._zk.session_id, self._zk._password

    def forget_watches(self) -> None:
        for unsubscribe in self._watches.values():
            unsubscribe()
        self._watches.clear()
        self.told.clear()

    async def lost(self) -> None:
        """Wait for another session."""
        lost = asyncio.Event()

        def heard(state: SessionState) -> None:
            if state is SessionState.LOST:
                lost.set()

        unsubscribe = self._zk.on_state(heard)
        await lost.wait()
        unsubscribe()

    def _watch(self, kind: str, path: str, watch: Callable[[str, Callable[[], None]], Unsubscribe]) -> None:
        """Watch for one event, as kazoo's watches do."""
        if (kind, path) not in self._watches:

            def heard() -> None:
                unsubscribe = self._watches.pop((kind, path), None)
                if unsubscribe is not None:
                    unsubscribe()
                    self.told.append(f"{kind} {path}")

            self._watches[kind, path] = watch(path, heard)

    async def _try(self, call: Callable[[], Awaitable[Any]]) -> Outcome:
        try:
            value = await call()
        except ConnectionLossError:
            return UNKNOWN
        except ZnodeError as error:
            return (name_of(error),)
        return "ok", self._shown.stat(value) if isinstance(value, Stat) else value


class KazooDriver:
    def __init__(self, hosts: str, shown: Shown) -> None:
        self._hosts, self._shown = hosts, shown
        self._client: Any
        self._watches: dict[tuple[str, str], None] = {}
        self.told: list[str] = []
        self._lost = threading.Event()

    async def open(self) -> None:
        retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=0.2)
        self._client = KazooClient(hosts=self._hosts, timeout=SESSION_TIMEOUT_S, connection_retry=retry)
        self._client.add_listener(lambda state: self._lost.set() if state == "LOST" else None)
        await asyncio.to_thread(self._client.start)

    async def close(self) -> None:
        self.forget_watches()
        await asyncio.to_thread(self._client.stop)
        await asyncio.to_thread(self._client.close)

    async def create(self, path: str, data: bytes, ephemeral: bool, sequential: bool) -> Outcome:
        created = await self._try(
            self._client.create, path, data, ephemeral=ephemeral, sequence=sequential, include_data=True
        )
        return ("ok", created[1][0], self._shown.stat(created[1][1])) if created[0] == "ok" else created

    async def delete(self, path: str, version: int) -> Outcome:
        deleted = await self._try(self._client.delete, path, version=version)
        return ("ok", None) if deleted[0] == "ok" else deleted

    async def set(self, path: str, data: bytes, version: int) -> Outcome:
        changed = await self._try(self._client.set, path, data, version=version)
        return ("ok", self._shown.stat(changed[1])) if changed[0] == "ok" else changed

    async def get(self, path: str) -> Outcome:
        found = await self._try(self._client.get, path)
        return ("ok", found[1][0], self._shown.stat(found[1][1])) if found[0] == "ok" else found

    async def exists(self, path: str) -> Outcome:
        found = await self._try(self._client.exists, path)
        return ("ok", self._shown.stat(found[1]) if found[1] else None) if found[0] == "ok" else found

    async def children(self, path: str) -> Outcome:
        found = await self._try(self._client.get_children, path, include_data=True)
        return ("ok", sorted(found[1][0]), self._shown.stat(found[1][1])) if found[0] == "ok" else found

    async def multi(self, ops: Sequence[Op]) -> Outcome:
        transaction = self._client.transaction()
        for op in ops:
            match op:
                case Create():
                    transaction.create(op.path, op.data, ephemeral=op.ephemeral, sequence=op.sequential)
                case Set():
                    transaction.set_data(op.path, op.data, op.version)
                case Delete():
                    transaction.delete(op.path, op.version)
                case Check():
                    transaction.check(op.path, op.version)
        done = await self._try(transaction.commit)
        if done[0] != "ok":
            return done
        for index, result in enumerate(done[1]):
            if isinstance(result, Exception) and not isinstance(result, kazoo_errors.RolledBackError):
                return "multi", index, name_of(result)
        return "ok", [
            result if isinstance(result, str) else None if result is True else self._shown.stat(result)
            for result in done[1]
        ]

    async def watch_data(self, path: str) -> None:
        if ("data", path) not in self._watches:
            self._watches["data", path] = None
            await asyncio.to_thread(self._client.exists, path, watch=self._heard("data", path))

    async def watch_children(self, path: str) -> None:
        if ("children", path) not in self._watches:
            self._watches["children", path] = None
            await asyncio.to_thread(self._client.get_children, path, watch=self._heard("children", path))

    async def settled(self) -> None:
        while (await self._try(self._client.exists, "/"))[0] != "ok":
            await asyncio.to_thread(self._client._live.wait)
        done = threading.Event()
        self._client.handler.dispatch_callback(Callback("watch", done.set, ()))
        await asyncio.to_thread(done.wait)

    def identity(self) -> tuple[int, bytes]:
        session_id, password = self._client.client_id
        return session_id, password

    def forget_watches(self) -> None:
        self._watches.clear()
        self.told.clear()
        self._lost.clear()

    async def lost(self) -> None:
        await asyncio.to_thread(self._lost.wait)

    def _heard(self, kind: str, path: str) -> Callable[[Any], None]:
        def heard(event: Any) -> None:
            """On a lost connection kazoo drops its watches, and tells their owners."""
            if (kind, path) in self._watches:
                del self._watches[kind, path]
                self.told.append(f"{kind} {path}" if event.type != EventType.NONE else f"cut {kind} {path}")

        return heard

    async def _try(self, call: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
        try:
            return "ok", await asyncio.to_thread(call, *args, **options)
        except (kazoo_errors.ConnectionLoss, kazoo_errors.SessionExpiredError):
            return UNKNOWN
        except kazoo_errors.KazooException as error:
            return (name_of(error),)


def name_of(error: Exception) -> str:
    """The name of an error, the same for both clients: by the server's code."""
    code = getattr(error, "code", None) if not isinstance(error, ZnodeError) else error.zookeeper_code
    names = {-101: "NoNode", -103: "BadVersion", -110: "NodeExists", -111: "NotEmpty"}
    return names.get(code or 0, "other refusal")


async def end_session(hosts: str, session_id: int, password: bytes) -> None:
    """Close a session from outside, as its expiry would. The session's client may reconnect between request and
    reply."""
    session = RawSession(SessionIds())
    while True:
        session.session_id, session.password = session_id, password
        if (await session.attach(hosts.partition("/")[0], fresh=False))[0] == 0:
            break
        if await session.ask("close") != "closed":
            break
    session.abort()
