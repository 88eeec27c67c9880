"""The controller: owner of the metadata stream, who decides every operation on streams in objects.

    operation -> refused, or records of one entry -> appended to the metadata stream -> confirmed -> answered

While `appends_in_flight` entries are on their way, what is decided gathers, and goes together in the next entry.

Invariants:
- An operation is decided by the image with all records before it, those on their way too; what is refused records
  nothing.
- All records of an operation are in one entry, perhaps with those of others: they count all or none.
- An answer other than a refusal goes out once an entry is confirmed that was appended after the operation came, if
  need be one without records. So it rests on all that any controller recorded before the operation came. If an append
  fails, this controller is over: it answers nothing as done, and its owner claims the stream anew and replays it.
- Only the controller deletes objects, and only after the record that marks them is confirmed and `retention_ms` is
  over; then it records that they are destroyed. No clock decides about data: who commits a marked object is refused.
- A snapshot counts once its record is confirmed. Then the metadata stream is truncated up to the snapshot before it,
  and still older snapshots are deleted: a new follower always finds a snapshot and every record behind it.
- A snapshot is written once all its records are confirmed, and ends where an entry ends.
- If the storage has what the metadata stream should have records of, everything is refused, and nothing is recorded or
  deleted: the stream went back (went_back.py). An append shows that no other controller has recorded it.
- All times are those of the object storage, which `Ticked` brings.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dlog.errors import DamagedError, DLogError, InvalidRequestError, MetadataWentBackError, OverCapacityError
from dlog.events import (
    MetadataSnapshotFailed,
    MetadataSnapshotWritten,
    ObjectControllerEnded,
    ObjectControllerStarted,
    ObjectMetadataWentBack,
    ObjectNodeOpened,
    ObjectsNotDeleted,
    UploadsExpired,
)
from dlog.machine import Answer, Emit, Ticket
from dlog.model.object_streams import (
    KeyDeleted,
    MetadataRecord,
    NodeId,
    NodeOpened,
    ObjectId,
    ObjectsDestroyed,
    ObjectsMarked,
    ObjectStreamId,
    SnapshotWritten,
    StreamDeleted,
)
from dlog.objects.decisions import decide, node_state
from dlog.objects.errors import ControllerLostError
from dlog.objects.image import Image
from dlog.objects.image_snapshot import contents_of
from dlog.objects.keys import object_key, snapshot_key
from dlog.objects.operations import Done, OpenNode, Operation, Result
from dlog.objects.options import ControllerOptions
from dlog.values import value
from dlog.wire.object_records import RECORDS_MAX, EntryTooLargeError, encode_records, join_entry
from dlog.wire.object_snapshot import SnapshotContents

# ---- facts and effects ----------------------------------------------------------------------------------------------


@value
class Requested:
    """Fact: a node asks for an operation. Answered by Answer(ticket, a Result or an error)."""

    ticket: Ticket
    operation: Operation


@value
class EntryConfirmed:
    """Fact: the entry of AppendEntry is confirmed; they are confirmed in order."""

    number: int


@value
class AppendFailed:
    """Fact: an entry could not be appended, or it is unknown whether it was; no later one will be confirmed."""

    error: DLogError


@value
class Ticked:
    """Fact: some time is over. now_ms: the object storage's time; it may jump or go back."""

    now_ms: int


@value
class ObjectsDeleted:
    """Fact: the objects of DeleteObjects are not in the storage (any more)."""


@value
class DeletionFailed:
    """Fact: it is not certain that all objects of DeleteObjects are deleted."""

    reason: str


@value
class SnapshotStored:
    """Fact: the snapshot of WriteSnapshot is in the storage."""

    bytes: int
    crc32c: int


@value
class SnapshotFailed:
    """Fact: the snapshot of WriteSnapshot may not be in the storage."""

    reason: str


@value
class AppendEntry:
    """Effect: append an entry to the metadata stream, after those before. version: number of records with those in it.
    Answered by EntryConfirmed or AppendFailed."""

    number: int
    version: int
    records: tuple[MetadataRecord, ...]
    data: bytes


@value
class DeleteObjects:
    """Effect: delete these objects, which may not exist. Answered by ObjectsDeleted or DeletionFailed."""

    keys: tuple[str, ...]


