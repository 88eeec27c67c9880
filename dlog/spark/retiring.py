"""Retires sinks that write no more: lists what is staged under their names, and deletes it.

Invariants:
- nothing is deleted that a program may still import: first an empty batch of a higher epoch makes every stream that the
  sink staged for refuse its programs; then its stages are swept as by any driver (dlog/spark/stages.py);
- that batch names the incarnation that the sink staged for, so it never touches the next stream of the name;
- every step may be repeated.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

from dlog.errors import DLogError, EndedError, StreamNotFoundError
from dlog.io.zookeeper_protocol import NoNodeError, NotEmptyError
from dlog.model.sink import RegisteredStage, SinkBatch
from dlog.spark.cluster_connection import Cluster
from dlog.spark.proxies import proxies_of
from dlog.spark.stages import UNNUMBERED, registered, sink_path, stage_name, stream_of, sweep
from dlog.stores.contract import MisconfiguredError

QUERY = "retired"  # name of the query of the empty batch


@dataclass(frozen=True, slots=True)
class SinkStages:
    """What is staged under a sink's name. strange: number of registrations that cannot be parsed; they stay."""

    sink: str
    stages: tuple[RegisteredStage, ...]
    strange: int

    @property
    def streams(self) -> list[str]:
        return sorted({stage.stream for stage in self.stages})

    def is_for(self, stream: str, incarnation: str) -> bool:
        """Whether something is, or may be, staged for this incarnation of the stream."""
        return any(stage.stream == stream and stage.incarnation in ("", incarnation) for stage in self.stages)

    @property
    def oldest_unix_ms(self) -> int | None:
        return min((stage.unix_ms for stage in self.stages), default=None)


@dataclass(frozen=True, slots=True)
class Retired:
    """Result. epoch: of the empty batch in these streams; a query may continue under a higher one. left: errors by
    stream, of whose stages some stay."""

    sink: str
    epoch: int
    streams: tuple[str, ...]
    swept: int
    left: dict[str, str]


async def sinks(cluster: Cluster, namespace: str) -> list[SinkStages]:
    """Sinks with registered stages, by name; not writes without a number."""
    try:
        names, _ = await cluster.metadata.zookeeper.children(f"{namespace}/.sinks", fresh=True)
    except NoNodeError:
        return []
    return [await staging(cluster, namespace, name) for name in sorted(names) if name != UNNUMBERED]


async def staging(cluster: Cluster, namespace: str, sink: str) -> SinkStages:
    """What one sink has staged; empty without such a sink."""
    path = sink_path(namespace, sink)
    try:
        names, _ = await cluster.metadata.zookeeper.children(path, fresh=True)
    except NoNodeError:
        return SinkStages(sink, (), 0)
    staged = [(f"{path}/{znode}", name) for znode in sorted(names) if (name := stage_name(znode)) is not None]
    found = [await registered(cluster, znode, sink, name) for znode, name in staged]
    stages = tuple(stage for stage in found if stage is not None)
    return SinkStages(sink, stages, len(found) - len(stages))


async def retire(cluster: Cluster, namespace: str, sink: str, *, timeout_s: float = 30.0) -> Retired:
    """Make the streams that this sink staged for refuse its programs so far, and delete what these staged.

    Stages that are segments already stay. Raises UnavailableError (no write proxy), MetadataUnavailableError. Streams
    that cannot be reached are in `left`; the next call tries them again.
    """
    staged = await staging(cluster, namespace, sink)
    epoch = 1 + max((stage.batch.epoch for stage in staged.stages), default=-1)
    batch = SinkBatch(sink, epoch, QUERY, 0)
    left: dict[str, str] = {}
    if staged.stages:
        async with await proxies_of(cluster, timeout_s) as client:
            incarnations: dict[str, str] = {}
            for stream in staged.streams:
                try:
                    incarnation = await client.incarnation(stream)
                    value = await stream_of(cluster, stream)
                except StreamNotFoundError:
                    continue
                except DLogError as error:
                    left[stream] = error.message
                    continue
                if value.incarnation != incarnation or not staged.is_for(stream, incarnation):
                    continue  # the stream that the sink staged for is deleted
                incarnations[stream] = incarnation
                record = value.sink(sink)
                epoch = max(epoch, 0 if record is None else 1 + record.last.epoch)
            batch = SinkBatch(sink, epoch, QUERY, 0)
            for stream, incarnation in incarnations.items():
                try:
                    await client.import_segments(stream, (), batch, incarnation=incarnation)
                except (StreamNotFoundError, EndedError):
                    continue  # deleted or sealed: it refuses every program
                except DLogError as error:
                    left[stream] = error.message
    for stage in staged.stages:
        try:
            cluster.store(stage.store)
        except MisconfiguredError as error:
            left.setdefault(stage.stream, error.message)
    swept = await sweep(cluster, namespace, batch, keep_s=-math.inf)  # regardless of age
    with suppress(NoNodeError, NotEmptyError):  # a new stage was begun, or stages are left
        await cluster.metadata.zookeeper.delete(sink_path(namespace, sink), -1)
    return Retired(sink, epoch, tuple(staged.streams), swept, left)
