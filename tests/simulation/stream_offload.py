"""Runs of `offload` in the simulated world of one stream: several at once move segments to cold storage and back.

Each run goes through the completed segments as dlog/spark/jobs/offload_settle.py does, by the rules of
dlog/model/offloading.py: it reads the record, then metadata, and does what follows. It may pause before each step. It
reports some objects as damaged at random, so that segments are taken back. A request to a stream's owner is sent once
or twice, may wait in front of an owner for long after the run gave up, and its answer may be lost.

A copy is made at once, and what is in cold storage outlives every fault: the checks are about which copies are deleted.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dlog.errors import DLogError
from dlog.log.messages import STORE, DeleteSegment, MoveListedSegment, SegmentDeleted
from dlog.machine import (
    Asked,
    CompareAndSet,
    Effect,
    Fact,
    MetadataSeen,
    Missing,
    PeerLost,
    ReadMetadata,
    Received,
    Send,
    SetTimer,
    Versioned,
)
from dlog.model.ids import SegmentNumber
from dlog.model.offloading import COLD, Record, Step, decide
from dlog.model.segment import Location, Segment, StreamMetadata
from tests.simulation.store_model import StoredSegment

if TYPE_CHECKING:
    from tests.simulation.stream_world import StreamWorld

RUN_NODE = "o"
_GIVE_UP_S = 0.1  # after this time a run does not wait for an owner's answer
_PAUSES_S = (0.0, 0.0, 0.0, 0.01, 0.05, 0.2, 0.5)

Steps = Generator[Effect, Fact, Any]


@dataclass(frozen=True, slots=True)
class RecordKey:
    """The key of a segment's record in metadata."""

    number: int


class Run:
    """One run; it begins with any request. A failure with a segment ends the work on that segment."""

    def __init__(self, world: StreamWorld, number: int) -> None:
        self._world = world
        self._rng = random.Random(f"{world.plan.seed}/offload/{number}")
        self._name = number
        self._copies = 0
        self._told: Any = None
        self._steps = self._run()

    def handle(self, fact: Fact) -> list[Effect]:
        if isinstance(fact, PeerLost):
            return []
        try:
            return [next(self._steps) if isinstance(fact, Asked) else self._steps.send(fact)]
        except StopIteration:
            return []

    def _run(self) -> Steps:
        value, _ = yield from self._read(self._world.key)
        for segment in value.segments[:-1] if value is not None else ():
            yield from self._one(segment.number)

    # ---- one segment ------------------------------------------------------------------------------------------------

    def _one(self, number: SegmentNumber) -> Steps:
        record, version = yield from self._read(RecordKey(number))
        value, _ = yield from self._read(self._world.key)
        if value is None or version is _UNKNOWN:
            return
        segment = value.segment(number)
        if record is None:
            if segment is not None and segment.completed and segment.last_entry >= 0 and segment.store != COLD:
                yield from self._copy(segment, None, version)
            return
        decision = decide(record, value, now_unix_ms=1, grace_s=0.0)
        self._world.sim.reach(f"offload_{decision.step.value.replace(' ', '_')}")
        match decision.step:
            case Step.REQUEST_MOVE if record.needs_copy and segment is not None:
                yield from self._copy(segment, record, version)
            case Step.REQUEST_MOVE:
                yield from self._tell(record, version)
            case Step.NOTE:
                yield from self._set(record, replace(record, moved_unix_ms=1), version)
            case Step.RETIRE if self._rng.random() < 0.4:
                yield from self._go_back(record, version, decision.lies_at)
            case Step.TAKE_BACK:
                yield from self._relocate(record, COLD, decision.lies_at, record.store, record.name)
            case Step.RETIRE | Step.DROP | Step.CLEAR:
                version = yield from self._set(record, record.deleting(), version)
                if version is not _UNKNOWN:
                    yield from self._forget(record.deleting(), version, decision.lies_at)

    def _copy(self, segment: Segment, was: Record | None, version: Any) -> Steps:
        """Copy the segment. The copy's location is recorded before the stream is changed."""
        self._copies += 1
        place = f"cold-{segment.number}-{self._name}-{self._copies}"
        if not self._world.offload.copy(segment.location, Location(COLD, place)):
            return
        fresh = Record(stream="s", number=segment.number, store=segment.store, name=segment.name, objects=())
        record = (was or fresh).with_object(place)
        if record is None:
            return
        version = yield from self._set(was, record, version)
        if version is not _UNKNOWN:
            yield from self._tell(record, version)

    def _tell(self, record: Record, version: Any) -> Steps:
        is_told = yield from self._relocate(record, record.store, record.name, COLD, record.object)
        if not is_told:
            return
        if self._rng.random() < 0.3:
            yield from self._go_back(record, version, record.object)  # no proxy reads it there
        else:
            yield from self._set(record, replace(record, moved_unix_ms=1), version)

    def _go_back(self, record: Record, version: Any, lies_at: str) -> Steps:
        returning = record.returning(lies_at, is_damaged=self._rng.random() < 0.5)
        if returning is None:
            return
        version = yield from self._set(record, returning, version)
        if version is not _UNKNOWN:
            self._world.sim.reach("offload_back")
            yield from self._relocate(record, COLD, lies_at, record.store, record.name)

    def _forget(self, record: Record, version: Any, lies_at: str) -> Steps:
        value, _ = yield from self._read(self._world.key)
        if value is None:
            return
        still = {(s.store, s.name) for s in value.listed}
        if (record.store, record.name) in still:
            return
        yield from self._delete(record.store, record.name, record.number)
        for place in record.objects:
            if place != lies_at and (COLD, place) not in still:
                yield from self._delete(COLD, place, record.number)
        self._world.sim.reach("offloaded")
        yield from self._set(record, None, version)

    # ---- reading and writing metadata -------------------------------------------------------------------------------

    def _pause(self) -> Steps:
        pause_s = self._rng.choice(_PAUSES_S)
        if pause_s:
            yield SetTimer("go on", pause_s)

    def _read(self, key: Any) -> Steps:
        """Value and version, or None and the reason."""
        yield from self._pause()
        seen = yield ReadMetadata("look", key)
        match seen:
            case MetadataSeen(_, Versioned(value, version)):
                return value, version
            case MetadataSeen(_, Missing()):
                return None, None
        return None, _UNKNOWN

    def _set(self, was: Record | None, record: Record | None, version: Any) -> Steps:
        """The version with which it is stored in metadata now; _UNKNOWN if that is not certain."""
        yield from self._pause()
        key = RecordKey((record or was or _NOBODY).number)
        seen = yield CompareAndSet("set", key, record, version)
        match seen:
            case MetadataSeen(_, Versioned(_, written)):
                return written
        return _UNKNOWN

    def _delete(self, store: str, place: str, number: int) -> Steps:
        yield from self._pause()
        if store == COLD:
            self._world.offload.delete(Location(COLD, place))
            return
        deleted = yield Send(STORE, DeleteSegment(Location(store, place), SegmentNumber(number)))
        while not (isinstance(deleted, Received) and isinstance(deleted.message, SegmentDeleted)):
            deleted = yield SetTimer("wait", 1.0)

    def _relocate(self, record: Record, store: str, place: str, to_store: str, to_place: str) -> Steps:
        """Whether the stream's owner says that the segment is at that location now."""
        yield from self._pause()
        world, self._told = self._world, None
        request = MoveListedSegment(SegmentNumber(record.number), store, place, to_store, to_place)
        for _ in range(self._rng.choice((1, 1, 2))):
            late_s = self._rng.choice((0.0, 0.0, 0.05, 0.3, 1.0)) * self._rng.random()
            proxy = world.proxies[self._rng.choice(sorted(world.proxies))]
            world.sim.call_in(late_s, proxy.receive, request, self._rng.random() < 0.3, self._heard, node=proxy.name)
        yield SetTimer("give up", _GIVE_UP_S)
        if self._told is not None and not isinstance(self._told, DLogError):
            world.sim.reach("relocated")
            return True
        return False

    def _heard(self, result: Any, _: int) -> None:
        self._told = (result,) if not isinstance(result, DLogError) else result


