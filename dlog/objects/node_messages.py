"""Messages of a node's machines: what they ask the WAL's store and the object storage, and what callers ask of them.

What they ask the controller is in operations.py.
"""

from __future__ import annotations

from dlog.errors import DLogError, FencedError, Remedy
from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    NodeEpoch,
    ObjectId,
    ObjectStreamId,
    Slice,
    WalSegment,
)
from dlog.values import value
from dlog.wire.node_wal import Buffer, StreamEntry

# ---- questions to the store of the write-ahead log ------------------------------------------------------------------


@value
class CreateWalSegment:
    """Create a segment at a new location, to append to it. Answered with a WalLocation."""

    number: int
    node_epoch: NodeEpoch


@value
class WalLocation:
    """store, name: where a segment lies, as in a SegmentRef."""

    store: str
    name: str


@value
class AppendWalEntry:
    """Append an entry to a segment that was created here. Entries are dense from 0. Answered with None once it is
    confirmed. After an error no entry of this segment is confirmed any more, and this one may or may not be in it."""

    segment: WalSegment
    entry: int
    parts: tuple[Buffer, ...]


@value
class SealWalSegment:
    """Seal a segment that was created here, all entries of which are confirmed. Nothing waits for the answer."""

    segment: WalSegment


@value
class RecoverWalSegment:
    """Fence the writer of a segment and decide its end. Answered with its number of entries."""

    segment: WalSegment


@value
class ReadWalEntries:
    """Read entries first..end-1 of a recovered segment. Answered with a tuple of payloads, at least one."""

    segment: WalSegment
    first: int
    end: int


@value
class DeleteWalSegment:
    """Delete a segment; one that is not there is deleted. Answered with None."""

    segment: WalSegment


# ---- questions to the object storage --------------------------------------------------------------------------------


@value
class SliceData:
    """A slice with its entries."""

    slice: Slice
    entries: tuple[StreamEntry, ...]


@value
class WriteObject:
    """Create the object of an id that was prepared by this node epoch. slices: sorted by stream and start.

    Answered with ObjectWritten; also if it is there already with these bytes. After an unclear answer the same question
    comes again. ObjectKeyTakenError: another object lies there.
    """

    object: ObjectId
    node_epoch: NodeEpoch
    slices: tuple[SliceData, ...]


@value
class ObjectWritten:
    """bytes: of the whole object. time_ms: when it was written, by the storage's clock."""

    bytes: int
    time_ms: int


class ObjectKeyTakenError(DLogError):
    """There is an object with other contents under the key."""

    remedy = Remedy.FIX


# ---- requests of callers --------------------------------------------------------------------------------------------


@value
class StartNode:
    """Recover what the node left, then serve. Answered with the node epoch once streams may be opened here. Raises
    NodeEndedError."""


@value
class OpenStreamHere:
    """Open a stream on this node under an epoch. Answered with the offset of its next entry. Raises NodeEndedError,
    NotReadyError, and what the controller refuses: the stream may be open on another node, then try again later."""

    stream: ObjectStreamId
    epoch: Epoch


@value
class AppendEntries:
    """Append entries to a stream that is open here, all or none. offset: of the first one, which must be the next.

    Answered with the offset behind them once the write-ahead log has confirmed them, in order for each stream. Raises
    StaleRequestError (not open here under this epoch, or not the next offset), OverCapacityError (too much is not
    uploaded; try again), RecordTooLargeError, NodeEndedError.
    """

    stream: ObjectStreamId
    epoch: Epoch
    offset: int
    entries: tuple[StreamEntry, ...]


@value
class TrimStreamHere:
    """Move the start of a stream that is open here forward, at most to the end of what is confirmed. Answered with
    None. Raises StaleRequestError, NodeEndedError, and what the controller refuses."""

    stream: ObjectStreamId
    epoch: Epoch
    start: int


@value
class CloseStreamsHere:
    """Close streams that are open here, without uploading anything. Answered with a tuple of streams and their ends.

    Appends that are not on their way to the write-ahead log fail first; those that are count if it confirms them: a
    reader of the log may have seen them. Raises InvalidRequestError (more than 1000 streams), StaleRequestError (one is
    not open here), NodeEndedError.
    """

    streams: tuple[ObjectStreamId, ...]


@value
class UploadAll:
    """Upload everything that is confirmed now. Answered with None once that is committed. Raises NodeEndedError."""


@value
class RecoverNode:
    """Fence a node and close its streams. Answered with a tuple of streams and their ends, once they may be opened
    elsewhere; the upload of what they left goes on. Raises NodeEndedError."""


@value
class AwaitUploaded:
    """Wait until all that a fenced node left is committed and its write-ahead log deleted. Answered with None. Raises
    NodeEndedError."""


class NodeEndedError(FencedError):
    """This node or failover worker has ended: another node epoch took over, or its write-ahead log failed. Begin it
    anew under the next node epoch."""
