"""One stream that dlog and Java write in turn: each takes over from the other, and every record is checked.

The fence of BookKeeper's recovery and the compare-and-set of the segment list decide who writes. The lock of
DistributedLog, of which dlog's owner holds a member too, only shows who should. A take-over by Java races with other
claims: the errors that its library documents for a lost race are tried again, and no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import dlog
from dlog.io.zookeeper import ZooKeeper
from dlog.model.dlsn import DLSN, DLSN_FIRST
from tests.integration.proxies.processes import ProxyCluster
from tests.interop.java_bookies import JavaCluster
from tests.interop.java_peer import JavaError, JavaLedgers, JavaLogs, JavaPeer, JavaWriter
from tests.interop.streams import AT_ONCE, BY_TIMER, Seen, java_read, payloads_of, we_read

pytestmark = pytest.mark.java

#: held by another; the lock's session; a compare-and-set of metadata that another writer won
RETRIED = {"OwnershipAcquireFailedException", "LockingException", "LockSessionExpiredException", "ZKException"}
#: errors of a Java writer that was fenced, or that lost its lock
LOST = {"BKTransmitException", "LockingException", "OwnershipAcquireFailedException", "WriteException", "ZKException"}
LOST |= {"WriteCancelledException", "AlreadyClosedException"}
LOST |= {"NodeExistsException", "BadVersionException"}  # it tries to begin the next segment, which exists
NO_LOCK = {"writeLockEnabled": False}
TXID = 10**15  # Java's txids are given; dlog's are the clock in ms, which must not pass them


@pytest.fixture
def own_logs(java: JavaPeer, own_proxies: ProxyCluster) -> JavaLogs:
    return JavaLogs(java, own_proxies.bookies.hosts, own_proxies.namespace)


async def java_takes(logs: JavaLogs, stream: str, first: tuple[int, bytes], **conf: object) -> tuple[JavaWriter, DLSN]:
    """A Java writer that has written its first record, within a bounded number of tries."""
    async with asyncio.timeout(100):
        while True:
            try:
                writer = await logs.writer(stream, **conf)
            except JavaError as error:
                if error.kind not in RETRIED:
                    raise
            else:
                (written,) = await writer.try_write([first])
                if isinstance(written, DLSN):
                    return writer, written
                assert written.kind in RETRIED, written
                await writer.abort()
            await asyncio.sleep(0.2)


async def judge(
    client: dlog.Client,
    logs: JavaLogs,
    stream: str,
    acknowledged: Sequence[tuple[DLSN, bytes]],
    txids_rise: bool = True,
) -> list[Seen]:
    """Check that both readers read the same: every acknowledged record at its position, once, and nothing else."""
    seen = await we_read(client, stream)
    assert [(dlsn, payload) for dlsn, _, payload in seen] == list(acknowledged)
    if txids_rise:
        assert [txid for _, txid, _ in seen] == sorted(txid for _, txid, _ in seen)
    assert java_read(await logs.read(stream, len(seen), positionGapDetectionEnabled=True)) == seen
    return seen


async def java_reads_until(logs: JavaLogs, stream: str, payload: bytes) -> list[Seen]:
    """Everything that Java's reader reads from the first record to the one with this payload."""
    reader = await logs.reader(stream)
    try:
        seen: list[Seen] = []
        while not seen or seen[-1][2] != payload:
            seen += java_read(await reader.take(1))
        return seen
    finally:
        await reader.close()


async def wait_in_progress(client: dlog.Client, stream: str) -> int:
    """Wait for a segment in progress of dlog's owner, which a truncation without effect makes it begin; returns its
    number."""
    async with asyncio.timeout(60):
        await client.truncate(stream, DLSN_FIRST)
        while True:
            segments = (await client.stat(stream)).segments
            if segments and not segments[-1].is_completed:
                return segments[-1].number
            await asyncio.sleep(0.1)


async def wait_allocated(cluster: JavaCluster, proxies: ProxyCluster, stream: str) -> None:
    """Wait until metadata names a ledger that was created in advance."""
    async with asyncio.timeout(60), await ZooKeeper.connect(cluster.hosts) as zk:
        while True:
            if (await zk.get(f"{proxies.namespace}/{stream}/<default>/allocation"))[0]:
                return
            await asyncio.sleep(0.1)


