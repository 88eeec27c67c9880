"""Requests to a stream's owner, and the messages between the owner's state machine and the segment store.

The store is a peer like any other, so the same state machine runs on asyncio with real stores and in the simulation
with a model of one.
"""

from __future__ import annotations

from dlog.errors import DLogError
from dlog.model.dlsn import DLSN
from dlog.model.ids import EntryId, Epoch, SegmentNumber, Txid
from dlog.model.segment import Location, Segment, StoreSettings, StreamSettings
from dlog.model.sink import SinkBatch
from dlog.model.window import WINDOW_MIN
from dlog.values import value

Buffer = bytes | bytearray | memoryview


# ---- requests to the owner (in `Asked`) ----------------------------------------------------------------------------


@value
class AcquireStream:
    """Claim the stream, recover it and serve it. Answered with StreamAcquired once writes are served.

    if_epoch: claim only while the newest claim has this epoch, whose owner is known to be gone or to have released it;
    None: replace the claim found. Raises OwnedElsewhereError (another proxy was faster), StreamNotFoundError.
    now_unix_ms: the wall clock; a label only.
    """

    if_epoch: Epoch | None
    now_unix_ms: int


@value
class StreamAcquired:
    """Answer to AcquireStream: this owner's claim has `epoch`, and it serves."""

    epoch: Epoch
    segment: SegmentNumber


@value
class WriteBatch:
    """One producer's batch: a record set that the owner does not unpack. See dlog.wire.proxy.Write for the fields.

    now_unix_ms: the wall clock at admission; a label of the records, correctness never depends on it. since: segment
    and entry below which the producer has written nothing; None: unknown. replaces: the sequence with which this
    producer id begins, see dlog/log/producer_table.py. incarnation: of the stream that is meant,
    StreamNotFoundError if the stream has another one; None: any.
    """

    body: Buffer
    count: int
    txid: Txid | None
    producer: bytes
    sequence: int
    crc: int
    retry: bool
    now_unix_ms: int
    since: tuple[int, int] | None = None
    replaces: int | None = None
    incarnation: str | None = None


@value
class BatchWritten:
    """Answer to WriteBatch: the batch is durable; dlsn: of its first record; window: see dlog/model/window.py."""

    dlsn: DLSN
    count: int
    txid: Txid
    duplicate: bool = False  # written before, at `dlsn`; DLSN_INVALID if the producer table has forgotten where
    window: int = WINDOW_MIN


@value
class TruncateBefore:
    """Truncate the stream: records before `dlsn` may be deleted.

    incarnation: of the stream that is meant; None: the owned one. The owner of another one does nothing and
    raises StreamUnavailableError: its own may be the deleted one.
    """

    dlsn: DLSN
    incarnation: str | None = None


@value
class ImportStages:
    """Import stages (closed segments written elsewhere for this stream): add them to the end of the segment list, in
    this order, by one change of metadata; no data is copied. Answered with SegmentsImported.

    parts: location and last entry of each stage; may be empty with a batch, which is then only recorded and shuts out
    earlier programs of its sink. batch: a repeated one is answered, not imported again; None: stages that are listed
    already are not imported again. since: the log, as the caller has read it, holds nothing of this batch below this
    segment and entry. Raises InvalidRequestError (no such stage, it ends elsewhere, another program writes under this
    name), TxidOutOfOrderError (write the stages again with txids of at least `last`), OverCapacityError,
    ProducerUnknownError (maybe appended before: read the log from the recorded position to `since`). incarnation: see
    TruncateBefore.
    """

    batch: SinkBatch | None
    parts: tuple[tuple[str, EntryId], ...]
    store: str = "ledger"
    since: tuple[int, int] | None = None
    incarnation: str | None = None


@value
class SegmentsImported:
    """Answer to ImportStages: the stages are segments from `first` on; duplicate: imported before, `first` is 0."""

    first: SegmentNumber
    segments: int
    records: int
    duplicate: bool = False


@value
class AppendSinkBatch:
    """Append a sink's batch as one record set; a repeated one is answered and not written again. Answered with
    BatchWritten. write: the owner sets its producer and sequence; `since` as in ImportStages. Raises as WriteBatch, and
    InvalidRequestError (another program writes under this name). incarnation: see TruncateBefore."""

    batch: SinkBatch
    write: WriteBatch
    incarnation: str | None = None


@value
class MoveListedSegment:
    """Change a completed segment's location; the copy has the same entries and ids. Answered with None. Raises
    InvalidRequestError (not completed, not at `store` and `name`, or in files), TruncatedError. incarnation: see
    TruncateBefore."""

    number: SegmentNumber
    store: str
    name: str
    to_store: str
    to_name: str
    incarnation: str | None = None


