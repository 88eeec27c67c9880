"""What is remembered of a segment on its way to cold storage, and what follows for it: values and rules, no I/O.

Runs of `offload` work at once, may be frozen between any two steps, and what they asked a stream's owner may take
effect long after they gave up. A record (dlog/spark/jobs/offload_records.py) is changed by compare-and-set.

Invariants:
- A copy that metadata names, or that a request which was ever made may let it name, is not deleted.
- The hot copy is deleted behind a record that announces it (`is_deleting`), and that announcement is refused where the
  segment was, or was to be, taken back from the object in which it lies now (`taken_back_from`).
- A segment is taken back behind a record that says so, and never once the deletion is announced.

Why nothing that comes late can name what is deleted. A move is asked for from one place to another, and takes place
only while metadata names the first. Two kinds are asked for: hot copy -> object, and object -> hot copy. Let a run
announce the deletion while metadata names object O. None was asked for from O: it would stand in the record that was
replaced, and none will be, since that record is the one that whoever takes back must replace. So metadata names O until
the segment is truncated; no other copy is named again, whatever is asked for from elsewhere.

Source: ours; docs/decisions/0022.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from dlog.model.segment import StreamMetadata, Truncation

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
    segment = value.segment(record.number) if value is not None else None
    if segment is not None and (segment.store, segment.place) == (record.store, record.place):
        return Decision(Step.WAIT if segment.truncation is Truncation.TRUNCATED else Step.TELL)
    if segment is not None and segment.store == COLD and segment.place in record.objects:
        if segment.truncation is Truncation.TRUNCATED:
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


def announce_deletion(record: Record, lies_at: str) -> Record | None:
    """To be put in the place of `record` before its hot copy is deleted, while metadata names the object `lies_at`.
    None: it may not be deleted, a request to take the segment back from there may still take effect."""
    if lies_at not in record.objects or lies_at in record.taken_back_from:
        return None
    return replace(record, is_deleting=True)


def announce_return(record: Record, lies_at: str, *, is_damaged: bool) -> Record | None:
    """To be put in the place of `record` before the segment is taken back from the object `lies_at`. None: it cannot
    be, its hot copy is being deleted."""
    if record.is_deleting:
        return None
    left = record.taken_back_from if lies_at in record.taken_back_from else (*record.taken_back_from, lies_at)
    return replace(record, moved_unix_ms=0, is_damaged=is_damaged, taken_back_from=left)


def add_object(was: Record | None, copied: Record, place: str) -> Record | None:
    """To be put in the place of `was` before the segment's stream is told of another object. None: the hot copy is
    being deleted, and the segment lies in an object for good."""
    if was is None:
        return replace(copied, objects=(place,))
    if was.is_deleting:
        return None
    return replace(was, objects=(*was.objects, place), moved_unix_ms=0, is_damaged=False)
