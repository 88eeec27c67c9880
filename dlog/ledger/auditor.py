"""Decides which bookies are lost, which ledgers lack their copies, and which do not keep their placement policy.

A bookie is lost when no listing of registrations has shown it for `lost_after_s`. While there may be lost bookies the
auditor has all ledgers' metadata read, a *scan*, and marks each ledger that names a lost one. Workers repair what is
marked (actors/recovery/workers.py); the marks are in ZooKeeper and outlive every auditor.

Every `placement_check_s` a scan looks also where the copies of closed ledgers lie. A ledger whose policy is not kept,
as after its bookies were moved to another rack, is counted and named by an event. It is not marked: a repair moves only
copies of bookies that are lost.

Invariants:
1. A ledger is marked only for bookies that were absent from every listing of the last `lost_after_s`, the newest one
   included. A bookie that comes back takes part in no later mark, also in the middle of a scan.
2. A listing that failed or names no bookie proves nothing: every delay starts anew, and nothing is marked until a good
   listing and a delay later. (After an outage of ZooKeeper all registrations are gone for a moment.)
3. Nothing is unmarked: a mark ends by repair alone.
4. No ledger is marked for a bookie whose planned restart the newest listing names. Once that is over, the bookie is
   lost when its delay is over, which began when it went.
5. A ledger whose metadata cannot be read, or that cannot be marked, hides no other one. If a retry cannot help, an
   event names it; otherwise the scan is repeated after `retry_s`.
6. At most one scan runs. What belongs to an earlier scan is ignored.
7. A ledger counts as misplaced only if it is closed, and its policy is not kept wherever those of its bookies stand
   whose location is not known. Such ledgers are counted by scans that read all ledgers (5), and at most
   MISPLACED_NAMED_MAX are named each time.

Time comes with listings (monotonic seconds), so a process that was frozen decides nothing before it has listed again.
Source: BookKeeper `Auditor`, `AuditorBookieCheckTask`, `AuditorPlacementPolicyCheckTask`; 2 and 5 are stricter, 4 is
our own.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.errors import DLogError, Remedy
from dlog.ledger.events import AuditEnded, BookieMissing, LedgerMisplaced, LedgerNotAudited
from dlog.ledger.placement_policy import Locate, policy_of
from dlog.machine import Emit, Missing, OutcomeUnknown, Refused, SeenOutcome, Versioned
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerMetadata
from dlog.model.location import NetworkLocation

MISPLACED_NAMED_MAX = 100  # ledgers, by one scan


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditorOptions:
    """How long a bookie must be away, how often all ledgers are read, and how often placement is checked (0: never).
    Seconds."""

    lost_after_s: float
    check_s: float
    retry_s: float
    placement_check_s: float = 0.0


# ---- facts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BookiesListed:
    """A listing of all registrations. registered: None if it failed. lost_after_s: the delay set for the cluster, which
    counts if it is longer than the auditor's own. paused: bookies with a planned restart that is not over."""

    now_s: float
    registered: frozenset[BookieId] | None
    lost_after_s: float = 0.0
    paused: frozenset[BookieId] = frozenset()


@dataclass(frozen=True, slots=True)
class LedgersRead:
    """Metadata of some ledgers, as read in this scan."""

    scan: int
    ledgers: tuple[tuple[LedgerId, SeenOutcome], ...]


@dataclass(frozen=True, slots=True)
class LedgerMarked:
    """Result of MarkLedger. is_new: not all of its bookies were marked before. error: it could not be marked."""

    scan: int
    ledger: LedgerId
    is_new: bool
    error: DLogError | None = None


@dataclass(frozen=True, slots=True)
class ScanEnded:
    """All ledgers were listed and read, or why not."""

    scan: int
    reason: str = ""


AuditorFact = BookiesListed | LedgersRead | LedgerMarked | ScanEnded


# ---- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scan:
    """List all ledgers and read their metadata; pass LedgersRead for each page, then ScanEnded."""

    scan: int


@dataclass(frozen=True, slots=True)
class MarkLedger:
    """Mark the ledger as lacking the copies of these bookies; answered by LedgerMarked, before ScanEnded."""

    scan: int
    ledger: LedgerId
    bookies: frozenset[BookieId]


AuditorEffect = Scan | MarkLedger | Emit


