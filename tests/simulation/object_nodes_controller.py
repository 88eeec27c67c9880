"""The controller of the simulation `nodes`, on a model of the metadata stream, and the image that its readers see.

The controller is that of dlog/objects/controller.py. It dies at times, or loses its claim: the next one replays what is
in the metadata stream.

Invariants:
- Entries are appended in order. After a claim nothing of the controller before is appended any more.
- Only what is in the metadata stream is in `image`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from dlog.errors import ConnectionLostError, UnavailableError
from dlog.machine import Answer, Emit
from dlog.model.object_streams import (
    MetadataRecord,
    NodeEpoch,
    NodeId,
    NodeOpened,
    ObjectId,
    ObjectsMarked,
    ObjectStreamId,
    UploadCommitted,
)
from dlog.objects.controller import (
    AppendEntry,
    AppendFailed,
    Controller,
    DeleteObjects,
    Deposed,
    EntryConfirmed,
    ObjectsDeleted,
    Requested,
    Ticked,
)
from dlog.objects.errors import NodeEpochExpiredError, ObjectNotFoundError
from dlog.objects.image import Image, NodeImage, Range, StreamImage
from dlog.objects.keys import parse_object_key
from dlog.objects.operations import CommitUpload, CreateStreams, Done
from dlog.objects.options import ControllerOptions
from tests.simulation.kernel import Violation

FOLDER = "objects"
Later = Callable[[float, Callable[[], None]], None]
Sink = Callable[[Any], None]


class ControllerHost:
    """The controllers one after another. on_record: called for each record once it is in the metadata stream."""

    def __init__(
        self,
        rng: random.Random,
        later: Later,
        reached: Counter[str],
        *,
        streams: int,
        now_ms: Callable[[], int],
        delete: Callable[[ObjectId], None],
    ) -> None:
        self.image = Image()
        self.on_record: Callable[[MetadataRecord], None] = lambda _: None
        self._rng = rng
        self._later = later
        self._reached = reached
        self._now_ms = now_ms
        self._delete = delete
        self._entries: list[tuple[MetadataRecord, ...]] = []  # the metadata stream
        self._options = ControllerOptions(
            expiry_min_ms=1,
            retention_ms=1000,
            snapshot_records=10**9,
            snapshot_bytes=10**9,
            prepare_max=100,
            appends_in_flight=1,
        )
        self._generation = 0
        self._asked: dict[int, Sink] = {}  # by ticket
        self._tickets = 0
        self._appends: list[tuple[int, AppendEntry]] = []  # on their way: generation, entry
        self._is_appending = False
        self._valid: set[tuple[NodeId, NodeEpoch]] = set()  # epochs of nodes, at any record of the last entry
        self._commits: list[CommitUpload] = []  # that were answered as done
        self._controller: Controller | None = None
        self.claim()
        self.ask(CreateStreams("streams", streams), lambda _: None)

    # ---- what the image says ----------------------------------------------------------------------------------------

    def node(self, name: NodeId) -> NodeImage:
        return self.image.nodes.get(name) or NodeImage()

    def node_epoch(self, name: NodeId) -> NodeEpoch:
        return self.node(name).node_epoch

    def stream(self, stream: ObjectStreamId) -> StreamImage:
        return self.image.streams.get(stream) or StreamImage()

    def range(self, stream: ObjectStreamId, epoch: int) -> Range | None:
        return next((one for one in self.stream(stream).ranges if one.epoch == epoch), None)

    def slices(self, stream: ObjectStreamId) -> list[tuple[int, int, ObjectId]]:
        """All committed slices of a stream: start, end, object."""
        known = self.stream(stream)
        tables = [known.objects, *(node.slices[stream] for node in self.image.nodes.values() if stream in node.slices)]
        rows = [row for table in tables for row in zip(table.starts, table.ends, table.objects, strict=True)]
        return sorted((start, end, ObjectId(object)) for start, end, object in rows)

    # ---- the controller ---------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Begin a controller: it reads the metadata stream, which nobody else appends to from here on."""
        self._generation += 1
        self._reached["claimed"] += self._generation > 1
        self._appends.clear()
        lost, self._asked = self._asked, {}
        image = Image()
        for records in self._entries:
            image.apply_all(records)
        self._controller = Controller(image, FOLDER, f"c{self._generation}", self._now_ms(), self._options)
        self._perform(self._controller.begin())
        for done in lost.values():
            done(ConnectionLostError("the controller is gone"))

    def ask(self, operation: Any, done: Sink) -> None:
        def answered(result: Any) -> None:
            self._reached["epoch_expired"] += isinstance(result, NodeEpochExpiredError)
            self._reached["commit_refused"] += isinstance(result, ObjectNotFoundError)
            if isinstance(operation, CommitUpload) and isinstance(result, Done):
                if (operation.node, operation.node_epoch) not in self._valid:
                    epoch = self.node_epoch(operation.node)
                    raise Violation("O5", f"epoch {epoch} fenced node {operation.node}, this commits: {operation}")
                self._reached["commit_repeated"] += operation in self._commits
                self._commits.append(operation)
            done(result)

        self._tickets += 1
        self._asked[self._tickets] = answered
        self._tell(Requested(self._tickets, operation))

    def tick(self) -> None:
        self._tell(Ticked(self._now_ms()))

    def fail_append(self) -> None:
        """The append that is on its way is made or not, and its answer is lost."""
        if self._appends:
            if self._rng.random() < 0.5:
                self._append(self._appends[0][1])
            self._appends.clear()
            self._reached["metadata_failed"] += 1
            self._tell(AppendFailed(UnavailableError("lost")))

    def _tell(self, fact: Any) -> None:
        assert self._controller is not None
        self._perform(self._controller.handle(fact))

    def _perform(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case AppendEntry():
                    self._appends.append((self._generation, effect))
                    self._append_next()
                case Answer(ticket, result):
                    if (done := self._asked.pop(ticket, None)) is not None:
                        done(result)
                case DeleteObjects(keys):
                    self._later(0.01, partial(self._delete_objects, self._generation, keys))
                case Deposed():
                    self._later(0.05, self.claim)
                case Emit():
                    pass
                case _:
                    raise AssertionError(effect)

    def _delete_objects(self, generation: int, keys: tuple[str, ...]) -> None:
        for key in keys:
            parsed = parse_object_key(FOLDER, key)
            assert parsed is not None
            self._delete(parsed.object)
        if generation == self._generation:
            self._tell(ObjectsDeleted())

    def _append_next(self) -> None:
        if not self._is_appending and self._appends:
            self._is_appending = True
            self._later(self._rng.uniform(0.001, 0.01), self._appended)

    def _appended(self) -> None:
        self._is_appending = False
        if self._appends:
            generation, entry = self._appends.pop(0)
            assert generation == self._generation
            self._append(entry)
            self._tell(EntryConfirmed(entry.number))
        self._append_next()

    def _append(self, entry: AppendEntry) -> None:
        self._entries.append(entry.records)
        self._valid = {(name, node.node_epoch) for name, node in self.image.nodes.items()}
        for record in entry.records:
            if isinstance(record, UploadCommitted) and record.node_epoch != self.node_epoch(record.node):
                raise Violation("O5", f"epoch {self.node_epoch(record.node)} fenced node {record.node}: {record}")
            if isinstance(record, NodeOpened):
                self._valid.add((record.node, record.node_epoch))
            self.image.apply(record)
            self._reached["marked"] += isinstance(record, ObjectsMarked)
            self.on_record(record)
