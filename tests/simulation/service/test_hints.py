"""M3: a watch is a hint. Without a single event of ZooKeeper every change is found, only later, with the same
results."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

import pytest

from dlog.io.metadata import BookieInfo
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_members import MEMBERS
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Versioned
from dlog.model.ids import BookieId, EntryId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata
from tests.simulation.plan import Plan
from tests.simulation.service import drawing, hints, world
from tests.simulation.service.test_zookeeper import PORT, Rig, until

HOSTS = f"zk-0:{PORT}"
DEAF = Plan(seed=1, config={"events_lost": 1.0})
KEY = StreamKey(StreamName("orders"))


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    with hints.lost(DEAF):
        yield rig
    assert not rig.loop.dispose()


async def connect() -> ZooKeeperMetadata:
    return await ZooKeeperMetadata.connect(HOSTS, "/dlog", session_timeout_s=4.0)


def test_members_come_and_go_though_no_event_tells_of_them(rig: Rig) -> None:
    bookie = BookieInfo(BookieId("b1:3181"), "b1", 3181)

    async def story() -> None:
        await cluster_init(HOSTS, "/dlog")
        async with await connect() as one, await connect() as two:
            for act, there in ((one.register_bookie(bookie), True), (one.unregister_bookie(bookie.bookie), False)):
                await act
                begun_s = rig.loop.time()
                await until(lambda there=there: bool(two.known_members().writable) is there)  # type: ignore[misc]  # no type of a default
                assert rig.loop.time() - begun_s <= MEMBERS.again_s + 1

    rig.tell(story)


def test_a_name_that_another_used_is_ours_when_it_is_gone_though_no_event_says_so(rig: Rig) -> None:
    mine, theirs = (BookieInfo(BookieId("b1:3181"), host, 3181) for host in ("here", "there"))

    async def story() -> None:
        await cluster_init(HOSTS, "/dlog")
        async with await connect() as one:
            two = await connect()
            await two.register_bookie(theirs)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(one.register_bookie(mine))
                await asyncio.sleep(1.0)
                await two.close()
            assert (await one.members()).writable == {mine.bookie: mine}

    rig.tell(story)


def test_a_list_of_segments_is_read_as_it_stands_though_no_event_tells_of_its_changes(rig: Rig) -> None:
    first, second = (Segment(number=SegmentNumber(n), name=f"{n}", store="memory", first_txid=Txid(n)) for n in (1, 2))

    async def seen(metadata: ZooKeeperMetadata) -> Versioned:
        outcome = await metadata.read(KEY)
        assert isinstance(outcome, Versioned)
        return outcome

    async def story() -> None:
        await cluster_init(HOSTS, "/dlog")
        async with await connect() as one, await connect() as two:
            value = StreamMetadata(name=KEY.stream, segments=(first,), max_segment=SegmentNumber(1), owner=Owner())
            assert isinstance(await one.compare_and_set(KEY, value, None), Versioned)
            for _ in range(3):  # the second and the third find the cached list
                assert (await seen(two)).value.segments == (first,)
            done = dataclasses.replace(first, completed=True, last_entry=EntryId(0), last_txid=Txid(1), record_count=1)
            for segments in ((done,), (done, second), (second,)):
                before = await seen(one)
                changed = dataclasses.replace(before.value, segments=segments, max_segment=segments[-1].number)
                assert isinstance(await one.compare_and_set(KEY, changed, before.version), Versioned)
                assert (await seen(two)).value.segments == segments

    rig.tell(story)


@pytest.mark.parametrize("share", (0.5, 1.0))
@pytest.mark.parametrize("style", drawing.STYLES)
def test_the_service_keeps_its_promises_whatever_events_are_lost(style: str, share: float) -> None:
    for seed in range(2):
        plan = drawing.draw(seed, style)
        # events decide how soon a cut-off owner or read proxy is replaced; that it is replaced shows at the end
        config = {name: value for name, value in plan.config.items() if name not in ("silence_max_s", "unheard_max_s")}
        plan = dataclasses.replace(plan, config={**config, "events_lost": share})
        outcome = world.run(plan)
        assert not outcome.violation, f"{style} {seed}: {outcome.text}"
        assert outcome.reached["delivered"]
