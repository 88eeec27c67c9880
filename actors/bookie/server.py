"""Actor of a bookie: its state machine, disk threads and connections on one event loop.

It does not use the general driver because its effects on storage are its own.

Invariants:
- facts reach the state machine one at a time, and effects are performed in order after `handle` returned;
- at the end of a turn the journal gets all data to write, and every connection one write;
- after a failure that durability depends on, nothing more is acknowledged and `run` raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from actors.bookie.collection import CollectionMetadata, GarbageCollection
from actors.bookie.connection import Connection
from actors.bookie.moved_copies import MovedCopiesCollection, OtherCopies
from dlog.bookie.bookie import Bookie
from dlog.bookie.events import BookieRefused, PlainRefused
from dlog.bookie.garbage_collection import GarbageCollector, MarkRecord
from dlog.bookie.messages import (
    CheckpointDue,
    CollectAsked,
    CollectDue,
    CollectionResult,
    CopiesToFree,
    Fetch,
    Flush,
    Flushed,
    IndexRewritten,
    IndexWithout,
    InputEnded,
    LedgersNew,
    ListStored,
    MarkLedgersDeleted,
    PollWaits,
    SpaceAsked,
    SpaceSeen,
    SummarizeStored,
)
from dlog.bookie.options import BookieOptions
from dlog.errors import DLogError, MetadataUnavailableError
from dlog.events import Event
from dlog.io.bookie_disk import BookieDisk
from dlog.io.bookie_store import OpenedStorage
from dlog.io.disk import Disk
from dlog.io.metadata import BookieInfo, CookieCheck, Membership
from dlog.io.threads import Threads
from dlog.machine import (
    CancelTimer,
    Emit,
    Peer,
    PeerLost,
    Persist,
    Received,
    Send,
    SetTimer,
    TimerFired,
    Token,
    Versioned,
)
from dlog.model.ids import BookieId, LedgerId
from dlog.wire.bookie import Code, CollectionReport, CollectionState
from dlog.wire.bookie_v3_messages import SpaceReply

PLAIN_EVENT_S = 60.0  # between two events of refused plain connections
ABANDON_S = 2.0  # to wait for threads that may hang in a failed disk


class Listening(Protocol):
    """Listening sockets."""

    def close(self) -> None:
        """Accept no more connections."""
        ...


#: starts a server whose connections the given factory builds, e.g. loop.create_server on a bound socket
Listen = Callable[[Callable[[], Connection]], Awaitable[Listening]]


class DiskFailedError(DLogError):
    """A write or fdatasync failed, or the state machine raised: the bookie acknowledges nothing more and ends."""


class BookieMetadata(CollectionMetadata, Membership, Protocol):
    """The metadata that a bookie needs: its registration and cookie, and ledgers for garbage collection."""


class BookieServer:
    """Serves one opened storage.

    on_event: called with every event. directories: their free space is watched. threads: run blocking calls. tls: the
    certificate for clients that send START_TLS; None: they are refused.
    """

    def __init__(
        self,
        options: BookieOptions,
        disk: Disk,
        opened: OpenedStorage,
        directories: tuple[str, ...],
        threads: Threads,
        *,
        on_event: Callable[[Event], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._options = options
        self._tls = tls
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._tasks: asyncio.TaskGroup  # of `run`
        self._on_event = on_event
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self.machine = Bookie(
            options,
            opened.rows,
            limbo=opened.limbo,
            gone=opened.dirs.gone(),
            moved=opened.dirs.moved(),
            journals=len(opened.journals),
        )
        opened.rows = []
        self._disk = BookieDisk(
            disk,
            opened,
            options,
            directories,
            threads,
            post=self._post,
            on_failed=self._fail,
            on_event=self._emit_from_thread,
        )
        self._facts: deque[Any] = deque()
        self._dirty: list[Connection] = []
        self._connections: dict[Connection, None] = {}  # in order of arrival, so that runs are repeatable
        self._received_bytes = 0  # of incomplete frames, all connections
        self._next_plain_event_s = 0.0  # until then no refused plain connection is reported
        self._closing = False  # no client is left, and the disk workers stop
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()
        self._refusal: asyncio.Future[DLogError] = self._loop.create_future()  # why it must not be registered any more
        self._standing_changed = asyncio.Event()  # perhaps: read-only or writable must be registered again
        self._flushed = asyncio.Event()
        self._collect_now = asyncio.Event()  # a collection is due
        self._ledgers_new = asyncio.Event()  # the state machine has new ledgers
        self._collection: GarbageCollection | None = None
        self._rewriting: asyncio.Future[IndexRewritten] | None = None  # of the index without moved copies
        self._perform_by_class: dict[type[Any], Callable[[Any], None]] = {
            Send: self._perform_send,
            Persist: self._perform_persist,
            Fetch: self._disk.fetch,
            Flush: self._disk.flush,
            MarkLedgersDeleted: self._disk.bury,
            IndexWithout: self._disk.drop_entries,
            CollectDue: lambda _: self._collect_now.set(),
            CollectAsked: self._perform_collect_asked,
            LedgersNew: lambda _: self._ledgers_new.set(),
            Emit: self._perform_emit,
            SetTimer: self._perform_set_timer,
            CancelTimer: self._perform_cancel_timer,
            ListStored: self._disk.list,
            SummarizeStored: self._disk.summarize,
            SpaceAsked: self._perform_space_asked,
            PollWaits: self._perform_poll_waits,
        }
        self._timers: dict[Token, asyncio.TimerHandle] = {}

    # ---- running -----------------------------------------------------------------------------------------------------

    async def run(
        self,
        listen: Listen,
        stopping: asyncio.Event,
        *,
        metadata: BookieMetadata | None = None,
        info: BookieInfo | None = None,
        collector: GarbageCollector | None = None,
        others: OtherCopies | None = None,
        known: CookieCheck | None = None,
        on_ready: Callable[[], None],
    ) -> None:
        """Serve until `stopping` is set, then drain: answer accepted requests, checkpoint, close.

        metadata, info: where and how to register. on_ready: called once clients can find this bookie. collector:
        decides which ledgers are deleted; None: all are kept. others: copies on other bookies; None: copies that were
        moved there are kept here, too. known: checks before each registration, also in later
        sessions, that the cluster still knows the bookie; it ends with the CookieError that this raises. Raises
        DiskFailedError; everything acknowledged is then in the storage, and the next start replays it.
        """
        self._disk.start()
        self._perform(SpaceSeen(await self._threads.run(self._disk.free_bytes)))
        self._settle()
        server = await listen(self._connect)
        try:
            async with asyncio.TaskGroup() as task_group:
                self._tasks = task_group
                tasks = [
                    task_group.create_task(self._watch_space(), name="bookie space"),
                    task_group.create_task(self._checkpoint(), name="bookie checkpoints"),
                    task_group.create_task(self._watch_failure(), name="bookie failure"),
                    task_group.create_task(self._watch_late(), name="bookie late frames"),
                ]
                if metadata is not None and info is not None:
                    checked = None if known is None else partial(self._check_known, info.bookie, known)
                    await metadata.register_bookie(info, readonly=self.machine.read_only, known=checked)
                    tasks += [
                        task_group.create_task(
                            self._keep_registered(metadata, info, checked), name="bookie registration"
                        ),
                        task_group.create_task(self._watch_refusal(), name="bookie refusal"),
                    ]
                    if collector is not None and not self.machine.may_lack_data:
                        tasks.append(task_group.create_task(self._collect(metadata, info, collector), name="bookie gc"))
                        if others is not None and self._options.gc_moved_s:
                            instance = await metadata.instance_id()
                            moved = self._free_moved(metadata, info, collector, instance, others)
                            tasks.append(task_group.create_task(moved, name="bookie moved copies"))
                on_ready()
                await stopping.wait()
                server.close()
                self._tls = None
                for task in (*tasks, *self._handshakes):
                    task.cancel()
            if metadata is not None and info is not None:
                with contextlib.suppress(DLogError, TimeoutError):
                    async with asyncio.timeout(2.0):  # otherwise the end of the session does it
                        await metadata.unregister_bookie(info.bookie)
            await self._drain_and_checkpoint()
        except BaseExceptionGroup as group:
            self._abort(server)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ABANDON_S):  # a failed disk may also hang
                    await self._disk.abandon()
            raise group.exceptions[0] from None
        finally:
            self._abort(server)

    def _abort(self, server: Listening) -> None:
        server.close()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for connection in list(self._connections):
            connection.abort()

    async def _watch_space(self) -> None:
        while True:
            await asyncio.sleep(self._options.disk_check_s)
            self._disk.check_free_space()

    async def _watch_late(self) -> None:
        """Close connections that do not finish a request in `frame_s`: their number is limited."""
        patience_s = self._options.frame_s
        while True:
            await asyncio.sleep(patience_s / 4)
            since_s = self._loop.time() - patience_s
            for connection in tuple(self._connections):
                connection.end_if_late(since_s)

    @property
    def _has_to_checkpoint(self) -> bool:
        """Whether records of the journal, or what was learnt without one (`SeenInMetadata`), are not in the index."""
        return self._disk.has_unflushed or self.machine.is_dirty

    async def _checkpoint(self) -> None:
        """Checkpoint by time or journal size; the state machine itself flushes when its cache is full."""
        loop, options = self._loop, self._options
        last_s = loop.time()
        while True:
            await asyncio.sleep(min(1.0, options.checkpoint_s))
            late = loop.time() - last_s >= options.checkpoint_s
            if (late or self._disk.is_checkpoint_due) and self._has_to_checkpoint:
                self._perform(CheckpointDue())
                self._settle()
                last_s = loop.time()

    async def _watch_failure(self) -> None:
        await self._failed.wait()
        raise DiskFailedError(f"the bookie failed, restart it to recover: {self._failure!r}") from self._failure

    async def _check_known(self, bookie: BookieId, known: CookieCheck) -> Versioned:
        """Pass on the result of the check; an error that no retry repairs ends the bookie."""
        try:
            return await known()
        except MetadataUnavailableError:
            raise
        except DLogError as error:
            if not self._refusal.done():
                self._on_event(BookieRefused(bookie, error.message))
                self._refusal.set_result(error)
            raise

    async def _watch_refusal(self) -> None:
        raise await self._refusal

    async def _keep_registered(self, members: Membership, info: BookieInfo, known: CookieCheck | None) -> None:
        """Register as read-only or writable when that changes; Membership restores lost sessions."""
        registered = self.machine.read_only
        while True:
            await self._standing_changed.wait()
            self._standing_changed.clear()
            wanted = self.machine.read_only
            if wanted != registered:
                try:
                    await members.register_bookie(info, readonly=wanted, known=known)
                    registered = wanted
                except MetadataUnavailableError:
                    await asyncio.sleep(1.0)
                    self._standing_changed.set()

    async def _collect(self, metadata: CollectionMetadata, info: BookieInfo, collector: GarbageCollector) -> None:
        async def keep(record: MarkRecord) -> str:
            return await self._threads.run(self._disk.write_mark_record, record)

        async def compact(below: float, bytes_max: int) -> int | None:
            done: asyncio.Future[int | None] = self._loop.create_future()

            def finish(copied: int | None) -> None:
                if not done.done():  # the waiter may have been cancelled
                    done.set_result(copied)

            self._disk.compact(below, bytes_max, finish)
            return await done

        async def free() -> CollectionResult:
            done: asyncio.Future[CollectionResult] = self._loop.create_future()

            def finish(freed: CollectionResult) -> None:
                if not done.done():
                    done.set_result(freed)

            self._disk.free(finish)
            return await done

        def perform(fact: Any) -> None:
            if isinstance(fact, Emit):
                self._on_event(fact.event)
                return
            self._perform(fact)
            self._settle()

        collection = self._collection = GarbageCollection(
            self._options,
            metadata,
            info.bookie,
            self.machine,
            collector,
            self._collect_now,
            self._ledgers_new,
            perform=perform,
            keep=keep,
            free=free,
            compact=compact,
        )
        try:
            await collection.run()
        except BaseExceptionGroup as group:
            raise DiskFailedError(f"the bookie failed, restart it to recover: {group.exceptions[0]!r}") from group

    async def _free_moved(
        self,
        metadata: CollectionMetadata,
        info: BookieInfo,
        collector: GarbageCollector,
        instance: str,
        others: OtherCopies,
    ) -> None:
        def perform(fact: Any) -> None:
            self._perform(fact)
            self._settle()

        async def drop(fact: CopiesToFree) -> frozenset[LedgerId]:
            self._rewriting = self._loop.create_future()
            perform(fact)
            rewritten = await self._rewriting
            return frozenset(map(LedgerId, fact.ledgers - (set(rewritten.ledgers) - rewritten.failed)))

        await MovedCopiesCollection(
            self._options,
            metadata,
            info.bookie,
            instance,
            self.machine,
            lambda: collector.record,
            others,
            perform=perform,
            drop=drop,
            on_event=self._on_event,
        ).run()

    async def _drain_and_checkpoint(self) -> None:
        """Answer all accepted requests and write the cache to the index, so that the next start replays nothing."""
        for connection in list(self._connections):
            connection.stop_taking()
        await self._disk.stop_journals()
        self._drain()
        while self._has_to_checkpoint and not self._failed.is_set():
            self._flushed.clear()
            self._perform(CheckpointDue())
            self._settle()
            await self._flushed.wait()
            if self.machine.is_dirty and self.machine.read_only:
                break  # no room: the data stays in the journal
        for connection in list(self._connections):
            self._drop_polls(connection)  # and their timers: nothing is read from here on
            connection.close()
        self._closing = True
        await self._disk.close()
        if self._failure is not None:
            raise DiskFailedError(f"the last checkpoint failed: {self._failure!r}") from self._failure

    def _connect(self) -> Connection:
        connection = Connection(
            self._options,
            take=self._take,
            settle=self._settle,
            is_congested=lambda: self.machine.is_congested,
            out_dirty=self._dirty.append,
            on_eof=self._input_ended,
            on_lost=self._lost,
            count_bytes=self._count_received,
            is_refused=len(self._connections) >= self._options.connections_max,
            upgrade=self._upgrade if self._tls is not None else None,
            on_plain=self._plain_refused,
        )
        self._connections[connection] = None
        return connection

    def _plain_refused(self, client: str) -> None:
        now_s = self._loop.time()
        if now_s >= self._next_plain_event_s:
            self._next_plain_event_s = now_s + PLAIN_EVENT_S
            self._on_event(PlainRefused(client))

    def _upgrade(self, connection: Connection) -> None:
        if self._tls is None:
            connection.abort()  # the bookie is stopping
            return
        handshake = self._tasks.create_task(connection.start_tls(self._tls), name="bookie TLS handshake")
        self._handshakes[handshake] = None
        handshake.add_done_callback(lambda done: self._handshakes.pop(done, None))

    def _lost(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._drop_polls(connection)

    def _drop_polls(self, connection: Connection) -> None:
        for exchange in tuple(connection.polling):
            self._perform(PeerLost(exchange))
        connection.polling.clear()

    def _input_ended(self, connection: Connection) -> None:
        for exchange in tuple(connection.polling):
            self._perform(InputEnded(exchange))
        self._settle()

    def _count_received(self, change: int) -> bool:
        self._received_bytes += change
        return change <= 0 or self._received_bytes <= self._options.receive_bytes_max

    # ---- facts in ----------------------------------------------------------------------------------------------------

    def _take(self, peer: Peer, request: Any) -> None:
        self._perform(Received(peer, request))

    def _post(self, fact: Any) -> None:
        """Thread-safe."""
        if self._failure is None:
            self._facts.append(fact)
            self._threads.to_loop(self._drain)

    def _drain(self) -> None:
        facts = self._facts
        if self._closing:
            facts.clear()  # e.g. a read that was running: its client is gone
        while facts and self._failure is None:
            fact = self._disk.to_fact(facts.popleft())
            if fact is not None:
                self._perform(fact)
                if isinstance(fact, IndexRewritten) and self._rewriting is not None and not self._rewriting.done():
                    self._rewriting.set_result(fact)
                if isinstance(fact, Flushed):
                    self._flushed.set()
                    for connection in tuple(self._connections):
                        connection.resume()
        self._settle()

    def _perform(self, fact: Any) -> None:
        """Handle a fact and perform its effects; `_settle` follows."""
        try:
            for effect in self.machine.handle(fact):
                self._perform_by_class[effect.__class__](effect)
        except Exception as error:  # noqa: BLE001 - a failed state machine must not acknowledge more
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop acknowledging. Thread-safe."""
        if self._failure is None:
            self._failure = error
        self._threads.to_loop(self._wake_all)

    def _wake_all(self) -> None:
        self._failed.set()
        self._flushed.set()

    # ---- effects out -------------------------------------------------------------------------------------------------

    def _perform_send(self, effect: Send) -> None:
        effect.peer.send(effect.message)  # type: ignore[attr-defined]  # the peers of a bookie are Connections

    def _perform_persist(self, effect: Persist) -> None:
        self._disk.persist(effect.token, effect.data)

    def _perform_collect_asked(self, effect: CollectAsked) -> None:
        if self._collection is not None:
            report = self._collection.asked(effect.number)
        else:
            reason = "the bookie is starting: try again"
            if self.machine.may_lack_data:
                reason = "entries may have been lost with a damaged journal: this bookie deletes nothing"
            elif not self._options.gc_s:
                reason = "gc_s is 0: this bookie deletes nothing"
            report = CollectionReport(0, CollectionState.REFUSED, reason=reason)
        effect.peer.send(report)  # type: ignore[attr-defined]  # the peers of a bookie are Connections

    def _perform_space_asked(self, effect: SpaceAsked) -> None:
        def reply(space: tuple[int, int] | None) -> None:
            answer = SpaceReply(Code.IO_ERROR)
            if space is not None:
                total_bytes, free_bytes = space
                asked = effect.request
                answer = SpaceReply(Code.OK, total_bytes if asked.total else None, free_bytes if asked.free else None)
            effect.peer.send(answer)  # type: ignore[attr-defined]  # the peer is a V3Exchange
            self._settle()

        self._disk.space(reply)

    def _perform_poll_waits(self, effect: PollWaits) -> None:
        effect.peer.wait()  # type: ignore[attr-defined]  # the peer is a V3Exchange

    def _perform_set_timer(self, effect: SetTimer) -> None:
        self._timers[effect.key] = self._loop.call_later(effect.after_s, self._timer_fired, effect.key)

    def _perform_cancel_timer(self, effect: CancelTimer) -> None:
        timer = self._timers.pop(effect.key, None)
        if timer is not None:
            timer.cancel()

    def _timer_fired(self, key: Token) -> None:
        self._timers.pop(key, None)
        if self._failure is None:
            self._perform(TimerFired(key, self._loop.time()))
            self._settle()

    def _perform_emit(self, effect: Emit) -> None:
        self._standing_changed.set()
        self._on_event(effect.event)

    def _emit_from_thread(self, event: Event) -> None:
        self._threads.to_loop(self._on_event, event)

    def _settle(self) -> None:
        """End a turn: submit journal writes, flush connections."""
        disk = self._disk
        while True:
            if disk.has_submitted:
                disk.submit()
            if not self._dirty:
                return
            dirty, self._dirty[:] = self._dirty[:], []
            if self._failure is not None:
                return
            for connection in dirty:
                connection.flush()
