"""Creates the next segment before it is needed.

Invariants:
- only the owner that created a segment adds it to the segment list; until then metadata records it in `allocated`, if
  that is free, so that the next owner can delete it;
- at most one creation is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.log.changes import Allocate, Change, Deallocate, allocated_name
from dlog.log.messages import STORE, CreateSegment
from dlog.log.options import OwnerOptions
from dlog.log.segment_deletion import PendingDeletion
from dlog.machine import Effect, Send, SetTimer
from dlog.model.ids import Epoch, SegmentNumber
from dlog.model.segment import Location, StoreSettings, StreamSettings

TIMER = ("allocation",)


@dataclass(slots=True)
class AllocatedSegment:
    """A created segment that is not listed. settings: of its store. recorded: `allocated` holds it."""

    number: int
    location: Location
    settings: StoreSettings
    recording: bool = False
    recorded: bool = False

    @property
    def name(self) -> str:
        return allocated_name(self.location)


class SegmentAllocator:
    """Creates one segment in advance. is_due: now."""

    __slots__ = ("_ahead", "_asked", "_garbage", "_options", "_retry_after_s", "_waiting", "_wanted", "is_due")

    def __init__(self, options: OwnerOptions) -> None:
        self.is_due = False
        self._options = options
        self._asked: CreateSegment | None = None
        self._wanted = 0
        self._ahead: AllocatedSegment | None = None
        self._garbage: list[PendingDeletion] = []
        self._waiting = False  # for the retry timer
        self._retry_after_s = options.retry_after_s

    def want(self, number: int, epoch: Epoch, settings: StreamSettings) -> list[Effect]:
        """Create segment `number`, unless a segment exists or is being created."""
        self._wanted = number
        if self._asked is not None or self._waiting or self._ahead is not None:
            return []  # one that does not fit is discarded first, see `discard_other`
        self._asked = CreateSegment(SegmentNumber(number), epoch, settings.store, settings.store_settings)
        return [Send(STORE, self._asked)]

    def created(self, number: int, location: Location) -> PendingDeletion | None:
        """The store created it. Returns it for deletion if it is not needed any more."""
        asked, self._asked = self._asked, None
        self._retry_after_s = self._options.retry_after_s
        if asked is None:
            return None
        if number != self._wanted or self._ahead is not None:
            return PendingDeletion(location, number, None)
        self._ahead = AllocatedSegment(number, location, asked.settings)
        return None

    def failed(self) -> list[Effect]:
        self._asked = None
        self._waiting = True
        delay, self._retry_after_s = self._retry_after_s, min(self._retry_after_s * 2, self._options.retry_after_max_s)
        return [SetTimer(TIMER, delay)]

    def retry(self) -> None:
        self._waiting = False

    def lost(self) -> PendingDeletion | None:
        """The store failed, and with it the writer of the segment created in advance. Returns it to delete."""
        self._asked = None
        return self._discard()

    def discard_other(self, number: int, settings: StreamSettings) -> PendingDeletion | None:
        """Drop the created segment unless it is `number`, in the store and with the settings of it that the stream has
        now. Returns the segment to delete."""
        ahead, wanted = self._ahead, (number, settings.store, settings.store_settings)
        fits = ahead is None or (ahead.number, ahead.location.store, ahead.settings) == wanted
        return None if fits else self._discard()

    def _discard(self) -> PendingDeletion | None:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        then = Deallocate(ahead.name) if ahead.recording or ahead.recorded else None
        return PendingDeletion(ahead.location, ahead.number, then)

    def take(self, number: int) -> AllocatedSegment | None:
        """Hand out the created segment, recorded or not."""
        ahead = self._ahead
        if ahead is None or ahead.number != number:
            return None
        self._ahead = None
        return ahead

    def take_recorded(self, number: int, allocated: str) -> AllocatedSegment | None:
        """`take` it once `allocated` names it, or if `allocated` holds another one, not deleted yet."""
        ahead = self._ahead
        if ahead is None or not (ahead.recorded or allocated not in ("", ahead.name)):
            return None
        return self.take(number)

    def to_record(self, allocated: str) -> Change | None:
        """The change that records the created segment, once, when `allocated` is free."""
        ahead = self._ahead
        if ahead is None or ahead.recording or allocated:
            return None
        ahead.recording = True
        return Allocate(ahead.name)

    def recorded(self, change: Change) -> None:
        if self._ahead is not None and change == Allocate(self._ahead.name):
            self._ahead.recorded = True
