"""The auditor on a real ZooKeeper, from registrations that vanish to marks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from actors.recovery import auditing, counting
from actors.recovery.auditing import Auditing
from actors.recovery.options import RecoveryOptions
from dlog.events import Event
from dlog.io import metrics
from dlog.io.metrics import MISPLACED_LEDGERS
from dlog.io.zookeeper import ANY_VERSION
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.ledger.events import AuditEnded, AuditorElected, BookieMissing, LedgerMisplaced, LedgerNotAudited
from dlog.ledger.missing_copies import MissingCopies
from dlog.ledger.placement_policy import RACK, policy_metadata
from dlog.machine import Versioned
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata, LedgerState
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation
from dlog.model.quorum import Quorum
from dlog.wire.bookie_info import encode_address
from tests.integration.recovery.polling import until

pytestmark = pytest.mark.zookeeper

NAMESPACE = "/dlog"
PATHS = LedgerPaths()
A, B, C, D = (BookieId(f"127.0.0.1:{port}") for port in range(3181, 3185))
QUICK = RecoveryOptions(lost_after_s=0.3, look_s=0.05, retry_s=0.1, placement_check_s=0.2)


class Process:
    """One process that stands for election."""

    def __init__(self, metadata: ZooKeeperMetadata, name: str) -> None:
        self.metadata = metadata
        self.marks = metadata.underreplication(name)
        self.events: list[Event] = []
        election = metadata.auditor_election(name)
        self.auditing = Auditing(QUICK, metadata, self.marks, election, self.events.append)

    async def add_ledger(self, number: int, *bookies: BookieId, is_closed: bool = False) -> None:
        value = LedgerMetadata(
            quorum=Quorum(ensemble=2, write=2, ack=1),
            fragments=(Fragment(EntryId(0), bookies),),
            state=LedgerState.CLOSED if is_closed else LedgerState.OPEN,
            custom=policy_metadata(RACK),
        )
        outcome = await self.metadata.compare_and_set(LedgerKey(LedgerId(number)), value, None)
        assert isinstance(outcome, Versioned)

    async def register(self, *bookies: BookieId, rack: str = DEFAULT_LOCATION.rack) -> None:
        where = encode_address("127.0.0.1", 1, NetworkLocation(rack=rack))
        for bookie in bookies:
            await self.metadata.zookeeper.create(f"{PATHS.available}/{bookie}", where)

    async def unregister(self, bookie: BookieId) -> None:
        await self.metadata.zookeeper.delete(f"{PATHS.available}/{bookie}", ANY_VERSION)

    async def marked(self) -> dict[int, set[str]]:
        found = [marked async for page in self.marks.pages() for marked in page]
        return {int(marked.ledger): set(marked.mark.bookies) for marked in found if marked.mark is not None}

    async def until_marked(self, wanted: dict[int, set[str]]) -> None:
        async def holds() -> bool:
            return await self.marked() == wanted

        await until(holds)

    async def until(self, condition: Callable[[], bool]) -> None:
        async def holds() -> bool:
            return condition()

        await until(holds)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.auditing.run())
            yield
            task.cancel()


@pytest.fixture
async def processes(zookeeper_hosts: str) -> AsyncIterator[list[Process]]:
    await cluster_init(zookeeper_hosts, NAMESPACE)
    async with (
        await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as one,
        await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as two,
    ):
        found = [Process(one, "p1:1"), Process(two, "p2:1")]
        for process in found:
            await process.marks.prepare()
        await found[0].register(A, B, C)
        yield found


async def test_ledgers_of_a_bookie_that_vanishes_are_marked(processes: list[Process]) -> None:
    one = processes[0]
    for number, bookies in ((1, (A, B)), (2, (B, C)), (70_000, (C, A)), (2**32, (B, A))):
        await one.add_ledger(number, *bookies)
    await one.add_ledger(5, D, B)  # D was lost before anybody looked
    path = PATHS.ledger(LedgerId(3))
    await one.metadata.zookeeper.create(path, b"damaged", parents=True)
    async with one.running():
        await one.until_marked({5: {D}})
        await one.unregister(A)
        await one.until_marked({1: {A}, 5: {D}, 70_000: {A}, 2**32: {A}})
        await one.until(lambda: AuditEnded(3, 0, "") in one.events)
    assert one.events[0] == AuditorElected()
    assert {event.peer for event in one.events if isinstance(event, BookieMissing)} == {A}
    assert {event.ledger for event in one.events if isinstance(event, LedgerNotAudited)} == {3}


async def test_a_bookie_that_comes_back_in_time_loses_nothing(processes: list[Process]) -> None:
    one = processes[0]
    await one.add_ledger(1, A, B)
    await one.add_ledger(2, A, C)
    async with one.running():
        await one.until(lambda: one.auditing.is_auditor)
        await one.unregister(A)
        await one.register(A)
        await one.unregister(C)  # so that an audit takes place
        await one.until(lambda: any(isinstance(event, AuditEnded) for event in one.events))
    assert await one.marked() == {2: {C}}


async def test_ledgers_whose_bookies_were_moved_to_one_rack_are_told(processes: list[Process]) -> None:
    one = processes[0]
    await one.register(D, rack="two")
    await one.add_ledger(1, A, D, is_closed=True)
    await one.add_ledger(2, A, B, is_closed=True)
    await one.add_ledger(3, A, B)  # its last ensemble may still change
    async with one.running():
        await one.until(lambda: AuditEnded(0, 0, "", 1) in one.events)
        assert [event.ledger for event in one.events if isinstance(event, LedgerMisplaced)] == [2]
        assert MISPLACED_LEDGERS.value == 1
        await one.unregister(D)
        await one.register(D)
        await one.until(lambda: AuditEnded(0, 0, "", 2) in one.events)
        assert MISPLACED_LEDGERS.value == 2
        assert await one.marked() == {}
    assert MISPLACED_LEDGERS.value == 0, "the elected auditor counts"


async def test_another_process_goes_on_when_the_auditor_ends(processes: list[Process]) -> None:
    one, two = processes
    await one.add_ledger(1, A, B)
    async with two.running():
        async with one.running():
            await one.until(lambda: one.auditing.is_auditor or two.auditing.is_auditor)
            assert not (one.auditing.is_auditor and two.auditing.is_auditor)
        await one.metadata.close()
        await two.unregister(B)
        await two.until_marked({1: {B}})
    assert two.auditing.is_auditor is False, "it has ended"


async def test_an_auditor_creates_the_delay_that_shell_commands_of_java_read_and_changes_none(
    processes: list[Process],
) -> None:
    one, two = processes
    zk, path = two.metadata.zookeeper, PATHS.underreplication.lost_bookie_delay
    async with one.running():
        await one.until(lambda: one.auditing.is_auditor)
        assert (await zk.get(path, fresh=True))[0] == b"0"
    await one.metadata.close()
    await zk.set(path, b"300", ANY_VERSION)
    async with two.running():
        await two.until(lambda: two.auditing.is_auditor)
        assert (await zk.get(path, fresh=True))[0] == b"300"


async def test_no_auditor_takes_a_paused_bookie_for_lost(processes: list[Process]) -> None:
    one, two = processes
    await one.add_ledger(1, A, B)
    await one.add_ledger(2, C, B)
    await one.register(D)
    await one.unregister(A)
    await one.marks.pauses.begin(A, 600)
    async with one.running():
        await one.unregister(C)
        await one.until_marked({2: {C}})
        await one.unregister(B)
        await one.until_marked({1: {B}, 2: {B, C}})
    await one.metadata.close()
    async with two.running():  # the next auditor
        await two.add_ledger(3, A, C)
        await two.until_marked({1: {B}, 2: {B, C}, 3: {C}})
        await two.marks.pauses.end(A)
        await two.until_marked({1: {A, B}, 2: {B, C}, 3: {A, C}})


async def test_a_paused_bookie_that_returns_in_the_middle_of_a_look_is_not_lost(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = processes
    await one.add_ledger(1, A, B)
    await one.unregister(A)
    await one.marks.pauses.begin(A, 600)
    expire, looks = one.marks.pauses.expire, 0

    async def after_the_return() -> dict[BookieId, float]:
        nonlocal looks
        looks += 1
        if looks == 20:  # after more than three times the delay
            path = f"{PATHS.available}/{A}"
            await two.metadata.zookeeper.create(path, encode_address("127.0.0.1", 1), ephemeral=True)
        return await expire()

    monkeypatch.setattr(one.marks.pauses, "expire", after_the_return)
    async with one.running():
        await one.until(lambda: looks >= 30)
    assert await one.marked() == {} and await one.marks.pauses.current() == {}


async def test_nothing_is_marked_while_repair_is_switched_off(processes: list[Process]) -> None:
    one = processes[0]
    await one.add_ledger(1, D, B)
    await one.marks.disable()
    async with one.running():
        looks = 0
        look = one.marks.is_disabled

        async def counted() -> bool:
            nonlocal looks
            looks += 1
            return await look()

        one.marks.is_disabled = counted  # type: ignore[method-assign]
        await one.until(lambda: looks >= 20)  # for more than three times the delay
        assert await one.marked() == {}
        await one.marks.enable()
        await one.until_marked({1: {D}})


def gauges() -> tuple[float, float, float]:
    """Entries below Qw, entries below Qa, and bytes of the first."""
    below_write, below_ack = metrics.ENTRIES_BELOW_WRITE_QUORUM, metrics.ENTRIES_BELOW_ACK_QUORUM
    return below_write.value, below_ack.value, metrics.UNDER_REPLICATED_BYTES.value


async def test_entries_and_bytes_with_too_few_copies_are_counted_until_they_are_repaired(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = processes[0]
    monkeypatch.setattr(auditing, "_COUNT_S", 0.0)
    monkeypatch.setattr(counting, "RECOUNT_S", 0.0)
    quorum = Quorum(ensemble=3, write=3, ack=2)
    first = LedgerMetadata(quorum=quorum, fragments=(Fragment(EntryId(0), (A, B, C)),)).closed_at(EntryId(9), 900)
    second = replace(first, fragments=(Fragment(EntryId(0), (A, D, C)), Fragment(EntryId(4), (B, C, A))))
    for number, value in ((1, first), (2, second)):
        await one.metadata.compare_and_set(LedgerKey(LedgerId(number)), value, None)
    path = PATHS.ledger(LedgerId(3))
    await one.metadata.zookeeper.create(path, b"damaged", parents=True)
    await one.marks.mark(LedgerId(3), {B}, 5)
    await one.marks.mark(LedgerId(4), {B}, 5)  # deleted since
    await one.metadata.zookeeper.create(PATHS.underreplication.mark(LedgerId(5)), b"damaged", parents=True)
    async with one.running():
        await one.until(lambda: gauges() == (4, 0, 360))  # D was lost before
        await one.unregister(A)
        await one.until(lambda: gauges() == (20, 4, 1_800))
        found = await one.metadata.read(LedgerKey(LedgerId(2)))
        assert isinstance(found, Versioned)
        repaired = replace(second, fragments=(Fragment(EntryId(0), (B, D, C)), Fragment(EntryId(4), (B, C, A))))
        await one.metadata.compare_and_set(LedgerKey(LedgerId(2)), repaired, found.version)
        await one.until(lambda: gauges() == (20, 0, 1_800))
        for ledger in (LedgerId(1), LedgerId(2)):
            marked = await one.marks.lock(ledger)
            assert marked is not None and await one.marks.complete(marked)
        await one.until(lambda: gauges() == (0, 0, 0))
        await one.marks.mark(LedgerId(1), {A, B}, 5)
        await one.until(lambda: gauges() == (10, 10, 900))
    assert gauges() == (0, 0, 0), "the elected auditor counts"


async def test_metadata_of_only_so_many_marked_ledgers_is_read_by_one_look(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = processes[0]
    monkeypatch.setattr(counting, "READS_MAX", 2)
    reads: list[LedgerId] = []

    async def read(ledger: LedgerId) -> Versioned:
        reads.append(ledger)
        value = LedgerMetadata(quorum=Quorum(ensemble=1, write=1, ack=1), fragments=(Fragment(EntryId(0), (A,)),))
        return Versioned(value.closed_at(EntryId(0), 7), 0)

    counter = counting.MarkCounter(one.marks, read)
    for number in range(5):
        await one.marks.mark(LedgerId(number), {A}, 5)
    for expected in (2, 4, 5, 5):
        await counter.read_marks()
        assert await counter.count() == MissingCopies(expected, expected, 7 * expected)
    assert sorted(reads) == [0, 1, 2, 3, 4]
