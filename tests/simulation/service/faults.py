"""Performs the faults of a plan on the nodes, links, disks and ZooKeeper of a simulated cluster.

Invariants:
- A fault strikes as the plan says and at most once.
- All faults are over after `heal`.
- Of each entry at most ack quorum - 1 copies are damaged in a way that cannot be undone (flipped bits). No bookie
  repairs here, so the number of bookies that are ever damaged is limited.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.plan import Fault, FaultKind
from tests.simulation.service.loop import S
from tests.simulation.service.nodes import DISK_BYTES, BookieNode, Node

if TYPE_CHECKING:
    from tests.simulation.service.world import World

_INDEXED = (FaultKind.DROP_KTH, FaultKind.HOLD_KTH)


class Faults:
    """Performs the faults of the world's plan."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"{world.plan.seed}/faults")
        self.is_over = False
        self.rotten: set[str] = set()  # bookies whose disks were damaged at rest
        self._marked: dict[str, list[Fault]] = {}
        for fault in world.plan.faults:
            if fault.mark:
                self._marked.setdefault(fault.mark, []).append(fault)

    def begin(self) -> None:
        """Arm the faults that are bound to a time."""
        loop = self.world.loop
        for fault in self.world.plan.faults:
            if not fault.mark:
                loop.at(loop.now + int(fault.at_s * S), loop.world, self._strike, fault)

    def on_mark(self, mark: str, count: int) -> None:
        if self.is_over or mark not in self._marked:
            return
        loop = self.world.loop
        for fault in self._marked[mark]:
            if fault.count == count or (fault.kind in _INDEXED and count == 1):
                loop.at(loop.now + int(fault.at_s * S), loop.world, self._strike, fault)

    def heal(self) -> None:
        """End every fault that may still last."""
        world = self.world
        self.is_over = True
        for bookie in world.bookies:
            bookie.slow_down(1.0)
            bookie.disk.sync_fails = False
            bookie.disk.syncs_to_fail = 0
            bookie.disk.bytes_max = DISK_BYTES
            bookie.disk.unreadable.clear()
        server, process = world.zookeeper.server, world.zookeeper.process
        if server is not None and process is not None:
            server.drop_replies(0)
            server.drop_requests(0)
            server.drop_handshakes(0)
            world.loop.at(world.loop.now, process, server.wake)

    # ---- one fault ---------------------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        world = self.world
        if self.is_over:
            return
        name = fault.message if fault.kind is FaultKind.ENVIRONMENT else fault.kind.value
        if world.loop.on_line is not None:
            world.loop.note(f"FAULT {fault}")
        struck = getattr(self, f"_{name}")(fault)
        if struck is not False:
            world.reach(f"fault.{name}")

    def _node(self, fault: Fault) -> Node:
        return self.world.nodes[fault.a]

    def _again(self, fault: Fault, node: Node) -> None:
        world = self.world
        world.loop.at(world.loop.now + int(fault.for_s * S), world.loop.world, world.boot_if_down, node)

    def _crash(self, fault: Fault) -> bool:
        node = self._node(fault)
        if node.process is None:
            return False
        node.kill()
        self._again(fault, node)
        return True

    def _power(self, fault: Fault) -> bool:
        node = self._node(fault)
        if node.process is None:
            return False
        lost = node.unsynced_lost if isinstance(node, BookieNode) else 0
        node.power_cut(self.rng)
        if isinstance(node, BookieNode) and node.unsynced_lost > lost:
            self.world.reach("power.unsynced")
        self._again(fault, node)
        return True

    def _pause(self, fault: Fault) -> bool:
        process = self._node(fault).process
        if process is None:
            return False
        loop = self.world.loop
        loop.pause(process)
        loop.at(loop.now + int(fault.for_s * S), loop.world, loop.resume, process)
        return True

    def _starve(self, fault: Fault) -> None:
        """Give every process of the service the share `rate` of a CPU: it runs for that part of each second or less."""
        world = self.world
        until_ns = world.loop.now + int(fault.for_s * S)
        for node in world.nodes.values():
            if node not in world.clients:
                period_ns = int(S * self.rng.uniform(0.5, 1.0))
                self._hold_up(node, period_ns, int(period_ns * fault.rate), until_ns)

    def _hold_up(self, node: Node, period_ns: int, runs_ns: int, until_ns: int) -> None:
        loop, process = self.world.loop, node.process
        if self.is_over or loop.now >= until_ns:
            return
        if process is not None:
            loop.pause(process)
            loop.at(loop.now + period_ns - runs_ns, loop.world, loop.resume, process)
        loop.at(loop.now + period_ns, loop.world, self._hold_up, node, period_ns, runs_ns, until_ns)

    def _cut(self, fault: Fault) -> None:
        until = self.world.loop.now + int(fault.for_s * S)
        self.world.network.cut(fault.a, fault.b, until)
        if fault.both:
            self.world.network.cut(fault.b, fault.a, until)

    def _reset(self, fault: Fault) -> bool:
        return self.world.network.reset(fault.a, fault.b) > 0

    def _slow(self, fault: Fault) -> None:
        link = self.world.network.link(fault.a, fault.b)
        link.slow_until = self.world.loop.now + int(fault.for_s * S)
        link.slow_ns = int(fault.rate * S)

    def _drop_kth(self, fault: Fault) -> None:
        link = self.world.network.link(fault.a, fault.b)
        link.lose.add(link.sent + fault.count)

    def _hold_kth(self, fault: Fault) -> None:
        link = self.world.network.link(fault.a, fault.b)
        link.hold[link.sent + fault.count] = int(fault.for_s * S)

    def _meta_cut(self, fault: Fault) -> None:
        until = self.world.loop.now + int(fault.for_s * S)
        self.world.network.cut(fault.a, "zookeeper", until)
        if fault.both:
            self.world.network.cut("zookeeper", fault.a, until)

    # ---- ZooKeeper ---------------------------------------------------------------------------------------------------

    def _meta_reply_lost(self, fault: Fault) -> bool:
        server = self.world.zookeeper.server
        if server is None:
            return False
        choice = self.rng.random()
        if choice < 0.6:
            server.drop_replies(fault.count)
        elif choice < 0.8:
            server.drop_requests(fault.count)
        else:
            server.drop_handshakes(fault.count)
        return True

    def _expire(self, fault: Fault) -> bool:
        server, process = self.world.zookeeper.server, self.world.zookeeper.process
        if server is None or process is None or not server.sessions:
            return False
        session = self.rng.choice(server.sessions)
        self.world.loop.hand(process, server.expire, session)
        return True

    def _cut_sessions(self, fault: Fault) -> bool:
        server, process = self.world.zookeeper.server, self.world.zookeeper.process
        if server is None or process is None:
            return False
        self.world.loop.hand(process, server.cut_all)
        return True

    def _stall(self, fault: Fault) -> bool:
        server, process = self.world.zookeeper.server, self.world.zookeeper.process
        if server is None or process is None:
            return False
        self.world.loop.hand(process, server.stall, fault.for_s)
        return True

    # ---- disks -------------------------------------------------------------------------------------------------------

    def _bookie(self, fault: Fault) -> BookieNode:
        node = self._node(fault)
        assert isinstance(node, BookieNode)
        return node

    def _fsync_error(self, fault: Fault) -> None:
        self._bookie(fault).disk.syncs_to_fail += fault.count

    def _disk_full(self, fault: Fault) -> None:
        disk = self._bookie(fault).disk
        disk.bytes_max = disk.used + self.rng.choice((0, 1000, 100_000))
        loop = self.world.loop
        loop.at(loop.now + int(fault.for_s * S), loop.world, setattr, disk, "bytes_max", DISK_BYTES)

    def _slow_disk(self, fault: Fault) -> None:
        bookie = self._bookie(fault)
        bookie.slow_down(1.0 + fault.rate * 200)
        loop = self.world.loop
        loop.at(loop.now + int(fault.for_s * S), loop.world, bookie.slow_down, 1.0)

    def _rot(self, fault: Fault) -> bool:
        """Flip a few bits at rest in files that hold entries. A bookie with damage in another file may refuse to start
        until an operator acts, so liveness could not be demanded of the cluster."""
        bookie = self._bookie(fault)
        budget = self.world.settings["ack_quorum"] - 1
        if bookie.name not in self.rotten and len(self.rotten) >= budget:
            return False
        disk = bookie.disk
        files = [path for path in sorted(disk.image.names) if disk.image.size(path) and "/entries-" in path]
        if not files:
            return False
        self.rotten.add(bookie.name)
        for _ in range(fault.count):
            path = self.rng.choice(files)
            disk.flip_bit(path, self.rng.randrange(disk.image.size(path) * 8))
        return True

    # ---- operators and clocks ----------------------------------------------------------------------------------------

    def _hand_over(self, fault: Fault) -> bool:
        """Stop a proxy as planned: it hands over and ends; then another process starts."""
        node = self._node(fault)
        if node.process is None:
            return False
        node.ask_to_stop()
        return True

    def _clock(self, fault: Fault) -> None:
        self._node(fault).skew(int((self.rng.random() - 0.5) * 7200 * S))
