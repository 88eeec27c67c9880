"""What a log needs from a segment store: the contract that memory, ledgers, Kafka and S3 all keep.

The core owns streams, segment numbers, DLSNs, leases, rolling and truncation; a store knows "segment, epoch, dense
entry ids, bytes". One suite (tests/integration/stores/) with a history checker runs on every store.

Promises:
- appends resolve strictly in entry order; a resolved append survives every later recovery; a failed or cancelled one
  may or may not survive;
- recovery fences writers of lower epochs, decides the end once and for all, is repeatable, and concurrent recoverers
  get the same answer; what was recovered is a prefix of what was submitted and includes all that was resolved;
- a reader sees contiguous entries up to the LAC only, and never one that a recovery drops;
- the tail that a store tells by itself is never before what was resolved, and never one that a recovery drops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dlog.errors import DLogError, Remedy
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.quorum import Quorum

Buffer = bytes | bytearray | memoryview


# ---- the nine errors ------------------------------------------------------------------------------------------------


class StoreError(DLogError):
    """Root of what a store may raise; `retryable` says whether the same call may succeed later."""

    code = 550
    retryable = False


class SegmentFencedError(StoreError):
    """A higher epoch took the segment over. Pending appends may or may not be in it."""

    code = 541
    remedy = Remedy.REOPEN
    outcome_unknown = True


class SegmentSealedError(StoreError):
    """The segment is sealed; nothing can be appended."""

    code = 542
    remedy = Remedy.STOP


class SegmentNotFoundError(StoreError):
    """No such segment: never created, or deleted."""

    code = 543
    remedy = Remedy.STOP


class SegmentTruncatedError(StoreError):
    """The entries asked for were removed."""

    code = 544
    remedy = Remedy.STOP


class SegmentCorruptError(StoreError):
    """An entry does not verify on any replica, or is missing below the LAC."""

    code = 545
    remedy = Remedy.REPORT


class StoreUnavailableError(StoreError):
    """The store cannot serve this now; try again after `retry_after_s`."""

    code = 546
    remedy = Remedy.RETRY
    retryable = True
    retry_after_s = 0.1


class ReaderClosedError(StoreUnavailableError):
    """This reader was closed, or broke: another one may be opened."""


class StoreTooSmallError(StoreUnavailableError):
    """Fewer members of the store are there than a segment needs: nothing goes on until there are more."""


class AmbiguousError(StoreError):
    """Outcome unknown. Internal to a store: resolved before a call returns, never seen by the core."""

    code = 547
    outcome_unknown = True


class EntryTooLargeError(StoreError):
    """The entry exceeds `capabilities.entry_bytes_max`."""

    code = 548
    remedy = Remedy.FIX


class MisconfiguredError(StoreError):
    """The store behind does not do what we need of it (capability probe failed)."""

    code = 549
    remedy = Remedy.FIX


#: number of a segment that is written before it is in any list (a stage): segments of a stream begin with 1
STAGE = SegmentNumber(0)


# ---- values ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the core may rely on or must do without.

    visible_is_final: an entry a reader can see can never be dropped, so no control record is needed to move the LAC.
    min_latency_s: a floor below which appends will not resolve; a hint for packing. is_written: segments may be created
    there; False where they only come by being moved.
    """

    visible_is_final: bool
    entry_bytes_max: int
    is_written: bool = True
    min_latency_s: float = 0.0
    conditional_put: bool = False
    delete_prefix: bool = False
    transactional: bool = False


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """Names a segment to its store. `place` is what `create` returned and the segment list keeps."""

    stream: StreamName
    number: SegmentNumber
    place: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found: entries checked, and the damaged ones with why."""

    entries: int
    damaged: tuple[tuple[EntryId, str], ...] = ()


AppendSink = Callable[[StoreError | None], None]


# ---- ports ----------------------------------------------------------------------------------------------------------


class SegmentWriter(Protocol):
    """Appends to one segment; dies at the first error (no revive) and then fails everything pending."""

    place: str

    @property
    def last_confirmed(self) -> EntryId:
        """Highest entry resolved, NO_ENTRY before the first."""
        ...

    def append(self, entry_id: EntryId, payload: Sequence[Buffer]) -> asyncio.Future[None]:
        """Append the entry made of these parts joined; ids are dense from 0. Raises nothing itself: the future does
        (SegmentFencedError, SegmentSealedError, StoreUnavailableError, EntryTooLargeError). Parts must not change."""
        ...

    def submit(self, entry_id: EntryId, payload: Sequence[Buffer], sink: AppendSink) -> None:
        """`append` without a future: `sink` hears None once the entry is resolved, or why it failed, in entry order.

        It hears so once, perhaps before this returns if nothing was taken, and must neither raise nor block.
        """
        ...

    def flush(self) -> None:
        """Cut an open batch now, where the store batches."""
        ...

    async def seal(self) -> EntryId:
        """No more appends; returns the last entry. Idempotent. Raises SegmentFencedError if somebody else decided."""
        ...

    async def abandon(self) -> None:
        """Release resources without sealing; pending appends fail with outcome unknown."""
        ...


class SegmentReader(Protocol):
    """Contiguous entries of one segment, up to its LAC; usable while it is written."""

    @property
    def last_confirmed(self) -> EntryId: ...

    @property
    def end(self) -> EntryId | None:
        """Last entry of a sealed segment (NO_ENTRY if empty); None while more may come."""
        ...

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        """Payloads of entries first..min(last, LAC); may return fewer (at least one), contiguous from `first`.

        Raises SegmentCorruptError, SegmentNotFoundError, StoreUnavailableError, ReaderClosedError. `first` above the
        LAC is an AssertionError: wait for the LAC first.
        """
        ...

    async def read_views(self, first: EntryId, last: EntryId, max_bytes: int) -> Sequence[Buffer]:
        """`read` for who goes through payloads and keeps none: where they need not be copied they are not, and then
        each keeps in memory all that came with it."""
        ...

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId:
        """The LAC once it is above `known` or the segment has ended; after timeout_s the LAC as it stands.

        Asks the store itself, so that it works when no writer is left.
        """
        ...

    def learn_lac(self, lac: EntryId) -> None:
        """The owner told us that everything up to `lac` is confirmed: a hint that saves asking."""
        ...

    async def close(self) -> None: ...


class SegmentStore(Protocol):
    """One kind of place where segments lie."""

    name: str
    capabilities: Capabilities

    async def create(self, stream: StreamName, number: SegmentNumber, epoch: Epoch, quorum: Quorum) -> SegmentWriter:
        """Create a segment nobody else knows and return its writer; `place` is new. Metadata is the caller's work."""
        ...

    async def recover(self, ref: SegmentRef, epoch: Epoch) -> EntryId:
        """Fence every writer of a lower epoch, decide the end, seal; return the last entry. Repeatable."""
        ...

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentReader:
        """Open for reading without disturbing a writer. sealed_at: the end, where the segment list says one.

        Then `end` is known at once, and it is the store's where that has decided another: a Java writer that was fenced
        completes its segment in the list by what it knows. Should the store not have decided yet, this recovers.
        """
        ...

    async def stage_of(self, place: str) -> StreamName | None:
        """The stream for which a segment was created under the number STAGE, None if it was created under another.

        Raises SegmentNotFoundError, StoreUnavailableError.
        """
        ...

    async def find_tail(self, ref: SegmentRef) -> EntryId:
        """The tail as of now, also while no writer is left: not below any append that was resolved before the call, and
        kept whole by every recovery. Fences nobody; asks as much as it takes, so it is for a reader's opening only.

        Raises StoreUnavailableError when it cannot be known, SegmentNotFoundError.
        """
        ...

    async def delete(self, ref: SegmentRef) -> None:
        """Idempotent; returns when the deletion is certain, not when the bytes are gone."""
        ...

    def list(self) -> AsyncIterator[str]:
        """Places of all segments there are, for fsck and tests."""
        ...

    async def verify(self, ref: SegmentRef) -> Verification:
        """Read everything back from every replica and check it."""
        ...

    async def close(self) -> None: ...
