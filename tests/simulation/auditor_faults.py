"""Performs the faults of the room `auditor`: those of processes and ZooKeeper as in the room `service`, and its own of
bookies.

Invariants:
- A disk is lost only while nothing is lost for good with it: no other bookie that metadata names for the same ledger is
  lost or lacks a copy. One that comes back empty was named by no open ledger, because its "no such entry" would count.
- All faults are over after `heal`.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.auditor_bookies import AuditedBookie
from tests.simulation.auditor_checks import PATHS
from tests.simulation.plan import Fault
from tests.simulation.service.faults import Faults
from tests.simulation.service.loop import S


def slows_auditor(fault: Fault) -> bool:
    """Whether an auditor may look at registrations late because of it."""
    return not fault.a.startswith(("bookie-", "writer-"))


class AuditorFaults(Faults):
    """Performs the faults of a plan; those of bookies are its own."""

    world: Any

    def __init__(self, world: Any) -> None:
        super().__init__(world)

    def heal(self) -> None:
        self.is_over = True
        world = self.world
        server, process = world.zookeeper.server, world.zookeeper.process
        if server is not None and process is not None:
            server.drop_replies(0)
            server.drop_requests(0)
            server.drop_handshakes(0)
            world.loop.at(world.loop.now, process, server.wake)

    def may_lose(self, node: AuditedBookie, *, comes_back: bool = False) -> bool:
        """Whether nothing is lost for good if this bookie is. comes_back: with an empty disk, on which a recovery of an
        open ledger must not rely."""
        world, checks = self.world, self.world.checks
        down = world.gone | {world.bookie_of(bookie).name for bookie in world.decommissioned}
        up = sum(bookie.name not in down for bookie in world.bookies)
        if node.name in down or (not comes_back and up <= world.quorum.ensemble):
            return False
        for ledger, value in checks.ledgers.items():
            members = {bookie for fragment in value.fragments for bookie in fragment.ensemble}
            if ledger in world.bad or (value.is_closed and node.bookie not in members):
                continue
            others = [world.bookie_of(bookie) for bookie in members if bookie != node.bookie]
            if any(checks.lacks(ledger, other.bookie) or other.name in down for other in others):
                return False
            if not value.is_closed and comes_back and node.bookie in members:
                return False
        return True

    def _lose(self, node: AuditedBookie) -> None:
        node.kill()
        node.lose_disk()
        self.world.gone.add(node.name)

    def _lose_disk(self, fault: Fault) -> bool:
        node = self.world.nodes[fault.a]
        if not self.may_lose(node):
            return False
        self._lose(node)
        return True

    def _empty_disk(self, fault: Fault) -> bool:
        """Lose the disk of a bookie, which is started with an empty one at once."""
        world, node = self.world, self.world.nodes[fault.a]
        if node.process is None or not self.may_lose(node, comes_back=True):
            return False
        node.kill()
        node.lose_disk()
        world.held_down.add(node.name)
        world.launch(f"hand-{self.rng.random()}", lambda process: world.reformat(process, node))
        return True

    def _crash_bookie(self, fault: Fault) -> bool:
        """Kill the bookie, or stop it, which ends its registration at once."""
        node = self.world.nodes[fault.a]
        if self.rng.random() < 0.5:
            return self._crash(fault)
        if node.process is None or node.name in self.world.held_down:
            return False
        self.world.stop_for(node, fault.for_s)
        return True

    def _freeze_bookie(self, fault: Fault) -> bool:
        return self._pause(fault)

    def _lose_reply(self, fault: Fault) -> bool:
        """Carry out the next change of ZooKeeper and lose its answer, with the connection."""
        server = self.world.zookeeper.server
        if server is not None:
            server.drop_replies(1)
        return server is not None

    def _expire_voters(self, fault: Fault) -> bool:
        """End the session of every recovery process, as a long outage of ZooKeeper does."""
        server, process = self.world.zookeeper.server, self.world.zookeeper.process
        if server is None or process is None:
            return False
        tree, election = self.world.zookeeper.ensemble.tree, PATHS.underreplication.election
        for vote in list(tree.nodes[election].children):
            self.world.loop.hand(process, server.expire, tree.nodes[f"{election}/{vote}"].owner)
        return True

    def _delete_marked(self, fault: Fault) -> bool:
        """Delete a ledger that is closed and marked."""
        world, checks = self.world, self.world.checks
        found = [n for n in sorted(checks.marks) if n in checks.ledgers and checks.ledgers[n].is_closed]
        if not found:
            return False
        ledger = self.rng.choice(found)
        world.launch(f"hand-{self.rng.random()}", lambda process: world.delete(process, ledger))
        return True

    def _cut_bookie(self, fault: Fault) -> None:
        self.world.cut(fault.a, fault.for_s)

    def _marked_bookie(self) -> AuditedBookie | None:
        """A bookie that runs and is named by the mark that a frozen worker is about to delete, or else by its ledger's
        metadata."""
        world, checks = self.world, self.world.checks
        ledger = world.held_ledger
        if ledger not in checks.marks or ledger not in checks.ledgers:
            return None
        members = {bookie for fragment in checks.ledgers[ledger].fragments for bookie in fragment.ensemble}
        for named in (checks.marks[ledger].bookies & members, members):
            found = [b for b in world.bookies if b.bookie in named and b.process and b.name not in world.held_down]
            if found:
                chosen: AuditedBookie = self.rng.choice(found)
                return chosen
        return None

    def _crash_marked(self, fault: Fault) -> bool:
        node = self._marked_bookie()
        if node is None:
            return False
        self.world.stop_for(node, fault.for_s)
        return True

    def _lose_marked(self, fault: Fault) -> bool:
        node = self._marked_bookie()
        if node is None or not self.may_lose(node):
            return False
        self._lose(node)
        return True

    def _planned_restart(self, fault: Fault) -> bool:
        world, node = self.world, self.world.nodes[fault.a]
        if node.process is None or node.name in world.held_down:
            return False
        announced_s = self.rng.choice((1, 3, 6))
        world.launch(
            f"hand-{self.rng.random()}", lambda process: world.planned_restart(process, node, announced_s, fault.for_s)
        )
        return True

    def _return(self, fault: Fault) -> bool:
        """Start the bookie that is decommissioned, for a while."""
        world, node = self.world, self.world.bookies[-1]
        if node.bookie not in world.decommissioned or node.process is not None:
            return False
        node.boot()
        stop = node.ask_to_stop if self.rng.random() < 0.6 else node.kill
        world.loop.at(world.loop.now + int(fault.for_s * S), world.loop.world, stop)
        return True
