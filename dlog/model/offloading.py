"""Offload of segments to cold storage: the record of one segment, and the rule for its next step. Values, no I/O.

Runs of `offload` may work concurrently and may be frozen between any two steps, and their requests to a stream's owner
may take effect long after they gave up. A record (dlog/spark/jobs/offload_records.py) is changed by compare-and-set.

Invariants:
- A copy that metadata names, or may name because of any request made so far, is not deleted.
- Copies are deleted only after a record that announces it (`is_deleting`) has replaced the record from which that was
  decided, and not while the segment is in an object that it was, or was to be, moved back from (`taken_back_from`).
- A segment is moved back only after a record says so, and never once the deletion is announced.

Why no late request can make metadata name a deleted copy. A request moves a segment from one location to another, and
takes effect only while metadata names the first. There are two kinds, hot copy -> object and object -> hot copy, and
each is written to the record before it is made. Let a run replace a record by one that announces the deletion, after it
read metadata, which named object O. No move away from O was requested before: it would be in that record. None will be
requested later, since that needs to replace the same record. So metadata names O until the segment is truncated, which
no move undoes, and names no other copy again, whatever moves from other locations were requested. A record that changed
since it was read is left to the next run: metadata that names none of its objects may name one added meanwhile.

Source: ours; docs/decisions/0022.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from dlog.model.segment import StreamMetadata

COLD = "cold"  # name of the object store


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The offload of one segment. store, name: its hot copy. objects: targets of requested moves, newest last.
    incarnation: of its stream, for requests to the owner; "": unknown.

    moved_unix_ms: since when it is known to be in the newest; 0: not yet. is_damaged: the newest is damaged, another
    is needed. taken_back_from: objects from which a move back was requested. is_deleting: the hot copy is being
    deleted, or is gone.
    """

    stream: str
    number: int
    store: str
    name: str
    objects: tuple[str, ...]
    moved_unix_ms: int = 0
    is_damaged: bool = False
    taken_back_from: tuple[str, ...] = ()
    is_deleting: bool = False
    incarnation: str = ""

    @property
    def object(self) -> str:
        """The newest object; empty if there is none yet."""
        return self.objects[-1] if self.objects else ""

    @property
    def needs_copy(self) -> bool:
        """Whether a new object is needed: the newest is damaged, or a move away from it may still take effect."""
        return self.is_damaged or self.object in self.taken_back_from

    def deleting(self) -> Record:
        """The record that must replace this one before a copy is deleted."""
        return replace(self, is_deleting=True)

    def returning(self, lies_at: str, *, is_damaged: bool) -> Record | None:
        """The record that must replace this one before a move back from the object `lies_at` is requested. None: not
        possible, the hot copy is being deleted."""
        if self.is_deleting:
            return None
        left = dict.fromkeys((*self.taken_back_from, lies_at))
        return replace(self, moved_unix_ms=0, is_damaged=is_damaged, taken_back_from=tuple(left))

    def with_object(self, name: str) -> Record | None:
        """The record that must replace this one before a move to another object is requested. None: not possible, the
        hot copy is being deleted and the segment stays in its object."""
        if self.is_deleting:
            return None
        return replace(self, objects=(*self.objects, name), moved_unix_ms=0, is_damaged=False)


class Step(enum.Enum):
    """The next step for a segment that is being offloaded."""

    #: the move is not known to be requested: check the object and request it from the stream's owner
    REQUEST_MOVE = "request move"
    NOTE = "note"  # the segment is in its object: the grace period begins now
    WAIT = "wait"  # the grace period is not over, or the stream is about to delete the segment
    RETIRE = "retire"  # read the whole object, then delete the hot copy
    TAKE_BACK = "take back"  # a move back was requested but not made, or undone by a late request: request it again
    DROP = "drop"  # the segment was truncated: delete the hot copy, the stream deletes the object
    CLEAR = "clear"  # metadata names none of the copies: delete all


@dataclass(frozen=True, slots=True)
class Decision:
    """A step, and the object in which the segment is now, if any."""

    step: Step
    lies_at: str = ""


def decide(record: Record, value: StreamMetadata | None, *, now_unix_ms: int, grace_s: float) -> Decision:
    """The step for a record. value: its stream's metadata, read after the record; None: there is no such stream."""
    segment, is_truncated = None, False
    if value is not None:
        is_truncated = value.has_lost(record.number)
        segment = value.segment(record.number) or value.truncated_segment(record.number)
    if segment is not None and (segment.store, segment.name) == (record.store, record.name):
        return Decision(Step.WAIT if is_truncated else Step.REQUEST_MOVE)
    if segment is not None and segment.store == COLD and segment.name in record.objects:
        if is_truncated:
            return Decision(Step.DROP, segment.name)
        if record.is_deleting:
            return Decision(Step.RETIRE, segment.name)
        if segment.name in record.taken_back_from:
            return Decision(Step.TAKE_BACK, segment.name)
        if record.is_damaged and segment.name == record.object:
            return Decision(Step.RETIRE, segment.name)  # which reads it again
        if not record.moved_unix_ms:
            return Decision(Step.NOTE, segment.name)
        is_over = now_unix_ms - record.moved_unix_ms >= grace_s * 1000
        return Decision(Step.RETIRE if is_over else Step.WAIT, segment.name)
    return Decision(Step.CLEAR)
