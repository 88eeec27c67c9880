"""Tests which nodes are taken over although nobody opens their streams."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dlog.model.object_streams import (
    NodeEpoch,
    NodeId,
    NodeOpened,
    UploadCommitted,
    WalPosition,
    WalSegment,
    WalSegmentBegun,
    WalSegmentsDeleted,
)
from dlog.objects.idle_nodes import IdleNodes, Looked, TakeOver
from dlog.objects.image import Image

A, B = NodeId("a"), NodeId("b")


class Looks:
    """A process with the node B, and the metadata that it looks at. Node A has epoch 3 and two segments of a log."""

    def __init__(self) -> None:
        self.image = Image()
        self.machine = IdleNodes(B)
        self.open(3)
        self.begin_segment(1)
        self.begin_segment(2)

    def look(self, live: Collection[NodeId] = (), failovers: Mapping[NodeId, NodeEpoch] | None = None) -> list[int]:
        """The epochs under which A is taken over."""
        effects = self.machine.handle(Looked(self.image, live, failovers or {}))
        assert {effect.node for effect in effects} <= {A}
        assert all(isinstance(effect, TakeOver) for effect in effects)
        return [effect.node_epoch for effect in effects]

    def open(self, epoch: int, *, is_failover: bool = False, node: NodeId = A) -> None:
        self.image.apply(NodeOpened(node, NodeEpoch(epoch), is_failover))

    def begin_segment(self, number: int) -> None:
        epoch = self.image.nodes[A].node_epoch
        self.image.apply(WalSegmentBegun(A, WalSegment(number, epoch, "ledger", f"w{number}")))

    def commit(self, segment: int, entry: int) -> None:
        epoch = self.image.nodes[A].node_epoch
        self.image.apply(UploadCommitted(A, epoch, None, (), WalPosition(segment, entry), 0))


def test_a_node_that_is_not_registered_and_makes_no_progress_is_taken_over_at_the_second_look() -> None:
    looks = Looks()
    assert looks.look() == []
    assert looks.look() == [3]


def test_a_node_that_is_registered_is_left_alone_also_if_it_was_not_at_the_look_before() -> None:
    looks = Looks()
    looks.look()
    assert looks.look(live=[A]) == []
    assert looks.look() == [], "it was registered at the last look"
    assert looks.look() == [3]


def test_a_node_that_makes_progress_is_left_alone() -> None:
    looks = Looks()
    looks.look()
    looks.commit(1, 5)
    assert looks.look() == [], "an upload"
    looks.commit(2, 0)
    looks.look()
    looks.image.apply(WalSegmentsDeleted(A, 2))
    looks.begin_segment(3)
    assert looks.look() == [], "another segment, as many as before"
    looks.open(4)
    assert looks.look() == [], "another epoch"
    assert looks.look() == [4]


def test_of_a_node_that_was_fenced_the_log_decides() -> None:
    looks = Looks()
    looks.open(4, is_failover=True)
    looks.look(live=[A])
    assert looks.look(live=[A]) == [4], "nobody uploads what it left"
    looks.commit(3, 0)
    looks.image.apply(WalSegmentsDeleted(A, 3))
    looks.look()
    assert looks.look() == [], "everything is uploaded"


def test_a_failover_of_this_process_is_not_fenced_unless_another_one_fenced_it() -> None:
    looks = Looks()
    for _ in range(3):
        assert looks.look(failovers={A: NodeEpoch(4)}) == [], "it begins"
    looks.open(4, is_failover=True)
    for _ in range(3):
        assert looks.look(failovers={A: NodeEpoch(4)}) == [], "it waits for the storage"
    looks.open(5, is_failover=True)
    looks.look(failovers={A: NodeEpoch(4)})
    assert looks.look(failovers={A: NodeEpoch(4)}) == [5], "that one is gone, too"


def test_a_process_does_not_take_over_its_own_node() -> None:
    looks = Looks()
    looks.open(7, node=B)
    looks.look(live=[A])
    assert looks.look(live=[A]) == []
