"""DistributedLog's entries, records and record sets: the format of a ledger entry's payload.

    entry      = version i8 = 1 | flags i32 (low 2 bits: codec) | decompressed i32 | compressed i32 | records
    record     = metadata i64 | txid i64 | length i32 | payload         metadata: bits 0-15 flags, 16-47 position
    record set = meta i32 | count i32 | decompressed i32 | compressed i32 | count x (length i32 | bytes)
                 meta: 0x1000 and the codec in the low 2 bits

A slot is a record's index in its entry; a control record takes one, a record set of n records takes n. Position counts
the segment's user records from 1; a control record has the count so far.

Invariants:
- Reading checks a declared size against the bytes present before it allocates; every fault is a DamagedError.
- Writing copies no payload unless it compresses or the entry is small.

Source: DistributedLog, LogRecord, LogRecordSet, EnvelopedEntry.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, count, repeat
from typing import NamedTuple

import lz4.block

from dlog.errors import DamagedError, RecordTooLargeError
from dlog.model.ids import TXID_END_OF_STREAM

Buffer = bytes | bytearray | memoryview

RECORD_BYTES_MAX = 1_040_364  # of a record's payload, and of a record set stored as one record
ENTRY_BYTES_MAX = 1_044_480  # of all records of one entry together
DECOMPRESSED_BYTES_MAX = 2 * 1024 * 1024  # a larger entry or set that we read is damaged
RECORD_OVERHEAD = 20
SET_OVERHEAD = 16
SET_RECORD_OVERHEAD = 4

CONTROL, END_OF_STREAM, RECORD_SET = 0x1, 0x2, 0x4  # flags

CONTROL_PAYLOAD = b"control"
END_OF_STREAM_PAYLOAD = b"endOfStream"

_ENVELOPE = struct.Struct(">biii")
ENVELOPE_BYTES = _ENVELOPE.size  # of an entry, in front of its records
_RECORD = struct.Struct(">qqi")
_SET = struct.Struct(">iiii")
_I32 = struct.Struct(">i")
_ENVELOPE_VERSION = 1
_SET_VERSION = 0x1000
_CODEC_MASK = 0x3
_LZ4_RATIO_MAX = 255  # highest compression ratio of an LZ4 block
_STRIDE = 32  # records of equal length that are split at once
_JOINED_BYTES_MAX = 4096  # an entry up to this size is one part: copying it costs less than parts in all layers below
_SHORT = tuple(_I32.pack(n) for n in range(4096))


class Codec(enum.IntEnum):
    """Compression of an entry or record set; numbers as stored."""

    NONE = 0
    LZ4 = 1


class Record(NamedTuple):
    """One record of an entry. `position` and `slot` of a record set are those of its first record."""

    flags: int
    position: int
    txid: int
    payload: Buffer
    slot: int = 0

    @property
    def is_control(self) -> bool:
        return bool(self.flags & CONTROL)

    @property
    def is_end_of_stream(self) -> bool:
        return bool(self.flags & END_OF_STREAM)

    @property
    def is_set(self) -> bool:
        return bool(self.flags & RECORD_SET)

    @property
    def count(self) -> int:  # type: ignore[override]
        """How many slots it takes."""
        return record_set_count(self.payload) if self.flags & RECORD_SET else 1

    @property
    def is_user(self) -> bool:
        """Whether readers of the stream see it."""
        return not self.flags & (CONTROL | END_OF_STREAM)


_as_record: Callable[[tuple[int, int, int, Buffer, int]], Record] = partial(tuple.__new__, Record)  # 3x as fast


# ---- writing --------------------------------------------------------------------------------------------------------


def control_record(position: int, txid: int, payload: Buffer = CONTROL_PAYLOAD) -> Record:
    """A record that readers skip. position: user records in the segment so far. txid: the last user record's."""
    return Record(CONTROL, position, txid, payload)


def end_of_stream_record(position: int) -> Record:
    """The last record of a sealed stream. position: user records in the segment."""
    return Record(END_OF_STREAM, position, TXID_END_OF_STREAM, END_OF_STREAM_PAYLOAD)


