"""The metadata ports on a real ZooKeeper, in a layout that BookKeeper's and DistributedLog's own tools can use.

It only combines zookeeper_ledgers.py, zookeeper_streams.py, zookeeper_members.py and the session in zookeeper.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial

from dlog.errors import CookieError, MetadataUnavailableError
from dlog.io.metadata import BookieInfo, CookieCheck, Members, ProxyInfo, SessionState, StreamHead, Unsubscribe
from dlog.io.zookeeper import ZooKeeper, report_crash
from dlog.io.zookeeper_cluster import check_layout, read_instance_id
from dlog.io.zookeeper_election import AuditorElection
from dlog.io.zookeeper_layout import PROXY_ROLES, LedgerPaths, StreamPaths
from dlog.io.zookeeper_ledgers import ZooKeeperLedgers
from dlog.io.zookeeper_members import MEMBERS, MemberList, MemberOptions, Registrations, encode_proxy
from dlog.io.zookeeper_protocol import (
    BadVersionError,
    ConnectionLossError,
    Create,
    Delete,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NotConnectedError,
    Op,
    Set,
)
from dlog.io.zookeeper_streams import ZooKeeperStreams
from dlog.io.zookeeper_underreplication import ZooKeeperUnderreplication
from dlog.machine import Conflict, Key, Missing, Outcome, OutcomeUnknown, Versioned
from dlog.model.ids import BookieId, LedgerId, ProxyId, StreamName
from dlog.model.ledger import LedgerKey, LedgerMetadata
from dlog.model.segment import StreamKey, StreamMetadata
from dlog.wire.bookie_info import encode_address

READ_AGAIN_S = 0.1


class ZooKeeperMetadata:
    """Implements Metadata (dlog/io/metadata.py) for one cluster and one namespace. Made by `connect`."""

    def __init__(
        self, zk: ZooKeeper, ledgers: LedgerPaths, streams: StreamPaths, members: MemberOptions, rng: random.Random
    ) -> None:
        self.zookeeper = zk
        self._paths = ledgers
        self._stream_paths = streams
        self._ledgers = ZooKeeperLedgers(zk, ledgers, rng)
        self._streams = ZooKeeperStreams(zk, streams, rng)
        self._registrations = Registrations(zk)
        self._members = MemberList(zk, ledgers, streams, members, rng)
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        hosts: str,
        namespace: str,
        *,
        ledgers_root: str = "/ledgers",
        session_timeout_s: float = 10.0,
        connect_timeout_s: float = 10.0,
        members: MemberOptions = MEMBERS,
        rng: random.Random | None = None,
    ) -> ZooKeeperMetadata:
        """Connect to ZooKeeper and return the metadata store of a namespace. The cluster need not exist yet.

        hosts: `h1:2181,h2:2181[/chroot]`. namespace: znode path, such as `/dlog`. If the connection is lost during
        these first requests, they are repeated until connect_timeout_s is over. Raises MetadataUnavailableError;
        UnsupportedVersionError for another ledger layout; ConfigError.
        """
        rng = rng or random.SystemRandom()
        begun_s = asyncio.get_running_loop().time()
        ledgers, streams = LedgerPaths(ledgers_root), StreamPaths(namespace)
        zk = await ZooKeeper.connect(
            hosts, session_timeout_s=session_timeout_s, connect_timeout_s=connect_timeout_s, rng=rng
        )
        try:
            self = cls(zk, ledgers, streams, members, rng)
            await self._read_first(ledgers, begun_s + connect_timeout_s)
        except BaseException:
            await zk.close()
            raise
        self._task = asyncio.get_running_loop().create_task(self._live(), name=f"metadata {hosts}")
        self._task.add_done_callback(report_crash)
        return self

    async def _read_first(self, ledgers: LedgerPaths, until_s: float) -> None:
        """Read what every process needs; a request that is lost meanwhile is repeated until this time of the loop."""
        while True:
            try:
                await check_layout(self.zookeeper, ledgers)
                await self._members.read()
            except (ConnectionLossError, NotConnectedError):
                if asyncio.get_running_loop().time() >= until_s:
                    raise
                await asyncio.sleep(READ_AGAIN_S)
            else:
                return

    async def __aenter__(self) -> ZooKeeperMetadata:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def state(self) -> SessionState:
        return self.zookeeper.state

    def on_state(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        return self.zookeeper.on_state(callback)

    def on_unreadable(self, callback: Callable[[str], None]) -> Unsubscribe:
        return self.zookeeper.on_unreadable(callback)

    def unresponsive_s(self) -> float:
        return self.zookeeper.unresponsive_s

    # ---- ledgers and streams ---------------------------------------------------------------------------------------

    async def read(self, key: Key) -> Outcome:
        if isinstance(key, LedgerKey):
            return await self._ledgers.read(key.ledger)
        assert isinstance(key, StreamKey)
        return await self._streams.read(key.stream)

    async def compare_and_set(self, key: Key, value: object, version: object) -> Outcome:
        """After OutcomeUnknown read again; a claim is recognised by `owner.claim`, a ledger by its value."""
        if isinstance(key, LedgerKey):
            assert isinstance(value, LedgerMetadata)
            return await self._ledgers.compare_and_set(key.ledger, value, version)
        assert isinstance(key, StreamKey)
        assert isinstance(value, StreamMetadata)
        return await self._streams.compare_and_set(key.stream, value, version)

    async def delete(self, key: LedgerKey) -> None:
        await self._ledgers.delete(key.ledger)

    async def remove(self, stream: StreamName, incarnation: str) -> None:
        await self._streams.remove(stream, incarnation)

    async def deletions(self) -> int:
        return await self._streams.deletions()

    def watch(self, key: Key, callback: Callable[[], None]) -> Unsubscribe:
        if isinstance(key, LedgerKey):
            return self._ledgers.watch(key.ledger, callback)
        assert isinstance(key, StreamKey)
        return self._streams.watch(key.stream, callback)

    async def new_ledger_id(self, ahead: int = 1) -> LedgerId:
        return await self._ledgers.new_id(ahead)

    def ledgers(self) -> AsyncIterator[LedgerId]:
        return self._ledgers.ids()

    async def streams(self) -> list[StreamName]:
        return await self._streams.names()

    async def stream_heads(self, streams: Sequence[StreamName]) -> list[StreamHead | None]:
        return await self._streams.heads(streams)

    def underreplication(self, name: str) -> ZooKeeperUnderreplication:
        """The tree of ledgers that lack copies. name: of this process, in its locks."""
        return ZooKeeperUnderreplication(self.zookeeper, self._paths, name)

    def auditor_election(self, name: str) -> AuditorElection:
        """The election of the auditor. name: of this process, in its vote."""
        return AuditorElection(self.zookeeper, self._paths.underreplication, name)

    # ---- the cluster and its members -------------------------------------------------------------------------------

    async def instance_id(self) -> str:
        """Raises ClusterNotFoundError, MetadataUnavailableError."""
        return await read_instance_id(self.zookeeper, self._paths)

    async def members(self) -> Members:
        return await self._members.read()

    def known_members(self) -> Members:
        return self._members.known

    def on_members(self, callback: Callable[[], None]) -> Unsubscribe:
        return self._members.on_change(callback)

    async def register_bookie(
        self, info: BookieInfo, *, readonly: bool = False, known: CookieCheck | None = None
    ) -> None:
        writable_path, readonly_path = self._bookie_paths(info.bookie)
        data = encode_address(info.host, info.port, info.location, summaries=info.summaries)
        condition = None if known is None else partial(self._check_cookie, info.bookie, known)
        await self._registrations.keep(readonly_path if readonly else writable_path, data, condition)
        await self._registrations.drop(writable_path if readonly else readonly_path)

    async def _check_cookie(self, bookie: BookieId, known: CookieCheck) -> Set:
        """Write the same cookie again. `forget_bookie` then finds another version, and knows that the bookie was
        registered meanwhile."""
        cookie = await known()
        assert isinstance(cookie.version, int)
        return Set(self._paths.cookie(bookie), str(cookie.value).encode(), cookie.version)

    async def unregister_bookie(self, bookie: BookieId) -> None:
        for path in self._bookie_paths(bookie):
            await self._registrations.drop(path)

    async def register_proxy(self, info: ProxyInfo) -> None:
        assert info.role in PROXY_ROLES
        await self._registrations.keep(self._stream_paths.proxy(info.role, info.proxy), encode_proxy(info))

    async def unregister_proxy(self, proxy: ProxyId) -> None:
        for role in PROXY_ROLES:
            await self._registrations.drop(self._stream_paths.proxy(role, proxy))

    async def bookies_with_cookie(self) -> frozenset[BookieId]:
        """The bookies of the cluster, whether registered or away: a cookie is kept until the bookie is taken out."""
        try:
            return frozenset(map(BookieId, (await self.zookeeper.children(self._paths.cookies, fresh=True))[0]))
        except NoNodeError:
            return frozenset()

    async def read_cookie(self, bookie: BookieId) -> Versioned | Missing:
        try:
            data, stat = await self.zookeeper.get(self._paths.cookie(bookie), fresh=True)
        except NoNodeError:
            return Missing()
        return Versioned(data.decode(errors="replace"), stat.version)  # what is not UTF-8 matches no cookie

    async def write_cookie(self, bookie: BookieId, text: str, version: object) -> None:
        path = self._paths.cookie(bookie)
        try:
            if version is None:
                await self.zookeeper.create(path, text.encode(), parents=True)
            else:
                assert isinstance(version, int)
                await self.zookeeper.set(path, text.encode(), version)
        except (NodeExistsError, BadVersionError, NoNodeError) as error:
            raise CookieError(f"another process changed the bookie's cookie; start again: bookie={bookie}") from error

    async def forget_bookie(self, bookie: BookieId, cookie: Versioned | Missing) -> bool:
        """Delete the cookie and the garbage collection mark of a bookie that no ledger names. cookie: as it was before
        ledgers were looked at. Returns False, and deletes nothing, if the bookie is registered or was since then.
        Idempotent."""
        await self.zookeeper.ensure_path(self._paths.readonly)
        seen = cookie.version if isinstance(cookie, Versioned) else None
        path_of_cookie = self._paths.cookie(bookie)
        while True:
            ops: list[Op] = []
            for path in self._bookie_paths(bookie):
                ops += [Create(path), Delete(path)]  # refused if the znode exists
            if await self.zookeeper.exists(self._stream_paths.mark(bookie), fresh=True) is not None:
                ops.append(Delete(self._stream_paths.mark(bookie)))
            if (stat := await self.zookeeper.exists(path_of_cookie, fresh=True)) is not None:
                if stat.version != seen:
                    return False
                ops.append(Delete(path_of_cookie, stat.version))
            try:
                await self.zookeeper.multi(ops)
            except MultiFailedError as failed:
                if isinstance(failed.error, NodeExistsError | BadVersionError):
                    return False
                if not isinstance(failed.error, NoNodeError):  # else another process deleted it
                    raise
            else:
                return True

    async def read_gc_mark(self, bookie: BookieId) -> Versioned | Missing:
        try:
            data, stat = await self.zookeeper.get(self._stream_paths.mark(bookie), fresh=True)
        except NoNodeError:
            return Missing()
        return Versioned(data.decode(errors="replace"), stat.version)

    async def write_gc_mark(self, bookie: BookieId, text: str, version: object) -> Outcome:
        path = self._stream_paths.mark(bookie)
        try:
            if version is None:
                created = await self.zookeeper.create(path, text.encode(), parents=True)
                return Versioned(text, created.stat.version)
            assert isinstance(version, int)
            stat = await self.zookeeper.set(path, text.encode(), version)
        except NoNodeError:
            return Missing()
        except (NodeExistsError, BadVersionError):
            return Conflict()
        except MetadataUnavailableError as error:
            return OutcomeUnknown(error.message)
        return Versioned(text, stat.version)

    async def read_store_identity(self, store: str) -> str | None:
        try:
            data, _ = await self.zookeeper.get(self._stream_paths.store_identity(store), fresh=True)
        except NoNodeError:
            return None
        return data.decode(errors="replace")

    async def record_store_identity(self, store: str, identity: str) -> None:
        with suppress(NodeExistsError):
            await self.zookeeper.create(self._stream_paths.store_identity(store), identity.encode(), parents=True)

    async def close(self) -> None:
        """End the registrations and the session, even if the wait is cancelled. Idempotent."""
        task, self._task = self._task, None
        try:
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        finally:
            self._registrations.close()
            self._members.close()
            self._streams.close()
            await self.zookeeper.close()

    # ---- underneath ------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._registrations.run(), name="registrations")
            tasks.create_task(self._members.run(), name="members")
            tasks.create_task(self._streams.run(), name="streams")

    def _bookie_paths(self, bookie: BookieId) -> tuple[str, str]:
        return f"{self._paths.available}/{bookie}", f"{self._paths.readonly}/{bookie}"
