"""Rolls from a full or old segment to the next one, which was created in advance.

Invariants:
- the next segment is listed while the current one still takes entries, so a new owner finds and fences both;
- the next segment takes entries only after the current one is drained and sealed; writes wait meanwhile, none is
  refused;
- a segment ends at the size and the age that the stream's settings had when it was opened, and at RECORDS_MAX records;
- a segment that is begun after an alteration of the settings was answered has the new settings.
"""

from __future__ import annotations

import enum

from dlog.log.changes import AlterSettings, SegmentEnd, StartSegment
from dlog.log.owner_context import OwnerContext, Phase
from dlog.log.packing import OpenSegment
from dlog.machine import SetTimer
from dlog.model.segment import Segment, StreamSettings

AGE_TIMER = ("age",)
#: records of a segment after which the next one begins. A record's position in its segment has 32 bits, Java counts
#: records up to 2**31 - 1, and a full segment takes entries until the next one is listed
RECORDS_MAX = 2**30
_DEFAULTS = StreamSettings()


class Roll(enum.Enum):
    NONE = 0
    LISTING = 1  # the next segment is being added to the list; the current one still takes entries
    CLOSING = 2  # the next segment is listed; the current one drains and is sealed


class SegmentRoller:
    """state: the stage of the current roll."""

    __slots__ = ("_age_due", "_context", "_settings", "_starting", "state")

    def __init__(self, context: OwnerContext) -> None:
        self.state = Roll.NONE
        self._context = context
        self._starting: Segment | None = None
        self._age_due = False
        self._settings = _DEFAULTS  # of the current segment

    def restart(self) -> None:
        """A segment was opened: no roll is under way, and its age starts now."""
        t = self._context
        self._settings = t.value.settings
        self.state = Roll.NONE
        self._starting = None
        self._age_due = False
        t.allocation.is_due = False
        t.out.append(SetTimer(AGE_TIMER, self._settings.segment_age_s * t.options.allocate_ahead))

    def abandon(self) -> None:
        """The store failed: a recovery handles the listed segments."""
        self.state = Roll.NONE
        self._starting = None

    def aged(self) -> None:
        """The age timer fired: the first time the next segment becomes due for creation, the second time the current
        one is rolled; an empty one starts a new age."""
        t, segment = self._context, self._context.writing.current
        if not t.allocation.is_due:
            t.allocation.is_due = True
            t.out.append(SetTimer(AGE_TIMER, self._settings.segment_age_s * (1 - t.options.allocate_ahead)))
            return
        if segment is not None and segment.next_entry == 0:
            self.restart()
        else:
            self._age_due = True

    def progress(self) -> None:
        t, segment = self._context, self._context.writing.current
        if segment is None:
            return
        if self.state is Roll.NONE and segment.next_entry > 0 and t.phase is Phase.SERVING and not t.writes_wait:
            filled = max(segment.bytes / self._settings.segment_bytes, segment.records / RECORDS_MAX)
            if t.allocation.is_due or filled >= t.options.allocate_ahead:
                self._progress_allocation(segment)
            if self._age_due or filled >= 1:
                self._begin(segment)
        if self.state is Roll.CLOSING:
            t.ask_seal()

    def started(self, segment: Segment) -> None:
        """The next segment is listed: the current one takes no new entries."""
        if self.state is Roll.LISTING and self._starting is not None and self._starting.location == segment.location:
            self.state = Roll.CLOSING
            self._context.writing.accepts_entries = False

    def closed(self, end: SegmentEnd) -> None:
        """The old segment is sealed: append to the next one from now on."""
        t, segment = self._context, self._starting
        assert segment is not None and self.state is Roll.CLOSING
        self.restart()
        t.open(segment, end.last_txid)

    def _progress_allocation(self, segment: OpenSegment) -> None:
        """Create the next segment in advance, and record it in `allocated` until it is used."""
        t = self._context
        other = t.allocation.discard_other(segment.number + 1, t.value.settings)
        if other is not None:
            t.disposal.add(other)  # the settings were altered
        t.out += t.allocation.want(segment.number + 1, t.claim.epoch, t.value.settings)
        change = t.allocation.to_record(t.value.allocated)
        if change is not None:
            t.register.want(change)

    def _begin(self, segment: OpenSegment) -> None:
        t = self._context
        if t.register.wants(AlterSettings):
            return  # once that is done, the next segment may have to be created anew
        ahead = t.allocation.take_recorded(segment.number + 1, t.value.allocated)
        if ahead is not None:
            self.state = Roll.LISTING
            self._starting = t.in_progress(segment.number + 1, ahead.location, segment.txid)
            t.register.want(StartSegment(self._starting, ahead.name, segment.location))
