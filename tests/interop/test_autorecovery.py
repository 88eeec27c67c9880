"""Java's auditor and replication worker beside ours on one cluster: either repairs what the other marks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.ledgers import Ledgers
from dlog.io.zookeeper import ANY_VERSION, ZooKeeper
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_protocol import NoNodeError
from dlog.machine import Missing, Versioned
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerKey
from dlog.wire.underreplication import decode_holder
from tests.integration.cluster import ServerProcess
from tests.integration.recovery.polling import until
from tests.interop.java_bookies import JavaCluster, start_java
from tests.interop.java_peer import JavaPeer, need_java
from tests.interop.java_shell import run_shell
from tests.interop.recovery import (
    JAVA_NAME,
    QUICK,
    JavaRecovery,
    check_whole,
    known_ledgers,
    marks_of,
    members_of,
    our_auditor,
    our_workers,
    until_marked,
    until_repaired,
)

pytestmark = pytest.mark.java

PATHS = LedgerPaths()
OUR_NAME = "127.0.0.1:2"


@pytest.fixture(scope="module")
def cluster(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaCluster]:
    """Bookies of dlog; every test begins and ends with three."""
    need_java()
    made = start_java(zookeeper, tmp_path_factory.mktemp("repaired"), java=0, ours=3)
    yield made
    made.close()


@pytest.fixture(params=["our bookies", "Java's bookies"])
def either(
    request: pytest.FixtureRequest, zookeeper: EmbeddedZooKeeper, cluster: JavaCluster, tmp_path: Path
) -> Iterator[JavaCluster]:
    """Three bookies of one kind."""
    if request.param == "our bookies":
        yield cluster
        return
    made = start_java(zookeeper, tmp_path / "bookies", java=3)
    yield made
    made.close()


async def add_spare(cluster: JavaCluster) -> str:
    """Start one more bookie of the cluster's kind; returns its id."""
    if cluster.java:
        return (await cluster.add_java()).id
    return cluster.add().id  # a process ends with the thread that started it


async def kill(cluster: JavaCluster, name: str) -> None:
    """Kill a bookie for good; ZooKeeper forgets it at once."""
    if cluster.java:
        await cluster.bury(await cluster.kill_java(name))
    else:
        dead = cluster.named(name)
        await asyncio.to_thread(dead.kill)
        await cluster.bury(dead)


async def name_instead(cluster: JavaCluster, ours: Ledgers, ledger: LedgerId, old: str, new: str) -> None:
    """Have metadata of a closed ledger name a bookie that has no copies of it."""
    metadata = await ours.metadata_of(ledger)
    (fragment,) = metadata.fragments
    ensemble = tuple(BookieId(new) if bookie == old else bookie for bookie in fragment.ensemble)
    changed = replace(metadata, fragments=(replace(fragment, ensemble=ensemble),))
    async with await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as store:
        seen = await store.read(LedgerKey(ledger))
        assert isinstance(seen, Versioned)
        assert isinstance(await store.compare_and_set(LedgerKey(ledger), changed, seen.version), Versioned)


def our_process(cluster: JavaCluster, directory: Path) -> ServerProcess:
    """A recovery process of ours, not started."""
    flags = ["--zookeeper", cluster.hosts, "--namespace", cluster.namespace, "--id", OUR_NAME]
    for name in ("lost_after_s", "look_s", "open_grace_s", "backoff_s"):
        flags += [f"--{name.replace('_', '-')}", str(getattr(QUICK, name))]
    return ServerProcess("actors.recovery", directory, *flags)


async def test_our_workers_repair_what_javas_auditor_marks(java: JavaPeer, either: JavaCluster) -> None:
    """For a lost bookie, and for one that lacks its copies; but not a ledger that Java's worker has locked."""
    cluster = either
    async with known_ledgers(java, cluster) as known, cluster.ledgers() as ours, marks_of(cluster) as marks:
        lacking, held = known[0].ledger, known[3].ledger
        replaced, victim, _ = (await ours.metadata_of(lacking)).fragments[0].ensemble
        spare = await add_spare(cluster)
        await name_instead(cluster, ours, lacking, replaced, spare)
        auditor = await JavaRecovery.start(java, cluster, "auditor")
        try:
            await until_marked(marks, {lacking: {spare}})
            await kill(cluster, victim)
            wanted: dict[LedgerId, set[str]] = {kept.ledger: {victim} for kept in known}
            wanted[lacking] = {spare, victim}
            await until_marked(marks, wanted)
            lock = await JavaRecovery.lock(java, cluster, held)
            async with our_workers(cluster):
                await until_marked(marks, {held: {victim}})
                assert victim in await members_of(ours, held)
                await lock.stop()
                await until_repaired(cluster, known, victim)
        finally:
            await auditor.stop()
        assert spare in await members_of(ours, lacking)
        await check_whole(java, cluster, known)


