"""Stores the state of a named streaming reader: where it began, and how far it reported.

Invariants:
- where a reader began is written once and never changed, so that a query that restarts before its first batch was done
  begins there again.

The state is in the znode `<namespace>/.readers/<id>`, which Java tools skip.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from dlog.errors import ConfigError, DamagedError, MetadataUnavailableError
from dlog.io.zookeeper_protocol import BadVersionError, NodeExistsError, NoNodeError, Stat
from dlog.spark.cluster_connection import Cluster
from dlog.spark.offsets import Marks, Offsets, StreamOffset, StreamPosition, offsets_as_json, parse_offsets

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Reader:
    """State of one reader. start: where it began. done: it has reported to have read everything before; for a query
    that is the end of the batch before its last one (Spark reports no more). told_unix_ms: time of the last report.
    marks: how far it came, with what is known of these positions."""

    name: str
    start: Offsets
    done: Offsets
    told_unix_ms: int
    marks: Marks = field(default_factory=dict)

    @property
    def positions(self) -> dict[str, StreamPosition]:
        """How far it came, by stream."""
        return {**self.start, **self.done}


def path_of(namespace: str, reader: str) -> str:
    return f"{namespace}/.readers/{reader}"


async def names(cluster: Cluster, namespace: str) -> list[str]:
    """All readers of the namespace, sorted. Raises MetadataUnavailableError."""
    try:
        return sorted((await cluster.metadata.zookeeper.children(f"{namespace}/.readers", fresh=True))[0])
    except NoNodeError:
        return []


async def find(cluster: Cluster, namespace: str, reader: str) -> Reader | None:
    """The state of one reader, or None. Raises DamagedError, MetadataUnavailableError."""
    path = path_of(namespace, reader)
    kept = await _read(cluster, path)
    if kept is None:
        return None
    state, stat = kept
    try:
        start, done = (parse_offsets(state.get(key, {}), f"{key} of reader {reader}") for key in ("start", "done"))
    except ConfigError as error:
        raise DamagedError(f"{error.message}; delete the znode to start over: path={path}") from None
    return Reader(reader, _positions(start), _positions(done), stat.mtime_ms, {**start, **done})


async def readers(cluster: Cluster, namespace: str) -> list[Reader]:
    """All readers. Raises as `find` does, for the first that cannot be read."""
    found = [await find(cluster, namespace, name) for name in await names(cluster, namespace)]
    return [reader for reader in found if reader is not None]


async def begin(cluster: Cluster, namespace: str, reader: str, start: Marks) -> dict[str, StreamOffset]:
    """Store `start` as where this reader began, unless something is stored; returns what is stored."""
    path = path_of(namespace, reader)
    for _ in range(_TRIES):
        kept = await _read(cluster, path)
        if kept is not None:
            return parse_offsets(kept[0].get("start", {}), f"start of reader {reader}")
        data = json.dumps({"start": offsets_as_json(start)}, sort_keys=True).encode()
        try:
            await cluster.metadata.zookeeper.create(path, data, parents=True)
        except NodeExistsError:
            continue
    raise MetadataUnavailableError(f"the znode of a reader keeps changing; retry later: reader={reader}")


async def commit(cluster: Cluster, namespace: str, reader: str, done: Marks) -> None:
    """Record that everything before `done` was read. Used to show the lag only."""
    path = path_of(namespace, reader)
    for _ in range(_TRIES):
        kept = await _read(cluster, path)
        if kept is None:
            return
        state, stat = kept
        state["done"] = offsets_as_json(done)
        try:
            await cluster.metadata.zookeeper.set(path, json.dumps(state, sort_keys=True).encode(), stat.version)
        except (BadVersionError, NoNodeError):
            continue
        return


async def _read(cluster: Cluster, path: str) -> tuple[dict[str, Any], Stat] | None:
    try:
        data, stat = await cluster.metadata.zookeeper.get(path, fresh=True)
    except NoNodeError:
        return None
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise DamagedError(f"the state of a reader cannot be read; delete the znode to start over: path={path}")
    return state, stat


def _positions(marks: Marks) -> Offsets:
    return {stream: mark.position for stream, mark in marks.items()}
