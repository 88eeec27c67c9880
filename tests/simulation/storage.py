"""State that outlives a process in the simulator: journals, and the metadata store."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from typing import Any

from dlog.errors import DLogError
from dlog.machine import Conflict, Missing, Outcome, Refused, SeenOutcome, Versioned
from dlog.model.segment import StreamMetadata


class Disk:
    """One journal: the data of each Persist, and how much of it is on stable storage."""

    def __init__(self) -> None:
        self.durable: list[tuple[int, Any]] = []
        self.pending: list[tuple[int, Any]] = []
        self.syncing = 0  # how many of `pending` the running sync covers

    def sync(self) -> int:
        """End the running sync; returns the last token it made durable."""
        self.durable.extend(self.pending[: self.syncing])
        del self.pending[: self.syncing]
        self.syncing = 0
        return self.durable[-1][0]

    def crash(self, rng: random.Random, *, power: bool) -> None:
        """Crash: what was written is kept; after a power cut only a prefix of it."""
        kept = len(self.pending) if not power else rng.choice((0, 0, rng.randint(0, len(self.pending))))
        self.durable.extend(self.pending[:kept])
        self.pending.clear()
        self.syncing = 0


class MetadataModel:
    """A versioned map. Versions grow over all keys, so that a key that was deleted and created again is recognised.

    A stream whose owner is written as deleted is missing from then on, with its remaining data, until `remove`.
    """

    def __init__(self) -> None:
        self.values: dict[Hashable, Versioned] = {}
        self.history: list[tuple[Hashable, Any, int]] = []
        self._version = 0
        self.stamp: Callable[[Any], Any] = lambda value: value  # adds the metadata clock to a value
        self.refusal: Callable[[Any, Any], DLogError | None] = lambda old, new: None  # the reason to refuse a change
        self.on_change: Callable[[Hashable, Any, Any], None] | None = None  # (key, old value, new value)

    def create(self, key: Hashable, value: Any) -> Versioned:
        """Write a value directly, to set up a world."""
        old = self.values.get(key)
        value = self.stamp(value)
        self._version += 1
        seen = self.values[key] = Versioned(value, self._version)
        self.history.append((key, value, self._version))
        if self.on_change is not None:
            self.on_change(key, old.value if old else None, value)
        return seen

    def read(self, key: Hashable) -> Outcome:
        found = self.values.get(key)
        if found is None or (isinstance(found.value, StreamMetadata) and found.value.owner.deleted):
            return Missing(left=found)
        return found

    def remove(self, key: Hashable, incarnation: str) -> None:
        """Remove the rest of a stream that was marked as deleted in this incarnation."""
        found = self.values.get(key)
        if found is not None and found.value.incarnation == incarnation and found.value.owner.deleted:
            del self.values[key]

    def compare_and_set(self, key: Hashable, value: Any, version: Any) -> SeenOutcome:
        current = self.values.get(key)
        if current is None:
            return self.create(key, value) if version is None else Missing()
        if version is None or current.version != version:
            return Conflict()
        refusal = self.refusal(current.value, value)
        return self.create(key, value) if refusal is None else Refused(refusal)

    def touch(self) -> None:
        """Rewrite every value unchanged, as a repair of other fields would: every version moves."""
        for key, seen in list(self.values.items()):
            self._version += 1
            self.values[key] = Versioned(seen.value, self._version)
