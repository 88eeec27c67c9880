"""Observes a whole simulated cluster from outside: acknowledgements of bookies, requests to ZooKeeper, segment owners.

Invariants:
- The monitor changes nothing in the cluster.
- J7, L2, L35 and T3 are checked when the event happens; J1 and L4 are recorded here and checked at the end of the
  trial.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from actors.bookie.connection import Connection
from dlog.events import Event, SegmentStarted, StreamOwned
from dlog.io import zookeeper_protocol
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.model.ids import LedgerId
from dlog.model.ledger import LedgerMetadata
from dlog.model.segment import Owner
from dlog.wire.bookie import Code, EntryAdded
from dlog.wire.ledger_metadata import decode
from dlog.wire.stream_metadata import decode_owner
from tests.simulation.kernel import Violation
from tests.simulation.service.nodes import NAMESPACE, BookieNode, Node
from tests.simulation.service.zookeeper_ensemble import Ensemble
from tests.simulation.service.zookeeper_tree import DataSet, NodeCreated, NodeDeleted, Tree

if TYPE_CHECKING:
    from tests.simulation.service.world import World


class Monitor:
    """Observes one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.acked: dict[str, dict[tuple[int, int], None]] = {}  # bookie -> (ledger, entry) that it acknowledged
        self.ledgers: dict[LedgerId, LedgerMetadata] = {}
        self.deleted: set[LedgerId] = set()
        self._epochs: dict[tuple[str, str], int] = {}  # (process, stream) -> epoch with which it owns the stream
        self._claims: dict[str, Owner] = {}  # path of a stream's owner -> the owner as stored in ZooKeeper
        self._owned: set[tuple[str, int]] = set()  # (stream, epoch) that some process reported to own
        self._owners: dict[tuple[str, int], tuple[str, set[int]]] = {}  # (stream, segment) -> location, epochs
        self._streams: dict[LedgerId, str] = {}  # ledger -> the stream that began a segment in it
        self._forgotten: dict[int, set[str]] = {}  # ledger that restored metadata lacks -> bookies that have entries
        self.asked: Counter[str] = Counter()  # requests to ZooKeeper, by machine
        self._paths = LedgerPaths("/ledgers")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Replace methods of production code, while this context is entered, so that their calls are observed."""
        loop, seen = self.world.loop, self._bookie_says
        send, commit = Connection.send, Ensemble._commit
        metadata, asked, submit = self._metadata, self.asked, zookeeper_protocol.Connection.submit

        def sending(self: Connection, message: Any) -> None:
            if message.__class__ is EntryAdded and message.code is Code.OK:
                seen(loop.process.node, message)
            send(self, message)

        def committing(self: Ensemble, changes: Any, *args: Any, **options: Any) -> Any:
            metadata(changes)
            return commit(self, changes, *args, **options)

        def asking(self: zookeeper_protocol.Connection, *args: Any, **options: Any) -> None:
            asked[loop.process.node] += 1
            submit(self, *args, **options)

        with (
            mock.patch.object(Connection, "send", sending),
            mock.patch.object(Ensemble, "_commit", committing),
            mock.patch.object(zookeeper_protocol.Connection, "submit", asking),
        ):
            yield

    def hear(self, node: Node, event: Event) -> None:
        """Handle an event that a process of the cluster emits."""
        match event:
            case StreamOwned(stream, epoch):
                is_one = any(stream == notes.name for notes in self.world.streams)  # other names have several
                if is_one and (stream, epoch) in self._owned:  # a frozen process may report a claim late
                    self._broken("T3", f"{node.name} owns {stream} with epoch {epoch}, not the first to do so")
                self._owned.add((stream, epoch))
                self.world.reached["take-over"] += epoch > 1
                self._epochs[f"{node.process!r}", stream] = epoch
            case SegmentStarted(stream, segment, place):
                epoch = self._epochs.get((f"{node.process!r}", stream), 0)
                known = self._owners.get((stream, segment))
                if known is None or known[0] != place:  # the number of an empty segment that was dropped is used again
                    known = self._owners[stream, segment] = (place, set())
                known[1].add(epoch)
                self._streams[LedgerId(int(place))] = stream

    @property
    def places(self) -> dict[tuple[str, int], tuple[str, set[int]]]:
        """(stream, segment) -> location, and the epochs of the owners that began the segment there."""
        return self._owners

    def stream_of(self, ledger: LedgerId) -> str:
        """The stream that began a segment in this ledger; "" if none did."""
        return self._streams.get(ledger, "")

    def forget_metadata(self, tree: Tree) -> None:
        """Forget metadata that was written since the backup from which ZooKeeper was restored."""
        for known in (self.ledgers, self.deleted, self._epochs, self._claims, self._owned, self._owners):
            known.clear()
        for path, node in tree.nodes.items():
            ledger = self._paths.ledger_of(path) if path.startswith("/ledgers/") else None
            if ledger is not None:
                self.ledgers[ledger] = decode(node.data or b"")
        for bookie, entries in self.acked.items():
            for held, _ in entries:
                if LedgerId(held) not in self.ledgers:
                    self._forgotten.setdefault(held, set()).add(bookie)
        self.world.collections.restored()

    def note_owners(self) -> None:
        """At the end, add to each stream's history which owners appended to which segment."""
        for notes in self.world.streams:
            for (stream, segment), (_, epochs) in self._owners.items():
                if stream == notes.name:
                    for epoch in sorted(epochs - {0}):
                        notes.history.owner(segment, epoch)

    def _broken(self, invariant: str, text: str) -> None:
        if self.world.loop.breach is None:
            self.world.loop.breach = Violation(invariant, text)

    def _bookie_says(self, name: str, message: EntryAdded) -> None:
        node = self.world.nodes[name]
        assert isinstance(node, BookieNode)
        if node.disk.syncs_failed > node.syncs_failed_before:
            self._broken("J7", f"{name} acknowledges {message.ledger}:{message.entry} after a failed sync")
        self.acked.setdefault(name, {})[message.ledger, message.entry] = None

    def _metadata(self, changes: tuple[Any, ...]) -> None:
        for change in changes:
            if not isinstance(change, NodeCreated | DataSet | NodeDeleted):
                continue
            if change.path.endswith("/owner"):
                self._judge_claim(change.path, b"" if isinstance(change, NodeDeleted) else change.data or b"")
                continue
            ledger = self._paths.ledger_of(change.path)
            if ledger is None:
                continue
            if isinstance(change, NodeDeleted):
                self.ledgers.pop(ledger, None)
                self.deleted.add(ledger)
                self.world.collections.deleted(ledger)
                self.world.deletions.deleted(ledger)
                continue
            value = decode(change.data or b"")
            before = self.ledgers.get(ledger)
            if before is None and ledger in self._forgotten and self._knows_all:
                self._broken("L35", f"ledger {ledger} is created; known to {sorted(self._forgotten[ledger])}")
            if before is not None:
                self._judge_change(ledger, before, value)
            self.ledgers[ledger] = value
            if value.is_closed and value.last_entry >= 0:
                self.world.deletions.closed(ledger)

    @property
    def _knows_all(self) -> bool:
        """Whether a process that creates a ledger now knows every bookie, and every bookie answers."""
        world = self.world
        is_well = not any(mark.startswith("fault.") for mark in world.reached)
        return is_well and not world.plan.config["events_lost"] and not world.collections.is_on

    def _judge_claim(self, path: str, data: bytes) -> None:
        owner, before = decode_owner(data), self._claims.get(path, Owner())
        if data and owner.epoch != before.epoch + 1 and (owner.epoch, owner.claim) != (before.epoch, before.claim):
            self._broken("T3", f"{path} was {before}, and is now {owner}")
        self._claims[path] = owner
        if owner.deleted and not before.deleted:
            self.world.deletions.marked(path.removeprefix(f"{NAMESPACE}/").partition("/")[0])

    def _judge_change(self, ledger: LedgerId, before: LedgerMetadata, value: LedgerMetadata) -> None:
        if before.is_closed and (
            not value.is_closed or value.last_entry != before.last_entry or value.length != before.length
        ):
            self._broken("L2", f"ledger {ledger} was closed at {before.last_entry}, and is now {value}")
        firsts = [fragment.first_entry for fragment in value.fragments]
        if any(a >= b for a, b in itertools.pairwise(firsts)):
            self._broken("L9", f"ledger {ledger} has fragments that begin at {firsts}")
        if value.fragments[: len(before.fragments) - 1] != before.fragments[:-1]:
            self._broken("L2", f"ledger {ledger}: a fragment before the last changed: {before} -> {value}")
