"""Decides by metadata which ledgers of a bookie may be garbage-collected. Deletes nothing itself.

A ledger that is absent from metadata was deleted, or metadata is wrong: unreachable, empty, restored from a backup, of
another cluster. To tell these apart the bookie keeps a *mark*: a random value in a znode, replaced by compare-and-set,
and recorded on its own disk. Metadata that holds the recorded mark holds everything that it held when the mark was
written. If it does not, a new *chain* of marks begins, and what was seen under earlier chains no longer counts.

Invariants:
- A ledger is collected only if this bookie saw its metadata, then wrote a mark, and finds this mark or a later one of
  the same chain before and after it found the ledger absent. So it was deleted; a ledger whose creation is missing from
  a restored backup is never collected.
- A ledger is absent if one complete listing, begun after the bookie's ledgers were listed, lacks it, and a read of its
  own znode confirms that. A failed listing or read proves nothing.
- Nothing is seen or collected while the metadata store's instance id differs from that of the bookie's cookie.
- A ledger counts as seen only once a mark written afterwards is in the store and on the bookie's disk.
- A ledger that the bookie held when a chain ended counts as seen again only if metadata names this bookie for it. Else
  a new ledger that was given its id, with its copies on other bookies, would have the entries of the old one deleted.
  (Of what came since the last mark nothing is known. Ids that bookies hold are not given out: dlog/ledger/vetting.py.)
- What was found in metadata before a round counts only if, since that read began, contact was not lost and neither mark
  nor instance id changed.
- A round ends and marks nothing as seen if contact with metadata is lost before its mark is written: no server is
  restored without a loss of contact, so the round's reads and its mark belong to one history.

Metadata of a new ledger is read at once, so that it can be collected even if it is deleted soon: the next round's mark
makes it seen, whether it still exists or not. Ledgers never seen (deleted before that read, or while the bookie was
down or out of contact; missing from a restored backup) are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dlog.bookie.events import CollectionRefused, MetadataChainBroken
from dlog.machine import Emit, Missing, Outcome, OutcomeUnknown, Versioned

CHAIN_MAX = 126  # with these two, stored in seven bits of a ledger's row
NEVER_SEEN = 0
HELD_BEFORE = 127  # never seen, and the bookie held it when a chain ended


@dataclass(frozen=True, slots=True)
class MarkRecord:
    """The marks recorded on the bookie's disk. mark: the last one written; next: one that may have been."""

    chain: int = 0
    mark: str = ""
    next: str = ""


# ---- facts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewLedgersSeen:
    """The bookie has just received requests for these ledgers for the first time."""

    ledgers: frozenset[int]


@dataclass(frozen=True, slots=True)
class NewLedgersRead:
    """Result of ReadNewLedgers. present: the ledgers that metadata holds."""

    present: frozenset[int]
    contact: int


@dataclass(frozen=True, slots=True)
class RoundDue:
    """Start a round. known: the bookie's ledgers, each with the chain under which it was seen (0: never).

    collects: list all ledgers of metadata and collect deleted ones; else only read `known`, to mark them as seen.
    """

    known: Mapping[int, int]
    collects: bool


@dataclass(frozen=True, slots=True)
class MarkRead:
    """Result of ReadMark. instance: the store's id. outcome: the mark's text, Missing or OutcomeUnknown."""

    instance: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class LedgersListed:
    """Result of ListLedgers: the given ledgers that a complete listing holds; None: the listing failed."""

    present: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class LedgersRead:
    """Result of ReadLedgers. Ledgers that are neither present nor missing could not be read. elsewhere: ledgers among
    the present ones whose metadata names only other bookies, or cannot be decoded."""

    present: frozenset[int]
    missing: frozenset[int]
    elsewhere: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class MarkStored:
    """Result of StoreMark: durable, or why it could not be written."""

    failure: str = ""


@dataclass(frozen=True, slots=True)
class MarkWritten:
    """Result of WriteMark."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ContactLost:
    """The connection to metadata is lost, or was for a moment. Sent whether a round is running or not."""


# ---- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadMark:
    """Read the instance id of metadata and the mark of this bookie in it, after a ZooKeeper sync."""


@dataclass(frozen=True, slots=True)
class ListLedgers:
    """List all ledgers of metadata; report which of `known` are among them."""

    known: frozenset[int]


@dataclass(frozen=True, slots=True)
class ReadLedgers:
    """Read each ledger's own znode."""

    ledgers: frozenset[int]


@dataclass(frozen=True, slots=True)
class ReadNewLedgers:
    """Read each ledger's own znode, independently of rounds. contact: to be returned with the result."""

    ledgers: frozenset[int]
    contact: int


@dataclass(frozen=True, slots=True)
class StoreMark:
    """Write the record to the bookie's disk."""

    record: MarkRecord


@dataclass(frozen=True, slots=True)
class WriteMark:
    """Compare-and-set the mark; version None creates it."""

    text: str
    version: Any


@dataclass(frozen=True, slots=True)
class DeleteLedgers:
    """Delete these ledgers: they are absent for good."""

    ledgers: frozenset[int]


@dataclass(frozen=True, slots=True)
class ChainEnded:
    """Record all ledgers that were never seen as HELD_BEFORE."""


