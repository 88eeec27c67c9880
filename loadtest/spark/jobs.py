"""The measured Spark jobs (audit, offload), called as a program does.

Invariants:
- a job with a finding or a failure has no figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dlog
from loadtest.payload import PayloadMaker
from loadtest.spark.filling import RECORD_BYTES
from loadtest.spark.measuring import SCANNED, Figure, WrongRecordsError

if TYPE_CHECKING:
    from dlog.spark.jobs.frame import Report, Selection
    from loadtest.spark.measuring import Bench

COPIES = 3
SEGMENT_BYTES = 64 << 20
OFFLOADED_MAX = 5_000_000  # records: the offloaded stream is written again for each round
_CHUNK = 10_000


def audit(bench: Bench) -> Figure:
    """Audit one copy of each entry."""
    return _audit(bench, all_replicas=False)


def audit_all(bench: Bench) -> Figure:
    """Audit every copy of each entry; MB/s of all copies."""
    return _audit(bench, all_replicas=True)


def _audit(bench: Bench, *, all_replicas: bool) -> Figure:
    from dlog.spark.jobs.audit import AuditOptions
    from dlog.spark.jobs.audit import audit as job

    report = job(bench.spark, _selection(bench, SCANNED), AuditOptions(all_replicas=all_replicas))
    _check(report)
    size = bench.where.records * RECORD_BYTES * (COPIES if all_replicas else 1)
    return Figure(size / report.took_s / 1e6, bench.where.records)


def write_anew(bench: Bench) -> None:
    """Replace the offload stream of the last round by a new one with completed segments and an open one."""
    where = bench.where
    records = min(where.records, OFFLOADED_MAX)
    maker = PayloadMaker(7, RECORD_BYTES)
    with dlog.connect_sync(where.connect) as client:
        if bench.written:
            client.delete(bench.written)
        bench.written = f"w18-offloaded-{bench.next_number()}"
        client.create(bench.written, segment_bytes=SEGMENT_BYTES, ensemble=3, write_quorum=3, ack_quorum=2)
        for first in range(0, records, _CHUNK):
            client.append_many(bench.written, maker.make(first, min(_CHUNK, records - first), 0))
    bench.warm(bench.written)


def offload(bench: Bench) -> Figure:
    """Offload completed segments to a directory, with verification; MB/s of entries."""
    from dlog.spark.jobs.offload import offload as job
    from dlog.spark.jobs.offload_work import OffloadOptions

    to = (bench.where.room / f"cold-{bench.next_number()}").as_uri()
    report = job(bench.spark, _selection(bench, bench.written), OffloadOptions(to=to, older_than_s=0, keep=0))
    _check(report)
    size = report.counts["bytes_planned"]
    if not size:
        raise WrongRecordsError("nothing to offload: a segment has 64 MiB; write more records with --gb")
    return Figure(size / report.took_s / 1e6, report.counts["segments_planned"])


def _selection(bench: Bench, stream: str) -> Selection:
    from dlog.spark.jobs.frame import Selection

    return Selection(zookeeper=bench.where.zookeeper, namespace=bench.where.namespace, streams=(stream,))


def _check(report: Report) -> None:
    if report.findings or report.failures:
        wrong = [*report.failures, *report.findings][:1]
        raise WrongRecordsError(f"{report.job} reported an error: {wrong}")
