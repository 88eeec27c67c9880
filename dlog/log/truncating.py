"""Truncation: the point before which records may go, and what is deleted for it. The point only moves forward."""

from __future__ import annotations

from dlog.errors import DLogError, InvalidRequestError, NotReadyError
from dlog.log.changes import Deallocate, ForgetSegment, TruncateTo, allocated_place
from dlog.log.disposal import Doomed
from dlog.log.tenure import Tenure
from dlog.machine import Answer, Ticket
from dlog.model.dlsn import DLSN, DLSN_FIRST
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

    def ask(self, ticket: Ticket, dlsn: DLSN) -> None:
        """Answered with the first DLSN that may still be read, once metadata says so."""
        t = self._tenure
        if not t.is_held:
            t.out.append(Answer(ticket, NotReadyError("the stream is being claimed")))
        elif dlsn.segment > t.value.max_segment:
            last = t.value.max_segment
            t.out.append(Answer(ticket, InvalidRequestError(f"no such segment yet: dlsn={dlsn} last_segment={last}")))
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
