"""Chunks of a segment that is kept as a chain of objects.

    chunk  = head | rows | payloads
    head   = "DLOGCHNK" | version u16 | kind u8 | 0 u8 | nonce 16 | segment 16 | number u64 | epoch i64
             | contiguous u64 | first entry u64 | end entry u64 | bytes before u64 | body bytes u64 | body crc32c u32
             | crc32c u32
    body   = rows | payloads
    rows   = for each entry: length u32 | crc32c u32 of its payload; then crc32c u32 of the rows
    payloads = those of the entries first entry .. end entry - 1, one after another; of a BEGIN chunk, which has no
             entries, the description of the segment

Big-endian. contiguous: the chunks 0 to contiguous - 1 existed when this one was created: they must be there. The
interval of entries is half-open; one without entries is empty, at the number of entries before the
chunk. `bytes before` counts the payload bytes of all entries before the chunk. A FENCE may lie above chunks that were
created after it, so its interval and `bytes before` are not those that count. nonce: random, of the process that
created the chunk. The head's checksum covers the head before it. Chunks of a kind other than DATA have no rows.

Invariants:
- every byte is covered by a checksum: the head by its own, the body by that in the head; rows and payloads have their
  own as well, so that a part of a chunk can be checked;
- every fault is a DamagedError, another version an UnsupportedVersionError. Version 1, without `contiguous`, was in no
  release;
- a newer version has its head's checksum at the same place, so that a damaged version is not taken for a newer one.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.values import value
from dlog.wire.digest import crc32c

Buffer = bytes | bytearray | memoryview

VERSION = 2
MAGIC = b"DLOGCHNK"
NONCE_BYTES = SEGMENT_BYTES = 16

_HEAD = struct.Struct(f">8sHBB{NONCE_BYTES}s{SEGMENT_BYTES}sQqQQQQQI")
_CRC = struct.Struct(">I")
_ROW = struct.Struct(">II")
_START = struct.Struct(">8sH")
HEAD_BYTES = _HEAD.size + _CRC.size
ROW_BYTES = _ROW.size


class ChunkKind(enum.IntEnum):
    """What a chunk does in its chain."""

    BEGIN = 0  # the first of each chain, number 0
    DATA = 1
    SEAL = 2  # ends the segment, by its writer
    FENCE = 3  # ends the segment, by a recovery

    @property
    def is_end(self) -> bool:
        return self in (ChunkKind.SEAL, ChunkKind.FENCE)


_KINDS = {int(kind): kind for kind in ChunkKind}


@value
class ChunkHead:
    """The head of a chunk. contiguous: so many chunks from BEGIN on existed when it was created. first, end: its
    entries, half-open. bytes_before: payload bytes of all entries before it."""

    kind: ChunkKind
    nonce: bytes
    segment: bytes
    number: int
    epoch: int
    contiguous: int
    first: int
    end: int
    bytes_before: int
    body_bytes: int
    body_crc: int

    @property
    def entries(self) -> int:
        return self.end - self.first

    @property
    def rows_bytes(self) -> int:
        return rows_size(self.entries) if self.kind is ChunkKind.DATA else 0

    @property
    def payload_bytes(self) -> int:
        """Of its entries, or of the description."""
        return self.body_bytes - self.rows_bytes


@value
class Row:
    """Where in the chunk an entry's payload is."""

    offset: int
    length: int
    crc: int


def rows_size(entries: int) -> int:
    return entries * ROW_BYTES + _CRC.size


def encode_chunk(
    kind: ChunkKind,
    payloads: Sequence[Buffer],
    *,
    nonce: bytes,
    segment: bytes,
    number: int,
    epoch: int,
    contiguous: int,
    first: int,
    bytes_before: int,
) -> list[Buffer]:
    """The parts of a chunk: the payloads are not copied. Those of a DATA chunk are its entries; a BEGIN chunk has one,
    the description."""
    assert len(nonce) == NONCE_BYTES and len(segment) == SEGMENT_BYTES
    rows = bytearray()
    if kind is ChunkKind.DATA:
        for payload in payloads:
            rows += _ROW.pack(len(payload), crc32c(payload))
        rows += _CRC.pack(crc32c(rows))
    crc, size = crc32c(rows), len(rows)
    for payload in payloads:
        crc, size = crc32c(payload, crc), size + len(payload)
    end = first + (len(payloads) if kind is ChunkKind.DATA else 0)
    head = _HEAD.pack(
        *(MAGIC, VERSION, kind, 0, nonce, segment, number, epoch, contiguous, first, end, bytes_before, size, crc),
    )
    return [head + _CRC.pack(crc32c(head)), rows, *payloads]


def decode_head(data: Buffer) -> ChunkHead:
    """Decode and check a head; `data` may go on behind it. Raises DamagedError, UnsupportedVersionError."""
    if len(data) < HEAD_BYTES:
        raise DamagedError(f"the object is too short for a chunk: bytes={len(data)}")
    magic, version = _START.unpack_from(data)
    if magic != MAGIC:
        raise DamagedError(f"the object is no chunk of a segment: begins_with={bytes(magic)!r}")
    if version == 1:  # its head is shorter
        raise UnsupportedVersionError("the chunk has format 1, of no release, create the stream again")
    if _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(memoryview(data)[: _HEAD.size]):
        raise DamagedError(f"the checksum of a chunk's head does not match: version={version} known={VERSION}")
    if version > VERSION:
        raise UnsupportedVersionError(f"the chunk has a newer format, upgrade: version={version} known={VERSION}")
    _, _, kind, zero, *fields = _HEAD.unpack_from(data)
    if version != VERSION or kind not in _KINDS or zero:
        raise DamagedError(f"the chunk's head has no meaning: version={version} kind={kind}")
    head = ChunkHead(_KINDS[kind], *fields)
    if head.end < head.first or head.payload_bytes < 0 or (head.kind is not ChunkKind.DATA and head.entries):
        raise DamagedError(f"the chunk's sizes do not fit: first={head.first} end={head.end} bytes={head.body_bytes}")
    if head.contiguous > head.number:
        raise DamagedError(f"the chunk's numbers do not fit: number={head.number} contiguous={head.contiguous}")
    return head


def decode_rows(head: ChunkHead, data: Buffer) -> list[Row]:
    """Decode and check the rows, which follow the head. Raises DamagedError."""
    size = head.rows_bytes - _CRC.size
    if len(data) != head.rows_bytes or _CRC.unpack_from(data, size)[0] != crc32c(memoryview(data)[:size]):
        raise DamagedError(f"the rows of a chunk are damaged: number={head.number} bytes={len(data)}")
    found, at = [], HEAD_BYTES + head.rows_bytes
    for length, crc in _ROW.iter_unpack(memoryview(data)[:size]):
        found.append(Row(at, length, crc))
        at += length
    if at != HEAD_BYTES + head.body_bytes:
        raise DamagedError(f"the lengths of a chunk's entries do not fit: number={head.number}")
    return found


def decode_body(head: ChunkHead, data: Buffer) -> list[memoryview]:
    """Decode and check all that follows the head; the payloads are views. Raises DamagedError."""
    if len(data) != head.body_bytes or crc32c(data) != head.body_crc:
        raise DamagedError(f"the checksum of a chunk does not match: number={head.number} bytes={len(data)}")
    view = memoryview(data)
    if head.kind is not ChunkKind.DATA:
        return [view]
    rows = decode_rows(head, view[: head.rows_bytes])
    return [view[row.offset - HEAD_BYTES : row.offset - HEAD_BYTES + row.length] for row in rows]
