"""Converts rows of a task to entries: by stream, in their order, in record sets of one txid each.

Invariants:
- few rows stay rows, for the driver to append; more are cut into entries as they come, and only the rows of the next
  entry are kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from dlog.errors import ConfigError, InvalidRequestError, RecordTooLargeError, TxidOutOfOrderError
from dlog.log.staging import StagedSet
from dlog.model.ids import TXID_MAX, user_stream_name
from dlog.wire.entry import RECORD_BYTES_MAX, SET_OVERHEAD, SET_RECORD_OVERHEAD, build_record_set

ENTRY_BYTES = 256 * 1024  # approximate size of an entry
SETS_MAX = 4096  # of an entry: each is named in its dedup trailer
_RECORD_BYTES_MAX = RECORD_BYTES_MAX - SET_OVERHEAD - SET_RECORD_OVERHEAD


class Row(NamedTuple):
    """A row to write. txid: None if the stream is to choose it."""

    txid: int | None
    value: bytes


def check_columns(schema: pa.Schema, *, stream: str) -> None:
    """Check that rows of this schema can be written. stream: for all rows, "" if each row names its own.

    Raises ConfigError.
    """
    kinds = {"value": (pa.binary(), pa.string()), "stream": (pa.string(),), "txid": (pa.int64(), pa.int32())}
    for field in schema:
        if field.name not in kinds:
            raise ConfigError(f"streams have no such column, choose from {', '.join(kinds)}: column={field.name[:60]}")
        if field.type not in kinds[field.name]:
            wanted = " or ".join(map(str, kinds[field.name]))
            raise ConfigError(f"column {field.name} must be {wanted}, cast it: type={field.type}")
    if schema.get_field_index("value") < 0:
        raise ConfigError("the column value, binary or string, is missing: it is what is written")
    if not stream and schema.get_field_index("stream") < 0:
        raise ConfigError("no stream is named: set option('stream', NAME), or add a column stream")


def rows_of(batch: pa.RecordBatch, stream: str) -> Iterator[tuple[str, list[Row]]]:
    """Rows of a record batch by stream, those of one stream in their order. Raises InvalidRequestError for nulls,
    RecordTooLargeError."""
    values = batch.column("value")
    if values.null_count:
        raise InvalidRequestError("a record's value is null: filter such rows, or replace null by a value")
    payloads: list[bytes] = values.cast(pa.binary()).to_pylist()
    largest = max(map(len, payloads), default=0)
    if largest > _RECORD_BYTES_MAX:
        raise RecordTooLargeError(f"a record has at most {_RECORD_BYTES_MAX} bytes, split it: bytes={largest}")
    has_txids = batch.schema.get_field_index("txid") >= 0
    txids: Sequence[int | None] = batch.column("txid").to_pylist() if has_txids else itertools.repeat(None)  # type: ignore[assignment]
    rows = [Row(txid, value) for txid, value in zip(txids, payloads, strict=False)]
    if any(row.txid is not None and not 0 <= row.txid <= TXID_MAX for row in rows if has_txids):
        raise InvalidRequestError(f"a txid must be between 0 and {TXID_MAX}")
    if stream:
        yield stream, rows
        return
    names = batch.column("stream")
    if names.null_count:
        raise InvalidRequestError("a row names no stream: filter such rows, or set option('stream', NAME)")
    by_stream: dict[str, list[Row]] = {}
    for name, row in zip(names.to_pylist(), rows, strict=True):
        by_stream.setdefault(name, []).append(row)
    for name, some in by_stream.items():
        yield user_stream_name(name), some


class Cutter:
    """Cuts rows of one stream into sets of entries. txid: for rows without one. has_own: whether any row has one."""

    def __init__(self, stream: str, txid: int) -> None:
        self.stream = stream
        self.has_own = False
        self._txid = txid
        self._last = 0
        self._rows: list[Row] = []
        self._bytes = 0

    def add(self, rows: Sequence[Row]) -> Iterator[list[StagedSet]]:
        """Full entries, after adding rows. Raises TxidOutOfOrderError if txids decrease within a partition."""
        for row in rows:
            txid = self._txid if row.txid is None else row.txid
            if txid < self._last:
                raise TxidOutOfOrderError(
                    f"txids decrease within a partition, sort it by txid: stream={self.stream} txid={txid} "
                    f"before={self._last}",
                    last=self._last,
                )
            self.has_own = self.has_own or row.txid is not None
            self._last = txid
            size = len(row.value) + SET_RECORD_OVERHEAD
            if self._rows and (self._bytes + size > ENTRY_BYTES or len(self._rows) >= SETS_MAX * 16):
                yield self.cut()
            self._rows.append(row)
            self._bytes += size

    def cut(self) -> list[StagedSet]:
        """The remaining rows as an entry; empty if there are none."""
        rows, self._rows, self._bytes = self._rows, [], 0
        grouped = itertools.groupby(rows, key=lambda row: self._txid if row.txid is None else row.txid)
        return [_set(txid, [row.value for row in some]) for txid, some in grouped]


def _set(txid: int, values: list[bytes]) -> StagedSet:
    return StagedSet(txid, len(values), build_record_set(values))


def uniform_txid(rows: Sequence[Row]) -> tuple[bool, int | None]:
    """Whether all rows have the same txid, or none has one; and the txid."""
    first = rows[0].txid
    return all(row.txid == first for row in rows), first
