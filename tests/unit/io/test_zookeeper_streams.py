"""What a mirror of a stream's segments reports, and that it ends without a reference cycle."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from dlog.io import zookeeper_streams
from dlog.io.metadata import Unsubscribe
from dlog.io.zookeeper import Stat, ZooKeeper
from dlog.io.zookeeper_layout import StreamPaths
from dlog.io.zookeeper_protocol import NoNodeError
from dlog.io.zookeeper_streams import ZooKeeperStreams
from dlog.io.zookeeper_watches import TreeCallback, Watches
from dlog.machine import Missing, Versioned
from dlog.model.ids import Epoch, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Owner, Segment
from dlog.wire.stream_metadata import encode_number, encode_owner, encode_segment, segment_name

ROUNDS = 1000


class NoServer:
    """A client that was never connected: watches are kept, nothing is sent."""

    def __init__(self) -> None:
        self.watches = Watches("")

    def on_state(self, _: Callable[[Any], None]) -> Unsubscribe:
        return lambda: None

    def watch_tree(self, path: str, callback: TreeCallback) -> Unsubscribe:
        return self.watches.add_tree(path, callback)


@pytest.mark.parametrize("cached", [0, 10, ROUNDS])
def test_a_thousand_mirrors_leave_no_garbage_when_they_are_evicted_forgotten_or_closed(
    cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_streams, "CACHED_STREAMS_MAX", max(1, cached))
    zk = NoServer()
    tree = ZooKeeperStreams(cast(ZooKeeper, zk), StreamPaths("/dlog"), random.Random(1))
    gc.collect()
    gc.disable()
    try:
        for number in range(ROUNDS):
            tree._mirror(StreamName(f"s{number}"))
            if not cached:
                tree._forget(StreamName(f"s{number}"))
        tree.close()
        assert not zk.watches._trees
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [value for value in gc.garbage if isinstance(value, zookeeper_streams._CachedSegments)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_a_thousand_watches_leave_no_garbage() -> None:
    zk = NoServer()
    tree = ZooKeeperStreams(cast(ZooKeeper, zk), StreamPaths("/dlog"), random.Random(1))
    gc.collect()
    gc.disable()
    try:
        for number in range(ROUNDS):
            tree.watch(StreamName(f"s{number}"), lambda: None)()
        assert not zk.watches._trees
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [value for value in gc.garbage if isinstance(value, zookeeper_streams._StreamWatch)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


S = StreamName("s")
ROOT = StreamPaths("/dlog").root(S)
OWNER, LEDGERS = f"{ROOT}/owner", f"{ROOT}/ledgers"


def owned(epoch: int) -> Owner:
    return Owner(epoch=Epoch(epoch), proxy=ProxyId("p"), address="p:1", claim="c")


class OneStream(NoServer):
    """A server with a stream of one segment. before_last: called when two of many znodes are still to be read."""

    generation = 1

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, tuple[bytes, int]] = {}  # data and version
        self.callbacks: list[TreeCallback] = []
        self.before_last: Callable[[], None] = lambda: None
        self.write(LEDGERS, encode_number(1))
        self.write(f"{ROOT}/maxtxid", encode_number(0))

    def write(self, path: str, data: bytes) -> None:
        self.nodes[path] = data, self.nodes[path][1] + 1 if path in self.nodes else 0

    def change(self, epoch: int, incarnation: str, place: str) -> str:
        """Write the owner and the segment; returns the segment's path."""
        segment = Segment(number=SegmentNumber(1), name=place, store="ledger", first_txid=Txid(0))
        path = f"{LEDGERS}/{segment_name(segment)}"
        self.write(OWNER, encode_owner(owned(epoch), incarnation))
        self.write(path, encode_segment(segment))
        return path

    def fire(self, path: str, first: int | None = None) -> None:
        """Report a change, to all callbacks or to the first ones, even if they were withdrawn since."""
        for callback in self.callbacks[:first]:
            callback(path)

    def watch_tree(self, path: str, callback: TreeCallback) -> Unsubscribe:
        self.callbacks.append(callback)
        return lambda: None

    def tree_is_watched(self, _: str) -> bool:
        return True

    def stat(self, path: str) -> Stat:
        children = sum(name.startswith(f"{path}/") for name in self.nodes)
        return Stat(1, 1, 1, 1, self.nodes[path][1], children, 0, 0, 0, children, 1)

    async def children(self, path: str, *, fresh: bool) -> tuple[list[str], Stat]:
        if path not in self.nodes:
            raise NoNodeError
        return [name.rpartition("/")[2] for name in self.nodes if name.startswith(f"{path}/")], self.stat(path)

    async def get_many(self, paths: list[str], *, fresh: bool) -> list[tuple[bytes, Stat] | None]:
        first = [self.get(path) for path in paths[:-2]]
        self.before_last()
        return first + [self.get(path) for path in paths[-2:]]

    def get(self, path: str) -> tuple[bytes, Stat] | None:
        return (self.nodes[path][0], self.stat(path)) if path in self.nodes else None


async def places(tree: ZooKeeperStreams) -> list[str]:
    seen = await tree.read(S)
    assert isinstance(seen, Versioned)
    return [segment.name for segment in seen.value.segments]


