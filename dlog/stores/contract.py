"""The contract of a segment store: kept by memory, ledgers, files and cold storage, later by Kafka and S3.

The core owns streams, segment numbers, DLSNs, claims, rolling and truncation. A store knows segments, epochs, dense
entry ids and bytes. One suite (tests/integration/stores/) with a history checker runs on every store.

Invariants:
- appends are confirmed strictly in entry order; a confirmed append survives every later recovery, a failed or cancelled
  one may or may not;
- recovery fences the writer of its segment for good and decides the end once; it is repeatable, and concurrent
  recoveries return the same end; what it keeps is a prefix of the submitted entries that includes all confirmed ones.
  Which owner may recover is decided before, by the claim in the stream's metadata;
- a reader returns contiguous entries up to the LAC, and never one that a recovery drops;
- a store that removes entries by itself (retention of a Kafka topic) raises SegmentTruncatedError for them, for this
  segment only, and only for entries that it certainly removed itself. Entries that are missing for another reason
  (damage, a wrong directory) are SegmentNotFoundError or SegmentCorruptError;
- the tail that `find_tail` returns covers every append confirmed before, and nothing that a recovery drops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dlog.errors import DLogError, Remedy
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.segment import StoreSettings
from dlog.options import KiB
from dlog.stores.settings import SettingsSchema
from dlog.values import value

Buffer = bytes | bytearray | memoryview


# ---- errors ---------------------------------------------------------------------------------------------------------


class StoreError(DLogError):
    """Base class of a store's errors."""

    code = 550


class SegmentFencedError(StoreError):
    """Another process recovered the segment. Pending appends may or may not be in it."""

    code = 541
    remedy = Remedy.REOPEN
    outcome_unknown = True


class SegmentSealedError(StoreError):
    """The segment is sealed; it accepts no appends."""

    code = 542
    remedy = Remedy.STOP


class SegmentNotFoundError(StoreError):
    """There is no such segment: it was never created, or it was deleted."""

    code = 543
    remedy = Remedy.STOP


class SegmentTruncatedError(StoreError):
    """The store itself has removed entries of this segment, by its own retention; the stream still lists it."""

    code = 544
    remedy = Remedy.STOP


class SegmentCorruptError(StoreError):
    """An entry does not verify on any replica, or an entry at or below the LAC is missing."""

    code = 545
    remedy = Remedy.REPORT


class StoreUnavailableError(StoreError):
    """The store cannot serve this now; the same call may succeed later."""

    code = 546
    remedy = Remedy.RETRY


class ReaderClosedError(StoreUnavailableError):
    """This reader is closed or broken; open another one."""


class StoreTooSmallError(StoreUnavailableError):
    """The store has fewer members than a segment needs; retrying fails until there are more."""


class StoreOutOfReachError(StoreUnavailableError):
    """The store does not answer, has no space left, or what answers at its address does not have this cluster's
    segments; retrying fails until that is mended."""


class EntryTooLargeError(StoreError):
    """The entry exceeds `capabilities.entry_bytes_max`."""

    code = 548
    remedy = Remedy.FIX


class MisconfiguredError(StoreError):
    """The backend does not provide what the store needs, or refuses its credentials."""

    code = 549
    remedy = Remedy.FIX


#: segment number of a stage, written before any segment list names it; a stream's segments begin with 1
STAGE = SegmentNumber(0)


