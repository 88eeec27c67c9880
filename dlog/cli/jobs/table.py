"""`dlog pipeline table`: appends streams to a table."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dlog.cli.output import note, size_text
from dlog.cli.pipeline import job_options, run
from dlog.errors import ConfigError
from dlog.io.children import unignored_signals
from dlog.options import parse_bytes, parse_duration_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dlog.spark.jobs.frame import Report, Selection


@click.command()
@job_options
@click.option("--to", required=True, metavar="PATH", help="Directory of the table.")
@click.option("--checkpoint", required=True, metavar="PATH", help="Directory for the progress of the table.")
@click.option("--format", "file_format", default="parquet", show_default=True, help="parquet or delta.")
@click.option("--once/--follow", default=True, help="End at the present tail (default), or go on until Ctrl-C.")
@click.option("--every", default="10s", show_default=True, metavar="TIME", help="With --follow: interval of batches.")
@click.option("--partition-by", default="", metavar="COLUMN", help="day or stream: one directory for each value.")
@click.option("--batch-bytes", default="1GiB", show_default=True, help="Approximate size of a batch.")
@click.option("--source", multiple=True, metavar="KEY=VALUE", help="Option of the Spark source: startingTxid=7.")
def table(
    to: str,
    checkpoint: str,
    file_format: str,
    once: bool,
    every: str,
    partition_by: str,
    batch_bytes: str,
    source: tuple[str, ...],
    **given: Any,
) -> int:
    """Append new records of the given streams to a table, each record once.

    Run again, after a kill or by cron, it continues where the table ends. Delta needs its jars: --conf spark.jars=.
    """
    from dlog.spark.jobs.table import TableOptions
    from dlog.spark.jobs.table import table as job

    options = TableOptions(
        to=to,
        checkpoint=checkpoint,
        format=file_format,
        follow=not once,
        every_s=parse_duration_s(every),
        partition_by=partition_by,
        batch_bytes=parse_bytes(batch_bytes),
        source=_pairs(source),
        dry_run=given["dry_run"],
    )

    def begin(spark: SparkSession, selection: Selection, progress: Any) -> Report:
        with _stopped_by_signals() as stop:
            if options.follow and not given["as_json"]:
                note("keeping the table up to date; stop with Ctrl-C")
            return job(spark, selection, options, progress=progress, stop=stop)

    return run("table", begin, lines=_lines, **given)


_STOP = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event set by Ctrl-C and SIGTERM, to end the query in order."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in unignored_signals(_STOP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    lines = [
        f"{item['stream']}: up to {item['offset']} of {item['latest']}, {item['behind_records']:,} records behind"
        for item in report.items
    ]
    if report.dry_run:
        size = size_text(counts["behind_bytes"])
        return [*lines, f"would add about {counts['behind_records']:,} records, {size}"]
    added = f"added {counts['records']:,} records in {counts['batches']:,} batches"
    return [*lines, f"{added}; {counts['behind_records']:,} records behind; {report.took_s:.1f} s"]
