"""Metadata when replies are lost, sessions expire and servers die: such writes are reported as unknown, claims and
registrations are kept, and values that were read stay right."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dlog.errors import CookieError
from dlog.io.metadata import BookieInfo, ProxyInfo, SessionState
from dlog.io.zookeeper import ANY_VERSION, ZooKeeper
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Conflict, OutcomeUnknown, Versioned
from dlog.model.ids import BookieId, EntryId, Epoch, LedgerId, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata, Truncation
from tests.integration.zookeeper.test_session_faults import end_session, states_of, until
from tests.integration.zookeeper.toxic import Toxic
from tests.stream_settings import SETTINGS

pytestmark = pytest.mark.zookeeper

NAMESPACE = "/dlog"
KEY = StreamKey(StreamName("orders"))
R = f"{NAMESPACE}/orders/<default>"
OWNER = Owner(epoch=Epoch(1), proxy=ProxyId("w1"), address="127.0.0.1:8001", claim="c1")
LEDGER = LedgerMetadata(
    quorum=Quorum(), fragments=(Fragment(EntryId(0), (BookieId("a"), BookieId("b"), BookieId("c"))),)
)
BOOKIE = BookieInfo(BookieId("b1"), "127.0.0.1", 3181)
PROXY = ProxyInfo(ProxyId("w1"), "write", "127.0.0.1:8001")


async def unheard(toxic: Toxic, metadata: ZooKeeperMetadata, key: object, value: object, version: object) -> None:
    """Change `key`; the request arrives and its reply does not."""
    toxic.silenced.clear()
    toxic.silence_replies = toxic.silence_after is None
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(metadata.compare_and_set(key, value, version), name="unheard")
        await toxic.silenced.wait()
        toxic.cut()
    assert isinstance(task.result(), OutcomeUnknown)
    toxic.silence_replies = False


async def seen(metadata: ZooKeeperMetadata, key: StreamKey | LedgerKey) -> Versioned:
    outcome = await metadata.read(key)
    assert isinstance(outcome, Versioned), outcome
    return outcome


async def test_an_unheard_change_is_unknown_and_found_by_reading_again(zookeeper_hosts: str) -> None:
    async with Toxic(zookeeper_hosts) as toxic, await ZooKeeperMetadata.connect(toxic.hosts, NAMESPACE) as metadata:
        key = LedgerKey(LedgerId(1))
        created = await metadata.compare_and_set(key, LEDGER, None)
        assert isinstance(created, Versioned)
        closed = LEDGER.closed_at(EntryId(1), 10)
        await unheard(toxic, metadata, key, closed, created.version)
        assert (await seen(metadata, key)).value == closed
        assert await metadata.compare_and_set(key, closed, created.version) == Conflict()

        stream = await metadata.compare_and_set(KEY, StreamMetadata(name=KEY.stream, settings=SETTINGS), None)
        assert isinstance(stream, Versioned)
        await metadata.read(KEY)
        claimed = replace(stream.value, allocated="4")
        await unheard(toxic, metadata, KEY, claimed, stream.version)
        assert (await seen(metadata, KEY)).value == claimed


async def test_an_unheard_claim_is_known_by_its_nonce_and_released_like_any(zookeeper_hosts: str) -> None:
    async with (
        Toxic(zookeeper_hosts) as toxic,
        await ZooKeeper.connect(zookeeper_hosts) as other,
        await ZooKeeperMetadata.connect(toxic.hosts, NAMESPACE) as metadata,
    ):
        stream = await metadata.compare_and_set(KEY, StreamMetadata(name=KEY.stream, settings=SETTINGS), None)
        assert isinstance(stream, Versioned)
        toxic.silence_after = b"member_"  # the lock members are listed; the multi gets no answer
        await unheard(toxic, metadata, KEY, replace(stream.value, owner=OWNER), stream.version)
        assert len((await other.children(f"{R}/lock"))[0]) == 1
        found = await seen(metadata, KEY)
        assert found.value.owner.claim == "c1"
        released = replace(found.value, owner=replace(OWNER, released=True))
        assert isinstance(await metadata.compare_and_set(KEY, released, found.version), Versioned)
        assert (await other.children(f"{R}/lock"))[0] == []


async def test_what_we_hold_and_are_registered_as_outlives_the_session(zookeeper_hosts: str) -> None:
    await cluster_init(zookeeper_hosts, NAMESPACE)
    async with (
        await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as other,
        await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as metadata,
    ):
        await metadata.register_bookie(BOOKIE)
        await metadata.register_proxy(PROXY)
        value = StreamMetadata(name=KEY.stream, settings=SETTINGS, owner=OWNER)
        assert isinstance(await metadata.compare_and_set(KEY, value, None), Versioned)
        (before,) = (await other.zookeeper.children(f"{R}/lock"))[0]
        changed = asyncio.Event()
        other.zookeeper.watch_children(f"{R}/lock", changed.set)
        other.on_members(changed.set)
        old = metadata.zookeeper.session_id
        states = states_of(metadata.zookeeper)
        await end_session(zookeeper_hosts, metadata.zookeeper)
        assert SessionState.LOST in await until(states, SessionState.CONNECTED)
        new = metadata.zookeeper.session_id
        assert new != old
        paths = ("/ledgers/available/b1", f"{NAMESPACE}/.proxies/write/w1")
        async with asyncio.timeout(90):
            while True:
                changed.clear()
                members = (await other.zookeeper.children(f"{R}/lock"))[0]
                stats = [await other.zookeeper.exists(path) for path in paths]
                if members not in ([], [before]) and all(stat and stat.ephemeral_owner == new for stat in stats):
                    break
                await changed.wait()
        assert len(members) == 1
        assert f"_s{new}_" in members[0]


async def test_a_stream_taken_by_another_meanwhile_is_not_shown_as_ours(zookeeper_hosts: str) -> None:
    await cluster_init(zookeeper_hosts, NAMESPACE)
    async with (
        await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as other,
        await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as metadata,
    ):
        for name in ("orders", "kept"):
            value = StreamMetadata(name=StreamName(name), settings=SETTINGS, owner=OWNER)
            assert isinstance(await metadata.compare_and_set(StreamKey(value.name), value, None), Versioned)
        read = await seen(other, KEY)
        theirs = replace(OWNER, epoch=Epoch(2), proxy=ProxyId("w2"), address="127.0.0.1:8002", claim="c2")
        assert isinstance(await other.compare_and_set(KEY, replace(read.value, owner=theirs), read.version), Versioned)
        kept = f"{NAMESPACE}/kept/<default>/lock"
        back = asyncio.Event()
        other.zookeeper.watch_children(kept, back.set)
        await end_session(zookeeper_hosts, metadata.zookeeper)
        async with asyncio.timeout(90):
            while f"_s{metadata.zookeeper.session_id}_" not in "".join((await other.zookeeper.children(kept))[0]):
                await back.wait()
                back.clear()
        (member,) = (await other.zookeeper.children(f"{R}/lock"))[0]
        assert "8002" in member


async def test_a_registration_left_by_our_dead_predecessor_is_taken_over(zookeeper_hosts: str) -> None:
    async with await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as dead:
        await dead.register_bookie(BOOKIE)  # its session lasts for now, as after a kill -9
        async with await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as metadata:
            await metadata.register_bookie(BOOKIE)
            stat = await metadata.zookeeper.exists("/ledgers/available/b1")
            assert stat is not None
            assert stat.ephemeral_owner == metadata.zookeeper.session_id


async def test_a_name_that_another_uses_is_waited_for_and_not_taken(zookeeper_hosts: str) -> None:
    async with await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE, session_timeout_s=1.0) as metadata:
        async with await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as other:
            await other.register_bookie(replace(BOOKIE, port=9999))
            with pytest.raises(CookieError, match="another process"):
                await metadata.register_bookie(BOOKIE)
            assert (await metadata.members()).writable[BOOKIE.bookie].port == 9999
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(metadata.register_bookie(BOOKIE), name="register")
                await asyncio.sleep(0)
                await other.unregister_bookie(BOOKIE.bookie)
            assert waiting.done()
        assert (await metadata.members()).writable == {BOOKIE.bookie: BOOKIE}


async def test_changes_hidden_by_a_reconnect_are_read_after_it(zookeeper_hosts: str) -> None:
    segments = tuple(
        Segment(number=SegmentNumber(n), name=str(n), first_txid=Txid(n), completed=True) for n in range(1, 50)
    )
    async with (
        Toxic(zookeeper_hosts) as toxic,
        await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as other,
        await ZooKeeperMetadata.connect(toxic.hosts, NAMESPACE) as metadata,
    ):
        value = StreamMetadata(name=KEY.stream, settings=SETTINGS, segments=segments, max_segment=SegmentNumber(49))
        created = await other.compare_and_set(KEY, value, None)
        assert isinstance(created, Versioned)
        assert (await seen(metadata, KEY)).value == value
        states, port = states_of(metadata.zookeeper), toxic.port
        toxic.refuse()
        toxic.cut()
        await until(states, SessionState.SUSPENDED)
        value = value.with_segment(replace(segments[6], truncation=Truncation.PARTIAL))
        changed = await other.compare_and_set(KEY, value, created.version)
        assert isinstance(changed, Versioned)
        await toxic.listen(port)
        assert (await seen(metadata, KEY)).value == value
        value = value.without_segment(1)
        assert isinstance(await other.compare_and_set(KEY, value, changed.version), Versioned)
        assert (await seen(metadata, KEY)).value == value


async def test_a_reader_sees_only_whole_changes(zookeeper_hosts: str) -> None:
    """Every value of this stream has as many segments as its owner's epoch says."""
    async with (
        await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as writer,
        await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as reader,
    ):
        value = StreamMetadata(name=KEY.stream, settings=SETTINGS)
        outcome = await writer.compare_and_set(KEY, value, None)

        async def write() -> None:
            nonlocal outcome, value
            for n in range(1, 200):
                assert isinstance(outcome, Versioned), outcome
                segment = Segment(number=SegmentNumber(n), name=str(n), first_txid=Txid(0))
                value = replace(value, owner=replace(OWNER, epoch=Epoch(n))).with_segment(segment)
                outcome = await writer.compare_and_set(KEY, value, outcome.version)

        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write(), name="write")
            values = 0
            while not writing.done():
                found = (await seen(reader, KEY)).value
                assert len(found.segments) == found.owner.epoch == found.max_segment
                values += 1
        assert values
        assert (await seen(reader, KEY)).value == value


