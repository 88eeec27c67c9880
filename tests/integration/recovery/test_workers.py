"""Workers on marks in a real ZooKeeper; the repair of single ledgers is played by the test."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from actors.recovery import workers
from actors.recovery.options import RecoveryOptions
from actors.recovery.workers import RepairWorkers
from dlog.errors import DLogError, InvalidRequestError, LedgerNotFoundError, NotEnoughBookiesError, UnavailableError
from dlog.events import Event
from dlog.io.zookeeper import ANY_VERSION, ZooKeeper
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_underreplication import ZooKeeperUnderreplication
from dlog.ledger.events import EntriesUnreadable, MarkCompleted, RepairFailed
from dlog.ledger.repair import OPEN_LEDGER, Repaired, Replaced, Unreadable
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.model.verification import BadRange, Verified
from tests.integration.recovery.polling import until

pytestmark = pytest.mark.zookeeper

PATHS = LedgerPaths()
GONE, BACK, C, D = (BookieId(f"{name}:1") for name in "abcd")
ONE, TWO = LedgerId(1), LedgerId(2)
QUICK = RecoveryOptions(look_s=0.02, open_grace_s=0.05, backoff_s=0.05, backoff_max_s=0.1, workers=2)
OPEN = LedgerMetadata(quorum=Quorum(ensemble=3, write=3, ack=2), fragments=(Fragment(EntryId(0), (GONE, BACK, C)),))
BAD = BadRange(EntryId(3), EntryId(4), BACK, "thin", "no such entry")


class Bench:
    """The workers of one process, with ledgers as the test says. `asked`: what they had repaired, in order."""

    def __init__(self, marks: ZooKeeperUnderreplication, options: RecoveryOptions = QUICK) -> None:
        self.marks = marks
        self.events: list[Event] = []
        self.asked: list[tuple[LedgerId, frozenset[BookieId], tuple[BadRange, ...]]] = []
        self.recovered: list[LedgerId] = []
        self.verified: list[LedgerId] = []
        self.metadata = dict.fromkeys((ONE, TWO), OPEN.closed_at(EntryId(9), 90))
        self.change: LedgerMetadata | None = None  # made by a ledger's writer once a worker has read its metadata
        self.bad: tuple[BadRange, ...] = ()
        self.replaceable = frozenset({GONE, BACK, C})  # bookies for which there is another one
        self.result: Callable[[LedgerId], Repaired] = Repaired
        self.available = frozenset((bookie, True) for bookie in (BACK, C, D))
        self.stuck = asyncio.Event()
        self.is_stuck = False
        self.unstick = asyncio.Event()
        self.workers = RepairWorkers(options, marks, self, self.events.append, random.Random(1))

    async def repair(self, ledger: LedgerId, gone: frozenset[BookieId], *, bad: tuple[BadRange, ...] = ()) -> Repaired:
        self.asked.append((ledger, gone, bad))
        if self.is_stuck:
            self.stuck.set()
            await self.unstick.wait()
        return self.result(ledger)

    async def can_replace(self, metadata: LedgerMetadata, gone: frozenset[BookieId]) -> bool:
        return gone <= self.replaceable

    async def recover(self, ledger: LedgerId) -> None:
        self.recovered.append(ledger)
        self.metadata[ledger] = OPEN.closed_at(EntryId(9), 90)

    async def metadata_of(self, ledger: LedgerId) -> LedgerMetadata:
        found = self.metadata[ledger]
        if self.change is not None:
            self.metadata[ledger] = self.change
        return found

    def available_bookies(self) -> frozenset[tuple[BookieId, bool]]:
        return self.available

    async def verify(self, ledger: LedgerId) -> Verified:
        self.verified.append(ledger)
        return Verified(10, self.bad)

    async def left(self) -> set[LedgerId]:
        return {ledger async for ledger in self.marks.marked()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.workers.run())
            yield
            task.cancel()

    async def until(self, condition: Callable[[], bool]) -> None:
        async def holds() -> bool:
            return condition()

        await until(holds)

    async def until_waiting(self, asked: int) -> None:
        """Wait until so many repairs were asked for, and no ledger is being repaired."""

        async def holds() -> bool:
            return len(self.asked) >= asked and not self.workers.repairing

        await until(holds)

    async def until_left(self, left: set[LedgerId]) -> None:
        """Wait until exactly these ledgers are marked, and none is locked."""

        async def holds() -> bool:
            return await self.left() == left and not await self.marks.locked()

        await until(holds)


@pytest.fixture
async def sessions(zookeeper_hosts: str) -> AsyncIterator[list[ZooKeeper]]:
    """Two sessions, as of two processes; BACK, C and D are registered."""
    async with await ZooKeeper.connect(zookeeper_hosts) as one, await ZooKeeper.connect(zookeeper_hosts) as two:
        for bookie in (BACK, C, D):
            await one.create(f"{PATHS.available}/{bookie}", parents=True)
        yield [one, two]


@pytest.fixture
async def bench(sessions: list[ZooKeeper]) -> Bench:
    return await bench_on(sessions[0])


async def bench_on(session: ZooKeeper, options: RecoveryOptions = QUICK) -> Bench:
    marks = ZooKeeperUnderreplication(session, PATHS, "w:1")
    await marks.prepare()
    return Bench(marks, options)


async def test_a_marked_ledger_is_repaired_and_its_mark_deleted(bench: Bench) -> None:
    bench.result = lambda ledger: Repaired(ledger, 7, 70, (Replaced(EntryId(0), GONE, D),))
    await bench.marks.mark(ONE, {GONE}, 5)
    async with bench.running():
        await bench.until_left(set())
    assert bench.asked == [(ONE, frozenset({GONE}), ())]
    assert bench.events == [MarkCompleted(1, 7, 70)]


async def test_a_failure_keeps_the_mark_is_told_and_stops_no_other(bench: Bench) -> None:
    def result(ledger: LedgerId) -> Repaired:
        if ledger == ONE and not any(isinstance(event, RepairFailed) for event in bench.events):
            raise NotEnoughBookiesError("start more")
        return Repaired(ledger, waits="a bookie" if ledger == ONE and len(bench.events) < 3 else "")

    bench.result = result
    await bench.marks.mark(ONE, {GONE}, 5)
    await bench.marks.mark(TWO, {GONE}, 5)
    async with bench.running():
        await bench.until_left({ONE})
        await bench.until_left(set())
    failed = [event for event in bench.events if isinstance(event, RepairFailed)]
    assert [event.reason for event in failed][:2] == ["start more", "a bookie"]
    assert {event.ledger for event in bench.events if isinstance(event, MarkCompleted)} == {1, 2}


SHORTAGES: dict[str, DLogError | Repaired] = {
    "no replacement": NotEnoughBookiesError("start more"),
    "out of reach": UnavailableError("bookies that may have its entries are out of reach"),
    "unreadable": Repaired(ONE, unreadable=(Unreadable(EntryId(1), EntryId(1), GONE, "no such entry"),)),
}


@pytest.mark.parametrize("name", SHORTAGES)
async def test_a_ledger_that_failed_for_want_of_bookies_is_tried_again_once_there_are_others(
    sessions: list[ZooKeeper], name: str
) -> None:
    bench = await bench_on(sessions[0], replace(QUICK, backoff_s=1000.0, backoff_max_s=2000.0))

    def result(ledger: LedgerId) -> Repaired:
        if ledger == TWO:
            raise InvalidRequestError("another reason")
        shortage = SHORTAGES[name]
        if isinstance(shortage, DLogError):
            raise shortage
        return shortage

    bench.result = result
    await bench.marks.mark(ONE, {GONE}, 5)
    await bench.marks.mark(TWO, {GONE}, 5)
    async with bench.running():
        await bench.until_waiting(2)
        bench.available |= {(GONE, False)}
        await bench.until_waiting(3)
        bench.available -= {(C, True)}  # fewer help nobody
        bench.available |= {(GONE, True)}
        await bench.until_waiting(4)
        bench.available |= {(C, True)}  # there again, with a replacement for the lost one
        bench.result = Repaired
        await bench.until_left({TWO})
    assert sorted(ledger for ledger, _, _ in bench.asked) == [ONE] * 4 + [TWO]


@pytest.fixture
async def short_of_bookies(sessions: list[ZooKeeper]) -> Bench:
    """ONE fails for want of bookies; other ledgers are repaired."""
    bench = await bench_on(sessions[0], replace(QUICK, backoff_s=1000.0, backoff_max_s=2000.0))

    def result(ledger: LedgerId) -> Repaired:
        if ledger == ONE:
            raise NotEnoughBookiesError("start more")
        return Repaired(ledger)

    bench.result = result
    await bench.marks.mark(ONE, {GONE}, 5)
    return bench


async def attempts(bench: Bench, available: frozenset[tuple[BookieId, bool]]) -> int:
    """How often ONE was tried in all, once these bookies were seen. What is due is listed together and begun before
    the next list. Each ledger that is marked and repaired shows one list; the first may have begun before."""
    bench.available = available
    for _ in range(3):
        ledger = LedgerId(100 + len(bench.asked))
        await bench.marks.mark(ledger, {GONE}, 5)
        await bench.until_left({ONE})
    return [ledger for ledger, _, _ in bench.asked].count(ONE)


async def test_a_bookie_that_turns_read_only_ends_no_wait(short_of_bookies: Bench) -> None:
    bench = short_of_bookies
    writable = bench.available
    read_only = writable - {(C, True)} | {(C, False)}
    async with bench.running():
        for available in (writable, read_only, writable, read_only, writable - {(C, True)}, writable):
            assert await attempts(bench, available) == 1


async def test_a_bookie_that_comes_and_goes_ends_the_wait_once(short_of_bookies: Bench) -> None:
    bench, e = short_of_bookies, BookieId("e:1")
    before = bench.available
    read_only, writable = before | {(GONE, False)}, before | {(GONE, True)}
    async with bench.running():
        assert await attempts(bench, before) == 1
        assert await attempts(bench, read_only) == 2
        assert await attempts(bench, writable) == 3
        for available in (before, writable, read_only, writable):
            assert await attempts(bench, available) == 3
        assert await attempts(bench, read_only | {(e, True)}) == 4
        for available in (writable, read_only | {(e, True)}):
            assert await attempts(bench, available) == 4
        assert await attempts(bench, writable | {(e, True)}) == 5, "both could be written at no time before"


async def test_many_bookies_that_come_and_go_end_the_wait_once_each(short_of_bookies: Bench) -> None:
    bench = short_of_bookies
    before = bench.available
    flapping = [before | {(BookieId(f"e{number}:1"), True)} for number in range(2 * workers.STATES_MAX)]
    async with bench.running():
        assert await attempts(bench, before) == 1
        for number, available in enumerate(flapping):
            assert await attempts(bench, available) == 2 + number
        for available in (*flapping, before, *flapping):
            assert await attempts(bench, available) == 1 + len(flapping)


async def test_a_bookie_that_comes_during_the_attempt_that_lacked_it_ends_the_wait(sessions: list[ZooKeeper]) -> None:
    bench = await bench_on(sessions[0], replace(QUICK, backoff_s=1000.0, backoff_max_s=2000.0))
    bench.is_stuck = True

    def result(ledger: LedgerId) -> Repaired:
        bench.result, bench.is_stuck = Repaired, False
        raise NotEnoughBookiesError("start more")

    bench.result = result
    await bench.marks.mark(ONE, {GONE}, 5)
    async with bench.running():
        await bench.stuck.wait()
        bench.available |= {(GONE, True)}
        await bench.marks.mark(TWO, {GONE}, 5)
        await bench.until(lambda: len(bench.asked) == 2)  # another worker has seen the new bookie
        bench.unstick.set()
        await bench.until_left(set())


async def test_an_open_ledger_that_no_bookie_could_take_has_its_grace_once_one_is_there(
    sessions: list[ZooKeeper],
) -> None:
    options = replace(QUICK, backoff_s=1000.0, backoff_max_s=2000.0, open_grace_s=0.3)
    bench = await bench_on(sessions[0], options)
    bench.metadata[ONE], bench.replaceable = OPEN, frozenset()
    bench.result = lambda ledger: Repaired(ledger, waits="" if bench.metadata[ledger].is_closed else OPEN_LEDGER)
    await bench.marks.mark(ONE, {GONE}, 5)
    async with bench.running():
        await bench.until_waiting(1)
        bench.replaceable = frozenset({GONE})
        bench.available |= {(BookieId("e:1"), True)}
        await bench.until_left(set())
    assert bench.recovered == [ONE]
    assert len(bench.asked) == 4, "two attempts that wait, none within the grace, and one in two steps"


async def test_a_bookie_that_is_back_keeps_its_place_and_gets_what_it_lacks(bench: Bench) -> None:
    await bench.marks.mark(ONE, {BACK}, 5)
    async with bench.running():
        await bench.until_left(set())
        assert bench.asked == [], "its copies are whole"
        bench.bad = (BAD, BadRange(EntryId(0), EntryId(9), C, "thin", "not asked about"))
        await bench.marks.mark(TWO, {GONE, BACK}, 5)
        await bench.until_left(set())
    assert bench.asked == [(TWO, frozenset({GONE}), ()), (TWO, frozenset(), (BAD,))]


async def test_a_bookie_with_a_copy_that_is_wrong_is_replaced(bench: Bench) -> None:
    """A bookie never overwrites a copy, so that what it lacks is written again, and what it has wrong is not."""
    wrong = BadRange(EntryId(6), EntryId(6), C, "damaged", "digest does not match", is_wrong=True)
    bench.bad = (BAD, wrong, BadRange(EntryId(1), EntryId(1), D, "damaged", "not asked about", is_wrong=True))
    await bench.marks.mark(ONE, {BACK, C}, 5)
    async with bench.running():
        await bench.until_left(set())
    assert bench.asked == [(ONE, frozenset(), (BAD,)), (ONE, frozenset({C}), ())]


async def test_more_missing_copies_than_a_verification_lists_are_written_again_in_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = [Verified(10, (BAD,), omitted=((BACK, 2),)), Verified(10, (BAD,), omitted=((C, 2),))]

    async def verify(ledger: LedgerId) -> Verified:
        return rest.pop(0)

    monkeypatch.setattr(bench, "verify", verify)
    await bench.marks.mark(ONE, {BACK}, 5)
    async with bench.running():
        await bench.until_left(set())
    assert bench.asked == [(ONE, frozenset(), (BAD,))] * 2
    failed, completed = bench.events
    assert isinstance(failed, RepairFailed) and "the rest follows" in failed.reason
    assert isinstance(completed, MarkCompleted)


async def test_a_bookie_that_is_lost_again_while_its_copies_are_read_keeps_its_mark(
    bench: Bench, sessions: list[ZooKeeper]
) -> None:
    async def verify(ledger: LedgerId) -> Verified:
        await sessions[0].delete(f"{PATHS.available}/{BACK}", ANY_VERSION)
        return Verified(10)

    bench.verify = verify  # type: ignore[method-assign]  # of this bench only
    await bench.marks.mark(ONE, {BACK}, 5)
    async with bench.running():
        await bench.until_left(set())
    assert isinstance(failed := bench.events[0], RepairFailed) and "lost again" in failed.reason
    assert bench.asked == [(ONE, frozenset({BACK}), ())]


async def test_a_bookie_that_is_away_for_a_planned_restart_keeps_its_place(bench: Bench) -> None:
    await bench.marks.pauses.begin(GONE, 600)
    await bench.marks.mark(ONE, {GONE, C}, 5)
    async with bench.running():
        await bench.until(lambda: len(bench.events) >= 2)
        assert await bench.left() == {ONE}
        assert all(
            isinstance(e, RepairFailed) and f"not over (`dlog bookie pause`): bookies={GONE}" in e.reason
            for e in bench.events
        )
        assert (bench.asked, bench.verified) == ([], [])
        await bench.marks.pauses.end(GONE)
        await bench.until_left(set())
    assert bench.asked == [(ONE, frozenset({GONE}), ())]


async def test_another_lost_bookie_is_repaired_during_a_planned_restart(bench: Bench) -> None:
    other = BookieId("lost:1")
    await bench.marks.pauses.begin(GONE, 600)
    await bench.marks.mark(ONE, {GONE, other}, 5)
    async with bench.running():
        await bench.until(lambda: len(bench.events) >= 2)
        assert await bench.left() == {ONE}
    assert all(isinstance(e, RepairFailed) and f"bookies={GONE}" in e.reason for e in bench.events)
    assert {gone for _, gone, _ in bench.asked} == {frozenset({other})}


async def test_a_bookie_that_returns_from_a_planned_restart_while_it_is_looked_up_is_not_lost(
    bench: Bench, sessions: list[ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.marks.pauses.begin(GONE, 600)
    await bench.marks.mark(ONE, {GONE}, 5)
    look = bench.marks.pauses.current

    async def returns() -> dict[BookieId, float]:
        found = await look()
        if not await sessions[0].exists(f"{PATHS.available}/{GONE}"):
            await sessions[0].create(f"{PATHS.available}/{GONE}")
        return found

    monkeypatch.setattr(bench.marks.pauses, "current", returns)
    async with bench.running():
        await bench.until_left(set())
    assert (bench.asked, bench.verified) == ([], [ONE])


async def test_a_mark_without_a_bookie_stays(bench: Bench) -> None:
    await bench.marks.mark(ONE, {}, 5)
    async with bench.running():
        await bench.until(lambda: len(bench.events) >= 2)
        assert await bench.left() == {ONE}
    assert isinstance(failed := bench.events[0], RepairFailed) and "names no bookie" in failed.reason


async def test_a_damaged_mark_is_named_and_others_are_repaired(bench: Bench, sessions: list[ZooKeeper]) -> None:
    path = PATHS.underreplication.mark(ONE)
    await sessions[0].create(path, b"what is this", parents=True)
    await bench.marks.mark(TWO, {GONE}, 5)
    async with bench.running():
        await bench.until(lambda: len({event.name for event in bench.events}) == 2)
        await bench.until_left({ONE})
        await sessions[0].delete(path, ANY_VERSION)
        await bench.marks.mark(ONE, {GONE}, 5)
        await bench.until_left(set())
    failed = next(event for event in bench.events if isinstance(event, RepairFailed))
    assert failed.reason == (
        f"the ledger's mark in ZooKeeper cannot be read or decoded, delete this znode (docs/operations.md): "
        f"ledger={ONE} path={path}"
    )
    assert [event.ledger for event in bench.events if isinstance(event, MarkCompleted)] == [TWO, ONE]


async def test_an_open_ledger_whose_bookie_is_back_waits_for_its_writer_and_is_read_once(bench: Bench) -> None:
    bench.metadata[ONE], bench.bad = OPEN, (BAD,)
    bench.result = lambda ledger: Repaired(ledger, waits="" if bench.metadata[ledger].is_closed else OPEN_LEDGER)
    await bench.marks.mark(ONE, {BACK}, 5)
    async with bench.running():
        await bench.until(lambda: len(bench.events) >= 4)
        assert await bench.left() == {ONE}
        assert all(
            isinstance(event, RepairFailed) and "nothing has to be done" in event.reason for event in bench.events
        )
        assert (bench.verified, bench.asked, bench.recovered) == ([ONE], [(ONE, frozenset(), (BAD,))], [])
        bench.metadata[ONE] = OPEN.closed_at(EntryId(9), 90)
        await bench.until_left(set())
    assert bench.verified == [ONE, ONE]


async def test_a_bookie_that_is_lost_once_more_gives_the_writer_the_whole_grace_again(
    bench: Bench, sessions: list[ZooKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped_s = 0.0
    monkeypatch.setattr(workers, "_now_s", lambda: asyncio.get_running_loop().time() + skipped_s)
    patient = Bench(bench.marks, replace(QUICK, open_grace_s=1000.0))
    patient.metadata[ONE], patient.bad = OPEN, (BadRange(EntryId(3), EntryId(4), GONE, "thin", "no such entry"),)
    patient.result = lambda ledger: Repaired(ledger, waits="" if patient.metadata[ledger].is_closed else OPEN_LEDGER)
    await bench.marks.mark(ONE, {GONE}, 5)
    async with patient.running():
        await patient.until_waiting(1)
        await sessions[0].create(f"{PATHS.available}/{GONE}")
        skipped_s += 1001.0
        await patient.until(lambda: len(patient.events) >= 1)
        await sessions[0].delete(f"{PATHS.available}/{GONE}", ANY_VERSION)
        asked = len(patient.asked)
        await patient.until_waiting(asked + 1)
        assert patient.recovered == []
        skipped_s += 1001.0
        await patient.until_left(set())
    assert patient.recovered == [ONE]


async def test_an_open_ledger_is_recovered_after_the_grace(bench: Bench) -> None:
    bench.metadata[ONE] = OPEN
    bench.result = lambda ledger: Repaired(ledger, waits="" if bench.metadata[ledger].is_closed else "open")
    await bench.marks.mark(ONE, {GONE}, 5)
    async with bench.running():
        await bench.until_left(set())
    assert bench.recovered == [ONE]
    assert len(bench.asked) == 3, "before the grace, after it, and behind the recovery"
    assert [type(event) for event in bench.events] == [MarkCompleted], "a wait is no failure"


async def test_an_open_ledger_is_not_fenced_while_no_bookie_can_replace_the_lost_one(bench: Bench) -> None:
    bench.metadata[ONE] = OPEN
    bench.replaceable = frozenset({BACK, C})
    bench.result = lambda ledger: Repaired(ledger, waits="" if bench.metadata[ledger].is_closed else "open")
    await bench.marks.mark(ONE, {GONE}, 5)
    async with bench.running():
        await bench.until(lambda: len(bench.events) >= 4)
        assert bench.recovered == []
        assert await bench.left() == {ONE}
        assert all(
            isinstance(event, RepairFailed) and f"stays open for its writer: bookies={GONE}" in event.reason
            for event in bench.events
        )
        bench.replaceable = frozenset({GONE})
        await bench.until_left(set())
    assert bench.recovered == [ONE]


async def test_a_writer_that_replaces_the_bookie_in_time_is_not_fenced(bench: Bench) -> None:
    bench.metadata[ONE] = OPEN
    bench.result = lambda ledger: Repaired(ledger, waits="open" if bench.metadata[ledger] == OPEN else "")
    bench.change = OPEN.with_ensemble(EntryId(5), (D, BACK, C))
    await bench.marks.mark(ONE, {GONE}, 5)
    async with bench.running():
        await bench.until_left(set())
    assert bench.metadata[ONE].state is LedgerState.OPEN
    assert (len(bench.asked), bench.recovered) == (2, [])


async def test_entries_that_no_replica_serves_are_named_and_the_mark_stays(bench: Bench) -> None:
    lost = Unreadable(EntryId(2), EntryId(4), GONE, "no such entry")
    bench.result = lambda ledger: Repaired(ledger, 5, 50, unreadable=(lost,))
    await bench.marks.mark(ONE, {GONE}, 5)
    async with bench.running():
        await bench.until(lambda: len(bench.events) >= 4)
    assert bench.events[0] == EntriesUnreadable(1, 2, 4, GONE, 3, "no such entry")
    assert isinstance(bench.events[1], RepairFailed)
    assert await bench.left() == {ONE}


async def test_an_unreadable_entry_keeps_nothing_else_from_being_repaired(bench: Bench) -> None:
    lost = Unreadable(EntryId(2), EntryId(4), GONE, "no such entry")
    lacking = Unreadable(EntryId(3), EntryId(3), BACK, "no such entry")
    bench.metadata[ONE] = OPEN

    async def repair(ledger: LedgerId, gone: frozenset[BookieId], *, bad: tuple[BadRange, ...] = ()) -> Repaired:
        waits = "open" if gone and not bench.metadata[ledger].is_closed else ""
        return Repaired(ledger, unreadable=(lacking,) if bad else (lost,), waits=waits)

    bench.repair = repair  # type: ignore[method-assign]  # of this bench only
    bench.bad = (BAD,)
    await bench.marks.mark(ONE, {GONE, BACK}, 5)
    async with bench.running():
        await bench.until(lambda: bench.recovered == [ONE] and len(bench.events) >= 2)
        assert await bench.left() == {ONE}
    first = next(event for event in bench.events if isinstance(event, EntriesUnreadable))
    assert first == EntriesUnreadable(1, 2, 4, GONE, 4, "no such entry"), "each of 4 entries once"


async def test_a_ledger_that_was_deleted_needs_no_repair(bench: Bench) -> None:
    def result(ledger: LedgerId) -> Repaired:
        raise LedgerNotFoundError("deleted")

    bench.result = result
    await bench.marks.mark(ONE, {GONE}, 5)
    async with bench.running():
        await bench.until_left(set())
    assert bench.events == []


async def test_a_mark_that_cannot_be_decoded_is_told(bench: Bench, sessions: list[ZooKeeper]) -> None:
    await sessions[0].create(PATHS.underreplication.mark(ONE), b"\xff", parents=True)
    await bench.marks.mark(TWO, {GONE}, 5)
    async with bench.running():
        await bench.until_left({ONE})
        await bench.until(lambda: any(isinstance(event, RepairFailed) for event in bench.events))
    assert {event.ledger for event in bench.events if isinstance(event, RepairFailed)} == {1}


async def test_a_ledger_marked_anew_during_its_repair_is_repaired_again(bench: Bench) -> None:
    bench.is_stuck = True
    await bench.marks.mark(ONE, {GONE}, 5)
    async with bench.running():
        await bench.stuck.wait()
        await bench.marks.mark(ONE, {BookieId("e:1")}, 6)
        bench.unstick.set()
        await bench.until_left(set())
    assert [gone for _, gone, _ in bench.asked] == [{GONE}, {GONE, "e:1"}]


async def test_a_worker_that_is_killed_leaves_a_lock_that_ends_with_its_session(sessions: list[ZooKeeper]) -> None:
    killed = await bench_on(sessions[0], RecoveryOptions(look_s=0.02, workers=1))
    other = await bench_on(sessions[1])
    killed.is_stuck = True
    await killed.marks.mark(ONE, {GONE}, 5)
    async with killed.running():
        await killed.stuck.wait()
        async with other.running():
            await other.marks.mark(TWO, {GONE}, 5)
            await other.until(lambda: TWO in [ledger for ledger, _, _ in other.asked])
            assert ONE not in [ledger for ledger, _, _ in other.asked]
            await sessions[0].close()
            await other.until_left(set())
    assert ONE in [ledger for ledger, _, _ in other.asked]


async def test_every_marked_ledger_gets_its_turn_though_lower_ones_are_due_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def result(ledger: LedgerId) -> Repaired:
        raise NotEnoughBookiesError("start more")

    monkeypatch.setattr(workers, "CANDIDATES_MAX", 2)
    at_once = RecoveryOptions(look_s=0.02, backoff_s=1e-9, backoff_max_s=1e-9, workers=1)
    failing = Bench(bench.marks, at_once)
    failing.result = result
    ledgers = [LedgerId(number) for number in (1, 2, 3, 70_000, 2**32, 2**48 + 1)]
    for ledger in ledgers:
        await bench.marks.mark(ledger, {GONE}, 5)
    async with failing.running():
        await failing.until(lambda: len(failing.asked) >= 12)
    first, again = (sorted(ledger for ledger, _, _ in failing.asked[i : i + 6]) for i in (0, 6))
    assert first == again == ledgers


async def test_what_is_due_next_keeps_its_back_off_when_too_many_ledgers_fail(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def result(ledger: LedgerId) -> Repaired:
        raise NotEnoughBookiesError("start more")

    monkeypatch.setattr(workers, "PUT_OFF_MAX", 2)
    monkeypatch.setattr(random.Random, "uniform", lambda rng, least, most: most)
    slow = Bench(bench.marks, RecoveryOptions(look_s=0.02, backoff_s=1000.0, backoff_max_s=1e6, workers=1))
    slow.result = result
    await bench.marks.mark(ONE, {GONE}, 5)
    async with slow.running():
        await slow.until(lambda: len(slow.events) == 1)
        for ledger in (TWO, LedgerId(3)):
            await bench.marks.mark(ledger, {GONE}, 5)
        await slow.until(lambda: len(slow.asked) >= 10)
    assert [ledger for ledger, _, _ in slow.asked].count(ONE) == 1


async def test_nothing_is_repaired_while_repair_is_switched_off(bench: Bench) -> None:
    await bench.marks.disable()
    await bench.marks.mark(ONE, {GONE}, 5)
    looks = 0
    original = bench.marks.is_disabled

    async def counted() -> bool:
        nonlocal looks
        looks += 1
        return await original()

    bench.marks.is_disabled = counted  # type: ignore[method-assign]  # of this bench only
    async with bench.running():
        await bench.until(lambda: looks >= 3)
        assert bench.asked == []
        await bench.marks.enable()
        await bench.until_left(set())


async def test_ledgers_that_are_listed_already_are_not_repaired_once_repair_is_switched_off(bench: Bench) -> None:
    one_worker = Bench(bench.marks, RecoveryOptions(look_s=0.02, workers=1))
    one_worker.is_stuck = True
    await bench.marks.mark(ONE, {GONE}, 5)
    await bench.marks.mark(TWO, {GONE}, 5)
    looks = 0
    original = bench.marks.is_disabled

    async def counted() -> bool:
        nonlocal looks
        looks += 1
        return await original()

    bench.marks.is_disabled = counted  # type: ignore[method-assign]  # of this bench only
    async with one_worker.running():
        await one_worker.stuck.wait()
        await bench.marks.disable()
        one_worker.unstick.set()
        looks = 0
        await one_worker.until(lambda: looks >= 3)
        assert len(one_worker.asked) == 1, "what had begun is finished"
        await bench.marks.enable()
        await one_worker.until_left(set())
