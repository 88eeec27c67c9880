"""Comparisons of copies on real bookies, from a copy that is missing to the repair and the next, clean comparison."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.recovery.comparing import Comparing
from actors.recovery.options import RecoveryOptions
from actors.recovery.workers import RepairWorkers
from dlog.events import Event
from dlog.io.bookie_client import BookieClient
from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.ledgers import Ledgers, resolver
from dlog.io.metadata import Members
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_underreplication import ZooKeeperUnderreplication
from dlog.ledger import verifying
from dlog.ledger.comparing import Compared
from dlog.ledger.events import ComparisonEnded, CopiesDiffer, CopiesMissing, MarkCompleted, RepairFailed
from dlog.machine import PeerLost, Received, Versioned
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType, Fragment, LedgerKey, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.wire.bookie import AddEntry, Code, EntryAdded
from dlog.wire.digest import Digest
from tests.integration.cluster import BookieCluster, ServerProcess, start_bookies
from tests.integration.recovery.polling import until

pytestmark = pytest.mark.zookeeper

QUICK = RecoveryOptions(look_s=0.05, compare_s=0.3, backoff_s=0.1, backoff_max_s=0.2)
FIXED = Quorum(ensemble=3, write=3, ack=2)
STRIPED = Quorum(ensemble=3, write=2, ack=2)


@pytest.fixture(scope="module")
def four(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookieCluster]:
    cluster = start_bookies(zookeeper, Path(tmp_path_factory.mktemp("compared")), 4)
    yield cluster
    cluster.close()


class Process:
    """A recovery process that is the auditor, on real bookies. `events`: of comparisons and workers."""

    def __init__(self, metadata: ZooKeeperMetadata, bookies: BookieClient, ledgers: Ledgers) -> None:
        self.metadata = metadata
        self.bookies = bookies
        self.ledgers = ledgers
        self.marks: ZooKeeperUnderreplication = metadata.underreplication("test:1")
        self.events: list[Event] = []
        self.is_auditor = True
        tell = self.events.append
        self.comparing = Comparing(QUICK, ledgers, self.marks, lambda: self.is_auditor, tell)
        self.workers = RepairWorkers(QUICK, self.marks, ledgers, tell, random.Random(1))

    async def store(
        self,
        ensemble: tuple[BookieId, ...],
        quorum: Quorum = FIXED,
        *,
        last: int = 99,
        lacks: dict[int, BookieId] | None = None,
        breaks: dict[int, BookieId] | None = None,
        named_last: int | None = None,
    ) -> LedgerId:
        """A closed ledger, but for copies that are lacking or have a wrong digest, by entry. named_last: the last entry
        that metadata names, if it is not `last`."""
        ledger = await self.metadata.new_ledger_id()
        digest = Digest(ledger, DigestType.CRC32C, b"")
        value = LedgerMetadata(
            quorum=quorum,
            fragments=(Fragment(EntryId(0), ensemble),),
            state=LedgerState.CLOSED,
            last_entry=EntryId(last if named_last is None else named_last),
            length=100 * (last + 1),
        )
        added = asyncio.Queue[Any]()
        asker = self.bookies.asker()
        asker.post = added.put_nowait
        sent = 0
        for entry in range(last + 1):
            for bookie in value.bookies_of(entry):
                if (lacks or {}).get(entry) == bookie:
                    continue
                packet = b"".join(bytes(p) for p in digest.pack(entry, entry - 1, 100 * (entry + 1), (bytes(100),)))
                if (breaks or {}).get(entry) == bookie:
                    packet = packet[:35] + bytes([packet[35] ^ 1]) + packet[36:]
                asker.send(bookie, AddEntry(ledger, EntryId(entry), digest.master_key, (packet,)))
                sent += 1
        for _ in range(sent):
            fact = await added.get()
            assert not isinstance(fact, PeerLost)
            assert isinstance(fact, Received) and isinstance(fact.message, EntryAdded)
            assert fact.message.code is Code.OK
        asker.close()
        assert isinstance(await self.metadata.compare_and_set(LedgerKey(ledger), value, None), Versioned)
        return ledger

    async def bookie_ids(self) -> tuple[BookieId, ...]:
        return tuple(sorted((await self.metadata.members()).writable))

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until_clean(self, completed: int) -> None:
        """Wait until so many marks were completed, and a comparison that began later found nothing."""

        async def is_repaired() -> bool:
            return len(self.of(MarkCompleted)) >= completed

        await until(is_repaired)
        seen = len(self.of(ComparisonEnded))

        async def is_clean() -> bool:
            return any(not ended.lacking for ended in self.of(ComparisonEnded)[seen + 1 :])

        await until(is_clean)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self.comparing.run()), tasks.create_task(self.workers.run())]
            yield
            for task in running:
                task.cancel()


@pytest.fixture
async def process(four: BookieCluster) -> AsyncIterator[Process]:
    rng = random.Random(7)
    async with AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(await ZooKeeperMetadata.connect(four.hosts, four.namespace))
        bookies = await stack.enter_async_context(BookieClient(resolver(metadata), rng=rng))
        ledgers = await stack.enter_async_context(Ledgers(metadata, bookies, rng=rng))
        made = Process(metadata, bookies, ledgers)
        await made.marks.prepare()
        yield made
        async for ledger in metadata.ledgers():
            await ledgers.delete(ledger)


async def test_missing_copies_are_found_and_made_again(process: Process) -> None:
    a, b, c, _ = await process.bookie_ids()
    await process.store((a, b, c))
    holes = await process.store((a, b, c), lacks={40: c, 41: c, 97: a})
    unknown = await process.store((c, b, a), STRIPED, lacks=dict.fromkeys(range(100), b), last=1200)
    wanted = {entry for entry in range(100) if b in (await process.ledgers.metadata_of(unknown)).bookies_of(entry)}
    async with process.running():
        await process.until_clean(2)
    # a comparison that runs while a worker copies may mark the ledger once more: the first events count
    told = {event.ledger: event for event in reversed(process.of(CopiesMissing))}
    completed = {event.ledger: event.entries for event in reversed(process.of(MarkCompleted))}
    assert told.keys() == {holes, unknown}
    assert (told[holes].peers, told[holes].entries, told[holes].first, told[holes].last) == ((a, c), 3, 40, 41)
    assert (told[unknown].peers, told[unknown].entries) == ((b,), len(wanted))
    # a worker whose mark was renewed while it copied works once more, finds the copies, and completes the mark with 0
    assert completed.keys() == told.keys()
    assert completed[holes] in (0, 3) and completed[unknown] in (0, len(wanted))
    for ledger in (holes, unknown):
        assert (await process.ledgers.metadata_of(ledger)).fragments[0].ensemble in ((a, b, c), (c, b, a))
        assert not (await process.ledgers.verify(ledger)).ranges
    assert process.of(ComparisonEnded)[0] == ComparisonEnded(3, 2, 0, (), "")


async def test_ledgers_whose_last_entry_no_bookie_holds_stop_no_other_repair(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that a bookie holds are repaired. Repair of the rest fails while a lost bookie may hold it."""
    monkeypatch.setattr(verifying, "PAUSES_MAX", 2)
    a, b, c, d = await process.bookie_ids()
    lost, last = BookieId("127.0.0.1:1"), 2**63 - 1
    far = [
        await process.store((a, b, lost), lacks=dict.fromkeys(range(100), lost), named_last=last)
        for _ in range(QUICK.workers + 1)
    ]
    for ledger in far:
        await process.marks.mark(ledger, frozenset({lost}), 1)
    hole = await process.store((a, b, c), lacks={40: c})
    async with process.running():

        async def is_over() -> bool:
            failed = {event.ledger for event in process.of(RepairFailed)}
            compared = [ended for ended in process.of(ComparisonEnded) if ended.lacking > QUICK.workers]
            completed = {event.ledger for event in process.of(MarkCompleted)}
            return failed >= {*far} and hole in completed and bool(compared)

        await until(is_over)
    for ledger in far:
        kept, replaced = reversed((await process.ledgers.metadata_of(ledger)).fragments)
        assert kept == Fragment(EntryId(100), (a, b, lost))
        assert replaced.first_entry == 0 and replaced.ensemble[:2] == (a, b) and replaced.ensemble[2] in (c, d)
    repaired = await process.ledgers.repair(far[0], frozenset({lost}))
    assert [(u.first, u.last, u.bookie) for u in repaired.unreadable] == [(100, last, lost)]
    verified = await process.ledgers.verify(far[0])
    assert (verified.entries, verified.without_copy) == (last + 1, last + 1 - 100)
    assert [(bad.first, bad.last, bad.bookie) for bad in verified.ranges] == [
        (100, last, bookie) for bookie in sorted((a, b, lost))
    ]


