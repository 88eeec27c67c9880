"""Java's BookKeeper client, v2 wire, on bookies of dlog: writes, reads, tails, fences, recovers, changes ensembles."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from dlog.errors import FencedError, LedgerNotFoundError
from dlog.io.bookie_client import BookieClient
from dlog.io.ledgers import resolver
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Fact, Received
from dlog.model.ids import EntryId, LedgerId
from dlog.model.ledger import DigestType, LedgerState
from dlog.model.quorum import Quorum
from dlog.wire.bookie import AddEntry, Code
from dlog.wire.digest import Digest
from tests.integration.cluster import BookieCluster
from tests.interop.java_peer import JavaError, JavaLedgers, JavaPeer
from tests.interop.payloads import (
    ENTRY_BYTES_MAX,
    follow,
    numbered,
    read_all,
    recover_together,
    refused,
    sized,
    wait_whole,
)

pytestmark = pytest.mark.java

DIGESTS = {"CRC32C": DigestType.CRC32C, "CRC32": DigestType.CRC32, "MAC": DigestType.HMAC, "DUMMY": DigestType.DUMMY}
SECRET = "c2VjcmV0"  # as arguments of commands are written
FENCED, CLOSED, UNAUTHORIZED, NO_ENTRY = -101, -11, -102, -13


@pytest.fixture
def theirs(java: JavaPeer, bookies: BookieCluster) -> JavaLedgers:
    return JavaLedgers(java, bookies.hosts)


@pytest.mark.parametrize("digest", DIGESTS)
async def test_what_java_closes_on_our_bookies_both_read(
    theirs: JavaLedgers, bookies: BookieCluster, digest: str
) -> None:
    written = numbered("java", 0, 150)
    writer = await theirs.create(digest=digest, password=SECRET, custom={"app": "aW50ZXJvcA=="})
    assert await writer.add(written) == list(range(150))
    assert await writer.close() == 149
    found = await theirs.open(writer.id, digest=digest, password=SECRET)
    assert (found.lac, found.closed, found.length) == (149, True, sum(map(len, written)))
    assert await found.read_all() == written
    async with bookies.ledgers() as ours:
        assert await read_all(ours, writer.id) == written
        await wait_whole(ours, writer.id)
        metadata = await ours.metadata_of(LedgerId(writer.id))
    assert (metadata.digest, metadata.password, metadata.custom) == (DIGESTS[digest], b"secret", (("app", b"interop"),))
    assert (metadata.state, metadata.last_entry, metadata.length) == (LedgerState.CLOSED, 149, found.length)


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_044_480, 4 * 1024 * 1024])
async def test_java_writes_and_reads_entries_of_every_size_on_our_bookies(
    theirs: JavaLedgers, bookies: BookieCluster, size: int
) -> None:
    writer = await theirs.create()
    assert await writer.add([sized(size), b"after"]) == [0, 1]
    await writer.close()
    assert await theirs.read_all(writer.id) == [sized(size), b"after"]
    async with bookies.ledgers() as ours:
        assert await read_all(ours, writer.id) == [sized(size), b"after"]


async def test_the_largest_entry_that_we_take_java_reads(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        await writer.append((sized(ENTRY_BYTES_MAX),))
        await writer.close()
    assert await theirs.read_all(writer.ledger_id) == [sized(ENTRY_BYTES_MAX)]


async def test_a_window_of_javas_adds_is_answered_in_order_by_our_bookies(
    theirs: JavaLedgers, bookies: BookieCluster
) -> None:
    written = [b"%06d" % i for i in range(3000)]
    writer = await theirs.create()
    assert await writer.add(written) == list(range(3000))
    await writer.close()
    assert await theirs.read_all(writer.id) == written


async def test_java_stripes_over_our_bookies(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    written = numbered("java", 0, 200)
    writer = await theirs.create(ensemble=3, write=2, ack=2)
    await writer.add(written)
    await writer.close()
    assert await theirs.read_all(writer.id) == written
    async with bookies.ledgers() as ours:
        assert await read_all(ours, writer.id) == written
        await wait_whole(ours, writer.id)


async def test_java_reads_several_entries_in_one_request_from_our_bookies(
    theirs: JavaLedgers, bookies: BookieCluster
) -> None:
    written = [sized(1000 + i) for i in range(500)]
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        for add in [writer.append((payload,)) for payload in written]:
            await add
        await writer.close()
    found = await theirs.open(writer.ledger_id)
    assert await found.read(0, 499, how="batch", bytes=1 << 16) == written
    assert await found.read(100, 499, how="batch", bytes=1 << 22) == written[100:]
    assert await found.read(7, 7, how="batch", bytes=1) == written[7:8]


async def test_java_reads_ledgers_that_we_closed(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    written = numbered("ours", 0, 150)
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum(), custom=(("app", b"interop"),))
        for payload in written:
            await writer.append((payload,))
        await writer.close()
        empty = await ours.create(Quorum())
        await empty.close()
    found = await theirs.open(writer.ledger_id)
    assert (found.lac, found.closed, found.length) == (149, True, sum(map(len, written)))
    assert await found.read_all() == written
    told = await theirs.metadata(writer.ledger_id)
    assert (told["state"], told["last"], told["quorum"]) == ("CLOSED", 149, [3, 3, 2])
    assert await theirs.read_all(empty.ledger_id) == []


async def test_java_reads_what_we_still_write_and_disturbs_nobody(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        for i in range(20):
            await writer.append((b"%d" % i,))
        found = await theirs.open(writer.ledger_id)
        assert not found.closed and found.lac == 18  # the last add carries the LAC before it
        assert await found.read_all() == [b"%d" % i for i in range(19)]
        assert await found.read(0, 19, how="unconfirmed") == [b"%d" % i for i in range(20)]
        assert await writer.append((b"still ours",)) == 20


async def test_java_tails_our_writer_by_asking_our_bookies_for_the_lac(
    theirs: JavaLedgers, bookies: BookieCluster
) -> None:
    written = numbered("ours", 0, 120)
    seen: list[bytes] = []
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        await writer.append((written[0],))
        reader = await theirs.open(writer.ledger_id)
        async with asyncio.TaskGroup() as tasks:

            async def write() -> None:
                for payload in written[1:]:
                    await writer.append((payload,))
                await writer.close()

            tasks.create_task(write(), name="writer")
            async with asyncio.timeout(120):
                while len(seen) < 120:
                    lac = await reader.read_lac()
                    if lac >= len(seen):
                        seen += await reader.read(len(seen), lac)
    assert seen == written


async def test_javas_long_poll_on_its_v2_wire_is_answered(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    """On v2 the Java client does not wait at the bookie, so the immediate answer must be right."""
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        for i in range(5):
            await writer.append((b"%d" % i,))
        reader = await theirs.open(writer.ledger_id)
        assert await reader.read_lac("try") == 3
        lac, payload = await reader.poll(2, 1000)
        assert (lac, payload) in ((3, b"2"), (3, None))
        await writer.append((b"5",))
        assert await reader.read_lac() == 4


async def test_our_reader_follows_javas_writer(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    written = numbered("java", 0, 300)
    writer = await theirs.create()
    async with bookies.ledgers() as ours:
        reader = await ours.open(LedgerId(writer.id))
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(reader, 300), name="follower")
            for first in range(0, 300, 30):
                await writer.add(written[first : first + 30])
            await writer.close()
        assert following.result() == written


async def test_java_fences_our_writer_and_recovers_all_that_was_acknowledged(
    theirs: JavaLedgers, bookies: BookieCluster
) -> None:
    written = numbered("ours", 0, 40)
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        for payload in written:
            await writer.append((payload,))
        found = await theirs.open(writer.ledger_id, recover=True)
        assert found.lac == 39 and found.closed
        assert await found.read_all() == written
        with pytest.raises(FencedError):
            await writer.append((b"too late",))
        metadata = await ours.metadata_of(writer.ledger_id)
        assert metadata.state is LedgerState.CLOSED and metadata.last_entry == 39


async def test_java_fences_javas_writer_on_our_bookies(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    written = numbered("java", 0, 40)
    writer = await theirs.create()
    await writer.add(written)
    assert await theirs.read_all(writer.id, recover=True) == written
    answers = await writer.add([b"too late", b"and later"])
    assert not any(isinstance(answer, int) for answer in answers)
    assert FENCED in refused(answers) <= {FENCED, CLOSED}
    assert await theirs.read_all(writer.id) == written


async def test_we_fence_javas_writer(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    written = numbered("java", 0, 40)
    writer = await theirs.create()
    await writer.add(written)
    async with bookies.ledgers() as ours:
        assert (await ours.recover(LedgerId(writer.id))).last_entry == 39
        answers = await writer.add([b"too late", b"and later"])
        assert not any(isinstance(answer, int) for answer in answers)
        assert FENCED in refused(answers) <= {FENCED, CLOSED}
        assert await read_all(ours, writer.id) == written


@pytest.mark.parametrize("closed", [True, False])
async def test_we_read_and_recover_what_java_wrote(theirs: JavaLedgers, bookies: BookieCluster, closed: bool) -> None:
    written = numbered("java", 0, 60)
    writer = await theirs.create()
    await writer.add(written)
    if closed:
        await writer.close()
    async with bookies.ledgers() as ours:
        assert (await ours.metadata_of(LedgerId(writer.id))).is_closed == closed
        await ours.recover(LedgerId(writer.id))
        assert await read_all(ours, writer.id) == written


async def test_java_recovers_what_our_dead_writer_had_under_way(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    written = numbered("ours", 0, 400)
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        adds = [writer.append((payload,)) for payload in written]
        await adds[100]
        await writer.abandon()
        confirmed = sum(add.done() and not add.cancelled() and add.exception() is None for add in adds)
        found = await theirs.open(writer.ledger_id, recover=True)
        assert found.lac + 1 >= confirmed > 100
        assert await found.read_all() == written[: found.lac + 1] == await read_all(ours, writer.ledger_id)


async def test_recoveries_of_both_at_once_agree_on_our_bookies(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    async with bookies.ledgers() as ours:
        await recover_together(ours, theirs)


async def test_java_with_a_wrong_password_is_refused_and_fences_nothing(
    theirs: JavaLedgers, bookies: BookieCluster
) -> None:
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum(), password=b"hidden")
        await writer.append((b"kept",))
        with pytest.raises(JavaError) as refusal:
            await theirs.open(writer.ledger_id, recover=True, password=SECRET)
        assert refusal.value.code == UNAUTHORIZED
        assert await writer.append((b"not fenced",)) == 1


async def test_what_java_deletes_we_do_not_find(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    writer = await theirs.create()
    await writer.add([b"gone"])
    await writer.close()
    await theirs.delete(writer.id)
    await theirs.delete(writer.id)  # twice succeeds twice
    async with bookies.ledgers() as ours:
        with pytest.raises(LedgerNotFoundError):
            await ours.open(LedgerId(writer.id))


async def test_java_writes_on_when_one_of_our_bookies_is_killed(java: JavaPeer, own_bookies: BookieCluster) -> None:
    """A fourth bookie replaces the dead one, in metadata too; nothing acknowledged is lost."""
    theirs = JavaLedgers(java, own_bookies.hosts)
    written = numbered("java", 0, 900)
    own_bookies.add()
    writer = await theirs.create()
    assert await writer.add(written[:100]) == list(range(100))
    dead = own_bookies.named((await theirs.metadata(writer.id))["fragments"][0][1][1])
    async with asyncio.TaskGroup() as tasks:
        during = tasks.create_task(writer.add(written[100:500]), name="adds")
        dead.kill()
    assert during.result() == list(range(100, 500))
    assert await writer.add(written[500:]) == list(range(500, 900))
    await writer.close()
    fragments = (await theirs.metadata(writer.id))["fragments"]
    assert dead.id not in fragments[-1][1] and dead.id in fragments[0][1]
    assert await theirs.read_all(writer.id) == written
    async with own_bookies.ledgers() as ours:
        assert await read_all(ours, writer.id) == written


async def test_java_recovers_with_one_of_our_bookies_dead(java: JavaPeer, own_bookies: BookieCluster) -> None:
    """Two of three say where it ends; a fourth takes the copies, because Java's recovery needs Qw bookies to write
    to."""
    theirs = JavaLedgers(java, own_bookies.hosts)
    written = numbered("ours", 0, 50)
    async with own_bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        for payload in written:
            await writer.append((payload,))
        own_bookies.add()
        own_bookies.named(writer.metadata.fragments[0].ensemble[0]).kill()
        found = await theirs.open(writer.ledger_id, recover=True)
        assert (found.lac, found.closed) == (49, True)
        assert await found.read_all() == written
        with pytest.raises(FencedError):
            await writer.append((b"too late",))


async def test_java_finds_all_it_wrote_when_our_bookies_start_again(java: JavaPeer, own_bookies: BookieCluster) -> None:
    theirs = JavaLedgers(java, own_bookies.hosts)
    written = numbered("java", 0, 300)
    writer = await theirs.create()
    assert await writer.add(written) == list(range(300))
    for bookie in own_bookies.bookies:
        bookie.kill()
    for bookie in own_bookies.bookies:
        bookie.spawn()
    for bookie in own_bookies.bookies:
        bookie.wait_ready()
    async with asyncio.timeout(120):
        while True:  # the Java client waits a while before it reconnects to a bookie that refused it
            try:
                found = await theirs.open(writer.id, recover=True)
                break
            except JavaError:
                await asyncio.sleep(0.5)
    assert await found.read_all() == written


async def test_java_is_not_acknowledged_an_entry_that_our_bookies_hold_with_another_payload(
    java: JavaPeer, own_bookies: BookieCluster
) -> None:
    """After ZooKeeper was restored from a backup Java draws a ledger id that was used before."""
    theirs = JavaLedgers(java, own_bookies.hosts)
    first = (await theirs.create()).id
    async with await ZooKeeperMetadata.connect(own_bookies.hosts, own_bookies.namespace) as metadata:
        members = await metadata.members()
        async with BookieClient(resolver(metadata), rng=Random(1)) as bookies:
            answers: asyncio.Queue[Fact] = asyncio.Queue()
            asker = bookies.asker()
            asker.post = answers.put_nowait
            ledger = LedgerId(first + 1)
            digest = Digest(ledger, DigestType.CRC32C)
            parts = digest.pack(0, -1, 5, (b"older",))
            for bookie in members.writable:
                asker.send(bookie, AddEntry(ledger, EntryId(0), digest.master_key, parts))
                answer = await answers.get()
                assert isinstance(answer, Received) and answer.message.code is Code.OK
    writer = await theirs.create()
    assert writer.id == ledger
    (told,) = await writer.add([b"newer"])
    assert isinstance(told, dict) and told["code"] == UNAUTHORIZED
    async with asyncio.timeout(30):  # Java fails the add first and closes the ledger afterwards
        while (await theirs.metadata(writer.id))["state"] != "CLOSED":  # noqa: ASYNC110 - Java has no event for it
            await asyncio.sleep(0.05)
