"""Backfill: a range of a stream into another, through a transform, once however often it is run.

The law of this file: what is copied is decided by the first run and kept under the job's name; each piece of it is one
batch of the exactly-once sink, so that a run that was killed goes on behind the last piece the target has.
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
from dlog.model.ids import stream_name
from dlog.model.sink import SinkBatch, Standing, sink_name, standing
from dlog.options import MiB
from dlog.spark.jobs.frame import Place, Progress, Report, Silent, reporting
from dlog.spark.options import SourceOptions, parse
from dlog.spark.planning import Range, partitions
from dlog.spark.plans import ask, plan_batch
from dlog.spark.pruning import Pruning
from dlog.spark.reach import Cluster
from dlog.spark.sink import BATCH
from dlog.spark.stages import sink_path, stream_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PIECES_MAX = 5000
KEEP, NEW = "keep", "new"
INPUT = "input"  # how a transform in SQL names what is read


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """to: the target, which exists. source: options of the source that bound the range (startingTxid, endingTimestamp
    and the like).

    job: under which name it is done once; "" makes one of all the others. txids: `keep` those of the source, which
    fails where the target is past them, or have `new` ones. function: `module:function` that makes of a DataFrame with
    the source's columns one with a column value; sql: the same as a query of the view `input`. piece_bytes: about, of
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
    spark: SparkSession, place: Place, options: BackfillOptions, *, progress: Progress | None = None
) -> Report:
    """Copy. Raises ConfigError for what makes no sense, StreamNotFoundError, TruncatedError if part of the range is
    gone; another failure is in the report, and a run that comes later goes on there."""
    progress = progress or Silent()
    transform = _transform(spark, options)
    source = _source(place, options)
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
                records = _copy(spark, place, options, job, number, piece, transform)
            except Exception as error:  # noqa: BLE001 - Spark's own, of whatever kind
                report.failures.append({**item, "error": _told(error), "next": "mend it and run the same again"})
                break  # what comes behind would be refused as a batch before it
            ask(source, partial(_note_done, namespace=source.namespace, job=job, number=number))
            report.items[-1] |= {"state": "copied", "records": records}
            report.add("records", records)
        progress.step("backfill", len(plan), len(plan))
    return report


def _copy(
    spark: SparkSession,
    place: Place,
    options: BackfillOptions,
    job: str,
    number: int,
    piece: dict[str, Any],
    transform: Callable[[DataFrame], DataFrame],
) -> int:
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    (stream,) = place.streams
    reader = spark.read.format("dlog").options(**place.options())
    reader = reader.option("startingOffsets", json.dumps({stream: piece["start"]}))
    reader = reader.option("endingOffsets", json.dumps({stream: piece["end"]}))
    counted = Observation(f"piece {number}")
    written = transform(reader.load()).observe(counted, count(lit(1)).alias("records"))
    writer = written.write.format("dlog").mode("append").option("zookeeper", place.zookeeper)
    writer = writer.option("namespace", place.namespace).option("stream", options.to)
    writer.option("sinkId", job).option("batchId", number).save()
    return int(counted.get["records"])


def _transform(spark: SparkSession, options: BackfillOptions) -> Callable[[DataFrame], DataFrame]:
    """Raises ConfigError."""
    if options.txids not in (KEEP, NEW):
        raise ConfigError(f"txids are kept or new: txids={options.txids[:60]!r}, there are {KEEP}, {NEW}")
    if options.function and options.sql:
        raise ConfigError("a transform is a function or a query, not both")
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
        raise ConfigError(f"no such function: name={name[:100]} reason={error}") from None
    if not callable(found):
        raise ConfigError(f"a function is named as module:function: name={name[:100]}")
    made: Callable[[DataFrame], DataFrame] = found
    return made


def _source(place: Place, options: BackfillOptions) -> SourceOptions:
    """Raises ConfigError."""
    if len(place.streams) != 1 or place.pattern:
        raise ConfigError("backfill copies one stream: name it with --stream")
    stream_name(options.to)
    if options.to == place.streams[0]:
        raise ConfigError(f"a stream is not copied into itself: stream={options.to}")
    given = dict(options.source)
    for key in given:
        if not key.lower().startswith(("starting", "ending")):
            raise ConfigError(f"options of the source that bound the range are wanted: option={key[:60]}")
    return parse({**place.options(), **given}, streaming=False)


