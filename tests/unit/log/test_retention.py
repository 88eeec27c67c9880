"""Retention: a segment expires when it is over by the proxies' clocks and by metadata's, whatever its records
contain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.events import RetentionHeld, SegmentDeleted
from dlog.log.changes import Expire
from dlog.log.messages import AppendEntry, HandOverStream, SealStream
from dlog.log.options import OwnerOptions
from dlog.machine import CompareAndSet
from dlog.model.segment import Truncation
from dlog.stores.contract import StoreOutOfReachError
from tests.unit.log.stage import Actor, Stage, batch

DAY_MS = 86_400_000
RETENTION_S = 3600.0
NOW_MS = 1_000 * DAY_MS


class Clocks:
    """A stream whose segments end one after the other: a proxy's clock and metadata's, and their errors."""

    def __init__(self, **settings: object) -> None:
        self.stage = Stage(segment_bytes=300, retention_s=RETENTION_S, **settings)
        self.proxy_ms = self.metadata_ms = 0  # ahead of the true time
        self._sequence = 0
        self.stage.unix_ms = NOW_MS

    @property
    def true_ms(self) -> int:
        return NOW_MS + int(self.stage.now_s * 1000)

    def owner(self) -> Actor:
        """Another proxy takes the stream, with its clock."""
        self._set()
        owner = self.stage.owner(f"p{len(self.stage.actors)}", OwnerOptions())
        owner.take(now_unix_ms=self.true_ms + self.proxy_ms)
        self._judge(owner)
        return owner

    def write(self, owner: Actor, *, label_ms: int | None = None) -> None:
        """Write a batch that fills a segment. label_ms: the time in its record, ahead of the true time."""
        self._set()
        label_ms = self.proxy_ms if label_ms is None else label_ms
        owner.ask(batch(self._sequence, size=300, now=self.true_ms + label_ms))
        self._sequence += 1
        self._judge(owner)

    def pass_s(self, seconds: float) -> None:
        self.stage.now_s += seconds

    def fall_due(self, owner: Actor) -> None:
        """The timer of the oldest segment fires."""
        self._set()
        self._judge(owner)
        owner.fire("due")
        self._judge(owner)

    def _set(self) -> None:
        self.stage.unix_ms = self.true_ms + self.metadata_ms

    def _judge(self, owner: Actor) -> None:
        while ("retention",) in owner.timers:
            owner.fire("retention")


def kept(clocks: Clocks) -> list[int]:
    """Numbers of the segments that can be read."""
    return [s.number for s in clocks.stage.value.segments if s.truncation is not Truncation.TRUNCATED]


def test_a_segment_expires_once_its_retention_has_passed_and_not_before() -> None:
    clocks = Clocks()
    owner = clocks.owner()
    clocks.write(owner)
    clocks.pass_s(RETENTION_S - 1)
    clocks.write(owner)
    assert kept(clocks) == [1, 2, 3] and "1a" not in clocks.stage.deleted
    clocks.pass_s(2)
    clocks.write(owner)
    assert kept(clocks) == [2, 3, 4] and clocks.stage.deleted == ["1a"]
    assert SegmentDeleted("s", 1, "1a") in owner.events


def test_without_a_retention_everything_is_kept_and_no_timer_is_set() -> None:
    stage = Stage(segment_bytes=300, retention_s=0.0)
    owner = stage.taken("p1")
    owner.ask(batch(0, size=300))
    assert ("retention",) not in owner.timers
    stage.now_s = 1e9
    stage.unix_ms += 10**12
    owner.ask(batch(1, size=300))
    assert not stage.deleted and len(stage.value.segments) == 3


def test_a_batch_taken_with_a_clock_days_ahead_makes_nothing_expire_for_the_next_owner() -> None:
    """The time in records never decreases: an owner whose clock is right inherits it."""
    clocks = Clocks()
    owner = clocks.owner()
    clocks.write(owner)
    clocks.write(owner, label_ms=4 * DAY_MS)
    owner.ask(HandOverStream())
    owner = clocks.owner()
    clocks.write(owner)
    clocks.write(owner)
    assert kept(clocks)[0] == 1 and "1a" not in clocks.stage.deleted


@pytest.mark.parametrize("days", [-4, 4])
@pytest.mark.parametrize("whose", ["proxy", "metadata"])
@pytest.mark.parametrize("when", ["at the end of the segment", "when it is judged", "always"])
def test_no_clock_alone_makes_a_segment_expire_early(days: int, whose: str, when: str) -> None:
    clocks = Clocks()
    if when != "when it is judged":
        setattr(clocks, f"{whose}_ms", days * DAY_MS)
    owner = clocks.owner()
    clocks.write(owner)
    owner.ask(HandOverStream())
    setattr(clocks, f"{whose}_ms", days * DAY_MS if when != "at the end of the segment" else 0)
    clocks.pass_s(RETENTION_S / 2)
    owner = clocks.owner()
    clocks.write(owner)
    assert kept(clocks)[0] == 1 and "1a" not in clocks.stage.deleted


def test_a_clock_that_jumps_while_the_stream_is_owned_is_not_looked_at() -> None:
    """Everything on one machine: ZooKeeper's clock jumps with the proxy's."""
    clocks = Clocks()
    owner = clocks.owner()
    clocks.write(owner)
    clocks.pass_s(1)
    clocks.proxy_ms = clocks.metadata_ms = 4 * DAY_MS
    clocks.write(owner)
    clocks.write(owner)
    assert kept(clocks)[0] == 1 and "1a" not in clocks.stage.deleted


def test_clocks_that_disagree_let_nothing_expire_and_are_told_of() -> None:
    clocks = Clocks()
    owner = clocks.owner()
    clocks.write(owner)
    owner.ask(HandOverStream())
    clocks.pass_s(2 * RETENTION_S)
    clocks.proxy_ms = 4 * DAY_MS
    owner = clocks.owner()
    clocks.write(owner)
    assert kept(clocks)[0] == 1
    assert RetentionHeld("s", clocks.true_ms + 4 * DAY_MS, clocks.true_ms) in owner.events
    clocks.proxy_ms = 0
    owner.ask(HandOverStream())
    owner = clocks.owner()
    assert kept(clocks)[0] == 2, "the next owner's clock is right"
    assert not [e for e in owner.events if isinstance(e, RetentionHeld)]


def test_clocks_that_disagree_are_no_matter_while_nothing_is_old_by_any_of_them() -> None:
    clocks = Clocks()
    clocks.proxy_ms = 120_000
    owner = clocks.owner()
    clocks.write(owner)
    clocks.write(owner)
    assert not [e for e in owner.events if isinstance(e, RetentionHeld)]


def test_what_expires_is_judged_by_the_retention_that_metadata_has_when_it_is_written() -> None:
    """The retention is raised between the decision and the write."""
    clocks = Clocks()
    owner = clocks.owner()
    clocks.write(owner)
    clocks.pass_s(2 * RETENTION_S)
    clocks.stage.hold(CompareAndSet)
    clocks.write(owner)
    stage = clocks.stage
    stage.value, stage.version = replace(stage.value, settings=replace(stage.value.settings, retention_s=0)), 99
    stage.release()
    clocks.write(owner)
    assert kept(clocks)[0] == 1 and "1a" not in stage.deleted


def test_a_segment_of_which_metadata_does_not_know_since_when_has_no_age() -> None:
    clocks = Clocks()
    clocks.write(clocks.owner())
    value = clocks.stage.value
    unknown = replace(value, segments=tuple(replace(s, metadata_unix_ms=0) for s in value.segments))
    late = Expire(NOW_MS + 100 * DAY_MS)
    assert late.apply(value) != value and late.apply(unknown) == unknown


def test_a_segment_is_completed_when_the_store_says_so_however_long_its_last_batch_has_waited() -> None:
    clocks = Clocks()
    owner = clocks.owner()
    clocks.stage.hold(AppendEntry)
    owner.ask(batch(0, now=clocks.stage.unix_ms))
    clocks.pass_s(100)
    clocks.stage.release()
    owner.ask(SealStream())
    (segment,) = clocks.stage.value.segments
    assert segment.completed_unix_ms >= clocks.true_ms


def test_a_stream_that_falls_silent_loses_what_expires() -> None:
    clocks = Clocks()
    owner = clocks.owner()
    clocks.write(owner)
    clocks.pass_s(60)
    clocks.write(owner)
    assert owner.timers["due",] == RETENTION_S - 60 + 0.001
    clocks.pass_s(RETENTION_S - 60)
    clocks.fall_due(owner)
    assert kept(clocks) == [1, 2, 3], "exactly as old as it may be"
    clocks.pass_s(1)
    clocks.fall_due(owner)
    assert kept(clocks) == [2, 3]
    clocks.fall_due(owner)
    assert owner.timers["due",] == 60 - 1 + 0.001
    clocks.pass_s(60)
    clocks.fall_due(owner)
    assert kept(clocks) == [3]
    clocks.fall_due(owner)
    clocks.pass_s(100 * RETENTION_S)
    assert ("due",) not in owner.timers and kept(clocks) == [3], "the last one stays"


def test_a_sealed_stream_loses_what_expires_but_its_last_segment() -> None:
    clocks = Clocks()
    owner = clocks.owner()
    clocks.write(owner)
    clocks.write(owner)
    owner.ask(SealStream())
    clocks.pass_s(RETENTION_S + 1)
    clocks.fall_due(owner)
    assert kept(clocks) == [3] and clocks.stage.value.is_sealed


def test_while_clocks_are_apart_a_silent_stream_is_looked_at_now_and_then() -> None:
    clocks = Clocks()
    owner = clocks.owner()
    clocks.write(owner)
    clocks.write(owner)
    clocks.pass_s(RETENTION_S + 1)
    clocks.metadata_ms = 10 * DAY_MS
    clocks.fall_due(owner)
    assert kept(clocks) == [1, 2, 3] and any(isinstance(e, RetentionHeld) for e in owner.events)
    assert owner.timers["due",] == OwnerOptions().clocks_apart_max_s
    clocks.metadata_ms = 0
    clocks.pass_s(OwnerOptions().clocks_apart_max_s)
    clocks.fall_due(owner)
    assert kept(clocks) == [3]


def test_a_stream_that_waits_for_space_still_loses_what_is_expired() -> None:
    """Its owner begins no segment, so that no change of metadata makes it judge: its timer does."""
    clocks = Clocks()
    owner = clocks.owner()
    clocks.write(owner)
    clocks.write(owner)
    open_one = clocks.stage.value.segments[-1]
    clocks.stage.cannot_create = StoreOutOfReachError("no space left on device")
    waiting = clocks.owner()
    waiting.fire("allocation")
    assert not open_one.completed and 1 not in waiting.answers, "it does not serve"
    clocks.pass_s(RETENTION_S + 1)
    clocks.fall_due(waiting)
    assert kept(clocks) == [open_one.number] and not clocks.stage.value.truncated
    assert set(clocks.stage.stored) == {open_one.name}
