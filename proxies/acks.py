"""Joins replies to batches: consecutive requests that are adjacent in one entry become one Written frame.

Invariants:
- joining loses nothing: the next batch of a range begins in the slot where the one before ends, in the same entry,
  with the same transaction id and window; any other batch starts a new range.
"""

from __future__ import annotations

from dlog.log.messages import BatchWritten
from dlog.model.window import WINDOW_MIN
from dlog.wire.proxy import Written


class AckJoiner:
    """Collects the replies of one turn of the event loop on one connection."""

    __slots__ = ("_end_slot", "_entry", "_first", "_last", "_segment", "_slot", "_txid", "_whole", "_window")

    def __init__(self) -> None:
        self._whole: list[Written] = []
        self._first = self._last = -1
        self._segment = self._entry = self._slot = self._end_slot = -1
        self._txid = -1
        self._window = WINDOW_MIN

    def add(self, request: int, written: BatchWritten) -> None:
        """The batch of `request` is durable."""
        segment, entry, slot = written.dlsn
        if written.duplicate:
            self._cut()
            window = _window_field(written.window)
            self._whole.append(Written(request, request, (segment, entry, slot), written.txid, True, window))
            return
        if (
            request == self._last + 1
            and slot == self._end_slot
            and entry == self._entry
            and segment == self._segment
            and written.txid == self._txid
            and written.window == self._window
        ):
            self._last = request
            self._end_slot += written.count
            return
        self._cut()
        self._first = self._last = request
        self._segment, self._entry, self._slot = segment, entry, slot
        self._end_slot = slot + written.count
        self._txid = written.txid
        self._window = written.window

    def take(self) -> list[Written]:
        """The ranges since the last call, in the order of the replies."""
        self._cut()
        whole, self._whole = self._whole, []
        return whole

    def _cut(self) -> None:
        if self._first >= 0:
            dlsn = (self._segment, self._entry, self._slot)
            self._whole.append(Written(self._first, self._last, dlsn, self._txid, False, _window_field(self._window)))
            self._first = self._last = -1
            self._end_slot = -1


def _window_field(window: int) -> int | None:
    return None if window == WINDOW_MIN else window
