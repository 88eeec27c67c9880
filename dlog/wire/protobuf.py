"""The little of protobuf's binary form that our messages need: varints, fixed words, lengths; no groups, no schema.

Reading is for bytes of strangers: every fault is a Malformed, which the caller turns into the typed error of its own
door. Unknown fields are the caller's to skip. Source: Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator

Buffer = bytes | bytearray | memoryview

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIELDS_MAX = 100_000
_NUMBER_MAX = (1 << 29) - 1


class Malformed(ValueError):
    """Not protobuf. Never leaves dlog/wire."""


def fields(data: Buffer, fields_max: int = FIELDS_MAX) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield (field number, wire type, value): an unsigned int of 64 bits, or a view of the field's bytes.

    Raises Malformed, also for more than `fields_max` fields: the time a message takes is bounded, not its size only.
    """
    view = memoryview(data)
    at, end = 0, len(view)
    left = fields_max
    while at < end:
        left -= 1
        if left < 0:
            raise Malformed(f"more fields than a message of ours has: max={fields_max}")
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
            raise Malformed(f"wire type not known: type={wire_type}")
        if size > end - at:
            raise Malformed(f"field runs past the end: number={number} bytes={size}")
        chunk = view[at : at + size]
        at += size
        yield number, wire_type, chunk if wire_type == BYTES else int.from_bytes(chunk, "little")


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 64 bits and the index after it. Raises Malformed."""
    value = shift = 0
    end = len(view)
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
    """int32 or int64 as it travels: two's complement of 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def varint(value: int) -> bytes:
    """A varint; negative numbers take ten bytes."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def int_field(number: int, value: int) -> bytes:
    """int32, int64, uint32, uint64, bool or enum."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, value: Buffer) -> bytes:
    """bytes, string (already UTF-8) or an embedded message."""
    return varint(number << 3 | BYTES) + varint(len(value)) + bytes(value)
