"""Uploads what the write-ahead log of a node has confirmed, and moves the log's flush point.

Entries gather in the cache's block. A block is cut when it is large enough, has gathered for long enough, or touches as
many slices as one stream-set object may have. A cut block is one upload:

    PREPARING (ids asked) -> WRITING (objects) -> COMMITTING -> done
         ^----------- an id is of no use any more ----|

Ids are asked in the order of the cuts, objects are written in parallel, commits are asked in order, one at a time.

Invariants:
- The flush point of an upload is that of its last WAL entry, so it rises with each commit of a node epoch; the uploads
  below it are all committed. `committed` is called only after the controller has confirmed the commit.
- An object is always written with the same bytes. An unclear write is repeated under the same id; if another object
  lies there, all objects of the upload get new ids, and the same entries.
- A commit is repeated, with the same contents, until the controller answers. Refused because an object is not prepared
  any more: the same entries are written under new ids. Refused for any other reason: `over` is called, and nothing is
  asked any more; what is not committed is still in the write-ahead log.
- Every entry of a block is in exactly one slice, and no slice has entries of two ranges.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from dlog.errors import DLogError
from dlog.events import ObjectsUploaded, UploadStalled
from dlog.model.object_streams import (
    SLICES_MAX,
    NodeEpoch,
    NodeId,
    ObjectId,
    Slice,
    StreamObject,
    StreamSetObject,
    WalPosition,
)
from dlog.objects.errors import ObjectNotFoundError
from dlog.objects.node_cache import Block, NodeCache, Run
from dlog.objects.node_messages import ObjectKeyTakenError, ObjectWritten, SliceData, WriteObject
from dlog.objects.node_options import NodeOptions
from dlog.objects.operations import CommitUpload, ObjectsArePrepared, PrepareObjects
from dlog.objects.outbox import Outbox, Service
from dlog.wire.node_wal import WalFrame


def order_of(position: WalPosition) -> tuple[int, int]:
    """What positions of one write-ahead log are compared by."""
    return position.segment, position.entry


class Phase(enum.Enum):
    """State of an upload."""

    PREPARING = "preparing"
    WRITING = "writing"
    COMMITTING = "committing"
    DONE = "done"


TRANSITIONS = {
    Phase.PREPARING: {Phase.WRITING},
    Phase.WRITING: {Phase.COMMITTING, Phase.PREPARING},
    Phase.COMMITTING: {Phase.DONE, Phase.PREPARING},
    Phase.DONE: set[Phase](),
}


class PlannedObject:
    """An object of an upload. written: once it is in the object storage."""

    __slots__ = ("id", "is_set", "slices", "written")

    def __init__(self, slices: tuple[SliceData, ...], is_set: bool) -> None:
        self.slices = slices
        self.is_set = is_set
        self.id: ObjectId | None = None
        self.written: ObjectWritten | None = None


class Upload:
    """A cut block. attempt: how often its objects got ids. flush_point: of the WAL once it is committed."""

    __slots__ = ("attempt", "block", "flush_point", "objects", "phase", "waits_for_ids")

    def __init__(self, block: Block, flush_point: WalPosition, objects: list[PlannedObject]) -> None:
        self.block = block
        self.flush_point = flush_point
        self.objects = objects
        self.attempt = 0
        self.waits_for_ids = False
        self.phase = Phase.PREPARING

    def change(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase

    @property
    def is_written(self) -> bool:
        return self.phase is Phase.WRITING and all(planned.written is not None for planned in self.objects)


def plan_objects(block: Block, stream_object_bytes: int) -> list[PlannedObject]:
    """Split a block: each long run is an object of its own, all others are in one stream-set object, the last one."""
    runs = sorted(block.runs.values(), key=lambda run: (run.stream, run.first))
    large = [run for run in runs if run.bytes >= stream_object_bytes]
    rest = tuple(_slice_data(run) for run in runs if run.bytes < stream_object_bytes)
    objects = [PlannedObject((_slice_data(run),), False) for run in large]
    return [*objects, PlannedObject(rest, True)] if rest else objects


def _slice_data(run: Run) -> SliceData:
    return SliceData(Slice(run.stream, run.first, run.end), tuple(run.entries))


class Uploader:
    """The uploads of one node under one node epoch. is_held: nothing is asked yet. See the module."""

    def __init__(
        self,
        node: NodeId,
        node_epoch: NodeEpoch,
        options: NodeOptions,
        outbox: Outbox,
        cache: NodeCache,
        *,
        committed: Callable[[WalPosition], None],
        over: Callable[[DLogError], None],
    ) -> None:
        self.is_held = True
        self.end = WalPosition(0, 0)  # behind the last WAL entry that was added
        self._node = node
        self._node_epoch = node_epoch
        self._options = options
        self._outbox = outbox
        self._cache = cache
        self._committed = committed
        self._over = over
        self._uploads: deque[Upload] = deque()  # those that are not done, in order
        self._writes: deque[tuple[Upload, PlannedObject]] = deque()  # that wait
        self._writing = 0
        self._has_timer = False
        self._waiting: deque[tuple[Upload, Callable[[], None]]] = deque()  # for uploads to be done

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added is committed."""
        return not self._uploads and not self._cache.gathering.runs

    def add(self, frames: Sequence[WalFrame], position: WalPosition) -> None:
        """Add what the WAL entry before `position` has that is to be uploaded."""
        runs = self._cache.gathering.runs
        new = {(frame.stream, frame.epoch) for frame in frames} - runs.keys()
        if runs and len(runs) + len(new) > SLICES_MAX:
            self.cut()
        for frame in frames:
            self._cache.add(frame)
        self.end = position
        if self._cache.gathering.bytes >= self._options.upload_bytes:
            self.cut()
        elif self._cache.gathering.runs and not self._has_timer:
            self._has_timer = True
            self._outbox.later(self._options.upload_interval_s, self._interval_over)
        self._advance()

    def release(self) -> None:
        """Uploads may be asked from now on: the ranges that were open under earlier node epochs are closed."""
        self.is_held = False
        self._advance()

    def cut(self) -> None:
        """Upload what has gathered."""
        if self._cache.gathering.runs:
            self._begin(self.end)

    def finish_at(self, flush_point: WalPosition) -> None:
        """Upload what has gathered, and move the flush point there, above the last WAL entry that was added."""
        self.pass_to(flush_point)
        self._begin(flush_point)

    def pass_to(self, position: WalPosition) -> None:
        """The next WAL entry to be added lies at or above this position."""
        assert order_of(position) >= order_of(self.end)
        self.end = position

    def when_committed(self, do: Callable[[], None]) -> None:
        """Call `do` once everything that was cut until now is committed."""
        if self._uploads:
            self._waiting.append((self._uploads[-1], do))
        else:
            do()

    def _interval_over(self) -> None:
        self._has_timer = False
        self.cut()

    def _begin(self, flush_point: WalPosition) -> None:
        block = self._cache.cut()
        self._uploads.append(Upload(block, flush_point, plan_objects(block, self._options.stream_object_bytes)))
        self._advance()

    def _advance(self) -> None:
        """Ask for the ids that are due, write, and commit the first upload if it is written. The only place that
        begins any of these."""
        if self.is_held or self._outbox.is_closed:
            return
        self._prepare()
        while self._writes and self._writing < self._options.writes_in_flight:
            self._write(*self._writes.popleft())
        if self._uploads and self._uploads[0].is_written:
            self._commit(self._uploads[0])

    def _prepare(self) -> None:
        for upload in self._uploads:
            if upload.waits_for_ids:
                return  # ids are asked for one upload at a time, in order
            if upload.phase is not Phase.PREPARING:
                continue
            if not upload.objects:
                upload.change(Phase.WRITING)
                continue
            upload.waits_for_ids = True
            self._outbox.repeat(
                Service.CONTROLLER,
                PrepareObjects(self._node, self._node_epoch, len(upload.objects), self._options.expiry_ms),
                partial(self._prepared, upload),
                self._over,
            )
            return

    def _prepared(self, upload: Upload, ids: ObjectsArePrepared) -> None:
        upload.waits_for_ids = False
        upload.attempt += 1
        upload.change(Phase.WRITING)
        for number, planned in enumerate(upload.objects):
            planned.id, planned.written = ObjectId(ids.first + number), None
            self._writes.append((upload, planned))
        self._advance()

    def _write(self, upload: Upload, planned: PlannedObject) -> None:
        """Write an object until it is clear what lies under its key, also after errors that an operator has to mend."""
        assert planned.id is not None
        request, attempt = WriteObject(planned.id, self._node_epoch, planned.slices), upload.attempt
        self._writing += 1

        def is_current() -> bool:
            return upload.attempt == attempt and upload.phase is Phase.WRITING

        def written(result: ObjectWritten) -> None:
            self._writing -= 1
            if is_current():
                planned.written = result
            self._advance()

        def failed(error: DLogError, failures: int) -> None:
            if is_current() and not isinstance(error, ObjectKeyTakenError):
                self._outbox.emit(UploadStalled(self._node, error.message, self._cache.unuploaded_bytes))
                self._outbox.later(self._outbox.pause_s(failures), lambda: ask(failures + 1))
                return
            self._writing -= 1
            if is_current():
                self._renew(upload)
            self._advance()

        def ask(failures: int) -> None:
            self._outbox.ask(Service.STORAGE, request, written, lambda error: failed(error, failures))

        ask(0)

    def _renew(self, upload: Upload) -> None:
        """The objects of an upload get new ids."""
        self._writes = deque(waiting for waiting in self._writes if waiting[0] is not upload)
        upload.change(Phase.PREPARING)

    def _commit(self, upload: Upload) -> None:
        upload.change(Phase.COMMITTING)
        set_object: StreamSetObject | None = None
        stream_objects = list[StreamObject]()
        for planned in upload.objects:
            assert planned.id is not None and planned.written is not None
            slices = tuple(data.slice for data in planned.slices)
            if planned.is_set:
                written = planned.written
                set_object = StreamSetObject(planned.id, planned.id, written.time_ms, written.bytes, slices)
            else:
                [only] = slices
                stream_objects.append(
                    StreamObject(planned.id, only.stream, only.start, only.end, planned.written.bytes)
                )
        request = CommitUpload(self._node, self._node_epoch, set_object, tuple(stream_objects), upload.flush_point)
        self._outbox.repeat(
            Service.CONTROLLER,
            request,
            lambda _: self._done(upload),
            lambda error: self._commit_refused(upload, error),
        )

    def _commit_refused(self, upload: Upload, error: DLogError) -> None:
        if isinstance(error, ObjectNotFoundError):
            self._renew(upload)
            self._advance()
        else:
            self._over(error)

    def _done(self, upload: Upload) -> None:
        assert upload is self._uploads[0]
        upload.change(Phase.DONE)
        self._uploads.popleft()
        self._cache.uploaded(upload.block)
        sizes = [planned.written.bytes for planned in upload.objects if planned.written is not None]
        self._outbox.emit(ObjectsUploaded(self._node, len(sizes), sum(sizes)))
        while self._waiting and self._waiting[0][0] is upload:
            self._waiting.popleft()[1]()
        self._committed(upload.flush_point)
        self._advance()
