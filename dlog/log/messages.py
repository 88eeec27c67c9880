"""What is asked of a stream's owner, and what the owner's machine says to its segment store.

The store is a peer like any other: the machine sends it messages and hears messages back, so that the same machine
runs on asyncio over real stores and in the simulation over a model of one.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.errors import DLogError
from dlog.model.dlsn import DLSN
from dlog.model.ids import EntryId, Epoch, SegmentNumber, Txid
from dlog.model.quorum import Quorum
from dlog.model.segment import Segment
from dlog.model.sink import SinkBatch
from dlog.values import value

Buffer = bytes | bytearray | memoryview


# ---- asked of the owner (requests in `Asked`) ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeStream:
    """Claim the stream, recover it and serve it. Answered with StreamTaken once writes are served.

    if_epoch: claim only while the newest claim is this one, the one whose owner is known to be gone or released;
    None: whoever owns it. Raises OwnedElsewhereError (somebody else claimed), StreamNotFoundError.
    now_unix_ms: the wall clock; a label only.
    """

    if_epoch: Epoch | None
    now_unix_ms: int


@dataclass(frozen=True, slots=True)
class StreamTaken:
    """Answer to TakeStream: this machine holds `epoch` and serves."""

    epoch: Epoch
    segment: SegmentNumber


@value
class WriteBatch:
    """One producer's batch, a record set that stays closed. See dlog.wire.proxy.Write for the fields.

    now_unix_ms: the wall clock at admission; a label of the records, never a base of correctness. since: segment and
    entry below which nothing of this producer lies, or None if it does not know any. replaces: the sequence that this
    id begins with; see dlog/log/dedupe.py. life: of the stream that it is meant for; StreamNotFoundError if the stream
    has another one. None: whatever stream has the name.
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
    life: str | None = None


@value
class BatchWritten:
    """Answer to WriteBatch: place of the batch's first record; durable."""

    dlsn: DLSN
    count: int
    txid: Txid
    duplicate: bool = False  # had been written before; dlsn is where, or DLSN_INVALID if that is forgotten


@dataclass(frozen=True, slots=True)
class TruncateBefore:
    """Records before `dlsn` may go.

    life: which stream of this name is meant; None: the one that is owned. The owner of another one does nothing and
    raises StreamUnavailableError: it may itself be the one that is gone.
    """

    dlsn: DLSN
    life: str | None = None


@dataclass(frozen=True, slots=True)
class TakeIn:
    """Take closed segments in that were written elsewhere for this stream, in this order, behind all that is written:
    one change of metadata, no byte moves. Answered with TakenIn.

    parts: place and last entry of each; with a batch there may be none: then it is remembered and nothing else, so that
    who wrote for this sink before is shut out. batch: whose it is; a repeated one is answered and nothing taken. None:
    what is in the list already is not taken again. since: who asks has read the log, and nothing of this batch lies
    below this segment and entry. Raises InvalidRequestError (no such stage, it ends elsewhere, another program writes
    under this name), TxidOutOfOrderError (`last`: write them again with that txid or a higher one), OverCapacityError,
    ProducerUnknownError (it was to be appended before: read the log from what is remembered to `since`). life: as of
    TruncateBefore.
    """

    batch: SinkBatch | None
    parts: tuple[tuple[str, EntryId], ...]
    store: str = "ledger"
    since: tuple[int, int] | None = None
    life: str | None = None


@dataclass(frozen=True, slots=True)
class TakenIn:
    """Answer to TakeIn: as which segments, from `first` on; duplicate: it was done before, `first` is 0."""

    first: SegmentNumber
    segments: int
    records: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class AppendOnce:
    """Append a sink's batch, as one record set; a repeated one is answered and not written again. Answered with
    BatchWritten. write: producer and sequence of it are ours to choose; its `since` as of TakeIn. Raises as WriteBatch,
    and InvalidRequestError (another program writes under this name). life: as of TruncateBefore."""

    batch: SinkBatch
    write: WriteBatch
    life: str | None = None