@dataclass(frozen=True, slots=True)
class LedgersSeen:
    """Record that metadata of these was seen under this chain."""

    ledgers: frozenset[int]
    chain: int


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The round ended. is_complete: it ran to its end. reason: why not, or why absent ledgers are kept."""

    is_complete: bool
    reason: str = ""


Effects = list[Any]


class GarbageCollector:
    """State machine of one bookie. `instance`: from its cookie; `record`: from its disk; `new_mark`: a random text."""

    def __init__(self, instance: str, record: MarkRecord, new_mark: Callable[[], str]) -> None:
        self._instance = instance
        self._record = record
        self._new_mark = new_mark
        self._round: RoundDue | None = None
        self._chain = 0  # of this round
        self._first: Versioned | None = None  # the mark read at the start of the round
        self._has_first = False
        self._present: frozenset[int] = frozenset()
        self._gone: frozenset[int] = frozenset()
        self._pending = ""  # the mark being written
        self._is_marked = False  # it is in the store
        self._remark = ""  # reason given by a complete round
        self._contact = 0  # how often contact was lost
        self._found: set[int] = set()  # in metadata, since the last loss of contact; not yet seen

    @property
    def is_idle(self) -> bool:
        return self._round is None

    @property
    def record(self) -> MarkRecord:
        """The marks of the current chain."""
        return self._record

    def handle(self, fact: Any) -> Effects:
        """Process one fact and return its effects."""
        if isinstance(fact, RoundDue):
            if self._round is not None:
                return []
            self._round, self._first, self._has_first, self._is_marked = fact, None, False, False
            self._present = self._gone = frozenset()
            self._remark = ""
            return [ReadMark()]
        match fact:
            case NewLedgersSeen(ledgers):
                return [ReadNewLedgers(ledgers, self._contact)] if ledgers else []
            case NewLedgersRead():
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
                    return self._end("metadata is unreachable: the listing of its ledgers failed")
                return self._listed(self._round, present)
            case LedgersRead(present, missing, elsewhere):
                return self._read(self._round, present, missing, elsewhere)
            case MarkStored(failure):
                return (
                    self._end(f"the mark cannot be written to this bookie's disk: {failure}")
                    if failure
                    else self._kept()
                )
            case MarkWritten(outcome):
                return self._written(outcome)
            case ContactLost() if not self._is_marked:
                return self._end("contact with metadata was lost")
        return []

    def _mark_read(self, fact: MarkRead) -> Effects:
        assert self._round is not None
        if isinstance(fact.outcome, OutcomeUnknown):
            return self._end(f"metadata is unreachable: {fact.outcome.reason}")
        if fact.instance != self._instance:
            self._found.clear()
            reason = (
                f"metadata is another cluster's, give the bookie its own ZooKeeper: theirs={fact.instance} "
                f"ours={self._instance}"
            )
            return [Emit(CollectionRefused(reason)), *self._end(reason)]
        if isinstance(fact.outcome, Missing):
            mark = None
        elif isinstance(fact.outcome, Versioned):
            mark = fact.outcome
        else:
            return self._end("this bookie's mark cannot be read from metadata")
        if self._has_first:
            if mark != self._first:
                return self._end("this bookie's mark in metadata changed during the round")
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
            self._chain = max(record.chain, *(seen for seen in due.known.values() if seen != HELD_BEFORE), 0) + 1
            if record.mark:
                self._found.clear()  # perhaps found in the metadata that was replaced
                effects += [ChainEnded(), Emit(MetadataChainBroken(record.chain))]
                known = {ledger: seen or HELD_BEFORE for ledger, seen in due.known.items()}
                due = self._round = replace(due, known=known)
                self._remark = (
                    "metadata lacks this bookie's last mark: ledgers missing from it are kept, see docs/restore.md"
                )
        if self._chain > CHAIN_MAX:
            reason = "metadata was replaced too often, start a new bookie on empty directories"
            return [*effects, Emit(CollectionRefused(reason)), *self._end(reason)]
        held = frozenset(due.known)
        if due.collects:
            return [*effects, ListLedgers(held)]
        left = held - self._found
        return [*effects, ReadLedgers(left) if left else ReadMark()]

    def _listed(self, due: RoundDue, present: frozenset[int]) -> Effects:
        self._present = present & due.known.keys()
        unsure = self._held_before(due) & present
        unsure |= {ledger for ledger, seen in due.known.items() if seen == self._chain and ledger not in present}
        return [ReadLedgers(unsure)] if unsure else [ReadMark()]

    def _held_before(self, due: RoundDue) -> frozenset[int]:
        """Ledgers that the bookie held when an earlier chain ended, and that were not seen since."""
        return frozenset(ledger for ledger, seen in due.known.items() if seen not in (NEVER_SEEN, self._chain))

    def _read(
        self, due: RoundDue, present: frozenset[int], missing: frozenset[int], elsewhere: frozenset[int]
    ) -> Effects:
        self._present |= present & due.known.keys()
        before = self._held_before(due)
        self._present -= before - (present - elsewhere)
        self._gone = frozenset(ledger for ledger in missing if due.collects and due.known.get(ledger) == self._chain)
        return [ReadMark()]

    def _settle(self, due: RoundDue) -> Effects:
        """Apply what the round found: the mark did not change meanwhile."""
        effects: Effects = [DeleteLedgers(self._gone)] if self._gone else []
        found = self._present | (self._found & due.known.keys() - self._held_before(due))
        self._present = frozenset(ledger for ledger in found if due.known[ledger] != self._chain)
        if not self._present:
            return [*effects, *self._end(self._remark, is_complete=True)]
        self._pending = self._new_mark()
        mark = "" if self._first is None or self._chain != self._record.chain else str(self._first.value)
        self._record = MarkRecord(self._chain, mark, self._pending)
        return [*effects, StoreMark(self._record)]

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
        return [StoreMark(self._record)]

    def _end(self, reason: str, *, is_complete: bool = False) -> Effects:
        self._round = None
        return [RoundEnded(is_complete, reason)]
