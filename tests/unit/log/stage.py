"""A test stage for owners: metadata with versions, a store with fencing, and a queue of facts that a test may hold
back.

A request of a machine is answered at once and its answer delivered in order, unless a test holds it:
`stage.hold(AppendEntry)` stops the store, `stage.held` shows what waits, `stage.release()` lets it go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dlog.errors import DLogError
from dlog.log.messages import (
    STORE,
    AcquireStream,
    AppendEntry,
    CreateSegment,
    DeleteSegment,
    EntriesRead,
    EntryAppended,
    ExamineStage,
    ReadEntries,
    RecoverSegment,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentRecovered,
    SegmentSealed,
    StageExamined,
    StoreFailed,
    WriteBatch,
)
from dlog.log.options import OwnerOptions
from dlog.log.owner import StreamOwnerMachine
from dlog.log.staging import StagedSet, StagePacker
from dlog.log.stream_deletion import StreamDeletion
from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    CompareAndSet,
    Conflict,
    Effect,
    Emit,
    Fact,
    MetadataSeen,
    Missing,
    ReadMetadata,
    Received,
    Refused,
    Send,
    SetTimer,
    TimerFired,
    Versioned,
)
from dlog.model.ids import EntryId, Epoch, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Location, StreamKey, StreamMetadata, StreamSettings
from dlog.ownership.claim import Claimant
from dlog.stores.contract import (
    Capabilities,
    SegmentFencedError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    StoreTooSmallError,
)
from dlog.wire.entry import build_record_set

KEY = StreamKey(StreamName("s"))
INCARNATION = "a1"
STORES = {
    "ledger": Capabilities(visible_is_final=False, entry_bytes_max=1 << 20, has_foreign_writers=True),
    "file": Capabilities(visible_is_final=True, entry_bytes_max=1 << 20),
}


def stores(**capabilities: Any) -> dict[str, Capabilities]:
    """The stores, with other values for some of their capabilities."""
    return {name: replace(known, **capabilities) for name, known in STORES.items()}


ALICE = b"alice".ljust(16, b".")
STAGER = b"stager".ljust(16, b".")
BOB = b"bob".ljust(16, b".")


def batch(
    sequence: int,
    count: int = 1,
    *,
    producer: bytes = ALICE,
    retry: bool = False,
    txid: int | None = None,
    size: int = 1,
    now: int = 5000,
    since: tuple[int, int] | None = None,
) -> WriteBatch:
    body = build_record_set([b"%d" % (sequence + i) * size for i in range(count)])
    return WriteBatch(body, count, None if txid is None else Txid(txid), producer, sequence, 7, retry, now, since)


class StoredSegment:
    """A segment as the store has it. end: None while entries may be appended."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.payloads: list[bytes] = []
        self.end: int | None = None
        self.is_removed = False  # the store itself has removed the entries
        self.is_end_known = False  # the store knows the end of a removed segment


