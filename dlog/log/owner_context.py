"""State shared by the components of one owner under one claim: the claim, metadata, the writer, pending effects.

The components are takeover.py (recovery), rolling.py, truncating.py, owner.py (fact handling, the end) and others; each
changes only its own state and the state here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import lru_cache

from dlog.errors import DamagedError
from dlog.events import LacMoved, SegmentStarted
from dlog.log.allocation import SegmentAllocator
from dlog.log.messages import STORE, SealSegment
from dlog.log.metadata_updater import StreamMetadataUpdater
from dlog.log.options import OwnerOptions
from dlog.log.packing import OpenSegment
from dlog.log.producer_table import ProducerTable
from dlog.log.segment_deletion import SegmentDeleter
from dlog.log.writing import EntryWriter
from dlog.machine import Effect, Emit, Send
from dlog.model.ids import NO_ENTRY, SEGMENT_MAX, TXID_END_OF_STREAM, SegmentNumber, Txid
from dlog.model.segment import Location, Segment, StreamKey, StreamMetadata
from dlog.model.window import window_for
from dlog.ownership.claim import Claim, Claimant, ClaimOptions
from dlog.stores.contract import UNKNOWN_STORE, Capabilities


class Phase(enum.Enum):
    """What an owner does now. TRANSITIONS has what may follow."""

    IDLE = "idle"
    CLAIMING = "claiming"  # metadata is asked for the claim
    RECOVERING = "recovering"  # the claim is held; no segment is appended to
    SERVING = "serving"  # batches are admitted and appended to the current segment
    DRAINING = "draining"  # new batches are refused; admitted ones are confirmed, then the segment is sealed
    CLOSING = "closing"  # the segment is sealed; the stream's end or the claim's release is being written to metadata
    SEALED = "sealed"  # the stream takes no more records; the claim is held
    RELEASING = "releasing"  # the claim on the sealed stream is being released in metadata
    RELEASED = "released"  # any proxy may claim the stream
    LOST = "lost"  # another proxy has the claim, or this one cannot go on


#: The phases that may follow each phase; a final one has none. ARCHITECTURE.md shows this table as a diagram.
#: A segment that fails while it is served, drained or closed leads back to RECOVERING. From there the owner is RELEASED
#: if the release was being written to metadata already.
TRANSITIONS: dict[Phase, set[Phase]] = {
    Phase.IDLE: {Phase.CLAIMING},
    Phase.CLAIMING: {Phase.RECOVERING, Phase.LOST},
    Phase.RECOVERING: {Phase.RECOVERING, Phase.SERVING, Phase.SEALED, Phase.RELEASED, Phase.LOST},
    Phase.SERVING: {Phase.RECOVERING, Phase.DRAINING, Phase.LOST},
    Phase.DRAINING: {Phase.RECOVERING, Phase.CLOSING, Phase.LOST},
    Phase.CLOSING: {Phase.RECOVERING, Phase.SEALED, Phase.RELEASED, Phase.LOST},
    Phase.SEALED: {Phase.RELEASING, Phase.LOST},
    Phase.RELEASING: {Phase.RELEASED, Phase.LOST},
    Phase.RELEASED: set(),
    Phase.LOST: set(),
}
_HELD = (Phase.SERVING, Phase.DRAINING, Phase.CLOSING, Phase.RECOVERING, Phase.SEALED, Phase.RELEASING)


def refusal_to_own(value: StreamMetadata) -> DamagedError | None:
    """The error if no segment number is left for this stream, whatever its segments in progress hold; None: one is
    left, or the stream has ended and needs none. Such a stream is refused before it is claimed: each claim would be
    lost again at once, and the next request would make another one."""
    lowest = value.next_number({segment.number for segment in value.in_progress})
    if lowest <= SEGMENT_MAX or value.max_txid == TXID_END_OF_STREAM:
        return None
    return DamagedError(
        f"the stream has no segment number left, so a znode of it is damaged: restore it from a backup, or copy the "
        f"stream to a new one: stream={value.name} last={lowest - 1} limit={SEGMENT_MAX}"
    )


class OwnerContext:
    """State of one owner. stores: capabilities by name. out: effects of the fact being handled, in order. register: the
    stream's metadata, set by `became_owner`. writes_wait: no batch is admitted and no segment is started, since stages
    are being imported, which a failure of the segment and its recovery may outlast. phase: changed by `enter` only."""

    __slots__ = (
        "_clock",
        "_opened",
        "allocation",
        "claim",
        "disposal",
        "options",
        "out",
        "phase",
        "register",
        "stores",
        "stream",
        "table",
        "writes_wait",
        "writing",
    )

    def __init__(
        self, key: StreamKey, claimant: Claimant, options: OwnerOptions, stores: Mapping[str, Capabilities]
    ) -> None:
        self.stream = key.stream
        self.options = options
        self.stores = stores
        self.phase = Phase.IDLE
        claim_options = _claim_options(options.answer_timeout_s, options.retry_after_s)
        self.claim = Claim(key, claimant, claim_options, refusal_to_own)
        self.table = ProducerTable(options.producers_max, options.window_min)
        self.writing = EntryWriter(self.stream, self.table, options)
        self.allocation = SegmentAllocator(options)
        self.disposal = SegmentDeleter(options)
        self.out: list[Effect] = []
        self.writes_wait = False
        self._opened: Segment | None = None  # the segment opened last
        self._clock: tuple[int, float] | None = None  # wall clock in ms and monotonic clock in s at the claim

    # ---- phase ------------------------------------------------------------------------------------------------------

    def enter(self, phase: Phase) -> None:
        """Change the phase; the table must allow it."""
        assert phase in TRANSITIONS[self.phase], f"{self.phase.name} -> {phase.name}: stream={self.stream}"
        self.phase = phase

    @property
    def is_held(self) -> bool:
        """Whether metadata showed the claim as ours, and it is neither released nor lost since."""
        return self.phase in _HELD

    @property
    def has_ended(self) -> bool:
        return self.phase in (Phase.RELEASED, Phase.LOST)

    # ---- metadata ---------------------------------------------------------------------------------------------------

    @property
    def value(self) -> StreamMetadata:
        """The stream as last read or written under this claim."""
        return self.register.value

    def became_owner(self) -> None:
        """The claim succeeded: keep the stream's metadata, and recover the stream."""
        self.register = StreamMetadataUpdater(self.claim, self.options)
        self.enter(Phase.RECOVERING)

    # ---- time (labels only) -----------------------------------------------------------------------------------------

    def saw_clock(self, unix_ms: int, now_s: float) -> None:
        self._clock = self._clock or (unix_ms, now_s)
        self.writing.packer.saw_time(unix_ms)

    def saw_monotonic(self, now_s: float) -> None:
        self.writing.packer.saw_time(self.clock_unix_ms(now_s))

    def clock_unix_ms(self, now_s: float) -> int:
        """This proxy's wall clock at the claim plus monotonic time since; never a record's timestamp."""
        unix_ms, seen_s = self._clock or (0, now_s)
        return unix_ms + max(0, int((now_s - seen_s) * 1000))

    @property
    def unix_ms(self) -> int:
        return self.writing.packer.unix_ms

    # ---- segments ---------------------------------------------------------------------------------------------------

    def in_progress(self, number: int, location: Location, txid: int) -> Segment:
        """A new segment for the list; txid: lower bound of its records' txids."""
        return Segment(number=SegmentNumber(number), name=location.name, store=location.store, first_txid=Txid(txid))

    def open(self, segment: Segment, txid: int) -> None:
        """Append to this segment from now on."""
        store = self.stores.get(segment.store, UNKNOWN_STORE)
        self.table.set_window(window_for(store.bytes_in_flight, self.options.window_min))
        self._opened = segment
        self.out.append(Emit(SegmentStarted(self.stream, segment.number, segment.name)))
        opened = OpenSegment(segment.number, segment.location, txid, store.visible_is_final, store.entries_in_flight)
        self.writing.begin_segment(opened, self.out)

    def report_dropped(self) -> None:
        """If another writer dropped this owner's segment as empty, report its end before its number is reported again:
        followers identify a segment by its number."""
        opened = self._opened
        if opened is not None and self.value.has_dropped(opened.number, opened.location):
            self._opened = None
            self.out.append(Emit(LacMoved(self.stream, opened.number, NO_ENTRY, True)))

    def ask_seal(self) -> None:
        """Seal the current segment, once, when every appended entry is confirmed."""
        segment = self.writing.current
        if segment is not None and self.writing.pipe_is_empty and not segment.is_seal_asked:
            segment.is_seal_asked = True
            self.out.append(Send(STORE, SealSegment(SegmentNumber(segment.number))))

    @property
    def is_seal_asked(self) -> bool:
        """Whether the store was asked to seal the current segment."""
        segment = self.writing.current
        return segment is not None and segment.is_seal_asked

    def awaits_seal(self, number: int) -> bool:
        """Whether a reply that this segment is sealed is awaited; false for a reply about an earlier segment."""
        segment = self.writing.current
        return segment is not None and segment.number == number and segment.is_seal_asked


@lru_cache(maxsize=64)
def _claim_options(answer_timeout_s: float, retry_after_s: float) -> ClaimOptions:
    """One object for all streams."""
    return ClaimOptions(answer_timeout_s=answer_timeout_s, retry_after_s=retry_after_s)
