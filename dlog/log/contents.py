"""The contents of an entry, as far as a new owner and a seeking reader need them. Bodies of batches are not read."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.errors import DamagedError
from dlog.log.dedup_trailer import DedupTrailer, decode_time, decode_trailer, is_note
from dlog.model.ids import NO_TXID
from dlog.wire.entry import CONTROL, END_OF_STREAM, decode_entry, open_envelope, raw_records, record_set_count
from dlog.wire.stream_object import ANY_SPAN, Span

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class EntryContents:
    """Contents of one entry.

    first_slots, txids, counts: of its user records (a record set is one), in order. position: records in the segment up
    to and including this entry. last_txid, last_slot: of its last record of any kind.
    """

    first_slots: tuple[int, ...]
    txids: tuple[int, ...]
    counts: tuple[int, ...]
    position: int
    last_txid: int
    last_slot: int
    end_of_stream: bool
    note: DedupTrailer | None

    @property
    def is_control_only(self) -> bool:
        return not self.txids and not self.end_of_stream

    def slot_of_txid(self, txid: int) -> int | None:
        """Slot of the first user record whose txid is at least `txid`, if the entry has one."""
        for slot, own in zip(self.first_slots, self.txids, strict=True):
            if own >= txid:
                return slot
        return None


def read_contents(payload: Buffer, *, enveloped: bool = True) -> EntryContents:
    """Decode an entry's payload. enveloped: False for segments below format version 4. Raises DamagedError."""
    slots: list[int] = []
    txids: list[int] = []
    counts: list[int] = []
    position, last_txid, next_slot, end_of_stream = 0, int(NO_TXID), 0, False
    note: DedupTrailer | None = None
    for record in decode_entry(payload, expand=False, enveloped=enveloped):
        count = record_set_count(record.payload) if record.is_set else 1
        last_txid, next_slot = record.txid, record.slot + count
        if record.is_user:
            slots.append(record.slot)
            txids.append(record.txid)
            counts.append(count)
            position = record.position + count - 1
            continue
        position = max(position, record.position)
        end_of_stream = end_of_stream or record.is_end_of_stream
        if record.is_control and is_note(record.payload):
            note = decode_trailer(record.payload)
    if next_slot == 0:
        raise DamagedError("an entry holds at least one record")
    return EntryContents(
        tuple(slots), tuple(txids), tuple(counts), position, last_txid, next_slot - 1, end_of_stream, note
    )


def entry_span(payload: Buffer) -> Span | None:
    """The txids and times of the records in an enveloped entry; None: it has none. ANY_SPAN for a payload that cannot
    be read.

    The times are those by which SeekTarget finds records: the time of the dedup trailer, without one the txids.
    """
    txids: list[int] = []
    unix_ms: int | None = None
    try:
        for flags, _, txid, body in raw_records(open_envelope(payload)):
            if not flags & (CONTROL | END_OF_STREAM):
                txids.append(txid)
            elif flags & CONTROL and is_note(body):
                unix_ms = decode_time(body)
    except DamagedError:
        return ANY_SPAN
    if not txids:
        return None
    first, last = min(txids), max(txids)
    if unix_ms is None:
        return Span(first, last, first, last)
    return Span(first, last, unix_ms, unix_ms)
