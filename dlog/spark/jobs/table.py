"""Job `table`: keeps a Parquet or Delta table of streams up to date, with a streaming query.

Invariants:
- a row is in the table once, whatever is killed: the table consists of what the log of Spark's sink names
  (`_spark_metadata` of Parquet, `_delta_log` of Delta), and the checkpoint records how far that is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from dlog.errors import ConfigError, UnsupportedVersionError
from dlog.spark.cluster_connection import Cluster
from dlog.spark.jobs.frame import Progress, Report, Selection, Silent, reporting
from dlog.spark.jobs.table_home import Files, claim, done_up_to
from dlog.spark.offsets import BEGINNING, Offsets
from dlog.spark.options import SourceOptions, parse
from dlog.spark.planning import amount
from dlog.spark.plans import ask, check_named
from dlog.spark.views import Seen, StreamViewer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMATS = ("parquet", "delta")
PARTITIONS = ("", "day", "stream")
#: column for Parquet's directories of streams. Readers guess the type of such a column from its values; these, unlike
#: names of streams, cannot be numbers or dates. The name itself is in the files
STREAM_DIRECTORY = "stream_directory"
_LOOK_S = 0.25
_PROBE = ".dlog-delta-probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Where streams become a table. to, checkpoint: directories on any file system of Hadoop.

    follow: run until stopped, a batch every `every_s` seconds; else stop at the present tail. partition_by: a
    directory for each `day` (when the owner received a record) or `stream`; for Parquet that is
    `stream_directory=is-NAME`, and the column `stream` is in the files, where 007 stays 007. batch_bytes: about, for
    all streams in one batch. source: options of the source, e.g. startingTxid; by default a table begins with the first
    record.
    """

    to: str
    checkpoint: str
    format: str = "parquet"
    follow: bool = False
    every_s: float = 10.0
    partition_by: str = ""
    batch_bytes: int = 1 << 30
    source: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False

    def __post_init__(self) -> None:
        if not self.to or not self.checkpoint:
            raise ConfigError("set a directory for the table (to) and another for its checkpoint (checkpoint)")
        if self.format not in FORMATS:
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}: format={self.format[:40]}")
        if self.partition_by not in PARTITIONS:
            raise ConfigError(f"partition_by must be day or stream: partition_by={self.partition_by[:40]}")
        if not 0 <= self.every_s <= 86400 or self.batch_bytes < 1:
            raise ConfigError("every_s must be from 0 to 86400 (a day), batch_bytes at least 1")
        to, checkpoint = self.to.rstrip("/") + "/", self.checkpoint.rstrip("/") + "/"
        if to.startswith(checkpoint) or checkpoint.startswith(to):
            raise ConfigError("the table and its checkpoint need separate directories, neither inside the other")

    def source_options(self, selection: Selection) -> dict[str, str]:
        """The options of `spark.readStream.format("dlog")`."""
        given = {name.lower() for name in self.source}
        for name in ("path", *selection.options()):
            if name.lower() in given:
                raise ConfigError(f"this option of the source cannot be set here, remove it: option={name}")
        start = {} if any(name.startswith("starting") for name in given) else {"startingOffsets": "earliest"}
        bounds = ("maxbytespertrigger", "maxoffsetspertrigger", "maxsegmentspertrigger")
        bound = {} if given & set(bounds) else {"maxBytesPerTrigger": str(self.batch_bytes)}
        return {**selection.options(), **start, **bound, **self.source}


