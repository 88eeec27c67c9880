"""How far this process has seen each stream's metadata, so that metadata that went back is told from metadata that is.

The law of this room: the versions of a stream's znodes only grow while it lives, and a reading that begins after one
was seen shows no lower one. If it does, ZooKeeper has lost what it had confirmed (a snapshot restored, an ensemble that
lost its log): records that were acknowledged lie in segments that the list does not name any more. From then on this
process reads nothing of that stream, until a person has looked and starts it again. A stream that was deleted and made
again has another life, and is another stream. What a process has not seen, or has forgotten, it cannot miss.

A stream that was seen as deleted is watched for coming back, too, but apart from the others and under a smaller bound:
streams that come and go push out no stream that is there. That a stream is missing is no reason to forget it: metadata
that went back to before its creation lacks it as well, and may be replaced by metadata of another time.
Source: ZOOKEEPER-2832, ZOOKEEPER-4646.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from dlog.errors import MetadataWentBackError
from dlog.events import MetadataWentBack
from dlog.io import logs, metrics
from dlog.io.stream_metadata import StreamVersion
from dlog.model.ids import Epoch, StreamName

MARKS_MAX = 16_384  # streams remembered, those seen last
DELETED_MAX = 1_024  # deleted streams remembered, those seen last


class Mark(NamedTuple):
    """Versions of the znodes of one life of a stream: every change of ours sets `owner`, Java's set the others."""

    life: str
    owner: int
    ledgers: int
    max_txid: int
    epoch: Epoch

    def is_older_than(self, seen: Mark) -> bool:
        """Whether this cannot be read once `seen` was."""
        return self.life == seen.life and any(now < was for now, was in zip(self[1:], seen[1:], strict=True))

    def joined(self, seen: Mark | None) -> Mark:
        """The newest of both; a new life begins anew."""
        if seen is None or seen.life != self.life:
            return self
        owner, ledgers, max_txid, epoch = map(max, zip(self[1:], seen[1:], strict=True))
        return Mark(self.life, owner, ledgers, max_txid, Epoch(epoch))


class StreamMarks:
    """Of one process."""

    def __init__(self) -> None:
        self._marks: OrderedDict[StreamName, Mark] = OrderedDict()
        self._deleted: OrderedDict[StreamName, Mark] = OrderedDict()  # of those whose last mark says so
        self._lost: dict[StreamName, str] = {}  # what is said of them

    def before(self, stream: StreamName) -> Mark | None:
        """What a reading that begins now must not fall behind. Raises MetadataWentBackError if one did already."""
        if stream in self._lost:
            raise MetadataWentBackError(self._lost[stream])
        return self._seen(stream)

    def seen(self, stream: StreamName) -> Mark | None:
        """What this process has seen of the stream; None: nothing, or it is forgotten."""
        return self._marks.get(stream)

    def check(self, stream: StreamName, before: Mark | None, version: StreamVersion) -> None:
        """Hear what a reading showed. Raises MetadataWentBackError if it fell behind, and tells that once."""
        now = _mark(version)
        if now is None:
            return
        if before is not None and now.is_older_than(before):
            self._lost[stream] = text = (
                f"metadata went back, nothing is served from it: stream={stream} "
                f"epoch={now.epoch} epoch_seen={before.epoch} version={now.owner} version_seen={before.owner}"
            )
            event = MetadataWentBack(stream, now.epoch, before.epoch, now.owner, before.owner)
            logs.tell(event)
            metrics.count(event)
            raise MetadataWentBackError(text)
        self.saw(stream, version)

    def saw(self, stream: StreamName, version: StreamVersion) -> None:
        """This has been read, or written by us."""
        now = _mark(version)
        if now is not None:
            joined = now.joined(self._seen(stream))
            self._marks.pop(stream, None)
            ended = self._deleted.pop(stream, None)
            is_deleted = version.value.owner.deleted or (ended is not None and ended.life == now.life)
            marks, most = (self._deleted, DELETED_MAX) if is_deleted else (self._marks, MARKS_MAX)
            marks[stream] = joined
            if len(marks) > most:
                marks.popitem(last=False)

    def _seen(self, stream: StreamName) -> Mark | None:
        return self._marks.get(stream) or self._deleted.get(stream)


def _mark(version: StreamVersion) -> Mark | None:
    """None: Java made it, and what had its name before cannot be told from it."""
    if not version.life or version.owner is None:
        return None
    return Mark(version.life, version.owner, version.ledgers, version.max_txid, version.value.owner.epoch)
