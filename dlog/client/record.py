"""What a reader delivers: records, and batches of them that cost nothing until somebody looks inside.

Source of the entry format: DistributedLog's LogRecord and LogRecordSet; of the note that follows the batches of an
entry: dlog/log/note.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat
from typing import NamedTuple

from dlog.model.dlsn import DLSN
from dlog.model.ids import EntryId, SegmentNumber
from dlog.values import value


class Record(NamedTuple):
    """One record as it was appended."""

    dlsn: DLSN
    txid: int
    payload: bytes
    unix_ms: int  # when its owner took it; 0 where the writer did not say (then txid often is a time)


@value
class RecordBatch:
    """Records with consecutive slots of one entry and one txid, as one producer sent them. Never empty."""

    dlsn: DLSN  # of the first record
    txid: int
    unix_ms: int
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Record]:
        segment, entry, slot = self.dlsn
        new = tuple.__new__
        places = map(new, repeat(DLSN), zip(repeat(segment), repeat(entry), count(slot)))
        return map(new, repeat(Record), zip(places, repeat(self.txid), self.payloads, repeat(self.unix_ms)))

    @property
    def last(self) -> DLSN:
        """Place of the last record."""
        return self.dlsn.next_slot(len(self.payloads) - 1)

    def from_slot(self, slot: int) -> RecordBatch | None:
        """What remains from this slot of the entry on, None if nothing."""
        skip = slot - self.dlsn.slot
        if skip <= 0:
            return self
        if skip >= len(self.payloads):
            return None
        return RecordBatch(self.dlsn.next_slot(skip), self.txid, self.unix_ms, self.payloads[skip:])

    def first_n(self, n: int) -> RecordBatch:
        """The first `n` records, n at least 1."""
        return self if n >= len(self.payloads) else RecordBatch(self.dlsn, self.txid, self.unix_ms, self.payloads[:n])


def place(segment: int, entry: int, slot: int) -> DLSN:
    """A DLSN from wire numbers."""
    return DLSN(SegmentNumber(segment), EntryId(entry), slot)
