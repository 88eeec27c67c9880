"""Byte format of an entry log: a section per flush, sorted by (ledger, entry), then a table of contents.

    file header  "DLE1" | 0 u32 | log id u64 | crc u32 | zeros                               32 bytes
    entry        length u32 | crc u32 of the packet | packet
    section end  0xffffffff | crc u32 of what follows | length u32 | previous section end u64 | count u32
                 | count x (ledger i64, entries u32, bytes u64)
    zeros        up to the next multiple of 4096, so that the next flush begins with a block of the disk

The table of contents lists a section's ledgers, so that a log without live ledgers can be deleted.

Invariants:
- an entry is returned only if its length, its CRC and the ids inside its packet are the expected ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

from fastcrc.crc32 import iscsi as crc32c

from dlog.bookie.cache import Stored
from dlog.errors import DamagedError

PRead = Callable[[int, int], bytes]  # length, offset

LOG_HEADER_BYTES = 32
HEAD_BYTES = 8

_FILE = struct.Struct(">4sIQ")
_HEAD = struct.Struct(">II")
_SECTION = struct.Struct(">IIIQI")
_CONTENT = struct.Struct(">qIQ")
_IDS = struct.Struct(">qq")
SECTION_WORD = 0xFFFFFFFF
SECTION_HEAD_BYTES = _SECTION.size
SECTION_BODY_AT = 12


def log_header(log_id: int) -> bytes:
    head = _FILE.pack(b"DLE1", 0, log_id)
    return (head + struct.pack(">I", crc32c(head))).ljust(LOG_HEADER_BYTES, b"\0")


def entry_head(stored: Stored) -> bytes:
    """The bytes before the packet."""
    return _HEAD.pack(len(stored.packet), stored.crc)


def section_end(previous: int, contents: Iterable[tuple[int, int, int]]) -> bytes:
    """The table of contents of a flush. previous: offset of the last one in this log; contents: (ledger, entries,
    bytes).
    """
    rows = [_CONTENT.pack(*row) for row in contents]
    body = struct.pack(">QI", previous, len(rows)) + b"".join(rows)
    return _HEAD.pack(SECTION_WORD, crc32c(body)) + struct.pack(">I", len(body)) + body


def parse_section_end(data: bytes) -> tuple[int, list[tuple[int, int, int]]]:
    """Return the offset of the previous section end, and the contents. Raises DamagedError."""
    if len(data) < _SECTION.size:
        raise DamagedError("an entry log's table of contents is incomplete")
    word, crc, length, previous, count = _SECTION.unpack_from(data)
    body = data[12 : 12 + length]
    if word != SECTION_WORD or len(body) != length or crc32c(body) != crc or length != 12 + count * _CONTENT.size:
        raise DamagedError("an entry log's table of contents does not verify")
    return previous, [_CONTENT.unpack_from(body, 12 + i * _CONTENT.size) for i in range(count)]


def section_bytes(head: bytes) -> int:
    """Return the length of a table of contents, from its first SECTION_HEAD_BYTES. Raises DamagedError."""
    if len(head) < SECTION_HEAD_BYTES:
        raise DamagedError("an entry log's table of contents is incomplete")
    return SECTION_BODY_AT + int(_SECTION.unpack_from(head)[2])


def read_contents(pread: PRead, length: int, section: int) -> Iterator[tuple[int, int, int]]:
    """Yield (ledger, entries, bytes) of each table of contents, the last one first. length: of the log; section: offset
    of its last table of contents. Raises DamagedError if one does not verify."""
    if not section:
        raise DamagedError("an entry log has no table of contents")
    before = length
    while section:
        if section >= before:
            raise DamagedError("an entry log's tables of contents are not in order")
        size = section_bytes(pread(SECTION_HEAD_BYTES, section))
        before, (section, contents) = section, parse_section_end(pread(size, section))
        yield from contents


def check_entry(head: bytes, packet: bytes, ledger: int, entry: int, length: int) -> None:
    """Raise DamagedError unless this is the expected entry, byte for byte. head: the bytes before the packet."""
    if len(head) == HEAD_BYTES and len(packet) == length and len(packet) >= _IDS.size:
        stored_length, crc = _HEAD.unpack(head)
        if stored_length == length and crc32c(packet) == crc and _IDS.unpack_from(packet) == (ledger, entry):
            return
    raise DamagedError(f"a stored entry does not verify, run `dlog ledger verify`: ledger={ledger} entry={entry}")


def check_ids(head: bytes, ledger: int, entry: int) -> None:
    """Raise DamagedError unless a packet that begins with these bytes is of this entry. The rest is not checked."""
    if len(head) < _IDS.size or _IDS.unpack_from(head) != (ledger, entry):
        raise DamagedError(f"a stored entry does not verify, run `dlog ledger verify`: ledger={ledger} entry={entry}")
