"""Which bookies count as lost and which ledgers are marked: transcripts, and a world in which bookies come and go,
listings fail and scans are cut short at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from dlog.errors import DamagedError, MetadataUnavailableError
from dlog.ledger.auditor import (
    MISPLACED_NAMED_MAX,
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
from dlog.ledger.events import AuditEnded, BookieMissing, LedgerMisplaced, LedgerNotAudited
from dlog.ledger.placement_policy import RACK, Locate, PlacementPolicy, policy_metadata
from dlog.machine import Emit, Missing, OutcomeUnknown, Refused, SeenOutcome, Versioned
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation
from dlog.model.quorum import Quorum

OPTIONS = AuditorOptions(lost_after_s=10.0, check_s=1000.0, retry_s=30.0, placement_check_s=300.0)
LOOKS = replace(OPTIONS, placement_check_s=0.001)
A, B, C, D = (BookieId(name) for name in "abcd")
ALL = frozenset({A, B, C, D})
RACKS = {A: DEFAULT_LOCATION, B: DEFAULT_LOCATION, C: NetworkLocation(rack="two")}  # nobody knows where D stands
locate = RACKS.get


def spread(
    *ensembles: tuple[BookieId, ...], policy: PlacementPolicy = RACK, state: LedgerState = LedgerState.CLOSED
) -> Versioned:
    """Metadata of a ledger with a placement policy, a new ensemble every ten entries."""
    size = len(ensembles[0])
    fragments = tuple(Fragment(EntryId(10 * n), ensemble) for n, ensemble in enumerate(ensembles))
    quorum = Quorum(ensemble=size, write=2, ack=1)
    return Versioned(LedgerMetadata(quorum=quorum, fragments=fragments, state=state, custom=policy_metadata(policy)), 0)


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
    auditor = Auditor(options, locate)
    for fact in facts:
        auditor.handle(fact)
    return auditor


def test_a_bookie_is_lost_after_the_delay_and_its_ledgers_are_marked() -> None:
    auditor = Auditor(OPTIONS, locate)
    assert auditor.handle(BookiesListed(0, ALL)) == []
    assert auditor.handle(BookiesListed(10, ALL)) == [Scan(1)], "for bookies that were lost before the election"
    assert marked(auditor.handle(read(1, (1, of(A, B, C))))) == {}
    assert auditor.handle(ScanEnded(1)) == []
    assert auditor.handle(BookiesListed(20, ALL - {A})) == []
    assert auditor.handle(BookiesListed(29.9, ALL - {A})) == []
    assert auditor.handle(BookiesListed(30, ALL - {A})) == [Emit(BookieMissing(A, 10.0)), Scan(2)]
    found = auditor.handle(read(2, (1, of(A, B, C)), (2, of(B, C, D)), (3, of(B, C, D, then=(A, C, D)))))
    assert marked(found) == {1: {A}, 3: {A}}
    assert auditor.handle(LedgerMarked(2, LedgerId(1), True)) == []
    assert auditor.handle(ScanEnded(2)) == [Emit(AuditEnded(1, 0, ""))]


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
    assert auditor.handle(BookiesListed(301, ALL - {A}, 300)) == [Emit(BookieMissing(A, 300.0)), Scan(2)]


def test_one_bad_ledger_stops_no_other() -> None:
    auditor = started(BookiesListed(0, ALL - {A}), BookiesListed(10, ALL - {A}))
    page = read(
        1, (1, Refused(DamagedError("torn"))), (2, of(A, B)), (3, Missing()), (4, OutcomeUnknown("late")), (5, of(A))
    )
    effects = auditor.handle(page)
    assert marked(effects) == {2: {A}, 5: {A}}
    assert [effect for effect in effects if isinstance(effect, Emit)] == [Emit(LedgerNotAudited(1, "torn"))]
    refused = LedgerMarked(1, LedgerId(2), False, DamagedError("no mark"))
    assert auditor.handle(refused) == [Emit(LedgerNotAudited(2, "no mark"))]
    assert auditor.handle(LedgerMarked(1, LedgerId(5), False, MetadataUnavailableError("away"))) == []
    assert auditor.handle(ScanEnded(1)) == [Emit(AuditEnded(0, 2, ""))]
    assert auditor.handle(BookiesListed(39, ALL - {A})) == []
    assert auditor.handle(BookiesListed(40, ALL - {A})) == [Scan(2)], "again after retry_s"


def test_a_damaged_ledger_does_not_have_all_ledgers_read_again_and_again() -> None:
    auditor = started(BookiesListed(0, ALL), BookiesListed(10, ALL))
    auditor.handle(read(1, (1, Refused(DamagedError("torn")))))
    auditor.handle(ScanEnded(1))
    assert auditor.handle(BookiesListed(309, ALL)) == []
    assert auditor.handle(BookiesListed(310, ALL)) == [Scan(2)], (
        "only after the shorter of check_s and placement_check_s"
    )


def test_a_scan_that_was_cut_short_is_told_and_repeated() -> None:
    auditor = started(BookiesListed(0, ALL), BookiesListed(10, ALL))
    assert auditor.handle(ScanEnded(1, "ZooKeeper is away")) == [Emit(AuditEnded(0, 0, "ZooKeeper is away"))]
    assert auditor.handle(BookiesListed(40, ALL)) == [Scan(2)]
    assert auditor.handle(read(1, (1, of(B)))) == [], "of an earlier scan"
    assert auditor.handle(ScanEnded(1)) == []
    assert auditor.is_scanning


def test_a_bookie_lost_during_a_scan_gets_a_scan_of_its_own() -> None:
    auditor = started(BookiesListed(0, ALL), BookiesListed(5, ALL - {A}), BookiesListed(10, ALL - {A}))
    assert auditor.handle(BookiesListed(15, ALL - {A})) == [Emit(BookieMissing(A, 10.0))]
    auditor.handle(ScanEnded(1))
    assert auditor.handle(BookiesListed(16, ALL - {A})) == [Scan(2)]


# ---- placement -------------------------------------------------------------------------------------------------------


def scanned(auditor: Auditor, now_s: float, *ledgers: tuple[int, SeenOutcome], reason: str = "") -> list[AuditorEffect]:
    """The effects of a scan that starts now, without its start."""
    (scan,) = (e.scan for e in auditor.handle(BookiesListed(now_s, ALL)) if isinstance(e, Scan))
    return [*auditor.handle(read(scan, *ledgers)), *auditor.handle(ScanEnded(scan, reason))]


def test_closed_ledgers_that_do_not_keep_their_policy_are_named_and_counted_but_not_marked() -> None:
    auditor = started(BookiesListed(0, ALL))
    effects = scanned(
        auditor,
        10,
        (1, spread((A, C))),
        (2, spread((A, B))),
        (3, spread((A, C), (B, A), (A, B))),
        (4, spread((A, B), state=LedgerState.OPEN)),
        (5, spread((A, B), policy=PlacementPolicy())),
        (6, spread((A, D))),
        (7, spread((A, D, B))),
    )
    assert effects == [
        Emit(LedgerMisplaced(2, 0, (A, B), "policy=rack: 1 of 1 write quorums with 1 racks, needed=2", 1)),
        Emit(LedgerMisplaced(3, 10, (B, A), "policy=rack: 1 of 1 write quorums with 1 racks, needed=2", 2)),
        Emit(LedgerMisplaced(7, 0, (A, D, B), "policy=rack: 1 of 3 write quorums with 1 racks, needed=2", 1)),
        Emit(AuditEnded(0, 0, "", 3)),
    ]
    assert auditor.misplaced == 3


def test_placement_is_checked_every_so_often_and_ledgers_that_are_in_place_again_do_not_count() -> None:
    options = AuditorOptions(lost_after_s=10.0, check_s=100.0, retry_s=30.0, placement_check_s=250.0)
    auditor = started(BookiesListed(0, ALL), options=options)
    assert len(scanned(auditor, 10, (2, spread((A, B))))) == 2
    assert scanned(auditor, 110, (2, spread((A, B)))) == [], "too early"
    assert auditor.misplaced == 1
    assert scanned(auditor, 210, (2, spread((A, B)))) == []
    assert len(scanned(auditor, 310, (2, spread((A, B))))) == 2, "named again while nothing was done"
    assert scanned(auditor, 560, (2, spread((A, C)))) == []
    assert auditor.misplaced == 0


def test_a_scan_that_was_cut_short_counts_nothing_and_the_next_one_looks() -> None:
    auditor = started(BookiesListed(0, ALL))
    assert len(scanned(auditor, 10, (2, spread((A, B))))) == 2
    away = Emit(AuditEnded(0, 0, "away"))
    assert scanned(auditor, 310, (1, spread((B, A))), (2, spread((A, B))), reason="away") == [away]
    assert auditor.misplaced == 1
    assert len(scanned(auditor, 340, (1, spread((B, A))), (2, spread((A, B))))) == 3
    assert auditor.misplaced == 2


def test_a_ledger_that_could_not_be_read_leaves_the_count_and_the_next_scan_looks() -> None:
    auditor = started(BookiesListed(0, ALL))
    assert len(scanned(auditor, 10, (1, spread((B, A))), (2, spread((A, B))))) == 3
    unread = Emit(AuditEnded(0, 1, ""))
    assert scanned(auditor, 310, (1, OutcomeUnknown()), (2, spread((A, B)))) == [unread]
    assert auditor.misplaced == 2, "ledger 1 may still be misplaced"
    assert len(scanned(auditor, 340, (1, spread((B, C))), (2, spread((A, B))))) == 2
    assert auditor.misplaced == 1


def test_placement_is_checked_by_every_scan_if_both_intervals_are_equal() -> None:
    options = AuditorOptions(lost_after_s=10.0, check_s=100.0, retry_s=30.0, placement_check_s=100.0)
    auditor = started(BookiesListed(0, ALL), options=options)
    for scan, begin_s in enumerate((10, 110, 210), 1):
        assert auditor.handle(BookiesListed(begin_s, ALL)) == [Scan(scan)]
        auditor.handle(read(scan, (2, spread((A, B)))))
        assert auditor.handle(BookiesListed(begin_s + 5, ALL)) == [], "a scan takes a while"
        assert len(auditor.handle(ScanEnded(scan))) == 2


def test_without_an_interval_placement_is_not_checked() -> None:
    auditor = started(BookiesListed(0, ALL), options=AuditorOptions(lost_after_s=10.0, check_s=1000.0, retry_s=30.0))
    assert scanned(auditor, 10, (2, spread((A, B)))) == []
    assert auditor.handle(BookiesListed(1000, ALL)) == []


def test_only_so_many_misplaced_ledgers_are_named() -> None:
    auditor = started(BookiesListed(0, ALL))
    many = [(number, spread((A, B))) for number in range(MISPLACED_NAMED_MAX + 50)]
    *named, ended = scanned(auditor, 10, *many)
    events = [effect.event for effect in named if isinstance(effect, Emit)]
    assert [event.ledger for event in events if isinstance(event, LedgerMisplaced)] == list(range(MISPLACED_NAMED_MAX))
    assert ended == Emit(AuditEnded(0, 0, "", MISPLACED_NAMED_MAX + 50))


def test_a_misplaced_ledger_of_a_lost_bookie_is_marked_for_that_bookie_alone() -> None:
    auditor = started(BookiesListed(0, ALL - {A}))
    effects = auditor.handle(BookiesListed(10, ALL - {A}))
    assert effects == [Scan(1)]
    assert marked(auditor.handle(read(1, (2, spread((A, B)))))) == {2: {A}}


def test_a_paused_bookie_is_not_lost_until_its_pause_is_over() -> None:
    paused, gone = frozenset({A}), ALL - {A}
    auditor = started(BookiesListed(0, ALL), BookiesListed(10, ALL, paused=paused))
    auditor.handle(ScanEnded(1))
    assert auditor.handle(BookiesListed(20, gone, paused=paused)) == []
    assert auditor.handle(BookiesListed(300, gone, paused=paused)) == []
    assert auditor.handle(BookiesListed(301, gone)) == [Emit(BookieMissing(A, 281.0)), Scan(2)], "its delay is over"
    assert marked(auditor.handle(read(2, (1, of(A, B))))) == {1: {A}}
    auditor.handle(BookiesListed(302, gone, paused=paused))
    assert marked(auditor.handle(read(2, (2, of(A, B))))) == {}, "announced in the middle of a scan"


def test_a_bookie_that_goes_at_the_end_of_its_pause_has_the_usual_delay() -> None:
    auditor = started(BookiesListed(0, ALL), BookiesListed(10, ALL, paused=frozenset({A})))
    auditor.handle(ScanEnded(1))
    auditor.handle(BookiesListed(300, ALL - {A}, paused=frozenset({A})))
    assert auditor.handle(BookiesListed(309, ALL - {A})) == []
    assert auditor.handle(BookiesListed(310, ALL - {A})) == [Emit(BookieMissing(A, 10.0)), Scan(2)]


def test_the_next_auditor_keeps_a_pause_and_notices_its_end() -> None:
    paused, gone = frozenset({A}), ALL - {A}
    auditor = started(BookiesListed(0, gone, paused=paused))
    assert auditor.handle(BookiesListed(10, gone, paused=paused)) == [Scan(1)]
    assert marked(auditor.handle(read(1, (1, of(A, B))))) == {}
    auditor.handle(ScanEnded(1))
    assert auditor.handle(BookiesListed(50, gone)) == [Emit(BookieMissing(A, 50.0)), Scan(2)]
    assert marked(auditor.handle(read(2, (1, of(A, B))))) == {1: {A}}


# ---- at random ------------------------------------------------------------------------------------------------------


class AuditorWorld:
    """Bookies that come and go, an auditor that lists them, and ledgers that name them. `listings` is what happened."""

    def __init__(self, seed: int, auditor: Auditor, looks: bool = False) -> None:
        self.looks = looks  # whether every scan looks at placement
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
        settings = random.Random(seed)
        self.spread = {n: settings.random() < 0.6 for n in self.ledgers}  # whether it asks for two racks
        self.closed = {n: settings.random() < 0.7 for n in self.ledgers}
        self.seen: set[int] = set()  # in this scan
        self.misplaced = 0  # by the last scan that read all ledgers

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
        outcomes = [(n, OutcomeUnknown() if self.rng.random() < 0.05 else self.metadata_of(n)) for n in page]
        self.seen |= {n for n, outcome in outcomes if isinstance(outcome, Versioned)}
        self.scan = (number, rest)
        self.perform(self.auditor.handle(read(number, *outcomes)))
        if not rest or self.rng.random() < 0.05:
            self.scan = None
            self.perform(self.auditor.handle(ScanEnded(number, "" if not rest else "cut")))
            if not rest and self.looks:
                self.check_misplaced()

    def metadata_of(self, ledger: int) -> Versioned:
        policy = RACK if self.spread[ledger] else PlacementPolicy()
        state = LedgerState.CLOSED if self.closed[ledger] else LedgerState.OPEN
        return spread(self.ledgers[ledger], policy=policy, state=state)

    def check_misplaced(self) -> None:
        """Those that count are closed and have two neighbours in one rack, wherever the bookie stands that nobody
        knows. A scan that could not read a ledger leaves the count as it was."""
        wrong = {n for n in self.seen if self.spread[n] and self.closed[n] and {A, B} <= set(self.ledgers[n])}
        if self.seen == self.ledgers.keys():
            self.misplaced = len(wrong)
        assert self.auditor.misplaced == self.misplaced, f"misplaced={self.auditor.misplaced} wrong={wrong}"

    def perform(self, effects: list[AuditorEffect]) -> None:
        for effect in effects:
            match effect:
                case Scan(number):
                    assert self.scan is None, "one scan at a time"
                    self.seen = set()
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


def hunt(make: Callable[[], Auditor], seeds: int, *, looks: bool = False) -> None:
    for seed in range(seeds):
        world = AuditorWorld(seed, make(), looks)
        world.run(120)
        world.settle()


def test_marks_are_justified_by_the_listings_and_no_lost_bookie_is_forgotten() -> None:
    hunt(lambda: Auditor(OPTIONS, locate), 60)


def test_misplaced_ledgers_are_those_of_the_model() -> None:
    hunt(lambda: Auditor(LOOKS, locate), 60, looks=True)


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
def test_a_planted_defect_is_found(defect: Callable[[AuditorOptions, Locate], Auditor]) -> None:
    with pytest.raises(AssertionError):
        hunt(lambda: defect(OPTIONS, locate), 60)


class _CountsTheUnknown(Auditor):
    def _at_best(self, bookie: BookieId) -> NetworkLocation:
        return self._locate(bookie) or DEFAULT_LOCATION


class _CountsOpenOnes(Auditor):
    def _check_placement(self, ledger: LedgerId, metadata: LedgerMetadata) -> None:
        super()._check_placement(ledger, replace(metadata, state=LedgerState.CLOSED))


class _NeverForgets(Auditor):
    def _start_due(self) -> list[AuditorEffect]:
        before = self._misplaced
        effects = super()._start_due()
        self._misplaced = before
        return effects


class _CountsOnlyWhatItRead(Auditor):
    def _end(self, reason: str) -> list[AuditorEffect]:
        self._unread = 0
        return super()._end(reason)


@pytest.mark.parametrize("defect", [_CountsTheUnknown, _CountsOpenOnes, _NeverForgets, _CountsOnlyWhatItRead])
def test_a_planted_defect_of_the_placement_audit_is_found(defect: Callable[[AuditorOptions, Locate], Auditor]) -> None:
    with pytest.raises(AssertionError, match="misplaced="):
        hunt(lambda: defect(LOOKS, locate), 60, looks=True)
