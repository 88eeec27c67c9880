"""Recovery processes of both kinds on one cluster, and the ledgers that they repair."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from actors.recovery.auditing import Auditing
from actors.recovery.options import RecoveryOptions
from actors.recovery.workers import RepairWorkers
from dlog.events import Event
from dlog.io.ledgers import Ledgers
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_underreplication import ZooKeeperUnderreplication
from dlog.model.ids import LedgerId
from dlog.model.ledger import DigestType
from dlog.model.quorum import Quorum
from tests.integration.recovery.polling import until
from tests.interop.java_bookies import JavaCluster
from tests.interop.java_peer import JavaLedgers, JavaPeer
from tests.interop.payloads import numbered, read_all

QUICK = RecoveryOptions(lost_after_s=0.3, look_s=0.05, retry_s=0.1, open_grace_s=0.3, backoff_s=0.1, backoff_max_s=0.5)
JAVA_QUICK = {
    "lostBookieRecoveryDelay": 0,
    "openLedgerRereplicationGracePeriod": 300,  # ms
    "rwRereplicateBackoffMs": 200,
    "lockReleaseOfFailedLedgerGracePeriod": 3200,  # ms; the first time 1/32 of it
    "addEntryTimeoutSec": 20,  # a slow answer on a busy machine does not mean a dead bookie
    "readEntryTimeoutSec": 20,
    "numWorkerThreads": 2,
    "numIOThreads": 2,
}
JAVA_NAME = "127.0.0.1:1"  # of Java's auditor, in its vote (tests/interop/java/Recovery.java)

PASSWORD, SECRET = b"secret", "c2VjcmV0"  # the second one as arguments of Java's commands are written
WHOLE, STRIPED = Quorum(), Quorum(ensemble=3, write=2, ack=2)
#: one ledger of each kind by each maker: quorum, digest as each side calls it, whether its writer closes it or dies
KINDS = (
    (WHOLE, DigestType.CRC32C, "CRC32C", True),
    (STRIPED, DigestType.HMAC, "MAC", True),
    (WHOLE, DigestType.CRC32C, "CRC32C", False),
)


class KnownLedger(NamedTuple):
    """A ledger, and what was written into it."""

    ledger: LedgerId
    digest: str
    payloads: list[bytes]


# ---- recovery processes ----------------------------------------------------------------------------------------------


class JavaRecovery:
    """Java's auditor, replication worker, or both (AutoRecovery), in the JVM of the peer; or the lock of a worker."""

    def __init__(self, java: JavaPeer, handle: int) -> None:
        self._java = java
        self._handle: int | None = handle

    @classmethod
    async def start(cls, java: JavaPeer, cluster: JavaCluster, part: str) -> JavaRecovery:
        """part: auditor, worker, both. Returns when it runs; an auditor was elected if no other process stood."""
        uri, conf = JavaLedgers(java, cluster.hosts).uri, {name: str(value) for name, value in JAVA_QUICK.items()}
        return cls(java, await java.ask("recovery.start", uri=uri, part=part, conf=conf))

    @classmethod
    async def lock(cls, java: JavaPeer, cluster: JavaCluster, ledger: LedgerId) -> JavaRecovery:
        """Lock a marked ledger, as a worker does that repairs it."""
        uri = JavaLedgers(java, cluster.hosts).uri
        return cls(java, await java.ask("recovery.lock", uri=uri, ledger=int(ledger)))

    async def stop(self) -> None:
        """Stop it; idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            await self._java.ask("recovery.stop", handle=handle)


@asynccontextmanager
async def our_auditor(cluster: JavaCluster) -> AsyncIterator[Auditing]:
    """Our auditor, without workers."""
    async with await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as metadata:
        marks = metadata.underreplication("ours:1")
        await marks.prepare()
        auditing = Auditing(QUICK, metadata, marks, metadata.auditor_election("ours:1"), lambda _: None)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(auditing.run(), name="our auditor")
            yield auditing
            task.cancel()


@asynccontextmanager
async def our_workers(cluster: JavaCluster) -> AsyncIterator[list[Event]]:
    """Our workers, without an auditor; yields their events."""
    events: list[Event] = []
    async with cluster.ledgers() as ledgers, marks_of(cluster, "ours:2") as marks:
        await marks.prepare()
        workers = RepairWorkers(QUICK, marks, ledgers, events.append, random.Random(1))
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(workers.run(), name="our workers")
            yield events
            task.cancel()


# ---- marks -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def marks_of(cluster: JavaCluster, name: str = "test:1") -> AsyncIterator[ZooKeeperUnderreplication]:
    """The cluster's marks and locks, in a session of their own."""
    async with await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as metadata:
        yield metadata.underreplication(name)


