"""Records and record batches as a reader delivers them; a batch creates its Record objects only when iterated.

Source of the entry format: DistributedLog's LogRecord and LogRecordSet; of the dedup trailer at the end of an entry:
dlog/log/dedup_trailer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat
from typing import NamedTuple

from dlog.client.position import Position, after_record
from dlog.model.dlsn import DLSN
from dlog.model.ids import EntryId, SegmentNumber
from dlog.values import value


class Record(NamedTuple):
    """One record as it was appended."""

    dlsn: DLSN
    txid: int
    payload: bytes
    unix_ms: int  # when the owner received it; 0 if the writer did not record it (then txid is often a time)
    incarnation: str = ""  # incarnation id of its stream (a re-created stream has another); "" if it has none

    @property
    def position(self) -> Position:
        """The position of this record: save its `str`, and resume behind it with `read(after=...)`. If the stream was
        re-created meanwhile, that read raises StreamRecreatedError."""
        return after_record(self.dlsn, self.incarnation)


@value
class RecordBatch:
    """Records in consecutive slots of one entry, with one txid, from one producer. Never empty."""

    dlsn: DLSN  # of the first record
    txid: int
    unix_ms: int
    payloads: list[bytes]
    incarnation: str = ""  # incarnation id of the stream

    @property
    def position(self) -> Position:
        """The position after the last record."""
        return after_record(self.last, self.incarnation)

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Record]:
        segment, entry, slot = self.dlsn
        new = tuple.__new__
        dlsns = map(new, repeat(DLSN), zip(repeat(segment), repeat(entry), count(slot)))
        rest = repeat(self.txid), self.payloads, repeat(self.unix_ms), repeat(self.incarnation)
        return map(new, repeat(Record), zip(dlsns, *rest, strict=False))

    @property
    def last(self) -> DLSN:
        """DLSN of the last record."""
        return self.dlsn.next_slot(len(self.payloads) - 1)

    def from_slot(self, slot: int) -> RecordBatch | None:
        """The records from this slot of the entry on, or None if there are none."""
        skip = slot - self.dlsn.slot
        if skip <= 0:
            return self
        if skip >= len(self.payloads):
            return None
        return RecordBatch(self.dlsn.next_slot(skip), self.txid, self.unix_ms, self.payloads[skip:], self.incarnation)

    def first_n(self, n: int) -> RecordBatch:
        """The first `n` records, n at least 1."""
        if n >= len(self.payloads):
            return self
        return RecordBatch(self.dlsn, self.txid, self.unix_ms, self.payloads[:n], self.incarnation)


def dlsn_of(segment: int, entry: int, slot: int) -> DLSN:
    """A DLSN from wire numbers."""
    return DLSN(SegmentNumber(segment), EntryId(entry), slot)