# ---- values ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Properties of a store that the core relies on.

    visible_is_final: an entry visible to a reader is never dropped, so no control record is needed to move the LAC.
    entry_bytes_max: largest payload of an entry; longer ones are refused. Where segments can be created it is at least
    the largest entry that the core appends (ENTRY_BYTES_MAX of dlog/wire/entry.py and the envelope). is_written:
    segments can be created here; False where they only arrive by being moved. has_foreign_writers: programs other than
    dlog write here. A fenced one may complete its segment in the list at a wrong end, so a new owner asks the store.
    takes_stages: a program may write a segment under the number STAGE here, for a stream that imports it later.
    durability: where a confirmed entry is, SYNCED or PAGE_CACHES, if configuration decides it; empty: always synced.

    How much keeps the store busy, which grows with its latency. entries_in_flight: appends to one segment that are not
    confirmed; while fewer are, an entry is appended without waiting for more records. bytes_in_flight: of such appends.
    reads_ahead: blocks that are fetched before a sequential reader asks for them.
    """

    visible_is_final: bool
    entry_bytes_max: int
    is_written: bool = True
    has_foreign_writers: bool = False
    takes_stages: bool = True
    durability: str = ""
    entries_in_flight: int = 3
    bytes_in_flight: int = 2560 * KiB
    reads_ahead: int = 2


SYNCED, PAGE_CACHES = "synced", "page caches"

#: of a store that this process does not know
UNKNOWN_STORE = Capabilities(
    visible_is_final=False, entry_bytes_max=0, is_written=False, has_foreign_writers=True, takes_stages=False
)


@value
class SegmentRef:
    """Identifies a segment to its store. name: of its location, from `create`, kept in the segment list; the store
    chooses it (see is_location_name)."""

    stream: StreamName
    number: SegmentNumber
    name: str


@value
class RecoveredSegment:
    """Result of a recovery. end: last entry, NO_ENTRY if empty. last_payloads: of the last entries, contiguous up to
    `end`, those that the recovery had to read anyway; a few at most, perhaps none."""

    end: EntryId
    last_payloads: tuple[bytes, ...] = ()


@value
class SegmentStat:
    """What a store knows of a segment without reading its entries.

    end: last entry (NO_ENTRY if empty) once it is decided, None before. payload_bytes: of all entries up to the end; 0
    before it is decided.
    """

    end: EntryId | None = None
    payload_bytes: int = 0


@value
class Verification:
    """Result of `verify`: the number of entries checked, and the damaged ones with reasons. A store may list
    neighbouring ones as one, by the first of them."""

    entries: int
    damaged: tuple[tuple[EntryId, str], ...] = ()


AppendSink = Callable[[StoreError | None], None]


def settle(future: asyncio.Future[None], error: StoreError | None) -> None:
    """Complete an append's future, as the sink of its `submit`; a failure that no caller awaits is not logged."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()


def copy_error(error: StoreError, *, outcome_unknown: bool | None = None) -> StoreError:
    """The same error for another caller, perhaps with another outcome."""
    unknown = error.outcome_unknown if outcome_unknown is None else outcome_unknown
    return type(error)(error.message, outcome_unknown=unknown)


def append_refusal(
    location: str, payload_bytes: int, bytes_max: int, error: StoreError | None, *, is_sealed: bool
) -> StoreError | None:
    """Why a writer does not take an entry; None: it does. error: that ended the writer."""
    if error is not None:
        return copy_error(error, outcome_unknown=False)
    if is_sealed:
        return SegmentSealedError(f"the segment is sealed: location={location}")
    if payload_bytes > bytes_max:
        return EntryTooLargeError(
            f"the entry is too large, write smaller batches: bytes={payload_bytes} max={bytes_max}"
        )
    return None


# ---- ports ----------------------------------------------------------------------------------------------------------


class SegmentWriter(Protocol):
    """Appends to one segment. The first error, except EntryTooLargeError, ends it and fails all pending appends."""

    name: str

    @property
    def last_confirmed(self) -> EntryId:
        """Highest confirmed entry, NO_ENTRY before the first."""
        ...

    def append(self, entry_id: EntryId, payload: Sequence[Buffer]) -> asyncio.Future[None]:
        """Append an entry consisting of these parts; ids are dense from 0. The future gets the errors
        (SegmentFencedError, SegmentSealedError, StoreUnavailableError, EntryTooLargeError); nothing is raised. Parts
        must not change.
        """
        ...

    def submit(self, entry_id: EntryId, payload: Sequence[Buffer], sink: AppendSink) -> None:
        """`append` without a future: `sink` gets None once the entry is confirmed, or the error, in entry order.

        It is called once, perhaps before this returns if the entry was not accepted, and must neither raise nor block.
        """
        ...

    async def seal(self) -> EntryId:
        """End appending; return the last entry. Idempotent. Raises SegmentFencedError if a recovery decided the end."""
        ...

    async def abandon(self) -> None:
        """Release resources without sealing. Pending appends fail, with unknown outcome."""
        ...