async def test_a_bookie_whose_copy_the_digest_refuses_is_replaced(process: Process) -> None:
    a, b, c, d = await process.bookie_ids()
    ledger = await process.store((a, b, c), breaks={5: b})
    async with process.running():
        await process.until_clean(1)
    told = process.of(CopiesDiffer)[0]
    assert (told.ledger, told.entry, told.peers, told.wrong, told.entries) == (ledger, 5, (a, b, c), (b,), 1)
    assert "digest does not match" in told.reason
    assert (await process.ledgers.metadata_of(ledger)).fragments == (Fragment(EntryId(0), (a, d, c)),)
    assert not (await process.ledgers.verify(ledger)).ranges


async def test_copies_of_a_lost_entry_log_are_made_again(process: Process, four: BookieCluster) -> None:
    a, b, c, _ = await process.bookie_ids()
    ledger = await process.store((a, b, c))
    bookie = four.named(b)
    assert bookie.stop() == 0
    for log in bookie.directory.glob("ledgers/entries-*"):
        log.unlink()
    bookie.start()  # by this thread: it dies with the one that started it
    async with process.running():
        await process.until_clean(1)
    told = process.of(CopiesDiffer)[0]
    assert (told.ledger, told.wrong, told.entries) == (ledger, (b,), 1)
    assert "it cannot read its copy" in told.reason
    assert (await process.ledgers.metadata_of(ledger)).fragments == (Fragment(EntryId(0), (a, b, c)),)
    assert not (await process.ledgers.verify(ledger)).ranges


