"""Decides which ledgers of a bookie are gone, from metadata alone. Deletes nothing itself.

A ledger that is absent from metadata was deleted, or metadata is not what it was: away, empty, restored from a backup,
another cluster's. To tell these apart the bookie keeps a *mark* in the metadata store, a znode with a random value that
it replaces by compare-and-set, and a record of the mark on its own disk. Metadata that still holds the mark of the
record holds everything that was in it when the mark was written. Where it does not, a new *chain* of marks begins and
all that was seen under earlier chains counts for nothing.

Invariants:
- A ledger is buried only if this bookie saw its metadata, then wrote a mark, and finds this mark or a later one of the
  same chain before and after it found the ledger absent. So its absence is a deletion: no ledger whose creation a
  restored backup has forgotten is ever buried.
- Absent is what one complete listing lacks, begun after the ledgers were taken from the bookie, and what a read of the
  ledger's own znode then confirms. A listing or read that failed proves nothing.
- Nothing is seen or buried in a metadata store with another instance id than that of the bookie's cookie.
- A ledger counts as seen only once the mark written after it was seen is in the store and on the bookie's disk.
- What was found in metadata before a round counts in it only if since its reading began contact was not lost, and
  neither mark nor instance id were found to be others.
- A round ends without effect when contact with metadata is lost before its mark is written: no server is restored
  without that, so all that a round reads, and its mark, are of one history.

Metadata of a ledger that is new to the bookie is read at once, so that a deletion soon after costs nothing: the next
round's mark makes it seen, whether it is still there or not. What was never seen (deleted before that reading, or while
the bookie was down or out of contact; forgotten by a restored backup) stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dlog.bookie.events import CollectionRefused, MetadataChainBroken
from dlog.machine import Missing, Outcome, OutcomeUnknown, Tell, Versioned

CHAIN_MAX = 127  # it is stored in seven bits of a ledger's row
NEVER_SEEN = 0


@dataclass(frozen=True, slots=True)
class MarkRecord:
    """What the bookie's disk knows of its marks. mark: the last that was written; next: one that may have been."""

    chain: int = 0
    mark: str = ""
    next: str = ""


# ---- facts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgersHeard:
    """The bookie heard of these ledgers for the first time, just now."""

    ledgers: frozenset[int]


@dataclass(frozen=True, slots=True)
class HeardRead:
    """Answer to ReadHeard. present: those of the ledgers that metadata holds."""

    present: frozenset[int]
    contact: int


@dataclass(frozen=True, slots=True)
class RoundDue:
    """Look at metadata. known: the bookie's ledgers, each with the chain under which it was seen (0: never).

    collects: list all of metadata and bury what is gone; else only read the given ledgers, so that they are seen.
    """

    known: Mapping[int, int]
    collects: bool


@dataclass(frozen=True, slots=True)
class MarkRead:
    """Answer to ReadMark. instance: the store's identity. outcome: the mark's text, Missing or OutcomeUnknown."""

    instance: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class LedgersListed:
    """Answer to ListLedgers: those of the asked ones that a complete listing holds; None: it failed on the way."""

    present: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class LedgersRead:
    """Answer to ReadLedgers. What is in neither could not be told."""

    present: frozenset[int]
    missing: frozenset[int]


@dataclass(frozen=True, slots=True)
class MarkKept:
    """Answer to KeepMark: it is on stable storage, or could not be written."""

    failure: str = ""


@dataclass(frozen=True, slots=True)
class MarkWritten:
    """Answer to WriteMark."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ContactLost:
    """The connection to metadata is gone, or was a moment ago. Handed in whether a round is under way or not."""


# ---- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadMark:
    """Read instance id and mark; nothing older than what anybody was answered before."""


@dataclass(frozen=True, slots=True)
class ListLedgers:
    """List all ledgers of metadata, and say which of `known` are among them."""

    known: frozenset[int]


@dataclass(frozen=True, slots=True)
class ReadLedgers:
    """Read each ledger's own znode."""

    ledgers: frozenset[int]


@dataclass(frozen=True, slots=True)
class ReadHeard:
    """Read each ledger's own znode, at once and beside a round. contact: to be handed back with the answer."""

    ledgers: frozenset[int]
    contact: int


@dataclass(frozen=True, slots=True)
class KeepMark:
    """Put the record on the bookie's disk."""

    record: MarkRecord


@dataclass(frozen=True, slots=True)
class WriteMark:
    """Compare-and-set the mark; version None creates it."""

    text: str
    version: Any


@dataclass(frozen=True, slots=True)
class BuryLedgers:
    """These are gone for good."""

    ledgers: frozenset[int]


