"""Which bookies count as lost and which ledgers are marked: transcripts, and a world in which bookies come and go,
listings fail and scans are cut short at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from dlog.errors import DamagedError, MetadataUnavailableError
from dlog.ledger.auditor import (
    Auditor,
    AuditorEffect,
    AuditorFact,
    AuditorOptions,
    BookiesListed,
    LedgerMarked,
    LedgersRead,
    MarkLedger,
    Scan,
    ScanEnded,
)
from dlog.ledger.events import AuditEnded, BookieMissing, LedgerNotAudited
from dlog.machine import Missing, OutcomeUnknown, Refused, SeenOutcome, Tell, Versioned
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerMetadata
from dlog.model.quorum import Quorum

OPTIONS = AuditorOptions(lost_after_s=10.0, check_s=1000.0, retry_s=30.0)
A, B, C, D = (BookieId(name) for name in "abcd")
ALL = frozenset({A, B, C, D})


def of(*bookies: BookieId, then: tuple[BookieId, ...] = ()) -> Versioned:
    """Metadata of a ledger on these bookies; then: its second ensemble."""
    fragments = [Fragment(EntryId(0), bookies)] + ([Fragment(EntryId(10), then)] if then else [])
    size = len(bookies)
    return Versioned(LedgerMetadata(quorum=Quorum(ensemble=size, write=size, ack=1), fragments=tuple(fragments)), 0)


def read(scan: int, *ledgers: tuple[int, SeenOutcome]) -> LedgersRead:
    return LedgersRead(scan, tuple((LedgerId(ledger), outcome) for ledger, outcome in ledgers))


def marked(effects: list[AuditorEffect]) -> dict[int, set[BookieId]]:
    return {effect.ledger: set(effect.bookies) for effect in effects if isinstance(effect, MarkLedger)}


def started(*facts: BookiesListed, options: AuditorOptions = OPTIONS) -> Auditor:
    auditor = Auditor(options)
    for fact in facts:
        auditor.handle(fact)
    return auditor


def test_a_bookie_is_lost_after_the_delay_and_its_ledgers_are_marked() -> None:
    auditor = Auditor(OPTIONS)
    assert auditor.handle(BookiesListed(0, ALL)) == []
    assert auditor.handle(BookiesListed(10, ALL)) == [Scan(1)], "for bookies that were lost before the election"
    assert marked(auditor.handle(read(1, (1, of(A, B, C))))) == {}
    assert auditor.handle(ScanEnded(1)) == []
    assert auditor.handle(BookiesListed(20, ALL - {A})) == []
    assert auditor.handle(BookiesListed(29.9, ALL - {A})) == []
    assert auditor.handle(BookiesListed(30, ALL - {A})) == [Tell(BookieMissing(A, 10.0)), Scan(2)]
    found = auditor.handle(read(2, (1, of(A, B, C)), (2, of(B, C, D)), (3, of(B, C, D, then=(A, C, D)))))
    assert marked(found) == {1: {A}, 3: {A}}
    assert auditor.handle(LedgerMarked(2, LedgerId(1), True)) == []
    assert auditor.handle(ScanEnded(2)) == [Tell(AuditEnded(1, 0, ""))]


def test_a_bookie_that_was_never_seen_is_lost_a_delay_after_the_first_listing() -> None:
    auditor = started(BookiesListed(100, ALL - {A}))
    assert auditor.handle(BookiesListed(109, ALL - {A})) == []
    assert auditor.handle(BookiesListed(110, ALL - {A})) == [Scan(1)]
    assert marked(auditor.handle(read(1, (1, of(A, B))))) == {1: {A}}


def test_a_bookie_that_comes_back_is_in_no_later_mark() -> None:
    auditor = started(BookiesListed(0, ALL), BookiesListed(1, ALL - {A, B}))
    assert auditor.handle(BookiesListed(11, ALL - {A, B}))[-1] == Scan(1)
    assert marked(auditor.handle(read(1, (1, of(A, B))))) == {1: {A, B}}
    auditor.handle(BookiesListed(12, ALL - {B}))
    assert marked(auditor.handle(read(1, (2, of(A, B)), (3, of(A, C))))) == {2: {B}}, "in the middle of a scan"
    auditor.handle(BookiesListed(13, ALL - {A, B}))
    assert marked(auditor.handle(read(1, (4, of(A, B))))) == {4: {B}}, "its delay begins anew"


@pytest.mark.parametrize("registered", [None, frozenset[BookieId]()], ids=["failed", "empty"])
def test_a_listing_that_proves_nothing_marks_nothing_and_starts_every_delay_anew(
    registered: frozenset[BookieId] | None,
) -> None:
    auditor = started(BookiesListed(0, ALL), BookiesListed(1, ALL - {A}), BookiesListed(11, ALL - {A}))
    assert auditor.is_scanning
    assert auditor.handle(BookiesListed(12, registered)) == []
    assert marked(auditor.handle(read(1, (1, of(A, B))))) == {}
    assert auditor.handle(ScanEnded(1)) == []
    assert auditor.handle(BookiesListed(50, ALL - {A, B})) == []
    assert auditor.handle(BookiesListed(59, ALL - {A, B})) == [], "B was never seen absent before 50"
    assert auditor.handle(BookiesListed(60, ALL - {A})) == [Scan(2)]
    assert marked(auditor.handle(read(2, (1, of(A, B))))) == {1: {A}}


def test_the_delay_of_the_cluster_counts_if_it_is_longer() -> None:
    auditor = started(BookiesListed(0, ALL, 300), BookiesListed(1, ALL - {A}, 300))
    assert auditor.handle(BookiesListed(300, ALL - {A}, 300)) == [Scan(1)]
    assert marked(auditor.handle(read(1, (1, of(A, B))))) == {}
    auditor.handle(ScanEnded(1))
    assert auditor.handle(BookiesListed(301, ALL - {A}, 300)) == [Tell(BookieMissing(A, 300.0)), Scan(2)]


def test_one_bad_ledger_stops_no_other() -> None:
    auditor = started(BookiesListed(0, ALL - {A}), BookiesListed(10, ALL - {A}))
    page = read(
        1, (1, Refused(DamagedError("torn"))), (2, of(A, B)), (3, Missing()), (4, OutcomeUnknown("late")), (5, of(A))
    )
    effects = auditor.handle(page)
    assert marked(effects) == {2: {A}, 5: {A}}
    assert [effect for effect in effects if isinstance(effect, Tell)] == [Tell(LedgerNotAudited(1, "torn"))]
    refused = LedgerMarked(1, LedgerId(2), False, DamagedError("no mark"))
    assert auditor.handle(refused) == [Tell(LedgerNotAudited(2, "no mark"))]
    assert auditor.handle(LedgerMarked(1, LedgerId(5), False, MetadataUnavailableError("away"))) == []
    assert auditor.handle(ScanEnded(1)) == [Tell(AuditEnded(0, 2, ""))]
    assert auditor.handle(BookiesListed(39, ALL - {A})) == []
    assert auditor.handle(BookiesListed(40, ALL - {A})) == [Scan(2)], "again after retry_s"


def test_a_damaged_ledger_does_not_have_all_ledgers_read_again_and_again() -> None:
    auditor = started(BookiesListed(0, ALL), BookiesListed(10, ALL))
    auditor.handle(read(1, (1, Refused(DamagedError("torn")))))
    auditor.handle(ScanEnded(1))
    assert auditor.handle(BookiesListed(40, ALL)) == []
    assert auditor.handle(BookiesListed(1010, ALL)) == [Scan(2)], "only after check_s"


def test_a_scan_that_was_cut_short_is_told_and_repeated() -> None:
    auditor = started(BookiesListed(0, ALL), BookiesListed(10, ALL))
    assert auditor.handle(ScanEnded(1, "ZooKeeper is away")) == [Tell(AuditEnded(0, 0, "ZooKeeper is away"))]
    assert auditor.handle(BookiesListed(40, ALL)) == [Scan(2)]
    assert auditor.handle(read(1, (1, of(B)))) == [], "of an earlier scan"
    assert auditor.handle(ScanEnded(1)) == []
    assert auditor.is_scanning


def test_a_bookie_lost_during_a_scan_gets_a_scan_of_its_own() -> None:
    auditor = started(BookiesListed(0, ALL), BookiesListed(5, ALL - {A}), BookiesListed(10, ALL - {A}))
    assert auditor.handle(BookiesListed(15, ALL - {A})) == [Tell(BookieMissing(A, 10.0))]
    auditor.handle(ScanEnded(1))
    assert auditor.handle(BookiesListed(16, ALL - {A})) == [Scan(2)]


def test_a_paused_bookie_is_not_lost_until_its_pause_is_over() -> None:
    paused, gone = frozenset({A}), ALL - {A}
    auditor = started(BookiesListed(0, ALL), BookiesListed(10, ALL, paused=paused))
    auditor.handle(ScanEnded(1))
    assert auditor.handle(BookiesListed(20, gone, paused=paused)) == []
    assert auditor.handle(BookiesListed(300, gone, paused=paused)) == []
    assert auditor.handle(BookiesListed(301, gone)) == [Tell(BookieMissing(A, 281.0)), Scan(2)], "its delay is over"
    assert marked(auditor.handle(read(2, (1, of(A, B))))) == {1: {A}}
    auditor.handle(BookiesListed(302, gone, paused=paused))
    assert marked(auditor.handle(read(2, (2, of(A, B))))) == {}, "announced in the middle of a scan"


def test_a_bookie_that_goes_at_the_end_of_its_pause_has_the_usual_delay() -> None:
    auditor = started(BookiesListed(0, ALL), BookiesListed(10, ALL, paused=frozenset({A})))
    auditor.handle(ScanEnded(1))
    auditor.handle(BookiesListed(300, ALL - {A}, paused=frozenset({A})))
    assert auditor.handle(BookiesListed(309, ALL - {A})) == []
    assert auditor.handle(BookiesListed(310, ALL - {A})) == [Tell(BookieMissing(A, 10.0)), Scan(2)]


def test_the_next_auditor_keeps_a_pause_and_notices_its_end() -> None:
    paused, gone = frozenset({A}), ALL - {A}
    auditor = started(BookiesListed(0, gone, paused=paused))
    assert auditor.handle(BookiesListed(10, gone, paused=paused)) == [Scan(1)]
    assert marked(auditor.handle(read(1, (1, of(A, B))))) == {}
    auditor.handle(ScanEnded(1))
    assert auditor.handle(BookiesListed(50, gone)) == [Tell(BookieMissing(A, 50.0)), Scan(2)]
    assert marked(auditor.handle(read(2, (1, of(A, B))))) == {1: {A}}


# ---- at random ------------------------------------------------------------------------------------------------------


class AuditorWorld:
    """Bookies that come and go, an auditor that lists them, and ledgers that name them. `listings` is what happened."""

    def __init__(self, seed: int, auditor: Auditor) -> None:
        self.rng = random.Random(seed)
        self.auditor = auditor
        self.now_s = 0.0
        self.up = set(ALL)
        self.paused = set[BookieId]()
        self.paused_when_listed: frozenset[BookieId] = frozenset()
        self.listings: list[tuple[float, frozenset[BookieId] | None]] = []
        self.ledgers = {n: tuple(self.rng.sample(sorted(ALL), 3)) for n in range(8)}
        self.marks: dict[int, set[BookieId]] = {n: set() for n in self.ledgers}
        self.scan: tuple[int, list[int]] | None = None  # number, ledgers to read

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_s += self.rng.uniform(0.2, 4.0)
            for bookie in sorted(ALL):
                if self.rng.random() < 0.06:
                    self.up ^= {bookie}
                if self.rng.random() < 0.04:
                    self.paused ^= {bookie}
            if self.rng.random() < 0.7:
                self.list_bookies(None if self.rng.random() < 0.04 else frozenset(self.up))
            if self.scan is not None and self.rng.random() < 0.6:
                self.read_page()

    def list_bookies(self, registered: frozenset[BookieId] | None) -> None:
        self.listings.append((self.now_s, registered))
        self.paused_when_listed = frozenset(self.paused)
        self.perform(self.auditor.handle(BookiesListed(self.now_s, registered, paused=frozenset(self.paused))))

    def read_page(self) -> None:
        assert self.scan is not None
        number, left = self.scan
        page, rest = left[:3], left[3:]
        outcomes = [(n, OutcomeUnknown() if self.rng.random() < 0.05 else of(*self.ledgers[n])) for n in page]
        self.scan = (number, rest)
        self.perform(self.auditor.handle(read(number, *outcomes)))
        if not rest or self.rng.random() < 0.05:
            self.scan = None
            self.perform(self.auditor.handle(ScanEnded(number, "" if not rest else "cut")))

    def perform(self, effects: list[AuditorEffect]) -> None:
        for effect in effects:
            match effect:
                case Scan(number):
                    assert self.scan is None, "one scan at a time"
                    self.scan = (number, sorted(self.ledgers))
                case MarkLedger(scan, ledger, bookies):
                    assert bookies, "no mark without a bookie"
                    for bookie in bookies:
                        self.check_absent(bookie)
                        assert bookie not in self.paused_when_listed, "marked in spite of its planned restart"
                    self.marks[ledger] |= bookies
                    self.perform(self.auditor.handle(LedgerMarked(scan, ledger, True)))

    def check_absent(self, bookie: BookieId) -> None:
        """Every listing of the last `lost_after_s` was good and without the bookie, and one is older than that."""
        for at_s, registered in reversed(self.listings):
            assert registered and bookie not in registered, "marked, though it was registered or nothing was known"
            if self.listings[-1][0] - at_s >= OPTIONS.lost_after_s:
                return
        raise AssertionError("marked before the delay")

    def settle(self) -> None:
        """No more faults: what is down now and named by a ledger must be marked in the end."""
        self.paused.clear()
        for _ in range(100):
            self.now_s += 2.0
            self.list_bookies(frozenset(self.up))
            while self.scan is not None:
                self.rng.random = lambda: 1.0  # type: ignore[method-assign]
                self.read_page()
        for ledger, bookies in self.ledgers.items():
            missing = set(bookies) - self.up - self.marks[ledger]
            assert not self.up or not missing, f"never marked: {missing}"


def hunt(make: Callable[[], Auditor], seeds: int) -> None:
    for seed in range(seeds):
        world = AuditorWorld(seed, make())
        world.run(120)
        world.settle()


def test_marks_are_justified_by_the_listings_and_no_lost_bookie_is_forgotten() -> None:
    hunt(lambda: Auditor(OPTIONS), 60)


class _TrustsFailures(Auditor):
    def _listing_failed(self, now_s: float) -> list[AuditorEffect]:
        return []


class _ForgetsReturns(Auditor):
    def _is_lost(self, bookie: BookieId) -> bool:
        return bookie not in self._registered and self._since_s is not None and self._now_s - self._since_s >= 10.0


class _ScansOnce(Auditor):
    def _end(self, reason: str) -> list[AuditorEffect]:
        effects = super()._end(reason)
        self._due_s = None
        return effects


class _KnowsNoPauses(Auditor):
    def handle(self, fact: AuditorFact) -> list[AuditorEffect]:
        return super().handle(replace(fact, paused=frozenset()) if isinstance(fact, BookiesListed) else fact)


class _ForgetsPaused(Auditor):
    def _listed(self, now_s: float, registered: frozenset[BookieId]) -> list[AuditorEffect]:
        effects = super()._listed(now_s, registered)
        for bookie in self._paused:
            self._absent_s.pop(bookie, None)
        return effects


@pytest.mark.parametrize("defect", [_TrustsFailures, _ForgetsReturns, _ScansOnce, _KnowsNoPauses, _ForgetsPaused])
def test_a_planted_defect_is_found(defect: Callable[[AuditorOptions], Auditor]) -> None:
    with pytest.raises(AssertionError):
        hunt(lambda: defect(OPTIONS), 60)