_UNKNOWN = object()  # the outcome of a request is not known, or it was refused
_NOBODY = Record(stream="s", number=0, store="", name="", objects=())


class OffloadChecks:
    """The content of cold storage. E2: metadata names nothing that was deleted."""

    def __init__(self, world: StreamWorld) -> None:
        self._world = world
        self._objects: dict[Location, StoredSegment] = {}
        self._runs = 0

    def begin(self) -> None:
        for at_s in self._world.config.get("offloads", ()):
            self._world.sim.call_in(at_s, self._begin_run)

    def _begin_run(self) -> None:
        self._runs += 1
        address = f"{RUN_NODE}/run-{self._runs}"
        self._world.sim.place(RUN_NODE, address, Run(self._world, self._runs))
        self._world.sim.ask(address, "run")

    def store_started(self) -> None:
        """The store restarted and lost what it does not store durably."""
        self._world.store.segments.update(self._objects)

    def copy(self, at: Location, to: Location) -> bool:
        """Whether there is something to copy."""
        held = self._world.store.segments.get(at)
        if held is None or held.end is None:
            return False
        made = StoredSegment(to, held.number, list(held.payloads), held.end, held.end, held.end, is_final=True)
        self._objects[to] = self._world.store.segments[to] = made
        return True

    def delete(self, location: Location) -> None:
        """Delete an object at once."""
        if self._objects.pop(location, None) is not None:
            self._world.store.segments.pop(location, None)
            self._world.store.deleted.add(location)
        self.check(self._world.value)

    def check(self, value: StreamMetadata) -> None:
        """Check E2, whenever metadata was written or something was deleted."""
        for segment in value.segments:
            if segment.location in self._world.store.deleted:
                self._world.checks.fail("E2", f"segment {segment.number} lies at {segment.location}, which was deleted")
