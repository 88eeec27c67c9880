"""Metrics of streams in objects: what they count, and that docs/streams-on-s3.md lists them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dlog.io.object_requests import ObjectRequests
from dlog.model.ids import Epoch, SegmentNumber
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectStreamId, WalSegment
from dlog.objects.image import Image, NodeImage, ObjectState
from dlog.objects.node_cache import NodeCache
from dlog.stores.contract import SegmentRef
from dlog.stores.object_storage.prices import RequestKind
from dlog.stores.s3.node_figures import SAMPLES_MAX, NodeFigures
from dlog.wire.node_wal import StreamEntry, WalFrame
from proxies.meters import Meters, add_stores
from tests.unit.stores.test_s3 import STREAM, W1, Cluster, append, upload

PAGE = Path(__file__).resolve().parents[3] / "docs/streams-on-s3.md"
NODE = NodeId("n")


def frame(first: int, count: int) -> WalFrame:
    return WalFrame(ObjectStreamId(1), Epoch(1), first, tuple(StreamEntry(b"x" * 10, 0) for _ in range(count)))


def numbers_of(families: Iterable[Any]) -> dict[str, float]:
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_the_age_is_that_of_the_oldest_entry_that_is_not_uploaded() -> None:
    figures, cache, image = NodeFigures(), NodeCache(10_000), Image()
    figures.note(100.0, cache, image, NODE)
    assert (figures.oldest_entry_s, figures.unuploaded_entries) == (None, 0)
    cache.add(frame(0, 3))
    figures.note(102.0, cache, image, NODE)
    first = cache.cut()
    figures.note(104.0, cache, image, NODE)
    cache.add(frame(3, 2))
    figures.note(106.0, cache, image, NODE)
    assert (figures.oldest_entry_s, figures.unuploaded_entries) == (102.0, 5)
    assert figures.unuploaded_bytes == cache.unuploaded_bytes > 50
    cache.uploaded(first)
    figures.note(108.0, cache, image, NODE)
    assert (figures.oldest_entry_s, figures.unuploaded_entries) == (106.0, 2)
    cache.uploaded(cache.cut())
    figures.note(110.0, cache, image, NODE)
    assert (figures.oldest_entry_s, figures.unuploaded_entries, figures.unuploaded_bytes) == (None, 0, 0)
    cache.add(frame(5, 1))
    figures.note(112.0, cache, image, NODE)
    figures.note(114.0, NodeCache(10_000), image, NODE)
    assert figures.oldest_entry_s is None, "the machine before is over"


def test_a_long_stall_keeps_few_samples_and_the_first() -> None:
    figures, cache, image = NodeFigures(), NodeCache(10_000_000), Image()
    for number in range(5 * SAMPLES_MAX):
        cache.add(frame(number, 1))
        figures.note(float(number), cache, image, NODE)
        assert len(figures._added) <= SAMPLES_MAX
    assert figures.oldest_entry_s == 0.0


def test_the_oldest_segment_of_the_log_is_the_one_that_was_there_first() -> None:
    figures, cache, image = NodeFigures(), NodeCache(10_000), Image()
    node = image.nodes[NODE] = NodeImage()
    for number, now_s in ((1, 10.0), (2, 20.0)):
        node.wal.append(WalSegment(number, NodeEpoch(1), "ledger", f"{number}"))
        figures.note(now_s, cache, image, NODE)
    assert (figures.wal_segments, figures.oldest_segment_s) == (2, 10.0)
    del node.wal[0]
    figures.note(30.0, cache, image, NODE)
    assert (figures.wal_segments, figures.oldest_segment_s) == (1, 20.0)
    node.wal.clear()
    figures.note(40.0, cache, image, NODE)
    assert (figures.wal_segments, figures.oldest_segment_s) == (0, None)


async def test_what_is_not_uploaded_is_counted_until_it_is() -> None:
    async with Cluster() as cluster:
        store = await cluster.store(W1, stream_object_bytes=100)
        writer, _ = await cluster.segment(store)
        node = store.node
        assert node is not None and node.current is not None
        await append(writer, 0, 20)
        meters = Meters()
        add_stores(meters, [store])

        def numbers() -> dict[str, float]:
            node.figures.note(0.0, node.current.machine.cache, cluster.metadata.image, W1)  # type: ignore[union-attr]  # it runs
            return numbers_of(meters.collect())

        assert numbers()["dlog_objects_unuploaded_entries"] == 20
        assert numbers()["dlog_objects_unuploaded_bytes"] > 1000
        assert numbers()["dlog_objects_wal_segments"] >= 1
        assert numbers()["dlog_objects_unuploaded_oldest_seconds"] > 0
        await upload(store)
        assert numbers()["dlog_objects_unuploaded_entries"] == numbers()["dlog_objects_unuploaded_bytes"] == 0
        assert numbers()["dlog_objects_unuploaded_oldest_seconds"] == 0
        assert numbers()["dlog_objects_orphan_bytes"] == 0
        await store.delete(SegmentRef(STREAM, SegmentNumber(1), writer.name))
        marked = [
            object
            for object in cluster.metadata.image.objects.ids()
            if cluster.metadata.image.objects.state(object) is ObjectState.MARKED
        ]
        sizes = [cluster.metadata.image.objects.bytes_of(object) for object in marked]
        assert numbers()["dlog_objects_orphan_bytes"] == sum(sizes) > 1000


def test_requests_cost_what_the_list_says() -> None:
    requests = ObjectRequests()
    for kind in RequestKind:
        requests.count(kind)
    for _ in range(999):
        requests.count(RequestKind.PUT)
    requests.count_refused(is_own=True)
    numbers = {
        (sample.name, *sample.labels.values()): sample.value
        for family in requests.collect()
        for sample in family.samples
    }
    assert numbers["dlog_object_requests_total", "put"] == 1000
    assert numbers["dlog_object_creates_refused_total", "own"] == 1
    assert numbers["dlog_object_creates_refused_total", "foreign"] == 0
    assert abs(numbers["dlog_object_request_dollars_total",] - (0.005 + 0.000005 + 2 * 0.0000004)) < 1e-9


async def test_the_page_lists_every_metric_and_no_other() -> None:
    table = PAGE.read_text().split("<!-- metrics of objects -->\n")[1].split("\n\n")[0]
    listed = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
    async with Cluster() as cluster:
        meters = Meters()
        add_stores(meters, [await cluster.store(W1)])
        told = set(numbers_of([*meters.collect(), *ObjectRequests().collect()]))
    assert {name for name in told if not name.endswith("_created")} == listed
