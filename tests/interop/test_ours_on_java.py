"""dlog's ledger client on Java bookies: Java's client reads what it writes, and each recovers the other's ledgers."""

from __future__ import annotations

import asyncio
import random

import pytest

from dlog.errors import FencedError, LedgerNotFoundError, UnauthorizedError
from dlog.io.bookie_questions import read_space
from dlog.io.ledgers import GIVEN_IDS
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.ids import EntryId, LedgerId
from dlog.model.ledger import DigestType, LedgerState
from dlog.model.quorum import Quorum
from dlog.wire.bookie import Code
from tests.interop.java_bookies import JavaCluster
from tests.interop.java_peer import JavaError, JavaLedgers, JavaPeer
from tests.interop.our_v3 import fence_and_recover, force, tail, write_and_read
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

DIGESTS = {DigestType.CRC32C: "CRC32C", DigestType.CRC32: "CRC32", DigestType.HMAC: "MAC", DigestType.DUMMY: "DUMMY"}
NO_LEDGER, FENCED, CLOSED, UNAUTHORIZED = -25, -101, -11, -102


@pytest.fixture
def theirs(java: JavaPeer, java_bookies: JavaCluster) -> JavaLedgers:
    return JavaLedgers(java, java_bookies.hosts)


@pytest.mark.parametrize("digest", DIGESTS, ids=DIGESTS.values())
async def test_what_we_close_on_java_bookies_java_reads(
    theirs: JavaLedgers, java_bookies: JavaCluster, digest: DigestType
) -> None:
    written = numbered("ours", 0, 150)
    async with java_bookies.ledgers() as ours:
        writer = await ours.create(Quorum(), digest=digest, password=b"secret", custom=(("app", b"interop"),))
        for payload in written:
            await writer.append((payload[:5], payload[5:]))
        assert await writer.close() == 149
        found = await theirs.open(writer.ledger_id, digest=DIGESTS[digest], password="c2VjcmV0")
        assert (found.lac, found.closed, found.length) == (149, True, sum(map(len, written)))
        assert await found.read_all() == written
        assert await read_all(ours, writer.ledger_id) == written
        await wait_whole(ours, writer.ledger_id)
    told = await theirs.metadata(writer.ledger_id)
    assert told["digest"] == digest.name.replace("HMAC", "MAC") and told["custom"] == {"app": "aW50ZXJvcA=="}


async def test_java_reads_a_ledger_whose_ids_we_chose(theirs: JavaLedgers, java_bookies: JavaCluster) -> None:
    written = numbered("ours", 0, 20)
    ledger = LedgerId(GIVEN_IDS + random.getrandbits(60))
    async with java_bookies.ledgers() as ours:
        writer = await ours.create(Quorum(), ledger=ledger)
        waiting = [writer.append((written[entry],), EntryId(entry)) for entry in reversed(range(20))]
        assert [await future for future in waiting] == [*reversed(range(20))]
        await writer.close()
    found = await theirs.open(ledger)
    assert found.closed and await found.read_all() == written


async def test_java_bookies_tell_us_their_free_space(java_bookies: JavaCluster) -> None:
    async with await ZooKeeperMetadata.connect(java_bookies.hosts, java_bookies.namespace) as metadata:
        registered = (await metadata.members()).writable.values()
    assert len(registered) >= 3
    for bookie in registered:
        told = await read_space(bookie.host, bookie.port, 60.0)
        assert told.code is Code.OK and told.total_bytes is not None and told.free_bytes is not None
        assert told.total_bytes > told.free_bytes > 0


async def test_java_reads_what_we_still_write_on_java_bookies(theirs: JavaLedgers, java_bookies: JavaCluster) -> None:
    written = numbered("ours", 0, 20)
    async with java_bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        for payload in written:
            await writer.append((payload,))
        found = await theirs.open(writer.ledger_id)
        assert not found.closed and found.lac == 18  # the last add carries the LAC before it
        assert await found.read_all() == written[:19]
        assert await found.read(0, 19, how="unconfirmed") == written
        assert await writer.append((b"still ours",)) == 20
        assert await found.read_lac() == 19


async def test_our_reader_follows_our_writer_on_java_bookies(java_bookies: JavaCluster) -> None:
    written = numbered("ours", 0, 300)
    async with java_bookies.ledgers() as ours, java_bookies.ledgers() as elsewhere:
        writer = await ours.create(Quorum())
        await writer.append((written[0],))
        reader = await elsewhere.open(writer.ledger_id)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(reader, 300), name="follower")
            for payload in written[1:]:
                await writer.append((payload,))
            await writer.close()
        assert following.result() == written
        assert reader.end == 299