def _job(source: SourceOptions, options: BackfillOptions) -> str:
    """Raises InvalidRequestError for a name that is none."""
    if options.job:
        return sink_name(options.job)
    told = json.dumps([source.namespace, source.streams, *_asked(options)], sort_keys=True)
    return f"backfill-{hashlib.blake2b(told.encode(), digest_size=10).hexdigest()}"


def _asked(options: BackfillOptions) -> tuple[Any, ...]:
    """What another run under the same name must have asked for."""
    told = asdict(options)
    for name in ("dry_run", "job", "piece_bytes"):
        del told[name]
    return tuple(sorted((key, str(value)) for key, value in told.items()))


def _told(error: Exception) -> str:
    text = error.message if isinstance(error, DLogError) else str(error)
    lines = [line for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if "dlog.errors." in line]
    return (ours or lines or [repr(error)])[-1 if ours else 0][:500]


# ---- what is to be copied -------------------------------------------------------------------------------------------


async def _planned(
    cluster: Cluster, *, source: SourceOptions, options: BackfillOptions, job: str
) -> list[dict[str, Any]]:
    """As it was kept by the first run, or as it is now. Raises ConfigError if the name stands for another copy."""
    await stream_of(cluster, options.to)
    path = f"{sink_path(source.namespace, job)}/plan"
    asked = [list(pair) for pair in _asked(options)] + [["stream", source.streams[0]]]
    for _ in range(3):
        kept = await _kept(cluster, path)
        if kept is not None:
            if kept.get("asked") != asked:
                raise ConfigError(f"this job copied something else, give it another name: job={job}")
            return list(kept["pieces"])
        ranges = await plan_batch(cluster, options=source, pruning=Pruning())
        pieces = [_piece(part) for part in partitions(ranges, split_bytes=options.piece_bytes, open_cost_bytes=0)]
        if len(pieces) > PIECES_MAX:
            raise ConfigError(f"at most {PIECES_MAX} pieces, make them larger: pieces={len(pieces)}")
        if options.dry_run or not pieces:
            return pieces
        data = json.dumps({"asked": asked, "pieces": pieces}, separators=(",", ":")).encode()
        with suppress(NodeExistsError):
            await cluster.metadata.zookeeper.create(path, data, parents=True)
            return pieces
    raise MetadataUnavailableError(f"the plan of a job changes under our hands: job={job}")


async def _kept(cluster: Cluster, path: str) -> dict[str, Any] | None:
    try:
        data, _ = await cluster.metadata.zookeeper.get(path, fresh=True)
    except NoNodeError:
        return None
    try:
        told = json.loads(data)
        assert isinstance(told["pieces"], list)
    except (ValueError, RecursionError, KeyError, TypeError, AssertionError):
        raise DamagedError(
            f"what is kept of a job cannot be read; delete the znode to begin anew: path={path}"
        ) from None
    return dict(told)


def _piece(ranges: Sequence[Range]) -> dict[str, Any]:
    """From its first place up to before its end, as places of Spark's offsets."""
    first, last = ranges[0], ranges[-1]
    start = [first.segment, first.first, *([first.first_slot] if first.first_slot else [])]
    end = [last.segment, last.last, last.end_slot] if last.end_slot else [last.segment, last.last + 1]
    size, records = sum(r.bytes for r in ranges), sum(r.records for r in ranges)
    return {"start": start, "end": end, "bytes": size, "about_records": records}


async def _is_done(cluster: Cluster, *, namespace: str, to: str, job: str, number: int) -> bool:
    """Whether the target has this piece, as far as can be told; to copy it again would be harmless."""
    record = (await stream_of(cluster, to)).sink(job)
    if standing(record, SinkBatch(job, 0, BATCH, number)) is Standing.DONE:
        return True
    with suppress(NoNodeError, ValueError):
        data, _ = await cluster.metadata.zookeeper.get(f"{sink_path(namespace, job)}/done", fresh=True)
        return int(data) >= number
    return False


async def _note_done(cluster: Cluster, *, namespace: str, job: str, number: int) -> None:
    """The last piece may be one that was appended, of which the target knows only that it was to be."""
    path, data = f"{sink_path(namespace, job)}/done", b"%d" % number
    try:
        await cluster.metadata.zookeeper.set(path, data, -1)
    except NoNodeError:
        with suppress(NodeExistsError):
            await cluster.metadata.zookeeper.create(path, data, parents=True)
