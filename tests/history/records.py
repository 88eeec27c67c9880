"""Self-describing records: producer, sequence, CRC, and filler up to the requested size.

crc32 u32 | producer u32 | sequence u64 | filler
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

_HEAD = struct.Struct(">IIQ")
RECORD_BYTES_MIN = _HEAD.size


class Said(NamedTuple):
    """Contents of a record."""

    producer: int
    sequence: int


class RecordMaker:
    """Makes one producer's records of `size` bytes, at least RECORD_BYTES_MIN."""

    def __init__(self, producer: int, size: int) -> None:
        if size < RECORD_BYTES_MIN:
            raise ValueError(f"size must be at least {RECORD_BYTES_MIN} bytes: size={size}")
        self._producer = producer
        self._filler = (b"%08x" % (producer * 2654435761 % 2**32)) * (size // 8 + 1)
        self._filler = self._filler[: size - _HEAD.size]
        self._filler_crc = zlib.crc32(self._filler)

    def make(self, sequence: int) -> bytes:
        head = struct.pack(">IQ", self._producer, sequence)
        return struct.pack(">I", zlib.crc32(head, self._filler_crc)) + head + self._filler


def read(payload: bytes) -> Said | None:
    """Decode a record; None if its CRC does not match."""
    if len(payload) < _HEAD.size:
        return None
    crc, producer, sequence = _HEAD.unpack_from(payload)
    if zlib.crc32(payload[4 : _HEAD.size], zlib.crc32(payload[_HEAD.size :])) != crc:
        return None
    return Said(producer, sequence)
