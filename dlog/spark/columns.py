"""Entries into Arrow: one record batch for thousands of records, column by column.

The law of this file: nothing is done a record that can be done a record set: what a set shares (entry, txid, time) is
kept once and spread when a batch is made; values are joined once. Bytes that their producer checksummed are handed on
only if the checksum still holds, unless nobody wants to know.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlog.errors import DamagedError
from dlog.log.note import decode_note, is_note
from dlog.spark.planning import Range
from dlog.wire.digest import crc32c
from dlog.wire.entry import Record, decode_entry, parse_record_set

ROWS_MIN = 8192  # of a batch, while there are more
BYTES_MAX = 8 << 20  # of values: a batch is ended beyond it, however few rows it has

#: every column there is, in order, as Arrow has it
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


@dataclass(frozen=True, slots=True)
class Run:
    """Records of one entry with consecutive slots, one txid and one time. position: of the first in its segment."""

    entry: int
    slot: int
    position: int
    txid: int
    unix_ms: int
    values: list[bytes]

    def cut(self, first_slot: int, end_slot: int) -> Run | None:
        """What lies from `first_slot` up to before `end_slot` (0: to the end); None if nothing."""
        low = max(0, first_slot - self.slot)
        high = len(self.values) if not end_slot else min(len(self.values), end_slot - self.slot)
        if low >= high:
            return None
        if low == 0 and high == len(self.values):
            return self
        return Run(self.entry, self.slot + low, self.position + low, self.txid, self.unix_ms, self.values[low:high])


def runs_of(payload: bytes, entry: int, *, is_enveloped: bool = True, verify: str = "crc") -> list[Run]:
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
            values = parse_record_set(record.payload)
            if values:
                runs.append(Run(entry, record.slot, record.position, record.txid, unix_ms, values))
        elif runs and runs[-1].txid == record.txid and runs[-1].slot + len(runs[-1].values) == record.slot:
            runs[-1].values.append(bytes(record.payload))
        else:
            runs.append(Run(entry, record.slot, record.position, record.txid, unix_ms, [bytes(record.payload)]))
    if verify == "full":
        _check_order(runs)
    return runs


def _noted(records: Sequence[Record]) -> tuple[int, dict[int, int]]:
    """When the owner took them, and the producers' checksums by slot; nothing of a writer that does not say."""
    for record in reversed(records):
        if record.is_control and is_note(record.payload):
            note = decode_note(record.payload)
            return note.unix_ms, {batch.slot: batch.crc for batch in note.batches}
    return 0, {}


def _check_order(runs: Sequence[Run]) -> None:
    for before, after in itertools.pairwise(runs):
        if after.txid < before.txid:
            raise DamagedError(f"txids go back: slot={after.slot} txid={after.txid} before={before.txid}")
        if after.position != before.position + len(before.values):
            raise DamagedError(f"positions have a gap: slot={after.slot} position={after.position}")


class Batches:
    """Gathers runs and makes record batches of `schema`'s columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._runs: list[tuple[Range, Run]] = []
        self._rows = self._bytes = 0

    def add(self, of: Range, run: Run) -> pa.RecordBatch | None:
        """A batch, if it is large enough with this."""
        self._runs.append((of, run))
        self._rows += len(run.values)
        self._bytes += sum(map(len, run.values))
        return self.take() if self._rows >= ROWS_MIN or self._bytes >= BYTES_MAX else None

    def take(self) -> pa.RecordBatch | None:
        """A batch of what is left; None: nothing."""
        runs, self._runs = self._runs, []
        rows, self._rows, self._bytes = self._rows, 0, 0
        if not runs:
            return None
        counts = np.fromiter((len(run.values) for _, run in runs), np.int64, len(runs))
        made = [_MAKERS[field.name](runs, counts, rows).cast(field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(made, schema=self._schema)


_Runs = list[tuple[Range, Run]]
_Counts = NDArray[np.int64]


def _spread(numbers: list[int], counts: _Counts) -> _Counts:
    return np.repeat(np.array(numbers, np.int64), counts)


def _rising(firsts: list[int], counts: _Counts, rows: int) -> _Counts:
    """firsts[i], firsts[i] + 1, ... for each run."""
    begins = np.cumsum(counts) - counts
    shifts: _Counts = np.repeat(np.array(firsts, np.int64) - begins, counts)
    return np.arange(rows, dtype=np.int64) + shifts


def _stream(runs: _Runs, counts: _Counts, rows: int) -> pa.Array:
    names = [of.stream for of, _ in runs]
    if len(set(names)) == 1:
        return pa.repeat(pa.scalar(names[0], pa.string()), rows)
    return pa.array(names, pa.string()).take(pa.array(np.repeat(np.arange(len(names)), counts)))


def _segment(runs: _Runs, counts: _Counts, rows: int) -> pa.Array:
    return pa.array(_spread([of.segment for of, _ in runs], counts))


def _entry(runs: _Runs, counts: _Counts, rows: int) -> pa.Array:
    return pa.array(_spread([run.entry for _, run in runs], counts))


def _slot(runs: _Runs, counts: _Counts, rows: int) -> pa.Array:
    return pa.array(_rising([run.slot for _, run in runs], counts, rows).astype(np.int32))


def _txid(runs: _Runs, counts: _Counts, rows: int) -> pa.Array:
    return pa.array(_spread([run.txid for _, run in runs], counts))


def _sequence_id(runs: _Runs, counts: _Counts, rows: int) -> pa.Array:
    """Position in the stream, from 0, as DistributedLog counts; null where it was not counted."""
    firsts = [max(0, of.start_sequence_id) + run.position - 1 for of, run in runs]
    unknown = [of.start_sequence_id < 0 for of, _ in runs]
    mask = _spread([int(no) for no in unknown], counts).astype(bool) if any(unknown) else None
    return pa.array(_rising(firsts, counts, rows), mask=mask)


def _timestamp(runs: _Runs, counts: _Counts, rows: int) -> pa.Array:
    times = _spread([run.unix_ms * 1000 for _, run in runs], counts)
    unknown = [not run.unix_ms for _, run in runs]
    mask = _spread([int(no) for no in unknown], counts).astype(bool) if any(unknown) else None
    return pa.array(times, mask=mask).cast(COLUMNS["timestamp"])


def _value(runs: _Runs, counts: _Counts, rows: int) -> pa.Array:
    values = [value for _, run in runs for value in run.values] if len(runs) > 1 else runs[0][1].values
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, rows), out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))])


_MAKERS = {
    "stream": _stream,
    "segment": _segment,
    "entry": _entry,
    "slot": _slot,
    "txid": _txid,
    "sequence_id": _sequence_id,
    "timestamp": _timestamp,
    "value": _value,
}
