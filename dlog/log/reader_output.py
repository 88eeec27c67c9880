"""Effects of a reader: entries and events for its client, requests for its source."""

from __future__ import annotations

from typing import Any

from dlog.log.source_messages import READER, SOURCE, EntriesGot, SourceQuestion
from dlog.machine import Effect, Send
from dlog.model.dlsn import DLSN
from dlog.wire.proxy import Entries, Read, ReaderEvent, ReaderEventKind


class ReaderOutput:
    """Collects the effects of the fact being handled, and counts the credit of the client.

    credit: bytes of entries that may still be sent; what is sent exceeds it by at most one entry.
    """

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.credit = 0
        self._request = 0
        self._has_reported_caught_up = False  # and no BEHIND since

    def open(self, read: Read) -> None:
        self._request, self.credit = read.request, read.credit

    def ask(self, question: SourceQuestion) -> None:
        self.effects.append(Send(SOURCE, question))

    def report(self, kind: ReaderEventKind, **detail: Any) -> None:
        self.effects.append(Send(READER, ReaderEvent(self._request, kind, detail)))

    def report_caught_up(self, incarnation: str) -> None:
        """Report that the reader is at the tail, unless it was there already."""
        if not self._has_reported_caught_up:
            self._has_reported_caught_up = True
            self.report(ReaderEventKind.CAUGHT_UP, incarnation=incarnation)

    def send(self, got: EntriesGot, position: DLSN, segments_after: int, entries_after: int) -> None:
        """Send entries from `position` on. If more follow before the tail, as far as is known, report first how many
        (BEHIND), and report the tail again once it is reached. A reader that gets all up to the tail gets no BEHIND.

        segments_after: after the position's segment. entries_after: in it.
        """
        lengths, body = got.joined()
        self.credit -= len(body)
        if segments_after or entries_after:
            self._has_reported_caught_up = False
            entries = None if segments_after else entries_after
            self.report(ReaderEventKind.BEHIND, segments=segments_after, entries=entries)
        message = Entries(self._request, position.segment, position.entry, lengths, position.slot, body)
        self.effects.append(Send(READER, message))
