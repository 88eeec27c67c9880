"""What a read leaves out, as lines of JSON in a place that `spark.read.json` reads.

The law of this file: an object appears whole or not at all. What a task leaves out is told once it is through, under a
name that no other attempt has; a loss under the name of where it begins, so that a batch that is repeated tells it in
the place of what it told before.
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
from dlog.spark.columns import Run
from dlog.spark.losses import NOTHING, UNKNOWN, Loss
from dlog.spark.places import Mark
from dlog.spark.planning import Range
from dlog.spark.reach import Cluster
from dlog.stores.cold import store as cold
from dlog.stores.cold.places import parse_root
from dlog.stores.cold.store import ColdStore
from dlog.stores.contract import MisconfiguredError


@dataclass(frozen=True, slots=True)
class Line:
    """kind: `damaged`, an entry; or `lost`, what followed a place. loss: user records that are missing for it."""

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


class LeftOut:
    """Entries that a task leaves out, told in the order in which they lie. How many records they had is what lies
    between the positions of their neighbours; of several entries in a row it is known of all of them together."""

    def __init__(self, now: Callable[[], int] = unix_ms) -> None:
        self.lines: list[Line] = []
        self._now = now
        self._of: Range | None = None
        self._next = -1  # position of the record to come, if it is known
        self._waiting: list[tuple[int, str, int]] = []  # entry, why, when; nothing with records came since
        self.total = NOTHING  # of all lines; what several entries in a row had is counted once

    def skipped(self, of: Range, entry: int, why: str) -> None:
        self._enter(of)
        self._waiting.append((entry, why, self._now()))

    def passed(self, of: Range, run: Run) -> None:
        """run: whole, as it lies in its entry."""
        if of is not self._of:
            self._enter(of)
        if self._waiting:
            self._settle(run.position)
        self._next = run.position + len(run.values)

    def finish(self) -> list[Line]:
        """All of them, once every range is through."""
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
        """They lie before this position; -1: nobody knows which one follows."""
        waiting, self._waiting = self._waiting, []
        of = self._of
        assert of is not None, "entries are left out of a range"
        loss = UNKNOWN
        if 0 <= self._next <= position:
            missing = position - self._next
            loss = Loss(missing, missing)
        self.total += loss
        if len(waiting) > 1 and loss.most:
            loss = Loss(0, loss.most)
        self.lines += [Line("damaged", of.stream, of.segment, entry, why, loss, at) for entry, why, at in waiting]


# ---- where it goes --------------------------------------------------------------------------------------------------


def attempt_name() -> str:
    """Of the object of this attempt at a task: no other has it."""
    context = TaskContext.get()
    of = f"{context.partitionId()}-{context.taskAttemptId()}" if context is not None else "0-0"
    return f"damaged-{of}-{os.urandom(8).hex()}.json"


def loss_name(stream: str, mark: Mark) -> str:
    """Of the object that tells what was lost behind this mark: always the same."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", stream)
    nonce = hashlib.sha256(f"{stream}\n{mark.life}".encode()).hexdigest()[:8]
    return f"lost-{plain}-{nonce}-{'.'.join(map(str, mark.place))}.json"


async def leave(cluster: Cluster, place: str, name: str, lines: Sequence[Line]) -> None:
    """Write these lines as one object. Raises MisconfiguredError, StoreUnavailableError."""
    data = "".join(f"{json.dumps(line.as_json())}\n" for line in lines).encode()
    writer = await _objects(cluster).create(parse_root(place).below(name))
    try:
        await writer.write((data,))
        await writer.finish()
    except BaseException:
        await writer.abort()
        raise


async def check_place(cluster: Cluster, place: str) -> None:
    """See whether anything can be written there; nothing is. Raises ConfigError if the storage says that it cannot."""
    objects, folder = _objects(cluster), parse_root(place)
    try:
        async for _ in objects.list(folder):
            break
        writer = await objects.create(folder.below(f".{attempt_name()}"))
        await writer.abort()
    except MisconfiguredError as error:
        raise ConfigError(
            f"leftOutTo: the place cannot be used, name one that the driver and every worker can write to: "
            f"{error.message}: value={place[:100]!r}"
        ) from None


def _objects(cluster: Cluster) -> Objects:
    return cast(Objects, cast(ColdStore, cluster.stores[cold.NAME]).objects)
