"""Handles of open ledgers, returned by `Ledgers`: a LedgerWriter or LedgerReader over one or two machines.

Invariants:
- A handle decides nothing: it passes calls to its machine and returns the results. Order, quorums, last entry and
  errors come from the machine (dlog/ledger).
- After its machine failed, requests of a handle raise an error; other handles are not affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from dlog.errors import ClosedError, DLogError
from dlog.io import metrics
from dlog.io.driver import Driver, Sink
from dlog.ledger.adding import Add, Close, Closed, LedgerAdder
from dlog.ledger.deferring import DeferredLedgerAdder, Force
from dlog.ledger.reading import EntryReader as ReadingMachine
from dlog.ledger.reading import ReadDone, ReadingOptions, ReadLedger, UseMetadata
from dlog.ledger.replica_health import Distance, ReplicaHealth
from dlog.ledger.tailing import LearnLac, LearnMetadata, LedgerLac, LedgerTailer, TailingOptions, WaitLac
from dlog.machine import Machine
from dlog.model.ids import NO_ENTRY, EntryId, LedgerId
from dlog.model.ledger import LedgerMetadata
from dlog.wire.digest import Buffer, Digest

_count_sent = metrics.ENTRIES_SENT.inc
_count_sent_bytes = metrics.BYTES_SENT.inc
_count_read = metrics.ENTRIES_READ.inc


class Start(Protocol):
    """Runs a machine on a new driver."""

    def __call__(self, machine: Machine, ledger: LedgerId, kind: str) -> Driver: ...


class LedgerWriter:
    """The only writer of a ledger, from its creation to its end. Close or abandon it.

    Source: BookKeeper, LedgerHandle of `createLedger`.
    """

    __slots__ = ("_closed", "_driver", "_machine", "_on_end")

    def __init__(self, machine: LedgerAdder, driver: Driver, on_end: Callable[[], None]) -> None:
        self._machine = machine
        self._driver = driver
        self._on_end = on_end
        self._closed: Closed | None = None

    @property
    def ledger_id(self) -> LedgerId:
        return self._machine.ledger

    @property
    def lac(self) -> EntryId:
        """Last confirmed entry, with deferred sync the last durable one; NO_ENTRY: none."""
        return self._machine.lac

    @property
    def length(self) -> int:
        """Payload bytes up to the LAC."""
        return self._machine.length

    @property
    def pending(self) -> int:
        """Entries sent but not confirmed."""
        return self._machine.pending

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as last read or written."""
        return self._machine.metadata

    def append(self, parts: tuple[Buffer, ...], entry: EntryId | None = None) -> asyncio.Future[EntryId]:
        """Add an entry, the parts joined; the future gets its id once an ack quorum holds it, in order of appends.

        entry: its id, from 0 on without gaps, for all entries of the ledger or for none. An entry that comes before
        those with lower ids waits for them, also for ever; `close` fails it (not added). An id more than half of
        `pending_entries_max`, or 5,000, above the last entry without a gap is OverCapacityError, which names the
        missing one; an id that is taken, or a mix of both ways, is InvalidRequestError (both not added).
        Parts must not change until then. Raises OverCapacityError or ClosedError at once (not added). The future
        raises LedgerFencedError, NotEnoughBookiesError, UnauthorizedError and others, with `outcome_unknown` if the
        entry may be in the ledger. Cancelling stops the wait only: the entry is still added.
        """
        future: asyncio.Future[EntryId] = asyncio.get_running_loop().create_future()
        self.submit(parts, partial(_settle, future), entry)
        return future

    def submit(self, parts: tuple[Buffer, ...], sink: Sink, entry: EntryId | None = None) -> None:
        """`append` without a future: calls `sink` with the EntryId or DLogError, in order; it must not raise."""
        self._driver.submit(Add(parts, entry), sink)
        _count_sent()
        _count_sent_bytes(sum(map(len, parts)))

    async def force(self) -> EntryId:
        """Make durable every entry whose append was acknowledged before this call; returns the LAC then.

        Only of a ledger with deferred sync, where the LAC moves by this alone; of any other, what is acknowledged is
        durable, and this returns the LAC at once. Raises what `append` raises; then it is unknown what is durable.
        Cancelling stops the wait only.
        """
        if not isinstance(self._machine, DeferredLedgerAdder):
            return self._machine.lac
        lac: EntryId = await self._driver.ask(Force())
        return lac

    async def close(self, *, drain: bool = True) -> EntryId:
        """Close the ledger; returns its last entry (NO_ENTRY: empty). Idempotent.

        drain: confirm pending entries first; False: they fail at once. With deferred sync: force the ledger first;
        False: entries that no force made durable are left out. Raises LedgerFencedError if another client
        recovered the ledger and closed it at another entry, MetadataUnavailableError (outcome unknown; call again).
        """
        if self._closed is None:
            closed = await self._driver.ask(Close(drain))
            self._closed = closed
            self._leave()
        assert self._closed is not None
        return self._closed.last_entry

    async def abandon(self) -> None:
        """Stop without closing: pending entries fail with outcome_unknown; a recovery must find the last entry."""
        self._leave()
        await self._driver.wait_ended()

    def _leave(self) -> None:
        self._driver.stop()
        self._on_end()


