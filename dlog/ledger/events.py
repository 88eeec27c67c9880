"""Events of the repair of ledgers, for operators, tests and metrics. At most one per ledger and attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dlog.events import Event


@dataclass(frozen=True, slots=True)
class AuditorElected(Event):
    """This process is the auditor of the cluster now."""

    name: ClassVar[str] = "auditor.elected"


@dataclass(frozen=True, slots=True)
class BookieMissing(Event):
    """A bookie has not been registered for so long that it counts as lost; its ledgers are marked for repair."""

    name: ClassVar[str] = "bookie.missing"
    level: ClassVar[str] = "warning"
    peer: str
    absent_s: float


@dataclass(frozen=True, slots=True)
class LedgerNotAudited(Event):
    """The auditor cannot read a ledger's metadata, or cannot mark the ledger: it is not repaired."""

    name: ClassVar[str] = "ledger.not_audited"
    level: ClassVar[str] = "error"
    ledger: int
    reason: str


@dataclass(frozen=True, slots=True)
class AuditEnded(Event):
    """The auditor read all ledgers. marked: newly marked for repair. unread: not read or marked; the audit is repeated,
    also if `reason` says why it ended early. misplaced: closed ledgers that do not keep their placement policy, if this
    audit looked."""

    name: ClassVar[str] = "audit.ended"
    marked: int
    unread: int
    reason: str
    misplaced: int = 0


@dataclass(frozen=True, slots=True)
class LedgerMisplaced(Event):
    """A closed ledger does not keep its placement policy: its copies, from `entry` on, lie in too few racks or regions.
    ensembles: how many of its ensembles do not keep it; `entry`, `ensemble` and `shortage` are of the first one."""

    name: ClassVar[str] = "ledger.misplaced"
    level: ClassVar[str] = "warning"
    ledger: int
    entry: int
    ensemble: tuple[str, ...]
    shortage: str
    ensembles: int


@dataclass(frozen=True, slots=True)
class MarkCompleted(Event):
    """A marked ledger has its copies again. entries, length: copied for it by this process at last, in bytes of
    payload."""

    name: ClassVar[str] = "mark.completed"
    ledger: int
    entries: int
    length: int


@dataclass(frozen=True, slots=True)
class RepairFailed(Event):
    """A ledger stays under-replicated for now; its mark stays, and it is tried again after `again_s`."""

    name: ClassVar[str] = "repair.failed"
    level: ClassVar[str] = "warning"
    ledger: int
    reason: str
    again_s: float


@dataclass(frozen=True, slots=True)
class EntriesUnreadable(Event):
    """No replica can serve entries `first` to `last` of those that bookie `peer` should hold; all others were copied.
    entries: number of all such entries of the ledger's lost bookies."""

    name: ClassVar[str] = "entries.unreadable"
    level: ClassVar[str] = "error"
    ledger: int
    first: int
    last: int
    peer: str
    entries: int
    reason: str


@dataclass(frozen=True, slots=True)
class CopiesMissing(Event):
    """A comparison found that bookies of this ledger, which answer, lack copies or hold damaged ones: the ledger is
    marked for repair. entries: missing copies; damaged ones are in `copies.differ`. first, last: of the first range."""

    name: ClassVar[str] = "copies.missing"
    level: ClassVar[str] = "warning"
    ledger: int
    peers: tuple[str, ...]
    entries: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class CopiesDiffer(Event):
    """Bookies hold different contents for an entry, or cannot read it. wrong: those whose copy does not match the
    ledger's digest, which are replaced, and those that cannot read theirs, which get it again. Empty: the digest does
    not tell which copy is right, and nothing is changed. entries: number of such entries, or of ranges of them, in the
    ledger."""

    name: ClassVar[str] = "copies.differ"
    level: ClassVar[str] = "error"
    ledger: int
    entry: int
    peers: tuple[str, ...]
    wrong: tuple[str, ...]
    entries: int
    reason: str


@dataclass(frozen=True, slots=True)
class ComparisonEnded(Event):
    """The auditor compared the copies of all closed ledgers. lacking: ledgers that lack copies. unfinished: those that
    changed meanwhile, could not be read, or have a bookie out of reach. out_of_reach: these bookies, ten at most.
    reason: why it ended early."""

    name: ClassVar[str] = "comparison.ended"
    ledgers: int
    lacking: int
    unfinished: int
    out_of_reach: tuple[str, ...]
    reason: str
