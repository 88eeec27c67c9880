"""Receive buffers for BufferedProtocol: one for each thread, and the decoder's own for a frame that has begun.

All connections of a thread can share a buffer because the event loop runs no other code between asking for it and
reporting the bytes written to it.
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


def buffer_for(decoder: Decoder[object]) -> memoryview:
    """The buffer to receive into; for `get_buffer`."""
    frames = decoder.frames
    return frames.room if frames.have >= LENGTH_BYTES else _chunk.view


def received(decoder: Decoder[T], count: int) -> T:
    """The messages that `count` bytes in `buffer_for`'s buffer completed; for `buffer_updated`."""
    return decoder.filled(count) if decoder.frames.have >= LENGTH_BYTES else decoder.feed(_chunk.view[:count])


def chunk(count: int) -> bytes:
    """A copy of bytes just received into the shared buffer, for a caller that inspects them first."""
    return bytes(_chunk.view[:count])
