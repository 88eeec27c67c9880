"""Mirrors of stream metadata end without a reference cycle: nothing but the collector would free it."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from dlog.io import zookeeper_streams
from dlog.io.metadata import Unsubscribe
from dlog.io.zookeeper import ZooKeeper
from dlog.io.zookeeper_layout import StreamPaths
from dlog.io.zookeeper_streams import StreamTree
from dlog.io.zookeeper_watches import TreeCallback, Watches
from dlog.model.ids import StreamName

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
    tree = StreamTree(cast(ZooKeeper, zk), StreamPaths("/dlog"), random.Random(1))
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
        assert not [value for value in gc.garbage if isinstance(value, zookeeper_streams._Mirror)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
