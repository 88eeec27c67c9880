"""Decides which nodes are taken over although nobody opens one of their streams.

A stream that a node has open is taken over by its next owner, and the node with it. What is left are nodes without open
streams whose processes are gone, and nodes whose failover ended before its uploads. A process looks at the metadata and
at the registrations from time to time. A failover is never wrong, only needless: what was read may be old, but the node
epoch fences, and a node that is well after all begins again under its next one.

Invariants:
- A node is taken over only if it made no progress between two looks.
- A node whose process is registered is taken over only if it was fenced already and has a log left.
- A process begins no failover of its own node, and none of a node that its own failover has fenced.
- A node that is gone, or was fenced, and has a log left is taken over in the end, by a process that goes on looking.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from dlog.model.object_streams import NodeEpoch, NodeId, WalPosition
from dlog.objects.image import Image, NodeImage
from dlog.values import value


@value
class Looked:
    """Fact: what this process knows. image: not older than the others. live: nodes of processes that are registered.
    failovers: by node, the node epoch of the failover that runs in this process."""

    image: Image
    live: Collection[NodeId]
    failovers: Mapping[NodeId, NodeEpoch]


@value
class TakeOver:
    """Effect: fail over a node, if this is its epoch still."""

    node: NodeId
    node_epoch: NodeEpoch


class Progress(NamedTuple):
    """How far a node is: two that are equal mean that it did nothing between them. wal: numbers of segments."""

    node_epoch: NodeEpoch
    flush_point: WalPosition
    wal: tuple[int, ...]


class IdleNodes:
    """See the module. node: of this process."""

    def __init__(self, node: NodeId | None) -> None:
        self._node = node
        self._idle: dict[NodeId, Progress] = {}  # at the last look

    def handle(self, fact: Looked) -> list[TakeOver]:
        before, self._idle = self._idle, dict[NodeId, Progress]()
        for node, its in fact.image.nodes.items():
            if node != self._node and self._may_be_left(node, its, fact):
                wal = tuple(segment.number for segment in its.wal)
                self._idle[node] = Progress(its.node_epoch, its.flush_point, wal)
        return [TakeOver(node, now.node_epoch) for node, now in self._idle.items() if before.get(node) == now]

    def _may_be_left(self, node: NodeId, its: NodeImage, fact: Looked) -> bool:
        """Whether nobody may be at work for the node. Of one that was fenced only the log counts: without one
        everything is uploaded."""
        if fact.failovers.get(node, 0) >= its.node_epoch:
            return False
        return bool(its.wal) if its.is_failover else node not in fact.live
