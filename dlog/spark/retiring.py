"""Sinks that write no more: what is staged under their names, and how it is let go.

The law of this file: nobody may still have taken in what is deleted. So a sink's programs are shut out first, of every
stream that it staged something for, by an empty batch of a higher epoch; then it is swept as any driver sweeps
(dlog/spark/stages.py). Everything here may be done again.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

from dlog.errors import DLogError, EndedError, StreamNotFoundError
from dlog.io.zookeeper_protocol import NoNodeError, NotEmptyError
from dlog.model.sink import RegisteredStage, SinkBatch
from dlog.spark.proxies import proxies_of
from dlog.spark.reach import Cluster
from dlog.spark.stages import UNNUMBERED, registered, sink_path, stream_of, sweep

QUERY = "retired"  # in whose name a sink is shut out


@dataclass(frozen=True, slots=True)
class Staging:
    """What is staged under the name of a sink. strange: registrations that cannot be understood, which stay."""

    sink: str
    stages: tuple[RegisteredStage, ...]
    strange: int

    @property
    def streams(self) -> list[str]:
        return sorted({stage.stream for stage in self.stages})

    @property
    def oldest_unix_ms(self) -> int | None:
        return min((stage.unix_ms for stage in self.stages), default=None)


@dataclass(frozen=True, slots=True)
class Retired:
    """What came of it. epoch: that shuts out, in these streams; a query goes on under a higher one. left: failures by
    stream, whose stages stay."""

    sink: str
    epoch: int
    streams: tuple[str, ...]
    swept: int
    left: dict[str, str]


async def sinks(cluster: Cluster, namespace: str) -> list[Staging]:
    """Every sink that something is registered of, by name; not writes without a number."""
    try:
        names, _ = await cluster.metadata.zookeeper.children(f"{namespace}/.sinks", fresh=True)
    except NoNodeError:
        return []
    return [await staging(cluster, namespace, name) for name in sorted(names) if name != UNNUMBERED]


async def staging(cluster: Cluster, namespace: str, sink: str) -> Staging:
    """Of one sink; nothing, if there is none of this name."""
    path = sink_path(namespace, sink)
    try:
        names, _ = await cluster.metadata.zookeeper.children(path, fresh=True)
    except NoNodeError:
        return Staging(sink, (), 0)
    places = [name.removeprefix("stage-") for name in sorted(names) if name.startswith("stage-")]
    found = [await registered(cluster, f"{path}/stage-{place}", sink, place) for place in places]
    stages = tuple(stage for stage in found if stage is not None)
    return Staging(sink, stages, len(found) - len(stages))


async def retire(cluster: Cluster, namespace: str, sink: str, *, timeout_s: float = 30.0) -> Retired:
    """Shut out every program of this sink from the streams that it staged for, and delete what they staged.

    What is a segment already stays one. Raises UnavailableError (no write proxy), MetadataUnavailableError. A stream
    that cannot be asked is told of, and the next try goes on with it.
    """
    told = await staging(cluster, namespace, sink)
    known = {stream: await _epoch(cluster, stream, sink) for stream in told.streams}
    epoch = 1 + max([-1, *known.values(), *(stage.batch.epoch for stage in told.stages)])
    batch = SinkBatch(sink, epoch, QUERY, 0)
    left: dict[str, str] = {}
    if known:
        async with await proxies_of(cluster, timeout_s) as client:
            for stream in known:
                try:
                    await client.take_in(stream, (), batch)
                except (StreamNotFoundError, EndedError):
                    continue  # it is gone, or sealed: it refuses everybody
                except DLogError as error:
                    left[stream] = error.message
    swept = await sweep(cluster, namespace, batch, keep_s=-math.inf)  # of any age, by any clock
    with suppress(NoNodeError, NotEmptyError):  # somebody began another stage, or something is left
        await cluster.metadata.zookeeper.delete(sink_path(namespace, sink), -1)
    return Retired(sink, epoch, tuple(known), swept, left)


async def _epoch(cluster: Cluster, stream: str, sink: str) -> int:
    """The one that writes there; -1: none, or no such stream."""
    try:
        record = (await stream_of(cluster, stream)).sink(sink)
    except StreamNotFoundError:
        return -1
    return -1 if record is None else record.last.epoch
