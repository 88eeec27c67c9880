"""State shared by the components of one owner under one claim: the claim, metadata, the writer, pending effects.

The components are taking.py (recovery), rolling.py, truncating.py, owner.py (fact handling, the end) and others; each
changes only its own state and the state here.
"""

from __future__ import annotations

import enum
from functools import lru_cache

from dlog.events import LacMoved, SegmentStarted
from dlog.log.allocation import SegmentAllocator
from dlog.log.messages import STORE, SealSegment
from dlog.log.metadata_updater import StreamMetadataUpdater
from dlog.log.options import OwnerOptions
from dlog.log.packing import OpenSegment
from dlog.log.producer_table import ProducerTable
from dlog.log.segment_deletion import SegmentDeleter
from dlog.log.writing import EntryWriter
from dlog.machine import Effect, Send, Tell
from dlog.model.ids import NO_ENTRY, SegmentNumber, Txid
from dlog.model.segment import Location, Segment, StreamKey, StreamMetadata
from dlog.ownership.claim import Claim, Claimant, ClaimOptions


class Phase(enum.Enum):
    IDLE = "idle"
    CLAIMING = "claiming"
    RECOVERING = "recovering"
    SERVING = "serving"
    SEALED = "sealed"
    RELEASED = "released"
    LOST = "lost"


class OwnerContext:
    """State of one owner. out: effects of the fact being handled, in order. register: the stream's metadata, set by
    `hold`. is_draining: new writes are refused; the stream is being sealed or handed over. is_holding: writes wait and
    no segment is started; stages are being imported."""

    __slots__ = (
        "_clock",
        "_final_stores",
        "_opened",
        "_seal_asked",
        "allocation",
        "disposal",
        "is_closing",
        "is_draining",
        "is_held",
        "is_holding",
        "lease",
        "options",
        "out",
        "phase",
        "register",
        "stream",
        "table",
        "writing",
    )

    def __init__(self, key: StreamKey, claimant: Claimant, options: OwnerOptions, final_stores: frozenset[str]) -> None:
        self.stream = key.stream
        self.options = options
        self.phase = Phase.IDLE
        self.lease = Claim(key, claimant, _lease_options(options.answer_timeout_s, options.retry_after_s))
        self.table = ProducerTable(options.producers_max, options.places_max)
        self.writing = EntryWriter(self.stream, self.table, options)
        self.allocation = SegmentAllocator(options)
        self.disposal = SegmentDeleter(options)
        self.out: list[Effect] = []
        self.is_draining = False
        self.is_holding = False
        self.is_held = False  # whether the claim succeeded; it may have been lost since
        self.is_closing = False  # the end of the stream or of the claim is being written to metadata
        self._final_stores = final_stores
        self._seal_asked = False
        self._opened: Segment | None = None  # the segment opened last
        self._clock: tuple[int, float] | None = None  # wall clock in ms and monotonic clock in s at the claim

    # ---- metadata ---------------------------------------------------------------------------------------------------

    @property
    def value(self) -> StreamMetadata:
        """The stream as last read or written under this claim."""
        return self.register.value

    def hold(self) -> None:
        self.register = StreamMetadataUpdater(self.lease, self.options)
        self.is_held = True

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
        return Segment(number=SegmentNumber(number), place=location.name, store=location.store, first_txid=Txid(txid))

    def open(self, segment: Segment, txid: int) -> None:
        """Append to this segment from now on."""
        final = segment.store in self._final_stores
        self._seal_asked = False
        self._opened = segment
        self.out.append(Tell(SegmentStarted(self.stream, segment.number, segment.place)))
        opened = OpenSegment(segment.number, segment.location, txid, final)
        self.writing.begin_segment(opened, self.out)

    def tell_dropped(self) -> None:
        """If another writer dropped this owner's segment as empty, report its end before its number is reported again:
        followers identify a segment by its number."""
        opened = self._opened
        if opened is not None and self.value.has_dropped(opened.number, opened.location):
            self._opened = None
            self.out.append(Tell(LacMoved(self.stream, opened.number, NO_ENTRY, True)))

    def ask_seal(self) -> None:
        """Seal the current segment, once, when every appended entry is confirmed."""
        segment = self.writing.current
        if segment is not None and self.writing.pipe_is_empty and not self._seal_asked:
            self._seal_asked = True
            self.out.append(Send(STORE, SealSegment(SegmentNumber(segment.number))))

    @property
    def is_seal_asked(self) -> bool:
        return self._seal_asked

    def hears_seal(self, number: int) -> bool:
        """Whether a seal reply answers the pending request."""
        segment = self.writing.current
        return segment is not None and segment.number == number and self._seal_asked

    def lose_segment(self) -> None:
        self.writing.lose_segment()
        self._seal_asked = False


@lru_cache(maxsize=64)
def _lease_options(answer_timeout_s: float, retry_after_s: float) -> ClaimOptions:
    """One object for all streams."""
    return ClaimOptions(answer_timeout_s=answer_timeout_s, retry_after_s=retry_after_s)