class Auditor:
    """State machine of the elected auditor, from its election to its end. locate: where a bookie stands or last stood;
    a snapshot, as `BookiesListed` is."""

    def __init__(self, options: AuditorOptions, locate: Locate) -> None:
        self._options = options
        self._locate = locate
        #: how often all ledgers are read
        self._scan_s = min(options.check_s, options.placement_check_s or options.check_s)
        self._registered: frozenset[BookieId] = frozenset()  # by the newest listing; empty: that failed
        self._now_s = 0.0
        self._delay_s = options.lost_after_s
        self._since_s: float | None = None  # the first of the good listings without a failed one since; None: none yet
        #: first listing without a bookie that was registered since `_since_s`; forgotten once it is lost, since a
        #: bookie that is neither here nor registered counts as absent since `_since_s`
        self._absent_s: dict[BookieId, float] = {}
        self._paused: frozenset[BookieId] = frozenset()  # by the newest listing
        self._scan = 0
        self._is_scanning = False
        self._due_s: float | None = None  # when the next scan starts; None: not before the first good listing
        self._marked = 0
        self._unread = 0  # ledgers of this scan that could not be read or marked for now
        self._checks_placement = False  # in this scan
        self._began_s = 0.0
        self._placement_due_s = 0.0
        self._misplaced = 0  # ledgers, found by this scan
        self._named: list[LedgerMisplaced] = []  # the first of them
        self.misplaced = 0  # closed ledgers that do not keep their policy, by the last whole scan that looked

    @property
    def is_scanning(self) -> bool:
        return self._is_scanning

    def handle(self, fact: AuditorFact) -> list[AuditorEffect]:
        match fact:
            case BookiesListed(now_s, registered, lost_after_s, paused):
                self._paused = paused
                self._delay_s = max(self._options.lost_after_s, lost_after_s)
                effects = self._listed(now_s, registered) if registered else self._listing_failed(now_s)
                return [*effects, *self._start_due()]
            case LedgersRead(scan, ledgers) if self._is_current(scan):
                return [effect for ledger, outcome in ledgers for effect in self._judge(ledger, outcome)]
            case LedgerMarked(scan, ledger, is_new, error) if self._is_current(scan):
                self._marked += is_new
                return self._missed(ledger, error) if error is not None else []
            case ScanEnded(scan, reason) if self._is_current(scan):
                return self._end(reason)
        return []

    # ---- registrations -----------------------------------------------------------------------------------------------

    def _listed(self, now_s: float, registered: frozenset[BookieId]) -> list[AuditorEffect]:
        effects: list[AuditorEffect] = []
        self._now_s = now_s
        if self._since_s is None:
            self._since_s = now_s
            self._due_s = now_s + self._delay_s  # only then can a bookie that was never seen be lost
        for bookie in self._registered - registered:
            self._absent_s[bookie] = now_s
        for bookie in registered & self._absent_s.keys():
            del self._absent_s[bookie]
        for bookie in self._paused - registered:
            self._absent_s.setdefault(bookie, self._since_s)  # so that it is noticed when the pause is over
        self._registered = registered
        for bookie, since_s in sorted(self._absent_s.items()):
            if now_s - since_s >= self._delay_s and bookie not in self._paused:
                del self._absent_s[bookie]
                self._due_s = now_s  # if a scan runs, another one follows
                effects.append(Emit(BookieMissing(bookie, round(now_s - since_s, 1))))
        return effects

    def _listing_failed(self, now_s: float) -> list[AuditorEffect]:
        self._now_s = now_s
        self._since_s = self._due_s = None
        self._registered = frozenset()
        self._absent_s.clear()
        return []

    def _is_lost(self, bookie: BookieId) -> bool:
        if self._since_s is None or bookie in self._registered or bookie in self._paused:
            return False
        return self._now_s - self._absent_s.get(bookie, self._since_s) >= self._delay_s

    # ---- scans -------------------------------------------------------------------------------------------------------

    def _is_current(self, scan: int) -> bool:
        return self._is_scanning and scan == self._scan

    def _start_due(self) -> list[AuditorEffect]:
        if self._is_scanning or self._due_s is None or self._now_s < self._due_s:
            return []
        self._scan += 1
        self._is_scanning, self._marked, self._unread = True, 0, 0
        self._misplaced, self._named = 0, []
        self._checks_placement = self._options.placement_check_s > 0 and self._now_s >= self._placement_due_s
        self._began_s = self._now_s
        self._due_s = self._now_s + self._scan_s
        return [Scan(self._scan)]

    def _judge(self, ledger: LedgerId, outcome: SeenOutcome) -> list[AuditorEffect]:
        match outcome:
            case Versioned(LedgerMetadata() as metadata):
                if self._checks_placement:
                    self._check_placement(ledger, metadata)
                named = {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
                lost = frozenset(bookie for bookie in named if self._is_lost(bookie))
                return [MarkLedger(self._scan, ledger, lost)] if lost else []
            case Refused(error):
                return self._missed(ledger, error)
            case OutcomeUnknown():
                self._unread += 1
            case Missing():
                pass  # deleted meanwhile
        return []

    def _check_placement(self, ledger: LedgerId, metadata: LedgerMetadata) -> None:
        if not metadata.is_closed:
            return
        policy = policy_of(metadata)
        found = [(f, policy.shortage(metadata.quorum, f.ensemble, self._at_best)) for f in metadata.fragments]
        wrong = [(fragment, shortage) for fragment, shortage in found if shortage is not None]
        if not wrong:
            return
        self._misplaced += 1
        if len(self._named) < MISPLACED_NAMED_MAX:
            first, shortage = wrong[0]
            reason = f"policy={policy}: {shortage}"
            self._named.append(LedgerMisplaced(ledger, first.first_entry, first.ensemble, reason, len(wrong)))

    def _at_best(self, bookie: BookieId) -> NetworkLocation:
        """Where a bookie stands; one whose location is not known has a rack and a region of its own."""
        return self._locate(bookie) or NetworkLocation(f"unknown-{bookie}", f"unknown-{bookie}")

    def _missed(self, ledger: LedgerId, error: DLogError) -> list[AuditorEffect]:
        if error.remedy is Remedy.RETRY:
            self._unread += 1
            return []
        return [Emit(LedgerNotAudited(ledger, error.message))]

    def _end(self, reason: str) -> list[AuditorEffect]:
        self._is_scanning = False
        if (reason or self._unread) and self._due_s is not None:
            self._due_s = min(self._due_s, self._now_s + self._options.retry_s)
        effects: list[AuditorEffect] = []
        misplaced = 0
        if self._checks_placement and not reason and not self._unread:  # else the next scan looks again
            self.misplaced = misplaced = self._misplaced
            self._placement_due_s = self._began_s + self._options.placement_check_s
            effects += [Emit(event) for event in self._named]
        self._named = []
        if self._marked or self._unread or reason or misplaced:
            effects.append(Emit(AuditEnded(self._marked, self._unread, reason, misplaced)))
        return effects
