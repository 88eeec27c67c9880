"""Java's BookKeeper client on v3, its default wire, on bookies of dlog: writes, reads, long polls, fences, recovers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlog
from dlog.errors import FencedError
from dlog.io.bookie_client import BookieClientOptions
from dlog.io.ledgers import LedgersOptions
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.ledger.adding import AddingOptions
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.quorum import Quorum
from tests.integration.cluster import BookieCluster
from tests.integration.proxies.processes import ProxyCluster
from tests.interop.conftest import started
from tests.interop.java_peer import JavaError, JavaLedgers, JavaLogs, JavaPeer
from tests.interop.java_shell import run_shell
from tests.interop.our_v3 import fence_and_recover, force, tail, write_and_read
from tests.interop.payloads import numbered, read_all, refused, sized, wait_whole
from tests.interop.streams import java_read, we_read

pytestmark = pytest.mark.java

V3 = BookieClientOptions(protocol="v3", request_timeout_s=60.0)
SECRET = "c2VjcmV0"  # as arguments of commands are written
FENCED, CLOSED, UNAUTHORIZED = -101, -11, -102


@pytest.fixture
def our_proxies(bookies: BookieCluster, tmp_path: Path) -> Iterator[ProxyCluster]:
    """Proxies of dlog over its own bookies."""
    yield from started(bookies, tmp_path / "proxies")


@pytest.fixture
def theirs(java: JavaPeer, bookies: BookieCluster) -> JavaLedgers:
    return JavaLedgers(java, bookies.hosts, v3=True)


@pytest.mark.parametrize("digest", ["CRC32C", "MAC"])
async def test_what_java_closes_on_v3_both_read(theirs: JavaLedgers, bookies: BookieCluster, digest: str) -> None:
    written = [*numbered("java", 0, 150), sized(1_044_480), b""]
    writer = await theirs.create(digest=digest, password=SECRET)
    assert await writer.add(written) == list(range(152))
    assert await writer.close() == 151
    found = await theirs.open(writer.id, digest=digest, password=SECRET)
    assert (found.lac, found.closed) == (151, True)
    assert await found.read_all() == written
    async with bookies.ledgers() as ours:
        assert await read_all(ours, writer.id) == written
        await wait_whole(ours, writer.id)


async def test_a_v3_reader_of_java_tails_an_open_ledger_by_long_poll(
    theirs: JavaLedgers, bookies: BookieCluster
) -> None:
    """Every poll but the first waits at a bookie, and comes back with the LAC and the entry."""
    written = numbered("ours", 0, 60)
    seen: list[bytes] = []
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        await writer.append((written[0],))
        reader = await theirs.open(writer.ledger_id)
        assert reader.lac == -1
        async with asyncio.TaskGroup() as tasks:

            async def write() -> None:
                for payload in [*written[1:], b"carries the last LAC"]:
                    await asyncio.sleep(0.01)
                    await writer.append((payload,))

            tasks.create_task(write(), name="writer")
            while len(seen) < 60:
                lac, payload = await reader.poll(len(seen), 60_000)
                assert lac >= len(seen), "a poll of a minute came back without news"
                assert payload is not None, "the entry comes with the LAC"
                seen.append(payload)
    assert seen == written


async def test_a_long_poll_of_java_ends_at_its_time(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        await writer.append((b"0",))
        await writer.append((b"1",))
        reader = await theirs.open(writer.ledger_id)
        assert await reader.poll(1, 200) == (0, None)
        assert await reader.poll(0, 200) == (0, b"0")


async def test_java_writes_and_reads_the_explicit_lac(
    theirs: JavaLedgers, java: JavaPeer, bookies: BookieCluster
) -> None:
    """No later add carries the LAC of the last one: it is written by itself."""
    writer = await theirs.create(explicit_lac_ms=50)
    assert await writer.add([b"a", b"b", b"c"]) == [0, 1, 2]
    for v3 in (True, False):  # the v2 client speaks v3 for this
        reader = await JavaLedgers(java, bookies.hosts, v3=v3).open(writer.id, explicit_lac_ms=50)
        async with asyncio.timeout(60):
            while await reader.read_lac("explicit") != 2:  # noqa: ASYNC110 - Java has no event for it
                await asyncio.sleep(0.05)


async def test_we_read_the_explicit_lac_that_java_writes(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    writer = await theirs.create(explicit_lac_ms=50)
    assert await writer.add([b"a", b"b", b"c"]) == [0, 1, 2]
    async with bookies.ledgers(transport=V3) as ours, asyncio.timeout(120):
        reader = await ours.open(LedgerId(writer.id))
        assert await reader.wait_lac(EntryId(1), 100.0) == 2
        while await ours.last_confirmed(LedgerId(writer.id)) != 2:  # noqa: ASYNC110 - Java has no event for it
            await asyncio.sleep(0.05)


async def test_java_reads_the_explicit_lac_that_we_write(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    options = LedgersOptions(adding=AddingOptions(explicit_lac_s=0.05))
    async with bookies.ledgers(options, V3) as ours:
        writer = await ours.create(Quorum())
        for payload in (b"a", b"b", b"c"):
            await writer.append((payload,))
        reader = await theirs.open(writer.ledger_id, explicit_lac_ms=50)
        async with asyncio.timeout(120):
            while await reader.read_lac("explicit") != 2:  # noqa: ASYNC110 - Java has no event for it
                await asyncio.sleep(0.05)


async def test_a_v3_writer_of_java_is_fenced_by_java_and_by_us(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    written = numbered("java", 0, 40)
    async with bookies.ledgers() as ours:
        for by_java in (True, False):
            writer = await theirs.create()
            await writer.add(written)
            if by_java:
                assert await theirs.read_all(writer.id, recover=True) == written
            else:
                assert (await ours.recover(LedgerId(writer.id))).last_entry == 39
            answers = await writer.add([b"too late", b"and later"])
            assert not any(isinstance(answer, int) for answer in answers)
            assert FENCED in refused(answers) <= {FENCED, CLOSED}
            assert await read_all(ours, writer.id) == written


async def test_java_on_v3_fences_our_writer_and_recovers_it(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    written = numbered("ours", 0, 40)
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum(), password=b"secret")
        for payload in written:
            await writer.append((payload,))
        with pytest.raises(JavaError) as refusal:
            await theirs.open(writer.ledger_id, recover=True, password="")
        assert refusal.value.code == UNAUTHORIZED
        found = await theirs.open(writer.ledger_id, recover=True, password=SECRET)
        assert found.lac == 39 and found.closed and await found.read_all() == written
        with pytest.raises(FencedError):
            await writer.append((b"too late",))


async def test_we_write_and_read_on_v3_on_our_bookies(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    await write_and_read(bookies, theirs)


async def test_we_tail_an_open_ledger_by_long_poll_on_our_bookies(bookies: BookieCluster) -> None:
    await tail(bookies)


async def test_we_fence_and_recover_on_v3_on_our_bookies(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    await fence_and_recover(bookies, theirs)


async def test_we_force_a_ledger_with_deferred_sync_on_our_bookies(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    await force(bookies, theirs)


async def test_a_deferred_sync_writer_of_java_forces(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    """Its LAC moves only by a force. Our bookies sync before they acknowledge, so nothing can be lost in between."""
    writer = await theirs.create(deferred=True)
    assert await writer.add([b"a", b"b", b"c"]) == [0, 1, 2]
    assert await writer.force() == 2
    assert await writer.add([b"d"]) == [3]
    assert await theirs.read_all(writer.id, recover=True) == [b"a", b"b", b"c", b"d"]


async def test_java_lists_the_entries_of_our_bookies(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    writer = await theirs.create(ensemble=3, write=2, ack=2)
    await writer.add([b"%d" % i for i in range(100)])
    members = (await theirs.metadata(writer.id))["fragments"][0][1]
    for index, member in enumerate(members):
        held = [e for e in range(100) if index in (e % 3, (e + 1) % 3)]
        assert await theirs.list_entries(writer.id, member, 100) == (held, len(held))


async def test_java_learns_the_disk_space_of_our_bookies(theirs: JavaLedgers, bookies: BookieCluster) -> None:
    found = await theirs.space()
    assert found.keys() == {bookie.id for bookie in bookies.bookies}
    assert all(0 < free < total for total, free in found.values())


async def test_javas_distributedlog_reads_a_stream_on_our_bookies(our_proxies: ProxyCluster, java: JavaPeer) -> None:
    """Its reader needs v3: it follows the tail of an open segment by long poll."""
    logs = JavaLogs(java, our_proxies.bookies.hosts, our_proxies.namespace)
    written = numbered("ours", 0, 220)
    async with dlog.connect(our_proxies.target) as client:
        await client.create("read-by-java")
        for first in range(0, 200, 50):
            await client.append_batch("read-by-java", written[first : first + 50])
        reader = await logs.reader("read-by-java", positionGapDetectionEnabled=True)
        found = await reader.take(200)
        for payload in written[200:]:
            await client.append("read-by-java", payload)
            found += await reader.take(1)
        await reader.close()
        assert java_read(found) == await we_read(client, "read-by-java")
    assert [record.payload for record in found] == written


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("simpletest", "-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "50"), "50 entries"),
        (("bookieinfo",), "Free"),
        (("listbookies", "-rw"), "127.0.0.1:"),
    ],
)
def test_javas_shell_speaks_with_our_bookies(
    java: JavaPeer, bookies: BookieCluster, tmp_path: Path, command: tuple[str, ...], told: str
) -> None:
    assert told in run_shell(bookies, tmp_path, *command)


async def test_javas_shell_shows_a_ledger_of_ours(java: JavaPeer, bookies: BookieCluster, tmp_path: Path) -> None:
    async with bookies.ledgers() as ours:
        writer = await ours.create(Quorum())
        for payload in (b"first payload", b"second payload"):
            await writer.append((payload,))
        await writer.close()
    ledger = str(writer.ledger_id)
    shown = await asyncio.to_thread(run_shell, bookies, tmp_path, "ledgermetadata", "-ledgerid", ledger)
    assert "state=CLOSED" in shown and "lastEntryId=1" in shown
    read = ("readledger", "-ledgerid", ledger, "-firstentryid", "0", "-lastentryid", "1", "-msg")
    shown = await asyncio.to_thread(run_shell, bookies, tmp_path, *read)
    assert "first payload" in shown and "second payload" in shown


async def test_javas_shell_lists_marks_beside_a_planned_restart(
    java: JavaPeer, bookies: BookieCluster, tmp_path: Path
) -> None:
    bookie, ledger = BookieId(bookies.bookies[0].id), LedgerId(987_654)
    async with await ZooKeeperMetadata.connect(bookies.hosts, bookies.namespace) as metadata:
        marks = metadata.underreplication("test:1")
        await marks.prepare()
        await marks.mark(ledger, {bookie}, 5)
        await marks.pauses.begin(bookie, 600)
        try:
            listed = await asyncio.to_thread(run_shell, bookies, tmp_path, "listunderreplicated")
        finally:
            await marks.pauses.end(bookie)
            locked = await marks.lock(ledger)
            assert locked is not None and await marks.complete(locked)
            await marks.release(ledger)
    assert str(ledger) in listed


async def test_a_v3_writer_of_java_writes_on_when_one_of_our_bookies_is_killed(
    java: JavaPeer, own_bookies: BookieCluster
) -> None:
    theirs = JavaLedgers(java, own_bookies.hosts, v3=True)
    written = numbered("java", 0, 600)
    own_bookies.add()
    writer = await theirs.create()
    assert await writer.add(written[:100]) == list(range(100))
    dead = own_bookies.named((await theirs.metadata(writer.id))["fragments"][0][1][1])
    async with asyncio.TaskGroup() as tasks:
        during = tasks.create_task(writer.add(written[100:]), name="adds")
        dead.kill()
    assert during.result() == list(range(100, 600))
    await writer.close()
    fragments = (await theirs.metadata(writer.id))["fragments"]
    assert dead.id not in fragments[-1][1] and dead.id in fragments[0][1]
    assert await theirs.read_all(writer.id) == written
    await theirs.delete(writer.id)
    with pytest.raises(JavaError):
        await theirs.open(writer.id)
