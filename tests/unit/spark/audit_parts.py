"""Entries as an owner packs them, with one fault where a test wants it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlog.log.dedup_trailer import encode_trailer
from dlog.wire.digest import crc32c
from dlog.wire.entry import CONTROL, RECORD_SET, Codec, Record, build_record_set, encode_entry

PRODUCER = b"p" * 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The parts of one entry. sets: txid and values of each. position: of the first record, less one."""

    sets: tuple[tuple[int, tuple[bytes, ...]], ...] = ()
    position: int = 0
    unix_ms: int = 1000
    codec: Codec = Codec.NONE
    crc_shift: int = 0
    slot_shift: int = 0
    noted_shift: int = 0
    torn: bool = False  # a record set that is inconsistent, with a correct checksum

    @property
    def records(self) -> int:
        return sum(len(values) for _, values in self.sets)

    @property
    def last_txid(self) -> int:
        return self.sets[-1][0] if self.sets else 0

    def payload(self) -> bytes:
        records, noted, slot, position = list[Record](), [], 0, self.position + 1
        for txid, values in self.sets:
            body = build_record_set(values, self.codec)
            if self.torn:
                body = body[:19] + bytes([body[19] ^ 1]) + body[20:]  # the length of its first record
            crc = crc32c(body) ^ self.crc_shift
            noted.append((PRODUCER, slot, len(values) + self.noted_shift, crc, slot + self.slot_shift))
            records.append(Record(RECORD_SET, position, txid, body))
            slot += len(values)
            position += len(values)
        note = encode_trailer(self.unix_ms, -1, noted, None)
        records.append(Record(CONTROL, position - 1, self.last_txid, note))
        return b"".join(map(bytes, encode_entry(records)))


@dataclass(frozen=True, slots=True)
class Laid:
    """The entries of a segment. lengths: ledger length up to each entry, as stored in it."""

    payloads: tuple[bytes, ...]
    lengths: tuple[int, ...]
    records: int
    last_slot: int
    last_txid: int


def packed(shape: Sequence[Sequence[Sequence[bytes]]], *, txid: int = 10, unix_ms: int = 1000) -> list[Packed]:
    """Entries of sets of values, with txids, times and positions that follow each other."""
    entries, position = [], 0
    for sets in shape:
        told = []
        for values in sets:
            told.append((txid, tuple(values)))
            txid += 1
        entries.append(Packed(sets=tuple(told), position=position, unix_ms=unix_ms))
        position += entries[-1].records
        unix_ms += 1
    return entries


def lay(entries: Sequence[Packed]) -> Laid:
    payloads = tuple(entry.payload() for entry in entries)
    lengths, length = [], 0
    for payload in payloads:
        length += len(payload)
        lengths.append(length)
    last = entries[-1]
    return Laid(payloads, tuple(lengths), sum(e.records for e in entries), last.records, last.last_txid)


def with_one(entries: Sequence[Packed], number: int, **wrong: object) -> list[Packed]:
    """The same with one entry changed."""
    changed = list(entries)
    changed[number] = replace(changed[number], **wrong)  # type: ignore[arg-type]
    return changed
