"""State that the steps of `offload` share on the driver: the cluster, the report, and iteration over many streams.

Invariants:
- a failure of one stream or segment is reported and stops no other.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from dlog.client.client import Client, connect
from dlog.errors import ConfigError, DamagedError, DLogError, MetadataUnavailableError, UnavailableError
from dlog.io.stores import StoresOptions
from dlog.machine import Missing, Versioned
from dlog.model.ids import SegmentNumber, StreamName, stream_name
from dlog.model.offloading import Record
from dlog.model.segment import StreamKey, StreamMetadata
from dlog.options import SECONDS_MAX
from dlog.spark.cluster_connection import Cluster, ClusterConnection
from dlog.spark.jobs.frame import Progress, Report, Selection
from dlog.spark.jobs.offload_records import OffloadRecords, StoredRecord
from dlog.stores.cold.locations import payload_bytes
from dlog.stores.contract import MisconfiguredError, SegmentRef
from dlog.stores.object_storage.locations import Location, folder_of, parse_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_AT_ONCE = 16
_ASK_S = 3600.0  # timeout of one step for all streams


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadOptions:
    """What is copied where, and what is deleted when. Times in seconds.

    to: root for objects, e.g. file:///directory, s3://bucket/prefix, webhdfs://host:9870/path. older_than_s: time since
    a segment was completed. keep: this many of a stream's newest completed segments stay. grace_s: time from the move
    to an object until the ledger is deleted, for readers with an older plan. parquet: root for Parquet files, one for
    each segment; empty: none. orphan_age_s: age at which leftovers of killed attempts are deleted. connect: proxies of
    the cluster, e.g. dlog://host:port; empty: the registered ones.
    """

    to: str
    older_than_s: float = 86400.0
    keep: int = 1
    grace_s: float = 3600.0
    parquet: str = ""
    parquet_compression: str = "snappy"
    orphan_age_s: float = 86400.0
    connect: str = ""
    dry_run: bool = False

    def __post_init__(self) -> None:
        parse_root(self.to)
        if self.parquet:
            from dlog.spark.jobs.offload_parquet import check_compression

            parse_root(self.parquet)
            check_compression(self.parquet_compression)
        for name in ("older_than_s", "grace_s", "orphan_age_s"):
            if not 0 <= getattr(self, name) < SECONDS_MAX:
                raise ConfigError(f"{name} must be 0 or more seconds: value={getattr(self, name)}")
        if self.keep < 0:
            raise ConfigError(f"keep must be 0 or more: value={self.keep}")


@dataclass(slots=True)
class StreamNow:
    """A stream as of now. value: None if it does not exist. kept: its records. recopy: by number, records whose object
    is unusable."""

    name: StreamName
    value: StreamMetadata | None
    kept: list[StoredRecord]
    recopy: dict[int, StoredRecord] = field(default_factory=dict)


@dataclass(slots=True)
class ColdReadTrial:
    """Whether proxies can read a moved segment: tried with the first segment of a run. refusal: why they cannot."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_over: bool = False
    refusal: str = ""

    def check(self) -> None:
        """Raises MisconfiguredError."""
        if self.refusal:
            raise MisconfiguredError(
                f"proxies cannot read the segment in cold storage, so it stays where it was; configure access to cold "
                f"storage in section [cold] of the proxies' configuration or DLOG_COLD_*: {self.refusal}"
            )


@dataclass(slots=True)
class Job:
    """One run of `offload`."""

    spark: SparkSession
    of_cluster: ClusterConnection
    settings: StoresOptions
    selection: Selection
    options: OffloadOptions
    report: Report
    progress: Progress | None
    cluster_id: str = ""
    streams: list[StreamNow] = field(default_factory=list)
    unread: frozenset[StreamName] = frozenset()  # selected streams of which nothing is known in this run
    trial: ColdReadTrial = field(default_factory=ColdReadTrial)

    def is_meant(self, name: str) -> bool:
        """Whether the job selects a stream of this name. Raises ConfigError."""
        if self.selection.streams:
            return name in self.selection.streams
        try:
            return not self.selection.pattern or re.fullmatch(self.selection.pattern, name) is not None
        except re.error as error:
            text = self.selection.pattern[:60]
            raise ConfigError(f"pattern is not a regular expression: {error}: value={text!r}") from None

    def ask(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        return self.of_cluster.ask(work, timeout_s=_ASK_S)

    def folder(self, stream: str = "", *, root: str = "") -> Location:
        """The folder for the objects of this namespace, or of one of its streams."""
        return folder_of(parse_root(root or self.options.to), self.cluster_id, self.selection.namespace, stream)

    def records(self, cluster: Cluster) -> OffloadRecords:
        return OffloadRecords(cluster, self.selection.namespace)

    async def client(self, cluster: Cluster) -> AbstractAsyncContextManager[Client]:
        """A client of the cluster's proxies. Raises UnavailableError if none is registered."""
        target = self.options.connect
        if not target:
            proxies = (await cluster.metadata.members()).write_proxies.values()
            target = "dlog://" + ",".join(sorted(proxy.address for proxy in proxies))
            if not proxies:
                raise UnavailableError("no write proxy is registered: start one, or name one with option connect")
        return connect(target)

    async def each(self, things: Sequence[Any], work: Callable[[Any], Awaitable[T]], what: str) -> list[T | None]:
        """Call `work` on each, up to 16 at once. A failure is reported and gives None."""
        done: list[T | None] = [None] * len(things)
        following = iter(range(len(things)))

        async def go_through() -> None:
            for index in following:
                try:
                    done[index] = await work(things[index])
                except DamagedError as error:
                    self.report.findings.append({"kind": "metadata", "text": error.message})
                except (DLogError, TimeoutError) as error:
                    self.fail(what, error)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, len(things))):
                group.create_task(go_through(), name=what)
        return done

    # ---- the report -------------------------------------------------------------------------------------------------

    def item(self, record: Record, did: str, **more: Any) -> None:
        self.report.items.append(
            {
                "stream": record.stream,
                "segment": record.number,
                "did": did,
                "from": f"{record.store}:{record.name}",
                "to": record.object,
                "bytes": payload_bytes(record.object),
                **more,
            }
        )

    def find(self, kind: str, stream: str, segment: int, text: str) -> None:
        """kind: source, for a segment that stays where it is; cold, for an object."""
        self.report.findings.append({"kind": kind, "stream": stream, "segment": segment, "text": text})

    def fail(self, what: str, error: Exception | str, **where: Any) -> None:
        text = error if isinstance(error, str) else error.message if isinstance(error, DLogError) else repr(error)
        self.report.failures.append({"what": what, **where, "text": f"{text}; run the job again"})


async def read_stream(cluster: Cluster, name: str) -> StreamMetadata | None:
    """A stream as of now, or None. Raises MetadataUnavailableError, DamagedError."""
    outcome = await cluster.metadata.read(StreamKey(stream_name(name)))
    if isinstance(outcome, Missing):
        return None
    if not isinstance(outcome, Versioned):
        raise MetadataUnavailableError(f"metadata cannot be read now: stream={name}")
    value: StreamMetadata = outcome.value
    return value


def ref_of(stream: str, number: int, name: str) -> SegmentRef:
    return SegmentRef(StreamName(stream), SegmentNumber(number), name)