def encode_entry(records: Sequence[Record], codec: Codec = Codec.NONE) -> tuple[Buffer, ...]:
    """The payload of an entry, as parts: heads and the records' payloads, not copied (joined if compressed or small).

    Slots are not stored. Raises RecordTooLargeError if the records exceed ENTRY_BYTES_MAX together.
    """
    size = RECORD_OVERHEAD * len(records)
    parts: list[Buffer] = []
    for flags, position, txid, payload, _ in records:
        size += len(payload)
        parts.append(_RECORD.pack(position << 16 | flags, txid, len(payload)))
        parts.append(payload)
    if size > ENTRY_BYTES_MAX:
        raise RecordTooLargeError(f"an entry holds at most {ENTRY_BYTES_MAX} bytes: bytes={size}")
    if codec is Codec.LZ4:
        packed: bytes = lz4.block.compress(b"".join(parts), store_size=False)
        return (_ENVELOPE.pack(_ENVELOPE_VERSION, codec, size, len(packed)) + packed,)
    head = _ENVELOPE.pack(_ENVELOPE_VERSION, codec, size, size)
    if size <= _JOINED_BYTES_MAX:
        return (b"".join((head, *parts)),)
    parts[0] = head + bytes(parts[0])
    return tuple(parts)


def build_record_set(payloads: Sequence[bytes], codec: Codec = Codec.NONE) -> bytes:
    """Pack records into a set, for one record with the flag RECORD_SET. Records may be empty, the set may not.

    Raises RecordTooLargeError if the uncompressed set, with 16 bytes and 4 for each record, exceeds RECORD_BYTES_MAX.
    """
    records = len(payloads)
    assert records > 0, "a record set holds at least one record"
    lengths = list(map(len, payloads))
    size = sum(lengths) + SET_RECORD_OVERHEAD * records
    if size > RECORD_BYTES_MAX - SET_OVERHEAD:
        raise RecordTooLargeError(f"a batch holds at most {RECORD_BYTES_MAX} bytes: bytes={size + SET_OVERHEAD}")
    woven: list[bytes] = [b""] * (2 * records + 1)
    try:
        woven[1::2] = map(_SHORT.__getitem__, lengths)
    except IndexError:
        woven[1::2] = map(_I32.pack, lengths)
    woven[2::2] = payloads
    if codec is Codec.LZ4:
        packed: bytes = lz4.block.compress(b"".join(woven), store_size=False)
        return _SET.pack(_SET_VERSION | codec, records, size, len(packed)) + packed
    woven[0] = _SET.pack(_SET_VERSION, records, size, size)
    return b"".join(woven)


# ---- reading --------------------------------------------------------------------------------------------------------


def decode_entry(payload: Buffer, *, expand: bool = True, enveloped: bool = True) -> list[Record]:
    """The records of an entry, in order, with their slots. Payloads are views of `payload` or its decompressed form.

    expand: replace each record set by its records, with the set's txid and copied payloads; otherwise sets stay packed.
    Control records and the end of stream are always included. enveloped: False for segments of a version below 4.
    Raises DamagedError.
    """
    records: list[Record] = []
    slot = 0
    for flags, position, txid, body in raw_records(open_envelope(payload) if enveloped else memoryview(payload)):
        if flags & RECORD_SET and expand:
            inner = parse_record_set(body)
            positions = count(position), count(slot)
            records += map(
                _as_record, zip(repeat(flags & ~RECORD_SET), positions[0], repeat(txid), inner, positions[1])
            )
            slot += len(inner)
        else:
            records.append(Record(flags, position, txid, body, slot))
            slot += record_set_count(body) if flags & RECORD_SET else 1
    return records


def open_envelope(payload: Buffer) -> memoryview:
    """The records of an entry, decompressed but not parsed. Raises DamagedError."""
    view = memoryview(payload)
    if len(view) < _ENVELOPE.size:
        raise DamagedError(f"entry shorter than its envelope: bytes={len(view)}")
    version, flags, size, packed_size = _ENVELOPE.unpack_from(view)
    if version != _ENVELOPE_VERSION:
        raise DamagedError(f"unknown envelope version: version={version}")
    return _unpacked(view[_ENVELOPE.size :], flags & _CODEC_MASK, size, packed_size)


def parse_record_set(payload: Buffer) -> list[bytes]:
    """The records of a set, copied. Raises DamagedError."""
    count, packed = open_record_set(payload)
    alike = _parse_alike(packed, count)
    if alike is not None:
        return alike
    body = bytes(packed)
    records: list[bytes] = []
    append, length_at = records.append, _I32.unpack_from
    at, end = 0, len(body)
    try:
        while at < end:
            start = at + 4
            at = start + length_at(body, at)[0]
            if at < start:
                raise DamagedError(f"record set holds a negative length: at={start - 4}")
            append(body[start:at])
    except struct.error:
        raise DamagedError(f"record set ends inside a length: bytes={end}") from None
    if at != end or len(records) != count:
        raise DamagedError(f"record set does not add up: records={len(records)} count={count} bytes={end} at={at}")
    return records