@value
class WriteSnapshot:
    """Effect: encode a snapshot and create it in the storage. Answered by SnapshotStored or SnapshotFailed."""

    key: str
    contents: SnapshotContents


@value
class TruncateMetadata:
    """Effect: delete entries of the metadata stream that have only records below this version. May be left undone."""

    version: int


@value
class DeleteSnapshots:
    """Effect: delete all snapshots of this folder that have fewer than `applied` records. May be left undone."""

    applied: int


@value
class Deposed:
    """Effect: this controller is over; claim the metadata stream again, replay it and begin with a new one."""

    error: DLogError


ControllerFact = (
    Requested
    | EntryConfirmed
    | AppendFailed
    | Ticked
    | ObjectsDeleted
    | DeletionFailed
    | SnapshotStored
    | SnapshotFailed
)
ControllerEffect = (
    AppendEntry | DeleteObjects | WriteSnapshot | TruncateMetadata | DeleteSnapshots | Deposed | Answer | Emit
)


# ---- the controller -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry:
    """An entry that is on its way, or that gathers records. version: with these. data: the records, encoded.
    is_full: no further records go into it. then: effects once it is confirmed; answers among them are of operations
    that rest on it."""

    version: int
    number: int = 0  # 0: it gathers, it was not appended yet
    records: list[MetadataRecord] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    size: int = 0  # of data, in bytes
    is_full: bool = False
    then: list[ControllerEffect] = field(default_factory=list)

    def has_room(self, records: int, size: int, bytes_max: int) -> bool:
        """Whether so many further records, with so many bytes, may go into it."""
        is_full = self.is_full or self.number or len(self.records) + records > RECORDS_MAX
        return not is_full and self.size + size <= bytes_max

    def add(self, records: tuple[MetadataRecord, ...], data: bytes) -> None:
        self.version += len(records)
        self.records += records
        self.data.append(data)
        self.size += len(data)


