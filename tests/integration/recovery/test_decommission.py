"""A stopped bookie is taken out of a cluster on a real ZooKeeper; its ledgers are repaired by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from dlog.errors import CookieError, MetadataUnavailableError
from dlog.io import decommission as decommission_module
from dlog.io.decommission import Decommissioned, Draining, StillRegisteredError, WaitingLedgers, decommission
from dlog.io.metadata import BookieInfo, Members
from dlog.io.zookeeper import ANY_VERSION
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_underreplication import ZooKeeperUnderreplication
from dlog.machine import Missing, Versioned
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.wire.bookie_info import encode_address
from tests.integration.recovery.polling import until

pytestmark = pytest.mark.zookeeper

NAMESPACE = "/dlog"
PATHS = LedgerPaths()
A, B, C, D, LOST = (BookieId(f"127.0.0.1:{port}") for port in range(3181, 3186))
ON_A = LedgerMetadata(
    quorum=Quorum(ensemble=3, write=3, ack=2), fragments=(Fragment(EntryId(0), (A, B, C)),)
).closed_at(EntryId(9), 90)
INFO = BookieInfo(A, "127.0.0.1", 3181)
OPEN_ON_A = LedgerMetadata(quorum=Quorum(ensemble=3, write=3, ack=2), fragments=(Fragment(EntryId(0), (A, B, C)),))
ONE, TWO = LedgerId(1), LedgerId(2)
QUICK_S = 0.02

COPYING = "a worker has locked them and makes their copies"
DISABLED = "repair is switched off for the cluster"
FAILED = "no worker has locked them: those that failed are tried again within minutes"
NO_RECOVERY = "no recovery process runs, start one: dlog recovery run"
TOO_FEW = (
    "no bookie can take their copies, start more where their placement policy allows them, or free disks: writable="
)
TURN = "they wait for a worker"


@pytest.fixture
async def metadata(zookeeper_hosts: str) -> AsyncIterator[ZooKeeperMetadata]:
    """A cluster in which B, C and D are registered, and A holds two ledgers."""
    await cluster_init(zookeeper_hosts, NAMESPACE)
    async with await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as made:
        for bookie in (B, C, D):
            await register(made, bookie)
        await made.write_cookie(A, "5\n", None)
        for number in (1, 2):
            await made.compare_and_set(LedgerKey(LedgerId(number)), ON_A, None)
        yield made


async def register(metadata: ZooKeeperMetadata, bookie: BookieId) -> None:
    await metadata.zookeeper.create(f"{PATHS.available}/{bookie}", encode_address("127.0.0.1", 1))


@pytest.fixture
async def worker(metadata: ZooKeeperMetadata, zookeeper_hosts: str) -> AsyncIterator[ZooKeeperUnderreplication]:
    """The marks and locks, as of another process."""
    async with await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as other:
        yield other.underreplication("w:2")


class News:
    """The reports of a decommission, in the order in which it made them."""

    def __init__(self) -> None:
        self.all: list[Draining] = []
        self._waiting: asyncio.Queue[Draining] = asyncio.Queue()

    def note(self, now: Draining) -> None:
        self.all.append(now)
        self._waiting.put_nowait(now)

    async def next(self) -> Draining:
        return await self._waiting.get()

    async def until(self, reason: str) -> WaitingLedgers:
        """The first report from here on in which ledgers wait for what begins so; returns what it says of them."""
        async with asyncio.timeout(60):
            while True:
                for group in (await self.next()).waiting:
                    if group.reason.startswith(reason):
                        return group


async def repair(metadata: ZooKeeperMetadata, ledger: LedgerId) -> None:
    """As a worker: D takes the place of A."""
    marks = metadata.underreplication("w:1")
    locked = await marks.lock(ledger)
    assert locked is not None and locked.mark is not None and locked.mark.bookies == (A,)
    found = await metadata.read(LedgerKey(ledger))
    assert isinstance(found, Versioned)
    value = replace(found.value, fragments=(Fragment(EntryId(0), (D, B, C)),))
    assert isinstance(await metadata.compare_and_set(LedgerKey(ledger), value, found.version), Versioned)
    assert await marks.complete(locked)
    await marks.release(ledger)


async def test_a_bookie_is_drained_then_forgotten_and_each_wait_has_a_reason(
    metadata: ZooKeeperMetadata, worker: ZooKeeperUnderreplication
) -> None:
    marks = metadata.underreplication("test")
    await marks.disable()
    await marks.pauses.begin(A, 600)
    news = News()
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(decommission(metadata, A, news.note, look_s=QUICK_S))
        assert await news.next() == Draining(2, 2, (WaitingLedgers(DISABLED, 2, (ONE, TWO)),))
        assert not await marks.pauses.current(), "workers would wait for its end"
        await marks.enable()
        assert await news.until(NO_RECOVERY) == WaitingLedgers(NO_RECOVERY, 2, (ONE, TWO))
        assert await metadata.auditor_election("w:1").is_elected()
        assert await worker.lock(ONE) is not None
        assert await news.until(COPYING) == WaitingLedgers(COPYING, 1, (ONE,), is_moving=True)
        assert [group.reason for group in news.all[-1].waiting] == [COPYING, TURN]
        await worker.release(ONE)
        failed = await news.until(FAILED)
        assert (failed.ledgers, failed.is_moving) == (2, False)
        await metadata.zookeeper.delete(f"{PATHS.available}/{D}", ANY_VERSION)
        assert (await news.until(TOO_FEW)).reason == TOO_FEW + "2"
        await register(metadata, D)
        await news.until(FAILED)
        assert not isinstance(await metadata.read_cookie(A), Missing)
        await repair(metadata, ONE)
        assert await news.until(FAILED) == replace(failed, ledgers=1, first=(TWO,))
        assert (news.all[-1].ledgers, news.all[-1].total) == (1, 2)
        await repair(metadata, TWO)
    assert draining.result() == Decommissioned(2)
    assert isinstance(await metadata.read_cookie(A), Missing)
    again = await decommission(metadata, A, news.note)
    assert again == Decommissioned(0, was_known=False), "again: harmless"


async def test_ledgers_that_wait_for_different_things_are_named_apart(
    metadata: ZooKeeperMetadata, worker: ZooKeeperUnderreplication
) -> None:
    async def create(number: int, value: LedgerMetadata) -> LedgerId:
        await metadata.compare_and_set(LedgerKey(LedgerId(number)), value, None)
        return LedgerId(number)

    two = Quorum(ensemble=2, write=2, ack=1)
    on_lost = replace(ON_A, quorum=two, fragments=(Fragment(EntryId(0), (A, LOST)),))
    only_copy = await create(3, on_lost)
    empty = await create(4, replace(on_lost, last_entry=EntryId(-1), length=0))
    being_written = await create(5, OPEN_ON_A)
    six = Quorum(ensemble=4, write=2, ack=1)
    large = await create(6, replace(ON_A, quorum=six, fragments=(Fragment(EntryId(0), (A, B, C, D)),)))
    bad = await create(7, ON_A)
    await metadata.zookeeper.create(PATHS.underreplication.mark(bad), b"what is this", parents=True)
    unreadable = LedgerId(8)
    await metadata.zookeeper.create(PATHS.ledger(unreadable), b"what is this", parents=True)
    assert await metadata.auditor_election("w:1").is_elected()
    await worker.mark(ONE, {A}, 5)
    assert await worker.lock(ONE) is not None
    news = News()
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(decommission(metadata, A, news.note, look_s=QUICK_S))
        now = await news.next()
        draining.cancel()
    waiting = {group.reason.partition(",")[0].partition(":")[0]: group.first for group in now.waiting}
    assert waiting == {
        "a worker has locked them and makes their copies": (ONE,),
        "they wait for a worker": (TWO, empty),
        "no bookie with copies of some of their entries is registered": (only_copy,),
        "they are open": (being_written,),
        "no bookie can take their copies": (large,),
        "their marks in ZooKeeper cannot be read or decoded": (bad,),
        "their metadata cannot be read (dlog ledger ls names them)": (unreadable,),
    }
    assert (now.ledgers, now.total) == (8, 8)


async def test_ledgers_that_cannot_be_marked_say_why(
    metadata: ZooKeeperMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(marks: object, ledger: LedgerId, *_: object) -> bool:
        raise MetadataUnavailableError(f"no permission: ledger={ledger}")

    monkeypatch.setattr(ZooKeeperUnderreplication, "mark", refused)
    news = News()
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(decommission(metadata, A, news.note, look_s=QUICK_S))
        (group,) = (await news.next()).waiting
        draining.cancel()
    reason = "they could not be marked for repair; the first one: no permission: ledger=1"
    assert group == WaitingLedgers(reason, 2, (ONE, TWO))


async def test_a_bookie_that_has_a_cookie_or_a_ledger_was_known(metadata: ZooKeeperMetadata) -> None:
    await metadata.write_cookie(LOST, "6\n", None)
    assert await decommission(metadata, LOST, lambda _: None) == Decommissioned(0)
    await metadata.forget_bookie(A, await metadata.read_cookie(A))  # as an operator in ZooKeeper
    news = News()
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(decommission(metadata, A, news.note, look_s=QUICK_S))
        assert (await news.next()).ledgers == 2
        for ledger in (LedgerId(1), LedgerId(2)):
            await repair(metadata, ledger)
    assert draining.result() == Decommissioned(2)


async def test_a_ledger_that_still_names_it_without_a_mark_keeps_it(metadata: ZooKeeperMetadata) -> None:
    marks = metadata.underreplication("w:1")
    news = News()
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(decommission(metadata, A, news.note, look_s=QUICK_S))
        assert (await news.next()).ledgers == 2
        await repair(metadata, LedgerId(1))
        locked = await marks.lock(LedgerId(2))
        assert locked is not None
        await marks.complete(locked)  # without a repair
        await marks.release(LedgerId(2))

        async def is_marked() -> bool:
            return [ledger async for ledger in marks.marked()] == [2]

        await until(is_marked)
        assert not isinstance(await metadata.read_cookie(A), Missing)
        await repair(metadata, LedgerId(2))
    assert draining.done()


async def test_a_bookie_that_runs_is_not_taken_out(metadata: ZooKeeperMetadata) -> None:
    await register(metadata, A)
    with pytest.raises(StillRegisteredError, match="stop it first"):
        await decommission(metadata, A, lambda _: None)
    assert not isinstance(await metadata.read_cookie(A), Missing)
    assert [ledger async for ledger in metadata.underreplication("test").marked()] == []


async def test_a_bookie_that_comes_back_before_it_is_forgotten_keeps_its_cookie(
    metadata: ZooKeeperMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    await metadata.write_cookie(LOST, "6\n", None)
    await metadata.write_gc_mark(LOST, "mark", None)

    async def ledgers() -> AsyncIterator[LedgerId]:
        await register(metadata, LOST)
        for ledger in map(LedgerId, ()):
            yield ledger

    monkeypatch.setattr(metadata, "ledgers", ledgers)
    with pytest.raises(StillRegisteredError):
        await decommission(metadata, LOST, lambda _: None)
    kept = await metadata.read_cookie(LOST), await metadata.read_gc_mark(LOST)
    assert [outcome.value for outcome in kept if isinstance(outcome, Versioned)] == ["6\n", "mark"]


async def test_a_bookie_that_was_back_during_the_scan_is_not_forgotten_before_the_next_one(
    metadata: ZooKeeperMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledgers that were read already may name it by then."""
    await metadata.write_cookie(LOST, "6\n", None)
    scans, ledgers = 0, metadata.ledgers

    async def known() -> Versioned:
        found = await metadata.read_cookie(LOST)
        assert isinstance(found, Versioned)
        return found

    async def counted() -> AsyncIterator[LedgerId]:
        nonlocal scans
        scans += 1
        if scans == 1:
            await metadata.register_bookie(replace(INFO, bookie=LOST), known=known)
            await metadata.unregister_bookie(LOST)
        async for ledger in ledgers():
            yield ledger

    monkeypatch.setattr(metadata, "ledgers", counted)
    await decommission(metadata, LOST, lambda _: None)
    assert scans == 2


