"""Where a reader that does not follow stops: at the tail, as it was when the reader reached the last segment."""

from __future__ import annotations

from dlog.model.dlsn import DLSN
from dlog.model.ids import NO_ENTRY
from dlog.model.segment import StreamMetadata


class StopPosition:
    """The last entry for a reader that does not follow, decided once it reaches the last segment.

    last_segment: the last segment when the reader was opened; of a list that is older than that until a fresh one came.
    """

    def __init__(self) -> None:
        self.last_segment = 0
        self._last: tuple[int, int] | None = None  # segment and entry; None: not decided

    def note_list(self, stream: StreamMetadata) -> None:
        self.last_segment = stream.segments[-1].number if stream.segments else 0

    def is_due(self, number: int) -> bool:
        """Whether it is to be decided now that the reader is in segment `number`."""
        return self._last is None and number >= self.last_segment

    def is_passed(self, position: DLSN, lac: int) -> bool:
        """Whether a reader at `position` has passed it; decides it if it is due. lac: of the position's segment."""
        if self.is_due(position.segment):
            self._last = (position.segment, lac if position.segment == self.last_segment else int(NO_ENTRY))
        return self._last is not None and (position.segment, position.entry) > self._last
