"""When a proxy should be sent requests, for given times, and what its HTTP server tells of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from typing import cast

from dlog.events import Event, ObjectsOutOfReach, TopicsOutOfReach
from dlog.io.kafka_settings import KafkaOptions
from dlog.io.kafka_store import open_kafka_store
from dlog.io.metadata import BookieInfo
from dlog.io.s3_direct_store import open_s3_direct_store
from dlog.model.ids import BookieId
from dlog.stores.s3_direct.options import ObjectsOptions
from proxies.health import Health, Readiness
from proxies.write.options import WriteOptions
from proxies.write.server import WriteProxy
from proxies.write.store_check import check_store, checks_of
from tests.memory_metadata import MemoryMetadata
from tests.memory_store import MemoryStore, MemoryStoreState
from tests.ports import free_port


def test_it_is_ready_from_the_first_service_to_the_drain() -> None:
    readiness = Readiness(60.0)
    assert readiness.obstacle(0.0) == "starting"
    readiness.serving()
    assert readiness.obstacle(1.0) is None
    readiness.draining()
    assert readiness.obstacle(2.0) == "draining"


def test_trouble_counts_once_it_has_lasted_and_is_forgotten_when_it_is_over() -> None:
    readiness = Readiness(60.0)
    readiness.serving()
    readiness.note("metadata out of reach", True, 100.0)
    readiness.note("metadata out of reach", True, 130.0)
    assert readiness.obstacle(159.9) is None
    assert readiness.troubles(159.0) == {"metadata out of reach": 59.0}
    assert readiness.obstacle(160.0) == "metadata out of reach for 60 s"
    readiness.note("metadata out of reach", False, 161.0)
    assert readiness.obstacle(161.0) is None
    readiness.note("metadata out of reach", True, 162.0)
    assert readiness.obstacle(200.0) is None


def test_it_is_not_ready_before_an_expected_trouble_was_over_once() -> None:
    readiness = Readiness(60.0)
    readiness.serving()
    readiness.expect_over("streams in objects are not served")
    readiness.note("streams in objects are not served", True, 1.0)
    assert readiness.obstacle(1.0) == "starting: streams in objects are not served"
    readiness.note("streams in objects are not served", False, 2.0)
    assert readiness.obstacle(2.0) is None
    readiness.note("streams in objects are not served", True, 3.0)
    assert readiness.obstacle(4.0) is None, "from now on only trouble that lasts counts"
    assert readiness.obstacle(63.0) == "streams in objects are not served for 60 s"


def test_trouble_without_which_appends_go_on_is_only_told() -> None:
    readiness = Readiness(60.0)
    readiness.serving()
    readiness.note("objects out of reach", True, 100.0, is_needed=False)
    assert readiness.obstacle(500.0) is None
    assert readiness.troubles(500.0) == {"objects out of reach": 400.0}


class Times:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_ms(self) -> int:
        return int(self.now_s * 1000)


async def test_a_proxy_that_writes_is_unready_once_no_bookie_can_be_written_to_for_long() -> None:
    metadata, times = MemoryMetadata(), Times()
    bookie = BookieInfo(BookieId("127.0.0.1:3181"), "127.0.0.1", 3181)
    await metadata.register_bookie(bookie)
    writer = Health(metadata, patience_s=60.0, needs_bookies=True, clock=times)
    reader = Health(metadata, patience_s=60.0, clock=times)
    for health in (writer, reader):
        health.readiness.serving()
    assert writer.answer() == (200, {"ready": True, "troubles": {}})
    await metadata.register_bookie(bookie, readonly=True)  # its disk is full
    times.now_s += 59.0
    assert writer.answer() == (200, {"ready": True, "troubles": {"no writable bookie": 59.0}})
    times.now_s += 1.0
    told = {"ready": False, "troubles": {"no writable bookie": 60.0}, "because": "no writable bookie for 60 s"}
    assert writer.answer() == writer.answer(draining_status=404) == (503, told)
    assert reader.answer() == (200, {"ready": True, "troubles": {}})
    await metadata.register_bookie(bookie)
    assert writer.answer() == (200, {"ready": True, "troubles": {}})
    for health in (writer, reader):
        health.close()


async def test_a_write_proxy_looks_for_bookies_if_its_stores_need_them() -> None:
    for store, troubles in (("ledger", ["no writable bookie"]), ("memory", [])):
        stores = {store: MemoryStore(MemoryStoreState())}
        proxy = WriteProxy(WriteOptions(), MemoryMetadata(), stores)
        proxy.health.readiness.serving()
        status, told = proxy.health.answer()
        assert (status, list(cast(dict[str, float], told["troubles"]))) == (200, troubles), store
        proxy.health.close()


class Identity:
    """The identity of the topics, as metadata records it."""

    recorded: str | None = None

    async def read(self) -> str | None:
        return self.recorded

    async def record(self, namespace: str) -> None:
        self.recorded = self.recorded or namespace


async def test_a_write_proxy_looks_for_the_topics_of_its_default_store(tmp_path: Path) -> None:
    identity, events, looks = Identity(), list[Event](), asyncio.Queue[bool]()
    options = KafkaOptions(topics=f"file://{tmp_path}/topics")
    opening = open_kafka_store(options, identity.read, identity.record, Random(1), creates=True)
    async with opening as store, asyncio.TaskGroup() as group:
        (of,) = checks_of(store)
        assert of.trouble == "topics out of reach"
        checking = group.create_task(check_store(of, looks.put_nowait, events.append, every_s=0.0), name="check")
        while await looks.get():
            raise AssertionError("the topics are there")
        (tmp_path / "topics").rename(tmp_path / "unmounted")
        while not await looks.get():
            pass
        (tmp_path / "unmounted").rename(tmp_path / "topics")
        while await looks.get():
            pass
        checking.cancel()
    (event,) = events
    assert isinstance(event, TopicsOutOfReach) and "not at this address" in event.reason


async def test_a_write_proxy_looks_for_the_objects_of_its_default_store(tmp_path: Path) -> None:
    identity, events, looks = Identity(), list[Event](), asyncio.Queue[bool]()
    options = ObjectsOptions(root=f"file://{tmp_path}/objects")
    opening = open_s3_direct_store(options, identity.read, identity.record, Random(1), creates=True)
    async with opening as store, asyncio.TaskGroup() as group:
        (of,) = checks_of(store)
        assert of.trouble == "objects out of reach"
        checking = group.create_task(check_store(of, looks.put_nowait, events.append, every_s=0.0), name="check")
        assert not await looks.get(), "it has made the folder"
        (tmp_path / "objects").rename(tmp_path / "unmounted")
        while not await looks.get():
            pass
        (tmp_path / "unmounted").rename(tmp_path / "objects")
        while await looks.get():
            pass
        checking.cancel()
    assert events and {type(event) for event in events} == {ObjectsOutOfReach}


async def test_each_path_says_what_its_client_needs() -> None:
    port = free_port()
    health = Health(MemoryMetadata(), patience_s=60.0)
    await health.listen("127.0.0.1", port)
    try:
        for state, ready, haproxy in (("starting", 503, 503), ("serving", 200, 200), ("draining", 503, 404)):
            if state != "starting":
                getattr(health.readiness, state)()
            told = {path: await get(port, path) for path in ("/live", "/ready", "/haproxy", "/metrics")}
            assert [status for status, _ in told.values()] == [200, ready, haproxy, 200], state
            assert json.loads(told["/ready"][1])["ready"] == (ready == 200)
            assert b"dlog_loop_stalls" in told["/metrics"][1]
    finally:
        health.close()


async def get(port: int, path: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.transport.abort()
    return int(head.split()[1]), body