def table(
    spark: SparkSession,
    selection: Selection,
    options: TableOptions,
    *,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Report:
    """Bring a table up to date, or keep it so until `stop` is set. Items of the report: a row for each stream, with its
    next position (`offset`), its end now (`latest`) and about how much lies between (`behind_records`, `behind_bytes`).

    A query that ends with an error is a failure. Raises ConfigError for directories with other contents,
    StreamNotFoundError, UnsupportedVersionError if Delta does not work.
    """
    if not (selection.streams or selection.pattern):
        raise ConfigError("name the streams of the table, with --stream or --pattern")
    source_options = options.source_options(selection)
    source = parse(source_options, streaming=True)
    with reporting("table", dry_run=options.dry_run) as report:
        check_named(source, _look(source))
        to, checkpoint = Files(spark, options.to), Files(spark, options.checkpoint)
        claim(to, checkpoint, _identity(selection, options), write=False)
        report.counts |= {"records": 0, "batches": 0}
        if not options.dry_run:
            if options.format == "delta":
                check_delta(spark, checkpoint)
            claim(to, checkpoint, _identity(selection, options))
            query = _start(spark, source_options, options)
            _Watched(query, report, progress or Silent(), stop or threading.Event(), follow=options.follow).wait()
        last, done = done_up_to(checkpoint)
        report.counts["last_batch"] = last
        report.items = _items(_look(source), done)
        for name in ("behind_records", "behind_bytes"):
            report.counts[name] = sum(item[name] for item in report.items)
    return report


def _identity(selection: Selection, options: TableOptions) -> dict[str, Any]:
    """The properties that distinguish tables."""
    which: dict[str, str] = selection.options()
    selector: dict[str, Any] = {name: which[name] for name in ("streams", "streamsPattern") if name in which}
    start = {name: value for name, value in options.source.items() if name.lower().startswith("starting")}
    return {
        "namespace": selection.namespace,
        **selector,
        "start": start,
        "format": options.format,
        "partition_by": _partition_column(options),
    }


def _partition_column(options: TableOptions) -> str:
    """The column that names directories, or empty. Unlike Parquet, Delta logs the types of columns."""
    by_name = options.partition_by == "stream" and options.format == "parquet"
    return STREAM_DIRECTORY if by_name else options.partition_by


def _start(spark: SparkSession, source_options: Mapping[str, str], options: TableOptions) -> StreamingQuery:
    frame: DataFrame = spark.readStream.format("dlog").options(**source_options).load()
    if options.partition_by == "day":
        frame = frame.selectExpr("*", "to_date(timestamp) as day")
    if _partition_column(options) == STREAM_DIRECTORY:
        frame = frame.selectExpr("*", f"concat('is-', stream) as {STREAM_DIRECTORY}")
    writer = frame.writeStream.format(options.format).outputMode("append").option("path", options.to)
    writer = writer.option("checkpointLocation", options.checkpoint).queryName(f"dlog table {options.to}"[:200])
    if options.partition_by:
        writer = writer.partitionBy(_partition_column(options))
    if options.follow:
        return writer.trigger(processingTime=f"{options.every_s} seconds").start()
    return writer.trigger(availableNow=True).start()


class _Watched:
    """Counts the batches of a running query, and stops it on request."""

    def __init__(
        self, query: StreamingQuery, report: Report, progress: Progress, stop: threading.Event, *, follow: bool
    ) -> None:
        self._query = query
        self._report = report
        self._progress = progress
        self._stop = stop
        self._follow = follow
        self._seen = -1  # the last batch that was counted

    def wait(self) -> None:
        """Wait until it ends. Its error is a failure of the report."""
        try:
            while self._query.isActive and not self._stop.is_set():
                self._stop.wait(_LOOK_S)
                self._count()
        finally:
            self._query.stop()
        self._count()
        error = self._query.exception()
        if error is not None and not self._stop.is_set():
            self._report.failures.append({"error": _error_text(str(error)), "batches": self._report.counts["batches"]})

    def _count(self) -> None:
        """Count new batches. Spark keeps the last hundred, more than are made between two calls."""
        for progress in self._query.recentProgress:
            one = json.loads(progress.json)
            if one["batchId"] <= self._seen or not one["numInputRows"]:
                continue
            self._seen = one["batchId"]
            self._report.add("batches")
            self._report.add("records", int(one["numInputRows"]))
            done = self._report.counts["batches"]
            self._progress.step("batches", done, done + (1 if self._query.isActive else 0))


def _error_text(error: str) -> str:
    """The source's error message, without stack traces."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("dlog.errors.")]
    return (ours[-1] if ours else lines[0] if lines else "the query ended with an error")[:500]


def _look(source: SourceOptions) -> dict[str, Seen]:
    async def look(cluster: Cluster) -> dict[str, Seen]:
        return await StreamViewer().look(cluster, source)

    return ask(source, partial(look))


def _items(found: Mapping[str, Seen], done: Offsets) -> list[dict[str, Any]]:
    items = []
    for name in sorted({*found, *done}):
        view = found[name].view if name in found else None
        begun = done.get(name, BEGINNING)
        behind = amount(view, begun, view.latest_after(begun)) if view is not None else None
        items.append(
            {
                "stream": name,
                "offset": str(begun),
                "latest": str(view.latest) if view is not None else None,
                "behind_records": behind.records if behind is not None else 0,
                "behind_bytes": behind.bytes if behind is not None else 0,
            }
        )
    return items


def check_delta(spark: SparkSession, room: Files) -> None:
    """Check that Delta Lake works here, by writing and reading a table in `room`: a release for another Spark often
    loads and fails later. Raises UnsupportedVersionError saying what to configure."""
    path = f"{room.path.rstrip('/')}/{_PROBE}"
    try:
        spark.range(3).write.format("delta").mode("overwrite").save(path)
        read = spark.read.format("delta").load(path).count()
        why = "" if read == 3 else f"wrote three rows, read {read}"
    except Exception as error:  # noqa: BLE001 - Java raises many kinds
        why = _reason(str(error))
    finally:
        room.delete(_PROBE)
    if why:
        raise UnsupportedVersionError(
            f"Delta Lake does not run in this session, Spark {spark.version}: {why}; add the jars of a release for "
            "this Spark (spark.jars, or spark.jars.packages=io.delta:delta-spark_2.13:VERSION), "
            "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog, or use format parquet. "
            "Delta Lake 4.3.1 runs on Spark 4.2; for Spark 4.3 there was none yet"
        )


def _reason(error: str) -> str:
    """The most informative line of an error."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    for mark in ("NoSuchMethodError", "NoClassDefFoundError", "AbstractMethodError", "IncompatibleClassChange"):
        found = [line for line in lines if mark in line]
        if found:
            return found[0].removeprefix(": ")[:160]
    if any("DATA_SOURCE_NOT_FOUND" in line for line in lines):
        return "its jars are missing"
    return lines[0][:160] if lines else "it failed"
