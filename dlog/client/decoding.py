"""Decodes entries into batches of records: skips control records, opens record sets, verifies checksums.

Invariants:
- a record set with a producer's checksum is delivered only if the checksum matches. The checksums are in the dedup
  trailer at the end of each entry (dlog/log/dedup_trailer.py); entries of Java writers have only the ledger's digest.
"""

from __future__ import annotations

from dlog.client.record import RecordBatch, dlsn_of
from dlog.errors import DamagedError
from dlog.log.dedup_trailer import decode_batch_checksums, is_note
from dlog.wire import proxy
from dlog.wire.digest import crc32c
from dlog.wire.entry import decode_entry, parse_record_set


def decode_entries(entries: proxy.Entries, incarnation: str = "") -> list[RecordBatch]:
    """The batches of one frame, in order. incarnation: of the stream. Raises DamagedError, which names segment and
    entry."""
    batches: list[RecordBatch] = []
    skip = entries.skip
    for entry, payload in enumerate(entries.payloads(), entries.first_entry):
        found = decode_one(payload, entries.segment, entry, incarnation)
        if skip:
            found = [rest for batch in found if (rest := batch.from_slot(skip)) is not None]
            skip = 0
        batches += found
    return batches


def decode_one(payload: memoryview, segment: int, entry: int, incarnation: str = "") -> list[RecordBatch]:
    """The batches of one entry. Raises DamagedError."""
    try:
        records = decode_entry(payload, expand=False)
        unix_ms, sums = 0, dict[int, int]()
        for record in reversed(records):
            if record.is_control and is_note(record.payload):
                unix_ms, sums = decode_batch_checksums(record.payload)
                break
        batches: list[RecordBatch] = []
        for record in records:
            if not record.is_user:
                continue
            if record.is_set:
                expected = sums.get(record.slot)
                if expected is not None and crc32c(record.payload) != expected:
                    raise DamagedError(f"the producer's checksum does not match: slot={record.slot}")
                payloads = parse_record_set(record.payload)
                if payloads:
                    at = dlsn_of(segment, entry, record.slot)
                    batches.append(RecordBatch(at, record.txid, unix_ms, payloads, incarnation))
            elif batches and batches[-1].txid == record.txid and batches[-1].last.slot == record.slot - 1:
                batches[-1].payloads.append(bytes(record.payload))
            else:
                at = dlsn_of(segment, entry, record.slot)
                batches.append(RecordBatch(at, record.txid, unix_ms, [bytes(record.payload)], incarnation))
    except DamagedError as error:
        raise DamagedError(f"{error.message} at segment={segment} entry={entry}") from error
    return batches
