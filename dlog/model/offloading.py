"""What is remembered of a segment on its way to cold storage, and what follows for it: values and rules, no I/O.

Runs of `offload` work at once, may be frozen between any two steps, and what they asked a stream's owner may take
effect long after they gave up. A record (dlog/spark/jobs/offload_records.py) is changed by compare-and-set.

Invariants:
- A copy that metadata names, or that a request which was ever made may let it name, is not deleted.
- Copies are deleted behind a record that announces it (`is_deleting`), put in the place of the one from which that was
  decided, and not while the segment lies in an object which it was, or was to be, taken back from (`taken_back_from`).
- A segment is taken back behind a record that says so, and never once the deletion is announced.

Why nothing that comes late can name what is deleted. A move is asked for from one place to another, and takes place
only while metadata names the first. Two kinds are asked for, hot copy -> object and object -> hot copy, and each stands
in the record before. Let a run announce the deletion behind a record and a later look at metadata, which named object
O. No move from O was asked for: it would stand in that record. None will be, since that record is the one that whoever
takes back must replace. So metadata names O until the segment is truncated, which no move undoes; no other copy is
named again, whatever was asked for from elsewhere. A record that is not any more what it was read as is left to the
next run: a look that finds the segment in none of its objects may have found it in one that was added meanwhile.

Source: ours; docs/decisions/0022.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from dlog.model.segment import StreamMetadata

COLD = "cold"  # name of the store of objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A segment on its way. store, place: of its hot copy. objects: places it was told to lie at, the newest last.

    moved_unix_ms: since when it is known to lie there; 0: not yet. is_damaged: the newest was found to be so, and
    another is to be made. taken_back_from: objects that it was asked to leave for the hot copy again. is_deleting: the
    hot copy is being deleted, or is gone.
    """

    stream: str
    number: int
    store: str
    place: str
    objects: tuple[str, ...]
    moved_unix_ms: int = 0
    is_damaged: bool = False
    taken_back_from: tuple[str, ...] = ()
    is_deleting: bool = False

    @property
    def object(self) -> str:
        """The newest; empty where there is none yet."""
        return self.objects[-1] if self.objects else ""

    @property
    def needs_copy(self) -> bool:
        """Whether the newest object is not to be told of (again): a request to leave it may still take effect."""
        return self.is_damaged or self.object in self.taken_back_from

    def deleting(self) -> Record:
        """To be put in the place of this before anything of it is deleted."""
        return replace(self, is_deleting=True)

    def returning(self, lies_at: str, *, is_damaged: bool) -> Record | None:
        """To be put in the place of this before the segment is taken back from the object `lies_at`. None: it cannot
        be, its hot copy is being deleted."""
        if self.is_deleting:
            return None
        left = dict.fromkeys((*self.taken_back_from, lies_at))
        return replace(self, moved_unix_ms=0, is_damaged=is_damaged, taken_back_from=tuple(left))

    def with_object(self, place: str) -> Record | None:
        """To be put in the place of this before the segment's stream is told of another object. None: the hot copy is
        being deleted, and the segment lies in an object for good."""
        if self.is_deleting:
            return None
        return replace(self, objects=(*self.objects, place), moved_unix_ms=0, is_damaged=False)


class Step(enum.Enum):
    """What is to be done with a segment on its way."""

    TELL = "tell"  # its stream was not told, or not that we know: look at the object and tell it
    NOTE = "note"  # it lies in its object, since some moment: the grace period begins now
    WAIT = "wait"  # the grace period is not over, or its stream is about to delete and forget the segment
    RETIRE = "retire"  # read the object whole; then delete what lies where it lay
    TAKE_BACK = "take back"  # it was to be taken back, and was not, or was moved there again by a late request
    DROP = "drop"  # it was truncated: delete what lies where it lay, its stream deletes the object
    CLEAR = "clear"  # nobody names any of it: delete all of it


@dataclass(frozen=True, slots=True)
class Decision:
    """A step, and the object in which the segment lies by now, if it does."""

    step: Step
    lies_at: str = ""


def decide(record: Record, value: StreamMetadata | None, *, now_unix_ms: int, grace_s: float) -> Decision:
    """What follows for a record. value: its stream's metadata, read after the record; None: there is no such stream."""
    segment, is_truncated = None, False
    if value is not None:
        is_truncated = value.has_lost(record.number)
        segment = value.segment(record.number) or value.truncated_segment(record.number)
    if segment is not None and (segment.store, segment.place) == (record.store, record.place):
        return Decision(Step.WAIT if is_truncated else Step.TELL)
    if segment is not None and segment.store == COLD and segment.place in record.objects:
        if is_truncated:
            return Decision(Step.DROP, segment.place)
        if record.is_deleting:
            return Decision(Step.RETIRE, segment.place)
        if segment.place in record.taken_back_from:
            return Decision(Step.TAKE_BACK, segment.place)
        if record.is_damaged and segment.place == record.object:
            return Decision(Step.RETIRE, segment.place)  # it was to be looked at again
        if not record.moved_unix_ms:
            return Decision(Step.NOTE, segment.place)
        is_over = now_unix_ms - record.moved_unix_ms >= grace_s * 1000
        return Decision(Step.RETIRE if is_over else Step.WAIT, segment.place)
    return Decision(Step.CLEAR)
