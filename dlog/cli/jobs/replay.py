"""`dlog pipeline replay`: splits a write-ahead log that many tables share, by table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlog.cli.discovery import Cluster
from dlog.cli.output import size_text
from dlog.cli.pipeline import job_options, run
from dlog.errors import ConfigError, DamagedError, DLogError, UnavailableError
from dlog.io.kafka_settings import KafkaOptions
from dlog.io.settings import load
from dlog.options import parse_bytes
from dlog.region.topics import TopicNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dlog.spark.jobs.frame import Report, Selection
    from dlog.spark.jobs.wal import Wal


@click.command()
@job_options
@click.option(
    "--region",
    default="",
    metavar="ADDRESS/NAMESPACE/NAME",
    help="A region in topics instead of streams: kafka://host:port,host:port/app/orders or file:///path/app/orders.",
)
@click.option("--marks", type=click.Path(dir_okay=False), help='JSON {"TABLE": SEQUENCE, ...}: flushed up to it.')
@click.option("--to", default="", metavar="DIR", help="Write files to DIR, in a directory for each table.")
@click.option("--format", "file_format", default="parquet", show_default=True, help="File format: parquet or arrow.")
@click.option("--function", default="", metavar="MODULE:NAME", help="Call this for each part; write no files.")
@click.option("--at-once", is_flag=True, help="Call it for parts of one table concurrently, in any order.")
@click.option("--work", default="", metavar="DIR", help="Intermediate files and progress. Default: in --to.")
@click.option("--table", "tables", type=int, multiple=True, metavar="N", help="Only this table; may be repeated.")
@click.option("--source", multiple=True, metavar="KEY=VALUE", help="Option of the Spark source: startingTxid=7.")
@click.option("--piece-bytes", default="64MiB", show_default=True, help="Part of a region that one task reads.")
@click.option("--run-bytes", default="32MiB", show_default=True, help="Records that a task holds in memory.")
@click.option("--part-bytes", default="128MiB", show_default=True, help="Part of a table that one task writes.")
def replay(
    region: str,
    marks: str | None,
    to: str,
    file_format: str,
    function: str,
    at_once: bool,
    work: str,
    tables: tuple[int, ...],
    source: tuple[str, ...],
    piece_bytes: str,
    run_bytes: str,
    part_bytes: str,
    **given: Any,
) -> int:
    """Split the given streams, regions of a write-ahead log, by table; or a region in topics (`dlog region`).

    A record of such a stream is DLW1, table u64, sequence u64 (little-endian), payload. Flushed records are left out. A
    table whose sequence has a gap or goes back fails alone. After a kill, run it again: it continues. All workers must
    reach DIR.
    """
    from dlog.spark.jobs.flushed_sequences import Marks, read_marks
    from dlog.spark.jobs.replay import ReplayOptions
    from dlog.spark.jobs.replay import replay as job

    options = ReplayOptions(
        marks=read_marks(Path(marks)) if marks is not None else Marks(),
        tables=tables,
        to=to,
        function=function,
        format=file_format,
        at_once=at_once,
        work=work,
        source=_pairs(source),
        piece_bytes=parse_bytes(piece_bytes),
        run_bytes=parse_bytes(run_bytes),
        part_bytes=parse_bytes(part_bytes),
        dry_run=given["dry_run"],
    )

    wal = _region(region, options.source, given) if region else None
    if wal is not None:
        given["cluster"] = Cluster(connect="", zookeeper="", namespace="")  # none is needed

    def begin(spark: SparkSession, selection: Selection, progress: Any) -> Report:
        try:
            return job(spark, selection, options, progress=progress, wal=wal)
        except DLogError as error:
            if wal is not None:
                error.next_step = next((step for kind, step in _NEXT.items() if isinstance(error, kind)), None)
            raise

    return run("replay", begin, lines=_lines, **given)


#: next step by class of an error, of a region in topics
_NEXT: dict[type[DLogError], str] = {
    TopicNotFoundError: "name a region that exists, as --region ADDRESS/NAMESPACE/NAME",
    DamagedError: "`dlog region verify` names what is damaged, --source onCorruption=skip-entry leaves it out",
    UnavailableError: "see that the topics can be reached, and run it again",
}


def _region(address: str, source: Mapping[str, str], given: Mapping[str, Any]) -> Wal:
    """The region of --region. Raises UsageError for options of streams."""
    from dlog.spark.jobs.wal_region import RegionWal

    flags = {"--stream": "streams", "--pattern": "pattern", "--zookeeper": "hosts", "--namespace": "namespace"}
    for flag, name in {**flags, "--dir": "directory"}.items():
        if given.get(name):
            raise click.UsageError(f"{flag} is for streams, remove it or --region: --region names all that is needed")
    return RegionWal(address, source, kafka=load(KafkaOptions, "kafka", None, {}))


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--source must be KEY=VALUE: {text[:60]!r}")
        pairs[key] = value
    return pairs


def _lines(report: Report) -> list[str]:
    counts = report.counts
    verb = "would replay" if report.dry_run else "replayed"
    lines = [
        f"table {item['table']} of {item['region']}: {item['records']:,} records, sequences {item['first_sequence']:,} "
        f"to {item['last_sequence']:,}, {item['parts']} parts"
        for item in report.items
    ]
    records = sum(item["records"] for item in report.items)
    lines.append(
        f"{verb} {len(report.items):,} tables: {records:,} records, {size_text(counts.get('bytes', 0))}; "
        f"read {counts.get('records', 0):,}, {counts.get('flushed', 0):,} of them flushed; {report.took_s:.1f} s"
    )
    return [*lines, *(f"left out: {finding['text']}" for finding in report.findings)]
