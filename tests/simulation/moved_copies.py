"""Bookies of the repair room that free the copies which were moved away, by the shipped state machine.

Its lock is a hint, so here it often excludes nobody. A comparison is answered by what the checker knows of the disks of
the bookies that metadata names, at one moment. The journal of a simulated bookie is also its index: entries that are
freed are taken out of it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from dlog.bookie.messages import CheckpointDue, CopiesToFree, CopiesToSeal, CopiesToUnseal
from dlog.bookie.moved_copies import (
    CompareCopies,
    CopiesCompared,
    CopiesFreed,
    FreeCopies,
    FreeMoved,
    Locked,
    LockLedger,
    MovedCopies,
    MovedFreed,
    Sealed,
    SealLedger,
    UnlockLedger,
    UnsealLedger,
)
from dlog.machine import Effect, Fact, SetTimer, TimerFired
from dlog.model.ids import BookieId, LedgerId
from tests.simulation.kernel import Simulation
from tests.simulation.network import Host
from tests.simulation.repair_checks import RepairChecks
from tests.simulation.shipped_bookie import ShippedBookie

DELAY_S = 0.01


class MovingWorld(Protocol):
    """What a mover needs of its world."""

    sim: Simulation
    checks: RepairChecks


class Mover:
    """The machine of one bookie, at the address `BOOKIE/moved`."""

    def __init__(self, world: MovingWorld, bookie: BookieId, ledger: LedgerId, rng: random.Random) -> None:
        self.machine = MovedCopies(bookie)
        self.world = world
        self.bookie = bookie
        self.ledger = ledger
        self.rng = rng
        self.later: dict[str, Callable[[], Any]] = {}
        self.timers = 0
        self.is_looking = False

    def handle(self, fact: Fact) -> list[Effect]:
        effects: list[Effect] = []
        facts: deque[Any] = deque()
        if isinstance(fact, TimerFired) and fact.key in self.later:
            facts.append(self.later.pop(str(fact.key))())
        else:
            facts.append(fact)
        while facts:
            for effect in self.machine.handle(facts.popleft()):
                match effect:
                    case LockLedger(ledger):
                        is_ours = self.world.sim.healed or self.rng.random() < 0.9
                        effects.append(self.after(partial(Locked, ledger, is_ours)))
                    case CompareCopies(ledger):
                        effects.append(self.after(partial(self.compared, ledger)))
                    case SealLedger(ledger):
                        facts.append(Sealed(ledger, self.seal(ledger)))
                    case UnsealLedger(ledger):
                        self.storage().handle(CopiesToUnseal(ledger))
                    case FreeCopies(ledgers):
                        if self.rng.random() < 0.1:  # no space
                            self.storage().handle(CopiesToUnseal(self.ledger))
                            facts.append(CopiesFreed(ledgers, frozenset(ledgers)))
                        else:
                            wait_s = self.rng.random() * self.rng.choice((0.0, DELAY_S, 5 * DELAY_S))
                            self.world.sim.call_in(wait_s, self.free)
                    case UnlockLedger():
                        pass
                    case _:
                        effects.append(effect)
        return effects

    def after(self, result: Callable[[], Any]) -> SetTimer:
        self.timers += 1
        key = f"later {self.timers}"
        self.later[key] = result
        return SetTimer(key, self.rng.random() * self.rng.choice((0.001, DELAY_S)))

    def compared(self, ledger: LedgerId) -> CopiesCompared:
        return CopiesCompared(ledger, self.world.checks.doubt())

    def storage(self) -> Any:
        return self.world.sim.machine(self.bookie)

    def seal(self, ledger: LedgerId) -> bool:
        storage = self.storage()
        storage.handle(CopiesToSeal(ledger))
        return bool(storage.is_sealed(ledger))

    def free(self) -> None:
        """Have the bookie remove the entries, unless it has died since."""
        host = self.world.sim.hosts.get(self.bookie)
        if host is not None and self.world.sim.machine(f"{self.bookie}/moved") is self:
            self.storage().on_freed = self.freed
            self.tell(host, CopiesToFree(frozenset({self.ledger})))

    def freed(self, is_done: bool) -> None:
        """The bookie has rewritten its index. is_done: it had no reason to keep the entries."""
        failed = frozenset() if is_done else frozenset({self.ledger})
        host = self.world.sim.hosts.get(f"{self.bookie}/moved")
        if host is not None and host.machine is self:
            self.tell(host, CopiesFreed((self.ledger,), failed))

    def tell(self, host: Host, fact: Any) -> None:
        self.world.sim.hand(host, fact)

    def look(self) -> None:
        """Ask for the copies of the ledger to be freed, unless that is under way."""
        storage = self.world.sim.hosts.get(self.bookie)
        if storage is None or self.is_looking:
            return
        self.is_looking = True
        self.world.checks.looks(self.bookie)
        if isinstance(storage.machine, ShippedBookie):
            self.tell(storage, CheckpointDue())
        self.world.sim.ask(f"{self.bookie}/moved", FreeMoved((self.ledger,)), self.looked)

    def looked(self, _: MovedFreed) -> None:
        self.is_looking = False
