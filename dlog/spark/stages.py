"""Stages rows for streams: tasks write segments that no stream lists, registered before the first byte, and swept if
they are never imported. A stage lies in the store that its stream had when it was begun, or if that takes no stages, in
the first store that does.

Invariants:
- what is swept is in no stream's segment list and never will be; `StageSweepRule` in dlog/model/sink.py decides.

A sink's stages are registered in znodes below `<namespace>/.sinks/<sink>`, which Java tools skip.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from dlog.errors import DamagedError, InvalidRequestError, MetadataUnavailableError, StreamNotFoundError
from dlog.io.clock import unix_ms
from dlog.io.zookeeper_protocol import BadVersionError, NodeExistsError, NoNodeError
from dlog.log.staging import StagedSet, StagePacker
from dlog.machine import Missing, Versioned
from dlog.model.ids import EntryId, Epoch, StreamName, escape_name
from dlog.model.segment import LEDGER, StreamKey, StreamMetadata
from dlog.model.sink import RegisteredStage, SinkBatch, StageSweepRule, StreamLook, SweepDecision, registered_stage
from dlog.spark.cluster_connection import Cluster
from dlog.stores.contract import STAGE, SegmentRef, SegmentWriter
from dlog.wire.entry import decode_entry

UNNUMBERED = ".writes"  # stages of writes without a batch number are registered here; no sink can have this name
_UNDER_WAY_MAX = 8  # pending entries of a stage
_READ_BYTES = 4 << 20
_TXID = re.compile(r"([0-9]{1,19})-(.+)-([0-9]{1,19})\Z")


@dataclass(frozen=True, slots=True)
class Staged:
    """A complete stage. has_own_txids: rows brought their own, so it cannot be rewritten with others. incarnation: of
    its stream. store: where it lies."""

    stream: str
    name: str
    last_entry: int
    records: int
    bytes: int
    has_own_txids: bool = False
    incarnation: str = ""
    store: str = LEDGER


def sink_path(namespace: str, sink: str) -> str:
    return f"{namespace}/.sinks/{sink}"


def stage_path(namespace: str, sink: str, name: str) -> str:
    """The znode of a stage. name: of its location."""
    return f"{sink_path(namespace, sink)}/stage-{escape_name(name)}"


def stage_name(znode: str) -> str | None:
    """The name of the location of the stage that has this znode; None if it is not a stage's."""
    kind, _, rest = znode.partition("-")
    return unquote(rest) if kind == "stage" else None


async def stream_of(cluster: Cluster, name: str) -> StreamMetadata:
    """The metadata of a stream as of now. Raises StreamNotFoundError, MetadataUnavailableError."""
    outcome = await cluster.metadata.read(StreamKey(StreamName(name)))
    if isinstance(outcome, Missing):
        raise StreamNotFoundError(f"no such stream, create it first with `dlog create`: stream={name}")
    if not isinstance(outcome, Versioned):
        raise MetadataUnavailableError(f"metadata cannot be read now, retry later: stream={name}")
    value: StreamMetadata = outcome.value
    return value


class Stager:
    """Writes the stages of one Spark task, one for each stream."""

    def __init__(self, cluster: Cluster, namespace: str, batch: SinkBatch) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._batch = batch
        self._open: dict[str, _Stage] = {}

    async def entry(self, stream: str, sets: list[StagedSet], *, has_own_txids: bool) -> None:
        """Write an entry; waits while too many are pending. Raises what the store raises."""
        stage = self._open.get(stream)
        if stage is None:
            stage = self._open[stream] = await self._begin(stream)
        stage.has_own_txids = stage.has_own_txids or has_own_txids
        await stage.append(sets)

    async def finish(self) -> list[Staged]:
        """Close all stages; returns them in order of creation."""
        return [await stage.close() for stage in self._open.values()]

    async def abandon(self) -> None:
        for stage in self._open.values():
            await stage.writer.abandon()

    async def _begin(self, stream: str) -> _Stage:
        value = await stream_of(self._cluster, stream)
        store = self._cluster.store_for_stages(value.settings.store)
        settings = value.settings.store_settings if store.name == value.settings.store else ()
        writer = await store.create(value.name, STAGE, Epoch(0), settings)
        path = stage_path(self._namespace, self._batch.sink, writer.name)
        fields = {"stream": stream, "query": self._batch.query, "batch": self._batch.batch, "unix_ms": unix_ms()}
        fields |= {"epoch": self._batch.epoch, "life": value.incarnation, "store": store.name}
        await self._cluster.metadata.zookeeper.create(path, json.dumps(fields).encode(), parents=True)
        return _Stage(stream, value.incarnation, store.name, writer, StagePacker(self._batch.producer))