async def test_our_reader_follows_javas_writer_on_java_bookies(theirs: JavaLedgers, java_bookies: JavaCluster) -> None:
    written = numbered("java", 0, 300)
    writer = await theirs.create()
    async with java_bookies.ledgers() as ours:
        reader = await ours.open(LedgerId(writer.id))
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(reader, 300), name="follower")
            for first in range(0, 300, 30):
                await writer.add(written[first : first + 30])
            await writer.close()
        assert following.result() == written


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_044_480, ENTRY_BYTES_MAX])
async def test_entries_of_every_size_pass_through_java_bookies(
    theirs: JavaLedgers, java_bookies: JavaCluster, size: int
) -> None:
    async with java_bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        await writer.append((sized(size),))
        await writer.append((b"after",))
        await writer.close()
        assert await read_all(ours, writer.ledger_id) == [sized(size), b"after"]
    assert await theirs.read_all(writer.ledger_id) == [sized(size), b"after"]


async def test_a_striped_ledger_of_ours_is_where_java_looks_for_it(
    theirs: JavaLedgers, java_bookies: JavaCluster
) -> None:
    written = numbered("ours", 0, 200)
    async with java_bookies.ledgers() as ours:
        writer = await ours.create(Quorum(ensemble=3, write=2, ack=2))
        adds = [writer.append((payload,)) for payload in written]
        assert [await add for add in adds] == list(range(200))
        assert await theirs.read_all(writer.ledger_id, recover=True) == written
        assert await read_all(ours, writer.ledger_id) == written
        await wait_whole(ours, writer.ledger_id)


async def test_java_recovers_what_our_dead_writer_left_on_java_bookies(
    theirs: JavaLedgers, java_bookies: JavaCluster
) -> None:
    written = numbered("ours", 0, 400)
    async with java_bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        adds = [writer.append((payload,)) for payload in written]
        await adds[100]
        await writer.abandon()  # with adds under way, as a process that dies
        confirmed = sum(add.done() and not add.cancelled() and add.exception() is None for add in adds)
        assert confirmed > 100
        found = await theirs.open(writer.ledger_id, recover=True)
        assert found.closed and found.lac + 1 >= confirmed
        assert await found.read_all() == written[: found.lac + 1] == await read_all(ours, writer.ledger_id)


async def test_we_recover_what_our_dead_writer_left_on_java_bookies(
    theirs: JavaLedgers, java_bookies: JavaCluster
) -> None:
    written = numbered("ours", 0, 400)
    async with java_bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        adds = [writer.append((payload,)) for payload in written]
        await adds[100]
        await writer.abandon()
        confirmed = sum(add.done() and not add.cancelled() and add.exception() is None for add in adds)
        end = (await ours.recover(writer.ledger_id)).last_entry
        assert end + 1 >= confirmed > 100
        assert await read_all(ours, writer.ledger_id) == written[: end + 1]
    assert await theirs.read_all(writer.ledger_id) == written[: end + 1]


@pytest.mark.parametrize("digest", DIGESTS, ids=DIGESTS.values())
async def test_we_recover_what_javas_dead_writer_left_on_java_bookies(
    theirs: JavaLedgers, java_bookies: JavaCluster, digest: DigestType
) -> None:
    written = numbered("java", 0, 60)
    writer = await theirs.create(digest=DIGESTS[digest], password="c2VjcmV0")
    assert await writer.add(written) == list(range(60))
    async with java_bookies.ledgers() as ours:
        assert not (await ours.metadata_of(LedgerId(writer.id))).is_closed
        assert (await ours.recover(LedgerId(writer.id))).last_entry == 59
        assert await read_all(ours, writer.id) == written
    assert await theirs.read_all(writer.id, digest=DIGESTS[digest], password="c2VjcmV0") == written


async def test_a_java_writer_that_we_fenced_gets_nothing_acknowledged(
    theirs: JavaLedgers, java_bookies: JavaCluster
) -> None:
    written = numbered("java", 0, 40)
    writer = await theirs.create()
    await writer.add(written)
    async with java_bookies.ledgers() as ours:
        await ours.recover(LedgerId(writer.id))
        assert refused(answers := await writer.add([b"too late", b"and later"])) <= {FENCED, CLOSED}
        assert not any(isinstance(answer, int) for answer in answers)
        assert await read_all(ours, writer.id) == written


async def test_our_writer_that_java_fenced_gets_nothing_acknowledged(
    theirs: JavaLedgers, java_bookies: JavaCluster
) -> None:
    written = numbered("ours", 0, 40)
    async with java_bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        for payload in written:
            await writer.append((payload,))
        assert await theirs.read_all(writer.ledger_id, recover=True) == written
        with pytest.raises(FencedError):
            await writer.append((b"too late",))
        metadata = await ours.metadata_of(writer.ledger_id)
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 39)


async def test_recoveries_of_both_at_once_agree_on_java_bookies(theirs: JavaLedgers, java_bookies: JavaCluster) -> None:
    async with java_bookies.ledgers() as ours:
        await recover_together(ours, theirs)


