"""`dlog pipeline report`; the job is dlog/spark/jobs/report.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dlog.cli.output import size_text
from dlog.cli.pipeline import job_options, run

if TYPE_CHECKING:
    from dlog.spark.jobs.frame import Report


@click.command()
@click.option(
    "--out", default="dlog-report.html", show_default=True, metavar="FILE", help="HTML file; replaced if it exists."
)
@job_options
def report(out: str, dry_run: bool, **given: Any) -> int:
    """Report sizes, growth, owners and lag as an HTML page. Reads no record."""
    from dlog.spark.jobs.report import ReportOptions
    from dlog.spark.jobs.report import report as work

    options = ReportOptions(out=out, dry_run=dry_run)

    def lines(result: Report) -> list[str]:
        """The report as text."""
        counts = result.counts
        return [
            f"{counts['streams']:,} streams, {counts['segments']:,} segments, {counts['records']:,} records, "
            f"{size_text(counts['bytes'])}, {size_text(counts['growth_bytes_a_day'])} more per day",
            f"{counts['readers']:,} readers, {counts['behind_records_max']:,} records behind at most",
            f"would write {out}" if dry_run else f"wrote {out}",
        ]

    return run(
        "report",
        lambda spark, selection, progress: work(spark, selection, options, progress=progress),
        lines=lines,
        dry_run=dry_run,
        **given,
    )
