"""Where the bytes that a socket brings come to lie.

The law of this file: a loop asks for a place and in the same breath says how much it wrote there; nothing else happens
in between. So one place serves all connections of a thread, and only a large frame has one of its own.
"""

from __future__ import annotations

import threading
from typing import TypeVar

from dlog.wire.framing import LENGTH_BYTES, Decoder

CHUNK_BYTES = 256 * 1024

T = TypeVar("T")


class _Chunk(threading.local):
    def __init__(self) -> None:
        self.view = memoryview(bytearray(CHUNK_BYTES))


_chunk = _Chunk()


def place_for(decoder: Decoder[object]) -> memoryview:
    """For `get_buffer` of a protocol."""
    frames = decoder.frames
    return frames.room if frames.have >= LENGTH_BYTES else _chunk.view


def received(decoder: Decoder[T], count: int) -> T:
    """The messages that `count` bytes completed which were written to what `place_for` gave; for `buffer_updated`."""
    return decoder.filled(count) if decoder.frames.have >= LENGTH_BYTES else decoder.feed(_chunk.view[:count])


def chunk(count: int) -> bytes:
    """What was written for a decoder that was not waiting, for who wants to see it first."""
    return bytes(_chunk.view[:count])
