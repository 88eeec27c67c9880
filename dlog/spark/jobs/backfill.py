"""Job `backfill`: copies a range of a stream to another, through a transform, once however often it is run.

Invariants:
- the first run decides what is copied, and stores that under the job's name;
- each piece is one batch of the exactly-once sink, so a new run continues after the last piece that the target has.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dlog.errors import ConfigError, DamagedError, DLogError, MetadataUnavailableError
from dlog.io.zookeeper_protocol import NodeExistsError, NoNodeError
from dlog.model.ids import user_stream_name
from dlog.model.sink import SinkBatch, Standing, sink_name, standing
from dlog.options import MiB
from dlog.spark.cluster_connection import Cluster
from dlog.spark.jobs.frame import Progress, Report, Selection, Silent, reporting
from dlog.spark.options import SourceOptions, parse
from dlog.spark.planning import Range, partitions
from dlog.spark.plans import ask, plan_batch
from dlog.spark.pruning import Pruning
from dlog.spark.sink import BATCH
from dlog.spark.stages import sink_path, stream_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PIECES_MAX = 5000
KEEP, NEW = "keep", "new"
INPUT = "input"  # name of the source view in SQL


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """to: the target, which exists. source: options of the source that bound the range (startingTxid, endingTimestamp
    and so on).

    job: name under which it is done once; "": derived from the other options. txids: `keep` those of the source, which
    fails if the target is beyond them, or assign `new` ones. function: `module:function`, from a DataFrame with the
    source's columns to one with a column value; sql: the same as a query of the view `input`. piece_bytes: about, of
    what is published at once.
    """

    to: str
    source: tuple[tuple[str, str], ...] = ()
    job: str = ""
    txids: str = KEEP
    function: str = ""
    sql: str = ""
    piece_bytes: int = 1024 * MiB
    dry_run: bool = False


def backfill(
    spark: SparkSession, selection: Selection, options: BackfillOptions, *, progress: Progress | None = None
) -> Report:
    """Copy the range. Raises ConfigError for invalid options, StreamNotFoundError, TruncatedError if part of the range
    is gone; other failures are in the report, and the next run continues there."""
    progress = progress or Silent()
    transform = _transform(spark, options)
    source = _source(selection, options)
    job = _job(source, options)
    with reporting("backfill", dry_run=options.dry_run) as report:
        plan = ask(source, partial(_planned, source=source, options=options, job=job))
        report.counts |= {"pieces": len(plan), "done_before": 0, "records": 0}
        for number, piece in enumerate(plan):
            item = {"piece": number, **piece}
            done = ask(source, partial(_is_done, namespace=source.namespace, to=options.to, job=job, number=number))
            report.items.append({**item, "state": "done before" if done else "to do"})
            if done:
                report.add("done_before")
                continue
            if options.dry_run:
                continue
            progress.step("backfill", number, len(plan))
            try:
                records = _copy(spark, selection, options, job, number, piece, transform)
            except Exception as error:  # noqa: BLE001 - Spark raises many kinds
                report.failures.append(
                    {**item, "error": _error_text(error), "next": "fix the cause and run the job again"}
                )
                break  # later pieces would make the sink refuse this one
            ask(source, partial(_note_done, namespace=source.namespace, job=job, number=number))
            report.items[-1] |= {"state": "copied", "records": records}
            report.add("records", records)
        progress.step("backfill", len(plan), len(plan))
    return report


def _copy(
    spark: SparkSession,
    selection: Selection,
    options: BackfillOptions,
    job: str,
    number: int,
    piece: dict[str, Any],
    transform: Callable[[DataFrame], DataFrame],
) -> int:
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    (stream,) = selection.streams
    reader = spark.read.format("dlog").options(**selection.options())
    reader = reader.option("startingOffsets", json.dumps({stream: piece["start"]}))
    reader = reader.option("endingOffsets", json.dumps({stream: piece["end"]}))
    counted = Observation(f"piece {number}")
    written = transform(reader.load()).observe(counted, count(lit(1)).alias("records"))
    writer = written.write.format("dlog").mode("append").option("zookeeper", selection.zookeeper)
    writer = writer.option("namespace", selection.namespace).option("stream", options.to)
    writer.option("sinkId", job).option("batchId", number).save()
    return int(counted.get["records"])


def _transform(spark: SparkSession, options: BackfillOptions) -> Callable[[DataFrame], DataFrame]:
    """Raises ConfigError."""
    if options.txids not in (KEEP, NEW):
        raise ConfigError(f"unknown choice of txids: txids={options.txids[:60]!r}, choose {KEEP} or {NEW}")
    if options.function and options.sql:
        raise ConfigError("set either a function or sql as the transform, not both")
    if options.function:
        return _function(options.function)
    if options.sql:

        def by_query(frame: DataFrame) -> DataFrame:
            frame.createOrReplaceTempView(INPUT)
            return spark.sql(options.sql)

        return by_query
    columns = ("value", "txid") if options.txids == KEEP else ("value",)
    return lambda frame: frame.select(*columns)


def _function(name: str) -> Callable[[DataFrame], DataFrame]:
    module, colon, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"the function cannot be imported: name={name[:100]} reason={error}") from None
    if not callable(found):
        raise ConfigError(f"a function must be named module:function: name={name[:100]}")
    made: Callable[[DataFrame], DataFrame] = found
    return made


def _source(selection: Selection, options: BackfillOptions) -> SourceOptions:
    """Raises ConfigError."""
    if len(selection.streams) != 1 or selection.pattern:
        raise ConfigError("backfill copies one stream: name it with --stream")
    user_stream_name(options.to)
    if options.to == selection.streams[0]:
        raise ConfigError(f"a stream cannot be copied to itself, choose another target: stream={options.to}")
    given = dict(options.source)
    for key in given:
        if not key.lower().startswith(("starting", "ending")):
            raise ConfigError(f"only options of the source that bound the range are allowed: option={key[:60]}")
    return parse({**selection.options(), **given}, streaming=False)


def _job(source: SourceOptions, options: BackfillOptions) -> str:
    """The name of the job. Raises InvalidRequestError if it is invalid."""
    if options.job:
        return sink_name(options.job)
    text = json.dumps([source.namespace, source.streams, *_asked(options)], sort_keys=True)
    return f"backfill-{hashlib.blake2b(text.encode(), digest_size=10).hexdigest()}"


def _asked(options: BackfillOptions) -> tuple[Any, ...]:
    """Options that must be equal in all runs of a job."""
    values = asdict(options)
    for name in ("dry_run", "job", "piece_bytes"):
        del values[name]
    return tuple(sorted((key, str(value)) for key, value in values.items()))


def _error_text(error: Exception) -> str:
    text = error.message if isinstance(error, DLogError) else str(error)
    lines = [line for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if "dlog.errors." in line]
    return (ours or lines or [repr(error)])[-1 if ours else 0][:500]


# ---- the plan -------------------------------------------------------------------------------------------------------


async def _planned(
    cluster: Cluster, *, source: SourceOptions, options: BackfillOptions, job: str
) -> list[dict[str, Any]]:
    """The plan stored by the first run, or a new one. Raises ConfigError if the name is in use for another copy."""
    await stream_of(cluster, options.to)
    path = f"{sink_path(source.namespace, job)}/plan"
    asked = [list(pair) for pair in _asked(options)] + [["stream", source.streams[0]]]
    for _ in range(3):
        kept = await _kept(cluster, path)
        if kept is not None:
            if kept.get("asked") != asked:
                raise ConfigError(f"a job of this name copied something else, choose another name: job={job}")
            return list(kept["pieces"])
        ranges = await plan_batch(cluster, options=source, pruning=Pruning())
        pieces = [_piece(part) for part in partitions(ranges, split_bytes=options.piece_bytes, open_cost_bytes=0)]
        if len(pieces) > PIECES_MAX:
            raise ConfigError(f"more than {PIECES_MAX} pieces, increase piece_bytes: pieces={len(pieces)}")
        if options.dry_run or not pieces:
            return pieces
        data = json.dumps({"asked": asked, "pieces": pieces}, separators=(",", ":")).encode()
        with suppress(NodeExistsError):
            await cluster.metadata.zookeeper.create(path, data, parents=True)
            return pieces
    raise MetadataUnavailableError(f"the plan of a job keeps changing, retry later: job={job}")


async def _kept(cluster: Cluster, path: str) -> dict[str, Any] | None:
    try:
        data, _ = await cluster.metadata.zookeeper.get(path, fresh=True)
    except NoNodeError:
        return None
    try:
        plan = json.loads(data)
        assert isinstance(plan["pieces"], list)
    except (ValueError, RecursionError, KeyError, TypeError, AssertionError):
        raise DamagedError(f"the plan of a job cannot be read; delete the znode to start over: path={path}") from None
    return dict(plan)


def _piece(ranges: Sequence[Range]) -> dict[str, Any]:
    """A piece from its first position to its end (exclusive), as positions of Spark's offsets."""
    first, last = ranges[0], ranges[-1]
    start = [first.segment, first.first, *([first.first_slot] if first.first_slot else [])]
    end = [last.segment, last.last, last.end_slot] if last.end_slot else [last.segment, last.last + 1]
    size, records = sum(r.bytes for r in ranges), sum(r.records for r in ranges)
    return {"start": start, "end": end, "bytes": size, "about_records": records}


async def _is_done(cluster: Cluster, *, namespace: str, to: str, job: str, number: int) -> bool:
    """Whether the target is known to have this piece; copying it again is harmless."""
    record = (await stream_of(cluster, to)).sink(job)
    if standing(record, SinkBatch(job, 0, BATCH, number)) is Standing.DONE:
        return True
    with suppress(NoNodeError, ValueError):
        data, _ = await cluster.metadata.zookeeper.get(f"{sink_path(namespace, job)}/done", fresh=True)
        return int(data) >= number
    return False


async def _note_done(cluster: Cluster, *, namespace: str, job: str, number: int) -> None:
    """Record a piece as done: of one that was appended, the target may know only that it was about to be."""
    path, data = f"{sink_path(namespace, job)}/done", b"%d" % number
    try:
        await cluster.metadata.zookeeper.set(path, data, -1)
    except NoNodeError:
        with suppress(NodeExistsError):
            await cluster.metadata.zookeeper.create(path, data, parents=True)