class _Stage:
    def __init__(self, stream: str, incarnation: str, store: str, writer: SegmentWriter, packer: StagePacker) -> None:
        self.stream = stream
        self.incarnation = incarnation
        self.store = store
        self.writer = writer
        self.has_own_txids = False
        self._packer = packer
        self._entries = 0
        self._bytes = 0
        self._under_way: deque[Any] = deque()

    async def append(self, sets: list[StagedSet]) -> None:
        parts = self._packer.entry(sets, unix_ms())
        self._bytes += sum(map(len, parts))
        self._under_way.append(self.writer.append(EntryId(self._entries), parts))
        self._entries += 1
        if len(self._under_way) >= _UNDER_WAY_MAX:
            await self._under_way.popleft()

    async def close(self) -> Staged:
        while self._under_way:
            await self._under_way.popleft()
        last = await self.writer.seal()
        assert last == self._entries - 1, "a stage holds what was appended to it"
        return Staged(
            self.stream,
            self.writer.name,
            int(last),
            self._packer.position,
            self._bytes,
            self.has_own_txids,
            self.incarnation,
            self.store,
        )


async def write_again(cluster: Cluster, namespace: str, batch: SinkBatch, staged: Staged, txid: int) -> Staged:
    """Copy a stage, with this txid. Raises DamagedError, and what the store raises."""
    stager = Stager(cluster, namespace, batch)
    try:
        ref = SegmentRef(StreamName(staged.stream), STAGE, staged.name)
        async for payload in entries_of(cluster, ref, staged.last_entry, store=staged.store):
            records = decode_entry(payload, expand=False)
            sets = [StagedSet(txid, _count(r.payload), bytes(r.payload)) for r in records if r.is_user]
            await stager.entry(staged.stream, sets, has_own_txids=False)
        (again,) = await stager.finish()
    except BaseException:
        await stager.abandon()
        raise
    if again.records != staged.records:
        raise DamagedError(f"a stage has a wrong number of records: location={staged.name} found={again.records}")
    return again


def _count(body: Any) -> int:
    return int.from_bytes(bytes(body[4:8]), "big")


async def entries_of(
    cluster: Cluster, ref: SegmentRef, last: int, first: int = 0, *, store: str
) -> AsyncIterator[bytes]:
    """Payloads of entries first..last of a segment or a stage."""
    reader = await cluster.store(store).open_reader(ref)
    try:
        reader.learn_lac(EntryId(last))
        entry = first
        while entry <= last:
            payloads = await reader.read(EntryId(entry), EntryId(last), _READ_BYTES)
            for payload in payloads:
                yield payload
            entry += len(payloads)
    finally:
        await reader.close()


async def txid_of(cluster: Cluster, namespace: str, batch: SinkBatch, least: int) -> int:
    """The txid for a batch's rows without one, at least `least`: the same for all tasks that ask."""
    path = f"{sink_path(namespace, batch.sink)}/txid-{batch.epoch}-{batch.query}-{batch.batch}"
    zookeeper = cluster.metadata.zookeeper
    for _ in range(10):
        with suppress(NoNodeError):
            data, _ = await zookeeper.get(path, fresh=True)
            return int(data)
        with suppress(NodeExistsError):
            await zookeeper.create(path, b"%d" % max(least, unix_ms()), parents=True)
    raise MetadataUnavailableError(f"the znode with the txid of a batch keeps changing; retry later: path={path}")


async def offer(cluster: Cluster, namespace: str, batch: SinkBatch, parts: Sequence[Staged]) -> None:
    """Mark stages of a write without a batch number as about to be imported, so that they are not swept. Raises
    InvalidRequestError if a sweep has begun."""
    for part in parts:
        path = stage_path(namespace, batch.sink, part.name)
        found = await _registration(cluster, path, batch.sink, part.name)
        is_offered = found is not None and found.stage.is_offered
        if not is_offered and (found is None or not await _mark(cluster, path, found, "offered")):
            raise InvalidRequestError(
                f"what this write staged was swept before the import, none of it is in the stream: write it again, "
                f"with a longer stageKeep if it takes that long: stream={part.stream} location={part.name}"
            )


