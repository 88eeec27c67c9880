"""Cutting a byte stream into frames `length u32 | payload`, with as few copies as the way they come allows, and making
messages of them.

The law of this file: a length is judged before a byte is kept for it, and what a peer declares allocates next to
nothing; what it has sent does, a few times over at most.
"""

from __future__ import annotations

import abc
import ctypes
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, TypeVar

from dlog.errors import ProtocolError

Buffer = bytes | bytearray | memoryview
T_co = TypeVar("T_co", covariant=True)

ROOM_BYTES = 4096  # for a frame that has begun; a larger one has all its room once an eighth of it is here
ROOM_RATIO = 8

_U32 = struct.Struct(">I")
_HEAD = _U32.size

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

    Whoever can choose where bytes come to lie asks whether a frame `is_waiting`; if so it writes into its `room` and
    says how much it `filled`: most of a large frame is then never copied.
    """

    __slots__ = ("_have", "_need", "_partial", "begun", "length_max")

    def __init__(self, length_max: int) -> None:
        self.length_max = length_max  # may be changed at any time; holds for the next length word that is read
        self.begun = 0  # frames that were not whole when their first byte came
        self._partial = bytearray()  # room for the frame that is not whole, or for the part of it that comes first
        self._have = 0  # of it
        self._need = 0  # with the length word; 0: not known yet

    @property
    def buffered(self) -> int:
        """Bytes of memory kept for a frame that is not whole yet: ROOM_BYTES, or some times what has come."""
        return len(self._partial)

    def feed(self, data: Buffer) -> Iterator[memoryview]:
        """The frames that `data` completes, without their length words; exhaust it before the next feed.

        Raises ProtocolError for a length of zero or above the bound (a negative one is above any); the stream is
        then beyond repair.
        """
        size = len(data)
        if self._have or size <= _HEAD:
            return self._cut(memoryview(bytes(data)))  # of bytes no copy is made
        length = _U32.unpack_from(data)[0]
        if size - _HEAD < length <= self.length_max and not isinstance(data, bytes):
            self._begin(memoryview(data))
            return iter(())
        view = memoryview(bytes(data))
        if size - _HEAD == length <= self.length_max:  # one frame and nothing else, as most chunks are
            return iter((view[_HEAD:],))
        return self._cut(view)

    @property
    def has_begun(self) -> bool:
        """Whether a part of a frame is here, be it of its length."""
        return self._have > 0

    @property
    def is_waiting(self) -> bool:
        """Whether a frame has begun of which it is known how long it is."""
        return self._have >= _HEAD

    @property
    def room(self) -> memoryview:
        """Where the next bytes of the frame that is waiting shall come to lie; never empty."""
        return memoryview(self._partial)[self._have :]

    def filled(self, count: int) -> Iterator[memoryview]:
        """As `feed`, with the first `count` bytes of `room`."""
        self._have += count
        if self._have == self._need:
            return iter((self._whole(),))
        if self._have == len(self._partial):
            self._make_room(self._partial)
        return iter(())

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _cut(self, view: memoryview) -> Iterator[memoryview]:
        at, end = 0, len(view)
        if self._have:
            at = self._take(view)
            if self._have != self._need:
                return
            yield self._whole()
        while end - at >= _HEAD:
            stop = at + _HEAD + self._length(view, at)
            if stop > end:
                break
            yield view[at + _HEAD : stop]
            at = stop
        if at < end:
            self._begin(view[at:])

    def _begin(self, head: memoryview) -> None:
        self.begun += 1
        self._have = len(head)
        if self._have < _HEAD:
            self._partial = bytearray(_HEAD)
            self._partial[: self._have] = head
            return
        self._need = _HEAD + self._length(head, 0)
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
        while at < end and self._have != self._need:
            taken = min(len(self._partial) - self._have, end - at)
            self._partial[self._have : self._have + taken] = view[at : at + taken]
            at += taken
            self._have += taken
            if self._have == _HEAD:
                self._need = _HEAD + self._length(self._partial, 0)
            if self._have == len(self._partial) != self._need:
                self._make_room(self._partial)
        return at

    def _whole(self) -> memoryview:
        whole, self._partial = self._partial, bytearray()
        self._have = self._need = 0
        return memoryview(whole).toreadonly()[_HEAD:]

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

    @property
    def buffered(self) -> int:
        """Bytes of memory kept for a frame that is not whole yet."""
        return self.frames.buffered

    @property
    def begun(self) -> int:
        """Frames so far that did not come whole."""
        return self.frames.begun

    def feed(self, data: Buffer) -> T_co:
        """What `data` completes, in order; where that is an iterator, exhaust it before the next feed.

        Raises ProtocolError, an iterator where it gets there, for what is none of ours; close the connection then.
        """
        return self._decoded(self.frames.feed(data))

    def filled(self, count: int) -> T_co:
        """As `feed`, with the first `count` bytes of the splitter's `room`."""
        return self._decoded(self.frames.filled(count))

    @abc.abstractmethod
    def _decoded(self, frames: Iterator[memoryview]) -> T_co:
        """What these frames say; asked once for each chunk, however many they are."""