async def marked(marks: ZooKeeperUnderreplication) -> dict[LedgerId, set[str]]:
    """The bookies whose copies each marked ledger lacks."""
    found = [marked async for page in marks.pages() for marked in page]
    return {marked.ledger: {*map(str, marked.mark.bookies)} for marked in found if marked.mark is not None}


async def until_marked(marks: ZooKeeperUnderreplication, wanted: Mapping[LedgerId, set[str]]) -> None:
    """Wait until exactly these ledgers are marked, for exactly these bookies."""
    seen: dict[LedgerId, set[str]] = {}

    async def holds() -> bool:
        nonlocal seen
        seen = await marked(marks)
        return seen == wanted

    try:
        await until(holds)
    except TimeoutError:
        raise AssertionError(f"marked are {seen}, not {wanted}") from None


async def until_repaired(cluster: JavaCluster, known: list[KnownLedger], *lost: str) -> None:
    """Wait until no ledger names a lost bookie, and no mark and no lock is left."""
    left: list[object] = []

    async def holds() -> bool:
        left[:] = [kept.ledger for kept in known if not {*lost}.isdisjoint(await members_of(ours, kept.ledger))]
        left.extend(await marked(marks))
        left.extend(await marks.locked())
        return not left

    async with cluster.ledgers() as ours, marks_of(cluster) as marks:
        try:
            await until(holds)
        except TimeoutError:
            raise AssertionError(f"not repaired: {left}") from None


# ---- ledgers ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def known_ledgers(java: JavaPeer, cluster: JavaCluster, entries: int = 40) -> AsyncIterator[list[KnownLedger]]:
    """A ledger of each kind by our writer and by Java's on v2 and on v3; deleted at the end."""
    found: list[KnownLedger] = []
    async with cluster.ledgers() as ours:
        for quorum, digest, name, is_closed in KINDS:
            writer = await ours.create(quorum, digest=digest, password=PASSWORD)
            payloads = numbered("ours", 100 * len(found), entries)
            for added in [writer.append((payload,)) for payload in payloads]:
                await added
            await (writer.close() if is_closed else writer.abandon())
            found.append(KnownLedger(writer.ledger_id, name, payloads))
        for v3 in (False, True):
            theirs = JavaLedgers(java, cluster.hosts, v3=v3)
            for quorum, _, name, is_closed in KINDS:
                made = await theirs.create(
                    ensemble=quorum.ensemble, write=quorum.write, ack=quorum.ack, digest=name, password=SECRET
                )
                payloads = numbered("java", 100 * len(found), entries)
                assert await made.add(payloads) == list(range(entries))
                if is_closed:
                    await made.close()
                found.append(KnownLedger(LedgerId(made.id), name, payloads))
        yield found
        for kept in found:
            await ours.delete(kept.ledger)


async def members_of(ours: Ledgers, ledger: LedgerId) -> set[str]:
    """Every bookie that the ledger's metadata names."""
    return {str(bookie) for fragment in (await ours.metadata_of(ledger)).fragments for bookie in fragment.ensemble}


async def check_whole(java: JavaPeer, cluster: JavaCluster, known: list[KnownLedger]) -> None:
    """Every ledger is closed and has every copy, and both clients read what was written."""
    theirs = JavaLedgers(java, cluster.hosts, v3=True)
    async with cluster.ledgers() as ours:
        for kept in known:
            assert (await ours.metadata_of(kept.ledger)).is_closed, "repaired to its end"
            assert not (await ours.verify(kept.ledger)).ranges, f"ledger {kept.ledger}"
            assert await read_all(ours, kept.ledger) == kept.payloads
            assert await theirs.read_all(kept.ledger, digest=kept.digest, password=SECRET) == kept.payloads
