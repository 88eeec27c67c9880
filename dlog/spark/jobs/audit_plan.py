"""Plans an audit: the segments of each stream according to metadata and ledgers, and the entries to read.

Invariants:
- planning changes no metadata, except where the tail of an open ledger must be found, which takes nothing from its
  writer (dlog/ledger/finding.py);
- what may be a change in progress is read again, several times; only what stays the same is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from dlog.errors import DamagedError, DLogError, LedgerNotFoundError, MetadataUnavailableError, UnsupportedVersionError
from dlog.machine import Missing, Versioned
from dlog.model.ids import NO_ENTRY, EntryId, LedgerId, StreamName, stream_name
from dlog.model.ledger import LedgerMetadata
from dlog.model.offloading import COLD
from dlog.model.segment import Segment, StreamKey, StreamMetadata
from dlog.options import KiB
from dlog.spark.cluster_connection import Cluster
from dlog.spark.jobs.audit_copies import TaskReading
from dlog.spark.jobs.audit_findings import Finding, Kind
from dlog.spark.jobs.audit_replicas import LEDGER, entry_length
from dlog.spark.planning import Range
from dlog.stores.cold.locations import payload_bytes
from dlog.stores.contract import (
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentStore,
    SegmentTruncatedError,
)
from dlog.stores.file.store import FileStore
from dlog.stores.kafka.store import KafkaStore
from dlog.stores.s3_direct.store import S3DirectStore

LOOK_AGAIN_S = 0.25  # interval between reads of what may be in progress
STREAMS_AT_ONCE, LEDGERS_AT_ONCE = 16, 32
_ENTRY_BYTES = 64 * KiB  # assumed, for a ledger without a bookie that knows its length


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """A segment of the list. is_there: it can be read, as far as is known without reading it. ledger: its metadata, if
    the segment is in an existing ledger. end: its last entry, if it is in files or topics and has an end.

    last: the last entry to read, -1 if there is none. length: bytes up to there; an estimate if it is open or not a
    ledger.
    """

    listed: Segment
    is_there: bool = True
    ledger: LedgerMetadata | None = None
    end: EntryId | None = None
    last: int = -1
    length: int = 0

    @property
    def decided_end(self) -> EntryId | None:
        """The last entry that the segment's store has decided; None if it has not, or keeps no record of it."""
        if self.ledger is not None and self.ledger.is_closed:
            return self.ledger.last_entry
        return self.end

    def range(self, stream: str) -> Range | None:
        """The entries to read, or None."""
        if self.last < 0:
            return None
        return Range(
            stream=stream,
            segment=self.listed.number,
            name=self.listed.name,
            store=self.listed.store,
            first=0,
            last=self.last,
            bytes=max(1, self.length),
            records=self.listed.record_count,
            is_enveloped=self.listed.version >= 4,
        )


@dataclass(slots=True)
class StreamFacts:
    """A stream as it was read. value: None if that failed. findings: those from metadata and ledgers alone
    (audit_segments.py judges the list itself)."""

    name: str
    value: StreamMetadata | None = None
    segments: tuple[SegmentFacts, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    failures: list[dict[str, object]] = field(default_factory=list)

    def ranges(self) -> list[Range]:
        found = [segment.range(self.name) for segment in self.segments]
        return [of for of in found if of is not None]

    def fail(self, segment: int | None, error: str) -> None:
        self.failures.append({"stream": self.name, "segment": segment, "entries": None, "bookie": None, "error": error})


Suspicion = tuple[Kind, int, str]  # kind, segment, location: a fault that may be a change in progress


@dataclass(frozen=True, slots=True)
class _PlanParameters:
    """Parameters. turns: limits concurrent requests for ledgers."""

    dry_run: bool
    reading: TaskReading
    turns: asyncio.Semaphore


async def look(
    cluster: Cluster,
    names: Sequence[str],
    *,
    dry_run: bool,
    retries: int,
    patience_s: float,
    on_done: Callable[[], None],
) -> list[StreamFacts]:
    """Plan each of these streams that exists. dry_run: nothing is changed; tails are what bookies know of them.

    patience_s: how long faults that may be changes in progress are examined again.
    """
    how = _PlanParameters(
        dry_run, TaskReading(retries=retries, patience_s=patience_s), asyncio.Semaphore(LEDGERS_AT_ONCE)
    )
    turns = asyncio.Semaphore(STREAMS_AT_ONCE)

    async def one(name: str) -> StreamFacts | None:
        async with turns:
            try:
                return await _settled(cluster, stream_name(name), how)
            finally:
                on_done()

    async with _raise_first(), asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(name), name=f"audit {name}") for name in names]
    return [facts for task in tasks if (facts := task.result()) is not None]