@pytest.mark.parametrize("readonly", [False, True])
async def test_a_cookie_is_not_deleted_while_its_bookie_is_registered(
    metadata: ZooKeeperMetadata, readonly: bool
) -> None:
    async def known() -> Versioned:
        found = await metadata.read_cookie(A)
        assert isinstance(found, Versioned)
        return found

    before = await known()
    await metadata.register_bookie(INFO, readonly=readonly, known=known)
    assert not await metadata.forget_bookie(A, await known())
    assert isinstance(await metadata.read_cookie(A), Versioned)
    await metadata.unregister_bookie(A)
    assert not await metadata.forget_bookie(A, before), "it was registered since"
    assert await metadata.forget_bookie(A, await known())
    assert isinstance(await metadata.read_cookie(A), Missing)


async def test_a_bookie_whose_cookie_is_deleted_just_before_it_registers_is_not_registered(
    metadata: ZooKeeperMetadata,
) -> None:
    looks = 0

    async def known() -> Versioned:
        nonlocal looks
        looks += 1
        found = await metadata.read_cookie(A)
        if isinstance(found, Missing):
            raise CookieError("it was taken out of the cluster")
        assert await metadata.forget_bookie(A, found)
        return found

    with pytest.raises(CookieError, match="taken out"):
        await metadata.register_bookie(INFO, known=known)
    assert looks == 2
    assert A not in (await metadata.members()).writable


