"""Writes a segment as Parquet: its records as `spark.read.format("dlog")` shows them, in the order of the log.

Invariants:
- the file is made from what is read back of the segment's object;
- the file is read back itself: rows, range and the checksum of every column must be those that were written;
- row groups are small enough for readers to skip them by their statistics.

Keys in the footer: `dlog.stream`, `dlog.segment`, `dlog.first_dlsn`, `dlog.last_dlsn`, `dlog.first_txid`,
`dlog.last_txid`, `dlog.records`, `dlog.entries_crc32c` (of the object), `dlog.columns_crc32c`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dlog.errors import ConfigError, DamagedError
from dlog.spark.cluster_connection import Cluster
from dlog.spark.columns import COLUMNS, Batches, runs_of
from dlog.spark.jobs.offload_copy import WHOLE_S, Source, cold_store
from dlog.spark.planning import Range
from dlog.stores.cold.store import Scanned
from dlog.stores.contract import SegmentCorruptError, SegmentRef
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.stores.object_storage.port import ObjectWriter
from dlog.wire.digest import crc32c

if TYPE_CHECKING:
    from dlog.spark.cluster_connection import ClusterConnection

ROWS = 128 * 1024  # at most, of a row group
GROUP_BYTES = 64 << 20  # about, of values in a row group
WRITE_BYTES = 1 << 20
READ_AHEAD_BYTES = 4 << 20
COMPRESSIONS = ("none", "snappy", "gzip", "zstd", "lz4")
_SCHEMA = pa.schema([pa.field(name, kind, True) for name, kind in COLUMNS.items()])


def check_compression(name: str) -> str:
    """Raises ConfigError."""
    if name not in COMPRESSIONS:
        raise ConfigError(f"parquet_compression must be one of {', '.join(COMPRESSIONS)}: {name[:40]!r}")
    return name


class Sums:
    """CRC32C of each column over all rows added, independent of their division into batches."""

    def __init__(self) -> None:
        self.rows = 0
        self.first: tuple[int, int, int] | None = None
        self.last: tuple[int, int, int] | None = None
        self.txids = (-1, -1)  # of the first and the last
        self._sums: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        if self.first is None:
            self.first, self.txids = _dlsn_at(batch, 0), (_txid(batch, 0), -1)
        self.last, self.txids = _dlsn_at(batch, batch.num_rows - 1), (self.txids[0], _txid(batch, batch.num_rows - 1))
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for part, data in _canonical(column).items():
                key = f"{name}.{part}"
                self._sums[key] = crc32c(data, self._sums.get(key, 0))

    def as_text(self) -> str:
        return json.dumps(self._sums, sort_keys=True)


def write_parquet(of_cluster: ClusterConnection, ref: SegmentRef, source: Source) -> tuple[Scanned, int]:
    """Read an object and write its records; returns what was found in the object, and the size of the file.

    Raises SegmentCorruptError, DamagedError for records that cannot be read (no file is left then), StoreError,
    TimeoutError.
    """
    location = parse_root(source.parquet)
    writer = of_cluster.ask(lambda cluster: cold_store(cluster).objects.create(location))
    try:
        scanned, sums, size = _written(of_cluster, ref, source, _Sink(of_cluster, writer))
        of_cluster.ask(lambda cluster: writer.finish(), timeout_s=WHOLE_S)
    except BaseException:
        of_cluster.ask(lambda cluster: writer.abort())
        raise
    _check(of_cluster, location, sums)
    return scanned, size


def _written(of_cluster: ClusterConnection, ref: SegmentRef, source: Source, sink: _Sink) -> tuple[Scanned, Sums, int]:
    scanned, extents = of_cluster.ask(lambda cluster: cold_store(cluster).scan(ref))
    head, sums, gathered = source.head, Sums(), Batches(_SCHEMA)
    of = Range(
        stream=head.stream,
        segment=head.number,
        name=ref.name,
        store="cold",
        first=0,
        last=head.last_entry,
        start_sequence_id=head.start_sequence_id,
    )
    codec = None if source.compression == "none" else source.compression
    writer = pq.ParquetWriter(pa.PythonFile(sink, mode="w"), _SCHEMA, compression=codec, use_dictionary=["stream"])
    group = _Group(writer, sums)
    for extent in of_cluster.pump(lambda cluster: extents):
        for entry, payload in enumerate(extent.payloads, extent.first):
            if payload is None or entry < source.first_entry:
                continue
            try:
                runs = runs_of(payload, entry, is_enveloped=head.is_enveloped)
            except DamagedError as error:
                raise DamagedError(f"{error.message}: entry={entry}") from error
            for run in runs:
                cut = run.cut(source.first_slot, 0) if entry == source.first_entry else run
                batch = gathered.add(of, cut) if cut is not None else None
                if batch is not None:
                    group.add(batch)
    if scanned.damaged:
        entry, why = scanned.damaged[0]
        raise SegmentCorruptError(f"{why}: location={ref.name} entry={entry} damaged={len(scanned.damaged)}")
    rest = gathered.take()
    if rest is not None:
        group.add(rest)
    group.end()
    writer.add_key_value_metadata({key: str(value) for key, value in _keys(source, scanned, sums).items()})
    writer.close()
    sink.flush()
    return scanned, sums, sink.tell()


def _keys(source: Source, scanned: Scanned, sums: Sums) -> dict[str, Any]:
    head = source.head
    return {
        "dlog.stream": head.stream,
        "dlog.segment": head.number,
        "dlog.first_dlsn": ":".join(map(str, sums.first or ())),
        "dlog.last_dlsn": ":".join(map(str, sums.last or ())),
        "dlog.first_txid": sums.txids[0],
        "dlog.last_txid": sums.txids[1],
        "dlog.records": sums.rows,
        "dlog.entries_crc32c": scanned.entries_crc,
        "dlog.columns_crc32c": sums.as_text(),
    }


def _check(of_cluster: ClusterConnection, location: Location, wrote: Sums) -> None:
    """Read the file back. Raises SegmentCorruptError."""
    found = Sums()
    try:
        file = pq.ParquetFile(pa.PythonFile(_File(of_cluster, location), mode="r"))
        for batch in file.iter_batches(batch_size=16 * 1024):
            found.add(batch)
    except (pa.ArrowException, OSError) as error:
        raise SegmentCorruptError(f"the Parquet file cannot be read back: {error}: location={location}") from error
    if (found.rows, found.first, found.last, found.as_text()) != (wrote.rows, wrote.first, wrote.last, wrote.as_text()):
        raise SegmentCorruptError(f"the Parquet file has other rows than were written: location={location}")


class _Group:
    """Collects batches into row groups."""

    def __init__(self, writer: Any, sums: Sums) -> None:
        self._writer = writer
        self._sums = sums
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._sums.add(batch)
        while batch.num_rows:
            part = batch.slice(0, ROWS - self._rows)
            self._batches.append(part)
            self._rows += part.num_rows
            self._bytes += part.nbytes
            if self._rows == ROWS or self._bytes >= GROUP_BYTES:
                self.end()
            batch = batch.slice(part.num_rows)

    def end(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=ROWS)
        self._batches, self._rows, self._bytes = [], 0, 0


class _Sink(io.RawIOBase):
    """A file for Arrow to write, sent to the object store in pieces."""

    def __init__(self, of_cluster: ClusterConnection, writer: ObjectWriter) -> None:
        super().__init__()
        self._of_cluster = of_cluster
        self._writer = writer
        self._parts: list[bytes] = []
        self._waiting = self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._waiting += len(part)
        self._at += len(part)
        if self._waiting >= WRITE_BYTES:
            self.flush()
        return len(part)

    def flush(self) -> None:
        if self.closed or not self._waiting:
            return
        parts, self._parts, self._waiting = self._parts, [], 0
        self._of_cluster.ask(partial(_send, writer=self._writer, parts=parts), timeout_s=WHOLE_S)

    def tell(self) -> int:
        return self._at


async def _send(cluster: Cluster, *, writer: ObjectWriter, parts: Sequence[bytes]) -> None:
    await writer.write(parts)


class _File(io.RawIOBase):
    """An object for Arrow to read, with read-ahead."""

    def __init__(self, of_cluster: ClusterConnection, location: Location) -> None:
        super().__init__()
        self._of_cluster = of_cluster
        self._location = location
        self._at = 0
        self._ahead, self._begin = of_cluster.ask(self._end)
        self._size = self._begin
        self._begin -= len(self._ahead)

    async def _end(self, cluster: Cluster) -> tuple[bytes, int]:
        return await cold_store(cluster).objects.read_end(self._location, READ_AHEAD_BYTES)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        size = self._size - self._at if size < 0 else max(0, min(size, self._size - self._at))
        begin = self._at - self._begin
        if not 0 <= begin <= begin + size <= len(self._ahead):
            at, wanted = self._at, max(size, READ_AHEAD_BYTES)
            self._ahead = self._of_cluster.ask(lambda c: cold_store(c).objects.read(self._location, at, wanted))
            self._begin, begin = at, 0
        data = self._ahead[begin : begin + size]
        self._at += len(data)
        return data


def _dlsn_at(batch: pa.RecordBatch, row: int) -> tuple[int, int, int]:
    segment, entry, slot = (batch.column(batch.schema.get_field_index(n))[row].as_py() for n in _DLSN)
    return segment, entry, slot


def _txid(batch: pa.RecordBatch, row: int) -> int:
    txid: int = batch.column(batch.schema.get_field_index("txid"))[row].as_py()
    return txid


_DLSN = ("segment", "entry", "slot")


def _canonical(column: pa.Array) -> dict[str, bytes]:
    """Parts whose bytes, joined with those of adjacent rows, are equal for equal values."""
    nulls = bytes(len(column))
    if column.null_count:
        nulls = pc.is_null(column).to_numpy(zero_copy_only=False).astype(np.uint8).tobytes()
        column = column.drop_null()
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        lengths = pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int32).tobytes()
        return {"nulls": nulls, "lengths": lengths, "bytes": _joined(column)}
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return {"nulls": nulls, "numbers": column.to_numpy(zero_copy_only=False).tobytes()}


def _joined(column: pa.Array) -> bytes:
    """All values of a column of bytes without nulls, joined."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return b""
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return bytes(memoryview(data)[int(ends[0]) : int(ends[-1])])
