"""Writes a list of the records that a read left out: lines of JSON that `spark.read.json` reads.

Invariants:
- an object appears whole or not at all;
- a task writes its list once, when it has finished, under a name that no other attempt has;
- a loss is written under the name of the position where it begins, so that a repeated batch replaces its own list.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyspark import TaskContext

from dlog.errors import ConfigError
from dlog.io.clock import unix_ms
from dlog.io.objects import Objects
from dlog.spark.cluster_connection import Cluster
from dlog.spark.columns import Run
from dlog.spark.losses import NOTHING, UNKNOWN, Loss
from dlog.spark.offsets import StreamOffset
from dlog.spark.planning import Range
from dlog.stores.cold import store as cold
from dlog.stores.cold.store import ColdStore
from dlog.stores.contract import MisconfiguredError
from dlog.stores.object_storage.locations import parse_root


@dataclass(frozen=True, slots=True)
class Line:
    """One line. kind: `damaged` (an entry) or `lost` (after a position). loss: user records that are missing."""

    kind: str
    stream: str
    segment: int
    entry: int
    why: str
    loss: Loss
    unix_ms: int

    def as_json(self) -> dict[str, Any]:
        loss = self.loss
        return {
            "kind": self.kind,
            "stream": self.stream,
            "segment": self.segment,
            "entry": self.entry,
            "why": self.why,
            "records": loss.least if loss.is_exact else None,
            "records_min": loss.least,
            "records_max": loss.most,
            "unix_ms": self.unix_ms,
        }


class SkippedEntries:
    """Collects the entries that a task leaves out, in order. The number of records in an entry is the gap between the
    positions of its neighbours; for several entries in a row it is known only in total."""

    def __init__(self, now: Callable[[], int] = unix_ms) -> None:
        self.lines: list[Line] = []
        self._now = now
        self._of: Range | None = None
        self._next = -1  # position of the next record; -1: unknown
        self._waiting: list[tuple[int, str, int]] = []  # entry, reason, time; no records came since
        self.total = NOTHING  # of all lines; several entries in a row are counted once

    def skipped(self, of: Range, entry: int, why: str) -> None:
        self._enter(of)
        self._waiting.append((entry, why, self._now()))

    def passed(self, of: Range, run: Run) -> None:
        """run: not cut, as in its entry."""
        if of is not self._of:
            self._enter(of)
        if self._waiting:
            self._settle(run.position)
        self._next = run.position + len(run.values)

    def finish(self) -> list[Line]:
        """All lines, once every range was read."""
        self._end()
        return self.lines

    def _enter(self, of: Range) -> None:
        if of is self._of:
            return
        self._end()
        self._of, self._next = of, -1 if of.first else 1

    def _end(self) -> None:
        if self._waiting and self._of is not None:
            counted = self._of.counted
            self._settle(counted + 1 if counted >= 0 else -1)

    def _settle(self, position: int) -> None:
        """Make lines of the waiting entries, which lie before this position; -1: it is unknown what follows."""
        waiting, self._waiting = self._waiting, []
        of = self._of
        assert of is not None, "only entries of a range are left out"
        loss = UNKNOWN
        if 0 <= self._next <= position:
            missing = position - self._next
            loss = Loss(missing, missing)
        self.total += loss
        if len(waiting) > 1 and loss.most:
            loss = Loss(0, loss.most)
        self.lines += [Line("damaged", of.stream, of.segment, entry, why, loss, at) for entry, why, at in waiting]


# ---- output ---------------------------------------------------------------------------------------------------------


def attempt_name() -> str:
    """An object name, unique to this attempt at a task."""
    context = TaskContext.get()
    of = f"{context.partitionId()}-{context.taskAttemptId()}" if context is not None else "0-0"
    return f"damaged-{of}-{os.urandom(8).hex()}.json"


def loss_name(stream: str, mark: StreamOffset) -> str:
    """Name of the object for records that were lost after this mark; always the same."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", stream)
    nonce = hashlib.sha256(f"{stream}\n{mark.incarnation}".encode()).hexdigest()[:8]
    return f"lost-{plain}-{nonce}-{'.'.join(map(str, mark.position))}.json"


async def leave(cluster: Cluster, location: str, name: str, lines: Sequence[Line]) -> None:
    """Write these lines as one object. Raises MisconfiguredError, StoreUnavailableError."""
    data = "".join(f"{json.dumps(line.as_json())}\n" for line in lines).encode()
    writer = await _objects(cluster).create(parse_root(location).below(name))
    try:
        await writer.write((data,))
        await writer.finish()
    except BaseException:
        await writer.abort()
        raise


async def check_location(cluster: Cluster, location: str) -> None:
    """Check that objects can be written there, without writing one. Raises ConfigError if the storage refuses."""
    objects, folder = _objects(cluster), parse_root(location)
    try:
        async for _ in objects.list(folder):
            break
        writer = await objects.create(folder.below(f".{attempt_name()}"))
        await writer.abort()
    except MisconfiguredError as error:
        raise ConfigError(
            f"leftOutTo: the location cannot be used, name one that the driver and every worker can write to: "
            f"{error.message}: value={location[:100]!r}"
        ) from None


def _objects(cluster: Cluster) -> Objects:
    return cast(Objects, cast(ColdStore, cluster.stores[cold.NAME]).objects)
