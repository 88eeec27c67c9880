"""Cutting a byte stream into frames `length u32 | payload`, with as few copies as the way they come allows, and making
messages of them.

The law of this file: a length is judged before a byte is kept for it, and what a peer declares allocates next to
nothing; what it has sent does, a few times over at most.
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

ROOM_BYTES = 4096  # for a frame that has begun; a larger one has all its room once an eighth of it is here
ROOM_RATIO = 8

_U32 = struct.Struct(">I")
LENGTH_BYTES = _U32.size  # of a frame that has so many bytes or more, it is known how long it is

#: a bytearray of so many bytes of whatever the memory holds: `bytearray(n)` would write zeros that are written over
_room: Callable[[int], bytearray] = partial(
    ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
        ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
    ),
    None,
)


class FrameSplitter:
    """Incremental: feed chunks as they arrive, take whole frames out.

    Frames are memoryviews that stay valid for ever: nothing they look at is written to again. `bytes` that are fed are
    viewed, not copied; any other buffer is copied once, so a receive buffer may be reused at once. A frame that spans
    chunks is copied once. A view keeps its whole chunk in memory: copy what is small and kept for long.

    Whoever can choose where bytes come to lie looks whether of a frame it `have`s its length (LENGTH_BYTES); if so it
    writes into its `room` and says how much it `filled`: most of a large frame is then never copied.
    """

    __slots__ = ("_need", "_partial", "begun", "have", "length_max")

    def __init__(self, length_max: int) -> None:
        self.length_max = length_max  # may be changed at any time; holds for the next length word that is read
        self.begun = 0  # frames that were not whole when their first byte came
        self.have = 0  # bytes of a frame that has begun and is not whole, its length word included
        self._partial = bytearray()  # room for that frame, or for the part of it that comes first
        self._need = 0  # bytes of all of it; 0: not known yet

    @property
    def buffered(self) -> int:
        """Bytes of memory kept for a frame that is not whole yet: ROOM_BYTES, or some times what has come."""
        return len(self._partial)

    def only(self, data: Buffer) -> memoryview | None:
        """The frame, if `data` is one and nothing else, as most chunks are. None: `feed` tells."""
        size = len(data) - LENGTH_BYTES
        if self.have or not 0 < size <= self.length_max or _U32.unpack_from(data)[0] != size:
            return None
        return memoryview(bytes(data))[LENGTH_BYTES:]  # of bytes no copy is made

    def feed(self, data: Buffer) -> Iterator[memoryview]:
        """The frames that `data` completes, without their length words; exhaust it before the next feed.

        Raises ProtocolError for a length of zero or above the bound (a negative one is above any); the stream is
        then beyond repair.
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
        """Where the next bytes of the frame that has begun shall come to lie; never empty."""
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
        """For more than what is here."""
        size = len(have)
        most = max(ROOM_BYTES, ROOM_RATIO * size)
        self._partial = _room(self._need if self._need <= most else min(most, self._need // ROOM_RATIO + 1))
        self._partial[:size] = have

    def _take(self, view: memoryview) -> int:
        """Move what the frame lacks from the head of `view`; return how much that was."""
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
    """Bytes of a peer, in; what whole frames of them say, out. One per connection. T_co: all that one chunk completes.

    It has a splitter and is none: one class of splitter, whatever is decoded, is what the interpreter is fast with.
    """

    __slots__ = ("frames",)

    def __init__(self, length_max: int) -> None:
        self.frames = FrameSplitter(length_max)

    def feed(self, data: Buffer) -> T_co:
        """What `data` completes, in order; where that is an iterator, exhaust it before the next feed.

        Raises ProtocolError, an iterator where it gets there, for what is none of ours; close the connection then.
        """
        frame = self.frames.only(data)
        return self._decoded(self.frames.feed(data) if frame is None else (frame,))

    def filled(self, count: int) -> T_co:
        """As `feed`, with the first `count` bytes of the splitter's `room`."""
        return self._decoded(self.frames.filled(count))

    @abc.abstractmethod
    def _decoded(self, frames: Iterable[memoryview]) -> T_co:
        """What these frames say; asked once for each chunk, however many they are."""
