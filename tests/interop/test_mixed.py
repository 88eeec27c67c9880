"""Streams of dlog, through write and read proxies, on Java bookies and on mixed ensembles; bookies are killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import dlog
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.ledger.comparing import Compared
from dlog.machine import Versioned
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerKey
from dlog.model.quorum import Quorum
from dlog.wire.entry import decode_entry
from tests.integration.proxies.load import loaded
from tests.integration.proxies.processes import ProxyCluster
from tests.interop.conftest import started
from tests.interop.java_bookies import JavaCluster
from tests.interop.java_peer import JavaLedgers, JavaPeer
from tests.interop.payloads import numbered, read_all

pytestmark = pytest.mark.java

#: of six bookies, three of each kind, any four include both kinds, and four are left when one of each kind is dead
BOTH = Quorum(ensemble=4, write=3, ack=2)
BOTH_SETTINGS: dlog.SettingsChanges = {"ensemble": 4, "write_quorum": 3, "ack_quorum": 2}


@pytest.fixture(scope="module")
def mixed(java_bookies: JavaCluster) -> Iterator[JavaCluster]:
    """Three bookies of each kind, for tests that leave as many running; those of dlog end with this module."""
    for _ in range(3):
        java_bookies.add()
    yield java_bookies
    for bookie in java_bookies.bookies:
        bookie.stop()
    java_bookies.bookies.clear()


@pytest.fixture
def mixed_proxies(mixed: JavaCluster, tmp_path: Path) -> Iterator[ProxyCluster]:
    yield from started(mixed, tmp_path / "proxies")


async def ensembles(cluster: JavaCluster, segments: Sequence[dlog.SegmentInfo]) -> list[set[str]]:
    """The ensembles of every fragment of every segment, in order."""
    async with cluster.ledgers() as ledgers:
        found = [await ledgers.metadata_of(LedgerId(int(segment.location))) for segment in segments]
    return [set(fragment.ensemble) for metadata in found for fragment in metadata.fragments]


def java_of(cluster: JavaCluster) -> set[str]:
    return {bookie.id for bookie in cluster.java}


def ours_of(cluster: JavaCluster) -> set[str]:
    return {bookie.id for bookie in cluster.bookies}


async def test_a_stream_of_ours_on_java_bookies_loses_nothing_when_its_owner_is_killed(
    own_proxies: ProxyCluster,
) -> None:
    async with loaded(own_proxies.target) as load:
        owner = own_proxies.writer_at((await load.client.owner("orders")).location)
        owner.kill()
        await load.acknowledged(200)
        assert own_proxies.writer_at((await load.client.owner("orders")).location) is not owner


async def test_a_stream_of_ours_on_java_bookies_rolls_and_is_read_along(own_proxies: ProxyCluster) -> None:
    async with loaded(own_proxies.target, segment_bytes=64 * 1024) as load:
        seen: list[bytes] = []

        async def tail() -> None:
            async for record in load.client.read("orders", start=dlog.START, follow=True):
                seen.append(record.payload)
                if len(seen) == 1500:
                    return

        async with asyncio.timeout(120):
            await tail()
        assert seen == [load.record(number) for number in range(1500)]
        assert len((await load.client.stat("orders")).segments) > 2


async def test_a_stream_on_a_mixed_ensemble_loses_nothing_when_one_of_each_kind_is_killed(
    mixed: JavaCluster, mixed_proxies: ProxyCluster
) -> None:
    all_java, all_ours = java_of(mixed), ours_of(mixed)
    async with loaded(mixed_proxies.target, **BOTH_SETTINGS) as load:

        async def last_ensemble() -> set[str]:
            return (await ensembles(mixed, (await load.client.stat("orders")).segments))[-1]

        first = await last_ensemble()
        assert first & all_java and first & all_ours
        killed_java = await mixed.kill_java(min(first & all_java))
        await load.acknowledged(500)
        second = await last_ensemble()
        assert killed_java.id not in second
        killed_ours = mixed.named(min(second & all_ours))
        killed_ours.kill()
        await load.acknowledged(500)
        third = await last_ensemble()
        assert not {killed_java.id, killed_ours.id} & third and third & all_java and third & all_ours
    await mixed.bury(killed_java, killed_ours)
    killed_ours.start()
    await mixed.add_java()


@pytest.mark.parametrize("recoverer", ["ours", "java"])
async def test_a_ledger_on_a_mixed_ensemble_is_recovered_and_read_alike(
    java: JavaPeer, mixed: JavaCluster, recoverer: str
) -> None:
    theirs = JavaLedgers(java, mixed.hosts)
    written = numbered("ours", 0, 300)
    async with mixed.ledgers() as ours:
        writer = await ours.create(BOTH)
        adds = [writer.append((payload,)) for payload in written]
        await adds[100]
        await writer.abandon()
        confirmed = sum(add.done() and not add.cancelled() and add.exception() is None for add in adds)
        if recoverer == "ours":
            end = int((await ours.recover(writer.ledger_id)).last_entry)
        else:
            end = (await theirs.open(writer.ledger_id, recover=True)).lac
        assert end + 1 >= confirmed > 100
        assert await read_all(ours, writer.ledger_id) == written[: end + 1]
        for fragment in (await ours.metadata_of(writer.ledger_id)).fragments:
            assert set(fragment.ensemble) & java_of(mixed) and set(fragment.ensemble) & ours_of(mixed)
    assert await theirs.read_all(writer.ledger_id) == written[: end + 1]


async def test_a_java_writer_on_a_mixed_ensemble_is_followed_by_our_fence(java: JavaPeer, mixed: JavaCluster) -> None:
    theirs = JavaLedgers(java, mixed.hosts)
    written = numbered("java", 0, 200)
    writer = await theirs.create(ensemble=4, write=3, ack=2)
    assert await writer.add(written) == list(range(200))
    async with mixed.ledgers() as ours:
        assert (await ours.recover(LedgerId(writer.id))).last_entry == 199
        assert not any(isinstance(answer, int) for answer in await writer.add([b"too late"]))
        assert await read_all(ours, writer.id) == written


async def test_java_opens_the_ledger_that_a_proxy_wrote_and_finds_every_record(
    java: JavaPeer, mixed: JavaCluster, mixed_proxies: ProxyCluster
) -> None:
    written = [b"record-%d" % i for i in range(500)]
    async with dlog.connect(mixed_proxies.target) as client:
        await client.create("orders", **BOTH_SETTINGS)
        first = await client.append("orders", written[0])
        await client.append_many("orders", written[1:])
        (segment,) = (await client.stat("orders")).segments
        await client.hand_over("orders")  # completes the segment: its ledger is closed
        found = await JavaLedgers(java, mixed.hosts).open(int(segment.location))
        assert found.closed
        records = [
            (dlog.DLSN(first.segment, entry, record.slot), record.payload)  # type: ignore[arg-type]
            for entry, payload in enumerate(await found.read_all())
            for record in decode_entry(payload)
            if record.is_user
        ]
        assert [payload for _, payload in records] == written
        assert records == [(r.dlsn, bytes(r.payload)) async for r in client.read("orders", follow=False)]


async def test_copies_on_java_bookies_are_compared_by_their_lists(mixed: JavaCluster) -> None:
    all_java = java_of(mixed)
    async with mixed.ledgers() as ledgers:
        writer = await ledgers.create(BOTH)
        for number in range(300):
            await writer.append((b"entry %d" % number,))
        await writer.close()
        ledger = writer.ledger_id
        found = await ledgers.compare(ledger)
        assert found == Compared(ledger, 300)

        metadata = await ledgers.metadata_of(ledger)
        (fragment,) = metadata.fragments
        others = sorted(all_java - set(fragment.ensemble))
        stranger = BookieId(others[0] if others else sorted(ours_of(mixed) - set(fragment.ensemble))[0])
        ensemble = (stranger, *fragment.ensemble[1:])
        changed = replace(metadata, fragments=(replace(fragment, ensemble=ensemble),), last_entry=EntryId(300))
        async with await ZooKeeperMetadata.connect(mixed.hosts, mixed.namespace) as store:
            seen = await store.read(LedgerKey(ledger))
            assert isinstance(seen, Versioned)
            assert isinstance(await store.compare_and_set(LedgerKey(ledger), changed, seen.version), Versioned)
        found = await ledgers.compare(ledger)
        wanted: Counter[BookieId] = Counter(changed.bookies_of(300))
        wanted[stranger] = sum(stranger in changed.bookies_of(entry) for entry in range(301))
        assert all(one.is_exact for one in found.missing) and not found.out_of_reach
        missing: Counter[BookieId] = Counter()
        for one in found.missing:
            missing[one.bookie] += one.entries
        assert missing == wanted
        assert {one.first for one in found.missing if one.bookie != stranger} == {300}
        assert set(wanted) & all_java
        await ledgers.delete(ledger)