def open_record_set(payload: Buffer) -> tuple[int, memoryview]:
    """The declared number of records of a set, and its `count x (length i32 | bytes)`, decompressed but not parsed.

    Raises DamagedError.
    """
    view = memoryview(payload)
    count = record_set_count(view)
    meta, _, size, packed_size = _SET.unpack_from(view)
    return count, _unpacked(view[_SET.size :], meta & _CODEC_MASK, size, packed_size)


def _parse_alike(body: memoryview, count: int) -> list[bytes] | None:
    """Split a set of many records of equal length in C, without copying the body. None: it is no such set."""
    if count < _STRIDE:
        return None
    length: int = _I32.unpack_from(body)[0]
    if length < 0 or (length + SET_RECORD_OVERHEAD) * count != len(body):
        return None
    stride, single = _strides(length)
    middle = len(body) - len(body) % stride.size
    flat = list(chain.from_iterable(chain(stride.iter_unpack(body[:middle]), single.iter_unpack(body[middle:]))))
    return flat[1::2] if flat[::2].count(length) == count else None


@lru_cache(maxsize=256)
def _strides(length: int) -> tuple[struct.Struct, struct.Struct]:
    """Structs that split _STRIDE records of this length, and one record, into alternating lengths and bytes."""
    one = f"i{length}s"
    return struct.Struct(">" + one * _STRIDE), struct.Struct(">" + one)


def record_set_count(payload: Buffer) -> int:
    """The declared number of records of a set. Raises DamagedError.

    The whole head is checked against its bounds and against the bytes present. A set that passes can fail later only
    if its records do not match the head.
    """
    return record_set_head(payload)[0]


def record_set_head(payload: Buffer) -> tuple[int, int]:
    """The declared number of records of a set, and its decompressed bytes; checked as in `record_set_count`.

    Raises DamagedError.
    """
    if len(payload) < _SET.size:
        raise DamagedError(f"record set shorter than its head: bytes={len(payload)}")
    meta, count, size, packed_size = _SET.unpack_from(payload)
    if meta & ~_CODEC_MASK != _SET_VERSION:
        raise DamagedError(f"unknown record set version: meta={meta:#x}")
    if count < 0 or size < 0 or count > size // SET_RECORD_OVERHEAD or size > DECOMPRESSED_BYTES_MAX:
        raise DamagedError(f"record set count out of bounds: count={count} bytes={size}")
    _check_sizes(meta & _CODEC_MASK, size, packed_size, len(payload) - _SET.size)
    return count, size


def raw_records(view: memoryview) -> Iterator[tuple[int, int, int, memoryview]]:
    """Flags, position, txid and payload of each record of an opened envelope, in order. Raises DamagedError."""
    at, end = 0, len(view)
    while at < end:
        if end - at < RECORD_OVERHEAD:
            raise DamagedError(f"entry ends inside a record's head: at={at} bytes={end}")
        metadata, txid, length = _RECORD.unpack_from(view, at)
        start = at + RECORD_OVERHEAD
        at = start + length
        if length < 0 or at > end:
            raise DamagedError(f"record runs past its entry: at={start} length={length} bytes={end}")
        yield metadata & 0xFFFF, metadata >> 16 & 0xFFFF_FFFF, txid, view[start:at]


def _check_sizes(codec: int, size: int, packed_size: int, there: int) -> None:
    """Check declared sizes against the bytes present, before decompression."""
    if packed_size != there:
        raise DamagedError(f"declared size differs from the bytes present: declared={packed_size} bytes={there}")
    if codec == Codec.NONE:
        if size != packed_size:
            raise DamagedError(f"two sizes declared for the same bytes: {size} and {packed_size}")
    elif codec != Codec.LZ4:
        raise DamagedError(f"unknown codec: codec={codec}")
    elif not 0 <= size <= min(DECOMPRESSED_BYTES_MAX, there * _LZ4_RATIO_MAX):
        raise DamagedError(f"declared size impossible for LZ4: declared={size} bytes={there}")


def _unpacked(packed: memoryview, codec: int, size: int, packed_size: int) -> memoryview:
    _check_sizes(codec, size, packed_size, len(packed))
    if codec == Codec.NONE:
        return packed
    try:
        plain = lz4.block.decompress(packed, uncompressed_size=size)
    except lz4.block.LZ4BlockError as error:
        raise DamagedError(f"LZ4 block does not decompress: {error}") from None
    if len(plain) != size:
        raise DamagedError(f"LZ4 block has another size: declared={size} bytes={len(plain)}")
    return memoryview(plain)
