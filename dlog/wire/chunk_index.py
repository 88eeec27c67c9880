"""The index of a segment whose chunks are merged into one object.

    index  = "DLOGINDX" | version u16 | 0 u16 | nonce 16 | segment 16 | end number u64 | entries u64 | payload bytes u64
             | rows | data bytes u64 | crc32c u32
    rows   = for each chunk with entries, from number 1 to end number - 1: offset u64 | first entry u64
    data   = these chunks, unchanged, one after another: another object, whose name has the nonce

Big-endian. end number: of the chunk that ended the segment. The checksum covers all before it.

Invariants:
- every fault is a DamagedError, a newer version an UnsupportedVersionError;
- a newer version ends with the same checksum, so that a damaged version is not taken for a newer one.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.wire.chunk import HEAD_BYTES, NONCE_BYTES, SEGMENT_BYTES, Buffer, ChunkHead
from dlog.wire.digest import crc32c

MAGIC = b"DLOGINDX"
VERSION = 1
_HEAD = struct.Struct(f">8sHH{NONCE_BYTES}s{SEGMENT_BYTES}sQQQ")
_ROW = struct.Struct(">QQ")
_END = struct.Struct(">QI")
INDEX_HEAD_BYTES = 8 + 4 + NONCE_BYTES  # no other index begins with the same


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """Where the chunks 1 to end_number - 1 are in the data. offsets: of each, and the size of the data at last. firsts:
    the first entry of each."""

    nonce: bytes
    segment: bytes
    end_number: int
    entries: int
    payload_bytes: int
    offsets: array[int]
    firsts: array[int]

    @property
    def size(self) -> int:
        return 16 * len(self.offsets) + 200

    def place(self, number: int) -> tuple[int, int] | None:
        """Offset and size of a chunk in the data; None if it is not there."""
        if not 1 <= number < self.end_number:
            return None
        return self.offsets[number - 1], self.offsets[number] - self.offsets[number - 1]


def make_index(nonce: bytes, heads: Sequence[ChunkHead]) -> ChunkIndex:
    """The index of chunks that are merged in this order. heads: of at least one chunk."""
    offsets, firsts = array("Q", [0]), array("Q")
    for head in heads:
        offsets.append(offsets[-1] + HEAD_BYTES + head.body_bytes)
        firsts.append(head.first)
    last = heads[-1]
    size = last.bytes_before + last.payload_bytes
    return ChunkIndex(nonce, last.segment, last.number + 1, last.end, size, offsets, firsts)


def encode_index(index: ChunkIndex) -> bytes:
    data = bytearray(
        _HEAD.pack(
            *(MAGIC, VERSION, 0, index.nonce, index.segment, index.end_number, index.entries, index.payload_bytes)
        )
    )
    for row in zip(index.offsets, index.firsts, strict=False):  # the last offset is the end
        data += _ROW.pack(*row)
    data += struct.pack(">Q", index.offsets[-1])
    return bytes(data + struct.pack(">I", crc32c(data)))


def decode_index(data: Buffer) -> ChunkIndex:
    """Decode and check an index. Raises DamagedError, UnsupportedVersionError."""
    if len(data) < _HEAD.size + _END.size or bytes(data[:8]) != MAGIC:
        raise DamagedError(f"the object is no index of a segment: bytes={len(data)}")
    _, version, zero, nonce, segment, end_number, entries, payload_bytes = _HEAD.unpack_from(data)
    view = memoryview(data)
    if struct.unpack(">I", view[-4:])[0] != crc32c(view[:-4]):
        raise DamagedError(f"the checksum of a segment's index does not match: version={version} known={VERSION}")
    if version > VERSION:
        raise UnsupportedVersionError(f"the index has a newer format, upgrade: version={version} known={VERSION}")
    rows = view[_HEAD.size : -_END.size]
    if version != VERSION or zero or len(rows) != _ROW.size * (end_number - 1):
        raise DamagedError(f"the index has no meaning: version={version} end_number={end_number} bytes={len(data)}")
    offsets, firsts = array("Q"), array("Q")
    for offset, first in _ROW.iter_unpack(rows):
        offsets.append(offset)
        firsts.append(first)
    offsets.append(_END.unpack(view[-_END.size :])[0])
    if sorted(offsets) != list(offsets) or sorted(firsts) != list(firsts):
        raise DamagedError(f"the rows of an index are in no order: end_number={end_number}")
    return ChunkIndex(nonce, segment, end_number, entries, payload_bytes, offsets, firsts)
