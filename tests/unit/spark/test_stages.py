"""Sweeping over a tree that is no ZooKeeper: in which order it reads, what it deletes, and garbage that it leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from dlog.io.zookeeper_protocol import NoNodeError
from dlog.machine import Missing, Outcome, Versioned
from dlog.model.ids import SegmentNumber, StreamName, Txid
from dlog.model.segment import Segment, StreamKey, StreamMetadata
from dlog.model.sink import SinkBatch, SinkRecord
from dlog.spark.reach import Cluster
from dlog.spark.stages import UNNUMBERED, sweep
from dlog.stores.contract import SegmentRef

DONE = SinkBatch("sink", 1, "q", 5)
OLD = SinkBatch("sink", 0, "old", 3)
STREAM = StreamMetadata(name=StreamName("s"))
KNOWN = STREAM.with_sink(SinkRecord(DONE))


def listing(value: StreamMetadata, place: str) -> StreamMetadata:
    segment = Segment(number=SegmentNumber(1), place=place, store="ledger", first_txid=Txid(0), completed=True)
    return value.with_segment(segment)


def told(batch: SinkBatch = DONE, stream: str = "s") -> bytes:
    value = {"stream": stream, "query": batch.query, "batch": batch.batch, "epoch": batch.epoch, "unix_ms": 1000}
    return json.dumps(value).encode()


class Tree:
    """The registrations of one sink, its streams, and what was deleted. on_read: called when a stream was read."""

    def __init__(self, nodes: dict[str, bytes], *streams: StreamMetadata, sink: str = "sink") -> None:
        self.nodes = nodes
        self.streams = {value.name: value for value in streams}
        self.deleted: list[str] = []
        self.reads = 0
        self.on_read: Callable[[], None] = lambda: None
        self.zookeeper = self
        self._path = f"/ns/.sinks/{sink}"

    def sweep(self, done: SinkBatch = DONE, keep_s: float = 60.0) -> int:
        cluster = Cluster(cast(Any, self), cast(Any, None), {"ledger": cast(Any, _Store(self.deleted))})
        return asyncio.run(sweep(cluster, "/ns", done, keep_s))

    async def children(self, path: str, *, fresh: bool) -> tuple[list[str], Any]:
        if path != self._path:
            raise NoNodeError(path)
        return list(self.nodes), None

    async def get(self, path: str, *, fresh: bool) -> tuple[bytes, Any]:
        return self.nodes[path.removeprefix(f"{self._path}/")], None

    async def delete(self, path: str, version: int) -> None:
        del self.nodes[path.removeprefix(f"{self._path}/")]

    async def read(self, key: StreamKey) -> Outcome:
        self.reads += 1
        value = self.streams.get(key.stream)
        self.on_read()
        return Missing() if value is None else Versioned(value, self.reads)


class _Store:
    def __init__(self, deleted: list[str]) -> None:
        self._deleted = deleted

    async def delete(self, ref: SegmentRef) -> None:
        self._deleted.append(ref.place)


def test_what_was_decided_goes_and_what_is_listed_is_registered_no_longer() -> None:
    tree = Tree({"stage-7": told(), "stage-8": told(), "stage-9": told(OLD)}, listing(KNOWN, "8"))
    assert tree.sweep() == 2
    assert (tree.deleted, tree.nodes, tree.reads) == (["7", "9"], {}, 2)


def test_a_sink_without_stages() -> None:
    assert Tree({}).sweep(replace(DONE, sink="another")) == 0


def test_what_was_taken_in_between_two_looks_is_seen_by_the_second() -> None:
    """The look that shows its query shut out lists nothing yet, as a look of several reads may."""
    tree = Tree({"stage-7": told(OLD)}, KNOWN)
    tree.on_read = lambda: tree.streams.update({STREAM.name: listing(KNOWN, "7")})
    assert tree.sweep() == 0
    assert (tree.deleted, tree.nodes) == ([], {})


def test_who_is_shut_out_only_by_the_second_look_stays_until_the_next_sweep() -> None:
    tree = Tree({"stage-7": told(OLD)}, STREAM)
    tree.on_read = lambda: tree.streams.update({STREAM.name: KNOWN})
    assert (tree.sweep(), tree.reads) == (0, 1)
    assert (tree.sweep(), tree.reads) == (1, 3)


def test_streams_that_are_gone_and_writes_without_a_number() -> None:
    assert Tree({"stage-7": told(OLD)}).sweep() == 1
    unnumbered = replace(DONE, sink=UNNUMBERED)
    assert Tree({"stage-7": told(OLD), "stage-8": told()}, STREAM, sink=UNNUMBERED).sweep(unnumbered) == 2
    assert Tree({"stage-7": told(OLD)}, STREAM, sink=UNNUMBERED).sweep(unnumbered, 1e12) == 0


def test_txids_of_decided_batches_go() -> None:
    kept = ["txid-1-q-6", "txid-0-q-5", "txid-1-other-5", "txid-1-q-²", "txid-1-q-", "txid", "txid-" + "9" * 5000]
    tree = Tree(dict.fromkeys([*kept, "txid-1-q-5", "txid-1-q-4"], b"1"))
    assert tree.sweep() == 0
    assert list(tree.nodes) == kept


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"null",
        b"7",
        b"[]",
        b"[" * 100_000,
        b"{}",
        told(stream="a/b"),
        told(stream="../x"),
        told().replace(b"1000", b'"1000"'),
        told().replace(b"1000", b"null"),
        told().replace(b"1000", b"NaN"),
        told().replace(b"1000", b"9" * 5000),
        told().replace(b"5", b"true"),
        told().replace(b"5", b"-5"),
        told().replace(b"5", b"[5]"),
        told().replace(b'"q"', b'{"q": 1}'),
        told().replace(b'"s"', b"5"),
    ],
)
def test_a_registration_that_cannot_be_understood_stays_and_stops_nobody(data: bytes) -> None:
    tree = Tree({"stage-7": data, "stage-x": told(), "stage": told(), "other-1": data, "stage-8": told()}, KNOWN)
    assert tree.sweep(keep_s=0) == 1
    assert tree.deleted == ["8"]
    assert tree.nodes == {"stage-7": data, "stage-x": told(), "stage": told(), "other-1": data}
