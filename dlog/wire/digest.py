"""Entry packets and LAC packets as a bookie stores them, and their digest.

    entry packet: ledger i64 | entry i64 | LAC i64 | length i64 | digest | payload
    LAC packet:   ledger i64 | LAC i64 | digest

`length` counts the payload bytes of the ledger up to and including the entry. `LAC` is the writer's at the start of the
add; in re-replicated copies it may be the entry's own id or above. The digest covers everything but itself.
Source: BookKeeper, DigestManager.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fastcrc import crc32 as _fastcrc

from dlog.errors import DamagedError
from dlog.model.ids import EntryId, LedgerId
from dlog.model.ledger import DigestType

Buffer = bytes | bytearray | memoryview

ENTRY_HEAD = struct.Struct(">qqqq")
LAC_HEAD = struct.Struct(">qq")
#: most bytes before the payload of an entry packet

#: crc32c(data, start=0): CRC32C (Castagnoli) of `data`; `start`: CRC of the bytes before it
crc32c: Callable[..., int] = _fastcrc.iscsi


class DigestMismatch(DamagedError):
    """The bytes are not what was written for this ledger, entry and password: this replica must not be used."""


class Entry(NamedTuple):
    """A verified entry packet. `payload` is a view of the packet."""

    entry_id: EntryId
    lac: EntryId
    length: int
    payload: memoryview


def master_key(password: bytes) -> bytes:
    """The 20 bytes that a bookie requires for adds and fences."""
    return hashlib.sha1(b"ledger" + password).digest()


class Digest:
    """Packs and verifies the packets of one ledger."""

    __slots__ = ("_mac_key", "_sum", "ledger_id", "master_key", "size", "type")

    def __init__(self, ledger_id: LedgerId | int, type: DigestType, password: bytes = b"") -> None:
        self.ledger_id = LedgerId(ledger_id)
        self.type = type
        self.master_key = master_key(password)
        self._mac_key = hashlib.sha1(b"mac" + password).digest()
        self._sum: Callable[[Buffer, Sequence[Buffer]], bytes] = {
            DigestType.CRC32: _sum_crc32,
            DigestType.HMAC: self._sum_hmac,
            DigestType.CRC32C: _sum_crc32c,
            DigestType.DUMMY: _sum_nothing,
        }[type]
        self.size = {DigestType.CRC32: 8, DigestType.HMAC: 20, DigestType.CRC32C: 4, DigestType.DUMMY: 0}[type]

    def pack(self, entry: int, lac: int, length: int, parts: Sequence[Buffer]) -> tuple[Buffer, ...]:
        """The packet of an entry: its head with the digest, then the payload's parts, not copied.

        length: payload bytes of the ledger up to and including this entry.
        """
        head = ENTRY_HEAD.pack(self.ledger_id, entry, lac, length)
        return (head + self._sum(head, parts), *parts)

    def verify(self, packet: Buffer, entry: int | None = None) -> Entry:
        """Open a packet. entry: the requested one; None or -1 accepts any entry of the ledger.

        Raises DigestMismatch if the packet is short, of another ledger or entry, or its digest is wrong.
        """
        view = memoryview(packet)
        start = ENTRY_HEAD.size + self.size
        if len(view) < start:
            raise DigestMismatch(f"packet too short: ledger={self.ledger_id} entry={entry} bytes={len(view)}")
        ledger, found, lac, length = ENTRY_HEAD.unpack_from(view)
        if ledger != self.ledger_id or (found != entry and entry is not None and entry != -1):
            raise DigestMismatch(
                f"packet of another entry: ledger={self.ledger_id} entry={entry} found={ledger}:{found}"
            )
        payload = view[start:]
        if not hmac.compare_digest(self._sum(view[: ENTRY_HEAD.size], (payload,)), view[ENTRY_HEAD.size : start]):
            raise DigestMismatch(f"digest does not match: ledger={ledger} entry={found} type={self.type.name}")
        return Entry(EntryId(found), EntryId(lac), length, payload)

    def pack_lac(self, lac: int) -> bytes:
        """An explicit LAC, as in WRITE_LAC."""
        head = LAC_HEAD.pack(self.ledger_id, lac)
        return head + self._sum(head, ())

    def verify_lac(self, packet: Buffer) -> EntryId:
        """Open an explicit LAC. Raises DigestMismatch."""
        view = memoryview(packet)
        if len(view) != LAC_HEAD.size + self.size:
            raise DigestMismatch(f"LAC packet of a wrong size: ledger={self.ledger_id} bytes={len(view)}")
        ledger, lac = LAC_HEAD.unpack_from(view)
        if ledger != self.ledger_id:
            raise DigestMismatch(f"LAC packet of another ledger: ledger={self.ledger_id} found={ledger}")
        if not hmac.compare_digest(self._sum(view[: LAC_HEAD.size], ()), view[LAC_HEAD.size :]):
            raise DigestMismatch(f"digest of the LAC does not match: ledger={ledger} type={self.type.name}")
        return EntryId(lac)

    def _sum_hmac(self, head: Buffer, parts: Sequence[Buffer]) -> bytes:
        mac = hmac.new(self._mac_key, head, hashlib.sha1)
        for part in parts:
            mac.update(part)
        return mac.digest()


def is_same_entry(held: Buffer, offered: Buffer, *, recovery: bool) -> bool:
    """Whether two packets are copies of one entry: ledger, entry id, length and payload are equal. Recovery and
    re-replication pack an entry again with another LAC, so LAC and digest may differ.

    A bookie does not know the type of the digest. If the packets verify by CRC32C or CRC32, that shows where the
    payload begins. An HMAC cannot be distinguished from a payload without a digest: then an add must be equal in all
    bytes but the LAC; for `recovery` the 20 bytes in which an HMAC would be are not compared either.
    """
    one, other = bytes(held), bytes(offered)  # views are compared byte by byte, which is slow
    if one == other:
        return True
    head = ENTRY_HEAD.size
    if len(one) != len(other) or len(one) < head or one[:16] != other[:16] or one[24:head] != other[24:head]:
        return False
    if one[head:] == other[head:]:
        return True
    for size, digest in ((4, _sum_crc32c), (8, _sum_crc32)):
        body = head + size
        if digest(one[:head], (one[body:],)) == one[head:body]:
            return digest(other[:head], (other[body:],)) == other[head:body] and one[body:] == other[body:]
    body = head + 20
    return recovery and len(one) >= body and one[body:] == other[body:]


def _sum_crc32(head: Buffer, parts: Sequence[Buffer]) -> bytes:
    crc = zlib.crc32(head)
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc.to_bytes(8, "big")


def _sum_crc32c(head: Buffer, parts: Sequence[Buffer]) -> bytes:
    crc = crc32c(head)
    for part in parts:
        crc = crc32c(part, crc)
    return crc.to_bytes(4, "big")


def _sum_nothing(head: Buffer, parts: Sequence[Buffer]) -> bytes:
    return b""
