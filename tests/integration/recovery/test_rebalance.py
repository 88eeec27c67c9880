"""Ledgers move to a bookie that was added, on real bookies; also when the command is killed in the middle."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter

import pytest

from dlog.io.ledgers import Ledgers
from dlog.io.rebalance import EVEN, LOCKED, MARKED, NO_MOVE, Rebalanced, RebalanceProgress, rebalance
from dlog.io.zookeeper import ANY_VERSION
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.ledger.balance import Move
from dlog.model.ids import BookieId, LedgerId
from dlog.model.quorum import Quorum
from tests.integration.cluster import BookieCluster
from tests.integration.recovery.polling import LIMIT_S

pytestmark = pytest.mark.zookeeper

E333 = Quorum(ensemble=3, write=3, ack=3)
PAYLOAD = b"x" * 4096
ENTRIES = 10
LEDGERS = 12


async def write(ledgers: Ledgers) -> LedgerId:
    writer = await ledgers.create(E333)
    for _ in range(ENTRIES):
        await writer.append((PAYLOAD,))
    await writer.close()
    return writer.ledger_id


async def copies(ledgers: Ledgers, closed: list[LedgerId]) -> Counter[BookieId]:
    """How many of these ledgers name each bookie; all of them are whole."""
    found = Counter[BookieId]()
    for ledger in closed:
        (fragment,) = (await ledgers.metadata_of(ledger)).fragments
        assert len({*fragment.ensemble}) == 3
        found.update(fragment.ensemble)
        assert (await ledgers.verify(ledger)).ranges == ()
    return found


def command(cluster: BookieCluster, *flags: str) -> list[str]:
    of = ("--zookeeper", cluster.hosts, "--namespace", cluster.namespace)
    return [sys.executable, "-m", "dlog", "cluster", "rebalance", "--until", "0", *flags, *of]


async def test_ledgers_move_to_an_empty_bookie_and_the_next_run_continues_a_killed_one(cluster: BookieCluster) -> None:
    async with (
        cluster.ledgers() as ledgers,
        await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as metadata,
        await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as of_other,
    ):
        seen: list[RebalanceProgress] = []
        moves: list[tuple[LedgerId, Move]] = []

        async def run(*, is_dry: bool = False) -> Rebalanced:
            moves.clear()
            async with asyncio.timeout(LIMIT_S):
                return await rebalance(
                    metadata, ledgers, seen.append, lambda *move: moves.append(move), until=0, is_dry=is_dry
                )

        closed = [await write(ledgers) for _ in range(LEDGERS)]
        opened = await ledgers.create(E333)
        await opened.append((PAYLOAD,))
        assert (await run()).reason == EVEN, "three bookies with all copies each"
        new = BookieId((await asyncio.to_thread(cluster.add)).id)

        planned = await run(is_dry=True)
        assert (planned.ledgers, planned.reason, planned.spread) == (9, EVEN, 0)
        assert planned.moved_bytes == 9 * ENTRIES * len(PAYLOAD) and {move.target for _, move in moves} == {new}
        assert (await copies(ledgers, closed))[new] == 0, "a dry run moves nothing"

        killed = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            command(cluster, "--rate", "100KiB"), stderr=subprocess.PIPE, text=True
        )
        assert killed.stderr is not None
        said = [await asyncio.to_thread(killed.stderr.readline) for _ in range(2)]
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        killed.stderr.close()
        assert said[0].startswith("0 ledgers moved, 0 bytes, spread ") and said[1].endswith(": copying\n")
        moved = (await copies(ledgers, closed))[new]
        assert 0 < moved < 9, "in the middle"

        marks = of_other.underreplication("other:1")
        left = [ledger for ledger in closed if new not in (await ledgers.metadata_of(ledger)).fragments[0].ensemble]
        await marks.mark(left[0], {new}, 5)
        assert await marks.hold(left[1])
        for ledger in await marks.locked() - {left[1]}:  # as ZooKeeper does when the killed session ends
            await metadata.zookeeper.delete(LedgerPaths().underreplication.lock(ledger), ANY_VERSION)
        most = await run()
        assert most.skipped.keys() <= {LOCKED, MARKED} and most.ledgers == 9 - moved
        for ledger in left[:2]:
            (fragment,) = (await ledgers.metadata_of(ledger)).fragments
            assert new not in fragment.ensemble, "it lacks copies, or another process works on it"
        await marks.release(left[1])
        now = await copies(ledgers, closed)
        assert {*now.values()} == {9} and now[new] == 9, "the second run went on"

        again = subprocess.run(  # noqa: ASYNC221 - nothing else runs meanwhile
            command(cluster, "--json"), capture_output=True, text=True, check=True
        )
        told = json.loads(again.stdout)
        assert (told["ledgers"], told["reason"]) == (0, EVEN)
        (fragment,) = (await ledgers.metadata_of(opened.ledger_id)).fragments
        assert new not in fragment.ensemble, "an open ledger stays"
        await opened.append((PAYLOAD,))
        await opened.close()
        assert (await run()).reason == NO_MOVE