async def test_a_segment_that_changed_in_a_reading_that_is_thrown_away_is_told_by_the_next() -> None:
    """The reading is discarded because the owner's znode changes during it."""
    server = OneStream()
    tree = ZooKeeperStreams(cast(ZooKeeper, server), StreamPaths("/dlog"), random.Random(1))
    server.change(1, "a1", "7")
    assert await places(tree) == ["7"]
    path = server.change(2, "a1", "8")
    server.fire(OWNER)
    server.fire(path)

    def change_the_owner_once_more() -> None:
        server.before_last = lambda: None
        server.write(OWNER, encode_owner(owned(3), "a1"))
        server.fire(OWNER)

    server.before_last = change_the_owner_once_more
    assert await places(tree) == ["8"]


async def test_the_list_of_a_deleted_stream_is_not_told_of_the_next_one_though_counts_are_the_same() -> None:
    """Every event of the watch was lost; versions and counts begin anew with each incarnation."""
    server = OneStream()
    tree = ZooKeeperStreams(cast(ZooKeeper, server), StreamPaths("/dlog"), random.Random(1))
    path = server.change(1, "a1", "7")
    assert await places(tree) == ["7"]
    for gone in (path, OWNER):
        del server.nodes[gone]
    server.change(1, "b2", "9")
    assert await places(tree) == ["9"]


def long_list(server: OneStream, segments: int) -> None:
    """A stream with this many completed segments and one in progress."""
    server.write(OWNER, encode_owner(owned(1), "a1"))
    for number in range(1, segments + 1):
        write_segment(server, number, completed=number < segments)


def write_segment(server: OneStream, number: int, *, completed: bool) -> str:
    segment = Segment(number=SegmentNumber(number), name=str(number), first_txid=Txid(0), completed=completed)
    path = f"{LEDGERS}/{segment_name(segment)}"
    server.write(path, encode_segment(segment))
    return path


async def test_a_reading_after_a_roll_looks_at_the_segments_that_changed() -> None:
    server = OneStream()
    tree = ZooKeeperStreams(cast(ZooKeeper, server), StreamPaths("/dlog"), random.Random(1))
    long_list(server, 300)
    seen = await tree.read(S)
    assert isinstance(seen, Versioned)
    path = f"{LEDGERS}/{segment_name(seen.value.segments[7])}"
    server.write(path, server.nodes[path][0])
    server.fire(path)
    again = await tree.read(S)
    assert isinstance(again, Versioned)
    same = [a is b for a, b in zip(seen.value.segments, again.value.segments, strict=True)]
    assert same.count(False) == 1 and not same[7]
    assert again.value.segments[7].metadata_version == seen.value.segments[7].metadata_version + 1


async def test_the_mirror_of_a_deleted_stream_goes_when_the_deletion_is_reported() -> None:
    """Nobody reads a deleted stream again, so no read would find that it is missing."""
    server = OneStream()
    tree = ZooKeeperStreams(cast(ZooKeeper, server), StreamPaths("/dlog"), random.Random(1))
    path = server.change(1, "a1", "7")
    assert await places(tree) == ["7"]
    for gone in (path, LEDGERS, OWNER, ROOT):
        assert S in tree._mirrors
        server.nodes.pop(gone, None)
        server.fire(gone)
    assert not tree._mirrors
    server.write(LEDGERS, encode_number(1))
    server.change(1, "b2", "9")
    assert await places(tree) == ["9"]
    mirror = tree._mirrors[S]
    server.fire(ROOT, first=1)
    assert tree._mirrors[S] is mirror, "a late report about the mirror before"


async def test_a_stream_that_is_deleted_during_a_read_is_missing_and_leaves_no_mirror() -> None:
    server = OneStream()
    tree = ZooKeeperStreams(cast(ZooKeeper, server), StreamPaths("/dlog"), random.Random(1))
    path = server.change(1, "a1", "7")

    def delete() -> None:
        server.before_last = lambda: None
        for gone in (path, LEDGERS, OWNER, ROOT):
            server.nodes.pop(gone, None)
            server.fire(gone)

    server.before_last = delete
    assert isinstance(await tree.read(S), Missing)
    assert not tree._mirrors


async def test_a_whole_reading_keeps_the_segments_that_have_not_changed() -> None:
    """Lists are compared by reference."""
    server = OneStream()
    tree = ZooKeeperStreams(cast(ZooKeeper, server), StreamPaths("/dlog"), random.Random(1))
    long_list(server, 40)
    seen = await tree.read(S)
    tree._mirrors[S].invalidate()
    again = await tree.read(S)
    assert isinstance(seen, Versioned) and isinstance(again, Versioned)
    assert all(a is b for a, b in zip(seen.value.segments, again.value.segments, strict=True))


async def test_a_claim_that_was_lost_to_another_is_not_held() -> None:
    server = OneStream()
    tree = ZooKeeperStreams(cast(ZooKeeper, server), StreamPaths("/dlog"), random.Random(1))
    server.change(1, "a1", "7")
    tree._hold(S, owned(1))
    await tree.read(S)
    assert S in tree._held
    tree._hold(S, owned(2))
    await tree.read(S)
    assert S in tree._held, "what is being claimed is not in metadata yet"
    server.write(OWNER, encode_owner(owned(3), "a1"))
    server.fire(OWNER)
    await tree.read(S)
    assert S not in tree._held
