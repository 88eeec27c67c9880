"""Staging: the entries of a segment that is written before it is in any list, by whoever has it taken in later.

The law of this room: an entry is as an owner packs it (packing.py), so that no reader can tell where it came from; only
its note says that no table of producers lies here, by naming no snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlog.log.note import encode_note
from dlog.model.ids import NO_ENTRY
from dlog.wire.digest import crc32c
from dlog.wire.entry import CONTROL, RECORD_SET, Record, encode_entry

Buffer = bytes | bytearray | memoryview


class StagedSet(NamedTuple):
    """A record set of so many records under one txid."""

    txid: int
    records: int
    body: Buffer


class StagePacker:
    """Packs the entries of one segment, from its first on. producer: what its notes name, 16 bytes. position: records
    so far."""

    def __init__(self, producer: bytes) -> None:
        self.position = 0
        self._producer = producer

    def entry(self, sets: Sequence[StagedSet], unix_ms: int) -> tuple[Buffer, ...]:
        """The parts of the next entry; txids may not fall, neither here nor from one entry to the next. unix_ms: when
        its records were taken."""
        records: list[Record] = []
        noted: list[tuple[bytes, int, int, int, int]] = []
        slot = 0
        for txid, count, body in sets:
            records.append(Record(RECORD_SET, self.position + 1, txid, body))
            noted.append((self._producer, self.position, count, crc32c(body), slot))
            slot += count
            self.position += count
        note = encode_note(unix_ms, NO_ENTRY, noted, None)
        records.append(Record(CONTROL, self.position, sets[-1].txid, note))
        return encode_entry(records)
