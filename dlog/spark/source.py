"""Implements `spark.read.format("dlog")`: one stream, or several, as a DataFrame.

Invariants:
- a plan is made once, on the driver, and never changes;
- tasks read its ranges directly from the segment store, never through a proxy.

Only what Spark's interfaces require is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dlog.errors import ConfigError
from dlog.spark import tables
from dlog.spark.columns import COLUMNS
from dlog.spark.options import SourceOptions, parse
from dlog.spark.plans import ask, plan_batch, tasks
from dlog.spark.pruning import Pruning, pruning_of
from dlog.spark.reading import batches
from dlog.spark.sink import BatchWriter, StreamWriter
from dlog.spark.sink_options import SinkOptions, parse_sink
from dlog.spark.sink_rows import check_columns
from dlog.spark.source_partitions import Rows, Task
from dlog.spark.streaming import StreamsStreamReader

_SPARK_TYPES: dict[pa.DataType, DataType] = {
    pa.string(): StringType(),
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.binary(): BinaryType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
}


def spark_schema(columns: dict[str, pa.DataType]) -> StructType:
    """A schema of all these columns, nullable."""
    return StructType([StructField(name, _SPARK_TYPES[kind], True) for name, kind in columns.items()])


def arrow_schema(asked: StructType, columns: dict[str, pa.DataType]) -> pa.Schema:
    """The Arrow schema for a requested Spark schema: any of the columns, in any order.

    Raises ConfigError for an unknown column, or one of another type.
    """
    fields = []
    for field in asked.fields:
        kind = columns.get(field.name)
        if kind is None:
            raise ConfigError(f"no such column, choose from {', '.join(columns)}: column={field.name[:60]}")
        if field.dataType != _SPARK_TYPES[kind]:
            wanted, given = _SPARK_TYPES[kind].simpleString(), field.dataType.simpleString()
            raise ConfigError(f"wrong type of a column: column={field.name} expected={wanted} given={given}")
        fields.append(pa.field(field.name, kind, field.nullable))
    return pa.schema(fields)


class DlogDataSource(DataSource):
    """Data source: streams of one namespace. Options: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "dlog"

    def schema(self) -> StructType:
        metadata = self.options.get("metadata", "").lower()
        return spark_schema(tables.TABLES.get(metadata, COLUMNS))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse(self.options, streaming=False)
        if options.metadata:
            return TableReader(options, arrow_schema(schema, tables.TABLES[options.metadata]))
        wanted = arrow_schema(schema, COLUMNS)
        return PruningReader(options, wanted) if options.pushdown else StreamsReader(options, wanted)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise ConfigError(
                "mode overwrite is not supported: use mode('append'); truncate or delete the stream first"
            )
        return BatchWriter(self._sink(schema, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        if overwrite:
            raise ConfigError("outputMode complete is not supported: use outputMode('append') or outputMode('update')")
        return StreamWriter(self._sink(schema, streaming=True))

    def _sink(self, schema: StructType, *, streaming: bool) -> SinkOptions:
        options = parse_sink(self.options, streaming=streaming)
        check_columns(to_arrow_schema(schema), stream=options.stream)
        return options

    def streamReader(self, schema: StructType) -> StreamsStreamReader:
        return StreamsStreamReader(parse(self.options, streaming=True), arrow_schema(schema, COLUMNS))


class StreamsReader(DataSourceReader):
    """Reads records. It has no pushFilters: Spark refuses a source that has it, unless the session allows pushing."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._pruning = Pruning()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        return tasks(options, ask(options, partial(plan_batch, options=options, pruning=self._pruning)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """partition: a Task; for an empty plan Spark passes a plain InputPartition."""
        return batches(partition.ranges if isinstance(partition, Task) else (), self._options, self._schema)


class PruningReader(StreamsReader):
    """Omits segments that filters exclude. It returns every filter, so that Spark applies it to the rows."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._pruning = pruning_of(filters)
        return filters


class TableReader(DataSourceReader):
    """Reads metadata, as rows."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        if options.metadata == "entries":
            return StreamsReader(options, self._schema).partitions()
        return [Rows(ask(options, partial(tables.rows, options=options)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Task):
            yield from tables.entries(partition.ranges, self._options, self._schema)
        elif isinstance(partition, Rows):
            made = [pa.array(partition.columns[field.name], field.type) for field in self._schema]
            yield pa.RecordBatch.from_arrays(made, schema=self._schema)