class Controller:
    """See the module's docstring.

    image: with all records of the metadata stream, read after it was claimed; the controller takes it over. folder: of
    the objects, for this incarnation of the metadata stream. name: of this controller, never used before; snapshots
    have it in their keys. now_ms: the object storage's time. later: the key of an object that was recorded by records
    which the image lacks (went_back.py), found after the stream was read; empty: none was found.
    """

    def __init__(
        self,
        image: Image,
        folder: str,
        name: str,
        now_ms: int,
        options: ControllerOptions | None = None,
        *,
        later: str = "",
    ) -> None:
        self.image = image
        self.is_over = False
        self.confirmed = image.version  # number of records that are confirmed
        self._folder = folder
        self._name = name
        self._now_ms = now_ms
        self._later = later
        self._options = options or ControllerOptions()
        self._number = 0  # of the last entry
        self._on_way: deque[_Entry] = deque()  # in order; those that gather are behind those that were appended
        self._appended = 0  # of these
        self._tickets: set[Ticket] = set()  # not answered
        self._openers: dict[NodeId, OpenNode] = {}  # the operation that opened a node, so that its repeat is known
        self._deleting: tuple[ObjectId, ...] = ()
        self._unopened: dict[ObjectStreamId, int] = {}  # streams never opened, and when that was seen first
        self._snapshot: tuple[str, int] | None = None  # under way: key, number of records
        self._snapshot_bytes = 0  # of entries since the last snapshot was begun
        self._effects: list[ControllerEffect] = []

    def begin(self) -> list[ControllerEffect]:
        """What the controller before may have left undone."""
        if self._later:
            self._record(())
            event = ObjectMetadataWentBack(self._later, self.image.version, self.image.objects.next_id)
            self._after_confirmation([Emit(event)])
            return self._take()
        self._effects.append(Emit(ObjectControllerStarted(self._name, self.image.version)))
        self._effects += self._clean_up()
        return self._take()

    def handle(self, fact: ControllerFact) -> list[ControllerEffect]:
        if self.is_over:
            if isinstance(fact, Requested):
                self._effects.append(Answer(fact.ticket, _lost("this controller is over", outcome_unknown=False)))
            return self._take()
        match fact:
            case Requested(ticket, operation):
                self._request(ticket, operation)
            case EntryConfirmed(number):
                self._confirmed(number)
            case AppendFailed(error):
                self._end(error)
            case _ if self._later:
                pass
            case Ticked(now_ms):
                self._now_ms = now_ms
                self._mark_expired()
                self._delete_marked()
                self._delete_unopened()
            case ObjectsDeleted():
                self._objects_deleted()
            case DeletionFailed(reason):
                self._effects.append(Emit(ObjectsNotDeleted(len(self._deleting), reason)))
                self._deleting = ()
            case SnapshotStored(size, crc):
                self._snapshot_stored(size, crc)
            case SnapshotFailed(reason):
                self._snapshot = None
                self._effects.append(Emit(MetadataSnapshotFailed(self.image.version, reason)))
        if not self.is_over and not self._later:
            self._write_snapshot(isinstance(fact, Ticked))
        return self._take()

    def _take(self) -> list[ControllerEffect]:
        effects, self._effects = self._effects, []
        return effects

    # ---- operations -------------------------------------------------------------------------------------------------

    def _request(self, ticket: Ticket, operation: Operation) -> None:
        if len(self._tickets) >= self._options.pending_max:
            busy = OverCapacityError(
                f"too many operations on metadata are under way, retry: count={len(self._tickets)}"
            )
            self._effects.append(Answer(ticket, busy))
            return
        try:
            result: Result | DLogError = _went_back(self._later) if self._later else self._decide(operation)
        except DLogError as error:
            self._effects.append(Answer(ticket, error))
            return
        self._tickets.add(ticket)
        if isinstance(result, Done):
            result = Done(self.image.version)
        self._after_confirmation([Answer(ticket, result)])

    def _decide(self, operation: Operation) -> Result:
        """Record an operation. Raises what it is refused for; then nothing was recorded."""
        if isinstance(operation, OpenNode) and self._openers.get(operation.node) == operation:
            node = self.image.nodes[operation.node]
            if (node.node_epoch, node.is_failover) == (operation.node_epoch, operation.is_failover):
                self._record(())
                return node_state(self.image, operation.node)
        records, result = decide(self.image, operation, self._now_ms, self._options)
        self._record(records)  # also none: only an append shows whether this controller has been deposed
        if isinstance(operation, OpenNode):
            self._openers[operation.node] = operation
        return result

    def _record(self, records: tuple[MetadataRecord, ...]) -> None:
        """Put records into an entry; also none, which has an entry appended all the same. Raises InvalidRequestError if
        they do not fit into one; then nothing was done."""
        try:
            data = encode_records(records)
        except EntryTooLargeError as error:
            raise InvalidRequestError(
                f"the operation cannot be recorded, it is too large or malformed: {error}"
            ) from None
        before = self.image.version
        try:
            self.image.apply_all(records)
        except DamagedError as error:
            raise AssertionError(f"a decision does not fit the image: {error}") from error
        entry = self._on_way[-1] if self._on_way else None
        if entry is None or not entry.has_room(len(records), len(data), self._options.gathered_bytes_max):
            entry = _Entry(before)
            self._on_way.append(entry)
        entry.add(records, data)
        self._append_gathered()
        self._after_confirmation(
            [
                Emit(ObjectNodeOpened(record.node, record.node_epoch, record.is_failover))
                for record in records
                if isinstance(record, NodeOpened)
            ]
        )

    def _append_gathered(self) -> None:
        """Append what has gathered, unless as many entries are on their way as may be."""
        while self._appended < min(len(self._on_way), self._options.appends_in_flight):
            entry = self._on_way[self._appended]
            self._number += 1
            entry.number = self._number
            records = tuple(entry.records)
            data = join_entry(entry.version - len(records), len(records), entry.data)
            self._appended += 1
            self._snapshot_bytes += len(data)
            self._effects.append(AppendEntry(entry.number, entry.version, records, data))

    def _after_confirmation(self, effects: list[ControllerEffect]) -> None:
        """Have these effects once all that is recorded by now is confirmed."""
        if self._on_way:
            self._on_way[-1].then += effects
        else:
            self._perform(effects)

    def _perform(self, effects: list[ControllerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                self._tickets.discard(effect.ticket)
        self._effects += effects

    def _confirmed(self, number: int) -> None:
        entry = self._on_way.popleft()
        assert entry.number == number, f"entries are confirmed in order: number={number} expected={entry.number}"
        self._appended -= 1
        self.confirmed = entry.version
        self._perform(entry.then)
        self._append_gathered()

    def _end(self, error: DLogError) -> None:
        self.is_over = True
        self._on_way.clear()
        self._appended = 0
        lost = _lost(error.message, outcome_unknown=True)
        self._effects += [Answer(ticket, lost) for ticket in sorted(self._tickets)]
        self._effects += [Emit(ObjectControllerEnded(self._name, error.message)), Deposed(error)]
        self._tickets.clear()

    # ---- deletion of objects ----------------------------------------------------------------------------------------

    def _mark_expired(self) -> None:
        expired = self.image.objects.expired(self._now_ms, self._options.delete_max)
        if expired:
            self._record((ObjectsMarked(tuple(expired), self._now_ms),))
            self._after_confirmation([Emit(UploadsExpired(len(expired)))])

    def _delete_marked(self) -> None:
        """Delete objects whose retention is over once the records that mark them are confirmed. One batch at a time."""
        objects = self.image.objects
        if self._deleting or not objects.marked:
            return
        self._deleting = tuple(
            objects.marked_until(self._now_ms - self._options.retention_ms, self._options.delete_max)
        )
        if self._deleting:
            keys = tuple(object_key(self._folder, object, *objects.owner(object)) for object in self._deleting)
            self._after_confirmation([DeleteObjects(keys)])

    def _objects_deleted(self) -> None:
        deleted, self._deleting = self._deleting, ()
        if deleted:
            self._record((ObjectsDestroyed(deleted),))

    def _delete_unopened(self) -> None:
        """Delete streams that were created and never opened: their creator died. Nothing was ever appended to them; one
        that is still to be opened is refused then, and created again."""
        known, image = self._unopened, self.image
        self._unopened = {stream: known.get(stream, self._now_ms) for stream in image.unopened}
        records: list[MetadataRecord] = []
        for stream, since_ms in self._unopened.items():
            key = image.streams[stream].key
            if self._now_ms - since_ms >= self._options.unopened_ms and len(records) < self._options.delete_max:
                records.append(StreamDeleted(stream, self._now_ms))
                if key is not None and image.keys.get(key) == b"%d" % stream:
                    records.append(KeyDeleted(key))
        if records:
            self._record(tuple(records))

    # ---- snapshots --------------------------------------------------------------------------------------------------

    def _write_snapshot(self, is_tick: bool) -> None:
        """Begin a snapshot if one is due; what failed is tried again at the next tick.

        It is written once its records are confirmed, and counts with its own record.
        """
        image, options = self.image, self._options
        since = image.version - (image.snapshots[-1].applied if image.snapshots else 0)
        is_due = since >= options.snapshot_records or self._snapshot_bytes >= options.snapshot_bytes
        if not is_tick or not is_due or self._snapshot is not None:
            return
        if self._on_way:
            self._on_way[-1].is_full = True  # a follower goes on with the entry behind the snapshot
        self._snapshot = (snapshot_key(self._folder, image.version, self._name), image.version)
        self._after_confirmation([WriteSnapshot(self._snapshot[0], contents_of(image))])

    def _snapshot_stored(self, size: int, crc: int) -> None:
        assert self._snapshot is not None
        key, applied = self._snapshot
        self._snapshot = None
        self._snapshot_bytes = 0
        self._record((SnapshotWritten(key, applied, size, crc),))
        self._after_confirmation([Emit(MetadataSnapshotWritten(applied, size)), *self._clean_up()])

    def _clean_up(self) -> list[ControllerEffect]:
        if len(self.image.snapshots) < 2:
            return []
        applied = self.image.snapshots[-2].applied
        return [TruncateMetadata(applied), DeleteSnapshots(applied)]


def _went_back(key: str) -> MetadataWentBackError:
    return MetadataWentBackError(
        "the metadata of streams in objects are older than the objects, ZooKeeper was restored or lost data: stop all "
        f"proxies and follow docs/restore.md: object={key}",
        outcome_unknown=False,
    )


def _lost(reason: str, *, outcome_unknown: bool) -> ControllerLostError:
    return ControllerLostError(
        f"the metadata stream has another controller, ask that: {reason}", outcome_unknown=outcome_unknown
    )
