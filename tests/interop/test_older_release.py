"""Apache BookKeeper 4.17, older than the release of all other modules: its client and one of its bookies beside bookies
of dlog, in ensembles of both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlog.errors import FencedError
from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.model.ids import LedgerId
from dlog.model.quorum import Quorum
from loadtest.systems.java import OLD_BOOKKEEPER
from tests.interop.java_bookies import JavaCluster, start_java
from tests.interop.java_peer import JavaLedgers, JavaPeer, need_java
from tests.interop.payloads import numbered, read_all, sized, wait_whole

pytestmark = pytest.mark.java

V2, V3 = False, True


@pytest.fixture(scope="module")
def old_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    """The JVM with the clients of the older release."""
    need_java(OLD_BOOKKEEPER)
    peer = JavaPeer.start(tmp_path_factory.mktemp("java"), OLD_BOOKKEEPER)
    yield peer
    peer.close()


@pytest.fixture(scope="module")
def cluster(
    old_java: JavaPeer, zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaCluster]:
    """One bookie of the older release and two of ours: an ensemble of three has all of them."""
    made = start_java(zookeeper, tmp_path_factory.mktemp("bookies"), java=1, ours=2, jars=OLD_BOOKKEEPER)
    yield made
    made.close()


@pytest.mark.parametrize("wire", [V2, V3])
async def test_what_the_older_release_closes_both_read(old_java: JavaPeer, cluster: JavaCluster, wire: bool) -> None:
    theirs = JavaLedgers(old_java, cluster.hosts, v3=wire)
    written = [*numbered("java", 0, 150), sized(1_044_480), b""]
    writer = await theirs.create()
    assert await writer.add(written) == list(range(152))
    assert await writer.close() == 151
    assert await theirs.read_all(writer.id) == written
    async with cluster.ledgers() as ours:
        assert await read_all(ours, writer.id) == written
        await wait_whole(ours, writer.id)


@pytest.mark.parametrize("wire", [V2, V3])
async def test_the_older_release_fences_and_recovers_our_writer(
    old_java: JavaPeer, cluster: JavaCluster, wire: bool
) -> None:
    theirs = JavaLedgers(old_java, cluster.hosts, v3=wire)
    written = numbered("ours", 0, 60)
    async with cluster.ledgers() as ours:
        writer = await ours.create(Quorum())
        for payload in written:
            await writer.append((payload,))
        assert await theirs.read_all(writer.ledger_id, recover=True) == written
        with pytest.raises(FencedError):
            await writer.append((b"too late",))


@pytest.mark.parametrize("wire", [V2, V3])
async def test_we_fence_and_recover_a_writer_of_the_older_release(
    old_java: JavaPeer, cluster: JavaCluster, wire: bool
) -> None:
    theirs = JavaLedgers(old_java, cluster.hosts, v3=wire)
    written = numbered("java", 0, 60)
    writer = await theirs.create()
    assert await writer.add(written) == list(range(60))
    async with cluster.ledgers() as ours:
        assert (await ours.recover(LedgerId(writer.id))).last_entry == 59
        assert not any(isinstance(answer, int) for answer in await writer.add([b"too late"]))
        assert await read_all(ours, writer.id) == written
