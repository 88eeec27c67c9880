"""Job `table`: streams kept up to date as a Parquet or Delta table, by a streaming query.

The law of this file: a row is in the table once, whatever is killed; what is in it is what the sink's own log says
(`_spark_metadata` of Parquet, `_delta_log` of Delta), and the checkpoint knows how far that is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from dlog.errors import ConfigError, UnsupportedVersionError
from dlog.spark.jobs.frame import Place, Progress, Report, Silent, reporting
from dlog.spark.jobs.table_home import Files, claim, done_up_to
from dlog.spark.options import SourceOptions, parse
from dlog.spark.places import BEGINNING, Offsets
from dlog.spark.planning import amount
from dlog.spark.plans import ask, check_named
from dlog.spark.reach import Cluster
from dlog.spark.views import Seen, Views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMATS = ("parquet", "delta")
PARTITIONS = ("", "day", "stream")
#: column that Parquet's directories of streams are named by: readers guess the type of such a column by its values, and
#: no value of this one can be a number or a date, as a stream's name can. The name itself is in the files
STREAM_DIRECTORY = "stream_directory"
_LOOK_S = 0.25
_PROBE = ".dlog-delta-probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Where streams become a table. to, checkpoint: directories on any file system of Hadoop's.

    follow: go on until stopped, a batch every `every_s`; else end with what is there now. partition_by: a directory for
    each `day` (of the time when a record was taken) or `stream`: of Parquet this is `stream_directory=is-NAME`, and the
    column `stream` lies in the files, where 007 stays 007. batch_bytes: of a stream, about, in one batch.
    source: options of the source, as startingTxid; by default a table begins with the first record.
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
            raise ConfigError("a directory for the table (to) and one for its checkpoint are wanted")
        if self.format not in FORMATS:
            raise ConfigError(f"one of {', '.join(FORMATS)} is wanted: format={self.format[:40]}")
        if self.partition_by not in PARTITIONS:
            raise ConfigError(f"day or stream is wanted: partition_by={self.partition_by[:40]}")
        if not 0 <= self.every_s <= 86400 or self.batch_bytes < 1:
            raise ConfigError("every_s is from 0 to a day, batch_bytes at least 1")
        to, checkpoint = self.to.rstrip("/") + "/", self.checkpoint.rstrip("/") + "/"
        if to.startswith(checkpoint) or checkpoint.startswith(to):
            raise ConfigError("the table and its checkpoint lie in directories of their own, neither in the other")

    def source_options(self, place: Place) -> dict[str, str]:
        """Of `spark.readStream.format("dlog")`."""
        told = {name.lower() for name in self.source}
        for name in ("path", *place.options()):
            if name.lower() in told:
                raise ConfigError(f"not an option of the source that can be set here: option={name}")
        start = {} if any(name.startswith("starting") for name in told) else {"startingOffsets": "earliest"}
        bounds = ("maxbytespertrigger", "maxoffsetspertrigger", "maxsegmentspertrigger")
        bound = {} if told & set(bounds) else {"maxBytesPerTrigger": str(self.batch_bytes)}
        return {**place.options(), **start, **bound, **self.source}


def table(
    spark: SparkSession,
    place: Place,
    options: TableOptions,
    *,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Report:
    """Bring a table up to date, or keep it so until `stop` is set. Items of the report: a row a stream, with where it
    goes on (`offset`), where it ends now (`latest`) and what lies between (`behind_records`, `behind_bytes`, about).

    A query that ends with an error is a failure. Raises ConfigError for directories that hold something else,
    StreamNotFoundError, UnsupportedVersionError for Delta where it does not run.
    """
    if not (place.streams or place.pattern):
        raise ConfigError("name the streams of the table, with --stream or --pattern")
    told = options.source_options(place)
    source = parse(told, streaming=True)
    with reporting("table", dry_run=options.dry_run) as report:
        check_named(source, _look(source))
        to, checkpoint = Files(spark, options.to), Files(spark, options.checkpoint)
        claim(to, checkpoint, _identity(place, options), write=False)
        report.counts |= {"records": 0, "batches": 0}
        if not options.dry_run:
            if options.format == "delta":
                check_delta(spark, checkpoint)
            claim(to, checkpoint, _identity(place, options))
            query = _start(spark, told, options)
            _Watched(query, report, progress or Silent(), stop or threading.Event(), follow=options.follow).wait()
        last, done = done_up_to(checkpoint)
        report.counts["last_batch"] = last
        report.items = _items(_look(source), done)
        for name in ("behind_records", "behind_bytes"):
            report.counts[name] = sum(item[name] for item in report.items)
    return report


def _identity(place: Place, options: TableOptions) -> dict[str, Any]:
    """What makes a table another one."""
    which: dict[str, str] = place.options()
    selector: dict[str, Any] = {name: which[name] for name in ("streams", "streamsPattern") if name in which}
    start = {name: value for name, value in options.source.items() if name.lower().startswith("starting")}
    return {
        "namespace": place.namespace,
        **selector,
        "start": start,
        "format": options.format,
        "partition_by": _partition_column(options),
    }


def _partition_column(options: TableOptions) -> str:
    """Of the table's directories, empty if it has none. Delta's log knows each column's type, Parquet has no log."""
    by_name = options.partition_by == "stream" and options.format == "parquet"
    return STREAM_DIRECTORY if by_name else options.partition_by


