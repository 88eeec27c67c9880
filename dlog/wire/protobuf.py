"""The part of protobuf's binary encoding that our messages need: varints, fixed words, lengths; no groups, no schema.

Input is untrusted: every fault is a Malformed, which the caller turns into its own typed error. Callers skip unknown
fields. Source: Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator

Buffer = bytes | bytearray | memoryview

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIELDS_MAX = 100_000
_NUMBER_MAX = (1 << 29) - 1
_SHORT = tuple(bytes((value,)) for value in range(0x80))


class Malformed(ValueError):
    """Invalid protobuf. Never raised outside dlog/wire."""


def fields(data: Buffer, fields_max: int = FIELDS_MAX) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield (field number, wire type, value): an unsigned 64-bit int, or a view of the field's bytes.

    Raises Malformed, also for more than `fields_max` fields, which bounds the time that a message takes.
    """
    view = memoryview(data)
    at, end = 0, len(view)
    left = fields_max
    while at < end:
        left -= 1
        if left < 0:
            raise Malformed(f"too many fields: max={fields_max}")
        tag, at = read_varint(view, at)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= _NUMBER_MAX:
            raise Malformed(f"field number out of range: number={number}")
        if wire_type == VARINT:
            value, at = read_varint(view, at)
            yield number, wire_type, value
            continue
        if wire_type == BYTES:
            size, at = read_varint(view, at)
        elif wire_type == FIXED64:
            size = 8
        elif wire_type == FIXED32:
            size = 4
        else:
            raise Malformed(f"unknown wire type: type={wire_type}")
        if size > end - at:
            raise Malformed(f"field runs past the end: number={number} bytes={size}")
        chunk = view[at : at + size]
        at += size
        yield number, wire_type, chunk if wire_type == BYTES else int.from_bytes(chunk, "little")


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 64 bits, and the index after it. Raises Malformed."""
    value = shift = 0
    end = len(view)
    if at < end and view[at] < 0x80:  # most are short
        return view[at], at + 1
    while True:
        if at >= end:
            raise Malformed("varint runs past the end")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise Malformed("varint is longer than 10 bytes")


def signed(value: int) -> int:
    """Convert an encoded int32 or int64 (64-bit two's complement) to a signed int."""
    return value - (1 << 64) if value >> 63 else value


def varint(value: int) -> bytes:
    """Encode a varint; negative numbers take ten bytes."""
    if 0 <= value < 0x80:  # most are short
        return _SHORT[value]
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def int_field(number: int, value: int) -> bytes:
    """Encode an int32, int64, uint32, uint64, bool or enum."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, value: Buffer) -> bytes:
    """Encode a field of bytes, UTF-8 string or embedded message."""
    return varint(number << 3 | BYTES) + varint(len(value)) + bytes(value)
