"""A bookie is restarted under an announcement: nothing is marked while it is away, and the next loss counts again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.recovery.auditing import Auditing
from actors.recovery.options import RecoveryOptions
from dlog.events import Event
from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.ids import BookieId
from dlog.model.quorum import Quorum
from tests.integration.cluster import BookieCluster, start_bookies
from tests.integration.leftovers import remove_data
from tests.integration.recovery.polling import until

pytestmark = pytest.mark.zookeeper

QUICK = RecoveryOptions(lost_after_s=0.3, look_s=0.05, retry_s=0.1)


@pytest.fixture
def cluster(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[BookieCluster]:
    made = start_bookies(zookeeper, tmp_path / "bookies", 2)
    yield made
    made.close()
    remove_data(tmp_path)


async def test_a_restart_that_was_announced_marks_nothing(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = cluster.bookies[0]
    bookie, events, absent = BookieId(process.id), list[Event](), 0
    async with (
        cluster.ledgers() as ledgers,
        await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as metadata,
    ):
        await (await ledgers.create(Quorum(ensemble=2, write=2, ack=2))).close()
        marks = metadata.underreplication("w:1")
        await marks.prepare()
        listed = marks.registered

        async def registered() -> frozenset[BookieId]:
            nonlocal absent
            found = await listed()
            absent += bookie not in found
            return found

        async def was_long_absent() -> bool:
            return absent >= 20  # looks: more than three times the delay

        async def is_over() -> bool:
            return not await marks.pauses.current()

        async def is_marked() -> bool:
            return (await marks.summary()).bookies.keys() == {bookie}

        monkeypatch.setattr(marks, "registered", registered)
        auditing = Auditing(QUICK, metadata, marks, metadata.auditor_election("w:1"), events.append)
        async with asyncio.TaskGroup() as tasks:
            audit = tasks.create_task(auditing.run())
            await marks.pauses.begin(bookie, 600)
            await asyncio.to_thread(process.stop)
            await until(was_long_absent)
            assert (await marks.summary()).ledgers == 0
            await asyncio.to_thread(process.start)
            assert process.id == bookie
            await until(is_over)
            assert (await marks.summary()).ledgers == 0
            await asyncio.to_thread(process.stop)
            await until(is_marked)
            audit.cancel()
