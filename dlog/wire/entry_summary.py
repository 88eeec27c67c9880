"""The summary of a range of entries on one bookie: how many there are, and a chained CRC32C over ids and contents.

    chain = CRC32C over (entry i64 | length i64 | packet bytes u32 | content u32) of each entry, in order of id

`length` is that of the entry's head. `content` is computed from the digest, without the payload: the digest of a copy
covers the LAC, which recovery and re-replication change, and the CRC of a packet is the exclusive or of the CRC of its
payload and the CRC of its head, each in its place. So `content` is equal for all copies of an entry. An HMAC cannot be
taken apart, and a DUMMY has nothing: their content is 0, and only ids and lengths are compared.

Nothing is verified: a payload that changed on disk beside its digest is found by reading it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dlog.model.ledger import DigestType
from dlog.wire.digest import ENTRY_HEAD, crc32c

HEAD_BYTES_MAX = ENTRY_HEAD.size + 8  # of a packet, that a summary needs
_CRC_AT = {DigestType.CRC32C: ENTRY_HEAD.size, DigestType.CRC32: ENTRY_HEAD.size + 4}  # of its 4 low bytes
_ROW = struct.Struct(">qqII")
_CRC = struct.Struct(">I")
_ZEROS = bytes(64 * 1024)


class EntryOutline(NamedTuple):
    """An entry as its summary needs it: the packet's first HEAD_BYTES_MAX bytes, or all of a shorter packet, and the
    packet's length."""

    entry: int
    head: bytes
    length: int


class Summary(NamedTuple):
    """How many entries a range has, and their chain; 0 of none."""

    entries: int
    chain: int


def summarize(outlines: Iterable[EntryOutline], digest: DigestType) -> Summary:
    """The summary of entries, given in order of id."""
    entries = chain = 0
    for entry, head, length in outlines:
        entries += 1
        accumulated = ENTRY_HEAD.unpack_from(head)[3] if len(head) >= ENTRY_HEAD.size else -1
        chain = crc32c(_ROW.pack(entry, accumulated, length, content_sum(head, length, digest)), chain)
    return Summary(entries, chain)


def content_sum(head: bytes, length: int, digest: DigestType) -> int:
    """What the digest in a packet's head says of its payload alone. length: of the packet. A packet that is too short
    for its digest has 0."""
    at = _CRC_AT.get(digest)
    if at is None or len(head) < at + _CRC.size:
        return 0
    (stored,) = _CRC.unpack_from(head, at)
    computed = crc32c if digest is DigestType.CRC32C else zlib.crc32
    crc = computed(head[: ENTRY_HEAD.size])
    for zeros in _zeros(length - at - _CRC.size):
        crc = computed(zeros, crc)
    return int(stored ^ crc)


def _zeros(size: int) -> Iterator[bytes]:
    """`size` zero bytes, in pieces."""
    for _ in range(size // len(_ZEROS)):
        yield _ZEROS
    yield _ZEROS[: size % len(_ZEROS)]
