"""Detects that ZooKeeper lost confirmed changes, by the newest versions of streams' metadata seen here.

Versions of a stream's znodes only grow while it exists, and a read that starts after one was seen shows no lower one.
If it does, ZooKeeper has lost confirmed changes (a snapshot restored, an ensemble that lost its log): acknowledged
records lie in segments that the list no longer names.

Invariants:
- From then on this process reads nothing of that stream, until an operator has looked and restarts it.
- A stream that was deleted and created again is another incarnation, so another stream.
- What this process has not seen, or has forgotten, is not checked.
- Streams seen as deleted are kept apart, under a smaller bound, so that they displace no existing stream.
- A missing stream is not forgotten: metadata from before its creation lacks it too, and may be replaced by metadata of
  another time.

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

MARKS_MAX = 16_384  # existing streams remembered: those seen last
DELETED_MAX = 1_024  # deleted streams remembered: those seen last


class SeenVersion(NamedTuple):
    """Versions of the znodes of one incarnation of a stream: our changes set `owner`, Java's the others."""

    incarnation: str
    owner: int
    ledgers: int
    max_txid: int
    epoch: Epoch

    def is_older_than(self, seen: SeenVersion) -> bool:
        """Whether reading this after `seen` proves that changes were lost."""
        return self.incarnation == seen.incarnation and any(
            now < was for now, was in zip(self[1:], seen[1:], strict=True)
        )

    def joined(self, seen: SeenVersion | None) -> SeenVersion:
        """The newest versions of both; those of another incarnation are dropped."""
        if seen is None or seen.incarnation != self.incarnation:
            return self
        owner, ledgers, max_txid, epoch = map(max, zip(self[1:], seen[1:], strict=True))
        return SeenVersion(self.incarnation, owner, ledgers, max_txid, Epoch(epoch))


class SeenVersions:
    """Marks of one process."""

    def __init__(self) -> None:
        self._marks: OrderedDict[StreamName, SeenVersion] = OrderedDict()
        self._deleted: OrderedDict[StreamName, SeenVersion] = OrderedDict()  # of streams last seen as deleted
        self._lost: dict[StreamName, str] = {}  # streams whose metadata went back, with the error message

    def before(self, stream: StreamName) -> SeenVersion | None:
        """The mark that a read starting now must reach. Raises MetadataWentBackError if one did not before."""
        if stream in self._lost:
            raise MetadataWentBackError(self._lost[stream])
        return self._seen(stream)

    def seen(self, stream: StreamName) -> SeenVersion | None:
        """The mark of an existing stream; None: not seen, or forgotten."""
        return self._marks.get(stream)

    def check(self, stream: StreamName, before: SeenVersion | None, version: StreamVersion) -> None:
        """Check and remember a version just read. before: result of `before`, called before the read. Raises
        MetadataWentBackError if the version is older, and logs it."""
        now = _mark(version)
        if now is None:
            return
        if before is not None and now.is_older_than(before):
            self._lost[stream] = text = (
                f"metadata went back, this process no longer serves the stream; see docs/restore.md: stream={stream} "
                f"epoch={now.epoch} epoch_seen={before.epoch} version={now.owner} version_seen={before.owner}"
            )
            event = MetadataWentBack(stream, now.epoch, before.epoch, now.owner, before.owner)
            logs.log_event(event)
            metrics.count(event)
            raise MetadataWentBackError(text)
        self.saw(stream, version)

    def saw(self, stream: StreamName, version: StreamVersion) -> None:
        """Remember a version that was read, or written by this process."""
        now = _mark(version)
        if now is not None:
            joined = now.joined(self._seen(stream))
            self._marks.pop(stream, None)
            ended = self._deleted.pop(stream, None)
            is_deleted = version.value.owner.deleted or (ended is not None and ended.incarnation == now.incarnation)
            marks, most = (self._deleted, DELETED_MAX) if is_deleted else (self._marks, MARKS_MAX)
            marks[stream] = joined
            if len(marks) > most:
                marks.popitem(last=False)

    def _seen(self, stream: StreamName) -> SeenVersion | None:
        return self._marks.get(stream) or self._deleted.get(stream)


def _mark(version: StreamVersion) -> SeenVersion | None:
    """None: Java created the stream, so it cannot be told from an earlier one of the same name."""
    if not version.incarnation or version.owner is None:
        return None
    return SeenVersion(version.incarnation, version.owner, version.ledgers, version.max_txid, version.value.owner.epoch)
