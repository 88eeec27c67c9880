"""Bookies free the copies of ledgers that were moved to others: disk space comes back, and ledgers stay whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.ledgers import Ledgers
from dlog.io.rebalance import rebalance
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.ledger.balance import Move
from dlog.model.ids import BookieId, LedgerId
from tests.integration.cluster import BookieCluster, start_bookies
from tests.integration.leftovers import remove_data
from tests.integration.recovery.moving import (
    E333,
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
from tests.integration.recovery.polling import LIMIT_S

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def cluster(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[BookieCluster]:
    made = start_bookies(zookeeper, tmp_path / "bookies", 3, *FLAGS, *SMALL_LOGS)
    yield made
    made.close()
    remove_data(tmp_path)


async def named(ledgers: Ledgers, closed: list[LedgerId], bookie: BookieId) -> int:
    """How many ledgers name the bookie; all of them are whole."""
    count = 0
    for ledger in closed:
        (fragment,) = (await ledgers.metadata_of(ledger)).fragments
        count += bookie in fragment.ensemble
        compared = await ledgers.compare(ledger)
        assert not compared.doubt and (await ledgers.verify(ledger)).ranges == ()
    return count


async def test_space_comes_back_where_ledgers_were_moved_from_and_they_can_move_back(cluster: BookieCluster) -> None:
    size = ENTRIES * len(PAYLOAD)
    async with (
        cluster.ledgers(transport=PATIENT) as ledgers,
        await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as metadata,
    ):
        closed = [await write(ledgers) for _ in range(LEDGERS)]
        opened = await ledgers.create(E333)
        await opened.append((PAYLOAD,))
        old = BookieId(cluster.bookies[0].id)
        new = BookieId((await asyncio.to_thread(cluster.add)).id)

        moves: list[tuple[LedgerId, Move]] = []
        async with asyncio.timeout(LIMIT_S):
            done = await rebalance(metadata, ledgers, lambda _: None, lambda *move: moves.append(move), until=0)
        assert done.ledgers == 6 and await named(ledgers, closed, new) == 6
        for bookie in cluster.bookies[:3]:
            kept = await named(ledgers, closed, BookieId(bookie.id))
            await until_bytes(cluster, BookieId(bookie.id), (kept + 1) * size + (3 << 20), logs=LEDGERS)
        assert await named(ledgers, closed, new) == 6, "they are whole without what was freed"

        for ledger in closed:  # everything away from one bookie, then back to it
            await move(ledgers, ledger, old, new)
        assert await named(ledgers, closed, old) == 0
        await until_bytes(cluster, old, 2 * LOG_BYTES, logs=2)  # the open ledger's, and the newest
        for ledger in closed:
            await move(ledgers, ledger, new, old)
        assert await named(ledgers, closed, old) == LEDGERS, "it takes them again"
        await until_bytes(cluster, new, LOG_BYTES, logs=1)  # the newest

        cluster.bookies[0].kill()
        await asyncio.to_thread(cluster.bookies[0].start)
        async with cluster.ledgers(transport=PATIENT) as again:
            assert await named(again, closed, old) == LEDGERS
        await opened.append((PAYLOAD,))
        await opened.close()
        assert (await ledgers.verify(opened.ledger_id)).ranges == (), "an open ledger stays where it was"
