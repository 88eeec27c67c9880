"""What the parts of one owner share: the claim, the stream's metadata under it, what is written, and the effects.

A tenure is one claim's life. The parts are dlog/log/taking.py (recover, mend), rolling.py, truncating.py and owner.py
(the door, and how it ends); each keeps its own state and changes only what is written here beside its own.
"""

from __future__ import annotations

import enum
from functools import lru_cache

from dlog.events import LacMoved, SegmentStarted
from dlog.lease.lease import Claimant, Lease, LeaseOptions
from dlog.log.allocation import Allocation
from dlog.log.dedupe import ProducerTable
from dlog.log.disposal import Disposal
from dlog.log.messages import STORE, SealSegment
from dlog.log.options import OwnerOptions
from dlog.log.packing import OpenSegment
from dlog.log.register import Register
from dlog.log.writing import Writing
from dlog.machine import Effect, Send, Tell
from dlog.model.ids import NO_ENTRY, SegmentNumber, Txid
from dlog.model.segment import Segment, StreamKey, StreamMetadata


class Phase(enum.Enum):
    IDLE = "idle"
    CLAIMING = "claiming"
    RECOVERING = "recovering"
    SERVING = "serving"
    SEALED = "sealed"
    RELEASED = "released"
    LOST = "lost"


class Tenure:
    """out: effects of the fact at hand, in order. register: the stream's metadata, there from `hold` on. is_draining:
    no new writes; the stream is sealed or handed over. is_holding: writes wait, and no segment is begun; others are
    taken in."""

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
        self.lease = Lease(key, claimant, _lease_options(options.answer_timeout_s, options.retry_after_s))
        self.table = ProducerTable(options.producers_max, options.places_max)
        self.writing = Writing(self.stream, self.table, options)
        self.allocation = Allocation(options)
        self.disposal = Disposal(options)
        self.out: list[Effect] = []
        self.is_draining = False
        self.is_holding = False
        self.is_held = False  # whether the claim was made; it may have been lost since
        self.is_closing = False  # the end of the last segment, or of the tenure, is on its way to metadata
        self._final_stores = final_stores
        self._seal_asked = False
        self._opened: Segment | None = None  # the last that was
        self._clock: tuple[int, float] | None = None  # wall ms and monotonic s at the claim

    # ---- metadata ---------------------------------------------------------------------------------------------------

    @property
    def value(self) -> StreamMetadata:
        """The stream as last read or written under our claim."""
        return self.register.value

    def hold(self) -> None:
        self.register = Register(self.lease, self.options)
        self.is_held = True

    # ---- time, a label ----------------------------------------------------------------------------------------------

    def saw_clock(self, unix_ms: int, now_s: float) -> None:
        self._clock = self._clock or (unix_ms, now_s)
        self.writing.packer.saw_time(unix_ms)

    def saw_monotonic(self, now_s: float) -> None:
        self.writing.packer.saw_time(self.clock_unix_ms(now_s))

    def clock_unix_ms(self, now_s: float) -> int:
        """What this proxy's clock said at the claim, and the monotonic seconds since; never a record's timestamp."""
        unix_ms, seen_s = self._clock or (0, now_s)
        return unix_ms + max(0, int((now_s - seen_s) * 1000))

    @property
    def unix_ms(self) -> int:
        return self.writing.packer.unix_ms

    # ---- segments ---------------------------------------------------------------------------------------------------

    def in_progress(self, number: int, place: str, store: str, txid: int) -> Segment:
        """A segment to put into the list; txid: no record of it will have a lower one."""
        return Segment(number=SegmentNumber(number), place=place, store=store, first_txid=Txid(txid))

    def open(self, segment: Segment, txid: int) -> None:
        """Append to this segment from now on."""
        final = segment.store in self._final_stores
        self._seal_asked = False
        self._opened = segment
        self.out.append(Tell(SegmentStarted(self.stream, segment.number, segment.place)))
        opened = OpenSegment(segment.number, segment.place, segment.store, txid, final)
        self.writing.begin_segment(opened, self.out)

    def tell_dropped(self) -> None:
        """If somebody else found our segment empty and dropped it, say so before its number is told again: who follows
        us takes a number for a place."""
        opened = self._opened
        if opened is not None and self.value.has_dropped(opened.number, opened.place):
            self._opened = None
            self.out.append(Tell(LacMoved(self.stream, opened.number, NO_ENTRY, True)))

    def ask_seal(self) -> None:
        """Seal the current segment once nothing is on its way to it; asked once."""
        segment = self.writing.current
        if segment is not None and self.writing.pipe_is_empty and not self._seal_asked:
            self._seal_asked = True
            self.out.append(Send(STORE, SealSegment(SegmentNumber(segment.number))))

    @property
    def is_seal_asked(self) -> bool:
        return self._seal_asked

    def hears_seal(self, number: int) -> bool:
        """Whether this is the answer to our question."""
        segment = self.writing.current
        return segment is not None and segment.number == number and self._seal_asked

    def lose_segment(self) -> None:
        self.writing.lose_segment()
        self._seal_asked = False


@lru_cache(maxsize=64)
def _lease_options(answer_timeout_s: float, retry_after_s: float) -> LeaseOptions:
    """One for all streams."""
    return LeaseOptions(answer_timeout_s=answer_timeout_s, retry_after_s=retry_after_s)
