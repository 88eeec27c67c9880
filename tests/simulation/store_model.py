"""A model of segment stores that keep the contract of dlog/stores/contract.py, and nothing more than it.

Invariants:
- Appends are confirmed once they are durable, in order.
- A recovery decides the end of a segment once and for all: all that was confirmed, and a random prefix of the rest.
  Entries above the end are gone, even if a reader saw them.
- A decision is durable before it is answered.
- A segment that the store has removed by itself (`is_removed`) keeps its entries here, for the checks: they are not
  read any more. Its writer goes on until a recovery fences it.
- A writer belongs to the connection that created its segment, and ends with it.
- A store may answer late, in order: what is durable is so before its writer hears of it.
- A message that the network delivers twice is handled once. Segment numbers are used again, so a late copy would
  otherwise be taken for a message to the writer of another location.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlog.log.messages import (
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
    StoreReply,
)
from dlog.machine import Effect, Fact, PeerLost, Persist, Persisted, Received, Send, SetTimer, TimerFired
from dlog.model.ids import EntryId, SegmentNumber
from dlog.model.segment import Location, StoreSettings
from dlog.stores.contract import (
    STAGE,
    Capabilities,
    SegmentFencedError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    StoreTooSmallError,
    StoreUnavailableError,
)


class StoreTransport:
    """Pairs the store's questions and answers."""

    def question(self, message: Any) -> Hashable | None:
        match message:
            case CreateSegment(number):
                return ("create", number)
            case RecoverSegment(segment):
                return ("recover", segment.location)
            case ReadEntries(segment, first):
                return ("read", segment.location, first)
            case AppendEntry(number, entry):
                return ("append", number, entry)
            case SealSegment(number):
                return ("seal", number)
            case ExamineStage(location):
                return ("examine", location)
            case DeleteSegment(location):
                return ("delete", location)
        return None

    def answer(self, message: Any) -> Hashable | None:
        match message:
            case SegmentCreated(number):
                return ("create", number)
            case SegmentRecovered(_, location):
                return ("recover", location)
            case EntriesRead(_, location, first):
                return ("read", location, first)
            case EntryAppended(number, entry):
                return ("append", number, entry)
            case SegmentSealed(number):
                return ("seal", number)
            case StageExamined(location):
                return ("examine", location)
            case SegmentDeleted(location):
                return ("delete", location)
            case StoreFailed(question):
                return self.question(question)
        return None


@dataclass(slots=True)
class StoredSegment:
    """One location. end: decided for good, None while entries may be appended. settings: of the store, at creation.
    creator: the connection that it was created on."""

    location: Location
    number: int
    payloads: list[bytes] = field(default_factory=list)
    confirmed: int = -1
    carried: int = -1  # the highest entry that a reader of the store alone may know to be confirmed
    end: int | None = None
    is_final: bool = False  # the end is durable
    writer: str = ""  # connection of its writer, "" once that has ended
    is_removed: bool = False  # by the store itself
    knows_end: bool = True  # the store can say where a removed segment ended
    settings: StoreSettings = ()
    creator: str = ""


