"""`dlog pipeline backfill`: copies a range of a stream into another one, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dlog.cli.output import size_text
from dlog.cli.pipeline import job_options, run
from dlog.errors import ConfigError
from dlog.options import parse_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dlog.spark.jobs.frame import Report, Selection


@click.command()
@job_options
@click.option("--to", required=True, metavar="STREAM", help="Target stream, which must exist.")
@click.option(
    "--source", multiple=True, metavar="KEY=VALUE", help="Bound of the range: startingTxid=7, endingTimestamp=..."
)
@click.option("--job", default="", metavar="NAME", help="Runs once under this name. Default: made of all options.")
@click.option("--txids", default="keep", show_default=True, help="keep: those of the source; new: assigned on append.")
@click.option("--function", default="", metavar="MODULE:NAME", help="Transform: DataFrame in, DataFrame out.")
@click.option("--sql", default="", metavar="QUERY", help="Transform as SQL: SELECT ... AS value FROM input.")
@click.option("--piece-bytes", default="1GiB", show_default=True, help="Approximate size of a commit.")
def backfill(
    to: str,
    source: tuple[str, ...],
    job: str,
    txids: str,
    function: str,
    sql: str,
    piece_bytes: str,
    **given: Any,
) -> int:
    """Copy a range of the given stream into another one, optionally transformed.

    A second run makes no second copy; after a kill, it continues. The first run fixes the range.
    """
    from dlog.spark.jobs.backfill import BackfillOptions
    from dlog.spark.jobs.backfill import backfill as copy

    bounds = []
    for text in source:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--source must be KEY=VALUE: {text[:60]!r}")
        bounds.append((key, value))
    options = BackfillOptions(
        to=to,
        source=tuple(sorted(bounds)),
        job=job,
        txids=txids,
        function=function,
        sql=sql,
        piece_bytes=parse_bytes(piece_bytes),
        dry_run=given["dry_run"],
    )

    def begin(spark: SparkSession, selection: Selection, progress: Any) -> Report:
        return copy(spark, selection, options, progress=progress)

    return run("backfill", begin, lines=_lines, **given)


def _lines(report: Report) -> list[str]:
    lines = []
    for item in report.items:
        start, end = (":".join(map(str, item[name])) for name in ("start", "end"))
        records = f", {item['records']:,} records" if "records" in item else ""
        lines.append(f"piece {item['piece']}  {start} to {end}  {size_text(item['bytes'])}{records}  {item['state']}")
    counts = report.counts
    what = "would copy" if report.dry_run else f"copied {counts['records']:,} records in"
    return [*lines, f"{what} {counts['pieces'] - counts['done_before']} pieces, {counts['done_before']} were there"]
