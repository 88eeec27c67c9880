"""Explores every order of events of a node that is fenced: does what it acknowledges lie below the recorded end?

One node appends a few entries, and its write-ahead log rolls meanwhile. Others take over from it, one after another or
at once: failover workers, or the node's next process. Each request is carried out at any moment after it was sent, and
its answer arrives at any later one; an append is durable at one moment and confirmed at another; a recovery may keep
any of what is not confirmed. The machines are those of dlog/objects/node.py and failover.py, the controller decides as
dlog/objects/decisions.py. A process that dies is one whose next event never comes.

    python -m tests.simulation.node_fencing [--appends N] [--others wn]

prints the number of states, and a violation if there is one.

A machine is deterministic, so its state is what it has been told: a state here has no machines, only their histories.

Invariants, checked in each state:
- F1: what was acknowledged lies below the recorded end of its range.
- F2: the entries below the recorded end are in the log, those that were acknowledged at their offsets.
- F3: a failover worker ends only because another worker, or the restarted node, took over from it.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dlog.errors import DLogError
from dlog.machine import Answer, Asked, Received, Send
from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    KeyPut,
    MetadataRecord,
    NodeEpoch,
    NodeId,
    ObjectStreamId,
    StreamCreated,
    WalSegment,
)
from dlog.objects.decisions import decide
from dlog.objects.errors import NodeEpochExpiredError
from dlog.objects.failover import FailoverWorker
from dlog.objects.image import Image, NodeImage
from dlog.objects.node import ObjectNode
from dlog.objects.node_messages import (
    AppendEntries,
    AppendWalEntry,
    CreateWalSegment,
    OpenStreamHere,
    ReadWalEntries,
    RecoverNode,
    RecoverWalSegment,
    SealWalSegment,
    StartNode,
    WalLocation,
)
from dlog.objects.node_options import NodeOptions
from dlog.objects.operations import BeginWalSegment, Done
from dlog.objects.options import ControllerOptions
from dlog.objects.outbox import Question, Reply, Service
from dlog.stores.contract import SegmentFencedError
from dlog.wire.node_wal import decode_wal_entry, stream_entry

NODE, STREAM, EPOCH = NodeId("a"), ObjectStreamId(1), Epoch(0)
OPTIONS = NodeOptions(wal_segment_bytes=1, wal_entries_in_flight=2, wal_entry_bytes_max=150, wal_read_entries=1)
FIRST_APPEND = 10  # ticket
LANDED = "landed"  # an append that is durable, and not confirmed
CONFIRMED, FENCED = "confirmed", "fenced"


class Stored(NamedTuple):
    """A WAL segment. end: once a recovery decided it."""

    name: str
    entries: tuple[bytes, ...] = ()
    confirmed: int = 0
    end: int | None = None


class Carried(NamedTuple):
    """A request that was carried out and not answered. label: of its result."""

    process: str
    number: int
    label: str


@dataclass(frozen=True)
class State:
    """histories: by process, what it was told: numbers of its questions and labels of the results."""

    records: tuple[MetadataRecord, ...]
    wal: tuple[Stored, ...] = ()
    carried: frozenset[Carried] = frozenset()
    histories: tuple[tuple[str, tuple[tuple[int, str], ...]], ...] = ()


@dataclass(slots=True)
class Told:
    """What a process has sent and said after a history. acked: ends of acknowledged appends. ended: why it ended."""

    questions: dict[int, Any] = field(default_factory=dict)  # not answered
    acked: int = 0
    ended: BaseException | None = None


@dataclass(frozen=True)
class Parts:
    """What a planted defect replaces outside of the machines."""

    checks_registration: bool = True  # a WAL segment is registered only under the current node epoch
    fences: bool = True  # a recovery of a segment ends it


SHIPPED = Parts()


class Explorer:
    """Visits all reachable states. others: processes that take over, w: a failover worker, n: the node's next process;
    they have the node epochs 2, 3, ..."""

    def __init__(self, parts: Parts = SHIPPED, *, appends: int = 3, others: str = "wn") -> None:
        self._parts = parts
        self._appends = appends
        self._others = others
        self._results: dict[str, Any] = {CONFIRMED: None, FENCED: SegmentFencedError("fenced")}
        self._told: dict[tuple[str, tuple[tuple[int, str], ...]], Told] = {}
        self._images: dict[tuple[MetadataRecord, ...], Image] = {}
        self.visited = 0

    def run(self) -> str:
        """The first violation found, or ""."""
        names = ["1", *(f"{number}{kind}" for number, kind in enumerate(self._others, 2))]
        start = State((KeyPut("k", b"1"), StreamCreated(STREAM)), histories=tuple((name, ()) for name in names))
        start = self._serve(start)
        seen, waiting = {start}, deque([start])
        while waiting:
            state = waiting.popleft()
            self.visited += 1
            for following in self._steps(state):
                if following not in seen:
                    seen.add(following)
                    if violation := self._violation(following):
                        return violation
                    waiting.append(following)
        return ""

    def _serve(self, state: State) -> State:
        """Let the first process alone start and open the stream."""
        while len(state.histories[0][1]) < 4:
            state = next(following for following in self._steps(state) if not self._others_act(following))
        return state

    def _others_act(self, state: State) -> bool:
        return any(history for _, history in state.histories[1:]) or any(one.process != "1" for one in state.carried)

    # ---- machines ---------------------------------------------------------------------------------------------------

    def _told_by(self, name: str, history: tuple[tuple[int, str], ...]) -> Told:
        """Run a process through its history."""
        known = self._told.get((name, history))
        if known is not None:
            return known
        epoch, told = NodeEpoch(int(name[0])), Told()
        machine: ObjectNode | FailoverWorker
        if name.endswith("w"):
            machine = FailoverWorker(NODE, epoch, name.encode(), OPTIONS)
        else:
            machine = ObjectNode(NODE, epoch, name.encode(), OPTIONS)
        tickets: dict[int, Any] = {0: -1}

        def tell(fact: Any) -> None:
            for effect in machine.handle(fact):
                match effect:
                    case Send(_, Question(number, request)):
                        told.questions[number] = request
                    case Answer(ticket, DLogError() as error):
                        if ticket == 0:
                            told.ended = error.__cause__
                    case Answer(ticket, result):
                        assert not isinstance(result, DLogError)
                        tickets[ticket] = result
                        if ticket >= FIRST_APPEND:
                            told.acked = max(told.acked, result)

        tell(Asked(0, RecoverNode() if name.endswith("w") else StartNode()))
        is_open = has_appended = False
        for number, label in history:
            del told.questions[number]
            tell(Received(Service.CONTROLLER, Reply(number, self._results[label])))
            if name == "1" and tickets[0] != -1 and not is_open:
                is_open = True
                tell(Asked(1, OpenStreamHere(STREAM, EPOCH)))
            if 1 in tickets and not has_appended:
                has_appended = True
                for offset in range(self._appends):
                    entries = (stream_entry(b"%d" % offset + b"." * 40),)
                    tell(Asked(FIRST_APPEND + offset, AppendEntries(STREAM, EPOCH, offset, entries)))
        self._told[name, history] = told
        return told

    def _label(self, result: Any) -> str:
        label = repr(result)
        self._results.setdefault(label, result)
        return label

    def _image(self, records: tuple[MetadataRecord, ...]) -> Image:
        known = self._images.get(records)
        if known is None:
            known = self._images[records] = Image()
            known.apply_all(records)
        return known

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[State]:
        """A request is carried out, a durable append is confirmed, or an answer arrives."""
        carried = {(one.process, one.number): one for one in state.carried}
        for name, history in state.histories:
            for number, request in self._told_by(name, history).questions.items():
                one = carried.get((name, number))
                if one is None:
                    yield from self._carry_out(state, name, number, request)
                elif one.label == LANDED:
                    yield from self._confirm(state, one, request)
                else:
                    histories = tuple((n, (*h, (number, one.label)) if n == name else h) for n, h in state.histories)
                    yield replace(state, carried=state.carried - {one}, histories=histories)

    def _carry_out(self, state: State, name: str, number: int, request: Any) -> Iterator[State]:
        def answered(label: str, **changes: Any) -> State:
            return replace(state, carried=state.carried | {Carried(name, number, label)}, **changes)

        match request:
            case CreateWalSegment():
                made = Stored(f"{name}/{number}")
                yield answered(self._label(WalLocation("model", made.name)), wal=(*state.wal, made))
            case AppendWalEntry(segment, entry, parts):
                stored = _find(state, segment)
                if stored.end is not None:
                    yield answered(FENCED)
                elif len(stored.entries) == entry:
                    payload = b"".join(bytes(part) for part in parts)
                    landed = stored._replace(entries=(*stored.entries, payload))
                    yield answered(LANDED, wal=_with(state.wal, landed))
            case RecoverWalSegment(segment):
                stored = _find(state, segment)
                if stored.end is not None or not self._parts.fences:
                    yield answered(self._label(stored.end if stored.end is not None else stored.confirmed))
                    return
                for end in range(stored.confirmed, len(stored.entries) + 1):
                    ended = stored._replace(entries=stored.entries[:end], confirmed=end, end=end)
                    yield answered(self._label(end), wal=_with(state.wal, ended))
            case ReadWalEntries(segment, first, end):
                yield answered(self._label(_find(state, segment).entries[first:end]))
            case SealWalSegment():
                pass
            case _ if hasattr(request, "node"):
                yield from self._decide(state, request, answered)

    def _decide(self, state: State, request: Any, answered: Any) -> Iterator[State]:
        image = self._image(state.records)
        if isinstance(request, BeginWalSegment) and not self._parts.checks_registration:
            image = Image()
            image.apply_all(state.records)
            image.nodes.setdefault(NODE, NodeImage()).node_epoch = request.node_epoch
            image.nodes[NODE].is_failover = False
        try:
            records, result = decide(image, request, 1000, ControllerOptions())
        except DLogError as error:
            yield answered(self._label(error))
            return
        if isinstance(request, BeginWalSegment) and not self._parts.checks_registration:
            records = ()  # an image refuses it, too
        result = Done(0) if isinstance(result, Done) else result
        yield answered(self._label(result), records=(*state.records, *records))

    def _confirm(self, state: State, one: Carried, request: AppendWalEntry) -> Iterator[State]:
        stored = _find(state, request.segment)
        left = state.carried - {one}
        if stored.end is None:
            if stored.confirmed == request.entry:
                confirmed = stored._replace(confirmed=request.entry + 1)
                yield replace(state, carried=left | {one._replace(label=CONFIRMED)}, wal=_with(state.wal, confirmed))
            return
        yield replace(state, carried=left | {one._replace(label=FENCED)})
        if request.entry < stored.end:
            yield replace(state, carried=left | {one._replace(label=CONFIRMED)})

    # ---- checks -----------------------------------------------------------------------------------------------------

    def _violation(self, state: State) -> str:
        told = {name: self._told_by(name, history) for name, history in state.histories}
        for name, one in told.items():
            if one.ended is not None and name != "1" and not isinstance(one.ended, NodeEpochExpiredError):
                return f"F3: {name} ended: {one.ended!r}"
        image = self._image(state.records)
        ranges = image.streams[STREAM].ranges
        end = ranges[0].end if ranges else None
        if end is None:
            return ""
        acked = told["1"].acked
        if acked > end:
            return f"F1: {acked} are acknowledged, the range ends at {end}"
        found: dict[int, bytes] = {}
        for segment in image.nodes[NODE].wal:
            stored = next((s for s in state.wal if s.name == segment.name), Stored(""))
            for payload in stored.entries:
                for frame in decode_wal_entry(payload).frames:
                    found |= {frame.first + n: bytes(entry.payload) for n, entry in enumerate(frame.entries)}
        wrong = [offset for offset in range(end) if not found.get(offset, b"").startswith(b"%d." % offset)]
        return f"F2: the range ends at {end}, and the log does not have {wrong}" if wrong else ""


def _find(state: State, segment: WalSegment) -> Stored:
    return next(stored for stored in state.wal if stored.name == segment.name)


def _with(wal: tuple[Stored, ...], changed: Stored) -> tuple[Stored, ...]:
    return tuple(changed if stored.name == changed.name else stored for stored in wal)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.node_fencing", description=__doc__)
    parser.add_argument("--appends", type=int, default=2)
    parser.add_argument("--others", default="w", help="w: a failover worker, n: the node's next process")
    arguments = parser.parse_args(argv)
    explorer = Explorer(**vars(arguments))
    violation = explorer.run()
    print(f"{explorer.visited} states; {violation or 'no violation'}")
    return 1 if violation else 0


if __name__ == "__main__":
    raise SystemExit(main())