class StoreModel:
    """The machine at the address "store"; a new one after a crash, from what was durable."""

    def __init__(self, rng: random.Random, durable: list[tuple[int, Any]], stores: Mapping[str, Capabilities]) -> None:
        self.segments: dict[Location, StoredSegment] = {}
        self.deleted: set[Location] = set()
        self.on_append: Callable[[StoredSegment], None] | None = None  # an append was accepted
        self.on_end: Callable[[StoredSegment], None] | None = None  # an end was decided
        self.on_delete: Callable[[Location], None] | None = None  # the segment there was deleted
        self.too_small = 0.0  # share of creations that find too few members
        self.is_curt = False  # a fenced writer gets no answer for entries under way, kept or not
        self.latency_s: Mapping[str, float] = {}  # by store, of each reply; 0 if it is not named
        self._rng = rng
        self._seed = len(durable)
        self._stores = stores
        self._token = 0
        self._waiting: dict[int, list[Callable[[], list[Effect]]]] = {}
        self._done = 0
        self._asked = 0
        self._created: Counter[str] = Counter()  # by store
        self._late: dict[int, Send] = {}  # replies that wait, by number
        self._late_replies = 0
        self._heard: dict[int, Any] = {}  # by id(): the messages themselves, so that no id is given out twice
        for token, data in durable:
            self._redo(data)
            self._token = self._done = token

    def handle(self, fact: Fact) -> list[Effect]:
        match fact:
            case Received(peer, message):
                return self._hear(str(peer), message)
            case PeerLost(peer):
                for segment in self.segments.values():
                    if segment.writer == peer:
                        segment.writer = ""
                return []
            case TimerFired(("reply", int() as number)):
                return [self._late.pop(number)]
            case Persisted(upto):
                effects: list[Effect] = []
                for token in range(self._done + 1, upto + 1):
                    for then in self._waiting.pop(token, []):
                        effects += then()
                self._done = upto
                return effects
        raise AssertionError(f"not a fact of a store: {fact}")

    def readable(self, location: Location) -> tuple[int, bool] | None:
        """The LAC that a reader may learn here without the owner, and whether it is the end; None: no such location."""
        segment = self.segments.get(location)
        if segment is None:
            return None
        if segment.end is not None and segment.is_final:
            return segment.end, True
        return (segment.confirmed if self._stores[location.store].visible_is_final else segment.carried), False

    def _hear(self, peer: str, message: Any) -> list[Effect]:
        if isinstance(message, CreateSegment | AppendEntry | SealSegment):
            if id(message) in self._heard:
                return []
            self._heard[id(message)] = message
        match message:
            case CreateSegment():
                return self._create(peer, message)
            case AppendEntry():
                return self._append(peer, message)
            case RecoverSegment():
                return self._recover(peer, message)
            case ReadEntries():
                return self._read(peer, message)
            case SealSegment():
                return self._seal(peer, message)
            case ExamineStage():
                return self._examine(peer, message)
            case DeleteSegment(location):
                return self._persist(("delete", location), lambda: self._delete(peer, location))
        raise AssertionError(f"not a question to a store: {message}")

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _create(self, peer: str, message: CreateSegment) -> list[Effect]:
        self._asked += 1
        if self.too_small and random.Random(f"{self._seed}/{self._asked}").random() < self.too_small:
            return [Send(peer, StoreFailed(message, StoreTooSmallError("too few members")))]
        self._created[message.store] += 1  # so the stores give out the same names
        location = Location(message.store, f"{message.number}.{self._created[message.store]}")

        def created() -> list[Effect]:
            self.segments[location].writer = peer
            return self._reply(location, peer, SegmentCreated(message.number, location))

        self.segments[location] = made = StoredSegment(
            location, message.number, settings=message.settings, creator=peer
        )
        return self._persist(("create", location, made.number, made.settings, made.creator), created)

    def _append(self, peer: str, message: AppendEntry) -> list[Effect]:
        segment = self._of_writer(peer, message.number)
        if segment is None or segment.end is not None:
            return [Send(peer, StoreFailed(message, SegmentFencedError("fenced")))]
        if message.entry < len(segment.payloads):
            return []  # sent twice: the first is answered
        if message.entry > len(segment.payloads):
            segment.writer = ""
            return [Send(peer, StoreFailed(message, StoreUnavailableError("an entry before it is missing")))]
        payload = b"".join(bytes(p) for p in message.parts)
        segment.payloads.append(payload)
        segment.carried = segment.confirmed
        if self.on_append is not None:
            self.on_append(segment)
        entry = int(message.entry)
        return self._persist(
            ("append", segment.location, entry, payload), lambda: self._confirm(peer, segment, message)
        )

    def _confirm(self, peer: str, segment: StoredSegment, message: AppendEntry) -> list[Effect]:
        entry = int(message.entry)
        if segment.end is not None and self.is_curt:
            return [Send(peer, StoreFailed(message, SegmentFencedError("fenced")))]
        if segment.end is not None and entry > segment.end:
            return []
        segment.confirmed = max(segment.confirmed, entry)
        return self._reply(segment.location, peer, EntryAppended(SegmentNumber(segment.number), EntryId(entry)))

    def _recover(self, peer: str, message: RecoverSegment) -> list[Effect]:
        segment = self.segments.get(message.segment.location)
        if segment is None:
            return [Send(peer, StoreFailed(message, SegmentNotFoundError("no such place")))]
        if segment.end is None:
            self._decide(segment, self._rng.randint(segment.confirmed, len(segment.payloads) - 1))
        end = EntryId(segment.end if segment.end is not None else -1)
        known = self._rng.choice((0, 0, 1, 3, 7))  # of the last entries
        last = tuple(segment.payloads[max(0, end + 1 - known) : end + 1]) if known else ()
        reply: StoreReply = SegmentRecovered(message.segment.number, segment.location, end, last)
        if segment.is_removed:
            reply = SegmentRecovered(message.segment.number, segment.location, end)
            reply = reply if segment.knows_end else StoreFailed(message, SegmentTruncatedError("removed"))
        return self._persist(("end", segment.location, end), lambda: self._ended(peer, segment, reply))

    def _examine(self, peer: str, message: ExamineStage) -> list[Effect]:
        segment = self.segments.get(message.location)
        if segment is None or segment.number != STAGE:
            return [Send(peer, StoreFailed(message, SegmentNotFoundError("no such stage")))]
        if segment.end is None:
            self._decide(segment, self._rng.randint(segment.confirmed, len(segment.payloads) - 1))
        assert segment.end is not None
        ends = () if segment.end < 0 else (segment.payloads[0], segment.payloads[segment.end])
        reply = StageExamined(message.location, EntryId(segment.end), ends)
        return self._persist(("end", segment.location, segment.end), lambda: self._ended(peer, segment, reply))

    def _seal(self, peer: str, message: SealSegment) -> list[Effect]:
        segment = self._of_writer(peer, message.number)
        if segment is None:
            return [Send(peer, StoreFailed(message, SegmentFencedError("fenced")))]
        if segment.end is None:
            if segment.confirmed != len(segment.payloads) - 1:
                return [Send(peer, StoreFailed(message, StoreUnavailableError("appends are pending")))]
            self._decide(segment, segment.confirmed)
        end = EntryId(segment.end if segment.end is not None else -1)
        reply = SegmentSealed(message.number, end)
        return self._persist(("end", segment.location, end), lambda: self._ended(peer, segment, reply))

    def _ended(self, peer: str, segment: StoredSegment, reply: Any) -> list[Effect]:
        assert segment.end is not None
        segment.confirmed, segment.is_final = segment.end, True
        return self._reply(segment.location, peer, reply)

    def _read(self, peer: str, message: ReadEntries) -> list[Effect]:
        segment = self.segments.get(message.segment.location)
        if segment is None:
            return [Send(peer, StoreFailed(message, SegmentNotFoundError("no such place")))]
        if segment.is_removed:
            return self._reply(segment.location, peer, StoreFailed(message, SegmentTruncatedError("removed")))
        last = min(message.last, message.first + self._rng.choice((0, 1, 100)))
        payloads = tuple(segment.payloads[message.first : last + 1])
        if not payloads:
            return [Send(peer, StoreFailed(message, StoreUnavailableError("not there yet")))]
        reply = EntriesRead(message.segment.number, segment.location, message.first, payloads)
        return self._reply(segment.location, peer, reply)

    def _delete(self, peer: str, location: Location) -> list[Effect]:
        self._redo(("delete", location))
        if self.on_delete is not None:
            self.on_delete(location)
        return self._reply(location, peer, SegmentDeleted(location))

    def _reply(self, at: Location, peer: str, reply: StoreReply) -> list[Effect]:
        """Send a reply, after the latency of its store; in order, as all replies of a store wait equally long."""
        latency_s = self.latency_s.get(at.store, 0.0)
        if not latency_s:
            return [Send(peer, reply)]
        self._late_replies += 1
        self._late[self._late_replies] = Send(peer, reply)
        return [SetTimer(("reply", self._late_replies), latency_s)]

    # ---- state ------------------------------------------------------------------------------------------------------

    def _of_writer(self, peer: str, number: int) -> StoredSegment | None:
        mine = (s for s in self.segments.values() if s.number == number and s.writer == peer)
        return next(reversed(list(mine)), None)

    def _decide(self, segment: StoredSegment, end: int) -> None:
        segment.end = end
        del segment.payloads[end + 1 :]
        if self.on_end is not None:
            self.on_end(segment)

    def _persist(self, data: Any, then: Callable[[], list[Effect]]) -> list[Effect]:
        self._token += 1
        self._waiting.setdefault(self._token, []).append(then)
        return [Persist(self._token, data)]

    def _redo(self, data: Any) -> None:
        match data:
            case ("create", location, number, settings, creator):
                self.segments[location] = StoredSegment(location, number, settings=settings, creator=creator)
                store, created = location.store, int(location.name.partition(".")[2])
                self._created[store] = max(self._created[store], created)
            case ("append", location, entry, payload):
                segment = self.segments.get(location)
                if segment is not None and segment.end is None:
                    assert len(segment.payloads) == entry
                    segment.payloads.append(payload)
                    segment.confirmed = entry  # durable is confirmed, whether or not its writer learned it
                    segment.carried = entry - 1
            case ("end", location, end):
                segment = self.segments.get(location)
                if segment is not None:
                    segment.end = segment.confirmed = end
                    segment.is_final = True
                    del segment.payloads[end + 1 :]
            case ("delete", location):
                self.segments.pop(location, None)
                self.deleted.add(location)