async def test_a_bookie_out_of_reach_is_told_and_marks_nothing(process: Process, four: BookieCluster) -> None:
    a, b, c, _ = await process.bookie_ids()
    ledger = await process.store((a, b, c))
    four.named(b).freeze()
    process.bookies.options = replace(process.bookies.options, request_timeout_s=0.3)
    try:
        found = await process.ledgers.compare(ledger)
        assert [bookie for bookie, _ in found.out_of_reach] == [b] and not found.lacking
        async with process.running():

            async def is_over() -> bool:
                return bool(process.of(ComparisonEnded))

            await until(is_over)
    finally:
        four.named(b).thaw()
    assert process.of(ComparisonEnded)[0] == ComparisonEnded(1, 0, 1, (b,), "")
    assert (await process.marks.summary()).ledgers == 0


async def test_who_is_not_the_auditor_compares_nothing(process: Process) -> None:
    a, b, c, _ = await process.bookie_ids()
    await process.store((a, b, c), lacks={1: a})
    process.is_auditor = False
    async with process.running():
        await asyncio.sleep(3 * QUICK.compare_s)
    assert not process.events


async def test_lists_of_bookies_without_summaries(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Java's bookies are compared."""
    a, b, c, _ = await process.bookie_ids()
    ledger = await process.store((a, b, c), STRIPED, lacks={1: b, 4: b, 5: c})
    with_summaries = await process.ledgers.compare(ledger)
    assert [(found.bookie, found.first, found.last) for found in with_summaries.missing] == [(b, 1, 4), (c, 5, 5)]
    known = process.metadata.known_members

    def others() -> Members:
        members = known()
        return replace(members, writable={n: replace(info, summaries=False) for n, info in members.writable.items()})

    monkeypatch.setattr(process.metadata, "known_members", others)
    by_lists: Compared = await process.ledgers.compare(ledger)
    assert by_lists == with_summaries


async def test_a_recovery_process_compares_and_repairs(process: Process, four: BookieCluster, tmp_path: Path) -> None:
    a, b, c, _ = await process.bookie_ids()
    ledger = await process.store((a, b, c), lacks={7: b})
    flags = ("--zookeeper", four.hosts, "--namespace", four.namespace, "--look-s", "0.1", "--compare-s", "0.2")
    recovery = ServerProcess("actors.recovery", tmp_path / "recovery", *flags)
    recovery.start()
    try:

        async def is_whole() -> bool:
            await asyncio.sleep(0.2)
            return not (await process.ledgers.verify(ledger)).ranges

        await until(is_whole)
    finally:
        assert recovery.stop() == 0
    assert (await process.ledgers.metadata_of(ledger)).fragments == (Fragment(EntryId(0), (a, b, c)),)


async def test_the_rate_is_limited(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, _ = await process.bookie_ids()
    await process.store((a, b, c))
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    for rate in (0, 1):
        pauses.clear()
        comparing = Comparing(
            replace(QUICK, compare_entries_s=rate), process.ledgers, process.marks, lambda: True, process.events.append
        )
        await comparing._compare_all()
        assert any(pause_s > 50 for pause_s in pauses) is bool(rate), "100 entries at 1 a second"
