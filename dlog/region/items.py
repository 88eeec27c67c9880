"""Turns the items of a region's data topic into records, and records back into items.

Invariants:
- The records of one item are appended together, so an item is whole or not there. Only its front may be missing, where
  the front of the topic was deleted.
- A record that does not decode, or is another region's, is an error that names its offset.
"""

from __future__ import annotations

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.region.counting import (
    Batch,
    Checkpoint,
    CountingRule,
    Entry,
    Item,
    Placed,
    PlainEntry,
    RegionFence,
    TableDropped,
    TableEnd,
)
from dlog.region.topics import RecordBytes, Stored
from dlog.wire.region import RecordKind, RegionRecord, decode_record, encode_batch, encode_record

#: of an entry, at most: its key, what its value has before the payload, and what Kafka adds to a record
RECORD_OVERHEAD_BYTES = 26 + 45 + 21


def records_of(region: int, epoch: int, nonce: bytes, item: Item) -> list[RecordBytes]:
    """Encode an item. epoch, nonce: of the owner that appends it; fences and ends of tables have nonces of their own.
    Raises ValueError for a number out of range."""
    match item:
        case Batch(_, number, entries):
            rows = [(entry.table, entry.sequence, entry.payload) for entry in entries]
            return encode_batch(region, epoch, nonce, number, rows)
        case PlainEntry(Entry(table, sequence, payload)):
            record = RegionRecord(
                kind=RecordKind.ENTRY, region=region, table=table, sequence=sequence, payload=payload, version=0
            )
        case RegionFence():
            record = RegionRecord(kind=RecordKind.FENCE, region=region, epoch=item.epoch, nonce=item.nonce)
        case TableEnd(table):
            record = RegionRecord(kind=RecordKind.TABLE_END, region=region, table=table, epoch=epoch, nonce=item.nonce)
        case TableDropped(table):
            record = RegionRecord(kind=RecordKind.TABLE_DROPPED, region=region, table=table, epoch=epoch, nonce=nonce)
        case Checkpoint(snapshot):
            record = RegionRecord(kind=RecordKind.CHECKPOINT, region=region, payload=snapshot, epoch=epoch, nonce=nonce)
    return [encode_record(record)]


def decode_stored(region: int, stored: Stored) -> RegionRecord:
    """Decode a record of a topic. Raises DamagedError, UnsupportedVersionError; the message names the offset."""
    try:
        record = decode_record(stored.key, stored.value)
    except UnsupportedVersionError as error:
        raise UnsupportedVersionError(f"{error.message} offset={stored.offset}") from None
    except DamagedError as error:
        raise type(error)(f"{error.message} offset={stored.offset}") from None
    if record.region != region:
        raise DamagedError(f"a record of another region: region={record.region} offset={stored.offset}")
    return record


def rule_at(record: RegionRecord) -> CountingRule:
    """The rule in force in front of a record that is known to count, but for the tables that have ended."""
    if record.version == 0:
        return CountingRule()  # no fence lies before it
    return CountingRule(record.epoch, record.nonce, record.batch)


def describe_passed_over(placed: Placed, rule: CountingRule, following: int) -> str | None:
    """Why an entry in version 0 does not count, as one line; None for another item, or if its table has ended.

    rule, following: the rule and the table's next sequence in front of the entry.
    """
    offset, item = placed
    if not isinstance(item, PlainEntry) or item.entry.table in rule.ended:
        return None
    entry = item.entry
    why = "it lies behind a fence" if rule.nonce else f"it is not the next one: expected={following}"
    return f"a record of version 0 does not count, {why}: table={entry.table} sequence={entry.sequence} offset={offset}"


class ItemReader:
    """Assembles items from the records of a data topic, which are fed in order. offset: of the next record."""

    def __init__(self, region: int, offset: int) -> None:
        self.offset = offset
        self._region = region
        self._is_first = True  # nothing was fed: the front of a batch may be missing
        self._batch: list[RegionRecord] = []
        self._at = 0  # offset of the first record of the batch

    @property
    def is_within_batch(self) -> bool:
        """Whether a batch has begun and is not complete."""
        return bool(self._batch)

    def feed(self, stored: Stored) -> tuple[Placed | None, RegionRecord]:
        """Add the next record. Returns the item that it completes, if any, and the record itself.

        Raises DamagedError, UnsupportedVersionError for a record that cannot be used: it can be left out.
        """
        assert stored.offset >= self.offset, "records are fed in order"
        is_first, self._is_first = self._is_first, False
        is_next = stored.offset == self.offset
        self.offset = stored.offset + 1
        record = decode_stored(self._region, stored)
        if record.kind not in (RecordKind.ENTRY, RecordKind.TABLE_BEGIN):
            return (stored.offset, _single(record)), record
        if record.version == 0:
            entry = Entry(record.table, record.sequence, bytes(record.payload))
            return (stored.offset, PlainEntry(entry)), record
        batch = self._batch
        if not (batch and is_next and _follows(record, batch[-1])):
            if batch or not (record.position == 0 or is_first):
                self._batch = []
                if record.position:
                    raise DamagedError(f"a batch is not whole: batch={record.batch} offset={stored.offset}")
            batch = self._batch = []
            self._at = stored.offset
        batch.append(record)
        if record.position + 1 < record.count:
            return None, record
        self._batch = []
        entries = tuple([Entry(one.table, one.sequence, bytes(one.payload)) for one in batch])
        return (self._at, Batch(record.nonce, record.batch, entries)), record


def _follows(record: RegionRecord, before: RegionRecord) -> bool:
    """Whether a record is the next one of the same batch."""
    return (
        record.position == before.position + 1
        and record.nonce == before.nonce
        and record.batch == before.batch
        and record.count == before.count
    )


def _single(record: RegionRecord) -> Item:
    match record.kind:
        case RecordKind.FENCE:
            return RegionFence(record.nonce, record.epoch)
        case RecordKind.TABLE_END:
            return TableEnd(record.table, record.nonce)
        case RecordKind.TABLE_DROPPED:
            return TableDropped(record.table)
        case RecordKind.CHECKPOINT:
            return Checkpoint(bytes(record.payload))
    raise AssertionError(f"not a record of its own: kind={record.kind.name}")
