"""A reader of a stage's stream, with a source that a test may slow down or let fail."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from dlog.errors import DLogError, MetadataUnavailableError
from dlog.log.reading import StreamReaderMachine
from dlog.log.source_messages import (
    READER,
    SOURCE,
    EntriesGot,
    GetEntries,
    GetStream,
    Locate,
    Located,
    SegmentLacSeen,
    SourceFailed,
    StreamSeen,
    WatchLac,
)
from dlog.machine import Received, Send, SetTimer
from dlog.model.dlsn import DLSN, of
from dlog.model.ids import EntryId
from dlog.model.segment import StreamMetadata
from dlog.wire.entry import decode_entry
from dlog.wire.proxy import Entries, Read, ReaderEvent, ReaderEventKind, Start
from tests.unit.log.stage import Actor, Stage, batch


class Desk:
    """A reader with its source: answers from a stage at once, unless told to keep still."""

    def __init__(
        self,
        stage: Stage,
        start: Start,
        value: Any = None,
        *,
        credit: int = 10**6,
        follow: bool = True,
        remembered: StreamMetadata | None = None,
        losing: DLogError | None = None,
        incarnation: str | None = None,
        lacs: dict[str, tuple[int, bool]] | None = None,
        is_cut_off: bool = False,
        is_slow: bool = False,
        is_silent: bool = False,
        narrowed: tuple[EntryId, EntryId] | None = None,
        failing: DLogError | None = None,
    ) -> None:
        self.stage = stage
        self.losing = losing  # said when it is asked where a completed segment ends
        self.remembered = remembered  # told instead of what is, unless the question insists
        self.machine = StreamReaderMachine()
        self.entries: list[Entries] = []
        self.events: list[ReaderEvent] = []
        self.questions: list[Any] = []
        self.lacs: dict[str, tuple[int, bool]] = lacs or {}
        self.failing = failing
        self.is_cut_off = is_cut_off  # from metadata
        self.is_slow = is_slow  # lists come when the test says so
        self.is_silent = is_silent  # the store answers no request for entries
        self.narrowed = narrowed  # what the store's index leaves of a search; None: there is no index
        self.timers = 0
        self.post(Received(READER, Read(7, "s", start, value, credit, follow, incarnation=incarnation)))

    def post(self, fact: Any) -> None:
        for effect in self.machine.handle(fact):
            match effect:
                case Send(peer, message) if peer == SOURCE:
                    self.questions.append(message)
                    for answer in self.answers(message):
                        self.post(Received(SOURCE, answer))
                case Send(_, Entries() as entries):
                    self.entries.append(entries)
                case Send(_, ReaderEvent() as event):
                    self.events.append(event)
                case SetTimer():
                    self.timers += 1

    def answers(self, question: Any) -> list[Any]:
        if self.failing is not None and isinstance(question, GetEntries | Locate):
            return [SourceFailed(question, self.failing)]
        match question:
            case GetEntries() if self.is_silent:
                return []
            case GetStream(fresh) if self.remembered is not None and not fresh:
                return [StreamSeen(self.remembered, fresh=False)]
            case GetStream() if self.is_slow:
                return []
            case GetStream() if self.is_cut_off:
                return [SourceFailed(question, MetadataUnavailableError("not now"))]
            case GetStream():
                return [StreamSeen(self.stage.value)]
            case GetEntries(segment, first, last, max_bytes):
                payloads = self.stage.stored[segment.name].payloads[first : last + 1]
                sums = itertools.accumulate(map(len, payloads), initial=0)
                enough = [p for p, before in zip(payloads, sums, strict=False) if before < max_bytes]
                return [EntriesGot(segment.number, segment.location, first, tuple(enough))]
            case Locate(_, _, first, last):
                return [Located(question, *(self.narrowed or (first, last)))]
            case WatchLac(segment) if segment.completed and self.losing is not None:
                return [SourceFailed(question, self.losing)]
            case WatchLac(segment, known):
                now = self.stage.value.segment(segment.number)
                stored = len(self.stage.stored[segment.name].payloads) - 1
                lac, ended = self.lacs.get(segment.name, (stored, now is not None and now.completed))
                known_already = lac <= known and not ended
                return [] if known_already else [SegmentLacSeen(segment.number, segment.location, EntryId(lac), ended)]
        raise AssertionError(question)

    def confirmed(self, dlsn: DLSN) -> None:
        """The source hears that the LAC has reached this entry."""
        segment = self.stage.value.segment(dlsn.segment)
        assert segment is not None
        self.post(Received(SOURCE, SegmentLacSeen(segment.number, segment.location, dlsn.entry)))

    def refresh(self) -> None:
        self.post(Received(SOURCE, StreamSeen(self.stage.value)))

    @property
    def seen(self) -> list[DLSN]:
        """Where the records lie that the reader was sent."""
        dlsns: list[DLSN] = []
        for entries in self.entries:
            at = 0
            for i, length in enumerate(entries.lengths):
                skip = entries.skip if i == 0 else 0
                for record in decode_entry(bytes(entries.body[at : at + length])):
                    if record.is_user and record.slot >= skip:
                        dlsns.append(of(entries.segment, entries.first_entry + i, record.slot))
                at += length
        return dlsns

    @property
    def kinds(self) -> list[ReaderEventKind]:
        """Of the events, but for BEHIND."""
        return [event.kind for event in self.events if event.kind is not ReaderEventKind.BEHIND]


def three_segments() -> tuple[Stage, Actor, list[DLSN]]:
    """Segments 1 and 2 completed, 3 in progress; txids 10, 20, ... and times 1010, 1020, ..."""
    stage = Stage(segment_bytes=500)
    owner = stage.taken("p1")
    dlsns: list[DLSN] = []
    for i in range(6):
        written = owner.ask(batch(2 * i, 2, size=60, txid=10 * (i + 1), now=1010 + 10 * i))
        dlsns += [written.dlsn, written.dlsn.next_slot()]
    return stage, owner, dlsns


def revived(stage: Stage, incarnation: str) -> StreamMetadata:
    """The stream as it stands, in this life."""
    return replace(stage.value, incarnation=incarnation)