class Turns:
    """Records written in turn, with the acknowledged ones in the order of the acknowledgements."""

    def __init__(self, client: dlog.Client, stream: str) -> None:
        self.acknowledged: list[tuple[DLSN, bytes]] = []
        self.txid = TXID
        self._client = client
        self._stream = stream
        self._number = 0

    def next(self, maker: bytes) -> bytes:
        self._number += 1
        return b"%s-%d" % (maker, self._number)

    def java_record(self) -> tuple[int, bytes]:
        self.txid += 10
        return self.txid, self.next(b"java")

    async def ours(self, count: int) -> None:
        for _ in range(count):
            payload = self.next(b"ours")
            given = None if self._number % 2 else self.txid  # the owner assigns the last one again: its clock is behind
            place = await self._client.append(self._stream, payload, txid=given)
            self.acknowledged.append((place, payload))

    async def quiet(self, logs: JavaLogs) -> None:
        """Wait until bookies alone show all that dlog wrote: its owner then has nothing more to write, and no fence to
        notice."""
        await logs.read(self._stream, len(self.acknowledged))

    async def java(self, writer: JavaWriter, count: int) -> None:
        records = [self.java_record() for _ in range(count)]
        places = await writer.write(records)
        self.acknowledged += [(place, payload) for place, (_, payload) in zip(places, records, strict=True)]

    async def java_takes(self, logs: JavaLogs, **conf: object) -> JavaWriter:
        record = self.java_record()
        writer, place = await java_takes(logs, self._stream, record, **conf)
        self.acknowledged.append((place, record[1]))
        return writer


@pytest.mark.parametrize("way", [AT_ONCE, BY_TIMER], ids=["at-once", "by-timer"])
async def test_turns_with_the_stream_handed_back_each_time(
    proxies: ProxyCluster, logs: JavaLogs, stream: str, way: dict[str, object]
) -> None:
    async with dlog.connect(proxies.target) as client:
        await client.create(stream)
        turns = Turns(client, stream)
        for _ in range(3):
            await turns.ours(20)
            await client.hand_over(stream)
            writer = await turns.java_takes(logs, **way)
            await turns.java(writer, 20)
            await writer.close()
        await turns.ours(5)
        await client.hand_over(stream)
        await judge(client, logs, stream, turns.acknowledged)
        found = await logs.read(stream, len(turns.acknowledged))
        assert [record.sequence for record in found] == list(range(len(found)))
        assert (await logs.describe(stream, records=True))["count"] == len(found)