async def _settled(cluster: Cluster, name: StreamName, how: _PlanParameters) -> StreamFacts | None:
    """The stream, with faults that persisted as findings. None if it does not exist."""
    lasting: dict[Suspicion, Finding] | None = None
    left_s = how.reading.patience_s
    while True:
        facts = StreamFacts(name)
        try:
            facts.value = await read_stream(cluster, name)
        except DamagedError as error:
            facts.findings.append(
                Finding(kind=Kind.METADATA, stream=name, expected="metadata of a stream", found=error.message)
            )
            return facts
        except DLogError as error:
            facts.fail(None, f"{error.message}; run the audit again")
            return facts
        if facts.value is None:
            return None
        suspicions = await _look_at_segments(cluster, facts, facts.value, how)
        known = suspicions.keys() if lasting is None else lasting.keys() & suspicions.keys()
        lasting = {suspicion: suspicions[suspicion] for suspicion in known}
        if not lasting or how.dry_run or left_s <= 0:
            facts.findings += lasting.values()
            return facts
        await asyncio.sleep(LOOK_AGAIN_S)
        left_s -= LOOK_AGAIN_S


async def read_stream(cluster: Cluster, name: StreamName) -> StreamMetadata | None:
    """A stream's metadata, or None. Raises DamagedError, UnsupportedVersionError, MetadataUnavailableError."""
    outcome = await cluster.metadata.read(StreamKey(name))
    if isinstance(outcome, Missing):
        return None
    if not isinstance(outcome, Versioned):
        raise MetadataUnavailableError(f"metadata cannot be read now: stream={name}")
    value: StreamMetadata = outcome.value
    return value


async def _look_at_segments(
    cluster: Cluster, facts: StreamFacts, value: StreamMetadata, how: _PlanParameters
) -> dict[Suspicion, Finding]:
    """Fill in the segments; returns faults that may be changes in progress."""
    suspicions: dict[Suspicion, Finding] = {}

    def suspect(kind: Kind, segment: Segment, expected: str, found: str) -> None:
        suspicions[kind, segment.number, segment.name] = Finding(
            kind=kind, stream=facts.name, segment=segment.number, expected=expected, found=found
        )

    async def one(segment: Segment) -> SegmentFacts:
        async with how.turns:
            return await _segment(cluster, facts, segment, suspect, how)

    async with _raise_first(), asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(s), name=f"audit {facts.name} {s.number}") for s in value.segments]
    facts.segments = tuple(task.result() for task in tasks)
    for segment in value.in_progress:
        later = [s.number for s in value.segments if s.number > segment.number]
        if later:
            suspect(Kind.UNSEALED, segment, "a completed segment", f"in progress, and so is the next: {later[0]}")
    return suspicions


async def _segment(
    cluster: Cluster,
    facts: StreamFacts,
    segment: Segment,
    suspect: Callable[[Kind, Segment, str, str], None],
    how: _PlanParameters,
) -> SegmentFacts:
    if segment.store == COLD:
        return _in_object(cluster, facts, segment)
    if segment.store != LEDGER:
        return await _in_store(cluster, facts, segment, suspect, how)
    try:
        ledger = await cluster.ledgers.metadata_of(LedgerId(int(segment.name)))
    except LedgerNotFoundError:
        suspect(Kind.LEDGER_GONE, segment, f"ledger {segment.name}", "no such ledger")
        return SegmentFacts(listed=segment, is_there=False)
    except (DamagedError, UnsupportedVersionError) as error:
        found = Finding(
            kind=Kind.LEDGER_METADATA,
            stream=facts.name,
            segment=segment.number,
            expected=f"metadata of ledger {segment.name}",
            found=error.message,
        )
        facts.findings.append(found)
        return SegmentFacts(listed=segment, is_there=False)
    except DLogError as error:
        facts.fail(segment.number, f"{error.message}; run the audit again")
        return SegmentFacts(listed=segment, is_there=False)
    if ledger.is_closed:
        return SegmentFacts(listed=segment, ledger=ledger, last=ledger.last_entry, length=ledger.length)
    if segment.completed:
        suspect(Kind.LEDGER_OPEN, segment, f"ledger {segment.name} closed", ledger.state.name.lower())
        last = int(segment.last_entry)
    else:
        try:
            last = int(await _tail(cluster, segment, how.dry_run))
        except DLogError as error:
            facts.fail(segment.number, f"its tail cannot be found: {error.message}; run the audit again")
            return SegmentFacts(listed=segment, ledger=ledger)
    length = await entry_length(cluster, LedgerId(int(segment.name)), ledger, last, how.reading)
    guess = (last + 1) * _ENTRY_BYTES
    return SegmentFacts(listed=segment, ledger=ledger, last=last, length=guess if length is None else length)


