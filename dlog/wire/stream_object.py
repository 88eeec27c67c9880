"""Objects with entries of object streams: stream objects (of one stream) and stream-set objects (of many).

    object  = blocks | index | footer
    block   = "DLOB" | flags u32 | stream u64 | start u64 | entries u64 | body bytes u64 | span 4 x i64
              | crc32c u32 | body
    body    = rows | payloads
    rows    = for each entry: length u64; if flag 1 is set also: has span u8 | span 4 x i64
    payloads = those of the entries, one after another
    index   = for each block: stream u64 | start u64 | end u64 | position u64 | bytes u64 | span 4 x i64 | flags u32
              | crc32c u32 of the block
    footer  = node id | index position u64 | index bytes u64 | blocks u64 | index crc32c u32 | object u64
              | node epoch u64 | node id bytes u16 | footer crc32c u32 | version u16 | "DLOGSOBJ"

Big-endian, half-open intervals, all offsets and sizes are 64-bit. The entries of a block are dense: entry k has the
offset start + k. Blocks are sorted by (stream, start) and do not overlap. A span is the least and greatest txid and the
least and greatest time of an entry or a block; flag 1 of a block says that at least one of its entries has one. The
checksum of a block covers the whole block but itself, that of the footer the whole footer but itself. The index is read
from the end of the object: the last `tail_bytes(size)` bytes nearly always have it all.

Invariants:
- every byte is covered by a checksum, and the blocks, the index and the footer tile the object, so an object that was
  changed or cut short anywhere is noticed;
- every fault is a DamagedError, a newer version an UnsupportedVersionError;
- a newer version has a footer of these fields and its checksum, so that a damaged version is not taken for a newer one;
- an object says whose it is (object id, node, node epoch), so one that no metadata names can be identified.

Source: AutoMQ 1.1.0, the object format of S3Stream; checksums, spans, the version and 64-bit sizes are ours.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId, ObjectStreamId, Slice
from dlog.values import value
from dlog.wire.digest import crc32c

Buffer = bytes | bytearray | memoryview

VERSION = 1
MAGIC = b"DLOGSOBJ"
BLOCK_MAGIC = b"DLOB"
BLOCK_BYTES = 512 << 10  # a block is cut once it has so many
HAS_SPANS = 1  # flag of a block

_BLOCK = struct.Struct(">4sIQQQQqqqq")
_CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">Q")
_ROW = struct.Struct(">QBqqqq")
_INDEX = struct.Struct(">QQQQQqqqqII")
_FOOTER = struct.Struct(">QQQIQQH")
_END = struct.Struct(">IH8s")  # the footer's checksum, the version, the magic

BLOCK_HEAD_BYTES = _BLOCK.size + _CRC.size
INDEX_ROW_BYTES = _INDEX.size
FOOTER_BYTES = _FOOTER.size + _END.size  # without the node id
NODE_ID_BYTES_MAX = 1024
_TAIL_BYTES = 8 << 10
_TAIL_BYTES_A_MIB = (1 << 20) // BLOCK_BYTES * INDEX_ROW_BYTES


@value
class Span:
    """The least and greatest txid and time (Unix milliseconds) of the records of an entry or a block."""

    first_txid: int
    last_txid: int
    first_ms: int
    last_ms: int


#: of an entry that cannot be read: it may have any record
ANY_SPAN = Span(-(1 << 63), (1 << 63) - 1, -(1 << 63), (1 << 63) - 1)


@value
class ObjectEntry:
    """An entry: opaque bytes. span: None if it has no record, or none was made for it."""

    payload: Buffer
    span: Span | None = None


@value
class BlockRow:
    """What the index says of a block: entries start..end-1 of a stream, in `bytes` bytes from `position` on."""

    stream: ObjectStreamId
    start: int
    end: int
    position: int
    bytes: int
    span: Span | None
    crc: int


@value
class Footer:
    """What an object says of itself. bytes: of the footer."""

    object: ObjectId
    node: NodeId
    node_epoch: NodeEpoch
    index_position: int
    index_bytes: int
    blocks: int
    index_crc: int
    bytes: int


class ObjectIndex:
    """The index of an object: its blocks, sorted by stream and start."""

    __slots__ = ("_keys", "blocks", "footer")

    def __init__(self, footer: Footer, blocks: Sequence[BlockRow]) -> None:
        self.footer = footer
        self.blocks = blocks
        self._keys = [(block.stream, block.start) for block in blocks]

    def find(self, stream: ObjectStreamId, start: int, end: int) -> range:
        """Numbers of the blocks that have at least one entry in start..end-1 of the stream."""
        first = bisect_right(self._keys, (stream, start)) - 1
        if first < 0 or self.blocks[first].stream != stream or self.blocks[first].end <= start:
            first += 1
        return range(first, max(first, bisect_right(self._keys, (stream, end - 1))) if start < end else first)

    def slices(self) -> tuple[Slice, ...]:
        """The intervals of offsets that the object has, each as long as it goes without a gap."""
        return tuple(joined(Slice(block.stream, block.start, block.end) for block in self.blocks))


def joined(slices: Iterator[Slice]) -> Iterator[Slice]:
    """Sorted slices, those that abut joined."""
    last = None
    for one in slices:
        if last is not None and (one.stream, one.start) == (last.stream, last.end):
            last = Slice(last.stream, last.start, one.end)
        else:
            if last is not None:
                yield last
            last = one
    if last is not None:
        yield last


def _merged(spans: Iterator[Span | None]) -> Span | None:
    found = [span for span in spans if span is not None]
    if not found:
        return None
    first_txid, last_txid = min(span.first_txid for span in found), max(span.last_txid for span in found)
    return Span(first_txid, last_txid, min(span.first_ms for span in found), max(span.last_ms for span in found))


_NO_SPAN = (0, 0, 0, 0)


def _numbers(span: Span | None) -> tuple[int, int, int, int]:
    return _NO_SPAN if span is None else (span.first_txid, span.last_txid, span.first_ms, span.last_ms)


# ---- encoding -------------------------------------------------------------------------------------------------------


class ObjectEncoder:
    """Encodes one object from entries in ascending order of (stream, offset).

    `add` and `finish` return the parts of the object that are complete, in order; payloads are not copied. bytes: of
    all that was returned. blocks: of the complete blocks.
    """

    def __init__(
        self, object: ObjectId, node: NodeId, node_epoch: NodeEpoch, *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.bytes = 0
        self.blocks: list[BlockRow] = []
        self._whose = object, node.encode(), node_epoch
        assert len(self._whose[1]) <= NODE_ID_BYTES_MAX
        self._block_bytes = block_bytes
        self._stream = ObjectStreamId(0)
        self._start = self._next = -1
        self._entries: list[ObjectEntry] = []
        self._payload_bytes = 0

    def add(self, stream: ObjectStreamId, offset: int, entry: ObjectEntry) -> list[Buffer]:
        """Add an entry. Returns the parts of the block before it, if this one begins another."""
        assert (stream, offset) >= (self._stream, self._next), f"not ascending: stream={stream} offset={offset}"
        parts: list[Buffer] = []
        full = self._payload_bytes + _ROW.size * len(self._entries) >= self._block_bytes
        if self._entries and (full or (stream, offset) != (self._stream, self._next)):
            parts = self._cut()
        if not self._entries:
            self._stream, self._start = stream, offset
        self._entries.append(entry)
        self._payload_bytes += len(entry.payload)
        self._next = offset + 1
        return parts

    def finish(self) -> list[Buffer]:
        """The last parts of the object; nothing may be added any more."""
        parts = self._cut() if self._entries else []
        index = b"".join(
            _INDEX.pack(
                *(row.stream, row.start, row.end, row.position, row.bytes, *_numbers(row.span)),
                *(HAS_SPANS if row.span is not None else 0, row.crc),
            )
            for row in self.blocks
        )
        object, node, node_epoch = self._whose
        fields = (self.bytes, len(index), len(self.blocks), crc32c(index), object, node_epoch, len(node))
        head, tail = node + _FOOTER.pack(*fields), _END.pack(0, VERSION, MAGIC)[_CRC.size :]
        footer = head + _CRC.pack(crc32c(tail, crc32c(head))) + tail
        self.bytes += len(index) + len(footer)
        return [*parts, index, footer]

    def slices(self) -> tuple[Slice, ...]:
        """The intervals of offsets of the complete blocks, each as long as it goes without a gap."""
        return tuple(joined(Slice(block.stream, block.start, block.end) for block in self.blocks))

    def _cut(self) -> list[Buffer]:
        entries, span = self._entries, _merged(entry.span for entry in self._entries)
        if span is None:
            rows = b"".join(_LENGTH.pack(len(entry.payload)) for entry in entries)
        else:
            rows = b"".join(
                _ROW.pack(len(entry.payload), entry.span is not None, *_numbers(entry.span)) for entry in entries
            )
        body_bytes = len(rows) + self._payload_bytes
        flags = HAS_SPANS if span is not None else 0
        fields = (self._stream, self._start, len(entries), body_bytes)
        head = _BLOCK.pack(BLOCK_MAGIC, flags, *fields, *_numbers(span))
        crc = crc32c(rows, crc32c(head))
        for entry in entries:
            crc = crc32c(entry.payload, crc)
        size = BLOCK_HEAD_BYTES + body_bytes
        self.blocks.append(BlockRow(self._stream, self._start, self._next, self.bytes, size, span, crc))
        self.bytes += size
        self._entries, self._payload_bytes = [], 0
        return [head + _CRC.pack(crc) + rows, *(entry.payload for entry in entries if len(entry.payload))]


# ---- decoding -------------------------------------------------------------------------------------------------------


def tail_bytes(size: int) -> int:
    """How many of the last bytes of an object to read first: 8 KiB, and a row of the index for each full block."""
    return min(size, _TAIL_BYTES + (size >> 20) * _TAIL_BYTES_A_MIB)


def decode_footer(tail: Buffer, size: int) -> Footer:
    """Decode and check the footer. tail: the last bytes of the object, at least `tail_bytes`; size: of the object.

    Raises DamagedError, UnsupportedVersionError.
    """
    if len(tail) < FOOTER_BYTES or len(tail) > size:
        raise DamagedError(f"the object is too short for one with entries: bytes={size}")
    crc, version, magic = _END.unpack_from(tail, len(tail) - _END.size)
    if magic != MAGIC:
        raise DamagedError(f"the object is none with entries, or cut short: ends_with={bytes(magic)!r} bytes={size}")
    position, index_bytes, blocks, index_crc, object, node_epoch, node_bytes = _FOOTER.unpack_from(
        tail, len(tail) - FOOTER_BYTES
    )
    view, footer_bytes = memoryview(tail), FOOTER_BYTES + node_bytes
    if not version or node_bytes > NODE_ID_BYTES_MAX or footer_bytes > len(tail):
        raise DamagedError(f"the footer of an object has no meaning: version={version} node_bytes={node_bytes}")
    at = len(tail) - footer_bytes
    if crc32c(view[len(tail) - _END.size + _CRC.size :], crc32c(view[at : len(tail) - _END.size])) != crc:
        raise DamagedError(
            f"the checksum of an object's footer does not match: bytes={size} version={version} known={VERSION}"
        )
    if version > VERSION:
        raise UnsupportedVersionError(f"the object has a newer format, upgrade: version={version} known={VERSION}")
    if position + index_bytes + footer_bytes != size or index_bytes != blocks * INDEX_ROW_BYTES:
        raise DamagedError(f"the parts of an object do not fit: bytes={size} index_at={position} blocks={blocks}")
    try:
        node = NodeId(bytes(view[at : at + node_bytes]).decode())
    except UnicodeDecodeError:
        raise DamagedError(f"the node of an object is no text: object={object}") from None
    return Footer(ObjectId(object), node, NodeEpoch(node_epoch), position, index_bytes, blocks, index_crc, footer_bytes)


def index_in(footer: Footer, tail: Buffer) -> memoryview | None:
    """The bytes of the index, if the tail has them all; None: read index_bytes bytes from index_position on."""
    at = len(tail) - footer.bytes - footer.index_bytes
    return memoryview(tail)[at : at + footer.index_bytes] if at >= 0 else None


def decode_index(footer: Footer, data: Buffer) -> ObjectIndex:
    """Decode and check the index. Raises DamagedError."""
    if len(data) != footer.index_bytes or crc32c(data) != footer.index_crc:
        raise DamagedError(f"the index of an object is damaged: object={footer.object} bytes={len(data)}")
    rows: list[BlockRow] = []
    at, last = 0, (0, 0)
    for stream, start, end, position, size, *span, flags, crc in _INDEX.iter_unpack(data):
        if position != at or size < BLOCK_HEAD_BYTES or not start < end or (stream, start) < last or flags > HAS_SPANS:
            raise DamagedError(f"the index of an object has no meaning: object={footer.object} block={len(rows)}")
        rows.append(BlockRow(ObjectStreamId(stream), start, end, position, size, Span(*span) if flags else None, crc))
        at, last = position + size, (stream, end)
    if at != footer.index_position:
        raise DamagedError(f"the blocks of an object do not fit: object={footer.object} blocks={len(rows)}")
    return ObjectIndex(footer, rows)


def decode_block(row: BlockRow, data: Buffer) -> list[ObjectEntry]:
    """Decode and check a block, of which the index says `row`: its entries, payloads as views. Raises DamagedError."""
    name = f"stream={row.stream} start={row.start} position={row.position}"
    if len(data) != row.bytes:
        raise DamagedError(f"a block was read in part: {name} bytes={len(data)} expected={row.bytes}")
    view = memoryview(data)
    (crc,) = _CRC.unpack_from(data, _BLOCK.size)
    if crc != row.crc or crc32c(view[BLOCK_HEAD_BYTES:], crc32c(view[: _BLOCK.size])) != crc:
        raise DamagedError(f"the checksum of a block does not match: {name}")
    magic, flags, stream, start, entries, body_bytes, *span = _BLOCK.unpack_from(data)
    known = magic, flags, stream, start, start + entries, body_bytes + BLOCK_HEAD_BYTES, tuple(span)
    flagged = HAS_SPANS if row.span is not None else 0
    if known != (BLOCK_MAGIC, flagged, row.stream, row.start, row.end, row.bytes, _numbers(row.span)):
        raise DamagedError(f"a block is not what its index says: {name}")
    kind = _ROW if flags else _LENGTH
    at, found = BLOCK_HEAD_BYTES + entries * kind.size, []
    if at > len(data):
        raise DamagedError(f"a block is too short for its entries: {name}")
    for length, *marks in kind.iter_unpack(view[BLOCK_HEAD_BYTES:at]):
        has_span = bool(marks and marks[0])
        found.append(ObjectEntry(view[at : at + length], Span(*marks[1:]) if has_span else None))
        at += length
    if at != len(data):
        raise DamagedError(f"the lengths of a block's entries do not fit: {name}")
    return found
