"""Converts entries to Arrow: one record batch for thousands of records, column by column.

Invariants:
- work is done for a record set, not for each record: what a set shares (entry, txid, time) is stored once and repeated
  in batches; values are copied once, into their batch, as soon as their set is opened;
- values with a checksum of their producer are delivered only if it matches, unless `verify` is "none".
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlog.errors import DamagedError
from dlog.log.dedup_trailer import decode_batch_checksums, is_note
from dlog.spark.planning import Range
from dlog.wire.digest import crc32c
from dlog.wire.entry import Buffer, Record, decode_entry, open_record_set, parse_record_set

ROWS_MIN = 16384  # of a batch, unless nothing follows
BYTES_MAX = 8 << 20  # of values: a batch ends here, however few rows it has
ROOM_FIRST = 256 << 10  # buffer for a batch's values, before the size of batches is known
ALIKE_MIN = 16  # in a set with fewer records the fast path gains nothing
LENGTH_BYTES = 4  # before each record of a set
_FEW = 64  # rows a run: above that there are few runs
_UP = np.arange(2 * ROWS_MIN, dtype=np.int64)

#: every column, in order, with its Arrow type
COLUMNS: dict[str, pa.DataType] = {
    "stream": pa.string(),
    "segment": pa.int64(),
    "entry": pa.int64(),
    "slot": pa.int32(),
    "txid": pa.int64(),
    "sequence_id": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "value": pa.binary(),
}


class EqualLengthValues:
    """Values of equal length in a record set: a view of the set, each value after its length field, nothing copied."""

    __slots__ = ("_rows",)

    def __init__(self, rows: NDArray[np.uint8]) -> None:
        self._rows = rows  # each: LENGTH_BYTES and the value

    @classmethod
    def of(cls, count: int, body: memoryview) -> EqualLengthValues | None:
        """None: there are few, or their lengths differ."""
        width = len(body) // count if count >= ALIKE_MIN else 0
        if not width or width * count != len(body):
            return None
        rows = np.frombuffer(body, np.uint8).reshape(count, width)
        lengths = np.ndarray((count,), np.uint32, rows, 0, (width,))  # big-endian, compared without conversion
        expected = int.from_bytes((width - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big"), sys.byteorder)
        return cls(rows) if np.count_nonzero(lengths == expected) == count else None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, part: slice) -> EqualLengthValues:
        return EqualLengthValues(self._rows[part])

    @property
    def length(self) -> int:
        """Bytes of each value."""
        return int(self._rows.shape[1]) - LENGTH_BYTES

    @property
    def values(self) -> NDArray[np.uint8]:
        return self._rows[:, LENGTH_BYTES:]


@dataclass(frozen=True, slots=True)
class Run:
    """Records of one entry with consecutive slots, one txid and one time. position: of the first, in its segment."""

    entry: int
    slot: int
    position: int
    txid: int
    unix_ms: int
    values: list[bytes] | EqualLengthValues

    def cut(self, first_slot: int, end_slot: int) -> Run | None:
        """The records from `first_slot` up to `end_slot` (exclusive; 0: to the end); None if there are none."""
        low = max(0, first_slot - self.slot)
        high = len(self.values) if not end_slot else min(len(self.values), end_slot - self.slot)
        if low >= high:
            return None
        if low == 0 and high == len(self.values):
            return self
        return Run(self.entry, self.slot + low, self.position + low, self.txid, self.unix_ms, self.values[low:high])


def runs_of(payload: Buffer, entry: int, *, is_enveloped: bool = True, verify: str = "crc") -> list[Run]:
    """The user records of an entry. Raises DamagedError."""
    records = decode_entry(payload, expand=False, enveloped=is_enveloped)
    unix_ms, sums = _noted(records)
    runs: list[Run] = []
    for record in records:
        if not record.is_user:
            continue
        if record.is_set:
            expected = sums.get(record.slot) if verify != "none" else None
            if expected is not None and crc32c(record.payload) != expected:
                raise DamagedError(f"the producer's checksum does not match: slot={record.slot}")
            values = EqualLengthValues.of(*open_record_set(record.payload)) or parse_record_set(record.payload)
            if values:
                runs.append(Run(entry, record.slot, record.position, record.txid, unix_ms, values))
            continue
        before = runs[-1] if runs else None
        follows = before is not None and (before.txid, before.slot + len(before.values)) == (record.txid, record.slot)
        if before is not None and follows and isinstance(before.values, list):
            before.values.append(bytes(record.payload))
        else:
            runs.append(Run(entry, record.slot, record.position, record.txid, unix_ms, [bytes(record.payload)]))
    if verify == "full":
        _check_order(runs)
    return runs


def _noted(records: Sequence[Record]) -> tuple[int, dict[int, int]]:
    """Time of the entry and producers' checksums by slot, from the dedup trailer; 0 and {} without one."""
    for record in reversed(records):
        if record.is_control and is_note(record.payload):
            return decode_batch_checksums(record.payload)
    return 0, {}