async def test_java_hears_that_our_owner_holds_the_lock(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    async with dlog.connect(proxies.target) as client:
        await client.create(stream)
        await client.append(stream, b"ours")
        with pytest.raises(JavaError) as refusal:
            await logs.writer(stream, **AT_ONCE)
        assert refusal.value.kind == "OwnershipAcquireFailedException"
        location = (await client.owner(stream)).location
        assert f"the current owner is 1;0;{location}" in str(refusal.value)
        await client.append(stream, b"still ours")
        assert payloads_of(await we_read(client, stream)) == [b"ours", b"still ours"]


async def test_java_takes_over_from_an_owner_that_lives_which_gets_nothing_acknowledged_below(
    proxies: ProxyCluster, logs: JavaLogs, stream: str
) -> None:
    """Java ignores the lock, so at once; dlog's owner notices the fence with its next entry and then takes the stream
    back."""
    async with dlog.connect(proxies.target) as client:
        await client.create(stream)
        turns = Turns(client, stream)
        for _ in range(3):
            await turns.ours(20)
            ours_last = turns.acknowledged[-1][0]
            await turns.quiet(logs)
            writer = await turns.java_takes(logs, **AT_ONCE, **NO_LOCK)
            await turns.java(writer, 20)
            assert turns.acknowledged[-1][0].segment > ours_last.segment
            await turns.ours(20)  # fenced: recovers, and goes on behind Java's records
            assert turns.acknowledged[-1][0].segment > turns.acknowledged[-21][0].segment
            refused = await writer.try_write([turns.java_record()])
            assert isinstance(refused[0], JavaError) and refused[0].kind in LOST, refused
            await writer.abort()
        await client.hand_over(stream)
        await judge(client, logs, stream, turns.acknowledged)


async def test_java_takes_over_from_an_owner_killed_in_mid_write(
    own_proxies: ProxyCluster, own_logs: JavaLogs, stream: str
) -> None:
    """Java waits for the lock until the session of the dead owner has ended; every acknowledged record is there."""
    async with dlog.connect(own_proxies.target) as client:
        await client.create(stream)
        payloads = [b"ours-%d" % i for i in range(400)]
        # tasks without a group: they are cancelled with the owner, and each is checked below
        appends = [asyncio.ensure_future(client.append(stream, payload)) for payload in payloads]  # noqa: TID251
        await appends[100]
        for proxy in own_proxies.writers:
            proxy.kill()
        for append in appends:
            append.cancel()
        await asyncio.wait(appends)
        confirmed = [append.result() for append in appends if not append.cancelled() and append.exception() is None]
        assert len(confirmed) > 100
        writer, place = await java_takes(own_logs, stream, (TXID, b"java-0"), **AT_ONCE)
        await writer.close()
        seen = java_read(await own_logs.read(stream, len(confirmed) + 1, positionGapDetectionEnabled=True))
        assert [dlsn for dlsn, _, _ in seen[: len(confirmed)]] == confirmed
        mine = await we_read(client, stream)
        assert payloads_of(mine) == [*payloads[: len(mine) - 1], b"java-0"]
        assert mine[-1][0] == place and mine[: len(confirmed)] == seen[: len(confirmed)]


async def test_a_frozen_owner_of_ours_that_wakes_up_after_java_took_over(
    own_proxies: ProxyCluster, own_logs: JavaLogs, stream: str
) -> None:
    async with dlog.connect(own_proxies.target) as client:
        await client.create(stream)
        turns = Turns(client, stream)
        await turns.ours(20)
        await turns.quiet(own_logs)
        for proxy in own_proxies.writers:
            proxy.freeze()
        writer = await turns.java_takes(own_logs, **AT_ONCE, **NO_LOCK)
        await turns.java(writer, 20)
        last = turns.acknowledged[-1][0]
        for proxy in own_proxies.writers:
            proxy.thaw()
        await turns.ours(20)
        assert turns.acknowledged[41][0].segment > last.segment
        refused = await writer.try_write([turns.java_record()])
        assert isinstance(refused[0], JavaError) and refused[0].kind in LOST, refused
        await writer.abort()
        await client.hand_over(stream)
        await judge(client, own_logs, stream, turns.acknowledged)


async def test_java_takes_over_a_segment_that_we_began_and_did_not_write(
    proxies: ProxyCluster, logs: JavaLogs, stream: str
) -> None:
    """Java deletes an empty segment and uses its number again; dlog's live owner must not take that one for its own."""
    async with dlog.connect(proxies.target) as client:
        await client.create(stream)
        turns = Turns(client, stream)
        for _ in range(2):
            began = await wait_in_progress(client, stream)
            writer = await turns.java_takes(logs, **AT_ONCE, **NO_LOCK)
            assert turns.acknowledged[-1][0].segment == began
            await turns.java(writer, 10)
            await turns.ours(10)
            await writer.abort()
            await client.hand_over(stream)
        # what dlog's owner accepted before it noticed the fence keeps its txid, which is below Java's
        await judge(client, logs, stream, turns.acknowledged, txids_rise=False)


async def test_what_either_allocated_ahead_for_nothing_is_deleted_by_the_other(
    java: JavaPeer, java_bookies: JavaCluster, proxies: ProxyCluster, logs: JavaLogs, stream: str
) -> None:
    theirs = JavaLedgers(java, java_bookies.hosts)
    async with java_bookies.ledgers() as ledgers, dlog.connect(proxies.target) as client:
        before = {ledger async for ledger in ledgers.list()}
        await client.create(stream, segment_bytes=65_536)
        turns = Turns(client, stream)
        for _ in range(2):
            # beyond half of a segment: the next one is created in advance
            payload = turns.next(b"ours").ljust(50_000, b".")
            turns.acknowledged.append((await client.append(stream, payload), payload))
            await turns.quiet(logs)
            await wait_allocated(java_bookies, proxies, stream)
            writer = await turns.java_takes(logs, **AT_ONCE, **NO_LOCK)
            await turns.java(writer, 5)
            await turns.ours(5)
            await writer.abort()
        await client.hand_over(stream)
        await judge(client, logs, stream, turns.acknowledged)
        segments = (await logs.describe(stream))["segments"]
        kept = {segment["ledger"] for segment in segments}
        async with asyncio.timeout(60):
            while True:
                if {ledger async for ledger in ledgers.list()} - before == kept:
                    break
                await asyncio.sleep(0.2)
    for segment in segments:
        assert (await theirs.metadata(segment["ledger"]))["state"] == "CLOSED"


@pytest.mark.parametrize("way", [AT_ONCE, BY_TIMER], ids=["at-once", "by-timer"])
async def test_we_take_over_from_a_java_writer_that_lives_which_gets_nothing_acknowledged(
    proxies: ProxyCluster, logs: JavaLogs, stream: str, way: dict[str, object]
) -> None:
    await logs.create(stream)
    async with dlog.connect(proxies.target) as client:
        turns = Turns(client, stream)
        writer = await turns.java_takes(logs, **way)
        await turns.java(writer, 30)
        await turns.ours(1)
        late = await writer.try_write([turns.java_record() for _ in range(3)])
        assert all(isinstance(answer, JavaError) and answer.kind in LOST for answer in late), late
        await turns.ours(20)
        await writer.abort()
        await client.hand_over(stream)
        await judge(client, logs, stream, turns.acknowledged)


async def test_we_take_over_what_a_dead_java_writer_left(proxies: ProxyCluster, logs: JavaLogs, stream: str) -> None:
    await logs.create(stream)
    async with dlog.connect(proxies.target) as client:
        turns = Turns(client, stream)
        for _ in range(3):
            writer = await turns.java_takes(logs, **AT_ONCE)
            await turns.java(writer, 20)
            await writer.abort()
            await turns.ours(20)
            await client.hand_over(stream)
        await judge(client, logs, stream, turns.acknowledged)


async def test_we_take_over_while_java_writes_as_fast_as_it_can(
    proxies: ProxyCluster, logs: JavaLogs, stream: str
) -> None:
    """What was acknowledged to Java is in the stream, before dlog's records and in order; what was not, may be.

    A fenced Java writer tries the next segment. If it begins one before dlog does, it is acknowledged there again,
    until dlog fences that one too.
    """
    await logs.create(stream)
    async with dlog.connect(proxies.target) as client:
        turns = Turns(client, stream)
        writer = await turns.java_takes(logs, **AT_ONCE)
        records = [turns.java_record() for _ in range(3000)]
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(writer.try_write(records), name="java writes")
            await asyncio.sleep(0)
            mine = await client.append(stream, b"ours", txid=10**17)
        answers = writing.result()
        await writer.abort()
        assert all(isinstance(answer, DLSN) or answer.kind in LOST for answer in answers)
        await client.hand_over(stream)
        seen = await we_read(client, stream)
        assert seen[-1] == (mine, 10**17, b"ours")
        places = {payload: dlsn for dlsn, _, payload in seen}
        assert len(places) == len(seen), "each is there once"
        for answer, (_, payload) in zip(answers, records, strict=True):
            assert isinstance(answer, JavaError) or places[payload] == answer < mine
        numbers = [int(payload.partition(b"-")[2]) for payload in payloads_of(seen[:-1])]
        assert numbers == sorted(numbers)
        # A fenced Java writer may have completed its segment at the last entry that it knew of, or closed the ledger
        # there while a recovery, of its own library, wrote later entries again and sent them to the bookies as
        # confirmed. Java's reader trusts a bookie, also beyond the end of a closed ledger; dlog's stops at that end.
        java = await java_reads_until(logs, stream, b"ours")
        asked = zip(answers, records, strict=True)
        refused = {payload for answer, (_, payload) in asked if isinstance(answer, JavaError)}
        end = seen[-2][0]
        beyond = [record for record in java if end < record[0] < mine]
        assert {payload for _, _, payload in beyond} <= refused
        assert [record for record in java if record not in beyond] == seen


async def test_what_both_wrote_is_truncated_and_sealed_by_either(
    proxies: ProxyCluster, logs: JavaLogs, stream: str
) -> None:
    async with dlog.connect(proxies.target) as client:
        await client.create(stream)
        turns = Turns(client, stream)
        await turns.ours(20)
        await client.hand_over(stream)
        writer = await turns.java_takes(logs, **AT_ONCE)
        await turns.java(writer, 20)
        assert await writer.truncate(turns.acknowledged[10][0])
        await writer.close()
        await turns.ours(10)
        await client.truncate(stream, turns.acknowledged[25][0])
        seen = await we_read(client, stream)
        assert [(dlsn, payload) for dlsn, _, payload in seen] == turns.acknowledged[25:]
        await client.hand_over(stream)
        writer = await turns.java_takes(logs, **AT_ONCE)
        await writer.seal()
        await writer.close()
        async with asyncio.timeout(60):
            seen = await we_read(client, stream, follow=True)
        assert [(dlsn, payload) for dlsn, _, payload in seen] == turns.acknowledged[25:]
        reader = await logs.reader(stream)
        records, ended = await reader.next(1000, 60.0)
        assert ended and java_read(records) == seen
