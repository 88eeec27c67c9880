"""Frees the copies of closed ledgers for which metadata names other bookies: a repair, a decommission or a rebalance
moved them. Deletes nothing itself.

    lock -> read metadata -> compare copies -> seal -> raise the version -> the next ledger; at last free all sealed

Invariants:
- Copies are freed only of a ledger that is closed, whose ensembles do not name this bookie, and whose copies are whole
  and equal on every bookie that they name.
- From the moment a ledger is sealed until its copies are freed, this bookie takes no entry of it, also not from a
  repair.
- Between seal and freeing the version of the metadata is raised, by compare-and-set from the value that was judged. A
  repair names a bookie only by compare-and-set from a version that it read before it began to copy
  (dlog/ledger/repair.py). So one that had entries confirmed here before the seal names this bookie before the version
  is raised, which then fails, or not at all.
- If the outcome of a step is not known, the copies stay. The next look begins anew.

The lock is that of the under-replication tree. It saves work, and keeps away workers of BookKeeper, which name a bookie
also if the version was raised while they copied. A ledger is unlocked once its version is raised.

After a crash at any step either all copies are there, or they were freed, or the version was raised and a part of them
is left in an index db, which a later look frees. Nothing else is kept: the seal is in memory, and a raised version says
nothing. A freed ledger stays known and fenced, without entries, so that no old writer is served. A repair may choose
this bookie for it again.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from dlog.machine import (
    Answer,
    Asked,
    CompareAndSet,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    ReadMetadata,
    Ticket,
    Versioned,
)
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerKey, LedgerMetadata

BATCH_LEDGERS = 1000  # freed at once: it rewrites the index


def is_moved_away(value: LedgerMetadata, bookie: BookieId) -> bool:
    """Whether the ledger is closed, and its copies are all on other bookies."""
    return value.is_closed and not any(bookie in fragment.ensemble for fragment in value.fragments)


# ---- facts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FreeMoved:
    """Request: free the copies of those of these ledgers that are moved away. Reply: MovedFreed."""

    ledgers: tuple[LedgerId, ...]


@dataclass(frozen=True, slots=True)
class Locked:
    """Result of LockLedger. is_ours: the lock is held; else another process has it, or metadata is out of reach."""

    ledger: LedgerId
    is_ours: bool


@dataclass(frozen=True, slots=True)
class CopiesCompared:
    """Result of CompareCopies. reason: why the copies are not known to be whole; empty: they are."""

    ledger: LedgerId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sealed:
    """Result of SealLedger. is_sealed: if not, records of the ledger are under way to the index."""

    ledger: LedgerId
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class CopiesFreed:
    """Result of FreeCopies: they are gone for good, and no seal is left. failed: ledgers that are unchanged."""

    ledgers: tuple[LedgerId, ...]
    failed: frozenset[LedgerId] = frozenset()


# ---- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LockLedger:
    """Take the ledger's lock of the under-replication tree."""

    ledger: LedgerId


@dataclass(frozen=True, slots=True)
class UnlockLedger:
    """Give it back. No result."""

    ledger: LedgerId


@dataclass(frozen=True, slots=True)
class CompareCopies:
    """Compare the copies on the bookies that metadata names (dlog/ledger/comparing.py)."""

    ledger: LedgerId


@dataclass(frozen=True, slots=True)
class SealLedger:
    """Take no more entries of the ledger."""

    ledger: LedgerId


@dataclass(frozen=True, slots=True)
class UnsealLedger:
    """Take entries again. No result."""

    ledger: LedgerId


@dataclass(frozen=True, slots=True)
class FreeCopies:
    """Remove all entries of these sealed ledgers from the index, then end their seals."""

    ledgers: tuple[LedgerId, ...]


@dataclass(frozen=True, slots=True)
class MovedFreed:
    """Reply to FreeMoved. ledgers: whose copies were freed. kept: how many others were kept, by reason."""

    ledgers: int = 0
    kept: dict[str, int] = field(default_factory=dict)


class MovedCopies:
    """State machine of one bookie. It handles one request at a time, and one ledger after the other."""

    def __init__(self, bookie: BookieId) -> None:
        self._bookie = bookie
        self._ticket: Ticket | None = None
        self._left: deque[LedgerId] = deque()
        self._ledger: LedgerId | None = None  # the current one
        self._read: Versioned | None = None  # its metadata
        self._sealed: list[LedgerId] = []  # with raised versions: may be freed
        self._freed = 0
        self._kept: Counter[str] = Counter()

    @property
    def is_idle(self) -> bool:
        """Whether a request may be made."""
        return self._ticket is None

    def handle(self, fact: Any) -> list[Any]:
        """Process one fact and return its effects."""
        now = self._ledger
        match fact:
            case Asked(ticket, FreeMoved(ledgers)):
                assert self._ticket is None, "one request at a time"
                self._ticket, self._left = ticket, deque(ledgers)
                self._freed, self._kept = 0, Counter()
                return self._next()
            case Locked(ledger, is_ours) if ledger == now:
                if not is_ours:
                    return self._keep("another process is copying them, or metadata is out of reach", is_locked=False)
                return [ReadMetadata(("read", ledger), LedgerKey(ledger))]
            case MetadataSeen(token) if token == ("read", now):
                return self._judge(fact)
            case CopiesCompared(ledger, reason) if ledger == now:
                return self._keep(reason) if reason else [SealLedger(ledger)]
            case Sealed(ledger, is_sealed) if ledger == now:
                if not is_sealed:
                    return self._keep("records of them are under way to the index")
                assert self._read is not None
                return [CompareAndSet(("raise", ledger), LedgerKey(ledger), self._read.value, self._read.version)]
            case MetadataSeen(token, outcome) if token == ("raise", now) and now is not None:
                if not isinstance(outcome, Versioned):
                    return [UnsealLedger(now), *self._keep("metadata changed meanwhile, or is out of reach")]
                self._sealed.append(now)
                return [UnlockLedger(now), *self._next()]
            case CopiesFreed(ledgers, failed):
                self._freed += len(ledgers) - len(failed)
                if failed:
                    self._kept["the index could not be rewritten"] += len(failed)
                return self._next()
        return []

    def _judge(self, fact: MetadataSeen) -> list[Any]:
        """Go on if metadata says that the copies are moved away."""
        outcome = fact.outcome
        if isinstance(outcome, Missing):
            return self._keep("the ledger was deleted, which garbage collection finds")
        if isinstance(outcome, OutcomeUnknown) or not isinstance(outcome, Versioned):
            return self._keep("metadata is out of reach, or damaged")
        if not is_moved_away(outcome.value, self._bookie):
            return self._keep("metadata names this bookie again")
        assert self._ledger is not None
        self._read = outcome
        return [CompareCopies(self._ledger)]

    def _keep(self, reason: str, *, is_locked: bool = True) -> list[Any]:
        """Leave the current ledger as it is."""
        assert self._ledger is not None
        self._kept[reason] += 1
        unlock: list[Any] = [UnlockLedger(self._ledger)] if is_locked else []
        return [*unlock, *self._next()]

    def _next(self) -> list[Any]:
        """Begin with the next ledger, or free those that are sealed."""
        self._ledger = self._read = None
        if len(self._sealed) >= BATCH_LEDGERS or (self._sealed and not self._left):
            sealed, self._sealed = tuple(self._sealed), []
            return [FreeCopies(sealed)]
        if self._left:
            self._ledger = self._left.popleft()
            return [LockLedger(self._ledger)]
        ticket, self._ticket = self._ticket, None
        assert ticket is not None
        return [Answer(ticket, MovedFreed(self._freed, dict(self._kept)))]
