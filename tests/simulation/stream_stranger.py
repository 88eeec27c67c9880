"""A foreign writer of the format in the simulated world of one stream: it takes over without a claim, as Java may.

It recovers the segment in progress, completes it in the list (an empty segment is removed, with its number), begins a
segment of its own and writes there until it is fenced. Then it does what DistributedLog's writer may do: complete its
segment at the last entry that it knows to be acknowledged, with the count and last txid of every record that it had
assigned, whatever a recovery decided; and, half of the time, begin the next one.

Its entries have no dedup trailer. What was acknowledged to it is checked as for other writers. It never reads or
changes the owner: a live owner of dlog finds out by the fence.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from dlog.log.changes import CompleteSegment, DropEmptySegment, SegmentEnd, StartSegment
from dlog.log.contents import read_contents
from dlog.log.messages import (
    STORE,
    AppendEntry,
    BatchWritten,
    CreateSegment,
    EntriesRead,
    EntryAppended,
    ReadEntries,
    RecoverSegment,
    SegmentCreated,
    SegmentRecovered,
    StoreFailed,
)
from dlog.machine import (
    Asked,
    CompareAndSet,
    Effect,
    Fact,
    MetadataSeen,
    ReadMetadata,
    Received,
    Send,
    SetTimer,
    TimerFired,
    Versioned,
)
from dlog.model.dlsn import of
from dlog.model.ids import NO_ENTRY, EntryId, Epoch, SegmentNumber, Txid
from dlog.model.segment import Location, Segment, StreamMetadata
from dlog.wire.entry import Record, encode_entry
from tests.simulation.stream_checks import Written
from tests.simulation.stream_retention import EPOCH_MS

if TYPE_CHECKING:
    from tests.simulation.stream_world import StreamWorld

STRANGER = b"stranger........"  # producer of its records in the checks
_WINDOW = 3  # entries without an answer


class Stranger:
    """One foreign writer; it begins with any request."""

    def __init__(self, world: StreamWorld, number: int) -> None:
        self.world = world
        self.number = number
        self._rng = random.Random(f"{world.plan.seed}/stranger/{number}")
        self._left = self._rng.choice((0, 3, 10, 60))  # entries to write
        self._asked = 0  # requests to metadata; only the newest one's answer counts
        self._then = "look"
        self._value = StreamMetadata(name=world.stream)
        self._ends: dict[int, SegmentEnd | None] = {}
        self._own: Segment | None = None
        self._written: list[Written] = []  # its own segment, by entry
        self._acked = int(NO_ENTRY)
        self._txid = 0

    def handle(self, fact: Fact) -> list[Effect]:
        match fact:
            case Asked():
                return self._read("look")
            case MetadataSeen(token, Versioned(StreamMetadata() as value, version)) if token == self._asked:
                return self._saw(value, version)
            case Received(_, SegmentRecovered() | EntriesRead() as message):
                return self._recovered(message)
            case Received(_, SegmentCreated(number, location)) if self._then == "create":
                return self._start(number, location)
            case Received(_, EntryAppended(number, entry)) if self._own is not None and number == self._own.number:
                return self._appended(entry)
            case Received(_, StoreFailed(AppendEntry())) if self._then == "write":
                return self._read("complete own")
            case TimerFired() if self._then == "write":
                return self._write()
            case TimerFired() if self._then == "wait":
                return self._create()
        return []  # after a lost peer, a conflict or an unknown outcome it stops

    def _read(self, then: str) -> list[Effect]:
        self._then = then
        self._asked += 1
        return [ReadMetadata(self._asked, self.world.key)]

    def _set(self, then: str, value: StreamMetadata, version: object) -> list[Effect]:
        self._then = then
        self._asked += 1
        return [CompareAndSet(self._asked, self.world.key, value, version)]

    def _saw(self, value: StreamMetadata, version: object) -> list[Effect]:
        self._value, self._version = value, version
        match self._then:
            case "look" if value.is_sealed:
                return []
            case "look":
                self._then, self._ends = "recover", {}
                asked: list[Effect] = [Send(STORE, RecoverSegment(s)) for s in value.in_progress]
                return asked or self._complete()
            case "completed" if pause_s := self.world.config.get("stranger_pause_s", 0.0):
                self._then = "wait"
                return [SetTimer("wait", pause_s)]
            case "completed":
                return self._create()
            case "started":
                self._then = "write"
                self.world.sim.reach("stranger")
                return self._write()
            case "complete own":
                return self._complete_own(value, version)
            case "completed own" if self._rng.random() < 0.5:
                return self._read("look")
        return []

    # ---- taking over ------------------------------------------------------------------------------------------------

    def _recovered(self, message: SegmentRecovered | EntriesRead) -> list[Effect]:
        segment = self._value.segment(message.number)
        if self._then != "recover" or segment is None or segment.location != message.location:
            return []
        if isinstance(message, SegmentRecovered) and message.last_entry != NO_ENTRY:
            return [Send(STORE, ReadEntries(segment, message.last_entry, message.last_entry))]
        if isinstance(message, SegmentRecovered):
            self._ends[segment.number] = None
        else:
            told = read_contents(message.payloads[0])
            self._txid = max(self._txid, told.last_txid)
            self._ends[segment.number] = SegmentEnd(message.first, told.last_slot, Txid(told.last_txid), told.position)
        return self._complete() if len(self._ends) == len(self._value.in_progress) else []

    def _complete(self) -> list[Effect]:
        value = self._value
        self._txid = max(self._txid, value.max_txid)
        for segment in value.in_progress:
            end = self._ends[segment.number]
            if end is None:
                value = DropEmptySegment(segment.number, segment.location, "").apply(value)
            else:
                value = CompleteSegment(segment.number, segment.location, end, self._unix_ms).apply(value)
        if value.is_sealed:
            return []
        self._dropped = min((n for n, end in self._ends.items() if end is None), default=0)
        return self._set("completed", value, self._version)

    def _create(self) -> list[Effect]:
        self._then = "create"
        settings = self._value.settings
        return [Send(STORE, CreateSegment(self._next_number(), Epoch(0), settings.store, settings.store_settings))]

    def _next_number(self) -> SegmentNumber:
        if self._value.listed:
            return SegmentNumber(self._value.listed[-1].number + 1)
        return SegmentNumber(self._dropped or max(1, self._value.max_segment))

    def _start(self, number: SegmentNumber, at: Location) -> list[Effect]:
        self._own = Segment(number=number, name=at.name, store=at.store, first_txid=Txid(self._txid))
        self._written, self._acked = [], int(NO_ENTRY)
        if self._value.segment(number) is not None:
            return []
        return self._set("started", StartSegment(self._own, "").apply(self._value), self._version)

    @property
    def _unix_ms(self) -> int:
        """The time of its clock, as used for retention."""
        sim = self.world.sim
        return max(0, EPOCH_MS + int((sim.now_s + sim.nodes["j"].skew_s) * 1000))

    # ---- writing, and being fenced ----------------------------------------------------------------------------------

    def _write(self) -> list[Effect]:
        assert self._own is not None
        effects: list[Effect] = [SetTimer("write", self._rng.choice((0.0, 0.002, 0.05)))]
        entry = len(self._written)
        if self._left and entry - self._acked <= _WINDOW:
            self._left -= 1
            payload = f"stranger:{self.number}:{self._own.name}:{entry}".encode()
            written = Written(STRANGER, entry, (payload,), self.world.sim.now, None)
            self._written.append(written)
            self.world.checks.batches.append(written)
            parts = tuple(encode_entry([Record(0, entry + 1, self._txid, payload)]))
            effects.append(Send(STORE, AppendEntry(self._own.number, EntryId(entry), parts)))
        return effects if self._left or self._then == "write" else []

    def _appended(self, entry: int) -> list[Effect]:
        assert self._own is not None
        for at in range(self._acked + 1, entry + 1):
            # like a repeated batch: it does not matter which owner acknowledged it
            self._written[at].result = BatchWritten(of(self._own.number, at, 0), 1, Txid(self._txid), True)
            self._written[at].acked_at = self.world.sim.now
        self._acked = max(self._acked, entry)
        return []

    def _complete_own(self, value: StreamMetadata, version: object) -> list[Effect]:
        own = self._own
        assert own is not None
        listed = value.segment(own.number)
        if listed is None or listed.location != own.location or listed.completed:
            return self._read("look") if self._rng.random() < 0.5 else []
        held = self.world.store.segments.get(own.location)
        if held is None or held.end is None:
            return []  # refused for another reason than a closed segment
        if held.end != self._acked:
            self.world.sim.reach("misstated")
        end = SegmentEnd(EntryId(self._acked), 0, Txid(self._txid), len(self._written))
        self.world.checks.misstated.add(own.location)
        return self._set(
            "completed own", CompleteSegment(own.number, own.location, end, self._unix_ms).apply(value), version
        )
