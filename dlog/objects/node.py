"""A node: acknowledges appends to many streams by one write-ahead log, and uploads them to objects later.

    STARTING (recovers what the node left) -> SERVING -> OVER

Whatever goes wrong with the log, a fence or a failed append, the node is over, and its owner begins it anew under the
next node epoch: the recovery then decides what is in the log. Going on with another segment would need the same
recovery of the failed one, with streams open, and would save little: a store that loses a few of its members goes on by
itself.

Invariants, which together say that a node acknowledges nothing that the readers of its streams do not get:
- A node, a failover worker, or the node's next process first raises the node epoch at the controller, then recovers the
  WAL segments that the controller names, then records the ends of the streams.
- A WAL segment is registered with the controller, under the node epoch, before its first append. So one that the
  recovery does not see was not appended to, and cannot be registered any more.
- A recovery fences each segment that it sees, for good, and keeps everything that was confirmed; so what is confirmed
  under this node epoch, at whatever time this machine learns of it, is below the ends that the recovery records.
- An append is acknowledged only by the confirmation of its WAL entry and of all those before. What is confirmed is
  never taken back: it is in the cache, in the log, or in committed objects.
- Only the node epoch that holds commits, and only what the log has confirmed; a WAL segment is deleted only below the
  flush point of a confirmed commit.
- A stream is closed at the end of what was put into the log. What is on its way counts once it is confirmed, because a
  reader of the log may see it before this node does.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from dlog.errors import (
    DLogError,
    InvalidRequestError,
    NotReadyError,
    OverCapacityError,
    RecordTooLargeError,
    StaleRequestError,
)
from dlog.events import NodeBegun, NodeEnded
from dlog.machine import Asked, Effect, Fact, PeerLost, Received, TimerFired
from dlog.model.ids import Epoch
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectStreamId, WalPosition, WalSegment
from dlog.objects.failover import CLOSED_TOGETHER, NodeRecovery, begin_uploads, finish_recovery
from dlog.objects.node_cache import NodeCache, entry_bytes
from dlog.objects.node_messages import (
    AppendEntries,
    CloseStreamsHere,
    NodeEndedError,
    OpenStreamHere,
    StartNode,
    TrimStreamHere,
    UploadAll,
)
from dlog.objects.node_options import NodeOptions
from dlog.objects.node_wal import PendingAppend, WalCleaner, WalWriter
from dlog.objects.operations import CloseStreams, Done, NodeIsOpen, OpenStream, StreamIsOpen, TrimStream
from dlog.objects.outbox import Outbox, Service
from dlog.objects.upload import Uploader
from dlog.wire.node_wal import StreamEntry, WalFrame

Request = StartNode | OpenStreamHere | AppendEntries | TrimStreamHere | CloseStreamsHere | UploadAll


class Phase(enum.Enum):
    """State of a node."""

    NEW = "new"
    STARTING = "starting"
    SERVING = "serving"
    OVER = "over"


TRANSITIONS = {
    Phase.NEW: {Phase.STARTING},
    Phase.STARTING: {Phase.SERVING, Phase.OVER},
    Phase.SERVING: {Phase.OVER},
    Phase.OVER: set[Phase](),
}


@dataclass(slots=True)
class LocalStream:
    """A stream that is open here. next: the offset of the next append. confirmed: the end of what the log confirmed."""

    stream: ObjectStreamId
    epoch: Epoch
    next: int
    confirmed: int
    is_closing: bool = False


@dataclass(slots=True)
class _Closing:
    """Streams that are closed together: they wait until what is on its way is confirmed, then for the controller."""

    ticket: int
    streams: list[LocalStream]
    is_asked: bool = False

    @property
    def is_drained(self) -> bool:
        return all(stream.confirmed == stream.next for stream in self.streams)

    @property
    def ends(self) -> tuple[tuple[ObjectStreamId, Epoch, int], ...]:
        return tuple((one.stream, one.epoch, one.next) for one in self.streams)


@dataclass(slots=True)
class _Tickets:
    """Callers' requests that wait for something else than an append."""

    starting: list[int] = field(default_factory=list)
    opening: dict[int, OpenStreamHere] = field(default_factory=dict)
    closing: deque[_Closing] = field(default_factory=deque)
    trimming: list[int] = field(default_factory=list)
    uploading: list[int] = field(default_factory=list)