class LedgerReader:
    """Reads one ledger up to its LAC, and follows the LAC, without disturbing the writer. Close it.

    Source: BookKeeper, ReadOnlyLedgerHandle of `openLedgerNoRecovery`.
    """

    def __init__(
        self,
        ledger: LedgerId,
        metadata: LedgerMetadata,
        digest: Digest,
        start: Start,
        last_entry: EntryId | None,
        on_close: Callable[[], None],
        distance: Distance | None = None,
        options: ReadingOptions | None = None,
        health: ReplicaHealth | None = None,
        tailing: TailingOptions | None = None,
    ) -> None:
        self.ledger_id = ledger
        self._start = start
        self._on_close = on_close
        self._digest = digest
        self._metadata = metadata
        self._end = metadata.last_entry if metadata.is_closed else last_entry
        self._lac = NO_ENTRY if self._end is None else self._end
        self._reading = start(
            ReadingMachine(ledger, metadata, digest, options or ReadingOptions(), distance, health), ledger, "reader"
        )
        self._tailing_options = tailing or TailingOptions()
        self._tailing: Driver | None = None
        self._following = False  # a WaitLac is pending at the tailer
        self._waiters = 0
        self._moved = asyncio.Event()  # replaced each time it is set
        self._error: DLogError | None = None
        self._open = True

    @property
    def lac(self) -> EntryId:
        """Last entry known to be confirmed; later ones may be confirmed, too."""
        return self._lac

    @property
    def end(self) -> EntryId | None:
        """Last entry of a closed ledger (NO_ENTRY: empty); None: not known to be closed."""
        return self._end

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as last read."""
        return self._metadata

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        """Read payloads of consecutive entries first..min(last, LAC): at least one, about max_bytes at most.

        Raises EntryMissingError (needs an operator), EntryUnreadableError (try again), LedgerNotFoundError.
        """
        return list(map(bytes, await self.read_views(first, last, max_bytes)))

    async def read_views(self, first: EntryId, last: EntryId, max_bytes: int) -> list[Buffer]:
        """`read` without copying: payloads are views of the receive buffer. They stay valid, but one that is kept
        keeps its whole buffer in memory."""
        assert 0 <= first <= self._lac, f"read above the LAC: first={first} lac={self._lac}"
        done: ReadDone = await self._reading.ask(ReadLedger(first, EntryId(min(last, self._lac)), max_bytes))
        _count_read(len(done.entries))
        return [entry.payload for entry in done.entries]

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId:
        """Wait until the LAC is above `known`, the ledger is closed or timeout_s is over; returns the LAC.

        Polls bookies (non-fencing reads, one after the other; on v3 long polls) and metadata. Cancelling stops the wait
        only: a long poll stays at its bookie until it ends. Raises LedgerNotFoundError, ClosedError.
        """
        self._waiters += 1
        try:
            async with asyncio.timeout(timeout_s):
                while self._lac <= known and self._end is None and self._error is None:
                    self._follow()
                    await self._moved.wait()
        except TimeoutError:
            pass
        finally:
            self._waiters -= 1
        if self._error is not None:
            raise type(self._error)(self._error.message)
        return self._lac

    def learn_lac(self, lac: EntryId) -> None:
        """Raise the LAC to one known from elsewhere: everything up to it is confirmed."""
        if lac > self._lac and self._end is None:
            self._lac = lac
            if self._tailing is not None:
                self._tailing.submit(LearnLac(lac), _ignore)
            self._notify()

    def learn_metadata(self, metadata: LedgerMetadata) -> None:
        """Use metadata read after a watch fired."""
        if not self._open:
            return
        self._metadata = metadata
        self._reading.submit(UseMetadata(metadata), _ignore)
        if self._tailing is not None and self._end is None:
            self._tailing.submit(LearnMetadata(metadata), _ignore)
        if metadata.is_closed and self._end is None:
            self._note_end(metadata.last_entry)

    def learn_deleted(self, error: DLogError) -> None:
        """Fail `wait_lac` with this error: the ledger was deleted."""
        if self._end is None:
            self._error = error
            self._notify()

    async def close(self) -> None:
        """Stop reading; waiters get ClosedError. Idempotent."""
        if not self._open:
            return
        self._open = False
        if self._end is None and self._error is None:
            self._error = ClosedError(f"the reader was closed: ledger={self.ledger_id}")
        self._notify()
        self._on_close()
        self._reading.stop()
        if self._tailing is not None:
            self._tailing.stop()

    # ---- following the LAC ------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Have the tailer wait for the next LAC, unless it does already."""
        if self._following or not self._open:
            return
        if self._tailing is None:
            machine = LedgerTailer(self.ledger_id, self._metadata, self._digest, self._tailing_options)
            self._tailing = self._start(machine, self.ledger_id, "tailer")
        self._following = True
        self._tailing.submit(WaitLac(self._lac), self._note_lac)

    def _note_lac(self, result: LedgerLac | DLogError) -> None:
        self._following = False
        if not self._open:
            return
        if isinstance(result, DLogError):
            self._error = self._error or result
            self._notify()
        elif result.closed:
            self._note_end(result.lac)
        elif result.lac > self._lac:
            self._lac = result.lac
            self._notify()
        elif self._waiters:
            self._follow()  # `learn_lac` already had this LAC

    def _note_end(self, end: EntryId) -> None:
        if self._end is None:
            assert end >= self._lac, f"a closed ledger holds all confirmed entries: end={end} lac={self._lac}"
            self._end = self._lac = end
            self._notify()

    def _notify(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


def _settle(future: asyncio.Future[EntryId], result: Any) -> None:
    """Complete the future; an exception that is never retrieved is not logged."""
    if future.done():
        return
    if isinstance(result, DLogError):
        future.set_exception(result)
        future.exception()
    else:
        future.set_result(result)


def _ignore(_: Any) -> None:
    """Drop the result."""
