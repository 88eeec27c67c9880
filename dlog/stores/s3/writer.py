"""Appends to one segment by the node of this process.

Invariants:
- Sinks are called in entry order.
- While the node refuses appends for want of room, the writer keeps its entries and hands them to the node again, in
  order; only after a deadline it ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dlog.errors import DLogError, OverCapacityError, StaleRequestError
from dlog.model.ids import NO_ENTRY, EntryId
from dlog.objects.node_messages import AppendEntries, CloseStreamsHere
from dlog.stores.contract import (
    AppendSink,
    Buffer,
    SegmentFencedError,
    StoreError,
    StoreOutOfReachError,
    StoreUnavailableError,
    append_refusal,
    copy_error,
    settle,
)
from dlog.stores.s3.own_node import RunningNode
from dlog.stores.s3.places import Place
from dlog.wire.node_wal import StreamEntry, stream_entry

if TYPE_CHECKING:
    from dlog.stores.s3.store import S3Store

_AGAIN_FIRST_S, _AGAIN_MAX_S = 0.02, 0.5


@dataclass(slots=True)
class _Pending:
    """An entry that is not confirmed. is_sent: the node has it, and has not answered."""

    offset: int
    entry: StreamEntry
    sink: AppendSink
    is_sent: bool = False


class S3Writer:
    """A SegmentWriter. An entry that is too large is refused; the writer goes on."""

    def __init__(self, store: S3Store, running: RunningNode, place: Place, start: int) -> None:
        self.name = place.name
        self.place = place
        self._store = store
        self._running = running
        self._start = start
        self._next = start  # offset of the next entry
        self._lac = NO_ENTRY
        self._pending: deque[_Pending] = deque()
        self._sent = 0  # of those pending
        self._again: asyncio.TimerHandle | None = None
        self._is_blocked = False  # the node refused an append for want of room
        self._blocked_s: float | None = None  # since when nothing was confirmed
        self._pause_s = _AGAIN_FIRST_S
        self._error: StoreError | None = None
        self._is_sealed = False
        self._sealing: asyncio.Future[EntryId] | None = None
        self._idle = asyncio.Event()  # nothing is pending
        self._idle.set()

    @property
    def last_confirmed(self) -> EntryId:
        return self._lac

    def append(self, entry_id: EntryId, payload: Sequence[Buffer]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.submit(entry_id, payload, partial(settle, future))
        return future

    def submit(self, entry_id: EntryId, payload: Sequence[Buffer], sink: AppendSink) -> None:
        size = sum(map(len, payload))
        bytes_max = self._store.capabilities.entry_bytes_max
        refused = append_refusal(self.name, size, bytes_max, self._error, is_sealed=self._is_sealed)
        if refused is not None:
            sink(refused)
            return
        assert entry_id == self._next - self._start, f"entries are dense: entry={entry_id} next={self._next}"
        self._pending.append(_Pending(self._next, stream_entry(b"".join(payload)), sink))
        self._next += 1
        self._idle.clear()
        if not self._is_blocked:
            self._send()

    async def seal(self) -> EntryId:
        if self._error is not None:
            raise copy_error(self._error, outcome_unknown=False)
        if self._sealing is None:
            done: asyncio.Future[EntryId] = asyncio.get_running_loop().create_future()
            self._store.tasks.start(partial(self._seal, done), f"seals {self.name}")
            done.add_done_callback(_looked_at)
            self._sealing = done
        self._is_sealed = True
        await asyncio.wait((self._sealing,))
        return self._sealing.result()

    async def abandon(self) -> None:
        """See SegmentWriter.abandon. The node closes the range where it is, so that a recovery needs no failover of a
        node that is well."""
        if self._error is None and not self._is_sealed:
            self._end(StoreUnavailableError(f"the writer was abandoned: location={self.name}", outcome_unknown=True))
            if self._store.tasks.is_open:
                self._store.tasks.start(self._close_range, f"closes the range of {self.name}")

    # ---- internal ---------------------------------------------------------------------------------------------------

    async def _seal(self, done: asyncio.Future[EntryId]) -> None:
        """Wait until everything is confirmed, then close the range."""
        try:
            await self._idle.wait()
            if self._error is not None:
                raise copy_error(self._error, outcome_unknown=False)
            end = await self._close_range()
            assert end == self._next, f"a range is closed behind its last append: end={end} next={self._next}"
        except StoreError as error:
            self._is_sealed = False
            self._end(error)
            if not done.done():
                done.set_exception(error)
        except BaseException:
            if not done.done():
                done.set_exception(StoreUnavailableError(f"the store was closed: location={self.name}"))
            raise
        else:
            self._store.writer_ended(self)
            if not done.done():
                done.set_result(EntryId(end - self._start - 1))

    async def _close_range(self) -> int:
        """Close the range where it is; returns its end. Raises StoreError."""
        try:
            [(_, end)] = await self._running.actor.ask(CloseStreamsHere((self.place.stream,)))
        except StaleRequestError as error:
            raise _fenced(self.name) from error
        except DLogError as error:
            raise self._running.error(error) from error
        self._store.views.ended(self.place.stream, end)
        return int(end)

    def _send(self) -> None:
        """Hand what waits to the node."""
        for pending in self._pending if not self._sent else tuple(self._pending)[self._sent :]:
            if self._is_blocked or self._error is not None:
                return
            if pending.is_sent:
                continue
            request = AppendEntries(self.place.stream, self.place.epoch, pending.offset, (pending.entry,))
            pending.is_sent = True
            self._sent += 1
            try:
                self._running.actor.submit(request, partial(self._answered, pending))
            except OverCapacityError:
                pending.is_sent = False
                self._sent -= 1
                self._block()
            except DLogError as error:
                pending.is_sent = False
                self._sent -= 1
                self._end(self._running.error(error))

    def _answered(self, pending: _Pending, result: Any) -> None:
        if self._error is not None:
            return
        if not isinstance(result, DLogError):
            self._confirm(pending)
        elif isinstance(result, OverCapacityError) or (self._is_blocked and isinstance(result, StaleRequestError)):
            self._refuse(pending)
        elif isinstance(result, StaleRequestError):
            self._end(_fenced(self.name))
        else:
            self._end(self._running.error(result))

    def _confirm(self, pending: _Pending) -> None:
        assert self._pending[0] is pending, "appends are confirmed in order"
        self._pending.popleft()
        self._sent -= 1
        self._blocked_s = None
        self._pause_s = _AGAIN_FIRST_S
        self._lac = EntryId(pending.offset - self._start)
        self._store.views.confirmed(self.place.stream, pending.offset + 1)
        pending.sink(None)
        if not self._pending:
            self._idle.set()
        if self._is_blocked and not self._sent:
            self._plan_again()

    def _refuse(self, pending: _Pending) -> None:
        """The node has no room for an entry, or it follows one for which there is none."""
        pending.is_sent = False
        self._sent -= 1
        self._block()

    def _block(self) -> None:
        self._is_blocked = True
        now_s = asyncio.get_running_loop().time()
        if self._blocked_s is None:
            self._blocked_s = now_s
        if not self._sent:
            if now_s - self._blocked_s > self._store.options.retry_s:
                node = self._store.node
                obstacle = node.upload_obstacle if node is not None else ""
                why = f"uploads make no progress: {obstacle}" if obstacle else "uploads are slow"
                text = f"too much is not uploaded yet, {why}: location={self.name}"
                self._end(StoreOutOfReachError(text, outcome_unknown=False))
            else:
                self._plan_again()

    def _plan_again(self) -> None:
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(self._pause_s, self._try_again)
            self._pause_s = min(2 * self._pause_s, _AGAIN_MAX_S)

    def _try_again(self) -> None:
        self._again = None
        self._is_blocked = False
        if self._error is None:
            self._send()

    def _end(self, error: StoreError) -> None:
        """Take no more appends, and fail those that are pending."""
        if self._error is not None:
            return
        self._error = error
        if self._again is not None:
            self._again.cancel()
            self._again = None
        pending, self._pending = self._pending, deque()
        for one in pending:
            one.sink(copy_error(error, outcome_unknown=one.is_sent or error.outcome_unknown))
        self._sent = 0
        self._idle.set()
        self._store.writer_ended(self)


def _fenced(name: str) -> SegmentFencedError:
    return SegmentFencedError(f"the segment was recovered: location={name}")


def _looked_at(done: asyncio.Future[EntryId]) -> None:
    """Do not log a failure that no caller awaits."""
    if not done.cancelled():
        done.exception()
