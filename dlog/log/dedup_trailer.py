"""The dedup trailer at the end of each entry ("note" in names): from it a later owner recognises repeated batches.

It is the payload of a control record, which readers of the format skip: `dlog1` and one msgpack array

    [unix ms, entry of the last snapshot, [[producer, sequence, records, crc32c, first slot], ...], snapshot or None]

with one element per batch of the entry, in order. The snapshot is the producer table before this entry's batches:

    [[segment, entry], [[producer, floor, next, [[sequence, records, segment, entry, slot, txid], ...]], ...], window]

least recently used first. Its first element is the horizon: no producer that wrote above this entry is missing; [0, -1]
while none is missing. `floor`: whether batches of lower sequence were written is unknown. `window`: so many batches an
owner of the stream has allowed a producer to have unanswered, at most; absent if none has allowed more than the least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

from dlog.errors import DamagedError
from dlog.model.ids import EntryId
from dlog.model.window import WINDOW_MAX

MAGIC = b"dlog1"

Buffer = bytes | bytearray | memoryview


class TrailerBatch(NamedTuple):
    """One batch of the entry, a set of `records`. slot: of its first record."""

    producer: bytes
    sequence: int
    records: int
    crc: int
    slot: int


class BatchPosition(NamedTuple):
    """The DLSN and txid of an earlier batch of a producer."""

    sequence: int
    records: int
    segment: int
    entry: int
    slot: int
    txid: int


class ProducerSnapshot(NamedTuple):
    """A producer's state: sequences floor..next-1 were written. positions: DLSNs of its last few batches."""

    producer: bytes
    floor: int
    next: int
    positions: tuple[BatchPosition, ...]


@dataclass(frozen=True, slots=True)
class ProducerTableSnapshot:
    """The producer table, least recently used first. horizon: see dlog/log/producer_table.py. window: the most batches
    that a producer was ever allowed to have unanswered; 0: not more than the least."""

    horizon: tuple[int, int]
    producers: tuple[ProducerSnapshot, ...]
    window: int = 0


@dataclass(frozen=True, slots=True)
class DedupTrailer:
    """The dedup trailer of one entry. unix_ms never decreases within a segment, nor between the segments that owners
    wrote."""

    unix_ms: int
    snapshot_entry: EntryId
    batches: tuple[TrailerBatch, ...]
    snapshot: ProducerTableSnapshot | None = None


def encode_trailer(
    unix_ms: int, snapshot_entry: int, batches: Sequence[Sequence[Any]], snapshot: ProducerTableSnapshot | bytes | None
) -> bytes:
    """Encode a control record's payload; `snapshot` may already be packed (see `pack_snapshot`)."""
    head: bytes = msgpack.packb((unix_ms, snapshot_entry, batches))
    packed = snapshot if isinstance(snapshot, bytes) else pack_snapshot(snapshot)
    return b"".join((MAGIC, b"\x94", head[1:], packed))  # an array of four, not of three


def pack_snapshot(snapshot: ProducerTableSnapshot | None) -> bytes:
    """Encode a snapshot as one msgpack value."""
    if snapshot is None:
        return b"\xc0"
    window = (snapshot.window,) if snapshot.window else ()
    packed: bytes = msgpack.packb((snapshot.horizon, snapshot.producers, *window))
    return packed


def is_note(payload: Buffer) -> bool:
    """Whether a control record's payload is a dedup trailer."""
    return bytes(payload[: len(MAGIC)]) == MAGIC


def decode_trailer(payload: Buffer) -> DedupTrailer:
    """Decode a trailer. Raises DamagedError if it is not one: type and range of each field are checked."""
    try:
        unix_ms, snapshot_entry, batches, snapshot = _unpacked(payload)
        return DedupTrailer(
            _number(unix_ms),
            EntryId(_number(snapshot_entry, -1)),
            tuple(TrailerBatch(_producer(b[0]), *map(_number, b[1:])) for b in map(_array, _array(batches))),
            _decode_snapshot(snapshot),
        )
    except (ValueError, TypeError, IndexError) as error:
        raise DamagedError(f"not a dedup trailer: {error}") from None


def decode_batch_checksums(payload: Buffer) -> tuple[int, dict[int, int]]:
    """The time at which the entry was made, and the CRC32C of each batch by its first slot, which is all that a reader
    of records needs. Other fields are not checked. Raises DamagedError."""
    try:
        unix_ms, _, batches, _ = _unpacked(payload)
        return _number(unix_ms), {_number(slot): _number(crc) for _, _, _, crc, slot in map(_array, _array(batches))}
    except (ValueError, TypeError, IndexError) as error:
        raise DamagedError(f"not a dedup trailer: {error}") from None


def decode_time(payload: Buffer) -> int:
    """The time of a trailer, without decoding the rest. Raises DamagedError."""
    try:
        unpacker = msgpack.Unpacker()
        unpacker.feed(payload[len(MAGIC) : len(MAGIC) + _TIME_BYTES])
        unpacker.read_array_header()
        return _number(unpacker.unpack())
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DamagedError(f"not a dedup trailer: {error}") from None


def _unpacked(payload: Buffer) -> tuple[Any, ...]:
    if not is_note(payload):
        raise DamagedError("not a dedup trailer: the magic is missing")
    data = memoryview(payload)[len(MAGIC) :]
    return _array(msgpack.unpackb(data, use_list=False, max_array_len=min(_ARRAY_MAX, len(data)), **_BOUNDS))


_TIME_BYTES = 10  # at most, of the array's head and the time
_ARRAY_MAX = 16_384  # batches of an entry, or producers of a snapshot
_BOUNDS = {"strict_map_key": True, "max_map_len": 0, "max_ext_len": 0, "max_str_len": 0, "max_bin_len": 16}


def _decode_snapshot(value: Any) -> ProducerTableSnapshot | None:
    if value is None:
        return None
    horizon, producers, *window = _array(value)
    segment, entry = _array(horizon)
    [allowed] = window or [0]
    return ProducerTableSnapshot(
        (_number(segment), _number(entry, -1)),
        tuple(map(_decode_producer, _array(producers))),
        min(_number(allowed), WINDOW_MAX),
    )


def _decode_producer(value: Any) -> ProducerSnapshot:
    producer, floor, after, positions = _array(value)
    found = tuple(_decode_position(_array(position)) for position in _array(positions))
    return ProducerSnapshot(_producer(producer), _number(floor), _number(after), found)


def _decode_position(value: tuple[Any, ...]) -> BatchPosition:
    return BatchPosition(*map(_number, value))


def _array(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise TypeError("an array was expected")
    return value


def _producer(value: Any) -> bytes:
    if type(value) is not bytes or len(value) != 16:
        raise TypeError("a producer id has 16 bytes")
    return value


def _number(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 2**63:
        raise ValueError("a number is out of its range")
    return value