def _start(spark: SparkSession, told: Mapping[str, str], options: TableOptions) -> StreamingQuery:
    frame: DataFrame = spark.readStream.format("dlog").options(**told).load()
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
    """A query on its way: counted, told of, and stopped when that is asked for."""

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
        """Until it ends. Its error is a failure of the report."""
        try:
            while self._query.isActive and not self._stop.is_set():
                self._stop.wait(_LOOK_S)
                self._count()
        finally:
            self._query.stop()
        self._count()
        error = self._query.exception()
        if error is not None and not self._stop.is_set():
            self._report.failures.append({"error": _said(str(error)), "batches": self._report.counts["batches"]})

    def _count(self) -> None:
        """Spark remembers the last hundred batches, and is asked much more often than it makes those."""
        for told in self._query.recentProgress:
            one = json.loads(told.json)
            if one["batchId"] <= self._seen or not one["numInputRows"]:
                continue
            self._seen = one["batchId"]
            self._report.add("batches")
            self._report.add("records", int(one["numInputRows"]))
            done = self._report.counts["batches"]
            self._progress.step("batches", done, done + (1 if self._query.isActive else 0))


def _said(error: str) -> str:
    """What the source said, without Java's and Python's stacks."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("dlog.errors.")]
    return (ours[-1] if ours else lines[0] if lines else "the query ended with an error")[:500]


def _look(source: SourceOptions) -> dict[str, Seen]:
    async def look(cluster: Cluster) -> dict[str, Seen]:
        return await Views().look(cluster, source)

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
    """That Delta Lake writes and reads a table here; tried, since a release made for another Spark often loads and
    fails later. room: where it is tried. Raises UnsupportedVersionError saying what to give."""
    path = f"{room.path.rstrip('/')}/{_PROBE}"
    try:
        spark.range(3).write.format("delta").mode("overwrite").save(path)
        read = spark.read.format("delta").load(path).count()
        why = "" if read == 3 else f"three rows were written, {read} were read"
    except Exception as error:  # noqa: BLE001 - Java's, of many kinds
        why = _reason(str(error))
    finally:
        room.delete(_PROBE)
    if why:
        raise UnsupportedVersionError(
            f"Delta Lake does not run in this session, Spark {spark.version}: {why}; give the jars of a release that "
            "is made for this Spark (spark.jars, or spark.jars.packages=io.delta:delta-spark_2.13:VERSION), "
            "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog, or take format parquet. "
            "Delta Lake 4.3.1 runs on Spark 4.2; for Spark 4.3 there was none yet"
        )


def _reason(error: str) -> str:
    """The line that tells the most."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    for mark in ("NoSuchMethodError", "NoClassDefFoundError", "AbstractMethodError", "IncompatibleClassChange"):
        found = [line for line in lines if mark in line]
        if found:
            return found[0].removeprefix(": ")[:160]
    if any("DATA_SOURCE_NOT_FOUND" in line for line in lines):
        return "its jars are not there"
    return lines[0][:160] if lines else "it failed"
