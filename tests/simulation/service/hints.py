"""Loses events of ZooKeeper: a watch is a hint, and its user must reach the same result without it (M3).

Invariants:
- The events of one change for one session are lost together or not at all.
- Client and server both believe that the watch is set, or used up; nothing corrects that before the session ends.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from unittest import mock

from tests.simulation.plan import Plan
from tests.simulation.service.zookeeper_ensemble import Client, Member
from tests.simulation.service.zookeeper_tree import Change


@contextlib.contextmanager
def lost(plan: Plan) -> Iterator[None]:
    """Lose the plan's share of all events (`events_lost`, 0 to 1) while this context is entered."""
    share = plan.config.get("events_lost", 0.0)
    if not share:
        yield
        return
    may_hear = Member._may_hear

    def hears(self: Member, client: Client, change: Change, kind: int) -> bool:
        chance = random.Random(f"{plan.seed}/{client.session_id}/{self.applied}").random()
        return chance >= share and may_hear(self, client, change, kind)

    with mock.patch.object(Member, "_may_hear", hears):
        yield