@value
class AlterStream:
    """Replace the stream's settings. Answered with None once metadata has them.

    settings: all of them, with the version of those that they were made from plus one. Raises StaleRequestError if the
    stream's settings have another version, `outcome_unknown` if these may have been theirs before. incarnation: see
    TruncateBefore."""

    settings: StreamSettings
    incarnation: str | None = None


@value
class SealStream:
    """End the stream for good. incarnation: see TruncateBefore."""

    incarnation: str | None = None


@value
class DeleteStream:
    """Claim this incarnation of the stream, end its segments, and mark it as deleted (dlog/log/stream_deletion.py).
    Answered with None once metadata shows it deleted, or shows another incarnation or none.

    if_epoch: see AcquireStream. force: delete it even if a segment cannot be ended. Raises OwnedElsewhereError (another
    proxy claimed it: ask there), SegmentNotEndedError.
    """

    incarnation: str
    if_epoch: Epoch | None
    force: bool = False


@value
class HandOverStream:
    """Hand the stream over: refuse new writes, finish admitted ones, complete the segment, mark the claim released."""


@value
class StatStream:
    """Ask for a StreamStat."""


@value
class StreamStat:
    """The owner's state beyond metadata."""

    epoch: Epoch
    state: str  # idle, claiming, recovering, serving, draining, sealed, released, lost
    segment: SegmentNumber
    lac: EntryId
    last_dlsn: DLSN | None
    records: int
    bytes: int
    producers: int


# ---- to and from the segment store (peer STORE) ----------------------------------------------------------------------

STORE = "store"


@value
class CreateSegment:
    """Create segment `number` on `store`, with the stream's settings of that store."""

    number: SegmentNumber
    epoch: Epoch
    store: str
    settings: StoreSettings


@value
class SegmentCreated:
    number: SegmentNumber
    location: Location


@value
class RecoverSegment:
    segment: Segment


@value
class SegmentRecovered:
    """The segment at `location` ends at `last_entry` (NO_ENTRY: empty), for good. Its number may come again at another
    location: a Java writer drops an empty segment and reuses its number. last_payloads: of the last entries, those that
    the store has read already."""

    number: SegmentNumber
    location: Location
    last_entry: EntryId
    last_payloads: tuple[bytes, ...] = ()


@value
class ReadEntries:
    """Read entries first..last of a recovered or completed segment."""

    segment: Segment
    first: EntryId
    last: EntryId


@value
class EntriesRead:
    """At least one entry from `first` on, contiguous; may be fewer than requested."""

    number: SegmentNumber
    location: Location
    first: EntryId
    payloads: tuple[bytes, ...]


@value
class AppendEntry:
    """Append to the open segment `number`; the payload is `parts` joined."""

    number: SegmentNumber
    entry: EntryId
    parts: tuple[Buffer, ...]


@value
class EntryAppended:
    """Every entry of segment `number` up to `entry` is durable for good. Sent in order."""

    number: SegmentNumber
    entry: EntryId


@value
class SealSegment:
    number: SegmentNumber


@value
class SegmentSealed:
    number: SegmentNumber
    last_entry: EntryId


@value
class ExamineStage:
    """Ask where a stage (a segment that is in no list yet) ends."""

    location: Location


@value
class StageExamined:
    """The stage ends at `last_entry`, for good. payloads: of its first and last entry; none if it is empty."""

    location: Location
    last_entry: EntryId
    payloads: tuple[bytes, ...]


@value
class DeleteSegment:
    """Delete the segment at `location`; answered by SegmentDeleted or StoreFailed(question=...)."""

    location: Location
    number: SegmentNumber


@value
class SegmentDeleted:
    location: Location


@value
class StoreFailed:
    """The request `question` failed. After a failed AppendEntry the segment takes no more entries."""

    question: StoreQuestion
    error: DLogError


# ---- hints (peer HINTS) ----------------------------------------------------------------------------------------------

HINTS = "hints"


@value
class StreamChanged:
    """The stream's metadata may have changed: the owner checks its claim."""


StoreQuestion = CreateSegment | RecoverSegment | ReadEntries | AppendEntry | SealSegment | ExamineStage | DeleteSegment
StoreReply = (
    SegmentCreated
    | SegmentRecovered
    | EntriesRead
    | EntryAppended
    | SegmentSealed
    | StageExamined
    | SegmentDeleted
    | StoreFailed
)
