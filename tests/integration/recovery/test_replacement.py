"""One bookie is put in the place of another, on real bookies: while the old one runs, and after it is lost; also when
the command is killed in the middle."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

import pytest

from dlog.errors import InvalidRequestError, MetadataUnavailableError
from dlog.io.bookie_replacement import Replacement, ReplacementProgress, replace_bookie
from dlog.io.ledger_handles import LedgerWriter
from dlog.io.ledgers import Ledgers
from dlog.io.zookeeper import ANY_VERSION
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_protocol import NoNodeError
from dlog.ledger.repair import Replaced
from dlog.machine import Missing
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment
from dlog.model.quorum import Quorum
from dlog.wire.bookie_info import encode_address
from tests.integration.cluster import BookieCluster
from tests.integration.recovery.polling import LIMIT_S, until

pytestmark = pytest.mark.zookeeper

E333 = Quorum(ensemble=3, write=3, ack=3)
PAYLOAD = b"x" * 4096
ENTRIES = 20
QUICK_S = 0.05


async def write(ledgers: Ledgers) -> LedgerWriter:
    writer = await ledgers.create(E333)
    for _ in range(ENTRIES):
        await writer.append((PAYLOAD,))
    return writer


async def write_closed(ledgers: Ledgers, count: int) -> list[LedgerId]:
    found = []
    for _ in range(count):
        writer = await write(ledgers)
        await writer.close()
        found.append(writer.ledger_id)
    return found


class Run:
    """A replacement that runs. `reasons`: what it waited for, in order."""

    def __init__(self, metadata: ZooKeeperMetadata, ledgers: Ledgers, old: BookieId, new: BookieId) -> None:
        self.seen: list[ReplacementProgress] = []
        self.elsewhere: dict[LedgerId, Replaced] = {}
        self._call = replace_bookie(
            metadata, ledgers, old, new, self.seen.append, self._note, open_grace_s=4 * QUICK_S, look_s=QUICK_S
        )

    def _note(self, ledger: LedgerId, made: Replaced) -> None:
        self.elsewhere[ledger] = made

    async def result(self) -> Replacement:
        async with asyncio.timeout(LIMIT_S):
            return await self._call

    async def until_waiting(self, reason: str) -> None:
        async def holds() -> bool:
            return bool(self.seen) and reason in self.seen[-1].reason

        await until(holds)


async def check_complete(metadata: ZooKeeperMetadata, ledgers: Ledgers, old: BookieId) -> None:
    """The old bookie is gone from everywhere, and all ledgers have all their copies."""
    async for ledger in metadata.ledgers():
        value = await ledgers.metadata_of(ledger)
        assert all(old not in fragment.ensemble for fragment in value.fragments)
        assert value.is_closed and value.last_entry == ENTRIES - 1, value
        assert (await ledgers.verify(ledger)).ranges == ()
    assert isinstance(await metadata.read_cookie(old), Missing)
    marks = metadata.underreplication("test")
    assert old not in await marks.registered()

    async def is_nothing_locked() -> bool:  # a lock of a killed command stays until its session ends
        return not await marks.locked()

    await until(is_nothing_locked)


async def test_a_bookie_that_runs_is_replaced_and_its_writers_go_on(cluster: BookieCluster) -> None:
    old = BookieId(cluster.bookies[0].id)
    async with (
        cluster.ledgers() as ledgers,
        await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as metadata,
    ):
        closed = await write_closed(ledgers, 6)
        writer = await ledgers.create(E333)  # of the three bookies there are
        await writer.append((PAYLOAD,))
        new = BookieId((await asyncio.to_thread(cluster.add)).id)
        with pytest.raises(InvalidRequestError, match="cannot replace itself"):
            await Run(metadata, ledgers, old, old).result()
        with pytest.raises(InvalidRequestError, match="not registered as writable"):
            await Run(metadata, ledgers, old, BookieId("nobody:1")).result()
        assert await Run(metadata, ledgers, BookieId("nobody:1"), new).result() == Replacement(0, 0, 0, was_known=False)
        run = Run(metadata, ledgers, old, new)
        async with asyncio.TaskGroup() as tasks:
            replacing = tasks.create_task(run.result())
            await run.until_waiting("their writers use the bookie: stop it")
            assert (run.seen[0].ledgers, run.seen[-1].ledgers, run.seen[-1].total) == (7, 1, 7)
            for ledger in closed:
                (fragment,) = (await ledgers.metadata_of(ledger)).fragments
                assert old not in fragment.ensemble and new in fragment.ensemble
            await writer.append((PAYLOAD,))  # not fenced
            assert not isinstance(await metadata.read_cookie(old), Missing)
            await asyncio.to_thread(cluster.bookies[0].stop)
            for _ in range(ENTRIES - 2):
                await writer.append((PAYLOAD,))  # its writer takes the other bookie
            await writer.close()
        assert replacing.result() == Replacement(7, 7, 0)
        assert run.elsewhere == {}
        await check_complete(metadata, ledgers, old)


async def test_a_killed_command_is_run_again_after_the_old_bookie_is_lost(cluster: BookieCluster) -> None:
    lost = cluster.bookies[0]
    old = BookieId(lost.id)
    async with (
        cluster.ledgers() as ledgers,
        await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as metadata,
    ):
        closed = await write_closed(ledgers, 20)
        new = BookieId((await asyncio.to_thread(cluster.add)).id)
        await asyncio.to_thread(cluster.add)  # for ensembles that hold the new one already
        together = await write_together(metadata, ledgers, old, new)
        command = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [
                *(sys.executable, "-m", "dlog", "bookie", "replace", old, new, "--rate", "1MiB"),
                *("--zookeeper", cluster.hosts, "--namespace", cluster.namespace),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert command.stderr is not None
        said = [await asyncio.to_thread(command.stderr.readline) for _ in range(2)]
        command.send_signal(signal.SIGKILL)
        command.wait()
        command.stderr.close()
        assert said[0] == "0 of 21 ledgers done: copying\n" and "of 21 ledgers done: copying" in said[1]
        named = [ledger for ledger in closed if old in await members(ledgers, ledger)]
        assert 0 < len(named) < len(closed), "in the middle"
        for ledger in closed:
            assert (await ledgers.verify(ledger)).ranges == ()

        left_open = (await write(ledgers)).ledger_id  # by a writer that does nothing more
        while old not in await members(ledgers, left_open):
            await ledgers.recover(left_open)
            left_open = (await write(ledgers)).ledger_id
        both = {ledger for ledger in (together, left_open) if {old, new} <= await members(ledgers, ledger)}
        await asyncio.to_thread(lost.kill)
        await asyncio.to_thread(shutil.rmtree, lost.directory)
        with suppress(NoNodeError):  # as ZooKeeper does when its session ends, after 10 s
            await metadata.zookeeper.delete(f"{LedgerPaths().available}/{old}", ANY_VERSION)
        run = Run(metadata, ledgers, old, new)
        result = await run.result()
        assert result.elsewhere == len(run.elsewhere) and set(run.elsewhere) <= both
        assert result.moved >= len(named)
        await check_complete(metadata, ledgers, old)
        again = Run(metadata, ledgers, old, new)
        assert await again.result() == Replacement(0, 0, 0, was_known=False), "again: harmless"


async def members(ledgers: Ledgers, ledger: LedgerId) -> set[BookieId]:
    return {bookie for fragment in (await ledgers.metadata_of(ledger)).fragments for bookie in fragment.ensemble}


async def write_together(metadata: ZooKeeperMetadata, ledgers: Ledgers, old: BookieId, new: BookieId) -> LedgerId:
    """A closed ledger with both bookies in its ensemble; the others that were tried are deleted."""
    while True:
        (ledger,) = await write_closed(ledgers, 1)
        if {old, new} <= await members(ledgers, ledger):
            return ledger
        await ledgers.delete(ledger)


async def test_it_waits_while_metadata_is_out_of_reach(zookeeper_hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster_init(zookeeper_hosts, "/dlog")
    old, new = BookieId("a:1"), BookieId("b:1")
    async with await ZooKeeperMetadata.connect(zookeeper_hosts, "/dlog") as metadata:
        await metadata.write_cookie(old, "5\n", None)
        await metadata.zookeeper.create(f"{LedgerPaths().available}/{new}", encode_address("127.0.0.1", 1))
        ledgers, scans = metadata.ledgers, 0

        async def failing() -> AsyncIterator[LedgerId]:
            nonlocal scans
            scans += 1
            if scans in (2, 3):
                raise MetadataUnavailableError("no ZooKeeper")
            async for ledger in ledgers():
                yield ledger

        monkeypatch.setattr(metadata, "ledgers", failing)
        run = Run(metadata, cast(Ledgers, None), old, new)
        assert await run.result() == Replacement(0, 0, 0)
        assert "metadata is out of reach: no ZooKeeper" in [now.reason for now in run.seen]
        assert scans == 4
        assert isinstance(await metadata.read_cookie(old), Missing)


async def test_where_the_new_bookie_is_a_member_another_one_is_named(cluster: BookieCluster) -> None:
    await asyncio.to_thread(cluster.add)
    old, new = (BookieId(bookie.id) for bookie in cluster.bookies[:2])
    async with (
        cluster.ledgers() as ledgers,
        await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as metadata,
        await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as of_other,
    ):
        ledger = await write_together(metadata, ledgers, old, new)
        (spare,) = {BookieId(bookie.id) for bookie in cluster.bookies} - await members(ledgers, ledger)
        marks = of_other.underreplication("other:1")
        await marks.prepare()
        await marks.mark(ledger, {old}, 5)
        await marks.disable()
        run = Run(metadata, ledgers, old, new)
        async with asyncio.TaskGroup() as tasks:
            replacing = tasks.create_task(run.result())
            await run.until_waiting("repair is switched off")
            assert await marks.hold(ledger) and not await marks.hold(ledger)
            await marks.enable()
            await run.until_waiting("another process is copying them")
            assert old in await members(ledgers, ledger)
            await marks.release(ledger)
            await run.until_waiting("stop the bookie, then its registration and its cookie go")
            await asyncio.to_thread(cluster.bookies[0].stop)
        assert replacing.result() == Replacement(1, 0, 1)
        assert run.elsewhere == {ledger: Replaced(EntryId(0), old, spare)}
        assert (await marks.summary()).ledgers == 0, "its mark is done with"
        value = await ledgers.metadata_of(ledger)
        assert value.fragments == (Fragment(EntryId(0), value.fragments[0].ensemble),)
        await check_complete(metadata, ledgers, old)
