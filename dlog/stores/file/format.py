"""Formats of the files of a segment: its entries, and its end once that is decided. All numbers are big-endian.

`<location>.entries`:

    0      header: "dlogseg1", nonce (8 bytes), segment number u64, epoch u64, length of the stream's name u16, the
           name, CRC32C of all before; zeros up to 4096
    4096   watermark: confirmed entries u64, offset after the last of them u64, CRC32C (nonce, both numbers)
    8192   entries from 0 on: payload length u32, CRC32C (nonce, entry id u64, length, payload) u32, payload

`<location>.end`: "dlogend1", nonce, last entry i64, offset after it u64, number of index points u32, the points (entry
u64, offset u64), CRC32C of all before.

The nonce is random for each segment, and every checksum covers it: what a block held for another file is not valid.
The watermark has a sector of its own, so that a power failure while it is written cannot damage anything else.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from dlog.model.ids import NO_ENTRY, EntryId, StreamName
from dlog.stores.contract import Buffer, SegmentCorruptError
from dlog.wire.digest import crc32c

NONCE_BYTES = 8
HEADER_BYTES = 4096
WATERMARK_OFFSET = HEADER_BYTES
ENTRIES_OFFSET = 2 * HEADER_BYTES
ENTRY_BYTES_MAX = 1024 * 1024
POINT_SPACING_BYTES = 1024 * 1024  # between two index points

ENTRY_HEAD = struct.Struct(">II")
_MAGIC, _END_MAGIC = b"dlogseg1", b"dlogend1"
_HEADER = struct.Struct(">8s8sQQH")
_WATERMARK = struct.Struct(">QQI")
_END = struct.Struct(">8s8sqQI")
_POINT = struct.Struct(">QQ")
_ENTRY_ID = struct.Struct(">QI")
_CRC = struct.Struct(">I")

WATERMARK_BYTES = _WATERMARK.size

#: (entry, its offset)
Point = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Header:
    """What was known when the segment was created. epoch: a label for tools; the fence does not depend on it."""

    nonce: bytes
    number: int
    epoch: int
    stream: StreamName


@dataclass(frozen=True, slots=True)
class End:
    """The decided end: last entry (NO_ENTRY: none), the offset after it, and some entries' offsets, in order."""

    last_entry: EntryId
    offset: int
    points: tuple[Point, ...] = ()

    @property
    def payload_bytes(self) -> int:
        """Bytes of all entries' payloads."""
        return self.offset - ENTRIES_OFFSET - (self.last_entry + 1) * ENTRY_HEAD.size


def encode_header(header: Header) -> bytes:
    name = header.stream.encode()
    body = _HEADER.pack(_MAGIC, header.nonce, header.number, header.epoch, len(name)) + name
    return (body + _CRC.pack(crc32c(body))).ljust(HEADER_BYTES, b"\0")


def decode_header(data: bytes, location: str) -> Header:
    """Raises SegmentCorruptError."""
    if len(data) >= _HEADER.size:
        magic, nonce, number, epoch, length = _HEADER.unpack_from(data)
        size = _HEADER.size + length
        if magic == _MAGIC and len(data) >= size + _CRC.size and _CRC.unpack_from(data, size)[0] == crc32c(data[:size]):
            return Header(nonce, number, epoch, StreamName(data[_HEADER.size : size].decode()))
    raise SegmentCorruptError(f"the file does not begin with a segment's header: location={location}")


def encode_watermark(nonce: bytes, entries: int, offset: int) -> bytes:
    numbers = _POINT.pack(entries, offset)
    return numbers + _CRC.pack(crc32c(numbers, crc32c(nonce)))


def decode_watermark(nonce: bytes, data: bytes) -> Point:
    """(confirmed entries, offset after them); (0, ENTRIES_OFFSET) if it is missing or was torn by a power failure."""
    if len(data) == WATERMARK_BYTES:
        entries, offset, crc = _WATERMARK.unpack(data)
        if crc == crc32c(data[: _POINT.size], crc32c(nonce)):
            return entries, offset
    return 0, ENTRIES_OFFSET


def encode_entry_head(nonce: bytes, entry: int, payload: Sequence[Buffer]) -> bytes:
    length = sum(map(len, payload))
    return ENTRY_HEAD.pack(length, entry_crc(nonce, entry, length, payload))


def entry_crc(nonce: bytes, entry: int, length: int, payload: Sequence[Buffer]) -> int:
    crc = crc32c(_ENTRY_ID.pack(entry, length), crc32c(nonce))
    for part in payload:
        crc = crc32c(part, crc)
    return crc


def encode_end(nonce: bytes, end: End) -> bytes:
    body = _END.pack(_END_MAGIC, nonce, end.last_entry, end.offset, len(end.points))
    body += b"".join(_POINT.pack(*point) for point in end.points)
    return body + _CRC.pack(crc32c(body))


def decode_end(nonce: bytes, data: bytes, location: str) -> End:
    """Raises SegmentCorruptError."""
    size = len(data) - _CRC.size
    if size >= _END.size and _CRC.unpack_from(data, size)[0] == crc32c(data[:size]):
        magic, written_with, last, offset, count = _END.unpack_from(data)
        if (
            magic == _END_MAGIC
            and written_with == nonce
            and size == _END.size + count * _POINT.size
            and last >= NO_ENTRY
        ):
            return End(EntryId(last), offset, tuple(_POINT.iter_unpack(data[_END.size : size])))
    raise SegmentCorruptError(f"the file with the segment's end is damaged: location={location}")
