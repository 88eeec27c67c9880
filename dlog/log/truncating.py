"""Truncation: the point before which records may go, and what is deleted for it. The point only moves forward."""

from __future__ import annotations

from dlog.errors import DLogError, NotReadyError, PositionBeyondEndError
from dlog.log.changes import Deallocate, ForgetSegment, TruncateTo, allocated_place
from dlog.log.disposal import Doomed
from dlog.log.tenure import Tenure
from dlog.machine import Answer, Ticket
from dlog.model.dlsn import DLSN, DLSN_FIRST, of
from dlog.model.segment import LEDGER, Truncation


class Truncating:
    __slots__ = ("_deleted", "_tenure", "_waiting")

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure
        self._waiting: tuple[tuple[Ticket, TruncateTo], ...] = ()
        self._deleted: dict[str, None] = {}  # places of segments that may still be in the list

    @property
    def first_dlsn(self) -> DLSN:
        """The first place that may still be read."""
        kept = (s for s in self._tenure.value.segments if s.truncation is not Truncation.TRUNCATED)
        return next((s.first_dlsn for s in kept), DLSN_FIRST)

    @property
    def end(self) -> DLSN | None:
        """Behind the last record that is confirmed; None: a segment is still being recovered."""
        t = self._tenure
        segment = t.writing.current
        if segment is not None:
            return of(segment.number, segment.lac + 1, 0)
        if t.value.in_progress:
            return None
        last = t.value.segments[-1].number if t.value.segments else t.value.max_segment
        return of(last + 1, 0, 0)

    def ask(self, ticket: Ticket, dlsn: DLSN) -> None:
        """Answered with the first DLSN that may still be read, once metadata says so. A point beyond the end is
        refused: what is not written yet would be gone as soon as it is acknowledged."""
        t = self._tenure
        end = self.end if t.is_held else None
        if end is None:
            t.out.append(Answer(ticket, NotReadyError("the stream is being claimed or recovered")))
        elif dlsn > end:
            text = f"the stream does not reach as far as this point, it ends at {end}: stream={t.stream} dlsn={dlsn}"
            t.out.append(Answer(ticket, PositionBeyondEndError(text, end=str(end))))
        else:
            change = TruncateTo(dlsn)
            self._waiting += ((ticket, change),)
            t.register.want(change)

    def done(self, change: TruncateTo) -> None:
        first = self.first_dlsn
        heard = [ticket for ticket, asked in self._waiting if asked is change]
        self._waiting = tuple(waiting for waiting in self._waiting if waiting[1] is not change)
        self._tenure.out.extend(Answer(ticket, first) for ticket in heard)
        self.doom()

    def doom(self) -> None:
        """Have every TRUNCATED segment deleted and then taken out of the list; also the ledger where it lay before it
        was moved: once the list does not know of that, it could be taken in as a stage again."""
        add = self._tenure.disposal.add
        for s in self._tenure.value.segments:
            if s.truncation is Truncation.TRUNCATED:
                add(Doomed(s.store, s.place, s.number, ForgetSegment(s.number, s.place)))
                if s.former_ledger:
                    add(Doomed(LEDGER, s.former_ledger, s.number, ForgetSegment(s.number, s.place)))

    def deleted(self, doomed: Doomed | None) -> None:
        """A store has deleted a place: take its mark away. Segments leave the list oldest first, so it has no holes."""
        t = self._tenure
        if doomed is None or doomed.then is None:
            return
        if not isinstance(doomed.then, ForgetSegment):
            t.register.want(doomed.then)
            return
        self._deleted[doomed.place] = None
        for s in t.value.segments:
            places = {s.place, s.former_ledger or s.place}
            if s.truncation is not Truncation.TRUNCATED or not places <= self._deleted.keys():
                break
            t.register.want(ForgetSegment(s.number, s.place))

    def doom_allocated(self, name: str, number: int) -> None:
        """Have deleted what `allocated` names, and then forgotten."""
        store, place = allocated_place(name)
        self._tenure.disposal.add(Doomed(store, place, number, Deallocate(name)))

    def fail(self, error: DLogError) -> None:
        self._tenure.out.extend(Answer(ticket, error) for ticket, _ in self._waiting)
        self._waiting = ()
