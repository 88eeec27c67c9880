"""Recovery of what a node left: by the node itself when it starts, and by a failover worker when it does not answer.

Steps, each repeatable, by another process too:

    OpenNode under a greater node epoch    from here on no other process commits or registers for the node
    recover all WAL segments, in order     from here on no other process appends to them
    scan them from the flush point         finds the ends of the open ranges, and what is not uploaded
    CloseStreams with these ends           the streams may be opened elsewhere
    upload the rest, flush point to the end
    delete the segments

Invariants:
- Order is the proof: the metadata fence comes before the flush point and the segments are read, so segments at or
  above this flush point are not deleted by anybody else; and it comes before the segments are recovered, so no segment
  that is missing in the list can be registered any more.
- All segments at or above the flush point are fenced before the first of them is scanned.
- Of a range everything from `committed` on is kept, as far as it continues. Entries below it are in objects; entries
  at or above the end of an ended range do not count. A gap, or an ended range whose entries are not all there, is a
  DamagedError that names the range; nothing is closed or committed then.
- Entries of a range that the controller does not name are committed, or their stream or range is gone.
- Nothing is committed before CloseStreams is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable

from dlog.errors import DamagedError, DLogError
from dlog.events import NodeBegun, NodeEnded
from dlog.machine import Asked, Effect, Fact, PeerLost, Received, TimerFired
from dlog.model.ids import Epoch
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectStreamId, WalPosition, WalSegment
from dlog.objects.node_cache import NodeCache
from dlog.objects.node_messages import AwaitUploaded, NodeEndedError, ReadWalEntries, RecoverNode, RecoverWalSegment
from dlog.objects.node_options import NodeOptions
from dlog.objects.node_wal import WalCleaner
from dlog.objects.operations import CloseStreams, NodeIsOpen, OpenNode, RangeState
from dlog.objects.outbox import Outbox, Service
from dlog.objects.upload import Uploader
from dlog.wire.node_wal import Buffer, WalFrame, decode_wal_entry

CLOSED_TOGETHER = 1000  # streams of one CloseStreams


class RangeScan:
    """What the scan knows of one range. next: the offset that continues it."""

    __slots__ = ("end", "epoch", "next", "stream")

    def __init__(self, found: RangeState) -> None:
        self.stream = found.stream
        self.epoch = found.epoch
        self.next = found.committed
        self.end = found.end

    def keep(self, frame: WalFrame) -> WalFrame | None:
        """The part of a frame that continues this range; None: all of it lies below, or above the end. Raises
        DamagedError: there is a gap."""
        end = frame.end if self.end is None else min(frame.end, self.end)
        if end <= self.next:
            return None
        if frame.first > self.next:
            raise DamagedError(
                "entries of a stream are missing in the write-ahead log of its node:"
                f" {self} expected={self.next} found={frame.first}"
            )
        entries = frame.entries[self.next - frame.first : end - frame.first]
        kept = WalFrame(frame.stream, frame.epoch, self.next, entries)
        self.next = end
        return kept

    def __str__(self) -> str:
        return f"stream={self.stream} epoch={self.epoch}"


class NodeRecovery:
    """The steps up to CloseStreams, and the uploads of what was found, which are released then.

    scanned: called, once the node's open ranges are closed, with the state of the node that the controller sent and
    with their ends. nonce: random, of this process: it distinguishes a repeated OpenNode from another process's.
    """

    def __init__(
        self,
        node: NodeId,
        node_epoch: NodeEpoch,
        nonce: bytes,
        options: NodeOptions,
        outbox: Outbox,
        *,
        is_failover: bool,
        opened: Callable[[NodeIsOpen], None],
        add: Callable[[tuple[WalFrame, ...], WalPosition], None],
        finished: Callable[[NodeIsOpen, tuple[tuple[ObjectStreamId, int], ...]], None],
        over: Callable[[DLogError], None],
    ) -> None:
        self._node = node
        self._node_epoch = node_epoch
        self._nonce = nonce
        self._options = options
        self._outbox = outbox
        self._is_failover = is_failover
        self._opened = opened
        self._add = add
        self._finished = finished
        self._over = over
        self._state: NodeIsOpen | None = None
        self._ranges: dict[tuple[ObjectStreamId, Epoch], RangeScan] = {}
        self._segments: list[WalSegment] = []  # that are recovered and scanned
        self._ends: dict[int, int] = {}  # of recovered segments, by number

    def begin(self) -> None:
        """Fence the node. A refusal after an unclear answer ends this: the epoch may be another process's."""
        request = OpenNode(self._node, self._node_epoch, self._is_failover, self._nonce)
        self._outbox.repeat(Service.CONTROLLER, request, self._node_opened, self._over)

    # ---- the fences -------------------------------------------------------------------------------------------------

    def _node_opened(self, state: NodeIsOpen) -> None:
        self._state = state
        self._ranges = {(found.stream, found.epoch): RangeScan(found) for found in state.ranges}
        self._segments = [segment for segment in state.wal if segment.number >= state.flush_point.segment]
        self._opened(state)
        self._recover(0)

    def _recover(self, at: int) -> None:
        if at == len(self._segments):
            self._scan(0, 0)
            return

        def recovered(end: int) -> None:
            self._ends[self._segments[at].number] = end
            self._recover(at + 1)

        self._outbox.repeat(Service.WAL, RecoverWalSegment(self._segments[at]), recovered, self._over)

    # ---- the scan ---------------------------------------------------------------------------------------------------

    def _scan(self, at: int, first: int) -> None:
        """Scan the segment at this index from an entry on."""
        assert self._state is not None
        if at == len(self._segments):
            self._close()
            return
        segment, flush_point = self._segments[at], self._state.flush_point
        if segment.number == flush_point.segment:
            first = max(first, flush_point.entry)
        end = self._ends[segment.number]
        if first >= end:
            self._scan(at + 1, 0)
            return
        request = ReadWalEntries(segment, first, min(end, first + self._options.wal_read_entries))

        def read(payloads: tuple[Buffer, ...]) -> None:
            try:
                for entry, payload in enumerate(payloads, first):
                    self._take(segment, entry, payload)
            except DLogError as error:
                self._over(error)
                return
            self._scan(at, first + len(payloads))

        self._outbox.repeat(Service.WAL, request, read, self._over)

    def _take(self, segment: WalSegment, entry: int, payload: Buffer) -> None:
        """Add what one WAL entry has that continues a range. Raises DamagedError, UnsupportedVersionError."""
        found = decode_wal_entry(payload)
        if found.node_epoch != segment.node_epoch:
            raise DamagedError(
                f"an entry of another node epoch is in a write-ahead log: node={self._node} segment={segment.number}"
                f" entry={entry} node_epoch={found.node_epoch} expected={segment.node_epoch}"
            )
        kept = list[WalFrame]()
        for frame in found.frames:
            scan = self._ranges.get((frame.stream, frame.epoch))
            continuing = None if scan is None else scan.keep(frame)
            if continuing is not None:
                kept.append(continuing)
        self._add(tuple(kept), WalPosition(segment.number, entry + 1))

    # ---- closing ----------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        for scan in self._ranges.values():
            if scan.end is not None and scan.next < scan.end:
                text = "entries of a stream are missing at the end of the write-ahead log of its node:"
                self._over(DamagedError(f"{text} {scan} expected={scan.end} found={scan.next}"))
                return
        ends = [(scan.stream, scan.epoch, scan.next) for scan in self._ranges.values() if scan.end is None]
        self._close_from(ends, 0)

    def _close_from(self, ends: list[tuple[ObjectStreamId, Epoch, int]], first: int) -> None:
        assert self._state is not None
        some = tuple(ends[first : first + CLOSED_TOGETHER])
        if not some:
            self._finished(self._state, tuple((stream, end) for stream, _, end in ends))
            return
        request = CloseStreams(self._node, self._node_epoch, some)
        self._outbox.repeat(
            Service.CONTROLLER, request, lambda _: self._close_from(ends, first + CLOSED_TOGETHER), self._over
        )


