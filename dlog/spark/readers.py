"""What is kept of a streaming reader under its name: where it began, and how far it has said it came.

The law of this file: where a reader began is written once and never changed, so that a query that starts again before
its first batch was done begins where it began. It lies in `<namespace>/.readers/<id>`, which Java tools skip.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from dlog.errors import ConfigError, DamagedError, MetadataUnavailableError
from dlog.io.zookeeper_protocol import BadVersionError, NodeExistsError, NoNodeError, Stat
from dlog.spark.places import Mark, Marks, Offsets, Place, marks_json, marks_of
from dlog.spark.reach import Cluster

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Reader:
    """What is kept of one. start: where it began. done: before which it has said that it read all; of a query this is
    the end of the batch before its last one (Spark says no more). told_unix_ms: when it said so last. marks: how far it
    came, with what is known of these places."""

    name: str
    start: Offsets
    done: Offsets
    told_unix_ms: int
    marks: Marks = field(default_factory=dict)

    @property
    def places(self) -> dict[str, Place]:
        """By stream: how far it came."""
        return {**self.start, **self.done}


def path_of(namespace: str, reader: str) -> str:
    return f"{namespace}/.readers/{reader}"


async def names(cluster: Cluster, namespace: str) -> list[str]:
    """Every reader of the namespace, in order. Raises MetadataUnavailableError."""
    try:
        return sorted((await cluster.metadata.zookeeper.children(f"{namespace}/.readers", fresh=True))[0])
    except NoNodeError:
        return []


async def find(cluster: Cluster, namespace: str, reader: str) -> Reader | None:
    """What is kept of this one. Raises DamagedError, MetadataUnavailableError."""
    path = path_of(namespace, reader)
    kept = await _read(cluster, path)
    if kept is None:
        return None
    told, stat = kept
    try:
        start, done = (marks_of(told.get(key, {}), f"{key} of reader {reader}") for key in ("start", "done"))
    except ConfigError as error:
        raise DamagedError(f"{error.message}; delete the znode to begin anew: path={path}") from None
    return Reader(reader, _places(start), _places(done), stat.mtime_ms, {**start, **done})


async def readers(cluster: Cluster, namespace: str) -> list[Reader]:
    """All of them. Raises as `find` does, for the first that cannot be read."""
    found = [await find(cluster, namespace, name) for name in await names(cluster, namespace)]
    return [reader for reader in found if reader is not None]


async def begin(cluster: Cluster, namespace: str, reader: str, start: Marks) -> dict[str, Mark]:
    """Keep `start` as where this reader began, unless something is kept already; what is kept, in any case."""
    path = path_of(namespace, reader)
    for _ in range(_TRIES):
        kept = await _read(cluster, path)
        if kept is not None:
            return marks_of(kept[0].get("start", {}), f"start of reader {reader}")
        data = json.dumps({"start": marks_json(start)}, sort_keys=True).encode()
        try:
            await cluster.metadata.zookeeper.create(path, data, parents=True)
        except NodeExistsError:
            continue
    raise MetadataUnavailableError(f"the place of a reader changes under our hands: reader={reader}")


async def commit(cluster: Cluster, namespace: str, reader: str, done: Marks) -> None:
    """Keep that all before `done` was read: for who asks for the lag. Nothing rests on it."""
    path = path_of(namespace, reader)
    for _ in range(_TRIES):
        kept = await _read(cluster, path)
        if kept is None:
            return
        told, stat = kept
        told["done"] = marks_json(done)
        try:
            await cluster.metadata.zookeeper.set(path, json.dumps(told, sort_keys=True).encode(), stat.version)
        except (BadVersionError, NoNodeError):
            continue
        return


async def _read(cluster: Cluster, path: str) -> tuple[dict[str, Any], Stat] | None:
    try:
        data, stat = await cluster.metadata.zookeeper.get(path, fresh=True)
    except NoNodeError:
        return None
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise DamagedError(f"what is kept of a reader cannot be read; delete the znode to begin anew: path={path}")
    return told, stat


def _places(marks: Marks) -> Offsets:
    return {stream: mark.place for stream, mark in marks.items()}
