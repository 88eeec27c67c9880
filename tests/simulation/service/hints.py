"""ZooKeeper's events, lost on their way: a watch is a hint, and whoever heeds it must do without (M3).

The law of this file: what one change has to tell one session is lost as a whole. Both sides take the watch for set, or
used up, and nothing mends that before the session's end.
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
    """While this lasts, as large a share of all events is lost as the plan says: `events_lost`, 0 to 1."""
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