class FailoverWorker:
    """Takes over the work of a node that does not answer: RecoverNode, then AwaitUploaded.

    It serves no streams. When it ends early, another one begins anew; a node that was wrongly suspected does the same
    under its next node epoch, and this one is then refused.
    """

    def __init__(self, node: NodeId, node_epoch: NodeEpoch, nonce: bytes, options: NodeOptions) -> None:
        self.node_epoch = node_epoch
        self.cache = NodeCache(options.cache_bytes_max)
        self._node = node
        self._options = options
        self._outbox = Outbox(options.retry_s, options.retry_max_s)
        self._uploader: Uploader | None = None
        self._cleaner: WalCleaner | None = None
        self._error: NodeEndedError | None = None
        self._asking: list[int] = []  # tickets, for the ends
        self._awaiting: list[int] = []  # tickets, for the upload
        self._ends: tuple[tuple[ObjectStreamId, int], ...] | None = None
        self._is_uploaded = False
        self._recovery = NodeRecovery(
            node,
            node_epoch,
            nonce,
            options,
            self._outbox,
            is_failover=True,
            opened=self._opened,
            add=self._add,
            finished=self._finished,
            over=self._over,
        )
        self._is_begun = False

    @property
    def trouble(self) -> DLogError | None:
        """Why it does not get on; None: it does."""
        return self._outbox.trouble

    def handle(self, fact: Fact) -> list[Effect]:
        match fact:
            case Asked(ticket, request):
                self._asked(ticket, request)
            case Received(_, reply):
                self._outbox.receive(reply)
            case TimerFired(key):
                self._outbox.fired(key)
            case PeerLost(peer, reason):
                self._outbox.lost(peer, reason)
            case _:
                raise AssertionError(f"not a fact of a failover worker: {fact}")
        self._settle()
        return self._outbox.take()

    def _asked(self, ticket: int, request: RecoverNode | AwaitUploaded) -> None:
        match request:
            case RecoverNode():
                self._asking.append(ticket)
                if not self._is_begun:
                    self._is_begun = True
                    self._recovery.begin()
            case AwaitUploaded():
                self._awaiting.append(ticket)

    def _settle(self) -> None:
        """Answer whom there is an answer for. The only place that answers."""
        if self._error is not None:
            self._outbox.answer([*self._asking, *self._awaiting], self._error)
            self._asking, self._awaiting = [], []
        if self._ends is not None:
            self._outbox.answer(self._asking, self._ends)
            self._asking = []
        if self._is_uploaded:
            self._outbox.answer(self._awaiting, None)
            self._awaiting = []

    def _opened(self, state: NodeIsOpen) -> None:
        self._uploader, self._cleaner = begin_uploads(
            self._node, self.node_epoch, state, self._options, self._outbox, self.cache, over=self._over
        )

    def _add(self, frames: tuple[WalFrame, ...], position: WalPosition) -> None:
        assert self._uploader is not None
        self._uploader.add(frames, position)

    def _finished(self, state: NodeIsOpen, ends: tuple[tuple[ObjectStreamId, int], ...]) -> None:
        assert self._uploader is not None and self._cleaner is not None
        self._ends = ends
        self._outbox.emit(NodeBegun(self._node, self.node_epoch, True, len(ends)))
        finish_recovery(state, self._uploader, self._cleaner)
        self._cleaner.when_clean(self._cleaned)

    def _cleaned(self) -> None:
        assert self._uploader is not None and self._uploader.is_idle
        self._is_uploaded = True

    def _over(self, error: DLogError) -> None:
        if self._error is None:
            self._error = NodeEndedError(
                f"the failover of a node ended: node={self._node} node_epoch={self.node_epoch} why={error.message}",
                outcome_unknown=False,
            )
            self._error.__cause__ = error
            self._outbox.close()
            self._outbox.emit(NodeEnded(self._node, self.node_epoch, error.message))


def begin_uploads(
    node: NodeId,
    node_epoch: NodeEpoch,
    state: NodeIsOpen,
    options: NodeOptions,
    outbox: Outbox,
    cache: NodeCache,
    *,
    over: Callable[[DLogError], None],
) -> tuple[Uploader, WalCleaner]:
    """The uploads of a node that was opened, from its flush point on, and the deletion of its log behind them."""
    cleaner = WalCleaner(node, node_epoch, outbox, over=over)
    uploader = Uploader(node, node_epoch, options, outbox, cache, committed=cleaner.flushed, over=over)
    uploader.pass_to(state.flush_point)
    return uploader, cleaner


def finish_recovery(state: NodeIsOpen, uploader: Uploader, cleaner: WalCleaner) -> int:
    """Upload what a recovery found, move the flush point behind all segments, and delete them. Returns the number of
    the segment that would be next."""
    number = max([1, state.flush_point.segment, *(segment.number + 1 for segment in state.wal)])
    for segment in state.wal:
        cleaner.add(segment)
    cleaner.flushed(state.flush_point)
    if state.wal and state.flush_point.segment < number:
        uploader.finish_at(WalPosition(number, 0))
    uploader.release()
    return number
