"""Turns the items of a region's data topic into records, and records back into items.

Invariants:
- The records of one item are appended together, so an item is whole or not there. Only its front may be missing, where
  the front of the topic was deleted.
- A record that does not decode, or is another region's, is an error that names its offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from dlog.values import Columns
from dlog.wire.region import (
    RecordKind,
    RegionRecord,
    decode_followers,
    decode_record,
    encode_batch,
    encode_record,
)

Unusable = DamagedError | UnsupportedVersionError  # errors of a record that cannot be used

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
    """Assembles items from the records of a data topic, which are fed in order.

    offset: of the next record. end: records from there on are left out, but for those of a batch that began before.
    first: the first record that was decoded.
    """

    def __init__(self, region: int, offset: int, end: int | None = None) -> None:
        self.offset = offset
        self.first: RegionRecord | None = None
        self._region = region
        self._end = end
        self._is_begin = True  # nothing was fed: the front of a batch may be missing
        self._head: RegionRecord | None = None  # the first record of the batch that has begun and is not complete
        self._at = 0  # offset of the first record of the batch
        self._tables: list[int] = []  # of its entries, as their sequences and payloads
        self._sequences: list[int] = []
        self._payloads: list[bytes] = []

    @property
    def is_within_batch(self) -> bool:
        """Whether a batch has begun and is not complete."""
        return self._head is not None

    def feed(self, records: Sequence[Stored]) -> Iterator[Placed | Unusable]:
        """Add the next records. Returns the items that they complete, and errors for records that cannot be used: they
        are left out. `offset` is behind the last record of what was returned last."""
        offsets, keys, values = Columns.of(Stored, records).columns
        at = 0
        while at < len(records):
            head = self._head
            if head is not None:
                before = len(self._tables)
                position, last = head.position + before, at + head.count - before
                rows = decode_followers(head, position, self.offset, offsets[at:last], keys[at:last], values[at:last])
                self._add(*rows)
                decoded = len(self._tables) - before
                self.offset += decoded
                at += decoded
                if position + decoded == head.count:
                    yield self._complete(head)
                    continue
                if at == len(records):
                    return
            stored = records[at]
            at += 1
            if self._end is not None and stored.offset >= self._end and head is None:
                self.offset = max(self.offset, self._end)
                return
            try:
                placed = self._take(stored)
            except (DamagedError, UnsupportedVersionError) as error:
                yield error
                continue
            if placed is not None:
                yield placed

    def _take(self, stored: Stored) -> Placed | None:
        """Add a record that is not the next one of a batch. Returns its item, unless it begins a longer batch."""
        assert stored.offset >= self.offset, "records are fed in order"
        is_begin, self._is_begin = self._is_begin, False
        self.offset = stored.offset + 1
        record = decode_stored(self._region, stored)
        if self.first is None:
            self.first = record
        if record.kind not in (RecordKind.ENTRY, RecordKind.TABLE_BEGIN):
            return stored.offset, _single(record)
        payload = bytes(record.payload)
        if record.version == 0:
            return stored.offset, PlainEntry(Entry(record.table, record.sequence, payload))
        self._head = None  # what began before is not whole
        if record.position and not is_begin:
            raise DamagedError(f"a batch is not whole: batch={record.batch} offset={stored.offset}")
        self._at = stored.offset
        self._tables, self._sequences, self._payloads = [], [], []
        self._add((record.table,), (record.sequence,), (payload,))
        if record.position + 1 < record.count:
            self._head = record
            return None
        return self._complete(record)

    def _add(self, tables: Sequence[int], sequences: Sequence[int], payloads: Sequence[bytes]) -> None:
        """Add entries to the batch."""
        self._tables += tables
        self._sequences += sequences
        self._payloads += payloads

    def _complete(self, head: RegionRecord) -> Placed:
        entries = Columns(Entry, (self._tables, self._sequences, self._payloads))
        self._head, self._tables, self._sequences, self._payloads = None, [], [], []
        return self._at, Batch(head.nonce, head.batch, entries)


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