@dataclass(frozen=True, slots=True)
class RelocateSegment:
    """Let a completed segment lie elsewhere: the same entries, under the same ids. Answered with None. Raises
    InvalidRequestError (not completed, or not where it is said to be), TruncatedError. life: as of TruncateBefore."""

    number: SegmentNumber
    store: str
    place: str
    to_store: str
    to_place: str
    life: str | None = None


@dataclass(frozen=True, slots=True)
class SealStream:
    """End the stream for good. life: as of TruncateBefore."""

    life: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteStream:
    """Claim this life of the stream, end its segments, and mark it as deleted (dlog/log/deleting.py). Answered with
    None once metadata says so, or says that this life is gone.

    if_epoch: as of TakeStream. force: delete it also if a segment cannot be ended. Raises OwnedElsewhereError (somebody
    else claimed it: ask there), SegmentNotEndedError.
    """

    life: str
    if_epoch: Epoch | None
    force: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseStream:
    """Hand the stream over: stop taking writes, finish those taken, complete the segment, mark the claim released."""


@dataclass(frozen=True, slots=True)
class StatStream:
    """Answered with a StreamStat."""


@dataclass(frozen=True, slots=True)
class StreamStat:
    """What the owner knows beyond metadata."""

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


@dataclass(frozen=True, slots=True)
class CreateSegment:
    number: SegmentNumber
    epoch: Epoch
    store: str
    quorum: Quorum


@dataclass(frozen=True, slots=True)
class SegmentCreated:
    number: SegmentNumber
    place: str


@dataclass(frozen=True, slots=True)
class RecoverSegment:
    segment: Segment
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SegmentRecovered:
    """The segment at this place ends at `last_entry` (NO_ENTRY: empty), for good. A number may come again at another
    place: a Java writer drops a segment that it finds empty and gives its number to its own."""

    number: SegmentNumber
    place: str
    last_entry: EntryId


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read entries first..last of a recovered or completed segment."""

    segment: Segment
    first: EntryId
    last: EntryId


@dataclass(frozen=True, slots=True)
class EntriesRead:
    """At least one entry from `first` on, contiguous; may be fewer than asked."""

    number: SegmentNumber
    place: str
    first: EntryId
    payloads: tuple[bytes, ...]


@value
class AppendEntry:
    """Append to the open segment `number`; parts joined are the payload."""

    number: SegmentNumber
    entry: EntryId
    parts: tuple[Buffer, ...]


@value
class EntryAppended:
    """Confirmed, in order: everything up to `entry` of segment `number` is durable for good."""

    number: SegmentNumber
    entry: EntryId


@dataclass(frozen=True, slots=True)
class SealSegment:
    number: SegmentNumber


@dataclass(frozen=True, slots=True)
class SegmentSealed:
    number: SegmentNumber
    last_entry: EntryId


@dataclass(frozen=True, slots=True)
class ExamineStage:
    """Where does a segment end that was written for this stream and is in no list?"""

    store: str
    place: str


@dataclass(frozen=True, slots=True)
class StageExamined:
    """It ends at `last_entry`, for good; payloads of the first entry and of the last, none if it is empty."""

    store: str
    place: str
    last_entry: EntryId
    payloads: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DeleteSegment:
    """Delete what lies at `place`; answered by SegmentDeleted or StoreFailed(question=...)."""

    store: str
    place: str
    number: SegmentNumber


@dataclass(frozen=True, slots=True)
class SegmentDeleted:
    place: str


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The question failed. An AppendEntry that failed has killed its segment's writer."""

    question: StoreQuestion
    error: DLogError


# ---- hints (peer HINTS) ----------------------------------------------------------------------------------------------

HINTS = "hints"


@dataclass(frozen=True, slots=True)
class StreamChanged:
    """The stream's metadata may have changed: worth a look at whose it is."""


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