class SegmentReader(Protocol):
    """Reads contiguous entries of one segment up to its LAC, also while it is being written."""

    @property
    def last_confirmed(self) -> EntryId: ...

    @property
    def end(self) -> EntryId | None:
        """Last entry of a sealed segment (NO_ENTRY if empty); None while more may come."""
        ...

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        """Return payloads of entries first..min(last, LAC), contiguous from `first`; perhaps fewer, but at least one.

        Raises SegmentCorruptError, SegmentNotFoundError, SegmentTruncatedError (`first` was removed),
        StoreUnavailableError, ReaderClosedError. `first` above the LAC is an AssertionError: wait for the LAC first.
        """
        ...

    async def read_views(self, first: EntryId, last: EntryId, max_bytes: int) -> Sequence[Buffer]:
        """`read` for callers that do not keep the payloads: they are not copied where possible, and a view then keeps
        its whole receive buffer in memory.
        """
        ...

    async def locate(self, first: EntryId, last: EntryId, least: int, *, by_time: bool) -> tuple[EntryId, EntryId]:
        """Narrow a binary search among entries first..last, not above the LAC, for the first one with a record whose
        txid, or time (by_time, Unix milliseconds), is at least `least`. Return the first and last entry that are left,
        perhaps none.

        If an entry has such a record, the first one that has is among those left; a store without an index returns
        first and last. It reads no payloads that it could do without, and raises ReaderClosedError only: what it cannot
        read now narrows nothing.
        """
        ...

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId:
        """Return the LAC once it exceeds `known` or the segment has ended; after timeout_s, the current LAC.

        Asks the store itself, so it works without a writer.
        """
        ...

    def learn_lac(self, lac: EntryId) -> None:
        """Accept the owner's report that everything up to `lac` is confirmed: a hint that saves requests."""
        ...

    async def close(self) -> None: ...


class SegmentStore(Protocol):
    """One kind of segment storage. settings: those that it takes for each stream."""

    name: str
    capabilities: Capabilities
    settings: SettingsSchema

    def check_capacity(self, settings: StoreSettings) -> None:
        """Raises InvalidRequestError if a segment with these settings could not be created, as far as is known: the
        store has too few members."""
        ...

    async def create(
        self, stream: StreamName, number: SegmentNumber, epoch: Epoch, settings: StoreSettings
    ) -> SegmentWriter:
        """Create a segment at a new location and return its writer. The caller records the location in metadata.

        settings: of the stream, for this store; missing ones have their default. Raises InvalidRequestError for one
        of another store.
        """
        ...

    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        """Fence the writer, decide the end, seal. Repeatable. Raises SegmentNotFoundError, SegmentCorruptError,
        StoreUnavailableError; SegmentTruncatedError if the end is not known any more, and only after the writer is
        fenced: no append is confirmed from then on. A store that knows the end of a removed segment returns it.
        """
        ...

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentReader:
        """Open for reading without disturbing a writer. sealed_at: the end according to the segment list, if any.

        With it, `end` is known at once. If the store has decided another end, that one counts: a fenced Java writer
        completes its segment in the list from its own state. If the store has not decided yet, this recovers the
        segment. Raises SegmentNotFoundError, SegmentTruncatedError, SegmentCorruptError, StoreUnavailableError; a store
        may open a removed segment, and raise SegmentTruncatedError at the first read.
        """
        ...

    async def stat(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentStat:
        """Return the segment's end and size. Disturbs no writer. sealed_at: see `open_reader`.

        Raises SegmentNotFoundError, SegmentTruncatedError, SegmentCorruptError, StoreUnavailableError.
        """
        ...

    async def stage_of(self, name: str) -> StreamName | None:
        """The stream for which a segment was created under the number STAGE; None if under another number.

        Raises SegmentNotFoundError, StoreUnavailableError.
        """
        ...

    async def find_tail(self, ref: SegmentRef) -> EntryId:
        """Return the current tail, also without a writer: it covers every append confirmed before the call, and every
        recovery keeps all of it. Fences nothing. Expensive: for opening a reader only.

        Raises StoreUnavailableError if it cannot be determined, SegmentNotFoundError, SegmentTruncatedError.
        """
        ...

    async def delete(self, ref: SegmentRef) -> None:
        """Delete a segment. Idempotent; returns when the deletion is certain, perhaps before the space is free."""
        ...

    def list(self) -> AsyncIterator[str]:
        """Yield the locations of all segments, for fsck and tests."""
        ...

    async def verify(self, ref: SegmentRef) -> Verification:
        """Read every entry from every replica and check it. Raises SegmentNotFoundError, SegmentTruncatedError,
        StoreUnavailableError."""
        ...

    async def close(self) -> None: ...
