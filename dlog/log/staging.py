"""Packs the entries of a stage: a segment that a task writes before the stream's owner imports it.

Invariants:
- entries are as an owner packs them (packing.py), so readers see no difference; only the dedup trailer names no
  snapshot, which marks that the segment holds no producer table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlog.log.dedup_trailer import encode_trailer
from dlog.model.ids import NO_ENTRY
from dlog.wire.digest import crc32c
from dlog.wire.entry import CONTROL, RECORD_SET, Record, encode_entry

Buffer = bytes | bytearray | memoryview


class StagedSet(NamedTuple):
    """A record set with one txid."""

    txid: int
    records: int
    body: Buffer


class StagePacker:
    """Packs the entries of one segment, in order. producer: the producer id in its trailers, 16 bytes. position:
    records so far."""

    def __init__(self, producer: bytes) -> None:
        self.position = 0
        self._producer = producer

    def entry(self, sets: Sequence[StagedSet], unix_ms: int) -> tuple[Buffer, ...]:
        """The parts of the next entry. Txids may not decrease within or between entries. unix_ms: when its records were
        taken."""
        records: list[Record] = []
        noted: list[tuple[bytes, int, int, int, int]] = []
        slot = 0
        for txid, count, body in sets:
            records.append(Record(RECORD_SET, self.position + 1, txid, body))
            noted.append((self._producer, self.position, count, crc32c(body), slot))
            slot += count
            self.position += count
        note = encode_trailer(unix_ms, NO_ENTRY, noted, None)
        records.append(Record(CONTROL, self.position, sets[-1].txid, note))
        return encode_entry(records)