class Stage:
    def __init__(self, **settings: Any) -> None:
        self.version = 1
        self.value = StreamMetadata(name=KEY.stream, settings=StreamSettings(**settings), incarnation=INCARNATION)
        self.stored: dict[str, StoredSegment] = {}
        self.created = 0
        self.deleted: list[str] = []
        self.returned = 0  # entries that the store returns with a segment's end
        self.too_small = False  # the store has too few members for a segment
        self.cannot_end: DLogError | None = None  # why no segment can be recovered
        self.cannot_create: DLogError | None = None  # why no segment can be created
        self.holding: tuple[type, ...] = ()
        self.held: deque[Callable[[], None]] = deque()
        self.actors: list[Actor] = []
        self.now_s = 0.0  # monotonic seconds of all machines
        self.unix_ms = 1000  # by metadata's clock
        self.refusal: Callable[[StreamMetadata, StreamMetadata], DLogError | None] = lambda before, after: None

    def owner(self, name: str, options: OwnerOptions | None = None, **kw: Any) -> Actor:
        """A proxy's owner, not yet claiming."""
        claimant = Claimant(proxy=ProxyId(name), address=f"{name}:1", nonce=f"{name}-{len(self.actors)}")
        kw.setdefault("stores", STORES)
        actor = Actor(self, StreamOwnerMachine(KEY, claimant, options or OwnerOptions(), **kw))
        self.actors.append(actor)
        return actor

    def deletion(self, name: str) -> Actor:
        """A proxy's deletion of the stream, which has not been started."""
        claimant = Claimant(proxy=ProxyId(name), address=f"{name}:1", nonce=f"{name}-{len(self.actors)}")
        actor = Actor(self, StreamDeletion(KEY, claimant))
        self.actors.append(actor)
        return actor

    def taken(self, name: str, options: OwnerOptions | None = None, **kw: Any) -> Actor:
        """A proxy's owner that serves."""
        actor = self.owner(name, options, **kw)
        actor.take()
        return actor

    def hold(self, *kinds: type) -> None:
        self.holding = kinds

    def release(self) -> None:
        """Answer held requests, in order, and hold no more."""
        self.holding = ()
        while self.held:
            self.held.popleft()()

    def staged(self, name: str, *txids: int) -> tuple[str, EntryId]:
        """Write a stage with an entry of one record for each txid; returns what an ImportStages names."""
        packer, place = StagePacker(STAGER), StoredSegment(0)
        for number, txid in enumerate(txids):
            body = build_record_set([b"%s %d" % (name.encode(), number)])
            place.payloads.append(b"".join(map(bytes, packer.entry([StagedSet(txid, 1, body)], 5000))))
        place.end = len(txids) - 1
        self.stored[name] = place
        return name, EntryId(place.end)

    # ---- the store and metadata -------------------------------------------------------------------------------------

    def ask(self, actor: Actor, question: Any, answer: Callable[[], Fact | None]) -> None:
        """Answer now, or once it is released."""

        def go() -> None:
            fact = answer()
            if fact is not None:
                actor.post(fact)

        if isinstance(question, self.holding):
            self.held.append(go)
        else:
            go()

    def metadata(self, question: ReadMetadata | CompareAndSet) -> MetadataSeen:
        seen = Versioned(self.value, self.version)
        if isinstance(question, CompareAndSet):
            if question.version != self.version:
                return MetadataSeen(question.token, Conflict())
            refusal = self.refusal(self.value, question.value)
            if refusal is not None:
                return MetadataSeen(question.token, Refused(refusal))
            self.value, self.version = question.value.stamped(self.unix_ms), self.version + 1
            seen = Versioned(self.value, self.version)
        elif self.value.owner.deleted:
            return MetadataSeen(question.token, Missing(left=seen))
        return MetadataSeen(question.token, seen)

    def made_again(self, incarnation: str) -> None:
        """Delete the stream and create another one of its name."""
        self.value, self.version = (
            StreamMetadata(name=KEY.stream, settings=self.value.settings, incarnation=incarnation),
            1,
        )

    def store(self, actor: Actor, question: Any) -> Any:
        match question:
            case CreateSegment() if self.too_small:
                return StoreFailed(question, StoreTooSmallError("two bookies of three"))
            case CreateSegment() if self.cannot_create is not None:
                return StoreFailed(question, self.cannot_create)
            case CreateSegment(number):
                self.created += 1
                name = f"{number}{chr(ord('a') + self.created - 1)}"
                self.stored[name] = actor.writers[number] = StoredSegment(number)
                return SegmentCreated(number, Location(question.store, name))
            case AppendEntry(number, entry, parts):
                place = actor.writers[number]
                if place.end is not None:
                    return StoreFailed(question, SegmentFencedError("fenced"))
                assert entry == len(place.payloads)
                place.payloads.append(b"".join(bytes(p) for p in parts))
                return EntryAppended(number, entry)
            case SealSegment(number):
                place = actor.writers[number]
                if place.end is not None:
                    return StoreFailed(question, SegmentFencedError("fenced"))
                place.end = len(place.payloads) - 1
                return SegmentSealed(number, EntryId(place.end))
            case RecoverSegment() if self.cannot_end is not None:
                return StoreFailed(question, self.cannot_end)
            case RecoverSegment(segment):
                place = self.stored[segment.name]
                place.end = len(place.payloads) - 1 if place.end is None else place.end
                if place.is_removed:
                    return self._recovered_removed(question, place)
                last = tuple(
                    place.payloads[max(0, place.end + 1 - self.returned) : place.end + 1] if self.returned else ()
                )
                return SegmentRecovered(segment.number, segment.location, EntryId(place.end), last)
            case ReadEntries(segment, first, last):
                if self.stored[segment.name].is_removed:
                    return StoreFailed(question, SegmentTruncatedError("removed"))
                payloads = self.stored[segment.name].payloads[first : last + 1]
                return EntriesRead(segment.number, segment.location, first, tuple(payloads))
            case ExamineStage(location):
                found = self.stored.get(location.name)
                if found is None:
                    return StoreFailed(question, SegmentNotFoundError("no such place"))
                found.end = len(found.payloads) - 1 if found.end is None else found.end
                return StageExamined(location, EntryId(found.end), tuple(found.payloads[: found.end + 1]))
            case DeleteSegment(location):
                self.deleted.append(location.name)
                if self.stored.pop(location.name, None) is None:
                    return StoreFailed(question, SegmentNotFoundError("no such place"))
                return SegmentDeleted(location)
        raise AssertionError(question)

    def removed(self, name: str, *, is_end_known: bool = False) -> None:
        """The store removes the entries of this segment."""
        self.stored[name].is_removed = True
        self.stored[name].is_end_known = is_end_known

    def _recovered_removed(self, question: RecoverSegment, place: StoredSegment) -> SegmentRecovered | StoreFailed:
        segment = question.segment
        if not place.is_end_known:
            return StoreFailed(question, SegmentTruncatedError("removed"))
        assert place.end is not None
        return SegmentRecovered(segment.number, segment.location, EntryId(place.end))