def _check_order(runs: Sequence[Run]) -> None:
    for before, after in itertools.pairwise(runs):
        if after.txid < before.txid:
            raise DamagedError(f"txids go back: slot={after.slot} txid={after.txid} before={before.txid}")
        if after.position != before.position + len(before.values):
            raise DamagedError(f"positions have a gap: slot={after.slot} position={after.position}")


class Head(NamedTuple):
    """A run without its values."""

    of: Range
    entry: int
    slot: int
    position: int
    txid: int
    unix_ms: int


class Batches:
    """Collects runs into record batches of `schema`. Values are stored only if it has them."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._heads: list[Head] = []
        self._counts: list[int] = []
        self._rows = 0
        self._joined = Joined() if "value" in schema.names else None

    def add(self, of: Range, run: Run) -> pa.RecordBatch | None:
        """Add a run; returns a batch once it is large enough."""
        self._heads.append(Head(of, run.entry, run.slot, run.position, run.txid, run.unix_ms))
        self._counts.append(len(run.values))
        self._rows += len(run.values)
        if self._joined is not None:
            self._joined.add(run.values)  # now, while they are in the processor's cache
            if self._joined.size >= BYTES_MAX:
                return self.take()
        return self.take() if self._rows >= ROWS_MIN else None

    def take(self) -> pa.RecordBatch | None:
        """A batch of what is left; None if nothing is."""
        heads, self._heads = self._heads, []
        counts, self._counts = np.array(self._counts, np.int64), []
        rows, self._rows = self._rows, 0
        if not heads:
            return None
        made = []
        for field in self._schema:
            if field.name == "value":
                assert self._joined is not None, "the schema has a column value"
                column = self._joined.take(rows)
            else:
                column = _MAKERS[field.name](heads, counts, rows)
            made.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(made, schema=self._schema)


class Joined:
    """Concatenates the values of a batch. size: bytes so far."""

    def __init__(self) -> None:
        self.size = 0
        self._lengths: list[tuple[int, NDArray[np.int32] | int]] = []  # number of values; their lengths, or one for all
        self._room = ROOM_FIRST
        self._open()

    def _open(self) -> None:
        self._buffer = pa.allocate_buffer(self._room, resizable=True)
        self._bytes = np.frombuffer(self._buffer, np.uint8)
        self.size, self._lengths = 0, []

    def add(self, values: list[bytes] | EqualLengthValues) -> None:
        begin = self.size
        if isinstance(values, EqualLengthValues):
            self.size += len(values) * values.length
            self._reserve()
            self._bytes[begin : self.size].reshape(len(values), values.length)[:] = values.values
            self._lengths.append((len(values), values.length))
            return
        lengths = np.fromiter(map(len, values), np.int32, len(values))
        self.size += int(lengths.sum(dtype=np.int64))
        self._reserve()
        self._bytes[begin : self.size] = np.frombuffer(b"".join(values), np.uint8)
        self._lengths.append((len(values), lengths))

    def take(self, rows: int) -> pa.Array:
        offsets = self._offsets(rows)
        data = self._buffer.slice(0, self.size)
        self._room = max(ROOM_FIRST, self.size + self.size // 4)  # the next batch will be about as large
        self._open()
        return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), data])

    def _offsets(self, rows: int) -> NDArray[np.int32]:
        common = {lengths if isinstance(lengths, int) else -1 for _, lengths in self._lengths}
        if len(common) == 1 and (length := common.pop()) >= 0:
            return np.arange(rows + 1, dtype=np.int32) * np.int32(length)
        offsets = np.empty(rows + 1, np.int32)
        offsets[0] = at = 0
        for count, lengths in self._lengths:
            offsets[at + 1 : at + 1 + count] = lengths
            at += count
        return np.cumsum(offsets, out=offsets)

    def _reserve(self) -> None:
        if self.size > len(self._bytes):
            before = self._bytes
            self._buffer = pa.allocate_buffer(2 * self.size, resizable=True)
            self._bytes = np.frombuffer(self._buffer, np.uint8)
            self._bytes[: len(before)] = before


_Heads = list[Head]
_Counts = NDArray[np.int64]


def _spread(numbers: list[int], counts: _Counts, rows: int) -> _Counts:
    """numbers[i], counts[i] times."""
    if rows < _FEW * len(numbers):
        return np.repeat(np.array(numbers, np.int64), counts)
    spread = np.empty(rows, np.int64)  # a few long runs: filling each one is fastest
    begin = 0
    for number, count in zip(numbers, counts.tolist(), strict=True):
        spread[begin : begin + count] = number
        begin += count
    return spread


def _rising(firsts: list[int], counts: _Counts, rows: int) -> _Counts:
    """firsts[i], firsts[i] + 1, ... for each run."""
    begins = (np.cumsum(counts) - counts).tolist()
    shifts = _spread([first - begin for first, begin in zip(firsts, begins, strict=True)], counts, rows)
    shifts += _UP[:rows] if rows <= len(_UP) else np.arange(rows, dtype=np.int64)
    return shifts


def _stream(heads: _Heads, counts: _Counts, rows: int) -> pa.Array:
    names = [head.of.stream for head in heads]
    if names.count(names[0]) == len(names):
        return _named(names[0], max(rows, 2 * ROWS_MIN)).slice(0, rows)
    return pa.array(names, pa.string()).take(pa.array(np.repeat(np.arange(len(names)), counts)))


@lru_cache(maxsize=2)
def _named(name: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(name, pa.string()), rows)


def _segment(heads: _Heads, counts: _Counts, rows: int) -> pa.Array:
    return pa.array(_spread([head.of.segment for head in heads], counts, rows))


def _entry(heads: _Heads, counts: _Counts, rows: int) -> pa.Array:
    return pa.array(_spread([head.entry for head in heads], counts, rows))


def _slot(heads: _Heads, counts: _Counts, rows: int) -> pa.Array:
    return pa.array(_rising([head.slot for head in heads], counts, rows).astype(np.int32))


def _txid(heads: _Heads, counts: _Counts, rows: int) -> pa.Array:
    return pa.array(_spread([head.txid for head in heads], counts, rows))


def _sequence_id(heads: _Heads, counts: _Counts, rows: int) -> pa.Array:
    """Index in the stream, from 0, as DistributedLog counts; null where it was not counted."""
    firsts = [max(0, head.of.start_sequence_id) + head.position - 1 for head in heads]
    unknown = [head.of.start_sequence_id < 0 for head in heads]
    return pa.array(_rising(firsts, counts, rows), mask=_mask(unknown, counts))


def _timestamp(heads: _Heads, counts: _Counts, rows: int) -> pa.Array:
    times = _spread([head.unix_ms * 1000 for head in heads], counts, rows)
    return pa.array(times, mask=_mask([not head.unix_ms for head in heads], counts)).view(COLUMNS["timestamp"])


def _mask(unknown: list[bool], counts: _Counts) -> NDArray[np.bool_] | None:
    return np.repeat(np.array(unknown), counts) if any(unknown) else None


_MAKERS = {
    "stream": _stream,
    "segment": _segment,
    "entry": _entry,
    "slot": _slot,
    "txid": _txid,
    "sequence_id": _sequence_id,
    "timestamp": _timestamp,
}