class ObjectNode:
    """One process of a node, under one node epoch; see the module. Its owner hands it StartNode first.

    node_epoch: greater than that of any process of the node that is known. nonce: random, of this process.
    """

    def __init__(self, node: NodeId, node_epoch: NodeEpoch, nonce: bytes, options: NodeOptions) -> None:
        self.phase = Phase.NEW
        self.node_epoch = node_epoch
        self.cache = NodeCache(options.cache_bytes_max)
        self._node = node
        self._options = options
        self._outbox = Outbox(options.retry_s, options.retry_max_s)
        self._error: NodeEndedError | None = None
        self._streams: dict[ObjectStreamId, LocalStream] = {}
        self._tickets = _Tickets()
        self._reserved_bytes = 0  # of appends that are not confirmed
        self._uploader: Uploader | None = None
        self._cleaner: WalCleaner | None = None
        self._wal: WalWriter | None = None
        self._recovery = NodeRecovery(
            node,
            node_epoch,
            nonce,
            options,
            self._outbox,
            is_failover=False,
            opened=self._opened,
            add=self._recovered,
            finished=self._recovery_finished,
            over=self._over,
        )

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
                raise AssertionError(f"not a fact of a node: {fact}")
        self._settle()
        return self._outbox.take()

    @property
    def error(self) -> NodeEndedError | None:
        """Why it has ended; None: it has not."""
        return self._error

    @property
    def trouble(self) -> DLogError | None:
        """Why it does not get on; None: it does."""
        return self._outbox.trouble

    def read(self, stream: ObjectStreamId, start: int, end: int, bytes_max: int) -> list[StreamEntry]:
        """Confirmed entries from the cache; see NodeCache.read. What it does not have is in objects."""
        return self.cache.read(stream, start, end, bytes_max)

    def confirmed_end(self, stream: ObjectStreamId) -> int | None:
        """The end of what is confirmed of a stream that is open here; None: it is not."""
        local = self._streams.get(stream)
        return None if local is None else local.confirmed

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _asked(self, ticket: int, request: Request) -> None:
        if self._error is not None:
            self._outbox.answer([ticket], self._error)
            return
        if isinstance(request, StartNode):
            self._tickets.starting.append(ticket)
            if self.phase is Phase.NEW:
                self._change(Phase.STARTING)
                self._recovery.begin()
            return
        if self.phase is not Phase.SERVING:
            self._outbox.answer([ticket], NotReadyError(f"the node recovers what it left: node={self._node}"))
            return
        match request:
            case OpenStreamHere():
                self._open_stream(ticket, request)
            case AppendEntries():
                self._append(ticket, request)
            case CloseStreamsHere(streams):
                self._close_streams(ticket, streams)
            case TrimStreamHere():
                self._trim_stream(ticket, request)
            case UploadAll():
                assert self._uploader is not None
                self._tickets.uploading.append(ticket)
                self._uploader.cut()
                self._uploader.when_committed(lambda: self._all_uploaded(ticket))

    def _open_stream(self, ticket: int, request: OpenStreamHere) -> None:
        local = self._streams.get(request.stream)
        if local is not None:
            if local.epoch == request.epoch and not local.is_closing:
                self._outbox.answer([ticket], local.next)
            else:
                text = "the stream is open here under another epoch, close it first:"
                where = f"stream={request.stream} epoch={local.epoch}"
                self._outbox.answer([ticket], StaleRequestError(f"{text} {where}"))
            return
        self._tickets.opening[ticket] = request
        self._ask_to_open(ticket, request)

    def _ask_to_open(self, ticket: int, request: OpenStreamHere) -> None:
        def failed(error: DLogError) -> None:
            if error.outcome_unknown:
                self._outbox.later(self._options.retry_s, lambda: self._ask_to_open(ticket, request))
            else:
                del self._tickets.opening[ticket]
                self._outbox.answer([ticket], error)

        operation = OpenStream(self._node, self.node_epoch, request.stream, request.epoch)
        self._outbox.ask(Service.CONTROLLER, operation, partial(self._stream_opened, ticket, request), failed)

    def _stream_opened(self, ticket: int, request: OpenStreamHere, found: StreamIsOpen) -> None:
        del self._tickets.opening[ticket]
        local = self._streams.get(request.stream)
        if local is None:
            local = LocalStream(request.stream, request.epoch, found.next, found.next)
            self._streams[request.stream] = local
        self._outbox.answer([ticket], local.next)

    def _append(self, ticket: int, request: AppendEntries) -> None:
        assert self._wal is not None and self._uploader is not None
        local = self._streams.get(request.stream)
        size = entry_bytes(request.entries)
        error: DLogError | None = None
        if local is None or local.epoch != request.epoch or local.is_closing:
            error = StaleRequestError(f"the stream is not open here: stream={request.stream} epoch={request.epoch}")
        elif not request.entries:
            error = InvalidRequestError(f"an append has at least one entry: stream={request.stream}")
        elif request.offset != local.next:
            text = f"the append is not at the next offset: stream={request.stream}"
            error = StaleRequestError(f"{text} offset={request.offset} next={local.next}")
        elif self._wal.is_too_large(size):
            error = RecordTooLargeError(
                f"the entries are too large for one append: stream={request.stream} bytes={size}"
            )
        elif not self.cache.has_room(self._reserved_bytes + size):
            self._uploader.cut()
            unuploaded = self.cache.unuploaded_bytes
            error = OverCapacityError(f"too much is not uploaded, try again: node={self._node} bytes={unuploaded}")
        if error is not None:
            self._outbox.answer([ticket], error)
            return
        assert local is not None
        append = PendingAppend(ticket, local.stream, local.epoch, local.next, request.entries, size)
        local.next = append.end
        self._reserved_bytes += size
        self._wal.append(append)

    def _trim_stream(self, ticket: int, request: TrimStreamHere) -> None:
        """Trim a stream, but not above what is confirmed: each recovery must find an end at or above its start."""
        local = self._streams.get(request.stream)
        if local is None or local.epoch != request.epoch or local.is_closing:
            text = f"the stream is not open here: stream={request.stream} epoch={request.epoch}"
            self._outbox.answer([ticket], StaleRequestError(text))
            return
        if request.start > local.confirmed:
            text = f"a stream is trimmed only up to its end: stream={request.stream}"
            error = StaleRequestError(f"{text} start={request.start} end={local.confirmed}")
            self._outbox.answer([ticket], error)
            return
        self._tickets.trimming.append(ticket)

        def ended(result: Done | DLogError) -> None:
            self._tickets.trimming.remove(ticket)
            self._outbox.answer([ticket], None if isinstance(result, Done) else result)

        operation = TrimStream(self._node, self.node_epoch, request.stream, request.epoch, request.start)
        self._outbox.repeat(Service.CONTROLLER, operation, ended, ended)

    def _close_streams(self, ticket: int, streams: tuple[ObjectStreamId, ...]) -> None:
        assert self._wal is not None
        if len(streams) > CLOSED_TOGETHER:
            text = f"so many streams are not closed at once, close them in parts: streams={len(streams)}"
            self._outbox.answer([ticket], InvalidRequestError(f"{text} most={CLOSED_TOGETHER}"))
            return
        found = [self._streams.get(stream) for stream in dict.fromkeys(streams)]
        closing = [local for local in found if local is not None and not local.is_closing]
        if len(closing) < len(found):
            missing = [stream for stream in streams if stream not in {local.stream for local in closing}]
            self._outbox.answer([ticket], StaleRequestError(f"the streams are not open here: streams={missing}"))
            return
        for local in closing:
            local.is_closing = True
            unsent = self._wal.take_unsent(local.stream)
            if unsent:
                local.next = unsent[0].first
            self._fail(unsent, StaleRequestError(f"the stream is being closed: stream={local.stream}"))
        self._tickets.closing.append(_Closing(ticket, closing))

    def _fail(self, appends: list[PendingAppend], error: DLogError) -> None:
        self._reserved_bytes -= sum(append.bytes for append in appends)
        self._outbox.answer([append.ticket for append in appends], error)

    def _all_uploaded(self, ticket: int) -> None:
        self._tickets.uploading.remove(ticket)
        self._outbox.answer([ticket], None)

    # ---- consequences -----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Ask the controller to close the streams that are drained."""
        for closing in self._tickets.closing:
            if not closing.is_asked and closing.is_drained:
                closing.is_asked = True
                self._outbox.repeat(
                    Service.CONTROLLER,
                    CloseStreams(self._node, self.node_epoch, closing.ends),
                    partial(self._closed, closing),
                    self._over,
                )

    def _closed(self, closing: _Closing, _: Done) -> None:
        self._tickets.closing.remove(closing)
        for local in closing.streams:
            del self._streams[local.stream]
        self._outbox.answer([closing.ticket], tuple((stream, end) for stream, _, end in closing.ends))

    def _opened(self, state: NodeIsOpen) -> None:
        self._uploader, self._cleaner = begin_uploads(
            self._node, self.node_epoch, state, self._options, self._outbox, self.cache, over=self._over
        )

    def _recovered(self, frames: tuple[WalFrame, ...], position: WalPosition) -> None:
        assert self._uploader is not None
        self._uploader.add(frames, position)

    def _recovery_finished(self, state: NodeIsOpen, ends: tuple[tuple[ObjectStreamId, int], ...]) -> None:
        assert self._uploader is not None and self._cleaner is not None
        self._outbox.emit(NodeBegun(self._node, self.node_epoch, False, len(ends)))
        number = finish_recovery(state, self._uploader, self._cleaner)
        self._wal = WalWriter(
            self._node,
            self.node_epoch,
            self._options,
            self._outbox,
            ready=self._wal_ready,
            confirmed=self._confirmed,
            rolled=self._rolled,
            over=self._over,
        )
        self._wal.begin(number)

    def _wal_ready(self, segment: WalSegment) -> None:
        assert self._uploader is not None
        self._uploader.pass_to(WalPosition(segment.number, 0))
        self._change(Phase.SERVING)
        self._outbox.answer(self._tickets.starting, self.node_epoch)
        self._tickets.starting = []

    def _confirmed(self, frames: tuple[WalFrame, ...], position: WalPosition, appends: list[PendingAppend]) -> None:
        """A WAL entry is confirmed, and all before it: the only place that acknowledges appends."""
        assert self._uploader is not None
        for append in appends:
            local = self._streams[append.stream]
            assert local.epoch == append.epoch and local.confirmed == append.first
            local.confirmed = append.end
            self._reserved_bytes -= append.bytes
            self._outbox.answer([append.ticket], append.end)
        self._uploader.add(frames, position)

    def _rolled(self, segment: WalSegment, following: int) -> None:
        assert self._uploader is not None and self._cleaner is not None
        self._uploader.pass_to(WalPosition(following, 0))
        self._cleaner.add(segment)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _change(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase

    def _over(self, error: DLogError) -> None:
        """Acknowledge nothing more. What is in the log counts as the next recovery finds it."""
        if self.phase is Phase.OVER:
            return
        self._change(Phase.OVER)
        text = f"the node ended: node={self._node} node_epoch={self.node_epoch} why={error.message}"
        self._error = NodeEndedError(text, outcome_unknown=False)
        self._error.__cause__ = error
        unknown, unsent = self._wal.take_all() if self._wal is not None else ([], [])
        in_doubt = NodeEndedError(text)
        in_doubt.__cause__ = error
        self._fail(unknown, in_doubt)
        self._fail(unsent, self._error)
        waiting = self._tickets
        others = [*waiting.starting, *waiting.opening, *waiting.trimming, *waiting.uploading]
        self._outbox.answer(others, self._error)
        self._outbox.answer([closing.ticket for closing in waiting.closing], in_doubt)
        self._tickets = _Tickets()
        self._streams.clear()
        self._outbox.close()
        self._outbox.emit(NodeEnded(self._node, self.node_epoch, error.message))
