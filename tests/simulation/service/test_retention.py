"""Retention in the whole service: the times by which ZooKeeper's clock gives a segment's age reach the deleting
code."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from dlog.events import Event, SegmentCompleted, SegmentDeleted
from tests.simulation.plan import Plan
from tests.simulation.service import drawing, world
from tests.simulation.service.loop import S

RETENTION_S = 4.0
REPLY_S = 0.1  # a segment is reported as complete when the reply that says so has arrived


def plan(seed: int) -> Plan:
    """A stream that is written all the time by a producer that keeps up, and that ends a segment each second."""
    drawn = drawing.draw(seed, "quiet")
    config = {**drawn.config, "drawn": False, "events_lost": 0.0, "streams": 1, "cancels": 0.0, "truncates": False}
    config |= {"pace_s": 0.1, "duration_s": 15.0, "record_bytes": 200}
    config["settings"] = {**config["settings"], "segment_age_s": 1.0, "retention_s": RETENTION_S}
    return Plan(seed=seed, config=config, faults=())


@pytest.mark.parametrize("seed", (1, 2))
def test_a_segment_goes_when_its_retention_is_over_and_not_before(seed: int) -> None:
    completed: dict[int, float] = {}
    deleted: dict[int, float] = {}
    hear = world.World.hear

    def listen(self: world.World, node: Any, event: Event) -> None:
        now_s = self.loop.now / S
        if isinstance(event, SegmentCompleted):
            completed.setdefault(event.segment, now_s)
        if isinstance(event, SegmentDeleted):
            deleted.setdefault(event.segment, now_s)
        hear(self, node, event)

    with mock.patch.object(world.World, "hear", listen):
        world.run(plan(seed))  # its checker of histories knows of no retention, and calls lost what expired
    assert len(deleted) >= 5
    kept_s = [deleted[number] - completed[number] for number in deleted]
    assert min(kept_s) >= RETENTION_S - REPLY_S and max(kept_s) < RETENTION_S + 3
