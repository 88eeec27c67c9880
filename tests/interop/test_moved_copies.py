"""A bookie of dlog frees copies that were moved to bookies of Java, and takes them again from Java's worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.model.ids import BookieId
from tests.integration.recovery.moving import (
    ENTRIES,
    FLAGS,
    LEDGERS,
    LOG_BYTES,
    PATIENT,
    PAYLOAD,
    SMALL_LOGS,
    move,
    until_bytes,
    write,
)
from tests.interop.java_bookies import JavaCluster, start_java
from tests.interop.java_peer import JavaLedgers, JavaPeer, need_java
from tests.interop.payloads import read_all
from tests.interop.recovery import JavaRecovery, KnownLedger, members_of, until_repaired

pytestmark = pytest.mark.java


@pytest.fixture
def cluster(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[JavaCluster]:
    """Three bookies of Java and one of ours: an ensemble of three lacks one of them."""
    need_java()
    made = start_java(zookeeper, tmp_path / "bookies", java=3, ours=1, flags=(*FLAGS, *SMALL_LOGS))
    yield made
    made.close()


async def test_copies_moved_to_javas_bookies_are_freed_and_javas_worker_brings_them_back(
    java: JavaPeer, cluster: JavaCluster
) -> None:
    ours, everyone = BookieId(cluster.bookies[0].id), {cluster.bookies[0].id, *(bookie.id for bookie in cluster.java)}
    payloads = [PAYLOAD] * ENTRIES
    theirs = JavaLedgers(java, cluster.hosts, v3=True)
    async with cluster.ledgers(transport=PATIENT) as ledgers:
        written = [await write(ledgers) for _ in range(LEDGERS)]
        known = [KnownLedger(ledger, "CRC32C", payloads) for ledger in written]
        held = [ledger for ledger in written if ours in await members_of(ledgers, ledger)]
        assert held, "each of the ensembles lacks one of four bookies, by chance"
        for ledger in held:
            (spare,) = everyone - await members_of(ledgers, ledger)
            await move(ledgers, ledger, ours, BookieId(spare))
        await until_bytes(cluster, ours, LOG_BYTES, logs=1)  # the newest
        for ledger in written:
            assert ours not in await members_of(ledgers, ledger)
            assert await read_all(ledgers, ledger) == await theirs.read_all(ledger) == payloads

        recovery = await JavaRecovery.start(java, cluster, "both")
        try:
            victim = await cluster.kill_java(cluster.java[0].id)
            await cluster.bury(victim)
            await until_repaired(cluster, known, victim.id)
        finally:
            await recovery.stop()
        for ledger in written:
            assert ours in await members_of(ledgers, ledger), "the only one that is left"
            assert not (await ledgers.verify(ledger)).ranges
            assert await read_all(ledgers, ledger) == await theirs.read_all(ledger) == payloads
