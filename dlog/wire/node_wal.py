"""Entries of a node's write-ahead log: each holds entries of many streams.

    wal entry = head | frames | payloads
    head      = "DLOGNWAL" | version u8 | 0 u8 | frames u16 | node epoch u64 | frames bytes u32 | payload bytes u32
                | frames crc32c u32 | crc32c u32
    frame     = stream u64 | stream epoch i64 | first offset u64 | entries u32 | entry*
    entry     = length u32 | crc32c u32 of its payload | has_span u8 | [span 4 x i64]
    payloads  = those of all entries of all frames, one after another

Big-endian. A frame has entries of one stream under one epoch, with offsets first, first + 1 and so on. A span is
that of stream_object.py. The head's checksum covers the head before it.

Invariants:
- every byte is covered by a checksum: the head by its own, the frames by that in the head, each payload by that of its
  entry;
- every fault is a DamagedError, a newer version an UnsupportedVersionError;
- a newer version has its head's checksum at the same place, so that a damaged version is not taken for a newer one;
- payloads are copied neither on encoding nor on decoding.
"""

from __future__ import annotations

import struct

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model.ids import Epoch
from dlog.model.object_streams import NodeEpoch, ObjectStreamId
from dlog.values import value
from dlog.wire.digest import crc32c
from dlog.wire.stream_object import Span

Buffer = bytes | bytearray | memoryview

VERSION = 1
MAGIC = b"DLOGNWAL"
FRAMES_MAX = 10_000  # of one WAL entry; no more than a stream-set object has slices
OFFSET_END = 2**63

_HEAD = struct.Struct(">8sBBHQIII")
_CRC = struct.Struct(">I")
_START = struct.Struct(">8sB")
_FRAME = struct.Struct(">QqQI")
_ENTRY = struct.Struct(">IIB")
_SPAN = struct.Struct(">qqqq")
HEAD_BYTES = _HEAD.size + _CRC.size
FRAME_BYTES = _FRAME.size
ENTRY_BYTES_MAX = _ENTRY.size + _SPAN.size  # besides the payload


@value
class StreamEntry:
    """An entry of an object stream. span: None if it has no txids and times. crc: CRC32C of the payload."""

    payload: Buffer
    crc: int
    span: Span | None = None


@value
class WalFrame:
    """Entries first, first + 1, ... of one stream under one epoch; at least one."""

    stream: ObjectStreamId
    epoch: Epoch
    first: int
    entries: tuple[StreamEntry, ...]

    @property
    def end(self) -> int:
        return self.first + len(self.entries)


@value
class WalEntry:
    """What one entry of a node's write-ahead log holds. node_epoch: of the node that wrote it."""

    node_epoch: NodeEpoch
    frames: tuple[WalFrame, ...]


def stream_entry(payload: Buffer, span: Span | None = None) -> StreamEntry:
    """An entry with its checksum."""
    return StreamEntry(payload, crc32c(payload), span)


def encode_wal_entry(entry: WalEntry) -> list[Buffer]:
    """The parts of a WAL entry: the payloads are not copied."""
    assert 0 < len(entry.frames) <= FRAMES_MAX
    table, payloads, size = bytearray(), list[Buffer](), 0
    for frame in entry.frames:
        assert frame.entries and frame.end < OFFSET_END
        table += _FRAME.pack(frame.stream, frame.epoch, frame.first, len(frame.entries))
        for one in frame.entries:
            table += _ENTRY.pack(len(one.payload), one.crc, one.span is not None)
            if one.span is not None:
                table += _SPAN.pack(one.span.first_txid, one.span.last_txid, one.span.first_ms, one.span.last_ms)
            payloads.append(one.payload)
            size += len(one.payload)
    head = _HEAD.pack(
        *(MAGIC, VERSION, 0, len(entry.frames), entry.node_epoch, len(table), size, crc32c(table)),
    )
    return [head + _CRC.pack(crc32c(head)), table, *payloads]


def decode_wal_entry(data: Buffer) -> WalEntry:
    """Decode and check a WAL entry; the payloads are views. Raises DamagedError, UnsupportedVersionError."""
    if len(data) < HEAD_BYTES:
        raise DamagedError(f"the entry is too short for one of a node's write-ahead log: bytes={len(data)}")
    magic, version = _START.unpack_from(data)
    if magic != MAGIC:
        raise DamagedError(f"this is no entry of a node's write-ahead log: begins_with={bytes(magic)!r}")
    view = memoryview(data)
    if _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(view[: _HEAD.size]):
        raise DamagedError(f"the checksum of a WAL entry's head does not match: version={version} known={VERSION}")
    if version > VERSION:
        raise UnsupportedVersionError(f"the WAL entry has a newer format, upgrade: version={version} known={VERSION}")
    _, _, zero, frames, node_epoch, table_bytes, payload_bytes, table_crc = _HEAD.unpack_from(data)
    if version != VERSION or zero or not 0 < frames <= FRAMES_MAX:
        raise DamagedError(f"the WAL entry's head has no meaning: version={version} frames={frames}")
    if len(data) != HEAD_BYTES + table_bytes + payload_bytes:
        raise DamagedError(f"the WAL entry's sizes do not fit: bytes={len(data)} frames={table_bytes}")
    table = view[HEAD_BYTES : HEAD_BYTES + table_bytes]
    if crc32c(table) != table_crc:
        raise DamagedError("the checksum of a WAL entry's frames does not match")
    return WalEntry(NodeEpoch(node_epoch), _decode_frames(table, frames, view[HEAD_BYTES + table_bytes :]))


def _decode_frames(table: memoryview, count: int, payloads: memoryview) -> tuple[WalFrame, ...]:
    frames = list[WalFrame]()
    at = payload_at = 0
    try:
        for _ in range(count):
            stream, epoch, first, entries = _FRAME.unpack_from(table, at)
            at += _FRAME.size
            if not stream or not entries or entries > len(table) or first + entries >= OFFSET_END:
                raise DamagedError(f"a frame of a WAL entry has no meaning: stream={stream} entries={entries}")
            found = list[StreamEntry]()
            for _ in range(entries):
                one, at = _decode_entry(table, at, payloads[payload_at:])
                payload_at += len(one.payload)
                found.append(one)
            frames.append(WalFrame(ObjectStreamId(stream), Epoch(epoch), first, tuple(found)))
    except struct.error as error:
        raise DamagedError(f"the frames of a WAL entry are cut short: bytes={len(table)}") from error
    if at != len(table) or payload_at != len(payloads):
        raise DamagedError(f"the frames of a WAL entry do not fit its sizes: bytes={len(table)} used={at}")
    return tuple(frames)


def _decode_entry(table: memoryview, at: int, payloads: memoryview) -> tuple[StreamEntry, int]:
    length, crc, has_span = _ENTRY.unpack_from(table, at)
    at += _ENTRY.size
    if has_span > 1:
        raise DamagedError(f"an entry in a WAL entry has unknown flags: flags={has_span}")
    span = Span(*_SPAN.unpack_from(table, at)) if has_span else None
    at += _SPAN.size if has_span else 0
    payload = payloads[:length]
    if len(payload) != length or crc32c(payload) != crc:
        raise DamagedError(f"the checksum of an entry in a WAL entry does not match: bytes={length}")
    return StreamEntry(payload, crc, span), at
