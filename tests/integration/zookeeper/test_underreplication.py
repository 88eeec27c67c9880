"""The under-replication tree and the auditor's election in a real ZooKeeper, read byte by byte by another client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.io.zookeeper import ZooKeeper
from dlog.io.zookeeper_election import AuditorElection
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_underreplication import MarkedLedger, ZooKeeperUnderreplication
from dlog.model.ids import BookieId, LedgerId
from dlog.wire.underreplication import Mark

pytestmark = pytest.mark.zookeeper

PATHS = LedgerPaths()
ROOT = "/ledgers/underreplication"
A, B = BookieId("127.0.0.1:3181"), BookieId("127.0.0.1:3182")
ONE, FAR = LedgerId(1), LedgerId(39_7167_2560)
UNREADABLE = [make_acl("world", "anyone", write=True, create=True, delete=True, admin=True)]
MARK = f"{ROOT}/ledgers/0000/0000/0000/0001/urL0000000001"


@pytest.fixture
def kazoo(zookeeper_hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=zookeeper_hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
async def sessions(zookeeper_hosts: str) -> AsyncIterator[list[ZooKeeper]]:
    """Two sessions, as of two processes."""
    async with await ZooKeeper.connect(zookeeper_hosts) as one, await ZooKeeper.connect(zookeeper_hosts) as two:
        yield [one, two]


@pytest.fixture
async def trees(sessions: list[ZooKeeper]) -> list[ZooKeeperUnderreplication]:
    found = [ZooKeeperUnderreplication(zk, PATHS, f"w{n}:1") for n, zk in enumerate(sessions, 1)]
    for tree in found:
        await tree.prepare()
    return found


async def test_the_znodes_are_those_of_java(trees: list[ZooKeeperUnderreplication], kazoo: KazooClient) -> None:
    tree = trees[0]
    assert kazoo.get(f"{ROOT}/LAYOUT")[0] == b'type: "BASIC"\nversion: 1\n'
    assert await tree.mark(ONE, {B}, 5)
    assert kazoo.get(MARK)[0] == b'replica: "127.0.0.1:3182"\nctime: 5\n'
    assert await tree.lock(ONE) is not None
    data, stat = kazoo.get(f"{ROOT}/locks/urL0000000001")
    assert (data, stat.ephemeralOwner != 0) == (b'bookieId: "w1:1"\n', True)
    assert await tree.lost_bookie_delay_s() == 0
    kazoo.create(f"{ROOT}/lostBookieRecoveryDelay", b"300")
    assert await tree.lost_bookie_delay_s() == 300
    assert not await tree.is_disabled()
    kazoo.create(f"{ROOT}/disable")
    assert await tree.is_disabled()
    await tree.enable()
    await tree.enable()
    assert not kazoo.exists(f"{ROOT}/disable")
    await tree.disable()
    await tree.disable()
    assert kazoo.exists(f"{ROOT}/disable")


async def test_a_tree_of_another_layout_is_refused(sessions: list[ZooKeeper], kazoo: KazooClient) -> None:
    kazoo.create(f"{ROOT}/LAYOUT", b'type: "OTHER"\nversion: 1\n', makepath=True)
    with pytest.raises(UnsupportedVersionError):
        await ZooKeeperUnderreplication(sessions[0], PATHS, "w").prepare()


async def test_marks_merge(trees: list[ZooKeeperUnderreplication], kazoo: KazooClient) -> None:
    assert await trees[0].mark(ONE, {B}, 5)
    assert not await trees[1].mark(ONE, {B}, 6), "nothing new"
    assert kazoo.get(MARK)[1].version == 0, "and nothing written, as no worker is repairing it"
    assert await trees[1].mark(ONE, {A, B}, 7)
    assert [marked.mark for marked in await trees[0].read([ONE, FAR])] == [Mark((B, A), 7)]


async def test_a_completed_mark_leaves_no_directory(trees: list[ZooKeeperUnderreplication], kazoo: KazooClient) -> None:
    tree = trees[0]
    for ledger in (ONE, FAR):
        await tree.mark(ledger, {A}, 5)
    assert [ledger async for ledger in tree.marked()] == [ONE, FAR]
    for ledger, left in ((ONE, [FAR]), (FAR, [])):
        locked = await tree.lock(ledger)
        assert locked is not None
        assert await tree.complete(locked)
        await tree.release(ledger)
        assert [ledger async for ledger in tree.marked()] == left
    assert kazoo.get_children(f"{ROOT}/ledgers") == kazoo.get_children(f"{ROOT}/locks") == []


async def test_a_ledger_marked_anew_during_its_repair_stays_marked(trees: list[ZooKeeperUnderreplication]) -> None:
    await trees[0].mark(ONE, {A}, 5)
    locked = await trees[0].lock(ONE)
    assert locked is not None
    await trees[1].mark(ONE, {B}, 6)
    assert not await trees[0].complete(locked)
    assert [marked.mark for marked in await trees[0].read([ONE])] == [Mark((A, B), 6)]


async def test_a_bookie_that_is_marked_again_during_its_repair_stays_marked(
    trees: list[ZooKeeperUnderreplication],
) -> None:
    await trees[0].mark(ONE, {A}, 5)
    locked = await trees[0].lock(ONE)
    assert locked is not None
    assert not await trees[1].mark(ONE, {A}, 6), "nothing new"
    assert not await trees[0].complete(locked), "the worker may have found the copies before they were lost again"
    await trees[0].release(ONE)
    locked = await trees[0].lock(ONE)
    assert locked is not None and locked.mark == Mark((A,), 5)
    assert await trees[0].complete(locked)


async def test_one_worker_at_a_time_has_a_ledger(
    trees: list[ZooKeeperUnderreplication], sessions: list[ZooKeeper], kazoo: KazooClient
) -> None:
    await trees[0].mark(ONE, {A}, 5)
    assert await trees[0].lock(LedgerId(2)) is None, "not marked"
    assert kazoo.get_children(f"{ROOT}/locks") == []
    locked = await trees[0].lock(ONE)
    assert locked is not None
    assert await trees[0].lock(ONE) is None, "also within a process"
    assert await trees[1].lock(ONE) is None
    assert await trees[1].locked() == {ONE}
    await trees[0].release(ONE)
    assert await trees[1].lock(ONE) is not None
    await trees[0].release(ONE)
    assert await trees[0].locked() == {ONE}, "the other's lock stays"
    await sessions[1].close()
    assert await trees[0].lock(ONE) is not None, "a worker that ended holds nothing"


async def test_a_lock_whose_reply_was_lost_is_taken_over(
    trees: list[ZooKeeperUnderreplication], sessions: list[ZooKeeper]
) -> None:
    await trees[0].mark(ONE, {A}, 5)
    await sessions[0].create(PATHS.underreplication.lock(ONE), b"", ephemeral=True)
    assert await trees[0].locked() == frozenset(), "for this process it is free"
    assert await trees[1].locked() == {ONE}
    assert await trees[0].lock(ONE) is not None
    assert await trees[0].locked() == {ONE}


async def test_a_mark_that_cannot_be_decoded_hides_no_other(
    trees: list[ZooKeeperUnderreplication], kazoo: KazooClient
) -> None:
    tree = trees[0]
    kazoo.create(MARK, b"\xff", makepath=True)
    await tree.mark(FAR, {A, B}, 5)
    found = [marked async for page in tree.pages() for marked in page]
    assert [(marked.ledger, marked.mark) for marked in found] == [(ONE, None), (FAR, Mark((A, B), 5))]
    says = "the ledger's mark in ZooKeeper cannot be read or decoded, delete this znode (docs/operations.md): "
    with pytest.raises(DamagedError) as raised:
        await tree.mark(ONE, {A}, 6)
    assert raised.value.message.startswith(f"{says}ledger={ONE} path={MARK}: ")
    summary = await tree.summary()
    assert (summary.ledgers, summary.oldest_ctime_ms, summary.bookies) == (2, 5, {A: 1, B: 1})
    assert summary.damaged == (ONE,)


async def test_a_mark_that_may_not_be_read_hides_no_other_and_is_not_deleted(
    trees: list[ZooKeeperUnderreplication], kazoo: KazooClient
) -> None:
    tree = trees[0]
    await tree.mark(ONE, {A}, 4)
    await tree.mark(FAR, {A, B}, 5)
    kazoo.set_acls(MARK, UNREADABLE)
    found = [marked async for page in tree.pages() for marked in page]
    assert [(marked.ledger, marked.mark) for marked in found] == [(ONE, None), (FAR, Mark((A, B), 5))]
    assert (await tree.summary()).ledgers == 2
    locked = await tree.lock(ONE)
    assert locked == found[0] and not await tree.complete(locked)
    kazoo.set_acls(MARK, OPEN_ACL_UNSAFE)
    assert await tree.read([ONE]) == [MarkedLedger(ONE, Mark((A,), 4), 0)]


async def test_marks_are_listed_from_any_id_on(trees: list[ZooKeeperUnderreplication]) -> None:
    ledgers = [LedgerId(number) for number in (0, 0xFFFF, 0x10000, 0x1_0000_FFFF, 0x1_0001_0000, 1 << 48, 2**63 - 1)]
    for ledger in ledgers:
        await trees[0].mark(ledger, {A}, 5)
    for above in [*ledgers, LedgerId(5), LedgerId(0x1_FFFF_FFFF)]:
        assert [found async for found in trees[0].marked(above)] == [found for found in ledgers if found > above]


async def test_every_registration_counts_even_one_without_an_address(
    trees: list[ZooKeeperUnderreplication], kazoo: KazooClient
) -> None:
    kazoo.create("/ledgers/available/readonly/b:2", b"garbage", makepath=True)
    kazoo.create("/ledgers/available/a:1", b"")
    assert await trees[0].registered() == {"a:1", "b:2"}


async def test_the_lowest_vote_wins_and_the_next_follows(sessions: list[ZooKeeper], kazoo: KazooClient) -> None:
    elections = [AuditorElection(zk, PATHS.underreplication, f"w{n}:1") for n, zk in enumerate(sessions, 1)]
    for _ in range(2):
        assert await elections[0].is_elected()
        assert not await elections[1].is_elected()
    assert kazoo.get(f"{ROOT}/auditorelection")[0] == b'bookieId: "w1:1"\n'
    votes = sorted(kazoo.get_children(f"{ROOT}/auditorelection"))
    assert votes == ["V_0000000000", "V_0000000001"], "one for each session"
    assert kazoo.get(f"{ROOT}/auditorelection/{votes[1]}")[0] == b'bookieId: "w2:1"\n'
    await sessions[0].close()
    assert await elections[1].is_elected()
    assert kazoo.get(f"{ROOT}/auditorelection")[0] == b'bookieId: "w2:1"\n'


async def test_a_java_auditor_with_a_lower_vote_stays_the_auditor(
    sessions: list[ZooKeeper], kazoo: KazooClient
) -> None:
    kazoo.create(f"{ROOT}/auditorelection/V_", b'bookieId: "j:3181"\n', ephemeral=True, sequence=True, makepath=True)
    election = AuditorElection(sessions[0], PATHS.underreplication, "w1:1")
    assert not await election.is_elected()
    kazoo.delete(f"{ROOT}/auditorelection/V_0000000000")
    assert await election.is_elected()


@pytest.mark.parametrize("listings", [1, 2])
@pytest.mark.parametrize("turns", [("", "readonly/"), ("readonly/", "")])
async def test_a_bookie_that_turns_read_only_or_writable_during_the_listing_is_registered(
    trees: list[ZooKeeperUnderreplication],
    sessions: list[ZooKeeper],
    kazoo: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
    listings: int,
    turns: tuple[str, str],
) -> None:
    old, new = (f"/ledgers/available/{part}a:1" for part in turns)
    kazoo.create(old, b"", makepath=True)
    kazoo.ensure_path("/ledgers/available/readonly")
    original, count = sessions[0].children, 0

    async def children(path: str, **options: bool) -> tuple[list[str], object]:
        nonlocal count
        found = await original(path, **options)
        count += 1
        if count == listings:
            kazoo.create(new, b"")
            kazoo.delete(old)
        return found

    monkeypatch.setattr(sessions[0], "children", children)
    assert await trees[0].registered() == {"a:1"}
