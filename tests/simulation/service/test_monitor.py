"""Tests which claims the monitor reports as broken, and which not."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dlog.events import StreamOwned
from dlog.model.ids import Epoch, ProxyId
from dlog.model.segment import Owner
from dlog.wire.stream_metadata import encode_owner
from tests.simulation.kernel import Violation
from tests.simulation.service.monitor import Monitor
from tests.simulation.service.zookeeper_tree import DataSet, NodeCreated

OPEN: Any = ()
PATH = "/dlog/streams/s/owner"


class Cluster:
    """The part of a world that the monitor looks at."""

    def __init__(self) -> None:
        self.loop = SimpleNamespace(breach=None)
        self.reached: Counter[str] = Counter()
        self.streams = (SimpleNamespace(name="s"),)
        self.monitor = Monitor(cast(Any, self))

    def owns(self, name: str, epoch: int) -> str | None:
        """The invariant that is broken once the process `name` has reported that it owns the stream."""
        node = cast(Any, SimpleNamespace(name=name, process=name))
        self.monitor.hear(node, StreamOwned("s", Epoch(epoch), ""))
        return self._breach()

    def told(self, change: Any) -> str | None:
        self.monitor._metadata((change,))
        return self._breach()

    def _breach(self) -> str | None:
        breach = cast(Violation | None, self.loop.breach)
        return None if breach is None else breach.invariant


def written(epoch: int, claim: str) -> DataSet:
    return DataSet(PATH, encode_owner(Owner(epoch=Epoch(epoch), proxy=ProxyId("w"), claim=claim)), 1, OPEN)


def test_who_was_frozen_may_hear_late_of_a_claim_that_is_over() -> None:
    cluster = Cluster()
    assert cluster.owns("writer-3", 2) is None and cluster.owns("writer-1", 1) is None


def test_an_epoch_has_one_owner() -> None:
    cluster = Cluster()
    assert cluster.owns("writer-3", 2) is None and cluster.owns("writer-1", 2) == "T3"


def test_a_claim_adds_one_and_nothing_else_changes_the_epoch() -> None:
    cluster = Cluster()
    assert cluster.told(NodeCreated(PATH, encode_owner(Owner()), OPEN, 0)) is None
    assert cluster.told(written(1, "a")) is None and cluster.told(written(1, "a")) is None
    assert cluster.told(written(2, "b")) is None


@pytest.mark.parametrize("epoch", [1, 2, 4], ids=["back", "again by another", "skipped"])
def test_any_other_epoch_is_broken(epoch: int) -> None:
    cluster = Cluster()
    for earlier in (1, 2):
        assert cluster.told(written(earlier, f"claim {earlier}")) is None
    assert cluster.told(written(epoch, "another")) == "T3"
