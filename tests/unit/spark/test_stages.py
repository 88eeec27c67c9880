"""Tests sweeping on a model of ZooKeeper: the order of its reads, what it deletes, and garbage that it leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pytest

from dlog.errors import InvalidRequestError
from dlog.io.zookeeper_protocol import BadVersionError, NoNodeError
from dlog.machine import Missing, Outcome, Versioned
from dlog.model.ids import SegmentNumber, StreamName, Txid
from dlog.model.segment import Location, Segment, StreamKey, StreamMetadata
from dlog.model.sink import SinkBatch, SinkRecord
from dlog.spark.cluster_connection import Cluster
from dlog.spark.stages import UNNUMBERED, Staged, offer, stage_path, sweep
from dlog.stores.contract import SegmentRef

DONE = SinkBatch("sink", 1, "q", 5)
OLD = SinkBatch("sink", 0, "old", 3)
STREAM = StreamMetadata(name=StreamName("s"))
KNOWN = STREAM.with_sink(SinkRecord(DONE))


def listing(value: StreamMetadata, place: str, store: str = "ledger") -> StreamMetadata:
    segment = Segment(number=SegmentNumber(1), name=place, store=store, first_txid=Txid(0), completed=True)
    return value.with_segment(segment)


def told(batch: SinkBatch = DONE, stream: str = "s") -> bytes:
    value = {"stream": stream, "query": batch.query, "batch": batch.batch, "epoch": batch.epoch, "unix_ms": 1000}
    return json.dumps(value).encode()


class Tree:
    """The registrations of one sink, its streams, and what was deleted. on_read: called when a stream was read."""

    def __init__(self, nodes: dict[str, bytes], *streams: StreamMetadata, sink: str = "sink") -> None:
        self.nodes = nodes
        self.versions: dict[str, int] = {}
        self.streams = {value.name: value for value in streams}
        self.deleted: list[str] = []
        self.reads = 0
        self.on_read: Callable[[], None] = lambda: None
        self.zookeeper = self
        self._path = f"/ns/.sinks/{sink}"

    def sweep(self, done: SinkBatch = DONE, keep_s: float = 60.0) -> int:
        return asyncio.run(sweep(self.cluster, "/ns", done, keep_s))

    def offer(self, *places: str, batch: SinkBatch) -> None:
        parts = [Staged("s", place, 0, 1, 10) for place in places]
        asyncio.run(offer(self.cluster, "/ns", batch, parts))

    @property
    def cluster(self) -> Cluster:
        return Cluster(
            cast(Any, self),
            cast(Any, None),
            {"ledger": cast(Any, _Store(self.deleted)), "file": cast(Any, _Store(self.deleted, "file "))},
        )

    async def children(self, path: str, *, fresh: bool) -> tuple[list[str], Any]:
        if path != self._path:
            raise NoNodeError(path)
        return list(self.nodes), None

    async def get(self, path: str, *, fresh: bool) -> tuple[bytes, Any]:
        name = path.removeprefix(f"{self._path}/")
        if name not in self.nodes:
            raise NoNodeError(path)
        return self.nodes[name], _Stat(self.versions.get(name, 0))

    async def set(self, path: str, data: bytes, version: int) -> None:
        name = path.removeprefix(f"{self._path}/")
        if self.versions.get(name, 0) != version:
            raise BadVersionError(path)
        self.nodes[name] = data
        self.versions[name] = version + 1

    async def delete(self, path: str, version: int) -> None:
        del self.nodes[path.removeprefix(f"{self._path}/")]

    async def read(self, key: StreamKey) -> Outcome:
        self.reads += 1
        value = self.streams.get(key.stream)
        self.on_read()
        return Missing() if value is None else Versioned(value, self.reads)


class _Stat(NamedTuple):
    version: int


class _Store:
    def __init__(self, deleted: list[str], mark: str = "") -> None:
        self._deleted = deleted
        self._mark = mark

    async def delete(self, ref: SegmentRef) -> None:
        self._deleted.append(self._mark + ref.name)


def test_what_was_decided_goes_and_what_is_listed_is_registered_no_longer() -> None:
    tree = Tree({"stage-7": told(), "stage-8": told(), "stage-9": told(OLD)}, listing(KNOWN, "8"))
    assert tree.sweep() == 2
    assert (tree.deleted, tree.nodes, tree.reads) == (["7", "9"], {}, 2)


FILE = "0123456789abcdef" * 2


def in_store(name: str) -> bytes:
    return json.dumps(json.loads(told()) | {"store": name}).encode()


def test_stages_are_deleted_from_the_store_that_they_name_and_stay_if_it_is_not_configured() -> None:
    nodes = {f"stage-{FILE}": in_store("file"), "stage-7": in_store("ledger"), "stage-a1": in_store("other")}
    tree = Tree(nodes, KNOWN)
    assert tree.sweep() == 2
    assert (tree.deleted, tree.nodes) == ([f"file {FILE}", "7"], {"stage-a1": in_store("other")})


def test_a_stage_may_have_any_location() -> None:
    name = "region-7/t@4-%/."
    path = stage_path("/ns", "sink", name)
    assert path.count("/") == 4
    znode = path.rpartition("/")[2]
    tree = Tree({znode: in_store("file")}, KNOWN)
    assert tree.sweep() == 1
    assert tree.deleted == [f"file {name}"]
    listed = Tree({znode: in_store("file")}, listing(KNOWN, name, "file"))
    assert listed.sweep() == 0
    assert (listed.deleted, listed.nodes) == ([], {})


def test_a_stage_in_files_that_became_a_segment_stays() -> None:
    tree = Tree({f"stage-{FILE}": in_store("file")}, listing(KNOWN, FILE, "file"))
    assert tree.sweep() == 0
    assert (tree.deleted, tree.nodes) == ([], {})


def test_a_sink_without_stages() -> None:
    assert Tree({}).sweep(replace(DONE, sink="another")) == 0


def test_what_was_taken_in_between_two_looks_is_seen_by_the_second() -> None:
    """The read that shows its query as shut out lists no segment yet, as a read in several steps may."""
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


WRITE = replace(OLD, sink=UNNUMBERED)
ANOTHER = replace(DONE, sink=UNNUMBERED)


def unnumbered(*streams: StreamMetadata) -> Tree:
    """A stage of a write without a number that is old by any clock."""
    return Tree({"stage-7": told(OLD)}, *streams, sink=UNNUMBERED)


def test_what_is_about_to_be_taken_in_without_a_number_is_not_swept_however_old() -> None:
    """The clock of another driver is a day ahead, or this driver was frozen for a day."""
    tree = unnumbered(STREAM)
    tree.offer("7", batch=WRITE)
    assert tree.sweep(ANOTHER, -1e9) == 0
    assert tree.deleted == [] and list(tree.nodes) == ["stage-7"]
    tree.offer("7", batch=WRITE)  # again, under another txid or after a lost answer
    tree.streams[STREAM.name] = listing(STREAM, "7")
    assert tree.sweep(ANOTHER, -1e9) == 0
    assert tree.deleted == [] and tree.nodes == {}, "a segment like any other"


def test_what_is_offered_between_the_looks_of_a_sweeper_is_left() -> None:
    tree = unnumbered(STREAM)
    offered = told(OLD)[:-1] + b', "offered": true}'
    tree.on_read = lambda: (tree.nodes.update({"stage-7": offered}), tree.versions.update({"stage-7": 1}), None)[2]
    assert tree.sweep(ANOTHER, -1e9) == 0
    assert tree.deleted == [] and tree.nodes == {"stage-7": offered}


def test_what_somebody_has_begun_to_sweep_cannot_be_offered_and_is_swept_by_the_next() -> None:
    """The sweeper was killed between registering the sweep and deleting."""
    tree = unnumbered(STREAM)
    tree.nodes["stage-7"] = told(OLD)[:-1] + b', "swept": true}'
    with pytest.raises(InvalidRequestError, match="write it again"):
        tree.offer("7", batch=WRITE)
    assert tree.sweep(ANOTHER, -1e9) == 1
    assert (tree.deleted, tree.nodes) == (["7"], {})
    with pytest.raises(InvalidRequestError, match="was swept"):
        tree.offer("7", batch=WRITE)


def test_what_was_offered_goes_when_its_stream_refuses_everybody_or_its_own_driver_says_so() -> None:
    for tree, done in ((unnumbered(), ANOTHER), (unnumbered(STREAM), WRITE)):
        tree.offer("7", batch=WRITE)
        assert tree.sweep(done, -1e9) == 1 and tree.deleted == ["7"]


def test_a_stage_that_became_a_segment_and_was_moved_since_is_not_deleted() -> None:
    """The segment goes back to this ledger if its object turns out to be damaged."""
    listed = listing(KNOWN, "7")
    moved = replace(listed.segments[0], store="cold", name="file:///cold/x", former=Location("ledger", "7"))
    tree = Tree({"stage-7": told()}, listed.with_segment(moved))
    assert tree.sweep() == 0 and (tree.deleted, tree.nodes) == ([], {})


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