async def test_a_ledger_that_cannot_be_read_is_reported_once_and_not_read_at_every_look(
    metadata: ZooKeeperMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        await metadata.delete(LedgerKey(LedgerId(number)))
    path = PATHS.ledger(LedgerId(3))
    await metadata.zookeeper.create(path, b"what is this", parents=True)
    monkeypatch.setattr(decommission_module, "_SCAN_LOOKS", 5)
    scans, looks, ledgers, registered = 0, 0, metadata.ledgers, ZooKeeperUnderreplication.registered

    async def counted() -> AsyncIterator[LedgerId]:
        nonlocal scans
        scans += 1
        if scans == 3:
            await metadata.zookeeper.delete(path, ANY_VERSION)
        async for ledger in ledgers():
            yield ledger

    async def looked(marks: ZooKeeperUnderreplication) -> frozenset[BookieId]:
        nonlocal looks
        looks += 1
        return await registered(marks)

    monkeypatch.setattr(metadata, "ledgers", counted)
    monkeypatch.setattr(ZooKeeperUnderreplication, "registered", looked)
    news: list[Draining] = []
    assert await decommission(metadata, A, news.append, look_s=QUICK_S) == Decommissioned(0)
    reason = "their metadata cannot be read (dlog ledger ls names them)"
    assert news == [Draining(1, 1, (WaitingLedgers(reason, 1, (LedgerId(3),)),))]
    assert (scans, looks) == (3, 3 + 2 * 5), "before each scan, and in the waits after two of them"


async def test_with_more_ledgers_than_are_looked_at_the_others_count_as_left(
    metadata: ZooKeeperMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decommission_module, "_LOOKED_AT_MAX", 1)
    scans, looks, ledgers, members = 0, asyncio.Semaphore(0), metadata.ledgers, metadata.members

    def counted() -> AsyncIterator[LedgerId]:
        nonlocal scans
        scans += 1
        return ledgers()

    async def looked() -> Members:
        looks.release()
        return await members()

    monkeypatch.setattr(metadata, "ledgers", counted)
    monkeypatch.setattr(metadata, "members", looked)
    assert await metadata.auditor_election("w:1").is_elected()
    news: list[Draining] = []
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(decommission(metadata, A, news.append, look_s=QUICK_S))
        await looks.acquire()
        await repair(metadata, TWO)
        for _ in range(2):
            await looks.acquire()
        assert {now.ledgers for now in news} == {2}
        await repair(metadata, ONE)
    assert draining.result() == Decommissioned(2)
    assert scans == 2
