"""Walks through the bytes of an entry log without its index: which entries verify, and which bytes do not.

Invariants:
- an entry is yielded only if its CRC is right and its ids lie in the packet;
- behind damage the walk goes on at the next bytes that verify.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from dlog.bookie.entry_log import (
    HEAD_BYTES,
    LOG_HEADER_BYTES,
    SECTION_BODY_AT,
    SECTION_HEAD_BYTES,
    SECTION_WORD,
    PRead,
    parse_section_end,
)
from dlog.errors import DamagedError
from dlog.wire.bookie import REQUEST_LENGTH_MAX

_HEAD = struct.Struct(">II")
_IDS = struct.Struct(">qqq")  # ledger, entry, LAC: every entry has them
_WINDOW_BYTES = 1 << 20
_BLOCK_BYTES = 4096  # a flush begins at a multiple of it


class LogRecord(NamedTuple):
    """An entry of the log that verifies. length: of its packet; lac: the one in the packet."""

    ledger: int
    entry: int
    lac: int
    offset: int
    length: int


class LogDamage(NamedTuple):
    """Bytes from offset to end that belong to no entry and no table of contents that verifies."""

    offset: int
    end: int


class _Window:
    """Reads a file from front to back in large pieces."""

    def __init__(self, pread: PRead, end: int) -> None:
        self._pread = pread
        self._end = end
        self._offset = 0
        self._data = b""

    def read(self, length: int, offset: int) -> bytes:
        """Bytes from the offset on, fewer only at the end."""
        at = offset - self._offset
        if at < 0 or at + length > len(self._data):
            wanted = min(max(length, _WINDOW_BYTES), self._end - offset)
            self._offset, self._data = offset, self._pread(wanted, offset)
            at = 0
        return self._data[at : at + length]


def walk_log(pread: PRead, end: int) -> Iterator[LogRecord | LogDamage]:
    """Yield the entries and damaged parts of a log up to `end`, in order. pread: returns zeros for unreadable bytes."""
    window = _Window(pread, end)
    at, damaged_from = LOG_HEADER_BYTES, -1
    while at < end:
        found = _item_at(window, at, end) if damaged_from < 0 else _item_behind_damage(window, at, end)
        if found is None:
            if damaged_from < 0:
                damaged_from = at
                at = _resume(window, at, end)
            else:
                at = _next_candidate(window, at + 1, end)
            continue
        if damaged_from >= 0:
            yield LogDamage(damaged_from, at)
            damaged_from = -1
        record, at = found
        if record is not None:
            yield record
    if damaged_from >= 0:
        yield LogDamage(damaged_from, end)


def _item_at(window: _Window, at: int, end: int) -> tuple[LogRecord | None, int] | None:
    """The entry or (None) table of contents at this offset, and where the next one begins; None: there is none."""
    head = window.read(HEAD_BYTES, at)
    if len(head) < HEAD_BYTES:
        return None
    length, crc = _HEAD.unpack(head)
    if length == SECTION_WORD:
        return _section_at(window, at, end)
    if not _IDS.size <= length <= min(REQUEST_LENGTH_MAX, end - at - HEAD_BYTES):
        return None
    packet = window.read(length, at + HEAD_BYTES)
    if len(packet) < length or crc32c(packet) != crc:
        return None
    ledger, entry, lac = _IDS.unpack_from(packet)
    return LogRecord(ledger, entry, lac, at, length), at + HEAD_BYTES + length


def _item_behind_damage(window: _Window, at: int, end: int) -> tuple[LogRecord | None, int] | None:
    """As `_item_at`, for offsets where most often no item begins: it first looks at the few bytes that show this."""
    head = window.read(HEAD_BYTES + _IDS.size, at)
    length = int.from_bytes(head[:4], "big")
    if length != SECTION_WORD:
        if length > REQUEST_LENGTH_MAX or len(head) < HEAD_BYTES + _IDS.size:
            return None
        ledger, entry, _ = _IDS.unpack_from(head, HEAD_BYTES)
        if ledger < 0 or entry < 0:
            return None
    return _item_at(window, at, end)


def _section_at(window: _Window, at: int, end: int) -> tuple[None, int] | None:
    head = window.read(SECTION_HEAD_BYTES, at)
    if len(head) < SECTION_HEAD_BYTES:
        return None
    length = SECTION_BODY_AT + int.from_bytes(head[8:12], "big")
    if length > end - at:
        return None
    try:
        parse_section_end(window.read(length, at))
    except DamagedError:
        return None
    behind = at + length
    block = min(end, behind + -behind % _BLOCK_BYTES)
    is_padded = not any(window.read(block - behind, behind))  # an earlier version wrote no padding
    return None, block if is_padded else behind


def _resume(window: _Window, at: int, end: int) -> int:
    """Where to go on behind an item that does not verify: where it ends by its length, if something verifies there and
    the length is right; otherwise at the next offset at which something may begin.

    Bytes inside a packet may look like entries, so the length counts unless it is what was damaged.
    """
    head = window.read(HEAD_BYTES, at)
    if len(head) == HEAD_BYTES:
        length, crc = _HEAD.unpack(head)
        behind = at + HEAD_BYTES + length
        if length <= REQUEST_LENGTH_MAX and behind < end and _item_behind_damage(window, behind, end) is not None:
            return _end_by_crc(window, at, behind, end, crc) or behind
    return _next_candidate(window, at + 1, end)


def _end_by_crc(window: _Window, at: int, behind: int, end: int, crc: int) -> int | None:
    """Where the packet of the item ends if its CRC is right and its length is not."""
    begin = at + HEAD_BYTES
    candidate = _next_candidate(window, begin + _IDS.size, behind)
    while candidate < behind:
        is_item = _item_behind_damage(window, candidate, end) is not None
        if is_item and crc32c(window.read(candidate - begin, begin)) == crc:
            return candidate
        candidate = _next_candidate(window, candidate + 1, behind)
    return None


def _next_candidate(window: _Window, at: int, end: int) -> int:
    """The next offset at which an item may begin: zeros are passed over, as no item begins with four of them."""
    while at < end:
        data = window.read(min(_BLOCK_BYTES, end - at), at)
        if not data:
            return end
        if data.strip(b"\0"):
            return at + max(0, len(data) - len(data.lstrip(b"\0")) - 3)
        at += max(1, len(data) - 3)
    return end
