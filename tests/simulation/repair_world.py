"""The simulated world of one ledger whose bookies are lost for good or drained: the world of ledger_world.py, and two
repairers. Plans are drawn in repair_drawing.py.

A bookie is lost only while an ack quorum less one of those that metadata names are: more losses may lose entries. After
the faults the world heals; then metadata must end up without the bookies that are gone, with every entry on its whole
write set and readable as before. At last the ledger is deleted while it is repaired.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from dlog.errors import DLogError, LedgerNotFoundError, UnavailableError
from dlog.ledger.reading import EntryReader, ReadDone, ReadLedger
from dlog.ledger.repair import LedgerRepairer, Repair, Repaired, RepairOptions
from dlog.ledger.verifying import LedgerVerifier, Verify
from dlog.model.ids import BookieId, EntryId
from dlog.model.verification import BadRange, Verified
from dlog.options import draw
from tests.simulation.kernel import Violation
from tests.simulation.ledger_drawing import RECOVERERS
from tests.simulation.ledger_world import KEY, LEDGER, PASSWORD, SETTLE_S, LedgerWorld, run_world
from tests.simulation.moved_copies import Mover
from tests.simulation.network import Node
from tests.simulation.plan import Plan
from tests.simulation.repair_checks import RepairChecks
from tests.simulation.repair_drawing import REPAIRERS, STYLES, draw_plan
from tests.simulation.worlds import Outcome, Room

MUST_REACH = (
    "repaired",
    "ack",
    "recovered",
    "bookie_gone",
    "bookie_drained",
    "repaired_ensemble",
    "copied_to_another",
    "ensemble_split",
    "split_refused",
    "repair_waits",
    "repair_conflict",
    "repair_failed",
    "out_of_reach",
    "settled_unknown",
    "written_again",
    "not_found",
    "moved",
    "freed",
    "freed_and_chosen_again",
)
RARE = ("unreadable", "repaired_while_open", "read_failed", "fault.power")
CHECKER = "c"  # node of the verifier and of the last reader


class RepairWorld(LedgerWorld):
    """One history of one ledger that is repaired."""

    checks_class = RepairChecks
    checks: RepairChecks

    def __init__(self, plan: Plan, parts: Mapping[str, Any], *, trace: bool = False) -> None:
        super().__init__(plan, parts, trace=trace)
        self.gone: dict[BookieId, bool] = {}  # -> whether its disk is lost
        self.asked: dict[str, Repair] = {}  # repairs without a reply, by node
        self.victims = random.Random(f"{plan.seed}/victims")
        self.checks.fragments_max = self.config.get("fragments_max", RepairOptions().fragments_max)
        for name in REPAIRERS:
            self.sim.node(name, start=self.start_repairer)
        self.sim.node(CHECKER)
        self.movers_rng = random.Random(f"{plan.seed}/movers")
        if "move_at" in self.config:
            for bookie in self.bookies:
                self.start_mover(bookie)

    def start_bookie(self, node: Node) -> None:
        super().start_bookie(node)
        name = BookieId(node.name)
        self.sim.machine(name).on_rewritten = lambda: self.checks.freed(name)
        if "move_at" in self.config and hasattr(self, "movers_rng"):
            self.start_mover(name)

    def start_mover(self, name: BookieId) -> None:
        mover = Mover(self, name, LEDGER, random.Random(self.movers_rng.random()))
        self.sim.place(name, f"{name}/moved", mover)

    def start_repairer(self, node: Node) -> None:
        repairer = self.parts.get("repairer", LedgerRepairer)
        options = draw(RepairOptions, self.options)
        if "patience" in self.config and not self.sim.healed:
            attempts_max, retry_s = self.config["patience"]
            options = replace(options, attempts_max=attempts_max, retry_s=retry_s)
        options = replace(options, fragments_max=self.checks.fragments_max)
        self.sim.place(node.name, f"{node.name}/repairer", repairer(LEDGER, self.placement(), options, PASSWORD))
        if node.name in self.asked:
            self.ask_repair(node.name)

    def candidates(self, exclude: Collection[BookieId]) -> list[BookieId]:
        """The writable bookies as registered. One that is gone may still be named while there are faults."""
        stale = not self.sim.healed and self.sim.rng.random() < 0.05
        return [b for b in super().candidates(exclude) if b not in self.gone or stale]

    # ---- bookies that go ---------------------------------------------------------------------------------------------

    def go_amid_faults(self, is_lost: bool) -> None:
        if not self.sim.healed:
            self.go(is_lost)

    def go(self, is_lost: bool) -> None:
        """Lose a bookie for good, or begin to drain it; later, if too many are lost already or none is left."""
        metadata = self.checks.metadata
        named = sorted({b for f in metadata.fragments for b in f.ensemble})
        lost = [b for b in named if self.gone.get(b)]
        left = [b for b in named if b not in self.gone]
        if (is_lost and len(lost) >= metadata.quorum.ack - 1) or not left:
            self.sim.call_in(0.05, self.go_amid_faults, is_lost)
            return
        victim = self.victims.choice(left)
        self.gone[victim] = is_lost
        if is_lost:
            self.lose(victim)
        self.sim.reach("bookie_gone" if is_lost else "bookie_drained")

    def lose(self, victim: BookieId) -> None:
        self.gone[victim] = True
        self.sim.nodes[victim].start = None
        self.sim.crash(victim, power=self.victims.random() < 0.5, for_s=0.0)
        self.checks.lose(victim)

    # ---- ledgers that are moved, and bookies that free what was moved away -------------------------------------------

    def move(self, name: str) -> None:
        """Have a repairer move what a bookie holds of the closed ledger to others, as a rebalance does."""
        value = self.checks.metadata
        named = sorted({b for f in value.fragments for b in f.ensemble if b not in self.gone})
        if self.sim.healed or name in self.asked or not value.is_closed or not named:
            return
        source = self.victims.choice(named)
        self.sim.reach("moved")
        self.asked[name] = Repair(frozenset(self.gone) | {source})
        if self.sim.is_up(name):
            self.ask_repair(name)

    def look_all(self) -> None:
        for bookie in self.bookies:
            self.look(bookie)

    def look(self, bookie: BookieId) -> None:
        mover = self.sim.machine(f"{bookie}/moved")
        if mover is not None:
            mover.look()

    def free_all(self) -> None:
        """Look until no bookie holds what was moved away."""
        named = {b for f in self.checks.metadata.fragments for b in f.ensemble}
        left: list[BookieId] = []
        for _ in range(20):
            left = [b for b in self.bookies if b not in named and not self.gone.get(b) and self.checks.holds(b)]
            if not left:
                return
            for bookie in left:
                self.look(bookie)
            self.sim.run(until_s=self.sim.now_s + 1.0)
        raise Violation("L31", f"copies that were moved away are kept for ever by {left}")

    # ---- repairs -----------------------------------------------------------------------------------------------------

    def repair(self, name: str, bad: tuple[BadRange, ...] = ()) -> None:
        """Ask for a repair of what is gone now, unless one runs there."""
        if name in self.asked:
            return
        self.asked[name] = Repair(frozenset(self.gone), bad)
        if self.sim.is_up(name):
            self.ask_repair(name)

    def ask_repair(self, name: str) -> None:
        self.sim.reach("repair_asked")
        self.sim.ask(f"{name}/repairer", self.asked[name], lambda result: self.after_repair(name, result))

    def after_repair(self, name: str, result: Repaired | DLogError) -> None:
        request = self.asked[name]
        if isinstance(result, LedgerNotFoundError):
            if not self.checks.deleted:
                raise Violation("L17", f"the ledger is there, and its repair says: {result}")
            self.sim.reach("not_found")
            del self.asked[name]
        elif isinstance(result, DLogError):
            self.sim.reach("repair_failed")
            if type(result) is UnavailableError:
                self.sim.reach("out_of_reach")
            self.asked[name] = Repair(frozenset(self.gone), request.bad)
            self.sim.call_in(0.2, self.ask_repair, name, node=name)
        else:
            del self.asked[name]
            self.repaired(name, request, result)

    def repaired(self, name: str, request: Repair, result: Repaired) -> None:
        if result.waits:
            self.sim.reach("repair_waits")
            self.sim.reach("repaired_while_open" if result.replaced else "nothing_to_repair_yet")
            if self.victims.random() < 0.5:
                self.recover(RECOVERERS[0])
        elif result.unreadable:
            self.sim.reach("unreadable")
            if any("too many fragments" in found.reason for found in result.unreadable):
                self.sim.reach("split_refused")
        elif request.gone:
            self.sim.reach("repaired")
        if request.bad and result.copied_entries:
            self.sim.reach("written_again")

    # ---- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the history of the ledger, then the demands on its repair."""
        for at_s, is_lost in self.config["gone_at"]:
            self.sim.call_in(at_s, self.go_amid_faults, is_lost)
        for at_s, name in self.config["repair_at"]:
            self.sim.call_in(at_s, self.repair, name)
        for at_s, name in self.config.get("move_at", ()):
            self.sim.call_in(at_s, self.move, name)
        for at_s in self.config.get("look_at", ()):
            self.sim.call_in(at_s, self.look_all)
        super().run()
        self.demand_no_repair()
        self.go(is_lost=self.config["quorum"][2] > 1)
        self.repair_all()
        self.lose_copies()
        self.verify_all()
        self.read_all()
        if "move_at" in self.config:
            self.free_all()
            self.checks.check_whole()
        self.wipe_the_drained()
        self.read_all()
        self.delete_it()

    def demand_no_repair(self) -> None:
        """Demand that every repair ends."""
        if not self.sim.run(until_s=self.sim.now_s + SETTLE_S, until=lambda: not self.asked):
            raise Violation("L17", f"a repair never ended: {self.asked}")

    def repair_all(self) -> None:
        """Repair until metadata names nothing that is gone."""
        for _ in range(5):
            for name in REPAIRERS[: self.victims.choice((1, 2))]:
                self.repair(name)
            self.demand_no_repair()
            if not self.named_and_gone():
                return
        raise Violation("L17", f"metadata still names {self.named_and_gone()}: {self.checks.metadata.fragments}")

    def named_and_gone(self) -> list[BookieId]:
        return sorted({b for f in self.checks.metadata.fragments for b in f.ensemble if b in self.gone})

    def lose_copies(self) -> None:
        """Have a bookie forget some entries that others hold."""
        if self.config["real"] or self.victims.random() < 0.5:
            return
        victim = self.victims.choice([b for b in self.bookies if b not in self.gone])
        metadata = self.checks.metadata
        safe = {e for e in range(metadata.last_entry + 1) if len(self.checks.live(e, metadata.bookies_of(e))) > 1}
        forgotten = {e for e in sorted(safe) if self.victims.random() < 0.5}
        self.sim.crash(victim, for_s=0.0)
        self.checks.forget(victim, forgotten)

    def verify_all(self) -> None:
        """Have missing copies on bookies that stay written again."""
        found = self.verified()
        if found.ranges:
            self.repair(REPAIRERS[0], found.ranges)
            self.demand_no_repair()
            if ranges := self.verified().ranges:
                raise Violation("L17", f"copies are missing after they were written again: {ranges}")
        # the model of a bookie serves entries that it has not synced yet, as Java's bookie does
        self.sim.run(until_s=self.sim.now_s + 5.0, until=self._are_synced)
        self.checks.check_whole()

    def _are_synced(self) -> bool:
        return not any(self.sim.disk(bookie).pending for bookie in self.bookies)

    def verified(self) -> Verified:
        metadata = self.checks.metadata
        if metadata.last_entry < 0:
            return Verified(0)
        self.sim.place(CHECKER, "c/verifier", LedgerVerifier(LEDGER, metadata, self.digest))
        found: list[Verified] = []
        self.sim.ask("c/verifier", Verify(metadata.last_entry), found.append)
        self.demand(lambda: bool(found), "a verification never ended")
        return found[0]

    def read_all(self) -> None:
        """Read the ledger as a client that has just opened it."""
        metadata = self.checks.metadata
        if metadata.last_entry < 0:
            return
        self.sim.place(CHECKER, "c/reader", EntryReader(LEDGER, metadata, self.digest))
        upcoming = EntryId(0)
        while upcoming <= metadata.last_entry:
            found: list[ReadDone | DLogError] = []
            self.sim.ask("c/reader", ReadLedger(upcoming, metadata.last_entry), found.append)
            self.demand(lambda found=found: bool(found), "a read never ended")
            (result,) = found
            if isinstance(result, DLogError):
                raise Violation("L16", f"a repaired ledger cannot be read: {result}")
            for entry in result.entries:
                if bytes(entry.payload) != self.checks.payloads[entry.entry_id]:
                    raise Violation("L16", f"entry {entry.entry_id} reads {bytes(entry.payload)!r} after the repair")
            upcoming = EntryId(upcoming + len(result.entries))

    def wipe_the_drained(self) -> None:
        """Take the bookies that were drained out of service."""
        for bookie, is_lost in list(self.gone.items()):
            if not is_lost:
                self.lose(bookie)

    def delete_it(self) -> None:
        """Delete the ledger while it is repaired; nothing may bring its metadata back."""
        self.go(is_lost=False)
        self.repair(REPAIRERS[0])
        self.sim.run(until_s=self.sim.now_s + self.victims.choice((0.0, 0.002, 0.01, 0.05)))
        self.checks.deleted = True
        del self.sim.metadata.values[KEY]
        self.repair(REPAIRERS[1])
        self.demand_no_repair()
        if KEY in self.sim.metadata.values:
            raise Violation("L16", "a repair brought a deleted ledger back")


def run_plan(plan: Plan, parts: Mapping[str, Any] | None = None, *, trace: bool = False) -> Outcome:
    """Run one plan to its end or to the first violation. parts["planted"]: pairs of a class and its mutant."""
    return run_world(RepairWorld, "p1/repairer", plan, parts, trace=trace)


def room() -> Room:
    """The simulation `repair` of `python -m tests.simulation`."""
    from tests.simulation.mutants.repair import MUTANTS

    return Room(
        name="repair",
        styles=STYLES,
        draw=draw_plan,
        run=run_plan,
        must_reach=MUST_REACH,
        mutants=MUTANTS,
        progress={"acks": ("ack",), "repairs": ("repaired",), "replaced bookies": ("repaired_ensemble",)},
        rare=RARE,
    )
