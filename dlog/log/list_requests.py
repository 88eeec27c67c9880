"""A reader's requests for fresh segment lists: shows whether a list was read late enough to decide something by it."""

from __future__ import annotations


class ListRequests:
    """Numbers the requests for fresh lists and their replies, which come in the order of the requests.

    newest: number of the newest list. It was requested after an event if it is above `sent` as it was at the event.
    is_awaited: a request is in flight that is not given up.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.newest = 0
        self.is_awaited = False
        self._answered = 0

    @property
    def has_fresh(self) -> bool:
        """Whether a list has come that was read after the reader was opened."""
        return self.newest > 0

    def note_sent(self) -> None:
        self.is_awaited = True
        self.sent += 1

    def note_list(self) -> None:
        self.note_answered()
        self.newest = self._answered

    def note_answered(self) -> None:
        """A list has come, or a request failed."""
        self.is_awaited = False
        self._answered += 1
        self.sent = max(self.sent, self._answered)  # the first list is requested without a number

    def note_source_lost(self) -> None:
        """No request in flight will be answered."""
        self.is_awaited = False
        self._answered = self.sent