async def test_javas_worker_repairs_what_our_auditor_marks(
    java: JavaPeer, cluster: JavaCluster, tmp_path: Path
) -> None:
    """But not a ledger that we have locked. Java's shell lists our auditor's marks."""
    async with known_ledgers(java, cluster) as known, cluster.ledgers() as ours, marks_of(cluster) as marks:
        held, other = known[0].ledger, known[3].ledger
        victim = (await ours.metadata_of(held)).fragments[0].ensemble[1]
        await add_spare(cluster)
        async with our_auditor(cluster):
            await kill(cluster, victim)
            await until_marked(marks, {kept.ledger: {victim} for kept in known})
            listed = await asyncio.to_thread(
                run_shell, cluster, tmp_path, "listunderreplicated", "-missingreplica", victim, "-printmissingreplica"
            )
            assert all(str(kept.ledger) in listed for kept in known) and victim in listed
            assert await marks.hold(held)
            worker = await JavaRecovery.start(java, cluster, "worker")
            try:
                await until_marked(marks, {held: {victim}})
                assert victim in await members_of(ours, held)
                await marks.release(held)
                await marks.mark(other, {victim}, 5)  # Java's worker looks for unlocked ledgers when marks change
                await until_repaired(cluster, known, victim)
            finally:
                await worker.stop()
        await check_whole(java, cluster, known)


async def test_java_and_we_repair_one_cluster_at_the_same_time(
    java: JavaPeer, cluster: JavaCluster, tmp_path: Path
) -> None:
    """First under Java's auditor; when Java's AutoRecovery ends, under ours. Both kinds of workers run each time."""
    process = our_process(cluster, tmp_path / "recovery")

    async def until_auditor(name: str) -> None:
        async def holds() -> bool:
            with suppress(NoNodeError):
                return decode_holder((await zk.get(PATHS.underreplication.election, fresh=True))[0]) == name
            return False

        await until(holds)

    async with await ZooKeeper.connect(cluster.hosts) as zk, known_ledgers(java, cluster) as known:
        async with cluster.ledgers() as ours:
            first = min(await members_of(ours, known[0].ledger))
        await add_spare(cluster)
        autorecovery = await JavaRecovery.start(java, cluster, "both")
        try:
            await until_auditor(JAVA_NAME)
            process.start()
            await kill(cluster, first)
            await until_repaired(cluster, known, first)
            await until_auditor(JAVA_NAME)
            await autorecovery.stop()
            await until_auditor(OUR_NAME)
            autorecovery = await JavaRecovery.start(java, cluster, "both")
            async with known_ledgers(java, cluster) as more:
                async with cluster.ledgers() as ours:
                    second = min(await members_of(ours, more[0].ledger))
                await add_spare(cluster)
                await kill(cluster, second)
                await until_repaired(cluster, known + more, first, second)
                await until_auditor(OUR_NAME)
                await check_whole(java, cluster, known + more)
        finally:
            await autorecovery.stop()
            assert await asyncio.to_thread(process.stop) == 0


async def test_javas_shell_decommissions_a_bookie_of_ours(java: JavaPeer, cluster: JavaCluster, tmp_path: Path) -> None:
    """With a recovery process of ours, on a cluster without Java's AutoRecovery."""
    process = our_process(cluster, tmp_path / "recovery")
    async with (
        await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as metadata,
        known_ledgers(java, cluster) as known,
    ):
        with suppress(NoNodeError):  # as if no auditor of Java had ever run
            await metadata.zookeeper.delete(PATHS.underreplication.lost_bookie_delay, ANY_VERSION)
        async with cluster.ledgers() as ours:
            victim = BookieId(min(await members_of(ours, known[0].ledger)))
        await add_spare(cluster)
        process.start()
        try:
            assert await asyncio.to_thread(cluster.named(victim).stop) == 0
            assert OUR_NAME in await asyncio.to_thread(run_shell, cluster, tmp_path, "whoisauditor")
            await asyncio.to_thread(run_shell, cluster, tmp_path, "decommissionbookie", "-bookieid", victim)
        finally:
            assert await asyncio.to_thread(process.stop) == 0
        await until_repaired(cluster, known, victim)
        assert isinstance(await metadata.read_cookie(victim), Missing)
        await check_whole(java, cluster, known)