@dataclass(frozen=True, slots=True)
class LedgersSeen:
    """Metadata of these was seen under this chain."""

    ledgers: frozenset[int]
    chain: int


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The round is over. is_complete: it went through to its end. reason: why it did not, or why ledgers that metadata
    lacks are kept; for a person."""

    is_complete: bool
    reason: str = ""


Effects = list[Any]


class Collector:
    """One bookie's. `instance`: of the bookie's cookie; `record`: as found on disk; `new_mark` draws a random text."""

    def __init__(self, instance: str, record: MarkRecord, new_mark: Callable[[], str]) -> None:
        self._instance = instance
        self._record = record
        self._new_mark = new_mark
        self._round: RoundDue | None = None
        self._chain = 0  # under which this round sees
        self._first: Versioned | None = None  # the mark as read at the begin of the round
        self._has_first = False
        self._present: frozenset[int] = frozenset()
        self._gone: frozenset[int] = frozenset()
        self._pending = ""  # the mark on its way
        self._is_marked = False  # it is in the store
        self._remark = ""  # of a round that is complete
        self._contact = 0  # how often contact was lost
        self._found: set[int] = set()  # in metadata, since contact was lost last; not seen yet

    @property
    def is_idle(self) -> bool:
        return self._round is None

    def handle(self, fact: Any) -> Effects:
        """The only door."""
        if isinstance(fact, RoundDue):
            if self._round is not None:
                return []
            self._round, self._first, self._has_first, self._is_marked = fact, None, False, False
            self._present = self._gone = frozenset()
            self._remark = ""
            return [ReadMark()]
        match fact:
            case LedgersHeard(ledgers):
                return [ReadHeard(ledgers, self._contact)] if ledgers else []
            case HeardRead():
                if fact.contact == self._contact:
                    self._found |= fact.present
                return []
            case ContactLost():
                self._contact += 1
                self._found.clear()
        if self._round is None:
            return []
        match fact:
            case MarkRead():
                return self._mark_read(fact)
            case LedgersListed(present):
                if present is None:
                    return self._end("metadata is away: the listing of its ledgers did not end")
                return self._listed(self._round, present)
            case LedgersRead(present, missing):
                return self._read(self._round, present, missing)
            case MarkKept(failure):
                return self._end(f"the mark cannot be put on disk: {failure}") if failure else self._kept()
            case MarkWritten(outcome):
                return self._written(outcome)
            case ContactLost() if not self._is_marked:
                return self._end("contact with metadata was lost")
        return []

    def _mark_read(self, fact: MarkRead) -> Effects:
        assert self._round is not None
        if isinstance(fact.outcome, OutcomeUnknown):
            return self._end(f"metadata is away: {fact.outcome.reason}")
        if fact.instance != self._instance:
            self._found.clear()
            reason = f"metadata is another cluster's: theirs={fact.instance} ours={self._instance}"
            return [Tell(CollectionRefused(reason)), *self._end(reason)]
        if isinstance(fact.outcome, Missing):
            mark = None
        elif isinstance(fact.outcome, Versioned):
            mark = fact.outcome
        else:
            return self._end("metadata cannot tell this bookie's mark")
        if self._has_first:
            if mark != self._first:
                return self._end("this bookie's mark in metadata was changed meanwhile")
            return self._settle(self._round)
        self._first, self._has_first = mark, True
        return self._begin(self._round)

    def _begin(self, due: RoundDue) -> Effects:
        effects: Effects = []
        record, found = self._record, "" if self._first is None else str(self._first.value)
        if found and found in (record.mark, record.next):
            self._chain = record.chain
            self._record = replace(record, mark=found, next="")
        else:
            self._chain = max([record.chain, *due.known.values()]) + 1
            if record.mark:
                self._found.clear()  # it may have been found in what metadata was before
                effects.append(Tell(MetadataChainBroken(record.chain)))
                self._remark = "metadata lacks this bookie's last mark: ledgers that it does not name are kept"
        if self._chain > CHAIN_MAX:
            reason = "metadata was replaced too often"
            return [*effects, Tell(CollectionRefused(reason)), *self._end(reason)]
        known = frozenset(due.known)
        if due.collects:
            return [*effects, ListLedgers(known)]
        left = known - self._found
        return [*effects, ReadLedgers(left) if left else ReadMark()]

    def _listed(self, due: RoundDue, present: frozenset[int]) -> Effects:
        self._present = present & due.known.keys()
        absent = frozenset(
            ledger for ledger, seen in due.known.items() if seen == self._chain and ledger not in present
        )
        return [ReadLedgers(absent)] if absent else [ReadMark()]

    def _read(self, due: RoundDue, present: frozenset[int], missing: frozenset[int]) -> Effects:
        self._present |= present & due.known.keys()
        self._gone = frozenset(ledger for ledger in missing if due.collects and due.known.get(ledger) == self._chain)
        return [ReadMark()]

    def _settle(self, due: RoundDue) -> Effects:
        """The mark is what it was when the round began: what was found in between holds."""
        effects: Effects = [BuryLedgers(self._gone)] if self._gone else []
        found = self._present | (self._found & due.known.keys())
        self._present = frozenset(ledger for ledger in found if due.known[ledger] != self._chain)
        if not self._present:
            return [*effects, *self._end(self._remark, is_complete=True)]
        self._pending = self._new_mark()
        mark = "" if self._first is None or self._chain != self._record.chain else str(self._first.value)
        self._record = MarkRecord(self._chain, mark, self._pending)
        return [*effects, KeepMark(self._record)]

    def _kept(self) -> Effects:
        if not self._is_marked:
            return [WriteMark(self._pending, None if self._first is None else self._first.version)]
        self._found -= self._present
        return [LedgersSeen(self._present, self._chain), *self._end(self._remark, is_complete=True)]

    def _written(self, outcome: Outcome) -> Effects:
        if not isinstance(outcome, Versioned):
            return self._end("the mark could not be written to metadata")
        self._is_marked = True
        self._record = MarkRecord(self._chain, self._pending)
        return [KeepMark(self._record)]

    def _end(self, reason: str, *, is_complete: bool = False) -> Effects:
        self._round = None
        return [RoundEnded(is_complete, reason)]
