"""Computes how many unread records are gone, from metadata and offsets.

Invariants:
- only what can be proved is reported as kept or counted; anything else is reported as bounds;
- `start_sequence_id` (records of the stream before a segment) is compared between segments only where no restart of the
  count is possible: it restarts from 0 where a segment ended after its predecessor had left the list.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.errors import TruncatedError
from dlog.spark.offsets import BEGINNING, StreamOffset, StreamPosition
from dlog.spark.planning import StreamView, Tally


@dataclass(frozen=True, slots=True)
class Loss:
    """Number of lost records, at least and at most. most: None if unknown."""

    least: int = 0
    most: int | None = None

    @property
    def is_exact(self) -> bool:
        return self.least == self.most

    def __add__(self, other: Loss) -> Loss:
        most = None if self.most is None or other.most is None else self.most + other.most
        return Loss(self.least + other.least, most)

    def __str__(self) -> str:
        if self.is_exact:
            return f"exactly {self.least}"
        if self.most is not None:
            return f"between {self.least} and {self.most}"
        return f"at least {self.least}" if self.least else "unknown, perhaps none"


NOTHING, UNKNOWN = Loss(0, 0), Loss()


def offset_at(view: StreamView, position: StreamPosition, before: StreamOffset | None = None) -> StreamOffset:
    """A position with what is known of it now. For the same position `before` is returned unchanged (Spark compares the
    text), except that the stream's incarnation and the end of its segment are added once: when the segment is gone,
    neither can be found out."""
    now = _known(view, position)
    if before is None or before.position != position or is_another(view, before):
        return now
    is_over = now.ended or _rest(view, before, before.read, _tallies(view)) == NOTHING
    if (before.incarnation or not now.incarnation) and (before.ended or not is_over):
        return before
    read, start = (old if old >= 0 else new for old, new in ((before.read, now.read), (before.start, now.start)))
    return StreamOffset(position, now.incarnation or before.incarnation, read, start, before.ended or is_over)


def _known(view: StreamView, position: StreamPosition) -> StreamOffset:
    if position == BEGINNING:
        return StreamOffset(position)
    segment = view.segment(position.segment)
    if segment is None:
        return StreamOffset(position, view.incarnation)
    is_certain = segment.is_completed or not segment.start_sequence_id
    start = segment.start_sequence_id if is_certain else -1
    if not StreamPosition(segment.number, segment.last + 1 - segment.idle) <= position <= segment.end:
        return StreamOffset(position, view.incarnation, -1, start)
    return StreamOffset(position, view.incarnation, segment.counted, start, segment.is_final)


def is_another(view: StreamView, mark: StreamOffset) -> bool:
    """Whether the mark is of an earlier incarnation of the stream, if known."""
    return bool(mark.incarnation and view.incarnation and mark.incarnation != view.incarnation)


def lost(
    view: StreamView, mark: StreamOffset, to: StreamPosition | None = None, *, head: int = -1, read: int = -1
) -> Loss:
    """What lay from `mark` up to the first record that may be read, or `to` (exclusive).

    head: records before the end position in its segment. read: records before the mark in its segment. Both -1 if the
    entries were not read.
    """
    start = mark.position
    end = view.earliest if to is None else min(to, view.earliest)
    if start == BEGINNING or start >= end or is_another(view, mark):
        return NOTHING
    if _is_over(view, mark) and start.segment == end.segment:
        return NOTHING
    tallies = _tallies(view)
    before = Loss(head, head) if head >= 0 else _before(view, end, tallies.get(end.segment))
    done = read if read >= 0 else mark.read
    if start.segment == end.segment:
        most = None if before.most is None else max(0, before.most - max(0, done))
        return Loss(max(0, before.least - done) if done >= 0 else 0, most)
    parts = [_rest(view, mark, done, tallies)]
    past = dict(view.past)
    for number in range(start.segment + 1, end.segment):
        tally = tallies.get(number)
        parts.append(Loss(tally.records, tally.records) if tally else NOTHING if past.get(number) == -1 else UNKNOWN)
    gone = sum(parts, before)
    return gone if gone.most is not None else Loss(max(gone.least, _sequences(view, mark, done, end) + before.least))


def check_kept(view: StreamView, start: StreamPosition | StreamOffset, loss: Loss | None = None) -> None:
    """Raises TruncatedError unless it is certain that nothing is gone after `start`. loss: if computed already."""
    mark = start if isinstance(start, StreamOffset) else StreamOffset(start)
    loss = lost(view, mark) if loss is None else loss
    if loss.most != 0:
        raise TruncatedError(
            f"records were truncated before they were read: stream={view.name} wanted={mark.position} "
            f"available={view.earliest}; records lost: {loss}; option failOnDataLoss=false continues from there"
        )


def _tallies(view: StreamView) -> dict[int, Tally]:
    return {tally.number: tally for tally in view.tallies}


def _is_over(view: StreamView, mark: StreamOffset) -> bool:
    """Whether no record of the mark's segment lay after the mark."""
    past = dict(view.past)
    segment, entry, _ = mark.position
    return mark.ended or (segment in past and entry > past[segment])


def _rest(view: StreamView, mark: StreamOffset, done: int, tallies: dict[int, Tally]) -> Loss:
    """Loss in the mark's segment, after the mark."""
    if _is_over(view, mark):
        return NOTHING
    number = mark.position.segment
    tally = tallies.get(number)
    if tally is not None:
        most = tally.records
        return Loss(max(0, most - done), max(0, most - done)) if done >= 0 else Loss(0, most)
    follows = _sequence_of(view, number + 1, tallies)
    if follows <= 0:
        return UNKNOWN  # 0: the count started again
    if mark.start < 0:
        return Loss(0, max(0, follows - max(0, done)))  # the segment may be the first one of the count
    most = follows - mark.start
    if most < max(0, done):
        return UNKNOWN  # a count that started elsewhere
    return Loss(most - done, most - done) if done >= 0 else Loss(0, most)


def _before(view: StreamView, end: StreamPosition, tally: Tally | None) -> Loss:
    """Loss in the segment of `end`, before it."""
    if end == StreamPosition(end.segment, 0):
        return NOTHING
    segment = view.segment(end.segment)
    if segment is not None:
        return Loss(0, segment.counted if segment.counted >= 0 else None)
    if tally is None:
        return UNKNOWN
    return Loss(tally.records, tally.records) if end == view.floor else Loss(0, tally.records)


def _sequences(view: StreamView, mark: StreamOffset, done: int, end: StreamPosition) -> int:
    """A lower bound of the records before the segment of `end`."""
    follows = _sequence_of(view, end.segment, _tallies(view))
    if follows <= 0 or mark.start < 0 or done < 0:
        return 0
    since = follows - mark.start - done
    return since if since >= 0 else follows  # the count started again after the mark's segment


def _sequence_of(view: StreamView, number: int, tallies: dict[int, Tally]) -> int:
    """The final start_sequence_id in the list, or -1."""
    segment = view.segment(number)
    if segment is not None:
        return segment.start_sequence_id if segment.is_completed else -1
    return tallies[number].start_sequence_id if number in tallies else -1
