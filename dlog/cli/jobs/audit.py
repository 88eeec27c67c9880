"""`dlog pipeline audit`; the job is dlog/spark/jobs/audit.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dlog.cli.output import size_text
from dlog.cli.pipeline import job_options, run
from dlog.options import parse_bytes, parse_duration_s

if TYPE_CHECKING:
    from dlog.spark.jobs.frame import Report


@click.command()
@click.option(
    "--replicas",
    type=click.Choice(["all", "one"]),
    default="all",
    show_default=True,
    help="Read all replicas of each entry, or one good replica.",
)
@click.option(
    "--verify",
    type=click.Choice(["full", "crc", "none"]),
    default="full",
    show_default=True,
    help="none: only the digest of each replica; crc: also checksums of record sets; full: also decode them.",
)
@click.option("--rate", metavar="SIZE", help="Read limit of each task per second, such as 50MiB. Default: none.")
@click.option(
    "--orphan-age",
    default="24h",
    show_default=True,
    metavar="TIME",
    help="Report ledgers and files that no stream names if older than this.",
)
@click.option(
    "--patience",
    default="3s",
    show_default=True,
    metavar="TIME",
    help="Wait so long before reporting what may still be in progress.",
)
@click.option("--split-bytes", default="128MiB", show_default=True, metavar="SIZE", help="Approximate size of a task.")
@job_options
def audit(
    replicas: str,
    verify: str,
    rate: str | None,
    orphan_age: str,
    patience: str,
    split_bytes: str,
    dry_run: bool,
    **given: Any,
) -> int:
    """Check every entry and replica of a namespace, or of some streams. Changes nothing."""
    from dlog.spark.jobs.audit import AuditOptions
    from dlog.spark.jobs.audit import audit as work

    rate_bytes_s = parse_bytes(rate) if rate is not None else 0
    if rate is not None and not rate_bytes_s:
        raise click.UsageError("--rate must be at least 1 byte per second")
    options = AuditOptions(
        all_replicas=replicas == "all",
        verify=verify,
        rate_bytes_s=rate_bytes_s,
        orphan_age_s=parse_duration_s(orphan_age),
        patience_s=parse_duration_s(patience),
        split_bytes=parse_bytes(split_bytes),
        dry_run=dry_run,
    )
    return run(
        "audit",
        lambda spark, selection, progress: work(spark, selection, options, progress=progress),
        lines=lines,
        dry_run=dry_run,
        **given,
    )


def lines(report: Report) -> list[str]:
    """The report as text."""
    counts = report.counts
    if report.dry_run:
        rows = [
            f"would read {size_text(item['read_bytes'])}, {item['entries']:,} entries in {item['replicas']} copies: "
            f"{item['stream']}, segment {item['segment']}, {item['state']}"
            for item in report.items
        ]
        whole = f"{counts['streams']:,} streams, {counts['segments']:,} segments, {counts['entries']:,} entries"
        return [*rows, f"{whole}: {size_text(counts['read_bytes'])} to read in {counts['tasks']:,} tasks"]
    speed = counts["read_bytes"] / max(report.took_s, 1e-9) / 1e6
    return [
        *map(_line, report.findings),
        f"{counts['streams']:,} streams, {counts['segments']:,} segments, {counts['entries']:,} entries, "
        f"{counts['records']:,} records: {size_text(counts['read_bytes'])} read in {report.took_s:.1f} s, "
        f"{speed:,.0f} MB/s",
        f"{len(report.findings):,} findings" if report.findings else "nothing found wrong",
    ]


def _line(finding: dict[str, Any]) -> str:
    at = [finding["stream"] or "no stream"]
    at += [f"{name} {finding[name]}" for name in ("segment", "entry") if finding[name] is not None]
    where = f" on {finding['bookie']}" if finding["bookie"] else ""
    return f"{', '.join(at)}: {finding['kind']}{where}: expected {finding['expected']}, found {finding['found']}"
