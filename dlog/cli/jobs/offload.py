"""`dlog pipeline offload`: moves completed segments to cold storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dlog.cli.discovery import find_cluster
from dlog.cli.output import size_text
from dlog.cli.parameters import NON_EMPTY_TEXT
from dlog.cli.pipeline import job_options, run
from dlog.options import parse_duration_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dlog.spark.jobs.frame import Report, Selection


@click.command()
@job_options
@click.option(
    "--to", required=True, metavar="LOCATION", help="file:///DIR, s3://BUCKET/PREFIX or webhdfs://HOST:PORT/DIR."
)
@click.option("--older-than", default="24h", show_default=True, metavar="TIME", help="Minimum age since completion.")
@click.option("--keep", default=1, show_default=True, help="Newest completed segments of a stream that are not moved.")
@click.option("--grace", default="1h", show_default=True, metavar="TIME", help="Before a moved ledger is deleted.")
@click.option("--parquet", default="", metavar="LOCATION", help="Also write one Parquet file per segment to LOCATION.")
@click.option("--parquet-compression", default="snappy", show_default=True, help="none, snappy, gzip, zstd or lz4.")
@click.option(
    "--orphan-age",
    default="24h",
    show_default=True,
    metavar="TIME",
    help="Age at which files of killed runs are deleted.",
)
@click.option(
    "--connect",
    metavar="dlog://HOST:PORT",
    type=NON_EMPTY_TEXT,
    help="Proxies (or set DLOG_CONNECT). Default: all.",
)
def offload(
    to: str,
    older_than: str,
    keep: int,
    grace: str,
    parquet: str,
    parquet_compression: str,
    orphan_age: str,
    connect: str | None,
    **given: Any,
) -> int:
    """Copy completed segments to LOCATION, from where they are read afterwards, with the same DLSNs.

    A later run deletes their ledgers or files, after the grace period. Run it again after a kill or by cron: it
    continues. Access to LOCATION (keys, endpoints) is configured in the environment, by DLOG_COLD_* or the usual
    variables of S3; proxies need the same configuration.
    """
    from dlog.spark.jobs.offload import offload as job
    from dlog.spark.jobs.offload_work import OffloadOptions

    given_cluster = {name: given.pop(name) for name in ("hosts", "namespace", "directory")}
    cluster = find_cluster(connect=connect, **given_cluster, need_zookeeper=True)
    options = OffloadOptions(
        to=to,
        older_than_s=parse_duration_s(older_than),
        keep=keep,
        grace_s=parse_duration_s(grace),
        parquet=parquet,
        parquet_compression=parquet_compression,
        orphan_age_s=parse_duration_s(orphan_age),
        connect=cluster.connect,
        dry_run=given["dry_run"],
    )

    def begin(spark: SparkSession, selection: Selection, progress: Any) -> Report:
        return job(spark, selection, options, progress=progress)

    return run("offload", begin, cluster=cluster, lines=_lines, **given)


def _lines(report: Report) -> list[str]:
    counts = report.counts
    lines = [
        f"{item['stream']} {item.get('segment', '')}: {item['did']} {item['to']}".replace("  ", " ")
        for item in report.items
    ]
    lines += [f"{f['stream']} {f['segment']}: {f['kind']}: {f['text']}" for f in report.findings if "stream" in f]
    if report.dry_run:
        summary = f"would offload {counts.get('segments_planned', 0):,} segments, {size_text(counts['bytes_planned'])}"
    else:
        moved, size = counts.get("segments_offloaded", 0), size_text(counts.get("bytes_offloaded", 0))
        summary = f"offloaded {moved:,} segments, {size}; hot copies deleted: {counts.get('hot_copies_deleted', 0):,}"
    return [*lines, f"{summary}; {counts.get('waiting', 0):,} waiting; {report.took_s:.1f} s"]