class Actor:
    """One machine on the stage, an owner or a deletion: the facts it got, its answers, and its timers."""

    def __init__(self, stage: Stage, machine: Any) -> None:
        self.stage = stage
        self.machine = machine
        self.answers: dict[int, Any] = {}
        self.events: list[Any] = []
        self.sent: list[Any] = []
        self.metadata_asked: list[ReadMetadata | CompareAndSet] = []
        self.timers: dict[Any, float] = {}
        self.writers: dict[int, StoredSegment] = {}
        self._tickets = 0
        self._queue: deque[Fact] = deque()
        self._running = False

    def post(self, fact: Fact) -> None:
        self._queue.append(fact)
        if self._running:
            return
        self._running = True
        while self._queue:
            for effect in self.machine.handle(self._queue.popleft()):
                self._perform(effect)
        self._running = False

    def ask(self, request: Any) -> Any:
        """Ask; returns the answer, or None if there is none yet (it is added to `answers` later)."""
        self._tickets += 1
        self.post(Asked(self._tickets, request, self.stage.now_s))
        return self.answers.get(self._tickets)

    def take(self, if_epoch: int | None = None, now_unix_ms: int = 1000) -> Any:
        return self.ask(AcquireStream(None if if_epoch is None else Epoch(if_epoch), now_unix_ms))

    def fire(self, *key: Any) -> None:
        """Let the timer fire."""
        del self.timers[key]
        self.post(TimerFired(key, self.stage.now_s))

    @property
    def lost(self) -> list[DLogError]:
        return [a for a in self.answers.values() if isinstance(a, DLogError)]

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(_, message):
                self.sent.append(message)
                self.stage.ask(
                    self, message, lambda: Received(STORE, self.stage.store(self, message), self.stage.now_s)
                )
            case ReadMetadata() | CompareAndSet():
                self.metadata_asked.append(effect)
                self.stage.ask(self, effect, lambda: self.stage.metadata(effect))
            case Answer(ticket, result):
                assert ticket not in self.answers, "answered once"
                self.answers[ticket] = result
            case SetTimer(key, after_s):
                self.timers[key] = after_s
            case CancelTimer(key):
                self.timers.pop(key, None)
            case Emit(event):
                self.events.append(event)


def numbers(value: StreamMetadata) -> list[tuple[SegmentNumber, bool]]:
    """Segments of the list: number, completed."""
    return [(s.number, s.completed) for s in value.segments]


def notes(stage: Stage, place: str) -> tuple[Any, ...]:
    from dlog.log.contents import read_contents

    note = read_contents(stage.stored[place].payloads[0]).note
    assert note is not None
    assert all(b.producer == ALICE for b in note.batches)
    return note.batches
