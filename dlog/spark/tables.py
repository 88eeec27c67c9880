"""Metadata of streams, segments and entries as rows: for plans, counts and dashboards that read no record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from dlog.errors import DamagedError
from dlog.log.contents import read_contents
from dlog.model.segment import Truncation
from dlog.spark.cluster_connection import Cluster, reach
from dlog.spark.options import SourceOptions
from dlog.spark.planning import Range
from dlog.spark.plans import check_named
from dlog.spark.reading import Damaged, extents
from dlog.spark.views import StreamViewer
from dlog.wire.digest import crc32c

_TIME = pa.timestamp("us", tz="UTC")
_TEXT, _NUMBER = pa.string(), pa.int64()

#: every table and its columns
TABLES: dict[str, dict[str, pa.DataType]] = {
    "streams": {
        "stream": _TEXT,
        "incarnation": _TEXT,
        "owner": _TEXT,
        "epoch": _NUMBER,
        "is_sealed": _TEXT,
        "store": _TEXT,
        "segments": _NUMBER,
        "first_segment": _NUMBER,
        "last_segment": _NUMBER,
        "entries": _NUMBER,
        "records": _NUMBER,
        "bytes": _NUMBER,
        "retention_s": _NUMBER,
    },
    "segments": {
        "stream": _TEXT,
        "segment": _NUMBER,
        "state": _TEXT,
        "store": _TEXT,
        "location": _TEXT,
        "first_entry": _NUMBER,
        "last_entry": _NUMBER,
        "records": _NUMBER,
        "bytes": _NUMBER,
        "first_txid": _NUMBER,
        "last_txid": _NUMBER,
        "completed": _TIME,
    },
    "entries": {
        "stream": _TEXT,
        "segment": _NUMBER,
        "entry": _NUMBER,
        "bytes": _NUMBER,
        "records": _NUMBER,
        "first_txid": _NUMBER,
        "last_txid": _NUMBER,
        "timestamp": _TIME,
        "crc32c": _NUMBER,
    },
    "lag": {
        "stream": _TEXT,
        "segment": _NUMBER,
        "entry": _NUMBER,
        "records": _NUMBER,
        "bytes": _NUMBER,
        "owner": _TEXT,
        "epoch": _NUMBER,
    },
}


async def rows(cluster: Cluster, *, options: SourceOptions) -> dict[str, list[Any]]:
    """The columns of a table other than `entries`. lag: the tail of each stream."""
    columns: dict[str, list[Any]] = {name: [] for name in TABLES[options.metadata]}
    found = await StreamViewer().look(cluster, options)
    check_named(options, found)
    for name, seen in found.items():
        value, view = seen.value, seen.view
        if options.metadata == "segments":
            for segment in view.segments:
                kept = value.segment(segment.number)
                partly = kept is not None and kept.truncation is Truncation.PARTIAL
                state = ("truncated in part" if partly else "completed") if segment.is_completed else "in progress"
                _add(
                    columns,
                    *(name, segment.number, state, segment.store, segment.name, segment.first, segment.last),
                    *(segment.records, segment.bytes, segment.first_txid, _known(segment.last_txid)),
                    segment.completed_unix_ms * 1000 or None,
                )
            continue
        entries = sum(segment.entries for segment in view.segments)
        records = sum(segment.records for segment in view.segments)
        size = sum(segment.bytes for segment in view.segments)
        owner = None if value.owner.released else value.owner.address or None
        if options.metadata == "streams":
            numbers = [segment.number for segment in view.segments]
            _add(
                columns,
                *(
                    name,
                    value.incarnation,
                    owner,
                    value.owner.epoch,
                    str(value.is_sealed).lower(),
                    value.settings.store,
                ),
                *(len(numbers), min(numbers, default=None), max(numbers, default=None)),
                *(entries, records, size, int(value.settings.retention_s)),
            )
        else:
            _add(columns, name, view.latest.segment, view.latest.entry, records, size, owner, value.owner.epoch)
    return columns


def entries(ranges: Sequence[Range], options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the table `entries`. Raises DamagedError."""
    of_cluster = reach(options.zookeeper, options.namespace, options.stores)
    for of, first, payloads in of_cluster.pump(lambda cluster: extents(cluster, ranges, options)):
        columns: dict[str, list[Any]] = {name: [] for name in TABLES["entries"]}
        for entry, payload in enumerate(payloads, first):
            if isinstance(payload, Damaged):
                continue
            try:
                holds = read_contents(payload, enveloped=of.is_enveloped)
            except DamagedError as error:
                raise DamagedError(f"{error.message}: stream={of.stream} segment={of.segment} entry={entry}") from error
            _add(
                columns,
                *(of.stream, of.segment, entry, len(payload), sum(holds.counts)),
                *(holds.txids[0] if holds.txids else None, holds.txids[-1] if holds.txids else None),
                holds.note.unix_ms * 1000 if holds.note is not None else None,
                crc32c(payload),
            )
        made = [pa.array(columns[field.name], field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(made, schema=schema)


def _add(columns: dict[str, list[Any]], *values: Any) -> None:
    for column, value in zip(columns.values(), values, strict=True):
        column.append(value)


def _known(txid: int) -> int | None:
    return txid if txid >= 0 else None