async def test_out_of_contact_reads_and_changes_are_unknown_and_nothing_raises(zookeeper_hosts: str) -> None:
    async with Toxic(zookeeper_hosts) as toxic:
        metadata = await ZooKeeperMetadata.connect(toxic.hosts, NAMESPACE, session_timeout_s=1.0)
        toxic.refuse()
        toxic.cut()
        for key, value in ((KEY, StreamMetadata(name=KEY.stream, settings=SETTINGS)), (LedgerKey(LedgerId(1)), LEDGER)):
            assert isinstance(await metadata.read(key), OutcomeUnknown)
            assert isinstance(await metadata.compare_and_set(key, value, None), OutcomeUnknown)
        async with asyncio.timeout(60):
            await metadata.close()


async def test_a_deleted_and_remade_parent_does_not_stop_a_ledger(zookeeper_hosts: str) -> None:
    async with await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as metadata:

        async def churn(base: int) -> None:
            for n in range(30):
                key = LedgerKey(LedgerId(base + n % 2))
                assert isinstance(await metadata.compare_and_set(key, LEDGER, None), Versioned)
                await metadata.delete(key)

        async with asyncio.TaskGroup() as tasks:
            for base in (0, 10, 20):
                tasks.create_task(churn(base), name="churn")
        assert [ledger async for ledger in metadata.ledgers()] == []
        assert await metadata.zookeeper.exists("/ledgers") is not None
        await metadata.zookeeper.delete("/ledgers", ANY_VERSION)
