"""Cutting a byte stream into frames `length u32 | payload`, without copying what arrives whole.

The law of this file: a length is judged before a byte is kept for it, so that what a peer declares never allocates;
only what it has sent does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from dlog.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

_U32 = struct.Struct(">I")


class FrameSplitter:
    """Incremental: feed chunks as they arrive, take whole frames out.

    Frames are memoryviews that stay valid for ever: nothing they look at is written to again. `bytes` that are fed are
    viewed, not copied; any other buffer is copied once, so a receive buffer may be reused at once. A frame that spans
    chunks is copied once. A view keeps its whole chunk in memory: copy what is small and kept for long.
    """

    __slots__ = ("_partial", "length_max")

    def __init__(self, length_max: int) -> None:
        self.length_max = length_max  # may be changed at any time; holds for the next length word that is read
        self._partial = bytearray()

    @property
    def buffered(self) -> int:
        """Bytes kept of a frame that is not whole yet."""
        return len(self._partial)

    def feed(self, data: Buffer) -> Iterator[memoryview]:
        """Yield the frames that `data` completes, without their length words; exhaust it before the next feed.

        Raises ProtocolError for a length of zero or above the bound (a negative one is above any); the stream is
        then beyond repair.
        """
        view = memoryview(data if isinstance(data, bytes) else bytes(data))
        at, end = 0, len(view)
        if self._partial:
            at = self._complete(view)
            if len(self._partial) < 4 or len(self._partial) < 4 + self._length(self._partial, 0):
                return
            whole, self._partial = self._partial, bytearray()
            yield memoryview(whole).toreadonly()[4:]
        while end - at >= 4:
            stop = at + 4 + self._length(view, at)
            if stop > end:
                break
            yield view[at + 4 : stop]
            at = stop
        if at < end:
            self._partial += view[at:]

    def _complete(self, view: memoryview) -> int:
        """Move what the partial frame lacks from the head of `view`; return how much that was."""
        at = 0
        if len(self._partial) < 4:
            at = min(4 - len(self._partial), len(view))
            self._partial += view[:at]
            if len(self._partial) < 4:
                return at
        lacking = 4 + self._length(self._partial, 0) - len(self._partial)
        taken = min(lacking, len(view) - at)
        self._partial += view[at : at + taken]
        return at + taken

    def _length(self, data: Buffer, at: int) -> int:
        length: int = _U32.unpack_from(data, at)[0]
        if not 0 < length <= self.length_max:
            raise ProtocolError(f"frame length out of bounds: length={length} max={self.length_max}")
        return length