async def test_neither_recovers_with_the_others_wrong_password(theirs: JavaLedgers, java_bookies: JavaCluster) -> None:
    writer = await theirs.create(password="c2VjcmV0")
    await writer.add([b"kept"])
    async with java_bookies.ledgers() as ours:
        with pytest.raises(UnauthorizedError):
            await ours.recover(LedgerId(writer.id), password=b"guessed")
        mine = await ours.create(Quorum(), password=b"hidden")
        await mine.append((b"kept",))
        with pytest.raises(JavaError) as refusal:
            await theirs.open(mine.ledger_id, recover=True, password="c2VjcmV0")
        assert refusal.value.code == UNAUTHORIZED
        assert await mine.append((b"not fenced",)) == 1
    assert await writer.add([b"not fenced"]) == [1]


async def test_what_we_delete_java_does_not_find_and_the_reverse(
    theirs: JavaLedgers, java_bookies: JavaCluster
) -> None:
    async with java_bookies.ledgers() as ours:
        mine = await ours.create(Quorum())
        await mine.append((b"gone",))
        await mine.close()
        await ours.delete(mine.ledger_id)
        with pytest.raises(JavaError) as refusal:
            await theirs.open(mine.ledger_id)
        assert refusal.value.code == NO_LEDGER
        javas = await theirs.create()
        await theirs.delete(javas.id)
        with pytest.raises(LedgerNotFoundError):
            await ours.open(LedgerId(javas.id))


async def test_we_write_on_when_a_java_bookie_is_killed(theirs: JavaLedgers, java_bookies: JavaCluster) -> None:
    """A fourth bookie replaces the dead one; every entry is on every bookie that metadata names."""
    written = numbered("ours", 0, 1500)
    await java_bookies.add_java()
    async with java_bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        for payload in written[:100]:
            await writer.append((payload,))
        adds = [writer.append((payload,)) for payload in written[100:800]]
        dead = await java_bookies.kill_java(writer.metadata.fragments[0].ensemble[1])
        adds += [writer.append((payload,)) for payload in written[800:]]
        async with asyncio.timeout(60):
            assert [await add for add in adds] == list(range(100, 1500))
            while len(writer.metadata.fragments) == 1:  # two of three confirm while the fourth is still being vetted
                written += numbered("ours", len(written), 1)
                await writer.append((written[-1],))
        await writer.close()
        metadata = await ours.metadata_of(writer.ledger_id)
        first_without = next(f.first_entry for f in metadata.fragments if dead.id not in f.ensemble)
        assert first_without > 0 and dead.id not in metadata.fragments[-1].ensemble
        assert await read_all(ours, writer.ledger_id) == written
        verified = await ours.verify(writer.ledger_id)
        # copies on the dead bookie are missing, and no other
        assert verified.entries == len(written)
        assert {bad.kind for bad in verified.ranges} == {"thin"}
        assert [(bad.first, bad.last) for bad in verified.ranges if bad.bookie == dead.id] == [(0, first_without - 1)]
        await java_bookies.bury(dead)
    assert await theirs.read_all(writer.ledger_id) == written


@pytest.mark.parametrize("writer_of", ["ours", "java"])
async def test_we_recover_with_a_java_bookie_dead(
    theirs: JavaLedgers, java_bookies: JavaCluster, writer_of: str
) -> None:
    """Two of three are enough, although there is no third one to copy to."""
    written = numbered(writer_of, 0, 50)
    async with java_bookies.ledgers() as ours:
        if writer_of == "ours":
            mine = await ours.create(Quorum())
            for payload in written:
                await mine.append((payload,))
            ledger = mine.ledger_id
            await mine.abandon()
        else:
            javas = await theirs.create()
            await javas.add(written)
            ledger = LedgerId(javas.id)
        dead = await java_bookies.kill_java((await ours.metadata_of(ledger)).fragments[0].ensemble[0])
        async with asyncio.timeout(60):
            assert (await ours.recover(ledger)).last_entry == 49
        assert await read_all(ours, ledger) == written
    assert await theirs.read_all(ledger) == written
    await java_bookies.bury(dead)
    await java_bookies.add_java()


async def test_a_window_of_entries_is_confirmed_in_order_on_java_bookies(java_bookies: JavaCluster) -> None:
    written = [b"%06d" % i for i in range(3000)]
    order: list[object] = []
    async with java_bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        for payload in written:
            writer.submit((payload,), order.append)
        assert await writer.close() == EntryId(2999)
        assert order == list(range(3000))
        assert await read_all(ours, writer.ledger_id) == written


async def test_we_write_and_read_on_v3_on_java_bookies(theirs: JavaLedgers, java_bookies: JavaCluster) -> None:
    await write_and_read(java_bookies, theirs)


async def test_we_tail_an_open_ledger_by_long_poll_on_java_bookies(java_bookies: JavaCluster) -> None:
    await tail(java_bookies)


async def test_we_fence_and_recover_on_v3_on_java_bookies(theirs: JavaLedgers, java_bookies: JavaCluster) -> None:
    await fence_and_recover(java_bookies, theirs)


async def test_we_force_a_ledger_with_deferred_sync_on_java_bookies(
    theirs: JavaLedgers, java_bookies: JavaCluster
) -> None:
    await force(java_bookies, theirs)
