"""Splits a byte stream into frames `length u32 | payload`, with few copies, and decodes them into messages.

Invariants:
- A length is checked before a byte is kept for its frame.
- Memory kept for a peer is bounded by a few times the bytes that it has sent, not by the lengths that it declares.
"""

from __future__ import annotations

import abc
import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Generic, TypeVar

from dlog.errors import ProtocolError

Buffer = bytes | bytearray | memoryview
T_co = TypeVar("T_co", covariant=True)

ROOM_BYTES = 4096  # buffer of an incomplete frame; a larger one gets its full buffer once an eighth has arrived
ROOM_RATIO = 8

_U32 = struct.Struct(">I")
LENGTH_BYTES = _U32.size  # once this many bytes of a frame have arrived, its length is known

#: makes an uninitialised bytearray of n bytes; `bytearray(n)` would first fill it with zeros
_room: Callable[[int], bytearray] = partial(
    ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
        ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
    ),
    None,
)


class FrameSplitter:
    """Splits chunks, fed as they arrive, into whole frames.

    Frames are memoryviews that stay valid for ever: their memory is not written to again. `bytes` that are fed are not
    copied; any other buffer is copied once, so a receive buffer may be reused at once. A frame that spans chunks is
    copied once. A view keeps its whole chunk in memory: copy small frames that are kept for long.

    A caller that chooses its receive buffer should, if `have` >= LENGTH_BYTES, receive into `room` and call `filled`
    with the byte count: most of a large frame is then never copied.
    """

    __slots__ = ("_need", "_partial", "begun", "have", "length_max")

    def __init__(self, length_max: int) -> None:
        self.length_max = length_max  # may be changed at any time; applies to the next length word read
        self.begun = 0  # number of frames that arrived in more than one chunk
        self.have = 0  # bytes present of an incomplete frame, with its length word
        self._partial = bytearray()  # buffer for that frame, or for its first part
        self._need = 0  # total bytes of that frame; 0: not known yet

    @property
    def buffered(self) -> int:
        """Bytes of memory kept for an incomplete frame: ROOM_BYTES, or a few times the bytes that arrived."""
        return len(self._partial)

    def only(self, data: Buffer) -> memoryview | None:
        """The frame, if `data` is exactly one frame, as most chunks are. None: use `feed`."""
        size = len(data) - LENGTH_BYTES
        if self.have or not 0 < size <= self.length_max or _U32.unpack_from(data)[0] != size:
            return None
        return memoryview(bytes(data))[LENGTH_BYTES:]  # bytes() of bytes does not copy

    def feed(self, data: Buffer) -> Iterator[memoryview]:
        """Yield the frames that `data` completes, without length words; exhaust the iterator before the next feed.

        Raises ProtocolError for a length of zero or above the bound (as are negative ones); close the connection then.
        """
        if isinstance(data, bytes):
            return self._cut(memoryview(data))
        size = len(data) - LENGTH_BYTES
        if not self.have and size >= 0 and size < _U32.unpack_from(data)[0] <= self.length_max:
            self._begin(memoryview(data))
            return iter(())
        return self._cut(memoryview(bytes(data)))

    @property
    def room(self) -> memoryview:
        """Buffer for the next bytes of the incomplete frame; never empty."""
        return memoryview(self._partial)[self.have :]

    def filled(self, count: int) -> Iterator[memoryview]:
        """As `feed`, with the first `count` bytes of `room`."""
        self.have += count
        if self.have == self._need:
            return iter((self._whole(),))
        if self.have == len(self._partial):
            self._make_room(self._partial)
        return iter(())

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _cut(self, view: memoryview) -> Iterator[memoryview]:
        at, end = 0, len(view)
        if self.have:
            at = self._take(view)
            if self.have != self._need:
                return
            yield self._whole()
        while end - at >= LENGTH_BYTES:
            stop = at + LENGTH_BYTES + self._length(view, at)
            if stop > end:
                break
            yield view[at + LENGTH_BYTES : stop]
            at = stop
        if at < end:
            self._begin(view[at:])

    def _begin(self, head: memoryview) -> None:
        self.begun += 1
        self.have = len(head)
        if self.have < LENGTH_BYTES:
            self._partial = bytearray(LENGTH_BYTES)
            self._partial[: self.have] = head
            return
        self._need = LENGTH_BYTES + self._length(head, 0)
        self._make_room(head)

    def _make_room(self, have: Buffer) -> None:
        """Enlarge the buffer and keep its first bytes `have`."""
        size = len(have)
        most = max(ROOM_BYTES, ROOM_RATIO * size)
        self._partial = _room(self._need if self._need <= most else min(most, self._need // ROOM_RATIO + 1))
        self._partial[:size] = have

    def _take(self, view: memoryview) -> int:
        """Copy the frame's missing bytes from the start of `view`; return how many."""
        at, end = 0, len(view)
        while at < end and self.have != self._need:
            taken = min(len(self._partial) - self.have, end - at)
            self._partial[self.have : self.have + taken] = view[at : at + taken]
            at += taken
            self.have += taken
            if self.have == LENGTH_BYTES:
                self._need = LENGTH_BYTES + self._length(self._partial, 0)
            if self.have == len(self._partial) != self._need:
                self._make_room(self._partial)
        return at

    def _whole(self) -> memoryview:
        whole, self._partial = self._partial, bytearray()
        self.have = self._need = 0
        return memoryview(whole).toreadonly()[LENGTH_BYTES:]

    def _length(self, data: Buffer, at: int) -> int:
        length: int = _U32.unpack_from(data, at)[0]
        if not 0 < length <= self.length_max:
            raise ProtocolError(f"frame length out of bounds: length={length} max={self.length_max}")
        return length


class Decoder(abc.ABC, Generic[T_co]):
    """Decodes a peer's bytes into messages. One per connection. T_co: type of all messages that one chunk completes.

    It holds a splitter instead of inheriting from it: the interpreter is faster with one splitter class for all.
    """

    __slots__ = ("frames",)

    def __init__(self, length_max: int) -> None:
        self.frames = FrameSplitter(length_max)

    def feed(self, data: Buffer) -> T_co:
        """The messages that `data` completes, in order; exhaust an iterator before the next feed.

        Raises ProtocolError for invalid data (an iterator when it gets there); close the connection then.
        """
        frame = self.frames.only(data)
        return self._decoded(self.frames.feed(data) if frame is None else (frame,))

    def filled(self, count: int) -> T_co:
        """As `feed`, with the first `count` bytes of the splitter's `room`."""
        return self._decoded(self.frames.filled(count))

    @abc.abstractmethod
    def _decoded(self, frames: Iterable[memoryview]) -> T_co:
        """Decode these frames; called once for each chunk."""
