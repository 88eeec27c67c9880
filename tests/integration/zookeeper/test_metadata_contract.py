"""The contract of the metadata port: one suite, on a real ZooKeeper and in memory.

`pair` is two processes' views of one cluster (in memory one view serves as both).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from dlog.errors import CookieError
from dlog.io.clock import unix_ms
from dlog.io.metadata import AbsentStream, BookieInfo, Metadata, ProxyInfo, SessionState
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Conflict, Missing, Versioned
from dlog.model.ids import BookieId, EntryId, Epoch, LedgerId, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata, Truncation
from tests.deleting import delete_stream, mark_deleted
from tests.memory_metadata import MemoryMetadata
from tests.stream_settings import SETTINGS

NAMESPACE = "/messaging/dlog"
KEY = StreamKey(StreamName("orders"))
LEDGER = LedgerMetadata(
    quorum=Quorum(ensemble=2, write=2, ack=1),
    fragments=(Fragment(EntryId(0), (BookieId("b1:1"), BookieId("b2:1"))),),
    password=b"secret",
)

Pair = tuple[Metadata, Metadata]


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def hosts(request: pytest.FixtureRequest) -> str:
    """The hosts string, empty for memory. Not async: a fixture of the session cannot be set up from inside a loop."""
    return str(request.getfixturevalue("zookeeper_hosts")) if request.param == "zookeeper" else ""


@pytest.fixture
async def pair(hosts: str) -> AsyncIterator[Pair]:
    if not hosts:
        memory = MemoryMetadata()
        yield memory, memory
        return
    await cluster_init(hosts, NAMESPACE)
    async with (
        await ZooKeeperMetadata.connect(hosts, NAMESPACE) as one,
        await ZooKeeperMetadata.connect(hosts, NAMESPACE) as two,
    ):
        yield one, two


async def seen(metadata: Metadata, key: StreamKey | LedgerKey) -> Versioned:
    outcome = await metadata.read(key)
    assert isinstance(outcome, Versioned)
    return outcome


async def change(metadata: Metadata, value: StreamMetadata, version: object) -> Versioned:
    outcome = await metadata.compare_and_set(StreamKey(value.name), value, version)
    assert isinstance(outcome, Versioned), outcome
    assert outcome.value == value
    return outcome


def started(number: int, place: str, first_txid: int = 1) -> Segment:
    return Segment(number=SegmentNumber(number), name=place, first_txid=Txid(first_txid))


def completed(segment: Segment, last_entry: int, last_txid: int) -> Segment:
    return replace(
        segment,
        completed=True,
        last_entry=EntryId(last_entry),
        last_slot=3,
        last_txid=Txid(last_txid),
        record_count=10,
        completed_unix_ms=1_700_000_000_000,
        start_sequence_id=0,
    )


OWNER = Owner(epoch=Epoch(1), proxy=ProxyId("w1"), address="127.0.0.1:8001", claim="c1")
FRESH = StreamMetadata(name=KEY.stream, settings=replace(SETTINGS, segment_bytes=1 << 20))


async def test_what_is_not_there_is_missing(pair: Pair) -> None:
    for key in (KEY, LedgerKey(LedgerId(7))):
        assert await pair[0].read(key) == Missing()
    await pair[0].delete(LedgerKey(LedgerId(7)))
    await pair[0].remove(KEY.stream, "nobody")
    assert await pair[0].compare_and_set(LedgerKey(LedgerId(7)), LEDGER, 3) == Missing()
    assert await pair[0].streams() == []
    assert [ledger async for ledger in pair[0].ledgers()] == []
    assert pair[0].state is SessionState.CONNECTED


async def test_a_ledger_is_created_once_and_changed_only_from_what_was_read(pair: Pair) -> None:
    one, two = pair
    key = LedgerKey(LedgerId(1))
    created = await one.compare_and_set(key, LEDGER, None)
    assert isinstance(created, Versioned)
    assert await two.compare_and_set(key, LEDGER, None) == Conflict()
    read = await seen(two, key)
    assert read.value == LEDGER
    closed = LEDGER.closed_at(EntryId(9), 100)
    changed = await two.compare_and_set(key, closed, read.version)
    assert isinstance(changed, Versioned)
    assert await one.compare_and_set(key, LEDGER.in_recovery(), created.version) == Conflict()
    assert (await seen(one, key)).value == closed
    await one.delete(key)
    await one.delete(key)
    assert await two.read(key) == Missing()
    assert await two.compare_and_set(key, closed, changed.version) == Missing()


async def test_ledger_ids_are_new_each_time_and_ledgers_are_listed_in_order(pair: Pair) -> None:
    one, two = pair
    ids = [await metadata.new_ledger_id() for metadata in (one, two, one, two)]
    assert len(set(ids)) == 4
    wanted = [LedgerId(n) for n in (0, 5, 10_000, 2**31 - 2, 2**31 - 1, 6_000_000_000)]
    for ledger in reversed(wanted):
        assert isinstance(await one.compare_and_set(LedgerKey(ledger), LEDGER, None), Versioned)
    assert [ledger async for ledger in two.ledgers()] == wanted


async def test_a_stream_lives_from_creation_to_deletion(pair: Pair) -> None:
    one, two = pair
    version = (await change(one, FRESH, None)).version
    assert await two.compare_and_set(KEY, FRESH, None) == Conflict()
    assert (await seen(two, KEY)).value == FRESH
    assert await two.streams() == [KEY.stream]
    steps: list[Callable[[StreamMetadata], StreamMetadata]] = [
        lambda value: replace(value, owner=OWNER),
        lambda value: replace(value, allocated="17"),
        lambda value: replace(value.with_segment(started(1, "17")), allocated=""),
        lambda value: replace(value, allocated="18"),
        lambda value: replace(value.with_segment(completed(value.segments[0], 40, 900)), max_txid=Txid(900)),
        lambda value: replace(value.with_segment(started(2, "18", 901)), allocated=""),
        lambda value: replace(value, settings=replace(value.settings, retention_s=5.0)),
        lambda value: value.with_segment(
            replace(value.segments[0], truncation=Truncation.PARTIAL, min_entry=EntryId(12), min_slot=1)
        ),
        lambda value: replace(value.with_segment(completed(value.segments[1], 3, 950)), max_txid=Txid(950)),
        lambda value: value.with_truncated_before(2),
        lambda value: value.with_marks(1),
        lambda value: value.without_truncated(1),
        lambda value: replace(value, owner=replace(OWNER, released=True)),
    ]
    value = FRESH
    for step in steps:
        written = await change(one, step(value), version)
        assert written.value == step(value)
        value, version = written.value, written.version
        assert (await seen(two, KEY)).value == value
        assert (await seen(one, KEY)).value == value
    await delete_stream(two, KEY.stream)
    assert await one.read(KEY) == Missing()
    assert await one.compare_and_set(KEY, value, version) == Missing()
    assert await one.streams() == []
    await change(one, FRESH, None)


async def test_metadata_says_by_its_own_clock_when_it_changed_and_since_when_a_segment_is_complete(pair: Pair) -> None:
    """Whatever the segment says of itself; a change of its location or its truncation is no completion."""
    one, two = pair
    begun_ms = unix_ms()
    created = await change(one, replace(FRESH, owner=OWNER), None)
    running = await change(one, created.value.with_segment(started(1, "17")), created.version)
    assert running.value.segments[0].metadata_unix_ms == 0
    ended = await change(one, running.value.with_segment(completed(started(1, "17"), 40, 900)), running.version)
    taken_in = await change(one, ended.value.with_segment(completed(started(2, "18"), 3, 950)), ended.version)
    for outcome in (created, running, ended, taken_in):
        assert begun_ms - 1000 <= outcome.value.changed_unix_ms <= unix_ms() + 1000
    stamps = [ended.value.changed_unix_ms, taken_in.value.changed_unix_ms]
    assert [s.metadata_unix_ms for s in taken_in.value.segments] == stamps
    moved = replace(taken_in.value.segments[0], store="cold", name="elsewhere", truncation=Truncation.PARTIAL)
    last = await change(one, taken_in.value.with_segment(moved), taken_in.version)
    for metadata in pair:
        value = (await seen(metadata, KEY)).value
        assert [s.metadata_unix_ms for s in value.segments] == stamps
        assert value.changed_unix_ms == last.value.changed_unix_ms
    await delete_stream(two, KEY.stream)


async def test_a_stream_made_again_takes_no_change_of_the_one_before(pair: Pair) -> None:
    """The znodes of the new stream equal those of the old one when its owner read them."""
    one, two = pair
    steps = [FRESH, replace(FRESH, owner=OWNER), replace(FRESH, owner=OWNER, allocated="17")]
    before: list[Versioned] = []
    for step in steps:
        before.append(await change(one, step, before[-1].version if before else None))
    await delete_stream(two, KEY.stream)
    after: list[Versioned] = []
    for step in steps:
        after.append(await change(two, step, after[-1].version if after else None))
        for old in before:
            claim = replace(old.value, owner=replace(OWNER, epoch=Epoch(2), claim="late"))
            assert await one.compare_and_set(KEY, claim, old.version) == Conflict()
    assert len({seen.value.incarnation for seen in before}) == len({seen.value.incarnation for seen in after}) == 1
    assert (await seen(one, KEY)).value.incarnation == after[-1].value.incarnation != before[-1].value.incarnation


async def test_a_stream_is_deleted_by_one_change_and_what_is_left_is_removed_under_its_life(pair: Pair) -> None:
    one, two = pair
    owned = await change(one, replace(FRESH, owner=OWNER).with_segment(started(1, "17")), None)
    incarnation = await mark_deleted(two, KEY.stream)
    assert incarnation == owned.value.incarnation
    for metadata in pair:
        gone = await metadata.read(KEY)
        assert isinstance(gone, Missing)
        assert gone.left is not None
        assert gone.left.value.segments == owned.value.segments
        assert gone.left.value.incarnation == incarnation
    late = owned.value.with_segment(started(2, "18"))
    assert await one.compare_and_set(KEY, late, owned.version) == Conflict()
    assert await one.compare_and_set(KEY, FRESH, None) == Conflict()  # remains must be removed first
    await one.remove(KEY.stream, "another")
    assert await two.read(KEY) == gone
    await one.remove(KEY.stream, incarnation)
    await two.remove(KEY.stream, incarnation)
    assert await one.read(KEY) == Missing()
    again = await change(one, FRESH, None)
    await two.remove(KEY.stream, incarnation)
    await two.remove(KEY.stream, again.value.incarnation)  # it is not marked
    assert (await seen(two, KEY)).value == FRESH


async def test_a_creation_names_the_life_it_makes(pair: Pair) -> None:
    one, two = pair
    made = await change(one, replace(FRESH, incarnation="a1"), AbsentStream(await two.deletions()))
    assert made.value.incarnation == (await seen(two, KEY)).value.incarnation == "a1"
    assert (
        await two.compare_and_set(KEY, replace(FRESH, incarnation="a1"), AbsentStream(await two.deletions()))
        == Conflict()
    )


async def test_a_creation_that_comes_late_makes_no_second_life(pair: Pair) -> None:
    one, two = pair
    before = await one.deletions()
    await change(one, replace(FRESH, incarnation="a1"), AbsentStream(before))
    await delete_stream(two, KEY.stream)
    assert await one.compare_and_set(KEY, replace(FRESH, incarnation="a1"), AbsentStream(before)) == Missing()
    assert await two.read(KEY) == Missing()
    after = await two.deletions()
    assert after == await one.deletions() == before + 1
    assert (await change(one, replace(FRESH, incarnation="b2"), AbsentStream(after))).value.incarnation == "b2"
    assert await two.compare_and_set(KEY, replace(FRESH, incarnation="a1"), AbsentStream(before)) in (
        Missing(),
        Conflict(),
    )


async def test_of_two_changes_from_one_read_only_one_takes_place(pair: Pair) -> None:
    one, two = pair
    await change(one, replace(FRESH, owner=OWNER).with_segment(completed(started(1, "17"), 40, 900)), None)
    base = await seen(one, KEY)
    other = await seen(two, KEY)
    changes = [
        replace(base.value, allocated="99"),
        replace(base.value, settings=replace(base.value.settings, retention_s=1.0)),
        replace(base.value, max_txid=Txid(5000)),
        base.value.with_segment(started(2, "18")),
        base.value.with_segment(started(2, "18")).with_truncated_before(2),
        base.value.without_segment(1),
        base.value,
        replace(base.value, owner=replace(OWNER, epoch=Epoch(2), claim="c2")),
    ]
    for first in changes:
        written = await change(one, first, base.version)
        for second in changes:
            assert await two.compare_and_set(KEY, second, other.version) == Conflict()
        base = await change(
            one, base.value if first.owner == OWNER else replace(base.value, owner=first.owner), written.version
        )
        other = await seen(two, KEY)
        assert other.value == base.value


async def test_a_newer_claim_shuts_out_the_older(pair: Pair) -> None:
    one, two = pair
    await change(one, replace(FRESH, owner=OWNER), None)
    mine = await seen(one, KEY)
    claim = replace(OWNER, epoch=Epoch(2), proxy=ProxyId("w2"), address="127.0.0.1:8002", claim="c2")
    await change(two, replace((await seen(two, KEY)).value, owner=claim), (await seen(two, KEY)).version)
    assert await one.compare_and_set(KEY, mine.value.with_segment(started(1, "5")), mine.version) == Conflict()
    assert (await seen(one, KEY)).value.owner == claim


async def test_a_watcher_is_called_after_every_change_until_it_withdraws(pair: Pair) -> None:
    one, two = pair
    ledger = LedgerKey(LedgerId(3))
    heard: asyncio.Queue[str] = asyncio.Queue()
    withdraw = one.watch(KEY, lambda: heard.put_nowait("stream"))
    one.watch(ledger, lambda: heard.put_nowait("ledger"))
    await one.read(KEY)

    async def until(wanted: str) -> None:
        """A watch fires at least once for a change, and may fire more often."""
        async with asyncio.timeout(90):
            while await heard.get() != wanted:
                pass

    version = (await change(two, FRESH, None)).version
    await until("stream")
    version = (await change(two, replace(FRESH, allocated="3"), version)).version
    await until("stream")
    created = await two.compare_and_set(ledger, LEDGER, None)
    assert isinstance(created, Versioned)
    await until("ledger")
    await one.read(ledger)
    assert isinstance(await two.compare_and_set(ledger, LEDGER.in_recovery(), created.version), Versioned)
    await until("ledger")
    withdraw()
    await one.read(KEY)
    while not heard.empty():
        heard.get_nowait()
    await change(two, FRESH, version)
    await two.delete(ledger)
    await until("ledger")
    await one.read(KEY)
    while not heard.empty():
        assert heard.get_nowait() == "ledger"


async def test_members_come_and_go_and_are_told(pair: Pair) -> None:
    one, two = pair
    bookie = BookieInfo(BookieId("b1"), "127.0.0.1", 3181)
    writer = ProxyInfo(ProxyId("w1"), "write", "127.0.0.1:8001")
    reader = ProxyInfo(ProxyId("r1"), "read", "127.0.0.1:9001")
    told = asyncio.Event()
    two.on_members(told.set)

    async def known_when(condition: str) -> None:
        async with asyncio.timeout(90):
            while not eval(condition, {"m": two.known_members()}):
                told.clear()
                await told.wait()

    await one.register_bookie(bookie)
    await one.register_proxy(writer)
    await one.register_proxy(reader)
    await known_when("m.writable and m.write_proxies and m.read_proxies")
    members = await two.members()
    assert members.writable == {bookie.bookie: bookie}
    assert members.readonly == {}
    assert members.write_proxies == {writer.proxy: writer}
    assert members.read_proxies == {reader.proxy: reader}
    await one.register_bookie(bookie, readonly=True)
    await known_when("m.readonly and not m.writable")
    assert (await two.members()).readonly == {bookie.bookie: bookie}
    await one.register_bookie(bookie)
    await known_when("m.writable and not m.readonly")
    await one.unregister_bookie(bookie.bookie)
    await one.unregister_bookie(bookie.bookie)
    await one.unregister_proxy(writer.proxy)
    await known_when("not m.writable and not m.write_proxies")
    assert (await two.members()).read_proxies == {reader.proxy: reader}


async def test_a_cookie_is_written_once_and_changed_from_what_was_read(pair: Pair) -> None:
    one, two = pair
    bookie = BookieId("b1:3181")
    assert await one.read_cookie(bookie) == Missing()
    await one.write_cookie(bookie, "5\nold", None)
    with pytest.raises(CookieError):
        await two.write_cookie(bookie, "5\nother", None)
    found = await two.read_cookie(bookie)
    assert isinstance(found, Versioned)
    assert found.value == "5\nold"
    await two.write_cookie(bookie, "5\nnew", found.version)
    with pytest.raises(CookieError):
        await one.write_cookie(bookie, "5\nlate", found.version)


async def test_the_cluster_has_one_identity(pair: Pair) -> None:
    assert await pair[0].instance_id() == await pair[1].instance_id() != ""
