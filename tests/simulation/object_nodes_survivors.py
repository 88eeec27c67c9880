"""Survivors of the simulation `nodes`: nobody opens a stream of a node that is gone, others find and take over it.

A process of the operating system runs its node, looks for idle nodes (dlog/objects/idle_nodes.py), and runs failovers.
All of it dies together, for good or until the process is begun again, and is frozen together.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from dlog.errors import DLogError
from dlog.model.object_streams import NodeEpoch, NodeId
from dlog.objects.failover import FailoverWorker
from dlog.objects.idle_nodes import IdleNodes, Looked, TakeOver
from dlog.objects.node import Phase
from dlog.objects.node_messages import AwaitUploaded, RecoverNode
from dlog.objects.operations import DeleteKey
from tests.simulation.kernel import Violation
from tests.simulation.object_nodes_processes import Life, NodeHost, Process

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tests.simulation.object_nodes_world import NodesWorld

STALE_TICKS = 4  # by which what a process has read of registrations may be behind


class Survivor:
    """What a process does for other nodes, from its begin to its death. looked_s: when it looked last."""

    def __init__(self, host: SurvivorHost, life: Life, world: NodesWorld) -> None:
        self.life = life
        self.looked_s = -1.0
        self._host = host
        self._world = world
        self._idle_nodes = IdleNodes(host.name)
        self._failovers: dict[NodeId, Process] = {}
        self._plan_look()

    def _plan_look(self) -> None:
        world = self._world
        after_s = world.config["look_s"] * world.rng.uniform(0.8, 1.2)
        if world.looks_on:
            world.later(after_s, lambda: self.life.run(self._look))

    def _look(self) -> None:
        self._plan_look()
        if not self._world.survivors.has_controller(self._host):
            return
        live = self._world.survivors.registered()
        self._world.ask_controller(DeleteKey("barrier"), lambda done: self.life.run(partial(self._looked, live, done)))

    def _looked(self, live: Collection[NodeId], result: Any) -> None:
        if isinstance(result, DLogError):
            return
        world = self._world
        running = {node: worker for node, worker in self._failovers.items() if not worker.is_dead}
        failovers = {node: worker.machine.node_epoch for node, worker in running.items()}
        for effect in self._idle_nodes.handle(Looked(world.controller.image, live, failovers)):
            self._check(effect, live, failovers)
            world.later(
                world.rng.uniform(0, 0.3), partial(self.life.run, partial(self._take_over, effect.node, effect))
            )
        self.looked_s = world.now_s

    def _check(self, effect: TakeOver, live: Collection[NodeId], failovers: Mapping[NodeId, NodeEpoch]) -> None:
        """A node that is well is not taken over."""
        world, node = self._world, effect.node
        known = world.controller.node(node)
        text = f"{self._host.name} takes over {node} of epoch {effect.node_epoch}"
        if node == self._host.name:
            raise Violation("N3", f"{text}, its own node")
        if node in live and not known.is_failover:
            raise Violation("N3", f"{text}, which is registered")
        if world.progress_s.get(node, 0.0) > self.looked_s:
            raise Violation("N3", f"{text}, which made progress at {world.progress_s[node]}, after {self.looked_s}")
        if failovers.get(node, 0) >= known.node_epoch:
            raise Violation("N3", f"{text}, whose failover {failovers[node]} runs here")
        life = world.survivors.hosts[node].life
        ranges = [one for stream in world.controller.image.streams.values() for one in stream.ranges]
        has_open = any(one.node == node and one.end is None for one in ranges)
        world.reached["idle"] += 1
        world.reached["idle_without_streams"] += not has_open and bool(known.wal)
        world.reached["idle_lives"] += not life.is_dead
        world.reached["idle_after_failover"] += known.is_failover

    def _take_over(self, node: NodeId, effect: TakeOver) -> None:
        """As dlog/stores/s3/failovers.py does."""
        world = self._world
        if world.controller.node_epoch(node) != effect.node_epoch:
            world.reached["idle_raced"] += 1
            return
        former = self._failovers.pop(node, None)
        if former is not None:
            former.die()
        epoch = NodeEpoch(effect.node_epoch + 1)
        worker = self._host.start(FailoverWorker(node, epoch, world.rng.randbytes(8), world.options), node)
        self._failovers[node] = worker

        def ended(result: Any) -> None:
            if isinstance(result, DLogError):
                world.reached["idle_raced"] += 1
                worker.die()
            else:
                world.reached["failover"] += 1

        def uploaded(result: Any) -> None:
            world.reached["rest_uploaded"] += not isinstance(result, DLogError)
            worker.die()

        worker.ask(RecoverNode(), ended)
        worker.ask(AwaitUploaded(), uploaded)


class SurvivorHost(NodeHost):
    """One node, whose process may die for good."""

    def __init__(self, world: NodesWorld, name: NodeId) -> None:
        super().__init__(world, name)
        self.is_gone = False
        self.life = Life()
        self.life.is_dead = True

    def begin(self) -> None:
        if self.life.is_dead:
            self.life = Life()
            Survivor(self, self.life, self._world)
        super().begin()

    def _life(self) -> Life:
        return self.life

    def _watch(self, process: Process) -> None:
        """Begin a machine once this one is over or fenced, and another process once this one is dead, perhaps."""
        world = self._world
        if self.process is not process or self._is_finishing or self.is_gone:
            return
        if self.life.is_dead:
            if world.rng.random() < world.config["returns"] or world.survivors.is_last(self):
                self.begin()
            else:
                self.is_gone = True
            return
        machine = process.machine
        is_fenced = world.controller.node_epoch(self.name) > machine.node_epoch
        is_over = getattr(machine, "phase", None) is Phase.OVER
        if not self.life.is_frozen and (is_over or is_fenced):
            world.reached["over"] += is_over
            world.reached["fenced_and_begun"] += is_fenced
            process.die()
            self.begin()
            return
        world.later(world.rng.uniform(0.2, 2.0), lambda: self._watch(process))

    def heal(self) -> None:
        """Survivors.settle decides for all."""

    def settle(self, *, stays: bool) -> None:
        """Faults are over. stays: this one goes on, else it is gone."""
        self.life.wake()
        self.is_gone = not stays
        if not stays:
            self._world.reached["gone"] += 1
            self.life.is_dead = True
        elif self.life.is_dead:
            self.begin()

    def finish(self, attempts: int = 2) -> None:
        if self.is_gone:
            self.is_finished = True
        else:
            super().finish(attempts)

    def _leave(self, process: Process) -> None:
        """It has closed its streams and uploaded all. It begins once more, which closes streams that a late request has
        opened here, and goes on."""
        self.goes_on = True
        process.die()
        self.begin()

    def _started(self, process: Process, result: Any) -> None:
        super()._started(process, result)
        self.is_finished = self.goes_on and not isinstance(result, DLogError)


class Survivors:
    """All processes, and what they see of each other: registrations, which come and go late."""

    def __init__(self, world: NodesWorld, hosts: list[SurvivorHost]) -> None:
        self._world = world
        self.hosts = {host.name: host for host in hosts}
        self._now: set[NodeId] = set()
        self._past: list[frozenset[NodeId]] = [frozenset()]

    def tick(self) -> None:
        """Some time is over: processes die, freeze and wake up, registrations follow."""
        rng, config = self._world.rng, self._world.config
        for host in self.hosts.values():
            life = host.life
            if not self._world.is_quiet and not life.is_dead:
                if rng.random() < config["kills"]:
                    life.is_dead = True
                    self._world.reached["died"] += 1
                elif life.is_frozen:
                    if rng.random() < 0.2:
                        life.wake()
                elif rng.random() < config["freezes"]:
                    life.is_frozen = True
                    self._world.reached["frozen"] += 1
            if rng.random() < config["registers"]:
                (self._now.discard if life.is_dead or life.is_frozen else self._now.add)(host.name)
        self._past = [*self._past[1 - STALE_TICKS :], frozenset(self._now)]

    def registered(self) -> frozenset[NodeId]:
        """As a process sees it now, perhaps as it was."""
        seen = self._world.rng.choice(self._past)
        self._world.reached["stale_registration"] += any(
            host.name in seen and host.life.is_dead for host in self.hosts.values()
        )
        return seen

    def has_controller(self, host: SurvivorHost) -> bool:
        """Whether a process believes that; several may, and before the end nobody."""
        if self._world.config["lookers"] == "all" or (not self._world.is_quiet and self._world.rng.random() < 0.1):
            return True
        return (
            next((one for one in self.hosts.values() if not one.life.is_dead and not one.life.is_frozen), None) is host
        )

    def is_last(self, host: SurvivorHost) -> bool:
        return all(one is host or one.life.is_dead for one in self.hosts.values())

    def settle(self) -> None:
        """Faults are over: one stays at least, the others may be gone for good."""
        if not self.hosts:
            return
        rng, living = self._world.rng, [host for host in self.hosts.values() if not host.life.is_dead]
        keeper = rng.choice(living or list(self.hosts.values()))
        for host in self.hosts.values():
            host.settle(stays=host is keeper or (not host.life.is_dead and rng.random() < 0.5))