async def _mark(cluster: Cluster, path: str, found: _Registration, mark: str) -> bool:
    """Set a mark. False if the stage is marked as swept and this is another mark, or changed meanwhile."""
    if found.stage.is_swept:
        return mark == "swept"
    try:
        await cluster.metadata.zookeeper.set(path, json.dumps(found.fields | {mark: True}).encode(), found.version)
    except (BadVersionError, NoNodeError):
        return False
    return True


# ---- sweeping -------------------------------------------------------------------------------------------------------


async def sweep(cluster: Cluster, namespace: str, done: SinkBatch, keep_s: float) -> int:
    """Delete stages of this sink that will never be imported; returns their number: those of batches up to `done`,
    which are decided, and those of other queries that are older than `keep_s`. What is in a segment list stays and is
    unregistered. What its query may still import stays, however old: its stream has no later program of this sink on
    record. A stage in a store that is not configured here stays, too, and so does a registration that cannot be parsed;
    the audit, which goes by its name, does not report it."""
    path = sink_path(namespace, done.sink)
    zookeeper = cluster.metadata.zookeeper
    try:
        names, _ = await zookeeper.children(path, fresh=True)
    except NoNodeError:
        return 0
    rule = StageSweepRule(done, unix_ms() - keep_s * 1000, is_numbered=done.sink != UNNUMBERED)
    looks: dict[StreamName, list[StreamLook]] = {}
    swept = 0
    for name in names:
        kind, _, rest = name.partition("-")
        if kind == "txid" and _is_decided_txid(rest, done):
            await _drop(cluster, f"{path}/{name}")
        staged = stage_name(name)
        found = None if staged is None else await _registration(cluster, f"{path}/{name}", done.sink, staged)
        if found is None:
            continue
        stage = found.stage
        seen = looks.setdefault(stage.stream, [])
        while (verdict := rule.judge(stage, seen)) is SweepDecision.LOOK:
            seen.append(await _look(cluster, stage.stream, done.sink))
        if verdict is SweepDecision.STAYS or (verdict is SweepDecision.GOES and stage.store not in cluster.stores):
            continue
        if verdict is SweepDecision.GOES:
            if not rule.is_numbered and not await _mark(cluster, f"{path}/{name}", found, "swept"):
                continue  # it is being imported
            await cluster.store(stage.store).delete(SegmentRef(stage.stream, STAGE, stage.name))
            swept += 1
        await _drop(cluster, f"{path}/{name}")
    return swept


def _is_decided_txid(rest: str, done: SinkBatch) -> bool:
    """Whether a txid's name, `<epoch>-<query>-<batch>`, belongs to a decided batch."""
    found = _TXID.match(rest)
    if found is None:
        return False
    epoch, query, batch = found.groups()
    return (epoch, query) == (str(done.epoch), done.query) and int(batch) <= done.batch


async def registered(cluster: Cluster, path: str, sink: str, name: str) -> RegisteredStage | None:
    """A registered stage, or None if it is gone or cannot be parsed."""
    found = await _registration(cluster, path, sink, name)
    return None if found is None else found.stage


@dataclass(frozen=True, slots=True)
class _Registration:
    """A registered stage. fields, version: of its znode."""

    stage: RegisteredStage
    fields: dict[str, Any]
    version: int


async def _registration(cluster: Cluster, path: str, sink: str, name: str) -> _Registration | None:
    try:
        data, stat = await cluster.metadata.zookeeper.get(path, fresh=True)
        fields = json.loads(data)
        stage = registered_stage(sink, name, fields)
    except (NoNodeError, ValueError, RecursionError):
        return None
    return None if stage is None else _Registration(stage, fields, stat.version)


async def _look(cluster: Cluster, stream: StreamName, sink: str) -> StreamLook:
    """A stream, for a sweep. Raises what reading metadata raises."""
    try:
        value = await stream_of(cluster, stream)
    except StreamNotFoundError:
        return StreamLook(is_open=False)
    locations = frozenset(name for segment in value.listed for name in segment.locations)
    return StreamLook(value.sink(sink), locations, is_open=not value.is_sealed, incarnation=value.incarnation)


async def _drop(cluster: Cluster, path: str) -> None:
    with suppress(NoNodeError):
        await cluster.metadata.zookeeper.delete(path, -1)
