"""Job `audit`: verifies a namespace, or some of its streams, entry by entry and copy by copy.

Invariants:
- an audit changes nothing (except that the tail of an open ledger is decided, as whenever a reader opens it), so it may
  be stopped anywhere and started again;
- what is wrong is a finding; what could not be examined is a failure, and the rest is examined nevertheless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dlog.errors import ConfigError, DLogError
from dlog.model.ids import stream_name
from dlog.options import MiB
from dlog.spark.cluster_connection import Cluster, ClusterConnection, reach
from dlog.spark.jobs.audit_entries import RangeResult
from dlog.spark.jobs.audit_findings import Finding, Kind, rows
from dlog.spark.jobs.audit_orphans import find_orphans
from dlog.spark.jobs.audit_plan import StreamFacts, look, read_stream
from dlog.spark.jobs.audit_replicas import LEDGER
from dlog.spark.jobs.audit_segments import judge, state_of
from dlog.spark.jobs.audit_work import AuditParameters, examine
from dlog.spark.jobs.frame import Progress, Report, Selection, Silent, reporting, scatter
from dlog.spark.options import SourceOptions, parse
from dlog.spark.planning import partitions
from dlog.spark.plans import check_named
from dlog.stores.file.store import FileStore
from dlog.stores.kafka.store import KafkaStore
from dlog.stores.s3_direct.store import S3DirectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS_A_LOOK = 256  # streams read in one request to the event loop
LOOK_TIMEOUT_S = 600.0
_KIND_OF_GONE = {
    LEDGER: Kind.LEDGER_GONE,
    FileStore.name: Kind.FILE_GONE,
    KafkaStore.name: Kind.TABLE_GONE,
    S3DirectStore.name: Kind.CHAIN_GONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """all_replicas: read every copy of every entry; else one good copy of each. verify: `full`; `crc` does not open
    record sets whose checksum matches; `none` verifies the bookies' copies without decoding them. rate_bytes_s: for
    each task; 0: no limit. orphan_age_s: age from which an unnamed ledger or file is reported. retries: of requests.
    patience_s: how long a fault that may be a change in progress, or an entry on its way to a bookie, is examined again
    before it is reported."""

    all_replicas: bool = True
    verify: str = "full"
    rate_bytes_s: int = 0
    orphan_age_s: float = 86400.0
    split_bytes: int = 128 * MiB
    open_cost_bytes: int = 1 * MiB
    retries: int = 6
    patience_s: float = 3.0
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.verify not in ("full", "crc", "none"):
            raise ConfigError(f"verify must be one of full, crc, none: value={self.verify[:60]!r}")
        for name in ("rate_bytes_s", "orphan_age_s", "retries", "patience_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be 0 or more: value={getattr(self, name)}")
        if self.split_bytes < 1 or self.open_cost_bytes < 1:
            raise ConfigError("split_bytes and open_cost_bytes must be at least 1")


def audit(
    spark: SparkSession, selection: Selection, options: AuditOptions, *, progress: Progress | None = None
) -> Report:
    """Verify the streams of `selection`; for a whole namespace, also look for orphan ledgers, files and tables.

    items: a row for each segment, with what was read of it. findings: a row for each problem (`Finding.row`), ordered
    by stream, segment and entry. Raises StreamNotFoundError for a named stream that does not exist, ConfigError for a
    pattern that matches nothing, MetadataUnavailableError, TimeoutError.
    """
    progress = progress or Silent()
    chosen = parse(selection.options(), streaming=False)
    is_whole = not selection.streams and not selection.pattern
    of_cluster = reach(chosen.zookeeper, chosen.namespace, chosen.stores)
    with reporting("audit", dry_run=options.dry_run) as report:
        streams = _look(of_cluster, chosen, is_whole, options, progress)
        packed = partitions(
            [of for facts in streams for of in facts.ranges()],
            split_bytes=options.split_bytes,
            open_cost_bytes=options.open_cost_bytes,
            partitions_min=spark.sparkContext.defaultParallelism,
        )
        report.counts = {
            "streams": len(streams),
            "segments": sum(len(facts.segments) for facts in streams),
            "truncated_segments": sum(map(_truncated, streams)),
            "tasks": len(packed),
        }
        if options.dry_run:
            _say_plan(report, streams, options)
        else:
            errand = AuditParameters(
                zookeeper=chosen.zookeeper,
                namespace=chosen.namespace,
                all_replicas=options.all_replicas,
                verify=options.verify,
                rate_bytes_s=options.rate_bytes_s,
                retries=options.retries,
                patience_s=options.patience_s,
                stores=chosen.stores,
            )
            done = scatter(spark, packed, partial(examine, errand=errand), what="audit", progress=progress)
            findings = _judge(report, of_cluster, streams, [piece for task in done for piece in task], options)
            if is_whole:
                findings += _orphans(report, of_cluster, chosen, options, progress)
            report.counts["findings"] = len(findings)
            report.findings = rows(findings)
    return report


def _look(
    of_cluster: ClusterConnection, chosen: SourceOptions, is_whole: bool, options: AuditOptions, progress: Progress
) -> list[StreamFacts]:
    """Plan the selected streams, some at a time; sorted by name."""
    names: Sequence[str] = chosen.streams
    if not names:
        there = of_cluster.ask(lambda cluster: cluster.metadata.streams(), retries=options.retries)
        names = sorted(name for name in there if chosen.selects(name))
        if not names and not is_whole:
            raise ConfigError(f"no stream matches; `dlog ls` lists streams: pattern={chosen.pattern[:60]!r}")
    found: list[StreamFacts] = []
    done = 0

    def on_done() -> None:
        nonlocal done
        done += 1
        progress.step("plan", done, len(names))

    for at in range(0, len(names), STREAMS_A_LOOK):
        some = names[at : at + STREAMS_A_LOOK]
        work = partial(
            look,
            names=some,
            dry_run=options.dry_run,
            retries=options.retries,
            patience_s=options.patience_s,
            on_done=on_done,
        )
        found += of_cluster.ask(work, timeout_s=LOOK_TIMEOUT_S)
    check_named(chosen, [facts.name for facts in found])
    return found


def _truncated(facts: StreamFacts) -> int:
    return len(facts.value.truncated) if facts.value is not None else 0


def _say_plan(report: Report, streams: Sequence[StreamFacts], options: AuditOptions) -> None:
    """Dry run: report what would be read. bytes: of one copy."""
    for facts in streams:
        report.failures += facts.failures
        for segment in facts.segments:
            if not segment.is_there:
                continue
            replicas = segment.ledger.quorum.write if segment.ledger is not None and options.all_replicas else 1
            replicas *= segment.last >= 0
            row = {
                "stream": facts.name,
                "segment": int(segment.listed.number),
                "state": state_of(segment.listed),
                "store": segment.listed.store,
                "location": segment.listed.name,
                "entries": segment.last + 1,
                "bytes": segment.length,
                "replicas": replicas,
                "read_bytes": segment.length * replicas,
            }
            report.items.append(row)
    for name in ("entries", "bytes", "read_bytes"):
        report.counts[name] = sum(item[name] for item in report.items)


def _judge(
    report: Report,
    of_cluster: ClusterConnection,
    streams: Sequence[StreamFacts],
    pieces: Sequence[RangeResult],
    options: AuditOptions,
) -> list[Finding]:
    """Compare results of tasks with metadata; adds items and failures."""
    by_stream: dict[str, dict[int, list[RangeResult]]] = {}
    for piece in pieces:
        by_stream.setdefault(piece.of.stream, {}).setdefault(piece.of.segment, []).append(piece)
    findings: list[Finding] = []
    for facts in streams:
        of_stream = by_stream.get(facts.name, {})
        gone = {number for number, some in of_stream.items() if any(piece.is_gone for piece in some)}
        if gone:
            findings += _gone(of_cluster, facts, gone, options)
        judged = judge(facts, of_stream)
        findings += judged.findings
        report.items += judged.items
        report.failures += judged.failures
    for name in ("entries", "records", "bytes", "read_bytes"):
        report.counts[name] = sum(item[name] for item in report.items)
    return findings


def _gone(of_cluster: ClusterConnection, facts: StreamFacts, gone: set[int], options: AuditOptions) -> list[Finding]:
    """Findings for segments that went before they were read: none if they were truncated or moved meanwhile, one if
    metadata still names them. Nothing else is reported of these segments."""

    async def again(cluster: Cluster) -> set[tuple[int, str]]:
        value = await read_stream(cluster, stream_name(facts.name))
        kept = () if value is None else value.segments
        return {(s.number, s.name) for s in kept}

    try:
        named = of_cluster.ask(again, retries=options.retries)
    except (DLogError, TimeoutError) as error:
        facts.fail(None, f"its metadata cannot be read again: {error}; run the audit again")
        named = set()
    left = [segment.listed for segment in facts.segments if segment.listed.number in gone]
    facts.segments = tuple(segment for segment in facts.segments if segment.listed.number not in gone)
    return [
        Finding(
            kind=_KIND_OF_GONE.get(segment.store, Kind.OBJECT_GONE),
            stream=facts.name,
            segment=segment.number,
            expected=f"{segment.store} {segment.name}",
            found="nothing",
        )
        for segment in left
        if (segment.number, segment.name) in named
    ]


def _orphans(
    report: Report, of_cluster: ClusterConnection, chosen: SourceOptions, options: AuditOptions, progress: Progress
) -> list[Finding]:
    """Findings for ledgers, files, tables and chains of objects that nothing names."""
    progress.step("orphans", 0, 1)
    work = partial(find_orphans, zookeeper=chosen.zookeeper, namespace=chosen.namespace, age_s=options.orphan_age_s)
    try:
        orphans = of_cluster.ask(work, retries=options.retries, timeout_s=LOOK_TIMEOUT_S)
    except (DLogError, TimeoutError) as error:
        failure = f"the search for orphans failed: {error}; run the audit again"
        report.failures.append({"stream": None, "segment": None, "entries": None, "bookie": None, "error": failure})
        return []
    progress.step("orphans", 1, 1)
    report.counts |= {"ledgers": orphans.ledgers, "foreign_ledgers": orphans.foreign, "files": orphans.files}
    report.counts |= {"tables": orphans.tables, "chains": orphans.chains}
    report.failures += orphans.failures
    return orphans.findings