@dataclass(frozen=True, slots=True)
class _StoreKinds:
    """How a store's segments are named in findings."""

    what: str
    gone: Kind
    open: Kind


_KINDS = {
    FileStore.name: _StoreKinds("file", Kind.FILE_GONE, Kind.FILE_OPEN),
    KafkaStore.name: _StoreKinds("table", Kind.TABLE_GONE, Kind.TABLE_OPEN),
    S3DirectStore.name: _StoreKinds("chain of objects", Kind.CHAIN_GONE, Kind.CHAIN_OPEN),
}


async def _size(store: SegmentStore, name: str) -> int:
    """Bytes that a segment takes, as far as its store reports them. Raises StoreError."""
    match store:
        case FileStore():
            return (await store.describe(name)).bytes
        case KafkaStore():
            return (await store.describe(name)).payload_bytes
        case S3DirectStore():
            return (await store.tail(name)).payload_bytes
    return 0


async def _in_store(
    cluster: Cluster,
    facts: StreamFacts,
    segment: Segment,
    suspect: Callable[[Kind, Segment, str, str], None],
    how: _PlanParameters,
) -> SegmentFacts:
    nothing = SegmentFacts(listed=segment, is_there=False)
    kinds = _KINDS.get(segment.store, _StoreKinds("segment", Kind.FILE_GONE, Kind.FILE_OPEN))
    ref = SegmentRef(StreamName(facts.name), segment.number, segment.name)
    try:
        store = cluster.store(segment.store)
        size = await _size(store, segment.name)
        reader = await store.open_reader(ref)
        try:
            end = last = reader.end
            if last is None and segment.completed:
                suspect(kinds.open, segment, f"an end of {segment.name}", "none")
                last = segment.last_entry
            elif last is None:
                last = await (reader.wait_lac(NO_ENTRY, 0.0) if how.dry_run else store.find_tail(ref))
        finally:
            await reader.close()
    except SegmentNotFoundError:
        suspect(kinds.gone, segment, f"{kinds.what} {segment.name}", "nothing")
        return nothing
    except SegmentTruncatedError as error:
        suspect(kinds.gone, segment, f"{kinds.what} {segment.name}", error.message)
        return nothing
    except SegmentCorruptError as error:
        facts.findings.append(
            Finding(
                kind=Kind.DIGEST,
                stream=facts.name,
                segment=segment.number,
                expected=f"a {kinds.what} that verifies",
                found=error.message,
                bookie=segment.store,
            )
        )
        return nothing
    except DLogError as error:
        facts.fail(segment.number, f"{error.message}; run the audit again")
        return nothing
    return SegmentFacts(listed=segment, end=end, last=int(last), length=size)


def _in_object(cluster: Cluster, facts: StreamFacts, segment: Segment) -> SegmentFacts:
    if segment.store not in cluster.stores or not segment.completed:
        facts.fail(segment.number, f"it cannot be read by this audit: store={segment.store}")
        return SegmentFacts(listed=segment, is_there=False)
    return SegmentFacts(listed=segment, last=int(segment.last_entry), length=payload_bytes(segment.name))


async def _tail(cluster: Cluster, segment: Segment, dry_run: bool) -> EntryId:
    ledger = LedgerId(int(segment.name))
    if dry_run:
        return await cluster.ledgers.last_confirmed(ledger)
    return await cluster.ledgers.find_tail(ledger)


@contextlib.asynccontextmanager
async def _raise_first() -> AsyncIterator[None]:
    """Raise the first failure of a task group as it is."""
    try:
        yield
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
