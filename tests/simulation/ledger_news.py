"""News that a reader of a ledger receives without asking: the LAC from the owner, and metadata that others read.

Both may be late; neither is ever wrong. Style "told": members fail and are replaced while the reader, which is sent
each LAC at once, is cut off from some.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dlog.ledger.reading import UseMetadata
from dlog.ledger.tailing import LearnLac
from dlog.model.ids import EntryId
from tests.simulation.plan import Fault, FaultKind, Plan

if TYPE_CHECKING:
    from tests.simulation.ledger_world import LedgerWorld


def with_news(plan: Plan, reader: str, rng: random.Random) -> Plan:
    """Make a plan whose reader receives news, and is cut off from bookies."""
    names = [f"b{i}" for i in range(1, plan.config["bookies"] + 1)]
    duration = plan.config["duration_s"]
    faults: list[Fault] = []
    for _ in range(rng.randint(1, 6)):
        kind = rng.choice((FaultKind.CUT, FaultKind.RESET, FaultKind.SLOW))
        mark, count = rng.choice((("", 1), ("bookie_lost", 1), ("ensemble_change", 1), ("ensemble_change", 2)))
        at_s, for_s = rng.uniform(0, 0.005 if mark else duration), rng.uniform(0.005, 0.3)
        rate, name = rng.uniform(0.01, 0.1), rng.choice(names)
        faults.append(
            Fault(kind=kind, at_s=at_s, for_s=for_s, a=reader, b=name, both=True, rate=rate, mark=mark, count=count)
        )
    return replace(
        plan,
        config=plan.config | {"told_s": rng.choice((0.0005, 0.002, 0.01)), "late_s": rng.choice((0.0, 0.005, 0.05))},
        faults=plan.faults + tuple(faults),
    )


class News:
    """Sends news to the reader of `world`, every `told_s` on average."""

    def __init__(self, world: LedgerWorld, node: str) -> None:
        self._world = world
        self._node = node
        self._rng = random.Random(f"{world.plan.seed}/news")

    def begin(self) -> None:
        """Send news from a start of the reader's process on."""
        if "told_s" in self._world.config:
            self._later(self._rng.expovariate(1.0) * self._world.config["told_s"], self._tell)

    def _later(self, delay_s: float, then: Any, *args: Any) -> None:
        self._world.sim.call_in(delay_s, then, *args, node=self._node)

    def _tell(self) -> None:
        world = self._world
        if world.tail_closed:
            return
        late_s = self._rng.random() * world.config["late_s"]
        if self._rng.random() < 0.5:
            self._later(late_s, self._heard, "t/reader", UseMetadata(world.checks.metadata))
        elif world.checks.lac >= 0:
            self._later(late_s, self._heard, "t/tailer", LearnLac(EntryId(world.checks.lac)))
        self.begin()

    def _heard(self, address: str, news: Any) -> None:
        self._world.sim.ask(address, news)
